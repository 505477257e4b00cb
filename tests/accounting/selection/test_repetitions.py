"""Laws of K: closed forms, refusals, draws; what all keep is in conformance/test_laws.py."""

import math

import numpy as np
import pytest

from dpjax import accounting


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
        (lambda: accounting.TruncatedNegativeBinomial(3e15, 10.0), "shape 3e.15 .* pass one of"),
        (lambda: accounting.Binomial(10**15, 1e-14), "trials must be at most 1000000"),
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


@pytest.mark.parametrize(
    "law",
    [
        accounting.TruncatedNegativeBinomial(1e6, 10.0),
        accounting.Binomial(10**6, 1e-5),
        accounting.Poisson(1e4),
    ],
    ids=repr,
)
def test_what_is_drawn_is_what_is_priced_at_the_largest_parameters(law):
    k = np.arange(12_000)
    masses = law.pmf(k)
    assert masses.sum() == pytest.approx(1.0, abs=2e-9)
    assert masses @ k == pytest.approx(law.mean, rel=2e-9)
    assert (masses * k) @ 0.9 ** np.maximum(k - 1, 0) == pytest.approx(
        float(law.derivative(0.1)), rel=1e-7, abs=1e-300
    )


def test_a_gamma_beyond_float64_is_refused():
    with pytest.raises(ValueError, match="larger shape or a smaller mean"):
        accounting.TruncatedNegativeBinomial(shape=-0.99, mean=1e6)
