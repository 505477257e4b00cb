"""Figures of several panels side by side, in the common style."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpjax import plotting

DATA_SETS = {
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "cifar10_subset": "CIFAR-10 subset",
    "adult": "Adult",
    "digits": "digits",
    "a1a": "Adult",
}
"""Name for `data.load` -> name in pictures."""


def delta_in_words(delta: float) -> str:
    """A delta as a formula: a power of ten where it is one."""
    power = np.log10(delta)
    value = f"10^{{{round(power)}}}" if power == round(power) else f"{delta:g}"
    return rf"$\delta = {value}$"


def new_panels(
    number: int, width: float = 11.0, height: float = 4.4, *, share_vertical: bool = False
) -> tuple[Figure, list[Axes]]:
    """Returns a figure of this size, in inches, and its panels, left to right.

    They may share the vertical axis, to compare heights across panels.
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, number, sharey=share_vertical))
    for axes in panels:
        plotting.style_axes(axes)
    return figure, list(panels)


def legend_below(
    figure: Figure,
    sources: Axes | Iterable[Axes],
    columns: int,
    fontsize: float | None = 10.5,
    order: Iterable[str] = (),
) -> None:
    """Puts one legend under the whole figure, clear of the data; each label of the panels once.

    Labels named in `order` come first, in that order.
    """
    entries: dict[str, Any] = dict.fromkeys(order)
    for axes in [sources] if isinstance(sources, Axes) else sources:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries[label] = entries.get(label) or handle
    shown = {label: handle for label, handle in entries.items() if handle is not None}
    figure.legend(
        list(shown.values()),
        list(shown),
        loc="outside lower center",
        ncols=columns,
        fontsize=fontsize,
    )
