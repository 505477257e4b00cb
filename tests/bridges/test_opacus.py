"""Opacus' history as a guarantee, without Opacus: a class that has what its accountants have."""

import types

import numpy as np
import pytest

from dpjax import accounting
from dpjax.bridges.opacus import guarantee_of_history

DELTA = 1e-5
ONE = [(1.0, 0.01, 500)]
TWO = [(1.0, 0.01, 500), (1.5, 0.02, 300)]


class _Accountant:
    """As Opacus 1.6 has it: a list of tuples, and the name as a class method."""

    def __init__(self, history):
        self.history = history

    @classmethod
    def mechanism(cls):
        return "prv"


def _price(history, mechanism="prv"):
    return guarantee_of_history(history, mechanism, poisson_sampling=True)


@pytest.mark.parametrize("mechanism", ["rdp", "prv", "gdp"])
def test_one_entry_is_dp_sgd(mechanism):
    found = _price(ONE, mechanism)
    assert found.epsilon(DELTA) == accounting.dp_sgd(0.01, 1.0, 500).epsilon(DELTA)
    assert found.relation == "add_or_remove_one"


def test_entries_are_composed():
    parts = accounting.dp_sgd(0.01, 1.0, 500), accounting.dp_sgd(0.02, 1.5, 300)
    found = _price(TWO)
    assert found.epsilon(DELTA) == accounting.compose(*parts).epsilon(DELTA)
    assert found.epsilon(DELTA) > max(part.epsilon(DELTA) for part in parts)
    assert accounting.from_provenance(found.provenance).epsilon(DELTA) == found.epsilon(DELTA)


@pytest.mark.parametrize(
    "history,theirs",
    [(ONE, (1.3362, 1.6529)), (TWO, (1.6927, 1.9518)), ([(2.0, 0.01, 500)], (0.4420, 0.4792))],
)
def test_the_price_is_that_of_their_accountants(history, theirs):
    """Epsilons of Opacus 1.6.0 at 1e-5: PRVAccountant, whose bound adds 0.01, and RDPAccountant."""
    by_prv, by_renyi = theirs
    found = _price(history)
    assert by_prv - 0.02 <= found.epsilon(DELTA) <= by_prv + 1e-3
    assert found.epsilon(DELTA) < by_renyi


def test_steps_of_the_same_kind_are_one_entry_wherever_they_stand():
    mixed = [(1.0, 0.01, 200), [np.float64(1.5), 0.02, np.int64(300)], (1, 0.01, 300)]
    assert _price(mixed).provenance == _price(TWO).provenance


def test_the_accountant_itself_is_read():
    found = guarantee_of_history(_Accountant(TWO), poisson_sampling=True)
    assert found.provenance == _price(TWO).provenance


def test_it_can_be_selected_from():
    base = guarantee_of_history(_Accountant(ONE), poisson_sampling=True)
    expected = accounting.best_of(accounting.dp_sgd(0.01, 1.0, 500), accounting.Geometric(10))
    found = accounting.best_of(base, accounting.Geometric(10))
    assert found.epsilon(DELTA) == expected.epsilon(DELTA)


class _Unknown(_Accountant):
    @classmethod
    def mechanism(cls):
        return "mine"


@pytest.mark.parametrize(
    "history,mechanism,words",
    [
        (ONE, "mine", "unknown mechanism 'mine': pass one of"),
        (ONE, None, "unknown mechanism None"),
        (_Unknown(ONE), None, "unknown mechanism 'mine'"),
        (_Accountant(ONE), "rdp", "the accountant says 'prv'"),
        ([], "prv", "history is empty"),
        (_Accountant([]), None, "history is empty"),
        (None, "prv", "history must be a list of"),
        ("prv", "prv", "history must be a list of"),
        ([1.0, 0.01, 500], "prv", "an entry of history must be"),
        ([(1.0, 0.01)], "prv", "an entry of history must be"),
        ([(0.0, 0.01, 500)], "prv", "noise multiplier of an entry must be finite and > 0"),
        ([*ONE, (-1.0, 0.01, 500)], "prv", "noise multiplier of an entry must be"),
        ([(float("inf"), 0.01, 500)], "prv", "noise multiplier of an entry must be"),
        ([(1.0, 0.0, 500)], "prv", r"sample rate of an entry must be in \(0, 1\]"),
        ([(1.0, 1.01, 500)], "prv", r"sample rate of an entry must be in \(0, 1\]"),
        ([(1.0, float("nan"), 500)], "prv", "sample rate of an entry must be"),
        ([(1.0, 0.01, 0)], "prv", "number of steps of an entry must be a whole number >= 1"),
        ([(1.0, 0.01, 2.5)], "prv", "number of steps of an entry must be"),
    ],
)
def test_bad_input_is_refused_in_one_line(history, mechanism, words):
    with pytest.raises(ValueError, match=words) as refused:
        _price(history, mechanism)
    assert "\n" not in str(refused.value)


def test_poisson_sampling_has_to_be_stated():
    with pytest.raises(ValueError, match="poisson_sampling"):
        guarantee_of_history(ONE, "prv")
    with pytest.raises(ValueError, match=r"make_private\(..., poisson_sampling=True\)"):
        guarantee_of_history(ONE, "prv", poisson_sampling=False)
    with pytest.raises(ValueError, match="poisson_sampling must be True or False"):
        guarantee_of_history(ONE, "prv", poisson_sampling="yes")


@pytest.mark.parametrize("lacks", ["mechanism", "history"])
def test_half_an_accountant_is_none(lacks):
    """One whose name is no method, or that has no history, is taken for a history and refused."""
    half = types.SimpleNamespace(mechanism="rdp", history=[(1.0, 0.1, 3)])
    if lacks == "history":
        half = types.SimpleNamespace(mechanism=lambda: "rdp")
    with pytest.raises(ValueError, match="mechanism") as caught:
        guarantee_of_history(half, poisson_sampling=True)
    assert "\n" not in str(caught.value)
