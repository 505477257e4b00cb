"""Public feature maps: what a record is turned into before anything is trained, one by one.

A map is fixed before the data is seen and is applied to each record alone, so that features cost no
privacy: two neighbouring data sets have neighbouring features, of the same identifiers.

A new map is one file that registers a `FeatureMap`: in `dpjax/data/feature_maps/`, where every file
is imported, or anywhere else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from dpjax.data.dataset import Dataset, Parts, Split


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureMap:
    """A public map from a record's inputs to its features.

    Example:
      >>> from dpjax import data
      >>> squares = data.FeatureMap(
      ...     name="squares",
      ...     description="the square of every input",
      ...     shape=lambda shape: shape,
      ...     apply=lambda inputs: inputs**2,
      ... )
      >>> squares.of_split(data.load("digits").train).input_shape
      (8, 8, 1)

    Attributes:
      name: what it is asked for by.
      description: one sentence on what it computes.
      shape: shape of one record's inputs -> shape of its features; raises ValueError, in one line,
        for inputs that it does not take.
      apply: inputs (n, ...) float32 -> features (n, ...) float32, each of its own record alone and
        by public constants.
    """

    name: str
    description: str
    shape: Callable[[tuple[int, ...]], tuple[int, ...]]
    apply: Callable[[np.ndarray], np.ndarray]

    def of_split(self, split: Split) -> Split:
        """Returns the same records with their features for inputs.

        Raises:
          ValueError: for inputs that the map does not take, or features of another shape than it
            states.
        """
        shape = self.shape(split.input_shape)
        features = self.apply(split.inputs) if len(split.inputs) else np.empty((0, *shape))
        if features.shape != (len(split.inputs), *shape):
            # Not the number of records, which is private.
            raise ValueError(
                f"{self.name} gave features of shape {features.shape[1:]}, not {shape}: return one "
                "row for each record, of the stated shape"
            )
        return dataclasses.replace(split, inputs=np.asarray(features, np.float32))


FEATURES: dict[str, FeatureMap] = {}
"""By name; filled by `register_features`."""


def register_features(known: FeatureMap) -> FeatureMap:
    """Registers a feature map for `with_features` and for the commands; returns it.

    Example:
      >>> from dpjax import data
      >>> squares = data.FeatureMap(
      ...     name="squares",
      ...     description="the square of every input",
      ...     shape=lambda shape: shape,
      ...     apply=lambda inputs: inputs**2,
      ... )
      >>> _ = data.register_features(squares)
      >>> data.with_features(data.load("digits"), "squares").input_shape
      (8, 8, 1)

    Raises:
      ValueError: if the name is taken.
    """
    if known.name in FEATURES:
        raise ValueError(f"features {known.name!r} are registered already: choose another name")
    FEATURES[known.name] = known
    return known


Held = TypeVar("Held", Dataset, Parts)


def with_features(records: Held, name: str) -> Held:
    """Returns a data set, or its parts, with features of each record for inputs.

    ```python
    from dpjax import data

    digits = data.with_features(data.load("digits"), "scattering")
    print(digits.input_shape)  # (2, 2, 81)
    ```

    Formal guarantees: each record's features are a function of that record and of public constants;
    labels, identifiers, public sizes and bounds are as they were. So data sets that are neighbours
    stay neighbours, and every guarantee holds as stated.

    Example:
      >>> from dpjax import data
      >>> data.with_features(data.load("digits"), "scattering").input_shape
      (2, 2, 81)

    Args:
      records: with inputs that the map takes.
      name: one of `FEATURES`.

    Raises:
      ValueError: for an unknown name, or inputs that the map does not take.
    """
    if not isinstance(records, (Dataset, Parts)):
        raise ValueError(
            f"records must be a Dataset or its Parts, not a {type(records).__name__}: pass "
            "data.load('mnist')"
        )
    if name not in FEATURES:
        raise ValueError(f"unknown features {name!r}: pass one of {', '.join(FEATURES)}")
    changed: dict[str, Any] = {
        role: FEATURES[name].of_split(part)
        for role in ("train", "validation", "test")
        if (part := getattr(records, role)) is not None
    }
    if isinstance(records, Dataset):
        changed["feature_names"] = None
        changed["description"] = (
            f"{records.description} Inputs are features: {FEATURES[name].description}."
        )
    return dataclasses.replace(records, **changed)
