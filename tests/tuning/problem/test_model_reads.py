"""Hyperparameters that a Flax model is given in training, and its defaults in predictions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

from dpjax import models, training, tuning
from dpjax.tuning.steps import Material

GENERATOR = np.random.default_rng(3)
INPUTS = GENERATOR.normal(size=(60, 3)).astype(np.float32)
LABELS = (INPUTS.sum(axis=1) > 0).astype(np.int32)


class NnxNet(nnx.Module):
    def __init__(self, rngs):
        self.rngs = rngs
        self.out = nnx.Linear(3, 2, rngs=rngs)

    def __call__(self, inputs, rate=0.0):
        return self.out(models.dropout(inputs, rate, self.rngs.dropout))


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, inputs, rate=0.0):
        draw = functools.partial(self.make_rng, "dropout")
        return nn.Dense(2)(models.dropout(inputs, rate, draw))


def _task(model, **changes):
    parts = [
        tuning.Records((INPUTS[part], LABELS[part]), 30, 35) for part in (slice(30), slice(30, 60))
    ]
    return tuning.classification(
        model, *parts, **{"with_rng": True, "model_reads": ("rate",), **changes}
    )


@pytest.mark.parametrize("model", [NnxNet, LinenNet()])
def test_training_is_given_the_rate_and_predictions_are_not(model):
    task = _task(model)
    assert task.loss_reads == ("rate",)
    params = task.initial(jax.random.key(0))
    example = (INPUTS[0], LABELS[0])
    losses = jax.jit(
        jax.vmap(lambda key, rate: task.loss(params, example, key, {"rate": rate}), (0, None))
    )
    keys = jax.random.split(jax.random.key(1), 400)
    # Three inputs, each kept or not: at most eight losses, and as often whole as the rate says.
    functional = models.functional(model, INPUTS[0])
    scores = functional.apply(params, INPUTS[:1] / (1 - np.float32(0.3)))
    whole = float(models.cross_entropy(scores, LABELS[:1])[0])
    found = np.asarray(losses(keys, 0.3))
    share = np.mean(np.abs(found - whole) < 1e-5)
    assert len(np.unique(found.round(4))) <= 8
    assert share == pytest.approx(0.7**3, abs=0.1)
    # A rate traced as 0 keeps everything, as predictions do.
    at_zero = np.asarray(losses(keys[:5], 0.0))
    expected = models.cross_entropy(functional.apply(params, INPUTS[:1]), LABELS[:1])[0]
    np.testing.assert_allclose(at_zero, float(expected), rtol=1e-5)
    np.testing.assert_array_equal(
        task.correct(params, example), jnp.argmax(functional.apply(params, INPUTS[:1])) == LABELS[0]
    )


def test_names_that_nobody_takes_are_refused():
    with pytest.raises(ValueError, match="model_reads names dropout, .* takes rate beside inputs"):
        _task(LinenNet(), model_reads=("dropout",))
    with pytest.raises(ValueError, match="takes nothing beside inputs: add the argument there"):
        _task(nn.Dense(2), model_reads=("rate",))
    with pytest.raises(ValueError, match="the loss or the model reads rate, which the space"):
        Material(_task(NnxNet), training.sgd(), ["learning_rate"]).check()


@pytest.mark.parametrize("model", [NnxNet, LinenNet()])
def test_a_rate_without_a_key_is_refused(model):
    with pytest.raises(ValueError, match="reads rate and draws .* pass with_rng=True"):
        _task(model, with_rng=False)


class FlaxDropout(nn.Module):
    @nn.compact
    def __call__(self, inputs, rate=0.0):
        return nn.Dense(2)(nn.Dropout(rate, deterministic=False)(inputs))


def test_a_layer_that_needs_a_number_is_named():
    with pytest.raises(ValueError, match="rate as a Python number.*models.dropout"):
        _task(FlaxDropout())


def test_dropout_keeps_the_mean_and_the_dtype():
    draw = functools.partial(jax.random.key, 0)
    values = jax.jit(lambda rate: models.dropout(jnp.full(40_000, 3.0), rate, draw))(0.25)
    assert float(jnp.mean(values == 0)) == pytest.approx(0.25, abs=0.02)
    assert float(jnp.mean(values)) == pytest.approx(3.0, abs=0.06)
    assert np.isnan(models.dropout(jnp.ones(3), jnp.float32(1.3), draw)).all()
    with pytest.raises(ValueError, match="below 1"):
        models.dropout(jnp.ones(3), 1.3, draw)
    half = jnp.ones(4, jnp.bfloat16)
    assert models.dropout(half, jnp.float32(0.5), draw).dtype == jnp.bfloat16
