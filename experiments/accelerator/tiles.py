"""Times the kernels of implicit convolutions by tile, layer by layer.

  python -m experiments.accelerator.tiles --out_dir=runs/accelerator --seconds=150
  python -m experiments.accelerator.tiles --out_dir=runs/accelerator --tiny    # a CPU, interpreted

The layers are those of figure 7's net and of the all-convolutional net, 64 candidates and 32 rows
at once. Rows go to tiles.csv as they come, most telling first; those without a tile are products
of patches or shifted images by a library, as dpjax convolves without the kernels. Set the fastest
ones in `dpjax.training.clipping.implicit_convolution`. Let no other process use the card.
"""

from __future__ import annotations

import concurrent.futures
import os
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from dpjax.commands import command_line
from dpjax.models.nets import extract_patches
from dpjax.training.clipping import implicit_convolution
from dpjax.training.clipping.implicit_convolution import Axis, Tile
from experiments.accelerator import ceilings
from experiments.accelerator.rows import RowFile

_OUT_DIR = flags.DEFINE_string("out_dir", "runs/accelerator", "Folder of tiles.csv.")
_SECONDS = flags.DEFINE_float("seconds", 150.0, "All is over after these.", lower_bound=1.0)
_THREADS = flags.DEFINE_integer("threads", 14, "Kernels that compile at once.", lower_bound=1)
_TINY = flags.DEFINE_bool("tiny", False, "A rehearsal: one of each kind, 8 x 8 pixels.")

FORWARD, OF_IMAGE, OF_KERNEL = "forward", "gradient of the image", "gradient of the kernel"
COLUMNS = ("device", "at", "kernel", "layer", "type", *Tile._fields)
COLUMNS += ("milliseconds", "teraflops", "off", "note")
"""Of a row:

  at            seconds since the process began
  layer         side of the image, channels in and out, stride
  pixels, ...   of the tile; empty for a library
  milliseconds  of the layer for all candidates and rows, the median of calls
  teraflops     two for each multiplication, a second
  off           largest error over the largest number, of one example, beside float32's
"""


class Layer(NamedTuple):
    """A 3x3 convolution of square images, padded so that it keeps their size."""

    side: int
    inputs: int
    outputs: int
    stride: int = 1

    @property
    def axis(self) -> Axis:
        out = -(-self.side // self.stride)
        return Axis(
            self.side, out, 3, self.stride, max((out - 1) * self.stride + 3 - self.side, 0) // 2
        )


class Case(NamedTuple):
    """One kernel to time."""

    kernel: str
    layer: Layer
    dtype: str = "float32"
    tile: Tile | None = None

    def shapes(self, leading: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Returns the shapes of the operands, of so many candidates and rows."""
        side, inputs, outputs, _ = self.layer
        out = self.layer.axis.out
        image, result = (*leading, side, side, inputs), (*leading, out, out, outputs)
        kernel = (*leading[:1], 3, 3, inputs, outputs)
        return {
            FORWARD: [image, kernel],
            OF_IMAGE: [result, kernel],
            OF_KERNEL: [image, result],
        }[self.kernel]

    def one(self, first: jax.Array, second: jax.Array) -> jax.Array:
        """Returns the result for one example."""
        if self.tile is None:
            return self._by_library(first, second)
        axis = self.layer.axis
        if self.kernel == OF_KERNEL:
            return implicit_convolution.tap_products(first, second, axis, axis, self.tile)[0]
        if self.kernel == FORWARD:
            second = second.transpose(0, 1, 3, 2)
        else:
            second = second[::-1, ::-1]
            axis = Axis(axis.out, axis.size, 3, 1, 2 - axis.low, 1, axis.stride)
        following = implicit_convolution.writing(first.dtype)
        (found,) = implicit_convolution.image_product(
            first, second, axis, axis, self.tile, following=following
        )
        return found.reshape(axis.out, axis.out, -1)

    def _by_library(self, first: jax.Array, second: jax.Array) -> jax.Array:
        _, inputs, outputs, stride = self.layer
        patches = extract_patches(first[None], (3, 3), (stride, stride))[0]
        if self.kernel == FORWARD:
            return patches @ second.reshape(-1, outputs)
        taps = jnp.moveaxis(patches.reshape(*patches.shape[:2], 9, inputs), 2, 0)
        products = [jnp.einsum("hwi,hwo->io", tap, second) for tap in taps]
        return jnp.stack(products).reshape(3, 3, inputs, outputs)

    def exact(self, first: jax.Array, second: jax.Array) -> jax.Array:
        """Returns the result for one example in float32, by `jax.lax`."""
        side, inputs, outputs, stride = self.layer

        def convolved(image: jax.Array, kernel: jax.Array) -> jax.Array:
            numbers = ("NHWC", "HWIO", "NHWC")
            strides = (stride, stride)
            return jax.lax.conv_general_dilated(
                image[None], kernel, strides, "SAME", dimension_numbers=numbers, precision="highest"
            )[0]

        if self.kernel == FORWARD:
            return convolved(first, second)
        if self.kernel == OF_IMAGE:
            zeros = jnp.zeros((side, side, inputs))
            return jax.vjp(lambda image: convolved(image, second), zeros)[1](first)[0]
        zeros = jnp.zeros((3, 3, inputs, outputs))
        return jax.vjp(lambda kernel: convolved(first, kernel), zeros)[1](second)[0]

    @property
    def multiplications(self) -> int:
        """Returns those of one example; products with zeros do not count."""
        return self.layer.axis.out**2 * 9 * self.layer.inputs * self.layer.outputs


_WIDE, _MIDDLE, _NARROW = Layer(28, 32, 64), Layer(14, 64, 64), Layer(28, 32, 32)
_OTHERS = (Layer(28, 1, 32), Layer(28, 32, 32, 2), Layer(14, 64, 64, 2), Layer(7, 64, 10))
_OF_IMAGES = [
    *(Tile(64, 4, 2), Tile(64, 4, 3), Tile(128, 4, 2), Tile(128, 4, 3), Tile(128, 8, 2)),
    *(Tile(128, 8, 3), Tile(64, 2, 3), Tile(32, 4, 3)),
    *(Tile(128, 4, 3, halves=True), Tile(128, 8, 2, halves=True)),
]
_OF_KERNELS = [
    Tile(pixels, warps, stages, taps, halves)
    for halves in (False, True)
    for pixels, warps, stages, taps in (
        *((32, 4, 2, 1), (32, 4, 2, 3), (32, 4, 3, 3), (64, 4, 2, 3), (64, 8, 2, 3)),
        *((32, 8, 2, 9), (64, 4, 2, 1), (16, 4, 2, 3), (64, 8, 2, 9), (128, 8, 2, 3)),
    )
]


def cases() -> list[Case]:
    """Returns what is timed, most telling first."""
    found = []
    for layer in (_WIDE, _MIDDLE, _NARROW):
        for kernel, tiles in (
            (OF_KERNEL, _OF_KERNELS),
            (FORWARD, _OF_IMAGES),
            (OF_IMAGE, _OF_IMAGES),
        ):
            found += [Case(kernel, layer, tile=tile) for tile in tiles]
            if layer == _WIDE:
                found += [Case(kernel, layer, "bfloat16", t) for t in tiles if not t.halves]
        found += [Case(kernel, layer) for kernel in (FORWARD, OF_KERNEL)]
    for layer in _OTHERS:
        found += [
            Case(OF_KERNEL, layer, tile=tile) for tile in _OF_KERNELS[:4] + _OF_KERNELS[10:14]
        ]
        kernels = (FORWARD, OF_IMAGE) if layer.inputs > 1 else (FORWARD,)
        found += [Case(kernel, layer, tile=t) for kernel in kernels for t in _OF_IMAGES[1:6:2]]
    return found


def rehearsed() -> list[Case]:
    """Returns a case of each kind, small."""
    layer = Layer(8, 3, 18, 2)
    made = [Case(kernel, layer, tile=Tile(16)) for kernel in (FORWARD, OF_IMAGE, OF_KERNEL)]
    made += [Case(OF_KERNEL, layer, "bfloat16", Tile(16)), Case(FORWARD, layer)]
    return [*made, Case(OF_KERNEL, layer), Case(FORWARD, Layer(8, 3, 18), tile=Tile(pixels=0))]


def _put(file: RowFile, case: Case, **found: Any) -> None:
    tile = {} if case.tile is None else case.tile._asdict()
    layer = "x".join(map(str, case.layer))
    file.put(kernel=case.kernel, layer=layer, type=case.dtype, **tile, **found)


_TRACING = threading.Lock()


def measure(
    file: RowFile, cases: list[Case], leading: tuple[int, int], seconds: float, threads: int
) -> None:
    """Writes a row for each case; what fails or comes too late is a row, too."""

    def compiled(case: Case) -> Callable[..., jax.Array]:
        if file.seconds() > seconds:
            raise TimeoutError("no time")
        mapped = (0, 0) if case.kernel == OF_KERNEL else (0, None)
        shapes = [jax.ShapeDtypeStruct(shape, case.dtype) for shape in case.shapes(leading)]
        with _TRACING:
            lowered = jax.jit(jax.vmap(jax.vmap(case.one, mapped))).lower(*shapes)
        return lowered.compile()

    def failed(error: Exception) -> str:
        return "failed: " + " ".join(f"{error!r}".split())[:150]

    pool = concurrent.futures.ThreadPoolExecutor(threads)
    waiting = [(case, pool.submit(compiled, case)) for case in cases]
    known: dict[Any, jax.Array] = {}
    for case, future in waiting:
        try:
            call = future.result(timeout=max(0.1, seconds - file.seconds()))
            operands = [_operand(known, shape, case.dtype) for shape in case.shapes(leading)]
            milliseconds = 1e3 * ceilings.clock(lambda: call(*operands))[0]  # noqa: B023
            _put(
                file,
                case,
                milliseconds=milliseconds,
                teraflops=2e-9 * leading[0] * leading[1] * case.multiplications / milliseconds,
                off=_off(case, operands, call(*operands)),
            )
        except Exception as error:  # The other rows are worth having.
            _put(file, case, note=failed(error))
    pool.shutdown(wait=False, cancel_futures=True)


def _operand(known: dict[Any, jax.Array], shape: tuple[int, ...], dtype: str) -> jax.Array:
    """Returns normal numbers; arrays of a few shapes are kept."""
    if (shape, dtype) not in known:
        if len(known) > 8:
            known.clear()
        drawn = jax.random.normal(jax.random.key(len(shape)), shape, jnp.float32)
        known[shape, dtype] = drawn.astype(dtype)
    return known[shape, dtype]


def _off(case: Case, operands: list[jax.Array], found: jax.Array) -> float:
    """Returns how far the first example is from float32's."""
    first, second = operands
    second = second[0, 0] if case.kernel == OF_KERNEL else second[0]
    wanted = np.asarray(case.exact(*(each.astype(jnp.float32) for each in (first[0, 0], second))))
    apart = np.abs(np.asarray(found[0, 0].astype(jnp.float32)) - wanted)
    return float(apart.max() / np.abs(wanted).max())


def main() -> None:
    """Times tiles until the seconds are over."""
    tiny, file = _TINY.value, RowFile(_OUT_DIR.value, "tiles.csv", COLUMNS)
    some, leading = (rehearsed(), (2, 2)) if tiny else (cases(), (64, 32))
    measure(file, some, leading, _SECONDS.value, _THREADS.value)
    # A compiler that is still at work would hold the process for a minute more.
    os._exit(0)


if __name__ == "__main__":
    command_line.run(main)
