"""From a setting to the shape of a training run: its lots and its number of steps.

Both oracles ask here, so that the run that is priced is the run that is trained.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from dpjax import accounting, checks, training
from dpjax.neighbouring import ADD_OR_REMOVE_ONE, REPLACE_ONE
from dpjax.tuning.pareto.domain import Domain
from dpjax.tuning.run_settings import TRUNCATION_PROBABILITY, RunSetting

FIXED, POISSON = "fixed", "poisson"
_ROUNDINGS = {"round": np.round, "floor": np.floor}


@dataclasses.dataclass(frozen=True)
class RunShapes:
    """How settings with `epochs` and `lot_size` become runs on a data set of public size.

    Attributes:
      dataset_size: public number of records; exactly theirs for fixed lots.
      sampling: "fixed", lots drawn without replacement, replace one; or "poisson", add or remove
        one, where lot_size is the expected number.
      steps_per_epoch: "round" of dataset_size / lot_size, as in the code of Avent et al. 2020, or
        "floor"; at least 1.
      size_bound: a public number that the records never exceed, for Poisson lots, whose rate and
        steps come from dataset_size all the same; None: dataset_size.

    Raises:
      ValueError: another word, a size below 1, or a bound that is none.
    """

    dataset_size: int
    sampling: str = FIXED
    steps_per_epoch: str = "round"
    size_bound: int | None = None

    def __post_init__(self) -> None:
        checks.one_of("sampling", self.sampling, (FIXED, POISSON))
        checks.one_of("steps_per_epoch", self.steps_per_epoch, tuple(_ROUNDINGS))
        object.__setattr__(self, "dataset_size", checks.whole("dataset_size", self.dataset_size))
        if self.size_bound is not None:
            object.__setattr__(self, "size_bound", checks.whole("size_bound", self.size_bound))
        if self.size_bound is not None and (
            self.sampling == FIXED or self.size_bound < self.dataset_size
        ):
            raise ValueError(
                f"size_bound {self.size_bound}: pass dataset_size or more, for poisson lots only"
            )

    @property
    def largest_size(self) -> int:
        """The public number that the records never exceed."""
        return self.dataset_size if self.size_bound is None else self.size_bound

    def check(self, domain: Domain) -> None:
        """Refuses a domain whose settings cannot be run on this data set.

        Raises:
          ValueError: a name that is missing, or a lot larger than the data.
        """
        missing = [name for name in ("epochs", "lot_size") if domain.largest(name) is None]
        if missing:
            raise ValueError(
                f"the domain lacks {', '.join(missing)}: add it, for example "
                f"{missing[0]}=log_integer(1,64)"
            )
        if domain.largest("lot_size") > self.dataset_size:
            raise ValueError(
                f"lot_size goes up to {domain.largest('lot_size'):g}, above the "
                f"{self.dataset_size} training records: pass a range that ends there or below"
            )

    def lot_sizes(self, settings: Mapping[str, np.ndarray]) -> np.ndarray:
        """Records of a lot (n,) int64.

        Raises:
          ValueError: below 1 or above the data set.
        """
        sizes = np.round(settings["lot_size"]).astype(np.int64)
        outside = sizes[(sizes < 1) | (sizes > self.dataset_size)]
        if len(outside):
            raise ValueError(
                f"lot_size {outside[0]}: pass 1 to {self.dataset_size}, the training records"
            )
        return sizes

    def steps(self, settings: Mapping[str, np.ndarray]) -> np.ndarray:
        """Steps (n,) int64: epochs times the steps of one, at least 1."""
        per_epoch = _ROUNDINGS[self.steps_per_epoch](self.dataset_size / self.lot_sizes(settings))
        steps = np.round(settings["epochs"]) * np.maximum(per_epoch, 1.0)
        return np.maximum(steps, 1.0).astype(np.int64)

    def lots(
        self, settings: Mapping[str, np.ndarray]
    ) -> list[training.FixedLots | training.PoissonLots]:
        """How the lots of each run are drawn."""
        size = self.dataset_size
        if self.sampling == FIXED:
            return [training.FixedLots(size, int(lot)) for lot in self.lot_sizes(settings)]
        drawn = []
        for lot, steps in zip(self.lot_sizes(settings), self.steps(settings)):
            capacity = accounting.lot_capacity(
                dataset_size=self.largest_size,
                sampling_probability=lot / size,
                steps=int(steps),
                failure_probability=TRUNCATION_PROBABILITY,
            )
            drawn.append(training.PoissonLots(self.largest_size, lot / size, capacity))
        return drawn

    def accounted(self, settings: Mapping[str, np.ndarray]) -> list[RunSetting]:
        """What the runs cost is asked of these; reads `noise_multiplier` too."""
        counts, sizes = self.steps(settings), self.lot_sizes(settings)
        runs = []
        for place, lots in enumerate(self.lots(settings)):
            steps = int(counts[place])
            failure = steps * lots.failure_probability_per_draw
            if self.sampling == POISSON:
                failure += accounting.truncation_probability(
                    dataset_size=self.largest_size,
                    sampling_probability=lots.sampling_probability,
                    capacity=lots.capacity,
                    steps=steps,
                )
            runs.append(
                RunSetting(
                    lot_size=int(sizes[place]),
                    steps=steps,
                    noise_multiplier=float(settings["noise_multiplier"][place]),
                    probability=1.0,
                    lots=lots,
                    relation=REPLACE_ONE if self.sampling == FIXED else ADD_OR_REMOVE_ONE,
                    failure_probability=failure,
                )
            )
        return runs
