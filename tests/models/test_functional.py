"""Any Flax model becomes two pure functions, trains privately, or is refused by name."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx, serialization

from dpjax import models, training

GENERATOR = np.random.default_rng(0)
INPUTS = GENERATOR.normal(size=(90, 4)).astype(np.float32)
LABELS = (INPUTS @ np.array([1.0, -2.0, 0.5, 1.5]) > 0).astype(np.int32)


class LinenDropout(nn.Module):
    @nn.compact
    def __call__(self, inputs, *, deterministic):
        hidden = nn.tanh(nn.Dense(8)(inputs))
        return nn.Dense(2)(nn.Dropout(0.5)(hidden, deterministic=deterministic))


class LinenTrainFlag(nn.Module):
    @nn.compact
    def __call__(self, inputs, train: bool = True):
        return nn.Dense(2)(nn.Dropout(0.5, deterministic=not train)(inputs))


class NnxDropout(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(4, 8, rngs=rngs)
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.hidden = nnx.List([nnx.Linear(8, 8, rngs=rngs) for _ in range(1)])
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, inputs):
        hidden = self.norm(nnx.tanh(self.first(inputs)))
        for layer in self.hidden:
            hidden = nnx.tanh(layer(hidden))
        return self.last(self.dropout(hidden))


SOURCES = {
    "linen": LinenDropout(),
    "linen train flag": LinenTrainFlag(),
    "nnx factory": lambda rngs: NnxDropout(rngs),
    "nnx class": NnxDropout,
    "nnx instance": NnxDropout(nnx.Rngs(3)),
}


@functools.cache
def compiled(source):
    """Compiled, because op-by-op execution of many small models takes most of the time."""
    model = models.functional(SOURCES[source], INPUTS[0])
    return models.FunctionalModel(jax.jit(model.init), jax.jit(model.apply))


@pytest.mark.parametrize("source", SOURCES)
def test_init_and_apply_are_pure(source):
    model = compiled(source)
    params = model.init(jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, params, model.init(jax.random.key(0)))
    many = jax.vmap(model.init)(jax.random.split(jax.random.key(0), 3))
    differ = any(np.ptp(np.asarray(leaf), axis=0).any() for leaf in jax.tree.leaves(many))
    assert differ == (source != "nnx instance")

    scores = model.apply(params, INPUTS)
    assert scores.shape == (90, 2)
    np.testing.assert_array_equal(scores, model.apply(params, INPUTS))
    first, again, second = (model.apply(params, INPUTS, jax.random.key(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - second).max() > 1e-3 and np.abs(first - scores).max() > 1e-3
    # One example at a time equals the batch: what per-example gradients rest on.
    singly = np.concatenate([model.apply(params, INPUTS[i : i + 1]) for i in range(3)])
    np.testing.assert_allclose(singly, scores[:3], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("source", SOURCES)
def test_params_survive_msgpack(source):
    model = compiled(source)
    params = model.init(jax.random.key(0))
    restored = serialization.msgpack_restore(
        serialization.msgpack_serialize(jax.tree.map(np.asarray, params))
    )
    np.testing.assert_array_equal(model.apply(restored, INPUTS), model.apply(params, INPUTS))


def test_an_instance_starts_from_its_own_parameters():
    model = compiled("nnx instance")
    expected = nnx.clone(SOURCES["nnx instance"])
    expected.eval()
    np.testing.assert_allclose(
        model.apply(model.init(jax.random.key(0)), INPUTS),
        expected(jnp.asarray(INPUTS)),
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.parametrize("source", ["linen", "nnx factory"])
def test_models_train_end_to_end(source):
    """Noise 0.3 on 40 steps still learns a linear boundary; an untrained model does not know it."""
    model = compiled(source)
    run = training.make_train(
        training.TrainConfig(
            loss_fn=model.example_loss(models.cross_entropy, with_rng=True),
            with_rng=True,
            lots=training.PoissonLots(90, 0.5, 70),
            steps=40,
            expected_lot_size=45,
            optimizer=training.momentum(),
        )
    )
    initial = model.init(jax.random.key(0))

    def one(key, hyperparameters, data):
        return run(key, hyperparameters, initial, data)

    given = {
        "clip_norm": [1.0] * 2,
        "noise_multiplier": [0.3] * 2,
        "learning_rate": [0.3, 0.0],
        "momentum": [0.8] * 2,
    }
    keys = training.candidate_keys(2, seed=4)
    ((_, params),) = training.sweep(one, keys, given, (INPUTS, LABELS))

    def accuracy(candidate):
        chosen = jax.tree.map(lambda leaf: leaf[candidate], params)
        return float(np.mean(np.argmax(model.apply(chosen, INPUTS), axis=-1) == LABELS))

    assert accuracy(0) > 0.9 > accuracy(1)
    jax.tree.map(
        lambda leaf, start: np.testing.assert_allclose(leaf[1], start, rtol=1e-6), params, initial
    )


class LinenBatchNorm(nn.Module):
    @nn.compact
    def __call__(self, inputs, train: bool = False):
        return nn.BatchNorm(use_running_average=not train)(inputs)


class LinenCounter(nn.Module):
    @nn.compact
    def __call__(self, inputs):
        count = self.variable("counts", "calls", lambda: jnp.zeros(()))
        return nn.Dense(2)(inputs) + count.value


class NnxBatchNorm(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(4, rngs=rngs)

    def __call__(self, inputs):
        return self.norm(inputs)


@pytest.mark.parametrize(
    ("model", "named"),
    [
        (LinenBatchNorm(), "batch_stats"),
        (LinenCounter(), "counts"),
        (lambda rngs: NnxBatchNorm(rngs), "nnx.BatchStat at norm.mean"),
        (NnxBatchNorm(nnx.Rngs(0)), "nnx.BatchStat at norm.mean"),
    ],
)
def test_mutable_state_is_refused_by_name(model, named):
    with pytest.raises(ValueError, match=f"{named}.*use GroupNorm or LayerNorm"):
        models.functional(model, INPUTS[0])


class NnxOfAWidth(NnxDropout):
    def __init__(self, width, rngs):
        super().__init__(rngs)


@pytest.mark.parametrize("model", [NnxOfAWidth, LinenDropout, dict, 3])
def test_what_is_not_a_model_is_refused(model):
    with pytest.raises(ValueError, match="pass a Linen module, an NNX module"):
        models.functional(model, INPUTS[0])
