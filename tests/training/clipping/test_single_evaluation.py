"""What clipping reads twice is computed once, but for what stands in memory anyway."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import training
from dpjax.training.clipping.single_evaluation import formed_once

ROW = np.ones(4, np.float32)
KERNEL = np.ones((4, 3), np.float32)


def _handed_on(x):
    return jax.lax.scan(lambda h, _: (h, h), x, None, 3)[1]


def barriers(loss, params, *row):
    """How many values are formed once on a CPU, in the program of a batch of one."""
    batch = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], row)
    grad_fn = training.clipped_grad(lambda params, row: loss(params, *row))
    program = jax.jit(lambda p, b: grad_fn(p, b, 1.0, stored=True)).lower(params, batch)
    return len(re.findall(r"optimization_barrier .*tensor<i1>", program.as_text()))


@pytest.mark.parametrize(
    ("computed", "loss"),
    [
        (False, lambda w, x: jnp.sum((x @ w) @ jnp.ones((3, 3)))),
        # Whatever forms it, and however exactly.
        (True, lambda w, x: jnp.sum(jnp.maximum(x @ w, 0.0))),
        (True, lambda w, x: jnp.sum((x * x) @ w)),
        (True, lambda w, x: jnp.sum((x * x - x) @ w)),
        (True, lambda w, x: jnp.sum(jnp.where(x * x - x > 0, x, 0.0) @ w)),
        (True, lambda w, x: jnp.sum(_handed_on(x) @ w @ jnp.ones((3, 3)))),
        # Sums of cotangents over positions, the gradient of a bias.
        (True, lambda w, x: jnp.sum((jnp.stack([x, 2 * x]) * w[None, :, 0]) ** 3)),
    ],
)
def test_what_is_no_argument_and_no_contraction_is_formed_once(computed, loss):
    assert (barriers(loss, KERNEL, ROW) > 0) == computed


@pytest.mark.parametrize("unread", [0, 1])
def test_a_kernel_gradient_that_is_written_as_sums_is_formed_once(unread):
    """Also that of a kernel cut out of a larger one, whose gradient is padded."""

    def formed(groups):
        inputs = 4 // groups

        def loss(kernel, image):
            return jnp.sum(
                jax.lax.conv_general_dilated(
                    image[None], kernel[:, :inputs], (1, 1), "VALID", feature_group_count=groups,
                    dimension_numbers=("NHWC", "OIHW", "NHWC"),
                )
            )  # fmt: skip

        kernel = np.ones((4, inputs + unread, 3, 3), np.float32)
        image = np.ones((7, 7, 4), np.float32)
        plans = training.clipped_grad(loss).explain(kernel, image[None])
        assert [plan.form for plan in plans.values()] == ["product"]
        return barriers(loss, kernel, image)

    # The gradient itself, beside the operands that both form.
    assert formed(4) == formed(1) + 1


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


def test_a_product_is_formed_once_where_compilers_turn_it_into_a_sum():
    def loss(w, x):
        return jnp.sum(jnp.square(x @ w["a"] @ w["b"]))

    params, batch = {"a": KERNEL, "b": KERNEL.T}, ROW[None]
    grad_fn = training.clipped_grad(loss)
    summed = jax.jit(lambda p, b: grad_fn(p, b, 1.0, stored=True)[0])

    def barred(platform):
        exported = jax.export.export(summed, platforms=[platform])(params, batch)
        return exported.mlir_module().count("optimization_barrier")

    # The activation before the second kernel, and the cotangent behind the first.
    assert barred("cuda") == barred("tpu") >= barred("cpu") + 2
