"""Steps between a product and the gradient of a parameter that only move its entries about.

Each takes a term, the operation and which of its outputs is meant, and gives the term after it, or
None where the step mixes the two factors so that no factored form remains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp

from dpjax.training.clipping.factored_terms import OuterProducts
from dpjax.training.clipping.jaxpr_graph import Operation, is_zero

Step = Callable[[OuterProducts, Operation, int], OuterProducts | None]


def _transpose(term: OuterProducts, operation: Operation, _: int) -> OuterProducts | None:
    return term.transposed(operation.params["permutation"])


def _reshape(term: OuterProducts, operation: Operation, _: int) -> OuterProducts | None:
    # A reshape that first permutes is one that batching makes; squeezes name axes in `dimensions`.
    if operation.name == "reshape" and operation.params.get("dimensions") is not None:
        return None
    return term.reshaped(operation.outputs[0].aval.shape)


def _broadcast(term: OuterProducts, operation: Operation, _: int) -> OuterProducts | None:
    """Reshapes, where axes of size 1 are all that is put in."""
    shape = operation.outputs[0].aval.shape
    return term.reshaped(shape) if math.prod(shape) == math.prod(term.layout.shape) else None


def _slice(term: OuterProducts, operation: Operation, _: int) -> OuterProducts | None:
    params = operation.params
    strides = params["strides"] or (1,) * len(params["start_indices"])
    return _sliced(term, params["start_indices"], params["limit_indices"], strides)


def _split(term: OuterProducts, operation: Operation, index: int) -> OuterProducts | None:
    axis, sizes = operation.params["axis"], operation.params["sizes"]
    starts, limits = [0] * len(term.layout.shape), list(term.layout.shape)
    starts[axis] = sum(sizes[:index])
    limits[axis] = starts[axis] + sizes[index]
    return _sliced(term, starts, limits, [1] * len(starts))


def _sliced(
    term: OuterProducts, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int]
) -> OuterProducts | None:
    result: OuterProducts | None = term
    for axis, (size, *bounds) in enumerate(zip(term.layout.shape, starts, limits, strides)):
        part = slice(*map(int, bounds))
        new_size = len(range(part.start, part.stop, part.step))
        if result is not None and new_size != size:
            result = result.along_axis(axis, new_size, partial(_slice_axis, part=part))
    return result


def _slice_axis(array: jax.Array, axis: int, part: slice) -> jax.Array:
    return jax.lax.slice_in_dim(array, part.start, part.stop, part.step, axis)


def _pad(term: OuterProducts, operation: Operation, _: int) -> OuterProducts | None:
    if not is_zero(operation.inputs[1]):
        return None
    result: OuterProducts | None = term
    for axis, widths in enumerate(operation.params["padding_config"]):
        if result is not None and any(widths):
            new_size = operation.outputs[0].aval.shape[axis]
            result = result.along_axis(axis, new_size, partial(_pad_axis, widths=widths))
    return result


def _pad_axis(array: jax.Array, axis: int, widths: tuple[int, int, int]) -> jax.Array:
    config = [widths if index == axis else (0, 0, 0) for index in range(array.ndim)]
    return jax.lax.pad(array, jnp.zeros((), array.dtype), config)


def _reverse(term: OuterProducts, operation: Operation, _: int) -> OuterProducts | None:
    result: OuterProducts | None = term
    for axis in operation.params["dimensions"]:
        if result is not None:
            result = result.along_axis(axis, term.layout.shape[axis], jnp.flip)
    return result


def _convert(term: OuterProducts, operation: Operation, _: int) -> OuterProducts | None:
    # Norms and sums are formed in float32 or wider whatever the type that the gradient passes
    # through, so the rounding in between is left out.
    return term if jnp.issubdtype(operation.outputs[0].aval.dtype, jnp.floating) else None


def _same(term: OuterProducts, operation: Operation, _: int) -> OuterProducts:
    return term


def _negate(term: OuterProducts, operation: Operation, _: int) -> OuterProducts:
    return term.scaled(-1.0)


REARRANGEMENTS: dict[str, Step] = {
    "transpose": _transpose,
    "reshape": _reshape,
    "squeeze": _reshape,
    "broadcast_in_dim": _broadcast,
    "slice": _slice,
    "split": _split,
    "pad": _pad,
    "rev": _reverse,
    "convert_element_type": _convert,
    "copy": _same,
    "copy_p": _same,
    "name": _same,
    "neg": _negate,
}
