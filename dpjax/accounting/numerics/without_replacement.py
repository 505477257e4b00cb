"""Renyi divergences of one Gaussian step on lots drawn without replacement, in NumPy.

`rdp_grid` does the same for thousands of settings in JAX, whose import and compilation take longer
than one setting should; the two are tested against each other.
"""

from __future__ import annotations

import numpy as np
from scipy import special

LARGEST_MOMENT_ORDER = 512
"""The moment form is used up to this order; above it, the theorem's simpler bound."""

_STEP = 0.02
_REACH = 14.0


def log_even_moments(noise_multiplier: float, largest: int) -> np.ndarray:
    """log E[(r - 1)^n], n = 2, 4, ..., largest, r the density ratio of N(1, z^2) to N(0, z^2).

    By the trapezoidal rule, whose error for such smooth, fast-decaying integrands is below
    float64's; the alternating sum that defines the same number loses its digits for large z.

    Args:
      noise_multiplier: z > 0.
      largest: even, >= 2.

    Returns:
      (largest / 2,) float64.
    """
    scale = 1.0 / noise_multiplier
    exponents = np.arange(2, largest + 1, 2, dtype=np.float64)
    position = np.arange(-_REACH - np.sqrt(largest), largest * scale + _REACH + 1.0, _STEP)
    loss = scale * position - 0.5 * scale * scale
    with np.errstate(divide="ignore"):
        log_gap = np.where(
            loss > 0,
            loss + np.log(-np.expm1(-np.abs(loss))),
            np.log(-np.expm1(-np.abs(loss))),
        )
    log_density = -0.5 * position * position - 0.5 * np.log(2.0 * np.pi)
    moments = np.empty(exponents.size)
    for place, exponent in enumerate(exponents):
        # Beyond exponent * scale the integrand falls like a Gaussian.
        near = slice(0, np.searchsorted(position, exponent * scale + _REACH + 1.0))
        moments[place] = special.logsumexp(exponent * log_gap[near] + log_density[near])
    return moments + np.log(_STEP)


def divergences(
    sampling_probability: float, noise_multiplier: float, orders: np.ndarray
) -> np.ndarray:
    """Upper bounds on one step's Renyi divergences, replace one.

    Source: Wang, Balle & Kasiviswanathan, "Subsampled Renyi Differential Privacy and Analytical
    Moments Accountant", AISTATS 2019, Theorem 27.

    Args:
      sampling_probability: lot size over data set size, in (0, 1].
      noise_multiplier: noise standard deviation over the replace-one sensitivity of the sum.
      orders: (n,) whole numbers >= 2.

    Returns:
      (n,) nats.
    """
    z = noise_multiplier
    largest = int(min(np.max(orders), LARGEST_MOMENT_ORDER))
    moments = log_even_moments(z, 2 * ((largest + 1) // 2))
    results = []
    for order in np.asarray(orders, dtype=int):
        if sampling_probability == 1.0:
            results.append(order / (2.0 * z * z))
            continue
        draws = np.arange(2, order + 1)
        exponent = draws * (draws - 1.0) / (2.0 * z * z)
        factors = np.log(2.0) + exponent
        if order <= LARGEST_MOMENT_ORDER:
            between = 0.5 * (moments[draws // 2 - 1] + moments[(draws + 1) // 2 - 1])
            factors = np.minimum(factors, np.log(4.0) + between)
        one = 1.0 / (z * z)
        factors[0] = one + min(np.log(4.0) + np.log(-np.expm1(-one)), np.log(2.0))
        binomials = (
            special.gammaln(order + 1.0)
            - special.gammaln(draws + 1.0)
            - special.gammaln(order - draws + 1.0)
        )
        terms = binomials + draws * np.log(sampling_probability) + factors
        results.append(np.logaddexp(0.0, special.logsumexp(terms)) / (order - 1.0))
    return np.array(results)
