"""A choice among one run's iterates: its price, what is chosen among, what a stop leaves."""

import dataclasses
import functools
import inspect
import itertools
import math
import os

import flat_call
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import small_tasks

from dpjax import accounting, training, tuning
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.training.averages import IterateAt
from dpjax.tuning.evaluations import iterates_of_one_run
from dpjax.tuning.evaluations.iterates_of_one_run import IterateScores, executed, plan
from dpjax.tuning.problem.task import Records, Task, accuracy_of
from dpjax.tuning.tuner import KeepTheWinner, Request, TrainTheWinner
from dpjax.tuning.tuners.chosen_iterate import PermuteAndFlipOfIterates
from dpjax.tuning.verification import verify_release

SPACE = tuning.Space(learning_rate=0.3, momentum=0.5, clip_norm=1.0)
RUN = dict(delta=1e-3, lot_size=20, steps=8)
FEW = dict(decays=(0.7,), tails=(0.5,), moments=(0.25, 0.5))


@dataclasses.dataclass(frozen=True)
class Told:
    """A choice that was made before."""

    place: int
    epsilon: float | None = 1.0

    def guarantee(self, epsilon, relation):
        return accounting.pure(epsilon, relation=relation)

    def select(self, units, epsilon, scores, below):
        self.seen.append((list(units), epsilon, scores))
        return self.place

    def describe(self, epsilon, scores):
        return {"rule": "told"}

    seen = []


@functools.cache
def _told(place):
    """The result where this place is chosen, and what the choice was made by."""
    Told.seen.clear()
    run = tuning.RunOptions(lot_size=20, steps=8, noise_multiplier=1.0)
    task = small_tasks.linear()
    result = tuning.tune(task, SPACE, _chosen(Told(place)), delta=1e-3, seed=3, run=run)
    return result, Told.seen[-1]


# The price ----------------------------------------------------------------------------------------


def test_run_and_choice_cost_the_dearer_of_the_two():
    task = small_tasks.linear()
    result = tuning.chosen_iterate(task, SPACE, epsilon=1.5, seed=3, **RUN)
    alone = flat_call.tune(tuning.Untuned, task, SPACE, epsilon=1.5, seed=3, **RUN)
    assert 1.49 < result.guarantee.epsilon(1e-3) <= 1.5
    # All of the target is the run's, and all of it the choice's.
    stated, of_untuned = (one.release.statement["training"] for one in (result, alone))
    assert stated == of_untuned
    assert result.release.statement["selection"]["epsilon_0"] == 1.5
    assert result.selection_guarantee.pure_epsilon == 1.5
    expected = accounting.parallel(alone.guarantee, accounting.pure(1.5))
    for epsilon in (0.0, 0.5, 1.4):
        assert result.guarantee.delta(epsilon) == expected.delta(epsilon)
        assert result.guarantee.delta(epsilon) >= result.run_guarantee.delta(epsilon)


def test_a_smaller_choice_and_noise_that_is_given():
    task = small_tasks.linear()
    asked = dict(noise_multiplier=1.0, seed=3, **RUN)
    usual = tuning.chosen_iterate(task, SPACE, **asked)
    run = usual.run_guarantee.epsilon(1e-3)
    assert usual.release.statement["selection"]["epsilon_0"] == run
    assert usual.guarantee.epsilon(1e-3) == pytest.approx(run, rel=1e-3)
    quiet = tuning.chosen_iterate(task, SPACE, selection_epsilon=0.1, **asked)
    assert quiet.guarantee.epsilon(1e-3) == pytest.approx(run, rel=1e-6)
    assert quiet.selection_guarantee.epsilon(1e-3) < 0.1
    loud = tuning.chosen_iterate(task, SPACE, selection_epsilon=20.0, **asked)
    assert loud.guarantee.epsilon(1e-3) == pytest.approx(
        accounting.pure(20.0).epsilon(1e-3), rel=1e-3
    )


def test_public_validation_records_cost_nothing_and_the_best_is_chosen():
    task = small_tasks.linear()
    asked = dict(noise_multiplier=1.0, validation_is_public=True, seed=3, **RUN)
    result = tuning.chosen_iterate(task, SPACE, **asked)
    assert result.selection_guarantee is None
    assert result.guarantee.epsilon(1e-3) == result.run_guarantee.epsilon(1e-3)
    best = int(np.argmax(result.curator.accuracies))
    assert result.curator.winner == result.release.hyperparameters["iterate"] == best
    assert result.release.statement["score"]["validation_is_public"] is True


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize("units", [1, 3])
def test_no_probability_changes_by_more_than_the_choice_costs(relation, units):
    """Every data set of up to 3 records that score 3 choices, and all of its neighbours."""
    epsilon, scores = 0.8, IterateScores(units, relation)
    rate = float(scores.rate(epsilon))
    worst = 0.0
    values = range(0, units + 1, units)
    records = list(itertools.product(values, repeat=3))
    bases = [np.zeros(3, int), np.array([units, 0, 0]), np.array([0, 2 * units, units])]
    for base in bases:
        for one, other in itertools.product(records, records):
            first = base + np.array(one)
            second = base if relation == "add_or_remove_one" else base + np.array(other)
            p, q = (_law(list(each), rate) for each in (first, second))
            worst = max(worst, float(np.max(np.abs(np.log(p) - np.log(q)))))
    assert worst <= epsilon + 1e-9
    # The rate is not needlessly small either.
    assert worst > 0.8 * epsilon


def _law(scores, rate):
    """Permute-and-flip's probabilities by every order: (len(scores),)."""
    found, number = np.zeros(len(scores)), math.factorial(len(scores))
    heads = [math.exp(-rate * (max(scores) - one)) for one in scores]
    for order in itertools.permutations(range(len(scores))):
        left = 1.0 / number
        for place in order:
            found[place] += left * heads[place]
            left *= 1.0 - heads[place]
    return found


def test_a_record_moves_the_difference_of_two_scores_by_its_units_and_twice_if_replaced():
    assert IterateScores(1, "add_or_remove_one").sensitivity == 1
    assert IterateScores(256, "add_or_remove_one").sensitivity == 256
    assert IterateScores(256, "replace_one").sensitivity == 512
    assert IterateScores(4, "replace_one").rate(0.5) * 16 == 1


def test_the_choice_is_by_the_rate_it_states():
    """At the law's probabilities, of exact units: 2/3 and 3/2 of the rate are far outside."""
    scores, choice = IterateScores(2, "replace_one"), PermuteAndFlipOfIterates()
    below = HostRandomness(5).uniform_integers(0)
    number = 20_000
    found = np.bincount(
        [choice.select([6, 0, 3], 1.5, scores, below) for _ in range(number)], minlength=3
    )
    np.testing.assert_allclose(found / number, _law([6, 0, 3], 1.5 / 4), atol=0.015)
    for factor in (2 / 3, 3 / 2):
        other = _law([6, 0, 3], factor * 1.5 / 4)
        assert np.max(np.abs(found / number - other)) > 0.03
    described = choice.describe(1.5, scores)
    assert described["rate_for_a_unit"] == 1.5 / 4 and described["epsilon_0"] == 1.5


# What is chosen among -----------------------------------------------------------------------------


@pytest.mark.parametrize("place", range(5))
def test_what_is_released_is_the_choice_that_was_named(place):
    kept = [
        None,
        training.ExponentialAverage(0.7),
        training.TailAverage(0.5),
        IterateAt(0.25),
        IterateAt(0.5),
    ]
    result, _ = _told(place)
    assert result.release.hyperparameters == dict(
        learning_rate=0.3, momentum=0.5, clip_norm=1.0, iterate=place
    )
    told = result.release.statement["selection"]["choices"]
    assert told == ["the last iterate", *(one.words for one in kept[1:])]
    # The same run with that average alone, which is chosen beforehand and scored by nobody.
    task = dataclasses.replace(small_tasks.linear(), averages=kept[place])
    alone = flat_call.tune(tuning.Untuned, task, SPACE, noise_multiplier=1.0, seed=3, **RUN)
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6),
        result.release.params,
        alone.release.params,
    )


def test_exact_counts_of_every_choice_are_chosen_by():
    task = small_tasks.linear()
    results, seen = zip(*map(_told, range(5)))
    assert all(one == seen[0] for one in seen)
    units, epsilon, scores = seen[0]
    number = task.validation.number
    arrays = task.validation.arrays
    right = [accuracy_of(task, one.release.params, arrays) * number for one in results]
    assert units == [round(one) for one in right] and len(set(units)) > 1
    assert epsilon == 1.0 and scores == IterateScores(1, "add_or_remove_one")
    np.testing.assert_allclose(results[0].curator.accuracies * number, right, rtol=1e-6)


def test_scores_in_units_are_chosen_by_in_units():
    def score(params, example):
        return jax.nn.softmax(example[0] @ params["w"])[1]

    task = _numbers(score=score)
    tuning.tune(
        task,
        tuning.Space(learning_rate=0.3, clip_norm=1.0),
        _chosen(Told(1)),
        delta=1e-3,
        optimizer=training.sgd(),
        run=tuning.RunOptions(lot_size=5, steps=4, noise_multiplier=1.0),
        seed=1,
    )
    units, _, scores = Told.seen[-1]
    assert scores.units_of_a_record == scores.sensitivity == 256
    assert max(units) > 256


def _chosen(choice):
    @dataclasses.dataclass(frozen=True)
    class Chosen(tuning.ChosenIterate):
        pass

    Chosen.choice = choice
    return Chosen(**FEW)


def _numbers(**judge):
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(40, 3)).astype(np.float32)
    arrays = inputs, (inputs[:, 0] > 0).astype(np.int32)
    return Task(
        initial=lambda key: {"w": jnp.zeros((3, 2))},
        loss=lambda params, example: optax.softmax_cross_entropy_with_integer_labels(
            example[0] @ params["w"], example[1]
        ),
        **judge,
        train=Records(jax.tree.map(lambda leaf: leaf[:25], arrays), 25, 30),
        validation=Records(jax.tree.map(lambda leaf: leaf[25:], arrays), 15, 20),
    )


def _breaks_after(steps):
    """An optimiser whose iterates are no numbers after some steps."""

    def optimizer(hyperparameters):
        usual = training.sgd()(hyperparameters)

        def update(gradient, state, params):
            updates, inner = usual.update(gradient, state[0], params)
            broken = state[1] >= steps
            updates = jax.tree.map(lambda leaf: jnp.where(broken, jnp.nan, leaf), updates)
            return updates, (inner, state[1] + 1)

        return optax.GradientTransformation(
            lambda params: (usual.init(params), jnp.zeros((), jnp.int32)), update
        )

    return optimizer


def test_only_iterates_that_are_finite_are_chosen_among():
    space = tuning.Space(learning_rate=0.3, clip_norm=1.0)
    asked = dict(noise_multiplier=1.0, seed=3, **FEW, **RUN)
    task = small_tasks.linear()
    # 8 steps: the iterate after a quarter of them is the only one before the break.
    result = tuning.chosen_iterate(task, space, optimizer=_breaks_after(3), **asked)
    assert result.release.hyperparameters["iterate"] == 3
    assert np.isfinite(result.curator.scores).tolist() == [False, False, False, True, False]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.release.params))
    with pytest.warns(UserWarning, match="no iterate of the run is finite"):
        result = tuning.chosen_iterate(task, space, optimizer=_breaks_after(0), **asked)
    assert set(result.release.hyperparameters.values()) == {None}
    expected = task.initial(jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, result.release.params, expected)


def test_the_default_is_the_public_one():
    task = small_tasks.linear()
    asked = dict(epsilon=2.0, delta=1e-3, seed=1)
    result, alone = (
        tuning.chosen_iterate(task, **asked),
        flat_call.tune(tuning.Untuned, task, **asked),
    )
    assert result.release.statement["training"] == alone.release.statement["training"]
    rate = alone.release.hyperparameters["learning_rate"]
    assert result.release.hyperparameters["learning_rate"] == rate


# What a stop leaves -------------------------------------------------------------------------------


def _planned(choice=None, finish=None, **more):
    task = small_tasks.linear()
    request = Request(SPACE, tuning.RunOptions(20, steps=8, noise_multiplier=1.0), delta=1e-3)
    runs = tuning.ChosenIterate(**FEW).evaluation
    choice = choice or PermuteAndFlipOfIterates(0.01)
    return plan(task, dataclasses.replace(request, **more), runs, choice, finish or KeepTheWinner())


def test_a_job_that_goes_on_finds_the_run_and_the_choice(tmp_path, monkeypatch):
    fixed, folder = _planned(), str(tmp_path / "work")
    job = tuning.Job(folder=folder)

    class Stopped(Exception):
        pass

    def stop(*arguments):
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(iterates_of_one_run, "_chosen", stop)
        with pytest.raises(Stopped):
            executed(fixed, randomness=HostRandomness(), job=job)
    keys = np.load(os.path.join(folder, "drawn.npz"))["keys"]
    trained = []
    usual = iterates_of_one_run._trained
    monkeypatch.setattr(
        iterates_of_one_run,
        "_trained",
        lambda fixed, drawn, *rest: trained.append(drawn["keys"]) or usual(fixed, drawn, *rest),
    )
    first = executed(fixed, randomness=HostRandomness(), job=job)
    np.testing.assert_array_equal(trained[0], keys)
    assert sorted(os.listdir(folder)) == ["consumed", "outcome.npz"]
    # Nothing of what was not chosen, and no key, is left.
    left = np.load(os.path.join(folder, "outcome.npz"))
    leaves = jax.tree.leaves(first.params)
    assert [left[f"param_{place}"].shape for place in range(len(leaves))] == [
        leaf.shape for leaf in leaves
    ]
    assert not {"keys", f"param_{len(leaves)}", "leaf_0"} & set(left)
    # The law is nearly flat: ten new draws would not agree.
    for _ in range(10):
        again = executed(fixed, randomness=HostRandomness(), job=job)
        assert again.winners == first.winners and len(trained) == 1
        jax.tree.map(np.testing.assert_array_equal, again.params, first.params)


def test_a_folder_serves_one_list_of_choices_and_one_epsilon(tmp_path):
    job = tuning.Job(folder=str(tmp_path / "work"))
    executed(_planned(), randomness=HostRandomness(), job=job)
    others = (
        _planned(PermuteAndFlipOfIterates(0.02)),
        _planned(validation_is_public=True, choice=PermuteAndFlipOfIterates()),
    )
    for other in others:
        with pytest.raises(ValueError, match="was begun with other data or settings"):
            executed(other, randomness=HostRandomness(), job=job)


def test_every_execution_has_its_own_key_and_draw():
    ran = executed(_planned(), randomness=HostRandomness(), executions=40, chunk_size=40)
    assert len(set(ran.winners.tolist())) == 5
    kernels = jax.tree.leaves(ran.params)[-1]
    assert len(np.unique(kernels.reshape(40, -1), axis=0)) == 40


# What is refused, and stated ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"decays": (), "tails": (), "moments": ()}, "the last iterate is the only choice"),
        ({"decays": (1.5,)}, "each of decays must be in"),
        ({"decays": 0.9}, "decays must be"),
        ({"tails": ("a",)}, "each of tails must be"),
        ({"selection_epsilon": 0.0}, "selection_epsilon must be"),
        ({"selection_epsilon": 9.0}, "selection_epsilon=9 alone costs more than the target 2"),
        (
            {"selection_epsilon": 1.0, "validation_is_public": True},
            "selection_epsilon is for private validation records",
        ),
        ({"epsilon": None}, "the default depends on epsilon"),
        (
            {"space": tuning.Space(learning_rate=tuning.Uniform(0.1, 1.0), momentum=0.9)},
            r"learning_rate is drawn from uniform\(0.1,1.0\): pass a number for it",
        ),
        (
            {"space": tuning.Space(learning_rate=0.1, momentum=0.9, iterate=1.0)},
            "iterate is what is chosen",
        ),
        (
            {"task": dataclasses.replace(small_tasks.linear(), averages=training.TailAverage(0.5))},
            "the task has averages of its own",
        ),
    ],
)
def test_what_is_refused(arguments, message):
    given = {"task": small_tasks.linear(), "epsilon": 2.0} | arguments
    with pytest.raises(ValueError, match=message) as caught:
        tuning.chosen_iterate(given.pop("task"), **given)
    assert "\n" not in str(caught.value)


def test_shards_and_another_finish_are_refused(tmp_path):
    job = tuning.Job(folder=str(tmp_path), shard=(0, 2))
    with pytest.raises(ValueError, match="there is one run: drop the shard"):
        tuning.chosen_iterate(small_tasks.linear(), epsilon=2.0, job=job)
    with pytest.raises(ValueError, match="one run ends in KeepTheWinner"):
        _planned(finish=TrainTheWinner())


def test_a_release_that_names_another_iterate_than_there_is_is_not_verified(tmp_path):
    result = tuning.chosen_iterate(
        small_tasks.linear(), SPACE, noise_multiplier=1.0, seed=3, **FEW, **RUN
    )
    for place, fits in ((4, True), (5, False), (-1, False), (None, False)):
        chosen = result.release.hyperparameters | {"iterate": place}
        folder = tmp_path / str(place)
        tuning.Release(result.release.params, chosen, result.release.statement).save(folder)
        if fits:
            verify_release(str(folder / "guarantee.json"))
        else:
            with pytest.raises(ValueError, match="cannot have released"):
                verify_release(str(folder / "guarantee.json"))


def test_the_section_of_formal_guarantees_is_kept():
    section = inspect.getdoc(tuning.chosen_iterate).split("Formal guarantees:")[1]
    flat = " ".join(section.split("Args:")[0].split())
    for words in (
        "no record stands in both parts",
        "post-processing of the noisy sums",
        "exact integer scores",
        "twice where one is replaced",
        "charged as pure epsilon_0",
        "a validation record reaches no iterate and pays for the choice",
        "releases parameters that do not depend on data",
    ):
        assert words in flat


@pytest.mark.parametrize("delta", [1e-5, 1e-8])
def test_a_target_is_met_at_any_delta_though_the_choice_is_pure(delta):
    asked = {**RUN, "epsilon": 2.0, "delta": delta, "seed": 0}
    result = tuning.chosen_iterate(small_tasks.linear(), SPACE, **asked)
    assert 1.99 < result.release.statement["epsilon"] <= 2.0
