"""What is compared in the figure of selectors: candidates, selectors, and their equal budgets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from dpjax import accounting, tuning
from dpjax.neighbouring import ADD_OR_REMOVE_ONE
from dpjax.tuning.private_runs import plan_runs
from dpjax.tuning.problem.problem import Problem, RunOptions
from dpjax.tuning.problem.run_settings import RunSetting, calibrated, run_settings
from dpjax.tuning.problem.task import Task
from dpjax.tuning.selection import BestOf
from dpjax.tuning.tuners.doubling import DoublingChoice
from dpjax.tuning.tuners.exponential import ExponentialChoice
from experiments.figures.ding_wu import tasks
from experiments.figures.figure import DEFAULT_FOLDERS, FULL, QUICK, DataFolders

RATES = np.geomspace(1e-3, 10.0, 16)
"""Learning rates of the 16 candidates; all have momentum 0.9 and clip norm 1."""

GRANULARITY = 0.05
LAW_OF_K = accounting.AtMost(accounting.Geometric(10), cap=64)
ITERATION_CAP, HIT_CAP = 12, 6
"""Caps of the loop and of its segment variant: at granularity 0.05 a loop without noise needs about
nine iterations and five hits."""

RANDOM, REPETITIONS = "random_candidate", "random_repetitions"
DOUBLING, SEGMENTS, EXPONENTIAL = "doubling", "segments", "exponential"
SELECTORS = (DOUBLING, SEGMENTS, EXPONENTIAL)
"""Those with partitions and an epsilon_0."""

BUDGET_COLUMNS = (
    *("selector", "epsilon_0", "epsilon_selection", "noise_multiplier", "score_noise"),
)


@dataclasses.dataclass(frozen=True)
class Study:
    """One data set of the figure, with its values of k and of epsilon_0.

    Lots and epochs are of the final training, epsilon and delta of selection and final training
    together. Every candidate is trained `trainings` times at every noise, with keys of their own.
    """

    dataset: str
    lot_size: int
    epochs: float
    epsilon: float
    delta: float
    trainings: int
    partitions: tuple[int, ...]
    epsilons: tuple[float, ...]

    @property
    def fixed(self) -> dict:
        """What every row of this study must agree on, as cells."""
        names = ("dataset", "lot_size", "epochs", "epsilon", "delta")
        return {name: getattr(self, name) for name in names}


_EPSILONS = (0.02, 0.05, 0.1, 0.15, 0.3, 0.5, 1.0, 1.5)
STUDIES = {
    FULL: (
        Study("digits", 72, 20.0, 2.0, 1e-5, 8, (10, 30, 100), _EPSILONS),
        Study("adult", 512, 5.0, 2.0, 1e-5, 8, (10, 100, 1000), _EPSILONS),
    ),
    QUICK: (Study("digits", 72, 4.0, 2.0, 1e-5, 1, (10, 30), (0.1, 1.0)),),
}


@dataclasses.dataclass(frozen=True)
class Setup:
    """A study's task, test records and setting of a final training with the whole budget."""

    task: Task
    test: tuple[np.ndarray, np.ndarray]
    setting: RunSetting


def space() -> tuning.Space:
    """Returns the candidates as a law: each as likely as any other."""
    return tuning.Space(learning_rate=tuning.Choice(RATES), momentum=0.9, clip_norm=1.0)


def set_up(study: Study, options: DataFolders = DEFAULT_FOLDERS) -> Setup:
    """Loads the data and fixes what all selectors share."""
    task, test = tasks.logistic_regression(study.dataset, options)
    settings = run_settings(Problem.of(task, space(), _options(study)))
    (setting,) = calibrated(settings, lambda run: run, study.epsilon, study.delta)
    return Setup(task, test, setting)


def selector(name: str, epsilon: float) -> DoublingChoice | ExponentialChoice:
    """Returns a selector of `SELECTORS`, the tuning's own, with the caps above.

    `epsilon` is epsilon_0: of one iteration, of one segment, or of the one draw.
    """
    if name == EXPONENTIAL:
        return ExponentialChoice(epsilon)
    segments = name == SEGMENTS
    return DoublingChoice(
        epsilon,
        GRANULARITY,
        lower_bound=0.0,
        variant="segments" if segments else "iterations",
        iterations=None if segments else ITERATION_CAP,
        hits=HIT_CAP if segments else None,
    )


def budgets(study: Study, setup: Setup) -> list[dict]:
    """Returns the noise of the final training that each selector leaves room for.

    A row for each selector and epsilon_0 (none for random repetitions and a random candidate) that
    leaves at least a twentieth of the budget; `epsilon_selection` is of the selection alone,
    `score_noise` on the validation count of random repetitions, in records.
    """
    rows = [_budget(RANDOM, None, 0.0, setup.setting.noise_multiplier, None)]
    procedure = plan_runs(
        Problem.of(setup.task, space(), _options(study), epsilon=study.epsilon, delta=study.delta),
        BestOf(LAW_OF_K),
    )
    noise = procedure.settings[0].noise_multiplier
    rows.append(_budget(REPETITIONS, None, None, noise, procedure.score_noise))
    for name in SELECTORS:
        for epsilon in study.epsilons:
            selection = selector(name, epsilon).guarantee(ADD_OR_REMOVE_ONE)
            alone = selection.epsilon(study.delta)
            if alone > 0.95 * study.epsilon:
                continue
            (setting,) = calibrated(
                [setup.setting],
                lambda run, selection=selection: accounting.compose(selection, run),
                study.epsilon,
                study.delta,
            )
            rows.append(_budget(name, epsilon, alone, setting.noise_multiplier, None))
    return rows


def _options(study: Study) -> RunOptions:
    return RunOptions(lot_size=study.lot_size, epochs=study.epochs)


def _budget(*values: object) -> dict:
    return dict(zip(BUDGET_COLUMNS, values, strict=True))


def hyperparameters(candidates: np.ndarray) -> Mapping[str, np.ndarray]:
    """Returns the hyperparameters of candidates, each (n,), given their numbers (n,)."""
    count = len(candidates)
    return {
        "learning_rate": RATES[candidates],
        "momentum": np.full(count, 0.9),
        "clip_norm": np.ones(count),
    }
