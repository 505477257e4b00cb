"""What the forms of a parameter's norm cost, by kind of machine: inner products, or the product.

Both ways form the gradient of the whole batch once: the product, formed for each example, is then
added up, and inner products leave a contraction over examples and positions to be done. What
differs is arithmetic for inner products against memory for products.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

_BYTES_OF_A_PRODUCT = 12
"""A product's entry is written, read for the norm and read for the sum: 4 bytes each."""

_BYTES_OF_AN_INNER_PRODUCT = 24
"""Both factors' are written and read, and read again with the bound on their rounding."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """Says how expensive arithmetic and memory are on a kind of machine, in multiplications."""

    inner: float  # a multiplication of the inner products
    # A multiplication of the per-example product beyond the one that it saves in the batch.
    product: float
    byte: float  # moving one
    basis: str  # "measured" or "estimated", and of what; as text

    def gram(self, positions: int, multiplications: float) -> float:
        """Prices inner products: `multiplications` of both factors', and arrays of them."""
        return self.inner * multiplications + self.byte * _BYTES_OF_AN_INNER_PRODUCT * positions**2

    def formed(self, positions: int, left: int, right: int) -> float:
        """Prices the per-example product of `positions` outer products left x right."""
        entries = float(left) * right
        return self.product * positions * entries + self.byte * _BYTES_OF_A_PRODUCT * entries


CPU = Machine(2.0, 1.0, 0.0, "measured on a CPU core")
"""Micro-batches of 16, one core: WRN-16-4 takes 1.08, 1.07 and 1.10 of the plain gradient with 3, 2
and 1 for `inner`, ViT-Ti 1.11, 1.06 and 1.08, a text convolution 1.44, 1.16 and 1.21, the GPT 1.12,
1.13 and 1.29, the all-convolutional net .90, .91 and 1.05. Memory's share is in these numbers."""

GPU = Machine(1.0, 0.0, 10.0, "estimated for an H100")
GPU_NARROW = Machine(1.0, 0.0, 148.0, "estimated for an H100, bfloat16")
"""33.5 tera-multiplications a second in float32, 495 in bfloat16, 3.35 terabytes a second, by the
vendor's data sheet. Nothing was measured. At 1,024 x 1,024 break-even is at 234 and 576
positions."""

TPU = Machine(1.0, 0.0, 20.0, "estimated for a TPU v5e")
TPU_NARROW = Machine(1.0, 0.0, 120.0, "estimated for a TPU v5e, bfloat16")
"""98 tera-multiplications a second in bfloat16, a sixth of it in float32 at the highest precision,
.82 terabytes a second, by the vendor's data sheet. Nothing was measured."""


def machine(*dtypes: jax.typing.DTypeLike) -> Machine:
    """Returns the machine of JAX's default backend, for operands of these types."""
    narrow = all(jnp.dtype(dtype).itemsize <= 2 for dtype in dtypes)
    backend = jax.default_backend()
    if backend == "cpu":
        return CPU
    if backend == "tpu":
        return TPU_NARROW if narrow else TPU
    return GPU_NARROW if narrow else GPU
