"""The public default's rate on ten architectures: how far from the best rate it is.

`defaults_of` reads `numbers_of` a model: how many inputs its widest trained layer has, and whether
it is linear. Here that is tried on what it may misread: tables that are looked up, convolutions,
attention, kernels that are scanned, tied or split into a pair (LoRA), and scales per leaf. Each
model learns digits (8 x 8 pixels, 1,437 training records) at epsilon 2 with the default's rate
times `FACTORS`, twice. The rule holds where it is within `HOLDS` points of the best factor.

  python -m experiments.figures.leaderboard.architectures \\
      --out=docs/figures/leaderboard/architectures.csv

Rows that the file holds are not made again. Digits are development data: nothing is judged.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from dpjax import accounting, data, models, training, tuning
from dpjax.tuning.problem.public_defaults import CLIPPING, defaults_of, numbers_of
from experiments.figures import row_program
from experiments.figures.leaderboard import laws_of_k
from experiments.figures.rows import select

EPSILON, DELTA, SEEDS, HOLDS = 2.0, 1e-5, 2, 2.0
FACTORS = (1 / 27, 1 / 9, 1 / 3, 1.0, 3.0, 9.0, 27.0)
COLUMNS = ("architecture", "inputs", "linear", "learning_rate", "factor", "accuracy")


def _flat(images: jax.Array) -> jax.Array:
    return images.reshape(len(images), -1)


class Convolution(nn.Module):
    """A small convolutional net."""

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns logits (n, 10) of pixels (n, 8, 8), as all models here."""
        seen = nn.tanh(nn.Conv(16, (3, 3))(inputs.reshape(-1, 8, 8, 1)))
        return nn.Dense(10)(nn.avg_pool(seen, (2, 2), (2, 2)).reshape(len(inputs), -1))


class Attention(nn.Module):
    """One block of attention over the rows of the image."""

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns logits."""
        rows = nn.Dense(16)(inputs.reshape(-1, 8, 8))
        mixed = rows + nn.MultiHeadDotProductAttention(2)(rows)
        return nn.Dense(10)((mixed + nn.Dense(16)(nn.tanh(nn.Dense(32)(mixed)))).mean(1))


class Recurrent(nn.Module):
    """An LSTM over the rows of the image."""

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns logits."""
        return nn.Dense(10)(nn.RNN(nn.LSTMCell(32))(inputs.reshape(-1, 8, 8))[:, -1])


class Scanned(nn.Module):
    """Three hidden layers whose kernels lie in one array."""

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns logits."""

        def layer(module: nn.Module, carried: jax.Array, _: None) -> tuple[jax.Array, None]:
            return nn.tanh(module(carried)), None

        over = nn.scan(layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)
        hidden, _ = over(nn.Dense(32, name="layers"), nn.Dense(32)(_flat(inputs)), None)
        return nn.Dense(10)(hidden)


class Tied(nn.Module):
    """One hidden kernel that is used three times."""

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns logits."""
        hidden, again = nn.Dense(32)(_flat(inputs)), nn.Dense(32)
        for _ in range(3):
            hidden = nn.tanh(again(hidden))
        return nn.Dense(10)(hidden)


class LowRank(nn.Module):
    """A frozen random layer, and a pair of trained factors of rank 4 beside it."""

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns logits."""
        frozen = nn.Dense(64, name="frozen")(_flat(inputs))
        down = nn.Dense(4, use_bias=False)(_flat(inputs))
        return nn.Dense(10)(nn.tanh(frozen + nn.Dense(64, use_bias=False)(down)))


class Embedding(nn.Module):
    """The mean of a learned vector for each pixel's place and brightness."""

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns logits."""
        levels = jnp.round(4 * _flat(inputs)).astype(jnp.int32) + 5 * jnp.arange(64)[None]
        return nn.Dense(10)(nn.Embed(5 * 64, 16)(levels).mean(-2))


class Scaled(nn.Module):
    """A layer whose outputs have a learned scale each."""

    @nn.compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Returns logits."""
        scale = self.param("scale", nn.initializers.ones, (64,))
        return nn.Dense(10)(nn.tanh(scale[None] * nn.Dense(64)(_flat(inputs))))


ARCHITECTURES: Mapping[str, nn.Module] = {
    "linear": models.LogisticRegression(10),
    "net of 64": models.MLP((64,), 10),
    "convolution": Convolution(),
    "attention": Attention(),
    "LSTM": Recurrent(),
    "scanned kernels": Scanned(),
    "tied kernels": Tied(),
    "LoRA pair, frozen base": LowRank(),
    "looked-up vectors": Embedding(),
    "scale per output": Scaled(),
}


def settings(**_: Any) -> Iterator[dict[str, Any]]:
    """What is tried, as the first columns of its row."""
    for name in ARCHITECTURES:
        task, default = _default(name)
        inputs, outputs = numbers_of(task)
        for factor in FACTORS:
            yield {
                "architecture": name, "inputs": inputs, "linear": int(outputs is not None),
                "learning_rate": float(f"{default.learning_rate:.4g}"),
                "factor": float(f"{factor:.4g}"),
            }  # fmt: skip


def row_of(setting: Mapping[str, Any], **_: Any) -> dict[str, Any]:
    """Returns the row of a setting; all factors of an architecture are trained together."""
    place = int(np.abs(np.log(np.array(FACTORS) / setting["factor"])).argmin())
    return {**setting, "accuracy": round(float(_curve(setting["architecture"])[place]), 4)}


@functools.lru_cache(maxsize=1)
def _digits() -> data.Parts:
    return data.load("digits").parts(0.01, key=b"architectures")


@functools.lru_cache(maxsize=2)
def _default(name: str) -> tuple[tuning.Task, Any]:
    parts = _digits()
    task = tuning.classification(
        ARCHITECTURES[name],
        parts.train,
        parts.validation,
        trainable=(lambda path, leaf: "frozen" not in path) if "frozen" in name else None,
    )
    return task, defaults_of(task, EPSILON, DELTA)


@functools.lru_cache(maxsize=1)
def _curve(name: str) -> np.ndarray:
    """Returns the mean accuracy on test records at each factor."""
    (task, default), parts = _default(name), _digits()
    train, test = parts.train, parts.test
    assert test is not None and task.classifier is not None
    number = len(train.labels)
    share = default.lot_size / number
    config = training.TrainConfig(
        loss_fn=task.example_loss,
        lots=laws_of_k.poisson_lots(number, share, default.steps),
        steps=default.steps,
        expected_lot_size=default.lot_size,
        optimizer=training.momentum(),
        clipping=CLIPPING,
        average=default.average,
        trainable=task.trainable,
    )
    learn = training.make_train(config)
    initial = jax.custom_batching.sequential_vmap(task.initial)

    def run(key: jax.Array, given: dict[str, jax.Array], rows: Any) -> Any:
        return learn(key, given, initial(jax.random.fold_in(key, 1)), rows)

    rates = np.repeat(default.learning_rate * np.array(FACTORS), SEEDS).astype(np.float32)
    noise = accounting.calibrate(
        lambda noise: accounting.dp_sgd(share, noise, default.steps), epsilon=EPSILON, delta=DELTA
    )
    same = np.ones_like(rates)
    given = {
        "learning_rate": rates, "clip_norm": default.clip_norm * same,
        "momentum": default.momentum * same, "noise_multiplier": noise * same,
    }  # fmt: skip
    accuracies = np.zeros(len(rates))
    keys = training.candidate_keys(len(rates), seed=27)
    for places, outcomes in training.sweep(run, keys, given, (train.inputs, train.labels)):
        for row, place in enumerate(places):
            params = jax.tree.map(lambda leaf, row=row: leaf[row], outcomes)
            accuracies[place] = np.mean(task.classifier.predict(params, test.inputs) == test.labels)
    return accuracies.reshape(-1, SEEDS).mean(axis=1)


def lost(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, float, float]]:
    """Returns by architecture the accuracy at the rule, points lost to the best, its factor."""
    found = {}
    for name in ARCHITECTURES:
        mine = select(rows, architecture=name)
        best = max(mine, key=lambda row: row["accuracy"])
        (own,) = select(mine, factor=1.0)
        found[name] = (
            100 * own["accuracy"],
            100 * (best["accuracy"] - own["accuracy"]),
            best["factor"],
        )
    return found


def main() -> None:
    """Makes the rows, and prints what the rule loses."""
    _, rows = row_program.run(COLUMNS, settings, row_of)
    for name, (accuracy, points, factor) in lost(rows).items():
        print(f"{name}: {accuracy:.1f}, {points:.1f} points behind the rate times {factor:.3g}")


if __name__ == "__main__":
    main()
