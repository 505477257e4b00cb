"""The front once more: its settings on fresh repetitions, before any number is believed.

A front picked on measured utilities shows the luckiest measurements: its hypervolume is overstated
by more than a good search gains over a bad one (the winner's curse). Fresh repetitions, with other
keys, are an unbiased measurement of the settings that were picked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from dpjax import checks
from dpjax.pareto import fronts
from dpjax.pareto.asking import asked_utility
from dpjax.pareto.domain import Settings, select
from dpjax.pareto.oracles import UtilityOracle
from dpjax.pareto.record import SearchRecord
from dpjax.pareto.search import evaluated_inputs, fitted

_FRESH = 2
"""Stream of fresh repetitions, beside the search's own."""


@dataclasses.dataclass(frozen=True)
class FreshFront:
    """The settings of a front, measured again.

    Example:
      >>> import numpy as np
      >>> from dpjax import pareto
      >>> def privacy(settings):
      ...     return 1 / settings["noise"]
      >>> def utility(settings, seeds):  # Stands for trainings on public data.
      ...     noise = [np.random.default_rng(int(seed)).normal(size=2) for seed in seeds]
      ...     return 1 / (1.5 + settings["noise"])[:, None] + 0.01 * np.stack(noise)
      >>> domain = pareto.Domain(noise=pareto.Log(0.1, 10.0))
      >>> record = pareto.search(domain, privacy, utility, method="random", evaluations=16, seed=0)
      >>> fresh = pareto.reevaluate(record, utility)
      >>> fresh.hypervolume <= fresh.hypervolume_as_first_seen
      True

    Attributes:
      settings: name -> (k,) float64, by increasing epsilon.
      epsilon: (k,) float64.
      utilities: (k, R) float64 fresh ones, failed repetitions as they count.
      first_seen: (k,) float64, the mean utility that put each setting on the front.
      anti_ideal: (2,) float64.
    """

    settings: Settings
    epsilon: np.ndarray
    utilities: np.ndarray
    first_seen: np.ndarray
    anti_ideal: np.ndarray

    @property
    def utility(self) -> np.ndarray:
        """Mean (k,) of the fresh repetitions."""
        return self.utilities.mean(axis=1)

    @property
    def points(self) -> np.ndarray:
        """(k, 2): epsilon and fresh error."""
        return np.stack([self.epsilon, 1.0 - self.utility], axis=1)

    @property
    def still_on_front(self) -> np.ndarray:
        """Which settings (k,) bool are not beaten by another of these as measured afresh."""
        return fronts.non_dominated(self.points)

    @property
    def hypervolume(self) -> float:
        """Of the settings as measured afresh: what to quote."""
        return fronts.hypervolume(self.points, self.anti_ideal)

    @property
    def hypervolume_as_first_seen(self) -> float:
        """Of the measurements that picked the settings: overstated."""
        seen = np.stack([self.epsilon, 1.0 - self.first_seen], axis=1)
        return fronts.hypervolume(seen, self.anti_ideal)

    def rows(self) -> list[dict[str, float | int]]:
        """One flat row a setting, for tables and the plot."""
        deviation = self.utilities.std(axis=1, ddof=1) if self.utilities.shape[1] > 1 else None
        return [
            {
                "epsilon": float(self.epsilon[place]),
                "utility": float(self.utility[place]),
                "best": float(self.utilities[place].max()),
                "worst": float(self.utilities[place].min()),
                "standard_error": float("nan")
                if deviation is None
                else float(deviation[place] / np.sqrt(self.utilities.shape[1])),
                "first_seen": float(self.first_seen[place]),
                "still_on_front": int(self.still_on_front[place]),
                **{name: float(values[place]) for name, values in self.settings.items()},
            }
            for place in range(len(self.epsilon))
        ]


def front_by_means(record: SearchRecord) -> np.ndarray:
    """Positions (k,) of the front of epsilon and the error predicted by the utility's process.

    The process averages over neighbouring settings, so luck counts for less than in
    `SearchRecord.front`; empty where nothing dominates the anti-ideal point.

    Example:
      >>> import numpy as np
      >>> from dpjax import pareto
      >>> def privacy(settings):
      ...     return 1 / settings["noise"]
      >>> def utility(settings, seeds):  # Stands for trainings on public data.
      ...     noise = [np.random.default_rng(int(seed)).normal(size=2) for seed in seeds]
      ...     return 1 / (1.5 + settings["noise"])[:, None] + 0.01 * np.stack(noise)
      >>> domain = pareto.Domain(noise=pareto.Log(0.1, 10.0))
      >>> record = pareto.search(domain, privacy, utility, method="random", evaluations=16, seed=0)
      >>> set(pareto.front_by_means(record)) <= set(range(len(record)))
      True
    """
    checks.instance("record", record, SearchRecord, "pareto.search(...)")
    kept = record.succeeded
    _, utility = fitted(record, np.random.default_rng(len(record)))
    means, _ = utility.predict(evaluated_inputs(record)[kept])
    error = fronts.from_model_units(np.stack([np.zeros(len(kept)), means], axis=1))[:, 1]
    points = np.stack([record.epsilon[kept], error], axis=1)
    inside = (points < record.anti_ideal).all(axis=1)
    return kept[fronts.non_dominated(points) & inside]


def reevaluate(
    record: SearchRecord,
    utility: UtilityOracle,
    *,
    rounds: int = 1,
    by_means: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> FreshFront:
    """Measures the settings on a record's front again, on fresh repetitions.

    Example:
      >>> import numpy as np
      >>> from dpjax import pareto
      >>> def privacy(settings):
      ...     return 1 / settings["noise"]
      >>> def utility(settings, seeds):  # Stands for trainings on public data.
      ...     noise = [np.random.default_rng(int(seed)).normal(size=2) for seed in seeds]
      ...     return 1 / (1.5 + settings["noise"])[:, None] + 0.01 * np.stack(noise)
      >>> domain = pareto.Domain(noise=pareto.Log(0.1, 10.0))
      >>> record = pareto.search(domain, privacy, utility, method="random", evaluations=16, seed=0)
      >>> fresh = pareto.reevaluate(record, utility, rounds=2)
      >>> len(fresh.utility) == len(record.front())
      True

    Args:
      record: of a search.
      utility: the oracle of the search.
      rounds: times the front is measured afresh, each by the oracle's R repetitions, >= 1.
      by_means: measure the settings of `front_by_means` too.
      progress: called with (rounds done, rounds).

    Returns:
      The settings of the front that could be measured again.

    Raises:
      ValueError: an empty front, rounds below 1, or an oracle that now fails for every setting.
    """
    checks.instance("record", record, SearchRecord, "pareto.search(...)")
    checks.function("utility", utility, "of settings")
    rounds = checks.whole("rounds", rounds)
    checks.flag("by_means", by_means)
    if progress is not None:
        checks.function("progress", progress, "of two numbers, done and in all")
    kept = record.front()
    if by_means:
        kept = np.union1d(kept, front_by_means(record))
        kept = kept[np.argsort(record.epsilon[kept], kind="stable")]
    settings = select(record.settings, kept)
    measured: list[list[np.ndarray]] = [[] for _ in kept]
    failed = np.zeros(len(kept), bool)
    why = [""] * len(kept)
    for turn in range(rounds):
        if progress is not None:
            progress(turn, rounds)
        answers, why = asked_utility(
            utility, settings, _fresh_seeds(record, kept, turn), record.failed_as
        )
        for place, own in enumerate(answers):
            failed[place] |= bool(why[place])
            if record.failed_as is not None:
                own = np.where(np.isnan(own), record.failed_as, own)
            measured[place].append(own)
    if progress is not None:
        progress(rounds, rounds)
    good = np.flatnonzero(~failed)
    if not len(good):
        raise ValueError(f"no setting of the front could be measured again; the first: {why[0]}")
    return FreshFront(
        settings=select(settings, good),
        epsilon=record.epsilon[kept][good],
        utilities=np.stack([np.concatenate(measured[place]) for place in good]),
        first_seen=record.utility[kept][good],
        anti_ideal=record.anti_ideal,
    )


def _fresh_seeds(record: SearchRecord, places: np.ndarray, turn: int) -> np.ndarray:
    seed = int(record.identity.get("seed", 0))
    return np.array(
        [
            np.random.SeedSequence((seed, _FRESH, turn, int(place))).generate_state(1, np.uint64)[0]
            for place in places
        ]
    )
