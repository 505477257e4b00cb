"""A mechanism of which one (epsilon, delta) is all that is known."""

from __future__ import annotations

from dpjax.accounting.guarantee import Guarantee, pure_pair
from dpjax.accounting.mechanisms.mechanism import mechanism
from dpjax.checks import not_negative, probability
from dpjax.neighbouring import ADD_OR_REMOVE_ONE


@mechanism
def approximate(epsilon: float, delta: float, *, relation: object = ADD_OR_REMOVE_ONE) -> Guarantee:
    """A mechanism known to be (epsilon, delta)-DP, and nothing else.

    With probability delta everything is revealed, else randomised response at epsilon: that pair
    dominates every such mechanism (Kairouz, Oh & Viswanath 2015, Theorem 3.4). What is stated of a
    composition or a selection is above that of a mechanism whose whole profile is known, and says
    nothing at deltas below what may be revealed: ask at a delta of several times this one.

    Example:
      >>> from dpjax import accounting
      >>> run = accounting.approximate(1.0, 1e-6)
      >>> print(f"{accounting.repeat(run, 2).epsilon(1e-4):.2f}")
      2.00

    Args:
      epsilon: nats, >= 0, under `relation`.
      delta: in (0, 1).
      relation: neighbouring relation.

    Returns:
      Guarantee with loss distributions (`epsilon` at smaller deltas is inf).
    """
    epsilon = not_negative("epsilon", epsilon)
    delta = probability("delta", delta, hint="; for delta 0 use accounting.pure")
    return Guarantee(relation=relation, pair=lambda: pure_pair(epsilon).with_failure(delta))
