"""What `clipped_grad` refuses, each with one line that says what to pass instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

PyTree = Any


def batch_size(batch: PyTree) -> int:
    """Returns the common leading size of the arrays of a batch."""
    if any(isinstance(leaf, np.ma.MaskedArray) for leaf in jax.tree.leaves(batch)):
        raise ValueError("the batch is masked, and masks are not read: pass filled(...) and mask=")
    sizes = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(batch)}
    if len(sizes) != 1 or () in sizes:
        raise ValueError(
            f"the batch has arrays of leading sizes {sorted(sizes)}: pass arrays with the same "
            "leading batch axis"
        )
    return sizes.pop()[0]


def checked_mask(mask: jax.Array | None, size: int) -> jax.Array:
    """Returns the mask as booleans, (size,); all rows by default."""
    if mask is None:
        return jnp.ones((size,), bool)
    if np.shape(mask) != (size,):
        raise ValueError(f"mask has shape {np.shape(mask)}: pass one entry for each of {size} rows")
    return jnp.asarray(mask).astype(bool)


def row_keys(rng: jax.Array | None, size: int, with_rng: bool) -> jax.Array | None:
    """Returns one key for each row, split from one where needed; None for a loss without keys."""
    if with_rng and rng is None:
        raise ValueError("this loss takes a key: pass rng=jax.random.key(...)")
    if not with_rng and rng is not None:
        raise ValueError("this loss takes no key: leave rng out, or pass with_rng=True")
    if rng is None:
        return None
    typed = jax.dtypes.issubdtype(getattr(rng, "dtype", None), jax.dtypes.prng_key)
    if not typed or np.ndim(rng) == 0:
        return jax.random.split(rng, size)
    if np.shape(rng) != (size,):
        raise ValueError(
            f"rng has shape {np.shape(rng)}: pass one key, or one for each of {size} rows"
        )
    return rng


def checked_rows(rows_in_sum: int | None, size: int) -> int:
    """Returns how many rows there are in the sum that a batch is part of; `size` by default."""
    if rows_in_sum is None:
        return size
    if rows_in_sum < size:
        raise ValueError(f"rows_in_sum is {rows_in_sum}: pass at least {size}, the batch's rows")
    return rows_in_sum


def check_clip_norm(clip_norm: PyTree, params: PyTree, per_leaf: bool) -> None:
    """Refuses a clip norm that is not a scalar >= 0 or, per leaf, one for each parameter."""
    tree = jax.tree.structure(clip_norm)
    scalar = jax.tree_util.treedef_is_leaf(tree)
    if not scalar and not per_leaf:
        raise ValueError("clip_norm is a pytree: pass a scalar, or clipping='per_leaf'")
    if not scalar and tree != jax.tree.structure(params):
        raise ValueError("clip_norm differs from params: pass a scalar or one for each parameter")
    for norm in jax.tree.leaves(clip_norm):
        if np.shape(norm) != ():
            raise ValueError(f"clip_norm has shape {np.shape(norm)}: pass a scalar")
        if isinstance(norm, (int, float)) and not norm >= 0:
            raise ValueError(f"clip_norm is {norm}: pass a number >= 0")


def check_loss(
    loss_fn: Callable[..., Any], has_aux: bool, params: PyTree, batch: PyTree, keys: Any
) -> None:
    """Refuses parameters that are not floating-point, and a loss that is no real scalar."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise ValueError(
                f"parameter {path_name(path)} has type {jnp.result_type(leaf)}: pass floating-point"
                " parameters only and let the loss close over the rest"
            )
    rows = (one_row(batch),) if keys is None else (one_row(batch), one_row(keys))
    out = jax.eval_shape(loss_fn, shapes_of(params), *rows)
    if has_aux and not (isinstance(out, tuple) and len(out) == 2):
        raise ValueError("has_aux=True needs a loss that returns a pair (scalar, auxiliary)")
    loss = out[0] if has_aux else out
    shape = getattr(loss, "shape", None)
    if shape != () or not jnp.issubdtype(loss.dtype, jnp.floating):
        found = type(loss).__name__ if shape is None else f"{loss.dtype} of shape {shape}"
        raise ValueError(
            "the loss of one example must be a real scalar (the example comes without a batch "
            f"axis), not {found}: reduce it, and pass has_aux=True for further outputs"
        )


def shapes_of(tree: PyTree) -> PyTree:
    """Returns the shapes and types of a pytree of arrays."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), jnp.result_type(leaf)), tree
    )


def one_row(tree: PyTree) -> PyTree:
    """Returns the shapes and types of one row of a pytree of arrays with a leading batch axis."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), tree)


def path_name(path: Any) -> str:
    """Writes a parameter's path, "params/Dense_0/kernel"."""
    return jax.tree_util.keystr(path, simple=True, separator="/")
