"""Flags of where candidates are trained: devices, hosts, array jobs, and going on after a stop."""

from __future__ import annotations

import os
import re
import shutil

import jax
from absl import flags

from dpjax import training
from dpjax.training.sweep import hosts
from dpjax.tuning.job import Job

_PLACEMENT = flags.DEFINE_enum(
    "placement",
    "vmap",
    list(training.placement_names),
    "How candidates lie on the devices; auto measures a few steps of each way and takes the best.",
)
_RESUME = flags.DEFINE_bool(
    "resume",
    False,
    "Keep checkpoints in <out_dir>.curator, and go on from those that an earlier, interrupted run "
    "with the same flags left there. A run that has finished already is left as it is.",
)
_CHECKPOINT_SECONDS = flags.DEFINE_float(
    "checkpoint_seconds", 300.0, "--resume, --shard: least time between two checkpoints."
)
_SHARD = flags.DEFINE_string(
    "shard",
    None,
    "i/N: train the i-th (from 0) of N shares of the candidates and select nothing; when all have "
    "finished, merge/N selects and writes the release. All with the same flags and --out_dir.",
)
_COORDINATOR = flags.DEFINE_string(
    "coordinator", None, "Several processes: host:port of process 0, the same for all."
)
_COORDINATOR_BIND_ADDRESS = flags.DEFINE_string(
    "coordinator_bind_address",
    None,
    "Several processes: host:port that process 0 listens on, where --coordinator is not its own "
    "address or --distributed finds it; JAX itself would listen on every interface.",
)
_PROCESS_COUNT = flags.DEFINE_integer("process_count", None, "Several processes: how many.")
_PROCESS_ID = flags.DEFINE_integer("process_id", None, "Several processes: this one, from 0.")
_DISTRIBUTED = flags.DEFINE_bool(
    "distributed",
    False,
    "Several processes that JAX finds by itself: TPU slices, Slurm, Open MPI, Kubernetes.",
)


def join_processes() -> bool:
    """Joins the other processes, if the flags ask for any; returns whether this one writes."""
    given = (_COORDINATOR.value, _PROCESS_COUNT.value, _PROCESS_ID.value)
    if _DISTRIBUTED.value or any(value is not None for value in given):
        hosts.join(*given, coordinator_bind_address=_COORDINATOR_BIND_ADDRESS.value)
    return jax.process_index() == 0


def lasting() -> bool:
    """Whether the flags ask for a job that outlives this process.

    Raises:
      ValueError: for a --shard that cannot be read, or one without a folder to come back to.
    """
    asked = _RESUME.value or _shard() is not None
    if asked and flags.FLAGS["out_dir"].value is None:
        raise ValueError("--resume and --shard need a folder to come back to: pass --out_dir too")
    return asked


def writes_nothing() -> bool:
    """Whether this process only trains a share, which another one merges.

    Raises:
      ValueError: for a --shard that cannot be read.
    """
    shard = _shard()
    return jax.process_index() != 0 or (shard is not None and shard[0] is not None)


def job(folder: str, label: str) -> Job:
    """The job that the flags ask for.

    Args:
      folder: of the run; the working folder stands beside it.
      label: what the result depends on beside what the procedure itself knows.

    Raises:
      ValueError: for a --shard that cannot be read, or a folder that a next job would not find.
    """
    return Job(
        placement=_PLACEMENT.value,
        folder=f"{folder}.curator" if lasting() else None,
        shard=_shard(),
        label=label,
        checkpoint_seconds=_CHECKPOINT_SECONDS.value,
    )


def _shard() -> tuple[int | None, int] | None:
    if _SHARD.value is None:
        return None
    match = re.fullmatch(r"(\d+|merge)/(\d+)", _SHARD.value)
    if match is None:
        raise ValueError(f"--shard={_SHARD.value}: write i/N, such as 0/4, or merge/N")
    return None if match[1] == "merge" else int(match[1]), int(match[2])


def remove_working_folder(done: Job) -> None:
    """Deletes what is left of keys, checkpoints and shards' results: with the release written, none
    is needed, and whoever had the keys could take the noise away."""
    if done.folder is not None and os.path.lexists(done.folder):
        with done.held():
            shutil.rmtree(done.folder)
