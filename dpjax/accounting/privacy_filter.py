"""A budget for mechanisms chosen one after another, each by the results of earlier ones.

`compose` adds guarantees that were fixed beforehand. Whoever looks at a result and then decides how
much noise comes next, or whether anything does, may not use it: the sum of what was chosen can be
exceeded. A filter's budget holds, because its sum is of Renyi divergences at ONE order, fixed
before the first result (Feldman & Zrnic 2021; the proof: docs/proofs/filter.md).
"""

from __future__ import annotations

import math

import numpy as np

from dpjax import checks
from dpjax.accounting.guarantee import Guarantee, check_guarantee
from dpjax.accounting.mechanisms.elementary import approximate, renyi_only
from dpjax.accounting.numerics.renyi import RenyiCurve, lemma_14_epsilon

_ROUNDING = 1e-12
"""Relative tolerance: far above the rounding of float64 sums, too small for anyone to notice."""


class PrivacyFilter:
    """Admits mechanisms on the same records until a budget is used up, whatever chose them.

    Formal guarantees: fix the budget before the first result. Let every mechanism, and how often it
    runs, be chosen by all earlier results, and let none run that `spend` did not take. Then
    everything that was seen together is (epsilon, delta)-differentially private under the
    mechanisms' neighbouring relation. `failures` is the part of delta that mechanisms with a
    failure probability may use up.

    Example:
      >>> from dpjax import accounting
      >>> epoch = accounting.dp_sgd(0.01, 1.0, steps=100)
      >>> budget = accounting.PrivacyFilter(2.0, 1e-5, epoch)
      >>> epochs = 0
      >>> while budget.admits(epoch):
      ...     budget.spend(epoch)  # Then train it; the next may have other noise.
      ...     epochs += 1
      >>> fixed = accounting.repeat(epoch, epochs).epsilon(1e-5)
      >>> print(f"{epochs} epochs; fixed beforehand they would cost epsilon {fixed:.2f}")
      8 epochs; fixed beforehand they would cost epsilon 1.64

    Attributes:
      epsilon: the budget, nats.
      delta: its delta, in (0, 1).
      relation: the neighbouring relation, that of the planned mechanism.
      failures: part of delta, in [0, delta).
      order: the Renyi order, above 1, at which divergences are added.
      capacity: the sum of divergences at this order that the budget allows, nats.
    """

    def __init__(
        self,
        epsilon: float,
        delta: float,
        planned: Guarantee,
        *,
        failures: float = 0.0,
    ):
        """Fixes the budget and the order; nothing is spent.

        A ValueError refuses a plan that does not fit once.

        Args:
          epsilon, delta, failures: as the attributes.
          planned: a mechanism like those to come, by public numbers alone. The order is the one at
            which most of it fits. Others may run, too: a bad plan costs room, never privacy.
        """
        self.epsilon = checks.positive("epsilon", epsilon)
        self.delta = checks.probability("delta", delta)
        self.failures = checks.number("failures", failures, "in [0, delta)")
        if not 0.0 <= self.failures < self.delta:
            raise checks.refused("failures", failures, f"in [0, delta), delta {delta:g}")
        curve = _curve("planned", planned)

        def share(orders: np.ndarray, divergences: np.ndarray) -> np.ndarray:
            room = self._capacity(orders)
            with np.errstate(divide="ignore", invalid="ignore"):
                return np.where(room > 0.0, divergences / room, np.inf)

        _, self.order = curve.minimise(share)
        self.capacity = float(self._capacity(np.array([self.order]))[0]) * (1.0 - _ROUNDING)
        self.relation = planned.relation
        self._divergences: list[float] = []
        self._failures: list[float] = []
        if curve.failure_mass > self.failures:
            raise ValueError(
                f"planned has a failure probability of {curve.failure_mass:.3g}: pass failures=, "
                f"at least so much for each time it is to run, and below delta {delta:g}"
            )
        if not self.admits(planned):
            raise ValueError(
                f"planned does not fit into epsilon={epsilon:g} at delta={delta:g} once: pass a "
                "larger budget, or less of it at a time"
            )

    def __setattr__(self, name: str, value: object) -> None:
        if hasattr(self, name):
            raise AttributeError(
                f"{name} of a PrivacyFilter is fixed: make another before a result"
            )
        object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return (
            f"PrivacyFilter(epsilon={self.epsilon:g}, delta={self.delta:g}, "
            f"{100 * self.spent:.4g}% spent)"
        )

    @property
    def spent(self) -> float:
        """Returns the share of the capacity that is used up, in [0, 1]."""
        return math.fsum(self._divergences) / self.capacity

    def admits(self, part: Guarantee, times: int = 1) -> bool:
        """Returns whether a mechanism may run `times` more times; spends nothing."""
        return self._lacking(*self._cost(part, times)) is None

    def spend(self, part: Guarantee, times: int = 1) -> None:
        """Takes a mechanism's cost off the budget; call it BEFORE the mechanism runs.

        Raises:
          ValueError: it does not fit; nothing is spent, and it must not run.
        """
        divergence, failure = self._cost(part, times)
        if (lacking := self._lacking(divergence, failure)) is not None:
            raise ValueError(f"part {lacking}: run nothing more, or what `admits` takes")
        self._divergences.append(divergence)
        self._failures.append(failure)

    def guarantee(self) -> Guarantee:
        """Returns the guarantee of the whole budget, to be composed with other mechanisms."""
        if self.failures:
            return approximate(self.epsilon, self.delta, relation=self.relation)
        order, capacity = np.array([self.order]), np.array([self.capacity])
        return renyi_only(order, capacity, relation=self.relation)

    def _lacking(self, divergence: float, failure: float) -> str | None:
        """Returns in words why a cost does not fit into what is left; None if it fits."""
        if not math.fsum([*self._failures, failure]) <= self.failures:
            return (
                f"fails with probability {failure:.3g}, which is more than what is left of "
                f"failures={self.failures:g}"
            )
        if not math.fsum([*self._divergences, divergence]) <= self.capacity:
            return (
                f"does not fit into what is left of epsilon={self.epsilon:g} at "
                f"delta={self.delta:g}"
            )
        return None

    def _cost(self, part: Guarantee, times: int) -> tuple[float, float]:
        """Returns the divergence at the order, and the failure probability, of all `times`."""
        curve = _curve("part", part)
        times = min(checks.whole("times", times), 2**53)  # More than ever run, exact as a float.
        if part.relation != self.relation:
            raise ValueError(
                f"part is priced for {part.relation}, the budget for {self.relation}: pass "
                "mechanisms of one neighbouring relation"
            )
        return times * float(curve(np.array([self.order]))[0]), times * curve.failure_mass

    def _capacity(self, orders: np.ndarray) -> np.ndarray:
        """Returns the largest divergence at each order that gives (epsilon, delta), Lemma 14."""
        return self.epsilon - lemma_14_epsilon(orders, np.zeros(()), self.delta - self.failures)


def _curve(name: str, value: object) -> RenyiCurve:
    """Returns a guarantee's Renyi curve; refuses one without, naming the argument."""
    check_guarantee(name, value)
    assert isinstance(value, Guarantee)
    if value.renyi is None:
        raise ValueError(
            f"{name} has no Renyi curve, only loss distributions: pass a mechanism of "
            "dpjax.accounting, or accounting.approximate(epsilon, delta) with failures="
        )
    return value.renyi
