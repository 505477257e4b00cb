"""Linear models and perceptrons: shapes, parameters, starting points, the two-class form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import models

INPUTS = np.random.default_rng(0).normal(size=(5, 4, 3)).astype(np.float32)


def sizes(params):
    return sorted(leaf.shape for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize("kind", [models.LogisticRegression, models.LinearSVM])
def test_linear_models_start_at_zero(kind):
    model = kind(10)
    params = model.init(jax.random.key(0), INPUTS)
    assert sizes(params) == [(10,), (12, 10)]
    np.testing.assert_array_equal(model.apply(params, INPUTS), np.zeros((5, 10)))


@pytest.mark.parametrize(
    ("kind", "loss", "by_hand"),
    [
        (models.LogisticRegression, models.cross_entropy, lambda margin: np.log1p(np.exp(-margin))),
        (models.LinearSVM, models.hinge, lambda margin: np.maximum(0, 1 - margin)),
    ],
)
def test_two_classes_are_one_weight_vector(kind, loss, by_hand):
    model = kind(2)
    params = jax.tree.map(
        lambda leaf: jax.random.normal(jax.random.key(1), leaf.shape),
        model.init(jax.random.key(0), INPUTS),
    )
    assert sizes(params) == [(1,), (12, 1)]
    scores = np.asarray(model.apply(params, INPUTS))
    assert scores.shape == (5, 2)
    np.testing.assert_array_equal(scores[:, 0], 0)
    labels = np.array([0, 1, 1, 0, 1])
    margin = (2 * labels - 1) * scores[:, 1]
    np.testing.assert_allclose(loss(jnp.asarray(scores), labels), by_hand(margin), rtol=1e-5)


def test_perceptron_is_what_its_formula_says():
    model = models.MLP((6, 5), 3)
    params = jax.jit(model.init)(jax.random.key(0), INPUTS)
    assert sizes(params) == [(3,), (5,), (5, 3), (6,), (6, 5), (12, 6)]
    hidden = INPUTS.reshape(5, 12)
    for number in range(3):
        layer = params["params"][f"Dense_{number}"]
        hidden = hidden @ layer["kernel"] + np.asarray(layer["bias"])[None]
        hidden = np.maximum(hidden, 0) if number < 2 else hidden
    np.testing.assert_allclose(model.apply(params, INPUTS), hidden, rtol=1e-4, atol=1e-5)
