"""Has convolutions read the pixels of their own images alone.

XLA's CPU compiler reads beyond an image, another record's pixels included, where a negative padding
comes first and a positive one last. Such an image is cut before it is convolved, wherever in a
function that happens: branches and loops are looked into as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

PyTree = Any


def with_own_pixels(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Returns a function of arrays that may be mapped over records; it is traced once a call."""
    if jax.default_backend() != "cpu":
        return function

    def run(*given: PyTree) -> PyTree:
        jaxpr, shapes = jax.make_jaxpr(function, return_shape=True)(*given)
        found = jaxpr_as_fun(cut_beforehand(jaxpr))(*jax.tree.leaves(given))
        return jax.tree.unflatten(jax.tree.structure(shapes), found)

    return run


def cut_beforehand(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """Cuts images before the convolutions of a jaxpr that would cut them; on a CPU alone."""
    if jax.default_backend() != "cpu" or not _cuts(jaxpr.jaxpr):
        return jaxpr

    def run(*arguments: Any) -> list[Any]:
        inner = jaxpr.jaxpr
        known = dict(zip(inner.invars, arguments, strict=True))
        known |= dict(zip(inner.constvars, jaxpr.consts, strict=True))
        for equation in inner.eqns:
            inputs = [atom.val if hasattr(atom, "val") else known[atom] for atom in equation.invars]
            params, primitive = equation.params, equation.primitive
            if _cuts_itself(equation):
                number = params["dimension_numbers"].lhs_spec
                inputs[0], params = _cut(inputs[0], number[2:], params)
            params = {name: _within(value) for name, value in params.items()}
            with equation.ctx.manager:
                found = primitive.bind(*inputs, **primitive.get_bind_params(params))
            results = found if primitive.multiple_results else [found]
            known |= dict(zip(equation.outvars, results, strict=True))
        return [atom.val if hasattr(atom, "val") else known[atom] for atom in inner.outvars]

    return jax.make_jaxpr(run)(*jaxpr.in_avals)


def pad_and_dilate(params: dict[str, Any], array: jax.Array, spatial: Sequence[int]) -> jax.Array:
    """Pads and dilates the spatial axes as a convolution does."""
    padding = [(0, 0, 0)] * array.ndim
    for axis, (low, high), dilation in zip(
        spatial, params["padding"], params["lhs_dilation"], strict=True
    ):
        padding[axis] = (low, high, dilation - 1)
    return jax.lax.pad(array, jnp.zeros((), array.dtype), padding)


def _cut(
    image: jax.Array, spatial: tuple[int, ...], params: dict[str, Any]
) -> tuple[jax.Array, dict[str, Any]]:
    """Pads and dilates an image; returns it, and the parameters of a convolution that does not."""
    plain = {"padding": ((0, 0),) * len(spatial), "lhs_dilation": (1,) * len(spatial)}
    return pad_and_dilate(params, image, spatial), params | plain


def _within(value: Any) -> Any:
    """Rewrites a parameter of an equation that is a jaxpr, or several."""
    if isinstance(value, tuple | list) and any(hasattr(each, "eqns") for each in value):
        return type(value)(_within(each) for each in value)
    if hasattr(value, "consts"):
        return cut_beforehand(value)
    return cut_beforehand(ClosedJaxpr(value, ())).jaxpr if hasattr(value, "eqns") else value


def _cuts(jaxpr: Any) -> bool:
    """Returns whether a convolution in a jaxpr, or in one that it calls, cuts its image."""
    return any(
        _cuts_itself(equation) or any(map(_cuts, _called(equation.params)))
        for equation in jaxpr.eqns
    )


def _cuts_itself(equation: Any) -> bool:
    if equation.primitive.name != "conv_general_dilated":
        return False
    return any(low < 0 for low, _ in equation.params["padding"])


def _called(params: dict[str, Any]) -> Iterator[Any]:
    for value in params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            if hasattr(each, "eqns"):
                yield each
