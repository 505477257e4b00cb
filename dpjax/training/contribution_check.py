"""Checks at run time that no record's contribution is longer than the clip norm.

Clipping is proven and tested, and still rests on a compiler. With
`TrainConfig.check_contributions` a run takes some rows of every lot alone through the same compiled
sum and measures what they add to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.training.clipping.factored_norms import sum_of_squares

Tree = Any


class Checked(NamedTuple):
    """Holds the result of a run whose contributions were checked.

    Attributes:
      params: what it returns otherwise; nothing but NaN where a contribution was too long.
      longest: the longest of those that were measured, in clip norms, float32.
    """

    params: Tree
    longest: jax.Array


def refuse_long(longest: jax.Array | np.ndarray) -> None:
    """Refuses a run with a measured contribution, in clip norms, that is above 1 or NaN.

    Raises:
      RuntimeError: the run has no guarantee.
    """
    found = float(np.max(longest, initial=0.0))
    if not found <= 1.0:
        raise RuntimeError(
            f"a record contributed {found:.6g} clip norms to a sum, and privacy is stated for 1: "
            "release nothing of this run, and report the loss, the device and the versions of jax "
            "and jaxlib"
        )


def sum_of_checked(
    sum_of: Callable[[jax.Array], tuple[Tree, Tree]],
    mask: jax.Array,
    key: jax.Array,
    rows: int,
    bound: jax.Array,
) -> tuple[tuple[Tree, Tree], jax.Array]:
    """Sums a lot, and measures what some of its rows contribute.

    Formal guarantees:
      The sum comes from the same instructions as the contributions that are measured: both are
      turns of one loop. Where one is longer than `bound`, or no number, the sum is nothing but NaN.

    `sum_of` maps a mask (capacity,) to the sum over its rows and anything beside it, pytrees. At
    most `rows` rows, drawn from the key, are measured. Returns what `sum_of` gives for the whole
    mask, and the longest contribution over the bound.
    """
    draws = jnp.where(mask, jax.random.uniform(key, mask.shape), 2.0)
    measured = jnp.argsort(draws)[: min(rows, mask.shape[0])]
    places = jnp.arange(mask.shape[0])

    # Turn 0 sums the whole lot; each later turn sums one row alone, by the same instructions.
    def turn(number: jax.Array, found: tuple[Tree, jax.Array]) -> tuple[Tree, jax.Array]:
        total, longest = found
        first = number == 0
        one = sum_of(jnp.where(first, mask, mask & (places == measured[number - 1])))
        shares = [leaf / bound for leaf in jax.tree.leaves(one[0])]
        share = jnp.sqrt(sum(sum_of_squares(leaf) for leaf in shares)).astype(jnp.float32)
        share = jnp.where(first, 0.0, share)
        kept = jax.tree.map(lambda new, old: jnp.where(first, new, old), one, total)
        return kept, jnp.maximum(longest, share)  # A maximum with NaN is NaN.

    shapes = jax.eval_shape(sum_of, mask)
    start = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    turns = np.uint32(len(measured) + 1)
    total, longest = jax.lax.fori_loop(np.uint32(0), turns, turn, (start, jnp.float32(0.0)))
    return jax.tree.map(lambda leaf: jnp.where(longest <= 1.0, leaf, jnp.nan), total), longest
