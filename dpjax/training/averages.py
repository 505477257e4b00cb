"""An average of a run's iterates, kept beside the run: less noise in what is released, at no cost.

Every iterate is computed from noisy sums, and so is an average of them: post-processing. An average
of a noisy run's last iterates is often much better than the last one (De et al. 2022,
https://arxiv.org/abs/2204.13650, section 4). A run keeps one, a public choice made beforehand, and
returns it. Choosing after a look at scores would be a selection, to be paid for.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import checks

Tree = Any


class Average(Protocol):
    """A weighted mean of the iterates so far; a frozen dataclass of public numbers."""

    def share_of_newest(self, number: jax.Array, total: jax.Array) -> jax.Array:
        """Returns the weight of the newest iterate in the average, float32 of shape (), in [0, 1].

        `number` is its step, from 0, and `total` the run's: unsigned integers, perhaps traced.
        """

    @property
    def words(self) -> str:
        """Returns a release's words on the average."""


@dataclasses.dataclass(frozen=True)
class ExponentialAverage:
    """The iterate of t steps ago has weight decay^t; the weights sum to 1 at every step.

    That is Adam's bias correction: early averages are of the iterates so far, not of zeros.

    Attributes:
      decay: public, in (0, 1); such as 0.999.
    """

    decay: float

    def __post_init__(self) -> None:
        found = checks.probability("decay", self.decay, hint=", such as 0.999")
        object.__setattr__(self, "decay", checks.kept(self.decay, found))

    def share_of_newest(self, number: jax.Array, total: jax.Array) -> jax.Array:
        """See `Average`: (1 - decay) / (1 - decay^(number + 1))."""
        seen = jnp.asarray(number, jnp.float32) + 1
        # In logarithms: 1 - decay^t would be mostly rounding error for a decay close to 1.
        return np.float32(1 - self.decay) / -jnp.expm1(seen * np.float32(np.log(self.decay)))

    @property
    def words(self) -> str:
        return f"exponential moving average of all iterates, decay {self.decay:g}, bias-corrected"


@dataclasses.dataclass(frozen=True)
class TailAverage:
    """The plain mean of the iterates of a run's last steps (Polyak and Ruppert).

    Before the first of them the average is the newest iterate.

    Attributes:
      share: public, in (0, 1]; of the run's steps, at least one step.
    """

    share: float = 0.5

    def __post_init__(self) -> None:
        found = checks.probability("share", self.share, one=True, hint=", of a run's steps")
        object.__setattr__(self, "share", checks.kept(self.share, found))

    def share_of_newest(self, number: jax.Array, total: jax.Array) -> jax.Array:
        """See `Average`: one over the tail's iterates so far, 1 before it."""
        total = jnp.asarray(total, jnp.float32)
        tail = jnp.clip(jnp.round(np.float32(self.share) * total), 1, total)
        seen = jnp.asarray(number, jnp.float32) + 1 - (total - tail)
        return 1 / jnp.maximum(seen, 1)

    @property
    def words(self) -> str:
        return f"plain mean of the iterates of the last {self.share:g} of the steps"


def checked(given: Average | None) -> Average | None:
    """Returns a rule of averaging, or None; refuses anything else."""
    if given is None or hasattr(given, "share_of_newest"):
        return given
    raise ValueError(
        f"average is {checks.shown(given)}: pass training.ExponentialAverage(0.999) or "
        "training.TailAverage(0.5)"
    )


def begin(trained: Tree) -> Tree:
    """Returns an average before the first step: the initial parameters, in float32 or wider."""
    return jax.tree.map(_wide, trained)


def after_step(
    rule: Average, average: Tree, newest: Tree, number: jax.Array, total: jax.Array
) -> Tree:
    """Adds an iterate to the average; `number` and `total` as in `Average.share_of_newest`."""
    share = rule.share_of_newest(number, total)

    def one(average: jax.Array, leaf: jax.Array) -> jax.Array:
        moved = average + share.astype(average.dtype) * (_wide(leaf) - average)
        # A share of 1 restarts the average, even where what was before is not finite.
        return jnp.where(share == 1, _wide(leaf), moved)

    return jax.tree.map(one, average, newest)


def result(average: Tree, newest: Tree) -> Tree:
    """Returns the finished average in the dtypes of the parameters."""
    return jax.tree.map(lambda a, leaf: a.astype(leaf.dtype), average, newest)


def _wide(leaf: jax.Array) -> jax.Array:
    return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))
