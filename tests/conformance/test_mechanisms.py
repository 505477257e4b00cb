"""What every registered mechanism keeps: its tree, profile, relation, refusals and source.

A new mechanism is found in the registry, and is refused here until the table has arguments for it.
"""

import functools
import inspect
import json
import re

import numpy as np
import pytest
from mechanisms import GOOD, constructor, guarantee_of

from dpjax import accounting, neighbouring
from dpjax.accounting import provenance

UNDER = {"dp_accounting_event": ("add_or_remove_one",)}
"""Relations a mechanism is defined under, of those that its `relation` may name; else both."""

REPLACED = {
    "discrete_gaussian_vote",
    "dp_sgd_fixed_lots",
    "federated_averaging",
    "output_perturbation",
    "replace_one",
    "skellam_vote",
    "vote",
}
"""Mechanisms that are under "replace_one" where nothing else is asked for."""

DELTAS = (1e-9, 1e-6, 1e-3, 0.1)


def test_the_table_names_every_registered_mechanism():
    missing = set(provenance.registered()) - GOOD.keys()
    assert not missing, f"give GOOD arguments for {sorted(missing)}"
    assert GOOD.keys() <= set(provenance.registered())


every_mechanism = pytest.mark.parametrize("name", GOOD)


@every_mechanism
def test_its_tree_rebuilds_it_bit_for_bit(name):
    made = guarantee_of(name)
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
    made = guarantee_of(name)
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
    made = guarantee_of(name)
    free = accounting.pure(0.0, relation=made.relation)
    for composed in (accounting.compose(made, free), accounting.repeat(made, 2)):
        assert composed.relation == made.relation
        for delta in DELTAS:
            assert composed.epsilon(delta) >= made.epsilon(delta) * (1.0 - 1e-9)
        # Where only a Renyi curve is known, a part's own pair may know a smaller delta than it.
        part = min(made.delta(0.3), float(made.pair.delta(0.3)))
        assert composed.delta(0.3) >= part * (1.0 - 1e-9)


@every_mechanism
def test_renyi_bounds_are_above_its_price_and_a_selection_costs_more(name):
    made = guarantee_of(name)
    if name not in ("loss_distributions", "replace_one"):  # They have no such curve.
        for delta in DELTAS:
            epsilon, classic = (made.epsilon(delta, method) for method in ("rdp", "rdp_classic"))
            assert made.epsilon(delta) - 1e-12 <= epsilon <= classic
        if name not in (
            "approximate",
            "dp_sgd",
            "dp_sgd_balls_in_bins",
        ):  # Failures make every divergence infinite.
            assert np.all(np.diff(made.rdp(np.array([1.5, 2.0, 8.0, 64.0]))) >= 0)
    selected = accounting.best_of(made, accounting.Geometric(mean=3))
    twice = accounting.repeat(made, 2).epsilon(1e-5)
    assert made.epsilon(1e-5) < min(selected.epsilon(1e-5), twice)


@every_mechanism
def test_its_relation_is_the_one_asked_for_or_fixed(name):
    usual = "replace_one" if name in REPLACED else "add_or_remove_one"
    assert guarantee_of(name).relation == usual
    if "relation" not in inspect.signature(constructor(name)).parameters:
        return
    for relation in neighbouring.RELATIONS:
        if relation not in UNDER.get(name, neighbouring.RELATIONS):
            with pytest.raises(ValueError, match=f"refuses.*{relation}"):
                constructor(name)(**GOOD[name], relation=relation)
            continue
        made = constructor(name)(**GOOD[name], relation=relation.upper().replace("_", "-"))
        assert made.relation == relation
        again = accounting.from_provenance(made.provenance)
        assert again.relation == relation and again.epsilon(1e-6) == made.epsilon(1e-6)
    with pytest.raises(ValueError, match="unknown neighbouring relation 'swap_two'.*pass"):
        constructor(name)(**GOOD[name], relation="swap_two")


@every_mechanism
def test_an_argument_of_the_wrong_type_is_refused_in_one_line(name):
    good = GOOD[name]
    if isinstance(good, list):
        attempts = [("guarantee", functools.partial(constructor(name), good[0], object()))]
    else:
        attempts = [
            (argument, functools.partial(constructor(name), **(good | {argument: object()})))
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
    assert re.search(r"\b(19|20)\d\d\b|dp_accounting", inspect.getdoc(constructor(name))), (
        "name author and year of the bound"
    )
