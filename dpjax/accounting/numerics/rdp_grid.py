"""Prices thousands of training settings at once by Renyi differential privacy, NumPy float64.

A search over hyperparameters needs the privacy cost of every candidate it proposes. Here the sums
over whole orders run over all settings together; fractional orders are those of `renyi`, setting by
setting. For the one setting that is trained in the end, `accounting.dp_sgd` gives a smaller number.

All sums are of the *cumulant* log A(order) = (order - 1) * RDP(order) of one step, with A - 1 as a
sum of non-negative terms: no digits are lost where the divergence is tiny.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from dpjax.accounting.numerics.renyi import sampled_gaussian_log_moments
from dpjax.checks import LARGEST, array, one_of

POISSON = "poisson"
WITHOUT_REPLACEMENT = "without_replacement"

# Theorem 27's moment form is used up to this order (dp_accounting 0.6.0: 256); above it, the
# theorem's simpler bound.
_LARGEST_MOMENT_ORDER = 512
_LARGEST_CHUNK = 1_000_000  # float64 values in the largest intermediate array
# Most nodes of a quadrature at fractional orders; beyond, chords are used.
_MOST_NODES = 8192
_HALF_WIDTH_SQUARED = 120.0
# Quadrature of the even moments: the integrand is log-concave on either side of its zero with
# curvature at most -1, so beyond 9.6 from a peak it is below exp(-46) of the peak.
_MOMENT_HALF_WIDTH = 9.6
_MOMENT_STEP = 0.4
_MOMENT_NODES = 48
_BISECTIONS = 24


def rdp_grid(
    sampling_probability: ArrayLike,
    noise_multiplier: ArrayLike,
    steps: ArrayLike,
    orders: ArrayLike,
    sampling: str = POISSON,
) -> np.ndarray:
    """Returns the Renyi divergences of many noisy-gradient trainings, all at once.

    Formal guarantees:
      - `sampling="poisson"`: every record is in a lot independently with the sampling probability;
        add or remove one record; noise of standard deviation noise_multiplier times the clipping
        norm. The exact divergence of the worst pair (Mironov, Talwar & Zhang 2019, Theorem 5), at
        integer orders as a finite sum and at fractional orders by quadrature, to about 1e-12
        relative. Fractional orders with a noise multiplier so small (below about 0.1) that the
        quadrature would not fit get the chord of the convex cumulant between the two neighbouring
        integers, an upper bound.
      - `sampling="without_replacement"`: lots of fixed size, sampling probability = lot size /
        data set size; replace one record; the noise multiplier is the noise over the sensitivity
        of the *sum* under replacement (twice the clipping norm). The upper bound of Wang, Balle &
        Kasiviswanathan 2019, Theorem 27, up to order 512, above it its simpler form;
        fractional orders by the chord (their Corollary 10).

    Args:
      sampling_probability: (settings,) or scalar, in [0, 1].
      noise_multiplier: (settings,) or scalar, above 0.
      steps: (settings,) or scalar, whole numbers at least 0.
      orders: (orders,) or scalar, finite, above 1.
      sampling: "poisson" or "without_replacement".

    Returns:
      (settings, orders), RDP over all steps.
    """
    one_of("sampling", sampling, (POISSON, WITHOUT_REPLACEMENT))
    probabilities, noises, counts = _settings(sampling_probability, noise_multiplier, steps)
    orders = _orders(orders)
    # Each distinct setting once; without sampling the divergence is the Gaussian's.
    pairs, where = np.unique(np.stack([probabilities, noises]), axis=1, return_inverse=True)
    cumulants = np.empty((pairs.shape[1], orders.size))
    is_all, is_none = pairs[0] == 1.0, pairs[0] == 0.0
    cumulants[is_none] = 0.0
    plain = orders * (orders - 1.0) / 2.0
    cumulants[is_all] = plain[None, :] / np.square(pairs[1, is_all])[:, None]
    is_sampled = ~(is_all | is_none)
    compute = _poisson if sampling == POISSON else _without_replacement
    rows = np.flatnonzero(is_sampled)
    size = max(1, int(_LARGEST_CHUNK / orders.max()))
    for start in range(0, rows.size, size):
        chosen = rows[start : start + size]
        cumulants[chosen] = compute(pairs[0, chosen], pairs[1, chosen], orders)
    rdp = cumulants / (orders - 1.0)[None, :]
    return rdp[where.reshape(-1)] * counts[:, None]


def epsilon_grid(
    rdp: ArrayLike, orders: ArrayLike, delta: ArrayLike, method: str = "rdp"
) -> np.ndarray:
    """Converts many Renyi curves to epsilon, minimised over the given orders.

    Example:
      >>> import numpy as np
      >>> from dpjax import accounting
      >>> orders = np.arange(2, 64)
      >>> rdp = accounting.rdp_grid([0.01, 0.02], 1.0, 100, orders)
      >>> accounting.epsilon_grid(rdp, orders, 1e-5).shape
      (2,)

    Args:
      rdp: (..., orders) as from `rdp_grid`.
      orders: (orders,) above 1.
      delta: in (0, 1); one for all curves, or one for each, of shape (...,).
      method: "rdp" for Lemma 14 of Papernot & Steinke 2022 (Canonne, Kamath & Steinke 2020,
        Proposition 12): rdp + log(1 - 1/order) - log(delta * order)/(order - 1); "rdp_classic" for
        rdp + log(1/delta)/(order - 1) (Mironov 2017), which older papers used: for reproducing them
        only.

    Returns:
      (...,) float64 epsilons, at least 0.
    """
    one_of("method", method, ("rdp", "rdp_classic"))
    rdp, orders, deltas = array("rdp", rdp), _orders(orders), array("delta", delta)
    if not np.all((deltas > 0.0) & (deltas < 1.0)):
        raise ValueError(
            f"delta must lie strictly between 0 and 1, for example 1e-5; got {delta!s}"
        )
    if rdp.ndim == 0 or rdp.shape[-1] != orders.size:
        raise ValueError(
            f"rdp has shape {rdp.shape}: its last axis must match the {orders.size} orders"
        )
    if deltas.ndim and deltas.shape != rdp.shape[:-1]:
        raise ValueError(
            f"delta has shape {deltas.shape}: pass one number, or one for each of the "
            f"{rdp.shape[:-1]} curves"
        )
    deltas = deltas[..., np.newaxis]
    if method == "rdp":
        added = np.log1p(-1.0 / orders) - np.log(deltas * orders) / (orders - 1.0)
    else:
        added = -np.log(deltas) / (orders - 1.0)
    return np.maximum(np.min(rdp + added, axis=-1), 0.0)


def _settings(*arguments: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Checks and broadcasts probability, noise multiplier and steps to (settings,) float64."""
    names = ("sampling_probability", "noise_multiplier", "steps")
    arrays = [np.atleast_1d(array(name, argument)) for name, argument in zip(names, arguments)]
    try:
        probabilities, noises, counts = np.broadcast_arrays(*arrays)
    except ValueError:
        shapes = [array.shape for array in arrays]
        raise ValueError(
            f"sampling_probability, noise_multiplier and steps have shapes {shapes}: pass scalars "
            "or equally long one-dimensional arrays"
        ) from None
    if probabilities.ndim != 1:
        raise ValueError(
            f"settings must be one-dimensional, got shape {probabilities.shape}: pass arrays of "
            "shape (settings,) and reshape the answer"
        )
    if not np.all((probabilities >= 0.0) & (probabilities <= 1.0)):
        raise ValueError("sampling_probability must lie in [0, 1] everywhere: pass such numbers")
    if not np.all((noises >= 1.0 / LARGEST) & (noises <= LARGEST)):
        raise ValueError("noise_multiplier must be positive and finite everywhere: pass such ones")
    if not np.all((counts >= 0.0) & (counts == np.floor(counts)) & np.isfinite(counts)):
        raise ValueError("steps must be whole numbers, at least 0, everywhere: pass such numbers")
    return probabilities, noises, counts


def _orders(orders: ArrayLike) -> np.ndarray:
    """Returns a checked (orders,) float64 array."""
    orders = np.atleast_1d(array("orders", orders))
    if orders.ndim != 1 or orders.size == 0:
        raise ValueError(f"orders must be a non-empty list of numbers, got shape {orders.shape}")
    if not np.all((orders > 1.0) & np.isfinite(orders)):
        raise ValueError("orders must be finite and above 1; leave 1 and infinity out")
    return orders


def _cumulants(
    integers: np.ndarray,
    per_draw: np.ndarray,
    offset: Callable[[float], np.ndarray | float],
    simpler: np.ndarray | None = None,
) -> np.ndarray:
    """Computes log(1 + e^offset(a) sum_{k=2}^a C(a, k) e^per_draw[k]) at whole orders a >= 1, (n,).

    `per_draw` is (settings, terms) for k = 2, 3, ...; `simpler` takes its place above
    _LARGEST_MOMENT_ORDER. Returns (settings, n).
    """
    log_factorials = special.gammaln(np.arange(integers.max() + 1.0) + 1.0)
    values = np.zeros((per_draw.shape[0], integers.size))
    for place, order in enumerate(integers.astype(int)):
        if order < 2:
            continue
        chosen = per_draw if simpler is None or order <= _LARGEST_MOMENT_ORDER else simpler
        # log C(order, k) + per_draw[k] for k = 2, ..., order.
        logs = log_factorials[order] - log_factorials[2 : order + 1]
        logs = logs - log_factorials[order - 2 :: -1] + chosen[:, : order - 1]
        values[:, place] = np.logaddexp(0.0, _log_sum(logs) + offset(float(order)))
    return values


def _chord(orders: np.ndarray, at_integers: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Interpolates cumulants linearly between integers: exact there, an upper bound elsewhere."""
    lower, upper = np.floor(orders), np.ceil(orders)
    integers = np.unique(np.concatenate([lower, upper]))
    values = at_integers(integers)
    share = orders - lower
    at_lower = values[:, np.searchsorted(integers, lower)]
    at_upper = values[:, np.searchsorted(integers, upper)]
    return (1.0 - share) * at_lower + share * at_upper


def _exponents(noises: np.ndarray, largest: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns k = 2, ..., largest, and k (k - 1) / (2 z^2), (settings, terms)."""
    draws = np.arange(2.0, max(largest, 2.0) + 1.0)
    return draws, 0.5 * draws * (draws - 1.0) / np.square(noises)[:, None]


def _poisson(probabilities: np.ndarray, noises: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """Returns (settings, orders) cumulants of a Poisson-subsampled step, probabilities in (0, 1).

    A - 1 = sum_{k=2}^order P[Bin(order, q) = k] (exp(k (k-1) / (2 z^2)) - 1) at whole orders
    (Mironov, Talwar & Zhang 2019, section 3.3, with the 1 taken out of every term).
    """
    none = np.log1p(-probabilities)
    draws, exponents = _exponents(noises, np.ceil(orders.max()))
    with np.errstate(divide="ignore"):  # An exponent of 0 to float64 adds nothing.
        per_draw = exponents + np.log(-np.expm1(-exponents))
    per_draw += (np.log(probabilities) - none)[:, None] * draws
    cumulants = _chord(
        orders, lambda integers: _cumulants(integers, per_draw, lambda order: order * none)
    )
    fractional = np.flatnonzero(orders != np.floor(orders))
    if fractional.size:
        wanted = orders[fractional]
        width = 2.0 * np.sqrt(_HALF_WIDTH_SQUARED + np.log(4.0) * wanted.max())
        nodes = (wanted.max() / noises + width) / (0.5 * np.minimum(1.0, noises)) + 1.0
        for row in np.flatnonzero(nodes <= _MOST_NODES):
            cumulants[row, fractional] = sampled_gaussian_log_moments(
                probabilities[row], noises[row], wanted
            )
    return cumulants


def _without_replacement(
    probabilities: np.ndarray, noises: np.ndarray, orders: np.ndarray
) -> np.ndarray:
    """Returns the (settings, orders) cumulants of one step on a lot without replacement.

    Upper bounds: Wang, Balle & Kasiviswanathan, "Subsampled Renyi Differential Privacy and
    Analytical Moments Accountant", AISTATS 2019, Theorem 27.
    """
    levels, level = np.unique(noises, return_inverse=True)
    draws, exponents = _exponents(levels, np.ceil(orders.max()))
    # `simpler`: the theorem's bound on each term without moments; `factors`: the smaller of both.
    simpler = np.log(2.0) + exponents
    simpler[:, 0] += np.minimum(np.log(2.0 * -np.expm1(-exponents[:, 0])), 0.0)
    factors = simpler.copy()
    whole = draws[draws <= _LARGEST_MOMENT_ORDER].astype(int)
    moments = log_even_moments(levels, 2 * ((int(whole[-1]) + 1) // 2))
    between = 0.5 * (moments[:, whole // 2 - 1] + moments[:, (whole + 1) // 2 - 1])
    held = slice(1, whole.size)
    factors[:, held] = np.minimum(factors[:, held], np.log(4.0) + between[:, held])
    drawn = np.log(probabilities)[:, None] * draws
    per_draw, simpler = drawn + factors[level.ravel()], drawn + simpler[level.ravel()]
    return _chord(
        orders, lambda integers: _cumulants(integers, per_draw, lambda order: 0.0, simpler)
    )


def log_even_moments(noises: np.ndarray, largest: int) -> np.ndarray:
    """Computes log E[(r - 1)^n] at n = 2, 4, ..., largest, for every z of `noises`.

    Here r is the density ratio of N(1, z^2) to N(0, z^2). It is computed by quadrature on a lattice
    on either side of the zero of r - 1; the alternating sum of Gaussian moments that equals it
    loses all its digits for large z.
    """
    exponent = np.arange(2.0, largest + 1.0, 2.0)
    size = max(1, _LARGEST_CHUNK // (exponent.size * _MOMENT_NODES))
    if noises.size > size:
        parts = [noises[start : start + size] for start in range(0, noises.size, size)]
        return np.concatenate([log_even_moments(part, largest) for part in parts])
    scale = 1.0 / noises[:, None]
    zero, root = 0.5 * scale, np.sqrt(exponent)

    def slope(x: np.ndarray, sign: float) -> np.ndarray:
        """Returns the rising slope of the log integrand at x, or, mirrored (sign -1), at -x."""
        return x * -sign * np.expm1(-scale * (sign * x - zero)) - exponent * scale

    # Each side of the zero has one peak: bisect for it, then sum around it.
    sides = []
    for sign, low, high in ((1.0, zero, exponent * scale + root + zero), (-1.0, 0.0 * zero, root)):
        low, high = np.broadcast_arrays(low + 0.0 * root, high + 0.0 * zero)
        with np.errstate(over="ignore"):
            for _ in range(_BISECTIONS):
                middle = 0.5 * (low + high)
                below = slope(middle, sign) < 0.0
                low, high = np.where(below, middle, low), np.where(below, high, middle)
        # The lattice on this side of the zero, around the peak.
        first = np.floor((high - sign * zero - _MOMENT_HALF_WIDTH) / _MOMENT_STEP)
        first = np.maximum(first, 0.0)[..., None] + np.arange(_MOMENT_NODES) + 0.5
        distance = first * _MOMENT_STEP
        # log|exp(+-u) - 1| = log(1 - exp(-u)), plus u to the right of the zero.
        gain = scale[..., None] * distance
        gain = np.log(-np.expm1(-gain)) + max(sign, 0.0) * gain
        logs = exponent[:, None] * gain - 0.5 * np.square(zero[..., None] + sign * distance)
        sides.append(_log_sum(logs))
    return np.logaddexp(*sides) + np.log(_MOMENT_STEP) - 0.5 * np.log(2.0 * np.pi)


def _log_sum(logs: np.ndarray) -> np.ndarray:
    """Returns the log of the sum of exponentials over the last axis; `logs` is overwritten."""
    peak = logs.max(axis=-1)
    logs -= peak[..., None]
    return peak + np.log(np.exp(logs, out=logs).sum(axis=-1))
