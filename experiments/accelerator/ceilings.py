"""What the device can do at most: copies, products, launches, noise."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.randomness import threefry


def clock(call: Callable[[], Any], least: float = 0.3) -> tuple[float, float]:
    """Returns median and least seconds of a call: of three and `least` seconds, if these are few.

    The first call is not counted.
    """
    jax.block_until_ready(call())
    found: list[float] = []
    while sum(found) < 2.0 and (len(found) < 3 or sum(found) < least) and len(found) < 50:
        start = time.perf_counter()
        jax.block_until_ready(call())
        found.append(time.perf_counter() - start)
    return float(np.median(found)), min(found)


def copied_bytes_a_second(tiny: bool) -> float:
    """Returns the bytes read and written a second by a large copy."""
    numbers = jnp.ones(2**10 if tiny else 2**29, jnp.float32)
    copy = jax.jit(lambda numbers: numbers + 1)
    return 2 * numbers.nbytes / clock(lambda: copy(numbers))[1]


def ceilings(tiny: bool) -> Iterator[tuple[str, str]]:
    """Yields what was measured, and its value with its unit."""
    side = 64 if tiny else 8192
    for precision, kind in (
        ("highest", "float32"),
        ("default", "float32"),
        ("default", "bfloat16"),
    ):
        square = jax.random.normal(jax.random.key(0), (side, side)).astype(kind)
        product = jax.jit(lambda a, p=precision: jnp.matmul(a, a, precision=p))
        seconds = clock(lambda: product(square))[0]  # noqa: B023
        yield f"product of {kind}, {precision}", f"{2 * side**3 / seconds / 1e12:.1f} TFLOP/s"

    def kernel(turn: jax.Array, numbers: jax.Array) -> jax.Array:
        return jax.lax.optimization_barrier(numbers * 1.0001 + turn)

    eight, turns = jnp.ones(8), 1000
    counted = jax.jit(lambda numbers: jax.lax.fori_loop(0, turns, kernel, numbers))
    yield (
        "turn of a loop with a known end",
        f"{clock(lambda: counted(eight))[0] / turns * 1e6:.2f} us",
    )
    ended = jax.jit(lambda numbers, most: jax.lax.fori_loop(jnp.int32(0), most, kernel, numbers))
    most = jnp.int32(turns)
    yield (
        "turn of a loop whose end the device knows",
        f"{clock(lambda: ended(eight, most))[0] / turns * 1e6:.2f} us",
    )
    width = 2 if tiny else 64
    keys = jax.random.split(jax.random.key(1), width)
    for size in (7_850, 795_010):
        draw = jax.jit(jax.vmap(lambda key, size=size: threefry.dithered_normal(key, size, 1.0)))
        seconds = clock(lambda: draw(keys))[0]  # noqa: B023
        yield f"noise, {width} x {size}", f"{width * size / seconds / 1e9:.2f} billion per second"
