"""Recipes: priced as any space is, trained by the candidate's own number, stated and rebuilt."""

import dataclasses
import functools
import json
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_tasks

from dpjax import accounting, data, models, training, tuning
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.tuning import statements, tuner
from dpjax.tuning.private_runs import draw_of, facts_of
from dpjax.tuning.problem import public_defaults as rules
from dpjax.tuning.problem import recipes
from dpjax.tuning.problem.problem import Problem
from dpjax.tuning.problem.recipes import Bins, Features, features_from
from dpjax.tuning.problem.run_settings import run_settings
from dpjax.tuning.runner import trained_runs

RUN = tuning.RunOptions(lot_size=8, steps=2)
ASKED = dict(epsilon=4.0, delta=1e-3)
USUAL = tuning.Recipe("usual", models.MLP((4,), 2), Bins((0, 2), 4), "momentum", 2.0)
MINE = tuning.Recipes([tuning.Recipe("own"), USUAL])
BEST = tuning.RandomRepetitions(accounting.Fixed(5), score_noise=2.0)


@functools.cache
def _task():
    return small_tasks.linear()


def _problem(of=MINE, task=None, run=RUN, **changed):
    asked = ASKED | changed
    return of.problem(task or _task(), run, asked["epsilon"], asked["delta"], False)


def _given(problem):
    """The problem with a noise that is given, which spares the search for one."""
    run = dataclasses.replace(problem.run, noise_multiplier=2.0)
    return dataclasses.replace(problem, epsilon=None, run=run, stated_run=run)


@pytest.fixture(scope="module")
def plan():
    return BEST.plan(_given(_problem()))


# ---- what it costs


@pytest.mark.parametrize(
    "of",
    [
        BEST,
        tuning.RandomRepetitions(accounting.Geometric(3), score_noise=2.0, score_on_training=True),
        tuning.ThresholdStopping(0.9, halting_probability=0.2, score_noise=2.0),
    ],
    ids=lambda of: f"{type(of).__name__}, {getattr(of, 'score_on_training', None)}",
)
def test_the_guarantee_is_that_of_the_same_selection_over_a_space(of):
    space = tuning.Space(learning_rate=tuning.LogUniform(0.1, 1.0), clip_norm=1.0, momentum=0.9)
    problems = _problem(), Problem.of(_task(), space, RUN, **ASKED)
    # What the search for the noise starts from, its target among it.
    numbers = [
        (repr(run_settings(one)), one.train, one.validation, one.units, one.epsilon, one.delta)
        for one in problems
    ]
    assert numbers[0] == numbers[1]
    ours, theirs = (of.plan(_given(one)) for one in problems)
    assert ours.guarantee.provenance == theirs.guarantee.provenance
    assert ours.run_guarantee.provenance == theirs.run_guarantee.provenance
    assert ours.settings == theirs.settings and ours.score_noise == theirs.score_noise


def test_lots_and_steps_of_all_recipes_are_the_rules_or_those_that_were_asked_for():
    assert {(one.run.lot_size, one.run.steps) for one in _problem().trained} == {(8, 2)}
    usual = _problem(run=tuning.RunOptions())
    assert {(one.run.lot_size, one.run.steps) for one in (usual, *usual.recipes)} == {(5, 320)}


# ---- what is trained


def test_a_recipe_is_trained_at_its_rule_times_its_factor_and_the_candidates(plan):
    drawn = {"recipe": np.array([1.0, 0.0]), "rate_factor": np.array([0.5, 3.0])}
    for place, recipe in enumerate(MINE.recipes):
        rule = recipe.of(_task()), ASKED["epsilon"], ASKED["delta"]
        default = rules.RULES[recipe.optimizer](*rule, lot_size=8, steps=2)
        given = recipes.given_to_runs(plan.problem.recipes[place], drawn)
        rate = default.learning_rate * recipe.factor
        np.testing.assert_allclose(given["learning_rate"], [0.5 * rate, 3.0 * rate])
        assert given["momentum"].tolist() == [0.9, 0.9] and set(given["clip_norm"]) == {0.1}


@pytest.fixture(scope="module")
def drawn(plan):
    """Keys and hyperparameters of five candidates that have both recipes, in turns."""
    arrays = draw_of(plan, HostRandomness(3), 1)
    keys = jax.random.wrap_key_data(arrays["keys"], impl="threefry2x32")
    return keys, {"recipe": np.array([1.0, 0, 1, 0, 1]), "rate_factor": np.linspace(0.5, 1.5, 5)}


def _trained(plan, drawn, members, chunk_size=2):
    keys, hyperparameters = drawn
    found = {}
    for indices, outputs in trained_runs(
        plan, hyperparameters, keys, np.asarray(members), chunk_size, tuning.Job()
    ):
        for at, index in enumerate(indices.tolist()):
            assert index not in found
            found[index] = jax.tree.map(lambda leaf: leaf[at], outputs)  # noqa: B023
    return found


def test_a_candidate_is_trained_by_its_own_number_whoever_is_beside_it(plan, drawn):
    """Not by its place in its group: groups, chunks and shares move results by rounding alone."""
    together = _trained(plan, drawn, range(5))
    assert sorted(together) == list(range(5))
    for members in ([0, 3], [4, 1], [2]):
        for index, alone in _trained(plan, drawn, members).items():
            for one, other in zip(*map(jax.tree.leaves, (alone, together[index]))):
                np.testing.assert_allclose(one, other, atol=1e-6)
    for index, kept in together.items():
        mine, other = ("own", "usual") if index in (1, 3) else ("usual", "own")
        # Kept are the parameters of its recipe; the other's place is empty.
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(kept["params"][other]))
        assert any(np.any(leaf) for leaf in jax.tree.leaves(kept["params"][mine]))
    first, third = (together[index]["params"]["own"] for index in (1, 3))
    assert not np.allclose(first["kernel"], third["kernel"])


def test_a_candidate_is_what_its_recipe_alone_would_give(plan, drawn):
    keys, hyperparameters = drawn
    recipe = plan.problem.recipes[1]
    alone = dataclasses.replace(plan, problem=recipe)
    given = recipes.given_to_runs(recipe, hyperparameters)
    ((_, found),) = trained_runs(alone, given, keys, np.array([2]), 2, tuning.Job())
    ours = _trained(plan, drawn, [2])[2]
    for one, other in zip(*map(jax.tree.leaves, (found["params"], ours["params"]["usual"]))):
        np.testing.assert_allclose(one[0], other, atol=1e-6)
    assert found["units"][0] == ours["units"]


def _released(plan, of=BEST, seed=1, **how):
    outcome = of.run(plan, randomness=HostRandomness(seed), **how)
    return None if outcome is None else (tuner._release(of, outcome, False), outcome.record)


@pytest.fixture(scope="module")
def outcome(plan):
    return BEST.run(plan, randomness=HostRandomness(1), chunk_size=2)


@pytest.fixture(scope="module")
def found(outcome):
    return tuner._release(BEST, outcome, False), outcome.record


def test_a_release_does_not_depend_on_groups_chunks_folders_and_shards(plan, found, tmp_path):
    others = [_released(plan, chunk_size=3)]
    one = tuning.Job(folder=str(tmp_path / "one"), checkpoint_seconds=0)
    others.append(_released(plan, chunk_size=2, job=one))
    for index in (0, 1, None):
        job = tuning.Job(folder=str(tmp_path / "shards"), shard=(index, 2))
        of_shards = _released(plan, chunk_size=2, job=job)
    release, record = found
    for other, again in (*others, of_shards):
        assert other.hyperparameters == release.hyperparameters
        assert other.statement == release.statement
        for one, same in zip(*map(jax.tree.leaves, (release.params, other.params))):
            np.testing.assert_allclose(one, same, atol=1e-5)
        np.testing.assert_array_equal(record.scores, again.scores)
    # Nothing of the draw is left, nor of the recipes' checkpoints.
    left = {path.name for path in (tmp_path / "one").iterdir()}
    assert left == {"consumed", "outcome.npz"}


def test_a_search_for_the_first_does_not_end_before_earlier_candidates_of_other_recipes():
    stopping = tuning.ThresholdStopping(0.0, halting_probability=0.05, score_noise=2.0)
    plan = stopping.plan(_given(_problem()))
    for seed in range(40):
        arrays = draw_of(plan, HostRandomness(seed), 1)
        of = arrays["hyperparameter_recipe"]
        if 2 < len(of) < 8 and of[0] == 1.0 and 0.0 in of[1:]:  # The recipe that trains last.
            break
    _, record = _released(plan, stopping, seed=seed, chunk_size=1)
    assert record.winner == 0  # Whatever its recipe, it is the first that is good enough.


def test_scores_on_training_records_are_on_every_recipes():
    of = dataclasses.replace(BEST, score_on_training=True)
    for recipe in of.plan(_given(_problem())).problem.recipes:
        assert recipe.task.validation.arrays is recipe.task.train.arrays
        assert recipe.task.train is _task().train


# ---- what is released


def test_the_parameters_that_are_released_are_the_chosen_recipes(outcome):
    for place, recipe in enumerate(MINE.recipes):
        chosen = dict(outcome.hyperparameters) | {"recipe": np.array([float(place)])}
        release = tuner._release(BEST, dataclasses.replace(outcome, hyperparameters=chosen), False)
        shapes = jax.eval_shape(recipe.of(_task()).initial, jax.random.key(0))
        assert jax.tree.map(jnp.shape, release.params) == jax.tree.map(jnp.shape, shapes)
        assert release.hyperparameters["recipe"] == recipe.name


def test_a_release_names_its_recipe(found):
    release, record = found
    chosen, winner = release.hyperparameters, record.winner
    assert chosen["recipe"] == MINE.recipes[int(record.hyperparameters["recipe"][winner])].name
    assert chosen["rate_factor"] == record.hyperparameters["rate_factor"][winner]
    of_winner = MINE.named(chosen["recipe"]).of(_task()).initial(jax.random.key(0))
    assert jax.tree.map(jnp.shape, release.params) == jax.tree.map(jnp.shape, of_winner)
    law = release.statement["candidates_drawn_from"]["recipe"]
    assert [one["features"] for one in law["recipes"]] == [
        None,
        {"name": "bins", "columns": [0, 2], "number": 4},
    ]
    assert {name.split("/")[0] for name in release.statement["trained_parameters"]} == {
        "own",
        "usual",
    }


@pytest.mark.filterwarnings("ignore")
def test_what_is_served_is_the_features_and_the_model(tmp_path):
    one = tuning.Recipes([USUAL], factors=1.0)
    result = tuning.tune(_task(), one, tuning.Untuned(), run=RUN, seed=1, **ASKED)
    folder = tmp_path / "release"
    result.release.save(folder, certificate=False)
    assert result.release.hyperparameters == {"recipe": "usual", "rate_factor": 1.0}
    assert tuning.verify_release(folder).epsilon <= 4.0
    inputs = np.random.default_rng(0).uniform(0, 1, (6, 3)).astype(np.float32)
    classifier = USUAL.of(_task()).classifier
    scores = one.served(folder)(inputs)
    assert scores.shape == (6, 2)
    np.testing.assert_array_equal(
        np.argmax(scores, axis=1), classifier.predict(result.release.params, inputs)
    )
    plain = models.MLP((4,), 2).apply({"params": result.release.params}, USUAL.features(inputs))
    np.testing.assert_allclose(scores, plain, rtol=1e-6)
    for other in (
        dataclasses.replace(USUAL, features=Bins((0, 2), 5)),
        dataclasses.replace(USUAL, features=None),
        dataclasses.replace(USUAL, name="another"),
    ):
        with pytest.raises(ValueError, match=r"pass the recipes that it states|there is no recipe"):
            tuning.Recipes([other], 1.0).served(folder)


def test_without_a_model_the_first_recipes_untrained_one_is_released():
    of = tuning.ThresholdStopping(1.0, halting_probability=1.0, score_noise=2.0)
    with pytest.warns(UserWarning):
        release, _ = _released(of.plan(_given(_problem())), of)
    assert release.hyperparameters == {"recipe": None, "rate_factor": None}
    own = _task().initial(jax.random.key(0))
    assert jax.tree.structure(release.params) == jax.tree.structure(own)


# ---- what it is bound to


def _bound(of):
    plan = BEST.plan(_given(_problem(tuning.Recipes([tuning.Recipe("own"), of]))))
    return BEST.statement(plan, secret=True), facts_of(plan, HostRandomness(3), 1)


CHANGED = dict(
    name="another",
    model=models.MLP((5,), 2),
    features=Bins((0, 2), 5),
    optimizer="adam_bc",
    factor=2.5,
)


def test_every_field_of_a_recipe_is_stated_and_bound():
    assert CHANGED.keys() == {field.name for field in dataclasses.fields(tuning.Recipe)}
    usual, facts = _bound(USUAL)
    for field, value in CHANGED.items():
        statement, bound = _bound(dataclasses.replace(USUAL, **{field: value}))
        assert statement["candidates_drawn_from"] != usual["candidates_drawn_from"], field
        assert bound["search space"] != facts["search space"], field
        assert statement["epsilon"] == usual["epsilon"], field


def test_every_field_of_recipes_is_stated_and_bound():
    changed = dict(recipes=MINE.recipes[::-1], factors=tuning.LogUniform(0.5, 2.0))
    assert changed.keys() == {field.name for field in dataclasses.fields(tuning.Recipes)}
    usual = _problem().space.describe()
    for field, value in changed.items():
        assert _problem(dataclasses.replace(MINE, **{field: value})).space.describe() != usual


def test_what_is_traced_of_every_recipe_is_bound(plan):
    facts = facts_of(plan, HostRandomness(3), 1)
    for place in (0, 1):
        assert {f"recipe {place}: {name}" for name in ("loss", "score", "records")} <= facts.keys()
    assert facts["recipe 0: loss"] != facts["recipe 1: loss"]
    assert facts["recipe 0: records"] == facts["recipe 1: records"]


# ---- what is rebuilt


def test_a_statement_is_rebuilt_from_its_own_rules(plan):
    statement = json.loads(json.dumps(BEST.statement(plan, secret=False)))
    again = tuner.rebuilt(statement)
    assert again.statement == statement
    assert again.may_release({"recipe": "own", "rate_factor": 1.0})
    assert again.may_release({"recipe": None, "rate_factor": None})
    for other in ("another", 0, 0.0, None, ["own"], True):
        assert not again.may_release({"recipe": other, "rate_factor": 1.0})
    assert not again.may_release({"recipe": "own", "rate_factor": 1e3})


def test_a_rate_of_a_search_that_ended_elsewhere_is_taken_as_it_is_stated(plan):
    """Another version, or another processor, finds the noise of a rule a little elsewhere."""
    statement = json.loads(json.dumps(BEST.statement(plan, secret=False)))
    for factor, same in ((1.0003, True), (0.9997, True), (1.0005, False), (0.9995, False)):
        law = statement["candidates_drawn_from"]["recipe"]["recipes"][0]
        other = _edited(
            statement,
            lambda law, to=factor * law["learning_rate"]: law["recipes"][0].update(
                learning_rate=to
            ),
        )
        assert (tuner.rebuilt(other).statement == other) == same, factor


def _edited(statement, change):
    copy = json.loads(json.dumps(statement))
    change(copy["candidates_drawn_from"]["recipe"])
    return copy


EDITS = {
    "a rate": lambda law: law["recipes"][1].update(learning_rate=1.0),
    "a factor": lambda law: law["recipes"][1].update(factor=3.0),
    "a name": lambda law: law["recipes"][1].update(name="another"),
    "a name twice": lambda law: law["recipes"][1].update(name="own"),
    "inputs": lambda law: law["recipes"][0].update(inputs=9),
    "an optimiser's rule": lambda law: law["recipes"][0].update(rule="adam_bc"),
    "an unknown rule": lambda law: law["recipes"][0].update(rule="sgd"),
    "unknown features": lambda law: law["recipes"][1]["features"].update(name="teeth"),
    "bins that are none": lambda law: law["recipes"][1]["features"].update(number=1),
    "columns twice": lambda law: law["recipes"][1]["features"].update(columns=[0, 0]),
    "a constant more": lambda law: law["recipes"][1]["features"].update(more=1),
    "a constant less": lambda law: law["recipes"][1]["features"].pop("number"),
    "no clipping": lambda law: law["recipes"][1].pop("clipping"),
    "a recipe less": lambda law: law["recipes"].pop(),
    "an epsilon": lambda law: law.update(rates_are_for_epsilon=5.0),
    "a word more": lambda law: law["recipes"][0].update(more="word"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_recipe_is_another_statement_or_none(plan, edit):
    statement = BEST.statement(plan, secret=False)
    edited = _edited(statement, EDITS[edit])
    assert edited != json.loads(json.dumps(statement))
    try:
        again = tuner.rebuilt(edited).statement
    except (ValueError, KeyError, TypeError):
        return
    assert json.loads(json.dumps(again)) != edited


# ---- what is refused


def _replaced_loss():
    return dataclasses.replace(_task(), loss=lambda params, example: 0.0 * params["bias"][0])


REFUSED = {
    "pass one line of text without '/'": lambda: tuning.Recipe("a/b"),
    "pass recipes.Bins|must be a Features": lambda: tuning.Recipe("a", features=abs),
    "optimizer must be text": lambda: tuning.Recipe("a", optimizer=["sgd"]),
    "name must be text": lambda: tuning.Recipe(3),
    "has no public default: pass momentum or adam_bc": lambda: tuning.Recipe("a", optimizer="sgd"),
    "factor must be": lambda: tuning.Recipe("a", factor=0),
    "each with a name of its own": lambda: tuning.Recipes([USUAL, USUAL]),
    "pass one or more": lambda: tuning.Recipes([]),
    "must be a Recipe": lambda: tuning.Recipes(["linear"]),
    "factors must be above 0": lambda: tuning.Recipes([USUAL], factors=0.0),
    "pass epsilon, no noise_multiplier": lambda: _problem(epsilon=None),
    "no noise_multiplier$": lambda: _problem(run=tuning.RunOptions(noise_multiplier=1.0)),
    "not epochs: pass steps": lambda: _problem(run=tuning.RunOptions(epochs=2.0)),
    "loss or score was replaced after it was made": lambda: _problem(task=_replaced_loss()),
    "make it by tuning.classification": lambda: _problem(
        task=dataclasses.replace(_task(), of_model=None)
    ),
    "trainable, initial and model_reads are of one model": lambda: _problem(
        task=small_tasks.linear(trainable={"kernel": True, "bias": False})
    ),
    "pass columns that they have": lambda: USUAL.features(np.zeros((2, 1))),
    "columns .* each once": lambda: Bins((1, 1)),
    "number must be": lambda: Bins((1,), 1),
    "pass RandomRepetitions\\(\\) or ThresholdStopping": lambda: tuning.tune(
        _task(), MINE, tuning.SubsetTuning(), run=RUN, **ASKED
    ),
    "and no optimizer": lambda: tuning.tune(
        _task(), MINE, BEST, run=RUN, optimizer=training.sgd(), **ASKED
    ),
    "fixed beforehand, and": lambda: tuning.tune(_task(), MINE, tuning.Untuned(), run=RUN, **ASKED),
    "cannot read": lambda: tuning.parse_space(["recipe=recipe(own)"]),
    "are there already": lambda: recipes.named_features("bins")(Bins),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_is_refused_in_one_line(words):
    with pytest.raises(ValueError, match=words) as caught:
        REFUSED[words]()
    assert "\n" not in str(caught.value)


def test_another_tuner_cannot_plan_the_runs_of_recipes():
    """Not even by hand: what recipes are trained as is no one task."""
    problem = _problem()
    with pytest.raises(ValueError, match="pass a tuner of private runs, or a Space"):
        _ = problem.inspected


# ---- features


@recipes.named_features("halves_of_this_test")
@dataclasses.dataclass(frozen=True)
class Halves(Features):
    share: float

    def __call__(self, inputs):
        return inputs * self.share


def test_a_feature_map_is_rebuilt_from_what_a_release_states():
    for features in (Bins([2, 0], 8), Halves(0.25)):
        again = features_from(json.loads(json.dumps(features.describe())))
        assert again == features
    assert features_from(None) is None


def test_bins_are_beside_the_inputs_and_read_them_alone():
    inputs = np.array([[0.0, 0.7, 0.24], [1.0, 0.1, 0.5], [-3.0, 0.2, 9.0]], np.float32)
    found = np.asarray(Bins((0, 2), 4)(jnp.asarray(inputs)))
    np.testing.assert_array_equal(found[:, :3], inputs)
    assert np.argmax(found[:, 3:7], axis=1).tolist() == [0, 3, 0]
    assert np.argmax(found[:, 7:], axis=1).tolist() == [0, 2, 3]
    assert found[:, 3:].sum(axis=1).tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    "of, shape",
    [
        (tuning.Recipes.for_tables(3), (5,)),
        (tuning.Recipes.for_tables(3, (0, 2)), (5,)),
        (tuning.Recipes.for_images(3), (8, 8, 1)),
        (tuning.Recipes.for_images(3), (8, 8)),
    ],
)
def test_the_ready_lists_fit_their_records(of, shape):
    inputs = np.zeros((60, *shape), np.float32)
    part = data.from_arrays(inputs, np.arange(60) % 3, public_size=60, classes=3).parts(0.3, key=1)
    task = (
        tuning.classification(nn.Dense(3), part.train, part.validation)
        if len(shape) == 1
        else (tuning.classification(models.LogisticRegression(3), part.train, part.validation))
    )
    for recipe in of.recipes:
        made = recipe.of(task)
        scores = jax.eval_shape(
            made.classifier.apply, jax.eval_shape(made.initial, jax.random.key(0)), inputs[:2]
        )
        assert scores.shape == (2, 3)
    assert len({one.name for one in of.recipes}) == len(of.recipes) >= 3
    assert statements.text and re.fullmatch("[a-z0-9 -]+", of.recipes[-1].name)
