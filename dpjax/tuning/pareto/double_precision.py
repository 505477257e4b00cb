"""Float64 on the CPU with single-threaded BLAS, for matrices of a few hundred rows.

They are quicker there than on an accelerator, nothing of the program around changes, and on a
shared machine the waiting threads of a parallel BLAS cost a hundredfold at these sizes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import jax
import threadpoolctl


@functools.cache
def _blas() -> threadpoolctl.ThreadpoolController:
    """The loaded BLAS libraries; finding them takes milliseconds."""
    return threadpoolctl.ThreadpoolController()


@contextlib.contextmanager
def double_precision() -> Iterator[None]:
    """Float64 on the CPU with single-threaded BLAS.

    JAX computes in the background: fetch results to NumPy before leaving.
    """
    try:
        device = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # a process confined to another platform
        device = None
    with (
        jax.enable_x64(True),
        jax.default_device(device),
        _blas().limit(limits=1, user_api="blas"),
    ):
        yield
