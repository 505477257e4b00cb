"""Renyi differential privacy of thousands of training settings at once.

A search over hyperparameters needs the privacy cost of every candidate it proposes, and a library
that answers one setting in 30 ms is too slow for ten thousand. Here the sums are vectorised over
settings and orders in JAX, float64 in a local `jax.enable_x64` context; JAX is imported on first
use. For the one setting that is trained in the end, `accounting.dp_sgd` gives a smaller number.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from dpjax.checks import array, one_of

POISSON = "poisson"
WITHOUT_REPLACEMENT = "without_replacement"

# Integer orders are grouped by these lengths of their sums, so that a short sum is not padded to
# the longest one; beyond the last they double.
_GROUP_LENGTHS = (16, 32, 64, 128, 256, 512)
# Theorem 27's moment form is used up to this order (dp_accounting 0.6.0: 256); above it, the
# theorem's simpler bound.
_LARGEST_MOMENT_ORDER = 512
_LARGEST_CHUNK = 1_000_000  # float64 values in the largest intermediate array
_SMALLEST_CHUNK = 16
# Half-width of the quadrature in standard deviations: what is outside is below exp(-60) of the
# peak even after the factor 2^order that two comparable summands can contribute.
_TAIL_EXPONENT = 60.0
_NODES = tuple(64 * 2**power for power in range(8))


def rdp_grid(
    sampling_probability: ArrayLike,
    noise_multiplier: ArrayLike,
    steps: ArrayLike,
    orders: ArrayLike,
    sampling: str = POISSON,
) -> np.ndarray:
    """Renyi divergences of many noisy-gradient trainings, all at once.

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

    Example:
      >>> from dpjax import accounting
      >>> accounting.rdp_grid([0.01, 0.02], [1.0, 2.0], 100, [2, 4, 8]).shape
      (2, 3)

    Args:
      sampling_probability: (settings,) or scalar, in [0, 1].
      noise_multiplier: (settings,) or scalar, above 0.
      steps: (settings,) or scalar, whole numbers at least 0.
      orders: (orders,) or scalar, finite, above 1.
      sampling: "poisson" or "without_replacement".

    Returns:
      (settings, orders) float64 NumPy array of RDP values over all steps.

    Raises:
      ValueError: if an argument is outside its range or the shapes do not broadcast to one
        dimension.
    """
    one_of("sampling", sampling, (POISSON, WITHOUT_REPLACEMENT))
    probabilities, noises, counts = _settings(sampling_probability, noise_multiplier, steps)
    orders = _orders(orders)
    pairs, where = np.unique(np.stack([probabilities, noises]), axis=1, return_inverse=True)
    cumulants = np.empty((pairs.shape[1], orders.size))
    is_all, is_none = pairs[0] == 1.0, pairs[0] == 0.0
    cumulants[is_none] = 0.0
    plain = orders * (orders - 1.0) / 2.0
    cumulants[is_all] = plain[None, :] / np.square(pairs[1, is_all])[:, None]
    is_sampled = ~(is_all | is_none)
    if is_sampled.any():
        compute = _poisson if sampling == POISSON else _without_replacement
        cumulants[is_sampled] = compute(pairs[0, is_sampled], pairs[1, is_sampled], orders)
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

    Raises:
      ValueError: for a delta outside (0, 1), mismatched shapes or an unknown method.
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
    """Checked, broadcast (settings,) float64 arrays: probability, noise multiplier, steps."""
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
        raise ValueError("sampling_probability must lie in [0, 1] everywhere")
    if not np.all((noises > 0.0) & np.isfinite(noises)):
        raise ValueError("noise_multiplier must be positive and finite everywhere")
    if not np.all((counts >= 0.0) & (counts == np.floor(counts)) & np.isfinite(counts)):
        raise ValueError("steps must be whole numbers, at least 0, everywhere")
    return probabilities, noises, counts


def _orders(orders: ArrayLike) -> np.ndarray:
    """Checked (orders,) float64 array."""
    orders = np.atleast_1d(array("orders", orders))
    if orders.ndim != 1 or orders.size == 0:
        raise ValueError(f"orders must be a non-empty list of numbers, got shape {orders.shape}")
    if not np.all((orders > 1.0) & np.isfinite(orders)):
        raise ValueError("orders must be finite and above 1; leave 1 and infinity out")
    return orders


def _log_binomials(orders: np.ndarray, terms: int) -> np.ndarray:
    """(orders, terms) log C(order, j) for j = 2, ..., terms + 1; -inf beyond the order."""
    draws = np.arange(2, terms + 2, dtype=np.float64)[None, :]
    column = orders[:, None]
    inside = np.minimum(draws, column)
    values = special.gammaln(column + 1) - special.gammaln(inside + 1)
    values = values - special.gammaln(column - inside + 1)
    return np.where(draws <= column, values, -np.inf)


def _in_chunks(
    function: Callable[..., object], arrays: tuple[np.ndarray, ...], row_size: int
) -> np.ndarray:
    """Runs `function` on equally long pieces of `arrays` (padded by repetition), float64."""
    import jax

    number = arrays[0].shape[0]
    size = _SMALLEST_CHUNK
    while size < number and 2 * size * row_size <= _LARGEST_CHUNK:
        size *= 2
    pieces = []
    with jax.enable_x64(True):
        for start in range(0, number, size):
            index = np.minimum(np.arange(start, start + size), number - 1)
            pieces.append(np.asarray(function(*(array[index] for array in arrays))))
    return np.concatenate(pieces)[:number]


def _groups(orders: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Indices of integer orders grouped by the padded number of terms of their sums."""
    lengths = list(_GROUP_LENGTHS)
    while lengths[-1] < orders.max():
        lengths.append(2 * lengths[-1])
    groups, below = [], 0
    for length in lengths:
        members = np.flatnonzero((orders > below) & (orders <= length))
        if members.size:
            groups.append((length - 1, members))
        below = length
    return groups


def _integer_cumulants(
    integers: np.ndarray,
    settings: int,
    compute: Callable[[int, np.ndarray, np.ndarray], np.ndarray],
) -> np.ndarray:
    """(settings, integers) cumulants; order 1 has cumulant 0."""
    values = np.zeros((settings, integers.size))
    above = np.flatnonzero(integers > 1)
    if above.size:
        for terms, members in _groups(integers[above]):
            chosen = integers[above[members]]
            values[:, above[members]] = compute(terms, chosen, _log_binomials(chosen, terms))
    return values


def _chord(orders: np.ndarray, integer_cumulants: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Cumulants at any order, linear between integers: exact there, an upper bound elsewhere."""
    lower, upper = np.floor(orders), np.ceil(orders)
    integers = np.unique(np.concatenate([lower, upper]))
    values = integer_cumulants(integers)
    share = orders - lower
    at_lower = values[:, np.searchsorted(integers, lower)]
    at_upper = values[:, np.searchsorted(integers, upper)]
    return (1.0 - share) * at_lower + share * at_upper


def _poisson(probabilities: np.ndarray, noises: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """(settings, orders) cumulants of one Poisson-subsampled step, probabilities in (0, 1)."""
    from dpjax.accounting.numerics import rdp_kernels as kernels

    def integer_cumulants(integers: np.ndarray, rows: np.ndarray) -> np.ndarray:
        def compute(terms: int, chosen: np.ndarray, binomials: np.ndarray) -> np.ndarray:
            def run(probability: np.ndarray, noise: np.ndarray) -> object:
                return kernels.poisson_integer(probability, noise, chosen, binomials)

            arrays = (probabilities[rows], noises[rows])
            return _in_chunks(run, arrays, terms * chosen.size)

        return _integer_cumulants(integers, rows.size, compute)

    everything = np.arange(probabilities.size)
    is_integer = orders == np.floor(orders)
    cumulants = np.empty((probabilities.size, orders.size))
    if is_integer.any():
        cumulants[:, is_integer] = integer_cumulants(orders[is_integer], everything)
    fractional = orders[~is_integer]
    if not fractional.size:
        return cumulants
    columns = np.flatnonzero(~is_integer)
    half_width = math.sqrt(2.0 * (_TAIL_EXPONENT + math.log(2.0) * fractional.max()))
    # The integrand is analytic up to a distance pi * noise from the real line: half a noise (or
    # half a standard deviation) between nodes puts the error below exp(-34).
    step = 0.5 * np.minimum(1.0, noises)
    needed = (fractional.max() / noises + 2.0 * half_width) / step + 1.0
    done = np.zeros(probabilities.size, dtype=bool)
    for nodes in _NODES:
        rows = np.flatnonzero(~done & (needed <= nodes))
        if rows.size:
            done[rows] = True

            def run(probability, noise, distance, nodes=nodes):
                return kernels.poisson_fractional(
                    probability, noise, fractional, np.float64(-half_width), distance, nodes
                )

            arrays = (probabilities[rows], noises[rows], step[rows])
            values = _in_chunks(run, arrays, nodes * fractional.size)
            cumulants[np.ix_(rows, columns)] = values
    rest = np.flatnonzero(~done)
    if rest.size:
        values = _chord(fractional, lambda integers: integer_cumulants(integers, rest))
        cumulants[np.ix_(rest, columns)] = values
    return cumulants


def _without_replacement(
    probabilities: np.ndarray, noises: np.ndarray, orders: np.ndarray
) -> np.ndarray:
    """(settings, orders) cumulants of one step on a lot without replacement."""
    from dpjax.accounting.numerics import rdp_kernels as kernels

    levels, level = np.unique(noises, return_inverse=True)

    def compute(terms: int, chosen: np.ndarray, binomials: np.ndarray) -> np.ndarray:
        with_moments = terms < _LARGEST_MOMENT_ORDER

        def run_factors(noise: np.ndarray) -> object:
            return kernels.without_replacement_terms(noise, terms, with_moments)

        factors = _in_chunks(run_factors, (levels,), 64 * terms)[level.reshape(-1)]

        def run(probability: np.ndarray, factor: np.ndarray) -> object:
            return kernels.without_replacement(probability, factor, binomials)

        return _in_chunks(run, (probabilities, factors), terms * chosen.size)

    return _chord(
        orders, lambda integers: _integer_cumulants(integers, probabilities.size, compute)
    )
