"""Tunings that are audited: small, private enough that much can be seen, each with its canaries.

A case's claim is between epsilon 0.6 and 3 at delta 0.02 (more for the loop, which is charged by
its cap): far above what anyone should publish, where an audit of some ten thousand executions has
most to see.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from dpjax import accounting, auditing, tuning
from dpjax.auditing import Audit
from dpjax.auditing.canaries import RECORDS
from experiments.figures.leaderboard.extrapolation import Extrapolation
from experiments.figures.leaderboard.subset_tuning import SubsetTuning

DELTA = 0.02
MEAN = 10.0
GRADIENT, FEATURE, LABEL, VALIDATION = auditing.CANARIES
_FIXED = tuning.Space(learning_rate=1.0, clip_norm=1.0)
_DRAWN = tuning.Space(learning_rate=tuning.Uniform(0.5, 1.5), clip_norm=1.0)
_FEW = 2
"""Records, where each draw of a part or of partitions is a program."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One tuner with its settings: `law` is K's in words, the next four are of its runs.

    An `expensive` one is executed a tenth as often. `shards` are jobs that share it, each stopped
    once and gone on with; None: one process.
    """

    tuner: Callable[[], tuning.Tuner]
    law: str = "none"
    space: tuning.Space = _FIXED
    steps: int = 1
    noise_multiplier: float = 2.0
    sampling_probability: float = 1.0
    canaries: tuple[str, ...] = (GRADIENT,)
    records: int = RECORDS
    expensive: bool = False
    shards: int | None = None

    def audited(self, canary: str, number: int, seed: int | None = None) -> Audit:
        """Runs it with a canary and without, `number` times each."""
        return auditing.audit(
            self.tuner(),
            auditing.CANARIES[canary],
            self.space,
            number=number,
            delta=DELTA,
            records=self.records,
            run=tuning.RunOptions(
                lot_size=round(self.sampling_probability * self.records),
                steps=self.steps,
                noise_multiplier=self.noise_multiplier,
            ),
            shards=self.shards,
            seed=seed,
        )


def _best_of(law: accounting.RepetitionLaw, **options: object) -> Callable[[], tuning.Tuner]:
    return lambda: tuning.RandomRepetitions(law, **options)


_SMALL = accounting.Geometric(3)
_ALL = (GRADIENT, FEATURE, LABEL, VALIDATION)

CASES = {
    "untuned": Case(tuning.Untuned, canaries=(GRADIENT, FEATURE, LABEL)),
    "untuned, lots of a quarter": Case(
        tuning.Untuned, steps=8, noise_multiplier=1.0, sampling_probability=0.25
    ),
    "random repetitions, geometric": Case(
        _best_of(accounting.Geometric(MEAN)), "geometric, mean 10", canaries=_ALL
    ),
    "random repetitions, logarithmic": Case(
        _best_of(accounting.Logarithmic(MEAN)), "logarithmic, mean 10"
    ),
    "random repetitions, Poisson": Case(_best_of(accounting.Poisson(MEAN)), "Poisson, mean 10"),
    "random repetitions, lots of a quarter": Case(
        _best_of(_SMALL),
        "geometric, mean 3",
        steps=8,
        noise_multiplier=1.5,
        sampling_probability=0.25,
    ),
    "random repetitions, scored on training records": Case(
        _best_of(_SMALL, score_on_training=True), "geometric, mean 3"
    ),
    "random repetitions in three shards": Case(
        _best_of(_SMALL), "geometric, mean 3", expensive=True, shards=3
    ),
    "threshold stopping": Case(
        lambda: tuning.ThresholdStopping(0.6, 0.1),
        "geometric, stopped",
        canaries=(GRADIENT, FEATURE, VALIDATION),
    ),
    # Seven honest records pull away from .6, so that few runs come there with the other label.
    "threshold stopping at .5": Case(
        lambda: tuning.ThresholdStopping(0.5, 0.1), "geometric, stopped", canaries=(LABEL,)
    ),
    "extrapolation": Case(
        lambda: Extrapolation(
            accounting.AtMost(accounting.Geometric(2), cap=4), stage_noise=(4.0, 3.0)
        ),
        "geometric, mean 2, at most 4",
        _DRAWN,
        expensive=True,
    ),
    "subset tuning": Case(lambda: SubsetTuning(0.4, _SMALL), "geometric, mean 3", records=_FEW),
    "exponential mechanism": Case(
        lambda: tuning.Exponential(1.0, candidates=3, partitions=2),
        space=_DRAWN,
        records=_FEW,
        expensive=True,
    ),
    "permute-and-flip": Case(
        lambda: tuning.Exponential(1.0, candidates=3, partitions=2, mechanism="permute_and_flip"),
        space=_DRAWN,
        records=_FEW,
        expensive=True,
    ),
    "doubling in segments": Case(
        lambda: tuning.Doubling(
            0.5, candidates=3, partitions=2, variant="segments", granularity=0.1, hits=2
        ),
        space=_DRAWN,
        records=_FEW,
        expensive=True,
    ),
}
"""By name; a new tuner is one entry."""
