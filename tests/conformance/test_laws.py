"""What every registered law of K keeps: functions, draws, plain values, thinning, price, flags.

A new family is found in the registry. Where it can be made of a mean (`of_mean`) it is in the table
without a line here; any other one is refused until EXAMPLES has one of it.
"""

import dataclasses
import inspect
import json
import math
import re

import numpy as np
import pytest
from scipy import stats

from dpjax import accounting
from dpjax.accounting.selection.laws import families

EXAMPLES = [
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
"""Laws at their limits, and of families that cannot be made of a mean alone."""

FAMILIES = families()
LAWS = EXAMPLES + [
    family.of_mean(4.0)
    for name, family in FAMILIES.items()
    if hasattr(family, "of_mean") and not any(law.family == name for law in EXAMPLES)
]
every_law = pytest.mark.parametrize("law", LAWS, ids=repr)
every_family = pytest.mark.parametrize("name", FAMILIES)


def test_the_table_has_every_registered_family():
    missing = FAMILIES.keys() - {law.family for law in LAWS}
    assert not missing, f"give EXAMPLES a law of {sorted(missing)}"


@every_law
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


@every_law
def test_thinning_is_conditioning_on_no_failure(law):
    k = np.arange(min(law.maximum, 20_000) + 1)
    expected = law.pmf(k) * 0.9**k
    np.testing.assert_allclose(law.thinned(0.1).pmf(k), expected / expected.sum(), atol=1e-12)


@every_law
def test_plain_values_rebuild_the_law(law):
    assert accounting.law_from_dict(law.to_dict()) == law
    assert hash(accounting.law_from_dict(law.to_dict())) == hash(law)
    # Its one name: statements and flags have that of the class, in lower case.
    assert law.family == re.sub("(?<!^)(?=[A-Z])", "_", type(law).__name__).lower()


@every_law
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


@every_law
def test_slopes_fall_and_the_second_is_that_of_the_first(law):
    """On 800 cells: the bounds on a selection take the ends of a cell for all that lies in it."""
    y = np.unique(np.concatenate([[0.0], np.geomspace(1e-9, 1.0, 400), np.linspace(0.0, 1.0, 401)]))
    first, second = law.derivative(y), law.second_derivative(y)
    slack = 1e-9 * first[:-1]
    drop, width = -np.diff(first), np.diff(y)
    assert np.all(first >= 0.0) and np.all(drop >= -slack)
    assert np.all(second >= 0.0) and np.all(np.diff(second) <= 1e-9 * second[:-1])
    assert np.all(drop <= second[:-1] * width + slack)
    assert np.all(drop >= second[1:] * width - slack)


def _arguments(law):
    return {name: getattr(law, name) for name in inspect.signature(type(law)).parameters}


@every_law
def test_its_price_holds_for_all_runs_together_and_is_rebuilt(law):
    """Sound by construction of an adversary: test_selection_soundness.py. Here, what is claimed."""
    base = accounting.pure(0.5)
    best = accounting.best_of(base, law)
    tree = json.loads(json.dumps(best.provenance))
    again = accounting.from_provenance(tree)
    assert again.relation == base.relation and again.provenance == best.provenance
    assert again.pure_epsilon == best.pure_epsilon
    deltas = (1e-9, 1e-3)
    assert [again.epsilon(delta) for delta in deltas] == [best.epsilon(delta) for delta in deltas]
    # A winner tells less than the whole procedure, of `maximum` runs at most.
    assert best.epsilon(0) <= base.pure_epsilon * law.maximum * (1.0 + 1e-9)
    # The tight bound is the smallest of those that it is made of, but for the rounding of profiles.
    tight = best.epsilon(1e-6) * (1.0 - 1e-5)
    assert tight <= accounting.best_of(base, law, "envelope").epsilon(1e-6)
    assert tight <= accounting.best_of(base, law, "rdp").epsilon(1e-6)
    if law.minimum >= 1:
        assert best.epsilon(0) >= base.pure_epsilon * (1.0 - 1e-9)


@every_family
def test_it_is_a_frozen_dataclass_that_refuses_other_types_in_one_line(name):
    family = FAMILIES[name]
    assert family.family == name and getattr(accounting, family.__name__) is family
    law = next(law for law in LAWS if law.family == name)
    assert dataclasses.is_dataclass(family) and len(inspect.getdoc(family)) > 20
    arguments = _arguments(law)
    assert family(**arguments) == law
    for field in arguments:
        with pytest.raises(AttributeError):
            setattr(law, field, arguments[field])
        with pytest.raises(ValueError) as refused:
            family(**(arguments | {field: object()}))
        assert "\n" not in str(refused.value) and len(str(refused.value)) < 300


@pytest.mark.parametrize("name", [name for name in FAMILIES if hasattr(FAMILIES[name], "of_mean")])
def test_command_lines_make_it_of_its_mean(name):
    """`--repetitions=<name> --mean=`; other arguments of `of_mean` are flags with defaults."""
    family = FAMILIES[name]
    law = family.of_mean(4.0)
    assert law.mean == pytest.approx(4.0, rel=1e-9) and law == family.of_mean(mean=4.0)
    _, *options = inspect.signature(family.of_mean).parameters.values()
    assert all(option.default is not inspect.Parameter.empty for option in options)
    with pytest.raises(ValueError):
        family.of_mean(math.nan)
