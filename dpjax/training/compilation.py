"""Compiles private runs, on a GPU without operations that add in an order of the hardware's choice.

A scatter adds what falls on one place in the order in which threads arrive, which no argument of
the program decides. Within one execution each contribution is still at most the clip norm, since
norm and sum read what was formed once; but the rounding of a row's gradient would depend on the
moment, perhaps on its neighbours in the lot, and no run could be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

_ORDERED = {"xla_gpu_exclude_nondeterministic_ops": True}


def options(backend: str) -> dict[str, bool] | None:
    """Returns the compiler's options, which a CPU's ignores; None for a TPU's, which has none such.

    A CPU has them so that a GPU beside it, which is not the default backend, has them too.
    """
    return None if backend == "tpu" else dict(_ORDERED)


def jit(function: Callable[..., Any], **given: Any) -> Any:
    """Returns `jax.jit(function, **given)`, compiled by `options`."""
    return jax.jit(function, compiler_options=options(jax.default_backend()), **given)
