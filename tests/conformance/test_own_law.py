"""A law of K of one's own is a table of masses: priced by bounds that hold for every law, run,
released, verified. A class of one's own is refused.
"""

import inspect
import json
import math
import re
import textwrap

import numpy as np
import pytest

from dpjax import accounting, tuning
from dpjax.accounting.selection import best_of as selection
from dpjax.accounting.selection import exact
from dpjax.accounting.selection import laws as repetition_law

ONE_OR_MANY = accounting.Tabulated((1, 100), (0.9, 0.1))


def test_it_is_priced_run_released_and_verified(task, tuned, released_and_verified):
    law = accounting.Tabulated((1, 4), (0.5, 0.5))
    result = tuned(task, tuning.RandomRepetitions(law))
    assert result.curator.number_of_candidates in (1, 4)
    masses = {"law": "tabulated", "k": [1, 4], "masses": [0.5, 0.5]}
    assert result.release.statement["selection"]["law_of_K"] == masses
    verified = released_and_verified(result)
    assert verified.epsilon == verified.recomputed == result.guarantee.stated_epsilon(1e-6)
    # More than one run, no more than all four together; orders that cost so much are below.
    one = result.run_guarantee
    assert one.epsilon(1e-6) < verified.epsilon <= accounting.repeat(one, 4).epsilon(1e-6)


def test_the_docstrings_example_runs():
    (code,) = re.findall(r"```python\n(.*?)```", accounting.RepetitionLaw.__doc__, re.S)
    names = {}
    exec(textwrap.dedent(code), names)
    law = names["law"]
    assert law.maximum == 40 and float(law.pmf(2) / law.pmf(1)) == pytest.approx(1 / 8)
    base = accounting.gaussian(2.0)
    priced = accounting.best_of(base, law).epsilon(1e-6)
    assert base.epsilon(1e-6) < priced < accounting.repeat(base, 40).epsilon(1e-6)


def test_a_law_that_is_no_power_is_searched_left_of_the_corner():
    """K = 1 (.9) or 100 (.1): the corner alone says 1.0000, and a pair shows 2.0005."""
    # Q reveals a rare outcome of ratio e; the rest of the mass balances it.
    q = 0.0325
    p = math.e * q
    f = ONE_OR_MANY.generating_function
    shown = math.log(-np.diff(f(np.array([1.0, 1.0 - p])))[0])
    shown -= math.log(-np.diff(f(np.array([1.0, 1.0 - q])))[0])
    for method in ("tight", "envelope"):
        assert accounting.best_of(accounting.pure(1.0), ONE_OR_MANY, method).epsilon(0) >= 2.0005
    assert accounting.best_of(accounting.pure(1.0), ONE_OR_MANY).epsilon(0) >= abs(shown)
    k = np.arange(1, 3001)
    masses = 0.9 * (k == 1) + 0.1 * accounting.Geometric(50.0).pmf(k)
    long = accounting.Tabulated(k, masses / masses.sum())
    assert accounting.best_of(accounting.pure(1.0), long).epsilon(0) > 1.5


@pytest.mark.parametrize("base", [accounting.pure(0.8), accounting.dp_sgd(0.01, 1.0, 100)])
def test_every_way_to_write_a_law_costs_the_same(base):
    """As a law of a family, and as a table."""
    family = accounting.AtMost(accounting.Geometric(4.0), 12)
    k = np.arange(1, 13)
    table = accounting.Tabulated(k.tolist(), family.pmf(k).tolist())
    # The exact bound reads f' of a table off a grid, and the family's in the bulk only.
    for method, error in (("tight", 1e-3), ("envelope", 1e-6)):
        found = accounting.best_of(base, table, method).epsilon(1e-6)
        assert found == pytest.approx(
            accounting.best_of(base, family, method).epsilon(1e-6), rel=error
        )


def test_the_selection_asks_the_law_and_knows_no_family():
    for module in (selection, exact):
        source = inspect.getsource(module)
        for family in ("AtMost", "TruncatedNegativeBinomial", "Poisson(", "Binomial", "Tabulated"):
            assert f"isinstance(law, {family}" not in source
            assert not hasattr(module, family)


@pytest.mark.parametrize("name", ["sample", "pmf", "quantile", "derivative", "log_pmf"])
def test_a_class_of_ones_own_is_refused(name):
    """K at least 5, by a `sample` that says so, was once priced and stated as the family's law."""

    def at_least_five(self, *arguments):
        return np.maximum(getattr(super(kind, self), name)(*arguments), 5)

    kind = type("AtLeastFive", (accounting.Geometric,), {name: at_least_five})
    for price in (
        lambda law: accounting.best_of(accounting.gaussian(2.0), law),
        lambda law: accounting.AtMost(law, 20),
    ):
        with pytest.raises(ValueError, match="needs a law of K.*Tabulated for one of your own"):
            price(kind(3))


@pytest.mark.parametrize("law", [ONE_OR_MANY, accounting.AtMost(ONE_OR_MANY, 100)])
def test_its_provenance_rebuilds(law):
    base = accounting.dp_sgd(0.01, 1.0, 100, failure_probability=1e-6)
    selected = accounting.best_of(base, law)
    rebuilt = accounting.from_provenance(json.loads(json.dumps(selected.provenance)))
    for delta in (1e-5, 1e-2):
        for method in ("tight", "rdp"):
            assert rebuilt.epsilon(delta, method) == selected.epsilon(delta, method)


@pytest.mark.parametrize("law", [ONE_OR_MANY, accounting.Geometric(7.0)])
def test_thinning_by_the_general_rule(law):
    k = np.arange(min(law.maximum, 20_000) + 1)
    thinned = accounting.RepetitionLaw.thinned(law, 0.1)
    expected = law.pmf(k) * 0.9**k
    np.testing.assert_allclose(thinned.pmf(k), expected / expected.sum(), atol=1e-12)
    assert thinned.mean == pytest.approx(float(k @ expected / expected.sum()), rel=1e-9)


def test_a_cap_that_leaves_one_run_alone_costs_that_run():
    """The cap was taken for the largest K; pricing ended in an error of NumPy's."""
    law = accounting.AtMost(ONE_OR_MANY, 64)
    assert law.maximum == law.minimum == law.mean == 1
    run = accounting.gaussian(2.0)
    for method in ("tight", "envelope", "rdp"):
        assert accounting.best_of(run, law, method).epsilon(1e-6) == run.epsilon(1e-6)


def test_power_series_keep_their_digits():
    generator = np.random.default_rng(2)
    x = np.array([0.0, 1e-9, 0.3, 0.999, 1.0 - 1e-9, 1.0])
    for size in (0, 1, 2, 3, 50, 1000, 4321):
        coefficients = generator.random(size) * 10.0 ** generator.uniform(-9, 0, size)
        exact = [math.fsum(c * v**k for k, c in enumerate(coefficients)) for v in x.tolist()]
        found = repetition_law.power_series(coefficients, x)
        np.testing.assert_allclose(found, exact, rtol=1e-12)


def test_a_family_stands_where_its_functions_are_compared_and_has_a_name_of_its_own():
    class Own(accounting.RepetitionLaw):
        pass

    with pytest.raises(
        ValueError, match="is of .*test_own_law, where nothing .*: pass .*Tabulated"
    ):
        repetition_law.law_family("own")(Own)
    with pytest.raises(ValueError, match="a law 'geometric' is registered already: choose another"):
        repetition_law.law_family("geometric")(accounting.Geometric)
