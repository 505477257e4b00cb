"""Averages of a run's iterates, kept beside the run: less noise in what is released, at no cost.

Every iterate is computed from noisy sums, and so is an average of them: post-processing. An average
of a noisy run's last iterates is often much better than the last one (De et al. 2022,
https://arxiv.org/abs/2204.13650, section 4). Several are kept at once; which of them a run returns,
and is scored by, is one public choice made beforehand. Choosing after a look at scores is a
selection, to be paid for: `tuning.chosen_iterate` does it.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import checks

Tree = Any
ALL = "all"


class Average(Protocol):
    """A weighted mean of the iterates so far; a frozen dataclass of public numbers."""

    def share_of_newest(self, number: jax.Array, total: jax.Array) -> jax.Array:
        """How much of the average the newest iterate is, float32 of shape (), in [0, 1].

        Args:
          number: the step that made it, from 0, an unsigned integer, maybe traced.
          total: steps of the whole run, likewise.
        """

    @property
    def words(self) -> str:
        """What a release says of it."""


@dataclasses.dataclass(frozen=True)
class ExponentialAverage:
    """The iterate of t steps ago has weight decay^t; the weights sum to 1 at every step.

    That is Adam's bias correction: early averages are of the iterates so far, not of zeros.

    Example:
      >>> from dpjax import training
      >>> training.ExponentialAverage(0.999)
      ExponentialAverage(decay=0.999)

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
        # In logarithms: 1 - decay^t is all rounding where the decay is close to 1.
        return np.float32(1 - self.decay) / -jnp.expm1(seen * np.float32(np.log(self.decay)))

    @property
    def words(self) -> str:
        """See `Average`."""
        return f"exponential moving average of all iterates, decay {self.decay:g}, bias-corrected"


@dataclasses.dataclass(frozen=True)
class TailAverage:
    """The plain mean of the iterates of a run's last steps (Polyak and Ruppert).

    Before the first of them the average is the newest iterate.

    Example:
      >>> from dpjax import training
      >>> training.TailAverage(0.5)
      TailAverage(share=0.5)

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
        """See `Average`."""
        return f"plain mean of the iterates of the last {self.share:g} of the steps"


@dataclasses.dataclass(frozen=True)
class IterateAt:
    """The iterate after a share of a run's steps: an average in which it alone has weight.

    Example:
      >>> from dpjax import training
      >>> training.IterateAt(0.5)
      IterateAt(share=0.5)

    Attributes:
      share: public, in (0, 1]; of the run's steps, at least one step.
    """

    share: float

    def __post_init__(self) -> None:
        found = checks.probability("share", self.share, one=True, hint=", of a run's steps")
        object.__setattr__(self, "share", checks.kept(self.share, found))

    def share_of_newest(self, number: jax.Array, total: jax.Array) -> jax.Array:
        """See `Average`: 1 as far as that step, 0 after it."""
        total = jnp.asarray(total, jnp.float32)
        last = jnp.clip(jnp.round(np.float32(self.share) * total), 1, total)
        return jnp.where(jnp.asarray(number, jnp.float32) + 1 <= last, 1.0, 0.0)

    @property
    def words(self) -> str:
        """See `Average`."""
        return f"the iterate after {self.share:g} of the steps"


@dataclasses.dataclass(frozen=True)
class Averages:
    """Averages that are kept side by side, and which of them a run returns.

    Example:
      >>> from dpjax import training
      >>> both = (training.ExponentialAverage(0.99), training.TailAverage(0.5))
      >>> training.Averages(both, returned=1).returned
      1

    Attributes:
      kept: each an `Average`.
      returned: place in `kept` of the one that is returned and scored; or "all": a run then returns
        a tuple, the last iterate and every average in order, and is no candidate of a tuning
        (`tuning.chosen_iterate` keeps its averages so).
    """

    kept: tuple[Average, ...]
    returned: int | str = 0

    def __post_init__(self) -> None:
        kept = tuple(checks.listed("kept", self.kept, "averages"))
        object.__setattr__(self, "kept", kept)
        for one in kept:
            if not hasattr(one, "share_of_newest"):
                raise ValueError(
                    f"kept holds {checks.shown(one)}: pass averages, such as "
                    "training.ExponentialAverage(0.999)"
                )
        if self.returned != ALL and checks.whole("returned", self.returned, 0) >= len(kept):
            raise ValueError(
                f"returned is {self.returned} of {len(kept)} averages: pass the place of one, from "
                f"0, or {ALL!r}"
            )

    @property
    def words(self) -> str:
        """What a release says of what was returned."""
        if not isinstance(self.returned, int):
            return "the last iterate and every average"
        return self.kept[self.returned].words

    def begin(self, trained: Tree) -> tuple[Tree, ...]:
        """The averages before the first step: the initial parameters, in float32 or wider."""
        return tuple(jax.tree.map(_wide, trained) for _ in self.kept)

    def after_step(
        self, averages: tuple[Tree, ...], newest: Tree, number: jax.Array, total: jax.Array
    ) -> tuple[Tree, ...]:
        """The averages with one iterate more; arguments as of `Average.share_of_newest`."""

        def one(average: jax.Array, leaf: jax.Array, share: jax.Array) -> jax.Array:
            # Where the share is 1 the newest itself, though what was before is not finite; where it
            # is 0 what was before, though the newest is not.
            moved = average + share.astype(average.dtype) * (_wide(leaf) - average)
            return jnp.where(share == 1, _wide(leaf), jnp.where(share == 0, average, moved))

        shares = [rule.share_of_newest(number, total) for rule in self.kept]
        return tuple(
            jax.tree.map(functools.partial(one, share=share), average, newest)
            for share, average in zip(shares, averages, strict=True)
        )

    def result(self, averages: tuple[Tree, ...], newest: Tree) -> Tree:
        """What is returned of a run, of the types of the parameters; see `returned`."""
        of_types = [
            jax.tree.map(lambda a, leaf: a.astype(leaf.dtype), average, newest)
            for average in averages
        ]
        if isinstance(self.returned, int):
            return of_types[self.returned]
        return (newest, *of_types)


def checked(given: Average | Averages | None) -> Averages | None:
    """Averages from one, several or none; a ValueError says what to pass."""
    if given is None or isinstance(given, Averages):
        return given
    if hasattr(given, "share_of_newest"):
        return Averages((given,))
    raise ValueError(
        f"averages is {checks.shown(given)}: pass training.ExponentialAverage(0.999), "
        "training.TailAverage(0.5) or training.Averages((...), returned=0)"
    )


def _wide(leaf: jax.Array) -> jax.Array:
    return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))
