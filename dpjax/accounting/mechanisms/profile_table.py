"""A mechanism known at some points of its privacy profile, and nowhere else."""

from __future__ import annotations

import numpy as np

from dpjax.accounting.guarantee import Guarantee, pure_pair
from dpjax.accounting.mechanisms.elementary import grid_interval
from dpjax.accounting.mechanisms.mechanism import mechanism
from dpjax.accounting.numerics.loss_distribution import LossPair, whole_up
from dpjax.accounting.numerics.privacy_profile import pair_from_profiles
from dpjax.checks import vector
from dpjax.neighbouring import ADD_OR_REMOVE_ONE


@mechanism
def profile_table(
    epsilons: np.ndarray, deltas: np.ndarray, *, relation: object = ADD_OR_REMOVE_ONE
) -> Guarantee:
    """A mechanism known to be (epsilon, delta)-DP for each row of a table.

    A profile is convex in e^epsilon, falls, is 1 at e^epsilon = 0, and mirrors the other
    direction's below epsilon 0 (Zhu, Dong & Wang 2022, Section 3): the largest function that does
    so and passes below the points bounds it, and a pair with that profile dominates. Each row
    alone is `approximate`'s (Kairouz, Oh & Viswanath 2015); beyond the last row delta falls no
    further.

    Example:
      >>> from dpjax import accounting
      >>> table = accounting.profile_table([0.5, 1.0, 2.0], [1e-2, 1e-4, 1e-7])
      >>> print(f"{table.delta(1.0):.1e}")
      1.0e-04

    Args:
      epsilons: (n,) nats, >= 0, strictly ascending.
      deltas: (n,) in [0, 1), of them; each holds for both directions. 0 makes its epsilon pure.
      relation: neighbouring relation.

    Returns:
      Guarantee with loss distributions on a grid of at most 1e-4, epsilons between rounded up to
      it; `epsilon` is inf at deltas below the smallest.

    Raises:
      ValueError: epsilons that are negative or do not ascend, deltas outside [0, 1), different
        lengths.
    """
    epsilons, deltas = vector("epsilons", epsilons), vector("deltas", deltas)
    if epsilons.shape != deltas.shape:
        raise ValueError("epsilons and deltas must be two lists of one length")
    if not (np.all(epsilons >= 0.0) and np.all(np.diff(epsilons) > 0.0)):
        raise ValueError("epsilons must ascend from 0 or above")
    if not np.all((deltas >= 0.0) & (deltas < 1.0)):
        raise ValueError("deltas must be in [0, 1)")
    pure = epsilons[deltas == 0.0]
    return Guarantee(
        relation=relation,
        pair=lambda: _pair(epsilons, deltas),
        pure_epsilon=float(pure[0]) if pure.size else None,
    )


def _pair(epsilons: np.ndarray, deltas: np.ndarray) -> LossPair:
    if epsilons.size == 1:
        return pure_pair(float(epsilons[0])).with_failure(float(deltas[0]))
    largest = max(float(epsilons[-1]), 1e-6)
    interval = grid_interval(min(1e-4, largest / 2000.0), 2.0 * largest)
    knots = interval * np.arange(whole_up(largest / interval) + 2)
    values = np.ones(knots.size)
    for epsilon, delta in zip(epsilons, deltas):
        # What (epsilon, delta)-DP says at smaller epsilons: of randomised response.
        below = -np.expm1(np.minimum(knots - epsilon, 0.0)) / (1.0 + np.exp(-epsilon))
        # The chord is 0 from this epsilon on; a few units of rounding up elsewhere.
        values = np.minimum(values, delta + (1.0 - delta) * below * (1.0 + 2.0**-46))
    return pair_from_profiles(interval, values)
