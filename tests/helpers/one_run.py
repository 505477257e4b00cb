"""A small training run: records, a loss that reads a key and a frozen leaf, and its settings."""

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import training

ROWS, FEATURES = 40, 3
_GENERATOR = np.random.default_rng(11)
DATA = {
    "x": _GENERATOR.normal(size=(ROWS, FEATURES)).astype(np.float32),
    "y": _GENERATOR.normal(size=ROWS).astype(np.float32),
}
START = {
    "bias": np.float32(0.1),
    "frozen": np.float32(2.0),
    "kernel": np.array([[0.3, -0.2, 0.5], [0.1, 0.4, -0.6]], np.float32).T,
}
GIVEN = {"clip_norm": 0.7, "noise_multiplier": 0.5, "learning_rate": 0.3, "momentum": 0.9}


def loss(params, example, rng):
    """One that reads a key, and a leaf that is not trained; clipped rows and others."""
    kept = jax.random.bernoulli(rng, 0.5, (FEATURES,))
    hidden = (example["x"] * kept) @ params["kernel"] * params["frozen"]
    return 0.5 * (jnp.sum(jnp.tanh(hidden)) + params["bias"] - example["y"]) ** 2


BASE = training.TrainConfig(
    loss_fn=loss,
    lots=training.PoissonLots(ROWS, 0.3, 20),
    steps=3,
    expected_lot_size=12,
    optimizer=training.momentum(),
    trainable=lambda path, leaf: path != ("frozen",),
    with_rng=True,
)
