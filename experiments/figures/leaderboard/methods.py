"""What competes: every tuner and the untuned rules, each given the same total epsilon."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from dpjax import accounting, data, training, tuning
from dpjax.tuning.problem.public_defaults import (
    CLIP_NORM,
    MOMENTUM,
    adam_bc_defaults_of,
    defaults_of,
)
from dpjax.tuning.problem.task import accuracy_of
from experiments.figures.leaderboard import contests

DELTA = 1e-5
FLAT = tuning.LogUniform(0.03, 30.0)
"""Of rates, where nothing is known beforehand: three decades, as `experiments.tune` had them."""
PRIOR_FACTOR = 2.5
REPETITIONS = accounting.Geometric(mean=10)
CANDIDATES, PARTITIONS = 16, 24
SELECTION_SHARE = 0.25
"""Of the total epsilon, for a choice by models of partitions."""

STAGE_SHARE = 0.2
"""Of the total epsilon: between the two stages of extrapolation."""

PART = 0.1
"""Share of the records that subset tuning tunes on."""

UNTUNED, HINDSIGHT = "untuned rule", "best rate in hindsight (not private)"


@dataclasses.dataclass(frozen=True)
class Entry:
    """One attempt at a contest, with its total epsilon and one seed of everything random."""

    contest: str
    records: data.Dataset
    epsilon: float
    seed: int

    @property
    def key(self) -> bytes:
        """Public, of the division into training and validation."""
        return f"leaderboard {self.seed}".encode()

    def divided(self) -> data.Parts:
        """A training part, and one to score by."""
        return self.records.parts(contests.CONTESTS[self.contest].validation, self.key)

    def whole(self) -> data.Parts:
        """All records for training."""
        return self.records.without_validation()

    def task(self, parts: data.Parts) -> tuning.Task:
        """What is learned from these parts."""
        return contests.task(self.contest, parts, self.records.classes)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one attempt came to: test accuracy of the release, not private, and its learning rate.

    `runs` are the trainings of one model on all training records that its work is worth.
    """

    accuracy: float
    result: tuning.Result
    runs: float
    learning_rate: float | None


Method = Callable[[Entry], Outcome]
METHODS: dict[str, Method] = {}
"""By what tables and pictures call them, the untuned rule first."""


def method(name: str) -> Callable[[Method], Method]:
    """Puts a method into the table."""

    def registered(run: Method) -> Method:
        METHODS[name] = run
        return run

    return registered


def _space(rate: float | tuning.LogUniform | tuning.LogNormal) -> tuning.Space:
    return tuning.Space(learning_rate=rate, momentum=MOMENTUM, clip_norm=CLIP_NORM)


def _prior(entry: Entry, task: tuning.Task) -> tuning.Space:
    return defaults_of(task, entry.epsilon, DELTA).space(PRIOR_FACTOR)


def _run(task: tuning.Task) -> tuning.RunOptions:
    """The lots and steps of the public default, which all methods share."""
    return tuning.RunOptions(lot_size=max(1, round(task.train.public_size / 16)), steps=320)


def _tuned(
    entry: Entry,
    parts: data.Parts,
    task: tuning.Task,
    space: tuning.Space,
    tuner: tuning.tuner.Tuner,
    runs: Callable[[tuning.Result], float],
    **more: object,
) -> Outcome:
    result = tuning.tune(
        task,
        space,
        tuner,
        epsilon=entry.epsilon,
        delta=DELTA,
        seed=entry.seed,
        **{"run": _run(task)} | more,
    )
    assert result is not None and parts.test is not None
    test = (parts.test.inputs, parts.test.labels)
    rate = result.release.hyperparameters["learning_rate"]
    return Outcome(accuracy_of(task, result.release.params, test), result, runs(result), rate)


def _one(result: tuning.Result) -> float:
    return 1.0


def _each_candidate(result: tuning.Result) -> float:
    return float(result.curator.number_of_candidates)


def _shares_of_runs(result: tuning.Result) -> float:
    """Candidates see a share of the records, the final training the rest."""
    return PART * result.curator.number_of_candidates + 1.0 - PART


def _each_trained(result: tuning.Result) -> float:
    """Runs after the first that passed were not needed."""
    return float(np.isfinite(result.curator.scores).sum())


def _partitions_and_one(result: tuning.Result) -> float:
    """Models of k partitions see the records once together."""
    return CANDIDATES + 1.0


@method(UNTUNED)
def untuned(entry: Entry) -> Outcome:
    parts = entry.whole()
    task = entry.task(parts)
    space = defaults_of(task, entry.epsilon, DELTA).space()
    return _tuned(entry, parts, task, space, tuning.Untuned(), _one)


@method("untuned, automatic clipping")
def untuned_automatic(entry: Entry) -> Outcome:
    parts = entry.whole()
    task = entry.task(parts)
    space = defaults_of(task, entry.epsilon, DELTA).space()
    run = dataclasses.replace(_run(task), clipping=training.AutomaticClipping())
    return _tuned(entry, parts, task, space, tuning.Untuned(), _one, run=run)


@method("untuned, DP-AdamBC")
def untuned_adam_bc(entry: Entry) -> Outcome:
    parts = entry.whole()
    task = entry.task(parts)
    space = adam_bc_defaults_of(task, entry.epsilon, DELTA).space()
    optimizer = training.adam_bc()
    return _tuned(entry, parts, task, space, tuning.Untuned(), _one, optimizer=optimizer)


@method("untuned, random rate")
def random_rate(entry: Entry) -> Outcome:
    """One draw from the flat law, everything spent on its training."""
    parts = entry.whole()
    (rate,) = FLAT.sample(1, np.random.default_rng([7, entry.seed]))
    return _tuned(entry, parts, entry.task(parts), _space(float(rate)), tuning.Untuned(), _one)


@method("random repetitions, flat law")
def repetitions_flat(entry: Entry) -> Outcome:
    parts = entry.divided()
    tuner = tuning.RandomRepetitions(REPETITIONS)
    return _tuned(entry, parts, entry.task(parts), _space(FLAT), tuner, _each_candidate)


@method("random repetitions, prior")
def repetitions_prior(entry: Entry) -> Outcome:
    parts = entry.divided()
    task = entry.task(parts)
    tuner = tuning.RandomRepetitions(REPETITIONS)
    return _tuned(entry, parts, task, _prior(entry, task), tuner, _each_candidate)


@method("random repetitions, prior, logarithmic of mean 4")
def repetitions_logarithmic(entry: Entry) -> Outcome:
    parts = entry.divided()
    task = entry.task(parts)
    tuner = tuning.RandomRepetitions(accounting.Logarithmic(mean=4))
    return _tuned(entry, parts, task, _prior(entry, task), tuner, _each_candidate)


@method("random repetitions, prior, scored on training records")
def repetitions_on_training(entry: Entry) -> Outcome:
    """All records train, and are scored as well, which is charged."""
    return _scored_on_training(entry, REPETITIONS)


@method("random repetitions, prior, logarithmic of mean 4, scored on training records")
def repetitions_on_training_logarithmic(entry: Entry) -> Outcome:
    return _scored_on_training(entry, accounting.Logarithmic(mean=4))


@method("random repetitions, prior, automatic clipping, scored on training records")
def repetitions_on_training_automatic(entry: Entry) -> Outcome:
    return _scored_on_training(entry, REPETITIONS, clipping=training.AutomaticClipping())


def _scored_on_training(entry: Entry, law: accounting.RepetitionLaw, **options: object) -> Outcome:
    parts = entry.whole()
    task = entry.task(parts)
    tuner = tuning.RandomRepetitions(law, score_on_training=True)
    run = dataclasses.replace(_run(task), **options)
    return _tuned(entry, parts, task, _prior(entry, task), tuner, _each_candidate, run=run)


@method("subset tuning, prior")
def subset_tuning(entry: Entry) -> Outcome:
    parts = entry.divided()
    task = entry.task(parts)
    tuner = tuning.SubsetTuning(PART, REPETITIONS)
    return _tuned(entry, parts, task, _prior(entry, task), tuner, _shares_of_runs)


@method("extrapolation, prior")
def extrapolation(entry: Entry) -> Outcome:
    """The prior is that of a stage's epsilon: what is drawn there is then carried up."""
    parts = entry.divided()
    task = entry.task(parts)
    stage = STAGE_SHARE * entry.epsilon
    prior = defaults_of(task, stage, DELTA).space(PRIOR_FACTOR)
    return _tuned(entry, parts, task, prior, tuning.Extrapolation(REPETITIONS), _each_candidate)


@method("exponential mechanism, prior")
def exponential(entry: Entry) -> Outcome:
    return _by_partitions(entry, tuning.Exponential)


@method("permute-and-flip, prior")
def permute_and_flip(entry: Entry) -> Outcome:
    return _by_partitions(entry, tuning.PermuteAndFlip)


@method("doubling in segments, prior")
def doubling(entry: Entry) -> Outcome:
    def tuner(selection_epsilon: float, candidates: int, partitions: int) -> tuning.Doubling:
        # Ten hits at most, each paid for.
        return tuning.Doubling(
            selection_epsilon=selection_epsilon / 10,
            candidates=candidates,
            partitions=partitions,
            variant="segments",
            hits=10,
        )

    return _by_partitions(entry, tuner)


def _by_partitions(entry: Entry, tuner: Callable[..., tuning.tuner.Tuner]) -> Outcome:
    parts = entry.divided()
    task = entry.task(parts)
    chosen = tuner(
        selection_epsilon=SELECTION_SHARE * entry.epsilon,
        candidates=CANDIDATES,
        partitions=PARTITIONS,
    )
    return _tuned(entry, parts, task, _prior(entry, task), chosen, _partitions_and_one)


@method("threshold stopping, prior")
def threshold_stopping(entry: Entry) -> Outcome:
    """The threshold is a public guess: 0.7 of the way from chance to right."""
    parts = entry.divided()
    task = entry.task(parts)
    chance = 1.0 / entry.records.classes
    tuner = tuning.ThresholdStopping(chance + 0.7 * (1.0 - chance), 0.1)
    return _tuned(entry, parts, task, _prior(entry, task), tuner, _each_trained)


@method(HINDSIGHT)
def hindsight(entry: Entry) -> Outcome:
    """The best on test records of five rates around the default, each given the whole epsilon.

    No method: the choice looks at the test records, and none of the five pays for the others.
    """
    parts = entry.whole()
    task = entry.task(parts)
    default = defaults_of(task, entry.epsilon, DELTA).learning_rate
    tried = [
        _tuned(entry, parts, task, _space(default * factor), tuning.Untuned(), _one)
        for factor in (0.25, 0.5, 1.0, 2.0, 4.0)
    ]
    return max(tried, key=lambda outcome: outcome.accuracy)
