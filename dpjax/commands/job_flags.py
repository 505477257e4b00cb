"""Flags that say where candidates are trained (devices, hosts, array jobs) and resume a run."""

from __future__ import annotations

import os
import re
import shutil

import jax
from absl import flags

from dpjax.commands import derived_flags
from dpjax.training.sweep import hosts
from dpjax.tuning.job import Job

_JOB = derived_flags.Group(
    Job,
    "folder",
    "label",
    micro_batch_size={"kind": str},
)
_HOSTS = derived_flags.Group(hosts.join)
_RESUME = flags.DEFINE_bool(
    "resume",
    False,
    "Keep checkpoints in <out_dir>.curator, and go on from those that an earlier, interrupted run "
    "with the same flags left there. A run that has finished already is left as it is.",
)
_SHARD = flags.DEFINE_string(
    "shard",
    None,
    "i/N: train the i-th (from 0) of N shares of the candidates and select nothing; when all have "
    "finished, merge/N selects and writes the release. All with the same flags and --out_dir.",
)
_DISTRIBUTED = flags.DEFINE_bool(
    "distributed",
    False,
    "Several processes that JAX finds by itself: TPU slices, Slurm, Open MPI, Kubernetes.",
)


def join_processes() -> bool:
    """Joins the other processes, if the flags name any; returns whether this one writes files."""
    others = _HOSTS.values()
    named = any(others[name] is not None for name in ("coordinator", "process_count", "process_id"))
    if _DISTRIBUTED.value or named:
        with derived_flags.named_as_flags(_HOSTS.names):
            hosts.join(**others)
    return jax.process_index() == 0


def lasting() -> bool:
    """Returns whether the flags ask for a job that outlives this process."""
    asked = _RESUME.value or _shard() is not None
    if asked and flags.FLAGS["out_dir"].value is None:
        raise ValueError("--resume and --shard need a folder to come back to: pass --out_dir too")
    return asked


def writes_nothing() -> bool:
    """Returns whether this process only trains a share, which another one merges."""
    shard = _shard()
    return jax.process_index() != 0 or (shard is not None and shard[0] is not None)


def job(folder: str, label: str) -> Job:
    """Returns the job that the flags ask for; its working folder stands beside the run's `folder`.

    `label` names what else the result depends on, which the job itself does not see.
    """
    working = f"{folder}.curator" if lasting() else None
    return _JOB.made(
        Job, folder=working, shard=_shard(), label=label, micro_batch_size=_micro_batch_size()
    )


def _micro_batch_size() -> int | str | None:
    """Returns --micro_batch_size as a number or None; any other text as it is, for `Job`."""
    text = _JOB.micro_batch_size
    if text.lower() == "none":
        return None
    try:
        return int(text)
    except ValueError:
        return text


def _shard() -> tuple[int | None, int] | None:
    """Returns (i, N) for --shard=i/N, (None, N) for merge/N."""
    if _SHARD.value is None:
        return None
    match = re.fullmatch(r"(\d+|merge)/(\d+)", _SHARD.value)
    if match is None:
        raise ValueError(f"--shard={_SHARD.value}: write i/N, such as 0/4, or merge/N")
    return None if match[1] == "merge" else int(match[1]), int(match[2])


def remove_working_folder(done: Job) -> None:
    """Deletes the keys, checkpoints and shards' results that a finished job has left.

    The release is written, so none is needed; whoever had the keys could subtract the noise.
    """
    if done.folder is not None and os.path.lexists(done.folder):
        with done.held():
            shutil.rmtree(done.folder)
