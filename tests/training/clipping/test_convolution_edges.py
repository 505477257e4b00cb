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
