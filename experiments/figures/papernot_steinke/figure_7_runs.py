"""The trained runs behind figure 7: one private all-convolutional net for each learning rate."""

from __future__ import annotations

import dataclasses
import functools
import os
import re

import jax
import jax.numpy as jnp
import numpy as np

import experiments.data_sets  # noqa: F401 - registers what `data.load` may name.
from dpjax import accounting, array_files, data, models, private_files, training
from experiments.figures import figure
from experiments.figures.figure import FULL, MID, QUICK
from experiments.figures.papernot_steinke.all_conv_nets import AllConvNet, AllConvPooledNet
from experiments.figures.rows import RowFolder

ALL_RATES, TRAINED_RATES = 1000, 400
"""The paper's: so many rates from 1e-4 to 1, evenly spaced in their logarithm; the largest are
trained."""

NETS = {"all_conv": AllConvNet, "all_conv_pooled": AllConvPooledNet}
IN_WORDS = {"all_conv": "strides", "all_conv_pooled": "average pooling, tanh"}
"""Nets that the paper may have meant -> what the heading says of them."""

FAILURE_PROBABILITY = 1e-8
"""Chance that some lot of a run overflows its padding; charged in the tight bound."""

SECONDS_BETWEEN_SAVES = 60.0
"""A call to the device takes at most half of it."""


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """What all runs of one figure have in common.

    So many of the paper's 400 rates are trained, evenly thinned, on the file's first records.
    """

    dataset: str
    model: str
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


SETTING_COLUMNS = {
    "dataset": "name", "model": "name", "rates": "rates", "lot_size": "records",
    "steps": "steps", "clip_norm": "gradient", "noise_multiplier": "clip norms",
    "training_records": "records", "test_records": "records",
}  # fmt: skip
COLUMNS = (*SETTING_COLUMNS, "rate", "accuracy")
NAME = "figure_7_runs"

SETTINGS = {
    FULL: RunSettings("mnist", "all_conv", 400, 256, 14062, 1.0, 1.1, 60_000, 10_000),
    MID: RunSettings("mnist", "all_conv", 10, 256, 7031, 1.0, 1.1, 60_000, 10_000),
    QUICK: RunSettings("digits", "all_conv", 6, 64, 40, 1.0, 1.1, 1438, 359),
}


@dataclasses.dataclass(frozen=True)
class Options(figure.DataFolders):
    """What the command line may change; placement and chunk_size: see `training.sweep`."""

    rates: int | None = figure.option(None, "Fewer rates, evenly thinned.")
    steps: int | None = figure.option(None, "Fewer steps a run.")
    model: str | None = figure.option(
        None, "all_conv_pooled: four times as expensive. Default: all_conv.", choices=tuple(NETS)
    )
    placement: str = figure.option(
        "one_by_one", "See experiments.tune.", choices=training.placement_names
    )
    chunk_size: int = figure.option(8, "Nets at once: memory knob.")
    process: str = figure.option(
        "0/1", "0/2 and 1/2 in one folder: two processes, each with half of the rates."
    )

    def own(self, rates: np.ndarray) -> np.ndarray:
        """The rates (m,) that this process trains, of all (n,)."""
        found = re.fullmatch(r"(\d+)/(\d+)", self.process)
        if found is None or not int(found[1]) < int(found[2]):
            raise ValueError(f"--process={self.process}: pass 0/2 or 1/2 for two processes")
        return rates[int(found[1]) :: int(found[2])]

    def settings(self, size: str) -> RunSettings:
        """What is trained at a size."""
        given = {"rates": self.rates, "steps": self.steps, "model": self.model}
        changes = {name: value for name, value in given.items() if value is not None}
        return dataclasses.replace(SETTINGS[size], **changes)


def learning_rates(number: int) -> np.ndarray:
    """Evenly thinned rates (number,) float64, increasing, of the paper's 400 from 0.025 to 1."""
    if not 1 <= number <= TRAINED_RATES:
        raise ValueError(f"--rates={number}: pass 1 to {TRAINED_RATES}")
    largest = np.geomspace(1e-4, 1.0, ALL_RATES)[-TRAINED_RATES:]
    return largest[np.round(np.linspace(0, TRAINED_RATES - 1, number)).astype(int)]


def train(folder: RowFolder, options: Options = Options()) -> None:
    """Trains what the folder's file does not hold yet and adds it, a row for each rate.

    Keys come from the operating system. The nets in training are saved beside the file every
    `SECONDS_BETWEEN_SAVES` with their keys, and removed in the end: the same call after a stop
    loses at most so much.
    """
    settings = options.settings(folder.size)
    held, rows = read(folder) if folder.read(NAME) else (settings, [])
    if held != settings:
        raise ValueError(
            f"{folder.file(NAME)} holds runs of other settings: pass another --out_dir, or "
            "--redraw to draw them"
        )
    done = {row["rate"] for row in rows}
    due = options.own(learning_rates(settings.rates))
    due = np.concatenate([due[::2], due[1::2]])  # A part of them is spread over the range too.
    rates = np.array([rate for rate in due if float(rate) not in done])
    if not len(rates):
        return
    standing = _Standing(folder, settings, options)
    rates, keys = standing.candidates(rates)
    *records, test_inputs, test_labels = _records(settings, options)
    model = models.functional(NETS[settings.model](10), jnp.zeros(records[0].shape[1:]))
    config = training.TrainConfig(
        loss_fn=model.example_loss(models.cross_entropy),
        lots=settings.lots,
        steps=settings.steps,
        expected_lot_size=settings.lot_size,
        optimizer=training.sgd(),
    )
    finished = training.mixed_sweep(
        [config] * len(rates),
        keys,
        {
            "learning_rate": rates,
            "clip_norm": np.full(len(rates), settings.clip_norm),
            "noise_multiplier": np.full(len(rates), settings.noise_multiplier),
        },
        tuple(records),
        initial=model.init,
        finish=functools.partial(_accuracy, model),
        finish_data=(test_inputs, test_labels),
        chunk_size=options.chunk_size,
        placement=training.named_placement(options.placement, options.chunk_size),
        checkpoints=training.Checkpoints(standing.saves, every_seconds=SECONDS_BETWEEN_SAVES),
    )
    for indices, accuracies in finished:
        with folder.alone():
            rows = folder.read(NAME)
            held_rates = {row["rate"] for row in rows}
            rows += [
                {**dataclasses.asdict(settings), "rate": float(rate), "accuracy": float(accuracy)}
                for rate, accuracy in zip(rates[indices], accuracies)
                if float(rate) not in held_rates  # A save hands out again what it holds.
            ]
            folder.write(NAME, COLUMNS, sorted(rows, key=lambda row: row["rate"]))
        folder.report(f"{len(rows)} of {settings.rates} rates")
    standing.end()


class _Standing:
    """What one process is training: the saves of its nets, and the rates and keys of these."""

    def __init__(self, folder: RowFolder, settings: RunSettings, options: Options):
        own = f"{NAME}_{options.process.replace('/', '_of_')}"
        self.saves = os.path.join(folder.path, f"{own}_saves")
        self._candidates = os.path.join(folder.path, f"{own}_candidates.npz")
        self._settings = np.frombuffer(repr(settings).encode(), np.uint8)

    def candidates(self, rates: np.ndarray) -> tuple[np.ndarray, jax.Array]:
        """Returns the rates and keys of the saves if there are some, else these and fresh keys."""
        if os.path.isdir(self.saves) and os.listdir(self.saves):
            held = array_files.unpacked(private_files.read_private(self._candidates))
            if not np.array_equal(held["settings"], self._settings):
                raise ValueError(
                    f"{self.saves} holds runs of other settings: pass another --out_dir, or "
                    "remove it"
                )
            return held["rates"], jax.random.wrap_key_data(held["keys"], impl="threefry2x32")
        keys = training.candidate_keys(len(rates))
        written = {"rates": rates, "keys": np.asarray(jax.random.key_data(keys))}
        payload = array_files.packed(written | {"settings": self._settings})
        private_files.write_anew(self._candidates, payload)
        return rates, keys

    def end(self) -> None:
        """Removes the candidates, after the saves are gone."""
        os.remove(self._candidates)


def read(folder: RowFolder) -> tuple[RunSettings, list[dict]]:
    """Returns the settings and the rows of a folder's runs."""
    rows, path = folder.read(NAME), folder.file(NAME)
    if not rows or tuple(rows[0]) != COLUMNS:
        raise ValueError(f"{path} holds no runs of figure 7: pass the folder of {NAME}.csv")
    found = {tuple(row[name] for name in SETTING_COLUMNS) for row in rows}
    if len(found) > 1:
        raise ValueError(f"{path} mixes runs of different settings: pass runs of one")
    return RunSettings(*found.pop()), rows


def _records(settings: RunSettings, options: Options) -> tuple:
    """Training images and labels, test images and labels, on the host."""
    loaded = data.load(settings.dataset, **options.folders)
    parts: list[np.ndarray] = []
    counts = (settings.training_records, settings.test_records)
    for split, count in zip((loaded.train, loaded.test), counts, strict=True):
        parts += [split.inputs[:count], split.labels[:count]]
    return tuple(parts)


def _accuracy(model: models.FunctionalModel, params: dict, tests: tuple) -> jax.Array:
    """Returns the accuracy of one net on test images and labels."""
    # In batches: the activations of all test images would not fit beside other candidates.
    right = jax.lax.map(
        lambda example: model.apply(params, example[0][None])[0].argmax() == example[1],
        tests,
        batch_size=min(250, len(tests[1])),
    )
    return jnp.mean(right)
