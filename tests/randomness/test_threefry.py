"""The cipher written out is the cipher: published vectors, and jax.random's bits; its normals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

from dpjax.randomness import threefry

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


def test_a_normal_number_is_the_quantile_of_its_63_bits():
    """Every exponent of the tail probability, from 1/2 down to 2^-65, and of what it leaves of 1/2:
    against SciPy's quantile."""
    generator = np.random.default_rng(0)
    shifts = generator.integers(0, 33, 20_000).astype(np.uint64)
    first = (generator.integers(0, 2**32, 20_000, dtype=np.uint64) >> shifts).astype(np.uint32)
    first = (first & ~np.uint32(1)) | generator.integers(0, 2, 20_000).astype(np.uint32)
    shifts = generator.integers(0, 33, 20_000).astype(np.uint64)
    second = (generator.integers(0, 2**32, 20_000, dtype=np.uint64) >> shifts).astype(np.uint32)
    dithered = jax.jit(threefry._dithered)
    found = np.asarray(dithered(first, second, np.float32(2.0**40))) * 2.0**-40
    tail = ((first >> 1) + ((second >> 1) + 0.5) * 2.0**-31) * 2.0**-32
    np.testing.assert_allclose(np.abs(found), -scipy.special.ndtri(tail), rtol=5e-6, atol=2e-7)
    np.testing.assert_array_equal(np.signbit(found), first & 1)
    assert 9.0 < np.abs(found).max() < 9.1
    magnitude = np.asarray(jax.jit(threefry._magnitude)(~first, ~second), np.float64)
    # To leading order: 1/2 - tail is too coarse in float64 as well.
    rest = ((first >> 1) + ((second >> 1) + 0.5) * 2.0**-31) * 2.0**-31
    near = rest < 1e-4
    assert near.sum() > 10_000
    np.testing.assert_allclose(magnitude[near], np.sqrt(np.pi / 2) * rest[near], rtol=5e-6)


def test_a_dither_is_uniform_and_independent_of_the_normal_number():
    """Half-integers, signed like the normal number; other words' bits leave it as it is."""
    generator = np.random.default_rng(1)
    first, second = (generator.integers(0, 2**32, 2**17, dtype=np.uint32) for _ in range(2))
    values = 2**threefry.DITHER_BITS
    second = (second & ~np.uint32(values - 1)) | (np.arange(2**17, dtype=np.uint32) % values)
    dither = np.asarray(jax.jit(threefry._dithered)(first, second, np.float32(0.0)))
    expected = (values - 1) / 2 - np.arange(2**17) % values
    np.testing.assert_array_equal(dither, np.where(first & 1, -expected, expected))
    assert threefry.DITHER_BITS == 14


def test_normal_numbers_are_normal():
    """Fixed seed, error rate 1e-4; the bits that were never used by jax.random.normal count."""
    scale = 2.0**20
    found = threefry.dithered_normal(jax.random.key(5, impl="threefry2x32"), 1_000_000, scale)
    assert scipy.stats.kstest(np.asarray(found) / scale, "norm").pvalue > 1e-4
    assert found.dtype == jnp.float32


# None, one number, less than a row, whole rows, and rows of which the last is cut.
@pytest.mark.parametrize("number", [0, 1, 1001, 2048, 30_011])
def test_normal_numbers_do_not_depend_on_rows_or_vectorisation(number):
    keys = jax.random.split(jax.random.key(5, impl="threefry2x32"), 2)
    scales = np.float32([2.0**20, 2.0**19])
    expected = threefry._dithered(*threefry.random_words(keys[0], number), scales[0])
    draw = jax.vmap(lambda key, scale: threefry.dithered_normal(key, number, scale))
    found = draw(keys, scales)
    np.testing.assert_allclose(found[0], expected, rtol=1e-6, atol=0.5)
    alone = jax.jit(threefry.dithered_normal, static_argnums=1)(keys[0], number, scales[0])
    np.testing.assert_allclose(alone, expected, rtol=1e-6, atol=0.5)
    assert number == 0 or not np.array_equal(found[0], found[1])


@pytest.mark.parametrize("number", [0, 1, 1001, 2048, 30_011, 270_005])
def test_candidates_side_by_side_and_alone_draw_the_same_bits(number):
    """And beside what reads the numbers twice, as the noise's grid does."""
    keys = jax.random.split(jax.random.key(8, impl="threefry2x32"), 3)
    scales, starts = np.float32([2.0**20, 2.0**19.3, 2.0**19]), np.uint32([0, 5, 70_001])

    def drawn(key, scale, start):
        return threefry.dithered_normal(key, number, scale, start=start)

    def read_twice(*arguments):
        numbers = drawn(*arguments)
        return numbers, jnp.floor(numbers) * 2 + (numbers - jnp.floor(numbers))

    def compiled(function, *arguments):
        # As in earnest, not as in tests: vectorised, and fused into one pass.
        options = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
        program = jax.jit(function).lower(*arguments).compile(compiler_options=options)
        return program(*arguments)

    together = compiled(jax.vmap(read_twice), keys, scales, starts)
    alone = compiled(read_twice, keys[1], scales[1], starts[1])
    for left, right in zip(alone, together):
        np.testing.assert_array_equal(left, right[1])
    np.testing.assert_array_equal(compiled(drawn, keys[1], scales[1], starts[1]), alone[0])


@pytest.mark.parametrize("number", [1, 9000])
def test_on_a_cpu_a_draw_is_one_pass_and_stores_nothing_but_the_numbers(number):
    """The compiler would drop the branch, and the one pass with it, if it knew which is taken."""

    def twice(key):
        numbers = threefry.dithered_normal(key, number, 2.0**20)
        return jnp.floor(numbers) * 2, numbers[::-1]

    program = jax.jit(twice).lower(jax.random.key(9, impl="threefry2x32")).compile()
    assert "conditional" in program.as_text()
    assert program.memory_analysis().temp_size_in_bytes < 1.2 * 4 * number + 10_000


def test_normal_numbers_in_pieces_are_the_draw():
    key, scale = jax.random.key(4, impl="threefry2x32"), np.float32(2.0**20)
    draw = jax.jit(threefry.dithered_normal, static_argnums=1)
    pieces = [draw(key, 4096, scale), draw(key, 3000, scale, start=np.uint32(4096))]
    np.testing.assert_array_equal(np.concatenate(pieces), draw(key, 7096, scale))


def test_the_way_of_other_devices_gives_the_same_numbers():
    key = jax.random.key(6, impl="threefry2x32")
    exported = jax.export.export(
        jax.jit(threefry.dithered_normal, static_argnums=1), platforms=["cpu", "cuda", "tpu"]
    )(key, 1000, np.float32(2.0**20))
    assert "f64" not in exported.mlir_module()
    np.testing.assert_array_equal(
        exported.call(key, np.float32(2.0**20)), threefry.dithered_normal(key, 1000, 2.0**20)
    )


def test_sub_keys_are_those_of_jax_random():
    key = jax.random.key(7, impl="threefry2x32")
    for number in (0, 1, 2**32 - 1):
        number = np.uint32(number)
        np.testing.assert_array_equal(
            jax.random.key_data(threefry.fold_in(key, number)),
            jax.random.key_data(jax.random.fold_in(key, number)),
        )
