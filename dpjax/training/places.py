"""Where the records of a lot stand, so that one record moves no other.

What is computed for a record may depend, in its last bits, on its place in an array: compilers
treat the last rows of an array otherwise than the first. A clipped gradient can hang on its last
bits. So the place of a record depends neither on which others are in the lot nor on how many.

Formal guarantees:
  Let D have a record j that D' lacks, and both be trained with lots for at most N records. The
  records of a lot stand in a uniformly random order (`random_order`), drawn anew for each lot.

  1. Whole lots. Their randomness can be coupled so that the others stand at the same places in
     both, a place of D' is empty where D has j, and j is a member with the sampling probability,
     whatever the others' places. So a step on D' has one noisy sum, and a step on D mixes it with
     one to which j's contribution is added: the pair that the accounting dominates.
     *Proof.* Of D', number the records as in D and call one more, that does not exist, j. Lots do
     not depend on how records are numbered, nor on how many exist. Given who the others are, they
     stand at uniformly random different places, whether j is a member or not.
  2. Lots in turns (`in_turns`). A turn takes a micro-batch, and the turns of a lot run one program:
     a record's place is its column in the micro-batch. The others' columns are the same in both.
     If j is a member, it stands in the place of a record of its column, which stands in one more
     turn of the same column instead, or in such a turn itself: two blocks of the sum differ.
     *Proof.* As above for the columns. Given who stands in a column, their order is uniform. Take
     an order of these with j, and put the last one in j's place: that gives every order of the
     others equally often, with j's place uniform whatever it is. A row's own key comes from its
     place in the lot, and the keys of all places are alike in law: each record takes its key along.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.randomness import threefry

_ONE_WORD = 21
"""Most binary digits of a place for which 64-bit words hold it beside enough random digits."""

_FIRST_COUNTER = 2**31
"""Random words of a lot come from counters below it (`threefry.random_bits`)."""


def padded(arrays: Any, rows: int) -> Any:
    """Appends rows of zeros to a pytree of arrays (n, ...), up to a public number of rows.

    Pass `n` on as the number of records (`make_train`): rows beyond it have no influence. So the
    shape of a program does not show how many records there are.

    Example:
      >>> import numpy as np
      >>> from dpjax import training
      >>> training.padded(np.ones((3, 2)), 5).shape
      (5, 2)

    Returns NumPy arrays; an array that already has so many rows is returned as it is.

    Raises:
      ValueError: for more records than rows.
    """

    def one(leaf: Any) -> Any:
        leaf = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
        refuse_more(leaf, rows)
        missing = rows - len(leaf)
        if not missing:
            return leaf
        return np.concatenate([leaf, np.zeros((missing, *np.shape(leaf)[1:]), leaf.dtype)])

    return jax.tree.map(one, arrays)


def refuse_more(leaf: Any, rows: int) -> None:
    """Refuses more records than rows; how many there are is private."""
    if len(leaf) > rows:
        raise ValueError(f"there are more than {rows} records: pass a public bound on them")


def random_order(key: jax.Array, places: int) -> jax.Array:
    """Returns a uniformly random order of so many places, int32 (places,).

    Formal guarantees:
      For ideal random bits all orders are equally likely, exactly: places are sorted by random
      numbers, which are drawn anew while two are equal. They come from counters of the key from
      2**31 on, which no other draw by it reads.

    The key is a typed threefry key, shape (); `places` is below 2^31.
    """
    digits = max(1, (places - 1).bit_length())

    def drawn(attempt: jax.Array) -> tuple[jax.Array, jax.Array]:
        first = np.uint32(_FIRST_COUNTER) + attempt * np.uint32(places)
        high, low = threefry.random_words(key, places, start=first)
        # A TPU has no words of 64 bits; the order is the same.
        return jax.lax.platform_dependent(
            high,
            low,
            tpu=functools.partial(_sorted_pairs, digits),
            default=functools.partial(_sorted_words, digits),
        )

    def again(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple:
        return state[0] + np.uint32(1), *drawn(state[0])

    first = (jnp.asarray(1, jnp.uint32), *drawn(jnp.asarray(0, jnp.uint32)))
    return jax.lax.while_loop(lambda state: state[2], again, first)[1]


def _sorted_words(digits: int, high: jax.Array, low: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sorts places by words of 64 bits; returns their order and whether two words are equal.

    Sorting single words is several times faster than sorting pairs.
    """
    with jax.enable_x64(True):
        high, low = (jax.lax.convert_element_type(each, jnp.uint64) for each in (high, low))
        numbers = (high << np.uint64(32)) | low
        own = jax.lax.iota(jnp.uint64, len(high))
        if digits <= _ONE_WORD:
            last = np.uint64((1 << digits) - 1)
            words = jnp.sort((numbers & ~last) | own)
            numbers, order = words >> np.uint64(digits), words & last
        else:
            numbers, order = jax.lax.sort((numbers, own), num_keys=1)
        tied = jnp.any(numbers[1:] == numbers[:-1])
        return jax.lax.convert_element_type(order, jnp.int32), tied


def _sorted_pairs(digits: int, high: jax.Array, low: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns what `_sorted_words` does, by pairs of 32 bits."""
    own = jax.lax.iota(jnp.uint32, len(high))
    if digits <= _ONE_WORD:
        last = np.uint32((1 << digits) - 1)
        high, words = jax.lax.sort((high, (low & ~last) | own), num_keys=2)
        low, order = words >> np.uint32(digits), words & last
    else:
        high, low, order = jax.lax.sort((high, low, own), num_keys=2)
    tied = jnp.any((high[1:] == high[:-1]) & (low[1:] == low[:-1]))
    return order.astype(jnp.int32), tied


def in_turns(mask: jax.Array, width: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Moves a lot's rows to the first turns of their columns, `width` rows per turn.

    Row p stands in column p % width. Returns where the rows of all turns, one after the other, are
    taken from, int32 (turns * width,); which of them count; and in how many turns some do, uint32.
    """
    turns = -(-mask.shape[0] // width)
    taken = jnp.pad(mask, (0, turns * width - mask.shape[0])).reshape(turns, width)
    own = jax.lax.broadcasted_iota(jnp.int32, taken.shape, 0)
    turn = jnp.sort(jnp.where(taken, own, turns), axis=0)
    places = turn * width + jnp.arange(width, dtype=jnp.int32)[None]
    return places.reshape(-1), (turn < turns).reshape(-1), turns_of(mask, width)


def turns_of(mask: jax.Array, width: int) -> jax.Array:
    """Returns in how many turns of `in_turns` some rows count, uint32."""
    padded = jnp.pad(mask, (0, -mask.shape[0] % width)).reshape(-1, width)
    return jnp.max(jnp.sum(padded, axis=0, dtype=jnp.uint32))
