"""Every number that a price is made of moves it when that number alone is moved.

A field that is read from the wrong place, or left at its default, shows only where no two numbers
are equal. Fields are found in the registries (mechanisms, laws of K, events of dp_accounting,
tuners, clip rules): a new one fails here until it moves a price, or is free by name.
"""

import dataclasses
import inspect

import attr
import numpy as np
import pytest
import small_tasks
import tiny_tuners
from dp_accounting import dp_event as events
from mechanisms import GOOD, constructor

from dpjax import accounting, training, tuning
from dpjax.accounting.selection.laws import families
from dpjax.bridges.dp_accounting import RepeatAndSelectEvent, SelectionAccountant
from dpjax.neighbouring import RELATIONS
from dpjax.training.clipping.clip_rules import CLIP_RULES
from dpjax.tuning.steps import Problem

PURE, GAUSSIAN, OTHER = accounting.pure(0.5), accounting.gaussian(3.0), accounting.gaussian(1.0)
_RELATION = "relation"


def _price(guarantee, *deltas):
    """What is read out of a guarantee."""
    read = [guarantee.epsilon(delta) for delta in (1e-6, *deltas)]
    return guarantee.relation, guarantee.pure_epsilon, *read


def _moved(value):
    """Values of the same kind, one number moved in each."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, float):
        return [0.75 * value if value else 0.01]
    if isinstance(value, accounting.Guarantee):
        return [OTHER]
    if isinstance(value, events.DpEvent):
        return [events.GaussianDpEvent(1.1)]
    if isinstance(value, list | tuple | np.ndarray):
        return [
            type(value)([*value[:place], other, *value[place + 1 :]])
            for place, one in enumerate(value)
            for other in _moved(one)
        ]
    return []


# ---- mechanisms

BASES = {
    "approximate": dict(delta=1e-7),
    "discrete_gaussian_vote": dict(missing_fraction=0.25),
    "dp_sgd": dict(sampling_probability=0.1, failure_probability=1e-7),
    "dp_sgd_balls_in_bins": dict(failure_probability=1e-7),
    "dp_sgd_fixed_lots": dict(failure_probability=1e-7),
    "federated_averaging": dict(local_variance=0.4, missing_fraction=0.25),
    "split": dict(final=GAUSSIAN, final_on="rest"),
    "stop_at_threshold": dict(guarantee=GAUSSIAN),
}
"""Arguments beside the good ones: no two are equal, and none is too small to tell."""

_LOOP = dict(granularity=0.05, lower_bound=0.2, hits=None, iterations=None)
MOVES = {
    ("best_of", "guarantee"): ([GAUSSIAN], {}),
    ("best_of", "law"): ([accounting.Geometric(4.0), accounting.Poisson(3.0)], {}),
    ("best_of", "method"): (["rdp"], dict(guarantee=GAUSSIAN)),
    ("discrete_gaussian_vote", "candidates"): ([3], {}),
    ("doubling_loop", "iterations"): ([10], _LOOP | dict(iterations=9)),
    ("doubling_loop", "granularity"): ([0.1], _LOOP),
    ("doubling_loop", "lower_bound"): ([0.3], _LOOP),
    ("doubling_loop", "variant"): (["iterations"], _LOOP),
    ("doubling_loop", "hits"): ([8], _LOOP | dict(hits=7, iterations=9)),
    ("dp_accounting_event", "event"): ([events.LaplaceDpEvent(3.0)], {}),
    ("loss_distributions", "pure_epsilon"): ([0.01], {}),
    ("mixture", "weights"): ([[0.75, 0.25]], {}),
    ("renyi_only", "orders"): ([[1.9, 8.0, 64.0], [2.0, 7.0, 64.0], [2.0, 8.0, 60.0]], {}),
    ("skellam_vote", "candidates"): ([3], {}),
    ("sparse_vector", "allocation"): (["paper"], {}),
    ("split", "final_on"): (["all"], {}),
    ("vote", "candidates"): ([3], {}),
}
"""Values that do not follow from the kind of the usual one, and the usual arguments beside them."""

FREE = {
    ("dp_accounting_event", "relation"): "the events below",
    ("loss_distributions", "pld"): "any of dp_accounting's; tests/accounting/test_guarantee.py",
    ("loss_distributions", "symmetric"): "refused where it is wrong",
    ("loss_distributions", "provenance"): "words",
    ("loss_distributions", "renyi"): "read by method='rdp' alone",
}
"""Arguments that move no price, and why."""


def _arguments(name):
    """Arguments of a mechanism by name, its defaults too."""
    if isinstance(GOOD[name], list):
        return dict(enumerate(GOOD[name]))
    parameters = inspect.signature(constructor(name)).parameters.values()
    usual = {one.name: one.default for one in parameters if one.default is not one.empty}
    return usual | GOOD[name] | BASES.get(name, {})


def _made(name, arguments):
    if isinstance(GOOD[name], list):
        return constructor(name)(*arguments.values())
    return constructor(name)(**arguments)


ARGUMENTS = [(name, argument) for name in GOOD for argument in _arguments(name)]


@pytest.mark.parametrize(("name", "argument"), [one for one in ARGUMENTS if one not in FREE])
def test_every_argument_of_a_mechanism_moves_its_price(name, argument):
    usual = _arguments(name)
    others, base = MOVES.get((name, argument), (_moved(usual[argument]), {}))
    if argument == _RELATION:
        others = set(RELATIONS) - {usual[_RELATION]}
    assert others
    usual |= base
    deltas = (0.01,) if name == "renyi_only" else ()  # Each of its orders counts somewhere.
    price = _price(_made(name, usual), *deltas)
    for other in others:
        assert _price(_made(name, usual | {argument: other}), *deltas) != price, other


def test_what_is_moved_or_free_is_an_argument():
    assert MOVES.keys() | FREE.keys() <= set(ARGUMENTS)


# ---- laws of K

LAWS = {
    "at_most": (accounting.AtMost, dict(law=accounting.Geometric(7.0), cap=5)),
    "binomial": (accounting.Binomial, dict(trials=9, probability=0.3)),
    "fixed": (accounting.Fixed, dict(k=4)),
    "tabulated": (accounting.Tabulated, dict(k=[1, 4], masses=[0.7, 0.3])),
    "truncated_negative_binomial": (
        accounting.TruncatedNegativeBinomial,
        dict(shape=0.4, mean=6.0),
    ),
}
"""Families with more than a mean, and arguments that all differ."""

LAW_MOVES = {"masses": [[0.6, 0.4]], "law": [accounting.Geometric(6.0), accounting.Poisson(7.0)]}


@pytest.mark.parametrize("name", families())
def test_every_argument_of_a_law_moves_the_price_and_the_number_of_runs(name):
    family, usual = LAWS.get(name, (families()[name], dict(mean=5.0)))
    assert usual.keys() == inspect.signature(family).parameters.keys()
    law = family(**usual)
    price = accounting.best_of(PURE, law).epsilon(1e-6)
    runs = np.arange(9)
    for argument, value in usual.items():
        for other in LAW_MOVES.get(argument, _moved(value)):
            moved = family(**(usual | {argument: other}))
            assert moved != law and hash(moved) != hash(law)
            assert accounting.law_from_dict(moved.to_dict()) == moved
            assert not np.allclose(moved.pmf(runs), law.pmf(runs), rtol=1e-3)
            assert accounting.best_of(PURE, moved).epsilon(1e-6) != price, (argument, other)


# ---- events of dp_accounting

NOISY, SAMPLED = events.GaussianDpEvent(2.0), events.GaussianDpEvent(3.5)
EVENTS = [
    NOISY,
    events.RandomizedResponseDpEvent(0.5, 4),
    events.LaplaceDpEvent(2.0),
    events.DiscreteLaplaceDpEvent(0.5, 3),
    events.SelfComposedDpEvent(NOISY, 3),
    events.SelfComposedDpEvent(events.LaplaceDpEvent(4.0), 3),
    events.SelfComposedDpEvent(events.PoissonSampledDpEvent(0.2, NOISY), 5),
    events.SelfComposedDpEvent(events.SampledWithoutReplacementDpEvent(70, 9, SAMPLED), 5),
    events.ComposedDpEvent([NOISY, SAMPLED]),
    events.PoissonSampledDpEvent(0.2, NOISY),
    events.PoissonSampledDpEvent(0.2, events.SelfComposedDpEvent(NOISY, 3)),
    events.PoissonSampledDpEvent(0.2, events.ComposedDpEvent([NOISY, SAMPLED])),
    events.PoissonSampledDpEvent(0.2, events.LaplaceDpEvent(2.0)),
    events.SampledWithoutReplacementDpEvent(70, 9, SAMPLED),
    events.RepeatAndSelectDpEvent(NOISY, 6.0, 0.4),
    RepeatAndSelectEvent(NOISY, accounting.Geometric(6.0)),
    events.MixtureOfGaussiansDpEvent(100.0, [0.0, 1.5], [0.7, 0.3]),
    events.ZCDpEvent(0.2, 0.03),
    events.TruncatedSubsampledGaussianDpEvent(20, 0.1, 8, 10.0),
]
"""Of every kind that is supported, and nested; no two numbers of one are equal."""

WITHOUT_FIELDS = (events.DpEvent, events.NoOpDpEvent, events.NonPrivateDpEvent)
REFUSED = (
    events.UnsupportedDpEvent,
    events.SampledWithReplacementDpEvent,
    events.SingleEpochTreeAggregationDpEvent,
)
EVENT_MOVES = {
    "law": [accounting.Geometric(5.0), accounting.Poisson(6.0)],
    "sampling_probs": [[0.6, 0.4]],
    "sensitivities": [[0.0, 1.7]],
}


def _moved_events(event):
    """The event with one of its numbers moved, those of events inside it too."""
    for field in attr.fields(type(event)):
        value = getattr(event, field.name)
        inside = value if isinstance(value, list) else [value]
        others = EVENT_MOVES.get(field.name)
        if others is None and isinstance(inside[0], events.DpEvent):
            moved = [
                (place, *pair) for place, one in enumerate(inside) for pair in _moved_events(one)
            ]
            for place, name, other in moved:
                whole = [*inside[:place], other, *inside[place + 1 :]]
                new = whole if isinstance(value, list) else other
                yield f"{field.name}.{name}", attr.evolve(event, **{field.name: new})
            continue
        for other in _moved(value) if others is None else others:
            yield field.name, attr.evolve(event, **{field.name: other})


def _relations(event):
    """Relations under which the event has a price."""
    for relation in RELATIONS:
        try:
            yield relation, accounting.from_dp_event(event, relation)
        except ValueError:
            continue


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: str(event)[:70])
def test_every_number_of_an_event_moves_its_price(event):
    prices = {relation: _price(one) for relation, one in _relations(event)}
    assert prices
    moved = dict.fromkeys(prices, 0)
    for name, other in _moved_events(event):
        for relation in prices:
            found = accounting.from_dp_event(other, relation)
            assert _price(found) != prices[relation], (name, relation)
            moved[relation] += 1
    assert all(moved.values())


def test_an_accountant_charges_for_every_event_and_every_count():
    """What `SelectionAccountant` is told is what it charges for."""
    for event in (NOISY, events.ZCDpEvent(0.2, 0.03)):
        charged = []
        for count, others in (
            (2, ()),
            (3, ()),
            (2, (SAMPLED,)),
            (2, (events.ZCDpEvent(0.3, 0.1),)),
        ):
            accountant = SelectionAccountant().compose(event, count)
            for one in others:
                accountant.compose(one)
            charged.append(accountant.get_epsilon(1e-6))
        assert len({*charged}) == 4


def test_every_kind_of_event_is_moved_or_refused():
    kinds = {
        one
        for one in vars(events).values()
        if isinstance(one, type) and issubclass(one, events.DpEvent)
    }
    assert kinds == ({type(event) for event in EVENTS} - {RepeatAndSelectEvent}).union(
        WITHOUT_FIELDS, REFUSED
    )
    for event in (
        events.UnsupportedDpEvent(),
        events.SampledWithReplacementDpEvent(70, 9, NOISY),
        events.SingleEpochTreeAggregationDpEvent(1.0, 4),
    ):
        for relation in RELATIONS:
            with pytest.raises(ValueError, match="not supported"):
                accounting.from_dp_event(event, relation)


# ---- tuners, and the shape of the runs that they choose among

RUN = dict(lot_size=7, steps=5, noise_multiplier=2.0)
TASK = small_tasks.linear(small_tasks.parts(90, apart=0.5))


def _charged(name, task=TASK, tuner=None, **run):
    """Every guarantee that a tuner plans: its tree, whose every argument moves a price above."""
    options = tuning.RunOptions(**(RUN | run))
    problem = Problem.of(
        task, tiny_tuners.space_of(name), options, training.sgd(), None, 1e-5, False
    )
    plan = (tuner or tiny_tuners.tuner(name)).plan(problem)
    planned = (plan.guarantee, plan.run_guarantee, plan.selection_guarantee)
    return [None if one is None else one.provenance for one in planned]


TUNER_MOVES = {
    "final_on": ["all"],
    "granularity": [0.5],
    "halting_probability": [0.4],
    "hits": [1],
    "iterations": [2],
    "lower_bound": [0.6],
    "mechanism": ["permute_and_flip"],
    "repetitions": [accounting.Fixed(3), accounting.Geometric(2.0)],
    "variant": ["segments"],
    "score_on_training": [True],
}
TUNER_BESIDE = {"hits": dict(variant="segments")}
NO_COST = {
    "candidates": "an exponential mechanism and a loop cost as much for any number of them",
    "not_private": "has no price",
    "partition_training": "every way costs the same, a test of its own says so",
    "partitions": "a record moves one partition, however many there are",
    "threshold": "of scores, which are charged already",
}
"""Fields of tuners that no price rests on, and why."""

TUNER_FIELDS = [
    (name, field.name)
    for name in tiny_tuners.NAMES
    for field in dataclasses.fields(tuning.registered_tuners()[name])
]


@pytest.mark.parametrize(("name", "field"), TUNER_FIELDS)
def test_every_field_of_a_tuner_moves_its_price_or_never_does(name, field):
    usual = tiny_tuners.tuner(name, **TUNER_BESIDE.get(field, {}))
    price = _charged(name, tuner=usual)
    if field in NO_COST:
        value = getattr(usual, field)
        other = {"partition_training": "non_private"}.get(field)
        if field == "not_private":
            return
        moved = dataclasses.replace(usual, **{field: other or _moved(value)[0]})
        assert _charged(name, tuner=moved) == price
        return
    for other in TUNER_MOVES.get(field, _moved(getattr(usual, field))):
        assert _charged(name, tuner=dataclasses.replace(usual, **{field: other})) != price, other


@pytest.mark.parametrize("name", tiny_tuners.NAMES)
def test_every_number_of_a_run_moves_every_tuners_price(name):
    """Each of lot size, steps, noise, records, bound and sampling, alone."""
    train = TASK.train
    price = _charged(name)
    for field, value in RUN.items():
        assert _charged(name, **{field: _moved(value)[0]})[0] != price[0], field
    for field, value in (
        ("public_size", train.public_size - 1),
        ("size_bound", 2 * train.size_bound),
    ):
        task = dataclasses.replace(TASK, train=dataclasses.replace(train, **{field: value}))
        assert _charged(name, task)[0] != price[0], field


# ---- clip rules

NAMES = ("a/kernel", "a/bias", "b/kernel")
RULES = {
    "automatic": (dict(stability=0.01), dict(stability=0.02)),
    "global": ({},),
    "grouped": (
        dict(groups_of=("a", "b"), shares={"a": 1.0, "b": 2.0}),
        dict(groups_of=("a", "b"), shares={"a": 1.0, "b": 3.0}),
        dict(groups_of=("a", ""), shares={"a": 1.0, "": 2.0}),
        dict(groups_of=("", "b"), shares={"": 1.0, "b": 2.5}),
        dict(groups_of=("a", "b"), shares=None),
    ),
    "per_leaf": (
        dict(shares=None),
        dict(shares=dict(zip(NAMES, (1.0, 2.0, 3.0)))),
        dict(shares=dict(zip(NAMES, (1.0, 3.0, 2.0)))),
    ),
}
"""Fields of every rule; no two of a rule's clip alike."""


def test_every_field_of_a_clip_rule_is_moved():
    own = {name for name, cls in CLIP_RULES.items() if cls.__module__.startswith("dpjax.")}
    assert RULES.keys() == own
    for name, given in RULES.items():
        assert {field.name for field in dataclasses.fields(CLIP_RULES[name])} == given[0].keys()
        rules = [CLIP_RULES[name](**fields) for fields in given]
        clipped = {
            (repr(rule.groups(NAMES)), float(rule.divisor(np.float32(1.0)))) for rule in rules
        }
        described = {repr(rule.describe()) for rule in rules}
        assert len(described) == len(rules) and len(clipped) >= len(rules) - (name == "grouped")
