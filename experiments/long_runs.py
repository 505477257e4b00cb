"""The figures' runs that want an accelerator, as one queue that can be stopped at any time.

  python -m experiments.long_runs --out_dir=runs/long --list
  python -m experiments.long_runs --out_dir=runs/long --data_dir=...
  python -m experiments.long_runs --out_dir=runs/long --only=papernot_steinke.figure_7
  python -m experiments.long_runs --out_dir=runs/rehearsal --quick   # all, in minutes on a CPU

Runs come in the order of what they settle for their time. Each is a figure of `experiments.figures`
at a size that no CPU finishes, in its paper's folder for that size, and goes on from the rows and
tables there: the same command after a stop loses the candidates in training, nothing else. Figure 7
saves these too, so it loses a minute. A run with a picture is finished and not begun again;
one that fails says why, and the next begins. Several processes may share the folder: runs of a
paper that another one works on are passed over.

A machine that is lent for minutes takes the queue in pieces. Set JAX_COMPILATION_CACHE_DIR, so that
each piece compiles only what is new:

  python -m experiments.long_runs --out_dir=runs/long --minutes=5 --rows_dir=$OUT

After so many minutes the process ends with code 75, whatever it does; the same command goes on. The
folder of rows gets copies of all rows and pictures, at the end of every piece.

**Hours are estimates.** A sweep on an H100 is bound by memory, so a run takes the bytes that its
records move, where these are known (docs/benchmarks/bytes.md, 64 candidates side by side), over
`COPIED`. Of other nets: records x the time that one was measured to take on a core of an AMD EPYC
server, over `CORES`, how many such cores one H100 is taken for.

Ding & Wu's figures 1 and 2 and their table are simulations and committed at full size. What is
trained around them, five minutes on a core, comes last: it shows whether a device agrees.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import flags

from dpjax import private_files
from dpjax.commands import command_line
from experiments.figures import registry
from experiments.figures.figure import FULL, MID, QUICK

CORES = 128.0
"""How many cores of the server that times were measured on do the work of one H100."""
COPIED = 2.4e12
"""Bytes that an H100 reads and writes in a second (docs/accelerators/h100/sweeps.md)."""


@dataclasses.dataclass(frozen=True)
class LongRun:
    """One run: a figure of `registry.names`, its size, and its options that are not the default.

    `settles` says what is known once it has run. It trains `records` records, each counted as often
    as it is used. One moves `megabytes` on an H100 or, if these are None, takes `seconds` of a
    core, by what `measured` names.
    """

    figure: str
    size: str
    options: Mapping[str, Any]
    settles: str
    records: float
    seconds: float
    measured: str
    megabytes: float | None = None

    @property
    def hours(self) -> float:
        """On one H100: an estimate."""
        if self.megabytes is not None:
            return self.records * self.megabytes * 1e6 / COPIED / 3600
        return self.records * self.seconds / CORES / 3600

    @property
    def command(self) -> str:
        """What runs it alone."""
        given = [f"--{name}={_said(value)}" for name, value in self.options.items()]
        return " ".join([f"python -m experiments.figures.{self.figure} --size={self.size}", *given])

    def folder(self, out_dir: str) -> str:
        """Where it goes: the figures of a paper read each other's rows."""
        return registry.load(self.figure).default_folder(self.size, out_dir)

    def finished(self, out_dir: str) -> bool:
        """Whether its picture is there, which is made last."""
        name = registry.load(self.figure).name
        return os.path.exists(os.path.join(self.folder(out_dir), f"{name}.png"))

    def run(self, out_dir: str, data_dir: str | None, report: Callable[[str], None]) -> None:
        """Runs it, or goes on with it."""
        spec, folder = registry.load(self.figure), self.folder(out_dir)
        shared = {"data_dir": data_dir, "tables_dir": os.path.join(folder, "tables")}
        known = {field.name for field in dataclasses.fields(spec.options)}
        taken = {name: value for name, value in shared.items() if name in known}
        options = dataclasses.replace(spec.options, **taken, **self.options)
        os.makedirs(folder, exist_ok=True)
        with private_files.locked(os.path.join(folder, "queue.lock"), folder):
            spec.produce(folder, self.size, options=options, report=report)


def _said(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _hype(figure: int, settles: str) -> LongRun:
    """Three federations of MNIST; 100 candidates alone and in five rounds, five epochs each."""
    return LongRun(
        f"dp_hype.figure_{figure}", FULL, {"datasets": ("mnist",), "chunk_size": 5}, settles,
        3 * 100 * 6 * 5 * 48_000, 4 * 1.2e-3, "docs/figures.md: 1.2 ms of four cores",
    )  # fmt: skip


_MNIST_NETS = {"problem": ("mnist_1000_sgd", "mnist_128_64_sgd")}
# Of one search: 64 settings of ten repetitions, some 20 of twenty, 200 epochs in the mean.
_MNIST_SEARCH = (64 * 10 + 20 * 20) * 200 * 60_000
_OF_MNIST_NETS = "0.55 and 0.12 MB per record at lots of 64"

QUEUE = (
    LongRun(
        "papernot_steinke.figure_7", FULL,
        {"model": "all_conv_pooled", "rates": 100, "placement": "vmap", "chunk_size": 50},
        "the figure with the net of the public example, which has .953 after 5,000 steps",
        100 * 14_062 * 256, 2e-3, "25.4 MB per record; an H100 trained 106,000 per second", 25.4,
    ),
    _hype(4, "whether the best of 100 candidates, 100 clients, has the authors' .968 (here .9065)"),
    _hype(5, "the same for skewed data, 100 clients"),
    _hype(13, "the same for skewed data, 50 clients"),
    _hype(12, "the same for skewed data, 250 clients"),
    LongRun(
        "dpareto.figure_8", "full_mnist", _MNIST_NETS,
        "whether the figure is reversed on MNIST at 400 epochs as it is at two",
        2 * _MNIST_SEARCH, 4.2e-5, _OF_MNIST_NETS, 0.34,
    ),
    LongRun(
        "dp_hype.figure_4", MID,
        {"datasets": ("cifar10_subset",), "net": "paper", "chunk_size": 2},
        "whether a vote finds anything on 10,000 images of CIFAR-10 with the paper's net",
        100 * 6 * 10 * 8_000, 4 * 7.3e-3, "docs/figures.md: 7.3 ms of four cores",
    ),
    LongRun(
        "dpareto.figure_5", "full_mnist", _MNIST_NETS,
        "whether ten searches of MNIST beat ten random ones; figure 8's two are among them",
        40 * _MNIST_SEARCH, 4.2e-5, _OF_MNIST_NETS, 0.34,
    ),
    LongRun(
        "ding_wu.figure_selectors", FULL, {}, "whether a device's models rank the selectors alike",
        1e8, 3e-6, "its docstring: five minutes",
    ),
)  # fmt: skip
"""Largest value first. Federations train so few candidates at a time that, by the estimate, these
are saved within five minutes."""

PIECE_ENDED = 75
"""The exit code where a piece's minutes ended before its runs."""

_OUT_DIR = flags.DEFINE_string("out_dir", None, "Folder of all runs.", required=True)
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Folder of data sets; see `data.load`.")
_LIST = flags.DEFINE_bool("list", False, "Only list the runs.")
_ONLY = flags.DEFINE_list("only", None, "Runs of these figures alone.")
_QUICK = flags.DEFINE_bool("quick", False, "Rehearse every run at the quick size of its figure.")
_MINUTES = flags.DEFINE_float("minutes", None, "End after these.", lower_bound=0.001)
_ROWS_DIR = flags.DEFINE_string("rows_dir", None, "Folder that rows and pictures are copied to.")


def chosen(only: Sequence[str] | None = None, quick: bool = False) -> list[LongRun]:
    """Returns the runs of these figures, or all, in order; `quick`: at the figures' quick size."""
    names = list(dict.fromkeys(run.figure for run in QUEUE))
    for name in only or ():
        if name not in names:
            raise ValueError(f"--only={name}: pass names of {', '.join(names)}")
    wanted = [run for run in QUEUE if not only or run.figure in only]
    if quick:
        wanted = [dataclasses.replace(run, size=QUICK, options={}) for run in wanted]
    return wanted


def copy_rows(out_dir: str, rows_dir: str | None) -> None:
    """Copies the rows and pictures of all runs, without what they go on from: that holds keys."""
    for path in pathlib.Path(out_dir).rglob("*"):
        if rows_dir and path.suffix in (".csv", ".png"):
            target = pathlib.Path(rows_dir, path.relative_to(out_dir))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def _end_piece() -> None:
    """Ends the process; what runs go on from is on the disk."""
    copy_rows(_OUT_DIR.value, _ROWS_DIR.value)
    print(f"ended after {_MINUTES.value:g} minutes: the same command goes on", flush=True)
    os._exit(PIECE_ENDED)


def main() -> int:
    """Lists or runs the queue; returns 1 if a run failed."""
    if _MINUTES.value is not None:
        timer = threading.Timer(60 * _MINUTES.value, _end_piece)
        timer.daemon = True
        timer.start()
    code = _run_queue()
    copy_rows(_OUT_DIR.value, _ROWS_DIR.value)
    return code


def _run_queue() -> int:
    """Lists or runs the queue; returns 1 if a run failed."""
    code = 0
    for run in chosen(_ONLY.value, _QUICK.value):
        finished = run.finished(_OUT_DIR.value)
        print(
            f"{run.command}\n  settles {run.settles}\n  estimated {run.hours:.1f} hours of an H100 "
            f"({run.measured})" + ("\n  finished" if finished else ""),
            flush=True,
        )
        if finished or _LIST.value:
            continue
        start = time.monotonic()
        try:
            run.run(_OUT_DIR.value, _DATA_DIR.value, lambda line: print(f"  {line}", flush=True))
        except private_files.InUseError as error:
            print(f"  passed over: {error}", flush=True)
        except Exception as error:  # The next run does not depend on it.
            code = 1
            print(f"  FAILED: {' '.join(str(error).split())}", flush=True)
        else:
            print(f"  finished after {(time.monotonic() - start) / 3600:.2f} hours", flush=True)
    return code


if __name__ == "__main__":
    command_line.run(main)
