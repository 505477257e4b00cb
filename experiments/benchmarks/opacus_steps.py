"""Steps of the zoo's models in torch, without privacy and by Opacus, in a process without JAX.

Needs torch and opacus alone (`pip install torch opacus`, or the `bench` extra). `OpacusProcess`
starts it:

  python opacus_steps.py gpt 64 0 16 4      # model, lot, micro-batch sizes tried (0: the lot)
  python opacus_steps.py gpt 16 0 4 --tiny
  python opacus_steps.py --check            # every model, tiny: are the updates right?

It prints one JSON line that says what each way is: its number of trained parameters, the seconds
that every micro-batch size took in a trial, the fastest of them, and the memory that a step takes.
Every line on standard input then names a way and is answered by a JSON line with the seconds of a
step:

  torch: gradient of the mean loss of a lot of fixed size, SGD. No privacy.
  opacus-hooks: `GradSampleModule` and `DPOptimizer`: per-example gradients by hooks.
  opacus-ghost: `GradSampleModuleFastGradientClipping`, `DPLossFastGradientClipping` and
    `DPOptimizerFastGradientClipping`: norms first, then a second pass back.

Every step draws its lot (by Opacus a Poisson one) of the records and gathers it, in micro-batches
whose gradients add up, as `BatchMemoryManager` has it; noise is drawn once a lot.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import json
import os
import pathlib
import re
import sys
import time
import warnings
from collections.abc import Callable

import opacus
import torch
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from opacus_zoo import TWINS, WAYS, Twin
from torch import Tensor, nn

RATE, CLIP_NORM, NOISE_MULTIPLIER = 0.1, 1.0, 1.0

RECORDS = 6000
"""As in `contestants`."""

_LEAST_SECONDS = 0.05
"""CPU time that the steps of one measurement fill, as in `contestants`."""
STEPS_A_TURN = 4
"""Steps of one turn, at least, as in `contestants`."""

_LONG = 1.0
"""Seconds of a step that is tried once with each micro-batch size; shorter ones are warmed up, and
the lower of two measurements counts."""


class _Criterion:
    """The losses of examples, or their mean, as the `reduction` that Opacus sets asks for."""

    def __init__(self, losses: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.losses, self.reduction = losses, "mean"

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        each = self.losses(outputs, targets)
        return each if self.reduction == "none" else each.mean()


class Step:
    """One way of taking a step of a model on a lot of its records; each call changes the model.

    Micro-batches are of so many `rows`, 0 for the whole lot.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Twin,
        way: str,
        rows: int,
        lot: int,
        clip_norm: float = CLIP_NORM,
        noise_multiplier: float = NOISE_MULTIPLIER,
    ) -> None:
        self.rows, self._private, self._data, self._lot = rows, way != "torch", data, lot
        trained = [leaf for leaf in model.parameters() if leaf.requires_grad]
        self.parameters = sum(leaf.numel() for leaf in trained)
        optimizer, criterion = torch.optim.SGD(trained, lr=RATE), _Criterion(data.losses)
        numbers = {
            "noise_multiplier": noise_multiplier,
            "max_grad_norm": clip_norm,
            "expected_batch_size": self._lot,
        }
        if way == "opacus-hooks":
            model = GradSampleModule(model)
            optimizer = DPOptimizer(optimizer, **numbers)
        elif way == "opacus-ghost":
            model = GradSampleModuleFastGradientClipping(model, max_grad_norm=clip_norm)
            optimizer = DPOptimizerFastGradientClipping(optimizer, **numbers)
            criterion = DPLossFastGradientClipping(model, optimizer, criterion)
        self.model, self.optimizer, self._criterion = model, optimizer, criterion

    def __call__(self) -> None:
        if self._private:
            self._private_step()
        else:
            self.optimizer.zero_grad(set_to_none=True)
            for inputs, targets in self._parts():
                mean = self._criterion(self.model(inputs), targets)
                (mean * (len(inputs) / self._lot)).backward()
            self.optimizer.step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def _parts(self) -> list[tuple[Tensor, Tensor]]:
        """Draws a lot and gathers it, a micro-batch at a time."""
        records = len(self._data.inputs)
        if self._private:
            chosen = torch.nonzero(torch.rand(records) < self._lot / records).flatten()
        else:
            chosen = torch.randint(records, (self._lot,))
        return [
            (self._data.inputs[part], self._data.targets[part])
            for part in chosen.split(self.rows or max(len(chosen), 1))
        ]

    def _private_step(self) -> None:
        parts = self._parts()
        for number, (inputs, targets) in enumerate(parts):
            # What `BatchMemoryManager` signals: only a lot's last micro-batch brings an update.
            self.optimizer.signal_skip_step(number + 1 < len(parts))
            self.optimizer.zero_grad(set_to_none=True)
            self._criterion(self.model(inputs), targets).backward()
            self.optimizer.step()

    def seconds(self, least: int = 1) -> dict[str, float]:
        """CPU time and wall time of a step, means over `least` steps that fill `_LEAST_SECONDS`."""
        start, wall, steps = time.process_time(), time.perf_counter(), 0
        while steps < least or time.process_time() - start < _LEAST_SECONDS:
            self()
            steps += 1
        taken = {"cpu": time.process_time() - start, "wall": time.perf_counter() - wall}
        return {clock: total / steps for clock, total in taken.items()}


def scratch_megabytes(step: Step) -> float | None:
    """What a step, taken once, adds to resident memory at most, beyond the model and the lot.

    None where the system does not tell (Linux does), and on a GPU.
    """
    if torch.cuda.is_available():
        return None
    step.optimizer.zero_grad(set_to_none=True)
    try:
        ctypes.CDLL(None).malloc_trim(0)  # What earlier steps freed is to be counted again.
        pathlib.Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before = _most_resident_kilobytes()
    except (OSError, AttributeError):
        return None
    step()
    return (_most_resident_kilobytes() - before) / 1024


def _most_resident_kilobytes() -> int:
    """Since the process started or last forgot it by writing 5 to clear_refs."""
    status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    if found is None:
        raise OSError("/proc/self/status has no VmHWM")
    return int(found.group(1))


def fastest(data: Twin, way: str, sizes: list[int], lot: int) -> tuple[Step, dict[int, float]]:
    """The step with the micro-batch size, of `sizes`, that took least time; the times of all."""
    clock = "wall" if torch.cuda.is_available() else "cpu"
    best, least, trials = None, float("inf"), {}
    for rows in sizes:
        step = Step(data.build(way), data, way, rows, lot)
        taken = step.seconds()[clock]
        if taken < _LONG:  # else what a first step does besides is little
            taken = min(step.seconds()[clock] for _ in range(2))
        trials[rows] = taken
        if taken < least:
            best, least = step, taken
    assert best is not None
    return best, trials


def check(name: str, lot: int = 16) -> None:
    """Takes steps of a tiny model and asserts that they are what a private step should be.

    Without noise the update is that of gradients taken example by example, clipped, added up and
    divided by the lot, whatever the micro-batches; with noise it is off by normal numbers of
    deviation noise multiplier x clip norm / lot, drawn once.
    """
    data = TWINS[name](True, lot)
    tolerance = 5e-2 if name.startswith("bfloat16") else 1e-4
    for way in WAYS[1:]:
        start = data.build(way)
        trained = [leaf for leaf in start.parameters() if leaf.requires_grad]
        gradients = []
        for row in range(lot):
            outputs = start(data.inputs[row : row + 1])
            loss = data.losses(outputs, data.targets[row : row + 1])[0]
            gradients.append(_flat(torch.autograd.grad(loss, trained)))
        norms = torch.stack([gradient.norm() for gradient in gradients])
        clip_norm = float(norms.median())
        weights = (clip_norm / norms).clamp(max=1)
        wanted = sum(weight * gradient for weight, gradient in zip(weights, gradients)) / lot
        for rows in (0, 4):
            for noise in (0.0, 1.0):
                model = copy.deepcopy(start)
                step = Step(model, data, way, rows, lot, clip_norm, noise)
                draws: list[object] = []
                step.optimizer.attach_step_hook(draws.append)
                step()
                assert len(draws) == 1, f"{name}, {way}: noise is drawn {len(draws)} times a lot"
                after = [leaf for leaf in model.parameters() if leaf.requires_grad]
                off = _flat([leaf.grad for leaf in after]) - wanted
                if noise:
                    ratio = float(off.std()) / (noise * clip_norm / lot)
                    bound = 6 / (2 * len(off)) ** 0.5 + tolerance
                    assert abs(ratio - 1) < bound, f"{name}, {way}: noise of {ratio} times"
                else:
                    error = float(off.abs().max() / wanted.abs().max())
                    assert error < tolerance, f"{name}, {way}, {rows} rows: off by {error}"


def _flat(tensors: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    return torch.cat([tensor.detach().float().flatten() for tensor in tensors])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", choices=list(TWINS))
    parser.add_argument("lot", nargs="?", type=int)
    parser.add_argument("rows", nargs="*", type=int)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    if torch.cuda.is_available():
        torch.set_default_device("cuda")
    # As many threads as XLA takes: those of the processors that this process may use.
    if hasattr(os, "sched_getaffinity"):
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    if arguments.check:
        for name in TWINS:
            check(name)
            print(name, "is right", flush=True)
        return
    data = TWINS[arguments.model](arguments.tiny, RECORDS)
    found: dict[str, Step] = {}
    trials: dict[str, dict[int, float]] = {}
    refused: dict[str, str] = {}
    for way in WAYS:
        try:
            sizes = arguments.rows or [0]
            found[way], trials[way] = fastest(data, way, sizes, arguments.lot)
        except NotImplementedError as error:  # what Opacus raises for what it cannot train
            refused[way] = str(error).splitlines()[0]
    hello = {
        "versions": f"torch {torch.__version__}, opacus {opacus.__version__}",
        "threads": torch.get_num_threads(),
        "ways": {
            way: {
                "rows": step.rows,
                "trials": trials[way],
                "parameters": step.parameters,
                "more_parameters": data.more.get(way, 0),
                "megabytes": scratch_megabytes(step),
            }
            for way, step in found.items()
        },
        "refused": refused,
    }
    print(json.dumps(hello), flush=True)
    for line in sys.stdin:
        step = found[line.strip()]
        step()  # The other process had the processor: caches are cold.
        print(json.dumps(step.seconds(STEPS_A_TURN)), flush=True)


if __name__ == "__main__":
    main()
