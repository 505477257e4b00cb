"""Convolutions at the edges of images: what stands beside an image is another record's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import training

AXES = ("NHWC", "HWIO", "NHWC")


def _loss(cut, filled, *, beforehand):
    def loss(params, record):
        image, weight = record
        padding = [(-cut, filled)] * 2
        if beforehand:
            image = jnp.pad(image[cut:, cut:], ((0, filled), (0, filled), (0, 0)))
            padding = "VALID"
        found = jax.lax.conv_general_dilated(
            image[None], params, (1, 1), padding, dimension_numbers=AXES
        )
        return weight * jnp.sum(jnp.sin(found))

    return loss


@pytest.mark.parametrize(("cut", "filled"), [(1, 1), (2, 1), (1, 2)])
def test_an_image_that_is_cut_first_and_filled_last_reads_no_other_records_pixels(cut, filled):
    """XLA's own convolution on a CPU reads beyond it: a tenth to all of the gradient is wrong."""
    generator = np.random.default_rng(0)
    params = jnp.asarray(generator.normal(size=(3, 3, 3, 4)), jnp.float32)
    batch = generator.normal(size=(8, 7, 7, 3)).astype(np.float32), np.ones(8, np.float32)
    found, wanted = (
        jax.jit(training.clipped_grad(_loss(cut, filled, beforehand=one)))(params, batch, 1e6)[0]
        for one in (False, True)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)


def _cut(image, params):
    padding = [(-1, 1)] * 2
    return jax.lax.conv_general_dilated(
        image[None], params, (1, 1), padding, dimension_numbers=AXES
    )


def _in_branch(params, image):
    """A branch that all records take is no selection between branches."""
    return jax.lax.cond(
        jnp.sum(params) < jnp.inf,
        lambda: jnp.sum(jnp.sin(_cut(image, params))),
        lambda: jnp.sum(image),
    )


def _in_branch_of_a_loop(params, image):
    def turn(total, number):
        return jax.lax.cond(number < 1, lambda: total, lambda: total + _in_branch(params, image)), 0

    return jax.lax.scan(turn, 0.0, jnp.arange(2))[0]


def _in_loop(params, image):
    fixed = jax.lax.stop_gradient((params, image))
    times = jax.lax.fori_loop(
        0, image.shape[0], lambda _, total: total + jnp.sum(jnp.sin(_cut(*fixed[::-1]))), 0.0
    )
    return times * jnp.sum(params)


@pytest.mark.parametrize("method", ["auto", "materialised"])
@pytest.mark.parametrize("loss", [_in_branch, _in_branch_of_a_loop, _in_loop])
def test_what_a_record_adds_depends_on_no_other_record_s_pixels(loss, method):
    generator = np.random.default_rng(0)
    params = jnp.asarray(generator.normal(size=(3, 3, 3, 4)), jnp.float32)
    images = generator.normal(size=(8, 7, 7, 3)).astype(np.float32)
    own = np.arange(8) == 3
    summed = jax.jit(
        lambda rows: training.clipped_grad(loss, method=method)(params, rows, 9.0, own)
    )
    others = np.where(own[:, None, None, None], images, np.float32(50.0))
    found, wanted = summed(others)[0], summed(images)[0]
    np.testing.assert_array_equal(found, wanted)
    assert np.any(found)
