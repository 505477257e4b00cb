"""What is asserted of one place where a rule is called is asserted of all, from one table.

Targets: every `calibrate...` of the accounting. Statements: those of tuners, of votes and of
bridges. Sums: votes and averaging. Units: records and users. Doors: Python and the command line.
"""

import dataclasses
import inspect
import json
import math
from collections.abc import Mapping

import numpy as np
import pytest
import small_tasks
import tiny_tuners

from dpjax import accounting, federated, training, tuning
from dpjax.accounting import stated_epsilon
from dpjax.accounting.selection.laws import families
from dpjax.federated import averaging, voting
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.releases.unit_of_privacy import unit_of
from dpjax.tuning import cautions
from dpjax.tuning.steps import Problem
from dpjax.tuning.tuners.partition_models import PartitionPlan

# ---- targets: what is asserted of `calibrate` is asserted of all

EPSILON, DELTA = 1.7, 3e-6
VOTES = dict(votes=2, candidates=9)
SUMS = dict(bound=70, dimension=13, clients=12, rounds=5, missing_fraction=0.25)


def _steps(steps):
    return accounting.dp_sgd(0.05, 1.3, steps)


TARGETS = {
    "calibrate": (
        lambda **target: accounting.calibrate(accounting.gaussian, **target),
        accounting.gaussian,
        0.999,
    ),
    "calibrate_largest": (
        lambda **target: accounting.calibrate_largest(_steps, bracket=(1, 3000), **target),
        lambda steps: _steps(round(steps)),
        None,
    ),
    "calibrate_vote": (
        lambda **target: accounting.calibrate_vote(**target, **VOTES),
        lambda sigma: accounting.vote(sigma, **VOTES),
        0.999,
    ),
    "calibrate_federated_averaging": (
        lambda **target: accounting.calibrate_federated_averaging(**target, **SUMS),
        lambda variance: accounting.federated_averaging(variance, **SUMS),
        0.995,
    ),
}
"""Name -> (the search, what is found -> its guarantee, factor of the noise that is too little)."""


def test_every_calibration_is_in_the_table():
    assert {one for one in dir(accounting) if one.startswith("calibrate")} == TARGETS.keys()


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_is_met_as_it_is_stated_and_hardly_more(name):
    search, guarantee_of, less = TARGETS[name]
    found = search(epsilon=EPSILON, delta=DELTA)
    assert guarantee_of(found).stated_epsilon(DELTA) <= EPSILON
    beyond = found + 1 if less is None else found * less
    assert guarantee_of(beyond).stated_epsilon(DELTA) > EPSILON


@pytest.mark.parametrize("name", TARGETS)
def test_either_number_of_a_target_moves_what_is_found(name):
    search, _, less = TARGETS[name]
    found = search(epsilon=EPSILON, delta=DELTA)
    for easier in (dict(epsilon=2 * EPSILON, delta=DELTA), dict(epsilon=EPSILON, delta=30 * DELTA)):
        other = search(**easier)
        assert other > found if less is None else other < found


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, "2"])
@pytest.mark.parametrize("which", ["epsilon", "delta"])
def test_a_target_that_is_none_is_refused(name, which, bad):
    if which == "delta" and bad == 0.0:
        bad = 1.0  # A pure target is one where there are pure guarantees.
    with pytest.raises(ValueError, match=which) as caught:
        TARGETS[name][0](**(dict(epsilon=EPSILON, delta=DELTA) | {which: bad}))
    assert "\n" not in str(caught.value)


SEARCHES = {
    "calibrate": lambda made, **more: accounting.calibrate(made, **more),
    "calibrate_largest": lambda made, **more: accounting.calibrate_largest(
        made, **dict(bracket=(1, 9)) | more
    ),
}
"""Those that take any function."""


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_refuses_what_it_cannot_search(name):
    search = SEARCHES[name]
    target = dict(epsilon=EPSILON, delta=DELTA)
    with pytest.raises(ValueError, match="make_guarantee must be a function"):
        search(accounting.gaussian(1.0), **target)
    for bracket in ((3, 2), (0, 2), (-1, 2), (2, 2), (1, 2, 3), (1, math.nan)):
        with pytest.raises(ValueError, match="bracket must be"):
            search(accounting.gaussian, bracket=bracket, **target)
    with pytest.raises(ValueError, match="out of reach"):
        search(lambda _: accounting.gaussian(0.5), **target)
    # Of no number nobody knows that it is small enough.
    nobody = dataclasses.make_dataclass("Nobody", [])
    nobody.epsilon = lambda self, delta: math.nan
    nobody.rough_epsilon = lambda self, delta: None
    with pytest.raises(ValueError, match="out of reach"):
        search(lambda _: nobody(), **target)
    # Epsilons without a delta, too.
    made = {"calibrate": lambda z: accounting.pure(1 / z), "calibrate_largest": accounting.pure}
    found = search(made[name], epsilon=2.0, delta=0.0, **(
        dict(whole=False) if name == "calibrate_largest" else {}
    ))  # fmt: skip
    assert made[name](found).stated_epsilon(0.0) <= 2.0
    assert found == pytest.approx({"calibrate": 0.5, "calibrate_largest": 2.0}[name], rel=1e-3)


# ---- statements: what is asserted of tuners' is asserted of votes'

TASK = small_tasks.linear(small_tasks.parts(90, apart=0.5))
VOTE = federated.VoteSettings(
    11, 7, votes=2, epsilon=1.9, delta=1e-4, missing_fraction=0.2, scale=3
)


def _plan_of(name, task=TASK, **run):
    options = tuning.RunOptions(**(dict(lot_size=7, steps=5, noise_multiplier=2.0) | run))
    space = tiny_tuners.space_of(name)
    problem = Problem.of(task, space, options, training.sgd(), None, 1e-4, False)
    return tiny_tuners.tuner(name).plan(problem)


def _within(value):
    """It, and all that its fields, mappings and sequences hold, but for what a price is made of."""
    yield value
    parts = value if isinstance(value, list | tuple) else ()
    if isinstance(value, Mapping):
        parts = value.values()
    elif dataclasses.is_dataclass(value) and not isinstance(value, accounting.Guarantee):
        # Fields alone: a law of K keeps tables of itself, once something has asked for them.
        parts = [getattr(value, field.name) for field in dataclasses.fields(value)]
    for part in parts:
        yield from _within(part)


@pytest.mark.parametrize("name", tiny_tuners.NAMES)
def test_a_plan_holds_no_record_and_nothing_that_trains(name):
    """So no price can depend on one."""
    held = list(_within(_plan_of(name)))
    assert any(isinstance(one, Problem) for one in held)
    secret = tuning.Task, tuning.Records, np.ndarray
    assert not [one for one in held if isinstance(one, secret) or inspect.isfunction(one)]


def _stated_by_tuner(name):
    plan = _plan_of(name)
    if isinstance(plan, PartitionPlan):  # Whose candidates are drawn, and public, by then.
        listed = [dict.fromkeys(plan.problem.space.parameters, 0.5)] * 2
        plan = dataclasses.replace(plan, listed=listed)
    return plan.guarantee, lambda secret: tiny_tuners.tuner(name).statement(plan, secret=secret)


STATEMENTS = dict.fromkeys(tiny_tuners.NAMES, _stated_by_tuner) | {
    f"vote with {noise} noise": lambda name: (
        (plan := dataclasses.replace(VOTE, noise=name.split()[2]).plan()).guarantee,
        lambda secret: plan.statement(secret=secret),
    )
    for noise in ("skellam", "discrete_gaussian")
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_says_what_it_costs_whom_and_under_what(name):
    guarantee, statement = STATEMENTS[name](name)
    said = statement(True)
    assert json.loads(json.dumps(said, allow_nan=False)) == said
    assert said["private"] is True and said["delta"] == 1e-4
    assert said[stated_epsilon.FIELD] == stated_epsilon.EPSILON_IS
    assert said["neighbouring_relation"] == guarantee.relation
    assert said["unit_of_privacy"].startswith(("one ", "a "))
    assert len(said["assumptions"]) >= 4
    # Whatever runs it names, it says of each which ones have that setting.
    runs = [row["of"] for row in said.get("training", ())]
    assert len(set(runs)) == len(runs) == {"subset_tuning": 2}.get(name, len(runs))
    # The number covers what its own tree costs, and hardly more; it has six digits.
    again = accounting.from_provenance(said["mechanism"])
    assert again.relation == said["neighbouring_relation"]
    assert again.epsilon(1e-4) <= said["epsilon"] <= 1.0001 * guarantee.epsilon(1e-4)
    assert said["epsilon"] == float(f"{said['epsilon']:.6g}")
    # Who knows the randomness can undo it, and only that sentence says so.
    known = statement(False)
    assert said["randomness"]["secret"] is True and known["randomness"]["secret"] is False
    assert "NOT SECRET" in known["randomness"]["statement"]
    assert "NOT SECRET" not in said["randomness"]["statement"]
    assert known | {"randomness": 0} == said | {"randomness": 0}


# ---- sums: what is asserted of votes is asserted of averaging

SOURCE = HostRandomness(5)
AVERAGING = federated.AveragingSettings(
    11, 13, rounds=3, epsilon=1.9, delta=1e-4, clip_norm=0.6, missing_fraction=0.2, server_rate=1.5
)


def _ballot(plan, stream):
    ballot = np.zeros(plan.settings.candidates, int)
    ballot[: plan.settings.votes] = 1
    return voting.noisy_ballot(ballot, plan, SOURCE, stream)


def _update(plan, stream):
    return averaging.noisy_update(np.full(plan.entries, 0.1), plan, SOURCE, stream)


RULES = {
    "vote": (VOTE, _ballot, voting.tally, federated.VoteAborted),
    "averaging": (AVERAGING, _update, averaging.averaged, federated.AveragingAborted),
}
"""Name -> (rule, what a client sends, what the server makes of the sum, its refusal)."""

every_sum = pytest.mark.parametrize("name", RULES)


def _other(value):
    if isinstance(value, str):
        return "discrete_gaussian"
    return value + 1 if isinstance(value, int) else 2.0 * value


@every_sum
def test_every_field_of_its_rule_is_checked_and_moves_the_plan(name):
    rule = RULES[name][0]
    planned = rule.plan()
    for field in dataclasses.fields(rule):
        for bad in (None, math.nan, -1, "many", [1]):
            with pytest.raises(ValueError) as caught:
                dataclasses.replace(rule, **{field.name: bad})
            assert "\n" not in str(caught.value)
        other = _other(getattr(rule, field.name))
        changed = dataclasses.replace(rule, **{field.name: other}).plan()
        if field.name not in ("clip_norm", "server_rate"):  # They scale, and cost nothing.
            price, usual = (
                (one.guarantee.provenance, one.local_variance) for one in (changed, planned)
            )
            assert price != usual, field.name
        else:
            assert changed.statement() != planned.statement()
    assert planned.guarantee.stated_epsilon(rule.delta) <= rule.epsilon


@every_sum
def test_its_noise_is_enough_without_those_who_may_be_missing(name):
    rule, *_ = RULES[name]
    plan, all_stay = rule.plan(), dataclasses.replace(rule, missing_fraction=0.0).plan()
    assert plan.minimum_survivors == math.ceil(0.8 * 11) == 9
    ratio = plan.local_variance / all_stay.local_variance
    if name == "averaging":
        ratio *= (all_stay.bound / plan.bound) ** 2
    assert ratio == pytest.approx(11 / 9, rel=0.02)


def test_a_vote_is_over_candidates_that_are_mappings_of_numbers():
    plan = VOTE.plan()
    listed = [{"rate": 0.5 + place} for place in range(7)]
    known = plan.fingerprint(listed)
    for place in (0, 3, 6):
        for bad in (3, "rate", ["rate"], {"rate": "fast"}, {"rate": math.nan}):
            with pytest.raises(ValueError, match="candidate") as caught:
                plan.fingerprint([*listed[:place], bad, *listed[place + 1 :]])
            assert "\n" not in str(caught.value)
        other = [*listed[:place], {"rate": 9.0}, *listed[place + 1 :]]
        assert plan.fingerprint(other) != known


@every_sum
def test_each_stream_has_noise_of_its_own_and_nothing_leaves_the_clip(name):
    rule, send, *_ = RULES[name]
    plan = rule.plan()
    first, other, again = (send(plan, stream) for stream in (1, 2, 1))
    assert np.any(first != other) and np.array_equal(first, again)
    assert first.dtype == np.int64 and np.abs(first).max() <= plan.clip
    assert 2 * plan.clip * rule.clients < 2**32


@every_sum
def test_the_server_refuses_all_but_a_sum_of_enough(name):
    rule, send, receive, aborted = RULES[name]
    plan = rule.plan()
    total = sum(send(plan, stream) for stream in range(11))
    for survivors in (9, 11):
        receive(total, plan, survivors)
    for survivors in (0, 8, 12):
        with pytest.raises(aborted, match="no output"):
            receive(total, plan, survivors)
    largest = np.zeros_like(total)
    for place in (0, -1):
        largest[place] = 9 * plan.clip
        receive(largest, plan, 9)
        for bad in (largest + 1, largest - 2 * largest - 1):
            with pytest.raises(aborted, match="no output"):
                receive(bad, plan, 9)
        largest[place] = 0
    for bad in (total[:-1], total.astype(float), total[None], np.append(total, 0)):
        with pytest.raises(aborted, match="no output"):
            receive(bad, plan, 11)
    for survivors in (9.5, "9", None):
        with pytest.raises(ValueError, match="survivors"):
            receive(total, plan, survivors)
    with pytest.raises(ValueError, match="plan"):
        receive(total, rule, 11)


# ---- units: what is asserted of records is asserted of users


def _of_users(part, first):
    ids = first + np.arange(len(part.arrays[0]))
    return tuning.Records.of_users(
        part.arrays, ids, most_records=2, public_size=part.public_size, size_bound=part.size_bound
    )


UNITS = {
    "records": TASK,
    "users": dataclasses.replace(
        TASK, train=_of_users(TASK.train, 0), validation=_of_users(TASK.validation, 1000)
    ),
}
every_unit = pytest.mark.parametrize("unit", UNITS)


@every_unit
def test_a_unit_costs_what_its_public_numbers_say_and_the_statement_names_it(unit):
    task = UNITS[unit]
    plan = _plan_of("untuned", task)
    assert plan.guarantee.provenance == _plan_of("untuned").guarantee.provenance
    said = tiny_tuners.tuner("untuned").statement(plan, secret=True)
    assert unit.removesuffix("s") in said["unit_of_privacy"].split(" of ")[0]
    bound = f"never holds more than {task.train.size_bound} {unit}"
    assert any(bound in line for line in said["assumptions"])
    numbers = said["training_records"]
    assert numbers["public_size"] == task.train.public_size
    assert numbers["size_bound"] == task.train.size_bound
    assert unit_of(said["neighbouring_relation"], said["unit_of_privacy"]).startswith(
        said["unit_of_privacy"]
    )


@every_unit
def test_a_unit_that_is_trained_on_is_not_validated_on(unit):
    task = UNITS[unit]
    with pytest.raises(ValueError, match="both train and validation|are the same"):
        dataclasses.replace(task, validation=task.train)
    with pytest.raises(ValueError, match="both by Records.of_users"):
        (other,) = UNITS.keys() - {unit}
        dataclasses.replace(task, validation=UNITS[other].validation)


@every_unit
@pytest.mark.parametrize("field", ["public_size", "size_bound"])
@pytest.mark.parametrize("bad", [0, -1, 2.5, math.nan, "many"])
def test_public_numbers_of_units_are_whole(unit, field, bad):
    part = UNITS[unit].train
    with pytest.raises(ValueError, match=field) as caught:
        dataclasses.replace(part, **{field: bad})
    assert "\n" not in str(caught.value)


@every_unit
def test_a_large_delta_is_said(unit):
    size = UNITS[unit].train.public_size
    for number in (size, 100 * size, 100_000):  # Below and above what is large of any number.
        with pytest.warns(cautions.LargeDeltaWarning, match=f"above 1/{number}"):
            cautions.of_arguments(1.5 / number, number, None)
        cautions.of_arguments(0.5 / number, number, None)  # A warning is an error here.


# ---- doors: what is asserted of Python is asserted of the command line

STEPS = dict(noise_multiplier=1.7, steps=41)
BASES = {
    "sampling_probability": (accounting.dp_sgd, dict(sampling_probability=0.013) | STEPS),
    "steps_per_epoch": (
        accounting.dp_sgd_balls_in_bins,
        dict(steps_per_epoch=23, noise_multiplier=1.3, epochs=4),
    ),
    "dataset_size": (accounting.dp_sgd_fixed_lots, dict(dataset_size=900, lot_size=31) | STEPS),
    "rho": (accounting.zcdp, dict(rho=0.03, relation="replace_one")),
    "pure_epsilon": (accounting.pure, dict(pure_epsilon=0.07, relation="replace_one")),
    "epsilon": (accounting.approximate, dict(epsilon=0.2, relation="replace_one")),
}
"""Flag that names a base run -> its constructor, and its arguments by flag."""


def _flags(arguments):
    names = {"relation": "neighbouring_relation"}
    return [f"--{names.get(name, name)}={value}" for name, value in arguments.items()]


def _families():
    """Name on the command line -> (its flags, the law of them)."""
    found = {}
    for name, cls in families().items():
        if hasattr(cls, "of_mean"):
            more = [one for one in inspect.signature(cls.of_mean).parameters if one != "mean"]
            given = {"mean": 6.0} | dict.fromkeys(more, {"trials": 17}.get((more or [""])[0], 0.3))
            found[name] = (given, cls.of_mean(**given))
    return found


def test_the_command_line_prices_what_python_does(run_cases):
    """Every kind of run and every law, each number another; what is composed, too."""
    law = accounting.AtMost(accounting.Geometric(5.0), 23)
    cases, wanted = [], []

    def asked(words, base, price, one=None, **given):
        cases.append(["--json", *words, *_flags({"delta": 3e-6} | given)])
        wanted.append((price, base if one is None else one, given.get("total_delta", 3e-6)))

    capped = ["--repetitions=geometric", "--mean=5", "--cap=23"]
    for flag, (make, arguments) in BASES.items():
        values = {
            "epsilon" if name == "pure_epsilon" else name: one for name, one in arguments.items()
        }
        more = {}
        if flag == "epsilon":
            more = dict(delta=2e-9, total_delta=4e-6)
            values["delta"] = 2e-9
        base = make(**values)
        asked([*_flags(arguments), *capped], base, accounting.best_of(base, law), **more)
    base, words = accounting.zcdp(0.03), ["--rho=0.03"]
    for name, (given, drawn) in _families().items():
        uncapped = [] if name == "fixed" else ["--cap=0"]
        asked(
            [*words, f"--repetitions={name}", *_flags(given), *uncapped],
            base,
            accounting.best_of(base, drawn),
        )
    best = accounting.best_of(base, law)
    scored = accounting.parallel(base, accounting.discrete_gaussian(7.0))
    asked([*words, *capped, "--retrain"], base, accounting.compose(best, base))
    asked([*words, *capped, "--score_noise=7"], base, accounting.best_of(scored, law), one=scored)
    asked([*words, "--repetitions=adaptive", "--mean=6"], base, accounting.repeat(base, 6))
    for case, (code, printed, errors), (price, one, delta) in zip(
        cases, run_cases("experiments.epsilon", cases), wanted, strict=True
    ):
        assert code == 0, (case, errors)
        said = json.loads(printed)
        assert said["epsilon"]["whole_tuning"] == price.epsilon(delta), case
        assert said["epsilon"]["one_run"] == one.epsilon(delta), case
        assert said["neighbouring_relation"] == price.relation and said["delta"] == delta
