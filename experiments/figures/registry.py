"""All figures there are: every module beside the papers' others that says FIGURE = ..."""

from __future__ import annotations

import importlib
import pathlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from experiments.figures.figure import FigureSpec

_SAYS = re.compile(r"^FIGURE = ", re.MULTILINE)


def names() -> list[str]:
    """Returns `<paper>.<module>` of every figure, by paper and number; imports none of them."""
    here = pathlib.Path(__file__).parent
    found = [path for path in here.glob("*/*.py") if _SAYS.search(path.read_text(encoding="utf-8"))]
    return [f"{path.parent.name}.{path.stem}" for path in sorted(found, key=_order)]


def _order(path: pathlib.Path) -> tuple[str, str, int]:
    """Paper, name and number, so that figure 10 comes after figure 9."""
    name, number = re.fullmatch(r"(.*?)(\d*)", path.stem).groups()
    return path.parent.name, name, int(number or 0)


def load(name: str) -> FigureSpec:
    """Returns a figure by one of `names`."""
    return importlib.import_module(f"experiments.figures.{name}").FIGURE
