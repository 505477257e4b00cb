"""Bounds the best of K runs by the envelope of lines: tight, and fast to compute.

For one direction of a neighbouring pair (Q, Q'), with h(x) = sup {Q'(E) : Q(E) <= x} and f the
generating function of K, let phi(t) = sup_x [f'(1-x) - t f'(1-h(x))]_+. Then for epsilon >= 0

    H_{e^epsilon}(A||A') <= E_{y~Q}[ phi(e^epsilon dQ'/dQ(y)) ].

Statement, conditions, proof and the error of these numerics: docs/envelope_bound.md.

Everything is rounded upwards: on a cell of x, f'(1-x) is replaced by its chord and h and f'(1-h) by
tangents; h comes from the reverse loss distribution, which dominates; sums by Fourier transform are
raised by a bound on their rounding error.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import fft

from dpjax.accounting.numerics.loss_distribution import (
    CONSERVATION_SLACK,
    WHOLE,
    LossDistribution,
    LossPair,
    whole_down,
    whole_up,
)
from dpjax.accounting.numerics.tradeoff import largest_mass, right_slopes, tradeoff_vertices
from dpjax.accounting.selection.laws import RepetitionLaw

RESOLUTION = 0.035
"""Largest move of log f' on a cell of x, for a base whose losses spread by 0.4 nats or more.

What the bound loses is quadratic in it: about 3e-4 in epsilon here (0.01%).
"""

CELLS = 12_000
"""Most cells of the grid of x, roughly; wider ones if f' spans very many orders of magnitude."""

LONG_PIECE = 0.037
"""Least length, over the distance to 0 or 1, of a piece of h whose ends join the grid of x."""

LARGEST_INTERVAL = 1e-3
"""Coarsest grid of epsilons on which a selected profile is written, in nats."""

LONGEST = 100_000
"""Most grid points of a selected profile before its interval is made coarser."""

NEGLIGIBLE = 1e-16
"""Level at which a profile's finite part is cut; the rest counts as infinite loss."""

FLOOR = 2e-15
"""Level of phi at which its tail is cut and added as a constant."""

LEAST = 1e-18
"""Level of f' below which its changes are ignored."""

REACH = 80.0
"""Most nats that a profile reaches beyond one run's losses."""

FAR_LEAST, FAR_REACH = 1e-290, 600.0
"""LEAST and REACH if those do not suffice; beyond these, numbers leave float64."""

TILTS = (0.0, 1.0, 3.0, 8.0, 20.0)
"""Exponential tilts of the sum by Fourier transform; each is accurate on another range."""


def selected_profiles(
    pair: LossPair, law: RepetitionLaw, far: bool = False
) -> tuple[float, list[np.ndarray]]:
    """Bounds both directions' profiles of the best of K runs; if `far`, as far as float64 reaches.

    Returns the interval of the grid of epsilons 0, interval, 2 interval, ..., and one profile (n,)
    per direction (one if they agree). A pair whose mirrored masses exceed 1 by more than 1e-4
    (rounding noise of an overlong composition), for which no bound is rigorous, is refused.
    """
    laws = [pair.forward] if pair.symmetric else [pair.forward, pair.backward]
    # h comes from the reverse direction.
    reverses = (pair.backward, pair.forward)[: len(laws)]
    # A small spread of losses needs smaller errors; they are quadratic, hence the square root.
    spread = max(law_of_loss.spread() for law_of_loss in laws)
    resolution = RESOLUTION * math.sqrt(min(1.0, max(spread, 1e-6) / 0.4))
    least, reach = (FAR_LEAST, FAR_REACH) if far else (LEAST, REACH)
    lines = [envelope_lines(reverse, law, resolution, least) for reverse in reverses]
    ends = [_end(*line, reach) for line in lines]
    interval = output_interval(pair, max(ends))
    profiles = []
    for forward, line, end in zip(laws, lines, ends):
        on_grid = forward.regridded(interval)
        profiles.append(selected_profile(on_grid, *line, end, law.mean))
    return interval, profiles


def output_interval(pair: LossPair, beyond: float = 0.0) -> float:
    """Returns the selection's interval: a multiple or fraction of the pair's, fine for its spread.

    It is at most 1e-3, or what it takes to reach `beyond` nats beyond the pair's own losses.
    """
    spread = max(pair.forward.spread(), pair.backward.spread())
    wanted = min(LARGEST_INTERVAL, max(spread / 250.0, 1e-9))
    extent = pair.size * pair.interval + beyond
    wanted = max(wanted, extent / LONGEST)
    if pair.interval > wanted:
        return pair.interval / whole_up(pair.interval / wanted)
    return pair.interval * max(1, whole_down(wanted / pair.interval))


def _end(slopes: np.ndarray, heights: np.ndarray, reach: float) -> float:
    """Returns the log of the t beyond which phi is below FLOOR, at most `reach`."""
    useful = heights > FLOOR
    with np.errstate(divide="ignore"):
        ends = np.log(heights[useful] - FLOOR) - np.log(slopes[useful])
    return min(float(np.max(ends, initial=0.0)), reach)


def selected_profile(
    forward: LossDistribution,
    slopes: np.ndarray,
    heights: np.ndarray,
    end: float,
    mean: float,
) -> np.ndarray:
    """Bounds E_Q[phi(e^epsilon dQ'/dQ)] at epsilon = 0, interval, ... (n,), rounded upwards.

    `forward` is the distribution of log(dQ/dQ') under Q; phi the upper envelope of lines with these
    slopes and heights at t = 0, constant beyond t = e^end. `mean` is phi(0) = E[K], the weight of
    infinite losses.
    """
    interval = forward.interval
    held = np.flatnonzero(forward.masses > 0)
    if held.size == 0:
        return np.full(2, min(1.0, forward.infinity_mass * mean))
    masses = forward.masses[held[0] : held[-1] + 1]
    first, last = forward.lowest + int(held[0]), forward.lowest + int(held[-1])
    top = max(whole_up(end / interval) + 1, 2 - last)
    # phi at every e^(epsilon - loss) that occurs; beyond `top` it stays at `floor`, which is added.
    steps = np.arange(-last, top + 1)
    phi = envelope(np.exp(np.minimum(steps * interval, 700.0)), slopes, heights)
    floor = float(phi[-1])
    count = max(2, last + top + 1)
    sums = _tilted_correlation(masses, first, phi, -last, interval, count)
    profile = np.minimum(sums + floor + forward.infinity_mass * mean, 1.0)
    beyond = np.flatnonzero(sums <= NEGLIGIBLE)
    stop = int(beyond[0]) + 1 if beyond.size else count
    return np.minimum.accumulate(profile)[: max(stop, 2)]


def envelope_lines(
    reverse: LossDistribution, law: RepetitionLaw, resolution: float, least: float = LEAST
) -> tuple[np.ndarray, np.ndarray]:
    """Returns lines b - a t whose upper envelope, with 0, is at least phi(t) at every t >= 0.

    phi, h and f are those at the top of this file. On a cell of x, f'(1-x) is convex, so below its
    chord; h is concave, so below its tangent from the left end; f'(1 - that tangent) is convex, so
    above its own tangent at the middle. Both bounds are linear in x: b - a t is largest at one of
    the cell's ends, for every t. Where the tangents leave [0, 1] (h close to 1), the left end
    bounds f'(1-x) and the right end f'(1-h(x)).

    `reverse` is the distribution of log(dQ'/dQ) under Q'; `resolution` the largest change of log f'
    on a cell, for f' above `least`.
    Returns a, ascending, and b, each (n,); consecutive ones are vertices of the upper concave hull.
    """
    excess = max(0.0, reverse.mirrored_mass() - 1.0)
    if excess > CONSERVATION_SLACK:
        raise ValueError(
            f"the loss distribution's mirrored mass exceeds 1 by {excess:.1e}: pass one on a "
            "coarser grid (value_discretization_interval=1e-3)"
        )
    x = choice_grid(reverse, law, excess, resolution, least)
    # Rounding noise makes P masses of events too large by at most `excess`: take h at x + excess.
    shifted = np.minimum(x + excess, 1.0)
    h = largest_mass(reverse, shifted)
    left = h[:-1]
    right = left + right_slopes(reverse, shifted)[:-1] * np.diff(x)
    middle = np.minimum(0.5 * (left + right), 1.0)
    rise = law.second_derivative(middle) * 0.5 * (right - left)
    centre = law.derivative(middle)
    earned = law.derivative(x)
    first, last = earned[:-1], earned[1:]
    corner = law.derivative(h[1:])
    # Tangents, if they lose less at the right end and f' is defined on them; else the ends.
    straight = (right <= 1.0) & ((corner - centre + rise) * first <= (first - last) * corner)
    slopes = [(centre + rise)[straight], (centre - rise)[straight], corner[~straight]]
    heights = [first[straight], last[straight], first[~straight]]
    return upper_hull(np.maximum(np.concatenate(slopes), 0.0), np.concatenate(heights))


def envelope(t: np.ndarray, slopes: np.ndarray, heights: np.ndarray) -> np.ndarray:
    """Evaluates max(0, max_i heights_i - t slopes_i) at ascending t, the lines a concave hull."""
    with np.errstate(divide="ignore", over="ignore"):
        turns = np.diff(heights) / np.diff(slopes)
    # Between the turns t_i > t > t_{i+1} (descending) line i + 1 is the largest.
    best = np.searchsorted(-turns, -t, side="left")
    return np.maximum(heights[best] - t * slopes[best], 0.0)


def choice_grid(
    reverse: LossDistribution,
    law: RepetitionLaw,
    excess: float,
    resolution: float,
    least: float = LEAST,
) -> np.ndarray:
    """Chooses a grid of x from 0 to 1, fine wherever f'(1-x) or f'(1-h(x)) changes.

    It depends on h as a function only. A grid of every n-th corner of h would change whenever
    rounding makes or removes a single atom.
    """
    small = np.geomspace(1e-16, 0.5, 200)
    corners, heights = tradeoff_vertices(reverse)
    # h maps these to 1 - small: where h nears 1, f'(1-h) may still fall by orders of magnitude.
    near_one = np.interp(1.0 - small, heights, corners)
    x = np.concatenate([[0.0, 1.0], small, 1.0 - small, kinks(corners, heights), near_one])
    x = np.unique(np.clip(x, 0.0, 1.0))
    return refined(x, derivatives_along(reverse, law, excess, least), resolution, CELLS, 4, 2000)


def derivatives_along(
    reverse: LossDistribution, law: RepetitionLaw, excess: float, least: float = LEAST
) -> Callable[[np.ndarray], list[np.ndarray]]:
    """Returns x -> f'(1-x) and f'(1-h(x)), whose logarithms must change little on a cell of x.

    Values below `least` count as `least`.
    """

    def at(x: np.ndarray) -> list[np.ndarray]:
        h = largest_mass(reverse, np.minimum(x + excess, 1.0))
        return [np.maximum(law.derivative(place), least) for place in (x, h)]

    return at


def log_moves(values: list[np.ndarray]) -> np.ndarray:
    """Returns the larger of the changes of the logarithms between neighbours, (n - 1,)."""
    return np.abs(np.diff(np.log(values))).max(axis=0)


def refined(
    x: np.ndarray,
    moving: Callable[[np.ndarray], list[np.ndarray]],
    resolution: float,
    cells: int,
    rounds: int,
    most_parts: int,
) -> np.ndarray:
    """Divides cells until logarithms change by at most `resolution` on each, or a limit is met."""
    for _ in range(rounds):
        moves = log_moves(moving(x))
        tolerance = max(resolution, float(moves.sum()) / cells)
        parts = np.clip(np.ceil(moves / tolerance * (1.0 - WHOLE)), 1, most_parts).astype(np.int64)
        if parts.max(initial=1) == 1:
            break
        # Every cell is divided into its number of equal parts.
        starts = np.repeat(x[:-1], parts)
        widths = np.repeat(np.diff(x) / parts, parts)
        offsets = np.arange(starts.size) - np.repeat(np.cumsum(parts) - parts, parts)
        x = np.unique(np.append(starts + offsets * widths, x[-1]))
    return x


def kinks(corners: np.ndarray, heights: np.ndarray) -> np.ndarray:
    """Picks the corners of h, of all (n,), at which a long straight piece ends.

    Where pieces are shorter h is smooth on the scale of the grid, which is refined anyway.
    """
    long = np.zeros(corners.size - 1, dtype=bool)
    for places in (corners, heights):
        nearer = np.minimum(places[1:], 1.0 - places[:-1])
        long |= np.diff(places) > LONG_PIECE * np.maximum(nearer, 1e-16)
    return corners[np.append(long, False) | np.append(False, long)]


def upper_hull(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the vertices of the upper concave hull of points (a, b), ascending in a."""
    order = np.lexsort((b, a))
    a, b = a[order], b[order]
    last = np.append(np.diff(a) > 0, True)  # The highest point of each abscissa.
    a, b = a[last], b[last]
    for _ in range(40):
        if a.size < 3:
            return a, b
        # Slopes that overflow belong to a t above e^700, beyond any in use.
        with np.errstate(over="ignore"):
            slope = np.diff(b) / np.diff(a)
        below = slope[1:] >= slope[:-1]
        if not below.any():
            return a, b
        keep = np.concatenate([[True], ~below, [True]])
        a, b = a[keep], b[keep]
    kept_a: list[float] = []
    kept_b: list[float] = []
    for x, y in zip(a.tolist(), b.tolist()):
        while len(kept_a) >= 2:
            left = (kept_b[-1] - kept_b[-2]) / (kept_a[-1] - kept_a[-2])
            if (y - kept_b[-1]) / (x - kept_a[-1]) < left:
                break
            kept_a.pop()
            kept_b.pop()
        kept_a.append(x)
        kept_b.append(y)
    return np.array(kept_a), np.array(kept_b)


def _tilted_correlation(
    masses: np.ndarray,
    first: int,
    phi: np.ndarray,
    phi_first: int,
    interval: float,
    count: int,
) -> np.ndarray:
    """Bounds sum_i masses_i phi(j - i), j = 0..count - 1, from above.

    The sum is a convolution; a Fourier transform has an absolute error proportional to the largest
    terms, so it is computed under several exponential tilts, each result is raised by its error
    bound, and the smallest is kept.
    """
    loss = (first + np.arange(masses.size)) * interval
    place = (phi_first + np.arange(phi.size)) * interval
    epsilon = np.arange(count) * interval
    length = fft.next_fast_len(masses.size + phi.size - 1, real=True)
    start = -(first + phi_first)
    best = np.full(count, np.inf)
    with np.errstate(divide="ignore", under="ignore", over="ignore"):
        log_masses, log_phi = np.log(masses), np.log(phi)
        for tilt in TILTS:
            left, right = log_masses + tilt * loss, log_phi + tilt * place
            left_peak, right_peak = float(left.max()), float(right.max())
            if not (math.isfinite(left_peak) and math.isfinite(right_peak)):
                return np.zeros(count)
            left, right = np.exp(left - left_peak), np.exp(right - right_peak)
            product = fft.rfft(left, length) * fft.rfft(right, length)
            sums = fft.irfft(product, length)[start : start + count]
            sums = np.append(sums, np.zeros(max(0, count - sums.size)))
            # Higham (2002), section 24.1: error <= 5 u log2(n) |left|_2 |right|_2, u = 1.2e-16.
            norms = math.sqrt(float(np.sum(left * left)) * float(np.sum(right * right)))
            error = 6e-16 * math.log2(length) * norms
            raised = np.maximum(sums, 0.0) + error
            best = np.minimum(
                best, np.exp(np.log(raised) + left_peak + right_peak - tilt * epsilon)
            )
    return best
