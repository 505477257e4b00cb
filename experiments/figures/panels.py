"""Figures of several panels side by side, in the common style."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import PIL.Image
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpjax import files, plotting

DATA_SETS = {
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "cifar10_subset": "CIFAR-10 subset",
    "adult": "Adult",
    "digits": "digits",
    "a1a": "Adult",
}
"""Name for `data.load` -> name in pictures."""

WIDTH = 8.0
"""Of every picture, in inches: the most that a page prints at its own size."""

STYLE = {
    "font.size": plotting.POINTS,
    "axes.titlesize": plotting.POINTS,
    "axes.labelsize": plotting.POINTS,
    "xtick.labelsize": plotting.POINTS,
    "ytick.labelsize": plotting.POINTS,
    "legend.fontsize": plotting.POINTS,
    "legend.title_fontsize": plotting.POINTS,
    "figure.titlesize": plotting.POINTS + 1,
    "axes.prop_cycle": cycler(color=plotting.PALETTE),
}
"""Matplotlib's settings of every picture."""

LAW_COLOURS = {
    "eta=-0.5": "#cc79a7",
    "logarithmic": "#009e73",
    "eta=0.5": "#56b4e9",
    "geometric": "#0072b2",
    "eta=2": "#5b3a9e",
    "eta=5": "#e69f00",
    "poisson": "#d55e00",
    "naive": "#333333",
    "fixed": "#999999",
}
"""Law of K -> its colour, the same in every picture."""


def reduce_colours(path: str | os.PathLike) -> None:
    """Rewrites a PNG file with 256 colours, a third of its bytes."""
    with PIL.Image.open(path) as image:
        whole, resolution = image.convert("RGB"), image.info["dpi"]
    # The median cut keeps large areas, maximal coverage thin lines; the most frequent are exact.
    kept = [
        np.reshape(whole.quantize(120, method, dither=0).getpalette()[:360], (-1, 3))
        for method in (PIL.Image.Quantize.MEDIANCUT, PIL.Image.Quantize.MAXCOVERAGE)
    ]
    most = sorted(whole.getcolors(whole.width * whole.height), reverse=True)[:16]
    palette = np.concatenate([*kept, [colour for _, colour in most]]).astype(np.int64)
    pixels = np.asarray(whole, np.int64) @ (65536, 256, 1)
    packed, places = np.unique(pixels, return_inverse=True)
    colours = np.stack([packed >> 16, packed >> 8 & 255, packed & 255], axis=1)
    nearest = np.argmin(np.sum((colours[:, None] - palette) ** 2, axis=2), axis=1)
    reduced = PIL.Image.fromarray(nearest[places].reshape(pixels.shape).astype(np.uint8))
    reduced.putpalette(palette.ravel().tolist())
    with files.replacing(path) as partial:
        reduced.save(partial, format="PNG", optimize=True, dpi=resolution)


def delta_in_words(delta: float) -> str:
    """A delta as a formula: a power of ten where it is one."""
    power = np.log10(delta)
    value = f"10^{{{round(power)}}}" if power == round(power) else f"{delta:g}"
    return rf"$\delta = {value}$"


def new_panels(
    number: int, width: float = WIDTH, height: float = 3.4, *, share_vertical: bool = False
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
        columnspacing=1.4,
    )
