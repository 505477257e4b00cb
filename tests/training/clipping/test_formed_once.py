"""What clipping reads twice is computed once; what rounds the same way everywhere is left alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from dpjax import models, training
from dpjax.training.clipping.formed_once import formed_once

ROW = np.ones(4, np.float32)
KERNEL = np.ones((4, 3), np.float32)


def barriers(loss, params, *row):
    """How many values are formed once, in the program of a batch of one."""
    batch = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], row)
    grad_fn = training.clipped_grad(lambda params, row: loss(params, *row))
    return str(jax.make_jaxpr(grad_fn.of_stored)(params, batch, 1.0)).count("platform_index")


@pytest.mark.parametrize(
    ("rough", "loss"),
    [
        (False, lambda w, x: jnp.sum(x @ w)),
        (False, lambda w, x: jnp.sum(jnp.maximum(x @ w, 0.0))),
        (False, lambda w, x: jnp.sum((x - 1.0) @ w)),
        # A product alone is the same but for its last bit.
        (False, lambda w, x: jnp.sum((x * x) @ w)),
        (True, lambda w, x: jnp.sum((x * x - x) @ w)),
        (True, lambda w, x: jnp.sum((x - jnp.mean(x)) @ w)),
        (True, lambda w, x: jnp.sum(jnp.exp(x * x) @ w)),
        # What is decided by a rough value is as rough.
        (True, lambda w, x: jnp.sum(jnp.where(x * x - x > 0, x, 0.0) @ w)),
        # Sums of cotangents over positions, the gradient of a bias.
        (True, lambda w, x: jnp.sum((jnp.stack([x, 2 * x]) * w[None, :, 0]) ** 3)),
    ],
)
def test_values_that_round_otherwise_elsewhere_are_formed_once(rough, loss):
    assert (barriers(loss, KERNEL, ROW) > 0) == rough


def test_narrow_values_are_formed_once_whatever_made_them():
    def loss(w, x):
        return jnp.sum((x + 1) @ w)

    assert barriers(loss, KERNEL, ROW) == 0
    narrow = (jnp.asarray(each, jnp.bfloat16) for each in (KERNEL, ROW))
    assert barriers(loss, *narrow) > 0


def test_patches_are_moved_from_what_is_formed_once_not_formed_nine_times():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, images):
            hidden = nn.GroupNorm(1)(models.convolutional.PatchConv(4)(images))
            return models.convolutional.PatchConv(2)(hidden).mean((1, 2))

    model = models.functional(Net(), np.zeros((8, 8, 1), np.float32))
    params = jax.eval_shape(model.init, jax.random.key(0))
    batch = (jnp.zeros((1, 8, 8, 1)), jnp.zeros(1, int))
    grad_fn = training.clipped_grad(model.example_loss(models.cross_entropy))
    program = str(jax.make_jaxpr(grad_fn.of_stored)(params, batch, 1.0))
    assert "platform_index" in program
    formed = [line for line in program.splitlines() if "cond[" in line]
    assert formed and not any("8,8,36" in line for line in formed)


def test_rows_of_a_program_of_ones_own_are_formed_once_and_kernels_are_not():
    grad_fn = training.clipped_grad(lambda w, x: jnp.sum(jnp.maximum(x @ w["k"] + w["b"], 0.0)))
    params = {"k": KERNEL, "b": KERNEL[0]}
    program = str(jax.make_jaxpr(grad_fn)(params, ROW[None], 1.0))
    formed = [line for line in program.splitlines() if "cond[" in line]
    assert any("[1,4]" in line for line in formed), formed
    assert not any("[4,3]" in line for line in formed), formed


@pytest.mark.parametrize("mapped", [False, True])
def test_it_changes_nothing(mapped):
    tree = {"a": jnp.arange(3.0), "b": (jnp.arange(6).reshape(3, 2), jnp.zeros((3, 0)))}
    form = jax.vmap(formed_once) if mapped else formed_once
    jax.tree.map(np.testing.assert_array_equal, jax.jit(form)(tree), tree)
