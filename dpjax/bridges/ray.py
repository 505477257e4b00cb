"""Ray: a cluster as the executor of `bridges.tune`, one Ray task for a candidate.

Philipp Moritz et al., "Ray: A Distributed Framework for Emerging AI Applications", OSDI 2018. Ray
retries tasks, names them and counts them; here it does the first not at all, and the second without
saying anything. The third is for the curator's eyes.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, wait
from typing import Any

from dpjax import checks

TASK_NAME = "candidate"
"""Of every task, in Ray's dashboard and logs."""

_STATISTICS = "RAY_USAGE_STATS_ENABLED"


def executor(*, cpus: float = 1.0, gpus: float = 0.0) -> Executor:
    """Candidates as tasks of the Ray cluster that this process has joined.

    Formal guarantees:
      Each candidate is one task, which Ray runs once: not again where it raised, nor where its
      worker or machine died or ran out of memory. Such a death ends the tuning without a release,
      as that of a process in a pool does. Tasks share one name, which says nothing of a candidate
      or of K. How many there are is K: Ray's dashboard, metrics and logs (under /tmp/ray, which
      other users of a machine can read) are the curator's ONLY, and so are the arguments in its
      object store, hyperparameters and seeds. Ray's usage statistics, on unless switched off, count
      tasks and leave the cluster: refused here unless RAY_USAGE_STATS_ENABLED is 0, which must hold
      where the cluster was started and cannot be checked from here.

    Example:

    ```python
    ray.init(include_dashboard=False)  # With RAY_USAGE_STATS_ENABLED=0 in the environment.
    with bridges.ray.executor(cpus=4) as cluster:
        result = bridges.tune(run, space, base=base, score=score, executor=cluster)
    ```

    Args:
      cpus: CPU cores that Ray keeps for a candidate, > 0.
      gpus: GPUs that it keeps.

    Returns:
      A `concurrent.futures.Executor`. A run may be any function that Ray can pickle, and what it
      closes over is sent once; workers import dpjax and what else it needs.

    Raises:
      ImportError: without Ray, naming what to install.
      ValueError: where no cluster was joined yet, or the usage statistics are not switched off.
    """
    cpus, gpus = checks.positive("cpus", cpus), checks.not_negative("gpus", gpus)
    try:
        import ray
    except ImportError:
        raise ImportError(
            "dpjax.bridges.ray runs on ray, which is not installed: pip install -e '.[ray]' in "
            "dpjax's folder"
        ) from None
    if os.environ.get(_STATISTICS) != "0":
        raise ValueError(
            "Ray's usage statistics count tasks, which is K, and leave the cluster: set "
            f"{_STATISTICS}=0 in the environment where it is started, and here"
        )
    if not ray.is_initialized():
        raise ValueError(
            "no Ray cluster was joined: call ray.init(include_dashboard=False) first, or "
            "ray.init(address='auto') for one that runs"
        )
    return _Cluster(ray, cpus, gpus)


class _Task(Future):
    """A future whose cancelling reaches Ray, running or not."""

    def __init__(self, stop: Callable[[], object]):
        super().__init__()
        self._stop = stop

    def cancel(self) -> bool:
        cancelled = super().cancel()
        if cancelled:
            self._stop()
        return cancelled


class _Cluster(Executor):
    """What `executor` makes."""

    def __init__(self, ray: Any, cpus: float, gpus: float):
        self._ray, self._closed = ray, False
        self._pending: set[_Task] = set()
        self._sent: dict[int, tuple[Any, Any]] = {}
        self._call = ray.remote(_call).options(
            name=TASK_NAME,
            num_cpus=cpus,
            num_gpus=gpus,
            max_retries=0,  # Ray's default is 3; 0 also turns off those after memory ran out.
            retry_exceptions=False,
        )

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """See `concurrent.futures.Executor`.

        Raises:
          ValueError: for a function that cannot be sent to a worker.
        """
        if self._closed:
            raise RuntimeError("the executor was shut down: make another one")
        parts = [self._once(part) for part in (fn, *args)]
        given = self._call.remote(*parts, **kwargs)
        task = _Task(functools.partial(self._ray.cancel, given))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)
        given.future().add_done_callback(functools.partial(self._end, task))
        return task

    def _once(self, part: Any) -> Any:
        """An argument; a function as what Ray keeps of it, with all its data, from now on."""
        if not callable(part):
            return part
        if id(part) not in self._sent:
            try:
                # The function is held, so that no other gets its id.
                self._sent[id(part)] = part, self._ray.put(part)
            except Exception as error:  # Pickling raises what it finds.
                raise ValueError(
                    f"run cannot be sent to Ray's workers ({checks.shown(str(error))}): let it "
                    "open what it needs by itself"
                ) from None
        return self._sent[id(part)][1]

    def _end(self, task: _Task, given: Future) -> None:
        """Hands on what a task came to; in a thread of Ray's."""
        if not task.set_running_or_notify_cancel():
            return
        error = given.exception()
        if error is None:
            task.set_result(given.result())
        elif isinstance(error, self._ray.exceptions.RayTaskError):
            task.set_exception(error)  # What was raised in the task: one candidate's failure.
        else:
            kind = type(error).__name__
            task.set_exception(BrokenExecutor(f"Ray lost a task ({kind})"))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more tasks; the cluster stays as it is."""
        self._closed = True
        pending = list(self._pending)
        if cancel_futures:
            for task in pending:
                task.cancel()
        if wait:
            # A cancelled future counts as waited for only once Ray has answered.
            _wait([task for task in pending if not task.cancelled()])


_wait = wait  # `shutdown` has an argument of this name.


def _call(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """A task."""
    return fn(*args, **kwargs)
