"""Finds draws that are not independent: two workers, or a restarted script, had one seed.

The best of K independent candidates costs little. Candidates that are drawn twice are not
independent, and neither are those of a grid. Nothing here reads a result: hyperparameters alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

BY_CHANCE = 1e-6
"""Repeats are refused if independent draws show them with a probability below this."""

_FEWEST_OF_A_GRID = 4


def found_in(
    trials: Sequence[Mapping[str, Hashable]], number_of_values: Mapping[str, float]
) -> str | None:
    """Returns why these trials are no independent draws, or None.

    `number_of_values`: name -> how many values it can take, infinity if it is continuous.
    """
    for name in sorted(name for name, number in number_of_values.items() if math.isinf(number)):
        values = [one[name] for one in trials if name in one]
        if len(set(values)) < len(values):
            return (
                f"{name} is continuous and has one value in two trials, as independent draws do "
                "not: two workers, or a restarted script, had one sampler's seed"
            )
        if _is_grid(np.array(values, np.float64)):
            return f"the values of {name} are equally far apart: they are a grid, and no draws"
    points = [tuple(sorted(one.items())) for one in trials]
    different = math.prod(max(number, 1.0) for number in number_of_values.values())
    if _repeats(points, different):
        return (
            "trials repeat others, one for one, as independent draws hardly do: two workers, or a "
            "restarted script, had one sampler's seed"
        )
    return None


def _is_grid(values: np.ndarray) -> bool:
    """Returns whether values, or their logarithms, are equally far apart; order does not count."""
    ordered = np.sort(values)
    if len(ordered) < _FEWEST_OF_A_GRID:
        return False
    scales = [ordered, *([np.log(ordered)] if ordered[0] > 0 else [])]
    steps = (np.diff(one) for one in scales)
    return any(np.ptp(one) <= 1e-6 * np.mean(one) for one in steps)


def _repeats(points: Sequence[Hashable], different: float) -> bool:
    """Returns whether equal points among `different` equally likely ones are beyond chance.

    Either too many points equal the one a fixed number of trials later (a restarted script, or
    workers in step), or too many pairs are equal at all (workers out of step). Of n independent
    points m certain pairs are equal with probability different^-m; there are at most C(n, m)
    choices of those that are so far apart, and (n (n - 1) / 2)^m / m! of any.
    """
    number, aim = len(points), math.log(BY_CHANCE)
    if different <= 1 or math.isinf(different):  # Continuous names were checked before.
        return False
    for shift in range(1, number):
        equal = sum(one == other for one, other in zip(points, points[shift:]))
        if math.log(math.comb(number - shift, equal)) - equal * math.log(different) < (
            aim - math.log(number)
        ):
            return True
    pairs = sum(count // 2 for count in Counter(points).values())
    each = math.log(max(number * (number - 1) / 2, 1.0) / different)
    return pairs * each - math.lgamma(pairs + 1) < aim
