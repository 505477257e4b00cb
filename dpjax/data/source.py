"""The description of one published data set, and the registry of those that `load` knows.

A new data set is one file that registers a `Source`: in `dpjax/data/sources/`, where every file is
imported, or anywhere else. Its name, loading and downloads, and the test of its documentation,
follow from the `Source`.
"""

from __future__ import annotations

import dataclasses
import inspect
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dpjax.data import splitting
from dpjax.data.dataset import Dataset, Split
from dpjax.data.published_files import PublishedFile

Arrays = dict[str, np.ndarray]
"""`train_inputs` and `train_labels`, likewise `test_...` where there is test data, and optionally
`..._identifiers`; the first axis is the record."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def as_float32(stored: np.ndarray) -> np.ndarray:
    """Returns stored inputs as float32, without scaling."""
    return stored.astype(np.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A published data set: what is public about it, its files, and how to read them.

    For data whose number of records is public, as in a published file. Private records go through
    `data.from_arrays`, which asks for their public numbers.

    Attributes:
      name: the name that `load` takes; letters, digits, - and _.
      description: one paragraph on what the records are and how inputs are scaled.
      classes: number of classes.
      input_shape: shape of one record's inputs.
      train_count, test_count: published numbers of records; a `test_count` of None: no test data.
      read: takes the folder that holds all `files`, returns `Arrays` in the files' own dtypes.
        Without files it gets the data folder, which it may ignore.
      encode: turns stored inputs (n, ...) into float32 inputs (n, *input_shape), record by record
        and by public constants alone. Further arguments, each with a default, are settings of the
        data set: `load(name, settings=...)` and flags of the commands.
      files: the published files.
      folder: name of the folder of the files, if it is another data set's.
      class_names, feature_names: of the classes and of the columns of tabular inputs, or None.
      caveat: None, or a fact that every figure must state (the data is a subset, for example).

    A record is identified by `..._identifiers`, else by its place in the published file, which does
    not depend on other records (`dpjax.data.splitting`).
    """

    name: str
    description: str
    classes: int
    input_shape: tuple[int, ...]
    train_count: int
    test_count: int | None = None
    read: Callable[[pathlib.Path], Arrays]
    encode: Callable[..., np.ndarray] = as_float32
    files: tuple[PublishedFile, ...] = ()
    folder: str = ""
    class_names: tuple[str, ...] | None = None
    feature_names: tuple[str, ...] | None = None
    caveat: str | None = None

    def __post_init__(self):
        if not _NAME.fullmatch(self.name):  # It becomes a folder's name.
            raise ValueError(f"name={self.name!r}: pass letters, digits, - and _ only")
        for setting in list(inspect.signature(self.encode).parameters.values())[1:]:
            if setting.default is setting.empty:
                raise ValueError(
                    f"encode of {self.name}: {setting.name} is a setting, so give it a default"
                )
        if not self.folder:
            object.__setattr__(self, "folder", self.name)

    @property
    def counts(self) -> dict[str, int]:
        """Returns the published numbers of records by role."""
        counts = {"train": self.train_count, "test": self.test_count}
        return {role: count for role, count in counts.items() if count is not None}

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Refuses settings that the data set does not have."""
        own = list(inspect.signature(self.encode).parameters)[1:]
        for name in settings:
            if name not in own:
                raise ValueError(
                    f"settings: {self.name} has no {name}: pass "
                    + (f"only {', '.join(own)}" if own else "none")
                )

    def dataset(self, arrays: Arrays, settings: Mapping[str, Any]) -> Dataset:
        """Returns the data set, encoded with its own settings."""
        splits = {
            role: self._split(arrays, role, count, settings) for role, count in self.counts.items()
        }
        return Dataset(
            name=self.name,
            description=self.description,
            classes=self.classes,
            train=splits["train"],
            test=splits.get("test"),
            class_names=self.class_names,
            feature_names=self.feature_names,
            caveat=self.caveat,
        )

    def _split(self, arrays: Arrays, role: str, count: int, settings: Mapping[str, Any]) -> Split:
        """Encodes the records of one role; refuses inputs of another shape than stated."""
        inputs = self.encode(arrays[f"{role}_inputs"], **settings)
        if inputs.shape != (count, *self.input_shape):
            raise ValueError(
                f"{self.name}: {role} inputs of shape {inputs.shape} were read, not "
                f"{(count, *self.input_shape)}: pass the published files, or state what they hold"
            )
        identifiers = arrays.get(f"{role}_identifiers")
        return Split(
            inputs=inputs,
            labels=arrays[f"{role}_labels"].astype(np.int32),
            public_size=count,
            size_bound=count,
            identifiers=splitting.slot_identifiers(count) if identifiers is None else identifiers,
            stable_under_replacement=True,
            stable_under_removal=True,
        )


SOURCES: dict[str, Source] = {}
"""All known data sets by name; `register` adds to it."""


def register(source: Source) -> Source:
    """Registers a data set, so that `load` finds it by name; returns it.

    Example:
      >>> import numpy as np
      >>> from dpjax import data
      >>> source = data.Source(
      ...     name="two_lines",
      ...     description="Points on two lines, made here.",
      ...     classes=2,
      ...     input_shape=(2,),
      ...     train_count=100,
      ...     read=lambda folder: {
      ...         "train_inputs": np.linspace(0, 1, 200).reshape(100, 2),
      ...         "train_labels": np.arange(100) % 2,
      ...     },
      ... )
      >>> _ = data.register(source)
      >>> data.load("two_lines").train
      Split(input_shape=(2,), public_size=100, size_bound=100)
    """
    if source.name in SOURCES:
        raise ValueError(f"data set {source.name!r} is registered already: choose another name")
    SOURCES[source.name] = source
    return source
