"""Mistakes in a tuner of one's own are refused in one line, before anything is drawn or trained.

Nothing can prove somebody else's price. But a run that no guarantee charges, a request that is
none, and steps that return nothing are seen when the steps are asked with made-up answers.
"""

import dataclasses
import pathlib
import re
import types

import numpy as np
import pytest

from dpjax import accounting, training, tuning
from dpjax.tuning import steps

# The guide's tuner, not registered: another test does that.
SOURCE = pathlib.Path(__file__).parent / "own_tuner.py"
own_tuner = types.ModuleType("own_tuner")
exec(
    SOURCE.read_text().replace("@tuning.register_tuner", "@(lambda *_, **__: lambda cls: cls)"),
    vars(own_tuner),
)

RUN = tuning.RunOptions(lot_size=16, steps=2, noise_multiplier=2.0)
GIVEN = {"clip_norm": 1.0, "learning_rate": 0.1}


@dataclasses.dataclass(frozen=True)
class Choice(own_tuner.OneEach):
    """The guide's, of which `mistakes` are other functions."""

    mistakes: tuple = ()

    def _own(self, name, *arguments):
        return dict(self.mistakes).get(name, getattr(super(), name))(*arguments)

    def guarantee(self, run):
        return self._own("guarantee", run)

    def draw(self, executions, source):
        return self._own("draw", executions, source)

    def rank(self, scores):
        return self._own("rank", scores)


@dataclasses.dataclass(frozen=True)
class Wrong(own_tuner.Grid):
    """The guide's grid, with one mistake."""

    choice: tuple = ()
    planned: object = None
    select: object = dataclasses.replace
    named: str = "value_{}"
    material: object = None
    first: object = None
    returned: object = None

    def choice_in(self, space):
        return Choice(tuple(self.values), self.choice)

    def plan(self, problem):
        plan = super().plan(problem)
        return plan if self.planned is None else self.planned(plan)

    def steps(self, plan, material):
        if self.first is not None:
            yield self.first(plan, material)
        ran = []
        for place, value in enumerate(self.values):
            one = dataclasses.replace(plan, problem=own_tuner._with_rate(plan.problem, value))
            used = self.material or (lambda: material)
            ran.append((yield steps.Select(self.named.format(place), self.select(one), used)))
        best = int(np.argmax([one.executed.best.score[0] for one in ran]))
        record = steps.record(material, ran, best)
        chosen = steps.Chosen(ran[best].params, ran[best].hyperparameters, record)
        return chosen if self.returned is None else self.returned(chosen, plan)


def _train(**setting):
    return lambda plan, material: steps.Train(
        "train",
        plan,
        lambda: material,
        dataclasses.replace(plan.settings[0], **setting),
        GIVEN,
    )


def _setting(**changes):
    def changed(plan):
        (one,) = plan.settings
        return dataclasses.replace(plan, settings=(dataclasses.replace(one, **changes),))

    return changed


def _returned(**changes):
    return {"returned": lambda chosen, plan: dataclasses.replace(chosen, **changes)}


def _choice(**functions):
    return {"choice": tuple(functions.items())}


COSTS = "'value_0': a run of its settings costs more than the plan's run_guarantee"
COUNTS = r"Choice.draw\(executions, source\) must return whole numbers >= 0, one for each"
RANKS = r"Choice.rank\(scores\) must return a number for each score, -inf for what"
NAMES = "Chosen.hyperparameters must have a number for each of clip_norm, learning_rate, and no"
MISTAKES = {
    # What it costs.
    r"with 'value_1' it makes 2 requests, and 1 are charged\. Make it of": _choice(
        guarantee=lambda run: run
    ),
    "with 'value_1' it makes 2 requests, and 1 are charged. Make": _choice(
        guarantee=lambda run: accounting.best_of(run, accounting.Geometric(3))
    ),
    "with 'value_1' it makes 3 requests, and 2 are charged": {"first": _train()},
    "with 'value_0' it makes 3 runs, and 2 are charged": _choice(
        draw=lambda executions, source: np.full(executions, 3)
    ),
    "guarantee of the tuner's plan charges no such run. Make it of the runs' guarantees": _choice(
        guarantee=lambda run: accounting.pure(0.1)
    ),
    f"{COSTS}: plan the most": {"select": _setting(steps=3)},
    f"{COSTS}: .*plan_runs": {"select": _setting(noise_multiplier=1.9)},
    f"{COSTS}.*": {"select": _setting(lot_size=17)},
    "'train': a run of its settings costs more": {"first": _train(steps=20)},
    "charges no score with noise 0: leave": {
        "select": lambda plan: dataclasses.replace(plan, score_noise=0.0)
    },
    "charges no score with noise 0.5: leave": {
        "select": lambda plan: dataclasses.replace(plan, score_noise=0.5)
    },
    # Such a score is charged, but by another plan than the one that is asked for.
    "charges no score with noise 0.5: leave a plan's": {
        "planned": lambda plan: dataclasses.replace(
            plan,
            guarantee=accounting.compose(
                plan.guarantee, accounting.discrete_gaussian(0.5, relation=plan.guarantee.relation)
            ),
        ),
        "select": lambda plan: dataclasses.replace(plan, score_noise=0.5),
    },
    "its plan has no run_guarantee": {
        "select": lambda plan: dataclasses.replace(plan, run_guarantee=None)
    },
    r"guarantee\(run\) must return an accounting.Guarantee, made of": _choice(
        guarantee=lambda run: run.epsilon(1e-6)
    ),
    # Plans.
    "Wrong.plan returns None: return a steps.Plan": {"planned": lambda plan: print()},
    "Wrong.plan returns a Problem: return a steps.Plan": {"planned": lambda plan: plan.problem},
    "pass guarantee and run_guarantee, or neither": {
        "planned": lambda plan: dataclasses.replace(plan, guarantee=None)
    },
    "guarantee of Wrong's plan must be a Guarantee, such as accounting.repeat.run, 2., not 1.0": {
        "planned": lambda plan: dataclasses.replace(plan, guarantee=1.0)
    },
    "under replace_one, that of a run under add_or_remove_one": {
        "planned": lambda plan: dataclasses.replace(
            plan, guarantee=accounting.pure(9.0, relation="replace_one")
        )
    },
    # Requests.
    "Wrong.steps yields None: yield one request": {"first": lambda plan, material: None},
    "Wrong.steps yields a list: yield one request": {"first": lambda *given: [_train()(*given)]},
    "Wrong.steps yields the class Select: yield": {"first": lambda plan, material: steps.Select},
    "Wrong.steps asks for 'same' twice: give each": {"named": "same"},
    "names a request '../0': pass letters": {"named": "../{}"},
    "'value_0': pass material as a function": {"material": "all of it"},
    "'value_0': material returns None, not a Material": {"material": lambda: None},
    "'train': hyperparameters must have a number for each of clip_norm, learning_rate": {
        "first": lambda plan, material: dataclasses.replace(
            _train()(plan, material), hyperparameters={"learning_rate": 0.1}
        )
    },
    "'train': setting must be one of a plan's settings": {
        "first": lambda plan, material: dataclasses.replace(_train()(plan, material), setting=None)
    },
    "'value_0': plan must be a RunsPlan, not a Problem": {"select": lambda plan: plan.problem},
    # Draws and ranks.
    COUNTS: _choice(draw=lambda executions, source: np.ones(executions)),
    f"{COUNTS} exec": _choice(draw=lambda executions, source: 1),
    f"{COUNTS} execution, as": _choice(draw=lambda executions, source: -np.ones(executions, int)),
    RANKS: _choice(rank=lambda scores: 0.0),
    f"{RANKS} may": _choice(rank=lambda scores: scores * np.nan),
    # What is returned.
    "Wrong.steps returns None: return a steps.Chosen": {"returned": lambda chosen, plan: None},
    "Wrong.steps returns a dict: return a steps.Chosen": {
        "returned": lambda chosen, plan: chosen.params
    },
    NAMES: _returned(hyperparameters={"learning_rate": 0.1}),
    f"{NAMES} more": _returned(hyperparameters=GIVEN | {"score": 3.0}),
    "returns hyperparameters that its space cannot draw": _returned(
        hyperparameters=GIVEN | {"learning_rate": 0.2}
    ),
    "Chosen.params is no model of the task": _returned(params=3.0),
    "Chosen.record must be what steps.record returns": _returned(record=None),
    "Chosen.plan must keep the guarantee of the tuner's plan": {
        "returned": lambda chosen, plan: dataclasses.replace(
            chosen, plan=dataclasses.replace(plan, guarantee=accounting.pure(0.1))
        )
    },
}


class NothingIsDrawn(tuning.Job):
    """Fails where a draw would be spent."""

    def once(self, facts, draw, decide):
        def drawn():
            assert not (found := draw()), "drawn"
            return found

        return super().once(facts, drawn, decide)


@pytest.mark.parametrize("message", list(MISTAKES))
def test_it_is_refused_before_anything_is_drawn(message, task, tuned):
    with pytest.raises(ValueError, match=message) as refused:
        tuned(task, Wrong(**MISTAKES[message]), run=RUN, job=NothingIsDrawn())
    assert "\n" not in str(refused.value)


def _dearest(plan):
    return max(plan.settings, key=lambda one: one.steps)


def _all_dearest(plan):
    alone = dataclasses.replace(_dearest(plan), probability=1.0)
    return dataclasses.replace(plan, settings=(alone,))


OF_SEVERAL = {
    "'value_0': a run of its settings costs more": {"select": _all_dearest},
    "'train': a run of its settings costs more": {
        "first": lambda plan, material: steps.Train(
            "train", plan, lambda: material, _dearest(plan), GIVEN | {"steps": 40.0}
        )
    },
}


@pytest.mark.parametrize("message", list(OF_SEVERAL))
def test_a_run_that_is_rarely_drawn_costs_more_than_the_average(message, task):
    """The cost of one run is that of a mixture, and less than that of its dearest part."""
    law = tuning.Choice([2, 40], probabilities=[0.999, 0.001])
    space = tuning.Space(learning_rate=0.1, clip_norm=1.0, steps=law)
    run = tuning.RunOptions(lot_size=16, noise_multiplier=2.0)
    arguments = dict(run=run, delta=1e-6, optimizer=training.sgd())
    with pytest.raises(ValueError, match=message):
        tuning.tune(task, space, Wrong(**OF_SEVERAL[message]), **arguments, job=NothingIsDrawn())


@pytest.mark.parametrize("what", [None, "a generator", steps.Chosen(None, None, None)])
def test_steps_that_are_no_generator_are_refused(what, task, tuned):
    class NoGenerator(own_tuner.Grid):
        def steps(self, plan, material):
            return what

    with pytest.raises(ValueError, match="NoGenerator.steps returns .*: write it as a generator"):
        tuned(task, NoGenerator(), run=RUN, job=NothingIsDrawn())


def test_a_draw_comes_before_other_requests(task, tuned):
    class Late(own_tuner.Grid):
        def steps(self, plan, material):
            chosen = yield from super().steps(plan, material)
            yield steps.Draw("late", lambda own: own.words(1, 5))
            return chosen

    with pytest.raises(ValueError, match="Late.steps asks for the draw 'late' late: yield all"):
        tuned(task, Late(), run=RUN, job=NothingIsDrawn())


def test_a_tuner_that_cannot_go_on_without_a_winner_is_noticed(task, tuned):
    class Hopeful(own_tuner.Grid):
        def steps(self, plan, material):
            chosen = yield from super().steps(plan, material)
            return dataclasses.replace(chosen, hyperparameters=dict(chosen.hyperparameters))

    with pytest.raises(TypeError):
        tuned(task, Hopeful(), run=RUN, job=NothingIsDrawn())


def test_runs_that_only_real_answers_lead_to_are_refused_as_well(task, tuned):
    """Made-up scores are 0 or -inf; this one goes on where a real one is neither."""

    class GoesOn(own_tuner.Grid):
        def steps(self, plan, material):
            ran = yield steps.Select("first", plan, lambda: material)
            score = ran.executed.best.score[0]
            for more in range(2 if score != 0 and np.isfinite(score) else 0):
                ran = yield steps.Select(f"more_{more}", plan, lambda: material)
            record = steps.record(material, [ran])
            return steps.Chosen(ran.params, ran.hyperparameters, record)

    with pytest.raises(ValueError, match="'more_1' it makes 3 requests, and 2 are charged"):
        tuned(task, GoesOn(), run=RUN)


def test_what_costs_less_is_trained(task, tuned):
    """Shorter runs, each charged as the longest."""

    class Shorter(own_tuner.Grid):
        def plan(self, problem):
            run = dataclasses.replace(problem.run, steps=3)
            return super().plan(dataclasses.replace(problem, run=run))

        def steps(self, plan, material):
            return (yield from super().steps(_setting(steps=2)(plan), material))

    result = tuned(task, Shorter(), run=tuning.RunOptions(lot_size=16, noise_multiplier=2.0))
    longest = accounting.dp_sgd(16 / 72, 2.0, 3)
    both = accounting.repeat(longest, 2).epsilon(1e-6)
    assert both <= result.guarantee.epsilon(1e-6) <= 1.01 * both


def test_a_run_that_is_not_scored_has_no_score_to_decide_by(task, tuned):
    seen = []

    class Peeks(own_tuner.Grid):
        def steps(self, plan, material):
            ran = yield _train()(plan, material)
            seen.append((ran.executed.best.score[0], *ran.executed.scores))
            record = steps.record(material, [ran])
            return steps.Chosen(ran.params, ran.hyperparameters, record)

    result = tuned(task, Peeks(), run=RUN)
    assert np.isnan(seen[-1]).all() and result.release.hyperparameters["learning_rate"] == 0.1


def test_an_optimiser_that_drops_its_schedule_is_refused(task, tuned):
    def deaf(schedule=None):
        return training.sgd(None)

    with pytest.raises(ValueError, match=re.escape("ignores the schedule cosine, which a release")):
        tuned(task, optimizer=training.scheduled(deaf, "cosine"))
    tuned(task, optimizer=training.scheduled(training.sgd, "cosine"))
