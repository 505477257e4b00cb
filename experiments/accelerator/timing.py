"""Compiles jobs in threads and times them in order, one at a time."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Sequence
from typing import Any

import jax

from experiments.accelerator import ceilings, profile, programs
from experiments.accelerator.jobs import ALL_CONV, FIGURE_7, MLP, Job
from experiments.accelerator.programs import Program
from experiments.accelerator.rows import RowFile

_SHARE_TO_COMPILE = 0.45
"""Of the seconds that are left, at most so many wait for the programs of a wave."""
_LAST_SECONDS = 4.0
"""Nothing is timed in these."""
_SECONDS_AGAIN = 15.0
"""Kept for what is timed again and for profiles."""
_SHARE_OF_MEMORY = 0.9
_PROFILED = [("figure 7", FIGURE_7, 64), ("candidates", ALL_CONV, 64), ("candidates", MLP, 64)]
"""Section, model and width of what is profiled in the end."""
_KERNELS_SHOWN = 12


class Measured:
    """Times jobs until `seconds` after `file` was opened; a failure is a row, too.

    No program is timed while another compiles, unless that one takes too long: then the row says
    how many did, and it is taken again in the end if there is time. `threads` compile at once.
    """

    def __init__(
        self, file: RowFile, copied: float, seconds: float, threads: int, tiny: bool
    ) -> None:
        self._file, self._copied, self._ends, self._tiny = file, copied, seconds, tiny
        self._pool = concurrent.futures.ThreadPoolExecutor(threads)
        self._waiting: list[tuple[Job, concurrent.futures.Future]] = []
        self._disturbed: list[tuple[Job, Program]] = []
        self._profiled: list[tuple[Job, Program]] = []

    def left(self) -> float:
        """Returns the seconds that are left."""
        return self._ends - self._file.seconds()

    def wave(self, jobs: Sequence[Job]) -> None:
        """Compiles these jobs, then times them, and earlier ones that were not ready in time."""
        self._waiting += [
            (job, self._pool.submit(programs.compiled, job, self._tiny)) for job in jobs
        ]
        self._wait(_SHARE_TO_COMPILE * self.left(), concurrent.futures.ALL_COMPLETED)
        self._time_ready()

    def finish(self) -> None:
        """Times what is ready before the end, then again what was disturbed; profiles a few."""
        kept = _SECONDS_AGAIN if self._disturbed or self._profiled else _LAST_SECONDS
        while self._waiting and self.left() > kept:
            self._wait(self.left() - kept, concurrent.futures.FIRST_COMPLETED)
            self._time_ready()
        for job, _ in self._waiting:
            self._put(job, note="not compiled in time")
        disturbed, self._disturbed = self._disturbed, []
        for job, program in disturbed:
            self._try(job, lambda program=program: self._time(job, program, "again"))  # noqa: B023
        for job, program in self._profiled:
            self._try(job, lambda job=job, program=program: self._profile(job, program))
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _wait(self, seconds: float, until: str) -> None:
        futures = [future for _, future in self._waiting]
        concurrent.futures.wait(futures, max(0.0, seconds), until)

    def _time_ready(self) -> None:
        """Times what is compiled, in order; the rest goes on waiting."""
        done = [future.done() for _, future in self._waiting]
        ready = [each for each, is_done in zip(self._waiting, done) if is_done]
        self._waiting = [each for each, is_done in zip(self._waiting, done) if not is_done]
        for job, future in ready:
            self._try(job, lambda job=job, future=future: self._time(job, future.result()))

    def _try(self, job: Job, measure: Callable[[], None]) -> None:
        if self.left() < _LAST_SECONDS:
            self._put(job, note="no time")
            return
        try:
            measure()
        except Exception as error:  # The other rows are worth having.
            self._put(job, note="failed: " + " ".join(f"{error!r}".split())[:200])

    def _time(self, job: Job, program: Program, note: str = "") -> None:
        found = {
            "rows": program.rows,
            "kernels": program.kernels,
            "megabytes_a_step": program.bytes / 1e6,
            "scratch_mb": program.scratch / 1e6,
            "compile_s": program.compile_seconds,
        }
        memory = (jax.devices()[0].memory_stats() or {}).get("bytes_limit", float("inf"))
        if program.scratch > _SHARE_OF_MEMORY * memory:
            self._put(job, **found, note="more memory than there is")
            return
        compiling = sum(future.running() for _, future in self._waiting)
        median, least = (each / program.steps for each in ceilings.clock(program.call))
        if compiling and not note:
            self._disturbed.append((job, program))
        if (job.section, job.model, job.width) in _PROFILED and not note:
            self._profiled.append((job, program))
        self._put(
            job,
            **found,
            milliseconds=1e3 * median,
            least_milliseconds=1e3 * least,
            records_a_second=job.width * job.lot / median,
            percent_of_copy=100 * program.bytes / median / self._copied,
            compiling=compiling,
            note=note,
        )

    def _profile(self, job: Job, program: Program) -> None:
        found = profile.kernel_times(program.call)
        total = sum(kernel.milliseconds for kernel in found)
        self._put(
            job, section="profile", milliseconds=total / program.steps, note="all kernels of a step"
        )
        for kernel in found[:_KERNELS_SHOWN]:
            self._put(
                job,
                section="profile",
                milliseconds=kernel.milliseconds / program.steps,
                kernels=kernel.launches / program.steps,
                note=kernel.name[:80],
            )

    def _put(self, job: Job, **found: Any) -> None:
        named = {
            "section": job.section,
            "contestant": job.contestant,
            "model": job.model,
            "width": job.width,
            "lot": job.lot,
            "rows": job.rows,
            "variant": job.variant,
        }
        self._file.put(**(named | found))
