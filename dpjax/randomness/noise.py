"""Gaussian noise for clipped sums, added on a grid that hides their last bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.randomness.threefry import dithered_normal

Tree = Any
Shapes = Sequence[tuple[int, ...]]

NOISE_ALLOWANCE = 1.0 + 2.0**-17
"""Factor on the standard deviation, so that neither float32 roundings (of noise multiplier and
products) nor the normal quantile's relative error of 4e-6 leave less noise than is accounted for.
"""

IN_FLOATING_POINT = (
    "clipped sums are rounded to float32 before noise is added, whatever the type of the "
    "parameters; a noisy sum lies on a grid of at most 2^-19 of the noise's standard deviation, "
    "where its last bits show those of neither; the noise never exceeds 9.1 standard deviations; "
    "the analysis is of real numbers"
)
"""What a release says of the arithmetic behind its noise and its guarantee."""

_CELLS = 2.0**19
"""Grid cells in the power of two at or below a standard deviation. Twice that is the most cells in
a standard deviation; 9.1 of them with the dither stay below 2^24, which a float32 holds exactly."""

LEAST_STD = 2.0**-100
"""Below this standard deviation the grid gets no finer, to stay far from float32's underflow."""


def add_gaussian_noise(
    key: jax.Array,
    tree: Tree,
    standard_deviation: float | jax.Array,
    remainder: Tree | None = None,
    draw: Callable[[jax.Array, Shapes, jax.Array], list[jax.Array]] | None = None,
) -> Tree:
    """Adds independent N(0, standard_deviation^2) noise to every entry of a pytree, on a grid.

    All of the noise comes from one threefry draw, which is then cut into leaves: that compiles and
    runs faster than one draw per leaf, above all under `jax.vmap` over candidates. Random bits are
    never stored in memory, only the numbers made of them (`threefry.dithered_normal`).

    Formal guarantees:
      * For independent keys the noise is independent; within a call it is independent across leaves
        and entries. The caller must never reuse a key, nor broadcast one over candidates: equal
        keys give IDENTICAL noise.
      * The noise does not depend on the values in `tree`, only on their shapes.
      * In floating point: let x be an entry plus its remainder, if any; what a wider type than
        float32 has beyond it counts with the remainder, rounded to float32. Let g be the power of
        two with standard_deviation / g in [2^19, 2^20). The result is the whole number
        floor((x + v) / g + 1/2), times g, rounded to float32. It is computed from x and v without
        rounding (2^-22 g at most; 2^-21 g with remainders, for x below 2^26 standard deviations),
        so it is a function of the exact sum of x and v: their last bits and those of the sum, by
        which floating-point additions give records away (Mironov, "On significance of the least
        significant bits for differential privacy", CCS 2012), are rounded off together.
      * v is standard_deviation, never less, times a normal number, plus an independent dither,
        uniform over 2^14 cells (1/64 to 1/32 of a standard deviation wide), which is noise on top.
        The normal number is the float32 quantile of 63 bits: it reaches to 9.1 standard deviations,
        which ideal noise leaves with probability 1e-19 per entry. Its coarseness is left in the
        probability of a cell: that of ideal numbers up to a relative 3e-5 within 2.7 standard
        deviations and 1e-3 beyond, a relative entropy of 5e-11 per entry. This is measured, and the
        accounting does not charge it: to it the normal numbers are real ones.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from dpjax import training
      >>> noisy = training.add_gaussian_noise(jax.random.key(0), jnp.zeros(3), 1.0)
      >>> noisy.shape
      (3,)

    Args:
      key: typed threefry key, shape ().
      tree: pytree of floating-point arrays of any shapes.
      standard_deviation: of each entry's noise, scalar, static or traced; 0 adds exactly nothing.
        Below `LEAST_STD` the grid gets no finer.
      remainder: pytree like `tree`: exact sums less the entries, which are the nearest floats to
        them; None for nothing.
      draw: replaces `cut_draw` (for several devices, or for noise correlated over steps); None for
        `cut_draw` itself.

    Returns:
      A pytree like `tree`, dtypes kept: a float64 leaf holds float32 numbers, a narrower one the
      nearest to them.
    """
    leaves, structure = jax.tree.flatten(tree)
    std = jnp.asarray(standard_deviation, jnp.float32) * np.float32(NOISE_ALLOWANCE)
    power = _power_of_two(std)
    shapes = [leaf.shape for leaf in leaves]
    noises = (draw or cut_draw)(key, shapes, std / power * np.float32(_CELLS))
    remainders = [None] * len(leaves) if remainder is None else jax.tree.leaves(remainder)
    noisy = []
    for leaf, rest, noise in zip(leaves, remainders, noises, strict=True):
        value = leaf.astype(jnp.float32)
        if leaf.dtype == jnp.float64:
            # As `block_sums.in_two_floats`: a conversion to float32 and back may be dropped.
            beyond = leaf - jax.lax.reduce_precision(leaf, exponent_bits=8, mantissa_bits=23)
            rest = beyond if rest is None else beyond + rest
        # Scaling by powers of two and taking whole parts is exact. The whole part of the noise fits
        # 24 bits, so only the last addition may round, and both its summands are exact.
        exact = value * (np.float32(_CELLS) / power)
        whole, whole_noise = jnp.floor(exact), jnp.floor(noise)
        parts = (exact - whole) + (noise - whole_noise)
        if rest is not None:
            exact_rest = rest.astype(jnp.float32) * (np.float32(_CELLS) / power)
            whole_rest = jnp.floor(exact_rest)
            parts, whole_noise = parts + (exact_rest - whole_rest), whole_noise + whole_rest
        carried = jnp.floor(parts + np.float32(0.5))
        summed = (whole + (whole_noise + carried)) * (power / np.float32(_CELLS))
        noisy.append(jnp.where(std == 0, leaf, summed.astype(leaf.dtype)))
    return jax.tree.unflatten(structure, noisy)


def cut_draw(key: jax.Array, shapes: Shapes, scale: jax.Array) -> list[jax.Array]:
    """Draws `dithered_normal` once and cuts it into arrays of these shapes, in their order."""
    return cut(dithered_normal(key, sum(math.prod(shape) for shape in shapes), scale), shapes)


def cut(numbers: jax.Array, shapes: Shapes) -> list[jax.Array]:
    """Cuts numbers (n,) into arrays of these shapes, in their order."""
    sizes = [math.prod(shape) for shape in shapes]
    parts = jnp.split(numbers, np.cumsum(sizes)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes)]


def _power_of_two(positive: jax.Array) -> jax.Array:
    """Returns the power of two at or below a float32, clipped so that its multiples are normal."""
    exponent = jax.lax.bitcast_convert_type(positive, jnp.uint32) & np.uint32(0x7F800000)
    return jnp.clip(jax.lax.bitcast_convert_type(exponent, jnp.float32), LEAST_STD, 2.0**100)
