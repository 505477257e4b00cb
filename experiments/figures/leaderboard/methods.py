"""What competes: every tuner and the untuned rules, each given the same total epsilon."""

from __future__ import annotations

import dataclasses
import functools
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
from experiments.figures.leaderboard.extrapolation import Extrapolation

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


# Spaces -------------------------------------------------------------------------------------------


def _space(rate: float | tuning.LogUniform | tuning.LogNormal) -> tuning.Space:
    return tuning.Space(learning_rate=rate, momentum=MOMENTUM, clip_norm=CLIP_NORM)


def _default(entry: Entry, task: tuning.Task) -> tuning.Space:
    return defaults_of(task, entry.epsilon, DELTA).space()


def _adam_bc_default(entry: Entry, task: tuning.Task) -> tuning.Space:
    return adam_bc_defaults_of(task, entry.epsilon, DELTA).space()


def _random_rate(entry: Entry, task: tuning.Task) -> tuning.Space:
    """One draw from the flat law, everything spent on its training."""
    (rate,) = FLAT.sample(1, np.random.default_rng([7, entry.seed]))
    return _space(float(rate))


def _flat(entry: Entry, task: tuning.Task) -> tuning.Space:
    return _space(FLAT)


def _prior(entry: Entry, task: tuning.Task) -> tuning.Space:
    return defaults_of(task, entry.epsilon, DELTA).space(PRIOR_FACTOR)


def _prior_of_a_stage(entry: Entry, task: tuning.Task) -> tuning.Space:
    """The prior at a stage's epsilon: what is drawn there is then carried up."""
    return defaults_of(task, STAGE_SHARE * entry.epsilon, DELTA).space(PRIOR_FACTOR)


# What an attempt's work is worth ------------------------------------------------------------------


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


# Methods ------------------------------------------------------------------------------------------


def _run(task: tuning.Task) -> tuning.RunOptions:
    """The lots and steps of the public default, which all methods share."""
    return tuning.RunOptions(lot_size=max(1, round(task.train.public_size / 16)), steps=320)


@dataclasses.dataclass(frozen=True)
class Method:
    """A tuner, made for an attempt, with its space and what its work is worth.

    Unless it is `divided`, all records train. The clip rule and the optimiser are else the usual.
    """

    tuner: Callable[[Entry], tuning.tuner.Tuner]
    space: Callable[[Entry, tuning.Task], tuning.Space] = _prior
    work: Callable[[tuning.Result], float] = _each_candidate
    divided: bool = True
    clipping: training.ClipRule = training.GlobalClipping()
    optimizer: training.Optimizer | None = None

    def __call__(self, entry: Entry) -> Outcome:
        """Makes the attempt."""
        parts = entry.divided() if self.divided else entry.whole()
        task = entry.task(parts)
        result = tuning.tune(
            task,
            self.space(entry, task),
            self.tuner(entry),
            epsilon=entry.epsilon,
            delta=DELTA,
            seed=entry.seed,
            run=dataclasses.replace(_run(task), clipping=self.clipping),
            optimizer=self.optimizer,
        )
        assert result is not None and parts.test is not None
        test = (parts.test.inputs, parts.test.labels)
        accuracy = accuracy_of(task, result.release.params, test)
        rate = result.release.hyperparameters["learning_rate"]
        return Outcome(accuracy, result, self.work(result), rate)


def _untuned(space: Callable[[Entry, tuning.Task], tuning.Space], **more: object) -> Method:
    return Method(lambda entry: tuning.Untuned(), space, _one, divided=False, **more)


def _repetitions(law: accounting.RepetitionLaw = REPETITIONS, **more: object) -> Method:
    return Method(lambda entry: tuning.RandomRepetitions(law), **more)


def _scored_on_training(law: accounting.RepetitionLaw = REPETITIONS, **more: object) -> Method:
    """All records train, and are scored as well, which is charged."""
    tuner = tuning.RandomRepetitions(law, score_on_training=True)
    return Method(lambda entry: tuner, divided=False, **more)


def _by_partitions(tuner: type[tuning.tuner.Tuner], shares: int = 1, **own: object) -> Method:
    """The selection's epsilon is for so many shares alike; `own` are settings of the tuner."""

    def made(entry: Entry) -> tuning.tuner.Tuner:
        epsilon = SELECTION_SHARE * entry.epsilon / shares
        return tuner(epsilon, candidates=CANDIDATES, partitions=PARTITIONS, **own)

    return Method(made, work=_partitions_and_one)


def _threshold_stopping(entry: Entry) -> tuning.ThresholdStopping:
    """The threshold is a public guess: 0.7 of the way from chance to right."""
    chance = 1.0 / entry.records.classes
    return tuning.ThresholdStopping(chance + 0.7 * (1.0 - chance), 0.1)


def _hindsight(entry: Entry) -> Outcome:
    """The best on test records of five rates around the default, each given the whole epsilon.

    No method: the choice looks at the test records, and none of the five pays for the others.
    """
    default = defaults_of(entry.task(entry.whole()), entry.epsilon, DELTA).learning_rate
    tried = [
        _untuned(lambda entry, task, factor=factor: _space(default * factor))(entry)
        for factor in (0.25, 0.5, 1.0, 2.0, 4.0)
    ]
    return max(tried, key=lambda outcome: outcome.accuracy)


_AUTOMATIC = training.AutomaticClipping()
_HITS = 10
_LOGARITHMIC = accounting.Logarithmic(mean=4)

METHODS: dict[str, Callable[[Entry], Outcome]] = {
    UNTUNED: _untuned(_default),
    "untuned, automatic clipping": _untuned(_default, clipping=_AUTOMATIC),
    "untuned, DP-AdamBC": _untuned(_adam_bc_default, optimizer=training.adam_bc()),
    "untuned, random rate": _untuned(_random_rate),
    "random repetitions, flat law": _repetitions(space=_flat),
    "random repetitions, prior": _repetitions(),
    "random repetitions, prior, logarithmic of mean 4": _repetitions(_LOGARITHMIC),
    "random repetitions, prior, scored on training records": _scored_on_training(),
    "random repetitions, prior, logarithmic of mean 4, scored on training records": (
        _scored_on_training(_LOGARITHMIC)
    ),
    "random repetitions, prior, automatic clipping, scored on training records": (
        _scored_on_training(clipping=_AUTOMATIC)
    ),
    "subset tuning, prior": Method(
        lambda entry: tuning.SubsetTuning(PART, REPETITIONS), work=_shares_of_runs
    ),
    "extrapolation, prior": Method(lambda entry: Extrapolation(REPETITIONS), _prior_of_a_stage),
    "exponential mechanism, prior": _by_partitions(tuning.Exponential),
    "permute-and-flip, prior": _by_partitions(
        functools.partial(tuning.Exponential, mechanism="permute_and_flip")
    ),
    # Ten hits at most, each paid for.
    "doubling in segments, prior": _by_partitions(
        tuning.Doubling, _HITS, variant="segments", hits=_HITS
    ),
    "threshold stopping, prior": Method(_threshold_stopping, work=_each_trained),
    HINDSIGHT: _hindsight,
}
"""By what tables and pictures call them, the untuned rule first."""
