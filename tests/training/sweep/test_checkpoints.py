"""A sweep that is killed goes on to the identical result."""

import dataclasses
import os
import pathlib
import shutil
import stat

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import training

ROWS = 30
GENERATOR = np.random.default_rng(3)
DATA = (
    GENERATOR.normal(size=(ROWS, 3)).astype(np.float32),
    GENERATOR.normal(size=ROWS).astype(np.float32),
)
BASE = training.TrainConfig(
    loss_fn=lambda params, example: 0.5 * (example[0] @ params["w"] - example[1]) ** 2,
    lots=training.PoissonLots(ROWS, 0.1, 10),
    steps=1,
    expected_lot_size=3,
    optimizer=training.adam(),
)
WIDER = dataclasses.replace(BASE, lots=training.PoissonLots(ROWS, 0.3, 15))
CONFIGS = [dataclasses.replace(BASE, steps=steps) for steps in (5, 9, 2, 7)] + [
    dataclasses.replace(WIDER, steps=steps) for steps in (6, 3)
]
NUMBER = len(CONFIGS)
GIVEN = {
    "clip_norm": np.full(NUMBER, 1.0),
    "noise_multiplier": np.full(NUMBER, 0.5),
    "learning_rate": np.linspace(0.05, 0.2, NUMBER),
}


def sweep(folder=None, seed=5, every_seconds=0.0, configs=CONFIGS, **options):
    checkpoints = folder and training.Checkpoints(folder, every_seconds=every_seconds)
    return training.mixed_sweep(
        configs,
        training.candidate_keys(len(configs), seed=seed),
        {name: values[: len(configs)] for name, values in GIVEN.items()},
        DATA,
        initial=lambda key: {"w": jnp.zeros(3)},
        finish=lambda params, extra: {"params": params, "norm": jnp.sum(params["w"] ** 2)},
        chunk_size=2,
        useful_work=0.8,
        steps_per_call=2,
        checkpoints=checkpoints,
        **options,
    )


def collect(results):
    found = {}
    for indices, outputs in results:
        for row, index in enumerate(indices.tolist()):
            assert index not in found, "a candidate is handed out twice"
            found[index] = jax.tree.map(lambda leaf, row=row: leaf[row].tolist(), outputs)
    return found


@pytest.fixture(scope="module")
def undisturbed():
    work = []
    return collect(sweep(report=work.append)), work


@pytest.mark.parametrize("harvests", [0, 1, 3, 5])
def test_a_killed_sweep_resumes_to_the_identical_result(tmp_path, harvests, undisturbed):
    """Whatever is on the disk when the sweep stops is all that the next one sees."""
    folder = tmp_path / "checkpoints"
    killed = sweep(folder)
    for _ in range(harvests):
        next(killed)
    del killed
    calls, work = [], []
    resumed = sweep(folder, progress=lambda *call: calls.append(call), report=work.append)
    assert collect(resumed) == undisturbed[0]
    assert work == undisturbed[1]
    assert calls[-1] == (NUMBER, NUMBER)
    if harvests:
        assert calls[0][0] >= harvests, "what had finished is trained again"
    assert not folder.exists()


def test_what_finished_after_the_last_complete_save_is_trained_again(tmp_path, undisturbed):
    """Killed between the two halves of a save: the half pair is dropped."""
    folder = tmp_path / "checkpoints"
    killed = sweep(folder)
    next(killed)
    del killed
    torn = training.Checkpoints(folder)
    torn._write(torn._finished, {"members": np.array([0]), "output_0": np.zeros((1, 3))})
    torn.close()
    assert collect(sweep(folder)) == undisturbed[0]


@pytest.fixture(scope="module")
def killed_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed") / "checkpoints"
    killed = sweep(folder)
    for _ in range(4):
        next(killed)
    return folder


def _files(folder):
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def test_a_save_that_lacks_a_finished_candidate_is_refused(tmp_path, killed_folder):
    steps = sorted(path.name for path in (killed_folder / "finished").iterdir())
    assert len(steps) >= 2
    for number, step in enumerate(steps):
        folder = tmp_path / str(number)
        shutil.copytree(killed_folder, folder)
        shutil.rmtree(folder / "finished" / step)
        with pytest.raises(ValueError, match="damaged or incomplete: remove that folder"):
            sweep(folder)


@pytest.mark.parametrize("part", ["slots", "finished"])
@pytest.mark.parametrize("damage", ["cut", "emptied", "removed"])
def test_a_broken_save_is_one_line(tmp_path, killed_folder, part, damage, capfd):
    files = _files(killed_folder / part)
    assert len(files) > 5
    for number, path in enumerate(files[:: len(files) // 4]):
        folder = tmp_path / str(number)
        shutil.copytree(killed_folder, folder)
        broken = folder / path.relative_to(killed_folder)
        if damage == "removed":
            broken.unlink()
        else:
            content = broken.read_bytes()
            broken.write_bytes(content[: 0 if damage == "emptied" else -1] or b"x")
        with pytest.raises(ValueError, match="damaged or incomplete") as caught:
            sweep(folder)
        assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""


def test_a_save_without_its_hash_was_not_completed(tmp_path, killed_folder, undisturbed):
    folder = tmp_path / "checkpoints"
    shutil.copytree(killed_folder, folder)
    for path in folder.glob("slots_*.hash"):
        path.unlink()
    assert collect(sweep(folder)) == undisturbed[0]


def test_a_sweep_killed_while_it_removes_its_saves_is_trained_again(
    tmp_path, undisturbed, monkeypatch
):
    """They were of no more use; half of them are none, and no damage either."""
    folder = tmp_path / "checkpoints"

    def killed(path, **options):
        if not options:
            for file in _files(pathlib.Path(path))[::2]:
                file.unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", killed)
        collect(sweep(folder))
    assert collect(sweep(folder)) == undisturbed[0]
    assert os.listdir(tmp_path) == []


def test_a_folder_open_to_others_is_refused(tmp_path):
    (tmp_path / "checkpoints").mkdir(mode=0o755)
    with pytest.raises(ValueError, match="open to others"):
        training.Checkpoints(tmp_path / "checkpoints")


def test_another_sweep_is_refused(tmp_path):
    folder = tmp_path / "checkpoints"
    next(sweep(folder))
    with pytest.raises(ValueError, match="checkpoints of another sweep"):
        sweep(folder, seed=6)
    with pytest.raises(ValueError, match="checkpoints of another sweep"):
        sweep(folder, configs=CONFIGS[:-1])


def test_saves_keep_their_distance_in_time_and_their_folder_private(tmp_path):
    folder = tmp_path / "checkpoints"
    rare = sweep(folder, every_seconds=3600.0)
    next(rare)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert training.Checkpoints(folder).restore() == (None, [])
    with pytest.raises(ValueError, match="0 or more"):
        training.Checkpoints(folder, every_seconds=-1)
