"""Public state beside parameters (BatchNorm's statistics) that is held fixed mixes no examples."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_tuners
from flax import nnx

from dpjax import models, training, tuning

SOURCE = np.random.default_rng(0)
INPUTS = SOURCE.normal(size=(60, 4)).astype(np.float32)
LABELS = (INPUTS[:, 0] > 0).astype(np.int32)
MEAN, VARIANCE = np.array([1.0, -2.0, 0.5, 0.0]), np.array([4.0, 1.0, 0.25, 9.0])


class Linen(nn.Module):
    @nn.compact
    def __call__(self, inputs, train=False):
        return nn.Dense(2)(nn.BatchNorm(use_running_average=not train)(inputs))


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dense = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, inputs):
        return self.dense(self.norm(inputs))


def _linen():
    variables = Linen().init(jax.random.key(0), INPUTS[:1])
    statistics = {"mean": jnp.asarray(MEAN), "var": jnp.asarray(VARIANCE)}
    return Linen(), variables | {"batch_stats": {"BatchNorm_0": statistics}}


def _nnx():
    module = Nnx(nnx.Rngs(0))
    module.norm.mean[...], module.norm.var[...] = jnp.asarray(MEAN), jnp.asarray(VARIANCE)
    return Nnx, module


def _nnx_state():
    return Nnx, nnx.state(_nnx()[1])


MADE = {"linen": _linen, "nnx": _nnx, "nnx's state": _nnx_state}


def _task(name, **more):
    model, initial = MADE[name]()
    parts = [
        tuning.Records((INPUTS[rows].copy(), LABELS[rows].copy()), size, size)
        for rows, size in ((slice(40), 40), (slice(40, 60), 20))
    ]
    return tuning.classification(model, *parts, initial=initial, **more)


def _expected(params):
    params = jax.tree.map(np.asarray, params)
    dense = next(one for one in params.values() if "kernel" in one)
    norm = next(one for one in params.values() if "scale" in one)
    scaled = (INPUTS - MEAN) / np.sqrt(VARIANCE + 1e-5) * norm["scale"] + norm["bias"]
    return scaled @ dense["kernel"] + dense["bias"]


@pytest.mark.parametrize("name", MADE)
def test_the_model_uses_the_public_statistics_in_training_too(name):
    task = _task(name)
    params = task.initial(jax.random.key(0))
    expected = _expected(params)
    np.testing.assert_allclose(task.classifier.apply(params, INPUTS), expected, atol=1e-5)
    losses = models.cross_entropy(jnp.asarray(expected, jnp.float32), LABELS)
    for row in (0, 7):
        loss = task.loss(params, (INPUTS[row], LABELS[row]))
        np.testing.assert_allclose(loss, losses[row], atol=1e-5)


@pytest.mark.parametrize("name", MADE)
def test_no_example_has_a_part_in_another_ones_gradient(name):
    task = _task(name)
    params = task.initial(jax.random.key(0))
    gradient = training.clipped_grad(task.loss)
    batch = (INPUTS[:8], LABELS[:8])
    whole, found = gradient(params, batch, 1.0)
    rows = [(INPUTS[place : place + 1], LABELS[place : place + 1]) for place in range(8)]
    alone = [gradient(params, row, 1.0) for row in rows]
    np.testing.assert_allclose(found.norms, [one.norms[0] for _, one in alone], rtol=1e-5)
    added = jax.tree.map(lambda *parts: sum(parts), *(one for one, _ in alone))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), whole, added)


@pytest.mark.parametrize("name", ["linen", "nnx"])
def test_it_is_tuned_and_released_without_the_statistics(name):
    result = tiny_tuners.run("random_repetitions", task=_task(name), seed=1)
    names = result.release.statement["trained_parameters"]
    assert len(names) == 4 and not any("mean" in one or "var" in one for one in names)


def test_without_the_statistics_the_refusal_says_what_to_pass():
    model, initial = _linen()
    parts = [tuning.Records((INPUTS[:40].copy(), LABELS[:40].copy()), 40, 40) for _ in range(2)]
    with pytest.raises(ValueError, match="batch_stats.*pass a task all variables"):
        tuning.classification(model, *parts, initial=initial["params"])
    wrong = initial | {"batch_stats": {"BatchNorm_0": {"mean": jnp.zeros(3), "var": jnp.ones(3)}}}
    with pytest.raises(ValueError, match="batch_stats is not of this model"):
        tuning.classification(model, *parts, initial=wrong)
    with pytest.raises(ValueError, match="nnx.BatchStat at norm.mean.*public statistics fixed"):
        tuning.classification(Nnx, *parts)


def test_variables_without_other_state_are_parameters():
    module = nn.Dense(2)
    variables = module.init(jax.random.key(0), INPUTS[:1])
    parts = [tuning.Records((INPUTS[:40].copy(), LABELS[:40].copy()), 40, 40) for _ in range(2)]
    task = tuning.classification(module, *parts, initial=variables)
    assert set(task.initial(jax.random.key(1))) == {"kernel", "bias"}
