"""What runs from elsewhere are ranked by: a number of correct predictions, with noise of ours."""

from __future__ import annotations

import dataclasses
import math
import numbers
from typing import Any

from dpjax import accounting, checks
from dpjax.bridges.outcomes import FAILED
from dpjax.tuning.problem.run_settings import (
    check_score_noise,
    count_guarantee,
    noise_on_training_scores,
    validation_noise,
)

DISJOINT, TRAINING, PUBLIC = RECORDS = ("disjoint", "training", "public")
"""Which records are counted; see `CountedScore`."""


@dataclasses.dataclass(frozen=True)
class CountedScore:
    """A number of correct predictions: whose, of how many, and with how much noise.

    Formal guarantees:
      What is charged covers one noisy count: in parallel with the run for "disjoint" records,
      composed with it for those of "training", nothing for "public" ones. It holds if, for any one
      model, a record that comes, goes or (under replace-one) changes moves the count by 1 at most
      and never decides whether there is a count. Numbers are rounded down and clipped to
      0..public_size, which moves two counts that differ by 1 at most no farther apart; so a
      function that returns more correct predictions than there are records cannot outweigh the
      noise by more than these.

    Attributes:
      records: "disjoint", private records that no run trains on, a record being in one part
        whatever the others are (under replace-one: whatever its own value is, as by its slot);
        "training", records that runs are trained on; "public", records of nobody. There is no
        default: the wrong word is a wrong price.
      public_size: the public number of these records; counts above it are clipped to it.
      noise: std of the discrete Gaussian, in records; None: the least one that adds
        nothing ("disjoint") or 1% of a run's epsilon ("training").
    """

    records: str
    public_size: int
    noise: float | None = None

    def __post_init__(self) -> None:
        checks.one_of("records", self.records, RECORDS)
        object.__setattr__(self, "public_size", checks.whole("public_size", self.public_size))
        check_score_noise(self.noise, 1)
        if self.noise is not None:
            object.__setattr__(self, "noise", float(self.noise))
            if self.records == PUBLIC:
                raise ValueError("records that are public are counted without noise: drop noise")

    def deviation(self, base: accounting.Guarantee, delta: float) -> float:
        """Returns the noise's std for this guarantee of one run, in records; 0 for public ones."""
        if self.records == PUBLIC:
            return 0.0
        if self.noise is not None:
            return self.noise
        if self.records == TRAINING:
            return noise_on_training_scores(base, base.relation, delta)
        return validation_noise(base, base.relation)

    def charged(self, base: accounting.Guarantee, deviation: float) -> accounting.Guarantee:
        """Returns the guarantee of one run and its noisy count together."""
        if self.records == PUBLIC:
            return base
        count = count_guarantee(deviation, base.relation)
        if self.records == TRAINING:
            return accounting.compose(base, count)
        return accounting.parallel(base, count)

    def counted(self, given: Any) -> tuple[int | None, str | None]:
        """Returns the count that is ranked, and a remark for the curator on what was wrong with it.

        The count is a whole number in 0..public_size; None, which ranks worst, for anything but a
        number or an array of no dimension.
        """
        try:
            if getattr(given, "ndim", None) == 0 and hasattr(given, "item"):
                given = given.item()  # NumPy's, JAX's and PyTorch's scalars.
        except Exception:  # A scalar that cannot be read is none; the others go on.
            given = None
        if not isinstance(given, numbers.Real) or isinstance(given, bool) or given != given:
            return None, f"{FAILED}it returned no number of correct predictions"
        clipped: Any = min(max(given, 0), self.public_size)
        count = math.floor(clipped)
        if clipped != given:
            return count, f"its count was clipped to 0..{self.public_size}"
        if 0 < clipped < 1:
            return count, "it returned a fraction, counted as 0: return the number of correct ones"
        return count, None if count == given else "its count was rounded down"
