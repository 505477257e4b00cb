"""Prices DP-HYPE's vote: every client names its best candidates, only noisy counts are seen.

Liebenow, Peinemann & Mohammadi, "DP-HYPE: Distributed Differentially Private Hyperparameter
Search". Each of n clients gives one vote to each of its k best candidates out of p; the counts are
summed with noise, and the candidate with the largest noisy count is trained. The unit of privacy is
a client: neighbours replace one client's votes (its whole data set).

Replacing a client moves at most c = min(k, p - k) votes, so 2c counts change by one and the
Euclidean sensitivity is sqrt(2c). The paper's Theorem II.1 is the Renyi bound order * k / sigma^2;
its printed list of "sigma^2" is really one of sigma.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import scipy

from dpjax.accounting.guarantee import Guarantee
from dpjax.accounting.mechanisms.elementary import gaussian, gaussian_delta, grid_interval
from dpjax.accounting.mechanisms.mechanism import mechanism
from dpjax.accounting.numerics.composition import composition
from dpjax.accounting.numerics.integer_noise import (
    IntegerNoise,
    check_local_variance,
    discrete_gaussian_sum,
    shift_pair,
    shift_rdp,
    skellam_noise,
)
from dpjax.accounting.numerics.renyi import RenyiCurve, gaussian_curve
from dpjax.accounting.stated_epsilon import aim_below
from dpjax.checks import Refused, one_of, positive, probability, whole
from dpjax.neighbouring import REPLACE_ONE


def vote_sensitivity(votes: int, candidates: int) -> float:
    """Returns the Euclidean change in the counts if a client is replaced, sqrt(2 min(k, p - k))."""
    return math.sqrt(2.0 * _moved_votes(votes, candidates))


@mechanism
def vote(sigma: float, votes: int, candidates: int) -> Guarantee:
    """Prices releasing all vote counts with Gaussian noise of standard deviation sigma.

    Formal guarantees: replace one client; exact for real-valued Gaussian noise of the stated
    standard deviation on every count, no matter who adds it, as long as all of it is independent
    of what the adversary knows (`minimum_survivors`). On integers use `skellam_vote` or
    `discrete_gaussian_vote`. The Renyi curve is order * min(k, p - k) / sigma^2 (Theorem II.1 of
    Liebenow, Peinemann & Mohammadi 2025).

    Example:
      >>> from dpjax import accounting
      >>> print(f"{accounting.vote(10.0, votes=5, candidates=100).epsilon(1e-5):.2f}")
      1.20

    Args:
      sigma: standard deviation (not variance) of the total noise on one count.
      votes: k, how many candidates each client names.
      candidates: p.
    """
    sigma = positive("sigma", sigma)
    return gaussian(sigma / vote_sensitivity(votes, candidates), relation=REPLACE_ONE)


def calibrate_vote(
    epsilon: float, delta: float, votes: int, candidates: int, method: str = "analytic"
) -> float:
    """Returns the least standard deviation for which `vote` is (epsilon, delta)-private.

    Args:
      epsilon, delta: target.
      votes, candidates: as in `vote`.
      method: "analytic", the exact Gaussian profile (Balle & Wang 2018); "rdp", the paper's
        Theorem II.1 with the best order, 7 to 10% more noise, for reproducing it. The result is
        rounded up by less than 1e-6, relative, for a target of six digits: its guarantee meets the
        target, also as it is stated (`Guarantee.stated_epsilon`).
    """
    epsilon = positive("epsilon", epsilon)
    aim = aim_below(epsilon)
    delta = probability("delta", delta, hint=", for example 1e-5")
    one_of("method", method, ("analytic", "rdp"))
    sensitivity = vote_sensitivity(votes, candidates)

    def achieved(noise_multiplier: float) -> float:
        """Returns a number that is positive while too little noise is added."""
        if method == "rdp":
            return gaussian_curve(noise_multiplier).epsilon(delta) - aim
        found = float(gaussian_delta(np.float64(aim), noise_multiplier))
        return math.log(max(found, 1e-300) / delta)

    target = ("epsilon", epsilon), " at ", ("delta", delta)
    low = high = 1.0
    while achieved(low) <= 0.0:
        low /= 2.0
        if low < 1e-9:
            raise Refused(*target, " needs no noise: pass a smaller one")
    while achieved(high) > 0.0:
        high *= 2.0
        if high > 1e12:
            raise Refused(*target, " is out of reach: pass larger ones")
    # The root is moved up, as little as possible, until the guarantee itself meets the target.
    root = scipy.optimize.brentq(achieved, low, high, xtol=1e-14 * high, rtol=1e-12)
    for grain in (1e-11, 1e-9, 1e-8, 1e-7):
        sigma = sensitivity * root * (1.0 + grain)
        if vote(sigma, votes, candidates).epsilon(delta) <= aim:
            break
    return sigma


@mechanism
def skellam_vote(variance: float, votes: int, candidates: int, *, scale: int = 1) -> Guarantee:
    """Prices releasing all vote counts with Skellam noise (Agarwal, Kairouz & Liu 2021).

    Formal guarantees: replace one client; the noise on every count, added up over the clients
    whose noise counts, is Skellam (a difference of two Poissons) of the stated variance: each of n
    clients adds independent Skellam noise of variance / n. Exact Renyi curve 2c D(X || X + 1) and
    exact loss distributions, the 2c-fold composition of the pair (X, X + 1), truncated tails
    charged; upper bounds throughout.

    Args:
      variance: of the total noise on one count, after scaling.
      votes, candidates: as in `vote`.
      scale: factor that every vote was multiplied by before the noise was added.
    """
    variance = positive("variance", variance)
    counts = 2 * _moved_votes(votes, candidates)
    make_noise = functools.partial(skellam_noise, variance)
    return _integer_vote(make_noise, variance, counts, whole("scale", scale))


@mechanism
def discrete_gaussian_vote(
    local_variance: float,
    clients: int,
    votes: int,
    candidates: int,
    *,
    missing_fraction: float = 0.0,
    scale: int = 1,
) -> Guarantee:
    """Prices releasing all vote counts with a sum of clients' discrete Gaussian noises.

    Formal guarantees: replace one client; of the `clients` summands on every count at least
    `minimum_survivors(clients, missing_fraction)` are there and unknown to the adversary. That sum
    is a discrete Gaussian, to the last digit, from a local variance of 4 on; below about a half it
    costs more (Kairouz, Liu & Steinke 2021), and below 4 it is refused: scale the votes up or use
    Skellam noise.

    Args:
      local_variance: variance parameter of one client's noise on one count, after scaling, at
        least 4.
      clients: n.
      votes, candidates, scale: as in `skellam_vote`.
      missing_fraction: xi, largest fraction of clients that drop out or collude, in [0, 1).
    """
    check_local_variance(positive("local_variance", local_variance))
    survivors = minimum_survivors(clients, missing_fraction)
    counts = 2 * _moved_votes(votes, candidates)
    make_noise = functools.partial(discrete_gaussian_sum, local_variance, survivors)
    return _integer_vote(make_noise, local_variance * survivors, counts, whole("scale", scale))


def minimum_survivors(clients: int, missing_fraction: float) -> int:
    """Returns how many clients must be in the sum, ceil((1 - xi) n); with fewer, abort the vote."""
    clients = whole("clients", clients)
    missing = probability("missing_fraction", missing_fraction, zero=True, hint=", for example 0.1")
    # As an exact decimal: in floats 0.9 * 50 may be just above 45.
    return math.ceil((1 - Fraction(repr(missing))) * clients)


def local_noise_variance(variance: float, clients: int, missing_fraction: float = 0.0) -> float:
    """Returns the noise variance that each client must add: variance / ((1 - xi) n).

    `variance` is the total that the guarantee asks for: sigma^2, not sigma. xi: `missing_fraction`.
    """
    minimum_survivors(clients, missing_fraction)
    return positive("variance", variance) / ((1.0 - missing_fraction) * clients)


def _moved_votes(votes: int, candidates: int) -> int:
    """Returns the most votes that replacing a client can move, min(k, p - k)."""
    votes, candidates = whole("votes", votes, 0), whole("candidates", candidates, 0)
    if not 1 <= votes < candidates:
        words = f" of {candidates} candidates: pass at least 1 and fewer than there are candidates"
        raise Refused(("votes", votes), words, "; a client that names all says nothing")
    return min(votes, candidates - votes)


def _integer_vote(
    make_noise: Callable[[int], IntegerNoise], variance: float, counts: int, shift: int
) -> Guarantee:
    """Returns the guarantee of integer noise on `counts` counts, each moved by `shift`."""

    @functools.lru_cache(maxsize=32)
    def noise(reach: int) -> IntegerNoise:
        return make_noise(reach)

    def pair():
        spread = shift / math.sqrt(variance)
        # Splitting atoms between grid points adds at most interval^2 / 4 to each variance spread^2.
        interval = grid_interval(min(1e-4, spread / 300.0), 40.0 * counts * (spread + spread**2))
        return composition([(shift_pair(noise(2 * shift), interval, shift), counts)])

    return Guarantee(
        relation=REPLACE_ONE,
        pair=pair,
        renyi=RenyiCurve(lambda orders: counts * shift_rdp(noise, orders, shift)),
    )
