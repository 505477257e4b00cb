"""Both selections by averaged utilities, end to end on small real trainings."""

import dataclasses
import functools
import json
import os
import warnings

import flat_call
import jax
import numpy as np
import pytest
import small_tasks
from noted_steps import Stopped, noting

from dpjax import accounting, models, training, tuning
from dpjax.randomness import host_randomness
from dpjax.tuning import Job, cautions
from dpjax.tuning.tuners.partitions import SelectionNoiseWarning

TUNERS = {
    "doubling": tuning.Doubling,
    "exponential": tuning.Exponential,
    "permute_and_flip": tuning.Exponential,
}
SPACE = tuning.Space(learning_rate=tuning.LogUniform(0.01, 1.0), clip_norm=1.0)
WIDE = tuning.Space(learning_rate=tuning.LogUniform(1e-6, 3e38), clip_norm=1.0)
"""For candidates that are listed."""
# Loud enough to select well, so that no test is warned of noise.
QUICK = dict(
    candidates=3,
    partitions=4,
    selection_epsilon=8.0,
    delta=1e-3,
    noise_multiplier=2.0,
    lot_size=20,
    steps=6,
    optimizer=training.sgd(),
    seed=5,
    chunk_size=8,
)
# What only one of them takes; fewer thresholds keep its cost finite.
OWN = {
    "doubling": dict(granularity=0.1),
    "exponential": {},
    "permute_and_flip": dict(mechanism="permute_and_flip"),
}


def _parts(**options):
    return small_tasks.parts(150, 4, **options)


def _task(parts=None, **more):
    return small_tasks.linear(parts or _parts(), **more)


def _run(name, task=None, space=SPACE, cls=None, **more):
    given = QUICK | OWN[name] | more
    return flat_call.tune(cls or TUNERS[name], task or _task(), space, **given)


def _chosen_by(select, cls):
    """The tuner, whose choice is `select(its own, scores, utility, below)`."""

    class Choosing(cls):
        @property
        def choice(self):
            usual, own = super().choice, super().choice
            object.__setattr__(own, "select", functools.partial(select, usual.select))
            return own

    Choosing.__name__ = cls.__name__  # A folder is bound to it.
    return Choosing


@functools.cache
def _usual(name):
    """The run without any change: trained once for all tests that compare with it."""
    return _run(name)


@pytest.fixture(params=TUNERS)
def name(request):
    return request.param


def _selection(name):
    if name == "doubling":
        return accounting.doubling_loop(8.0, granularity=0.1)
    if name == "permute_and_flip":
        return accounting.pure(8.0)
    return accounting.exponential_mechanism(8.0)


def test_the_whole_meets_the_target_and_is_the_composition(name):
    epsilon = 1.2 * _selection(name).epsilon(1e-3)
    result = _run(name, epsilon=epsilon, noise_multiplier=None)
    total = result.guarantee.epsilon(1e-3)
    assert 0.98 * epsilon < total <= epsilon
    again = accounting.compose(_selection(name), result.run_guarantee)
    assert again.epsilon(1e-3) == pytest.approx(total, rel=1e-9)
    claim = result.release.statement
    rebuilt = accounting.from_provenance(json.loads(json.dumps(claim["mechanism"])))
    assert rebuilt.epsilon(1e-3) == total <= claim["epsilon"] == rebuilt.stated_epsilon(1e-3)
    parts = claim["epsilon_of_parts"]
    assert parts["selection_alone"] == result.selection_guarantee.epsilon(1e-3) < total
    assert parts["final_training_alone"] == result.run_guarantee.epsilon(1e-3) < total
    setting = claim["training"][0]
    plain = accounting.dp_sgd(
        sampling_probability=0.2,
        noise_multiplier=setting["noise_multiplier"],
        steps=6,
    ).epsilon(1e-3)
    assert plain <= result.run_guarantee.epsilon(1e-3) <= 1.01 * plain


def test_it_selects_and_trains_a_good_candidate(name):
    listed = [dict(learning_rate=rate, clip_norm=1.0) for rate in (1e-6, 0.5, 1e-5)]
    loud = dict(selection_epsilon=60.0, steps=30, noise_multiplier=1.0)
    result = _run(name, space=WIDE, candidates=listed, **loud)
    assert result.curator.winner == int(np.argmax(result.curator.scores)) == 1
    assert result.release.hyperparameters == listed[1]
    assert result.release.statement["selection"]["candidates"] == listed
    assert result.curator.details["final_model_validation_accuracy"] > 0.8
    assert set(result.curator.details["partition_sizes"]) != {0}


def test_nothing_of_what_was_realised_is_in_the_release(name, tmp_path):
    """The same winner by other noise, another path and other utilities: the same bytes."""
    seeds = iter(range(100, 200))

    def select(usual, scores, utility, below):
        noise = host_randomness.HostRandomness(next(seeds)).uniform_integers(0)
        return usual(scores, utility, noise)

    cls = _chosen_by(select, TUNERS[name])
    paths, contents = {}, {}
    finer = {"granularity": 0.02} if name == "doubling" else {}
    for number in range(4):
        result = _run(name, candidates=2, cls=cls, chunk_size=8 + number % 2, **finer)
        folder = tmp_path / str(number)
        result.release.save(folder)
        winner = result.curator.winner
        contents.setdefault(winner, []).append(
            {
                file: ((folder / file).read_bytes(), os.stat(folder / file).st_mtime)
                for file in sorted(os.listdir(folder))
            }
        )
        paths.setdefault(winner, set()).add(str(result.curator.details["selection"].get("answers")))
    assert max(map(len, contents.values())) >= 2
    assert all(each == same[0] for same in contents.values() for each in same)
    if name == "doubling":
        assert max(map(len, paths.values())) > 1


def test_the_doubling_loops_segments_and_caps_reach_the_guarantee():
    whole = _usual("doubling")
    assert whole.guarantee.provenance["parts"][0]["parameters"]["iterations"] == 19
    capped = _run("doubling", iterations=4)
    assert capped.guarantee.epsilon(1e-3) < whole.guarantee.epsilon(1e-3)
    assert capped.curator.details["selection"]["iterations"] <= 4
    segments = _run("doubling", variant="segments", hits=3)
    loop = accounting.doubling_loop(8.0, granularity=0.1, variant="segments", hits=3)
    expected = accounting.compose(loop, segments.run_guarantee)
    assert segments.guarantee.epsilon(1e-3) == pytest.approx(expected.epsilon(1e-3))
    for result in (whole, capped, segments):
        words = json.dumps(result.release.statement)
        assert "answers" not in words
        assert "hits" not in words or result is segments


def test_release_words(name):
    claim = _usual(name).release.statement
    words = json.dumps(claim)
    assert "K, the losing" not in words and "number of iterations" in words
    assert claim["unit_of_privacy"] == "one labelled record of the training or validation data"
    assert claim["score"]["sensitivity_in_units"] == 50 and claim["score"]["public_size"] == 50
    assert claim["selection"]["partitions"] == 4 and claim["randomness"]["secret"] is False


def test_one_compilation_for_all_partitions_and_candidates():
    traces = []

    def loss(scores, labels):
        traces.append(1)
        return models.cross_entropy(scores, labels)

    def traced(candidates, partitions):
        traces.clear()
        sizes = {"candidates": candidates, "partitions": partitions, "chunk_size": 2}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            _run("exponential", task=_task(loss=loss), **sizes)
        # Of a model that is of no use the gradients are traced once more.
        useless = [one for one in caught if issubclass(one.category, cautions.UselessModelWarning)]
        return len(traces) - len(useless)

    assert 0 < traced(2, 3) == traced(4, 5)


def test_fixed_lots_are_replace_one_and_refuse_a_split_by_content():
    slots = _parts(identified_by="slot")
    # Under replace one the number of records is public: here it is the real one.
    slots = dataclasses.replace(
        slots,
        train=dataclasses.replace(slots.train, public_size=slots.train.number_of_records),
    )
    result = _run("exponential", task=_task(slots), sampling="fixed")
    assert result.guarantee.relation == "replace_one"
    assert result.release.statement["neighbouring_relation"] == "replace_one"
    with pytest.raises(ValueError, match="identified_by='slot'"):
        _run("exponential", sampling="fixed")


@pytest.mark.parametrize("mode", ["rehearsal", "non_private"])
def test_ways_to_train_partitions_cost_the_same(mode):
    result = _run("exponential", partition_training=mode)
    described = result.release.statement["selection"]["partition_training"]
    assert described["mode"] == mode and "none of its own" in described["protection"]
    assert (described["noise_over_clip_norm"] == 0) == (mode == "non_private")
    assert result.guarantee.epsilon(1e-3) == _usual("exponential").guarantee.epsilon(1e-3)


def test_a_final_training_that_fails_releases_a_default_that_saw_no_data():
    listed = [dict(learning_rate=3e38, clip_norm=1.0)] * 2
    with pytest.warns(cautions.UntrainedReleaseWarning):
        first, second = (
            _run(
                "exponential",
                task=_task(_parts(seed=seed)),
                space=WIDE,
                candidates=listed,
                noise_multiplier=200.0,
            )
            for seed in (0, 9)
        )
    for one, other in zip(
        jax.tree.leaves(first.release.params), jax.tree.leaves(second.release.params)
    ):
        assert np.isfinite(one).all()
        np.testing.assert_array_equal(one, other)


def test_the_same_seed_repeats_and_no_seed_does_not():
    first, second = _usual("exponential"), _run("exponential")
    assert first.release.statement == second.release.statement
    assert first.release.hyperparameters == second.release.hyperparameters
    loose = [_run("exponential", seed=None) for _ in range(2)]
    assert loose[0].release.statement["randomness"]["secret"] is True
    drawn = [result.curator.hyperparameters["learning_rate"].tolist() for result in loose]
    assert drawn[0] != drawn[1]


def test_shards_and_one_job_agree(tmp_path):
    folder = str(tmp_path / "work")
    whole = _usual("exponential")
    jobs = [Job(folder=folder, shard=(i, 2)) for i in (1, 0)]
    assert [_run("exponential", job=job) for job in jobs] == [None, None]
    merged = _run("exponential", job=Job(folder=folder, shard=(None, 2)))
    np.testing.assert_array_equal(merged.curator.scores, whole.curator.scores)
    assert merged.release.hyperparameters == whole.release.hyperparameters
    for one, other in zip(
        jax.tree.leaves(merged.release.params), jax.tree.leaves(whole.release.params)
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="other data or settings"):
        _run("exponential", selection_epsilon=7.0, job=Job(folder=folder, shard=(0, 2)))


def test_an_interrupted_job_goes_on_without_training_again(tmp_path):
    job = Job(folder=str(tmp_path / "work"), checkpoint_seconds=0.0)

    def stop(done, total):
        if done >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _run("exponential", job=job, chunk_size=4, progress=stop)
    seen = []
    result = _run(
        "exponential", job=job, chunk_size=4, progress=lambda done, total: seen.append(done)
    )
    assert seen[0] >= 4 and seen[-1] == 13
    np.testing.assert_array_equal(result.curator.scores, _usual("exponential").curator.scores)


def test_a_job_that_stops_after_its_choice_does_not_choose_again(tmp_path):
    job = Job(folder=str(tmp_path / "work"))

    def stop(*arguments, **more):
        raise KeyboardInterrupt

    stopped = noting(tuning.Exponential, [], "final")
    with pytest.raises(Stopped):
        flat_call.tune(stopped, _task(), SPACE, **(QUICK | dict(seed=None, job=job)))
    path = tmp_path / "work" / "choice_winner.npz"
    whole = path.read_bytes()
    with np.load(path) as file:
        ((chosen, _),) = json.loads(file["choice"].tobytes())
    path.write_bytes(whole[:-9])
    with pytest.raises(ValueError, match="choice_winner.npz is damaged or cut short"):
        _run("exponential", seed=None, job=job)
    path.write_bytes(whole)
    first = _run("exponential", seed=None, job=job, cls=_chosen_by(stop, tuning.Exponential))
    assert first.curator.winner == chosen
    # Again, the release written or not: the same one, and no other procedure meets its noise.
    again = _run("exponential", seed=None, job=job)
    jax.tree.map(np.testing.assert_array_equal, again.release.params, first.release.params)
    assert sorted(os.listdir(tmp_path / "work")) == ["consumed", "outcome.npz"], "a key was kept"
    with pytest.raises(ValueError, match=r"other data or settings \(optimizer"):
        _run("exponential", seed=None, job=job, optimizer=training.sgd(lambda step: 0.5))


def test_noise_that_drowns_the_utilities_warns_and_names_what_would_not(name):
    with pytest.warns(SelectionNoiseWarning, match=r"partitions.* epsilon_0 >= 1.1"):
        result = _run(name, selection_epsilon=0.5)
    assert "nearly at random" in result.curator.details["warning_about_noise"]
    assert "nearly at random" not in json.dumps(result.release.statement)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(partitions=101), "public number of training records, 100"),
        (dict(candidates=[{"learning_rate": 1.0}]), "clip_norm, learning_rate"),
        (dict(candidates=[{"learning_rate": np.inf, "clip_norm": 1.0}]), "finite"),
        (dict(noise_multiplier=None), "neither"),
        (dict(epsilon=3.0), "both"),
        (dict(noise_multiplier=0.0), "noise_multiplier"),
        (dict(epsilon=0.5, noise_multiplier=None), "the selection alone costs"),
        (dict(lot_size=1000), "lot_size=1000"),
        (dict(space=tuning.Space(clip_norm=1.0, learning_rate=0.1, steps=tuning.Choice([2, 3])),
              steps=None), "fix steps"),
        (dict(space=tuning.Space(clip_norm=-1.0, learning_rate=0.1)), "clip_norm"),
    ],
)  # fmt: skip
def test_bad_input_gets_one_clear_line(name, change, message):
    """That no argument alone may be: see test_arguments.py."""
    with pytest.raises(ValueError, match=message) as caught:
        _run(name, **change)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(lower_bound=1.0), r"lower_bound must be in \[0, 1\)"),
        (dict(lower_bound=-0.1), r"lower_bound must be in \[0, 1\)"),
        (dict(granularity=0.0), "granularity must be in"),
        (dict(granularity=1.5), "granularity must be in"),
        (dict(granularity=0.6, lower_bound=0.5), "granularity must be in"),
        (dict(granularity=float("nan")), "granularity"),
        (dict(iterations=0), "iterations must be a whole number >= 1"),
        (dict(variant="segments", hits=0), "hits must be a whole number >= 1"),
        (dict(hits=3), "pass variant='segments'"),
        (dict(variant="loops"), "iterations"),
    ],
)
def test_bad_input_for_the_doubling_loop_gets_one_clear_line(change, message):
    with pytest.raises(ValueError, match=message) as caught:
        _run("doubling", **change)
    assert "\n" not in str(caught.value)
