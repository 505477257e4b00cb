"""Norms of long rows, and of positions that cancel, come out no shorter than what is added.

An adversary looks for rows whose contribution, in float64, is longest; everything is compiled with
all optimisations, which decide in which order is added up. By default rows were 1.00001 clip norms
long, with long factors 1.109, in tables 1.0014.
"""

import functools

import held_back
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import training
from dpjax.training.clipping import rounding

OPTIMISED = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}


def _dense(params, row):
    return jnp.sum((row[0] @ params) * row[1])


def _looked_up(params, row):
    return jnp.sum(params[row[0]] * row[1])


def _alone(loss, shape, rows_in_sum, method="auto"):
    """Norms over the clip norm, 1, of contributions of rows, one at a time in a long sum."""
    grad_fn = training.clipped_grad(loss, method=method)
    compiled = jax.jit(
        lambda row: grad_fn(jnp.zeros(shape), row, 1.0, rows_in_sum=rows_in_sum, stored=True)[0],
        compiler_options=OPTIMISED,
    )

    def norm(*row):
        return np.linalg.norm(np.asarray(compiled(tuple(part[None] for part in row)), np.float64))

    return norm


def _longest(tried, tries, seed=0):
    """The most of `tried(numbers)` over three numbers in [0, 1]: at random, then near the best."""
    generator, best, at = np.random.default_rng(seed), 0.0, None
    for step in range(tries):
        numbers = generator.uniform(size=3)
        if at is not None and step % 3 == 2:
            numbers = np.clip(at + 0.05 * generator.normal(size=3), 0, 1)
        found = tried(numbers)
        if found > best:
            best, at = found, numbers
    return best


@pytest.mark.parametrize(("columns", "rows_in_sum"), [(2**17, 1), (2**20, 1), (2**20, 4096)])
def test_long_positions_that_cancel(columns, rows_in_sum):
    """Of two positions, the second takes nearly all of the first away."""
    norm = _alone(_dense, (8, columns), rows_in_sum, "factored")
    left = np.ones((2, 8), np.float32)
    left_over = max(min(1.0, 2 * rows_in_sum / 128), 2.0**-4)

    def tried(numbers):
        size, share, _ = numbers
        first = np.float32(1 + size)
        second = np.float32(first * (1 - min(1.0, left_over * (0.1 + 2 * share))))
        right = np.stack([np.full(columns, first), np.full(columns, -second)])
        return norm(left, right.astype(np.float32))

    assert 0 < _longest(tried, 12) <= 1


@pytest.mark.parametrize(("positions", "rows_in_sum"), [(4096, 1), (65_536, 1), (65_536, 4096)])
def test_tables_looked_up_at_many_positions_that_cancel(positions, rows_in_sum):
    """One entry, looked up everywhere: the second half nearly takes the first half away."""
    norm = _alone(_looked_up, (8, 4), rows_in_sum)
    index = np.zeros(positions, np.int32)

    def tried(numbers):
        size, share, sign = numbers
        first = np.float32(1 + size)
        second = np.float32(first * (1 - 0.2 * share))
        rows = np.zeros((positions, 4), np.float32)
        rows[: positions // 2, 0] = first
        rows[positions // 2 :, 0] = -second if sign < 0.7 else first
        return norm(index, rows)

    assert 0 < _longest(tried, 16) <= 1


@pytest.mark.parametrize(
    ("name", "features"), [("outer", 2**20), ("whole", 2**20), ("product", 1000), ("whole", 1024)]
)
def test_long_gradients(name, features):
    """Equal entries that round one way: sums of squares of ones and a little, in every place."""
    loss = {
        "outer": lambda params, row: (row[0][0] @ params) @ row[1][0],
        "whole": lambda params, row: jnp.vdot(params, row[0][0]),
        "product": _dense,
    }[name]
    shape = (features,) if name == "whole" else (features, 3 if name == "product" else 1)
    norm = _alone(loss, shape, 1)
    positions = 2 if name == "product" else 1

    def tried(numbers):
        size, more, _ = numbers
        left = np.full((positions, features), 1 + size, np.float32)
        left[:, features // 2 :] *= np.float32(2.0 ** (-12 * more))
        return norm(left, np.ones((positions, shape[-1]), np.float32))

    longest = _longest(tried, 16)
    of_row = held_back.influence(1, 1) + features * held_back.UNIT * (features <= 1024)
    assert 1 - 2.0**-14 - 8 * of_row < longest <= 1


@functools.cache
def _squares(length, dtype):
    options = {"compiler_options": OPTIMISED}
    own = jax.jit(lambda array: rounding.long_sum(jnp.square(array)), **options)
    plain = jax.jit(lambda array: jnp.sum(jnp.square(array), dtype=dtype), **options)
    return own, plain


@pytest.mark.parametrize("length", [1024, 1025, 2**16, 2**22])
def test_a_long_sum_is_off_by_what_its_rounding_says(length):
    """Squares that just fail to move what stands: a plain sum swallows a part of them."""
    own, plain = _squares(length, jnp.float32)
    allowed = held_back.rounding(length if length <= 1024 else 2)
    assert rounding.rounding(rounding.terms_of_sum(length)) <= allowed * (1 + 1e-9)
    worst = {}
    for small in (2.0**-12, 0.9 * 2.0**-12, 0.7 * 2.0**-12, 1e-3, 0.5, 1.0):
        array = np.full(length, small, np.float32)
        array[:64] = 1.0
        exact = np.sum(np.square(array, dtype=np.float32), dtype=np.float64)
        for name, function in (("own", own), ("plain", plain)):
            off = abs(float(function(array)) / exact - 1)
            worst[name] = max(worst.get(name, 0.0), off)
    assert worst["own"] <= allowed
    if length == 2**22:
        assert worst["plain"] > allowed


def test_a_norm_of_many_blocks_is_not_too_short():
    """16,384 blocks, of which one is long: contributions were 1.00005 clip norms long."""
    blocks = 16_384
    left, right = np.zeros((2, 1, blocks, 2), np.float32)
    left[:, :, 0], right[:, :, 0], right[:, 0, 0] = 1.0, 2.0**-12.1, 1.0

    def loss(kernels, row):
        return jnp.sum(jnp.einsum("si,sio->so", row[0], kernels) * row[1])

    gradient = training.clipped_grad(loss, method="factored")
    summed = jax.jit(
        lambda batch: gradient(jnp.zeros((blocks, 2, 2)), batch, 0.5, rows_in_sum=64)[0],
        compiler_options=OPTIMISED,
    )((left, right))
    assert np.linalg.norm(np.asarray(summed, np.float64)) <= 0.5
