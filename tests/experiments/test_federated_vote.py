"""A federated vote from the command line, right and wrong."""

import importlib.util
import json
import os

import numpy as np
import pytest

from dpjax.commands import run_folder

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("flwr") is None, reason="needs the extra federated"
)


@pytest.fixture
def folders(tmp_path):
    """Three clients' folders; the last holds one class only."""
    generator = np.random.default_rng(0)
    paths = []
    for number in range(4):
        folder = tmp_path / f"client_{number}"
        folder.mkdir()
        labels = generator.integers(0, 2, 30) if number < 3 else np.ones(30, int)
        inputs = generator.normal(size=(30, 3)) + 3 * labels[:, None]
        np.savez(folder / "records.npz", inputs=inputs, labels=labels)
        paths.append(str(folder))
    return paths


def test_a_vote_end_to_end_and_what_is_refused(run_cases, folders, tmp_path):
    candidates = tmp_path / "candidates.json"
    candidates.write_text(
        json.dumps([{"learning_rate": 10.0**-i, "decay": 1, "momentum": 0.5} for i in range(1, 5)])
    )
    out = tmp_path / "vote"
    small = [
        f"--candidates={candidates}",
        "--votes=1",
        "--epochs=1",
        "--epsilon=5",
        "--missing_fraction=0.34",
        "--classes=2",
    ]
    of_folders = [*small, f"--folders={','.join(folders[:3])}"]
    trained = [
        *of_folders,
        "--model=logistic_regression",
        "--train_rounds=1",
        "--input_shape=3",
    ]
    nothing = tmp_path / "nothing"
    refusals = [
        ([*of_folders, "--votes=4"], "fewer than there are candidates"),
        ([*small, f"--folders={folders[0]}"], "1 client(s): pass at least 3"),
        ([*small, f"--folders={folders[0]},{folders[1]},{nothing}"], "nothing is not a folder"),
        ([*small, f"--folders={','.join(folders[3:] * 3)}"], "no client can judge candidates"),
        ([*of_folders, "--train_rounds=1"], "pass --input_shape"),
        ([*trained, "--total_epsilon=5"], "costs"),
        ([*trained, "--runtime=simulation"], "splits a data set"),
        (["--dataset=digits", "--clients=1000"], "fewer clients"),
        ([*of_folders, "--candidates=all"], "pass one of artifact"),
        ([f"--folders={','.join(folders[:3])}"], "pass --classes"),
        ([*of_folders, "--clients=3"], "--clients belongs to --dataset, and --folders are given"),
        ([*of_folders, "--concentration=1"], "--concentration belongs to --dataset"),
        ([*of_folders, "--clip_norm=1"], "--clip_norm belongs to --train_rounds"),
        ([*trained, "--widths=5"], "--widths belongs to --model=mlp"),
        ([*of_folders, "--batch_size=0"], "batch_size=0"),
        ([*of_folders, "--train_rounds=-1", "--input_shape=3"], "--train_rounds=-1: pass 0"),
        (["--candidates=missing.json"], "--candidates=missing.json cannot be read (No such file"),
        ([f"--candidates={folders[0]}/records.npz.json"], "pass artifact or table_iii or"),
    ]
    digits = [
        *small[:4],
        "--dataset=digits",
        "--clients=4",
        "--runtime=simulation",
        "--model=logistic_regression",
        "--train_rounds=2",
        "--total_epsilon=60",
        f"--out_dir={tmp_path / 'simulated'}",
    ]
    with_model = [*trained, "--total_epsilon=60", f"--out_dir={tmp_path / 'trained'}"]
    one_class = [*small, f"--folders={','.join(folders[1:])}", f"--out_dir={tmp_path / 'odd'}"]
    held = tmp_path / "held"
    with run_folder.claimed(str(held), "x"):
        first, again, odd, model, simulated, beside, by_config, *others = run_cases(
            "experiments.federated_vote",
            [
                [*of_folders, f"--out_dir={out}"],
                [*of_folders, f"--out_dir={out}"],
                one_class,
                with_model,
                digits,
                [*of_folders, f"--out_dir={held}"],
                [f"--config={out / 'curator' / 'config.json'}", f"--out_dir={tmp_path / 'same'}"],
                *([*arguments, f"--out_dir={tmp_path / 'no'}"] for arguments, _ in refusals),
            ],
        )
    # Another process has claimed it, though nothing is there yet.
    assert beside[0] == 2 and f"another process works in {held}" in beside[2], beside
    assert not [name for name in os.listdir(tmp_path) if name.startswith(("held", "no."))]
    assert not [name for name in os.listdir(tmp_path) if name.endswith((".lock", ".partial"))]
    assert first[0] == 0, first
    for words in ("the whole vote", "epsilon 5.0000 at delta 1e-05", "3 of 3 clients", str(out)):
        assert words in first[1].replace("4.9999", "5.0000")
    assert odd[0] == 0 and "client 2 votes by lot" in odd[1] and "3 of 3 clients" in odd[1]
    assert model[0] == 0 and "vote and training together" in model[1], model
    assert sorted(os.listdir(tmp_path / "trained" / "release")) == [
        "guarantee.json",
        "hyperparameters.json",
        "model.msgpack",
    ]
    assert simulated[0] == 0 and "nothing is released" in simulated[1], simulated
    assert os.listdir(tmp_path / "simulated") == ["curator"]
    # What a run leaves makes the same election again.
    assert by_config[0] == 0, by_config
    claims = [
        json.loads((folder / "release" / "guarantee.json").read_text())
        for folder in (out, tmp_path / "same")
    ]
    assert claims[0]["fingerprint"] == claims[1]["fingerprint"]
    held_flags = json.loads((out / "curator" / "config.json").read_text())
    given = {"folders": folders[:3], "votes": 1, "train_rounds": 0, "epsilon": 5.0, "scale": 1}
    assert held_flags | given == held_flags
    assert (tmp_path / "simulated" / "curator" / "config.json").exists()
    winner = json.loads((out / "release" / "hyperparameters.json").read_text())
    assert winner["momentum"] == 0.5
    assert again[0] == 2 and "exists already" in again[2]
    for (arguments, message), (code, _, errors) in zip(refusals, others):
        assert code == 2, arguments
        assert message in errors, arguments
        assert len(errors.strip().splitlines()) == 1
    claims = [out, tmp_path / "trained"]
    verified = run_cases(
        "experiments.epsilon",
        [[f"--verify={claim / 'release' / 'guarantee.json'}"] for claim in claims],
    )
    for code, printed, _ in verified:
        assert code == 0 and "the claim holds" in printed


@pytest.mark.parametrize("program", ["deploy", "attacks"])
def test_a_deployment_begins_in_a_folder_that_nobody_has_claimed(run_cases, tmp_path, program):
    folder = tmp_path / "held"
    with run_folder.claimed(str(folder), "x"):
        (refused,) = run_cases(f"experiments.federation.{program}", [[f"--out_dir={folder}"]])
    assert refused[0] == 2 and f"another process works in {folder}" in refused[2], refused
    assert os.listdir(tmp_path) == []
