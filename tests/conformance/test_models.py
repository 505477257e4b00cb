"""What every registered model passes: it is pure, scores, clips without copies, trains, is saved.

A new model needs no line here: the table is the registry, and what lies beside it is found.
"""

import functools
import inspect

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import serialization

from dpjax import models, training

SHAPE = (12, 10, 1)
"""Of one example: an image, which every model takes."""
CLASSES = 3
LAYERS = {models.PatchConv}
"""Modules of the library that are parts of models."""

every_model = pytest.mark.parametrize("name", models.NAMES)


@functools.cache
def built(name):
    """The model, an example shape, and parameters that are not where they started."""
    model = _functional(name, SHAPE, CLASSES)
    model = models.FunctionalModel(jax.jit(model.init), jax.jit(model.apply))
    return model, SHAPE, _moved(model.init(jax.random.key(0)))


def _functional(name, shape, classes):
    module = models.build_module(name, classes, widths=(5,))
    return models.functional(module, jax.ShapeDtypeStruct(shape, jnp.float32))


def _moved(params):
    """Linear models start at zero, where errors of scores and gradients would hide."""
    draws = np.random.default_rng(3)
    return jax.tree.map(lambda leaf: leaf + 0.1 * draws.normal(size=leaf.shape).astype("f"), params)


def records(shape, number=4):
    inputs = np.random.default_rng(1).normal(size=(number, *shape)).astype(np.float32)
    return jnp.asarray(inputs), jnp.arange(number, dtype=jnp.int32) % CLASSES


def test_the_registry_has_every_model_of_the_library():
    modules = {value for value in vars(models).values() if inspect.isclass(value)}
    modules = {value for value in modules if issubclass(value, nn.Module)} - LAYERS
    assert {type(models.build_module(name, CLASSES)) for name in models.NAMES} == modules
    assert all(len(inspect.getdoc(module)) > 20 for module in modules)


@every_model
@pytest.mark.parametrize(("shape", "classes"), [((8, 8, 1), 3), ((16, 12, 3), 2)])
def test_it_builds_and_scores(name, shape, classes):
    model = _functional(name, shape, classes)
    params = jax.eval_shape(model.init, jax.random.key(0))
    scores = jax.eval_shape(model.apply, params, jnp.zeros((2, *shape)))
    assert scores.shape == (2, classes) and scores.dtype == jnp.float32
    loss = jax.eval_shape(
        model.example_loss(models.default_loss(name)), params, (jnp.zeros(shape), jnp.int32(0))
    )
    assert loss.shape == ()


@every_model
def test_it_is_a_pure_function_of_key_parameters_and_one_example(name):
    model, shape, params = built(name)
    jax.tree.map(
        np.testing.assert_array_equal,
        model.init(jax.random.key(4)),
        model.init(jax.random.key(4)),
    )
    inputs, _ = records(shape)
    scores = model.apply(params, inputs)
    assert np.isfinite(scores).all() and np.ptp(scores, axis=0).all()
    # An example's scores do not depend on the others: what per-example gradients rest on.
    changed = inputs.at[1:].multiply(-2.0)
    np.testing.assert_allclose(model.apply(params, changed)[0], scores[0], rtol=1e-5, atol=1e-6)


@every_model
def test_its_parameters_survive_a_release(name):
    model, shape, params = built(name)
    stored = serialization.msgpack_serialize(jax.tree.map(np.asarray, params))
    inputs, _ = records(shape)
    np.testing.assert_array_equal(
        model.apply(serialization.msgpack_restore(stored), inputs), model.apply(params, inputs)
    )


@every_model
def test_its_gradients_are_clipped_without_a_copy_of_a_kernel_for_each_example(name):
    model, shape, params = built(name)
    loss, batch = model.example_loss(models.default_loss(name)), records(shape)
    grad_fn = training.clipped_grad(loss)
    explanation = grad_fn.explain(params, batch)
    kernels = {path: one.rule for path, one in explanation.items() if path.endswith("kernel")}
    assert kernels and "materialised" not in kernels.values(), explanation

    # Quite without optimisation XLA's CPU backend computes an activation twice, to different last
    # bits, and then finds no maximum in a pool's block: 0/0 in its gradient.
    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 1})
    def both(params, batch):
        each = jax.vmap(jax.grad(loss), (None, 0))(params, batch)
        squares = [jnp.sum(leaf**2, range(1, leaf.ndim)) for leaf in jax.tree.leaves(each)]
        norms = jnp.sqrt(sum(squares))
        # Some are clipped and some are not; then none is.
        sums = []
        for bound in (jnp.mean(norms), 2 * jnp.max(norms)):
            scale = jnp.minimum(1.0, bound / norms)
            wanted = jax.tree.map(lambda leaf, scale=scale: jnp.tensordot(scale, leaf, 1), each)
            summed, aux = grad_fn(params, batch, clip_norm=bound)
            sums.append((summed, wanted))
        return norms, aux.norms, sums

    norms, found, sums = both(params, batch)
    assert np.ptp(norms) > 0
    np.testing.assert_allclose(found, norms, rtol=2e-5)
    # Rows that are clipped are shorter by what is held back for rounding.
    for (summed, wanted), near in zip(sums, (2.0**-8, 2e-5), strict=True):
        largest = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(wanted))
        for one, other in zip(jax.tree.leaves(summed), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(one, other, rtol=near, atol=near * largest)
