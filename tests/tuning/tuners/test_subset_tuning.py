"""Subset tuning end to end: who sees which records, what lots are divided by, resume, refusals."""

import dataclasses
import json
import math
import os

import flat_call
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_tasks
from noted_steps import Stopped, noting

from dpjax import accounting, training, tuning
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.tuning import Job, NotVerified, Records, RunOptions, Task, verify_release
from dpjax.tuning.job import CONSUMED_FILE, DRAWN_FILE, OUTCOME_FILE, read_arrays
from dpjax.tuning.private_runs import execute, final_run
from dpjax.tuning.runner import hyperparameters_of_runs
from dpjax.tuning.steps import Material, Problem
from experiments.figures.leaderboard import subset_tuning
from experiments.figures.leaderboard.subset_tuning import RULE, SubsetTuning

SPACE = tuning.Space(learning_rate=tuning.LogUniform(0.1, 1.0), clip_norm=1.0)
LAW = accounting.Geometric(3)
DELTA = 1e-6
RUN = dict(
    delta=DELTA, noise_multiplier=2.0, lot_size=10, steps=2, score_noise=2.0,
    optimizer=training.sgd(), repetitions=LAW, probability=0.3,
)  # fmt: skip


def _run(task=None, space=SPACE, seen=None, stop=None, **more):
    cls = noting(SubsetTuning, [] if seen is None else seen, stop)
    return flat_call.tune(cls, task or small_tasks.linear(), space, **(RUN | more))


def _numbered(number=200):
    """Records that are their own numbers; what is trained on tells which they are."""
    return Task(
        initial=lambda key: jnp.zeros(()),
        loss=lambda params, value: -params * jnp.where(value >= 0, 1.0, 0.0),
        correct=lambda params, value: params > value,
        train=Records(np.arange(number, dtype=np.float32), 250, 300),
        validation=Records(np.linspace(-1, 1, 20, dtype=np.float32), 20, 24),
    )


def _material(task):
    return Material.of(task, tuning.Space(learning_rate=0.5, clip_norm=1.0), training.sgd())


def _plan(task, share=0.3, space=None, validation_is_public=True, **options):
    given = dict(lot_size=250, steps=1, noise_multiplier=2.0) | options
    problem = Problem.of(
        task,
        space or tuning.Space(learning_rate=0.5, clip_norm=1.0),
        RunOptions(**given),
        training.sgd(),
        delta=DELTA,
        validation_is_public=validation_is_public,
    )
    return SubsetTuning(share, LAW).plan(problem)


# ---- which records, and with what


def _procedures(seen):
    return [one.procedure for one in seen]


def _sets(seen):
    """Which records each procedure was given."""
    given = [one.material.task.train.arrays for one in seen]
    return [set(np.asarray(arrays).astype(int).tolist()) for arrays in given]


def test_every_record_is_seen_once_by_the_search_or_by_the_final_training():
    parts = []
    for _ in range(3):
        seen = []
        _run(_numbered(), seen=seen)
        part, rest = _sets(seen)
        assert part | rest == set(range(200)) and not part & rest
        parts.append(part)
        search, final = _procedures(seen)
        # Validation records belong to the search; the final training's are looked at, not used.
        assert search.score_noise == 2.0 and final.score_noise == 0.0
        # Bounds, and with them capacities, are those of all records.
        used = [one.material.task.train for one in seen]
        sizes = {(records.public_size, records.size_bound) for records in used}
        assert sizes == {(250, 300)}
        assert search.settings[0].lots == final.settings[0].lots
    # Nobody's seed: 200 coins do not fall alike twice.
    assert len(set(map(frozenset, parts))) == 3


def test_each_record_is_in_the_part_with_the_probability_that_is_priced():
    part = subset_tuning.drawn_part(400_000, 0.3, HostRandomness())
    # Not seeded: seven standard errors, a false alarm once in 10^11 runs.
    assert abs(part.mean() - 0.3) < 7 * math.sqrt(0.3 * 0.7 / 400_000)
    # By itself: neighbours agree as independent coins do. That two agree and that the next two do
    # are correlated, so the variance is 0.311 a coin, and not 0.58 * 0.42.
    alike, share = np.mean(part[1:] == part[:-1]), 0.3**2 + 0.7**2
    variance = share * (1 - share) + 2 * (0.3**3 + 0.7**3 - share**2)
    assert abs(alike - share) < 7 * math.sqrt(variance / 400_000)
    for share in (2.0**-11, 0.1, 0.999):
        assert (share * 2.0**64).is_integer()


def test_lots_are_divided_by_public_expectations_and_the_rate_is_carried_over():
    """One step on every record of a part, hardly any noise: the parameter counts the records."""
    task, share, rate = _numbered(), 0.3, 0.5
    fixed = _plan(task, share)
    fixed = dataclasses.replace(
        fixed, setting=dataclasses.replace(fixed.setting, noise_multiplier=1e-4)
    )
    in_part = np.arange(200) < 90  # Neither .3 of 200 nor of the public 250.
    chosen = {"learning_rate": np.array([rate]), "clip_norm": np.array([1.0])}
    material = _material(task)
    final = final_run(fixed, fixed.settings[1], chosen)
    sums = []
    for procedure, own in (
        (fixed.search, fixed.searched(material, in_part)),
        (final, fixed.finally_trained(material, in_part)),
    ):
        executed = execute(procedure, own, randomness=HostRandomness(1), executions=1)
        sums.append(float(executed.best.output(0)) / rate)
    carried = math.sqrt(share / (1 - share))
    # Some 0.2% is held back for rounding.
    assert sums[0] == pytest.approx(carried * 90 / (share * 250), rel=3e-3)
    assert sums[1] == pytest.approx(110 / ((1 - share) * 250), rel=3e-3)


def test_runs_are_given_their_expected_lot_size_and_a_rate_if_they_read_one():
    fixed = _plan(_numbered())
    assert [setting.expected_lot_size for setting in fixed.settings] == [75.0, 175.0]
    assert fixed.setting.expected_lot_size == 250
    assert {s.lots.sampling_probability for s in fixed.settings} == {1.0}
    given = hyperparameters_of_runs({"learning_rate": np.ones(2)}, fixed.settings)
    assert given["lot_size"].tolist() == [75.0, 175.0]
    scaled = subset_tuning._with_rate_times(lambda given: given, 0.5)
    assert scaled({"learning_rate": 2.0, "momentum": 0.9}) == {
        "learning_rate": 1.0, "momentum": 0.9,
    }  # fmt: skip
    assert scaled({"momentum": 0.9}) == {"momentum": 0.9}


@pytest.mark.parametrize("in_part", [False, True])
def test_a_part_without_records_is_trained_on_like_any_other(in_part):
    fixed, material = _plan(_numbered(3)), _material(_numbered(3))
    members = np.full(3, in_part)
    chosen = {"learning_rate": np.array([0.5]), "clip_norm": np.array([1.0])}
    for procedure, own in (
        (fixed.search, fixed.searched(material, members)),
        (final_run(fixed, fixed.settings[1], chosen), fixed.finally_trained(material, members)),
    ):
        executed = execute(procedure, own, randomness=HostRandomness(1))
        assert np.isfinite(executed.best.score[0]) and executed.best.output(0) != 0.0


def test_of_a_seed_the_final_training_has_a_key_of_its_own(toy):
    with toy.noting() as keys:
        flat_call.tune(
            SubsetTuning,
            toy.task(record=True),
            toy.space(0.5),
            repetitions=accounting.Fixed(2),
            seed=7,
            probability=0.5,
            score_noise=2.0,
            chunk_size=1,
            **toy.settings,
        )
    assert len(keys) == len(set(keys)) == 3


# ---- what it costs


def test_the_claim_is_the_split_and_validation_records_pay_for_the_search_alone():
    result = _run(score_noise=20.0)
    train = result.run_guarantee
    best = accounting.best_of(train, LAW)
    count = accounting.best_of(accounting.discrete_gaussian(20.0), LAW)
    expected = accounting.parallel(accounting.split(best, train, probability=0.3), count)
    assert result.guarantee.provenance == expected.provenance
    assert result.guarantee.epsilon(DELTA) == expected.epsilon(DELTA)
    assert result.guarantee.epsilon(DELTA) < accounting.compose(best, train).epsilon(DELTA)
    claim = result.release.statement
    assert claim["epsilon"] == result.guarantee.stated_epsilon(DELTA)
    assert claim["selection"]["part"] == {
        "probability_of_a_training_record": 0.3,
        "learning_rate_over_the_final_one": math.sqrt(0.3 / 0.7),
    }
    words = json.dumps(claim)
    assert "secret part" in words and "in_part" not in words


def test_a_final_training_of_all_records_is_priced_and_carried_out_as_such(tmp_path):
    seen = []
    result = _run(_numbered(), final_on="all", seen=seen)
    part, final = _sets(seen)
    assert final == set(range(200)) > part
    assert [p.settings[0].expected_lot_size for p in _procedures(seen)] == [0.3 * 10, 10]
    train = result.run_guarantee
    best = accounting.best_of(train, LAW)
    count = accounting.best_of(accounting.discrete_gaussian(2.0), LAW)
    split = accounting.split(best, train, probability=0.3, final_on="all")
    expected = accounting.parallel(split, count)
    assert result.guarantee.provenance == expected.provenance
    assert split.epsilon(DELTA) > train.epsilon(DELTA)
    claim = result.release.statement
    assert claim["selection"]["rule"].endswith("private training on all of them")
    assert claim["selection"]["part"]["learning_rate_over_the_final_one"] == math.sqrt(0.3)
    assert claim["training"][1]["of"] == "the chosen candidate, on all training records"
    result.release.save(tmp_path / "release")
    verify_release(tmp_path / "release")
    # Sealed anew with the words of the other variant, it is none of its.
    other = dict(claim) | {"selection": claim["selection"] | {"rule": RULE}}
    tuning.Release(result.release.params, result.release.hyperparameters, other).save(
        tmp_path / "other"
    )
    with pytest.raises(NotVerified, match="claimed epsilon|is not what its own rules"):
        verify_release(tmp_path / "other")


@pytest.mark.parametrize(("final_on", "lot"), [("rest", 0.7 * 12), ("all", 12.0)])
def test_a_lot_in_the_space_is_released_as_the_final_trainings_own(final_on, lot, tmp_path):
    space = tuning.Space(learning_rate=0.5, clip_norm=1.0, lot_size=12)
    result = _run(space=space, lot_size=None, final_on=final_on)
    chosen = result.release.hyperparameters
    assert chosen["lot_size"] == result.release.statement["training"][1]["lot_size"] == lot
    assert set(result.curator.hyperparameters["lot_size"]) == {lot}
    result.release.save(tmp_path / "release")
    assert verify_release(tmp_path / "release").epsilon > 0
    for other in (12.5, 0.3 * 12, 12 if final_on == "rest" else 0.7 * 12):
        changed = tuning.Release(
            result.release.params, chosen | {"lot_size": other}, result.release.statement
        )
        changed.save(tmp_path / str(other))
        with pytest.raises(NotVerified, match="cannot have released"):
            verify_release(tmp_path / str(other))


def test_the_target_is_met_and_quiet_scores_add_nothing():
    result = _run(noise_multiplier=None, score_noise=None, epsilon=2.0, lot_size=8)
    assert 1.9 < result.guarantee.epsilon(DELTA) <= 2.0
    noise = result.release.statement["score"]["noise_standard_deviation_in_records"]
    scores = accounting.best_of(accounting.discrete_gaussian(noise), LAW)
    assert scores.epsilon(DELTA) <= 2.0
    louder = accounting.best_of(accounting.discrete_gaussian(noise / 1.05), LAW)
    assert louder.epsilon(DELTA) > 1.99


def test_quiet_scores_in_small_units_add_nothing():
    """Whole records would need less noise: it is discrete, and so wide that it shows."""
    task = small_tasks.linear(score="brier")
    plan = _plan(task, validation_is_public=False, lot_size=40, noise_multiplier=0.7)
    run = plan.run_guarantee
    training_alone = accounting.split(
        accounting.best_of(run, LAW), run, probability=0.3, final_on="rest"
    )
    assert plan.guarantee.epsilon(DELTA) == pytest.approx(training_alone.epsilon(DELTA), rel=1e-9)


def test_loud_scores_are_charged_or_refused():
    loud = _run(score_noise=0.3)
    assert loud.guarantee.epsilon(DELTA) > 2 * _run().guarantee.epsilon(DELTA)
    with pytest.raises(ValueError, match="score_noise=0.3 takes the total.*pass a larger"):
        _run(score_noise=0.3, noise_multiplier=None, epsilon=1.0)


# ---- failures


@pytest.mark.parametrize("kept", [False, True])
def test_without_a_candidate_nothing_is_trained_and_the_default_is_released(toy, tmp_path, kept):
    job = Job(folder=str(tmp_path / "work")) if kept else None
    arguments = dict(
        task=toy.task(record=True), space=toy.space(0.5), seed=1, probability=0.5, chunk_size=1,
        repetitions=accounting.Poisson(0.001), score_noise=2.0, job=job, **toy.settings,
    )  # fmt: skip
    for _ in range(1 + kept):
        with toy.noting() as keys:
            result = flat_call.tune(SubsetTuning, **arguments)
        assert keys == [] and result.curator.winner == -1
        assert set(result.release.hyperparameters.values()) == {None}
        jax.tree.map(
            np.testing.assert_array_equal,
            result.release.params,
            jax.device_get(toy.task().initial(jax.random.key(0))),
        )


# ---- one draw of the part


def _part_in(folder):
    return read_arrays(os.path.join(folder, DRAWN_FILE), "x")["in_part"]


def _same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one.release.params, other.release.params)
    assert one.release.hyperparameters == other.release.hyperparameters
    assert dict(one.release.statement) == dict(other.release.statement)
    np.testing.assert_array_equal(one.curator.scores, other.curator.scores)


def test_a_job_that_goes_on_has_the_same_part_and_spends_it_once(tmp_path):
    folder = str(tmp_path / "work")
    with pytest.raises(Stopped):
        _run(_numbered(), job=Job(folder=folder), stop="rest")
    part = set(np.flatnonzero(_part_in(folder)[0]).tolist())
    seen = []
    first = _run(_numbered(), job=Job(folder=folder), seen=seen)
    # The search is not held again, with other candidates: what came out of it was kept.
    assert _sets(seen) == [part, set(range(200)) - part]
    assert not os.path.lexists(os.path.join(folder, DRAWN_FILE))
    kept = read_arrays(os.path.join(folder, OUTCOME_FILE), "x")
    assert "in_part" not in kept
    # Nor what hashes of its records stand in.
    assert sorted(os.listdir(folder)) == [CONSUMED_FILE, OUTCOME_FILE]
    seen.clear()
    _same(_run(_numbered(), job=Job(folder=folder), seen=seen), first)
    assert not seen
    with pytest.raises(ValueError, match="begun with other data or settings.*probability"):
        _run(_numbered(), job=Job(folder=folder), probability=0.4)


def test_shards_share_one_part_and_one_search(tmp_path):
    folder, seen = str(tmp_path / "work"), []
    for index in (0, 1):
        assert _run(_numbered(), seen=seen, job=Job(folder=folder, shard=(index, 2))) is None
    merged = _run(_numbered(), seen=seen, job=Job(folder=folder, shard=(None, 2)))
    sets = _sets(seen)
    assert sets[0] == sets[1] == sets[2] and sets[3] == set(range(200)) - sets[0]
    assert _run(_numbered(), job=Job(folder=folder, shard=(0, 2))) is None
    _same(_run(_numbered(), job=Job(folder=folder, shard=(None, 2))), merged)


def test_a_seed_repeats_everything():
    _same(_run(seed=3), _run(seed=3))


# ---- refusals


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (dict(sampling="fixed"), "no price under replace one.*pass sampling='poisson'"),
        (dict(probability=0.0), "probability must be in"),
        (dict(final_on="some"), "unknown final_on 'some': pass one of"),
        (dict(probability=1e-4), "nearly empty: pass a number between"),
        (dict(epsilon=1.0), "not both"),
        (dict(noise_multiplier=0.0), "noise_multiplier=0 gives no privacy"),
        (dict(score_noise=1e9), "score_noise=.*pass at most"),
        (
            dict(space=tuning.Space(learning_rate=0.1, steps=tuning.Choice([1, 2])), steps=None),
            "must not depend on the candidate, and steps changes it: fix steps",
        ),
    ],
)
def test_refusals(more, words):
    with pytest.raises(ValueError, match=words):
        _run(**more)
