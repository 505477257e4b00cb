"""Sub-sample and aggregate: utilities that one record can hardly move, in whole units.

Ding & Wu (2022) train every candidate on each of k disjoint partitions of the training records and
average the k accuracies. A record sits in one partition, so it moves one of the k terms, whatever
the training does: it need not be private. Here the utility of a candidate is kept as a whole number
(correct predictions of all k models together, out of k times the public number of validation
records), so that selection noise can be exact. Where a task has scores in [0, 1] in place of right
or wrong, a unit is a fraction of a record's score (`Task.units`).
"""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np

from dpjax import accounting, checks, training
from dpjax.tuning.problem.run_settings import RunSetting

NON_PRIVATE, REHEARSAL = "non_private", "rehearsal"
PARTITION_TRAININGS = (REHEARSAL, NON_PRIVATE)
"""How a model of a partition is trained. The guarantee is the same: it rests on the partitions.

"rehearsal": DP-SGD as the final training will be, with the candidate's clip norm and with the noise
the final training adds to an AVERAGED gradient; "non_private": no clipping and no noise, Ding &
Wu's way.
"""

_SMALLEST_LOT = 16
"""Least records of a partition's lot, where the partition and the final lot have as many."""


class SelectionNoiseWarning(UserWarning):
    """Says that the noise of a selection is as large as the utilities it selects by."""


@dataclasses.dataclass(frozen=True)
class AveragedUtility:
    """Counts utilities in whole units; gives their sensitivity and the scales of the noise.

    A unit is one correct prediction by one of the k models: utility = units / (k n), with n the
    public number of validation records. A model's count enters as min(count, n). (Where a record
    scores 0 to g units, n stands for g n and a validation record moves a count by g.)

    Formal guarantees:
      `sensitivity` bounds, for every candidate at once and every pair of neighbours, how far its
      units move, given that (a) the partition of a training record and the order within are a
      function of the records' identifiers (`splitting.partition_order`), (b) a model is a
      deterministic function of its partition, its key and public numbers, keys independent of the
      data, (c) an empty partition counts a fixed 0. Namely:
        * a training record is in one partition; that model's count moves by n at most;
        * a validation record that is private moves every model's count by 1 at most, in all k;
        * a record is in one of the two parts, so the larger of the two holds, unless a replacement
          may cross from one part to the other (or between partitions), which does at most both.
      Divided by k n these are Delta = 1/k, max(1/k, 1/n), and 1/k + max(1/k, 1/n).

    `partitions` is k, `units_of_a_record` g, `validation_size` n: public, never the real number
    of private validation records. `records_stay` says that neighbours differ in one part and one
    partition only: always under add-or-remove one; under replace one if the replacement keeps the
    identifier.
    """

    partitions: int
    validation_size: int
    validation_is_public: bool = False
    records_stay: bool = True
    units_of_a_record: int = 1

    def __post_init__(self) -> None:
        for name in ("partitions", "validation_size", "units_of_a_record"):
            if getattr(self, name) < 1:
                raise checks.Refused((name, getattr(self, name)), ": pass at least 1")

    @property
    def units(self) -> int:
        """Returns the units in a utility of 1, k g n."""
        return self.partitions * self.units_of_a_model

    @property
    def units_of_a_model(self) -> int:
        """Returns the most units that one model counts, g n."""
        return self.validation_size * self.units_of_a_record

    @property
    def sensitivity(self) -> int:
        """Returns the most units by which one record moves any candidate's utility."""
        of_training = self.units_of_a_model
        of_validation = self.partitions * self.units_of_a_record
        if self.validation_is_public:
            of_validation = 0
        if self.records_stay:
            return max(of_training, of_validation)
        return of_training + max(of_training, of_validation)

    @property
    def effective_partitions(self) -> float:
        """Returns 1 / Delta: the number of partitions whose 1/k is the sensitivity."""
        return self.units / self.sensitivity

    def threshold_scale(self, epsilon: float) -> Fraction:
        """Returns the discrete Laplace scale for a threshold, in units: 2 Delta / epsilon."""
        return Fraction(2 * self.sensitivity) / Fraction(epsilon)

    def query_scale(self, epsilon: float) -> Fraction:
        """Returns the discrete Laplace scale for a queried utility, in units: 4 Delta / epsilon."""
        return Fraction(4 * self.sensitivity) / Fraction(epsilon)

    def exponential_rate(self, epsilon: float) -> Fraction:
        """Returns epsilon / (2 Delta) a unit, for exponential and permute-and-flip choices."""
        return Fraction(epsilon) / (2 * self.sensitivity)

    def threshold(self, level: int, granularity: float, lower_bound: float = 0.0) -> int:
        """Returns the least whole number of units that reaches lower_bound + level * granularity.

        Decimals are taken as written (0.01 is 1/100). Comparing whole numbers with it is comparing
        them with the exact threshold.
        """
        exact = Fraction(str(lower_bound)) + level * Fraction(str(granularity))
        return math.ceil(exact * self.units)

    def total(self, counts: np.ndarray) -> list[int]:
        """Adds the models' counts (candidates, k) up to units, one Python integer per candidate.

        Counts are in units (correct predictions), 0 where a partition is empty or a model is not
        finite.
        """
        return [int(row) for row in np.minimum(counts, self.units_of_a_model).sum(axis=1)]

    def noise_warning(self, candidates: int, epsilon: float) -> str | None:
        """Returns a line of advice if noise drowns the utilities, else None."""
        ratio = accounting.selection_noise_ratio(candidates, self.effective_partitions, epsilon)
        if ratio <= 1.0:
            return None
        enough = math.ceil(4.0 * math.log(candidates) / epsilon)
        if self.validation_size < enough and not self.validation_is_public:
            more = f"partitions and validation records of at least {enough} each"
        else:
            more = f"partitions >= {enough}"
        least = math.ceil(400.0 * math.log(candidates) / self.effective_partitions) / 100
        return (
            f"the selection's noise is about {ratio:.2g} on utilities between 0 and 1: with "
            f"{candidates} candidates, {self.partitions} partitions and epsilon_0 = {epsilon:g} it "
            f"picks nearly at random; {more}, or epsilon_0 >= {least:g}, would not"
        )


@dataclasses.dataclass(frozen=True)
class PartitionLots:
    """How the models of partitions are trained, in public numbers.

    Records beyond `lots.dataset_size_bound` in a partition are not trained on; nothing private
    rests on that. The noise multiplier is noise / clip norm, `lot_size` expected records; `clips`
    says whether the candidate's clip norm is applied.
    """

    lots: training.PoissonLots
    lot_size: int
    noise_multiplier: float
    clips: bool


def partition_lots(
    setting: RunSetting, public_size: int, partitions: int, partition_training: str
) -> PartitionLots:
    """Plans the training of partitions so that it resembles the final training, of `setting`.

    A partition's lot is the same share of its records, but at least 16 records where there are as
    many; steps are the final training's. A rehearsal needs the setting's noise multiplier.
    """
    if partition_training not in PARTITION_TRAININGS:
        words = f": pass one of {', '.join(PARTITION_TRAININGS)}"
        raise checks.Refused(("partition_training", partition_training), words)
    nominal = public_size / partitions
    wanted = max(setting.lot_size / partitions, min(_SMALLEST_LOT, setting.lot_size))
    lot_size = max(1, round(min(wanted, nominal)))
    # Room for five standard deviations above the nominal size, of partition and lot; records that
    # exceed it are left out, which costs some utility and no privacy.
    bound = math.ceil(nominal + 5.0 * math.sqrt(nominal)) + 1
    rate = min(1.0, lot_size / nominal)
    spread = 5.0 * math.sqrt(bound * rate * (1.0 - rate))
    capacity = min(bound, math.ceil(bound * rate + spread) + 1)
    rehearsed = partition_training == REHEARSAL
    noise = setting.noise_over_clip_norm * lot_size / setting.lot_size if rehearsed else 0.0
    lots = training.PoissonLots(bound, rate, capacity)
    return PartitionLots(lots, lot_size, noise, clips=rehearsed)
