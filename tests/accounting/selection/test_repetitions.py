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
