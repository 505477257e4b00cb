"""The trained searches behind figures 5 to 8 and Table 2: run once, resumable, drawn many times.

A search is one problem (`problems`), one method and one seed. Its record is saved after
every batch under `<folder>/records`; its evaluations then join `trained_searches.csv`, and its
front, measured again on fresh repetitions, joins `trained_fronts.csv`: what was on it as measured
and what is by the means of a Gaussian process, for random search too. EHVI and random search with
one seed share their first 16 settings, drawn from the paper's laws. Every row names its data set
and how much was run; rows that are not of the folder's size are refused. Several processes may work
in one folder, one for each core: each takes the searches that no other has begun.

Two things follow the authors' code where our defaults differ: weights and biases start as normal
with variance 6 / (inputs + outputs), not at zero; and Adult's learning rates go up to 0.1 in
every search, as their random search draws them (their Bayesian search proposes 0.05 at most, though
a third of its first settings lie above).

Six sizes:

  size         Adult: epochs, evaluations x repetitions, seeds   MNIST: records, the same
  full         64, 16 + 256 x 10, 5, and one of 1,500 at random  60,000, 400, 16 + 256 x 10, 5
  full_mnist   the same                                          60,000, 400, 16 + 48 x 10, 10
  full_adult   the same                                          60,000, 2, 16 + 16 x 2, 1
  mid          16, 16 + 128 x 3, 5                               2,000, 3, 16 + 16 x 2, 1
  quick_adult  8, 16 + 48 x 3, 5                                 the same
  quick        handwritten digits in place of both: 2, 8 + 8 x 2, 2

Full is the paper's; full_mnist has a quarter of its evaluations of MNIST, and twice its seeds.
MNIST's lots are at most 1,000 where it has 2,000 records.

Everything written is measured on data without protection: the curator's, never private output.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

import experiments.data_sets  # noqa: F401 - registers what `data.load` may name.
from dpjax import data, models, pareto, private_files, training, tuning
from dpjax.data.source import SOURCES
from dpjax.pareto.oracles import CLASSIC
from experiments.figures.dpareto import problems
from experiments.figures.dpareto.sampling_laws import Laws
from experiments.figures.figure import FULL, MID, QUICK, DataFolders, FigureSpec, option
from experiments.figures.panels import DATA_SETS
from experiments.figures.rows import RowFolder, select

SEARCHES, FRONTS = "trained_searches", "trained_fronts"
SETTING_COLUMNS = ("epochs", "lot_size", "learning_rate", "clip_norm", "noise_multiplier")
KEY_COLUMNS = ("problem", "method", "seed")
RAN_COLUMNS = ("data_set", "records", "most_epochs", "evaluations", "repetitions")
EVALUATION_COLUMNS = (*KEY_COLUMNS, *RAN_COLUMNS, "evaluation", *SETTING_COLUMNS,
                      "epsilon", "epsilon_classic", "utility", "best", "worst")  # fmt: skip
FRONT_COLUMNS = (*KEY_COLUMNS, *RAN_COLUMNS, "fresh_repetitions", *SETTING_COLUMNS,
                 "epsilon", "utility", "best", "worst", "first_seen")  # fmt: skip
UNITS = {
    "problem": "name", "method": "name", "seed": "number", "evaluation": "number",
    "data_set": "name", "records": "records", "most_epochs": "epochs",
    "evaluations": "evaluations", "repetitions": "trainings", "fresh_repetitions": "trainings",
    "epochs": "epochs", "lot_size": "records", "learning_rate": "1",
    "clip_norm": "gradient", "noise_multiplier": "clip norms", "epsilon": "nats",
    "utility": "share", "best": "share", "worst": "share", "hypervolume": "nats",
    "observed": "nats", "measured_afresh": "nats", "measurement": "name", "judged": "name",
    "seeds": "seeds", "seeds_won": "seeds", "mean": "nats", "low": "nats", "high": "nats",
    "random_spread": "nats",
}  # fmt: skip
"""Of the columns of figures 5 to 8 and Table 2; a hypervolume's is that of epsilon times error."""

ADULT = tuple(name for name in problems.PROBLEMS if name.startswith("adult"))
MNIST = tuple(name for name in problems.PROBLEMS if name.startswith("mnist"))
LABELS = {
    "adult_logistic_regression_sgd": "LogReg+SGD",
    "adult_logistic_regression_adam": "LogReg+Adam",
    "adult_linear_svm_sgd": "SVM+SGD",
    "mnist_1000_sgd": "MLP 1000",
    "mnist_128_64_sgd": "MLP 128-64",
}
_ADULT_LEARNING_RATES = (1e-3, 0.1)  # of the authors' random search and grids
NOT_PRIVATE = "computed from the data without protection: NOT private"


@dataclasses.dataclass(frozen=True)
class Size:
    """How much is trained.

    Attributes:
      evaluations: of a search, the `initial` random ones included.
      initial: random settings before the first proposal.
      repetitions: trainings of a setting.
      fresh_rounds: times `repetitions` by which a front is measured again.
      seeds: searches of each method.
      epochs: the most of a run; None: the paper's.
      records: training records, the first so many; None: all.
      lot_size: the largest; None: the paper's.
      grids: values of each hyperparameter, one grid each.
      many_random: settings of one long random search; None: there is none.
    """

    evaluations: int = 272
    initial: int = 16
    repetitions: int = 10
    fresh_rounds: int = 2
    seeds: int = 5
    epochs: int | None = None
    records: int | None = None
    lot_size: int | None = None
    grids: tuple[int, ...] = (3, 4)
    many_random: int | None = None


FULL_MNIST, FULL_ADULT, QUICK_ADULT = "full_mnist", "full_adult", "quick_adult"
_ADULT_FULL = Size(many_random=1500)
_MNIST_MID = Size(32, 16, 2, 2, 1, epochs=3, records=2000, lot_size=1000)
_QUICK = Size(16, 8, 2, 1, 2, epochs=2, lot_size=32, grids=(2,))
SIZES = {
    (FULL, "a1a"): _ADULT_FULL,
    (FULL, "mnist"): Size(),
    (FULL_MNIST, "a1a"): _ADULT_FULL,
    (FULL_MNIST, "mnist"): Size(evaluations=64, seeds=10),
    (FULL_ADULT, "a1a"): _ADULT_FULL,
    (FULL_ADULT, "mnist"): Size(32, 16, 2, 2, 1, epochs=2),
    (MID, "a1a"): Size(144, 16, 3, 3, 5, epochs=16, grids=(2, 3)),
    (MID, "mnist"): _MNIST_MID,
    (QUICK_ADULT, "a1a"): Size(64, 16, 3, 10, 5, epochs=8, grids=(2,)),
    (QUICK_ADULT, "mnist"): _MNIST_MID,
    (QUICK, "a1a"): _QUICK,
    (QUICK, "mnist"): _QUICK,
}


@dataclasses.dataclass(frozen=True)
class Options(DataFolders):
    """What the command line may change."""

    problem: tuple[str, ...] = option((), "Train these only.", choices=tuple(LABELS))
    method: tuple[str, ...] = option(
        (),
        "Search by this too, beside EHVI: hvpoi, the paper's criterion, or uniform, random search "
        "with uniform laws in place of the paper's.",
        choices=("hvpoi", "uniform"),
    )


def size_of(problem: str, size: str) -> Size:
    """How much is trained of a problem."""
    return SIZES[size, problems.PROBLEMS[problem].dataset]


def dataset_of(problem: str, size: str) -> str:
    """The data set of a problem, as `data.load` names it."""
    return "digits" if size == QUICK else problems.PROBLEMS[problem].dataset


def ran(problem: str, method: str, size: str) -> dict[str, str | int]:
    """What a row of a search says was run, the `RAN_COLUMNS`; known before it runs."""
    own, dataset = size_of(problem, size), dataset_of(problem, size)
    epochs = problems.PROBLEMS[problem].domain.largest("epochs")
    return {
        "data_set": DATA_SETS[dataset],
        "records": own.records or SOURCES[dataset].train_count,
        "most_epochs": own.epochs or int(epochs),
        "evaluations": _evaluations(method, own),
        "repetitions": own.repetitions,
    }


def _evaluations(method: str, size: Size) -> int:
    """How many settings a method evaluates: those of a grid, of a long random search, or usual."""
    kind, _, number = method.partition("_")
    if not number:
        return size.evaluations
    return int(number) ** len(SETTING_COLUMNS) if kind == "grid" else int(number)


def capped(domain: pareto.Domain, laws: Laws, size: Size) -> tuple[pareto.Domain, Laws]:
    """A domain and its laws with epochs and lots no larger than a size allows."""
    ranges, drawn = dict(domain.parameters), dict(laws.laws)
    for name, most in (("epochs", size.epochs), ("lot_size", size.lot_size)):
        if most is not None:
            ranges[name] = dataclasses.replace(ranges[name], high=most)
            law = drawn[name]
            # A uniform law keeps its shape on the shorter range; the others are cut there.
            shorter = {"second": most} if law.kind == "uniform" else {"most": most}
            drawn[name] = dataclasses.replace(law, **shorter)
    return pareto.Domain(ranges), Laws(drawn)


def the_authors_start(task: tuning.Task) -> tuning.Task:
    """A task whose parameters start as in the authors' code: normal, a bias as of one input."""

    def initial(key: jax.Array) -> Any:
        leaves, structure = jax.tree.flatten(task.initial(key))
        drawn = []
        for number, leaf in enumerate(leaves):
            inputs = leaf.shape[0] if leaf.ndim == 2 else 1
            deviation = math.sqrt(6.0 / (inputs + leaf.shape[-1]))
            normal = jax.random.normal(jax.random.fold_in(key, number), leaf.shape, leaf.dtype)
            drawn.append(deviation * normal)
        return jax.tree.unflatten(structure, drawn)

    return dataclasses.replace(task, initial=initial)


def searched_domain(name: str) -> pareto.Domain:
    """The domain of a problem; on Adult with the learning rates that its random search draws."""
    ranges = dict(problems.PROBLEMS[name].domain.parameters)
    if name in ADULT:
        low = ranges["learning_rate"].low
        ranges["learning_rate"] = pareto.Log(low, _ADULT_LEARNING_RATES[1])
    return pareto.Domain(ranges)


def trained_accuracy(
    name: str, dataset: str, size: Size, options: DataFolders
) -> pareto.TrainedAccuracy:
    """What trains a problem's model on a data set, as much as a size says."""
    problem, loaded = problems.PROBLEMS[name], data.load(dataset, **options.folders)
    train = loaded.train
    if size.records is not None:
        member = np.arange(train.number_of_records) < size.records
        train = train.subset(member, public_size=size.records, size_bound=size.records)
    task = tuning.classification(
        models.build_module(problem.model, loaded.classes, widths=problem.widths),
        train,
        loaded.test,
        loss=models.default_loss(problem.model),
    )
    return pareto.TrainedAccuracy(
        the_authors_start(task),
        pareto.RunShapes(task.train.number),
        {"sgd": training.sgd, "adam": training.adam}[problem.optimizer](),
        classes=loaded.classes,
        repetitions=size.repetitions,
    )


class Trainer:
    """Runs the searches of one problem; its programs are compiled once for all of them."""

    def __init__(self, name: str, size: str, options: DataFolders):
        problem, self.size = problems.PROBLEMS[name], size_of(name, size)
        dataset = dataset_of(name, size)
        self.name, self.problem, self.dataset = name, problem, dataset
        self.domain, self.laws = capped(searched_domain(name), problem.laws, self.size)
        self.accuracy = trained_accuracy(name, dataset, self.size, options)
        shapes = self.accuracy.shapes
        self.cost = pareto.TrainingCost(shapes, problems.DELTA)
        self.classic_cost = pareto.TrainingCost(shapes, problems.DELTA, CLASSIC)

    def search(self, method: str, seed: int, path: str) -> pareto.SearchRecord:
        """Runs a search, or goes on with it.

        Args:
          method: "ehvi", "hvpoi", "random", "random_<evaluations>", "grid_<values>", or "uniform",
            which draws all settings evenly from the linear domain.
          seed: of the search.
          path: of its record.
        """
        kind, _, number = method.partition("_")
        uniform = kind == "uniform"
        return pareto.search(
            self.linear_domain() if uniform else self.domain,
            self.cost,
            self.accuracy,
            method="random" if uniform else kind,
            evaluations=_evaluations(method, self.size),
            initial=self.size.initial,
            batch_size=min(16, self.size.initial),
            anti_ideal=problems.ANTI_IDEAL,
            law=None if uniform else self.laws,
            grid=self.grid(int(number)) if kind == "grid" else None,
            seed=seed,
            path=path,
            label=[self.name, self.dataset, dataclasses.astuple(self.size)],
        )

    def grid(self, points: int) -> dict[str, np.ndarray]:
        """The authors' grid, even on linear scales."""
        return pareto.grid(self.linear_domain(), points)

    def linear_domain(self) -> pareto.Domain:
        """The domain on linear scales; on Adult with rates from 0.001 to 0.1."""
        linear, _ = capped(self.problem.linear_domain, self.problem.laws, self.size)
        ranges = dict(linear.parameters)
        if self.name in ADULT:
            ranges["learning_rate"] = pareto.Real(*_ADULT_LEARNING_RATES)
        return pareto.Domain(ranges)


def evaluation_rows(
    shared: dict, record: pareto.SearchRecord, classic: pareto.TrainingCost
) -> list[dict]:
    """One row an evaluation that did not fail, with the epsilon that the paper would quote too."""
    quoted = classic(record.settings)
    kept = [
        row | {"epsilon_classic": quoted[place]}
        for place, row in enumerate(record.rows())
        if not row["failure"]
    ]
    names = EVALUATION_COLUMNS[len(shared) :]
    return [shared | {name: _short(row[name]) for name in names} for row in kept]


def train(
    folder: RowFolder, wanted: Sequence[tuple[str, str, int]], options: Options = Options()
) -> None:
    """Runs the searches (problem, method, seed) that the folder's rows do not hold yet.

    A search that another process has begun is left to it.
    """
    records = os.path.join(folder.path, "records")
    os.makedirs(records, mode=0o700, exist_ok=True)
    wanted = [one for one in wanted if not options.problem or one[0] in options.problem]
    trainers: dict[str, Trainer] = {}
    for place, one in enumerate(wanted, 1):
        if _has(folder, one):
            continue
        words = f"search {place} of {len(wanted)}: {one[0]}, {one[1]}, seed {one[2]}"
        path = os.path.join(records, "{}-{}-{}.jsonl".format(*one))
        try:
            with private_files.locked(f"{path}.lock", path):
                if not _has(folder, one):  # Finished by another process a moment ago.
                    found = _run(folder, one, path, trainers, options)
                    folder.report(f"{words}: hypervolume {found:.4f} measured afresh")
        except private_files.InUseError:
            folder.report(f"{words}: left to another process, which has begun it")


def _has(folder: RowFolder, one: tuple[str, str, int]) -> bool:
    """Whether a folder's rows hold a search."""
    return bool(select(stored(folder)[1], **dict(zip(KEY_COLUMNS, one))))


def _run(
    folder: RowFolder,
    one: tuple[str, str, int],
    path: str,
    trainers: dict[str, Trainer],
    options: Options,
) -> float:
    """Runs one search and adds its rows; returns its hypervolume measured afresh."""
    problem, method, seed = one
    if problem not in trainers:
        trainers[problem] = Trainer(problem, folder.size, options)
    trainer = trainers[problem]
    short = path.replace(f"-{method}-", "-random-")
    if method.startswith("random_") and not os.path.exists(path) and os.path.exists(short):
        # It begins as the usual random search with its seed does.
        with open(short, "rb") as file:
            private_files.write_anew(path, file.read())
    record = trainer.search(method, seed, path)
    rounds = trainer.size.fresh_rounds
    front = pareto.reevaluate(record, trainer.accuracy, rounds=rounds, by_means=True)
    shared = dict(zip(KEY_COLUMNS, one)) | ran(problem, method, folder.size)
    again = shared | {"fresh_repetitions": rounds * trainer.size.repetitions}
    names = FRONT_COLUMNS[len(again) :]
    add(
        folder,
        evaluation_rows(shared, record, trainer.classic_cost),
        [again | {name: _short(row[name]) for name in names} for row in front.rows()],
    )
    return front.hypervolume


def add(folder: RowFolder, evaluations: Sequence[Mapping], fresh: Sequence[Mapping]) -> None:
    """Adds one search's rows to a folder's, whatever other processes add meanwhile."""
    with folder.alone():
        for name, columns, there, own in zip(
            (SEARCHES, FRONTS), (EVALUATION_COLUMNS, FRONT_COLUMNS), stored(folder),
            (evaluations, fresh),
        ):  # fmt: skip
            key = {column: own[0][column] for column in KEY_COLUMNS}
            others = [row for row in there if any(row[column] != key[column] for column in key)]
            folder.write(name, columns, [*others, *own])


def stored(folder: RowFolder) -> tuple[list[dict], list[dict]]:
    """The rows of all evaluations and of the fronts measured afresh; empty where there are none.

    Raises:
      ValueError: rows of another size, or that do not say that the folder's size was run.
    """
    found = []
    for name in (SEARCHES, FRONTS):
        rows = folder.read(name)
        for row in rows:
            due = ran(row["problem"], row["method"], folder.size)
            there = {column: row.get(column) for column in RAN_COLUMNS}
            if there != due:
                raise ValueError(
                    f"{folder.file(name)} holds {row['problem']}, {row['method']} of "
                    f"{_words(there)}, where size {folder.size} is {_words(due)}: pass another "
                    "--out_dir"
                )
        found.append(rows)
    return found[0], found[1]


def _words(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def figure(
    name: str,
    columns: Sequence[str],
    searches: Callable[[str], Sequence[tuple[str, str, int]]],
    rows: Callable[[list[dict], list[dict]], list[dict]],
    draw: Callable[[Sequence[Mapping]], Figure],
    *,
    full: str,
    full_adult: str | None = None,
    quick: str = "a minute",
    **more: Any,
) -> FigureSpec:
    """A figure that is made from trained searches.

    Args:
      name: of the figure.
      columns: of its rows, each of `UNITS`.
      searches: size -> the searches (problem, method, seed) that it needs.
      rows: (all evaluations, fronts measured afresh) -> its rows.
      draw: its rows -> the picture.
      full, full_adult, quick: wall times of these sizes; None: as full, which Adult alone takes.
      **more: of `FigureSpec`.
    """
    return FigureSpec(
        "dpareto",
        name,
        {column: UNITS[column] for column in columns},
        {
            FULL: full,
            FULL_MNIST: full,
            FULL_ADULT: full_adult or full,
            MID: "about an hour",
            QUICK_ADULT: "minutes",
            QUICK: quick,
        },
        draw,
        train=lambda folder, options: train(
            folder, with_others(searches(folder.size), options.method), options
        ),
        derive=lambda folder: rows(*stored(folder)),
        trained=(SEARCHES, FRONTS),
        options=Options(),
        **more,
    )


def searches(
    names: Sequence[str], size: str, *, methods: Sequence[str] = ("ehvi", "random")
) -> list[tuple[str, str, int]]:
    """The searches (problem, method, seed) of some problems, seed by seed."""
    return [
        (problem, method, seed)
        for seed in range(max(size_of(problem, size).seeds for problem in names))
        for problem in names
        for method in methods
        if seed < size_of(problem, size).seeds
    ]


def with_others(
    wanted: Sequence[tuple[str, str, int]], methods: Sequence[str]
) -> list[tuple[str, str, int]]:
    """The searches, and for each of them by EHVI those by other methods with its seed."""
    others = [(problem, method, seed) for problem, own, seed in wanted if own == "ehvi"
              for method in methods]  # fmt: skip
    return [*wanted, *others]


def _short(number: float) -> float:
    """Seven digits of a number."""
    return float(f"{number:.7g}")
