"""Domains: the unit cube and back, words, what is refused; grids."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies
from scipy import stats

from dpjax import pareto, tuning

KINDS = {
    "real": pareto.Real(-3.0, 7.5),
    "log": pareto.Log(5e-4, 5e-2),
    "integer": pareto.Integer(0, 9),
    "log_integer": pareto.LogInteger(8, 512),
}


@pytest.mark.parametrize("kind", KINDS)
def test_ends_and_middle(kind):
    parameter = KINDS[kind]
    low, middle, high = parameter.from_unit(np.array([0.0, 0.5, 1.0]))
    assert (low, high) == pytest.approx((parameter.low, parameter.high), rel=1e-12)
    assert low >= parameter.low and high <= parameter.high
    # Of whole numbers: the scale's middle, between half below the low end and half above the high.
    expected = {"real": 2.25, "log": 5e-3, "integer": 4.0, "log_integer": 62.0}
    assert middle == pytest.approx(expected[kind], rel=1e-12)


@given(
    strategies.sampled_from(sorted(KINDS)),
    strategies.lists(strategies.floats(0, 1), min_size=1, max_size=8),
)
@settings(max_examples=60, deadline=None)
def test_there_and_back(kind, unit):
    parameter = KINDS[kind]
    values = parameter.from_unit(np.array(unit))
    assert ((parameter.low <= values) & (values <= parameter.high)).all()
    again = parameter.from_unit(parameter.to_unit(values))
    np.testing.assert_allclose(again, values, rtol=1e-12, atol=1e-12)
    if parameter.whole:
        assert (values == np.round(values)).all() and (again == values).all()


def test_values_beyond_the_range_lie_at_its_end():
    np.testing.assert_array_equal(KINDS["log"].to_unit(np.array([1e-9, 0.1])), [0.0, 1.0])


def test_samples_are_even_on_the_range_s_own_scale():
    domain = pareto.Domain(rate=pareto.Log(1e-3, 10.0), clip=pareto.Real(1.0, 3.0), momentum=0.9)
    drawn = domain.from_unit(domain.sample(4000, np.random.default_rng(0)))
    # False alarms: 1e-3 each, fixed seed.
    assert stats.kstest(np.log10(drawn["rate"]), stats.uniform(-3, 4).cdf).pvalue > 1e-3
    assert stats.kstest(drawn["clip"], stats.uniform(1, 2).cdf).pvalue > 1e-3
    assert stats.kstest(drawn["rate"], stats.uniform(0, 10).cdf).pvalue < 1e-12
    assert (drawn["momentum"] == 0.9).all() and domain.dimension == 2


def test_every_whole_number_has_its_share():
    """An end is what rounds to it from both sides: 1 to 4 are drawn a quarter of the time each."""
    generator = np.random.default_rng(0)
    drawn = pareto.Domain(bound=pareto.Integer(1, 4)).sample(40_000, generator)
    values = pareto.Integer(1, 4).from_unit(drawn[:, 0])
    counts = np.array([(values == number).sum() for number in (1, 2, 3, 4)])
    # False alarm: 1e-4, fixed seed. With the ends half as wide, p is below 1e-300.
    assert stats.chisquare(counts).pvalue > 1e-4
    log = pareto.LogInteger(2, 5)
    numbers = log.from_unit(drawn[:, 0])
    share = np.log((np.arange(2, 6) + 0.5) / (np.arange(2, 6) - 0.5))
    counts = np.array([(numbers == number).sum() for number in range(2, 6)])
    assert stats.chisquare(counts, 40_000 * share / share.sum()).pvalue > 1e-4


def test_words_and_back():
    entries = [
        "epochs=log_integer(1,64)",
        "rate = loguniform(5e-4, 0.05)",
        "lot=integer(8,512)",
        "clip=1.5",
    ]
    domain = pareto.parse_domain(entries)
    assert domain.parameters["rate"] == pareto.Log(5e-4, 0.05)
    assert domain.constants == {"clip": 1.5}
    assert domain.describe() == {
        "epochs": "log_integer(1,64)",
        "rate": "log(0.0005,0.05)",
        "lot": "integer(8,512)",
        "clip": 1.5,
    }
    described = [f"{name}={value}" for name, value in domain.describe().items()]
    assert pareto.parse_domain(described).parameters == domain.parameters


def test_the_laws_of_a_space_are_those_of_a_domain():
    domain = pareto.parse_domain(["rate=loguniform(0.1,1)", "lot=choice(16,64)", "clip=choice(2)"])
    space = tuning.parse_space(["rate=log(0.1,1)", "lot=choice(16,64)", "clip=2"])
    assert domain.parameters == {name: space.parameters[name] for name in ("rate", "lot")}
    assert domain.constants == {"clip": 2.0} and domain.largest("lot") == 64
    assert (pareto.Real, pareto.Log) == (tuning.Uniform, tuning.LogUniform)
    drawn = domain.from_unit(domain.sample(400, np.random.default_rng(0)))["lot"]
    # False alarms below 1e-9, fixed seed.
    assert set(drawn) == {16.0, 64.0} and abs((drawn == 16).sum() - 200) < 65


def test_a_category_has_a_coordinate_for_each_value_and_no_order():
    domain = pareto.parse_domain(["rate=log(0.1,1)", "kind=category(7,2,5)"])
    assert domain.parameters["kind"] == pareto.Category([7, 2, 5]) and domain.dimension == 4
    assert domain.describe()["kind"] == "category(7.0,2.0,5.0)"
    given = {"rate": np.array([0.1, 1.0, 1.0]), "kind": np.array([5.0, 7.0, 2.0])}
    unit = domain.to_unit(given)
    np.testing.assert_array_equal(unit[:, 1:], [[0, 0, 1], [1, 0, 0], [0, 1, 0]])
    # All values are equally far from each other.
    np.testing.assert_allclose(
        np.linalg.norm(unit[[0, 0, 1], 1:] - unit[[1, 2, 2], 1:], axis=1), 2**0.5
    )
    for name, values in domain.from_unit(unit).items():
        np.testing.assert_allclose(values, given[name])
    drawn = domain.from_unit(domain.sample(3000, np.random.default_rng(0)))["kind"]
    # False alarm: 1e-4, fixed seed.
    counts = [np.sum(drawn == value) for value in (7, 2, 5)]
    assert stats.chisquare(counts).pvalue > 1e-4
    space = tuning.parse_space(["kind=category(7,2,5)"])
    assert set(space.parameters["kind"].sample(50, np.random.default_rng(0))) == {7.0, 2.0, 5.0}
    with pytest.raises(ValueError, match="every number once"):
        pareto.Category([1, 1])


def test_only_feasible_settings_are_drawn():
    domain = pareto.Domain(
        a=pareto.Integer(0, 9), b=pareto.Integer(0, 9), feasible=lambda s: s["a"] + s["b"] < 5
    )
    drawn = domain.from_unit(domain.sample(300, np.random.default_rng(1)))
    assert (drawn["a"] + drawn["b"] < 5).all()
    impossible = pareto.Domain(a=pareto.Real(0, 1), feasible=lambda s: s["a"] > 2)
    with pytest.raises(ValueError, match="no setting of the domain a=real"):
        impossible.sample(4, np.random.default_rng(0))
    with pytest.raises(ValueError, match="grid"):
        pareto.grid(impossible, 3)
