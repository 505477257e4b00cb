"""Arrays in units of a power of two, so that squares of their entries neither under- nor overflow.

Dividing by a power of two rounds nothing, so norm and sum may both do it and read the same numbers.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def _format(dtype: jax.typing.DTypeLike) -> tuple[np.dtype, int, int]:
    """The whole numbers as wide as a float, its digits, and the bias of its exponents."""
    numbers = jnp.finfo(dtype)
    return np.dtype(f"int{numbers.bits}"), int(numbers.nmant), int(numbers.maxexp) - 1


def power(exponent: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
    """`2**exponent` exactly; zero where that is subnormal, and never more than 2**bias."""
    whole, digits, bias = _format(dtype)
    biased = jnp.clip(exponent, -bias, bias) + bias
    return jax.lax.bitcast_convert_type(biased.astype(whole) << digits, dtype)


def scaled(values: jax.Array, exponent: jax.Array) -> jax.Array:
    """`values * 2**exponent`, (batch, ...) of (batch,) or of a scalar; it is rounded where it is
    subnormal, and nowhere else. Exponents may be twice as large as a float has.
    """
    exponent = _along(exponent, values)
    half = exponent // 2
    return values * power(half, values.dtype) * power(exponent - half, values.dtype)


def _along(exponent: jax.Array, values: jax.Array) -> jax.Array:
    return exponent.reshape(*exponent.shape, *(1,) * (values.ndim - exponent.ndim))


def exponent_of(array: jax.Array) -> jax.Array:
    """The exponent e, int32, of an array's unit: its largest entry is in `2**e * [1, 4)`.

    Below `2**(e + 1)` where e is the smallest, of zeros and subnormal numbers. What is infinite or
    NaN has the largest, and stays so.
    """
    whole, digits, bias = _format(array.dtype)
    largest = jnp.max(jnp.abs(array.reshape(-1)), initial=0)
    biased = jax.lax.bitcast_convert_type(largest, whole) & np.iinfo(whole).max
    # `2**-e` must be a normal number, so e is at most bias - 1.
    return jnp.minimum((biased >> digits).astype(jnp.int32) - bias, bias - 1)


def in_units(array: jax.Array, exponent: jax.Array) -> jax.Array:
    """`array / 2**exponent`, (batch, ...) of (batch,) or of a scalar: rounds nothing; entries are
    below 4. What is subnormal, or becomes so, may be read as zero: `lost_entry`.
    """
    return array * power(-_along(exponent, array), array.dtype)


def lost_entry(exponent: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
    """The largest magnitude that `in_units` may have taken for zero, in these units."""
    _, _, bias = _format(dtype)
    return power(1 - bias - exponent, dtype) + 4 * float(jnp.finfo(dtype).tiny)
