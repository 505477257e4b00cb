"""What is measured, most telling first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

FIGURE_7, ALL_CONV = "figure_7_net", "all_conv_net"
FIGURE_7_CONV, ALL_CONV_CONV = "figure_7_net_conv", "all_conv_net_conv"
"""With `nn.Conv` in place of patches."""
FIGURE_7_IMPLICIT, ALL_CONV_IMPLICIT = "figure_7_net_implicit", "all_conv_net_implicit"
"""The same, by the kernels of `clipping.implicit_convolution`."""
BFLOAT16 = "_bfloat16"
"""Ends the name of a net with activations of that type (`RunOptions.compute_dtype`)."""
FIGURE_7_NARROW, FIGURE_7_IMPLICIT_NARROW = FIGURE_7 + BFLOAT16, FIGURE_7_IMPLICIT + BFLOAT16
FIGURES_7 = (
    FIGURE_7,
    FIGURE_7_CONV,
    FIGURE_7_IMPLICIT,
    FIGURE_7_NARROW,
    FIGURE_7_IMPLICIT_NARROW,
)
ALL_CONVS = (ALL_CONV, ALL_CONV_CONV, ALL_CONV_IMPLICIT)
LOGISTIC, MLP, GPT = "logistic_regression", "mlp_784_128_64_10", "gpt"


class Job(NamedTuple):
    """A program to compile and to time.

    `contestant` is "sweep" for `width` candidates as a sweep trains them, or one of
    `experiments.benchmarks.contestants` for a single run. `options` go to the compiler, and
    `precision` is that of products.
    """

    section: str
    model: str
    width: int
    lot: int
    rows: int | str = "auto"
    contestant: str = "sweep"
    options: Mapping[str, bool | str] = {}
    precision: str | None = None

    @property
    def variant(self) -> str:
        """Returns what is not as usual, in words; empty for a usual sweep."""
        words = [f"{name}={value}" for name, value in self.options.items()]
        return " ".join(words + ([f"precision={self.precision}"] if self.precision else []))


_ANY_ORDER = {"xla_gpu_exclude_nondeterministic_ops": False}
_LIBRARY_PRODUCTS = {"xla_gpu_enable_triton_gemm": False}
_LAUNCHED = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION"


def waves() -> list[list[Job]]:
    """Returns lists of jobs; a list is compiled before any of it is timed."""
    first = [Job("figure 7", FIGURE_7, width, 256) for width in (64, 1)]
    first += [Job("candidates", ALL_CONV, width, 64) for width in (64, 1)]
    first += [
        Job("candidates", model, width, 64) for width in (1024, 64, 1) for model in (LOGISTIC, MLP)
    ]
    first += [
        Job("any order", model, width, 64, options=_ANY_ORDER)
        for model, width in ((LOGISTIC, 1), (LOGISTIC, 1024), (MLP, 64), (ALL_CONV, 64))
    ]

    second = [Job("micro-batches", ALL_CONV, 64, 64, rows) for rows in (8, 16)]
    second += [Job("micro-batches", FIGURE_7, 64, 256, 8)]
    second += [
        Job("implicit convolutions", model, 64, lot, 16)
        for models, lot in ((FIGURES_7, 256), (ALL_CONVS, 64))
        for model in models[1:]
    ]
    second += [Job("candidates", ALL_CONV, width, 64) for width in (256, 1024)]
    second += [Job("figure 7", FIGURE_7, 256, 256)]
    second += [
        Job("candidates", model, width, 64) for width in (256, 16) for model in (LOGISTIC, MLP)
    ]

    others = [
        Job("peers", MLP, 1, 256, rows, contestant)
        for contestant, rows in (
            ("plain", 0),
            ("dpjax", "auto"),
            ("jax-privacy", 0),
            ("jax-privacy", 64),
            ("vmap", 0),
            ("vmap", 64),
        )
    ]
    others += [
        Job("peers", model, 1, lot, rows, contestant)
        for model, lot, private_rows in ((GPT, 64, (0, 16)), (FIGURE_7, 256, (32, 128)))
        for contestant, rows in (
            ("plain", 0),
            ("dpjax", "auto"),
            *((name, rows) for name in ("jax-privacy", "vmap") for rows in private_rows),
        )
    ]
    others += [Job("candidates", ALL_CONV, 16, 64), Job("candidates", GPT, 16, 64)]
    others += [
        Job("command buffers", model, 1, 64, options={"xla_gpu_enable_command_buffer": kinds})
        for model in (LOGISTIC, ALL_CONV)
        for kinds in ("", f"{_LAUNCHED},CONDITIONAL,WHILE")
    ]
    others += [
        Job("products", ALL_CONV, 64, 64, precision="highest"),
        Job("products", ALL_CONV, 64, 64, options=_LIBRARY_PRODUCTS),
        Job("products", MLP, 64, 64, options=_LIBRARY_PRODUCTS),
        Job("micro-batches", FIGURE_7, 64, 256, 16),
        Job("micro-batches", ALL_CONV, 64, 64, 32),
        Job("micro-batches", ALL_CONV, 1024, 64, 8),
        Job("figure 7", FIGURE_7, 16, 256),
    ]
    return [first, second, others]


def rehearsed(wave: list[Job], most: int) -> list[Job]:
    """Returns the first jobs of each kind, at sizes of a rehearsal on a CPU."""
    kinds: dict[tuple, Job] = {}
    for job in wave:
        if job.model in (LOGISTIC, MLP):
            rows = job.rows if isinstance(job.rows, str) or not job.rows else 4
            small = job._replace(width=min(job.width, 2), lot=8, rows=rows)
            kinds.setdefault((job.section, job.contestant, job.width > 1), small)
    return list(kinds.values())[:most]
