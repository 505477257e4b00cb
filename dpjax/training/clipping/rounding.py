"""Bounds on the rounding of float32 sums that hold in every order of summation.

u = 2**-24 is float32's unit of rounding. A sum of m numbers, taken along any tree of correctly
rounded additions, is off by at most `m u / (1 - m u)` times the sum of their absolute values; so is
an inner product of m terms, with fused multiplications or without (Higham, "Accuracy and Stability
of Numerical Algorithms", 2002, sections 3.1 and 4.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

UNIT = 2.0**-24
"""float32's unit of rounding."""

WIDE_UNIT = 2.0**-53
"""float64's unit of rounding."""

LONG = 1024
"""Most numbers that are summed in float32 where a norm depends on it; more are summed in float64.
A float32 sum of so many is off by 6e-5 at most, one of a million by 6e-2."""


def rounding(terms: float, unit: float = UNIT) -> float:
    """Bounds the relative error of a sum, or an inner product, of so many terms.

    Infinite for more than 2**22 terms in float32: nothing useful can be said of them. A TPU
    forms a float32 product from six products of bfloat16 numbers, which it sums: six terms for one.
    """
    if unit == UNIT and jax.default_backend() == "tpu":
        terms = 6 * terms + 8
    error = terms * unit
    return error / (1 - error) if error < 0.25 else math.inf


def long_sum(array: jax.Array, axes: Sequence[int] | None = None) -> jax.Array:
    """Sums a float32 array over some axes (all by default), in float64 where they are `LONG`.

    `terms_of_sum` says what `rounding` to expect. A TPU has no float64 of its own.
    """
    axes = tuple(range(array.ndim)) if axes is None else tuple(axes)
    length = math.prod(array.shape[axis] for axis in axes)
    if terms_of_sum(length) == length or array.dtype == jnp.float64:
        return jnp.sum(array, axis=axes)
    with jax.enable_x64(True):
        return jnp.sum(array.astype(jnp.float64), axis=axes).astype(jnp.float32)


def terms_of_sum(length: float) -> float:
    """Returns for how many terms `rounding` bounds a `long_sum` of so many numbers."""
    return length if length <= LONG or jax.default_backend() == "tpu" else 2
