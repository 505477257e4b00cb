"""Which numbers are passed and released: public ones, never the real number of records.

The numbers of records (30 and 18 of one data set, 37 and 21 of another), their public sizes (40 and
24) and bounds (50 and 32) all differ, so a release that mixes them up is not the expected one.
"""

import functools
import json
import math
import os
import pathlib
import warnings

import flat_call
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting, pareto, training, tuning
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.tuning import Job, Records, RunOptions, Task
from dpjax.tuning.private_runs import execute
from dpjax.tuning.selection import BestOf
from dpjax.tuning.steps import Material, Problem, plan_runs
from experiments.figures.leaderboard.extrapolation import Extrapolation
from experiments.figures.leaderboard.subset_tuning import SubsetTuning

LAW = accounting.Geometric(4)
SCORE_NOISE = 3.0
SPACE = tuning.Space(quality=tuning.Choice([0.3, 0.7], [0.4, 0.6]), clip_norm=1.0)
LISTED = [dict(quality=quality, clip_norm=1.0) for quality in (0.3, 0.7, 0.7)]
"""Far apart: by noise that is charged the better wins nearly always, from a place of its own."""
DRAWN_BY_SPACE = dict(score_noise=SCORE_NOISE, chunk_size=2)


def _random_repetitions(toy, which, **more):
    arguments = DRAWN_BY_SPACE | toy.settings | more
    return flat_call.tune(
        tuning.RandomRepetitions, toy.task(which), SPACE, repetitions=LAW, **arguments
    )


def _threshold_stopping(toy, which):
    return flat_call.tune(
        tuning.ThresholdStopping,
        toy.task(which),
        SPACE,
        threshold=0.4,
        halting_probability=0.2,
        **DRAWN_BY_SPACE,
        **toy.settings,
    )


def _one_choice(tuner, toy, which, **more):
    return flat_call.tune(
        tuner,
        toy.task(which),
        SPACE,
        candidates=LISTED,
        partitions=4,
        selection_epsilon=20.0,
        chunk_size=6,
        **toy.settings,
        **more,
    )


_exponential = functools.partial(_one_choice, tuning.Exponential)
_permute_and_flip = functools.partial(_one_choice, tuning.Exponential, mechanism="permute_and_flip")


def _doubling(toy, which):
    return flat_call.tune(tuning.Doubling, toy.task(which), SPACE, candidates=LISTED, partitions=4,
        selection_epsilon=20.0, granularity=0.25, chunk_size=6, **toy.settings,
    )  # fmt: skip


def _extrapolation(toy, which):
    return flat_call.tune(
        Extrapolation,
        toy.task(which),
        SPACE,
        repetitions=accounting.AtMost(LAW, cap=6),
        stage_noise=(9.0, 6.0),
        extrapolated="quality",
        chunk_size=2,
        **toy.settings,
    )


def _subset_tuning(toy, which):
    return flat_call.tune(
        SubsetTuning,
        toy.task(which),
        SPACE,
        repetitions=LAW,
        probability=0.3,
        **DRAWN_BY_SPACE,
        **toy.settings,
    )


PROCEDURES = {
    "random repetitions": (_random_repetitions, (0, 1, 2)),
    "threshold stopping": (_threshold_stopping, (0, 1)),
    "exponential": (_exponential, (0, 1)),
    "permute_and_flip": (_permute_and_flip, (0, 1)),
    "doubling": (_doubling, (0, 1)),
    "extrapolation": (_extrapolation, (0, 1)),
    "subset tuning": (_subset_tuning, (0, 1, 2)),
}
"""What is called, and with which streams of the operating system, the two data sets in turn."""


def _saved(result, folder):
    """Every file of a release, its content and its time stamp."""
    result.release.save(folder)
    return {
        name: ((folder / name).read_bytes(), os.stat(folder / name).st_mtime)
        for name in sorted(os.listdir(folder))
    }


@pytest.fixture(scope="module", params=PROCEDURES)
def results(request, toy, operating_system):
    """The name of a procedure and some of its results, on the two data sets in turn."""
    call, streams = PROCEDURES[request.param]
    found = []
    for place, stream in enumerate(streams):
        with operating_system(stream), warnings.catch_warnings():
            # That partitions are empty, and noise is loud.
            warnings.simplefilter("ignore", UserWarning)
            found.append(call(toy, place % 2))
    return request.param, found


def test_a_release_is_a_function_of_the_winner_alone(results, tmp_path):
    """Not of the records, their number, K, who else there was, nor of the winner's place."""
    name, found = results
    alike, circumstances = {}, {}
    for place, result in enumerate(found):
        released = result.release.hyperparameters["quality"]
        alike.setdefault(released, []).append(_saved(result, tmp_path / str(place)))
        seen = (place % 2, result.curator.number_of_candidates, result.curator.winner)
        circumstances.setdefault(released, set()).add(seen)
    assert all(each == same[0] for same in alike.values() for each in same)
    # Two data sets, and for selections among runs two places of the winner, gave one release.
    assert any(len({which for which, *_ in seen}) == 2 for seen in circumstances.values())
    if name == "random repetitions":
        assert any(len({winner for *_, winner in seen}) > 1 for seen in circumstances.values())


LISTED_KEYS = json.loads((pathlib.Path(__file__).parents[1] / "release_keys.json").read_text())
"""What `guarantee.json` may say; whoever adds a key answers for where its value comes from."""


def _check_keys(claim, name):
    allowed = LISTED_KEYS["every procedure"] | LISTED_KEYS[name]
    assert set(claim) == set(allowed)
    for key, inside in allowed.items():
        if inside is not None:
            for part in claim[key] if isinstance(claim[key], list) else [claim[key]]:
                assert set(part) == set(inside), key


def test_the_folder_holds_what_is_listed_here_and_public_numbers(results, toy, tmp_path):
    name, (result, *_) = results
    folder = tmp_path / "release"
    result.release.save(folder)
    assert sorted(os.listdir(folder)) == [
        "guarantee.json",
        "hyperparameters.json",
        "model.msgpack",
    ]
    said = json.loads((folder / "hyperparameters.json").read_text())
    assert set(said) == {"quality", "clip_norm"}
    claim = json.loads((folder / "guarantee.json").read_text())
    _check_keys(claim, name)
    # What lots are divided by are shares of the public lot size.
    sizes = [said["lot_size"] for said in claim["training"]]
    parts = {"extrapolation": [8, 8, 8], "subset tuning": [0.3 * 8, 0.7 * 8]}
    assert sizes == pytest.approx(parts.get(name, [8]))
    assert claim["score"]["public_size"] == toy.public_validation
    assert any(f"more than {toy.training_bound} records" in words for words in claim["assumptions"])
    public = {"public_size": toy.public_training, "size_bound": toy.training_bound, "number": None}
    assert claim["training_records"] == public
    capacity = accounting.lot_capacity(toy.training_bound, 8 / toy.public_training, 2, 1e-9)
    assert {said["capacity"] for said in claim["training"]} == {capacity}
    _check_run(toy, result.run_guarantee, steps=2)


def _check_run(toy, run, *, steps, bound=None):
    """The cost of one run: the public rate, and its overflow charged, as computed here."""
    rate, bound = 8 / toy.public_training, bound or toy.training_bound
    capacity = accounting.lot_capacity(bound, rate, steps, 1e-9)
    overflow = accounting.truncation_probability(bound, rate, capacity, steps)
    assert 1e-13 < overflow <= 1e-9
    # Beyond any loss of the noise an overflow is all that is left.
    assert overflow <= run.delta(60.0) <= 1e-8
    plain = accounting.dp_sgd(rate, 3.0, steps)
    score = accounting.discrete_gaussian(noise_std=SCORE_NOISE, relation="add_or_remove_one")
    for epsilon in (0.1, 0.5):
        training_alone = plain.delta(epsilon)
        most = max(training_alone, score.delta(epsilon)) * 1.02 + 1e-8
        assert training_alone <= run.delta(epsilon) <= most


def test_what_comes_from_epochs_comes_from_the_public_number(toy):
    more = dict(steps=None, lot_size=None, seed=1)
    results = [_random_repetitions(toy, which, epochs=3.0, **more) for which in (0, 1)]
    said = [result.release.statement["training"][0] for result in results]
    # A sixteenth of the public 40 is 2 records; 3 passes over them are 60 steps.
    assert said[0] == said[1] and (said[0]["lot_size"], said[0]["steps"]) == (2, 60)


def test_the_noise_of_the_score_is_chosen_without_the_records(toy):
    results = [_random_repetitions(toy, which, score_noise=None, seed=1) for which in (0, 1)]
    first, second = (result.release.statement for result in results)
    assert first["score"] == second["score"] and first["epsilon"] == second["epsilon"]
    assert first["score"]["noise_standard_deviation_in_records"] > 0.5


# ---- what is trained is what is charged

WIDTH, STEPS = 256, 12


def _counting(number):
    """Every record moves every parameter by 1 / sqrt(WIDTH): parameters show lots and noise."""

    def loss(params, value):
        return -jnp.sum(params["w"]) * value / math.sqrt(WIDTH)

    return Task(
        initial=lambda key: {"w": jnp.zeros(WIDTH)},
        loss=loss,
        correct=lambda params, value: params["w"][0] > value,
        train=Records(
            np.ones(number, np.float32),
            40,
            50,
            identifiers=np.arange(number),
            stable_under_removal=True,
        ),
        validation=Records(
            np.ones(18, np.float32), 24, 32, identifiers=np.arange(18), stable_under_removal=True
        ),
    )


def _check_trained(params, steps, noise_multiplier, lot_size=8, public=40, number=30):
    """Lots are drawn at lot_size over the PUBLIC size, and the noise is that of the multiplier.

    Args:
      params: (runs, WIDTH), each run's sum of noisy gradients over the lot size.
    """
    sums = params * lot_size * math.sqrt(WIDTH)
    records = sums.mean(axis=1)
    rate, runs = lot_size / public, len(params)
    noise = noise_multiplier**2 * steps
    spread = math.sqrt((number * steps * rate * (1 - rate) + noise) / runs)
    assert abs(records.mean() - number * steps * rate) < 5 * spread
    # Over the bound, or over the real number, it would be a fifth less, or a third more.
    assert 5 * spread < 0.1 * number * steps * rate
    rest = (sums - records[:, None]) / math.sqrt(WIDTH)
    degrees = runs * (WIDTH - 1)
    assert abs(np.sum(rest**2) / noise - degrees) < 5 * math.sqrt(2 * degrees)


@pytest.mark.parametrize("way", ["in memory", "in a folder", "several settings"])
def test_runs_are_trained_at_the_rate_and_with_the_noise_that_are_charged(way, tmp_path):
    task = _counting(30)
    space = tuning.Space(learning_rate=1.0, clip_norm=1.0)
    if way == "several settings":
        space = tuning.Space(space.parameters, lot_size=tuning.Choice([8, 8.0001]))
    procedure = plan_runs(
        Problem.of(
            task,
            space,
            RunOptions(None if way == "several settings" else 8, STEPS, None, 1.5),
            training.sgd(),
            delta=1e-6,
            validation_is_public=True,
        ),
        BestOf(accounting.Fixed(1)),  # So that every run is the best of its execution.
    )
    job = Job(folder=str(tmp_path / "work")) if way == "in a folder" else Job()
    material = Material.of(task, space, training.sgd())
    ran = execute(
        procedure, material, randomness=HostRandomness(2), executions=96, chunk_size=32, job=job
    )
    _check_trained(np.asarray(ran.best.outputs["w"], np.float64), STEPS, 1.5)


def test_the_final_run_of_a_partitioned_selection_is_trained_as_it_is_charged():
    steps = 450
    result = flat_call.tune(
        tuning.Exponential,
        _counting(30),
        tuning.Space(learning_rate=1.0, clip_norm=1.0),
        candidates=1,
        partitions=2,
        selection_epsilon=5.0,
        noise_multiplier=1.0,
        lot_size=8,
        steps=steps,
        optimizer=training.sgd(),
        delta=1e-3,
        seed=4,
    )
    _check_trained(np.asarray(result.release.params["w"], np.float64)[None], steps, 1.0)


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_a_searchs_privacy_oracle_charges_lots_that_overflow(sampling, toy):
    """The price of a setting, of the run that is released with it, and what may go wrong in it."""
    shapes = toy.shapes() if sampling == "poisson" else pareto.RunShapes(toy.public_training)
    setting = {"epochs": 2.0, "lot_size": 8.0, "noise_multiplier": 3.0}
    settings = {name: np.array([value]) for name, value in setting.items()}
    (run,) = shapes.accounted(settings)
    lots = run.lots
    guarantee = pareto.TrainingCost(shapes, delta=1e-3).guarantee(setting)
    failure = run.steps * lots.failure_probability_per_draw
    if sampling == "poisson":
        bound = toy.training_bound
        assert lots.sampling_probability == 8 / toy.public_training
        assert lots.dataset_size_bound == bound
        assert lots.capacity == accounting.lot_capacity(bound, 0.2, 10, 1e-9)
        overflow = accounting.truncation_probability(bound, 0.2, lots.capacity, 10)
        assert overflow > 1e-13
        failure += overflow
    assert run.failure_probability == pytest.approx(failure, rel=1e-6)
    assert failure <= run.guarantee().delta(60.0) and failure <= guarantee.delta(60.0)
    # At a delta below what may go wrong no epsilon holds.
    if sampling == "poisson":
        with pytest.raises(ValueError, match="overflow"):
            pareto.TrainingCost(shapes, delta=failure / 2)
