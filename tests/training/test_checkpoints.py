"""A sweep that is killed goes on to the identical result."""

import dataclasses
import os
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
