"""Opacus beside ours: torch in a process of its own, one answer for each turn."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from experiments.benchmarks.contestants import Setting


class TorchWay:
    """One way of taking a step in the process of torch, as `contestants.Way` has it."""

    compile_seconds = None

    def __init__(self, process: OpacusProcess, name: str, found: Mapping[str, Any]) -> None:
        self._process, self._name = process, name
        self.setting = Setting(found["rows"])
        megabytes = found["megabytes"]
        self.scratch = None if megabytes is None else megabytes * 2**20

    def seconds(self, turn: int = 0) -> float:
        """Returns the mean seconds of a step, of lots that the other process draws itself."""
        return self._process(self._name)["cpu" if jax.default_backend() == "cpu" else "wall"]


class OpacusProcess:
    """`opacus_steps` on one model of `opacus_zoo`; each call is one turn there.

    `python` has torch and opacus. The twin must have as many `parameters` as our model, but for
    those that `opacus_zoo` says it has more. Each way is tried with all of `micro_batch_rows`, 0
    for the whole lot, and takes the fastest.

    `ways` are those that can train the model, and `refused` says, in Opacus's words, why another
    cannot; `trials` are rows of the search log. A process that does not get ready, or whose model
    has another number of parameters, is a RuntimeError.
    """

    def __init__(
        self,
        python: str,
        model: str,
        lot: int,
        parameters: int,
        micro_batch_rows: Sequence[int] = (0,),
        tiny: bool = False,
    ) -> None:
        script = pathlib.Path(__file__).with_name("opacus_steps.py")
        # Threads that spin while they wait would take the processor from the other process.
        environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
        command = [python, str(script), model, *map(str, (lot, *micro_batch_rows))]
        self._process = subprocess.Popen(
            [*command, "--tiny"] if tiny else command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        line = self._process.stdout.readline()
        if not line:
            error = (self._process.communicate()[1].strip().splitlines() or ["no output"])[-1]
            raise RuntimeError(error)
        hello = json.loads(line)
        for way, found in hello["ways"].items():
            wanted = parameters + found["more_parameters"]
            if found["parameters"] != wanted:
                self.close()
                raise RuntimeError(
                    f"{model} has {found['parameters']} parameters by {way} and {wanted} are "
                    "expected: make opacus_zoo.py and zoo.py agree"
                )
        self.refused: dict[str, str] = hello["refused"]
        self.versions: str = hello["versions"]
        self.ways = {way: TorchWay(self, way, found) for way, found in hello["ways"].items()}
        blank = {"steps_a_call": 1, "remat": 0, "scratch_mb": None, "compile_s": None}
        self.trials = [
            {
                "contestant": way,
                "micro_batch": int(rows) or "whole",
                "milliseconds": float(f"{1e3 * seconds:.4g}"),
                **blank,
            }
            for way, found in hello["ways"].items()
            for rows, seconds in found["trials"].items()
        ]

    def __call__(self, way: str) -> dict[str, float]:
        """Seconds of one step, "cpu" and "wall"."""
        print(way, file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()
