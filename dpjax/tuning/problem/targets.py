"""Public map of a regression's targets: the range that the caller names to the one that is learned.

A rate that leaves so much noise in an output suits outputs of one size, so targets in dollars or in
[0, 1] have to be brought to it. The map is affine and made of public numbers alone. A release
states it, since its model gives outputs in the learned range.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import checks

LEARNED = (-5.0, 5.0)
"""What the ends of a public range are learned as, chosen in `docs/public_defaults.md`."""

_SINGLE = np.finfo(np.float32)

Loss = Callable[[jax.Array, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class Targets:
    """Maps targets in the public range, two numbers, to those in `learned` and back.

    Targets outside are mapped by the same line. Without a range nothing is mapped.
    """

    range: tuple[float, float] | None = None
    learned: tuple[float, float] = LEARNED

    @classmethod
    def of(cls, target_range: Sequence[float] | None) -> Targets:
        """Checks this argument of `regression`, and returns the map that it asks for."""
        return cls() if target_range is None else cls(_pair("target_range", target_range))

    @classmethod
    def from_statement(cls, stated: Mapping[str, Any]) -> Targets:
        """Returns the map that a release states by its two ranges; ValueError where they are none.

        The rest of what it states follows from them.
        """
        return cls(_pair("range", stated["range"]), _pair("learned_as", stated["learned_as"]))

    @property
    def stated(self) -> dict[str, Any]:
        """Returns what a release states: a prediction is `add` + `times` * the model's output."""
        if self.range is None:
            return {}
        add, times = self._line
        return {"range": [*self.range], "learned_as": [*self.learned], "add": add, "times": times}

    @property
    def _line(self) -> tuple[float, float]:
        (low, high), (least, most) = self.range or self.learned, self.learned
        times = (high - low) / (most - least)
        return low - least * times, times

    def predicted(self, outputs: jax.Array) -> jax.Array:
        """Returns predictions in the targets' units from the model's outputs, of any shape."""
        if self.range is None:
            return outputs
        add, times = self._line
        return add + times * outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32))

    def in_loss(self, loss: Loss) -> Loss:
        """Returns a loss of outputs and targets that gives `loss` the targets as learned."""
        if self.range is None:
            return loss
        add, times = self._line

        def mapped(outputs: jax.Array, targets: jax.Array) -> jax.Array:
            return loss(outputs, (targets - add) / times)

        return mapped


def _pair(name: str, value: Any) -> tuple[float, float]:
    """Checks and returns two numbers, the lower one first."""
    found = checks.vector(name, value).tolist()
    # What is learned is of single precision.
    if len(found) != 2 or not _SINGLE.tiny < found[1] - found[0] < _SINGLE.max:
        raise checks.refused(name, value, "the lowest and the highest value, such as (0, 100)")
    return found[0], found[1]
