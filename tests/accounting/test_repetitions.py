"""Laws of K: definitions, derived functions, refusals, and draws that match the pmf."""

import math

import numpy as np
import pytest
from scipy import stats

from dpjax import accounting

LAWS = [
    accounting.Fixed(1),
    accounting.Fixed(4),
    accounting.Logarithmic(10.0),
    accounting.Geometric(10.0),
    accounting.TruncatedNegativeBinomial(-0.5, 10.0),
    accounting.TruncatedNegativeBinomial(1e-9, 10.0),
    accounting.TruncatedNegativeBinomial(0.5, 1.0000001),
    accounting.TruncatedNegativeBinomial(2.0, 1.0),
    accounting.TruncatedNegativeBinomial(5.0, 10.0),
    accounting.Poisson(0.5),
    accounting.Poisson(10.0),
    accounting.Binomial(20, 0.5),
    accounting.AtMost(accounting.Geometric(10.0), 50),
    accounting.AtMost(accounting.Poisson(3.0), 2),
    accounting.AtMost(accounting.Fixed(3), 9),
    accounting.Tabulated([1, 100], [0.9, 0.1]),
    accounting.Tabulated([0, 2, 7], [0.25, 0.5, 0.25]),
]


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_every_function_agrees_with_the_pmf(law):
    k = np.arange(min(law.maximum, 100_000) + 1)
    p = law.pmf(k)
    assert p.sum() == pytest.approx(1.0, abs=1e-12)
    assert np.sum(k * p) == pytest.approx(law.mean, rel=1e-11)
    assert law.minimum == int(k[p > 0][0])
    for y in (0.0, 1e-13, 1e-3, 0.3, 0.9, 1.0):
        with np.errstate(under="ignore"):
            powers = (1.0 - y) ** k
            slope = np.sum(k[1:] * p[1:] * (1.0 - y) ** (k[1:] - 1.0))
            bend = np.sum(k[2:] * (k[2:] - 1.0) * p[2:] * (1.0 - y) ** (k[2:] - 2.0))
        assert law.derivative(y) == pytest.approx(slope, rel=1e-9, abs=1e-12)
        assert law.second_derivative(y) == pytest.approx(bend, rel=1e-7, abs=1e-12)
        assert law.generating_function(1.0 - y) == pytest.approx(np.sum(p * powers), abs=1e-12)
        assert law.success_probability(y) == pytest.approx(1.0 - np.sum(p * powers), abs=1e-12)
    # Near y = 0 the digits survive: 1 - f(1 - y) = E[K] y + ...
    assert law.success_probability(1e-15) == pytest.approx(law.mean * 1e-15, rel=1e-6)
    cumulative = np.cumsum(p)
    for q in (0.01, 0.5, 0.99):
        assert law.quantile(q) == int(k[np.searchsorted(cumulative, q)])


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_thinning_is_conditioning_on_no_failure(law):
    k = np.arange(min(law.maximum, 20_000) + 1)
    expected = law.pmf(k) * 0.9**k
    np.testing.assert_allclose(law.thinned(0.1).pmf(k), expected / expected.sum(), atol=1e-12)


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_plain_values_rebuild_the_law(law):
    assert accounting.law_from_dict(law.to_dict()) == law
    assert hash(accounting.law_from_dict(law.to_dict())) == hash(law)


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_draws_follow_the_pmf(law):
    """Chi-squared at level 1e-4 (fixed generator), and the operating system's draws in range."""
    source = np.random.default_rng(11)
    draws = law.sample(20_000, source)
    top = law.quantile(0.999)
    counts = np.bincount(np.minimum(draws, top + 1), minlength=top + 2)
    expected = law.pmf(np.arange(top + 1)) * draws.size
    expected = np.append(expected, max(draws.size - expected.sum(), 0.0))
    big = expected > 8
    statistic = np.sum((counts[big] - expected[big]) ** 2 / expected[big])
    assert statistic < stats.chi2.ppf(1 - 1e-4, max(1, big.sum() - 1)) + 1e-9
    system = law.sample(50)
    assert system.dtype == np.int64
    assert system.min() >= law.minimum
    assert system.max() <= law.maximum
    assert isinstance(law.sample(), int)


def test_system_draws_differ_and_seeded_ones_repeat():
    law = accounting.Geometric(50.0)
    assert not np.array_equal(law.sample(40), law.sample(40))
    first = law.sample(40, np.random.default_rng(3))
    np.testing.assert_array_equal(first, law.sample(40, np.random.default_rng(3)))


def test_a_cap_conditions_and_does_not_clip():
    capped = accounting.AtMost(accounting.Geometric(10.0), 5)
    assert capped.pmf(5) < capped.pmf(4)  # min(K, 5) would pile up 59% at 5.
    ratio = accounting.Geometric(10.0).pmf(np.arange(1, 6)) / capped.pmf(np.arange(1, 6))
    np.testing.assert_allclose(ratio, ratio[0])


def test_closed_forms():
    k = np.arange(1, 40)
    np.testing.assert_allclose(accounting.Geometric(10.0).pmf(k), 0.1 * 0.9 ** (k - 1))
    g = accounting.Logarithmic(10.0).gamma
    np.testing.assert_allclose(
        accounting.Logarithmic(10.0).pmf(k), (1 - g) ** k / (k * math.log(1 / g))
    )
    assert accounting.Poisson(2.0).pmf(0) == pytest.approx(math.exp(-2))
    assert accounting.Geometric(4.0).pmf(0) == 0.0
    assert accounting.Geometric(4.0).pmf(1.5) == 0.0


@pytest.mark.parametrize(
    "make,match",
    [
        (lambda: accounting.TruncatedNegativeBinomial(-1.0, 3.0), "shape must be finite and > -1"),
        (lambda: accounting.TruncatedNegativeBinomial(math.inf, 3.0), "shape must be finite"),
        (lambda: accounting.Geometric(0.9), "mean of this law must be finite and >= 1"),
        (lambda: accounting.Logarithmic(float("nan")), "mean of this law"),
        (lambda: accounting.Poisson(0.0), "must be > 0"),
        (lambda: accounting.Binomial(0, 0.5), "trials must be a whole number >= 1"),
        (lambda: accounting.Binomial(3, 1.5), "probability must be in"),
        (lambda: accounting.Fixed(0), "k must be a whole number >= 1"),
        (lambda: accounting.Fixed(2.5), "k must be a whole number"),
        (lambda: accounting.AtMost(accounting.Fixed(3), 2), "cap must be a whole number >= 3"),
        (lambda: accounting.AtMost(10, 2), "needs a law of K"),
        (lambda: accounting.Tabulated([1, 2], [0.5, 0.6]), "masses must be > 0 and sum to 1"),
        (lambda: accounting.Tabulated([2, 1], [0.5, 0.5]), "needs ascending k"),
        (lambda: accounting.Tabulated([10**9], [1.0]), "k must be at most 1000000"),
        (lambda: accounting.law_from_dict({"law": "zipf"}), "unknown law"),
        (lambda: accounting.law_from_dict({"law": "poisson"}), "needs the value"),
        (lambda: accounting.Geometric(2.0).quantile(1.0), "probability must be in"),
    ],
)
def test_refusals(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_a_gamma_beyond_float64_is_refused():
    with pytest.raises(ValueError, match="larger shape or a smaller mean"):
        accounting.TruncatedNegativeBinomial(shape=-0.99, mean=1e6)
