"""Convolutions as implicit matrix products: kernels for GPUs that never store a patch.

A library convolves one example in a batch of its own with poor use of a GPU, and the patches of
`convolution_rule` are as many times the image as the kernel has taps. These kernels, in Pallas for
Triton, read each pixel where it lies. One program multiplies a tile of pixels with a tile of
features, and adds up over taps.

  convolve          forward, and the gradient of an input, which is a convolution of an image whose
                    pixels are spread. Outputs are taken in classes by the remainder of their place,
                    so that no product is with a zero between pixels. What follows entry by entry
                    (`Following`) is done before a tile is written
  kernel_gradient   that of one example; one product of pixels for each tap. If asked to, cotangents
                    are also added up, which is the gradient of a bias

They are off unless the loss is an `ImplicitConvolutions`: no device has passed its checks with them
yet (`experiments.accelerator.checks` has some). On a CPU they are interpreted, for tests; elsewhere
but on a GPU they are not used. What they do not take is convolved as without them: groups, three or
more spatial axes, types but float32 and bfloat16, a stride or dilated kernel over a spread image,
several images in one example's kernel gradient.

Products of float32 are tensor-float-32's at the default precision, as a library's, and float32's at
a higher one. Sums are float32's.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from dpjax.training.clipping.single_evaluation import formed_once


@dataclasses.dataclass(frozen=True)
class ImplicitConvolutions:
    """A loss whose gradients are clipped with the kernels of this file.

    The loss carries the switch, so no compiled program of one setting is taken for the other's: to
    `jax.jit` they are different functions.

    Example:
      >>> from dpjax import training
      >>> from dpjax.training.clipping.implicit_convolution import ImplicitConvolutions
      >>> gradient = training.clipped_grad(ImplicitConvolutions(lambda w, x: (x @ w) ** 2))

    Attributes:
      loss_fn: as for `clipped_grad`.
    """

    loss_fn: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        return self.loss_fn(*arguments)


def as_for(loss_fn: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the other loss, with these kernels if the first has them."""
    return ImplicitConvolutions(other) if isinstance(loss_fn, ImplicitConvolutions) else other


# Geometry ----------------------------------------------------------------------------------------


class Axis(NamedTuple):
    """One spatial axis: output o and tap k meet pixel `(o stride + k apart - low) / spread`.

    Nothing is there if that is no whole number, or no pixel.
    """

    size: int  # pixels of the image
    out: int
    taps: int
    stride: int = 1
    low: int = 0  # padding before the first pixel, possibly negative
    apart: int = 1  # distance of taps
    spread: int = 1  # distance of the image's pixels

    @property
    def is_taken(self) -> bool:
        # Otherwise the taps that a class of outputs meets are not every `spread`-th.
        return self.spread == 1 or self.stride == self.apart == 1

    def of_kernel(self) -> Axis:
        """Returns the axis of the convolution whose kernel's gradient this convolution forms."""
        return self._replace(out=self.taps, taps=self.out, stride=self.apart, apart=self.stride)


_NONE = Axis(1, 1, 1)
"""The height of an image with one spatial axis."""


def _axes(params: dict[str, Any], left: Any, right: Any) -> tuple[Axis, Axis]:
    """Returns rows and columns of a convolution with one or two spatial axes."""
    numbers, found = params["dimension_numbers"], []
    for axis, ((low, high), stride, spread, apart) in enumerate(
        zip(
            params["padding"],
            params["window_strides"],
            params["lhs_dilation"],
            params["rhs_dilation"],
            strict=True,
        )
    ):
        size, taps = left.shape[numbers.lhs_spec[2 + axis]], right.shape[numbers.rhs_spec[2 + axis]]
        room = (size - 1) * spread + low + high - (taps - 1) * apart
        found.append(Axis(size, room // stride + 1, taps, stride, low, apart, spread))
    first, second = ([_NONE] * 2 + found)[-2:]
    return first, second


_MOST_ENTRIES = 2**31 - 2**16
"""Entries of an array that 32 bits count, a tile's beyond its end included."""


def _are_taken(params: dict[str, Any], left: Any, right: Any) -> bool:
    """Returns whether kernels take operands of these types and this geometry."""
    spatial = len(left.shape) - 2
    precision = params["precision"]
    pair = precision if isinstance(precision, tuple) else (precision, precision)
    if (
        jax.default_backend() not in ("cpu", "gpu")
        or spatial not in (1, 2)
        or params["feature_group_count"] * params["batch_group_count"] > 1
        or left.dtype != right.dtype
        or left.dtype not in (jnp.float32, jnp.bfloat16)
        or not all(each is None or isinstance(each, jax.lax.Precision) for each in pair)
    ):
        return False
    rows, columns = _axes(params, left, right)
    numbers = params["dimension_numbers"]
    outputs = left.shape[numbers.lhs_spec[0]] * right.shape[numbers.rhs_spec[0]]
    sizes = math.prod(left.shape), math.prod(right.shape), rows.out * columns.out * outputs
    return all(0 < size < _MOST_ENTRIES for size in sizes) and min(rows.out, columns.out) > 0


def convolves(params: dict[str, Any], left: Any, right: Any) -> bool:
    """Returns whether `convolve` takes operands of these shapes and types."""
    return _are_taken(params, left, right) and all(
        axis.is_taken for axis in _axes(params, left, right)
    )


def forms_gradients(params: dict[str, Any], left: Any, right: Any) -> bool:
    """Returns whether `kernel_gradient` takes one example's operands."""
    return (
        _are_taken(params, left, right)
        and left.shape[params["dimension_numbers"].lhs_spec[1]] == 1
        and all(axis.spread == 1 for axis in _axes(params, left, right))
    )


def _is_exact(params: dict[str, Any]) -> bool:
    precision = params["precision"]
    pair = precision if isinstance(precision, tuple) else (precision, precision)
    return any(each not in (None, jax.lax.Precision.DEFAULT) for each in pair)


# What convolutions call --------------------------------------------------------------------------


class Tile(NamedTuple):
    """How a kernel is cut up; `experiments.accelerator.tiles` times others.

    `taps` are those of one program of `kernel_gradient`. With `halves`, numbers are split into two
    of bfloat16 and multiplied in three products: finer than tensor-float-32.
    """

    pixels: int = 64
    warps: int = 4
    stages: int = 3
    taps: int = 3
    halves: bool = False


FORWARD, GRADIENT = Tile(), Tile(pixels=32, stages=2)


class Following(NamedTuple):
    """What is done with the entries of a convolution's result before they are written.

    `function` takes a tile of the result, and a tile of each other operand that broadcasts with it.
    It returns the tiles that are written, of the types `dtypes`.
    """

    function: Callable[..., Sequence[jax.Array]]
    dtypes: Sequence[Any]


def convolve(
    params: dict[str, Any], dtype: Any, left: jax.Array, right: jax.Array, tile: Tile = FORWARD
) -> jax.Array:
    """Runs `conv_general_dilated` with these parameters; the result has type `dtype`."""
    (result,) = convolve_and(params, writing(dtype), left, right, tile=tile)
    return result


def writing(dtype: Any) -> Following:
    """Returns a `Following` that writes the result itself, in this type."""
    return Following(lambda tile: [tile.astype(dtype)], [dtype])


def convolve_and(
    params: dict[str, Any],
    following: Following,
    left: jax.Array,
    right: jax.Array,
    *others: jax.Array,
    tile: Tile = FORWARD,
) -> list[jax.Array]:
    """Runs `conv_general_dilated` with sums in float32, and on these what follows.

    `others` have the result's shape, one number for each feature, or just one number. If there are
    any, an example has one image.
    """
    numbers, (rows, columns) = params["dimension_numbers"], _axes(params, left, right)
    images = left.transpose(numbers.lhs_spec[0], *numbers.lhs_spec[2:], numbers.lhs_spec[1])
    images = images.reshape(-1, rows.size, columns.size, images.shape[-1])
    kernel = right.transpose(*numbers.rhs_spec[2:], *numbers.rhs_spec[:2])
    kernel = kernel.reshape(rows.taps, columns.taps, *kernel.shape[-2:])
    exact = _is_exact(params)

    places = (numbers.out_spec[0], *numbers.out_spec[2:], numbers.out_spec[1])
    lengths = len(images), *_spatial(left, rows.out, columns.out), kernel.shape[-2]
    whole = tuple(lengths[places.index(place)] for place in range(len(places)))

    def laid(other: jax.Array) -> jax.Array:
        if other.shape == whole:
            return other.transpose(places).reshape(-1, lengths[-1])
        return jnp.broadcast_to(other.reshape(1, -1), (1, lengths[-1]))

    def of_one(image: jax.Array) -> list[jax.Array]:
        given = image, kernel, rows, columns, tile, exact
        return image_product(*given, following, [laid(other) for other in others])

    results = jax.vmap(of_one)(images) if len(images) > 1 else of_one(images[0])
    return [_placed(result.reshape(lengths), places) for result in results]


def kernel_gradient(
    params: dict[str, Any], left: jax.Array, right: jax.Array, tile: Tile = GRADIENT
) -> jax.Array:
    """Forms one example's kernel gradient, float32, as `convolution_rule._Shape.gradient`."""
    return gradient_and_sums(params, left, right, tile, False)[0]


def gradient_and_sums(
    params: dict[str, Any],
    left: jax.Array,
    right: jax.Array,
    tile: Tile = GRADIENT,
    summed: bool = True,
) -> list[jax.Array]:
    """Forms one example's kernel gradient and sums of cotangents, (features,), in float32."""
    numbers = params["dimension_numbers"]
    rows, columns = (axis.of_kernel() for axis in _axes(params, left, right))
    image = left.transpose(*numbers.lhs_spec[1:], numbers.lhs_spec[0])
    image = image.reshape(rows.size, columns.size, -1)
    # The cotangents stand where a convolution has its kernel.
    cotangents = right.transpose(*numbers.rhs_spec[1:], numbers.rhs_spec[0])
    cotangents = cotangents.reshape(rows.out, columns.out, -1)
    exact = _is_exact(params)
    result, *sums = tap_products(image, cotangents, rows, columns, tile, exact, summed)
    result = result.reshape(*_spatial(left, rows.taps, columns.taps), *result.shape[-2:])
    return [_placed(result, (*numbers.out_spec[2:], *numbers.out_spec[:2])), *sums]


def _spatial(left: jax.Array, rows: int, columns: int) -> Sequence[int]:
    return (rows, columns)[4 - left.ndim :]


def _placed(array: jax.Array, places: Sequence[int]) -> jax.Array:
    """Moves each axis to its place."""
    return array.transpose([places.index(place) for place in range(len(places))])


# Kernels -----------------------------------------------------------------------------------------
#
# Arrays lie as (pixels, features). Indices are divided by `jax.lax`: what `//` and `%` become has
# no counterpart in Triton. A store that is masked points behind the array's end, since the
# interpreter writes all the same.

_FEW = 16
"""Below so many input features, a tile holds those of several taps."""
_MOST_OF_TAPS = 128
"""Most features of taps side by side in such a tile."""


def _divided(number: jax.Array, by: int) -> tuple[jax.Array, jax.Array]:
    """Returns quotient and remainder of numbers that are not negative."""
    divisor = jnp.full_like(number, by)
    return jax.lax.div(number, divisor), jax.lax.rem(number, divisor)


def _tile_of(size: int, most: int) -> int:
    """Returns the power of two that holds a size, from 16, the least of a product, to `most`."""
    return min(most, max(16, 1 << (size - 1).bit_length()))


def _side_by_side(features: int, rows: Axis, columns: Axis) -> bool:
    """Returns whether one tile holds the features of all taps."""
    taps = rows.taps * columns.taps
    plain = rows.spread == columns.spread == 1
    return plain and features < _FEW and taps * features <= _MOST_OF_TAPS


def _numbers(first: Any, size: int) -> jax.Array:
    return first * size + jnp.arange(size, dtype=jnp.int32)


def _loaded(
    ref: Any, at: jax.Array, live: jax.Array, features: jax.Array, known: jax.Array | None = None
) -> jax.Array:
    """Reads entries of an array (pixels, features); zeros for pixels not live, features not known.

    `live` has the shape of `at`: a choice for each feature would hide from Triton that features lie
    side by side, and they would be read one by one. `known` None: all are.
    """
    at, shape = jnp.where(live, at, 0), jnp.broadcast_shapes(at.shape, features.shape)
    mask = jnp.broadcast_to(live if known is None else live & known, shape)
    return triton.load(ref.at[at, features], mask=mask, other=0.0)


def _met(
    row: jax.Array, column: jax.Array, tap: jax.Array, rows: Axis, columns: Axis
) -> tuple[jax.Array, jax.Array]:
    """Returns which pixels taps (1, n) meet from the first ones (m,), and whether they are there.

    The image is not spread. Both results are (m, n).
    """
    tap_row, tap_column = _divided(tap, columns.taps)
    at_row = row[:, None] + tap_row * rows.apart
    at_column = column[:, None] + tap_column * columns.apart
    inside = (at_row >= 0) & (at_row < rows.size) & (at_column >= 0) & (at_column < columns.size)
    return at_row * columns.size + at_column, inside


def _product(
    left: jax.Array, right: jax.Array, axes: tuple[int, int], tile: Tile, exact: bool
) -> jax.Array:
    """Multiplies two tiles, contracting one axis of each."""
    precision = jax.lax.Precision.HIGHEST if exact else jax.lax.Precision.DEFAULT

    def of(first: jax.Array, second: jax.Array) -> jax.Array:
        contracted = (((axes[0],), (axes[1],)), ((), ()))
        return jax.lax.dot_general(
            first, second, contracted, precision, preferred_element_type=jnp.float32
        )

    if exact or not tile.halves or left.dtype != jnp.float32:
        return of(left, right)
    (left, of_left), (right, of_right) = _halves(left), _halves(right)
    return of(left, right) + (of(left, of_right) + of(of_left, right))


def _halves(numbers: jax.Array) -> tuple[jax.Array, jax.Array]:
    first = numbers.astype(jnp.bfloat16)
    return first, (numbers - first.astype(jnp.float32)).astype(jnp.bfloat16)


def _launched(
    kernel: Callable[..., None],
    grid: tuple[int, ...],
    results: Sequence[jax.ShapeDtypeStruct],
    tile: Tile,
    name: str,
    operands: Sequence[jax.Array],
) -> list[jax.Array]:
    interpreted = jax.default_backend() == "cpu"
    found = pl.pallas_call(
        kernel,
        grid=grid,
        out_shape=list(results),
        in_specs=[pl.no_block_spec] * len(operands),
        out_specs=[pl.no_block_spec] * len(results),
        compiler_params=None
        if interpreted
        else triton.CompilerParams(num_warps=tile.warps, num_stages=tile.stages),
        interpret=interpreted,
        name=name,
    )(*operands)
    # A kernel's result stands in memory; what the interpreter computes might be computed twice.
    return formed_once(found) if interpreted else found


def image_product(
    image: jax.Array,
    kernel: jax.Array,
    rows: Axis,
    columns: Axis,
    tile: Tile = FORWARD,
    exact: bool = False,
    following: Following | None = None,
    others: Sequence[jax.Array] = (),
) -> list[jax.Array]:
    """Convolves an image (height, width, in) with a kernel (taps, taps, out, in).

    Returns what follows, by default the sums alone, (out height x out width, out) each. `others`
    have this shape, too, or one row. Sums are float32's, and with `exact` products.
    """
    following = following or writing(jnp.float32)
    features, outputs = image.shape[-1], kernel.shape[-2]
    height, width, taps = rows.size, columns.size, rows.taps * columns.taps
    positions = rows.out * columns.out
    # Outputs in a class have places of one remainder: they meet pixels at the same taps.
    class_height, class_width = -(-rows.out // rows.spread), -(-columns.out // columns.spread)
    in_class = class_height * class_width
    beside = _side_by_side(features, rows, columns)
    depth = _tile_of(taps * features, _MOST_OF_TAPS) if beside else _tile_of(features, 64)
    pieces = 1 if beside else -(-features // depth)
    across = _tile_of(outputs, 128)
    pixels = _tile_of(in_class, min(tile.pixels, 64) if beside else tile.pixels)

    def implicit_convolution(image_ref: Any, kernel_ref: Any, *refs: Any) -> None:
        row_class, column_class = _divided(pl.program_id(1), columns.spread)
        place = _numbers(pl.program_id(0), pixels)
        row, column = _divided(place, class_width)
        row, column = row_class + rows.spread * row, column_class + columns.spread * column
        live = (place < in_class) & (row < rows.out) & (column < columns.out)
        out = _numbers(pl.program_id(2), across)
        first_row, first_column = (
            row * rows.stride - rows.low,
            column * columns.stride - columns.low,
        )
        entries = jnp.arange(depth, dtype=jnp.int32)

        def of_all_taps() -> jax.Array:
            tap, feature = _divided(entries, features)
            at, inside = _met(first_row, first_column, tap[None], rows, columns)
            inside &= live[:, None] & (entries < taps * features)[None]
            patch = _loaded(image_ref, at, inside, feature[None])
            known = (entries < taps * features)[:, None] & (out < outputs)[None]
            at = tap[:, None] * outputs + out[None]
            weights = _loaded(kernel_ref, at, known, feature[:, None])
            return _product(patch, weights, (1, 0), tile, exact)

        def of_each_tap() -> jax.Array:
            tap_row, row_taps = _taps_of_class(rows, row_class)
            tap_column, column_taps = _taps_of_class(columns, column_class)

            def turn(number: Any, total: jax.Array) -> jax.Array:
                tap, piece = _divided(jnp.int32(number), pieces)
                row_turn = jax.lax.div(tap, jnp.int32(column_taps))
                column_turn = jax.lax.rem(tap, jnp.int32(column_taps))
                own_row = tap_row + rows.spread * row_turn
                own_column = tap_column + columns.spread * column_turn
                spread_row = first_row + own_row * rows.apart
                spread_column = first_column + own_column * columns.apart
                at_row, _ = _divided(spread_row, rows.spread)
                at_column, _ = _divided(spread_column, columns.spread)
                inside = live & (spread_row >= 0) & (at_row < height)
                inside &= (spread_column >= 0) & (at_column < width)
                feature = piece * depth + entries
                known = None if features % depth == 0 else (feature < features)[None]
                at = (at_row * width + at_column)[:, None]
                patch = _loaded(image_ref, at, inside[:, None], feature[None], known)
                at = ((own_row * columns.taps + own_column) * outputs + out)[:, None]
                weights = _loaded(kernel_ref, at, (out < outputs)[:, None], feature[None], known)
                return total + _product(patch, weights, (1, 1), tile, exact)

            zeros = jnp.zeros((pixels, across), jnp.float32)
            return jax.lax.fori_loop(0, row_taps * column_taps * pieces, turn, zeros)

        total = of_all_taps() if beside else of_each_tap()
        pixel = row * columns.out + column
        some = None if outputs % across == 0 else (out < outputs)[None]
        tiles = [total]
        for ref in refs[: len(others)]:
            here = ref.shape[0] == positions
            at = pixel[:, None] if here else jnp.zeros((1, 1), jnp.int32)
            there = live[:, None] if here else jnp.ones((1, 1), bool)
            tiles.append(_loaded(ref, at, there, out[None], some))
        at = jnp.where(live, pixel, positions)
        kept = live[:, None] & (out < outputs)[None]
        for ref, found in zip(refs[len(others) :], following.function(*tiles), strict=True):
            triton.store(ref.at[at[:, None], out[None]], found, mask=kept)

    grid = (-(-in_class // pixels), rows.spread * columns.spread, -(-outputs // across))
    results = [jax.ShapeDtypeStruct((positions, outputs), dtype) for dtype in following.dtypes]
    operands = image.reshape(height * width, features), kernel.reshape(-1, features), *others
    return _launched(implicit_convolution, grid, results, tile, "implicit_convolution", operands)


def _taps_of_class(axis: Axis, number: jax.Array) -> tuple[Any, Any]:
    """Returns the first tap that a class of outputs meets, and how many; every `spread`-th is."""
    if axis.spread == 1:
        return 0, axis.taps
    _, first = _divided(axis.low % axis.spread + axis.spread - number, axis.spread)
    many, _ = _divided(axis.taps - first + axis.spread - 1, axis.spread)
    return first, many


def tap_products(
    image: jax.Array,
    cotangents: jax.Array,
    rows: Axis,
    columns: Axis,
    tile: Tile = GRADIENT,
    exact: bool = False,
    summed: bool = False,
) -> list[jax.Array]:
    """Forms a kernel's gradient from an image and cotangents, and the sums of these if `summed`.

    These are (height, width, in) and (out height, out width, out). Axes are the forward
    convolution's, whose image is not spread. Returns (taps, taps, in, out) and (out,) in float32.
    Sums are float32's, and with `exact` products.
    """
    features, outputs = image.shape[-1], cotangents.shape[-1]
    height, width, taps = rows.size, columns.size, rows.taps * columns.taps
    positions = rows.out * columns.out
    beside = _side_by_side(features, rows, columns)
    down = _tile_of(taps * features, _MOST_OF_TAPS) if beside else _tile_of(features, 64)
    across, pixels = _tile_of(outputs, 64), _tile_of(positions, tile.pixels)
    # Taps of a program share the tile of cotangents.
    shared = 1 if beside else min(tile.taps, taps)

    def kernel_gradient(image_ref: Any, cotangents_ref: Any, out_ref: Any, *sum_refs: Any) -> None:
        first = pl.program_id(0) * shared
        entries = _numbers(pl.program_id(1), down)
        out = _numbers(pl.program_id(2), across)

        # One tap for a whole tile is one number, so that pixels are a column of them.
        side_by_side, feature = _divided(entries, features) if beside else (entries, entries)
        present = entries < (taps * features if beside else features)
        known = None if beside or features % down == 0 else present[None]

        def turn(
            number: Any, sums: tuple[tuple[jax.Array, ...], ...]
        ) -> tuple[tuple[jax.Array, ...], ...]:
            totals, added = sums
            place = _numbers(number, pixels)
            row, column = _divided(place, columns.out)
            first_row = row * rows.stride - rows.low
            first_column = column * columns.stride - columns.low
            live = place < positions
            some = None if outputs % across == 0 else (out < outputs)[None]
            right = _loaded(cotangents_ref, place[:, None], live[:, None], out[None], some)
            found = []
            for each, total in enumerate(totals):
                tap = side_by_side[None] if beside else jnp.full((1, 1), first + each, jnp.int32)
                at, inside = _met(first_row, first_column, tap, rows, columns)
                inside &= live[:, None]
                if beside:
                    inside &= present[None]
                left = _loaded(image_ref, at, inside, feature[None], known)
                found.append(total + _product(left, right, (0, 0), tile, exact))
            over_pixels = right.astype(jnp.float32).sum(0)
            return tuple(found), tuple(each + over_pixels for each in added)

        zeros = tuple(jnp.zeros((down, across), jnp.float32) for _ in range(shared))
        none = tuple(jnp.zeros(across, jnp.float32) for _ in sum_refs)
        totals, added = jax.lax.fori_loop(0, -(-positions // pixels), turn, (zeros, none))
        for each, total in enumerate(totals):
            there = present if beside else present & (first + each < taps)
            at = entries if beside else (first + each) * features + entries
            at = jnp.where(there, at, taps * features)
            kept = there[:, None] & (out < outputs)[None]
            triton.store(out_ref.at[at[:, None], out[None]], total, mask=kept)
        for ref, sums in zip(sum_refs, added):
            # All programs of these cotangents find the same, and the first writes it.
            late = jnp.full(across, pl.program_id(0) + pl.program_id(1), jnp.int32)
            kept = (late == 0) & (out < outputs)
            triton.store(ref.at[jnp.minimum(late, 1), out], sums, mask=kept)

    grid = (1 if beside else -(-taps // shared), 1 if beside else -(-features // down))
    lengths = (taps * features, 1) if summed else (taps * features,)
    results = [jax.ShapeDtypeStruct((length, outputs), jnp.float32) for length in lengths]
    operands = image.reshape(height * width, features), cotangents.reshape(positions, outputs)
    blocks = (*grid, -(-outputs // across))
    found, *sums = _launched(kernel_gradient, blocks, results, tile, "kernel_gradient", operands)
    found = found.reshape(rows.taps, columns.taps, features, outputs)
    return [found, *(each[0] for each in sums)]
