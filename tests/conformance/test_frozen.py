"""Releases that earlier versions made verify today, and what they were proved with proves them."""

import json
import pathlib
import re
import subprocess
import sys

import frozen
import pytest
import tiny_tuners

import experiments.figures.leaderboard.extrapolation  # noqa: F401 (whose releases are verified)
from dpjax import certificate
from dpjax.releases import rules, verification

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


def test_rules_of_no_tuner_are_imported_when_a_release_has_one():
    root = pathlib.Path(verification.__file__).parents[2]
    found = {
        ".".join(path.relative_to(root).with_suffix("").parts)
        for path in (root / "dpjax").rglob("*.py")
        if re.search(r"^register_rule\(", path.read_text(), flags=re.MULTILINE)
    }
    assert {name for name in found if not name.startswith("dpjax.tuning.")} == {*rules.MODULES}
    program = (
        "import sys; from dpjax.releases import verification;"
        "assert not {'dpjax.tuning', 'dpjax.bridges'} & sys.modules.keys();"
        "[verification.verify_release(path) for path in sys.argv[1:]]"
    )
    names = (
        "untuned_plain",
        "any_run_plain",
        "any_run_scored_on_training_records",
    )
    folders = [str(frozen.FOLDER / name) for name in names]
    ran = subprocess.run([sys.executable, "-c", program, *folders], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
