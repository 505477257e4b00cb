"""How a model that is not dpjax's is written into a release."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import flax.serialization
import jax
import numpy as np

from dpjax import checks
from dpjax.certificate import CERTIFICATE
from dpjax.tuning.release import GUARANTEE_FILE, HYPERPARAMETERS_FILE, MODEL_FILE, Release

Files = dict[str, bytes]
"""What stands in a model's files, by name; none for no model."""


@dataclasses.dataclass(frozen=True)
class ModelFile:
    """The name of a model's file in a release, and the function that writes it.

    Without `save`, (model, path) -> None, the model is a pytree of arrays, written as dpjax's are.
    """

    name: str = MODEL_FILE
    save: Callable[[Any, str], object] | None = None

    def __post_init__(self) -> None:
        checks.text("model_file", self.name)
        plain = self.name == os.path.basename(self.name) and self.name not in ("", ".", "..")
        if not plain or self.name in (HYPERPARAMETERS_FILE, GUARANTEE_FILE, CERTIFICATE):
            raise ValueError(f"model_file {self.name!r}: pass a file's name, such as 'model.pt'")
        if self.save is not None:
            checks.function("save_model", self.save, "(model, path) -> None")
        elif self.name != MODEL_FILE:
            raise ValueError(f"model_file {self.name!r} has no writer: pass save_model as well")

    @classmethod
    def of(cls, save: Callable[[Any, str], object] | None, name: str | None = None) -> ModelFile:
        """Returns the file of these arguments; "model" where a writer comes without a name."""
        usual = MODEL_FILE if save is None else "model"
        return cls(usual if name is None else name, save)

    def files(self, model: Any) -> Files:
        """Returns a model's files as they are released; none for None."""
        if model is None:
            return {}
        if self.save is not None:
            return {self.name: self._saved(model)}
        try:
            if any(np.asarray(leaf).dtype.kind in "OUS" for leaf in jax.tree.leaves(model)):
                raise TypeError("a leaf is no array of numbers")
            return Release(model, {}, {}).model_files()
        except Exception:
            # What is no pytree of arrays fails in as many ways as there are libraries.
            raise ValueError(
                f"the model (a {type(model).__name__}) is no pytree of arrays: pass "
                "save_model=(model, path) -> None, and model_file='model.pt' or the like"
            ) from None

    def read(self, files: Mapping[str, bytes]) -> Any:
        """Returns the model that an earlier process wrote: nested dicts; bytes with `save`."""
        if not files:
            return None
        content = files[self.name]
        return flax.serialization.msgpack_restore(content) if self.save is None else content

    def _saved(self, model: Any) -> bytes:
        """Returns what `save` writes, by way of a folder that only this user may enter."""
        assert self.save is not None
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, self.name)
            self.save(model, path)
            if not os.path.isfile(path):
                raise ValueError("save_model wrote no file at its path: write one, not a folder")
            with open(path, "rb") as file:
                return file.read()


@dataclasses.dataclass(frozen=True, repr=False)
class DeclaredRelease(Release):
    """A release whose model is of any kind, with its files (name -> content) from `ModelFile`."""

    files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)

    def model_files(self) -> Files:
        """See `Release`."""
        return dict(self.files)
