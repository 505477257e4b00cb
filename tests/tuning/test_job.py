"""Shards, processes, devices and interruptions change how candidates are trained, nothing else."""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import ports
import pytest

from dpjax import accounting, training
from dpjax.randomness import host_randomness
from dpjax.tuning import (
    Choice,
    Job,
    LogUniform,
    Records,
    RunOptions,
    Space,
    Task,
    job,
    private_runs,
)
from dpjax.tuning.private_runs import execute
from dpjax.tuning.selection import BestOf, Selection, merged
from dpjax.tuning.steps import Material, Problem, plan_runs

ROOT = pathlib.Path(__file__).parents[2]
FINISHED = sorted([job.CONSUMED_FILE, job.OUTCOME_FILE])
"""What a folder holds whose draw has decided a release."""
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


def procedure(law=None, lot_size=Choice([4, 8]), **space):  # noqa: B008
    return plan_runs(
        Problem.of(
            TASK,
            Space(learning_rate=LogUniform(0.1, 1.0), lot_size=lot_size, **space),
            RunOptions(steps=6, noise_multiplier=1.0),
            training.sgd(),
            delta=1e-6,
        ),
        BestOf(law or accounting.Fixed(7)),
        score_noise=1.0,
    )


PROCEDURE = procedure()


def run(seed=4, plan=PROCEDURE, task=TASK, optimizer=training.sgd(), **options):  # noqa: B008
    progress, kind = options.pop("progress", None), options.pop("kind", Job)
    return execute(
        plan,
        Material.of(task, plan.problem.space, optimizer),
        randomness=host_randomness.HostRandomness(seed),
        chunk_size=2,
        progress=progress,
        job=kind(**options),
    )


def assert_same(left, right, tolerance=0.0):
    np.testing.assert_array_equal(left.counts, right.counts)
    np.testing.assert_array_equal(left.units, right.units)
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
    # Shards that do not fit together, and another procedure in the same folder, are refused.
    with pytest.raises(ValueError, match="have not finished"):
        run(folder=folder, shard=(None, 2))
    with pytest.raises(ValueError, match="other data or settings"):
        run(folder=folder, shard=(0, 3), label="adam")
    with pytest.raises(ValueError, match="other data or settings"):
        run(folder=folder, shard=(0, 3), plan=procedure(accounting.Fixed(8)))
    with pytest.raises(ValueError, match="other data or settings"):
        run(folder=folder, shard=(0, 3), optimizer=training.adam())
    assert_same(run(folder=folder, shard=(None, 3)), plain)
    assert sorted(os.listdir(folder)) == FINISHED, "keys and shards outlive the selection"
    # Whoever comes again finds what came out, and trains nothing.
    assert run(folder=folder, shard=(1, 3)) is None
    assert_same(run(folder=folder, shard=(None, 3)), plain)


def test_without_a_seed_all_jobs_share_one_secret_draw(tmp_path):
    """K is drawn once: the shards hold every candidate once whatever K was."""
    law = accounting.AtMost(accounting.Geometric(mean=4), cap=9)
    plan, folder = procedure(law), str(tmp_path / "work")
    for index in (1, 0):
        run(seed=None, plan=plan, folder=folder, shard=(index, 2))
    draw = np.load(os.path.join(folder, "drawn.npz"))
    merged = run(seed=None, plan=plan, folder=folder, shard=(None, 2))
    assert merged.counts.sum() == len(merged.scores) >= 1
    assert np.isfinite(merged.scores).all()
    np.testing.assert_array_equal(draw["counts"], merged.counts)
    assert len(np.unique(draw["keys"], axis=0)) == merged.counts.sum()


@pytest.mark.parametrize(
    "placement", ["one_by_one", "vmap", "lot_over_devices", "model_over_devices"]
)
def test_placement_changes_no_result(placement, plain):
    assert_same(run(placement=placement), plain, tolerance=1e-5)


def test_one_setting_with_and_without_checkpoints(tmp_path):
    """The two engines, whole runs in chunks and slots with checkpoints, agree."""
    plan = plan_runs(
        Problem.of(
            TASK,
            Space(learning_rate=LogUniform(0.1, 1.0)),
            RunOptions(lot_size=8, steps=6, noise_multiplier=1.0),
            training.sgd(),
            delta=1e-6,
        ),
        BestOf(accounting.Fixed(3)),
    )
    slots = run(plan=plan, folder=str(tmp_path / "work"))
    assert_same(slots, run(plan=plan, placement="one_by_one"), tolerance=1e-5)


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
    os.makedirs(twin, mode=0o700)
    shutil.copy(os.path.join(folder, "drawn.npz"), twin)
    calls = []
    resumed = run(
        seed=None, folder=folder, checkpoint_seconds=0.0, progress=lambda *call: calls.append(call)
    )
    assert calls[-1] == (7, 7)
    assert_same(resumed, run(seed=None, folder=twin))


def interrupted(folder, after=3, **options):
    """Leaves a folder as a killed job does."""

    def kill(done, total):
        if done >= after:
            raise Killed

    with pytest.raises(Killed):
        run(folder=folder, progress=kill, checkpoint_seconds=0.0, **options)


def begun(folder, **options):
    """Leaves a folder as a job does that was killed before it trained anything."""

    def killed(drawn):
        raise Killed

    given = {"seed": 4, "plan": PROCEDURE, "optimizer": training.sgd()} | options
    plan, randomness = given.pop("plan"), host_randomness.HostRandomness(given.pop("seed"))
    material = Material.of(TASK, plan.problem.space, given.pop("optimizer"))
    with pytest.raises(Killed):
        Job(folder=folder, **given).once(
            lambda: private_runs.facts_of(plan, material, randomness, 1),
            lambda: private_runs.draw_of(plan, randomness, 1),
            killed,
        )


def test_candidates_that_a_checkpoint_lost_are_not_left_out_of_the_selection(tmp_path):
    """A missing part of a checkpoint: refused, and trained again once it is out of the way."""
    folder = tmp_path / "work"
    interrupted(str(folder), after=5, seed=None)
    whole, saves = tmp_path / "whole", sorted(folder.glob("checkpoints_*/finished_*.npz"))
    shutil.copytree(folder, whole)
    undisturbed = run(seed=None, folder=str(whole))
    assert saves, "nothing was saved"
    saves[0].unlink()
    with pytest.raises(ValueError, match="damaged or incomplete, .*: remove that folder"):
        run(seed=None, folder=str(folder))
    shutil.rmtree(saves[0].parent)
    assert_same(run(seed=None, folder=str(folder)), undisturbed)


def test_a_share_that_lacks_a_candidate_is_not_merged():
    """Counted is what was reported, not what was meant to be."""
    drawn = {"counts": np.array([3]), "noise": np.zeros(3, int)}
    selection = Selection(BestOf(accounting.Fixed(3)), drawn, public_size=10)
    selection.report([0, 2], [5, 7], [True, True], np.zeros(2))
    with pytest.raises(ValueError, match="do not hold every candidate once"):
        merged([selection.share()], drawn, jax.tree.structure(0))
    selection.report([1], [9], [True], np.ones(1))
    assert merged([selection.share()], drawn, jax.tree.structure(0)).released == 1


def other_task(**changed):
    return {"task": dataclasses.replace(TASK, **changed)}


OTHERS = {
    "loss": other_task(loss=lambda params, example: 2.0 * TASK.loss(params, example)),
    "score": other_task(correct=lambda params, example: ~TASK.correct(params, example)),
    "initial values": other_task(initial=lambda key: {"w": jnp.ones(3), "b": jnp.zeros(())}),
    "optimizer": {"optimizer": lambda h: optax.sgd(0.5 * h["learning_rate"])},
    "trained parameters": other_task(trainable={"w": True, "b": False}),
    "records": other_task(train=Records((INPUTS[:40], 1 - LABELS[:40]), 40, 40)),
    "numbers of records": other_task(validation=Records(TASK.validation.arrays, 19, 20)),
    "seed": {"seed": None},
    "flags": {"label": "--batch"},
    "selection": {"plan": procedure(accounting.Fixed(8))},
    "search space": {"plan": procedure(clip_norm=0.5)},
}


def named_optimizer(factor):
    return lambda h: optax.sgd(factor * h["learning_rate"])


def test_a_folder_serves_one_procedure_until_it_is_spent_and_afterwards(tmp_path):
    """Another one would meet the same K, keys and noise; the message says what differs."""
    drawn, spent = str(tmp_path / "drawn"), str(tmp_path / "spent")
    begun(drawn)
    result = run(folder=spent)
    assert sorted(os.listdir(spent)) == FINISHED
    kept = np.load(os.path.join(spent, "outcome.npz"))
    assert not {"keys", "noise"} & set(kept.files)
    for folder in (drawn, spent):
        before = sorted(os.listdir(folder))
        for name, other in OTHERS.items():
            with pytest.raises(ValueError, match=f"other data or settings .*{name}"):
                run(folder=folder, **other)
        assert sorted(os.listdir(folder)) == before
    calls = []
    assert_same(run(folder=spent, progress=lambda *call: calls.append(call)), result)
    assert calls == [], "a spent draw is trained again"


def test_a_constant_that_a_function_closed_over_tells_two_procedures_apart(tmp_path):
    folder = str(tmp_path / "work")
    one, other = map(named_optimizer, (1.0, 2.0))
    begun(folder, optimizer=one)
    with pytest.raises(ValueError, match=r"\(optimizer\)"):
        run(folder=folder, optimizer=other)
    begun(folder, optimizer=one)


class Dies(Job):
    """Where it would spend its draw."""

    def _consume(self):
        raise Killed


def test_a_job_stopped_while_it_spends_its_draw_goes_on(tmp_path):
    """Between the outcome's file and the last key's removal: nothing is lost, no key stays."""
    folder = str(tmp_path / "work")
    with pytest.raises(Killed):
        run(seed=None, folder=folder, kind=Dies)
    drawn = np.load(os.path.join(folder, "drawn.npz"))
    outcome = run(seed=None, folder=folder)
    np.testing.assert_array_equal(
        outcome.scores, outcome.units + drawn["noise"], err_msg="not of that draw"
    )
    assert sorted(os.listdir(folder)) == FINISHED


def test_what_a_killed_write_left_goes_with_the_draw(tmp_path, monkeypatch):
    """A file that was not whole yet holds keys as well."""
    folder, link = tmp_path / "work", os.link

    def killed(partial, path):
        if path.endswith("drawn.npz"):
            shutil.copy(partial, f"{partial}.kept")  # What a kill leaves, no handler runs.
            os.rename(f"{partial}.kept", os.path.join(folder, ".partial.killed.drawn.npz"))
        link(partial, path)

    monkeypatch.setattr(os, "link", killed)
    begun(str(folder))
    assert ".partial.killed.drawn.npz" in os.listdir(folder)
    run(folder=str(folder))
    assert sorted(os.listdir(folder)) == FINISHED


def test_a_folder_that_others_could_have_written_in_is_refused(tmp_path):
    folder = tmp_path / "work"
    begun(str(folder))
    stolen = tmp_path / "stolen"
    shutil.copytree(folder, stolen)
    for mode in (0o750, 0o707, 0o1777):
        stolen.chmod(mode)
        with pytest.raises(ValueError, match=f"mode {mode:04o}"):
            run(folder=str(stolen))
    stolen.chmod(0o700)
    (stolen / "drawn.npz").chmod(0o620)
    with pytest.raises(ValueError, match="drawn.npz is another user's or open to others"):
        run(folder=str(stolen))
    link = tmp_path / "link"
    link.symlink_to(folder)
    with pytest.raises(ValueError, match="is not a folder"):
        run(folder=str(link))
    os.remove(stolen / "drawn.npz")
    (stolen / "drawn.npz").symlink_to(folder / "drawn.npz")
    with pytest.raises(ValueError, match="is a link"):
        run(folder=str(stolen))
    os.remove(stolen / "drawn.npz")
    os.mkfifo(stolen / "drawn.npz", 0o600)
    with pytest.raises(ValueError, match="not a plain file"):
        run(folder=str(stolen))
    if os.geteuid() == 0:
        os.chown(folder, 12345, -1)
        with pytest.raises(ValueError, match="owner 12345"):
            run(folder=str(folder))


def test_a_damaged_file_is_one_line_that_names_it(tmp_path):
    folder = tmp_path / "work"
    for index in range(2):
        run(folder=str(folder), shard=(index, 2))
    for name in ("drawn.npz", "shard_0_of_2.npz", "outcome.npz"):
        if name == "outcome.npz":
            run(folder=str(folder), shard=(None, 2))
        whole = (folder / name).read_bytes()
        for broken in (whole[: len(whole) // 2], b"", b"junk"):
            (folder / name).write_bytes(broken)
            with pytest.raises(ValueError, match=f"{name} is damaged or cut short") as caught:
                run(folder=str(folder), shard=(None, 2))
            assert "\n" not in str(caught.value)
        (folder / name).write_bytes(whole)


def test_no_damage_to_a_file_changes_an_array(tmp_path):
    """Every byte flipped, every end cut off: refused, or nothing that is read depends on it."""
    path = tmp_path / "file.npz"
    arrays = {"keys": np.arange(6, dtype=np.uint32), "noise": np.linspace(0, 1, 3)}
    whole = job.packed(arrays)
    flipped = (whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in range(len(whole)))
    refused = 0
    for broken in (*flipped, *(whole[:end] for end in range(0, len(whole), 7))):
        path.write_bytes(broken)
        try:
            read = job.read_arrays(str(path), "mend")
        except ValueError as error:
            refused += str(error) == f"{path} is damaged or cut short: mend"
            continue
        assert read.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(read[name], array)
    assert refused > 200


def test_a_shard_of_another_draw_is_not_merged(tmp_path):
    """As where the draw was removed by hand and drawn anew."""
    folders = [str(tmp_path / name) for name in ("one", "other")]
    for folder in folders:
        for index in range(2):
            shard = Job(folder=folder, shard=(index, 2))
            draws = []

            def work(drawn):
                draws.append(drawn)  # noqa: B023
                return shard.collected({"members": np.arange(index)}, drawn)  # noqa: B023

            # The second time the share is there: nothing is worked out again.
            for _ in range(2):
                assert shard.once(dict, lambda: {"keys": np.arange(2)}, work) is None
            (drawn,) = draws
    merge = Job(folder=folders[1], shard=(None, 2))
    assert [len(share["members"]) for share in merge.collected({}, drawn)] == [0, 1]
    shutil.copy(os.path.join(folders[0], "shard_0_of_2.npz"), folders[1])
    with pytest.raises(ValueError, match="shard_0_of_2.npz was made of another draw"):
        merge.collected({}, drawn)


def test_a_second_process_in_the_folder_is_refused_at_once(tmp_path):
    """Also a second thread; shards keep out whoever merges, and another job of the same share."""
    folder = str(tmp_path / "work")

    def refused(shard):
        """What another thread meets that wants to work on this share."""
        lines = []

        def work():
            try:
                run(folder=folder, shard=shard, plan=procedure(accounting.Fixed(1)))
            except ValueError as error:
                lines.append(str(error).split(":")[0])

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return lines

    no, merge, busy = None, (None, 2), [f"another process works in {folder}"]
    with Job(folder=folder).held():
        assert [refused(shard) for shard in (no, merge, (0, 2))] == [busy] * 3
    assert not os.path.exists(folder), "an empty folder stays"
    with Job(folder=folder, shard=(0, 2)).held():
        assert [refused(shard) for shard in (no, merge, (0, 2))] == [busy] * 3
        assert refused((1, 2)) == []
    assert refused((0, 2)) == []
    assert sorted(os.listdir(folder)) == ["drawn.npz", "shard_0_of_2.npz", "shard_1_of_2.npz"]


def test_checkpoints_are_as_often_as_the_job_asks(tmp_path):
    job = Job(folder=str(tmp_path), checkpoint_seconds=7.5, check_contributions=3)
    assert job.checkpoints().every_seconds == 7.5
    assert job.checkpoints().folder.startswith(str(tmp_path))
    assert Job(checkpoint_seconds=7.5).checkpoints() is None


def test_bad_input_is_refused():
    for options, message in (
        ({"placement": "pmap"}, "pass one of rule"),
        ({"shard": (0, 2)}, "working folder"),
        ({"shard": (2, 2), "folder": "x"}, "0/2 to 1/2"),
    ):
        with pytest.raises(ValueError, match=message):
            Job(**options)


PROCESS = textwrap.dedent(
    """
    import json, sys
    from dpjax.training.sweep import hosts
    count, index, port = map(int, sys.argv[1:])
    if count > 1:
        hosts.join(f"localhost:{port}", count, index)
    sys.path.insert(0, "tests/tuning")
    import test_job, numpy as np, jax
    executed = test_job.run(placement="devices")
    print(json.dumps({
        "share": test_job.Job().share(7).tolist(),
        "correct": executed.units.tolist(),
        "scores": executed.scores.tolist(),
        "best": executed.best.candidate.tolist(),
        "w": executed.best.output(0)["w"].tolist(),
        "spread": test_job.run(placement="lot_over_devices").units.tolist(),
    }))
    secret = test_job.run(seed=None)  # drawn by one of them, the same for both
    print(json.dumps(secret.scores.tolist()))
    """
)


def test_two_processes_give_what_one_gives(plain):
    environment = os.environ | {
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # as in this process
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests/helpers")]),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }
    with ports.held() as port:
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
            printed, errors = process.communicate(timeout=900)
            assert process.returncode == 0, errors
            outputs.append([json.loads(line) for line in printed.splitlines()[-2:]])
    first, second = outputs
    assert first[0].pop("share") == [0, 2, 4, 6] and second[0].pop("share") == [1, 3, 5]
    assert first == second, "processes disagree"
    assert first[0]["correct"] == first[0]["spread"] == plain.units.tolist()
    assert first[0]["scores"] == plain.scores.tolist()
    assert first[0]["best"] == plain.best.candidate.tolist()
    np.testing.assert_allclose(first[0]["w"], plain.best.output(0)["w"], rtol=1e-5, atol=1e-6)


TUNE = [
    "-m", "experiments.tune", "--steps=20000", "--lot_size=64", "--mean=4", "--cap=6",
    "--noise_multiplier=2", "--chunk_size=1", "--resume", "--checkpoint_seconds=0.3",
]  # fmt: skip


def test_tune_killed_in_the_middle_goes_on(tmp_path):
    """SIGKILL as soon as there is a checkpoint; the same command then writes the release."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    quiet = {"cwd": ROOT, "env": environment, "stdout": subprocess.DEVNULL}
    # One in four draws a K of 1, which may be trained before a busy machine looks: tried anew.
    for attempt in range(10):
        folder = tmp_path / f"run_{attempt}"
        private = tmp_path / f"run_{attempt}.curator" / "inner_runs"
        command = [sys.executable, *TUNE, f"--out_dir={folder}"]
        process = subprocess.Popen(command, **quiet)
        saved = private / "checkpoints_0_of_1"
        while process.poll() is None and not any(saved.glob("slots_*.npz")):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.05)
        process.send_signal(signal.SIGKILL)
        assert process.wait() in (0, -signal.SIGKILL)
        if process.returncode and (private / "drawn.npz").exists():
            break
    else:
        pytest.fail("ten times it was done before it could be killed, or saved no checkpoint")
    assert not folder.exists()
    drawn = np.load(private / "drawn.npz")
    subprocess.run(command, check=True, timeout=900, **quiet)
    record = json.loads((folder / "curator" / "run.json").read_text())
    assert record["number_of_candidates"] == drawn["counts"].sum()
    assert (folder / "release" / "guarantee.json").exists()
    assert not private.parent.exists(), "the keys outlive the release"
