"""The law of K that fits a space: how many candidates it takes to draw a good one.

What a search loses most by is bad luck: no candidate near a good one was drawn. How likely that is
depends on public numbers alone. A candidate counts as good here if each of its hyperparameters is
within half a decade of the right value, a quarter to either side; if the space is centred on that
value, or spread evenly in the logarithm, the share of good draws is `good_share`. The law is the
negative binomial of Papernot & Steinke (ICLR 2022, Definition 1) whose K holds such a candidate
with probability `CHANCE`.

Its shape and that probability were chosen on development tables, by a rule that was written before
(`experiments/figures/leaderboard/laws_of_k.py`).
"""

from __future__ import annotations

import bisect
import math

import numpy as np

from dpjax import accounting, checks
from dpjax.tuning.problem.space import Category, Law, Space

SHAPE, CHANCE = 2.0, 0.95
GOOD = 10**0.25
"""A hyperparameter is good up to this factor off, to either side."""
LARGEST_MEAN, CAP = 60, 4
"""The largest mean of K, whatever the space; and the largest K over its mean."""


def fitting_law(space: Space) -> accounting.RepetitionLaw:
    """Returns the law of K that `RandomRepetitions` takes where it is given none.

    Example:
      >>> from dpjax import tuning
      >>> wide = tuning.Space(learning_rate=tuning.LogUniform(1e-3, 1), clip_norm=1.0)
      >>> law = tuning.fitting_law(wide)
      >>> print(f"mean {law.mean:.0f}, at most {law.maximum}")
      mean 41, at most 164

    Args:
      space: what candidates are drawn from; nothing else is read.
    """
    return of_shape(space, SHAPE, CHANCE)


def in_words(space: Space) -> str:
    """Returns the law that fits, in words, with its reason."""
    law, share = fitting_law(space), good_share(space)
    chance = float(law.success_probability(share))
    return (
        f"negative binomial of shape {SHAPE:g}, mean {law.mean:.3g}, at most {law.maximum:g}. "
        f"About 1 in {1 / share:.2g} draws is good, so one of K is with probability {chance:.2f}"
    )


def of_shape(space: Space, shape: float, chance: float) -> accounting.RepetitionLaw:
    """Returns the negative binomial law of this shape that holds a good candidate by chance."""
    checks.instance("space", space, Space, "tuning.Space(learning_rate=tuning.LogUniform(0.01, 1))")
    share = good_share(space)

    def law(mean: int) -> accounting.TruncatedNegativeBinomial:
        return accounting.TruncatedNegativeBinomial(shape, mean=mean)

    def suffices(mean: int) -> bool:
        return bool(law(mean).success_probability(share) >= chance)

    mean = 1 + bisect.bisect_left(range(1, LARGEST_MEAN), True, key=suffices)
    return accounting.AtMost(law(mean), cap=CAP * mean)


def good_share(space: Space) -> float:
    """Returns the probability that a draw of the space is good in every hyperparameter."""
    return math.prod(_share(law) for law in space.parameters.values())


def _share(law: Law) -> float:
    """Returns the probability of a draw within a factor `GOOD` of the law's middle."""
    if isinstance(law, Category):
        return 1.0 / len(law.values or (0,))
    (middle,) = law.from_unit(np.array([0.5]))
    if not middle > 0:
        return 0.5  # No scale: what is good of it cannot be told.
    low, high = middle / GOOD, middle * GOOD
    if law.values is not None:
        near = [w for v, w in zip(law.values, law.weights or (), strict=True) if low <= v <= high]
        return math.fsum(near)
    below, above = law.to_unit(np.array([low, high]))
    return float(above - below)
