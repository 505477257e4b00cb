"""Rows that survive the end of the process: each is on the disk before the next is measured."""

from __future__ import annotations

import csv
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from experiments.benchmarks import steps

COLUMNS = (
    "device",
    "at",
    "section",
    "contestant",
    "model",
    "width",
    "lot",
    "rows",
    "variant",
    "milliseconds",
    "least_milliseconds",
    "records_a_second",
    "kernels",
    "megabytes_a_step",
    "percent_of_copy",
    "scratch_mb",
    "compile_s",
    "compiling",
    "note",
)
"""Of a row:

  at                 seconds since the process began
  width, lot         candidates side by side, expected lot of each
  rows               of a micro-batch, 0 for the whole lot
  milliseconds       of a step of all candidates, the median of calls; the least beside it
  records_a_second   of all candidates
  kernels            launched in a step, by the compiled program
  megabytes_a_step   that the kernels touch, by the compiled program: an upper bound
  percent_of_copy    these bytes a second, of those of a large copy on this device
  compile_s          waiting for one of the threads left out; several compile at once
  compiling          programs that were compiled while this one was timed: 0 is undisturbed
"""


class RowFile:
    """A file of a folder, which processes append to in turn, and many threads.

    Rows name the device of those that are there; the first ones name that of this process.
    """

    def __init__(
        self, folder: str, name: str = "sweeps.csv", columns: Sequence[str] = COLUMNS
    ) -> None:
        os.makedirs(folder, exist_ok=True)
        self._path, self._columns = os.path.join(folder, name), columns
        self._began, self._lock = time.monotonic(), threading.Lock()
        self._device = self._known_device() or steps.device()

    def _known_device(self) -> str | None:
        if not os.path.exists(self._path):
            return None
        with open(self._path, encoding="utf-8", newline="") as file:
            return next((row["device"] for row in csv.DictReader(file)), None)

    def seconds(self) -> float:
        """Returns the seconds since the file was opened by this process."""
        return time.monotonic() - self._began

    def put(self, **row: Any) -> None:
        """Appends a row, and prints it; numbers have five digits."""
        row = {"device": self._device, "at": f"{self.seconds():.1f}", **row}
        short = {
            name: f"{value:.5g}" if isinstance(value, float) else value
            for name, value in row.items()
        }
        with self._lock, open(self._path, "a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, self._columns, lineterminator="\n")
            if not file.tell():
                writer.writeheader()
            writer.writerow(short)
            file.flush()
            os.fsync(file.fileno())
        print(",".join(f"{value}" for name, value in short.items() if name != "device"), flush=True)
