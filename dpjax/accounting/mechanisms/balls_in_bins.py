"""Prices DP-SGD whose lots are balls in bins: each record in one random step of every epoch."""

from __future__ import annotations

import functools
import math

import numpy as np

from dpjax.accounting.guarantee import Guarantee
from dpjax.accounting.mechanisms.dp_sgd import KEPT_PAIRS, dp_sgd
from dpjax.accounting.mechanisms.elementary import TAIL_DEVIATIONS, gaussian_delta
from dpjax.accounting.mechanisms.mechanism import mechanism
from dpjax.accounting.numerics import ratio_means, renyi
from dpjax.accounting.numerics.composition import composition
from dpjax.accounting.numerics.loss_distribution import LossPair
from dpjax.accounting.numerics.privacy_profile import pair_from_function
from dpjax.checks import Refused, positive, probability, whole
from dpjax.neighbouring import ADD_OR_REMOVE_ONE

LEAST_NOISE = 0.05
"""Noise multiplier below which ratios exceed float64: a record's step then counts as known."""

MOST_NOISE = 1e7
"""Noise multiplier above which the price is that of this one: more noise never costs more."""

MOST_BINS = 2**40
"""Most steps in an epoch: beyond some 2^50, numbers of grid points pass int64."""

CUT = 1e-22
"""More than the mass of infinite loss with which the law of an epoch is tabulated."""


@mechanism
def dp_sgd_balls_in_bins(
    noise_multiplier: float,
    steps_per_epoch: int,
    epochs: int = 1,
    *,
    failure_probability: float = 0.0,
) -> Guarantee:
    """Prices DP-SGD with each record in one random step of every epoch, add-or-remove one.

    Chua et al. (2024, https://arxiv.org/abs/2412.16802) call such lots balls and bins, Feldman &
    Shenfeld (2025, https://arxiv.org/abs/2502.08202) random allocation.

    Formal guarantees: each step adds N(0, (noise_multiplier * C)^2) to a sum of gradients clipped
    to norm C over its lot; all noisy sums may be released, and each may depend on those before. In
    every epoch a record is in the lot of one of its `steps_per_epoch` steps, uniformly random and
    independent of all other records and epochs. Nothing may depend on the number of records
    otherwise. An assignment that is kept for several epochs costs more than this price.

    An epoch costs at most what the mean over i of N(e_i, s^2 I) against N(0, s^2 I) costs, in both
    directions (docs/proofs/balls_in_bins.md). The ratio of these two is a mean of
    `steps_per_epoch` independent log-normal ratios. Its law is computed on a grid
    (`ratio_means.mean_of`), which adds 0.1% to the variance of an epoch's loss, and composed
    as in `composition`: never below the exact cost, rounding included, at any delta down to 1e-18.
    Nothing is simulated. The Renyi curve is that of the same law, outside an event of probability
    1e-22 for each epoch.

    Example:
      >>> from dpjax import accounting
      >>> run = accounting.dp_sgd_balls_in_bins(0.7, steps_per_epoch=100, epochs=10)
      >>> print(f"epsilon {run.epsilon(1e-5):.2f} at delta 1e-5")
      epsilon 4.28 at delta 1e-5

    Args:
      noise_multiplier: noise standard deviation / clip norm C. Below 0.05 the price is that of one
        step per epoch, above 1e7 that of 1e7.
      steps_per_epoch: number of steps, of which a record takes part in one.
      epochs: number of epochs; one that is cut short counts as a whole one.
      failure_probability: as in `dp_sgd`. A step's lot has as many records as a Poisson lot with
        sampling probability 1 / steps_per_epoch, so `truncation_probability` bounds its overflow.
    """
    noise_multiplier = min(positive("noise_multiplier", noise_multiplier), MOST_NOISE)
    steps_per_epoch = whole("steps_per_epoch", steps_per_epoch)
    if steps_per_epoch > MOST_BINS:
        raise Refused(("steps_per_epoch", steps_per_epoch), f": pass at most {MOST_BINS}")
    epochs = whole("epochs", epochs)
    failure_probability = probability("failure_probability", failure_probability, zero=True)
    if steps_per_epoch == 1 or noise_multiplier < LEAST_NOISE:
        return dp_sgd(1.0, noise_multiplier, epochs, failure_probability=failure_probability)
    return Guarantee(
        relation=ADD_OR_REMOVE_ONE,
        pair=lambda: _pair(noise_multiplier, steps_per_epoch, epochs).with_failure(
            failure_probability
        ),
        renyi=renyi.RenyiCurve(
            lambda orders: epochs * _divergences(noise_multiplier, steps_per_epoch, orders),
            min(1.0, epochs * CUT + failure_probability),
        ),
    )


@functools.lru_cache(maxsize=KEPT_PAIRS)
def _pair(noise_multiplier: float, steps_per_epoch: int, epochs: int) -> LossPair:
    """Returns the composed losses of all epochs; forward removes a record."""
    return composition([(_epoch_ratio(noise_multiplier, steps_per_epoch).pair(), epochs)])


@functools.lru_cache(maxsize=KEPT_PAIRS)
def _epoch_ratio(noise_multiplier: float, steps_per_epoch: int) -> ratio_means.RatioLaw:
    """Returns the law of an epoch's likelihood ratio, with the record over without it."""
    s = noise_multiplier
    interval = 2.0 ** math.floor(math.log2(ratio_means.RESOLUTION / s))
    largest = TAIL_DEVIATIONS / s + 0.5 / s**2
    step = pair_from_function(lambda epsilons: gaussian_delta(epsilons, s), interval, largest)
    return ratio_means.mean_of(ratio_means.law_of_symmetric(step), steps_per_epoch)


def _divergences(noise_multiplier: float, steps_per_epoch: int, orders: np.ndarray) -> np.ndarray:
    """Returns one epoch's Renyi divergences, the larger direction's; (n,) as orders."""
    law = _epoch_ratio(noise_multiplier, steps_per_epoch)
    if max(law.at_zero, law.at_infinity) > CUT:
        return np.full(orders.shape, np.inf)
    logs = np.maximum(law.log_moments(orders), law.log_moments(1.0 - orders))
    # Outside the event either side has mass 1 - CUT at least, and is divided by it.
    return (logs - orders * math.log1p(-CUT)) / (orders - 1.0)
