"""Built-in models by name."""

import jax
import jax.numpy as jnp
import pytest

from dpjax import models


@pytest.mark.parametrize("name", models.NAMES)
def test_every_name_builds_and_scores(name):
    model = models.build(name, (8, 8, 1), 3, widths=(5,))
    params = jax.eval_shape(model.init, jax.random.key(0))
    scores = jax.eval_shape(model.apply, params, jnp.zeros((2, 8, 8, 1)))
    assert scores.shape == (2, 3)
    loss = jax.eval_shape(
        model.example_loss(models.default_loss(name)), params, (jnp.zeros((8, 8, 1)), jnp.int32(0))
    )
    assert loss.shape == ()


def test_losses_by_name():
    assert models.default_loss("linear_svm") is models.hinge
    assert models.default_loss("mlp") is models.cross_entropy


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: models.build("resnet", (8,), 2), "logistic_regression, linear_svm, mlp, all_conv"),
        (lambda: models.default_loss("resnet"), "logistic_regression, linear_svm, mlp, all_conv"),
        (lambda: models.build("mlp", (8,), 1), "at least 2"),
        (lambda: models.build("mlp", (8,), 2, widths=(4, 0)), "positive hidden widths"),
        (lambda: models.build("all_conv", (8,), 2), "\\(height, width, channels\\)"),
        (lambda: models.build("conv_pool", (8,), 2), "conv_pool takes images"),
        (lambda: models.build("conv_blocks", (8, 8), 2), "pass \\(height, width, channels\\)"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
