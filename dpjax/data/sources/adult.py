"""UCI's Adult (census income) and a public encoding; TFDS has no such data set.

`read` keeps the fourteen attributes as published; `encode` turns them into inputs with constants
and vocabularies that are public: those of `adult.names`, the file published beside the data, and
the ranges below. Nothing is computed from the rows.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import numpy as np

from dpjax.data.published_files import PublishedFile
from dpjax.data.source import Arrays, Source, register

_ADDRESS = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
FILES = (
    PublishedFile(
        "adult.data",
        _ADDRESS + "adult.data",
        "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
        3974305,
    ),
    PublishedFile(
        "adult.test",
        _ADDRESS + "adult.test",
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
"""Spellings are those of adult.names."""

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

    Raises:
      ValueError: for a row that has not fifteen fields.
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


def read(folder: pathlib.Path) -> Arrays:
    """Returns inputs (n, 14) int32, columns `COLUMNS`, and labels (n,) int32 of both files.

    A category is its position in its vocabulary, a missing one the vocabulary's length.

    Raises:
      ValueError: for a value or class that its vocabulary does not have.
    """
    places = {
        column: {value: place for place, value in enumerate((*vocabulary, MISSING))}
        for column, vocabulary in VOCABULARIES.items()
    }
    places["class"] = {value: place for place, value in enumerate(CLASS_NAMES)}
    arrays = {}
    for role, file in zip(("train", "test"), FILES):
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


def encode(table: np.ndarray) -> np.ndarray:
    """Returns (n, 104) float32 with columns `FEATURE_NAMES`, from (n, 14) as `read` gives them."""
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
        read=read,
        encode=encode,
        files=FILES,
        class_names=CLASS_NAMES,
        feature_names=FEATURE_NAMES,
    )
)
