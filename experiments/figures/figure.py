"""The one way every figure runs: compute rows of a size, keep them, draw from the file.

A figure is one `FigureSpec` in its own file, `<paper>/figure_<n>.py`, under the name FIGURE; its
binary is three lines, and its flags follow from what it says. Three words say how much is computed,
for all of them: --quick, --size=mid, and full, the default. Every row names its size, and rows of
one size are never read, overwritten or gone on with at another.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
from absl import flags
from matplotlib.figure import Figure

from dpjax import plotting
from dpjax.commands import command_line, derived_flags
from experiments.figures import panels
from experiments.figures.rows import RowFolder, Rows, read_rows, size_of

flags.disclaim_key_flags()  # They belong to the figure's binary: its --help shows them.

QUICK, MID, FULL = "quick", "mid", "full"
"""Sizes: seconds; what four CPU cores compute in an hour or two; the paper's."""

ROOT = os.path.join("runs", "figures")
"""Where figures go by default, in a folder for each paper and size."""


def option(
    default: Any, words: str, *, choices: Sequence[str] | None = None, least: int | None = None
) -> Any:
    """A field of a figure's options, and so a flag of its binary, with this help.

    `choices` are the only values of a word, or of the words of a tuple.
    """
    return dataclasses.field(
        default=default, metadata={"help": words, "choices": choices or (), "least": least}
    )


@dataclasses.dataclass(frozen=True)
class DataFolders:
    """Options of a figure that loads data sets; see `data.load`."""

    data_dir: str | None = option(None, "Folder of prepared or downloaded data sets.")
    cache_dir: str | None = option(None, "Where downloads go, if not into --data_dir.")

    @property
    def folders(self) -> dict[str, str | None]:
        """The two as arguments of `data.load`."""
        return {"data_dir": self.data_dir, "cache_dir": self.cache_dir}


DEFAULT_FOLDERS = DataFolders()


@dataclasses.dataclass(frozen=True)
class FigureSpec:
    """One figure: what its rows are, how they are made, and how they are drawn.

    Its folder is `paper`, its file `name`. `columns` are those of the rows, in order, with their
    units ("1": a pure number; "name": a word); `takes` the sizes that it knows, with their wall
    times, of one CPU core unless it says more; `committed` the size of the rows under docs/figures.

    Either `rows(size)` returns the rows, or, where numbers take long, `train(folder)` computes what
    the folder's rows do not hold yet and adds it. With `options`, a frozen dataclass of `option`
    fields and so the flags of this figure alone, each takes them as a second argument. What is
    trained may be rows of other files, `trained`; then `derive(folder)` makes the figure's rows of
    them.

    `draw(rows)` returns the picture, a pure function of the rows; `summary(rows)` lines to print.
    """

    paper: str
    name: str
    columns: Mapping[str, str]
    takes: Mapping[str, str]
    draw: Callable[[Rows], Figure]
    rows: Callable[..., Rows] | None = None
    train: Callable[..., None] | None = None
    derive: Callable[[RowFolder], Rows] | None = None
    trained: Sequence[str] = ()
    options: Any = None
    summary: Callable[[Rows], Sequence[str]] | None = None
    committed: str = FULL

    def default_folder(self, size: str | None, root: str = ROOT) -> str:
        """Where it goes if nobody says: <root>/<paper>, the size after it unless it is full."""
        ending = "" if size in (None, FULL) else f"_{size}"
        return os.path.join(root, f"{self.paper}{ending}")

    def produce(
        self,
        out_dir: str | os.PathLike,
        size: str | None = None,
        *,
        redraw: bool = False,
        options: Any = None,
        report: Callable[[str], None] = lambda line: None,
    ) -> list[str]:
        """Writes `<name>.csv`, `.png` and `.svg`; returns their paths, those of trained rows first.

        If `redraw`, nothing is computed anew: drawn are the rows, or the trained rows, in
        `out_dir`, of the size that they have; without any it is a FileNotFoundError. The size is
        else full if None. `report` is called with a line for every finished piece of training.
        """
        os.makedirs(out_dir, exist_ok=True)
        folder = RowFolder(os.fspath(out_dir), FULL, report)
        if size is None and redraw:
            size = size_of(folder.file((*self.trained, self.name)[0]))
        folder = dataclasses.replace(folder, size=size or FULL)
        if folder.size not in self.takes:
            raise ValueError(
                f"{self.name} has no size {folder.size}: pass --size={'|'.join(self.takes)}"
            )
        folder.read(self.name)  # Rows of another size are refused before anything is computed.
        own = () if self.options is None else (options or self.options,)
        if self.train is not None and not redraw:
            self.train(folder, *own)
        made = None
        if self.derive is not None:
            made = self.derive(folder)
        elif self.rows is not None and not redraw:
            made = self.rows(folder.size, *own)
        if not (folder.read(self.name) if made is None else made):
            raise ValueError(f"{out_dir} holds nothing that {self.name} shows: leave --redraw away")
        if made is not None:
            folder.write(self.name, self.columns, made)
        # The picture is made from the file, so it can show nothing that the file does not hold.
        paths = [folder.file(name) for name in (*self.trained, self.name)]
        return [*paths, *self.save(folder.read(self.name), out_dir)]

    def save(self, rows: Rows, out_dir: str | os.PathLike) -> list[str]:
        """Draws rows in the common style; writes `<name>.png` and `.svg`, returns their paths."""
        with matplotlib.rc_context(panels.STYLE):  # Ticks are made only as the picture is saved.
            paths = plotting.save_figure(self.draw(rows), out_dir, self.name)
        panels.reduce_colours(paths[0])
        return paths

    def run(self) -> None:
        """Runs the binary: flags, rows, picture, paths."""
        # Defined here, not at import, so that several figures can be imported into one process.
        out_dir = flags.DEFINE_string(
            "out_dir",
            None,
            f"Folder to write into. Default: {self.default_folder(FULL)}, the size after it.",
        )
        asked = define_size(self.takes)
        redraw = flags.DEFINE_bool(
            "redraw", False, "Compute nothing anew; draw the rows in the folder."
        )
        kind = None if self.options is None else type(self.options)
        own = kind and derived_flags.Group(kind, **vars(self.options))

        def main() -> int:
            size, start = asked(), time.monotonic()
            paths = self.produce(
                out_dir.value or self.default_folder(size),
                size,
                redraw=redraw.value,
                options=own and own.made(kind),
                report=lambda line: print(f"{time.monotonic() - start:.0f} s  {line}", flush=True),
            )
            self.show(paths)
            print(f"{time.monotonic() - start:.1f} s")
            return 0

        command_line.run(main)

    def show(self, paths: Sequence[str]) -> None:
        """Prints what `produce` returned, and what the figure says of its rows."""
        for path in paths:
            print(path)
        if self.summary is not None:
            for line in self.summary(read_rows(paths[len(self.trained)])):
                print(line)


def define_size(takes: Mapping[str, str]) -> Callable[[], str | None]:
    """Defines --quick and --size; returns a function that reads them, None if neither is passed."""
    words = "; ".join(f"{size}: {time}" for size, time in takes.items())
    quick = flags.DEFINE_bool("quick", False, "The same as --size=quick.")
    size = flags.DEFINE_enum("size", None, list(takes), f"{words}. Default: full.")

    def asked() -> str | None:
        if quick.value and size.value not in (None, QUICK):
            raise ValueError(f"--quick is a size: leave it or --size={size.value} away")
        return QUICK if quick.value else size.value

    return asked
