"""The trained runs behind figure 7: one private all-convolutional net for each learning rate."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import accounting, data, models, training
from experiments.figures import rows as row_files

ALL_RATES, TRAINED_RATES = 1000, 400
"""The paper's: so many rates from 1e-4 to 1, evenly spaced in their logarithm; the largest are
trained."""

FAILURE_PROBABILITY = 1e-8
"""Chance that some lot of a run overflows its padding; charged in the tight bound."""


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """What all runs of one figure have in common.

    Attributes:
      dataset: name for `data.load`.
      rates: how many of the paper's 400 learning rates, evenly thinned.
      lot_size: expected number of records of a Poisson lot.
      steps: of every run.
      clip_norm: of a record's gradient, l2.
      noise_multiplier: noise standard deviation over the clip norm.
      training_records: public number of training records; the first ones of the file are used.
      test_records: on which the accuracy is taken.
    """

    dataset: str
    rates: int
    lot_size: int
    steps: int
    clip_norm: float
    noise_multiplier: float
    training_records: int
    test_records: int

    @property
    def sampling_probability(self) -> float:
        return self.lot_size / self.training_records

    @property
    def epochs(self) -> float:
        """Expected number of times that a record is used."""
        return self.steps * self.sampling_probability

    @functools.cached_property
    def lots(self) -> training.PoissonLots:
        capacity = accounting.lot_capacity(
            self.training_records, self.sampling_probability, self.steps, FAILURE_PROBABILITY
        )
        return training.PoissonLots(self.training_records, self.sampling_probability, capacity)

    def guarantee(self, *, ideal: bool) -> accounting.Guarantee:
        """The guarantee of one run; `ideal` ignores that lots are padded to a fixed capacity.

        The Renyi bounds know no failure probability, so the paper's curve is of the ideal run.
        """
        failure = 0.0
        if not ideal:
            failure = accounting.truncation_probability(
                self.training_records, self.sampling_probability, self.lots.capacity, self.steps
            )
            failure += self.steps * self.lots.failure_probability_per_draw
        return accounting.dp_sgd(
            sampling_probability=self.sampling_probability,
            noise_multiplier=self.noise_multiplier,
            steps=self.steps,
            failure_probability=failure,
        )


SETTING_COLUMNS = tuple(field.name for field in dataclasses.fields(RunSettings))
COLUMNS = (*SETTING_COLUMNS, "rate", "accuracy")

FULL = RunSettings("mnist", 400, 256, 14062, 1.0, 1.1, 60_000, 10_000)
MID = RunSettings("mnist", 20, 256, 468, 1.0, 1.1, 60_000, 10_000)
QUICK = RunSettings("digits", 6, 64, 40, 1.0, 1.1, 1438, 359)


def learning_rates(number: int) -> np.ndarray:
    """Evenly thinned rates (number,) float64, increasing, of the paper's 400 from 0.025 to 1.

    Raises:
      ValueError: unless 1 <= number <= 400.
    """
    if not 1 <= number <= TRAINED_RATES:
        raise ValueError(f"--rates={number}: pass 1 to {TRAINED_RATES}")
    largest = np.geomspace(1e-4, 1.0, ALL_RATES)[-TRAINED_RATES:]
    return largest[np.round(np.linspace(0, TRAINED_RATES - 1, number)).astype(int)]


def train(
    settings: RunSettings,
    path: str,
    *,
    data_dir: str | None = None,
    cache_dir: str | None = None,
    placement: str = "one_by_one",
    chunk_size: int = 8,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Trains what the file does not hold yet and adds it, a row for each rate.

    Keys come from the operating system, so nothing but the file is needed to go on after a stop.

    Args:
      settings: what to train.
      path: of figure_7_runs.csv, made if absent.
      data_dir, cache_dir: see `data.load`.
      placement, chunk_size: see `training.sweep`.
      progress: called with (rates done, rates in all).

    Raises:
      ValueError: the file holds runs of other settings.
    """
    rows = read(path)[1] if os.path.exists(path) else []
    if rows and read(path)[0] != settings:
        raise ValueError(
            f"{path} holds runs of other settings: pass another --out_dir, or --redraw to draw them"
        )
    done = {row["rate"] for row in rows}
    rates = np.array([rate for rate in learning_rates(settings.rates) if float(rate) not in done])
    if not len(rates):
        return
    records = _records(settings, data_dir, cache_dir)
    finished = training.sweep(
        _run(settings, records[0].shape[1:]),
        training.candidate_keys(len(rates)),
        {
            "learning_rate": rates,
            "clip_norm": np.full(len(rates), settings.clip_norm),
            "noise_multiplier": np.full(len(rates), settings.noise_multiplier),
        },
        records,
        chunk_size=chunk_size,
        placement=placement,
    )
    for indices, accuracies in finished:
        rows += [
            {**dataclasses.asdict(settings), "rate": float(rate), "accuracy": float(accuracy)}
            for rate, accuracy in zip(rates[indices], accuracies)
        ]
        row_files.write_rows(path, COLUMNS, sorted(rows, key=lambda row: row["rate"]))
        if progress is not None:
            progress(len(rows), settings.rates)


def read(path: str) -> tuple[RunSettings, list[dict]]:
    """Returns the settings and the rows of a file of runs.

    Raises:
      ValueError: an empty file, other columns, or runs of different settings in one file.
    """
    rows = row_files.read_rows(path)
    if not rows or tuple(rows[0]) != COLUMNS:
        raise ValueError(f"{path} holds no runs of figure 7: pass the folder of figure_7_runs.csv")
    found = {tuple(row[name] for name in SETTING_COLUMNS) for row in rows}
    if len(found) > 1:
        raise ValueError(f"{path} mixes runs of different settings: pass runs of one")
    return RunSettings(*found.pop()), rows


def _records(settings: RunSettings, data_dir: str | None, cache_dir: str | None) -> tuple:
    """Training images and labels, test images and labels, on the host."""
    loaded = data.load(settings.dataset, data_dir, cache_dir=cache_dir)
    parts: list[np.ndarray] = []
    counts = (settings.training_records, settings.test_records)
    for split, count in zip((loaded.train, loaded.test), counts, strict=True):
        parts += [split.inputs[:count], split.labels[:count]]
    return tuple(parts)


def _run(settings: RunSettings, image_shape: Sequence[int]) -> Callable[..., jax.Array]:
    """run(key, hyperparameters, records) -> test accuracy of one privately trained net."""
    model = models.build("all_conv", image_shape, 10)
    train_one = training.make_train(
        training.TrainConfig(
            loss_fn=model.example_loss(models.cross_entropy),
            lots=settings.lots,
            steps=settings.steps,
            expected_lot_size=settings.lot_size,
            optimizer=training.sgd(),
        )
    )

    def run(key: jax.Array, hyperparameters: dict, records: tuple) -> jax.Array:
        inputs, labels, test_inputs, test_labels = records
        params = model.init(training.stream(key, "initial"))
        params = train_one(key, hyperparameters, params, (inputs, labels))
        # In batches: the activations of all test images would not fit beside other candidates.
        right = jax.lax.map(
            lambda example: model.apply(params, example[0][None])[0].argmax() == example[1],
            (test_inputs, test_labels),
            batch_size=min(250, len(test_labels)),
        )
        return jnp.mean(right)

    return run
