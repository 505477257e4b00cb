"""From the settings of a search to the shapes of training runs; both oracles ask here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from dpjax import checks
from dpjax.pareto.domain import Domain
from dpjax.tuning.problem.run_settings import RunSetting
from dpjax.tuning.problem.run_shape import FIXED, POISSON, check_sampling, whole_lot_size

_ABOVE_ZERO = "must be above 0: pass positive numbers"
_ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"round": np.round, "floor": np.floor}


@dataclasses.dataclass(frozen=True)
class RunShapes:
    """How settings with `epochs` and `lot_size` become runs on a data set of public size.

    Example:
      >>> from dpjax import pareto
      >>> pareto.RunShapes(dataset_size=60_000).sampling
      'fixed'

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
    sampling: str = dataclasses.field(default=FIXED, metadata={"choices": (FIXED, POISSON)})
    steps_per_epoch: str = dataclasses.field(
        default="round", metadata={"choices": tuple(_ROUNDINGS)}
    )
    size_bound: int | None = None

    def __post_init__(self) -> None:
        check_sampling(self.sampling)
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
          ValueError: a name that is missing, a lot larger than the data, or a clip norm of 0 or
            less.
        """
        missing = [name for name in ("epochs", "lot_size") if domain.largest(name) is None]
        if missing:
            raise ValueError(
                f"the domain lacks {', '.join(missing)}: add it, for example "
                f"{missing[0]}=log_integer(1,64)"
            )
        least = domain.smallest("clip_norm")
        if least is not None and not least > 0:
            raise ValueError(f"clip_norm goes down to {least:g} and {_ABOVE_ZERO}")
        largest = domain.largest("lot_size")
        if largest is not None and largest > self.dataset_size:
            raise ValueError(
                f"lot_size goes up to {largest:g}, above the "
                f"{self.dataset_size} training records: pass a range that ends there or below"
            )

    def lot_sizes(self, settings: Mapping[str, np.ndarray]) -> np.ndarray:
        """Records of a lot (n,) int64.

        Raises:
          ValueError: below 1 or above the data set.
        """
        sizes = [whole_lot_size(lot, self.dataset_size) for lot in settings["lot_size"]]
        return np.array(sizes, np.int64)

    def steps(self, settings: Mapping[str, np.ndarray]) -> np.ndarray:
        """Steps (n,) int64: epochs times the steps of one, at least 1."""
        per_epoch = _ROUNDINGS[self.steps_per_epoch](self.dataset_size / self.lot_sizes(settings))
        steps = np.round(settings["epochs"]) * np.maximum(per_epoch, 1.0)
        return np.maximum(steps, 1.0).astype(np.int64)

    def accounted(self, settings: Mapping[str, np.ndarray]) -> list[RunSetting]:
        """The runs of n settings, their lots and prices; reads `noise_multiplier` too.

        Raises:
          ValueError: a clip norm that is not above 0, or a lot that is no lot of the data set.
        """
        if not np.all(np.asarray(settings.get("clip_norm", 1.0)) > 0):
            raise ValueError(f"clip_norm {_ABOVE_ZERO}")
        shared = self.sampling, self.dataset_size, self.largest_size
        return [
            RunSetting(lot_size, steps, *shared, noise_multiplier)
            for lot_size, steps, noise_multiplier in zip(
                self.lot_sizes(settings).tolist(),
                self.steps(settings).tolist(),
                np.asarray(settings["noise_multiplier"], np.float64).tolist(),
            )
        ]
