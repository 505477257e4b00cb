"""A sweep that is killed goes on to the identical result."""

import dataclasses
import json
import os
import pathlib
import shutil
import stat

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import array_files, private_files, training
from dpjax.training.sweep import slots
from dpjax.training.sweep import sweep as sweeps
from dpjax.training.sweep.placement import Placement

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


def sweep(
    folder=None, seed=5, every_seconds=0.0, configs=CONFIGS, given=GIVEN, data=DATA, **options
):
    checkpoints = folder and training.Checkpoints(folder, every_seconds=every_seconds)
    return training.mixed_sweep(
        configs,
        training.candidate_keys(len(configs), seed=seed),
        {name: values[: len(configs)] for name, values in given.items()},
        data,
        initial=lambda key: {"w": jnp.zeros(3)},
        finish=lambda params, extra: {"params": params, "norm": jnp.sum(params["w"] ** 2)},
        useful_work=0.8,
        steps_per_call=2,
        checkpoints=checkpoints,
        **({"chunk_size": 2} | options),
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
    """Killed before or while the second half of a save is written: the half pair is dropped."""
    folder = tmp_path / "checkpoints"
    killed = sweep(folder)
    next(killed)
    del killed
    (slots_file,) = folder.glob("slots_*")
    number = int(slots_file.stem.removeprefix("slots_")) + 1
    torn = {"members": np.array([0]), "output_0": np.zeros((1, 3))}
    private_files.write_anew(folder / f"finished_{number}.npz", array_files.packed(torn))
    (folder / f".partial.0.slots_{number}.npz").write_bytes(slots_file.read_bytes()[:99])
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
    saves = sorted(killed_folder.glob("finished_*"))
    assert len(saves) >= 2
    for number, save in enumerate(saves):
        folder = tmp_path / str(number)
        shutil.copytree(killed_folder, folder)
        (folder / save.name).unlink()
        with pytest.raises(ValueError, match="damaged or incomplete, .*: remove that folder"):
            sweep(folder)


@pytest.mark.parametrize("part", ["slots", "finished"])
@pytest.mark.parametrize("damage", ["cut", "emptied", "removed"])
def test_a_broken_save_is_one_line(tmp_path, killed_folder, part, damage, capfd):
    files = sorted(killed_folder.glob(f"{part}_*"))
    assert files
    for number, path in enumerate(files):
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


@pytest.mark.parametrize("kind", ["slots", "finished"])
def test_saves_of_an_earlier_version_are_refused_in_one_line(tmp_path, kind):
    """They were folders, and hashes beside them."""
    folder = tmp_path / "checkpoints"
    folder.mkdir(mode=0o700)
    (folder / kind).mkdir()
    with pytest.raises(ValueError, match="or an earlier version wrote them: remove") as caught:
        sweep(folder)
    assert "\n" not in str(caught.value)
    assert (folder / kind).is_dir()


def test_half_precision_is_kept_bit_for_bit(tmp_path):
    checkpoints = training.Checkpoints(tmp_path / "checkpoints")
    state = {"state_0": np.asarray(jnp.linspace(0, 1, 7, dtype=jnp.bfloat16)), "n": np.int64(3)}
    checkpoints.save(state, None)
    found, _ = training.Checkpoints(tmp_path / "checkpoints").restore()
    assert found["state_0"].dtype == jnp.bfloat16 and found["n"] == 3
    assert found["state_0"].tobytes() == state["state_0"].tobytes()


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


def _known(monkeypatch, folder):
    """What a killed sweep in the folder was bound to."""
    usual, known = slots.Candidates.identity, []

    def noted(*arguments):
        known.append(usual(*arguments))
        return known[-1]

    with monkeypatch.context() as patch:
        patch.setattr(slots.Candidates, "identity", noted)
        next(sweep(folder))
    return known[0]


def test_a_sweep_of_which_one_key_differs_is_refused(tmp_path, monkeypatch):
    """Every key of its identity, whichever there are; each alone, and two of them."""
    folder = tmp_path / "checkpoints"
    known = _known(monkeypatch, folder)
    assert len(known) > 10

    def refused(identity, named):
        with monkeypatch.context() as patch:
            patch.setattr(slots.Candidates, "identity", lambda *_: identity)
            with pytest.raises(ValueError, match="checkpoints of another sweep") as caught:
                sweep(folder)
        assert f"({named}): pass" in str(caught.value) and "\n" not in str(caught.value)

    for key in known:
        refused(known | {key: "another"}, key)
        refused({one: known[one] for one in known if one != key}, key)
    refused(known | {"a new key": "of hers"}, "a new key")
    first, *_, last = known
    for pair in ((first, last), (last, first)):
        refused(known | dict.fromkeys(pair, "another"), f"{first}, {last}")
    with monkeypatch.context() as patch:
        patch.setattr(slots.Candidates, "identity", lambda *_: dict(known))
        assert len(collect(sweep(folder))) == NUMBER


def _all(**changed):
    return dict(configs=[dataclasses.replace(config, **changed) for config in CONFIGS])


OF_A_CONFIG = dict(
    lots=dict(
        configs=[*CONFIGS[:4], *(dataclasses.replace(one, lots=BASE.lots) for one in CONFIGS[4:])]
    ),
    steps=dict(configs=[dataclasses.replace(CONFIGS[0], steps=6), *CONFIGS[1:]]),
    expected_lot_size=_all(expected_lot_size=4),
    trainable=_all(trainable={"w": True}),
    with_rng=_all(
        with_rng=True, loss_fn=lambda params, example, key: BASE.loss_fn(params, example)
    ),
    micro_batch_size=_all(micro_batch_size=5),
    check_contributions=_all(check_contributions=2),
    mesh=_all(mesh=training.LotMesh(tuple(jax.local_devices()))),
    clipping=_all(clipping=training.AutomaticClipping()),
    average=_all(average=training.ExponentialAverage(0.5)),
    noise=_all(noise=training.BandedNoise(1)),
    stages=_all(stages=training.Stages((0.5, 0.5))),
    loss_reads=_all(
        loss_reads=("learning_rate",),
        loss_fn=lambda params, example, read: BASE.loss_fn(params, example),
    ),
)
FREE = {"loss_fn": "code", "optimizer": "code", "relation": "follows from the lots"}
OTHERS = {
    **OF_A_CONFIG,
    **{f"hyperparameter {name}": dict(given=GIVEN | {name: 2 * GIVEN[name]}) for name in GIVEN},
    "keys": dict(seed=6),
    "data": dict(data=(DATA[0], DATA[1] + 1)),
    "number of records": dict(number_of_records=ROWS - 1),
    "buckets": dict(chunk_size=1),
}


def test_every_field_of_a_configuration_is_a_case_or_free():
    fields = {field.name for field in dataclasses.fields(training.TrainConfig)}
    assert fields == OF_A_CONFIG.keys() | FREE.keys()


@pytest.mark.parametrize("field", OTHERS)
def test_another_sweep_is_refused(field, tmp_path):
    folder = tmp_path / "checkpoints"
    next(sweep(folder))
    with pytest.raises(ValueError, match=rf"another sweep \(.*{field}"):
        sweep(folder, **OTHERS[field])


def test_fewer_candidates_are_another_sweep(tmp_path):
    folder = tmp_path / "checkpoints"
    next(sweep(folder))
    with pytest.raises(ValueError, match="checkpoints of another sweep"):
        sweep(folder, configs=CONFIGS[:-1])


def test_saves_that_do_not_fit_together_are_damaged(tmp_path):
    """What stands and what finished: each array gone, a candidate twice, in both, or nowhere."""
    folder = tmp_path / "checkpoints"
    killed = sweep(folder)
    for _ in range(2):
        next(killed)
    checkpoints = training.Checkpoints(folder)
    standing, finished = checkpoints.restore()
    identity = json.loads(standing["identity"].tobytes())
    buckets = sweeps._planned(CONFIGS, None, Placement(2), 2, 0.8)

    def check(standing, finished):
        sweeps._refuse_other_saves(checkpoints, standing, finished, identity, buckets)

    check(standing, finished)
    check(None, [])
    (ended, *_), (last, *_) = (save["members"] for save in finished)
    in_slots = standing["member"]
    assert (in_slots >= 0).any() and (in_slots < 0).any()
    damaged = [
        ({name: standing[name] for name in standing if name != gone}, finished)
        for gone in ("identity", "bucket", "taken", "member")
    ]
    damaged += [(standing | {"identity": np.arange(9, dtype=np.uint8)}, finished)]
    for place in range(len(finished)):
        rest = finished[:place] + finished[place + 1 :]
        damaged += [
            (standing, rest),
            (standing, [*finished, finished[place]]),
            (standing, [*rest, {}]),
        ]
    damaged += [
        (standing | {"member": np.where(in_slots < 0, other, in_slots)}, finished)
        for other in (ended, last, in_slots.max())
    ]
    damaged += [(standing | {"member": np.full_like(in_slots, -1)}, finished)]
    damaged += [(standing | {"taken": standing["taken"] + one}, finished) for one in (-1, 1)]
    for case in damaged:
        with pytest.raises(ValueError, match="damaged or incomplete"):
            check(*case)


def test_saves_keep_their_distance_in_time_and_their_folder_private(tmp_path):
    folder = tmp_path / "checkpoints"
    rare = sweep(folder, every_seconds=3600.0)
    next(rare)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert training.Checkpoints(folder).restore() == (None, [])
    next(sweep(folder))
    assert {stat.S_IMODE(path.stat().st_mode) for path in _files(folder)} == {0o600}
    with pytest.raises(ValueError, match="0 or more"):
        training.Checkpoints(folder, every_seconds=-1)
