"""A law of K in one file: priced by bounds that hold for every law, run, released, verified; or
refused.
"""

import dataclasses
import inspect
import json
import math
import re
import textwrap

import numpy as np
import pytest

from dpjax import accounting, tuning
from dpjax.accounting.selection import best_of as selection
from dpjax.accounting.selection import exact, renyi_bounds
from dpjax.accounting.selection.laws import law as repetition_law
from dpjax.accounting.selection.laws.check import check_law
from dpjax.tuning import verification


@dataclasses.dataclass(frozen=True)
class TwoPoints(accounting.RepetitionLaw):
    """No more than a law must give."""

    many: int = 100
    share: float = 0.1

    @property
    def mean(self):
        return 1.0 - self.share + self.share * self.many

    @property
    def maximum(self):
        return self.many

    def log_pmf(self, k):
        return np.log((k == 1) * (1.0 - self.share) + (k == self.many) * self.share)


class Unbounded(accounting.RepetitionLaw):
    """K = 1 or geometric, with all functions in closed form."""

    mean = 0.9 + 0.1 * 50.0
    minimum = 1
    parts = ((0.9, accounting.Geometric(1.0)), (0.1, accounting.Geometric(50.0)))

    def log_pmf(self, k):
        return np.log(sum(share * law.pmf(k) for share, law in self.parts))

    def generating_function(self, x):
        return sum(share * law.generating_function(x) for share, law in self.parts)

    def success_probability(self, y):
        return sum(share * law.success_probability(y) for share, law in self.parts)

    def derivative(self, y):
        return sum(share * law.derivative(y) for share, law in self.parts)

    def second_derivative(self, y):
        return sum(share * law.second_derivative(y) for share, law in self.parts)


def test_it_is_priced_run_released_and_verified(task, tuned, released_and_verified):
    """What gives its masses alone is written as its table, and rebuilt from that."""
    law = TwoPoints(many=4, share=0.5)
    result = tuned(task, tuning.RandomRepetitions(law))
    assert result.curator.number_of_candidates in (1, 4)
    masses = {"law": "tabulated", "k": [1, 4], "masses": [0.5, 0.5]}
    assert result.release.statement["selection"]["law_of_K"] == masses
    verified = released_and_verified(result)
    assert verified.epsilon == verified.recomputed == result.guarantee.stated_epsilon(1e-6)
    # More than one run, no more than all four together; orders that cost so much are below.
    one = result.run_guarantee
    assert one.epsilon(1e-6) < verified.epsilon <= accounting.repeat(one, 4).epsilon(1e-6)


def test_what_cannot_be_rebuilt_is_priced_released_and_verification_says_so(
    task, tuned, released_and_verified
):
    result = tuned(task, tuning.RandomRepetitions(Unbounded()))
    # Its functions are priced as they are: as little as by its table, cut where nothing is left.
    table = accounting.AtMost(_masses_of(Unbounded(), 3000), 3000)
    assert result.guarantee.epsilon(1e-6) == pytest.approx(
        accounting.best_of(result.run_guarantee, table).epsilon(1e-6), rel=1e-3
    )
    says = "law Unbounded is a class of your own, which cannot be rebuilt from plain values"
    with pytest.raises(verification.NotVerified, match=says):
        released_and_verified(result)


def _masses_of(law, top):
    masses = law.pmf(np.arange(1, top + 1))
    return accounting.Tabulated(list(range(1, top + 1)), masses / masses.sum())


def test_one_with_a_name_is_verified_where_its_class_is_imported(
    task, tuned, statement_of, monkeypatch
):
    for registry in ("_FAMILIES", "_CLASSES"):
        monkeypatch.setattr(repetition_law, registry, dict(getattr(repetition_law, registry)))

    @accounting.law_family("one or four")
    @dataclasses.dataclass(frozen=True)
    class OneOrFour(TwoPoints):
        many: int = 4
        share: float = 0.5

    result = tuned(task, tuning.RandomRepetitions(OneOrFour()))
    path = statement_of(result)
    assert verification.verify_release(path).epsilon == result.guarantee.stated_epsilon(1e-6)
    monkeypatch.delitem(repetition_law._FAMILIES, "one or four")
    with pytest.raises(verification.NotVerified, match="unknown law 'one or four': pass one of"):
        verification.verify_release(path)


def test_the_docstrings_example_runs():
    (code,) = re.findall(r"```python\n(.*?)```", accounting.RepetitionLaw.__doc__, re.S)
    names = {"__name__": "example"}
    exec(textwrap.dedent(code), names)
    law = names["OneOrMany"](100, 0.1)
    own = accounting.best_of(accounting.pure(1.0), law)
    assert own.epsilon(0) == accounting.best_of(accounting.pure(1.0), TwoPoints()).epsilon(0)


def test_a_law_that_is_no_power_is_searched_left_of_the_corner():
    """K = 1 (.9) or 100 (.1): the corner alone says 1.0000, and a pair shows 2.0005."""
    # Q reveals a rare outcome of ratio e; the rest of the mass balances it.
    q = 0.0325
    p = math.e * q
    f = TwoPoints().generating_function
    shown = math.log(-np.diff(f(np.array([1.0, 1.0 - p])))[0])
    shown -= math.log(-np.diff(f(np.array([1.0, 1.0 - q])))[0])
    for law in (TwoPoints(), accounting.Tabulated([1, 100], [0.9, 0.1])):
        for method in ("tight", "envelope"):
            assert accounting.best_of(accounting.pure(1.0), law, method).epsilon(0) >= 2.0005
        assert accounting.best_of(accounting.pure(1.0), law).epsilon(0) >= abs(shown)
    assert accounting.best_of(accounting.pure(1.0), Unbounded()).epsilon(0) > 1.5


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


def _general(law):
    """The same functions, without what was proved for the family."""

    class Changed(type(law)):
        def derivative(self, y):
            return super().derivative(y)

    return Changed(law.mean)


def test_a_changed_subclass_of_a_family_inherits_no_theorem():
    changed = _general(accounting.Geometric(10.0))
    for name in repetition_law.SHORTCUTS:
        assert getattr(type(changed), name) is getattr(accounting.RepetitionLaw, name)
        assert hasattr(accounting.Geometric, name)
    selected = accounting.best_of(accounting.pure(1.0), changed)
    assert selected.provenance["parameters"]["law"]["law"] == "own"
    with pytest.raises(ValueError, match="no Renyi|covers|pure|delta"):
        accounting.best_of(accounting.pure(1.0), changed, "rdp").epsilon(0)


def test_the_selection_asks_the_law_and_knows_no_family():
    for module in (selection, exact, renyi_bounds):
        source = inspect.getsource(module)
        for family in ("AtMost", "TruncatedNegativeBinomial", "Poisson(", "Binomial", "Tabulated"):
            assert f"isinstance(law, {family}" not in source
            assert not hasattr(module, family)


def refused(**changes):
    """TwoPoints with some methods replaced."""
    return type("Bad", (TwoPoints,), changes)()


BETTER = accounting.Geometric(2.0)


@pytest.mark.parametrize(
    "changes,match",
    [
        ({"mean": 5.0}, "mean is 5, and the pmf's is 10.9"),
        ({"mean": 50.0}, "mean is 50"),
        ({"mean": math.nan}, "mean must be finite"),
        ({"mean": None}, "mean and maximum must be numbers"),
        ({"maximum": 50}, "masses sum to 0.9"),
        ({"maximum": 0.5}, "maximum must be a whole number"),
        ({"minimum": 3}, "smaller K have positive mass"),
        ({"log_pmf": lambda self, k: np.where(k == 1, np.nan, -5.0)}, "no NaN"),
        ({"log_pmf": lambda self, k: np.full(k.shape, -3.0)}, "masses sum to"),
        ({"derivative": lambda self, y: BETTER.derivative(y)}, r"derivative\(0\) is 2"),
        ({"second_derivative": lambda self, y: 0.0 * np.asarray(y)}, "second_derivative"),
        ({"generating_function": lambda self, x: np.asarray(x)}, "generating_function"),
        ({"success_probability": lambda self, y: np.asarray(y)}, "success_probability"),
        ({"to_dict": lambda self: BETTER.to_dict()}, "to_dict.. describes another law"),
    ],
)
def test_a_law_that_contradicts_itself_is_refused(changes, match):
    with pytest.raises(ValueError, match="the law of K Bad contradicts itself.*" + match):
        accounting.best_of(accounting.gaussian(1.0), refused(**changes))


@pytest.mark.parametrize("name", ["sample", "pmf", "quantile"])
def test_a_law_that_draws_otherwise_than_it_is_priced_is_refused(name):
    """K at least 5, by a `sample` that says so, was priced and stated as the family's law."""

    def at_least_five(self, *arguments):
        return np.maximum(getattr(super(kind, self), name)(*arguments), 5)

    kind = type("AtLeastFive", (accounting.Geometric,), {name: at_least_five})
    with pytest.raises(ValueError, match=f"AtLeastFive.*it has {name} of its own.*leave"):
        accounting.best_of(accounting.gaussian(2.0), kind(3))


def test_functions_wrong_between_the_compared_points_are_refused():
    def derivative(self, y):
        right = TwoPoints.derivative(self, y)
        return np.where((np.asarray(y) > 0.011) & (np.asarray(y) < 0.09), 3.0 * right, right)

    with pytest.raises(ValueError, match="derivative must be >= 0 and not rise"):
        accounting.best_of(accounting.gaussian(1.0), refused(derivative=derivative))

    def bend(self, y):
        right = TwoPoints.second_derivative(self, y)
        return np.where((np.asarray(y) > 0.011) & (np.asarray(y) < 0.09), 0.5 * right, right)

    with pytest.raises(ValueError, match="second_derivative"):
        accounting.best_of(accounting.gaussian(1.0), refused(second_derivative=bend))


class OnlyMasses(accounting.RepetitionLaw):
    """P[K = k] proportional to k^-3, without anything else."""

    mean = 1.3684327776

    def log_pmf(self, k):
        return np.where(k > 0, -3.0 * np.log(np.maximum(k, 1.0)) - math.log(1.2020569032), -np.inf)


def test_a_law_without_a_largest_k_gives_its_functions_or_a_cap():
    with pytest.raises(ValueError, match=r"no largest K.*derivative.*AtMost\(law, cap\)"):
        accounting.best_of(accounting.gaussian(1.0), OnlyMasses())
    capped = accounting.best_of(accounting.gaussian(1.0), accounting.AtMost(OnlyMasses(), 40))
    assert capped.epsilon(1e-6) > accounting.gaussian(1.0).epsilon(1e-6)
    assert accounting.AtMost(OnlyMasses(), 40).sample(100).max() <= 40


def test_provenance_of_own_laws_rebuilds_or_says_that_it_cannot():
    base = accounting.dp_sgd(0.01, 1.0, 100, failure_probability=1e-6)
    selected = accounting.best_of(base, TwoPoints())
    rebuilt = accounting.from_provenance(json.loads(json.dumps(selected.provenance)))
    for delta in (1e-5, 1e-2):
        for method in ("tight", "rdp"):
            assert rebuilt.epsilon(delta, method) == selected.epsilon(delta, method)
    for law in (Unbounded(), accounting.AtMost(OnlyMasses(), 5)):
        tree = accounting.best_of(base, law).provenance
        with pytest.raises(ValueError, match="class of your own, which cannot be rebuilt"):
            accounting.from_provenance(tree)


@pytest.mark.parametrize("law", [TwoPoints(), Unbounded(), accounting.Geometric(7.0)])
def test_thinning_by_the_general_rule(law):
    k = np.arange(min(law.maximum, 20_000) + 1)
    thinned = accounting.RepetitionLaw.thinned(law, 0.1)
    expected = law.pmf(k) * 0.9**k
    np.testing.assert_allclose(thinned.pmf(k), expected / expected.sum(), atol=1e-12)
    assert thinned.mean == pytest.approx(float(k @ expected / expected.sum()), rel=1e-9)
    check_law(thinned)


def test_power_series_keep_their_digits():
    generator = np.random.default_rng(2)
    x = np.array([0.0, 1e-9, 0.3, 0.999, 1.0 - 1e-9, 1.0])
    for size in (0, 1, 2, 3, 50, 1000, 4321):
        coefficients = generator.random(size) * 10.0 ** generator.uniform(-9, 0, size)
        exact = [math.fsum(c * v**k for k, c in enumerate(coefficients)) for v in x.tolist()]
        found = repetition_law.power_series(coefficients, x)
        np.testing.assert_allclose(found, exact, rtol=1e-12)


def test_a_law_with_a_name_of_its_own_is_rebuilt_where_its_class_is_known(monkeypatch):
    for registry in ("_FAMILIES", "_CLASSES"):
        monkeypatch.setattr(repetition_law, registry, dict(getattr(repetition_law, registry)))

    @accounting.law_family("one or two")
    @dataclasses.dataclass(frozen=True)
    class OneOrTwo(accounting.RepetitionLaw):
        share: float

        @property
        def mean(self):
            return 1.0 + self.share

        @property
        def maximum(self):
            return 2

        def log_pmf(self, k):
            return np.log((k == 1) * (1.0 - self.share) + (k == 2) * self.share)

    law = accounting.AtMost(OneOrTwo(0.25), 8)
    assert law.to_dict()["inner"] == {"law": "one or two", "share": 0.25}
    assert accounting.law_from_dict(law.to_dict()) == law
    priced = accounting.best_of(accounting.gaussian(2.0), law)
    assert accounting.from_provenance(priced.provenance).epsilon(1e-6) == priced.epsilon(1e-6)
    # Its own functions are still compared with its masses, and no family's theorem is used.
    assert not OneOrTwo(0.25).proved
    with pytest.raises(ValueError, match="registered already"):
        accounting.law_family("poisson")(OneOrTwo)
