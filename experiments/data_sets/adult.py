"""The census of 1994, "Adult": UCI's files, LIBSVM's encoding of them, DPareto's division of that.

`adult`: `read_adult` keeps the fourteen attributes as published; `encode_adult` turns them into
inputs with constants and vocabularies that are public: those of `adult.names`, the file published
beside the data, and the ranges below. Nothing is computed from the rows. TFDS has no such data set.

`a9a`: LIBSVM's encoding. 123 binary columns, so a record's norm is at most sqrt(14).

`a1a`: the division of a9a that DPareto's authors used. It needs no file of its own. LIBSVM's a1a
(1,605 rows) and a1a.t (30,956) are the rows of a9a in their order, chosen by the C run-time's
pseudo-random generator: row i goes to a1a when the i-th number of Microsoft's rand(), seeded with
1, is below floor(0.05 * 32767). Established for this project: the same rule with 0.07, 0.1, 0.15,
0.2, 0.35, 0.5 and 0.7 gives exactly the published sizes of a2a to a8a; the resulting a1a agrees
with the published counts of each class and with rows and byte offsets of public copies of a1a. The
SHA-256 of LIBSVM's own a1a and a1a.t could not be compared, as they were out of reach; no figure
depends on it.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import numpy as np

from dpjax.data import splitting
from dpjax.data.published_files import PublishedFile
from dpjax.data.source import Arrays, Source, register

_UCI_ADDRESS = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
ADULT_FILES = (
    PublishedFile(
        "adult.data",
        _UCI_ADDRESS + "adult.data",
        "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
        3974305,
    ),
    PublishedFile(
        "adult.test",
        _UCI_ADDRESS + "adult.test",
        "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
        2003153,
    ),
)
MISSING = "?"
CLASS_NAMES = ("<=50K", ">50K")

_VOCABULARY_WORDS = {
    "workclass": (
        "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay "
        "Never-worked"
    ),
    "education": (
        "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th "
        "Masters 1st-4th 10th Doctorate 5th-6th Preschool"
    ),
    "marital-status": (
        "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent "
        "Married-AF-spouse"
    ),
    "occupation": (
        "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty "
        "Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving "
        "Priv-house-serv Protective-serv Armed-Forces"
    ),
    "relationship": ("Wife Own-child Husband Not-in-family Other-relative Unmarried"),
    "race": ("White Asian-Pac-Islander Amer-Indian-Eskimo Other Black"),
    "sex": "Female Male",
    "native-country": (
        "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) "
        "India Japan Greece South China Cuba Iran Honduras Philippines Italy Poland Jamaica "
        "Vietnam Mexico Portugal Ireland France Dominican-Republic Laos Ecuador Taiwan Haiti "
        "Columbia Hungary Guatemala Nicaragua Scotland Thailand Yugoslavia El-Salvador "
        "Trinadad&Tobago Peru Hong Holand-Netherlands"
    ),
}
VOCABULARIES: dict[str, tuple[str, ...]] = {
    column: tuple(words.split()) for column, words in _VOCABULARY_WORDS.items()
}
"""The values of each column of categories, spelt as in adult.names."""

RANGES: dict[str, tuple[float, float]] = {
    "age": (17.0, 90.0),
    "education-num": (1.0, 16.0),
    "capital-gain": (0.0, 99_999.0),
    "capital-loss": (0.0, 99_999.0),
    "hours-per-week": (1.0, 99.0),
}
"""Public ranges. The survey asks people above 16 (adult.names) and top-codes age at 90; there are
16 levels of education (adult.names); amounts are five-digit and hours two-digit fields. The sixth
number, fnlwgt, is a weight of the survey's design and says nothing about income: it is left out."""

_LOGARITHMIC = ("capital-gain", "capital-loss")

COLUMNS = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
)
FEATURE_NAMES = tuple(RANGES) + tuple(
    f"{column}={value}" for column, values in VOCABULARIES.items() for value in values
)


def rows(path: pathlib.Path) -> Iterator[tuple[str, ...]]:
    """Yields the fourteen attributes and the class of every row, as text.

    The test file opens with a comment and ends its class names in a full stop; both are removed.
    """
    for number, line in enumerate(
        pathlib.Path(path).read_text(encoding="ascii").splitlines(), start=1
    ):
        if not line or line.startswith("|"):
            continue
        fields = tuple(field.strip() for field in line.split(","))
        if len(fields) != len(COLUMNS) + 1:
            raise ValueError(f"{path}, line {number}: {len(fields)} fields, expected 15")
        yield (*fields[:-1], fields[-1].rstrip("."))


def read_adult(folder: pathlib.Path) -> Arrays:
    """Returns inputs (n, 14) int32, columns `COLUMNS`, and labels (n,) int32 of both files.

    A category is its position in its vocabulary, a missing one the vocabulary's length.
    """
    places = {
        column: {value: place for place, value in enumerate((*vocabulary, MISSING))}
        for column, vocabulary in VOCABULARIES.items()
    }
    places["class"] = {value: place for place, value in enumerate(CLASS_NAMES)}
    arrays = {}
    for role, file in zip(("train", "test"), ADULT_FILES):
        table = []
        for column, texts in zip((*COLUMNS, "class"), zip(*rows(folder / file.name))):
            try:
                numbers = [
                    places[column][text] if column in places else int(text) for text in texts
                ]
            except (KeyError, ValueError) as error:
                raise ValueError(
                    f"{folder / file.name}: {column} {error.args[0]!r} is not in adult.names"
                ) from None
            table.append(np.array(numbers, np.int32))
        arrays[f"{role}_inputs"], arrays[f"{role}_labels"] = np.stack(table[:-1], axis=1), table[-1]
    return arrays


def encode_adult(table: np.ndarray) -> np.ndarray:
    """Returns (n, 104) float32, columns `FEATURE_NAMES`, from (n, 14) as `read_adult` returns."""
    columns = dict(zip(COLUMNS, table.T))
    parts = []
    for name, (low, high) in RANGES.items():
        values = np.clip(columns[name].astype(np.float64), low, high)
        if name in _LOGARITHMIC:
            values, low, high = np.log1p(values), np.log1p(low), np.log1p(high)
        parts.append(((values - low) / (high - low))[:, np.newaxis])
    for name, vocabulary in VOCABULARIES.items():
        one_hot = np.zeros((len(table), len(vocabulary) + 1))
        one_hot[np.arange(len(table)), columns[name]] = 1.0
        parts.append(one_hot[:, :-1])
    return np.concatenate(parts, axis=1).astype(np.float32)


_LIBSVM_ADDRESS = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
A9A_FILE = PublishedFile(
    "a9a",
    _LIBSVM_ADDRESS + "a9a",
    "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
    2329875,
)
A9A_TEST_FILE = PublishedFile(
    "a9a.t",
    _LIBSVM_ADDRESS + "a9a.t",
    "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
    1164628,
    # Some copies name column 123 once, with value 0, so that readers who take the width from the
    # largest index see 123 columns; the records are the same.
    equivalent=("1f7bae8e9729ad2bf9d18f66e5fa622e503e615114f92c37b274dfd24f2e5725",),
)
A9A_COUNT = 32_561


LIBSVM_COLUMNS = 123


def read_libsvm(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """Reads a file of binary columns in LIBSVM's text format, such as a9a.

    Returns:
      Inputs (n, 123) uint8 of 0 and 1, and labels (n,) uint8 (0 for -1, 1 for +1).
    """
    lines = path.read_text(encoding="ascii").splitlines()
    inputs = np.zeros((len(lines), LIBSVM_COLUMNS), np.uint8)
    labels = np.zeros(len(lines), np.uint8)
    for row, line in enumerate(lines):
        label, *entries = line.split()
        if label not in ("-1", "+1"):
            raise ValueError(f"{path}, line {row + 1}: label {label!r}, expected -1 or +1")
        labels[row] = label == "+1"
        for entry in entries:
            column, _, value = entry.partition(":")
            if value not in ("0", "1") or not 1 <= int(column) <= LIBSVM_COLUMNS:
                raise ValueError(f"{path}, line {row + 1}: {entry!r} is not a binary column")
            inputs[row, int(column) - 1] = value == "1"
    return inputs, labels


def read_a9a(folder: pathlib.Path) -> Arrays:
    """Returns inputs (n, 123) and labels (n,) of both files, uint8."""
    arrays = {}
    for role, file in (("train", A9A_FILE), ("test", A9A_TEST_FILE)):
        arrays[f"{role}_inputs"], arrays[f"{role}_labels"] = read_libsvm(folder / file.name)
    return arrays


_A1A_SHARE = 0.05


def in_a1a(count: int = A9A_COUNT, share: float = _A1A_SHARE) -> np.ndarray:
    """Returns (count,) bool: which rows of a9a are in LIBSVM's a1a (see the top of this file).

    Args:
      count: number of rows of a9a.
      share: 0.05 for a1a; 0.07 for a2a, and so on.
    """
    state, limit = 1, int(share * 32767)
    member = np.empty(count, dtype=bool)
    for row in range(count):
        state = (state * 214_013 + 2_531_011) & 0xFFFFFFFF
        member[row] = (state >> 16 & 0x7FFF) < limit
    return member


def divided(inputs: np.ndarray, labels: np.ndarray) -> Arrays:
    """Divides the rows of a9a as DPareto's authors did; identifiers are row numbers."""
    test = in_a1a(len(labels))
    rows = splitting.slot_identifiers(len(labels))
    return {
        f"{role}_{part}": array[member]
        for role, member in (("train", ~test), ("test", test))
        for part, array in (("inputs", inputs), ("labels", labels), ("identifiers", rows))
    }


def read_a1a(folder: pathlib.Path) -> Arrays:
    """Returns inputs (n, 123) and labels (n,), uint8, and identifiers: row numbers in a9a."""
    return divided(*read_libsvm(folder / A9A_FILE.name))


register(
    Source(
        name="a1a",
        description=(
            "The division of LIBSVM's a9a that DPareto's authors used: train on the 30,956 rows of "
            "a1a.t, test on the 1,605 rows of a1a (the published roles are the other way round)."
        ),
        classes=len(CLASS_NAMES),
        input_shape=(LIBSVM_COLUMNS,),
        train_count=30_956,
        test_count=1_605,
        read=read_a1a,
        files=(A9A_FILE,),
        folder="a9a",
        class_names=CLASS_NAMES,
    )
)

register(
    Source(
        name="a9a",
        description=(
            "Adult as LIBSVM encodes it: 123 binary columns, 32,561 train and 16,281 test rows; "
            "does a person earn more than $50,000 a year?"
        ),
        classes=len(CLASS_NAMES),
        input_shape=(LIBSVM_COLUMNS,),
        train_count=A9A_COUNT,
        test_count=16_281,
        read=read_a9a,
        files=(A9A_FILE, A9A_TEST_FILE),
        class_names=CLASS_NAMES,
    )
)

register(
    Source(
        name="adult",
        description=(
            "Adult (UCI, 1994 census): does a person earn more than $50,000 a year? 32,561 train, "
            "16,281 test. Five numbers scaled to [0, 1] by public ranges and clipped (capital gain "
            "and loss after log(1 + x)), eight attributes one-hot by the vocabularies of "
            "adult.names (a missing value is all zeros): 104 columns, norm at most sqrt(13)."
        ),
        classes=len(CLASS_NAMES),
        input_shape=(len(FEATURE_NAMES),),
        train_count=32_561,
        test_count=16_281,
        read=read_adult,
        encode=encode_adult,
        files=ADULT_FILES,
        class_names=CLASS_NAMES,
        feature_names=FEATURE_NAMES,
    )
)
