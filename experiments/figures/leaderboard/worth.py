r"""What tuning is worth: library examples' values, the public default and private tuning compared.

Tasks, contestants, intervals and aims are fixed in `worth_registration.py`, whose SHA-256 every row
names. A row is one contestant on one split of a task at one total epsilon: its value in points,
for best of K the mean over releases beside its lowest and highest tenth.

  python -m experiments.figures.leaderboard.worth --out_dir=docs/figures/leaderboard

--quick: one task, 600 records, two splits, epsilon 2. Needs the extra `tables` and, for the
pretrained task, chars2vec and h5py (`experiments/data_sets/word_vectors.py`). `--only=NAMES` makes
rows of some tasks alone, by semicolons. Attempts that the folder's rows hold are not made again.
Nothing here is released: randomness is NumPy's and JAX's.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from dpjax import accounting, plotting, training, tuning
from dpjax.tuning.problem.public_defaults import CLIPPING, PublicDefaults, defaults_of
from experiments.figures.figure import FULL, QUICK, FigureSpec, option
from experiments.figures.leaderboard import (
    board,
    laws_of_k,
    private_curvature,
    worth_registration,
    worth_tasks,
)
from experiments.figures.leaderboard.worth_registration import (
    DELTA,
    EPSILONS,
    EXAMPLES,
    LONG,
    PRIMARY,
    RATES,
    SCORE_NOISE,
    SHARE_OF_A_LOT,
    SPACE,
    SPLITS,
    STEPS,
    TASKS,
    Values,
)
from experiments.figures.leaderboard.worth_tasks import Arrays, Learner, Split
from experiments.figures.panels import WIDTH, legend_below
from experiments.figures.rows import RowFolder, select

BEST_OF_K, CEILING, CHEAP_CEILING = "best of K", "best candidate", "best candidate, one run's noise"
EXACT, FREE_RATE, DEFAULT = "best of K, exact scores", "rate without privacy", "default"
CURVATURE = "Liu and Bu (2025)"
COLUMNS = {
    "task": "name", "split": "1", "epsilon": "nats", "contestant": "name", "delta": "probability",
    "train": "records", "test": "records", "noise_multiplier": "1", "learning_rate": "1",
    "value": "points", "lowest_tenth": "points", "highest_tenth": "points",
    "registration": "sha256",
}  # fmt: skip
NO_NOISE, NO_CLIPPING = 1e-9, 1e3
"""Noise multiplier and clip norm of a run without privacy."""
_QUICK_TASK, _QUICK_RECORDS = "insured", 600


@dataclasses.dataclass(frozen=True)
class Options:
    """Which tasks are trained."""

    only: str | None = option(None, "Names of tasks, by semicolons; all where it is not given.")


def fingerprint() -> str:
    """Returns the SHA-256 of the registration."""
    return hashlib.sha256(pathlib.Path(worth_registration.__file__).read_bytes()).hexdigest()


# Prices ------------------------------------------------------------------------------------------


@functools.lru_cache
def noise_of_one_run(epsilon: float, steps: int) -> float:
    """Returns the noise multiplier of a run that has the whole epsilon."""
    return accounting.calibrate(
        lambda noise: accounting.dp_sgd(SHARE_OF_A_LOT, noise, steps), epsilon=epsilon, delta=DELTA
    )


@functools.lru_cache
def noise_of_best_of_k(epsilon: float) -> float:
    """Returns the noise multiplier at which best of K, with its scores, costs epsilon."""
    scores = accounting.gaussian(SCORE_NOISE)
    return laws_of_k.noise_for(tuning.fitting_law(SPACE), epsilon, STEPS, scores)


# Training ----------------------------------------------------------------------------------------


class Trainer:
    """Trains runs of one task; each kind of run is compiled once."""

    def __init__(self, learner: Learner, splits: Sequence[Split]) -> None:
        self.learner, self.splits = learner, splits
        self._programs: dict[Any, Any] = {}

    def _program(self, optimizer: str, steps: int, public: PublicDefaults | None) -> Any:
        which = optimizer, steps, public and public.average
        if which not in self._programs:
            self._programs[which] = self._made(optimizer, steps, public)
        return self._programs[which]

    def _made(self, optimizer: str, steps: int, public: PublicDefaults | None) -> Any:
        number = self.learner.records
        settings: dict[str, Any] = {}
        if public is not None:
            settings = {"clipping": CLIPPING, "average": public.average}
        config = training.TrainConfig(
            loss_fn=self.learner.loss,
            lots=laws_of_k.poisson_lots(number, SHARE_OF_A_LOT, steps),
            steps=steps,
            expected_lot_size=number * SHARE_OF_A_LOT,
            optimizer=training.adam() if optimizer == "adam" else training.momentum(),
            **settings,
        )
        train = training.make_train(config)
        shown = self.splits[0].train[0][:1]

        # One after another: a batch of a recurrent net's factorisations can hang on a CPU.
        @jax.custom_batching.sequential_vmap
        def initial(key: jax.Array) -> Any:
            return self.learner.module.init(key, shown)

        def run(key: jax.Array, given: dict[str, jax.Array], rows: Any) -> Any:
            return train(key, given, initial(jax.random.fold_in(key, 1)), rows)

        return run

    @functools.cached_property
    def _apply(self) -> Any:
        return jax.jit(self.learner.module.apply)

    @functools.cached_property
    def _score(self) -> Any:
        return jax.jit(self.learner.score)

    def runs(
        self,
        split: int,
        optimizer: str,
        steps: int,
        given: Mapping[str, Sequence[float]],
        public: PublicDefaults | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Trains runs; returns their scores on training records and values on test records."""
        run = self._program(optimizer, steps, public)
        (inputs, answers), test = self.splits[split].train, self.splits[split].test
        hyperparameters = {name: np.asarray(one, np.float32) for name, one in given.items()}
        number = len(hyperparameters["learning_rate"])
        scores, values = np.zeros(number), np.zeros(number)
        keys = training.candidate_keys(number, seed=split)
        for places, outcomes in training.sweep(run, keys, hyperparameters, (inputs, answers)):
            for row, place in enumerate(places):
                params = jax.tree.map(lambda leaf, row=row: leaf[row], outcomes)
                scores[place] = float(self._score(self._apply(params, inputs), answers))
                values[place] = self.learner.value(
                    np.asarray(self._apply(params, test[0])), test[1]
                )
        return scores, values

    def rates(self, split: int, noise: float, clip_norm: float = 1.0) -> Any:
        """Trains Adam at every rate; returns scores and values, one a rate."""
        same = np.ones(len(RATES))
        given = {
            "learning_rate": RATES,
            "clip_norm": clip_norm * same,
            "noise_multiplier": noise * same,
        }
        return self.runs(split, "adam", STEPS, given)

    def examples(self, split: int, epsilon: float) -> dict[str, float]:
        """Trains with the libraries' values; returns values by library."""
        noise, found = noise_of_one_run(epsilon, LONG), {}
        mine = {library: EXAMPLES[library][self.learner.task.kind] for library in EXAMPLES}
        for optimizer in ("sgd", "adam"):
            those = {name: one for name, one in mine.items() if one.optimizer == optimizer}
            if those:
                given = _given([*those.values()], noise)
                _, values = self.runs(split, optimizer, LONG, given)
                found |= dict(zip(those, values, strict=True))
        return {library: float(found[library]) for library in EXAMPLES}

    def of_default(self, split: int, public: PublicDefaults, epsilon: float) -> float:
        """Trains with the public default; returns its value."""
        given = {
            "learning_rate": [public.learning_rate],
            "clip_norm": [public.clip_norm],
            "noise_multiplier": [noise_of_one_run(epsilon, public.steps)],
            "momentum": [public.momentum],
        }
        return float(self.runs(split, "sgd", public.steps, given, public)[1][0])

    def default(self, epsilon: float) -> PublicDefaults:
        """Returns the public default of the task at an epsilon."""
        parts = [
            tuning.Records(
                tuple(array[place : place + 8] for array in self.splits[0].train),
                public_size=self.learner.records,
                size_bound=self.learner.records + 1,
            )
            for place in (0, 8)
        ]
        task = self.learner.task
        if task.target_range is None:
            made = tuning.classification(self.learner.module, *parts)
        else:
            low, high = task.target_range
            made = tuning.regression(
                self.learner.module, *parts, error_scale=(high - low) / 4,
                target_range=task.target_range,
            )  # fmt: skip
        return defaults_of(made, epsilon, DELTA)


def _given(values: Sequence[Values], noise: float) -> dict[str, list[float]]:
    given = {
        "learning_rate": [one.learning_rate for one in values],
        "clip_norm": [one.clip_norm for one in values],
        "noise_multiplier": [noise for _ in values],
    }
    if values[0].optimizer == "sgd":
        given["momentum"] = [one.momentum for one in values]
    return given


def released(scores: np.ndarray, values: np.ndarray, noise: float, seed: int) -> np.ndarray:
    """Draws K and K rates again and again; returns the winners' values."""
    return laws_of_k.releases(tuning.fitting_law(SPACE), scores, values, noise, [27, seed])


# Rows --------------------------------------------------------------------------------------------


def rows_of(name: str, trainer: Trainer, epsilons: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Makes a task's rows, all splits of an epsilon together: a ceiling is one rate for all."""
    splits = range(len(trainer.splits))
    free = [trainer.rates(split, NO_NOISE, NO_CLIPPING)[1] for split in splits]
    for epsilon in epsilons:
        noise, one_run = noise_of_best_of_k(epsilon), noise_of_one_run(epsilon, STEPS)
        searched = [trainer.rates(split, noise) for split in splits]
        alone = [trainer.rates(split, one_run)[1] for split in splits]
        best = int(np.mean([values for _, values in searched], axis=0).argmax())
        best_alone = int(np.mean(alone, axis=0).argmax())
        public = trainer.default(epsilon)
        for split in splits:
            scores, values = searched[split]
            noisy = released(scores, values, SCORE_NOISE, split)
            exact = released(scores, values, 0.0, split)
            of_free = int(free[split].argmax())
            low, high = np.quantile(noisy, (0.1, 0.9))
            long = noise_of_one_run(epsilon, LONG)
            found: dict[str, dict[str, float]] = {
                library: {
                    "value": value,
                    "noise_multiplier": long,
                    "learning_rate": EXAMPLES[library][trainer.learner.task.kind].learning_rate,
                }
                for library, value in trainer.examples(split, epsilon).items()
            }
            found[FREE_RATE] = {
                "value": alone[split][of_free], "noise_multiplier": one_run,
                "learning_rate": RATES[of_free],
            }  # fmt: skip
            found[DEFAULT] = {
                "value": trainer.of_default(split, public, epsilon),
                "noise_multiplier": long,
                "learning_rate": public.learning_rate,
            }
            found[BEST_OF_K] = {
                "value": noisy.mean(), "noise_multiplier": noise, "lowest_tenth": low,
                "highest_tenth": high,
            }  # fmt: skip
            found[EXACT] = {"value": exact.mean(), "noise_multiplier": noise}
            found[CEILING] = {
                "value": values[best], "noise_multiplier": noise, "learning_rate": RATES[best],
            }  # fmt: skip
            found[CHEAP_CEILING] = {
                "value": alone[split][best_alone], "noise_multiplier": one_run,
                "learning_rate": RATES[best_alone],
            }  # fmt: skip
            if epsilon == PRIMARY and _is_classified_table(trainer.learner):
                found[CURVATURE] = {"value": curvature(trainer, split, epsilon, public)}
            sizes = {
                "train": trainer.learner.records, "test": len(trainer.splits[split].test[1]),
            }  # fmt: skip
            for contestant, numbers in found.items():
                yield {
                    **dict.fromkeys(COLUMNS),
                    "task": name, "split": split, "epsilon": epsilon, "contestant": contestant,
                    "delta": DELTA, "registration": fingerprint(),
                    **sizes, **{key: float(f"{one:.6g}") for key, one in numbers.items()},
                }  # fmt: skip


def _is_classified_table(learner: Learner) -> bool:
    return learner.task.kind == "table" and learner.task.target_range is None


def curvature(trainer: Trainer, split: int, epsilon: float, public: PublicDefaults) -> float:
    """Returns the value of Liu and Bu's run, from the default's first rate."""
    learner, (inputs, answers) = trainer.learner, trainer.splits[split].train
    share = public.lot_size / learner.records
    noise = private_curvature.calibrated(share, public.steps, epsilon, DELTA)
    # The default's rate is for momentum and its clip norm; the method's norm is 1.
    rate = public.learning_rate * public.clip_norm / (1 - public.momentum)
    if type(learner.module).__name__ == "LogisticRegression" and public.average is not None:
        rate /= 3  # As `private_curvature` says.
    model, params, _ = private_curvature.trained(
        learner.module, inputs, answers, noise=noise, rate=rate, lot_size=public.lot_size,
        steps=public.steps, seed=split,
    )  # fmt: skip
    test_inputs, test_answers = trainer.splits[split].test
    return learner.value(np.asarray(model.apply(params, test_inputs)), test_answers)


def train(folder: RowFolder, options: Options) -> None:
    """Makes the rows of tasks that the folder does not hold yet."""
    rows = folder.read(FIGURE.name)
    quick = folder.size == QUICK
    names = [_QUICK_TASK] if quick else [*TASKS]
    if options.only is not None:
        names = [name for name in names if name in options.only.split(";")]
    for name in names:
        if select(rows, task=name):
            continue
        started = time.monotonic()
        splits = [worth_tasks.split_of(name, number) for number in range(2 if quick else SPLITS)]
        learner = worth_tasks.learner_of(name)
        if quick:
            learner = dataclasses.replace(learner, records=_QUICK_RECORDS)
            splits = [Split(_first(split.train, _QUICK_RECORDS), split.test) for split in splits]
        epsilons = (PRIMARY,) if quick else EPSILONS
        rows += rows_of(name, Trainer(learner, splits), epsilons)
        folder.write(FIGURE.name, COLUMNS, rows)
        folder.report(f"{name}: {time.monotonic() - started:.0f} s")


def _first(arrays: Arrays, number: int) -> Arrays:
    inputs, answers = arrays
    return inputs[:number], answers[:number]


# What the rows say -------------------------------------------------------------------------------


def difference(
    rows: Sequence[Mapping], task: str, one: str, other: str, epsilon: float = PRIMARY
) -> tuple[float, float]:
    """Returns a task's difference of two contestants, in points, and half its interval."""

    def of(contestant: str) -> dict[int, float]:
        mine = select(rows, task=task, contestant=contestant, epsilon=epsilon)
        return {row["split"]: row["value"] for row in mine}

    first, second = of(one), of(other)
    paired = [first[split] - second[split] for split in sorted({*first} & {*second})]
    return board.over_splits(paired, select(rows, task=task)[0])


def mean(
    rows: Sequence[Mapping], task: str, contestant: str, epsilon: float = PRIMARY,
    column: str = "value",
) -> float:  # fmt: skip
    """Returns a contestant's mean over splits, in points."""
    mine = select(rows, task=task, contestant=contestant, epsilon=epsilon)
    return float(np.mean([row[column] for row in mine]))


def aims(rows: Sequence[Mapping]) -> list[tuple[str, bool]]:
    """Returns the registration's aims with what became of them, and whether they are met."""
    tasks = [name for name in TASKS if select(rows, task=name)]
    most, half = -(-4 * len(tasks) // 5), -(-len(tasks) // 2)

    def by(one: str, other: str) -> list[float]:
        return [difference(rows, task, one, other)[0] for task in tasks]

    behind = sum(points <= 2 for points in by(CEILING, BEST_OF_K))
    found = [
        (f"best of K at most 2 points behind the best candidate on {behind} of {len(tasks)} tasks "
         f"(aim: {most})", behind >= most)
    ]  # fmt: skip
    for library in EXAMPLES:
        ahead = by(BEST_OF_K, library)
        any_, five = sum(points > 0 for points in ahead), sum(points >= 5 for points in ahead)
        found.append(
            (f"best of K ahead of {library}'s values on {any_} (aim: {most}), by 5 points on "
             f"{five} (aim: {half})", any_ >= most and five >= half)
        )  # fmt: skip
    gaps = by(BEST_OF_K, DEFAULT)
    worst = tasks[int(np.argmax(gaps))]
    found.append(
        (f"the default at most {max(gaps):.1f} points behind best of K, on {worst} (aim: 3)",
         max(gaps) <= 3)
    )  # fmt: skip
    return found


SHOWN = {
    **{library: f"{library}'s example" for library in EXAMPLES},
    DEFAULT: "public default, one run",
    BEST_OF_K: "best of K, tuned privately",
    CEILING: "best candidate (a ceiling)",
}
"""What the picture shows, in its words."""
_SHIFTS = {DEFAULT: -0.22, BEST_OF_K: 0.0, CEILING: 0.0}
"""Upwards, so that equal values are both seen; libraries are above."""


def draw(rows: Sequence[Mapping]) -> Figure:
    """Contestants' values by task at the primary epsilon; bars are tenths or intervals."""
    tasks = [name for name in TASKS if select(rows, task=name)]
    figure, axes = plotting.new_figure(WIDTH, 0.4 * len(tasks) + 1.6)
    marks = dict(zip(SHOWN, ("s", "^", "v", "D", "o", "|"), strict=True))
    colours = dict(zip(SHOWN, (*plotting.PALETTE[2:5], plotting.PALETTE[1], plotting.PALETTE[0],
                               plotting.PALETTE[-1]), strict=True))  # fmt: skip
    for place, task in enumerate(reversed(tasks)):
        low, high = (
            mean(rows, task, BEST_OF_K, column=f"{end}_tenth") for end in ("lowest", "highest")
        )
        axes.plot([low, high], [place, place], color=colours[BEST_OF_K], linewidth=5, alpha=0.3)
        for contestant, colour in colours.items():
            axes.plot(
                mean(rows, task, contestant), place + _SHIFTS.get(contestant, 0.22),
                marks[contestant], color=colour, markersize=11 if contestant == CEILING else 6,
                markeredgewidth=2,
                markerfacecolor="none" if contestant in EXAMPLES else colour, linestyle="none",
                label=SHOWN[contestant] if place == 0 else None,
            )  # fmt: skip
    axes.set_yticks(range(len(tasks)), reversed(tasks))
    axes.set_xlim(left=0)
    axes.set_xlabel("points on test records; epsilon 2 in all")
    legend_below(figure, axes, columns=2)
    return figure


def summary(rows: Sequence[Mapping]) -> list[str]:
    """The registration's aims, where all tasks have rows."""
    return board.met(aims(rows)) if {row["task"] for row in rows} == {*TASKS} else []


FIGURE = FigureSpec(
    paper="leaderboard",
    name="worth",
    columns=COLUMNS,
    takes={QUICK: "a minute", FULL: "an hour or two"},
    draw=draw,
    train=train,
    options=Options(),
    summary=summary,
)

if __name__ == "__main__":
    FIGURE.run()
