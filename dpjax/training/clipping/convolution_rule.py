"""The gradient of a convolution's kernel as a sum of outer products over pixels.

In the jaxpr of one example's gradient it is itself a `conv_general_dilated`: the activations are
convolved with the cotangent as a large window, one output pixel for each tap of the kernel, strides
and dilations having changed places. With n the "batch" axis of that convolution (the kernel's input
features), c its contracted features (the images of one example, mostly 1) and k the pixels of the
window,

    kernel_gradient[n, o, tap] = sum_{c, k} left[n, c, stride tap + dilation k] right[o, c, k].

So the positions are (c, k), the left features (n, tap): a patch of the image around each pixel; and
the right features o. Patches are never laid out for the product: each tap is one matrix product of
a shifted view of the image with the cotangent, batched over examples, which on a CPU costs what the
plain kernel gradient costs, while mapping the convolution over examples costs two to three times
that (it becomes a grouped convolution). Or `implicit_convolution` forms it, if asked to.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from dpjax.training.clipping import implicit_convolution
from dpjax.training.clipping.entrywise_following import with_following
from dpjax.training.clipping.factored_terms import (
    HIGHEST,
    LEFT,
    RIGHT,
    STACK,
    Direct,
    Layout,
    Operand,
    OuterProducts,
    accumulator,
    product,
    widened,
)
from dpjax.training.clipping.jaxpr_graph import (
    Atom,
    Derived,
    Graph,
    Operation,
    Scan,
    Value,
    rows_of_body,
)
from dpjax.training.clipping.own_pixels import pad_and_dilate
from dpjax.training.clipping.single_evaluation import formed_once

# Beyond this many taps one convolution is faster than a product for each tap.
_MOST_TAPS = 64


def convolution(operation: Operation, implicit: bool = False) -> OuterProducts | None:
    """Reads a convolution of two values as outer products; None where one is a constant.

    `implicit`: one example's gradient is formed by `implicit_convolution` where it takes it.
    """
    left, right = operation.inputs
    if not (isinstance(left, Value) and isinstance(right, Value)):
        return None
    shape = _Shape.of(operation, implicit)
    axes: dict[int, list[tuple[str, int]]] = {
        shape.out_spec[0]: [(LEFT, shape.left_features)],
        shape.out_spec[1]: [(STACK, shape.groups), (RIGHT, shape.right_features)],
    }
    axes.update((axis, [(LEFT, size)]) for axis, size in zip(shape.out_spec[2:], shape.taps))
    # A kernel gradient's axes: left features and taps belong to the left factor, output features
    # to the right one, groups to the stack.
    layout = Layout(
        tuple(each for axis in range(len(axes)) for each in axes[axis]),
        tuple(operation.outputs[0].aval.shape),
    )
    features = shape.left_features * math.prod(shape.taps)
    positions = shape.contracted * math.prod(shape.window)
    operands = operation.params, left.aval, right.aval
    spared = implicit and implicit_convolution.forms_gradients(*operands)
    return OuterProducts(
        "convolution",
        shape.left_operand(left, features),
        Operand(right, shape.cotangents, shape.right_features),
        shape.groups,
        positions,
        layout,
        direct=Direct(shape.gradient, shape.batch_sum),
        laid_out=positions * features if spared else 0,
    )


def convolve_well(
    graph: Graph, rows: set[Value], wanted: Sequence[Atom], implicit: bool = False
) -> None:
    """Rewrites the convolutions of a graph, and of its loops, to be fast when mapped over rows.

    A convolution of two values that both depend on the example (a kernel's gradient that is formed
    for each) becomes a sum of products of shifted views: mapped, it would be a grouped convolution,
    two to three times as slow on a CPU. All others are run by `convolve`; with `implicit`, by
    `implicit_convolution` where it takes them, which also does what follows entry by entry.
    `wanted` are the values that are read of the graph. Changes it in place: call `put_in_order`
    before evaluating.
    """
    for operation in list(graph.operations):
        if isinstance(operation, Scan):
            body = operation.loop.body
            convolve_well(body, rows_of_body(operation, rows), body.outputs, implicit)
        if operation.name != "conv_general_dilated" or isinstance(operation, Derived):
            continue
        if not all(jnp.issubdtype(atom.aval.dtype, jnp.floating) for atom in operation.inputs):
            continue
        shape, dtype = _Shape.of(operation, implicit), operation.outputs[0].aval.dtype
        own = all(atom in rows for atom in operation.inputs)
        operands = [atom.aval for atom in operation.inputs]
        if own and math.prod(shape.taps) <= _MOST_TAPS:
            graph.replace(operation, operation.inputs, _in_type(shape.gradient, dtype))
        elif implicit and implicit_convolution.convolves(operation.params, *operands):
            graph.put_in_order()
            if with_following(graph, operation, wanted):
                continue
            function = partial(implicit_convolution.convolve, operation.params, dtype)
            graph.replace(operation, operation.inputs, function)
        else:
            graph.replace(operation, operation.inputs, partial(convolve, operation.params))


_MOVES = frozenset({"reshape", "squeeze", "transpose", "convert_element_type", "copy"})


def adds_up_beside(graph: Graph, gradient: Atom) -> bool:
    """Has the GPU's kernel for a convolution's gradient add up its cotangents, too, for a bias.

    Returns whether it can: `gradient` is what that kernel forms, its axes moved, and the graph adds
    up these cotangents. Changes the graph in place: call `put_in_order` before evaluating.
    """
    while isinstance(gradient, Value) and gradient.producer and gradient.producer.name in _MOVES:
        (gradient,) = gradient.producer.inputs
    operation = gradient.producer if isinstance(gradient, Value) else None
    if operation is None or operation.name != "conv_general_dilated":
        return False
    left, right = operation.inputs
    params, features = operation.params, operation.params["dimension_numbers"].rhs_spec[0]
    readers = [each for each in graph.operations if each.inputs == [right]]
    sums = [each.outputs[0] for each in readers if _adds_up_all_but(features, each)]
    taken = implicit_convolution.forms_gradients(params, left.aval, right.aval)
    if isinstance(operation, Derived) or not taken or not sums:
        return False

    def form(*operands: jax.Array) -> list[jax.Array]:
        # If the graph rounds the gradient to a narrow type in between, that is left out.
        found, total = implicit_convolution.gradient_and_sums(params, *operands)
        return [found, total.reshape(sums[0].aval.shape).astype(sums[0].aval.dtype)]

    graph.replace(operation, operation.inputs, form, [*operation.outputs, sums[0]])
    return True


def _adds_up_all_but(features: int, operation: Operation) -> bool:
    """Returns whether an operation sums over all axes but `features`; length 1 may stay."""
    shape = operation.inputs[0].aval.shape
    kept = math.prod(operation.outputs[0].aval.shape) == shape[features]
    return operation.name == "reduce_sum" and features not in operation.params["axes"] and kept


_KEPT = ("window_strides", "padding", "lhs_dilation", "rhs_dilation", "feature_group_count")


def convolve(
    params: dict[str, Any],
    left: jax.Array,
    right: jax.Array,
    precision: Any = None,
) -> jax.Array:
    """Runs `conv_general_dilated` with these parameters; on a CPU with its axes in the usual order.

    In the body of a loop XLA's CPU compiler leaves the order as it is, and runs all but the usual
    one (rows, pixels, features; pixels, features in, features out) as a loop over single numbers: a
    kernel's gradient takes 50 to 60 times as long there, that of the inputs 6 to 7 times.
    """
    kept = {name: params[name] for name in (*_KEPT, "batch_group_count")}
    kept["precision"] = params["precision"] if precision is None else precision
    if params.get("preferred_element_type") is not None and precision is None:
        kept["preferred_element_type"] = params["preferred_element_type"]
    numbers = params["dimension_numbers"]
    if params["batch_group_count"] > 1 or jax.default_backend() != "cpu":
        return jax.lax.conv_general_dilated(left, right, dimension_numbers=numbers, **kept)
    # Both inputs are transposed to the usual order, and the result back to the order asked for.
    first, second, out = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    pixels = range(len(first) - 2)
    last = len(first) - 1
    usual = jax.lax.ConvDimensionNumbers(
        (0, last, *(1 + axis for axis in pixels)),
        (last, last - 1, *pixels),
        (0, last, *(1 + axis for axis in pixels)),
    )
    left = left.transpose(first[0], *first[2:], first[1])
    kernel = right.transpose(*second[2:], second[1], second[0])
    depthwise = params["feature_group_count"] > 1 and kernel.shape[-2] == 1
    if depthwise and math.prod(kernel.shape[:-2]) <= _MOST_TAPS:
        result = _of_shifted_images(left, kernel, kept)
    else:
        result = jax.lax.conv_general_dilated(left, kernel, dimension_numbers=usual, **kept)
    place = {out[0]: 0, out[1]: last} | {out[2 + axis]: 1 + axis for axis in pixels}
    return result.transpose([place[axis] for axis in range(last + 1)])


def _of_shifted_images(images: jax.Array, kernel: jax.Array, params: dict[str, Any]) -> jax.Array:
    """Convolves each feature with kernels of its own: adds up shifted images times numbers.

    Takes images (rows, pixels, features) and a kernel (taps, 1, outputs). XLA's CPU compiler runs
    the convolution as a loop over single numbers, 16 to 30 times as long.
    """
    of_result = params.get("preferred_element_type") or jnp.result_type(images, kernel)
    images, kernel = images.astype(accumulator(of_result)), kernel.astype(accumulator(of_result))
    spatial = range(1, images.ndim - 1)
    padded, strides = pad_and_dilate(params, images, spatial), params["window_strides"]
    reach = [
        (tap - 1) * apart
        for tap, apart in zip(kernel.shape[:-2], params["rhs_dilation"], strict=True)
    ]
    sizes = [
        (padded.shape[axis] - beyond - 1) // stride + 1
        for axis, beyond, stride in zip(spatial, reach, strides, strict=True)
    ]
    total = jnp.zeros((), images.dtype)
    for tap in itertools.product(*map(range, kernel.shape[:-2])):
        starts = [place * apart for place, apart in zip(tap, params["rhs_dilation"], strict=True)]
        view = _every(padded, spatial, starts, strides, sizes)
        # A feature's outputs lie side by side.
        view = jnp.repeat(view, kernel.shape[-1] // images.shape[-1], axis=-1)
        total += view * kernel[tap].reshape(*(1 for _ in images.shape[:-1]), -1)
    return total.astype(of_result)


def _every(
    array: jax.Array,
    axes: Sequence[int],
    starts: Sequence[int],
    steps: Sequence[int],
    sizes: Sequence[int],
) -> jax.Array:
    """Takes so many entries of each axis, a step apart."""
    for axis, start, step, size in zip(axes, starts, steps, sizes, strict=True):
        array = jax.lax.slice_in_dim(array, start, start + (size - 1) * step + 1, step, axis)
    return array


def _in_type(form: Callable[..., jax.Array], dtype: Any) -> Callable[..., jax.Array]:
    return lambda *arrays: form(*arrays).astype(dtype)


@dataclasses.dataclass(frozen=True)
class _Shape:
    """Holds sizes and axes of one `conv_general_dilated`; gives its operands and its gradient."""

    params: dict[str, Any]
    groups: int  # of either kind of grouping
    group_features: bool  # whether the left operand's features, else its "batch" axis, are grouped
    left_features: int  # n of one group
    contracted: int  # c
    right_features: int  # o
    window: tuple[int, ...]  # spatial sizes of the right operand
    taps: tuple[int, ...]  # spatial sizes of the result
    implicit: bool  # whether `implicit_convolution` forms the gradient where it takes it

    @classmethod
    def of(cls, operation: Operation, implicit: bool = False) -> _Shape:
        """Reads the shape of a convolution from its operation."""
        params = operation.params
        left, right = (atom.aval.shape for atom in operation.inputs)
        out = operation.outputs[0].aval.shape
        numbers = params["dimension_numbers"]
        group_features = params["feature_group_count"] > 1
        groups = params["feature_group_count"] * params["batch_group_count"]
        return cls(
            params,
            groups,
            group_features,
            left[numbers.lhs_spec[0]] // (1 if group_features else groups),
            right[numbers.rhs_spec[1]],
            right[numbers.rhs_spec[0]] // groups,
            tuple(right[axis] for axis in numbers.rhs_spec[2:]),
            tuple(out[axis] for axis in numbers.out_spec[2:]),
            implicit,
        )

    @property
    def out_spec(self) -> tuple[int, ...]:
        return self.params["dimension_numbers"].out_spec

    def _views(self, left: jax.Array) -> Iterator[jax.Array]:
        """Yields, for each tap in order, the pixels of the left operand that it multiplies."""
        spatial = self.params["dimension_numbers"].lhs_spec[2:]
        padded = pad_and_dilate(self.params, left, spatial)
        for tap in itertools.product(*map(range, self.taps)):
            yield self._view(padded, spatial, tap)

    def _view(self, padded: jax.Array, spatial: Sequence[int], tap: Sequence[int]) -> jax.Array:
        """Takes the pixels that one tap multiplies."""
        strides = self.params["window_strides"]
        starts = [place * stride for place, stride in zip(tap, strides, strict=True)]
        return _every(padded, spatial, starts, self.params["rhs_dilation"], self.window)

    def _left_letters(self) -> tuple[str, int]:
        """Returns letters for the left operand's axes, and which axis the groups are part of."""
        numbers = self.params["dimension_numbers"].lhs_spec
        grouped = numbers[1] if self.group_features else numbers[0]
        return _letters(numbers, "n", "c"), grouped

    def _right_letters(self) -> tuple[str, int]:
        numbers = self.params["dimension_numbers"].rhs_spec
        return _letters(numbers, "o", "c"), numbers[0]

    def patches(self, left: jax.Array) -> jax.Array:
        """Lays out patches (groups, positions, left features), in order of the kernel's axes."""
        letters, grouped = self._left_letters()
        pixels = _pixel_letters(len(self.window))
        views = [
            _arrange(_split(view, grouped, self.groups), _named(letters, grouped), f"gc{pixels}n")
            for view in self._views(left)
        ]
        stacked = jnp.stack(views, axis=-1)
        stacked = stacked.reshape(*stacked.shape[:-1], *self.taps)
        # Axes of the features: n, then one for each spatial axis; sorted as they lie in the kernel.
        places = (self.out_spec[0], *self.out_spec[2:])
        first = stacked.ndim - len(places)
        order = sorted(range(len(places)), key=places.__getitem__)
        stacked = stacked.transpose(*range(first), *(first + axis for axis in order))
        return stacked.reshape(self.groups, self.contracted * math.prod(self.window), -1)

    def left_operand(self, left: Value, features: int) -> Operand:
        """Returns the operand that reads patches; `gram` gives their products where cheaper."""
        pixels = math.prod(self._pixels(left.aval.shape))
        positions = self.contracted * math.prod(self.window)
        taps = math.prod(self.taps)
        cost = pixels**2 * self.left_features + taps * positions**2
        if self.contracted > 1 or cost >= positions**2 * features or taps > _MOST_TAPS:
            return Operand(left, self.patches, features)
        return Operand(left, self.patches, features, inner=self.gram, inner_cost=float(cost))

    def _pixels(self, shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(shape[axis] for axis in self.params["dimension_numbers"].lhs_spec[2:])

    def gram(self, left: jax.Array) -> jax.Array:
        """Forms inner products of patches, (groups, positions, positions), from those of pixels.

        <patch at u, patch at v> = sum over taps of <pixel u + tap, pixel v + tap>: the products
        between pixels are formed once, and shifted views of them added up. By Cauchy and Schwarz
        rounding stays relative to the products of the patches' norms.
        """
        letters, grouped = self._left_letters()
        spatial = self._pixels(left.shape)
        names = _pixel_letters(len(spatial))
        split = _split(widened(left), grouped, self.groups)
        rows = _arrange(split, _named(letters, grouped), f"gc{names}n")
        rows = rows.reshape(self.groups, -1, self.left_features)
        inner = jnp.einsum("gpn,gqn->gpq", rows, rows, precision=HIGHEST)
        inner = inner.reshape(self.groups, *spatial, *spatial)
        first, second = (tuple(range(1 + k, 1 + k + len(spatial))) for k in (0, len(spatial)))
        total = jnp.zeros((), inner.dtype)
        padded = pad_and_dilate(self.params, pad_and_dilate(self.params, inner, first), second)
        for tap in itertools.product(*map(range, self.taps)):
            total = total + self._view(self._view(padded, first, tap), second, tap)
        return total.reshape(self.groups, math.prod(self.window), math.prod(self.window))

    def cotangents(self, right: jax.Array) -> jax.Array:
        """Lays out the cotangents as (groups, positions, right features)."""
        letters, grouped = self._right_letters()
        pixels = _pixel_letters(len(self.window))
        split = _split(right, grouped, self.groups)
        arranged = _arrange(split, _named(letters, grouped), f"gc{pixels}o")
        return arranged.reshape(self.groups, -1, self.right_features)

    def gradient(self, left: jax.Array, right: jax.Array) -> jax.Array:
        """Forms the kernel gradient of one example."""
        if self.implicit and implicit_convolution.forms_gradients(self.params, left, right):
            return implicit_convolution.kernel_gradient(self.params, left, right)
        if math.prod(self.taps) > _MOST_TAPS:
            return self._convolve(widened(left), widened(right), None)
        (left_letters, left_grouped), (right_letters, right_grouped) = (
            self._left_letters(),
            self._right_letters(),
        )
        right = _split(right, right_grouped, self.groups)
        letters = _named(left_letters, left_grouped), _named(right_letters, right_grouped)
        # One product for each tap: over the pixels that it multiplies.
        views = (_split(view, left_grouped, self.groups) for view in self._views(left))
        if self.groups > 1 and self.left_features == self.right_features == 1:
            # Not as products, thousands of a number with a number, which take three times as long.
            right = widened(_arrange(right, letters[1], letters[0].replace("n", "o")))
            kept = letters[0].index("g"), letters[0].index("n")
            summed = [axis for axis in range(right.ndim) if axis not in kept]
            # Kept from being computed twice: a CPU calls a library for products, not for sums.
            products = formed_once([jnp.sum(widened(view) * right, axis=summed) for view in views])
        else:
            products = [product(f"{','.join(letters)}->ngo", view, right) for view in views]
        stacked = jnp.stack(products).reshape(
            *self.taps, self.left_features, self.groups * self.right_features
        )
        spatial = len(self.taps)
        source = {place: axis for axis, place in enumerate(self.out_spec[2:])}
        source |= {self.out_spec[0]: spatial, self.out_spec[1]: spatial + 1}
        return stacked.transpose([source[place] for place in range(spatial + 2)])

    def batch_sum(self, left: jax.Array, right: jax.Array) -> jax.Array:
        """Sums kernel gradients over a leading batch axis, by one convolution over it as well."""
        numbers = self.params["dimension_numbers"]
        groups = self.groups if self.group_features else 1
        left = _batch_into(left, numbers.lhs_spec[1], groups)
        return self._convolve(left, _batch_into(right, numbers.rhs_spec[1], 1), HIGHEST)

    def _convolve(
        self, left: jax.Array, right: jax.Array, precision: jax.lax.Precision | None
    ) -> jax.Array:
        """Convolves with this operation's parameters, at another precision."""
        return convolve(self.params | {"precision": None}, left, right, precision)


def _pixel_letters(number: int) -> str:
    return "uvwxyz"[:number]


def _letters(spec: tuple[int, ...], first: str, second: str) -> str:
    """Returns one letter for each axis of an operand, in the order in which the axes lie."""
    names = dict(zip(spec, (first, second, *_pixel_letters(len(spec) - 2)), strict=True))
    return "".join(names[axis] for axis in range(len(spec)))


def _named(letters: str, grouped: int) -> str:
    """Returns the letters with one for the groups, before the axis they are split off from."""
    return letters[:grouped] + "g" + letters[grouped:]


def _split(array: jax.Array, axis: int, groups: int) -> jax.Array:
    """Splits an axis into (groups, the rest of it)."""
    shape = array.shape
    return array.reshape(*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :])


def _arrange(array: jax.Array, letters: str, wanted: str) -> jax.Array:
    return array.transpose([letters.index(letter) for letter in wanted])


def _batch_into(array: jax.Array, axis: int, groups: int) -> jax.Array:
    """Merges a leading batch axis into another axis, inside each of that axis's groups."""
    size = array.shape[axis + 1]
    moved = jnp.moveaxis(_split(array, axis + 1, groups), 0, axis + 1)
    return moved.reshape(*moved.shape[:axis], array.shape[0] * size, *moved.shape[axis + 3 :])
