"""Prices one differentially private training run: on Poisson lots and on lots of fixed size."""

from __future__ import annotations

import functools
import math

import numpy as np
from scipy import special

from dpjax.accounting.guarantee import Guarantee
from dpjax.accounting.mechanisms.elementary import (
    TAIL_DEVIATIONS,
    gaussian_delta,
    gaussian_pair,
    grid_interval,
)
from dpjax.accounting.mechanisms.mechanism import mechanism
from dpjax.accounting.numerics import renyi
from dpjax.accounting.numerics.composition import composition
from dpjax.accounting.numerics.loss_distribution import LossPair
from dpjax.accounting.numerics.privacy_profile import pair_from_function
from dpjax.accounting.numerics.rdp_grid import WITHOUT_REPLACEMENT, rdp_grid
from dpjax.checks import Refused, positive, probability, whole
from dpjax.neighbouring import ADD_OR_REMOVE_ONE, REPLACE_ONE

GRID_VARIANCE = 1e-3
"""Share of the variance of one step's loss that the grid may add to it."""

MOST_KNOTS = 1 << 18
"""Most knots of one step's grid, roughly."""

KEPT_PAIRS = 4
"""Runs whose losses are cached, some MB each: a plan prices the noise it found last again."""


@mechanism
def dp_sgd(
    sampling_probability: float,
    noise_multiplier: float,
    steps: int,
    *,
    failure_probability: float = 0.0,
) -> Guarantee:
    """Prices DP-SGD with Poisson lots, add-or-remove one.

    Formal guarantees: each step adds N(0, (noise_multiplier * C)^2) to a sum of gradients clipped
    to norm C over a lot that holds each record independently with probability
    `sampling_probability`; all steps' noisy sums may be released. Nothing may depend on the number
    of records otherwise: normalise by the public expected lot.

    The loss distribution is dp_accounting's (remove: (1-q) N(0, s^2) + q N(1, s^2) against
    N(0, s^2); add: the reverse), on a grid that adds at most 0.1% to the variance of a step's loss
    (memory permitting, where the noise is very small), composed as in `composition`: never below
    the exact cost, rounding included, at any delta down to 1e-18. The Renyi curve is that of
    Mironov, Talwar & Zhang (2019), at continuous orders.

    Example:
      >>> from dpjax import accounting
      >>> run = accounting.dp_sgd(sampling_probability=0.01, noise_multiplier=1.0, steps=1000)
      >>> print(f"epsilon {run.epsilon(1e-5):.2f} at delta 1e-5")
      epsilon 1.83 at delta 1e-5

    Args:
      sampling_probability: in (0, 1]; round it up where the sampler's arithmetic is not exact.
      noise_multiplier: noise standard deviation / clip norm C.
      steps: number of noisy steps.
      failure_probability: probability, over all steps, of a failure that is equally likely under
        both neighbours; without it the run is as described. Example: a lot exceeds its capacity
        without counting the record in question (`truncation_probability`). It becomes mass of
        infinite loss, before any selection multiplies it.
    """
    sampling_probability = probability("sampling_probability", sampling_probability, one=True)
    noise_multiplier = positive("noise_multiplier", noise_multiplier)
    steps = whole("steps", steps)
    failure_probability = probability("failure_probability", failure_probability, zero=True)
    curve = renyi.sampled_gaussian_curve(sampling_probability, noise_multiplier, steps)
    return Guarantee(
        relation=ADD_OR_REMOVE_ONE,
        pair=lambda: poisson_pair(sampling_probability, noise_multiplier, steps).with_failure(
            failure_probability
        ),
        renyi=renyi.RenyiCurve(curve.evaluate, failure_probability),
    )


@mechanism
def dp_sgd_fixed_lots(
    dataset_size: int,
    lot_size: int,
    noise_multiplier: float,
    steps: int,
    *,
    failure_probability: float = 0.0,
) -> Guarantee:
    """Prices DP-SGD with fixed-size lots drawn without replacement, replace one.

    Formal guarantees: each step adds N(0, (noise_multiplier * 2C)^2) to a sum of gradients clipped
    to norm C over a uniformly random set of `lot_size` records out of exactly `dataset_size`.

    Per step, with q = lot_size / dataset_size and delta_s the Gaussian's profile, both directions
    have profile q delta_s(log(1 + (e^epsilon - 1)/q)) at epsilon >= 0, composed as a
    symmetric loss distribution. The Renyi curve is Wang, Balle & Kasiviswanathan's (2019, Theorem
    27), much looser.

    Args:
      dataset_size: number of records, public under this relation.
      lot_size: records in each lot, at most dataset_size.
      noise_multiplier: noise standard deviation / the replace-one sensitivity 2C of the clipped
        sum.
      steps: number of noisy steps.
      failure_probability: as in `dp_sgd`.
    """
    dataset_size = whole("dataset_size", dataset_size)
    lot_size = whole("lot_size", lot_size)
    if lot_size > dataset_size:
        raise Refused(("lot_size", lot_size), f" exceeds dataset_size {dataset_size}: pass less")
    noise_multiplier = positive("noise_multiplier", noise_multiplier)
    steps = whole("steps", steps)
    failure_probability = probability("failure_probability", failure_probability, zero=True)
    fraction = lot_size / dataset_size
    curve = _fixed_lots_curve(dataset_size, lot_size, noise_multiplier, steps)
    return Guarantee(
        relation=REPLACE_ONE,
        pair=lambda: fixed_lots_pair(fraction, noise_multiplier, steps).with_failure(
            failure_probability
        ),
        renyi=renyi.RenyiCurve(curve.evaluate, failure_probability),
    )


@functools.lru_cache(maxsize=KEPT_PAIRS)
def poisson_pair(q: float, noise_multiplier: float, steps: int) -> LossPair:
    """Returns the composed losses of the Poisson-sampled Gaussian; forward removes a record."""
    if q == 1.0:
        return gaussian_pair(noise_multiplier / math.sqrt(steps))

    def remove(epsilons: np.ndarray) -> np.ndarray:
        return _amplified(epsilons, q, noise_multiplier)

    def add(epsilons: np.ndarray) -> np.ndarray:
        return _reversed(epsilons, q, noise_multiplier)

    largest, interval = _step_grid(q, noise_multiplier, steps)
    # Losses of the add direction end at -log(1 - q): the grid must reach as far as they matter.
    reach = TAIL_DEVIATIONS / noise_multiplier + 0.5 / noise_multiplier**2
    largest = max(largest, -math.log1p(q * math.expm1(-reach)))
    return composition([(pair_from_function(remove, interval, largest, add), steps)])


@functools.lru_cache(maxsize=KEPT_PAIRS)
def fixed_lots_pair(fraction: float, noise_multiplier: float, steps: int) -> LossPair:
    """Returns the composed losses of the Gaussian on lots without replacement; symmetric."""
    if fraction == 1.0:
        return gaussian_pair(noise_multiplier / math.sqrt(steps))
    largest, interval = _step_grid(fraction, noise_multiplier, steps)
    one_step = pair_from_function(
        lambda epsilons: _amplified(epsilons, fraction, noise_multiplier), interval, largest
    )
    return composition([(one_step, steps)])


def truncation_probability(
    dataset_size: int, sampling_probability: float, capacity: int, steps: int
) -> float:
    """Bounds the probability that some lot overflows its capacity, over all steps.

    It is steps * P[Binomial(dataset_size, sampling_probability) >= capacity]: with `capacity` other
    records in the lot, the record in question might not fit. Computed in log space; the tail is
    summed, and the rest of it bounded by a geometric series.

    Args:
      dataset_size: a public number that the number of records never exceeds.
      capacity: rows of the padded lot.
      sampling_probability, steps: as in `dp_sgd`, whose `failure_probability` is returned.
    """
    dataset_size = whole("dataset_size", dataset_size)
    capacity = whole("capacity", capacity)
    steps = whole("steps", steps)
    q = probability("sampling_probability", sampling_probability, one=True)
    if capacity >= dataset_size:
        return 0.0  # Every record has a row, and at most dataset_size - 1 others want one.
    if q == 1.0 or capacity <= q * (dataset_size + 1):
        return 1.0
    k = np.arange(capacity, min(capacity + 4000, dataset_size) + 1, dtype=np.float64)
    log_pmf = (
        special.gammaln(dataset_size + 1.0)
        - special.gammaln(k + 1.0)
        - special.gammaln(dataset_size - k + 1.0)
        + k * math.log(q)
        + (dataset_size - k) * math.log1p(-q)
    )
    last = k[-1]
    ratio = (dataset_size - last) * q / ((last + 1.0) * (1.0 - q))
    log_rest = log_pmf[-1] + math.log(ratio / (1.0 - ratio)) if ratio > 0 else -math.inf
    # gammaln near 1e6 has an absolute error of 1e-9: 1e-8 is added to be safe.
    log_tail = float(np.logaddexp(np.logaddexp.reduce(log_pmf), log_rest)) + 1e-8
    return min(1.0, math.exp(min(0.0, log_tail + math.log(steps))))


def lot_capacity(
    dataset_size: int, sampling_probability: float, steps: int, failure_probability: float = 1e-8
) -> int:
    """Finds the least capacity whose `truncation_probability` is at most `failure_probability`.

    Example:
      >>> from dpjax import accounting
      >>> accounting.lot_capacity(60_000, sampling_probability=0.005, steps=1000)
      424
    """
    failure_probability = probability("failure_probability", failure_probability)
    low, high = 0, whole("dataset_size", dataset_size) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if (
            truncation_probability(dataset_size, sampling_probability, middle, steps)
            <= failure_probability
        ):
            high = middle
        else:
            low = middle
    return min(high, dataset_size)


def _amplified(epsilons: np.ndarray, q: float, noise_multiplier: float) -> np.ndarray:
    """Returns the sampled profile at epsilon >= 0: q delta(log(1 + (e^epsilon - 1) / q))."""
    with np.errstate(over="ignore"):
        inner = np.where(epsilons > 30.0, epsilons - math.log(q), np.log1p(np.expm1(epsilons) / q))
    return q * gaussian_delta(inner, noise_multiplier)


def _reversed(epsilons: np.ndarray, q: float, noise_multiplier: float) -> np.ndarray:
    """Returns the profile of the reverse direction at epsilon >= 0, rounded up.

    It is the divergence of N(0, s^2) from the sampled mixture; the best event is x < cut, where the
    loss exceeds epsilon.
    """
    deltas = np.zeros_like(epsilons)
    s, unit = noise_multiplier, 2.0**-53
    # 1 - e^epsilon (1 - q), which is off by less than 4 units of q: rounded up.
    left = q - (1.0 - q) * np.expm1(np.minimum(epsilons, 700.0)) + 8.0 * unit * q
    inside = left > 0.0
    e, left = epsilons[inside], left[inside]
    t = np.exp(e)
    # The best cut; an error in it changes the result in second order only.
    cut = s * s * np.log(left / t / q) + 0.5
    outside = special.ndtr(cut / s) * left
    within = t * q * special.ndtr((cut - 1.0) / s)
    square = np.minimum((np.abs(cut / s) + 1.0 / s) ** 2, 3000.0)
    # As in `gaussian_delta`.
    rounding = (64.0 + 16.0 * square) * unit * (outside + within)
    deltas[inside] = np.maximum(outside - within, 0.0) + rounding
    return deltas


def _step_grid(q: float, noise_multiplier: float, steps: int) -> tuple[float, float]:
    """Returns the largest loss of one step worth keeping, and the grid interval for `steps` steps.

    Splitting masses between knots adds about interval^2 / 6 to the variance of each step's loss, in
    either direction; GRID_VARIANCE of that variance moves epsilon by half as much, relative.
    """
    s = noise_multiplier
    exponent = TAIL_DEVIATIONS / s + 0.5 / s**2
    largest = exponent + math.log(q) if exponent > 30 else math.log1p(q * math.expm1(exponent))
    # Moments of one step's loss under N(0, s^2), and under the sampled mixture.
    outcomes = s * np.linspace(-9.0, 9.0, 721)
    weights = np.exp(-0.5 * (outcomes / s) ** 2)
    least, extent = math.inf, 0.0
    staged = min(steps, 10**6)  # More steps are composed in stages, on coarser grids.
    moved = np.concatenate([outcomes, outcomes + 1.0])
    for points, mass in (
        (outcomes, weights),
        (moved, np.concatenate([(1.0 - q) * weights, q * weights])),
    ):
        gain = (points - 0.5) / s**2
        losses = np.logaddexp(math.log1p(-q), math.log(q) + gain)
        mass = mass / mass.sum()
        mean = float(mass @ losses)
        variance = float(mass @ (losses - mean) ** 2)
        least = min(least, variance)
        extent = max(extent, abs(staged * mean) + 20.0 * math.sqrt(staged * variance))
    finest = 1e-3 if steps > 20 else 1e-4
    # The next line bounds memory: very little noise makes a few very large losses among tiny ones.
    wanted = min(finest, math.sqrt(6.0 * GRID_VARIANCE * least))
    wanted = max(wanted, largest / MOST_KNOTS, 2e-6 * min(extent, staged * largest))
    return largest, grid_interval(wanted, 2.0 * largest)


@functools.lru_cache(maxsize=64)
def _fixed_lots_table(dataset_size: int, lot_size: int, noise_multiplier: float) -> tuple:
    """Returns Renyi orders and one step's divergences on lots without replacement."""
    # Not dp_accounting's values: version 0.6.0 is imprecise at large noise, in both directions.
    # Every integer order, so that the classic conversion gives DPareto's published numbers.
    orders = np.array([*range(2, 513), 1024], dtype=float)
    fraction = lot_size / dataset_size
    return orders, rdp_grid(fraction, noise_multiplier, 1, orders, WITHOUT_REPLACEMENT)[0]


def _fixed_lots_curve(
    dataset_size: int, lot_size: int, noise_multiplier: float, steps: int
) -> renyi.RenyiCurve:
    """Returns the Renyi curve of all steps, interpolated from the table at any order."""

    def evaluate(wanted: np.ndarray) -> np.ndarray:
        orders, divergences = _fixed_lots_table(dataset_size, lot_size, noise_multiplier)
        # Sampling only helps: above the table the unsampled Gaussian bounds it.
        curve = renyi.table_curve(
            orders, (orders - 1.0) * divergences, lambda a: a / (2.0 * noise_multiplier**2)
        )
        return steps * curve.evaluate(wanted)

    return renyi.RenyiCurve(evaluate)
