"""Pareto searches beside Optuna's and BoTorch's, on problems whose true front is known.

Sixteen settings at random, by each library's own design, then proposals; every setting is measured
with noise, and a search is judged by the true hypervolume, up to the anti-ideal point (10, 1), of
everything that it evaluated. Problems: the sparse vector example (two hyperparameters, 50 random
orders a setting) and a made-up training (the five hyperparameters of Adult, three repetitions).
Peers have the same logarithmic ranges and whole numbers, and as many proposals at a time as is
best for them: TPE and GPSampler one, NSGA-II with 16 a generation, BoTorch's qLogNEHVI one, with
epsilon known exactly, in units of epsilon and error and in the models' (logarithm and logit).

  python -m experiments.benchmarks.pareto_peers --out_dir=docs/benchmarks
  python -m experiments.benchmarks.pareto_peers --out_dir=runs/peers --seeds=1 --evaluations=32

Needs optuna, and for `--searches` of GPSampler and BoTorch, torch and botorch; a search whose
library is not installed is left out, and named. CPU seconds are of one core, one BLAS thread, of
proposals and oracles together. Rows that are there are kept. An hour, nearly all of it BoTorch's.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import threadpoolctl
from absl import flags
from rich.console import Console
from rich.table import Table

from dpjax import pareto
from dpjax.commands import command_line
from dpjax.pareto import fronts
from experiments.figures.dpareto import overhead, problems, sparse_vector_example
from experiments.figures.rows import read_rows, select, write_rows

COLUMNS = ("problem", "search", "seed", "evaluations", "true_hypervolume", "cpu_seconds")
ANTI_IDEAL, INITIAL, NAME = (10.0, 1.0), 16, "pareto_peers"


class Problem(NamedTuple):
    """What is searched: settings (n,) -> epsilons (n,); with seeds -> utilities (n, R); the truth.

    Attributes:
      domain: of the settings.
      epsilons: exact.
      utilities: as measured.
      truth: settings -> expected utilities (n,).
    """

    domain: pareto.Domain
    epsilons: Callable[[Mapping], np.ndarray]
    utilities: Callable[[Mapping, np.ndarray], np.ndarray]
    truth: Callable[[Mapping], np.ndarray]


_EXAMPLE = sparse_vector_example.SparseVectorExample()
PROBLEMS = {
    "sparse vector": Problem(
        sparse_vector_example.DOMAIN,
        _EXAMPLE.epsilons,
        _EXAMPLE.utility_oracle(),
        _EXAMPLE.expected_utilities,
    ),
    "made-up training": Problem(
        problems.PROBLEMS["adult_logistic_regression_sgd"].domain,
        overhead.epsilons,
        overhead.utilities,
        overhead.expected_utilities,
    ),
}


class Measured:
    """The evaluations of a search, one after the other."""

    def __init__(self, problem: Problem, seed: int):
        self.problem, self._seed = problem, seed
        self.record = pareto.SearchRecord(problem.domain, ANTI_IDEAL)

    def __call__(self, settings: Mapping[str, np.ndarray]) -> np.ndarray:
        """Epsilon and mean error (n, 2) of settings (n,), which are kept."""
        number = len(next(iter(settings.values())))
        first = len(self.record)
        seeds = np.arange(first, first + number) + 10_000 * self._seed
        utilities = self.problem.utilities(settings, seeds)
        self.record.tell(settings, self.problem.epsilons(settings), utilities)
        return self.record.points[first:]

    def true_hypervolume(self, number: int) -> float:
        """Of the first so many evaluations, by their true utilities."""
        error = 1.0 - self.problem.truth(self.record.settings)[:number]
        points = np.stack([self.record.epsilon[:number], error], axis=1)
        return fronts.hypervolume(points, self.record.anti_ideal)


def _ours(batch: int, method: str = "ehvi") -> Callable[[Measured, int, int], None]:
    def search(measured: Measured, evaluations: int, seed: int) -> None:
        record = measured.record
        while len(record) < evaluations:
            wanted = INITIAL if len(record) < INITIAL else min(batch, evaluations - len(record))
            measured(pareto.ask(record, wanted, method=method, initial=INITIAL, seed=seed))

    return search


def _optuna(sampler: Callable[[Any, int], Any]) -> Callable[[Measured, int, int], None]:
    def search(measured: Measured, evaluations: int, seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        domain = measured.problem.domain

        def objective(trial: optuna.Trial) -> tuple[float, float]:
            setting = {name: np.array([value]) for name, value in domain.constants.items()}
            for name, law in domain.parameters.items():
                suggest = trial.suggest_int if law.whole else trial.suggest_float
                ends = (int(law.lowest), int(law.highest)) if law.whole else (law.low, law.high)
                value = suggest(name, *ends, log=law.logarithmic)
                setting[name] = np.array([value], np.float64)
            ((epsilon, error),) = measured(setting)
            # What lies beyond the anti-ideal point does not count: how far is of no use to them.
            return min(float(epsilon), ANTI_IDEAL[0]), float(error)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of samplers that are experimental.
            study = optuna.create_study(
                directions=["minimize", "minimize"], sampler=sampler(optuna.samplers, seed)
            )
            study.optimize(objective, n_trials=evaluations)

    return search


def _botorch(model_units: bool) -> Callable[[Measured, int, int], None]:
    def search(measured: Measured, evaluations: int, seed: int) -> None:
        import torch
        from botorch import fit_gpytorch_mll
        from botorch.acquisition.multi_objective.logei import (
            qLogNoisyExpectedHypervolumeImprovement,
        )
        from botorch.models import ModelListGP, SingleTaskGP
        from botorch.models.transforms.outcome import Standardize
        from botorch.optim import optimize_acqf
        from botorch.sampling import SobolQMCNormalSampler
        from botorch.utils.sampling import draw_sobol_samples
        from gpytorch.mlls import SumMarginalLogLikelihood

        torch.manual_seed(seed)
        torch.set_num_threads(1)
        domain = measured.problem.domain
        bounds = torch.stack([torch.zeros(domain.dimension), torch.ones(domain.dimension)]).double()

        def goals(points: np.ndarray) -> np.ndarray:
            return -(fronts.to_model_units(points) if model_units else points)

        def inputs() -> torch.Tensor:
            return torch.as_tensor(domain.to_unit(measured.record.settings))

        first = draw_sobol_samples(bounds, INITIAL, 1, seed=seed)[:, 0]
        measured(domain.from_unit(first.numpy()))
        while len(measured.record) < evaluations:
            x, y = inputs(), torch.as_tensor(goals(measured.record.points).copy())
            exact = torch.full_like(y[:, :1], 1e-6) * y[:, :1].var()
            models = ModelListGP(
                SingleTaskGP(x, y[:, :1], train_Yvar=exact, outcome_transform=Standardize(1)),
                SingleTaskGP(x, y[:, 1:], outcome_transform=Standardize(1)),
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Of fits that are tried again.
                fit_gpytorch_mll(SumMarginalLogLikelihood(models.likelihood, models))
                worst = (
                    goals(np.array([ANTI_IDEAL])) if not model_units else _worst_in_model_units()
                )
                criterion = qLogNoisyExpectedHypervolumeImprovement(
                    models,
                    worst.ravel().tolist(),
                    x,
                    sampler=SobolQMCNormalSampler(torch.Size([128])),
                    prune_baseline=True,
                )
                found, _ = optimize_acqf(criterion, bounds, 1, num_restarts=10, raw_samples=512)
            measured(domain.from_unit(found.detach().numpy()))

    return search


def _worst_in_model_units() -> np.ndarray:
    """The anti-ideal point, an error just below 1, whose logit is finite."""
    return -fronts.to_model_units(np.array([(ANTI_IDEAL[0], 1.0 - 1e-3)]))


class Search(NamedTuple):
    """Attributes: needs, libraries; run, (measured, evaluations, seed) -> None."""

    needs: tuple[str, ...]
    run: Callable[[Measured, int, int], None]


SEARCHES = {
    "dpjax, EHVI, one at a time": Search((), _ours(1)),
    "dpjax, EHVI, batches of 8": Search((), _ours(8)),
    "random": Search((), _ours(8, "random")),
    "Optuna TPE": Search(
        ("optuna",), _optuna(lambda of, seed: of.TPESampler(n_startup_trials=INITIAL, seed=seed))
    ),
    "Optuna NSGA-II": Search(
        ("optuna",), _optuna(lambda of, seed: of.NSGAIISampler(population_size=16, seed=seed))
    ),
    "Optuna GPSampler": Search(
        ("optuna", "torch"),
        _optuna(lambda of, seed: of.GPSampler(n_startup_trials=INITIAL, seed=seed)),
    ),
    "BoTorch qLogNEHVI": Search(("botorch",), _botorch(model_units=False)),
    "BoTorch qLogNEHVI, log epsilon and logit": Search(("botorch",), _botorch(model_units=True)),
}

_OUT_DIR = flags.DEFINE_string("out_dir", "runs/pareto_peers", "Folder of the rows.")
_SEEDS = flags.DEFINE_integer("seeds", 5, "Searches of each kind.", lower_bound=1)
_EVALUATIONS = flags.DEFINE_multi_integer(
    "evaluations", [32, 80], "After how many of a search's evaluations it is judged."
)
_SEARCHES = flags.DEFINE_multi_enum("searches", list(SEARCHES), list(SEARCHES), "Which.")


def rows_of(problem: str, search: str, seed: int, evaluations: list[int]) -> list[dict]:
    """Runs one search; a row for each number of evaluations."""
    measured = Measured(PROBLEMS[problem], seed)
    start = time.process_time()
    with threadpoolctl.threadpool_limits(1):
        SEARCHES[search].run(measured, max(evaluations), seed)
    seconds = time.process_time() - start
    return [
        dict(
            zip(
                COLUMNS,
                (problem, search, seed, number, measured.true_hypervolume(number), seconds),
                strict=True,
            )
        )
        for number in evaluations
    ]


def main() -> int:
    """Runs what is missing, and prints medians."""
    evaluations = sorted(set(_EVALUATIONS.value))
    if evaluations[0] < INITIAL:
        raise ValueError(f"--evaluations={evaluations[0]}: pass at least {INITIAL}")
    os.makedirs(_OUT_DIR.value, exist_ok=True)
    path = os.path.join(_OUT_DIR.value, f"{NAME}.csv")
    rows: list[Any] = list(read_rows(path)) if os.path.exists(path) else []
    for name in _SEARCHES.value:
        missing = [one for one in SEARCHES[name].needs if not importlib.util.find_spec(one)]
        if missing:
            print(f"{name} left out: pip install {' '.join(missing)}")
            continue
        for problem in PROBLEMS:
            for seed in range(_SEEDS.value):
                kept = select(rows, problem=problem, search=name, seed=seed)
                if {row["evaluations"] for row in kept} >= set(evaluations):
                    continue
                rows = [row for row in rows if row not in kept]
                rows += rows_of(problem, name, seed, evaluations)
                write_rows(path, COLUMNS, rows)
    Console().print(table(rows))
    return 0


def table(rows: list[Mapping[str, Any]]) -> Table:
    """Medians over the seeds, with the smallest and the largest."""
    shown = Table(title="true hypervolume of what was evaluated, anti-ideal point (10, 1)")
    for column in ("problem", "search", "evaluations", "seeds", "hypervolume", "CPU s"):
        shown.add_column(column)
    keys = dict.fromkeys((row["problem"], row["evaluations"], row["search"]) for row in rows)
    for problem, number, search in sorted(keys):
        of = select(rows, problem=problem, search=search, evaluations=number)
        values = [row["true_hypervolume"] for row in of]
        middle, ends = statistics.median(values), f"{min(values):.3f} to {max(values):.3f}"
        seconds = statistics.median(row["cpu_seconds"] for row in of)
        shown.add_row(
            problem, search, str(number), str(len(of)), f"{middle:.3f} ({ends})", f"{seconds:.1f}"
        )
    return shown


if __name__ == "__main__":
    command_line.run(main)
