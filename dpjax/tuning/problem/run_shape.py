"""The shape of a private training run: its lots and steps, what may go wrong with them, its price.

Every run that is trained and priced, of a candidate, a search or a release, has its lots from here,
so that the run that is priced is the run that is trained. Public numbers only.
"""

from __future__ import annotations

import dataclasses
import functools

from dpjax import accounting, checks, training
from dpjax.neighbouring import ADD_OR_REMOVE_ONE, REPLACE_ONE

FIXED, POISSON = "fixed", "poisson"

TRUNCATION_PROBABILITY = 1e-9
"""Wanted probability that any lot of one run overflows its capacity; it is charged in delta."""


def check_sampling(sampling: str) -> None:
    """Refuses a sampling that is neither fixed nor Poisson."""
    if sampling not in (FIXED, POISSON):
        raise ValueError(f"sampling {sampling!r}: pass 'fixed' or 'poisson'")


def whole_lot_size(lot_size: float, records: int) -> int:
    """Returns a lot size as it is used: rounded, from 1 to the public number of records."""
    rounded = int(round(lot_size))
    if not 1 <= rounded <= records:
        raise ValueError(
            f"lot_size {rounded}: pass between 1 and the public number of training records, "
            f"{records}"
        )
    return rounded


@dataclasses.dataclass(frozen=True)
class RunShape:
    """Lots and steps of one run, and all that follows from them.

    `lot_size` is the expected number under Poisson sampling. `sampling` is "fixed", lots of one
    size drawn without replacement, replace one; or "poisson", add or remove one. `records` is the
    public number of training records, under fixed sampling exactly theirs; `size_bound`, public, is
    never exceeded, for Poisson lots.
    """

    lot_size: int
    steps: int
    sampling: str
    records: int
    size_bound: int

    def __post_init__(self) -> None:
        whole_lot_size(self.lot_size, self.records)
        if self.steps < 1:
            raise ValueError(
                f"{self.steps} steps: pass steps >= 1, or epochs that give at least one step"
            )

    @property
    def relation(self) -> str:
        """Returns the neighbouring relation that the lots speak of."""
        return REPLACE_ONE if self.sampling == FIXED else ADD_OR_REMOVE_ONE

    @functools.cached_property
    def lots(self) -> training.PoissonLots | training.FixedLots:
        """Returns how the records of a step are drawn."""
        if self.sampling == FIXED:
            return training.FixedLots(dataset_size=self.records, lot_size=self.lot_size)
        bound, rate = self.size_bound, self.lot_size / self.records
        capacity = accounting.lot_capacity(
            dataset_size=bound,
            sampling_probability=rate,
            steps=self.steps,
            failure_probability=TRUNCATION_PROBABILITY,
        )
        return training.PoissonLots(
            dataset_size_bound=bound, sampling_probability=rate, capacity=capacity
        )

    @functools.cached_property
    def failure_probability(self) -> float:
        """Returns the probability that any lot of the run is not as accounted."""
        lots = self.lots
        failure = self.steps * lots.failure_probability_per_draw
        if isinstance(lots, training.FixedLots):
            return failure
        return failure + accounting.truncation_probability(
            dataset_size=self.size_bound,
            sampling_probability=lots.sampling_probability,
            capacity=lots.capacity,
            steps=self.steps,
        )

    def price(self, noise_multiplier: float) -> accounting.Guarantee:
        """Returns the cost of one run; the noise multiplier is noise / clip norm."""
        lots = self.lots
        if isinstance(lots, training.FixedLots):
            return accounting.dp_sgd_fixed_lots(
                dataset_size=self.records,
                lot_size=self.lot_size,
                noise_multiplier=noise_multiplier,
                steps=self.steps,
                failure_probability=self.failure_probability,
            )
        return accounting.dp_sgd(
            sampling_probability=lots.sampling_probability,
            noise_multiplier=noise_multiplier,
            steps=self.steps,
            failure_probability=self.failure_probability,
        )


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """The caller's choices for hyperparameters the space does not draw.

    Attributes:
      lot_size: records a step (expected); a sixteenth of the public size if unset.
      steps: gradient steps, instead of epochs.
      epochs: expected passes over the public number of records; 20 if steps are unset, too.
      noise_multiplier: instead of a target epsilon, to which it is calibrated if unset.
      sampling: "poisson" (add-or-remove one) or "fixed" (replace one).
      clipping: how gradients are clipped, a rule of `training.CLIP_RULES` (or its name) that can
        be stated in a release; it changes what is learned, never what it costs. None: that of the
        public default where that is taken, else global clipping.
    """

    lot_size: int | None = None
    steps: int | None = None
    epochs: float | None = None
    noise_multiplier: float | None = None
    sampling: str = dataclasses.field(default=POISSON, metadata={"choices": (POISSON, FIXED)})
    clipping: training.ClipRule | None = None

    def __post_init__(self) -> None:
        check_sampling(self.sampling)
        if self.clipping is not None:
            rule = training.checked_clip_rule("clipping", self.clipping)
            rule.describe()  # Refuses what a release cannot state.
            object.__setattr__(self, "clipping", rule)
        for name, check in _OPTION_CHECKS.items():
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, checks.kept(value, check(name, value)))


_OPTION_CHECKS = {
    "lot_size": checks.whole,
    "steps": checks.whole,
    "epochs": checks.positive,
    "noise_multiplier": checks.not_negative,
}
