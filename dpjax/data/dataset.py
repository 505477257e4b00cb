"""Data sets: arrays with the public numbers about them, in training, validation and test parts.

Everything here is NumPy: training moves arrays to a device. The number of records is private under
add-or-remove-one, so nothing printed or released may depend on it; use `Split.public_size` and
`Split.size_bound` instead. Compiled programs hold the arrays' shapes, so never publish a program or
a folder that keeps some.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from dpjax import checks
from dpjax.data import splitting

PAPER_PROTOCOL = (
    "candidates are scored on the test data (a habit of the papers): the test accuracy is "
    "optimistic, and the test records are not protected by the stated guarantee"
)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Split:
    """Records of one role (training, validation or test).

    Example:
      >>> from dpjax import data
      >>> data.load("digits").test
      Split(input_shape=(8, 8, 1), public_size=359, size_bound=359)

    Attributes:
      inputs: (n, ...) float32.
      labels: (n,) int32, each in 0..classes-1; or float32, the targets of a regression.
      public_size: the public, nominal number of records; lot size, sampling probability, steps and
        the denominator of a score come from it, never from n.
      size_bound: a public number that n never exceeds; the capacity of a lot comes from it.
      identifiers: (n,) integers or fixed-length bytes (NumPy void), one per record; they alone
        decide which part a record falls into (see `dpjax.data.splitting`).
      stable_under_replacement: whether a record keeps its identifier when its value is replaced;
        False if identifiers come from content, and replace-one is then refused.
      stable_under_removal: whether adding or removing a record leaves the other identifiers as they
        are; False if they are places in an array, and add-or-remove one is then refused.
      classes: the public number of classes; a model needs an output for each. None: not stated.

    n itself, `number_of_records`, is private under add-or-remove-one.
    """

    inputs: np.ndarray
    labels: np.ndarray
    public_size: int
    size_bound: int
    identifiers: np.ndarray
    stable_under_replacement: bool = False
    stable_under_removal: bool = False
    classes: int | None = None

    def __post_init__(self):
        for name in ("inputs", "labels", "identifiers"):
            if not isinstance(getattr(self, name), np.ndarray):
                # The type, not the value, which may hold records.
                raise ValueError(
                    f"the {name} of a Split must be an array, not a "
                    f"{type(getattr(self, name)).__name__}: pass arrays through data.from_arrays"
                )
        for name in ("stable_under_replacement", "stable_under_removal"):
            checks.flag(name, getattr(self, name))
        if self.classes is not None:
            object.__setattr__(self, "classes", checks.whole("classes", self.classes))
        # 0 is allowed here: the checks below say what is wrong with it.
        for name in ("public_size", "size_bound"):
            object.__setattr__(self, name, checks.whole(name, getattr(self, name), 0))
        if self.inputs.ndim == 0:
            raise ValueError("inputs are a single number: pass an array (n, ...), a row per record")
        count = len(self.inputs)
        if self.inputs.dtype != np.float32 or self.labels.dtype not in (np.int32, np.float32):
            raise ValueError(
                f"a Split holds float32 inputs and int32 labels, not {self.inputs.dtype} and "
                f"{self.labels.dtype}: pass arrays through data.from_arrays"
            )
        if self.labels.shape != (count,) or self.identifiers.shape != (count,):
            raise ValueError(
                f"inputs {self.inputs.shape}, labels {self.labels.shape} and identifiers "
                f"{self.identifiers.shape} must agree in their first axis: pass one label and one "
                "identifier per record"
            )
        # Not texts: NumPy pads each to the longest in the array, which changes the hashed bytes.
        if self.identifiers.dtype.kind not in "iuV":
            raise ValueError(
                f"identifiers are {self.identifiers.dtype}: pass integers or fixed-length bytes "
                "(NumPy void), as data.from_arrays makes of texts"
            )
        if self.public_size < 1:
            words = ": pass a positive public number"
            raise checks.Refused(("public_size", self.public_size), words)
        bound = ("size_bound", self.size_bound)
        if self.size_bound < self.public_size:
            size = ("public_size", self.public_size)
            raise checks.Refused(bound, " is below ", size, ": pass at least that")
        if count > self.size_bound:
            # The count itself stays out of the message: it is private.
            raise checks.Refused(
                *("there are more records than ", bound, " promises: pass a larger number, "),
                "chosen from public knowledge and not from this error",
            )

    def __repr__(self) -> str:
        # Public facts only, so that a stray log line reveals no record or count.
        return (
            f"Split(input_shape={self.input_shape}, public_size={self.public_size}, "
            f"size_bound={self.size_bound})"
        )

    @property
    def number_of_records(self) -> int:
        """Returns the actual count, which is private under add-or-remove-one."""
        return len(self.inputs)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Returns the shape of one record's inputs; part of the schema, hence public."""
        return self.inputs.shape[1:]

    def subset(self, member: np.ndarray, *, public_size: int, size_bound: int) -> Split:
        """Returns the records for which `member`, (n,) bool, is True, in the same order."""
        return dataclasses.replace(
            self,
            inputs=self.inputs[member],
            labels=self.labels[member],
            public_size=public_size,
            size_bound=size_bound,
            identifiers=self.identifiers[member],
        )


def split_train_validation(split: Split, fraction: float, key: bytes | int) -> tuple[Split, Split]:
    """Divides records into a training and a validation part, each record by its own keyed hash.

    Example:
      >>> from dpjax import data
      >>> train, validation = data.split_train_validation(data.load("digits").train, 0.2, b"public")
      >>> validation.public_size
      288

    Args:
      split: the records to divide.
      fraction: expected share of the validation part, in (0, 1).
      key: 1 to 64 bytes, or an integer, chosen without looking at the data. The same key gives the
        same parts.

    Returns:
      (training, validation). Both keep the order of `split`. Public sizes are the nominal ones,
      round(public_size * fraction) for validation and the rest for training; size bounds come from
      `splitting.part_size_bound`.

    Formal guarantees: for every fixed key, the part of a record is a function of its identifier
    alone. So of two data sets that differ by one added or removed record, one part is the same and
    the other differs by that record; and of two that differ by the value of one record with the
    identifier kept, one part is the same and the other differs by the value of that record.
    Mechanisms run on the two parts therefore compose in parallel (`accounting.parallel`).
    """
    _check_part("split", split)
    member = splitting.validation_members(split.identifiers, fraction, key)
    validation_size = round(split.public_size * fraction)
    training_size = split.public_size - validation_size
    if not 0 < validation_size < split.public_size:
        raise checks.Refused(
            ("fraction", fraction),
            f" of {split.public_size} records leaves one part empty: pass one that empties neither",
        )
    bounds = [
        splitting.part_size_bound(split.size_bound, share) for share in (1.0 - fraction, fraction)
    ]
    training = split.subset(~member, public_size=training_size, size_bound=bounds[0])
    validation = split.subset(member, public_size=validation_size, size_bound=bounds[1])
    return training, validation


def _check_part(name: str, split: object) -> None:
    """Refuses anything but a `Split`."""
    if not isinstance(split, Split):
        # The type, not the value, which may hold records.
        raise ValueError(
            f"{name} must be a data.Split, not a {type(split).__name__}: make one by "
            "data.from_arrays"
        )


def ends(name: str, value: object) -> tuple[float, float]:
    """Checks and returns a public range, the lower end first."""
    found = checks.vector(name, value)
    if found.size != 2 or not found[0] < found[1]:
        raise checks.Refused((name,), ": pass [low, high], low below high")
    return float(found[0]), float(found[1])


@dataclasses.dataclass(frozen=True, eq=False)
class Parts:
    """The records to train on, to score candidates on, and to test once after the selection.

    Attributes:
      train, validation, test: the three parts; `test` is None if there is no test data.
      non_private: None, or one sentence on why the stated guarantee does not cover everything that
        was looked at. Whatever reports a result must print it.
    """

    train: Split
    validation: Split
    test: Split | None
    non_private: str | None = None

    def __post_init__(self):
        _check_part("train", self.train)
        _check_part("validation", self.validation)
        if self.test is not None:
            _check_part("test", self.test)
        if self.non_private is not None:
            checks.text("non_private", self.non_private)


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """A data set of a classification or a regression, with everything public about it.

    Attributes:
      name: the name it is loaded by.
      description: one paragraph on what the records are and how inputs are scaled.
      classes: number of classes, a public constant; None for a regression.
      train, test: the published division; `test` is None if there is no test data.
      validation: a validation part that the user passed, else None.
      class_names: names of the classes, or None.
      feature_names: names of the columns of tabular inputs, or None.
      caveat: None, or a fact that every figure must state (the data is a subset, for example).
      target_range: for a regression, the public (lowest, highest) value of a target; else None.
    """

    name: str
    description: str
    classes: int | None
    train: Split
    test: Split | None
    validation: Split | None = None
    class_names: tuple[str, ...] | None = None
    feature_names: tuple[str, ...] | None = None
    caveat: str | None = None
    target_range: tuple[float, float] | None = None

    def __post_init__(self):
        checks.text("name", self.name)
        checks.text("description", self.description)
        if self.target_range is not None:
            object.__setattr__(self, "target_range", ends("target_range", self.target_range))
        if self.classes is not None or self.target_range is None:
            object.__setattr__(self, "classes", checks.whole("classes", self.classes))
            if self.target_range is not None:
                raise ValueError(f"{self.name}: pass classes, or for a regression target_range")
        for name in ("train", "test", "validation"):
            part = getattr(self, name)
            if part is not None or name == "train":
                _check_part(name, part)
                # A task tells classes from targets by the dtype of the labels.
                if (part.labels.dtype == np.float32) == (self.target_range is None):
                    raise ValueError(
                        f"{self.name}: the labels of {name} are {part.labels.dtype}: pass int32 "
                        "with classes, float32 with target_range"
                    )
                part = dataclasses.replace(part, classes=self.classes)
                object.__setattr__(self, name, part)
        for name in ("class_names", "feature_names"):
            names = getattr(self, name)
            if names is not None:
                for one in checks.listed(name, names, "texts"):
                    checks.text(f"each of the {name}", one)
        if self.caveat is not None:
            checks.text("caveat", self.caveat)
        if self.class_names is not None and len(self.class_names) != self.classes:
            raise ValueError(
                f"{self.name}: {self.classes} classes, names {self.class_names}: pass one for each"
            )
        if self.feature_names is not None and self.input_shape != (len(self.feature_names),):
            raise ValueError(
                f"{self.name}: {len(self.feature_names)} feature names for inputs "
                f"{self.input_shape}: pass one for each column"
            )
        for split in (self.validation, self.test):
            if split is not None and split.input_shape != self.input_shape:
                raise ValueError(
                    f"{self.name}: inputs of shape {split.input_shape} beside training inputs of "
                    f"shape {self.input_shape}: pass equal shapes"
                )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Returns the shape of one record's inputs, a public constant."""
        return self.train.input_shape

    def parts(self, validation_fraction: float, key: bytes | int) -> Parts:
        """Returns disjoint training, validation and test parts.

        If the user passed a validation part, it is used as it is and the arguments are ignored;
        else `split_train_validation` divides the training records.
        """
        if self.validation is not None:
            return Parts(self.train, self.validation, self.test)
        train, validation = split_train_validation(self.train, validation_fraction, key)
        return Parts(train, validation, self.test)

    def without_validation(self) -> Parts:
        """Returns all training records for training, and a record of zeros as validation data.

        For a run that scores nothing, such as `tuning.Untuned`.
        """
        invented = dataclasses.replace(
            self.train,
            inputs=np.zeros((1, *self.input_shape), np.float32),
            labels=np.zeros(1, self.train.labels.dtype),
            public_size=1,
            size_bound=1,
            identifiers=np.zeros(1, self.train.identifiers.dtype),
        )
        return Parts(self.train, invented, self.test)

    def validation_is_test(self) -> Parts:
        """Returns all training records for training, and the test data as validation data.

        This is the papers' protocol, kept to reproduce their figures. `Parts.non_private` says why
        it is not private.
        """
        if self.test is None:
            raise ValueError(f"{self.name} has no test data: pass some, or use parts() instead")
        return Parts(self.train, self.test, self.test, non_private=PAPER_PROTOCOL)
