"""Values that are computed once and read from memory by all that follows.

A compiler that fuses computes a cheap value anew wherever it is read, and may round it otherwise
there: a product and a sum become one operation or stay two, a sum is taken in another order. For
most purposes that does no harm. Clipping takes the norm of a gradient in one place and adds the
gradient up in another: where the terms of a value cancel, the two would be of different numbers,
and a contribution would exceed the clip norm by any factor.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

PyTree = Any


def formed_once(values: PyTree, contracted: bool = False) -> PyTree:
    """Returns the same arrays, none of which is computed again by what reads the result.

    XLA's CPU compiler drops optimisation barriers before it fuses, but does not look into branches
    of a condition it cannot know; on other devices the barriers stay until it has fused.

    `contracted`: they are results of products or convolutions. A CPU calls a library for these, and
    their results stand in memory; compilers for GPUs turn small ones into sums, and fuse those.
    """
    leaves, structure = jax.tree.flatten(values)

    def chosen(*leaves: jax.Array) -> list[jax.Array]:
        true = jax.lax.optimization_barrier(np.bool_(True))
        return jax.lax.cond(true, lambda *given: list(given), _zeros, *leaves)

    def barred(*leaves: jax.Array) -> list[jax.Array]:
        return list(jax.lax.optimization_barrier(leaves))

    def as_they_are(*leaves: jax.Array) -> list[jax.Array]:
        return list(leaves)

    on_cpu = as_they_are if contracted else chosen
    formed = jax.lax.platform_dependent(*leaves, cpu=on_cpu, default=barred)
    return jax.tree.unflatten(structure, formed)


def _zeros(*leaves: jax.Array) -> list[jax.Array]:
    return [jnp.zeros(leaf.shape, leaf.dtype) for leaf in leaves]
