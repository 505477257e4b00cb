"""Opacus beside ours: torch in a process of its own, one answer for each turn."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
from collections.abc import Sequence


class OpacusProcess:
    """`opacus_steps` on one model of `opacus_zoo`; each call is one turn there.

    `python` has torch and opacus. The twin must have as many `parameters` as our model, but for
    those that `opacus_zoo` says it has more. Each way takes its fastest of `micro_batch_rows`, the
    whole lot if none are given.

    By way there are then `rows`, the micro-batch size that it takes; `megabytes`, memory that a
    step takes beside model and lot, None where unknown; and `refused`, why it cannot train the
    model, in Opacus's words. A process that does not get ready, or whose model has another number
    of parameters, is a RuntimeError.
    """

    def __init__(
        self,
        python: str,
        model: str,
        lot: int,
        parameters: int,
        micro_batch_rows: Sequence[int] = (),
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
        self.rows: dict[str, int] = {way: found["rows"] for way, found in hello["ways"].items()}
        self.megabytes: dict[str, float | None] = {
            way: found["megabytes"] for way, found in hello["ways"].items()
        }
        self.refused: dict[str, str] = hello["refused"]
        self.versions: str = hello["versions"]

    def __call__(self, way: str) -> dict[str, float]:
        """Seconds of one step, "cpu" and "wall"."""
        print(way, file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()
