"""Threefry in plain arithmetic: random bits and normal numbers that a compiler can fuse.

The cipher is Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random numbers: as easy as 1,
2, 3", SC 2011), the one behind `jax.random`, and bits are those of `jax.random.bits`. `jax.random`
computes them by a primitive of its own: on a CPU a loop over whole arrays, on a GPU a call that
nothing fuses with. In plain arithmetic, bits, numbers and the additions that use them become one
pass over memory, faster on one CPU core and more so vectorised over candidates; bits are never
stored.

Normal numbers are not those of `jax.random.normal`, which takes 23 of the 64 bits and so never
exceeds 5.42 standard deviations. At noise multiplier 1.1 a record's clipped gradient carries the
sum past that end in 3 of a million lots that hold it: over 60 such lots it gives itself away with
probability 2e-4, where a delta of 1e-5 is claimed. Here 63 bits count and the end is at 9.1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_IMPLEMENTATION = "threefry2x32"

_ROW = 1 << 10
"""Numbers in a row. XLA deals out whole rows, in any number to a thread. It would deal out single
numbers, too, but vectorises none if the shares are unequal: ten times slower."""

DITHER_BITS = 14
"""Binary logarithm of the number of values that a dither takes."""

Words = tuple[jax.Array, jax.Array]


def threefry_2x32(key: Words, counter: Words) -> Words:
    """Encrypts a counter of two words; all words are uint32, of shapes that broadcast."""
    schedule = (*key, key[0] ^ key[1] ^ _PARITY)
    first, second = counter[0] + schedule[0], counter[1] + schedule[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            first = first + second
            rotated = (second << np.uint32(rotation)) | (second >> np.uint32(32 - rotation))
            second = first ^ rotated
        first = first + schedule[(group + 1) % 3]
        second = second + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return first, second


def fold_in(key: jax.Array, number: jax.Array | int) -> jax.Array:
    """Derives the sub-key of a typed threefry key () for a uint32, as `jax.random.fold_in`."""
    number = jnp.asarray(number, jnp.uint32)
    words = threefry_2x32(_words(key), (jnp.zeros_like(number), number))
    return jax.random.wrap_key_data(jnp.stack(words), impl=_IMPLEMENTATION)


def random_bits(key: jax.Array, shape: Sequence[int], *, start: jax.Array | int = 0) -> jax.Array:
    """Draws independent uniform uint32, those of `jax.random.bits`; fewer than 2^31 numbers.

    Every number is the exclusive or of the two words of its own block; the block's counter is the
    number's place in row-major order, counted from `start`, so that a long draw can be made in
    pieces. The key is a typed threefry key, shape (): vectorise with `jax.vmap`.
    """
    first, second = random_words(key, math.prod(shape), start=start)
    return (first ^ second).reshape(tuple(shape))


def random_words(key: jax.Array, size: int, *, start: jax.Array | int = 0) -> Words:
    """Encrypts `size` counters from `start` on; returns both words of each, uniform, (size,)."""
    if size >= 2**31:
        raise ValueError(f"{size} random numbers of one key: pass a shape of fewer than 2^31")
    return _at(key, jax.lax.iota(jnp.uint32, size) + jnp.asarray(start, jnp.uint32))


def _at(key: jax.Array, place: jax.Array) -> Words:
    """Enciphers these counters, uint32, and returns both words of each, of their shape."""
    return threefry_2x32(_words(key), (jnp.zeros_like(place), place))


def dithered_normal(
    key: jax.Array, number: int, scale: jax.Array | float, *, start: jax.Array | int = 0
) -> jax.Array:
    """Draws independent scale * N(0, 1) + dither, float32 (number,): noise in cells of a grid.

    The dither is uniform over the 2^14 half-integers from -2^13 + 1/2 to 2^13 - 1/2, independent of
    the normal number. Inverting a distribution function in float32 gives some values too often and
    others never; the dither smooths over so many neighbours that this no longer shows. It is
    additional noise: the normal number alone hides a record.

    The normal number is the quantile of 63 bits, right to a relative 4e-6 near zero too (3e-4 of
    the tail probability where that is 1e-19), out to 9.1 standard deviations.

    On a CPU the numbers are made in a branch that is always taken, which XLA cannot know. So it
    compiles one pass from counter to number, whatever reads the numbers afterwards. (Without the
    branch, if several operations read them, XLA would store a pair of arrays halfway; it ignores
    optimisation barriers there.) The scale is in cells, a scalar, static or traced; the rest is as
    in `random_bits`.
    """
    scale, start = jnp.asarray(scale, jnp.float32), jnp.asarray(start, jnp.uint32)

    def at_once(key: jax.Array, scale: jax.Array, start: jax.Array) -> jax.Array:
        return jax.lax.optimization_barrier(
            _dithered(*random_words(key, number, start=start), scale)
        )

    on_cpu = functools.partial(_in_one_pass, number)
    return jax.lax.platform_dependent(key, scale, start, cpu=on_cpu, default=at_once)


def dithered_normal_at(key: jax.Array, place: jax.Array, scale: jax.Array) -> jax.Array:
    """Draws the numbers of `dithered_normal` at given places in its row, an array of uint32.

    The result has the shape of `place`. Each entry is computed on its own, on any device.
    """
    return jax.lax.optimization_barrier(_dithered(*_at(key, place), scale))


def _in_one_pass(number: int, key: jax.Array, scale: jax.Array, start: jax.Array) -> jax.Array:
    """Draws `dithered_normal` on a CPU, whose threads share the rows; nothing else is stored.

    Without the branch it takes 0.5 and 1.2 of the time if one operation reads the numbers, more
    if several do or their number is odd (8 times for 101,001), and twice the memory.
    """
    columns = max(1, min(_ROW, number))
    shape = -(-number // columns), columns

    def drawn() -> jax.Array:
        row, column = (jax.lax.broadcasted_iota(jnp.uint32, shape, axis) for axis in (0, 1))
        return _dithered(*_at(key, start + row * np.uint32(columns) + column), scale)

    # The barrier hides from the compiler which branch is taken, so that it keeps both.
    true = jax.lax.optimization_barrier(np.bool_(True))
    numbers = jax.lax.cond(true, drawn, lambda: jnp.zeros(shape, jnp.float32))
    return numbers.reshape(-1)[:number]


# Normal quantile z over 1 - 2 p as a polynomial in w = -log(4 p (1 - p)) around 2.5 for w < 5, else
# in the root of w around 4.483; least largest relative error, 3e-7 and 3e-6 (fitted for this file).
_CENTRE = (2.5, 4.483034)
_COEFFICIENTS = (
    (2.1233132, 6.1201854),
    (0.34880364, 1.428736),
    (-0.0059061218, 0.00038799297),
    (-0.0017743169, -0.00081741752),
    (0.00030735956, 0.00034956657),
    (-5.7900679e-6, 8.4983076e-5),
    (-4.5055203e-6, -4.8594135e-5),
    (4.4637247e-7, -4.1495441e-5),
    (0.0, 1.6011361e-5),
)


def _dithered(first: jax.Array, second: jax.Array, scale: jax.Array) -> jax.Array:
    """Turns pairs of uniform uint32 into scale * N(0, 1) + dither.

    The lowest bit of the first word is the sign, the lowest bits of the second are the dither. The
    dither's bits change a quantile, too, if its tail probability is below 2^-27; quantile and
    dither then both fall as the bits grow, so that they never cancel.
    """
    low = (second & np.uint32(2**DITHER_BITS - 1)).astype(jnp.int32).astype(jnp.float32)
    dither = np.float32(2 ** (DITHER_BITS - 1) - 0.5) - low
    unsigned = _magnitude(first, second) * scale + dither
    signed = jax.lax.bitcast_convert_type(unsigned, jnp.uint32) ^ (first << np.uint32(31))
    return jax.lax.bitcast_convert_type(signed, jnp.float32)


def _magnitude(first: jax.Array, second: jax.Array) -> jax.Array:
    """Returns the absolute value of a normal number, by the inverse distribution function.

    31 bits of the first word and 31 of the second are the digits of the tail probability p in
    (0, 1/2]; a float32 holds small ones to all their digits, down to 2^-64. Near zero the number is
    proportional to 1/2 - p, which is formed from the complements of the digits: a difference of
    floats would be a multiple of 2^-24.
    """

    def as_float(word: jax.Array) -> jax.Array:
        return (word >> np.uint32(1)).astype(jnp.int32).astype(jnp.float32)

    half_of_last = np.float32(2.0**-63)
    tail = as_float(first) * np.float32(2.0**-31)
    tail = tail + (as_float(second) * np.float32(2.0**-62) + half_of_last)  # 2 p
    rest = as_float(~first) * np.float32(2.0**-31)
    rest = rest + (as_float(~second) * np.float32(2.0**-62) + half_of_last)  # 1 - 2 p
    w = -jnp.log(tail * (np.float32(1) + rest))
    central = w < np.float32(5)
    near, far = (np.float32(centre) for centre in _CENTRE)
    v = jnp.where(central, w - near, jnp.sqrt(w) - far)
    quotient = jnp.zeros_like(v)
    for inner, outer in _COEFFICIENTS[::-1]:
        quotient = quotient * v + jnp.where(central, np.float32(inner), np.float32(outer))
    return quotient * rest


def _words(key: jax.Array) -> Words:
    """Returns the two words of a typed threefry key; refuses any other key."""
    if not jax.dtypes.issubdtype(getattr(key, "dtype", None), jax.dtypes.prng_key):
        raise ValueError("the key is not a typed key: pass one of training.candidate_keys(number)")
    if str(jax.random.key_impl(key)) != _IMPLEMENTATION:
        raise ValueError(
            f"the key is of kind {jax.random.key_impl(key)}: pass {_IMPLEMENTATION} keys, as "
            "training.candidate_keys makes them"
        )
    words = jax.random.key_data(key)
    return words[0], words[1]
