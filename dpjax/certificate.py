"""Proves what a release states: `python -m dpjax.certificate RELEASE_FOLDER`, exit 0 or 2.

An independent program: float64 with every rounding bounded, NumPy and mpmath, nothing of
`dpjax.accounting`. A pair of output laws (P, Q) is a measure of the loss log(dP/dQ): masses under P
on a grid, and at infinity. Its divergence of order t is the sum of mass max(0, 1 - t e^-loss), and
every step only raises that, at every t > 0: masses and losses are rounded up, a mass between knots
is split so that P and Q mass are kept. docs/certificates.md: what is proved, how, what is trusted.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import mpmath
import numpy as np

STATEMENT, CERTIFICATE, SEAL = "guarantee.json", "certificate.json", "sha256"
OWN, NODE = "this_statement_without_this_line", ("mechanism", "parameters", "parts")
UNIT, SLACK = 2.0**-53, 1e-11  # One rounding; more than the rounding of f' and of h.
VOTES = ("skellam_vote", "discrete_gaussian_vote")
MECHANISMS = {  # Name -> its parameters, all needed, and its number of parts; None: one or more.
    "gaussian": ("noise_multiplier steps relation", 0),
    "dp_sgd": ("sampling_probability noise_multiplier steps failure_probability", 0),
    "dp_sgd_fixed_lots": ("dataset_size lot_size noise_multiplier steps failure_probability", 0),
    "discrete_gaussian": ("noise_std sensitivity relation", 0),
    "pure": ("epsilon relation", 0),
    "exponential_mechanism": ("epsilon relation", 0),
    "doubling_loop": ("epsilon_per_iteration iterations variant relation", 0),
    "doubling_loop by segments": ("epsilon_per_iteration hits variant relation", 0),
    "skellam_vote": ("variance votes candidates scale", 0),
    "discrete_gaussian_vote": ("local_variance clients missing_fraction votes candidates scale", 0),
    "best_of": ("law method", 1),
    "stop_at_threshold": ("halting_probability", 1),
    "split": ("probability final_on", 2),
    "compose": ("counts", None),
    "mixture": ("weights", None),
    "parallel": ("", None),
}
DEVIATIONS, BEYOND = 13.0, 1e-36  # Where a normal law is cut; more than the mass beyond.
LONGEST, LARGEST_TABLE, LARGEST_FILE = 1 << 21, 4096, 1 << 22
MOST_WORK, MOST_NODES, DEEPEST = 6e9, 2048, 40  # Per case; 6e9 operations take some 30 s.
PUBLIC = "none: one private run with hyperparameters that were public beforehand"
BEST = "best of K runs"
DECLARED = "best of K runs of a function that is not dpjax's"
ABOVE = "first run whose score reaches the threshold"
PART = "best of K runs on a secret part of the records, then private training on "
LINE = "a line through the best of K runs at several small epsilons, then private training"
LOOP = "doubling loop over thresholds (Ding & Wu 2022), then private training"
ONCE = "exponential mechanism, once, then private training"
FLIP = "permute-and-flip, once, then private training"
TRAINED = "those trained on; training and score are composed"
LAWS = {"geometric": {"mean"}, "logarithmic": {"mean"}, "poisson": {"mean"}, "fixed": {"k"}}
LAWS |= {"truncated_negative_binomial": {"shape", "mean"}, "binomial": {"trials", "probability"}}
LAWS |= {"at_most": {"inner", "cap"}}
CELLS, MOVE, KNOTS = 600, 0.025, 60.0  # Of the exact bound's grid.
NEAR = 200, 80.0  # Its cells and knots for a selection inside another mechanism.
ORDERS, FINE_KNOTS = 8192, 256.0  # For a selection inside another mechanism.
HINTS = {"step": range(4, 21), "fine": range(6, 17), "exact": range(65)}
NODES, WEIGHTS = np.polynomial.legendre.leggauss(8)


class Unproved(ValueError):
    """A release is not proved; the message says why, in one line."""


class Work:
    """Counts the operations on floats of the case at hand, before they are done."""

    done = 0.0

    @classmethod
    def spend(cls, amount: float) -> None:
        """Adds to the count; refuses when the total exceeds `MOST_WORK`."""
        cls.done += amount
        if not cls.done <= MOST_WORK:
            raise Unproved("this takes more work than a proof may")


class Words(dict):
    """A JSON object that remembers which of its names were read."""

    def __init__(self, *pairs: Any) -> None:
        super().__init__(*pairs)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the value of that name, and notes that it was read."""
        self.read.add(name)
        return super().get(name, default)


class Measure(NamedTuple):
    """Masses (n,) at the losses (low, low + 1, ...) * step, a power of two; and at infinity."""

    step: float
    low: int
    masses: np.ndarray
    infinity: float

    @property
    def losses(self) -> np.ndarray:
        """Returns the losses (n,), exactly."""
        return (self.low + np.arange(self.masses.size)) * self.step

    def divergence(self, order: float) -> float:
        """Returns the hockey-stick divergence at epsilon = `order`."""
        gains = self.masses * np.maximum(-np.expm1(np.minimum(order - self.losses, 0.0)), 0.0)
        return math.fsum(gains) * (1.0 + 16.0 * UNIT) + self.infinity

    def divergences(self, orders: np.ndarray) -> np.ndarray:
        """Returns the hockey-stick divergences at many epsilons, `orders` (m,); (m,)."""
        first = np.searchsorted(self.losses, orders, side="right")
        above = np.append(np.cumsum(self.masses[::-1])[::-1], 0.0)[first]
        below = np.append(np.cumsum((self.masses * np.exp(-self.losses))[::-1])[::-1], 0.0)[first]
        below = below * np.exp(np.minimum(orders, 690.0))
        rounding = (4.0 * self.masses.size + 4e3) * UNIT * (above + below)
        return np.maximum(above - below, 0.0) + rounding + self.infinity


def whole_law(measure: Measure) -> Measure:
    """Returns the measure; refuses NaN, and a total mass below 1.

    Masses are only rounded up: if one is lost, this program went wrong, and nothing is proved.
    """
    total = math.fsum(measure.masses) + measure.infinity
    if not (np.all(measure.masses >= 0.0) and 1.0 - 1e-9 <= total < math.inf):
        raise Unproved("a law of losses has lost mass in this program")
    return measure


def gridded(losses: np.ndarray, masses: np.ndarray, infinity: float, step: float) -> Measure:
    """Returns the measure on a grid that dominates these masses at losses rounded up already."""
    Work.spend(50.0 * losses.size)
    place = np.floor(losses / step).astype(np.int64)
    if not (np.abs(losses).max() < 690.0 and np.ptp(place) < LONGEST):
        raise Unproved("privacy losses this large fit no grid of this program")
    excess, low = losses - place * step, int(place.min())  # Exact, or wrong by one rounding.
    held, terms = np.zeros(int(place.max()) - low + 2), int(np.bincount(place - low).max())
    held[:-1] += np.bincount(place - low, masses * np.expm1(step - excess) / math.expm1(step))
    held[1:] += np.bincount(place - low, masses * np.expm1(-excess) / math.expm1(-step))
    held *= 1.0 + (2.0 * terms + 32.0) * UNIT
    return whole_law(Measure(step, low, held, infinity))


def gaussian_pair(noise: float, share: float, fixed: bool, step: float, fine: float) -> list:
    """Returns both directions' measures of a noisy sum over a lot, a `share` of the records.

    On cells of `fine` deviations the masses of N(0, s^2) and N(1, s^2) move to the ends, and both
    are kept. (1 - q) N(0, s^2) + q N(1, s^2) against N(0, s^2) follows; with lots without
    replacement (`fixed`) either direction has the first one's profile at orders >= 1.
    """
    scale = 1.0 / noise * (1.0 + 4.0 * UNIT)  # Less noise costs more.
    count = math.ceil((DEVIATIONS + scale / 2.0) / fine)
    if not (0.0 < scale < 40.0 and fine * (count * fine + 2.0 * scale + 2.0) < 0.125):
        raise Unproved(f"noise multiplier {noise:.3g} is less than this program can prove")
    Work.spend(1000.0 * count)
    knots = np.arange(-count, count + 1) * fine
    place = 0.5 * fine * NODES  # Gauss and Legendre's error is below one rounding.
    density = np.exp(-0.5 * ((knots[:-1] + 0.5 * fine)[:, None] + place + 0.5 * scale) ** 2)
    density *= 0.5 * fine / math.sqrt(2.0 * math.pi) * WEIGHTS
    high = density @ np.expm1(scale * (place + 0.5 * fine)) / math.expm1(scale * fine)
    low = density @ np.expm1(scale * (place - 0.5 * fine)) / math.expm1(-scale * fine)
    rounding = 1.0 + (4.0 * (knots[-1] + scale) ** 2 + 128.0) * UNIT
    q_mass = (np.append(low, 0.0) + np.append(0.0, high)) * rounding
    growth = share * np.expm1(scale * knots)
    loss = scale * knots if share == 1.0 else np.log1p(growth)
    slack = np.abs(growth) * (np.abs(scale * knots) + 4.0) * np.exp(-loss) + np.abs(loss)
    slack = 4.0 * UNIT * (np.abs(loss) if share == 1.0 else slack)
    p_mass = q_mass * np.exp(loss) * (1.0 + 2.0 * slack + 8.0 * UNIT)
    if fixed:
        up = knots > 0.0
        rest = 1.0 - math.fsum(p_mass[up] + q_mass[up]) * (1.0 - 1e-11)
        losses = np.concatenate([(loss + slack)[up], (slack - loss)[up], [0.0]])
        masses = np.concatenate([p_mass[up], q_mass[up], [max(rest, 0.0) + 1e-15]])
        return [gridded(losses, masses, BEYOND, step)] * 2
    p_mass[0] += BEYOND
    forward = gridded(loss + slack, p_mass, BEYOND, step)
    q_mass[-1] += BEYOND
    return [forward, gridded(slack - loss, q_mass, BEYOND, step)]


def integer_measure(name: str, values: Mapping[str, Any], step: float) -> Measure:
    """Returns the measure of integer noise against its shift; the same in both directions."""
    shift, count = values.get("sensitivity", values.get("scale")), 1
    if name == "skellam_vote":
        logs, slack, beyond = skellam(values["variance"], shift)
    else:
        variance = values["noise_std"] ** 2 if "noise_std" in values else values["local_variance"]
        if name == "discrete_gaussian_vote":
            count = survivors(values)
        logs, slack, beyond = discrete_gaussian_sum(variance, count, shift)
    logs = np.append(logs[:0:-1], logs)
    masses = np.exp(logs - logs.max())
    masses *= (1.0 + 1e-12 + 3.0 * slack) / masses.sum()
    losses = logs[shift:] - logs[:-shift]
    return gridded(losses + 2.0 * slack, masses[shift:], beyond, step)


def survivors(values: Mapping[str, Any]) -> int:
    """Returns the fewest clients whose sum is released, ceil((1 - missing_fraction) clients)."""
    clients, missing = values["clients"], values["missing_fraction"]
    if not (type(clients) is int and clients > 0 and 0.0 <= missing < 1.0):
        raise Unproved("the number of clients, or the share that may be missing, is malformed")
    return math.ceil((1 - Fraction(repr(float(missing)))) * clients)


def skellam(variance: float, shift: int) -> tuple[np.ndarray, float, float]:
    """Returns log P[X = 0, 1, ...] up to a constant, X the difference of two Poisson variables.

    Also their largest error, and Chernoff's bound on the mass where they or their shifts end.
    """
    reach, log_tail = 0, 0.0
    while log_tail > -84.0 and reach < LONGEST // 2:
        reach += 1 + reach // 16
        height = math.hypot(variance, reach) - variance
        log_tail = height - reach * math.asinh(reach / variance)
    if not reach + shift < LONGEST // 4:
        raise Unproved("noise this wide is beyond this program")
    # P[j] / P[j-1] = 1 / (2 j / v + P[j+1] / P[j]) lies between its values from 0 and from 1.
    last = 2 * (reach + shift) + 64
    Work.spend(200.0 * last)
    one, other, error, ratios = 0.0, 1.0, 0.0, np.ones(last)
    slack = 0.0
    for j in range(last - 1, 0, -1):
        error *= one  # Of the last ratio: relative before this line, absolute after it.
        one, other = 1.0 / (2.0 * j / variance + one), 1.0 / (2.0 * j / variance + other)
        error = error * one + 4.0 * UNIT
        if j <= reach + shift:
            ratios[j], slack = one, slack + 2.0 * error + abs(one - other) / one
    logs = np.cumsum(np.log(ratios[: reach + shift + 1]))
    slack += 8.0 * UNIT * float(np.abs(logs).sum())
    if not slack < 1e-6:
        raise Unproved("noise this wide is beyond this program")
    return logs, slack, 2.0 * math.exp(log_tail)


@functools.cache
def discrete_gaussian_sum(
    variance: float, count: int, shift: int
) -> tuple[np.ndarray, float, float]:
    """Returns the same as `skellam` for a sum of independent discrete Gaussians of variance v each.

    By Poisson summation P[x] exp(x^2 / 2nv) is constant up to a relative eta, an integral. It is
    bounded on cells: one factor of the integrand falls there and the other rises.
    """
    total, a, eta = count * variance, 2.0 * math.pi**2 * variance, 0.0
    reach = math.ceil(DEVIATIONS * math.sqrt(total)) + shift
    if not (variance >= 0.0025 and reach + shift < LONGEST // 4):
        raise Unproved("noise this narrow or this wide is beyond this program")
    if count > 1:
        t, z = np.linspace(0.0, 0.5, 4097), np.arange(1.0, 30.0)[:, None]
        grown = np.exp(-a * z * (z - 2.0 * t)) + np.exp(-a * z * (z + 2.0 * t))
        more = count * np.log1p(grown.sum(axis=0))[1:]
        with np.errstate(over="ignore"):
            cells = np.exp(more - a * count * t[:-1] ** 2) * -np.expm1(-more)
        eta = 1.1 * math.sqrt(a * count / math.pi) * float(cells.sum()) / 4096.0
        if not eta < 1e-9:
            raise Unproved("noise of clients this narrow is beyond this program")
    logs = -0.5 * np.arange(reach + 1.0) ** 2 / total
    return logs, eta + 8.0 * UNIT * (float(np.abs(logs).max()) + 1.0), BEYOND


def pure_measure(name: str, values: Mapping[str, Any], step: float) -> Measure:
    """Returns the measure of randomised responses, or of the worst epsilon-bounded-range pair."""
    if name == "exponential_mechanism":
        # Profile: (e^(epsilon/2) - e^(x/2))^2 / (e^epsilon - 1), taken linear in e^x on cells.
        epsilon, width = values["epsilon"], values["epsilon"] * 2.0**-13
        at = np.arange(-(1 << 13), (1 << 13) + 1) * width
        masses = (
            2.0 * np.exp(0.5 * (at - epsilon)) * math.tanh(0.25 * width) / -math.expm1(-epsilon)
        )
        masses[[0, -1]] *= 0.5
    else:
        epsilon = values.get("epsilon", values.get("epsilon_per_iteration"))
        count = 1 if name == "pure" else values["hits" if "hits" in values else "iterations"]
        if not count <= LARGEST_TABLE:
            raise Unproved("a loop this long is more than this program can prove")
        at = epsilon * np.arange(-count, count + 1.0, 2.0)
        logs = [
            mpmath.log(mpmath.binomial(count, k)) - (count - k) * epsilon for k in range(count + 1)
        ]
        masses = np.exp(np.array(logs, float) - count * math.log1p(math.exp(-epsilon)))
    return gridded(at + 1e-13 * (1.0 + np.abs(at)), masses * (1.0 + 1e-10), BEYOND, step)


def composed(parts: list[tuple[Measure, int]], lost: float) -> Measure:
    """Returns the measure of a sum of independent losses, `count` of each part.

    Powers of Fourier transforms are taken under a few exponential tilts and raised by a bound on
    their rounding; the smallest is kept. 2 `lost` covers the mass beyond the ends (Chernoff).
    """
    if len(parts) == 1 and parts[0][1] == 1:
        return parts[0][0]
    Work.spend(800.0 * sum(part.masses.size for part, _ in parts))
    step, means = parts[0][0].step, [float(part.masses @ part.losses) for part, _ in parts]

    def log_moment(theta: float) -> float:
        return sum(count * _log_moment(part, theta) for part, count in parts)

    mean = sum(count * one for (_, count), one in zip(parts, means))
    spread = sum(n * float(p.masses @ (p.losses - one) ** 2) for (p, n), one in zip(parts, means))
    spread, ends = max(math.sqrt(spread), step), []
    for sign in (1.0, -1.0):
        found = [sum(n * p.losses[-1 if sign > 0 else 0] for p, n in parts) * sign]
        for theta in np.geomspace(0.02, 40.0, 24) / spread:
            found.append((log_moment(sign * theta) - math.log(lost)) / theta)
        ends.append(min(found) + 1e-9 * abs(min(found)) + 2.0 * step)
    first, size = -math.ceil(ends[1] / step), math.ceil(ends[0] / step) + math.ceil(ends[1] / step)
    length = 1 << max(4, size.bit_length())
    if not length <= LONGEST:
        raise Unproved("the sum of the losses fits no grid of this program")
    Work.spend(300.0 * length * (1 + len(parts)))
    best, losses = np.full(size, np.inf), (first + np.arange(size)) * step
    for share in (0.0, 1.0 / 3.0, 2.0 / 3.0, 1.0):
        low, high = 0.0, 60.0 / spread  # The tilt whose mean is this share of the way up.
        for _ in range(24 if share else 0):
            theta, gap = 0.5 * (low + high), 1e-3 * (low + high) + 1e-6 / spread
            above = (log_moment(theta + gap) - log_moment(theta)) / gap > mean + share * (
                ends[0] - mean
            )
            low, high = (low, theta) if above else (theta, high)
        sums, log_scale = _tilted_sum(parts, low, first, size, length)
        exponent = log_scale - low * losses
        exponent += 8.0 * UNIT * (abs(log_scale) + np.abs(low * losses) + 1.0)
        with np.errstate(over="ignore"):
            best = np.minimum(best, sums * np.exp(exponent))
    best[0] += 2.0 * lost
    infinity = sum(count * part.infinity for part, count in parts) * (1.0 + 1e-9)
    return whole_law(Measure(step, first, best, infinity + 2.0 * lost))


def _log_moment(part: Measure, theta: float) -> float:
    """Returns log E[e^(theta loss)] over the finite losses of a measure."""
    exponents = theta * part.losses
    peak = float(exponents.max())
    return peak + math.log(float(part.masses @ np.exp(exponents - peak)))


def _tilted_sum(parts: list, theta: float, first: int, size: int, length: int) -> tuple:
    """Bounds the sums' masses times e^(theta loss - log_scale), (size,); and returns log_scale."""
    # An output of a transform is a sum of its inputs times at most log2(length) numbers of modulus
    # 1, in as many additions: less than 6 roundings each, relative to the inputs' moduli.
    stages, log_scale, relative = (6.0 * math.log2(length) + 8.0) * UNIT, 0.0, 0.0
    log_reach, lost, place = np.zeros(length // 2 + 1), np.zeros(length // 2 + 1), first
    total = np.ones(length // 2 + 1, complex)
    for part, count in parts:
        log_part, held = _log_moment(part, theta), part.masses > 0.0
        exponents = theta * part.losses - log_part
        tilted = part.masses * np.exp(exponents)
        largest = float(np.abs(exponents[held]).max()) + 2.0 * abs(log_part)
        relative += count * (4.0 * largest + 8.0) * UNIT
        log_scale, place = log_scale + count * log_part, place - count * part.low
        rows = -(-tilted.size // length)
        folded = np.append(tilted, np.zeros(rows * length - tilted.size)).reshape(rows, length)
        values = np.fft.rfft(folded.sum(axis=0))
        error = (stages + rows * UNIT) * float(tilted.sum()) * (1.0 + 1e-9)
        reach = np.abs(values) * (1.0 + 8.0 * UNIT) + error
        # |(z + d)^n - z^n| <= n |d| (|z| + |d|)^(n-1); a product of n numbers: 4 n roundings.
        log_reach += count * np.log(reach)
        lost += count * (error / reach + 4.0 * UNIT)
        while count:
            total = total * values if count & 1 else total
            values, count = values * values, count >> 1
    copies = sum(count for _, count in parts)
    bound = np.exp(log_reach + 8.0 * UNIT * (np.abs(log_reach) + 4.0 * copies))
    error = 2.0 / length * math.fsum(bound * (lost + stages)) * (1.0 + 1e-6) + 1e-290
    sums = np.roll(np.fft.irfft(total, length), -(place % length))[:size]
    return (np.maximum(sums, 0.0) + error) * math.exp(relative * (1.0 + 1e-6)), log_scale


class Law(NamedTuple):
    """Law of K: its mean, f'(1 - y) and f''(1 - y), f its generating function, and f's terms."""

    mean: float
    first: Callable[[np.ndarray], np.ndarray]
    second: Callable[[np.ndarray], np.ndarray]
    terms: int = 10


def law_of(words: Mapping[str, Any]) -> Law:
    """Returns the law that a statement names."""
    kind, mean = _law_named(words), float(words.get("mean", 1.0))
    if kind in ("geometric", "logarithmic", "truncated_negative_binomial"):
        shape, gamma = _family(words)
        grows, power = (1.0 - gamma) / gamma, 1.0 + shape
        return Law(
            mean,
            lambda y: mean * np.exp(-power * np.log1p(grows * y)),
            lambda y: mean * power * grows * np.exp(-(power + 1.0) * np.log1p(grows * y)),
        )
    if kind == "poisson" and mean > 0.0:
        return Law(mean, lambda y: mean * np.exp(-mean * y), lambda y: mean**2 * np.exp(-mean * y))
    table = _table(words)
    if not (np.all(table >= 0.0) and abs(table.sum() - 1.0) < 1e-12):
        raise Unproved("the law of K is malformed")
    k = np.arange(table.size)
    one, two = np.polynomial.Polynomial((k * table)[1:]), (k * (k - 1.0) * table)[2:]
    second = np.polynomial.Polynomial(two if two.size else [0.0])
    curves = (lambda y: one(1.0 - y), lambda y: second(1.0 - y))
    return Law(float(k @ table), *curves, terms=10 + table.size)


def _law_named(words: Mapping[str, Any]) -> str:
    """Returns the name of a law of K; refuses malformed fields, and any that are not the law's."""
    good = LAWS.get(words["law"]) == words.keys() - {"law"}
    for name in words.keys() - {"law", "inner"}:
        good &= is_whole(words[name]) if name in ("k", "trials", "cap") else is_real(words[name])
    if not good:
        raise Unproved("the law of K is malformed, or has words that are not its own")
    return words["law"]


def _family(words: Mapping[str, Any]) -> tuple[float, float]:
    """Returns a truncated negative binomial law's shape, and the g that gives its mean."""
    shape = {"geometric": 1.0, "logarithmic": 0.0}.get(words["law"], words.get("shape", 0.0))
    low, high, mean = 0.0, 600.0, words["mean"]
    if not (-1.0 < shape < 1e3 and 1.0 <= mean < 1e9):
        raise Unproved(f"there is no law of K of shape {shape:.3g} and mean {mean:.3g} here")
    for _ in range(200):
        z = 0.5 * (low + high)  # -log g; E[K] = (e^z - 1) shape / (1 - e^(-shape z)).
        rest = z if abs(shape * z) < 1e-9 else -math.expm1(-shape * z) / shape
        low, high = (z, high) if math.expm1(z) / rest < mean else (low, z)
    return shape, math.exp(-high)


def _table(words: Mapping[str, Any]) -> np.ndarray:
    """Returns P[K = k], k = 0, 1, ..., of a law with a largest K."""
    kind, inner = words["law"], words.get("inner", words)
    top = words[{"fixed": "k", "binomial": "trials", "at_most": "cap"}[kind]]
    if not 1 <= top <= LARGEST_TABLE:
        raise Unproved(f"a law of K up to {top} is longer than this program takes")
    if _law_named(inner) in ("fixed", "at_most"):
        table = np.eye(1, top + 1, top)[0] if kind == "fixed" else _table(inner)[: top + 1]
        return table / table.sum()
    k, start = np.arange(1.0, top + 1.0), 0
    if inner["law"] == "poisson":
        ratios = inner["mean"] / k
    elif inner["law"] == "binomial":
        p = inner["probability"]
        ratios = np.maximum(inner["trials"] + 1.0 - k, 0.0) / k * (p / (1.0 - p))
    else:
        shape, gamma = _family(inner)
        ratios, start = (1.0 - gamma) * (k[:-1] + shape) / (k[:-1] + 1.0), 1
    masses = np.append(np.zeros(start), np.append(1.0, np.cumprod(ratios)))
    return masses / masses.sum()


def tradeoff(reverse: Measure) -> tuple[np.ndarray, np.ndarray]:
    """Returns the corners (x, h) of h(x) = sup {Q'(E): Q(E) <= x}; x rounded down, h up."""
    masses, losses = reverse.masses[::-1], reverse.losses[::-1]
    h = np.minimum((reverse.infinity + np.append(0.0, np.cumsum(masses))) * (1.0 + SLACK), 1.0)
    x = np.append(0.0, np.cumsum(masses * np.exp(-losses))) * (1.0 - SLACK)
    inside = int(np.count_nonzero(x < 1.0))
    return np.append(x[:inside], 1.0), np.append(h[:inside], h[inside] if inside < x.size else 1.0)


def points(reverse: Measure, law: Law) -> tuple[np.ndarray, np.ndarray]:
    """Returns (a, b): phi(t) = sup_x f'(1-x) - t f'(1-h(x)) is at most the largest b - a t."""
    corners = tradeoff(reverse)
    Work.spend((reverse.masses.size + 5e3) * (100.0 + 8.0 * law.terms))
    more = np.append(np.linspace(0.0, 1.0, 1 << 12), np.geomspace(1e-15, 1.0, 1 << 10))
    x = np.unique(np.append(corners[0], more))  # With few corners, pieces would be long.
    h = np.minimum(np.interp(x, *corners) * (1.0 + SLACK), 1.0)
    b, reached = law.first(_pieces(x)), _pieces(h)
    middle = 0.5 * reached.sum(axis=0)
    centre, rise = law.first(middle), law.second(middle) * 0.5 * np.diff(reached, axis=0)[0]
    # f'(1-x) lies below its chord; f'(1-h) above its tangent, or above its value at the far end.
    low = np.where(centre > rise, np.stack([centre + rise, centre - rise]), law.first(reached[1]))
    return low.ravel() * (1.0 - SLACK), b.ravel() * (1.0 + SLACK)


def _pieces(ends: np.ndarray) -> np.ndarray:
    """Returns the starts and the ends of the pieces between n ends, (2, n - 1)."""
    return np.stack([ends[:-1], ends[1:]])


def hull(flat: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (a, b), the corners of a rising concave curve from (0, b) on, above all these points.

    So the corners' largest b - a t, or 0, is at least the points'. Slopes fall, rounding included.
    """
    order = np.lexsort((high, flat))
    a, b = np.append(0.0, flat[order]), np.append(0.0, high[order] * (1.0 + 1e-10))
    # A line that is no higher than a flatter one is never the largest, at any t >= 0.
    rising = np.append(True, b[1:] > np.maximum.accumulate(b)[:-1])
    a, b = a[rising], b[rising]
    last, kept = np.append(np.diff(a) > 0.0, True), list[tuple[float, float]]()
    for x, y in zip(a[last].tolist(), b[last].tolist()):
        while len(kept) > 1:
            (x0, y0), (x1, y1) = kept[-2:]
            if (y - y1) / (x - x1) < (y1 - y0) / (x1 - x0):
                break
            kept.pop()
        kept.append((x, y))
    a, b = np.array(kept).T
    if not np.all(high <= np.interp(flat, a, b) * (1.0 - 1e-12)):  # A NaN fails too.
        raise Unproved("the lines behind phi are not above it")
    return a, b


def envelope(pair: Any, law: Law, order: float, count: int = 1) -> np.ndarray:
    """Bounds the best of K runs: E[phi(e^order dQ'/dQ)], phi the largest of the program's lines.

    Returns (count,): the bounds at `order` and at the next orders, one grid step apart.
    """
    one, other = pair
    Work.spend(one.masses.size * (100.0 + 0.5 * count))
    a, b = hull(*points(other, law))
    slopes = np.diff(b) / np.diff(a)
    own = order - one.losses[-1] + np.arange(count + one.masses.size - 1) * one.step
    t = np.exp(np.minimum(own, 700.0)) * (1.0 - 1e-12)
    best = np.searchsorted(-slopes, -t)
    phi = np.maximum(b[best] - a[best] * t, 0.0) + 8.0 * UNIT * (b[best] + a[best] * t)
    # No line is higher than the last corner, which is above 0.
    total = np.convolve(one.masses, np.minimum(phi, b[-1]), "valid")
    total += one.infinity * law.mean
    return total * (1.0 + SLACK + 2.0 * UNIT * one.masses.size)


def optimal_order_bound(
    pair: Any, law: Law, orders: Any, lost: float, cells: int = CELLS, knots: float = KNOTS
) -> np.ndarray:
    """Bounds the same as `envelope`, more tightly: the supremum over all orders of the outcomes.

    The theorem stands in docs/envelope_bound.md, "The exact bound". On a curve, n and m are the
    masses ranked so far outside and inside the event, h(n) and g(m) the neighbour's masses of the
    same ranks; f' is `law.first`. n is divided into cells, m into columns, one for each loss.

    On a cell f'(1-n-m) is below its chord in n; f'(1-y), at y = h(n)+g, is above a tangent taken on
    a line above h. Both are linear in n, so a curve may keep to the cell's ends. On a column (one
    loss) chords and tangents serve too. A curve that changes ends in it earns there at most the
    best end's average plus, per end passed, how much the difference of adjacent ends varies.
    """
    (one,), other = coarser(pair[:1], knots), pair[1]
    (x, h), t = tradeoff(other), np.exp(np.atleast_1d(orders))[:, None] * (1.0 - SLACK)
    way = np.append(0.0, np.cumsum(_moves(law.first(x)) + _moves(law.first(h))))
    n = np.unique(np.interp(np.linspace(0.0, way[-1], cells), way, x))
    near, far = np.interp(n[:-1], x, h), np.interp(n[1:], x, h)
    # A line above h: h's piece at the cell's middle, extended, or h's value at the far end.
    middle = 0.5 * (n[:-1] + n[1:])
    at = np.clip(np.searchsorted(x, middle, side="right"), 1, x.size - 1)
    slope = (h[at] - h[at - 1]) / (x[at] - x[at - 1])
    low, high = h[at] + slope * (n[:-1] - x[at]), h[at] + slope * (n[1:] - x[at])
    flat = ~((low * (1.0 + SLACK) >= near) & (high * (1.0 + SLACK) >= far) & (high <= 1.0))
    cell = np.searchsorted(n, x[1:-1], side="right") - 1
    line = low[cell] + (high - low)[cell] * (x[1:-1] - n[cell]) / np.diff(n)[cell]
    flat[cell[~(line * (1.0 + SLACK) >= h[1:-1])]] = True  # It must be above all corners inside.
    low, high = (np.where(flat, far, one) * (1.0 + 3.0 * SLACK) for one in (low, high))
    half, sign = 0.5 * (high - low), np.array([1.0, -1.0])
    n = np.stack([n[:-1], n[1:]], axis=1).ravel()
    p, ratio = np.append(one.infinity, one.masses[::-1]), np.append(0.0, np.exp(-one.losses[::-1]))
    ends = [np.minimum(np.append(0.0, np.cumsum(some)), 1.0) for some in (p, p * ratio)]
    parts = np.ceil(np.maximum(*(_moves(law.first(end)) for end in ends)) / MOVE)
    parts = np.clip(parts, 1, 1000).astype(int)
    Work.spend(float(parts.sum()) * n.size * (25.0 * t.size + 10.0 * law.terms))
    past, best, m, g = np.zeros((t.size, n.size)), np.zeros(t.size), 0.0, 0.0
    start = law.first(n * (1.0 - SLACK)) * (1.0 + SLACK)
    floor = -float(start[0])  # An end that loses more in a column counts as losing this.
    for mass, worse in zip(np.repeat(p / parts, parts).tolist(), np.repeat(ratio, parts).tolist()):
        beyond = float(law.first(np.array(m))) * (1.0 - m)
        if beyond < lost:
            break
        # Ranks are rounded down for gains, up for costs.
        width, price = mass * worse, t * worse
        end = law.first(np.minimum((n + m + mass) * (1.0 - SLACK), 1.0)) * (1.0 + SLACK)
        last = (high + g + width) * (1.0 + SLACK)
        centre = np.minimum((low + half + g + 0.5 * width) * (1.0 + SLACK), 1.0)
        value, fall = law.first(centre), law.second(centre)
        steep = (fall * (half + width) > 0.3 * value) | (last > 1.0)
        fall = np.where(steep, 0.0, fall)
        value = np.where(steep, law.first(np.minimum(last, 1.0)), value) * (1.0 - 2.0 * SLACK)
        cost = (value[:, None] + (fall * half)[:, None] * sign).ravel()
        drop, gain = np.repeat(fall * width, 2), start - end
        most = start - price * (cost - 0.5 * drop) * (1.0 - SLACK)
        dropped = most <= floor
        turn = np.abs(np.diff(gain)) + 1e-13 * start[:-1]  # Plus rounding.
        turn = turn + price * (np.abs(np.diff(drop)) + 1e-13 * cost[:-1])
        earned = 0.5 * (start + end) - price * cost * (1.0 - SLACK)
        if dropped.any():
            earned = np.where(dropped, floor, earned)
            swing = np.where(dropped, 0.0, gain + price * drop)
            turn = np.where(dropped[:, 1:] | dropped[:, :-1], swing[:, 1:] + swing[:, :-1], turn)
        charge = np.zeros(past.shape)
        np.cumsum(turn, axis=1, out=charge[:, 1:])
        charge *= mass * (1.0 + SLACK)
        best = np.maximum(best, (past + mass * np.maximum(most, 0.0)).max(axis=1))
        past = np.maximum.accumulate(past - charge, axis=1) + earned * mass
        past = np.maximum.accumulate(past, axis=1) + charge
        past += 16.0 * UNIT * (np.abs(past) + charge - floor * mass)
        m, g, start = m + mass, g + width, end
    return np.maximum(best, past.max(axis=1)) * (1.0 + SLACK) + lost


def _moves(values: np.ndarray) -> np.ndarray:
    """Returns how much the logarithm moves from one value to the next, tiny ones cut off."""
    return np.abs(np.diff(np.log(np.maximum(values, 1e-18))))


def coarser(pair: Any, knots: float) -> list:
    """Returns the pair on a grid of `knots` per standard deviation, or on its own if coarser."""
    mean = float(pair[0].masses @ pair[0].losses)
    spread = math.sqrt(max(float(pair[0].masses @ (pair[0].losses - mean) ** 2), 0.0))
    step = 2.0 ** math.floor(math.log2(max(spread / knots, pair[0].step)))
    return [gridded(one.losses, one.masses, one.infinity, step) for one in pair]


def selected(pair: Any, law: Law, hints: Mapping, step: float, lost: float) -> list:
    """Returns the pair of measures of the best of K runs, from its divergences at orders >= 1.

    Uses the envelope and, at as many orders as the certificate asks for, also the exact bound.
    """
    pair = coarser(pair, FINE_KNOTS)
    ways = (pair, pair[::-1])
    ahead, behind = (envelope(way, law, 0.0, ORDERS) for way in ways)
    for curve, way in zip((ahead, behind), ways):
        last = min(int(np.count_nonzero(curve > 1e9 * lost)), ORDERS - 1)  # Where delta is reached.
        if count := hints["exact"]:
            places = np.unique(np.linspace(0, last, count).astype(int))
            closer = optimal_order_bound(way, law, places * pair[0].step, lost, *NEAR)
            curve[places] = np.minimum(curve[places], closer)
    found = [measured(ahead, behind, pair[0].step), measured(behind, ahead, pair[0].step)]
    return [gridded(one.losses, one.masses, one.infinity, step) for one in found]


def measured(ahead: np.ndarray, behind: np.ndarray, step: float) -> Measure:
    """Makes a measure from both directions' bounds on the divergences H of orders e^0, e^step, ...

    H is convex in t: it lies below chords of its bounds; H_t = 1 - t + t H'_(1/t) and H_0 = 1.
    """
    behind = behind[: 1 + int(25.0 / step)]  # Below e^-25 rounding is all there is.
    at = np.arange(1.0 - behind.size, ahead.size) * step
    value = np.append(1.0 - np.exp(at[: behind.size - 1]) * (1.0 - behind[:0:-1]), ahead)
    value[behind.size - 1] = min(ahead[0], behind[0])
    value = np.append(1.0, np.minimum(value + 8.0 * UNIT, 1.0))
    t, kept = np.append(0.0, np.exp(at)).tolist(), list[int]()
    for k, v in enumerate(value.tolist()):  # Whatever knots are left, chords are above H.
        while len(kept) > 1 and (value[i := kept[-1]] - value[j := kept[-2]]) * (t[k] - t[i]) >= (
            v - value[i]
        ) * (t[i] - t[j]):
            kept.pop()
        kept.append(k)
    at, value = at[np.array(kept[1:]) - 1], value[kept]
    gaps = np.append(1.0, -np.expm1(at[:-1] - at[1:])) * np.exp(at)
    falls = np.maximum.accumulate(np.append(-np.diff(value) / gaps, 0.0)[::-1])[::-1]
    masses = -np.diff(falls) * np.exp(at) * (1.0 + 64.0 * UNIT)
    at, masses = at[masses > 0.0], masses[masses > 0.0]
    return gridded(at, masses, float(value[-1]), step)


def stopped(pair: Any, halting: float, order: float) -> float:
    """Bounds a loop that stops at a good output or by a coin, for any set of good outputs."""
    one, corners = pair[0], tradeoff(pair[1])
    x = np.unique(np.append(corners[0], np.linspace(0.0, 1.0, 1 << 16)))
    most = halting + (1.0 - halting) * np.interp(x, *corners)[1:]
    least = halting + (1.0 - halting) * x[:-1]
    own = order - np.log(most / least) - 1e-11
    found = (1.0 - halting) * one.divergences(own)
    found += halting * np.maximum(-np.expm1(np.minimum(own, 0.0)), 0.0)
    return float(np.max(found / least)) * (1.0 + SLACK)


def split(tuned: list, final: list, q: float, on_all: bool, order: float) -> list:
    """Bounds both directions if `tuned` sees a secret part: each record with probability q.

    L and M are the likelihood ratios of `tuned` and `final`. That of both is q L + (1-q) M, or, if
    `final` sees all records, (1-q + q L) M: the bounds sum divergences of L over M.
    """
    (one, other), (ahead, behind), t = final, tuned, math.exp(order)
    m, still = np.exp(one.losses), np.append(np.exp(-other.losses), 0.0)
    if on_all:
        weight, at, revealed = one.masses, (t / m - (1.0 - q)) / q, one.infinity
    else:  # Where M is 0 under Q the ratio is q L alone.
        weight, at, revealed = one.masses / m, (t - (1.0 - q) * m) / q, (1.0 - q) * one.infinity
        never = max(0.0, 1.0 - math.fsum(weight) * (1.0 - 1e-12))
        weight, at, m = np.append(weight, never), np.append(at, t / q), np.append(m, 0.0)
    at -= 16.0 * UNIT * (np.abs(at) + (t + m) / q)
    forward = q * float(weight @ _divergences(ahead, at)) + revealed
    left = np.maximum(1.0 - t * (1.0 - q) * still + 16.0 * UNIT * (1.0 + t * still), 0.0)
    at = t * q * (still if on_all else 1.0) / np.maximum(left, 1e-200) * (1.0 - 16.0 * UNIT)
    weight = left * np.append(other.masses, other.infinity)
    backward = float(weight @ _divergences(behind, at))
    rounding = 1.0 + SLACK + 4.0 * UNIT * (m.size + still.size)
    return [forward * rounding, backward * rounding]


def _divergences(way: Measure, t: np.ndarray) -> np.ndarray:
    """Returns divergences of orders t, which may be negative; never less than 1 - t."""
    orders = np.log(np.clip(t, 1e-290, 1e290))
    return np.maximum(way.divergences(orders - 1e-14 * (1.0 + np.abs(orders))), 1.0 - t)


def pair_of(tree: Mapping[str, Any], case: int, lost: float, hints: Mapping) -> list:
    """Returns the measures of both directions; `case`: which part of the data the record is in."""
    name, values, parts = (tree[key] for key in NODE)
    step, fine = 2.0 ** -hints["step"], 2.0 ** -hints["fine"]
    if name in ("dp_sgd", "dp_sgd_fixed_lots", "gaussian"):
        noise, steps = values["noise_multiplier"], values["steps"]
        fixed, lot = name == "dp_sgd_fixed_lots", values.get("sampling_probability", 1.0)
        if fixed:
            lot = values["lot_size"] / values["dataset_size"]
        share = lot * (1.0 + 2.0 * UNIT)
        if share >= 1.0:
            share, steps, noise = 1.0, 1, noise / math.sqrt(steps) * (1.0 - 8.0 * UNIT)
        one = gaussian_pair(noise, share, fixed, step, fine)
        pair = [composed([(way, steps)], lost) for way in (one[:1] if fixed else one)]
        failed = 0.0 if name == "gaussian" else values["failure_probability"]
        return [way._replace(infinity=way.infinity + failed) for way in (pair * 2)[:2]]
    if name in ("discrete_gaussian", *VOTES):
        moved = 1
        if name in VOTES:  # A client's other choice takes votes from some and gives them to others.
            moved = 2 * min(values["votes"], values["candidates"] - values["votes"])
        return [composed([(integer_measure(name, values, step), moved)], lost)] * 2
    if name in ("pure", "exponential_mechanism", "doubling_loop"):
        return [pure_measure(name, values, step)] * 2
    if name == "parallel":
        return pair_of(*part_read(parts, case), lost, hints)
    if name == "best_of" and values["law"] == {"law": "fixed", "k": 1}:
        return pair_of(parts[0], case, lost, hints)
    if name == "best_of":
        pair = pair_of(parts[0], case, lost, hints)
        return selected(pair, law_of(values["law"]), hints, step, lost)
    if name not in ("compose", "mixture"):
        raise Unproved(f"{str(name)[:40]!r} inside another mechanism is beyond this program")
    pairs = [pair_of(part, case, lost, hints) for part in parts]
    if name == "compose":
        return [composed([*zip(way, values["counts"])], lost) for way in zip(*pairs)]
    return [mixed(way, values["weights"]) for way in zip(*pairs)]


def mixed(parts: tuple[Measure, ...], weights: list[float]) -> Measure:
    """Returns the measure of a mechanism that is drawn by public weights."""
    low = min(part.low for part in parts)
    masses = np.zeros(max(part.low + part.masses.size for part in parts) - low)
    for part, weight in zip(parts, weights):
        masses[part.low - low : part.low - low + part.masses.size] += weight * part.masses
    infinity = sum(weight * part.infinity for part, weight in zip(parts, weights))
    # Weights may sum to 1 - 1e-9.
    masses *= 1.0 + 2e-9
    return whole_law(Measure(parts[0].step, low, masses, infinity * (1.0 + 2e-9)))


def bounds(tree: Mapping[str, Any], case: int, order: float, lost: float, hints: Mapping) -> list:
    """Returns the divergences of order e^order in both directions; `hints` are a certificate's.

    If an adversary chooses a hint, is the result still an upper bound? For each of them (others are
    refused):
      step: yes; losses are rounded up to this grid, whatever it is.
      fine: yes; both masses of a cell move to its ends, and a cell may be of any width for which
        the rule's error is below a rounding, which `gaussian_pair` checks.
      exact: yes; it chooses between two bounds (0: the envelope), or at how many orders of a
        selection inside another mechanism the smaller of the two is taken.
      sums, statement and the number of cases, in `check`: they are compared with what is found
        here, and enter nothing.
    """
    name, values, parts = (tree[key] for key in NODE)
    found = {key: one for key, one in hints.items() if key != "sums"}
    if not (
        found.keys() == HINTS.keys()
        and all(type(one) is int and one in HINTS[key] for key, one in found.items())
    ):
        raise Unproved("the certificate's hints are not ones that this program takes")
    Work.done = 0.0
    relations_of(tree)
    if name == "parallel":
        return bounds(*part_read(parts, case), order, lost, hints)
    if name == "stop_at_threshold":
        pair, halting = pair_of(parts[0], case, lost, hints), values["halting_probability"]
        return [stopped(way, halting, order) for way in (pair, pair[::-1])]
    if name == "split":
        tuned, final = (pair_of(part, case, lost, hints) for part in parts)
        return split(tuned, final, values["probability"], values["final_on"] == "all", order)
    if name != "best_of" or values["law"] == {"law": "fixed", "k": 1}:
        return [way.divergence(order) for way in pair_of(tree, case, lost, hints)]
    law, pair = law_of(values["law"]), pair_of(parts[0], case, lost, hints)
    ways = (pair, pair[::-1])
    if hints["exact"]:
        return [float(optimal_order_bound(way, law, order, lost)[0]) for way in ways]
    return [float(envelope(way, law, order)[0]) for way in ways]


def node(mechanism: str, parts: Any = (), **parameters: Any) -> dict[str, Any]:
    """Returns a mechanism as a statement writes it."""
    return {"mechanism": mechanism, "parameters": parameters, "parts": list(parts)}


def tree_of(claim: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tree of mechanisms that follows from the rules that a statement names."""
    Work.done = 0.0
    if "federated_training" in claim:
        raise Unproved("federated averaging is beyond this program")
    if "settings" in claim and "selection" not in claim:
        return vote_of(claim["settings"])
    choice, score, rows = claim["selection"], claim["score"], claim.get("training", [])
    rule, relation = choice["rule"], claim["neighbouring_relation"]
    declared = rule == DECLARED

    def best(one: dict) -> dict:
        return node("best_of", [one], law=choice["law_of_K"], method="tight")

    def count(std: float) -> dict:
        units = score.get("units_of_a_score_of_1", 1)
        if score.get("noise", "discrete Gaussian") != "discrete Gaussian":
            raise Unproved("the noise on a score is of an unknown kind")
        noise = {"noise_std": std * units, "sensitivity": units, "relation": relation}
        return node("discrete_gaussian", **noise)

    def scored(run: dict, std: float) -> dict:
        records = score["records"] if declared else score.get("records", "disjoint")
        if records == "public" if declared else score["validation_is_public"]:
            return run
        if records == ("training" if declared else TRAINED):
            return node("compose", [run, count(std)], counts=[1, 1])
        if records != "disjoint":
            raise Unproved("the records that scores are counted on are not among those known here")
        return node("parallel", [run, count(std)])  # A record is trained on or scored, not both.

    if rule == PUBLIC:
        return runs_of(claim, rows)
    if declared:
        base = claim["one_run"]["mechanism"]
        relations_of(base)
        check_apart(base)
        return best(scored(base, score["noise_standard_deviation_in_records"]))
    if rule in (BEST, ABOVE):
        one = scored(runs_of(claim, rows), score["noise_standard_deviation_in_records"])
        if rule == BEST:
            return best(one)
        return node("stop_at_threshold", [one], halting_probability=choice["halting_probability"])
    if rule in (PART + "the rest", PART + "all of them"):
        q, on_all = choice["part"]["probability_of_a_training_record"], rule.endswith("of them")
        # Each run is priced at the share of the records that it can see.
        shares = (q, 1.0 if on_all else 1.0 - q)
        runs = [runs_of(claim, [row], one) for row, one in zip(rows, shares, strict=True)]
        values = {"probability": q, "final_on": "all" if on_all else "rest"}
        whole = node("split", [best(runs[0]), runs[1]], **values)
        if score["validation_is_public"]:
            return whole
        noise = score["noise_standard_deviation_in_records"]
        return node("parallel", [whole, best(count(noise))])
    if rule == LINE:
        noise = score["noise_standard_deviations_in_records"]
        stages = [
            best(scored(runs_of(claim, [r]), n)) for r, n in zip(rows[:-1], noise, strict=True)
        ]
        ones = [1] * len(stages)
        first = stages[0] if len(stages) == 1 else node("compose", stages, counts=ones)
    elif rule == LOOP:
        (kind,) = charged = choice["charged"]  # One field, "iterations" or "segments".
        cap = {{"iterations": "iterations", "segments": "hits"}[kind]: charged[kind]}
        values = {"epsilon_per_iteration": choice["epsilon_0"], "variant": choice["variant"]}
        first = node("doubling_loop", **values, **cap, relation=relation)
    elif rule in (ONCE, FLIP):
        name = "pure" if rule == FLIP else "exponential_mechanism"
        first = node(name, epsilon=choice["epsilon_0"], relation=relation)
    else:
        raise Unproved(f"releases by the rule {str(rule)[:90]!r} are beyond this program")
    # The winner is trained after the choice, on records that the choice may have seen.
    return node("compose", [first, runs_of(claim, rows[-1:])], counts=[1, 1])


def vote_of(rules: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the mechanism that a vote's rules describe: its noisy counts."""
    votes = {name: rules[name] for name in ("votes", "candidates", "scale")}
    noise, fraction = rules["local_variance"], {"missing_fraction": rules["missing_fraction"]}
    if rules["noise"] == "skellam":
        return node("skellam_vote", variance=noise * survivors(rules), **votes)
    if rules["noise"] != "discrete_gaussian":
        raise Unproved("the noise on a vote is of an unknown kind")
    clients = {"local_variance": noise, "clients": rules["clients"]}
    return node("discrete_gaussian_vote", **clients, **fraction, **votes)


def check_apart(tree: Mapping[str, Any]) -> None:
    """Refuses a tree in which a record may be in two parts at once, since `case` is one number."""
    if tree["mechanism"] != "parallel" and sum(cases_of(part) > 1 for part in tree["parts"]) > 1:
        raise Unproved("several mechanisms on disjoint records inside one are beyond this program")
    for part in tree["parts"]:
        check_apart(part)


def runs_of(claim: Mapping[str, Any], rows: list, share: float = 1.0) -> dict[str, Any]:
    """Returns the mechanism of one private run on a share of the records, mixed over settings."""
    found, records, relation = [], claim["training_records"], claim["neighbouring_relation"]
    for row in rows:
        good = is_whole(row["steps"]) and is_real(row["lot_size"]) and is_real(row["probability"])
        good &= is_whole(row.get("bands", 1)) and row.get("bands", 1) >= 1
        stages = row.get("stages", [row])
        good &= all(is_whole(one["steps"]) and is_real(one["lot_size"]) for one in stages)
        good = good and sum(one["steps"] for one in stages) == row["steps"]
        if not (good and (row["sampling"] == "fixed" or is_whole(row["capacity"]))):
            raise Unproved("the numbers of a run are malformed")
    weights = [row["probability"] for row in rows]
    if not (rows and min(weights) > 0.0 and abs(math.fsum(weights) - 1.0) <= 1e-9):
        raise Unproved("the probabilities of the settings of a run do not sum to 1")
    for row in rows:
        # With noise correlated over `bands` steps, records are in `bands` parts, and lots are drawn
        # from one part after another: docs/proofs/correlated_noise.md.
        bands, fixed = row.get("bands", 1), {"fixed": True, "poisson": False}[row["sampling"]]
        if relation != ("replace_one" if fixed else "add_or_remove_one"):
            raise Unproved("sampling and neighbouring_relation do not fit each other")
        if bands > 1 and (fixed or "stages" in row):
            raise Unproved("bands do not fit the sampling or the stages of a run")
        parts = []
        for one in row.get("stages", [row]):
            common = {"noise_multiplier": one["noise_multiplier"]}
            common["steps"] = -(-one["steps"] // bands)
            if fixed:
                lots = {"dataset_size": records["number"], "lot_size": one["lot_size"]}
                parts.append(node("dp_sgd_fixed_lots", **lots, **common, failure_probability=0.0))
                continue
            if not (is_whole(records["public_size"]) and is_whole(records["size_bound"])):
                raise Unproved("the public sizes are malformed, or beyond this program")
            chance = bands * one["lot_size"] / (share * records["public_size"])
            if not 0.0 < chance <= 1.0:
                raise Unproved("a lot is not a part of the training records")
            most = -(-records["size_bound"] // bands)
            failed = overflow(most, chance, row["capacity"], one["steps"])
            values = {"sampling_probability": chance, **common, "failure_probability": failed}
            parts.append(node("dp_sgd", **values))
        ones = [1] * len(parts)
        found.append(parts[0] if len(parts) == 1 else node("compose", parts, counts=ones))
    return found[0] if len(found) == 1 else node("mixture", found, weights=weights)


def overflow(records: int, chance: float, capacity: int, steps: int) -> float:
    """Returns steps * P[Binomial(records, chance) >= capacity], in 30 digits, rounded up."""
    if capacity >= records or capacity <= chance * (records + 1):
        return float(capacity < records)
    with mpmath.workdps(30):
        p, k, total = mpmath.mpf(chance), capacity, mpmath.mpf(0)
        term = mpmath.binomial(records, k) * p**k * (1 - p) ** (records - k)
        while term > total * mpmath.mpf(10) ** -20:
            Work.spend(2000.0)
            total, ratio = total + term, p * (records - k) / ((1 - p) * (k + 1))
            term, k = term * ratio, k + 1
        total = (total + term / (1 - ratio)) * (1 + mpmath.mpf(10) ** -12)
        return float(min(mpmath.mpf(1), steps * total))


def check_same(stated: Any, meant: Any, place: str = "mechanism") -> None:
    """Refuses a stated value that differs from the one that the statement's words mean.

    A probability may differ by its rounding, a failure probability may be a little larger.
    """
    if isinstance(meant, dict) and isinstance(stated, dict) and stated.keys() == meant.keys():
        for key in meant:
            check_same(stated[key], meant[key], f"{place}.{key}")
        return
    if isinstance(meant, list) and isinstance(stated, list) and len(stated) == len(meant):
        for at, both in enumerate(zip(stated, meant)):
            check_same(*both, f"{place}.{at}")
        return
    if place.endswith("failure_probability"):
        same = meant <= stated <= meant * (1.0 + 1e-6) + 1e-13
    elif place.endswith("sampling_probability"):
        same = abs(stated - meant) <= 1e-14 * stated
    else:
        same = stated == meant and isinstance(stated, bool) == isinstance(meant, bool)
    if not same:
        raise Unproved(f"{place} is not what the statement's own words mean")


def prove(words: Mapping[str, Any], case: int, hints: Mapping[str, Any]) -> list[float]:
    """Returns bounds on delta at the stated epsilon, in both directions of a case of neighbours."""
    epsilon, delta = words["epsilon"], words["delta"]
    good = is_real(epsilon) and is_real(delta) and 0.0 < delta < 1.0 and 0.0 <= epsilon < 600.0
    if words["private"] is not True or not good:
        raise Unproved("there is no claim here: epsilon and delta are malformed")
    check_same(words["mechanism"], tree_of(words))
    if relations_of(words["mechanism"]) != {words["neighbouring_relation"]}:
        raise Unproved("its mechanisms are under another neighbouring relation")
    found = bounds(words["mechanism"], case, epsilon, delta * 1e-9, hints)
    if not (len(found) == 2 and min(found) > 0.0):  # `lost` alone makes each more than 0.
        raise Unproved("the bounds that were found are malformed")
    return found


def check(folder: str) -> str:
    """Proves the statement of a release; returns the line that says so, or raises `Unproved`."""
    if not os.path.exists(os.path.join(folder, STATEMENT)):
        raise Unproved(f"there is no {STATEMENT} in {folder}: pass the folder of a release")
    claim = _json(os.path.join(folder, STATEMENT))
    named = dict(claim[SEAL])
    own = named.pop(OWN)
    if digest({**claim, SEAL: named}) != own:
        raise Unproved(f"{STATEMENT} was changed after it was written: its hash is another one")
    if odd := sorted(set(os.listdir(folder)) ^ {STATEMENT, *named}):
        raise Unproved(f"{', '.join(odd)}: in the folder or named by {STATEMENT}, but not both")
    for name, wanted in named.items():
        with _file(os.path.join(folder, name)) as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != wanted:
                raise Unproved(f"{name} is not the file that was released: another hash")
    for wrong in outside(claim, schema()):
        raise Unproved(wrong)
    words = Words((name, value) for name, value in claim.items() if name != SEAL)
    check_same(words["mechanism"], tree_of(words))
    if CERTIFICATE not in named:
        # Says why there is none: what is beyond this program is refused here.
        hints, cases = {"step": 12, "fine": 10, "exact": 0}, range(cases_of(words["mechanism"]))
        found = max(max(prove(words, case, hints)) for case in cases)
        why = f"none was found, and on coarse grids delta is at most {found:.8g}, not as claimed"
        why = "it was saved without one" if found <= words["delta"] else why
        raise Unproved(f"it carries no {CERTIFICATE}: {why}")
    certificate = _json(os.path.join(folder, CERTIFICATE))
    if certificate.keys() != {"statement", "cases"} or certificate["statement"] != digest(words):
        raise Unproved(f"{CERTIFICATE} is that of another statement")
    if len(certificate["cases"]) != cases_of(words["mechanism"]):
        raise Unproved(f"{CERTIFICATE} leaves out a case of neighbours")
    largest = 0.0
    for case, hints in enumerate(certificate["cases"]):
        for found, stated in zip(prove(words, case, hints), hints["sums"], strict=True):
            if not found <= words["delta"]:
                reach = f"delta is at most {found:.8g} by this program"
                raise Unproved(f"at the stated epsilon {words['epsilon']:.9g} {reach}")
            if not math.isclose(found, stated, rel_tol=1e-6):
                raise Unproved(f"the sums of {CERTIFICATE} are not what they are found to be")
            largest = max(largest, found)
    claimed = f"epsilon {words['epsilon']!r} at delta {words['delta']!r}"
    given = "; what one run costs is declared, and not proved" if "one_run" in words else ""
    relation = words["neighbouring_relation"]
    names = unread(words)
    more = f" and {len(names) - 40} more" if len(names) > 40 else ""
    rest = f"; not read: {', '.join(names[:40])}{more}" if names else ""
    return f"PROVED: {claimed} ({relation}){given}; delta is at most {largest:.8g}{rest}"


def unread(words: Any, place: str = "") -> list[str]:
    """Names each field that the proof has not read, once; without the numbers of rows."""
    found: list[str] = []
    if isinstance(words, list):
        found = [name for one in words for name in unread(one, place)]
    elif isinstance(words, Words):
        for name, value in words.items():
            own = f"{place}{name[:60]}"
            found += unread(value, own + ".") if name in words.read else [own]
    return list(dict.fromkeys(found))


@functools.cache
def schema() -> dict[str, Any]:
    """Returns the fields of guarantee.json: types, units, meanings, and who reads each."""
    return _json(os.path.join(os.path.dirname(__file__), "guarantee.schema.json"))


def outside(value: Any, rule: Mapping[str, Any], place: str = "") -> Iterator[str]:
    """Yields the faults of a value by the schema; knows only the keywords that ours uses."""
    if "$ref" in rule:
        rule = schema()["$defs"][rule["$ref"].rpartition("/")[2]]
    kinds = {int: "integer", float: "number", str: "string", bool: "boolean", list: "array"}
    kind = kinds.get(type(value), "object" if isinstance(value, dict) else "null")
    types, before = rule.get("type", kind), place and place + "."
    fits = kind in types or (kind == "integer" and "number" in types)
    if not fits or value not in rule.get("enum", [value]):
        yield f"{place or 'the statement'} is not what may stand there in a {STATEMENT}"
    elif kind == "array":
        for at, one in enumerate(value):
            yield from outside(one, rule.get("items", {}), f"{before}{at}")
    elif kind == "object":
        known, others = rule.get("properties", {}), rule.get("additionalProperties", {})
        yield from (
            f"{before}{one} is missing" for one in rule.get("required", ()) if one not in value
        )
        for key, one in value.items():
            if known.get(key, others) is False:
                yield f"{before}{key[:60]} is not a field of a {STATEMENT}"
            else:
                yield from outside(one, known.get(key, others), f"{before}{key[:60]}")
        if "if" in rule and not any(outside(value, rule["if"])):
            yield from outside(value, rule["then"], place)


def cases_of(tree: Mapping[str, Any]) -> int:
    """Returns how many parts the data has; a record is in one of them."""
    below = [cases_of(part) for part in tree["parts"]] or [1]
    return sum(below) if tree["mechanism"] == "parallel" else max(below)


def part_read(parts: list, case: int) -> tuple[dict, int]:
    """Returns the one of these mechanisms that reads the record, and the record's case in it."""
    for part in parts:
        if case < cases_of(part):
            return part, case
        case -= cases_of(part)
    raise Unproved("a record is in no part of the data")


def is_whole(value: Any) -> bool:
    """Returns whether a value is an int from 1 to below 2^31; True does not count."""
    return type(value) is int and 1 <= value < 1 << 31


def is_real(value: Any) -> bool:
    """Returns whether a value is an int or a float below 1e10 in size; True does not count."""
    return type(value) in (int, float) and abs(value) < 1e10


def is_parameter(name: str, value: Any, parts: int) -> bool:
    """Returns whether a value is allowed for this parameter of a mechanism with `parts` parts."""
    fields = schema()["$defs"]["mechanism"]["properties"]["parameters"]["properties"]
    if any(outside(value, fields[name])):
        return False
    if isinstance(value, dict | str):
        return isinstance(value, str) or law_of(value).mean > 0.0
    if isinstance(value, list):
        good = all(map(is_whole if name == "counts" else is_real, value))
        good = good and len(value) == parts and min(value) > 0
        return good and (name == "counts" or abs(math.fsum(value) - 1.0) <= 1e-9)
    if name in ("failure_probability", "missing_fraction"):
        return is_real(value) and 0.0 <= value < 1.0
    if name in ("sampling_probability", "halting_probability", "probability"):
        return is_real(value) and 0.0 < value <= 1.0
    if name.startswith(("noise", "variance", "local_variance", "epsilon")):
        return is_real(value) and 0.0 < value <= 1e9
    return is_whole(value)


def relations_of(tree: Any, depth: int = 0) -> set[str]:
    """Returns the relations of all leaves; refuses anything but a tree of known mechanisms."""
    if not (isinstance(tree, dict) and tree.keys() == set(NODE) and depth < DEEPEST):
        raise Unproved("there is no tree of mechanisms, or one that is beyond this program")
    Work.spend(MOST_WORK / MOST_NODES)
    (name, values, parts), found = (tree[key] for key in NODE), set[str]()
    good = isinstance(name, str) and isinstance(values, dict) and isinstance(parts, list)
    if good:
        loop = name == "doubling_loop" and values.get("variant") == "segments"
        names, number = MECHANISMS.get(name + " by segments" * loop, ("?", 0))
        good = values.keys() == set(names.split())
        good &= len(parts) == number if number is not None else len(parts) > 0
        good = good and all(is_parameter(key, values[key], len(parts)) for key in values)
    if good:
        own = "add_or_remove_one" if name == "dp_sgd" else "replace_one"
        found = set().union(*(relations_of(part, depth + 1) for part in parts))
        found = found if parts else {values.get("relation", own)}
        good = name not in VOTES or values["votes"] < values["candidates"]
    if not good or (name == "split" and found != {"add_or_remove_one"}):
        raise Unproved(f"{str(name)[:40]!r} is beyond this program, or its numbers are malformed")
    return found


def digest(words: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of a statement, as it is written."""
    text = json.dumps(words, indent=2, sort_keys=True, allow_nan=False) + "\n"
    return hashlib.sha256(text.encode()).hexdigest()


def _file(path: str) -> Any:
    """Opens a regular file; refuses links, and pipes and devices, whose reading may never end."""
    if os.path.islink(path):
        raise Unproved(f"{os.path.basename(path)} is a symbolic link")
    file = os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise Unproved(f"{os.path.basename(path)} is not a file")
    return file


def _json(path: str) -> Any:
    """Reads a JSON file of finite numbers in which no name occurs twice."""
    with _file(path) as file:
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise Unproved(f"{os.path.basename(path)} is too large")
    # Decoded first: given bytes, JSON's reader guesses the encoding and accepts a byte-order mark.
    return json.loads(content.decode(), object_pairs_hook=_no_name_twice, parse_constant=_no_number)


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise Unproved("a name occurs twice in a file")
    return Words(pairs)


def _no_number(text: str) -> float:
    raise Unproved(f"{text} is not a finite number")


def main(arguments: list[str]) -> int:
    """Checks the release in one folder, and prints the verdict in one line."""
    if len(arguments) != 1:
        print("usage: python -m dpjax.certificate RELEASE_FOLDER", file=sys.stderr)
        return 2
    try:
        verdict, code = check(arguments[0]), 0
    except Exception as error:  # Whatever else goes wrong with a file, nothing is proved.
        reason = str(error)
        if isinstance(error, KeyError):
            reason = (
                f"the statement has no {error}, or the release is of a kind beyond this program"
            )
        elif not isinstance(error, Unproved):
            reason = f"it cannot be read: {error!r}"
        verdict, code = f"NOT PROVED: {reason}", 2
    print(ascii(" ".join(verdict.split()))[1:-1][: 300 if code else 2000])
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
