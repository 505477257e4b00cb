"""A mechanism in one file: priced, composed and rebuilt like the library's, run by a tuner whose
choice it is, released and verified, with nothing of the library edited.
"""

import dataclasses
import inspect
import json
import math
import re
import textwrap
from typing import Any
from unittest import mock

import numpy as np
import pytest

from dpjax import accounting, tuning
from dpjax.accounting import provenance
from dpjax.randomness.exact_samplers import bernoulli_exp
from dpjax.releases import rules, verification
from dpjax.tuning import tuner
from dpjax.tuning.tuners.partition_models import PartitionModels


@pytest.fixture(autouse=True)
def _registries_of_their_own():
    """Mechanisms and tuners of these tests are unknown to all others."""
    with (
        mock.patch.dict(provenance._REBUILDERS),
        mock.patch.dict(tuner._TUNERS),
        mock.patch.dict(rules._REBUILDERS),
    ):
        yield


RULE = "flips in turn, once, then private training"


def _flips_in_turn():
    """The mechanism, and the tuner that chooses by it."""

    @accounting.mechanism
    def flips_in_turn(
        epsilon: float, *, relation: object = "add_or_remove_one"
    ) -> accounting.Guarantee:
        """Candidates in random order, the first whose coin says yes (McKenna & Sheldon 2020)."""
        return accounting.pure(epsilon, relation=relation)

    @dataclasses.dataclass(frozen=True)
    class Choice:
        epsilon: float

        def guarantee(self, relation):
            return flips_in_turn(self.epsilon, relation=relation)

        def select(self, scores, utility, below):
            left = list(range(len(scores)))
            while True:
                index = left.pop(below(len(left)))
                gap = max(scores) - scores[index]
                if bernoulli_exp(utility.exponential_rate(self.epsilon) * gap, below):
                    return index, {"flips": len(scores) - len(left)}

        def describe(self, utility, delta):
            return {"rule": RULE, "epsilon_0": self.epsilon}

    @tuning.register_tuner("flips_in_turn", rule=RULE)
    @dataclasses.dataclass(frozen=True)
    class FlipsInTurn(PartitionModels):
        selection_epsilon: float = 1.0
        candidates: Any = 3
        partitions: int = 4
        partition_training: str = "rehearsal"

        @property
        def choice(self):
            return Choice(self.selection_epsilon)

        @classmethod
        def from_statement(cls, claim):
            return cls(float(claim["selection"]["epsilon_0"]), **cls.stated(claim))

    return flips_in_turn, FlipsInTurn


@pytest.mark.filterwarnings("ignore::dpjax.tuning.tuners.partition_models.SelectionNoiseWarning")
def test_it_is_priced_run_released_and_verified(task, tuned, statement_of, monkeypatch):
    mechanism, own = _flips_in_turn()
    result = tuned(task, own(0.7))
    assert result.selection_guarantee.epsilon(0) == 0.7
    train = accounting.dp_sgd(16 / 72, 2.0, 2)
    both = accounting.compose(mechanism(0.7), train).epsilon(1e-6)
    assert both <= result.guarantee.epsilon(1e-6) <= 1.01 * both
    path = statement_of(result)
    assert verification.verify_release(path).epsilon == result.guarantee.stated_epsilon(1e-6)
    tree = json.loads(path.read_text())["mechanism"]
    assert {part["mechanism"] for part in tree["parts"]} >= {"flips_in_turn"}
    assert accounting.from_provenance(tree).epsilon(1e-6) == result.guarantee.epsilon(1e-6)
    # Where it is not imported, the tree alone cannot be rebuilt, and says what is missing.
    monkeypatch.delitem(provenance._REBUILDERS, "flips_in_turn")
    with pytest.raises(ValueError, match="unknown mechanism 'flips_in_turn': pass one of"):
        accounting.from_provenance(tree)
    monkeypatch.delitem(rules._REBUILDERS, RULE)
    with pytest.raises(
        verification.NotVerified, match="no tuner is registered for the rule .*: import"
    ):
        verification.verify_release(path)


def _from_json(guarantee):
    return accounting.from_provenance(json.loads(json.dumps(guarantee.provenance)))


def test_the_docstrings_example_runs():
    (code,) = re.findall(r"```python\n(.*?)```", accounting.mechanism.__doc__, re.S)
    names = {"__name__": "example"}
    exec(textwrap.dedent(code), names)
    laplace = names["repeated_laplace"]
    # epsilon = 1 / scale, and the profile 1 - e^((epsilon - 1/scale) / 2) of Laplace noise.
    assert laplace(2.0).epsilon(0) == 0.5
    assert laplace(2.0).delta(0.1) == pytest.approx(-math.expm1(-0.2), rel=1e-3)
    assert laplace(2.0, 3, relation="Replace-One").provenance == {
        "mechanism": "repeated_laplace",
        "parameters": {"scale": 2.0, "steps": 3, "relation": "replace_one"},
        "parts": [],
    }
    assert _from_json(names["best"]).provenance == names["best"].provenance
    with pytest.raises(ValueError, match="scale must be finite and > 0, not -1$"):
        laplace(-1)


def _staircase(**changes):
    @accounting.mechanism
    def staircase(
        base: accounting.Guarantee,
        widths: np.ndarray,
        name: str = "left",
        mirrored: bool = False,
        cap: float | None = None,
    ) -> accounting.Guarantee:
        seen.append((base, widths, name, mirrored, cap))
        return accounting.compose(base, *(accounting.pure(width) for width in widths.tolist()))

    seen = []
    return staircase, seen


def test_the_tree_holds_plain_values_and_the_body_gets_them():
    staircase, seen = _staircase()
    base = accounting.gaussian(2.0)
    made = staircase(base, [1, np.float32(0.3)], mirrored=np.bool_(True), cap=np.int64(3))
    assert made.provenance == {
        "mechanism": "staircase",
        "parameters": {
            "widths": [1.0, float(np.float32(0.3))],
            "name": "left",
            "mirrored": True,
            "cap": 3.0,
        },
        "parts": [base.provenance],
    }
    assert list(made.provenance["parameters"]) == ["widths", "name", "mirrored", "cap"]
    (got,) = seen
    assert got[0] is base and got[1].dtype == np.float64
    assert [type(value) for value in got[2:]] == [str, bool, float]
    again = _from_json(made)
    for delta in (1e-7, 1e-3):
        assert again.epsilon(delta) == made.epsilon(delta)
    assert staircase(base, [1.0]).provenance["parameters"]["cap"] is None


def test_what_is_known_of_the_bodys_guarantee_is_kept():
    @accounting.mechanism
    def renamed(base: accounting.Guarantee) -> accounting.Guarantee:
        return base

    selected = accounting.best_of(accounting.gaussian(3.0), accounting.Geometric(5.0))
    assert selected._at_delta is not None  # Bounds that are quicker at one delta.
    table = accounting.renyi_only([2.0, 3.0], [0.1, 0.2])
    for base in (selected, table, accounting.pure(0.5), accounting.gaussian(2.0)):
        made = renamed(base)
        assert made.known_by_renyi_only == base.known_by_renyi_only
        assert made.pure_epsilon == base.pure_epsilon and made.relation == base.relation
        assert made.renyi is base.renyi
        assert base is table or made.pair is base.pair
        for delta in (1e-12, 1e-6, 1e-2):
            assert made.epsilon(delta) == base.epsilon(delta)
        assert made.provenance["parts"] == [base.provenance]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"base": 3.0}, "base must be a Guarantee, such as accounting.gaussian.1.0., not 3.0"),
        ({"widths": "ab"}, "widths must be a list of numbers, not 'ab'"),
        ({"name": 3}, "name must be text, not 3"),
        ({"mirrored": 1}, "mirrored must be True or False, not 1"),
        ({"cap": True}, "cap must be a number, not True"),
        ({"cap": math.nan}, "cap must be a number, not nan"),
        ({"cap": "3"}, "cap must be a number, not '3'"),
    ],
)
def test_what_the_body_takes_but_the_tree_cannot_hold_is_refused(change, match):
    @accounting.mechanism
    def credulous(
        base: accounting.Guarantee,
        widths: np.ndarray,
        name: str,
        mirrored: bool,
        cap: float | None,
    ) -> accounting.Guarantee:
        return accounting.pure(1.0)

    good = {
        "base": accounting.pure(1.0),
        "widths": [1.0],
        "name": "left",
        "mirrored": True,
        "cap": 3.0,
    }
    credulous(**good)
    with pytest.raises(ValueError, match=f"^{match}$"):
        credulous(**(good | change))


def test_a_list_that_the_body_refuses_is_an_array_to_it():
    """Also where it is called again with the caller's numbers, for its message."""

    @accounting.mechanism
    def weighed(count: int, weights: np.ndarray) -> accounting.Guarantee:
        if weights.sum() > 1.0:
            raise ValueError(f"weights of {count} sum to {weights.sum()}: pass less")
        return accounting.pure(float(weights.sum()))

    with pytest.raises(ValueError, match="^weights of 2 sum to 1.5: pass less$"):
        weighed(2, [1.0, 0.5])


def test_what_the_body_returns_is_checked():
    @accounting.mechanism
    def forgetful(epsilon: float, *, relation: object = "add_or_remove_one") -> None:
        return accounting.pure(epsilon) if epsilon < 1.0 else epsilon

    forgetful(0.5)
    with pytest.raises(ValueError, match="'forgetful'.*'replace_one': pass relation on"):
        forgetful(0.5, relation="replace_one")
    with pytest.raises(ValueError, match="'forgetful' returned 2.0: return a Guarantee"):
        forgetful(2.0)
    with pytest.raises(TypeError, match="epsilon"):
        forgetful()


def _many(*guarantees: accounting.Guarantee): ...
def _any_options(**options: float): ...
def _nameless_type(epsilon): ...
def _list(orders: list): ...
def _either(epsilon: float | int): ...
def _perhaps(base: accounting.Guarantee | None): ...
def _zcdp(rho: float): ...


_zcdp.__name__ = "zcdp"


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (_many, "parameter guarantees of mechanism '_many': annotate it as one of float, int"),
        (_any_options, "parameter options"),
        (_nameless_type, "parameter epsilon"),
        (_list, "one of float, int, str, bool, ndarray, Guarantee"),
        (_either, "parameter epsilon"),
        (_perhaps, "parameter base"),
        (_zcdp, "mechanism 'zcdp' is registered already: choose another name"),
    ],
)
def test_functions_whose_signature_says_too_little_are_refused(body, match):
    with pytest.raises(ValueError, match=match):
        accounting.mechanism(body)


def test_a_mechanism_is_its_function_to_readers():
    plain = inspect.signature(accounting.gaussian)
    assert list(plain.parameters) == ["noise_multiplier", "relation", "steps"]
    assert accounting.gaussian.__module__ == "dpjax.accounting.mechanisms.elementary"
    assert "Balle & Wang 2018" in accounting.gaussian.__doc__


def test_a_guarantee_without_a_tree_says_so():
    nameless = accounting.Guarantee(relation="replace_one", pure_epsilon=1.0)
    assert repr(nameless) == "Guarantee(unnamed, replace_one)"
    with pytest.raises(ValueError, match="return it from a function decorated with accounting.m"):
        accounting.compose(nameless, nameless)


def test_trees_of_unknown_mechanisms_are_refused(monkeypatch):
    staircase, _ = _staircase()
    tree = accounting.best_of(
        staircase(accounting.pure(1.0), [0.1]), accounting.Fixed(2)
    ).provenance
    monkeypatch.delitem(provenance._REBUILDERS, "staircase")
    with pytest.raises(ValueError, match="unknown mechanism 'staircase': pass one of"):
        accounting.from_provenance(tree)
