"""A convolution that is run otherwise has the values of the one that was written."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.training.clipping import convolution_rule
from dpjax.training.clipping.jaxpr_graph import evaluate, graph_of, is_contraction

PER_FEATURE = [(1, 4), (2, 4), (3, 1)]
"""(outputs of a feature, features); a single feature is no depthwise convolution."""

WINDOWS = [
    {},
    {"window_strides": (2, 1)},
    {"window_strides": (3, 2), "padding": ((2, 0), (1, 3))},
    {"padding": ((-1, 2), (0, -2))},
    {"lhs_dilation": (2, 3), "padding": ((2, 2), (1, 0))},
    {"rhs_dilation": (2, 1), "padding": ((1, 1), (1, 1))},
    {"lhs_dilation": (2, 1), "rhs_dilation": (1, 2), "window_strides": (2, 2)},
]
ORDERS = [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("HWNC", "IHWO", "CNHW")]


def _arguments(specs, outputs, features, dtype=jnp.float32):
    drawn = np.random.default_rng(0)

    def ordered(letters, spec, sizes):
        sizes = dict(zip(letters, sizes, strict=True))
        shape = [sizes[letter] for letter in spec]
        return jnp.asarray(drawn.integers(-3, 4, shape), dtype)

    return (
        ordered("NHWC", specs[0], (2, 7, 8, features)),
        ordered("HWIO", specs[1], (3, 2, 1, outputs * features)),
    )


def _params(arguments, specs, features, **window):
    given = {"window_strides": (1, 1), "padding": ((0, 0), (0, 0)), **window}
    jaxpr = jax.make_jaxpr(
        lambda *each: jax.lax.conv_general_dilated(
            *each, dimension_numbers=specs, feature_group_count=features, **given
        )
    )(*arguments)
    return jaxpr.eqns[-1].params, jaxpr


@pytest.mark.parametrize(("outputs", "features"), PER_FEATURE)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("specs", ORDERS)
def test_depthwise_convolutions_have_the_same_values(specs, window, outputs, features):
    arguments = _arguments(specs, outputs, features)
    params, jaxpr = _params(arguments, specs, features, **window)
    (expected,) = jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, *arguments)
    # Whole numbers: every sum is exact.
    np.testing.assert_array_equal(convolution_rule.convolve(params, *arguments), expected)
    mapped = jax.vmap(lambda left: convolution_rule.convolve(params, left, arguments[1]))
    two = jnp.stack([arguments[0], 2 * arguments[0]])
    np.testing.assert_array_equal(mapped(two)[1], 2 * expected)


def test_narrow_types_are_added_up_in_a_wide_one():
    specs = ORDERS[0]
    images, kernel = _arguments(specs, 1, 4, jnp.bfloat16)
    # In bfloat16, 256 + 1 is 256.
    images, kernel = jnp.ones_like(images), jnp.ones_like(kernel).at[0, 0].set(256)
    params, _ = _params((images, kernel), specs, 4)
    found = convolution_rule.convolve(params, images, kernel)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found.astype(np.float32), 260.0)  # 261, rounded once


def _kernel_gradient(arguments, specs, features, **window):
    """The graph of the gradient of a kernel, and the convolution that forms it."""
    images, kernel = arguments
    params = {"window_strides": (1, 1), "padding": ((0, 0), (0, 0)), **window}

    def convolved(kernel):
        return jax.lax.conv_general_dilated(
            images, kernel, dimension_numbers=specs, feature_group_count=features, **params
        )

    shape = jax.eval_shape(convolved, kernel).shape
    cotangents = jnp.asarray(np.random.default_rng(1).integers(-3, 4, shape), kernel.dtype)
    graph = graph_of(
        jax.make_jaxpr(lambda kernel, out: jax.vjp(convolved, kernel)[1](out)[0])(
            kernel, cotangents
        )
    )
    found = [each for each in graph.operations if each.name == "conv_general_dilated"][-1]
    return graph, found, cotangents


@pytest.mark.parametrize(("outputs", "features"), PER_FEATURE)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("specs", ORDERS)
def test_kernel_gradients_have_the_same_values(specs, window, outputs, features):
    arguments = _arguments(specs, outputs, features)
    graph, operation, cotangents = _kernel_gradient(arguments, specs, features, **window)
    given = [arguments[1], cotangents]
    (expected,) = evaluate(graph, given, operation.outputs)
    left, right = evaluate(graph, given, operation.inputs)
    found = convolution_rule._Shape.of(operation).gradient(left, right)
    np.testing.assert_array_equal(found, expected)


def test_depthwise_convolutions_are_no_library_call():
    """They are formed once like any sum that a compiler may fuse with what reads it."""
    for (outputs, features), specs in itertools.product(PER_FEATURE, ORDERS):
        arguments = _arguments(specs, outputs, features)
        _, jaxpr = _params(arguments, specs, features)
        (operation,) = graph_of(jaxpr).operations
        assert is_contraction(operation.outputs[0]) == (features == 1)
        for images in (1, 2):
            some = arguments[0].take(jnp.arange(images), specs[0].index("N")), arguments[1]
            _, operation, _ = _kernel_gradient(some, specs, features)
            assert is_contraction(operation.outputs[0]) == (features == 1)
