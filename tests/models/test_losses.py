"""Losses against their formulas."""

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import models
from dpjax.models import cross_entropy, hinge

LOGITS = np.random.default_rng(0).normal(size=(2, 6, 4)).astype(np.float32)
LABELS = np.arange(12).reshape(2, 6) % 4


def test_cross_entropy():
    exponentials = np.exp(LOGITS)
    chosen = np.take_along_axis(exponentials, LABELS[..., None], -1)[..., 0]
    expected = -np.log(chosen / exponentials.sum(-1))
    np.testing.assert_allclose(cross_entropy(jnp.asarray(LOGITS), LABELS), expected, rtol=1e-5)


def test_the_gradient_of_cross_entropy_is_softmax_less_the_label_and_adds_in_no_order():
    softmax = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    gradient = jax.grad(lambda logits: cross_entropy(logits, LABELS).sum())
    np.testing.assert_allclose(gradient(LOGITS), softmax - np.eye(4)[LABELS], atol=1e-6)
    # A scatter would be expanded into several kernels on a GPU.
    assert "scatter" not in str(jax.make_jaxpr(gradient)(LOGITS))
    masked = jnp.where(jnp.arange(4) == 0, -jnp.inf, LOGITS[0, 1])
    assert np.isfinite(cross_entropy(masked, jnp.int32(1)))


def test_multiclass_hinge_by_a_loop():
    expected = np.zeros((2, 6))
    for place in np.ndindex(2, 6):
        right = LABELS[place]
        wrong = max(LOGITS[place][other] for other in range(4) if other != right)
        expected[place] = max(0.0, 1 + wrong - LOGITS[place][right])
    assert (expected > 0).any() and (expected == 0).any()
    np.testing.assert_allclose(hinge(jnp.asarray(LOGITS), LABELS), expected, rtol=1e-6)


def test_binary_hinge_on_one_score_and_on_two():
    scores, labels = np.array([-2.0, -0.5, 0.3, 4.0]), np.array([0, 1, 0, 1])
    one = hinge(jnp.asarray(scores)[:, None], labels)
    two = hinge(jnp.stack([jnp.zeros(4), jnp.asarray(scores)], axis=-1), labels)
    np.testing.assert_allclose(one, [0.0, 1.5, 1.3, 0.0], rtol=1e-6)
    np.testing.assert_allclose(one, two, rtol=1e-6)


def test_losses_by_name():
    assert models.default_loss("linear_svm") is models.hinge
    assert models.default_loss("mlp") is models.cross_entropy
