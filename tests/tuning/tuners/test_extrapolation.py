"""Extrapolation: its line, price, what each part is trained with, what a stop leaves; an audit."""

import dataclasses
import functools
import json

import flat_call
import jax
import numpy as np
import pytest
from audits import canary_task, epsilon_lower_bound
from noted_steps import Stopped, noting

from dpjax import accounting, training, tuning
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.tuning import Job, cautions, driver
from dpjax.tuning.problem.space import Integer
from dpjax.tuning.steps import Material, Problem
from experiments.figures.leaderboard import extrapolation
from experiments.figures.leaderboard.extrapolation import FittedLine

LAW = accounting.AtMost(accounting.Geometric(mean=3), cap=4)
NOISE = (12.0, 6.0)
ALL = 2.0
"""A share of unlucky keys that leaves none out."""


def _line(law, heights, epsilons, at, steps=7, fit="free", **others):
    """The extrapolated rates of winners' rates (executions, stages)."""
    space = tuning.Space(rate=law, **{name: tuning.Uniform(0.0, 1.0) for name in others})
    winners = [
        {"rate": column} | {name: values[:, place] for name, values in others.items()}
        for place, column in enumerate(np.asarray(heights, float).T)
    ]
    return FittedLine("rate", fit).values(space, winners, epsilons, at, steps)


def test_the_line_goes_through_two_points_and_is_least_squares_through_more():
    wide = tuning.Uniform(-100.0, 100.0)
    found = _line(wide, [[1.0, 2.0], [3.0, 1.0]], [0.1, 0.3], 0.6)["rate"]
    np.testing.assert_allclose(found, [3.5, -2.0])
    heights, places = np.random.default_rng(0).uniform(size=(5, 3)), [0.1, 0.25, 0.7]
    expected = [np.polyval(np.polyfit(places, row, 1), 2.0) for row in heights]
    np.testing.assert_allclose(_line(wide, heights, places, 2.0)["rate"], expected)


def test_the_line_through_the_origin_is_proportional_to_epsilon():
    wide = tuning.Uniform(-100.0, 100.0)
    heights, places = np.array([[0.2, 0.6], [0.5, 0.1]]), np.array([0.1, 0.3])
    found = _line(wide, heights, places, 1.5, fit="through_origin")["rate"]
    slopes = [np.linalg.lstsq(places[:, None], row, rcond=None)[0][0] for row in heights]
    np.testing.assert_allclose(found, 1.5 * np.array(slopes))
    assert found[0] == pytest.approx(3.0)


def test_what_leaves_the_law_is_clamped_to_it_and_stays_one_of_its_values():
    heights = [[1.0, 9.0], [9.0, 1.0], [2.0, 2.1]]
    inside = _line(tuning.LogUniform(0.5, 10.0), heights, [0.1, 0.2], 2.0)["rate"]
    np.testing.assert_allclose(inside, [10.0, 0.5, 3.9])
    for law in (tuning.Choice([10.0, 0.5, 4.0, 9.0]), Integer(1, 10)):
        found = _line(law, heights, [0.1, 0.2], 2.0)["rate"]
        assert found.tolist() == [10.0, min(law.values), 4.0]


def test_where_a_stage_finds_nothing_every_hyperparameter_is_the_middle_of_its_law():
    other = np.array([[0.9, 0.8], [0.9, 0.8], [0.9, np.nan]])
    heights = [[1.0, 2.0], [np.nan, 2.0], [1.0, np.nan]]
    found = _line(tuning.LogUniform(0.1, 10.0), heights, [0.1, 0.2], 0.3, other=other)
    np.testing.assert_allclose(found["rate"], [3.0, 1.0, 1.0])
    # Of a space's other hyperparameters the last stage's, of the largest epsilon.
    np.testing.assert_allclose(found["other"], [0.8, 0.5, 0.5])


SPACE = tuning.Space(quality=tuning.Uniform(0.05, 0.95), clip_norm=1.0)


def _tuner(**more):
    return extrapolation.Extrapolation(
        **(dict(repetitions=LAW, stage_noise=NOISE, extrapolated="quality") | more)
    )


def _plan(toy, tuner=None, which=0, space=SPACE, **more):
    """The plan of the toy's settings."""
    settings = toy.settings | more
    options = {name: settings[name] for name in ("noise_multiplier", "lot_size", "steps")}
    problem = Problem.of(
        toy.task(which),
        space,
        tuning.RunOptions(**options),
        settings["optimizer"],
        delta=settings["delta"],
        epsilon=settings.get("epsilon"),
    )
    tuner = tuner or _tuner()
    return tuner.plan(problem)


def _called(toy, task=None, seen=None, stop=None, stop_after=None, cls=None, **more):
    arguments = dict(repetitions=LAW, stage_noise=NOISE, extrapolated="quality", chunk_size=4)
    cls = cls or extrapolation.Extrapolation
    tuner = noting(cls, [] if seen is None else seen, stop, stop_after)
    return flat_call.tune(tuner, task or toy.task(), SPACE, **(arguments | toy.settings | more))


def _run(toy, noise):
    """The cost of one run, its score aside, from the definition."""
    bound, rate, steps = toy.training_bound, 8 / toy.public_training, 2
    return accounting.dp_sgd(rate, noise, steps), accounting.lot_capacity(bound, rate, steps, 1e-9)


def test_everything_is_charged_stages_scores_selection_and_the_final_training(toy):
    fixed, delta = _plan(toy), 1e-6
    for stage, noise in zip(fixed.stages, NOISE, strict=True):
        (setting,) = stage.settings
        plain, capacity = _run(toy, noise)
        assert (setting.noise_multiplier, setting.lots.capacity) == (noise, capacity)
        # The score hides behind the training, and is charged in parallel with it.
        assert stage.score_noise > 0
        count = accounting.discrete_gaussian(stage.score_noise)
        one = accounting.parallel(plain, count)
        expected = accounting.best_of(one, LAW).epsilon(delta)
        # Grids differ, and lots that overflow are charged beside.
        assert stage.guarantee.epsilon(delta) == pytest.approx(expected, rel=2e-3)
    final, _ = _run(toy, 3.0)
    whole = accounting.compose(*(stage.guarantee for stage in fixed.stages), final)
    assert fixed.guarantee.epsilon(delta) == pytest.approx(whole.epsilon(delta), rel=1e-3)
    for part in (*(stage.guarantee for stage in fixed.stages), fixed.run_guarantee):
        assert part.epsilon(delta) < fixed.guarantee.epsilon(delta)
    without = accounting.compose(fixed.stages[1].guarantee, fixed.run_guarantee)
    assert fixed.guarantee.epsilon(delta) > without.epsilon(delta) * (1 + 1e-6)
    assert fixed.final_epsilon > fixed.epsilons[1] > fixed.epsilons[0] > 0


def test_a_target_is_met_and_split_by_the_public_shares(toy):
    tuner = _tuner(stage_noise=None, stage_shares=(0.2, 0.4), repetitions=accounting.Fixed(1))
    fixed = _plan(toy, tuner, epsilon=2.0, noise_multiplier=None)
    assert 1.96 < fixed.guarantee.epsilon(1e-6) <= 2.0
    for stage, share in zip(fixed.stages, (0.2, 0.4), strict=True):
        assert 0.98 * share * 2.0 < stage.guarantee.epsilon(1e-6) <= share * 2.0


def test_each_part_is_trained_as_charged_and_the_final_one_with_what_the_line_says(toy):
    seen = []
    with toy.noting() as keys:
        result = _called(toy, toy.task(record=True), seen=seen, seed=21, chunk_size=1)
    procedures = [one.procedure for one in seen]
    sources = [one.how.randomness for one in seen]
    ran = [one.answers[0].executed for one in seen]
    noises = [one.settings[0].noise_multiplier for one in procedures]
    assert noises == [*NOISE, toy.settings["noise_multiplier"]]
    assert [one.settings[0].steps for one in procedures] == [2, 2, 2]
    # Stages and final training share nothing, under a seed neither.
    assert len({source.seed for source in sources}) == 3
    assert len(keys) == len(set(keys)) == sum(int(one.counts[0]) for one in ran)
    winners = [
        {name: values[one.best.candidate] for name, values in one.hyperparameters.items()}
        for one in ran[:2]
    ]
    # The best by the noisy score, which is what was paid for.
    for one in ran[:2]:
        assert one.best.candidate[0] == np.argmax(one.scores)
    fixed = _plan(toy)
    exact = [
        {name: values[[np.argmax(one.units)]] for name, values in one.hyperparameters.items()}
        for one in ran[:2]
    ]
    line, of_exact = (
        FittedLine("quality").values(SPACE, some, fixed.epsilons, fixed.final_epsilon, 2)
        for some in (winners, exact)
    )
    assert line["quality"] != of_exact["quality"]  # The test looks where it matters.
    released = result.release.hyperparameters
    assert released == {name: float(values[0]) for name, values in line.items()}
    assert result.release.params["w"] == np.float32(released["quality"])
    assert result.guarantee.epsilon(1e-6) == pytest.approx(fixed.guarantee.epsilon(1e-6))
    assert result.curator.number_of_candidates == sum(int(one.counts[0]) for one in ran[:2])


def test_without_a_seed_every_part_draws_from_the_operating_system(toy):
    seen = []
    _called(toy, seen=seen)
    assert all(one.how.randomness.secret for one in seen) and len(seen) == 3


@pytest.mark.parametrize("why", ["all fail", "no run"])
def test_stages_that_find_nothing_end_in_the_public_default(toy, why):
    law = accounting.Poisson(0.01) if why == "no run" else LAW
    task = toy.task(record=True, failing=ALL if why == "all fail" else 0.0)
    with toy.noting() as keys:
        if why == "all fail":
            with pytest.warns(cautions.UntrainedReleaseWarning):
                result = _called(toy, task, repetitions=law, seed=1, chunk_size=1)
            default = jax.device_get(toy.task().initial(jax.random.key(0)))
            jax.tree.map(np.testing.assert_array_equal, result.release.params, default)
        else:
            result = _called(toy, task, repetitions=law, seed=1, chunk_size=1)
            assert result.release.params["w"] == np.float32(0.5)
    assert result.release.hyperparameters == {"quality": pytest.approx(0.5), "clip_norm": 1.0}
    if why == "no run":
        assert len(keys) == 1 and result.curator.number_of_candidates == 0


def test_an_interruption_redraws_nothing(toy, tmp_path):
    """A stop before the final training, and after it: the same winners, the same release."""
    job = Job(folder=str(tmp_path / "work"))
    seen = []
    with toy.noting() as keys, pytest.raises(Stopped):
        _called(toy, toy.task(record=True), seen=seen, stop="final", job=job, chunk_size=1)
    assert [one.request.name for one in seen] == ["stage_1", "stage_2"] and len(keys) > 0
    before = [one.answers[0].hyperparameters for one in seen]
    seen.clear()
    with toy.noting() as keys:
        first = _called(toy, toy.task(record=True), seen=seen, job=job, chunk_size=1)
    assert len(keys) == 1, "a stage was trained again"
    assert [one.answers[0].hyperparameters for one in seen[:2]] == before
    with toy.noting() as keys:
        again = _called(toy, toy.task(record=True), job=job, chunk_size=1)
    assert keys == []
    assert again.release.hyperparameters == first.release.hyperparameters
    jax.tree.map(np.testing.assert_array_equal, again.release.params, first.release.params)
    with pytest.raises(ValueError, match="other data or settings"):
        _called(toy, toy.task(record=True), job=job, chunk_size=1, noise_multiplier=4.0)


def test_shards_share_the_first_stage_and_the_merge_trains_the_rest(toy, tmp_path):
    whole = _called(toy, seed=3)
    jobs = [Job(folder=str(tmp_path / "work"), shard=(index, 2)) for index in (0, 1, None)]
    assert [_called(toy, seed=3, job=job) for job in jobs[:2]] == [None, None]
    merged = _called(toy, seed=3, job=jobs[2])
    assert merged.release.hyperparameters == whole.release.hyperparameters


def test_a_final_training_goes_on_with_its_own_hyperparameters_only(toy, tmp_path):
    """Should a stage's folder be lost, another winner's rate does not meet the same key."""
    job = Job(folder=str(tmp_path / "work"))
    read = []

    class Falling(FittedLine):
        def values(self, *arguments):
            read.append(super().values(*arguments))
            return {name: (1.0 - 0.1 * (len(read) - 1)) * one for name, one in read[-1].items()}

    class OfFalling(extrapolation.Extrapolation):
        def plan(self, problem):
            plan = super().plan(problem)
            return dataclasses.replace(plan, line=Falling(plan.line.extrapolated, plan.line.fit))

    with pytest.raises(Stopped):
        _called(toy, stop_after="final", job=job, cls=OfFalling)
    with pytest.raises(ValueError, match=r"other data or settings \(chosen hyper"):
        _called(toy, job=job, cls=OfFalling)


def test_what_the_stages_found_is_not_stated(toy):
    result = _called(toy, seed=3)
    words = json.dumps(result.release.statement)
    for value in result.curator.hyperparameters["quality"]:
        assert str(value) not in words
    claim = result.release.statement
    assert [one["of"] for one in claim["training"]] == [
        "a candidate of stage 1", "a candidate of stage 2", "the extrapolated candidate",
    ]  # fmt: skip
    assert claim["selection"]["stages"] == 2 and claim["selection"]["extrapolated"] == "quality"
    parts = claim["epsilon_of_parts"]
    assert len(parts["each_stage_alone"]) == 2
    assert max(parts["each_stage_alone"]) < parts["selection_alone"] < claim["epsilon"]


REFUSED = [
    (dict(stage_noise=(6.0, 12.0)), "descending stage_noise"),
    (dict(stage_noise=(6.0,)), "stage_noise must be two or more"),
    (dict(stage_noise=(6.0, -1.0)), "stage_noise must be two or more"),
    (dict(stage_noise=None), "stage_shares are of a target"),
    (dict(stage_shares=(0.2, 1.0)), "stage_shares must be two or more"),
    (dict(stage_shares=(0.2,)), "stage_shares must be two or more"),
    (dict(extrapolated="clip_norm"), "must be drawn from a range"),
    (dict(extrapolated="momentum"), "must be drawn from a range"),
    (dict(fit="bent"), "unknown fit 'bent'"),
    (dict(epsilon=1.0), "both"),
    (dict(noise_multiplier=None), "neither"),
    (dict(noise_multiplier=0.0), "noise_multiplier=0"),
    (dict(epsilon=0.01, noise_multiplier=None), "the stages alone cost"),
    (dict(steps=None, space=tuning.Space(quality=0.5, clip_norm=1.0, steps=2)), "beside the space"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_bad_input_gets_one_clear_line(toy, change, message):
    arguments = dict(space=SPACE, repetitions=LAW, stage_noise=NOISE, extrapolated="quality")
    with pytest.raises(ValueError, match=message) as caught:
        flat_call.tune(
            extrapolation.Extrapolation, toy.task(), **(arguments | toy.settings | change)
        )
    assert "\n" not in str(caught.value)


# An audit: stages, line and final training, against what is claimed ------------------------------

EXECUTIONS, DELTA = 12_000, 0.02
STAGE_NOISE, FINAL_NOISE = (4.0, 3.0), 2.0
AUDITED = accounting.AtMost(accounting.Geometric(mean=2), cap=4)


@functools.cache
def _audited() -> extrapolation.StagesPlan:
    """The plan, of the canary problem of `test_audit.py`: a record more moves a model up."""
    problem = Problem.of(
        canary_task(True),
        tuning.Space(learning_rate=tuning.Uniform(0.5, 1.5), clip_norm=1.0),
        # Every record in every lot: nothing hides the canary but the noise.
        tuning.RunOptions(lot_size=2, steps=1, noise_multiplier=FINAL_NOISE),
        training.sgd(),
        delta=DELTA,
    )
    return extrapolation.Extrapolation(AUDITED, stage_noise=STAGE_NOISE).plan(problem)


def _executed(with_canary: bool, noise_factor: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(EXECUTIONS,) each, larger with the canary: of what every execution releases; of all that is
    paid for, the stages' winners with it. All noise is that of the plan times a factor."""

    def quieter(setting):
        return dataclasses.replace(
            setting, noise_multiplier=setting.noise_multiplier * noise_factor
        )

    fixed, seen = _audited(), []
    stages = tuple(
        dataclasses.replace(stage, settings=tuple(map(quieter, stage.settings)))
        for stage in fixed.stages
    )
    found = driver.drive(
        noting(extrapolation.Extrapolation, seen)(AUDITED, stage_noise=STAGE_NOISE),
        dataclasses.replace(fixed, stages=stages, setting=quieter(fixed.setting)),
        Material.of(canary_task(with_canary), fixed.problem.space, training.sgd()),
        randomness=HostRandomness(seed),
        executions=EXECUTIONS,
        chunk_size=1 << 14,
    )

    def steps_of(models: list) -> np.ndarray:
        return np.array([one.params / one.hyperparameters["learning_rate"] for one in models])

    final = steps_of(found)
    everything = final / FINAL_NOISE**2
    for stage, noise in zip(seen[:-1], STAGE_NOISE, strict=True):
        everything = everything + steps_of(stage.answers) / noise**2
    return final, everything


def _audits(noise_factor: float) -> list[float]:
    views = zip(_executed(True, noise_factor, seed=11), _executed(False, noise_factor, seed=12))
    return [epsilon_lower_bound(inside, outside, DELTA) for inside, outside in views]


def test_what_is_claimed_is_not_exceeded_and_the_audit_has_power():
    claim = _audited().guarantee.epsilon(DELTA)
    released, everything = _audits(1.0)
    assert released <= claim and everything <= claim
    # The audit is no toy: it finds a good part of what is claimed.
    assert everything >= 0.4 * claim


def test_half_the_noise_is_caught():
    assert _audits(0.5)[1] > _audited().guarantee.epsilon(DELTA)
