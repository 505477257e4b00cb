"""Repetitions of settings, trained side by side by programs compiled once for a search.

The repetitions of one setting have lots of one size and the same number of steps, so vectorising
over them wastes nothing, unlike the slots of `training.mixed_sweep`, which a batch of a search
would leave half empty. The size of a lot and the number of steps are arguments of the program; its
one static number is the capacity of a lot, which is rounded up to a power of two. Calls run at the
same time in threads: on a CPU each keeps about one core busy. If a call has so much work that it
pays for further programs, capacities are rounded up less: on Adult, where the time of a step is
proportional to the rows of its padded lot, that saves a quarter of a long search.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any

import jax
import numpy as np

from dpjax import checks, training
from dpjax.randomness import keys as key_streams
from dpjax.training.dp_sgd import advance, begin, returned
from dpjax.training.lots import ALONE, POISSON_DENSE, LotFamily, family_of
from dpjax.training.optimizers import Optimizer
from dpjax.tuning.problem.problem import Material
from dpjax.tuning.problem.task import Task
from dpjax.tuning.runner import initial_parameters, scored_run, train_config

PyTree = Any
Lots = training.FixedLots | training.PoissonLots | training.CyclicPoissonLots

_FEW_PARAMETERS = 20_000
"""Below this, vectorising runs pays on a CPU; a larger net's products fill the cores anyway."""

_MUCH_WORK = 2**22
"""From this many rows of padded lots in one call, capacities are rounded up less. It is half a
second of a core for logistic regression on 123 features (0.12 us a row), a sixth of the time to
compile its program, which serves all settings with lots of that class."""

_CLASSES_AN_OCTAVE = 4


class RepeatedRuns:
    """Trains runs that differ in lots, steps, keys and hyperparameters.

    Formal guarantees:
      Run i is trained as `training.make_train` would train it with `lots[i]`, `steps[i]`, lot size
      `hyperparameters["lot_size"][i]` and its own key: same lots, noise and steps (padding beyond
      its lots never holds a record; see `LotFamily.draw`). Its result depends on nothing else, up
      to float32 rounding.
    """

    def __init__(
        self,
        task: Task,
        optimizer: Optimizer,
        *,
        width: int | None,
        usual_width: int,
        workers: int | None,
    ):
        """Takes the arguments of `TrainedAccuracy`; `usual_width` is for a `width` of None."""
        if width is not None:
            width = checks.whole("side_by_side", width)
        if workers is not None:
            workers = checks.whole("workers", workers)
        self._task, self._optimizer = task, optimizer
        self._on_cpu = jax.default_backend() == "cpu"
        shapes = jax.eval_shape(task.initial, jax.random.key(0))
        parameters = sum(leaf.size for leaf in jax.tree.leaves(shapes))
        if width is None:
            width = usual_width if parameters < _FEW_PARAMETERS or not self._on_cpu else 1
        self._placement = training.Placement(width)
        devices = jax.local_devices()
        if workers is None:
            workers = _cores() if self._on_cpu else len(devices)
        self._workers = workers
        self._devices = [devices[place % len(devices)] for place in range(workers)]
        self._programs: dict[tuple[LotFamily, Any], Any] = {}
        self._locks: dict[tuple[LotFamily, Any], threading.Lock] = collections.defaultdict(
            threading.Lock
        )
        self._data: dict[Any, PyTree] = {}
        self.compilations = 0

    def __call__(
        self,
        lots: Sequence[Lots],
        steps: np.ndarray,
        key_words: np.ndarray,
        hyperparameters: Mapping[str, np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Trains n runs; returns their scores in units, int64, and whether they are finite, (n,).

        Args:
          lots: the lots of each run.
          steps: (n,) int, the steps of each run.
          key_words: (n, 2) uint32, the words of each run's threefry key; all different.
          hyperparameters: name -> (n,), taken as float32; among them `lot_size`, the divisor of the
            noisy sum.
        """
        number = len(lots)
        if len(np.unique(key_words, axis=0)) < number:
            raise ValueError("two runs share a key and would get identical noise: pass other seeds")
        values = {name: np.asarray(v, np.float32) for name, v in hyperparameters.items()}
        units, finite = np.zeros(number, np.int64), np.zeros(number, bool)
        free: queue.SimpleQueue = queue.SimpleQueue()
        for device in self._devices:
            free.put(device)

        def train(family: LotFamily, members: np.ndarray) -> None:
            device = free.get()
            try:
                inputs = self._inputs(family, members, lots, steps, key_words, values)
                outputs = self._program(family, device, inputs)(inputs, *self._data[device])
                outputs = jax.device_get(outputs)
            finally:
                free.put(device)
            kept = slice(0, len(members))
            units[members], finite[members] = outputs[0][kept], outputs[1][kept]

        for device in set(self._devices) - set(self._data):
            arrays = (self._task.train.arrays, self._task.validation.arrays)
            self._data[device] = jax.device_put(arrays, device)
        with futures.ThreadPoolExecutor(self._workers) as pool:
            running = [pool.submit(train, *call) for call in self._calls(lots, steps)]
            for done in running:
                done.result()
        return units, finite

    def _calls(self, lots: Sequence[Lots], steps: np.ndarray) -> list[tuple[LotFamily, np.ndarray]]:
        """Groups runs into calls of one program each; the call with the most work comes first."""
        waiting = collections.defaultdict(list)
        for member, one in enumerate(lots):
            steps_of_call = int(steps[member]) * self._placement.width
            waiting[class_of(one, steps_of_call)].append(member)
        calls = []
        for family, alike in waiting.items():
            # Runs of similar length side by side, since all lanes of a call wait for the longest.
            members = np.array(alike)[np.argsort(-steps[alike], kind="stable")]
            for start in range(0, len(members), self._placement.width):
                calls.append((family, members[start : start + self._placement.width]))
        return sorted(calls, key=lambda call: -int(steps[call[1]].max()) * call[0].capacity)

    def _inputs(
        self,
        family: LotFamily,
        members: np.ndarray,
        lots: Sequence[Lots],
        steps: np.ndarray,
        key_words: np.ndarray,
        hyperparameters: Mapping[str, np.ndarray],
    ) -> PyTree:
        """Returns the inputs of one call; lanes without a run repeat the last one for 0 steps."""
        lanes = np.append(members, np.full(self._placement.width - len(members), members[-1]))
        own = steps[lanes].astype(np.uint32)
        own[len(members) :] = 0
        return {
            "key": key_words[lanes].astype(np.uint32),
            "steps": own,
            "hyperparameters": {name: all_[lanes] for name, all_ in hyperparameters.items()},
            "lots": jax.tree.map(
                lambda *leaves: np.stack(leaves), *[family.numbers_of(lots[i]) for i in lanes]
            ),
        }

    def _program(self, family: LotFamily, device: Any, inputs: PyTree) -> Callable[..., PyTree]:
        """Returns the compiled program of a class of lots on a device."""
        with self._locks[family, device]:
            if (family, device) not in self._programs:
                mapped = self._placement.mapped(self._run_of(family), (0, None, None))
                with jax.default_device(device):
                    lowered = training.jit(mapped).lower(inputs, *self._data[device])
                    self._programs[family, device] = lowered.compile()
                self.compilations += 1
            return self._programs[family, device]

    def _run_of(self, family: LotFamily) -> Callable[[PyTree, PyTree, PyTree], PyTree]:
        """Returns run(inputs, training records, validation records) -> (units, finite)."""
        task, optimizer = self._task, self._optimizer
        rows = task.train.number
        config = train_config(
            Material(task, optimizer, ()), _any_member(family), steps=1, lot_size=1.0
        )

        def run(inputs: PyTree, records: PyTree, validation: PyTree) -> PyTree:
            key = jax.random.wrap_key_data(inputs["key"], impl=key_streams.IMPLEMENTATION)
            hyperparameters = inputs["hyperparameters"]
            state = advance(
                config,
                key,
                hyperparameters,
                begin(
                    config,
                    hyperparameters,
                    initial_parameters(task, key_streams.stream(key, "initial")),
                ),
                records,
                draw=family.lots_of_steps(key, inputs["lots"], rows),
                expected_lot_size=hyperparameters["lot_size"],
                steps=inputs["steps"],
                total_steps=inputs["steps"],
            )
            outputs = scored_run(task, returned(config, state), validation)
            return outputs["units"], outputs["finite"]

        return run


def class_of(lots: Lots, steps_of_call: int = 0) -> LotFamily:
    """Returns the family that a run's lots are drawn from, its capacity rounded up if cheap.

    If a call has many steps in all, there are four capacities per octave, else powers of two alone.
    They depend on the run and on the width of a call alone: a resumed search, in whatever order,
    trains each setting by the same program.
    """
    family = family_of(lots)
    if family.kind in (ALONE, POISSON_DENSE):
        return family
    rounded = 1 << (family.capacity - 1).bit_length()
    if steps_of_call * rounded >= _MUCH_WORK:
        unit = max(1, rounded // (2 * _CLASSES_AN_OCTAVE))
        rounded = -(-family.capacity // unit) * unit
    # Beyond half of the records, distinct draws would cost more than the padding saves.
    return dataclasses.replace(
        family, capacity=max(family.capacity, min(rounded, family.size // 2))
    )


def _any_member(family: LotFamily) -> Lots:
    """Returns lots of the family's kind; the program reads only their neighbouring relation."""
    if isinstance(family.lots, training.FixedLots):
        return family.lots
    if family.kind == "fixed":
        return training.FixedLots(family.size, family.capacity)
    return training.PoissonLots(family.size, 0.5, family.capacity)


def _cores() -> int:
    """Counts the CPU cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
