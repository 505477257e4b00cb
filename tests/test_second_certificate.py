"""Two programs, written apart, prove the same claims and no smaller ones.

`second_certificate` is the oracle: exact whole numbers and intervals, by closed forms, chords and
products of polynomials, where `dpjax.certificate` has floats, quadrature and Fourier transforms.
"""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import second_certificate as second

from dpjax import accounting, certificate
from dpjax.releases import certificates

RUNS = {
    "one Gaussian": (accounting.gaussian(3.0), 1e-6),
    "Gaussian steps": (accounting.gaussian(9.0, steps=6), 1e-6),
    "two large lots": (accounting.dp_sgd(0.4, 2.0, 2), 1e-6),
    "lots": (accounting.dp_sgd(0.1, 2.0, 200), 1e-5),
    "lots that may fail": (accounting.dp_sgd(0.2, 3.0, 30, failure_probability=1e-7), 1e-5),
    "all records": (accounting.dp_sgd(1.0, 8.0, 3), 1e-6),
}
"""And deltas of the claims."""
LAWS = {
    "alone": None,
    "geometric": accounting.Geometric(10),
    "geometric, hardly more than one": accounting.Geometric(1.5),
    "logarithmic": accounting.Logarithmic(7),
}
SHORT = [("one Gaussian", "alone"), ("two large lots", "geometric"), ("lots", "logarithmic")]
REST = [one for one in zip(RUNS, [*LAWS, *LAWS], strict=False) if one not in SHORT]
"""With the short ones every run, and every law."""


def _mechanism(run, law):
    """By the envelope alone, which is the theorem that the oracle knows."""
    guarantee, delta = RUNS[run]
    if LAWS[law] is not None:
        guarantee = accounting.best_of(guarantee, LAWS[law], "envelope")
    return guarantee, delta


def _first(tree, epsilon, delta):
    """The bound of the program that releases are proved by, on the coarsest grid that will do."""
    least = math.inf
    for step, fine in certificates.GRIDS:
        hints = {"step": step, "fine": fine, "exact": 0}
        least = min(least, max(certificate.bounds(tree, 0, epsilon, delta * 1e-9, hints)))
        if least <= delta:
            break
    return least


def _they_agree(run, law, less):
    guarantee, delta = _mechanism(run, law)
    tree, stated = guarantee.provenance, guarantee.stated_epsilon(delta)
    found = second.delta_of(tree, stated, delta)
    assert found <= Fraction(delta) and _first(tree, stated, delta) <= delta
    assert float(found) == pytest.approx(_first(tree, stated, delta), rel=5e-3)
    for factor in less:
        with pytest.raises(second.Refused, match="delta is at most"):
            second.prove(tree, stated * factor, delta)
        assert _first(tree, stated * factor, delta) > delta


@pytest.mark.parametrize("run, law", SHORT)
def test_what_is_stated_is_proved_twice_and_one_percent_less_by_neither(run, law):
    _they_agree(run, law, (0.99,))


@pytest.mark.parametrize("run, law", REST)
def test_whatever_is_stated_is_proved_twice_and_less_by_neither(run, law):
    _they_agree(run, law, (0.99, 0.5))


WORST = {
    accounting.Logarithmic(10): (2.7382, 2.7401),
    accounting.Geometric(10): (2.8893, 2.8918),
}
"""An explicit order's epsilon, and the stated one (docs/envelope_bound.md)."""


@pytest.mark.parametrize("law", WORST, ids=repr)
def test_it_lies_between_an_explicit_order_and_what_is_stated(law):
    low, high = WORST[law]
    tree = accounting.best_of(accounting.gaussian(math.sqrt(5.0)), law).provenance
    second.prove(tree, high + 1e-4, 1e-6)
    with pytest.raises(second.Refused):
        second.prove(tree, low - 1e-3, 1e-6)


def test_its_normal_distribution_is_as_exact_as_it_says():
    second.iv.prec = second.PRECISION
    with mpmath.workdps(120):
        for x in (Fraction(one, 16) for one in range(-224, 225, 13)):
            found = mpmath.mpf(second.normal(second.exact(x))) / second.ONE
            assert abs(found - mpmath.ncdf(mpmath.mpf(x.numerator) / x.denominator)) < 2.0**-150
        assert second.normal(second.exact(20)) == second.ONE and not second.normal(
            second.exact(-20)
        )
        assert 1 - mpmath.ncdf(second.FARTHEST) < mpmath.mpf(second.WRONG) / second.ONE


@pytest.mark.parametrize("share, noise", [(Fraction(1, 10), 1.0), (Fraction(1), 1.5)])
@pytest.mark.parametrize("t", [0.5, 0.95, 1.0, 1.3, 4.0])
def test_a_steps_profile_is_bounded_in_both_directions(share, noise, t):
    """By a sum over outcomes; both masses of the law are 1, and none is negative."""
    second.iv.prec = second.PRECISION
    width, tiny = Fraction(1, 256), Fraction(1, 10**12)
    laws = second.of_a_step(share, 1 / second.exact(noise), width, tiny)
    for law, true in zip(laws, _by_quadrature(share, noise, t)):
        losses = [(law.low + k) * float(width) for k in range(len(law.masses))]
        found = sum(m * max(1 - t * math.exp(-s), 0) for m, s in zip(law.masses, losses))
        found = (found + law.infinity) / second.UNIT
        assert true <= found * (1 + 1e-12) <= true * (1 + 1e-3) + 1e-6
        assert min(law.masses) >= 0
        assert sum(law.masses) + law.infinity == pytest.approx(second.UNIT, rel=1e-9)


def _by_quadrature(share, noise, t):
    def ratio(z):
        return 1 - share + share * mpmath.exp((z - mpmath.mpf(1) / noise / 2) / noise)

    def total(gain):
        ends = [-14, *(mpmath.mpf(k) / 4 for k in range(-40, 44)), 14]
        return mpmath.quad(lambda z: mpmath.npdf(z) * max(gain(ratio(z)), 0), ends)

    return total(lambda r: r - t), total(lambda r: 1 - t * r)


def test_products_of_laws_are_exact_and_tails_move_up():
    one = second.Losses(-1, [second.UNIT // 4, second.UNIT // 2, second.UNIT // 4], 0)
    for count in (3, 4, 5):
        law = second.power(one, count, 1)
        assert law.low == -count and law.infinity <= 2 * count  # Rounded up, of 10^40.
        ways = [math.comb(2 * count, k) for k in range(2 * count + 1)]
        assert law.masses == [second.UNIT * one // 4**count for one in ways]
    cut = second.power(one, 2, second.UNIT // 10)
    assert cut.low == -1 and cut.infinity >= second.UNIT // 16
    assert cut.masses == [second.UNIT * k // 16 for k in (5, 6, 4)]


@pytest.mark.parametrize("words", [{"law": "poisson", "mean": 3.0}, {"law": "geometric"}, {}])
def test_other_laws_of_k_are_refused(words):
    with pytest.raises((second.Refused, KeyError)):
        second.law_of(words)


@pytest.mark.parametrize("law", [accounting.Geometric(10), accounting.Logarithmic(10)], ids=repr)
def test_laws_of_k_are_bounded_from_both_sides(law):
    second.iv.prec = second.PRECISION
    found = second.law_of(law.to_dict())
    for y in (0.0, 1e-6, 0.3, 1.0):
        place, true = int(Fraction(y) * second.ONE), law.derivative(y)
        least, most = found.least(place) / second.ONE, found.largest(place) / second.ONE
        assert least == pytest.approx(true, rel=1e-10) and found.least(place) < found.largest(place)
        assert most == pytest.approx(true, rel=1e-10)


@pytest.mark.parametrize(
    "changes", [{"steps": True}, {"steps": 0}, {"noise_multiplier": math.nan}, {"other": 1}]
)
def test_runs_that_are_none_are_refused(changes):
    tree = accounting.gaussian(5.0).provenance
    tree["parameters"] |= changes
    with pytest.raises(second.Refused):
        second.prove(tree, 1.0, 1e-3)


@pytest.mark.parametrize("law", [accounting.Geometric(10), accounting.Logarithmic(10)], ids=repr)
def test_lines_behind_phi_are_above_it_everywhere(law):
    """At places between corners too: f'(1-x) - u f'(1-h(x)) by the trade-off itself."""
    second.iv.prec = second.PRECISION
    width, named = Fraction(1, 64), second.law_of(law.to_dict())
    noise = 2.0
    _, reverse = second.of_a_step(Fraction(1), 1 / second.exact(noise), width, Fraction(1, 10**9))
    found = second.lines(reverse, named, width)
    lines = [(a / second.ONE, b / second.ONE) for a, b in found]
    assert all(a > c and b > d for (a, b), (c, d) in zip(lines, lines[1:], strict=False))
    for x in np.append(np.geomspace(1e-6, 1e-3, 40), np.linspace(1e-3, 0.999, 200)):
        h = float(mpmath.ncdf(mpmath.erfinv(2 * x - 1) * mpmath.sqrt(2) + 1 / noise))
        for u in (0.0, 0.3, 1.0, 3.0):
            true = law.derivative(x) - u * law.derivative(h)
            assert true <= max(b - a * u for a, b in lines) + 1e-12


def test_a_piece_of_lines_ends_in_the_cost_of_its_end():
    """Where neither neighbour can be told from the other h is x."""
    second.iv.prec = second.PRECISION
    named = second.law_of({"law": "geometric", "mean": 3})
    (steepest, highest), *_ = second.lines(second.Losses(0, [second.UNIT], 0), named, Fraction(1))
    assert steepest < named.least(0) - second.ONE // 10**6 and named.largest(0) <= highest
