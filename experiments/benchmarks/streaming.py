"""Sweeps whose lots come from memory-mapped files, beside the same sweeps on device arrays.

    python -m experiments.benchmarks.streaming --data_dir=DIR
    python -m experiments.benchmarks.streaming --cases=digits_mlp --turns=3

Each turn trains both, in turn, and takes the time from the end of a warm first round of candidates
to the end of the second, without compilation. It prints medians of milliseconds per candidate and
step, and the median of the turns' ratios, and ends with an error if a result differs in any bit.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from absl import flags
from flax import linen as nn

from dpjax import accounting, data, models, training
from dpjax.commands import command_line
from experiments.figures.papernot_steinke.all_conv_nets import AllConvNet

_DATA_DIR = flags.DEFINE_string("data_dir", None, "Where MNIST lies; see `data.load`.")
_CASES = flags.DEFINE_list("cases", None, "Which of the cases; all by default.")
_TURNS = flags.DEFINE_integer("turns", 7, "Turns of each case.", lower_bound=1)
_MEGABYTES = flags.DEFINE_float("megabytes", 64.0, "Of rows on the device, where they are files.")

CASES = {
    "digits_mlp": ("digits", lambda: models.MLP((128, 64), 10), 64, 8, 400),
    "mnist_mlp": ("mnist", lambda: models.MLP((128, 64), 10), 256, 4, 150),
    "mnist_conv": ("mnist", lambda: AllConvNet(10), 64, 2, 12),
}
"""Name -> data set, model, lot size, candidates side by side, steps."""


def classifier(model: nn.Module, inputs: np.ndarray) -> tuple[Any, Any]:
    """Returns initial(key) and loss(parameters, example) of a model of these inputs."""

    def loss(params: Any, example: Any) -> jax.Array:
        image = example[0].astype(np.float32)[None]
        return models.cross_entropy(model.apply(params, image)[0], example[1])

    return lambda key: model.init(key, inputs[:1].astype(np.float32)), loss


def seconds_and_results(
    config: Any, initial: Any, rows: Any, width: int, stream_bytes: int | None
) -> tuple[float, float, Any]:
    """Trains two rounds of candidates; returns seconds and processor seconds of the second."""
    number, ends, results = 2 * width, [], []
    for _, params in training.mixed_sweep(
        [config] * number,
        training.candidate_keys(number, seed=1),
        {
            "clip_norm": np.ones(number),
            "noise_multiplier": np.ones(number),
            "learning_rate": np.full(number, 0.1),
        },
        rows,
        initial=initial,
        chunk_size=width,
        stream_bytes=stream_bytes,
    ):
        ends.append((time.perf_counter(), time.process_time()))
        results.append(params)
    (first, own), (last, own_last) = ends
    return last - first, own_last - own, results


def measured(name: str, turns: int, stream_bytes: int) -> dict[str, Any]:
    """Returns one row of what the program prints."""
    source, model, lot, width, steps = CASES[name]
    train = data.load(source, _DATA_DIR.value).without_validation().train
    inputs, labels = np.asarray(train.inputs, np.float32), np.asarray(train.labels, np.int32)
    size = len(labels)
    initial, loss = classifier(model(), inputs)
    config = training.TrainConfig(
        loss_fn=loss,
        lots=training.PoissonLots(
            size, lot / size, accounting.lot_capacity(size, lot / size, steps)
        ),
        steps=steps,
        expected_lot_size=lot,
        optimizer=training.sgd(),
    )
    times: dict[bool, list[Sequence[float]]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder:
        for part, rows in (("inputs", inputs), ("labels", labels)):
            np.save(f"{folder}/{part}", rows)
        files = tuple(np.load(f"{folder}/{p}.npy", mmap_mode="r") for p in ("inputs", "labels"))
        for turn in range(turns):
            found = {}
            for streamed in (turn % 2 == 0, turn % 2 == 1):
                rows, most = (files, stream_bytes) if streamed else ((inputs, labels), None)
                wall, own, found[streamed] = seconds_and_results(config, initial, rows, width, most)
                times[streamed].append((wall, own))
            jax.tree.map(np.testing.assert_array_equal, found[True], found[False])
    from_files, on_device = np.array(times[True]), np.array(times[False])
    a_step = 1000 / (width * steps)
    ratios = np.median(from_files / on_device, axis=0)
    return {
        "case": name,
        "on_device_ms": round(float(np.median(on_device[:, 0])) * a_step, 3),
        "from_files_ms": round(float(np.median(from_files[:, 0])) * a_step, 3),
        "ratio": round(float(ratios[0]), 3),
        "ratio_of_processor_time": round(float(ratios[1]), 3),
        "turns": turns,
    }


def main() -> int:
    for name in _CASES.value or CASES:
        print(measured(name, _TURNS.value, int(_MEGABYTES.value * 2**20)), flush=True)
    return 0


if __name__ == "__main__":
    command_line.run(main)
