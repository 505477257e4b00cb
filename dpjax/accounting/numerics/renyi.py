"""Renyi differential privacy at continuous orders: curves, conversions, the sampled Gaussian.

A curve is a function of the order, not a table: every optimum over orders is found continuously,
because a fixed table overstates epsilon (by up to 1e-2 for selections). NumPy float64.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np

ORDERS = 1.0 + np.geomspace(1e-3, 1e6, 145)
"""Coarse grid of orders on which an optimum is bracketed before it is refined."""

REFINEMENTS = 5
"""Refinements of the bracket by 33 orders each: the optimum is found to about 1e-7, relative."""

PROFILE_ORDERS = 1201
"""Number of orders tabulated for a profile: its delta is within 1e-3, relative, of the best."""


@dataclasses.dataclass(frozen=True, eq=False)
class RenyiCurve:
    """Bounds the Renyi divergences of both directions from above, outside a failure event.

    The event's probability, `failure_mass`, is the same under both neighbours. Where it is above 0
    the mechanism itself has infinite Renyi divergence.
    """

    # (n,) orders > 1 -> (n,) divergences in nats; inf where unknown
    evaluate: Callable[[np.ndarray], np.ndarray]
    failure_mass: float = 0.0

    @functools.cached_property
    def on_grid(self) -> np.ndarray:
        """Returns the divergences at ORDERS."""
        return self._evaluated(ORDERS)

    def _evaluated(self, orders: np.ndarray) -> np.ndarray:
        """Returns non-negative bounds at the orders."""
        return np.maximum(_without_nan(self.evaluate(orders)), 0.0)

    def __call__(self, orders: np.ndarray) -> np.ndarray:
        if orders is ORDERS:
            return self.on_grid
        return self._evaluated(np.asarray(orders, dtype=np.float64))

    def minimise(
        self, objective: Callable[[np.ndarray, np.ndarray], np.ndarray]
    ) -> tuple[float, float]:
        """Returns the smallest objective(orders, divergences), (n,) each, and its order."""
        # The best order of the grid first, then finer grids between its neighbours.
        orders = ORDERS
        values = _without_nan(objective(orders, self.on_grid))
        for _ in range(REFINEMENTS):
            best = int(np.argmin(values))
            low, high = orders[max(best - 1, 0)], orders[min(best + 1, orders.size - 1)]
            found, order = float(values[best]), float(orders[best])
            if not (math.isfinite(found) and high > low):
                break
            below = 1.0 + np.geomspace(low - 1.0, order - 1.0, 17)[:-1]
            above = 1.0 + np.geomspace(order - 1.0, high - 1.0, 17)[1:]
            orders = np.concatenate([below, [order], above])
            values = _without_nan(objective(orders, self(orders)))
        best = int(np.argmin(values))
        return float(values[best]), float(orders[best])

    def epsilon(self, delta: float) -> float:
        """Returns the smallest epsilon by Lemma 14 of Papernot & Steinke (2022), over all orders.

        The failure probability f is taken out of delta first: (delta - f) / (1 - f) is left.
        """
        remaining = (delta - self.failure_mass) / (1.0 - self.failure_mass)
        if remaining <= 0.0:
            return math.inf
        return max(0.0, self.minimise(lambda o, r: lemma_14_epsilon(o, r, remaining))[0])

    def classic_epsilon(self, delta: float) -> float:
        """Returns epsilon by Mironov (2017): divergence + log(1/delta) / (order - 1)."""
        remaining = (delta - self.failure_mass) / (1.0 - self.failure_mass)
        if remaining <= 0.0:
            return math.inf
        return max(0.0, self.minimise(lambda o, r: r - math.log(remaining) / (o - 1.0))[0])

    def delta(self, epsilon: float) -> float:
        """Finds the smallest delta at `epsilon` by Lemma 14, all orders."""
        value, _ = self.minimise(lambda o, r: lemma_14_log_delta(o, r, epsilon))
        inside = min(1.0, math.exp(min(value, 0.0)))
        return self.failure_mass + (1.0 - self.failure_mass) * inside

    @functools.cached_property
    def _table(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns orders, denser than the grid, and the divergences there."""
        usable = ORDERS[np.isfinite(self.on_grid)]
        if usable.size == 0:
            return ORDERS, self.on_grid
        orders = 1.0 + np.geomspace(usable[0] - 1.0, usable[-1] - 1.0, PROFILE_ORDERS)
        return orders, self(orders)

    def profile(self, epsilons: np.ndarray, refined: bool = False) -> np.ndarray:
        """Bounds delta at many epsilons from above, (n,): Lemma 14 on a dense table of orders.

        With `refined` the order is then optimised for each epsilon, at 60 more evaluations each.
        """
        orders, divergences = self._table
        best = np.full(epsilons.shape, np.inf)
        place = np.zeros(epsilons.shape, dtype=np.int64)
        for start in range(0, orders.size, 64):  # In blocks, to bound memory.
            part = slice(start, start + 64)
            values = lemma_14_log_delta(orders[part, None], divergences[part, None], epsilons)
            found = values.argmin(axis=0)
            lowest = values[found, np.arange(epsilons.size)]
            place = np.where(lowest < best, start + found, place)
            best = np.minimum(best, lowest)
        if refined:
            # Each epsilon has its own interval of orders, narrowed to a tenth in every round.
            low = orders[np.maximum(place - 1, 0)]
            high = orders[np.minimum(place + 1, orders.size - 1)]
            for _ in range(3):
                shares = np.linspace(0.0, 1.0, 21)[:, None]
                trial = low + (high - low) * shares
                values = lemma_14_log_delta(
                    trial, self(trial.ravel()).reshape(trial.shape), epsilons
                )
                found = values.argmin(axis=0)
                columns = np.arange(epsilons.size)
                best = np.minimum(best, values[found, columns])
                low, high = (
                    trial[np.maximum(found - 1, 0), columns],
                    trial[np.minimum(found + 1, 20), columns],
                )
        inside = np.exp(np.minimum(best, 0.0))
        return self.failure_mass + (1.0 - self.failure_mass) * inside


def _without_nan(values: np.ndarray) -> np.ndarray:
    """Replaces NaN by infinity: `argmin` takes NaN for the smallest, and `max(0, NaN)` is 0."""
    return np.where(np.isnan(values), np.inf, values)


def lemma_14_epsilon(orders: np.ndarray, divergences: np.ndarray, delta: float) -> np.ndarray:
    """Returns epsilon from one order (Papernot & Steinke 2022, Lemma 14, solved for it)."""
    gap = orders - 1.0
    return divergences + np.log1p(-1.0 / orders) - (math.log(delta) + np.log(orders)) / gap


def lemma_14_log_delta(
    orders: np.ndarray, divergences: np.ndarray, epsilon: np.ndarray | float
) -> np.ndarray:
    """Returns log delta from one order: (l-1)(r - epsilon) - log l + (l-1) log(1 - 1/l)."""
    gap = orders - 1.0
    return gap * (divergences - epsilon + np.log1p(-1.0 / orders)) - np.log(orders)


def gaussian_curve(noise_multiplier: float, steps: int = 1) -> RenyiCurve:
    """Returns the curve order * steps / (2 noise_multiplier^2) (Mironov 2017, Corollary 3)."""
    return zcdp_curve(steps / (2.0 * noise_multiplier**2))


def zcdp_curve(rho: float) -> RenyiCurve:
    """Returns the curve rho * order, the definition of rho-zCDP (Bun & Steinke 2016)."""
    return RenyiCurve(lambda orders: rho * orders)


def pure_curve(epsilon: float) -> RenyiCurve:
    """Returns the tight curve of pure epsilon-DP: randomised response's."""

    def evaluate(orders: np.ndarray) -> np.ndarray:
        # log((e^{a e} + e^{(1-a) e}) / (1 + e^e)) = log cosh((a - 1/2) e) - log cosh(e / 2).
        both = _log_cosh((orders - 0.5) * epsilon) - _log_cosh(np.float64(0.5 * epsilon))
        return both / (orders - 1.0)

    return RenyiCurve(evaluate)


def _log_cosh(x: np.ndarray | float) -> np.ndarray:
    """Computes log cosh x at x >= 0 to full precision, also near 0."""
    near = np.log1p(2.0 * np.sinh(0.5 * np.minimum(x, 1.0)) ** 2)
    far = x + np.log1p(np.exp(-2.0 * x)) - math.log(2.0)
    return np.where(x < 1.0, near, far)


def sampled_gaussian_curve(
    sampling_probability: float, noise_multiplier: float, steps: int
) -> RenyiCurve:
    """Returns the curve of Poisson-sampled steps, add or remove one (Mironov et al. 2019, 3.3)."""
    if sampling_probability == 1.0:
        return gaussian_curve(noise_multiplier, steps)

    def evaluate(orders: np.ndarray) -> np.ndarray:
        logs = sampled_gaussian_log_moments(sampling_probability, noise_multiplier, orders)
        return steps * logs / (orders - 1.0)

    return RenyiCurve(evaluate)


def sampled_gaussian_log_moments(
    sampling_probability: float, noise_multiplier: float, orders: np.ndarray
) -> np.ndarray:
    """Computes order - 1 times a step's divergence, log E[(1 + u(x))^order], at any orders > 1.

    Here x ~ N(0, s^2) and u = q (e^{(2x-1)/(2 s^2)} - 1). E[u] = 0, so the moment is 1 +
    E[(1+u)^order - 1 - order u], an integral of a non-negative analytic function: the trapezoidal
    rule converges exponentially and loses no digits where the usual series of binomials cancels.
    Relative error of the excess over 1: below 1e-11.
    """
    s = noise_multiplier
    step = min(s / 3.0, s * s / 2.2)
    # If a grid would be too long, the unsampled Gaussian's bound it from above.
    logs = orders * (orders - 1.0) / (2.0 * s * s)
    longest = 20_000 * step - 26.0 * s
    place = np.argsort(orders)
    place = place[orders[place] < longest]
    while place.size:
        # Orders within a factor of 2 share one grid of x.
        count = int(np.searchsorted(orders[place], 2.0 * orders[place[0]], side="right"))
        count = min(count, max(1, 400_000 // int((orders[place[0]] * 2.0 + 28.0 * s) / step + 1)))
        chosen, place = place[:count], place[count:]
        logs[chosen] = _log_moments_on_grid(sampling_probability, s, orders[chosen], step)
    return logs


def _log_moments_on_grid(q: float, s: float, orders: np.ndarray, step: float) -> np.ndarray:
    """Sums the moments of the sampled Gaussian's likelihood ratio over a grid; returns logs."""
    x = np.arange(-13.0 * s, max(2.0, float(orders.max())) + 13.0 * s + step, step)
    a = orders[:, None]
    log_density = -0.5 * (x / s) ** 2 + math.log(step / (s * math.sqrt(2.0 * math.pi)))
    tilt = (2.0 * x - 1.0) / (2.0 * s * s)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        u = np.minimum(q * np.expm1(tilt), 1e15)
        # log(1 + u) without overflow of e^tilt, where q e^tilt may still be small.
        large = np.logaddexp(math.log1p(-q), tilt + math.log(q))
        log_ratio = np.where(tilt > 30.0, large, np.log1p(u))
        power = a * log_ratio
        direct = np.expm1(np.minimum(power, 30.0)) - a * u
        # For small u the difference cancels: its series begins with order (order - 1) u^2 / 2.
        small = np.where(np.abs(u) * np.maximum(a, 1.0) < 0.02, u, 0.0)
        series = np.zeros_like(small)
        coefficient, term = 0.5 * a * (a - 1.0), small * small
        for k in range(3, 12):
            series += coefficient * term
            coefficient = coefficient * (a - k + 1.0) / k
            term = term * small
        excess = np.where(small != 0.0, series, direct)
        log_excess = np.where(
            power > 30.0,
            # (1 + u)^a - 1 - a u over (1 + u)^a, with 1 + a u = a (1 + u) - (a - 1).
            power + np.log1p((a - 1.0) * np.exp(-power) - a * np.exp(-(a - 1.0) * log_ratio)),
            np.log(np.maximum(excess, 1e-300)),
        )
    terms = log_density + log_excess
    peak = terms.max(axis=1)
    return np.logaddexp(0.0, peak + np.log(np.sum(np.exp(terms - peak[:, None]), axis=1)))


def table_curve(
    orders: np.ndarray,
    log_moments: np.ndarray,
    beyond: Callable[[np.ndarray], np.ndarray],
) -> RenyiCurve:
    """Interpolates a curve known at some ascending orders, by its convex cumulant function.

    `log_moments` are upper bounds on (order - 1) * divergence; `beyond` is the curve above the last
    order.
    """
    knots = np.append(1.0, orders)
    moments = np.append(0.0, log_moments)

    def evaluate(wanted: np.ndarray) -> np.ndarray:
        inside = np.interp(wanted, knots, moments) / (wanted - 1.0)
        return np.where(wanted > knots[-1], beyond(wanted), np.minimum(inside, beyond(wanted)))

    return RenyiCurve(evaluate)


def sum_of(curves: list[RenyiCurve], counts: list[int]) -> RenyiCurve:
    """Composes: adds up curves, each `counts` times; any failure event counts as one."""
    log_success = sum(n * math.log1p(-c.failure_mass) for c, n in zip(curves, counts))
    return RenyiCurve(
        lambda orders: sum((n * c(orders) for c, n in zip(curves, counts)), np.zeros(orders.shape)),
        -math.expm1(log_success),
    )


def maximum_of(curves: list[RenyiCurve]) -> RenyiCurve:
    """Takes the largest curve at every order, for mechanisms on disjoint records."""
    return RenyiCurve(
        lambda orders: np.max([c(orders) for c in curves], axis=0),
        max(c.failure_mass for c in curves),
    )


def mixture_of(curves: list[RenyiCurve], weights: np.ndarray) -> RenyiCurve:
    """Mixes mechanisms by public weights: log-mean-exp of (order - 1) * divergence."""
    failures = np.array([c.failure_mass for c in curves])
    kept = weights * (1.0 - failures)
    # Not 1 less what is kept: rounding would make a probability below 1e-16 nothing.
    failure = min(1.0, float(weights @ failures))
    log_weights = np.log(kept / kept.sum())[:, None]

    def evaluate(orders: np.ndarray) -> np.ndarray:
        gap = orders - 1.0
        exponents = log_weights + gap * np.array([c(orders) for c in curves])
        return np.logaddexp.reduce(exponents, axis=0) / gap

    return RenyiCurve(evaluate, failure)
