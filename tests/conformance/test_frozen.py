"""Releases that earlier versions made verify today, and what they were proved with proves them."""

import json

import frozen
import pytest
import tiny_tuners

import experiments.figures.leaderboard.extrapolation  # noqa: F401 (whose releases are verified)
from dpjax import certificate
from dpjax.tuning import verification

FOLDERS = sorted(path for path in frozen.FOLDER.iterdir())
PROVED = [folder for folder in FOLDERS if (folder / "certificate.json").exists()]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_it_verifies(folder):
    statement = folder / "guarantee.json"
    if "fingerprint" in json.loads(statement.read_text()):
        pytest.importorskip("flwr", reason="the extra federated is not installed")
        from dpjax.federated.flower import vote_release

        found = verification.verify_release(statement, vote_release.rebuilt)
    else:
        found = verification.verify_release(statement)
    assert found.recomputed <= found.epsilon


@pytest.mark.parametrize("folder", PROVED, ids=lambda folder: folder.name)
def test_it_is_proved(folder):
    assert certificate.check(str(folder)).startswith("PROVED")


def test_every_tuner_has_one_and_nothing_else_is_there():
    wanted = {frozen.folder_of(f"{name}, plain") for name in tiny_tuners.NAMES}
    assert wanted <= set(FOLDERS)
    known = {frozen.folder_of(name) for name in (*frozen.cases(), *frozen.VOTES)}
    # Tuners of version 0.2.0: a setting of `exponential` now, and one of the leaderboard's alone.
    old = ("permute_and_flip_", "extrapolation_")
    folded = {folder for folder in FOLDERS if folder.name.startswith(old)}
    assert set(FOLDERS) - folded <= known
