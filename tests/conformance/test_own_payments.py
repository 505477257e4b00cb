"""What a tuner of one's own asks for is found in its guarantee, each part of it once.

The tuners here use laws and mechanisms of dpjax alone, and each makes a mistake that is easily
made: it replaces a field of its plan after the plan was priced, or composes too little.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_tuners

from dpjax import accounting, training, tuning
from dpjax.tuning import payments, steps
from dpjax.tuning.selection import BestOf, FirstAbove, ranks_of

replace = dataclasses.replace
RUN = tuning.RunOptions(lot_size=16, steps=2, noise_multiplier=2.0)
GIVEN = {"clip_norm": 1.0, "learning_rate": 0.1}
GEOMETRIC = BestOf(accounting.Geometric(3))


@dataclasses.dataclass(frozen=True)
class Own(tuning.PrivateRuns):
    """Asks for what `asks`, (plan, material) -> steps, asks for."""

    asks: object
    choice: object = GEOMETRIC
    planned: object = None
    score_on_training: bool = False

    def choice_in(self, space):
        return self.choice

    def plan(self, problem):
        plan = super().plan(problem)
        return plan if self.planned is None else self.planned(plan)

    def steps(self, plan, material):
        return self.asks(plan, material)

    @classmethod
    def from_statement(cls, claim):
        raise ValueError


def _chosen(material, *ran):
    return steps.Chosen(ran[-1].params, ran[-1].hyperparameters, steps.record(material, ran))


def _selects(number=1, on_training=False, **changes):
    def asks(plan, material):
        used = material.scored_on_training() if on_training else material
        ran = []
        for place in range(number):
            one = replace(plan, **changes)
            ran.append((yield steps.Select(f"select_{place}", one, lambda: used)))
        return _chosen(used, *ran)

    return asks


def _trains(plan, material):
    ran = yield steps.Train("train", plan, lambda: material, plan.settings[0], GIVEN)
    return _chosen(material, ran)


def _trains_again(plan, material):
    """Its last run costs what a run of the search does, less the score, and is not composed."""
    ran = yield steps.Select("search", plan, lambda: material)
    alone = replace(plan, run_guarantee=plan.settings[0].guarantee())
    last = yield steps.Train("last", alone, lambda: material, plan.settings[0], GIVEN)
    return replace(_chosen(material, ran), params=last.params)


def _scores_again(plan, material):
    """Its second selection has no score of its own, and that of the first has its noise."""
    ran = yield steps.Select("first", plan, lambda: material)
    run = plan.settings[0].guarantee()
    other = replace(plan, run_guarantee=run)
    again = yield steps.Select("second", other, lambda: material)
    return _chosen(material, ran, again)


def _whole(combined):
    return lambda plan: replace(plan, guarantee=combined(plan.guarantee))


def _with_unscored(plan):
    run = plan.settings[0].guarantee()
    return replace(
        plan, guarantee=accounting.compose(plan.guarantee, plan.selection.guarantee(run))
    )


CHOSEN = {name: np.array([value]) for name, value in GIVEN.items()}
MISTAKES = {
    "leave its plan's chosen as None": Own(_selects(chosen=CHOSEN)),
    "scores on the training records, and its plan's run_guarantee does not compose": Own(
        _selects(on_training=True, score_on_training=True)
    ),
    "'select_0': the guarantee of the tuner's plan charges no such selection": Own(
        _selects(selection=BestOf(accounting.Geometric(30)))
    ),
    "'select_0': the guarantee of the tuner's plan charges no such selection.": Own(
        _selects(selection=GEOMETRIC), FirstAbove(0.5, 0.25)
    ),
    "'select_0': the guarantee of the tuner's plan charges no such selection. M": Own(
        _selects(selection=GEOMETRIC), BestOf(accounting.Fixed(3))
    ),
    "with 'select_0' it makes 30 runs, and 1 are charged": Own(
        _selects(selection=BestOf(accounting.Fixed(30)))
    ),
    "with 'select_1' it makes 2 requests, and 1 are charged": Own(_selects(2)),
    "with 'last' it makes 1 requests, and 0 are charged": Own(_trains_again),
    "'second': the guarantee of the tuner's plan charges no such selection": Own(
        _scores_again, planned=_with_unscored
    ),
    "'select_0': the guarantee of the tuner's plan charges no such selection. Ma": Own(
        _selects(2), planned=_whole(lambda one: accounting.parallel(one, one))
    ),
    "'select_0': the guarantee of the tuner's plan charges no such selection. Mak": Own(
        _selects(), planned=_whole(lambda one: accounting.mixture([one, accounting.pure(0.1)]))
    ),
    "'train': the guarantee of the tuner's plan charges no such run": Own(
        _trains, FirstAbove(0.5, 0.99)
    ),
    "'train': the guarantee of the tuner's plan charges no such run.": Own(
        _trains, BestOf(accounting.Poisson(0.01))
    ),
}


@pytest.mark.parametrize("message", list(MISTAKES))
def test_it_is_refused_before_anything_is_drawn(message, task, tuned):
    with pytest.raises(ValueError, match=message):
        tuned(task, MISTAKES[message], run=RUN, job=tiny_tuners.Asks())


def test_scores_of_training_records_are_never_public(task, tuned):
    tuner = Own(_selects(on_training=True, score_on_training=True))
    with pytest.raises(ValueError, match="charges no score with noise 0"):
        tuned(task, tuner, run=RUN, validation_is_public=True, job=tiny_tuners.Asks())


def test_scores_that_are_stated_of_training_records_are_theirs(task, tuned):
    with pytest.raises(ValueError, match="'select_0': its plan states .*: pass material.scored_on"):
        tuned(task, Own(_selects(), score_on_training=True), run=RUN)


RARE = [0.999, 0.001]
SPACES = {
    "other weights": tuning.Choice([2, 40], RARE[::-1]),
    "one value, which is the place of another": 2,
    "another order": tuning.Choice([40, 2], RARE[::-1]),
}


@pytest.mark.parametrize("name", list(SPACES))
def test_settings_are_drawn_as_they_are_priced(name, task):
    def asks(plan, material):
        laws = dict(plan.problem.space.parameters) | {"steps": SPACES[name]}
        other = replace(plan, problem=replace(plan.problem, space=tuning.Space(laws)))
        return _chosen(material, (yield steps.Select("select", other, lambda: material)))

    space = tuning.Space(learning_rate=0.1, clip_norm=1.0, steps=tuning.Choice([2, 40], RARE))
    run = tuning.RunOptions(lot_size=16, noise_multiplier=2.0)
    arguments = dict(run=run, delta=1e-6, optimizer=training.sgd(), job=tiny_tuners.Asks())
    with pytest.raises(ValueError, match="settings are not those that its problem's space draws"):
        tuning.tune(task, space, Own(asks), **arguments)


def test_a_space_that_draws_otherwise_than_its_laws_is_refused(task):
    class Longest(tuning.Space):
        def sample(self, number, generator):
            return super().sample(number, generator) | {"steps": np.full(number, 40.0)}

    space = Longest(learning_rate=0.1, clip_norm=1.0, steps=tuning.Choice([2, 40], RARE))
    run = tuning.RunOptions(lot_size=16, noise_multiplier=2.0)
    with pytest.raises(ValueError, match="space must be a Space itself, not a Longest"):
        tuning.tune(task, space, tuning.RandomRepetitions(), run=run, job=tiny_tuners.Asks())


def test_shorter_runs_of_one_setting_are_trained_in_a_folder(task, tmp_path):
    """Whatever steps the space draws: a plan with one setting trains by it."""

    def asks(plan, material):
        short = (replace(plan.settings[0], steps=2, probability=1.0),)
        one = replace(plan, settings=short)
        return _chosen(material, (yield steps.Select("select", one, lambda: material)))

    space = tuning.Space(learning_rate=0.1, clip_norm=1.0, steps=tuning.Choice([2, 3]))
    run = tuning.RunOptions(lot_size=16, noise_multiplier=2.0)
    job = tuning.Job(folder=str(tmp_path / "folder"))
    arguments = dict(run=run, delta=1e-6, optimizer=training.sgd(), job=job)
    result = tuning.tune(task, space, Own(asks, BestOf(accounting.Fixed(8))), **arguments)
    assert result.curator.number_of_candidates == 8 and np.isfinite(result.curator.scores).all()


PAID = {
    "the selection that is priced": Own(_selects()),
    "each of several": Own(_selects(3), planned=_whole(lambda one: accounting.repeat(one, 3))),
    "runs one by one": Own(
        _selects(2, selection=BestOf(accounting.Fixed(2))),
        planned=lambda plan: replace(plan, guarantee=accounting.repeat(plan.run_guarantee, 4)),
    ),
    "one run of a selection that always has one": Own(_trains),
    "scores on training records": Own(_selects(on_training=True), score_on_training=True),
}


@pytest.mark.parametrize("name", list(PAID))
def test_what_is_paid_for_is_trained(name, task, tuned):
    assert tuned(task, PAID[name], run=RUN).guarantee is not None


def test_what_a_tree_pays():
    run, other = accounting.dp_sgd(0.1, 2.0, 3), accounting.pure(1.0)
    best = accounting.best_of(run, accounting.Geometric(3))
    without = accounting.best_of(run, accounting.Poisson(3))
    none, one, each = (0, 0), (1, 1), (1, np.inf)
    for total, alone, own in (
        (accounting.repeat(run, 3), (3, 3), (3, 3)),
        (accounting.compose(run, accounting.repeat(run, 2), other), (3, 3), (3, 3)),
        (best, one, each),
        (without, none, each),
        (accounting.stop_at_threshold(run, 0.5), none, each),
        (accounting.best_of(accounting.repeat(run, 2), accounting.Geometric(3)), one, each),
        (accounting.repeat(best, 2), (2, 2), (2, np.inf)),
        (accounting.mixture([run, other], [0.5, 0.5]), none, none),
        (accounting.mixture([best, accounting.repeat(run, 2)], [0.5, 0.5]), one, (1, 2)),
        (accounting.parallel(run, other), one, one),
        (accounting.parallel(run, best), none, none),
        (accounting.split(best, run, probability=0.5), (2, 2), (2, np.inf)),
        (accounting.compose(accounting.dp_sgd(0.1, 2.0, 4), other), none, none),
    ):
        item = payments.Item(payments.written(run), payments.ALONE, True)
        for own_rules, charged in ((False, alone), (True, own)):
            found = payments.charges(total, frozenset([item]), own_rules)
            assert found == {item.node: charged}


def test_a_mechanism_of_ones_own_is_taken_at_its_word():
    run = accounting.pure(0.5)
    tree = {"mechanism": "of_somebody", "parameters": {}, "parts": [run.provenance]}
    total = accounting.Guarantee(relation=run.relation, provenance=tree, pure_epsilon=1.0)
    item = payments.Item(payments.written(run), payments.ALONE, True)
    assert payments.charges(total, frozenset([item]), False) == {item.node: (np.inf, np.inf)}


def _states(**changes):
    """Own words, of which the numbers are another guarantee's."""

    class States(Own):
        def statement(self, plan, **given):
            claim = super().statement(plan, **given)
            return claim | {name: change(plan, claim) for name, change in changes.items()}

    return States(_selects())


CLAIMS = {
    "private": lambda plan, claim: False,
    "epsilon": lambda plan, claim: plan.run_guarantee.stated_epsilon(claim["delta"]),
    "delta": lambda plan, claim: claim["delta"] / 2,
    "mechanism": lambda plan, claim: plan.run_guarantee.provenance,
}


@pytest.mark.parametrize("name", list(CLAIMS))
def test_a_statement_claims_what_the_plan_costs(name, task, tuned):
    tuner = _states(**{name: CLAIMS[name]})
    with pytest.raises(ValueError, match=f"States.statement claims another {name} than its plan"):
        tuned(task, tuner, run=RUN, job=tiny_tuners.Asks())


def test_a_plan_meets_the_target_of_the_whole(task, tuned):
    tuner = Own(_selects(2), planned=_whole(lambda one: accounting.repeat(one, 2)))
    run = replace(RUN, noise_multiplier=None)
    with pytest.raises(ValueError, match="Own.plan: its guarantee has epsilon .*, and the target"):
        tuned(task, tuner, run=run, epsilon=1.0, job=tiny_tuners.Asks())
    without = Own(
        _selects(), planned=lambda plan: replace(plan, guarantee=None, run_guarantee=None)
    )
    with pytest.raises(ValueError, match="Own.plan: its guarantee has no epsilon at delta 1e-06"):
        tuned(task, without, run=run, epsilon=1.0, job=tiny_tuners.Asks())


@dataclasses.dataclass(frozen=True)
class Ranked:
    """Geometric(3) runs, ranked by `ranks`, a function of scores."""

    ranks: object
    in_order: bool = False
    expected_runs = 3.0

    def guarantee(self, run):
        return accounting.best_of(run, accounting.Geometric(3))

    def draw(self, executions, source):
        return accounting.Geometric(3).sample(executions, source=source)

    def rank(self, scores):
        return self.ranks(scores)

    def describe(self):
        return {"rule": "of somebody's own"}


BY_OTHERS = {
    "places": lambda scores: np.argsort(np.argsort(scores)),
    "differences": lambda scores: scores - np.mean(scores),
    "the best of those seen": lambda scores: np.where(scores == np.max(scores), 0.0, -np.inf),
}


@pytest.mark.parametrize("name", list(BY_OTHERS))
def test_a_run_is_ranked_by_its_own_score(name, task, tuned):
    tuner = Own(_selects(), Ranked(BY_OTHERS[name]))
    with pytest.raises(ValueError, match=r"Ranked.rank\(scores\) ranks a run by the scores of"):
        tuned(task, tuner, run=RUN, job=tiny_tuners.Asks())
    together = ranks_of(Ranked(BY_OTHERS[name]), np.array([0.25, 0.75]))
    assert len(set(together)) == 1


def test_in_order_the_first_wins_and_not_the_best():
    ranked = Ranked(lambda scores: np.where(scores >= 0.5, scores, -np.inf), in_order=True)
    assert ranks_of(ranked, np.array([0.25, 0.5, 0.75])).tolist() == [-np.inf, 0.0, 0.0]


def _decides(of, number=2, **changes):
    """Releases the answer of the largest `of`, (Ran) -> number."""

    def asks(plan, material):
        ran = []
        for place in range(number):
            one = replace(plan, **changes)
            ran.append((yield steps.Select(f"select_{place}", one, lambda: material)))
        best = int(np.argmax([of(one) for one in ran]))
        known = steps.record(material, ran, best)
        return steps.Chosen(ran[best].params, ran[best].hyperparameters, known)

    return asks


def _goes_on(more):
    """Selects once more if `more`, (Ran) -> bool."""

    def asks(plan, material):
        ran = yield steps.Select("first", plan, lambda: material)
        if more(ran):
            ran = yield steps.Select("second", plan, lambda: material)
        return _chosen(material, ran)

    return asks


TWICE = _whole(lambda one: accounting.repeat(one, 2))
UNPAID = {
    "the largest exact count": Own(
        _decides(lambda ran: ran.executed.units.max(initial=-1)), planned=TWICE
    ),
    "the least exact count": Own(
        _decides(lambda ran: -ran.executed.units.min(initial=9)), planned=TWICE
    ),
    "how many runs there were": Own(
        _goes_on(lambda ran: len(ran.executed.scores) > 5), planned=TWICE
    ),
    "the losing scores": Own(_goes_on(lambda ran: ran.executed.scores.min() < 0), planned=TWICE),
    "the count of a run that is trained": Own(
        lambda plan, material: _by_count(plan, material),
        planned=lambda plan: replace(plan, guarantee=accounting.repeat(plan.run_guarantee, 2)),
    ),
}


def _by_count(plan, material):
    ran = yield steps.Train("train", plan, lambda: material, plan.settings[0], GIVEN)
    rate = 0.1 if ran.executed.units[0] >= 0 else 0.5
    given = GIVEN | {"learning_rate": rate}
    return _chosen(
        material, (yield steps.Train("again", plan, lambda: material, plan.settings[0], given))
    )


@pytest.mark.parametrize("name", list(UNPAID))
def test_what_is_not_paid_for_decides_nothing(name, task, tuned):
    with pytest.raises(ValueError, match="Own.steps decides by what no guarantee pays for"):
        tuned(task, UNPAID[name], run=RUN, job=tiny_tuners.Asks())


def test_noisy_scores_decide(task, tuned):
    best = Own(_decides(lambda ran: ran.executed.best.score[0]), planned=TWICE)
    assert tuned(task, best, run=RUN).guarantee is not None
    every = Own(
        _decides(lambda ran: ran.executed.scores.mean(), selection=BestOf(accounting.Fixed(2))),
        planned=lambda plan: replace(plan, guarantee=accounting.repeat(plan.run_guarantee, 4)),
    )
    assert tuned(task, every, run=RUN).guarantee is not None


@dataclasses.dataclass(frozen=True)
class Unscored(Own):
    """Takes the validation records for public ones, as `Untuned` does, which selects nothing."""

    def plan(self, problem):
        plan = super().plan(replace(problem, validation_is_public=True))
        return plan if self.planned is not None else replace(plan, guarantee=plan.run_guarantee)


ONE = BestOf(accounting.Fixed(1))


def _kept_if_good(plan, material):
    ran = yield steps.Select("one", plan, lambda: material)
    chosen = _chosen(material, ran)
    return chosen if ran.executed.best.score[0] > 12 else replace(chosen, params=None)


def test_private_records_are_not_taken_for_public_ones(task, tuned):
    for tuner in (
        Unscored(_selects(), planned=_whole(lambda one: one)),
        Unscored(_selects(2), ONE, planned=_whole(lambda one: accounting.repeat(one, 2))),
    ):
        with pytest.raises(ValueError, match="takes private validation records for public ones"):
            tuned(task, tuner, run=RUN, job=tiny_tuners.Asks())
        assert tuned(task, tuner, run=RUN, validation_is_public=True).guarantee is not None
    with pytest.raises(ValueError, match="Unscored.steps decides by what no guarantee pays for"):
        tuned(task, Unscored(_kept_if_good, ONE), run=RUN, job=tiny_tuners.Asks())
    with pytest.raises(ValueError, match="Unscored.steps ranks by scores that are not charged"):
        ranked = Ranked(lambda scores: np.where(scores > 0.5, 0.0, -np.inf))
        tuned(task, Unscored(_selects(selection=ranked), ONE), run=RUN, job=tiny_tuners.Asks())
    assert tuned(task, Unscored(_selects(), ONE), run=RUN).guarantee is not None


def _made_of(part, change):
    """A material whose `part` are other training records: what `change` makes of their arrays."""

    def material(own):
        arrays = jax.tree.map(change, own.task.train.arrays)
        others = tuning.Records(arrays, own.task.train.public_size, own.task.train.size_bound)
        return replace(own, task=replace(own.task, **{part: others}))

    return material


def _on(made, **changes):
    def asks(plan, material):
        ran = yield steps.Select("on", replace(plan, **changes), lambda: made(material))
        return _chosen(material, ran)

    return asks


def _scored_in_parts(own):
    task = replace(
        own.task,
        correct=None,
        score=lambda params, example: jnp.float32(0.5),
        classifier=None,
        constant_score=None,
    )
    return replace(own, task=task)


MATERIALS = {
    "a record is in its material more often": [
        _made_of("train", lambda leaf: leaf[np.arange(len(leaf)) // 2]),
        _made_of("train", lambda leaf: np.concatenate([leaf[:20], leaf[:1]])),
        _made_of("validation", lambda leaf: leaf[:20].copy()),
    ],
    "its material is scored in 256 units": [_scored_in_parts],
}


@pytest.mark.parametrize("message", list(MATERIALS))
def test_a_record_counts_once(message, task, tuned):
    for made in MATERIALS[message]:
        with pytest.raises(ValueError, match=message):
            tuned(task, Own(_on(made)), run=RUN)


def test_parts_of_the_training_records_are_trained_on_and_scored(task, tuned):
    def halves(own):
        train = _made_of("train", lambda leaf: leaf[:40].copy())(own)
        arrays = jax.tree.map(lambda leaf: leaf[40:].copy(), own.task.train.arrays)
        others = tuning.Records(arrays, own.task.train.public_size, own.task.train.size_bound)
        return replace(train, task=replace(train.task, validation=others))

    assert tuned(task, Own(_on(halves)), run=RUN).guarantee is not None
