"""What every registered mechanism keeps: its tree, profile, relation, refusals and source.

A new mechanism is found in the registry, and is refused here until the table has arguments for it.
"""

import functools
import inspect
import json
import re

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution

from dpjax import accounting, neighbouring
from dpjax.accounting import provenance

_PURE, _TABLE = accounting.pure(0.5), accounting.renyi_only([2.0, 8.0, 64.0], [0.02, 0.08, 0.7])
_LOSSES = privacy_loss_distribution.from_gaussian_mechanism(2.0, value_discretization_interval=1e-3)
_VOTE = {"votes": 2, "candidates": 7}

CALLS = {
    "dp_accounting_event": accounting.from_dp_event,
    "loss_distributions": accounting.Guarantee.from_pld,
}
"""What makes a mechanism, where that is not the function of accounting of its name."""

GOOD = {
    "approximate": {"epsilon": 0.5, "delta": 1e-10},
    "best_of": {"guarantee": _PURE, "law": accounting.Geometric(3.0)},
    "best_of_adaptive": {"guarantee": _PURE, "law": accounting.Geometric(3.0), "ratio": (0.8, 1.2)},
    "compose": [_PURE, _TABLE, _PURE],
    "discrete_gaussian": {"noise_std": 3.0, "sensitivity": 2},
    "discrete_gaussian_vote": {
        "local_variance": 2.0,
        "clients": 10,
        "missing_fraction": 0.1,
        "scale": 2,
        **_VOTE,
    },
    "doubling_loop": {"epsilon_per_iteration": 0.1, "granularity": 0.1, "variant": "segments"},
    "dp_accounting_event": {"event": dp_event.LaplaceDpEvent(2.0)},
    "dp_sgd": {
        "sampling_probability": 0.01,
        "noise_multiplier": 1.0,
        "steps": 10,
        "failure_probability": 1e-12,
    },
    "dp_sgd_fixed_lots": {
        "dataset_size": 100,
        "lot_size": 10,
        "noise_multiplier": 1.0,
        "steps": 10,
    },
    "exponential_mechanism": {"epsilon": 0.7},
    "federated_averaging": {
        "local_variance": 4.0,
        "bound": 8,
        "dimension": 30,
        "clients": 50,
        "rounds": 3,
        "missing_fraction": 0.1,
    },
    "gaussian": {"noise_multiplier": 2.0, "steps": 3},
    "laplace": {"noise_multiplier": 2.0},
    "loss_distributions": {"pld": _LOSSES},
    "mixture": {"guarantees": [_PURE, _TABLE], "weights": [0.25, 0.75]},
    "output_perturbation": {"sensitivity": 1.0, "noise_std": 2.0},
    "parallel": [_PURE, accounting.gaussian(3.0)],
    "profile_table": {"epsilons": [0.3, 1.0, 2.0], "deltas": [1e-2, 1e-5, 1e-10]},
    "pure": {"epsilon": 0.5},
    "randomised_response": {"truth_probability": 0.6, "categories": 3},
    "renyi_only": {"orders": [2.0, 8.0, 64.0], "divergences": [0.02, 0.08, 0.7]},
    "replace_one": {"guarantee": accounting.gaussian(3.0)},
    "skellam_vote": {"variance": 9.0, "scale": 2, **_VOTE},
    "sparse_vector": {"noise": 40.0, "bound": 3, "allocation": "optimal"},
    "split": {"tuned": _PURE, "final": _TABLE, "probability": 0.3, "final_on": "all"},
    "stop_at_threshold": {"guarantee": _PURE, "halting_probability": 0.2},
    "vote": {"sigma": 3.0, **_VOTE},
    "zcdp": {"rho": 0.05},
}
"""Arguments by name of each mechanism; a list where it takes any number of guarantees."""

UNDER = {"dp_accounting_event": ("add_or_remove_one",)}
"""Relations a mechanism is defined under, of those that its `relation` may name; else both."""

DELTAS = (1e-9, 1e-6, 1e-3, 0.1)


def _call(name):
    return CALLS.get(name) or getattr(accounting, name)


@functools.cache
def _made(name):
    arguments = GOOD[name]
    call = _call(name)
    return call(*arguments) if isinstance(arguments, list) else call(**arguments)


def test_the_table_names_every_registered_mechanism():
    missing = set(provenance.registered()) - GOOD.keys()
    assert not missing, f"give GOOD arguments for {sorted(missing)}"
    assert GOOD.keys() <= set(provenance.registered())


every_mechanism = pytest.mark.parametrize("name", GOOD)


@every_mechanism
def test_its_tree_rebuilds_it_bit_for_bit(name):
    made = _made(name)
    text = json.dumps(made.provenance)
    tree = json.loads(text)
    assert tree["mechanism"] == name
    again = accounting.from_provenance(tree)
    assert json.dumps(again.provenance) == text
    assert again.relation == made.relation and again.pure_epsilon == made.pure_epsilon
    assert [again.epsilon(delta) for delta in DELTAS] == [made.epsilon(delta) for delta in DELTAS]
    assert again.delta(0.3) == made.delta(0.3)


@every_mechanism
def test_its_profile_falls(name):
    made = _made(name)
    epsilons = [made.epsilon(delta) for delta in DELTAS]
    assert epsilons == sorted(epsilons, reverse=True) and 0.0 <= epsilons[-1] < epsilons[0]
    assert np.isfinite(epsilons[0])
    if made.pure_epsilon is not None:
        assert epsilons[0] <= made.epsilon(0) == made.pure_epsilon
    deltas = [made.delta(epsilon) for epsilon in np.linspace(0.0, epsilons[0], 9)]
    assert deltas == sorted(deltas, reverse=True)
    assert 0.0 <= deltas[-1] < deltas[0] <= 1.0
    for delta, epsilon in zip(DELTAS, epsilons):
        assert made.delta(epsilon) <= delta * (1.0 + 1e-6)


@every_mechanism
def test_a_composition_costs_no_less_than_a_part(name):
    made = _made(name)
    free = accounting.pure(0.0, relation=made.relation)
    for composed in (accounting.compose(made, free), accounting.repeat(made, 2)):
        assert composed.relation == made.relation
        for delta in DELTAS:
            assert composed.epsilon(delta) >= made.epsilon(delta) * (1.0 - 1e-9)
        # Where only a Renyi curve is known, a part's own pair may know a smaller delta than it.
        part = min(made.delta(0.3), float(made.pair.delta(0.3)))
        assert composed.delta(0.3) >= part * (1.0 - 1e-9)


@every_mechanism
def test_its_relation_is_the_one_asked_for_or_fixed(name):
    parameters = inspect.signature(_call(name)).parameters
    if "relation" not in parameters:
        assert _made(name).relation in neighbouring.RELATIONS
        return
    for relation in neighbouring.RELATIONS:
        if relation not in UNDER.get(name, neighbouring.RELATIONS):
            with pytest.raises(ValueError, match=f"refuses.*{relation}"):
                _call(name)(**GOOD[name], relation=relation)
            continue
        made = _call(name)(**GOOD[name], relation=relation.upper().replace("_", "-"))
        assert made.relation == relation
        again = accounting.from_provenance(made.provenance)
        assert again.relation == relation and again.epsilon(1e-6) == made.epsilon(1e-6)
    with pytest.raises(ValueError, match="unknown neighbouring relation 'swap_two'.*pass"):
        _call(name)(**GOOD[name], relation="swap_two")


@every_mechanism
def test_an_argument_of_the_wrong_type_is_refused_in_one_line(name):
    good = GOOD[name]
    if isinstance(good, list):
        attempts = [("guarantee", functools.partial(_call(name), good[0], object()))]
    else:
        attempts = [
            (argument, functools.partial(_call(name), **(good | {argument: object()})))
            for argument in good
        ]
    for argument, attempt in attempts:
        with pytest.raises(ValueError) as refused:
            attempt()
        line = str(refused.value)
        assert "\n" not in line and len(line) < 300
        named = "a law of K" if argument == "law" else argument.rstrip("s")
        assert named in line, (argument, line)


@every_mechanism
def test_its_docstring_names_its_source(name):
    assert re.search(r"\b(19|20)\d\d\b|dp_accounting", inspect.getdoc(_call(name))), (
        "name author and year of the bound"
    )
