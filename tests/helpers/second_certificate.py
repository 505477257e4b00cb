"""A second proof of what one run, or the best of K runs, costs; an oracle for `dpjax.certificate`.

Written from the theorem (docs/envelope_bound.md), and differently in every step: whole numbers and
intervals in the place of floats, so nothing is rounded but outwards.

- A step's profile is known: H_t(N(m, 1) || N(0, 1)) = F(m/2 - log(t)/m) - t F(-m/2 - log(t)/m), F
  the normal distribution function; with a share q of the records q times that at 1 + (t-1) / q.
- H is convex in t, so it lies below its chords between knots t = e^(j w), and these are the profile
  of a law of losses j w (Doroshenko et al. 2022). H_t(Q || P) = 1 - t + t H_(1/t)(P || Q).
- Laws of sums are products of polynomials, multiplied exactly, as decimal numbers of many digits.
  Small tails are moved up: to the lowest loss that is kept, and to infinity.
- The best of K runs has H_t of at most E phi(t dQ'/dQ), phi(u) = sup_x f'(1-x) - u f'(1-h(x)). On
  a piece of x, f'(1-x) is largest where the piece begins, and f'(1-h(x)) least where it ends.
"""

from __future__ import annotations

import decimal
import functools
import itertools
import json
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from mpmath import iv
from mpmath.libmp import mpf_shift, to_int

BITS, DIGITS, PRECISION = 320, 40, 448  # Of numbers, of masses, of intervals.
ONE, UNIT = 1 << BITS, 10**DIGITS  # Numbers are whole multiples of 1 / ONE, masses of 1 / UNIT.
FARTHEST, WRONG = 14, 1 << (BITS - 130)  # Deviations; what F below is wrong by at most.
PIECE, LONGEST = 8e-5, 1 << 17  # Of log f' on a piece of x (any is sound); losses of a law.


class Refused(ValueError):
    """There is no proof, in one line."""


class Losses(NamedTuple):
    """Masses at the losses (low + 0, 1, ...) w; and at infinity."""

    low: int
    masses: list[int]
    infinity: int


def exact(x: Any) -> Any:
    """The interval of a rational number."""
    return iv.mpf(Fraction(x).numerator) / iv.mpf(Fraction(x).denominator)


def fixed(x: Any) -> tuple[int, int]:
    """An interval's ends, outwards."""
    low, high = x._mpi_
    return to_int(mpf_shift(low, BITS), "f"), to_int(mpf_shift(high, BITS), "c")


def normal(x: Any) -> int:
    """F on an interval that is no wider than 2^-200, wrong by less than WRONG.

    F(x) = 1/2 + F'(x) (x + x^3 / 3 + x^5 / 15 + ...), a sum of at most e^(x^2/2) < 2^142. Each of
    its terms, fewer than 2^12, is rounded by 2^-320, and later ones enlarge that by less than the
    sum; F' is rounded by 2^-320 and multiplied by the sum: in all less than 2^-160. Beyond 14
    deviations lies less than 2^-141. F moves less than its argument.
    """
    low, high = fixed(x)
    if high - low > 1 << (BITS - 200):
        raise Refused("an interval is too wide")
    if abs(low) > FARTHEST << BITS:
        return ONE if low > 0 else 0
    density = fixed(iv.exp(-x * x / 2) / iv.sqrt(2 * iv.pi))[0]
    square, term, total, k = low * low >> BITS, abs(low), 0, 1
    while term:
        total, k = total + term, k + 2
        term = (term * square >> BITS) // k
    half = density * total >> BITS
    return ONE // 2 + (half if low > 0 else -half)


def step_profile(share: Fraction, shift: Any, width: Fraction, tiny: Fraction) -> tuple:
    """The first j; t = e^(j w), and H_t(P || Q) of one step, wrong by less than 4 (1 + t) WRONG.

    From knot to knot until less than `tiny` of either law has a larger loss.
    """

    def knot(j: int) -> tuple[int, int]:
        t = iv.exp(exact(j * width))
        inner, place = (t - exact(1 - share)) / exact(share), fixed(t)[0]
        if fixed(inner)[1] <= 0:
            return place, ONE - place  # No loss is below log(1 - q).
        if fixed(inner)[0] <= 0:
            raise Refused("a knot cannot be told from the least loss")
        middle = iv.log(inner) / shift
        gap = normal(shift / 2 - middle) - (fixed(inner)[0] * normal(-shift / 2 - middle) >> BITS)
        return place, share.numerator * gap // share.denominator

    up, down = [knot(0)], [knot(-1)]
    while up[-1][1] > tiny * ONE:
        up.append(knot(len(up)))
    while down[-1][1] - ONE + down[-1][0] > tiny * down[-1][0]:
        down.append(knot(-1 - len(down)))
    return -len(down), *map(list, zip(*down[::-1], *up, strict=True))


def by_chords(low: int, t: list[int], heights: list[int], width: Fraction) -> Losses:
    """The law whose profile is the chords between (0, 1) and these knots, then flat.

    The mass at t_j is t_j times the change of slopes there. Knots are t w / 2 apart or more, so it
    is wrong by less than 64 (1 + t) WRONG / w: so much is added.
    """
    masses, knots = [], list(zip([0, *t], [ONE, *heights], strict=True))
    slopes = [((b - a) << BITS) // (v - u) for (u, a), (v, b) in itertools.pairwise(knots)]
    for place, before, after in zip(t, slopes, [*slopes[1:], 0], strict=True):
        wrong = 64 * WRONG * (ONE + place) * width.denominator // (ONE * width.numerator) + 2
        mass = max(place * (after - before) >> BITS, 0) + wrong
        masses.append((mass * UNIT >> BITS) + 1)
    rest = max(heights[-1], 0) + 4 * WRONG * (ONE + t[-1]) // ONE + 1
    return Losses(low, masses, (rest * UNIT >> BITS) + 1)


def of_a_step(share: Fraction, shift: Any, width: Fraction, tiny: Fraction) -> list[Losses]:
    """Of P against Q, and of Q against P."""
    low, t, heights = step_profile(share, shift, width, tiny)
    ahead = by_chords(low, t, heights, width)
    back = [(ONE << BITS) // one for one in t[::-1]]
    turned = [ONE - u + (u * one >> BITS) for u, one in zip(back, heights[::-1], strict=True)]
    return [ahead, by_chords(-(low + len(t) - 1), back, turned, width)]


def product(one: Losses, other: Losses, cut: int) -> Losses:
    """The law of the sum of two losses; masses of less than `cut` are moved up at either end."""
    digits = 2 * DIGITS + 8  # More than of any sum of products, as no law has mass 2.
    packed = [
        decimal.Decimal("".join(f"{mass:0{digits}d}" for mass in law.masses[::-1]))
        for law in (one, other)
    ]
    wholes = [sum(law.masses) + law.infinity for law in (one, other)]
    if max(wholes) > 2 * UNIT:
        raise Refused("a law has too much mass")
    size = len(one.masses) + len(other.masses) - 1
    context = decimal.Context(prec=digits * (size + 2), Emax=decimal.MAX_EMAX)
    context.traps[decimal.Inexact] = True
    text = f"{context.multiply(*packed):f}".zfill(digits * size)
    masses = [-(-int(text[at - digits : at]) // UNIT) for at in range(len(text), 0, -digits)]
    finite = (wholes[0] - one.infinity) * (wholes[1] - other.infinity)
    infinity, moved, first, last = (wholes[0] * wholes[1] - finite) // UNIT + 1, 0, 0, size
    while moved + masses[first] < cut:
        moved, first = moved + masses[first], first + 1
    masses[first], moved = masses[first] + moved, 0
    while moved + masses[last - 1] < cut:
        moved, last = moved + masses[last - 1], last - 1
    if last - first > LONGEST:
        raise Refused("a law of losses is longer than this program takes")
    return Losses(one.low + other.low + first, masses[first:last], infinity + moved)


def power(law: Losses, count: int, cut: int) -> Losses:
    """Of the sum of so many."""
    if count == 1:
        return law
    whole = product(*[power(law, count // 2, cut)] * 2, cut)
    return product(whole, law, cut) if count % 2 else whole


class Law(NamedTuple):
    """Of K: f'(1 - y) = mean / (1 + rho y)^degree, rho between two numbers."""

    mean: Fraction
    low: int
    high: int
    degree: int

    def largest(self, y: int) -> int:
        """At least f'(1 - y)."""
        below = (ONE + (self.low * y >> BITS)) ** self.degree * self.mean.denominator
        return -(-(self.mean.numerator << BITS * (1 + self.degree)) // below)

    def least(self, y: int) -> int:
        """At most f'(1 - y)."""
        below = (ONE + (self.high * y >> BITS) + 1) ** self.degree * self.mean.denominator
        return (self.mean.numerator << BITS * (1 + self.degree)) // below


def law_of(words: Mapping[str, Any] | None) -> Law:
    """Geometric K: rho is mean - 1, degree 2; logarithmic: rho / log(1 + rho) is the mean."""
    if words is None:
        return Law(Fraction(1), 0, 0, 1)
    if words.keys() != {"law", "mean"} or words["law"] not in ("geometric", "logarithmic"):
        raise Refused("K is neither geometric nor logarithmic")
    mean = number(words["mean"], 1, 10**6)
    if words["law"] == "geometric":
        low, high = fixed(exact(mean - 1))
        return Law(mean, low, high, 2)
    low, high = 0, 1 << 40 << BITS
    while high - low > 1 << (BITS - 200):
        middle = (low + high) // 2
        rho = exact(Fraction(middle, ONE))
        least, most = fixed(rho / iv.log(1 + rho) - exact(mean))
        if least <= 0 <= most:
            break  # Neither side is proved; both ends still hold.
        low, high = (middle, high) if most < 0 else (low, middle)
    return Law(mean, low, high, 1)


def ratios(law: Losses, order: Fraction, width: Fraction) -> tuple[int, int]:
    """e^(order - the largest loss), and e^w, both at most."""
    largest = (law.low + len(law.masses) - 1) * width
    return fixed(iv.exp(exact(order - largest)))[0], fixed(iv.exp(exact(width)))[0]


def lines(reverse: Losses, law: Law, width: Fraction) -> list[tuple[int, int]]:
    """(a, b), a falling: phi(u) is at most the largest b - a u, or 0."""
    (ratio, apart), found = ratios(reverse, Fraction(0), width), dict[int, int]()
    x, h, corners = 0, reverse.infinity, [(0, reverse.infinity * ONE // UNIT + 1)]
    for mass in reversed(reverse.masses):
        h, x = h + mass, x + mass * ratio // UNIT
        ratio = ratio * apart >> BITS
        corners.append((x, h * ONE // UNIT + 1))
    corners.append((max(ONE, x), max(ONE, corners[-1][1])))
    for (x0, h0), (x1, h1) in itertools.pairwise(corners):
        moves = [(b - a) / (ONE / max(law.high / ONE, 1e-9) + a) for a, b in ((x0, x1), (h0, h1))]
        pieces = 1 + int(law.degree * max(moves) / PIECE)
        for k in range(pieces):
            begins, ends = x0 + (x1 - x0) * k // pieces, h0 - (h0 - h1) * (k + 1) // pieces
            a, b = law.least(min(ends, ONE)), law.largest(begins)
            found[a] = max(found.get(a, 0), b)
    kept: list[tuple[int, int]] = []
    for a, b in sorted(found.items(), reverse=True):
        while kept and b >= kept[-1][1]:
            kept.pop()  # Steeper and no higher: smaller at every u.
        while len(kept) > 1:
            (a0, b0), (a1, b1) = kept[-2:]
            if (b0 - b) * (a0 - a1) > (b0 - b1) * (a0 - a):
                break
            kept.pop()
        kept.append((a, b))
    return kept


def bound(one: Losses, reverse: Losses, law: Law, order: Fraction, width: Fraction) -> Fraction:
    """Of H_(e^order) of the best of K runs, in the direction of `one`."""
    (u, apart), steps = ratios(one, order, width), lines(reverse, law, width)
    (a, b), total = steps.pop(0), 0
    for mass in reversed(one.masses):  # Losses fall, u grows, lines get flatter.
        while steps and (b - steps[0][1]) << BITS <= u * (a - steps[0][0]):
            a, b = steps.pop(0)
        total += mass * max(b - (a * u >> BITS), 0)
        u = u * apart >> BITS
    return Fraction(total, UNIT * ONE) + Fraction(one.infinity, UNIT) * law.mean


def number(x: Any, least: float, most: float) -> Fraction:
    """A number within these bounds."""
    if type(x) not in (int, float) or not least <= x <= most:
        raise Refused(f"{x!r:.40} is no number from {least} to {most}")
    return Fraction(x)


def run_of(tree: Mapping[str, Any], delta: Fraction) -> tuple[list[Losses], Fraction]:
    """The laws of one run, and the grid of their losses; those of the last one are kept."""
    return _run_of(json.dumps(tree), delta)


@functools.lru_cache(maxsize=1)
def _run_of(text: str, delta: Fraction) -> tuple[list[Losses], Fraction]:
    tree = json.loads(text)
    name, values = tree["mechanism"], dict(tree["parameters"])
    noise, steps = number(values.pop("noise_multiplier"), 0.3, 1e6), values.pop("steps")
    if type(steps) is not int or not 1 <= steps < 1 << 20 or tree["parts"]:
        raise Refused("the steps are none")
    share, failed = Fraction(1), Fraction(0)
    if name == "dp_sgd":
        share = number(values.pop("sampling_probability"), 1e-6, 1)
        failed = number(values.pop("failure_probability"), 0, 1)
    elif name != "gaussian" or values.pop("relation") not in ("add_or_remove_one", "replace_one"):
        raise Refused("it is no Gaussian run")
    if values:
        raise Refused(f"{sorted(values)} are no parameters of it")
    shift, count = 1 / exact(noise), steps
    if share == 1:
        shift, count = shift * iv.sqrt(exact(steps)), 1
    # Any grid is sound. Chords add some w^2 / 6 to a step's variance, here 5e-5 of it all.
    apart = float(fixed(shift)[1] / ONE)
    spread = float(share) * (math.expm1(min(apart**2, 4.0)) * count) ** 0.5
    finest = min(max(spread, 1e-3) * min(1 / 512, (3e-4 / count) ** 0.5), 2**-5)
    width = Fraction(2) ** math.floor(math.log2(finest))
    tiny = delta * Fraction(1, 10**6) / count
    laws = [power(law, count, int(tiny * UNIT)) for law in of_a_step(share, shift, width, tiny)]
    charge = math.ceil(failed * UNIT)
    return [law._replace(infinity=law.infinity + charge) for law in laws], width


def delta_of(mechanism: Mapping[str, Any], epsilon: float, delta: float) -> Fraction:
    """A bound on delta at this epsilon; how large a delta decides how finely it is computed."""
    iv.prec = PRECISION
    order, aim, law, run = number(epsilon, 0, 60), number(delta, 1e-20, 0.5), None, mechanism
    if mechanism["mechanism"] == "best_of":
        law, (run,) = mechanism["parameters"]["law"], mechanism["parts"]
    laws, width = run_of(run, aim)
    return max(bound(*way, law_of(law), order, width) for way in (laws, laws[::-1]))


def prove(mechanism: Mapping[str, Any], epsilon: float, delta: float) -> None:
    """Returns where the mechanism is (epsilon, delta)-differentially private by this proof."""
    found = delta_of(mechanism, epsilon, delta)
    if found > Fraction(delta):
        raise Refused(f"delta is at most {float(found):.8g} by this program")
