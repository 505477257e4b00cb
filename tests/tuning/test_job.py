"""Shards, processes, devices and interruptions change how candidates are trained, nothing else."""

import dataclasses
import json
import os
import pathlib
import shutil
import signal
import socket
import stat
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting, training
from dpjax.tuning import host_randomness
from dpjax.tuning.candidates import Choice, LogUniform, Space
from dpjax.tuning.execution import execute
from dpjax.tuning.job import Job
from dpjax.tuning.procedure import plan_procedure
from dpjax.tuning.run_settings import RunOptions
from dpjax.tuning.selections import BestOf
from dpjax.tuning.task import Records, Task

ROOT = pathlib.Path(__file__).parents[2]
GENERATOR = np.random.default_rng(2)
INPUTS = GENERATOR.normal(size=(60, 3)).astype(np.float32)
LABELS = (INPUTS[:, 0] > 0).astype(np.int32)
TASK = Task(
    initial=lambda key: {"w": 0.1 * jax.random.normal(key, (3,)), "b": jnp.zeros(())},
    loss=lambda params, example: jax.nn.softplus(
        (1 - 2 * example[1]) * (example[0] @ params["w"] + params["b"])
    ),
    correct=lambda params, example: (example[0] @ params["w"] + params["b"] > 0) == example[1],
    train=Records((INPUTS[:40], LABELS[:40]), public_size=40, size_bound=40),
    validation=Records((INPUTS[40:], LABELS[40:]), public_size=20, size_bound=20),
)


def procedure(law=None, **space):
    return plan_procedure(
        TASK,
        Space(learning_rate=LogUniform(0.1, 1.0), lot_size=Choice([4, 8]), **space),
        selection=BestOf(law or accounting.Fixed(7)),
        options=RunOptions(steps=6, noise_multiplier=1.0),
        optimizer=training.sgd(),
        epsilon=None,
        delta=1e-3,
        not_private=False,
        score_noise=1.0,
    )


PROCEDURE = procedure()


def run(seed=4, plan=PROCEDURE, **options):
    progress = options.pop("progress", None)
    return execute(
        TASK,
        plan,
        randomness=host_randomness.HostRandomness(seed),
        chunk_size=2,
        progress=progress,
        job=Job(**options),
    )


def assert_same(left, right, tolerance=0.0):
    np.testing.assert_array_equal(left.counts, right.counts)
    np.testing.assert_array_equal(left.correct, right.correct)
    np.testing.assert_array_equal(left.scores, right.scores)
    assert left.best.candidate.tolist() == right.best.candidate.tolist()
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance),
        left.best.output(0),
        right.best.output(0),
    )


@pytest.fixture(scope="module")
def plain():
    return run()


def test_shards_merge_to_what_one_job_gives(tmp_path, plain):
    folder = str(tmp_path / "work")
    with pytest.raises(ValueError, match="run all 3 shards first"):
        run(folder=folder, shard=(None, 3))
    assert run(folder=folder, shard=(2, 3)) is None
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    for name in os.listdir(folder):
        assert stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode) & 0o077 == 0
    with pytest.raises(ValueError, match="shards 0, 1 of 3 have not finished"):
        run(folder=folder, shard=(None, 3))
    assert run(folder=folder, shard=(0, 3)) is None
    assert run(folder=folder, shard=(1, 3)) is None
    assert_same(run(folder=folder, shard=(None, 3)), plain)
    # Shards that do not fit together, and another procedure in the same folder, are refused.
    with pytest.raises(ValueError, match="have not finished"):
        run(folder=folder, shard=(None, 2))
    with pytest.raises(ValueError, match="other data or flags"):
        run(folder=folder, shard=(0, 3), label="adam")
    with pytest.raises(ValueError, match="other data or flags"):
        run(folder=folder, shard=(0, 3), plan=procedure(accounting.Fixed(8)))
    with pytest.raises(ValueError, match="other data or flags"):
        other = dataclasses.replace(PROCEDURE, optimizer=training.adam())
        run(folder=folder, shard=(0, 3), plan=other)


def test_without_a_seed_all_jobs_share_one_secret_draw(tmp_path):
    """K is drawn once: the shards hold every candidate once whatever K was."""
    law = accounting.AtMost(accounting.Geometric(mean=4), cap=9)
    plan, folder = procedure(law), str(tmp_path / "work")
    for index in (1, 0):
        run(seed=None, plan=plan, folder=folder, shard=(index, 2))
    merged = run(seed=None, plan=plan, folder=folder, shard=(None, 2))
    assert merged.counts.sum() == len(merged.scores) >= 1
    assert np.isfinite(merged.scores).all()
    draw = np.load(os.path.join(folder, "drawn.npz"))
    np.testing.assert_array_equal(draw["counts"], merged.counts)
    assert len(np.unique(draw["keys"], axis=0)) == merged.counts.sum()


@pytest.mark.parametrize("placement", ["auto", "one_by_one"])
def test_placement_changes_no_result(placement, plain):
    assert_same(run(placement=placement), plain, tolerance=1e-5)


def test_one_setting_with_and_without_checkpoints(tmp_path):
    """The two engines, whole runs in chunks and slots with checkpoints, agree."""
    plan = plan_procedure(
        TASK,
        Space(learning_rate=LogUniform(0.1, 1.0)),
        selection=BestOf(accounting.Fixed(3)),
        options=RunOptions(lot_size=8, steps=6, noise_multiplier=1.0),
        optimizer=training.sgd(),
        epsilon=None,
        delta=1e-3,
    )
    slots = run(plan=plan, folder=str(tmp_path / "work"))
    assert_same(slots, run(plan=plan, placement="auto"), tolerance=1e-5)


class Killed(Exception):
    """Stands for the end of the process."""


def test_an_interrupted_job_resumes_to_the_identical_result(tmp_path):
    """Without a seed: what it goes on from is on the disk, or it would draw anew."""
    folder, twin = str(tmp_path / "work"), str(tmp_path / "twin")

    def kill(done, total):
        if done >= 3:
            raise Killed

    with pytest.raises(Killed):
        run(seed=None, folder=folder, progress=kill, checkpoint_seconds=0.0)
    os.makedirs(twin)
    shutil.copy(os.path.join(folder, "drawn.npz"), twin)
    calls = []
    resumed = run(
        seed=None, folder=folder, checkpoint_seconds=0.0, progress=lambda *call: calls.append(call)
    )
    assert calls[-1] == (7, 7)
    assert_same(resumed, run(seed=None, folder=twin))


def test_bad_input_is_refused():
    for options, message in (
        ({"placement": "pmap"}, "pass one of auto"),
        ({"shard": (0, 2)}, "working folder"),
        ({"shard": (2, 2), "folder": "x"}, "0/2 to 1/2"),
    ):
        with pytest.raises(ValueError, match=message):
            Job(**options)


PROCESS = textwrap.dedent(
    """
    import json, sys
    from dpjax.training import hosts
    count, index, port = map(int, sys.argv[1:])
    if count > 1:
        hosts.join(f"localhost:{port}", count, index)
    sys.path.insert(0, "tests/tuning")
    import test_job, numpy as np, jax
    executed = test_job.run(placement="devices")
    print(json.dumps({
        "share": test_job.Job().share(7).tolist(),
        "correct": executed.correct.tolist(),
        "scores": executed.scores.tolist(),
        "best": executed.best.candidate.tolist(),
        "w": executed.best.output(0)["w"].tolist(),
    }))
    secret = test_job.run(seed=None)  # drawn by one of them, the same for both
    print(json.dumps(secret.scores.tolist()))
    """
)


def test_two_processes_give_what_one_gives(plain):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # as in this process
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, "2", str(index), str(port)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    outputs = []
    for process in processes:
        printed, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        outputs.append([json.loads(line) for line in printed.splitlines()[-2:]])
    first, second = outputs
    assert first[0].pop("share") == [0, 2, 4, 6] and second[0].pop("share") == [1, 3, 5]
    assert first == second, "processes disagree"
    assert first[0]["correct"] == plain.correct.tolist()
    assert first[0]["scores"] == plain.scores.tolist()
    assert first[0]["best"] == plain.best.candidate.tolist()
    np.testing.assert_allclose(first[0]["w"], plain.best.output(0)["w"], rtol=1e-5, atol=1e-6)


TUNE = [
    "-m", "experiments.tune", "--steps=20000", "--lot_size=64", "--mean=4", "--cap=6",
    "--epsilon=8", "--chunk_size=1", "--resume", "--checkpoint_seconds=0.3",
]  # fmt: skip


def test_tune_killed_in_the_middle_goes_on(tmp_path):
    """SIGKILL as soon as there is a checkpoint; the same command then writes the release."""
    folder = tmp_path / "run"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *TUNE, f"--out_dir={folder}"]
    quiet = {"cwd": ROOT, "env": environment, "stdout": subprocess.DEVNULL}
    process = subprocess.Popen(command, **quiet)
    saved = tmp_path / "run.curator" / "checkpoints_0_of_1" / "slots"
    while process.poll() is None and not any(
        name.isdigit() for name in (os.listdir(saved) if saved.exists() else ())
    ):
        try:
            process.wait(timeout=0.05)
        except subprocess.TimeoutExpired:
            continue
    assert process.poll() is None, "finished before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not folder.exists()
    drawn = np.load(tmp_path / "run.curator" / "drawn.npz")
    subprocess.run(command, check=True, timeout=300, **quiet)
    record = json.loads((folder / "curator" / "run.json").read_text())
    assert record["number_of_candidates"] == drawn["counts"].sum()
    assert (folder / "release" / "guarantee.json").exists()
    assert not (tmp_path / "run.curator").exists(), "the keys outlive the release"
