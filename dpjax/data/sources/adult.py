"""UCI's Adult (census income): a TFDS builder of our own and a public encoding.

TFDS has no such data set. The builder stores the fourteen attributes as published; `encode` turns
them into numbers with constants and vocabularies that are public: those of `adult.names`, the file
published beside the data, and the ranges below. Nothing is computed from the rows.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Iterator

import numpy as np

from dpjax.data import dataset, published_files, splitting
from dpjax.data.tfds_store import LocalBuilder

_ADDRESS = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
FILES = (
    published_files.PublishedFile(
        "adult.data",
        _ADDRESS + "adult.data",
        "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
        3974305,
    ),
    published_files.PublishedFile(
        "adult.test",
        _ADDRESS + "adult.test",
        "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
        2003153,
    ),
)
COUNTS = {"train": 32_561, "test": 16_281}
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
DESCRIPTION = (
    "Adult (UCI, 1994 census): does a person earn more than $50,000 a year? 32,561 train, 16,281 "
    "test. Five numbers scaled to [0, 1] by public ranges and clipped (capital gain and loss after "
    "log(1 + x)), eight attributes one-hot by the vocabularies of adult.names (a missing value is "
    "all zeros): 104 columns, norm at most sqrt(13)."
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


def encode(columns: dict[str, np.ndarray]) -> np.ndarray:
    """Returns (n, 104) float32 with columns `FEATURE_NAMES`.

    Args:
      columns: per attribute, (n,) numbers, or (n,) positions in its vocabulary with the length of
        the vocabulary standing for a missing value.
    """
    count = len(columns["age"])
    parts = []
    for name, (low, high) in RANGES.items():
        values = np.clip(columns[name].astype(np.float64), low, high)
        if name in _LOGARITHMIC:
            values, low, high = np.log1p(values), np.log1p(low), np.log1p(high)
        parts.append(((values - low) / (high - low))[:, np.newaxis])
    for name, vocabulary in VOCABULARIES.items():
        one_hot = np.zeros((count, len(vocabulary) + 1))
        one_hot[np.arange(count), columns[name]] = 1.0
        parts.append(one_hot[:, :-1])
    return np.concatenate(parts, axis=1).astype(np.float32)


def as_dataset(arrays: dict[str, np.ndarray]) -> dataset.Dataset:
    """Returns the encoded data set.

    Args:
      arrays: `train` and `test`, (n, 15) int32: attributes in the order of `COLUMNS` (categories as
        positions in their vocabulary, its length for a missing value), then the class.
    """

    def part(role: str) -> dataset.Split:
        table = arrays[role]
        return dataset.Split(
            inputs=encode({name: table[:, place] for place, name in enumerate(COLUMNS)}),
            labels=table[:, -1].astype(np.int32),
            public_size=COUNTS[role],
            size_bound=COUNTS[role],
            identifiers=splitting.slot_identifiers(len(table)),
            stable_under_replacement=True,
            stable_under_removal=True,
        )

    return dataset.Dataset(
        name="adult",
        description=DESCRIPTION,
        classes=2,
        train=part("train"),
        test=part("test"),
        class_names=CLASS_NAMES,
        feature_names=FEATURE_NAMES,
    )


@functools.cache
def builder() -> type:
    """Returns the TFDS builder of Adult (a function, because importing TFDS is heavy)."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download import checksums

    class Adult(LocalBuilder, tfds.core.GeneratorBasedBuilder, skip_registration=True):
        """Census income, attributes as published."""

        name = "adult"
        VERSION = tfds.core.Version("1.0.0")
        url_infos = {
            file.address: checksums.UrlInfo(file.size, file.sha256, file.name) for file in FILES
        }

        def _info(self):
            features = {
                name: tfds.features.ClassLabel(names=[*VOCABULARIES[name], MISSING])
                if name in VOCABULARIES
                else np.int32
                for name in COLUMNS
            }
            return tfds.core.DatasetInfo(
                builder=self,
                description="UCI Adult (census income), attributes as published.",
                features=tfds.features.FeaturesDict(
                    {**features, "label": tfds.features.ClassLabel(names=list(CLASS_NAMES))}
                ),
                homepage="https://archive.ics.uci.edu/dataset/2/adult",
                license="CC BY 4.0",
            )

        def _split_generators(self, dl_manager):
            paths = dl_manager.download([file.address for file in FILES])
            return {
                "train": self._generate_examples(paths[0]),
                "test": self._generate_examples(paths[1]),
            }

        def _generate_examples(self, path):
            for key, fields in enumerate(rows(path)):
                record = {
                    name: value if name in VOCABULARIES else int(value)
                    for name, value in zip(COLUMNS, fields)
                }
                yield key, {**record, "label": fields[-1]}

    return Adult
