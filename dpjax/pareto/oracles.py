"""The functions that a search asks about settings: their cost in privacy, and their utility.

An oracle is a function of settings, a dictionary name -> array (n,). A privacy oracle returns
epsilons (n,); a utility oracle returns utilities (n, R) in [0, 1], larger being better, one for
each of R repetitions, nan for a repetition that failed. A utility oracle may take `seeds`, one
integer per point, and then draws all its randomness from them; and it may have an attribute
`failed_as`, the utility that a failed repetition counts as. Without it, a point with a failed
repetition has failed. A resumed search must have the same oracles. They are compared by the result
of `describe()`, for JSON, if they have it; else by a dataclass's fields, else by name.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dpjax import accounting, checks
from dpjax.array_files import fingerprint
from dpjax.pareto.domain import Domain, Settings, number_of, select
from dpjax.pareto.repeated_runs import RepeatedRuns
from dpjax.training.optimizers import Optimizer
from dpjax.tuning.problem.inspection import refuse_unread
from dpjax.tuning.problem.problem import FIXED, POISSON, check_sampling
from dpjax.tuning.problem.run_settings import TRUNCATION_PROBABILITY, RunSetting, whole_lot_size
from dpjax.tuning.problem.task import Task, check_score

PrivacyOracle = Callable[[Mapping[str, np.ndarray]], np.ndarray]
UtilityOracle = Callable[..., np.ndarray]

TIGHT, RDP, CLASSIC = "tight", "rdp", "rdp_classic"

LARGEST_ORDER = 512
"""The largest Renyi order of the two older methods, which use every integer from 2."""

_ABOVE_ZERO = "must be above 0: pass positive numbers"


@dataclasses.dataclass(frozen=True)
class RunShapes:
    """How settings with `epochs` and `lot_size` become runs on a data set of public size.

    Attributes:
      dataset_size: public number of records; their exact number for fixed lots.
      sampling: "fixed", lots drawn without replacement, replace one; or "poisson", add or remove
        one, where lot_size is the expected number.
      size_bound: for Poisson lots, a public upper bound on the number of records; their rate and
        steps still come from dataset_size. None: dataset_size.
    """

    dataset_size: int
    sampling: str = dataclasses.field(default=FIXED, metadata={"choices": (FIXED, POISSON)})
    size_bound: int | None = None

    def __post_init__(self) -> None:
        check_sampling(self.sampling)
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
        """Returns the public upper bound on the number of records."""
        return self.dataset_size if self.size_bound is None else self.size_bound

    def check(self, domain: Domain) -> None:
        """Refuses a domain whose settings cannot be run on this data set."""
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
        """Returns the numbers of records in a lot, (n,) int64."""
        sizes = [whole_lot_size(lot, self.dataset_size) for lot in settings["lot_size"]]
        return np.array(sizes, np.int64)

    def steps(self, settings: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns steps (n,) int64: epochs times the steps of one epoch, at least 1.

        These are dataset_size / lot_size, rounded as in the code of Avent et al. 2020.
        """
        per_epoch = np.round(self.dataset_size / self.lot_sizes(settings))
        steps = np.round(settings["epochs"]) * np.maximum(per_epoch, 1.0)
        return np.maximum(steps, 1.0).astype(np.int64)

    def accounted(self, settings: Mapping[str, np.ndarray]) -> list[RunSetting]:
        """Returns the runs of n settings, as they are priced; reads `noise_multiplier` too."""
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
            raise checks.Refused(
                ("delta", self.delta),
                f": Poisson lots may overflow with probability {TRUNCATION_PROBABILITY:g} a run, "
                "so no epsilon is finite: pass more, or ",
                ("sampling", FIXED),
            )
        checks.one_of("method", self.method, (TIGHT, RDP, CLASSIC))

    def __call__(self, settings: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns epsilons (n,) float64."""
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
        """Returns the full guarantee of one run of one setting, always the tight one."""
        (run,) = self.shapes.accounted({name: np.array([v]) for name, v in setting.items()})
        return run.guarantee()

    def check(self, domain: Domain) -> None:
        """Refuses a domain that cannot be priced or trained."""
        self.shapes.check(domain)
        if domain.largest("noise_multiplier") is None:
            raise ValueError("the domain lacks noise_multiplier: add noise_multiplier=log(0.1,16)")


class TrainedAccuracy:
    """Utility oracle: the accuracy of privately trained models, R repetitions per setting.

    Reads epochs, lot_size, noise_multiplier, clip_norm and what the optimiser reads. A repetition
    whose parameters are not finite is nan and counts as guessing (`failed_as`), since
    such a model would be discarded.

    NOT private: accuracies are exact, on records that nothing protects.

    Example:
      >>> from dpjax import data, models, pareto, training, tuning
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
        """Checks the arguments; nothing is trained or compiled yet.

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
        """Counts the programs compiled so far."""
        return self._runs.compilations

    def describe(self) -> dict[str, Any]:
        """Describes this oracle for the record of a search, as JSON."""
        records = (self.task.train.arrays, self.task.validation.arrays)
        return {
            "task": self.task.description,
            "records": fingerprint(records),
            "runs": repr(self.shapes),
            "optimizer": described(self._optimizer),
            "repetitions": self.repetitions,
        }

    def __call__(self, settings: Mapping[str, np.ndarray], seeds: np.ndarray) -> np.ndarray:
        """Returns accuracies (n, R) float64 in [0, 1], nan where a run diverged.

        Repetition r of a point has a key made of (its seed, r); seeds (n,) are integers >= 0.
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
    """Describes an oracle for a record, as JSON: by `describe()`, its fields or its name."""
    if hasattr(oracle, "describe"):
        return oracle.describe()
    if dataclasses.is_dataclass(oracle):
        return repr(oracle)
    named = oracle if hasattr(oracle, "__qualname__") else type(oracle)
    return f"{named.__module__}.{named.__qualname__}"


def evaluate_privacy(privacy: PrivacyOracle, settings: Settings) -> tuple[np.ndarray, list[str]]:
    """Returns epsilons (n,), nan where one failed, and n texts: why it failed, else empty."""
    number = number_of(settings)
    answers, why = _one_by_one_if_needed(lambda which: privacy(select(settings, which)), number)
    epsilon = np.full(number, np.nan)
    for place, answer in enumerate(answers):
        if why[place]:
            continue
        if np.shape(answer) != ():
            raise ValueError(
                f"the privacy oracle answered {np.shape(answer)} for a point: return one epsilon "
                "for each setting, shape (n,)"
            )
        if np.isfinite(answer) and answer >= 0:
            epsilon[place] = answer
        else:
            why[place] = f"the privacy oracle gave epsilon {float(answer):g}"
    return epsilon, why


def evaluate_utility(
    utility: UtilityOracle, settings: Settings, seeds: np.ndarray, failed_as: float | None
) -> tuple[list[np.ndarray], list[str]]:
    """Returns each setting's utilities (R,), and n texts: why the setting failed, else empty."""
    takes_seeds = "seeds" in inspect.signature(utility).parameters

    def ask(which: np.ndarray) -> np.ndarray:
        chosen = select(settings, which)
        return utility(chosen, seeds=seeds[which]) if takes_seeds else utility(chosen)

    answers, why = _one_by_one_if_needed(ask, len(seeds))
    measured = []
    for place, answer in enumerate(answers):
        own = np.zeros(0) if why[place] else np.asarray(answer, np.float64)
        if not why[place]:
            if own.ndim != 1 or not own.size:
                raise ValueError(
                    f"the utility oracle answered {own.shape} for a point: return the utilities of "
                    "all repetitions, shape (n, R)"
                )
            real = own[~np.isnan(own)]
            if ((real < 0) | (real > 1)).any():
                why[place] = f"a utility of {real[(real < 0) | (real > 1)][0]:g} is not in [0, 1]"
            elif failed_as is None and len(real) < len(own):
                why[place] = f"{len(own) - len(real)} of {len(own)} repetitions failed"
        measured.append(own)
    return measured, why


def _one_by_one_if_needed(
    ask: Callable[[np.ndarray], np.ndarray], number: int
) -> tuple[list[Any], list[str]]:
    """Asks for all points at once; if that raises, for each alone, to find which ones fail."""
    try:
        answers = ask(np.arange(number))
        if len(answers) != number:
            raise ValueError(
                f"an oracle gave {len(answers)} answers for {number} settings: return one for each"
            )
        return list(answers), [""] * number
    except Exception as error:
        if number == 1:
            return [None], [_one_line(error)]
    alone: list[Any] = [None] * number
    why = [""] * number
    for place in range(number):
        try:
            (alone[place],) = ask(np.array([place]))
        except Exception as error:
            why[place] = _one_line(error)
    return alone, why


def _one_line(error: Exception) -> str:
    """Returns an error's type and text, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
