"""The public law of candidates that are not numbers alone: a space, and labels for some of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpjax import checks
from dpjax.tuning import statements
from dpjax.tuning.problem.space import Choice, Space

Label = None | bool | int | float | str


@dataclasses.dataclass(frozen=True)
class Candidates:
    """A `Space`, in which some hyperparameters are drawn as places in lists of labels.

    Example:
      >>> from dpjax import bridges, tuning
      >>> space = tuning.Space(rate=tuning.LogUniform(0.01, 1))
      >>> bridges.Candidates(space, {"optimizer": ["sgd", "adam"]}).labels["optimizer"]
      ('sgd', 'adam')

    Attributes:
      space: the public distribution; it holds the places of the labels too.
      labels: name -> what the places 0, 1, ... stand for: text, numbers, True, False or None.
    """

    space: Space
    labels: Mapping[str, tuple[Label, ...]]

    def __init__(self, space: Space | None, labels: Mapping[str, Sequence[Label]] | None = None):
        """Adds labels that the space does not draw yet, equally likely."""
        if space is not None:
            checks.instance("space", space, Space, "tuning.Space(learning_rate=0.1)")
        checks.mapping("labels", {} if labels is None else labels, "from names to lists of labels")
        found: dict[str, tuple[Label, ...]] = {}
        laws = {} if space is None else dict(space.parameters)
        for name, given in (labels or {}).items():
            words = tuple(checks.listed(f"labels of {name}", given, "text, numbers, or None"))
            for word in words:
                plain = word is None or isinstance(word, bool | int | float | str)
                if not plain or (isinstance(word, float) and not math.isfinite(word)):
                    raise ValueError(
                        f"a label of {name} must be text, a finite number, True, False or None, "
                        f"not {checks.shown(word)}"
                    )
            if not words:
                raise ValueError(f"labels of {name} are none: pass at least one")
            law = laws.setdefault(name, Choice(range(len(words))))
            if law.values is None or set(law.values) != set(range(len(words))):
                raise ValueError(
                    f"the law of {name} must draw all places 0 to {len(words) - 1} of its labels, "
                    "or be left out of the space"
                )
            found[name] = words
        if not laws:
            raise ValueError(
                "there is nothing to draw: pass space, such as "
                "tuning.Space(rate=tuning.LogUniform(0.01, 1.0)), or labels"
            )
        object.__setattr__(self, "space", Space(laws))
        object.__setattr__(self, "labels", found)

    @classmethod
    def of(cls, given: Space | Candidates) -> Candidates:
        """Returns what was passed as the distribution of candidates, as `Candidates`."""
        return given if isinstance(given, Candidates) else cls(given)

    def sample(self, number: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draws as `Space.sample` does, labels as their places."""
        return self.space.sample(number, generator)

    def values(self, drawn: Mapping[str, float]) -> dict[str, Label]:
        """Returns a candidate as its run reads it: labels, and integers where they are whole."""
        return {name: self._value(name, float(drawn[name])) for name in sorted(drawn)}

    def _value(self, name: str, drawn: float) -> Label:
        if name in self.labels:
            return self.labels[name][round(drawn)]
        law = self.space.parameters[name]
        # exp(log(end)) may leave the range by a rounding.
        inside = min(max(drawn, law.lowest), law.highest)
        return round(inside) if law.whole else statements.rounded({name: inside})[name]

    def may_be(self, chosen: Mapping[str, Any]) -> bool:
        """Returns whether a search over these candidates can release this one, or the default."""
        laws = self.space.parameters
        if set(chosen) != set(laws):
            return False
        if all(value is None for value in chosen.values()):
            return True
        named = {name for name in laws if name in self.labels}
        numbers = [name for name in laws if name not in named]
        if numbers:
            rest = Space({name: laws[name] for name in numbers})
            if not statements.is_public({name: chosen[name] for name in numbers}, rest):
                return False
        return all(
            any(
                type(chosen[name]) is type(word) and chosen[name] == word
                for place, word in enumerate(self.labels[name])
                if place in (laws[name].values or ())
            )
            for name in named
        )

    def describe(self) -> dict[str, Any]:
        """Returns the distribution as JSON-able data; `claims.rebuilt` rebuilds it."""
        return {
            "space": self.space.describe(),
            "labels": {name: list(self.labels[name]) for name in sorted(self.labels)},
        }
