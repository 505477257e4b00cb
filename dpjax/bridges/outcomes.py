"""What became of one candidate: the curator's, and what callbacks are given."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

from dpjax.bridges.candidates import Label

FAILED = "ranked worst: "
"""How the remark on a candidate that failed begins."""


@dataclasses.dataclass(frozen=True, repr=False)
class Outcome:
    """One candidate, once it has run; for the curator only, never to be published.

    Example:
      >>> from dpjax import accounting, bridges, tuning
      >>> def run(seed, hyperparameters):  # Stands for a private training in any library.
      ...     return {"weights": [hyperparameters["rate"]]}, 850
      >>> outcomes = []  # The curator's.
      >>> result = bridges.tune(
      ...     run,
      ...     tuning.Space(rate=tuning.LogUniform(0.01, 1)),
      ...     base=accounting.gaussian(2.0),
      ...     score=bridges.CountedScore("disjoint", public_size=1000),
      ...     repetitions=accounting.Fixed(3),
      ...     on_outcome=outcomes.append,
      ... )
      >>> [outcome.candidate for outcome in outcomes], outcomes[0].failed
      ([0, 1, 2], False)

    Attributes:
      candidate: its number.
      hyperparameters: as its run read them.
      count: of correct predictions, clipped, without noise; None where there is none.
      score: the count with noise over the public size, by which it is ranked; -inf where it failed.
      remark: what was wrong, None if nothing was.
    """

    candidate: int
    hyperparameters: Mapping[str, Label]
    count: int | None
    score: float
    remark: str | None

    def __repr__(self) -> str:
        """Shows nothing: what is printed is easily published."""
        return "Outcome(not private: for the curator only)"

    @property
    def failed(self) -> bool:
        """Returns whether it ranks worst."""
        return math.isinf(self.score)


Callback = Callable[[Outcome], object]
"""Called once for each candidate; what it writes (a log, a tracking server) is the curator's."""
