"""What a search asks about settings: their cost in privacy, and the utility of training them.

An oracle is a function of settings, a dictionary name -> array (n,). A privacy oracle returns
epsilons (n,); a utility oracle returns utilities (n, R) in [0, 1], larger being better, one for
each of R repetitions, nan for a repetition that failed. A utility oracle may take `seeds`, one
integer a point, and then draws all its randomness from them; and it may have an attribute
`failed_as`, the utility that a failed repetition counts as. Without it, a point with a failed
repetition has failed. An oracle may have `describe()`, JSON-able words by which a resumed search
knows it again; otherwise its fields, if it is a dataclass, or its name stand for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dpjax import accounting, checks
from dpjax.pareto.domain import Domain, select
from dpjax.pareto.repeated_runs import RepeatedRuns
from dpjax.pareto.run_shapes import RunShapes
from dpjax.training.optimizers import Optimizer
from dpjax.tuning.curator import fingerprint
from dpjax.tuning.problem.inspection import refuse_unread
from dpjax.tuning.problem.run_shape import FIXED, TRUNCATION_PROBABILITY
from dpjax.tuning.problem.task import Task, check_score

PrivacyOracle = Callable[[Mapping[str, np.ndarray]], np.ndarray]
UtilityOracle = Callable[..., np.ndarray]

TIGHT, RDP, CLASSIC = "tight", "rdp", "rdp_classic"

LARGEST_ORDER = 512
"""Renyi orders of the two older accountings: every integer from 2 to this."""


@dataclasses.dataclass(frozen=True)
class TrainingCost:
    """Privacy oracle of DP-SGD and DP-Adam: reads epochs, lot_size, noise_multiplier.

    Formal guarantees: the epsilon of a setting is an upper bound, at `delta`, for one private
    training run of its `RunShapes`, under replace one for fixed lots and add or remove one for
    Poisson lots. Noise on the sum is noise_multiplier times its sensitivity: twice the clip norm
    L, hence z * 2L/m on the mean of a fixed lot of m, the authors' convention; or L, for Poisson
    lots. It prices one run with hyperparameters that were not chosen on the data; a search that
    looked at private data to choose them is not paid for here.

    Example:
      >>> import numpy as np
      >>> from dpjax import pareto
      >>> cost = pareto.TrainingCost(pareto.RunShapes(dataset_size=1000))
      >>> settings = {"epochs": [2.0], "lot_size": [100.0], "noise_multiplier": [2.0]}
      >>> cost({name: np.array(values) for name, values in settings.items()}).shape
      (1,)

    Attributes:
      shapes: from settings to runs.
      delta: of one run, in (0, 1).
      method: "tight", the loss distributions of one step, composed; "rdp", Renyi divergences at
        integer orders with the best conversion; "rdp_classic", the same with the conversion of the
        paper (rdp + log(1/delta) / (order - 1)), for reproducing it. All three charge the
        probability that a lot is not as accounted (`RunShape.failure_probability`) to delta.

    Raises:
      ValueError: a delta outside (0, 1), one below what Poisson lots may overflow with, or another
        method.
    """

    shapes: RunShapes
    delta: float = 1e-5
    method: str = dataclasses.field(
        default=TIGHT, metadata={"flag": "accounting", "choices": (TIGHT, RDP, CLASSIC)}
    )

    def __post_init__(self) -> None:
        checks.instance("shapes", self.shapes, RunShapes, "pareto.RunShapes(dataset_size=60000)")
        checks.probability("delta", self.delta, hint=", such as 1e-5")
        if self.shapes.sampling != FIXED and self.delta < TRUNCATION_PROBABILITY:
            raise ValueError(
                f"delta {self.delta:g}: Poisson lots may overflow with probability "
                f"{TRUNCATION_PROBABILITY:g} a run, so no epsilon is finite: pass more, or "
                "sampling='fixed'"
            )
        if self.method not in (TIGHT, RDP, CLASSIC):
            raise ValueError(f"method {self.method!r}: pass {TIGHT}, {RDP} or {CLASSIC}")

    def __call__(self, settings: Mapping[str, np.ndarray]) -> np.ndarray:
        """Epsilons (n,) float64."""
        noise = np.asarray(settings["noise_multiplier"], np.float64)
        if not (noise > 0).all():
            raise ValueError(f"noise_multiplier {noise.min():g}: pass numbers above 0")
        if self.method == TIGHT:
            # The loss distributions alone: the Renyi curve never beats them here, and costs more.
            return np.array(
                [
                    run.guarantee().pair.epsilon(self.delta)
                    for run in self.shapes.accounted(settings)
                ]
            )
        orders = np.arange(2, LARGEST_ORDER + 1)
        divergences = accounting.rdp_grid(
            self.shapes.lot_sizes(settings) / self.shapes.dataset_size,
            noise,
            self.shapes.steps(settings),
            orders,
            sampling="without_replacement" if self.shapes.sampling == FIXED else "poisson",
        )
        # With probability p a run is not as accounted: H(mixture) <= p + (1 - p) H(as accounted).
        left = self.delta - np.array(
            [run.failure_probability for run in self.shapes.accounted(settings)]
        )
        epsilons = accounting.epsilon_grid(
            divergences, orders, np.where(left > 0.0, left, self.delta), method=self.method
        )
        return np.where(left > 0.0, epsilons, np.inf)

    def guarantee(self, setting: Mapping[str, float]) -> accounting.Guarantee:
        """The full guarantee of one run of one setting, always the tight one."""
        (run,) = self.shapes.accounted({name: np.array([v]) for name, v in setting.items()})
        return run.guarantee()

    def check(self, domain: Domain) -> None:
        """Refuses a domain that cannot be priced or trained."""
        self.shapes.check(domain)
        if domain.largest("noise_multiplier") is None:
            raise ValueError("the domain lacks noise_multiplier: add noise_multiplier=log(0.1,16)")


class TrainedAccuracy:
    """Utility oracle: the accuracy of privately trained models, R repetitions a setting.

    Reads epochs, lot_size, noise_multiplier, clip_norm and what the optimiser reads. A repetition
    whose parameters are not finite is nan and counts as guessing (`failed_as`): whoever finds such
    a model discards it.

    NOT private: accuracies are exact, on records that nothing protects.

    Example:
      >>> from dpjax import data, models, training, tuning
      >>> from dpjax import pareto
      >>> parts = data.load("digits").parts(0.2, key=b"public")  # Public records.
      >>> task = tuning.classification(models.LogisticRegression(10), parts.train, parts.validation)
      >>> shapes = pareto.RunShapes(dataset_size=parts.train.public_size)
      >>> accuracy = pareto.TrainedAccuracy(task, shapes, training.sgd(), classes=10, repetitions=2)
      >>> accuracy.failed_as
      0.1

    Attributes:
      repetitions: R.
      failed_as: accuracy of guessing, 1 / classes.
      compilations: programs compiled so far; a search needs one for each class of lots.
    """

    def __init__(
        self,
        task: Task,
        shapes: RunShapes,
        optimizer: Optimizer,
        *,
        classes: int,
        repetitions: int = 10,
        side_by_side: int | None = None,
        workers: int | None = None,
    ):
        """Prepares; nothing is trained or compiled yet.

        Args:
          task: what to learn; accuracy is taken on its validation records.
          shapes: from settings to runs. Its dataset_size is that of `task.train`, or larger where a
            small public data set stands in for a larger private one: lots and steps are then those
            of the private run, drawn from fewer records.
          optimizer: hyperparameters -> optax transformation.
          classes: of the task.
          repetitions: trainings of a setting, R, >= 1.
          side_by_side: THE memory knob: runs vectorised in one call; None: `repetitions` for models
            of few parameters and on accelerators, else 1.
          workers: calls at the same time; None: one for each CPU core, or each accelerator.

        Raises:
          ValueError: no repetition, or a task whose `correct` is no boolean or `score` no number.
        """
        repetitions = checks.whole("repetitions", repetitions)
        classes = checks.whole("classes", classes)
        checks.instance("task", task, Task, "tuning.classification(model, train, validation)")
        checks.instance("shapes", shapes, RunShapes, "pareto.RunShapes(dataset_size=60000)")
        checks.function("optimizer", optimizer, "of hyperparameters")
        check_score(task)
        self.task, self.shapes, self._optimizer = task, shapes, optimizer
        self.repetitions, self.failed_as = repetitions, 1.0 / classes
        self._runs = RepeatedRuns(
            task, optimizer, width=side_by_side, usual_width=repetitions, workers=workers
        )
        self._records = task.validation.number

    @property
    def compilations(self) -> int:
        return self._runs.compilations

    def describe(self) -> dict[str, Any]:
        """What a record of a search says of this oracle, JSON-able."""
        records = (self.task.train.arrays, self.task.validation.arrays)
        return {
            "task": self.task.description,
            "records": fingerprint(records),
            "runs": repr(self.shapes),
            "optimizer": described(self._optimizer),
            "repetitions": self.repetitions,
        }

    def __call__(self, settings: Mapping[str, np.ndarray], seeds: np.ndarray) -> np.ndarray:
        """Accuracies (n, R) float64 in [0, 1], nan where a run diverged.

        Args:
          settings: name -> (n,).
          seeds: (n,) integers >= 0; repetition r of a point has a key made of (its seed, r).

        Raises:
          ValueError: for a name that nothing reads, or two equal seeds.
        """
        number = len(seeds)
        refuse_unread(self.task, self._optimizer, settings)
        # Lots are drawn from the records at hand; the number of steps is that of the priced run.
        shapes = dataclasses.replace(
            self.shapes, dataset_size=self.task.train.number, size_bound=None
        )
        steps = np.repeat(self.shapes.steps(settings), self.repetitions)
        lots = [run.lots for run in shapes.accounted(settings) for _ in range(self.repetitions)]
        sizes = np.repeat(shapes.lot_sizes(settings), self.repetitions)
        hyperparameters = {
            name: np.repeat(values, self.repetitions) for name, values in settings.items()
        } | {"lot_size": sizes.astype(np.float64), "steps": steps.astype(np.float64)}
        words = [
            np.random.SeedSequence((int(seed), repetition)).generate_state(2)
            for seed in seeds
            for repetition in range(self.repetitions)
        ]
        scored, finite = self._runs(lots, steps, np.asarray(words), hyperparameters)
        accuracy = np.where(finite, scored / (self.task.units * self._records), np.nan)
        return accuracy.reshape(number, self.repetitions)


def described(oracle: Callable[..., Any]) -> Any:
    """What a record says of an oracle, JSON-able: its own words, its fields or its name."""
    if hasattr(oracle, "describe"):
        return oracle.describe()
    if dataclasses.is_dataclass(oracle):
        return repr(oracle)
    named = oracle if hasattr(oracle, "__qualname__") else type(oracle)
    return f"{named.__module__}.{named.__qualname__}"


def one_setting(settings: Mapping[str, np.ndarray], place: int) -> dict[str, float]:
    """The setting at one place, as plain numbers."""
    return {name: float(values[0]) for name, values in select(settings, [place]).items()}
