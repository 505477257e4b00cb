"""Gaussian noise for clipped sums."""

from __future__ import annotations

import math
from typing import Any

import jax

from dpjax.training.threefry import standard_normal

Tree = Any


def add_gaussian_noise(key: jax.Array, tree: Tree, standard_deviation: float | jax.Array) -> Tree:
    """Adds independent N(0, standard_deviation^2) noise to every entry of a pytree.

    All of the noise comes from one threefry draw, which is then cut into leaves: that compiles and
    runs faster than one draw per leaf, above all under `jax.vmap` over candidates. No random bits
    stand in memory, only the numbers themselves (`threefry.standard_normal`).

    Formal guarantees:
      * For independent keys the noise is independent; within a call it is independent across leaves
        and entries. The caller must never reuse a key, nor broadcast one over candidates: equal
        keys give IDENTICAL noise.
      * The noise does not depend on the values in `tree`, only on their shapes.
      * The samples are float32, quantiles of 64 bits each: they reach to 9.1 standard deviations,
        which ideal noise leaves with probability 1e-19 per entry. So nothing coarser than rounding
        tells them from real Gaussians, as which the accounting treats them. An adversary who reads
        the last bits of every step is outside that model, as usual for DP-SGD (Mironov, "On
        significance of the least significant bits for differential privacy", CCS 2012).

    Args:
      key: typed threefry key, shape ().
      tree: pytree of floating-point arrays of any shapes.
      standard_deviation: of every entry, scalar, static or traced; 0 adds exactly nothing.

    Returns:
      A pytree like `tree`, dtypes kept.
    """
    leaves, structure = jax.tree.flatten(tree)
    sizes = [math.prod(leaf.shape) for leaf in leaves]
    flat = standard_normal(key, sum(sizes))
    noisy, start = [], 0
    for leaf, size in zip(leaves, sizes, strict=True):
        part = jax.lax.slice(flat, (start,), (start + size,)).reshape(leaf.shape)
        noisy.append(leaf + (standard_deviation * part).astype(leaf.dtype))
        start += size
    return jax.tree.unflatten(structure, noisy)
