"""The cipher written out is the cipher: published vectors, and jax.random bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.training import threefry

# Threefry-2x32, 20 rounds, as the authors' distribution tests it (Random123, kat_vectors):
# counter, key, result.
VECTORS = [
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_published_vectors(counter, key, expected):
    words = threefry.threefry_2x32(
        tuple(jnp.uint32(word) for word in key), tuple(jnp.uint32(word) for word in counter)
    )
    assert tuple(int(word) for word in words) == expected


@pytest.mark.parametrize("shape", [(), (0,), (1,), (7, 9), (1001,)])
def test_bits_are_those_of_jax_random(shape):
    key = jax.random.key(3, impl="threefry2x32")
    with jax.threefry_partitionable(True):
        expected = jax.random.bits(key, shape, jnp.uint32)
    np.testing.assert_array_equal(threefry.random_bits(key, shape), expected)


def test_a_draw_in_pieces_is_the_draw():
    key = jax.random.key(4, impl="threefry2x32")
    whole = threefry.random_bits(key, (100,))
    pieces = [threefry.random_bits(key, (40,)), threefry.random_bits(key, (60,), start=40)]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


# One number, two blocks of odd length, and three blocks, the last of them cut.
@pytest.mark.parametrize("number", [0, 1, 1001, 2 * threefry._BLOCK + 5])
def test_normal_numbers_are_those_of_jax_random(number):
    keys = jax.random.split(jax.random.key(5, impl="threefry2x32"), 2)
    with jax.threefry_partitionable(True):
        expected = [jax.random.normal(key, (number,), jnp.float32) for key in keys]
    found = jax.vmap(lambda key: threefry.standard_normal(key, number))(keys)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    alone = jax.jit(threefry.standard_normal, static_argnums=1)(keys[0], number)
    np.testing.assert_allclose(alone, expected[0], rtol=1e-6)
    assert alone.dtype == jnp.float32


def test_the_way_of_other_devices_gives_the_same_numbers():
    key = jax.random.key(6, impl="threefry2x32")
    exported = jax.export.export(
        jax.jit(threefry.standard_normal, static_argnums=1), platforms=["cpu", "cuda", "tpu"]
    )(key, 1000)
    assert "while" in exported.mlir_module()
    np.testing.assert_array_equal(exported.call(key), threefry.standard_normal(key, 1000))


def test_sub_keys_are_those_of_jax_random():
    key = jax.random.key(7, impl="threefry2x32")
    for number in (0, 1, 2**32 - 1):
        number = np.uint32(number)
        np.testing.assert_array_equal(
            jax.random.key_data(threefry.fold_in(key, number)),
            jax.random.key_data(jax.random.fold_in(key, number)),
        )


def test_other_keys_and_too_many_numbers_are_refused():
    with pytest.raises(ValueError, match="pass threefry2x32 keys"):
        threefry.standard_normal(jax.random.key(0, impl="rbg"), 3)
    with pytest.raises(ValueError, match="typed key"):
        threefry.standard_normal(np.zeros(2, np.uint32), 3)
    key = jax.random.key(0, impl="threefry2x32")
    with pytest.raises(ValueError, match="fewer than 2\\^31"):
        jax.eval_shape(lambda key: threefry.random_bits(key, (2**31,)), key)
