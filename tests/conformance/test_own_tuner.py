"""A tuner in one file of a package of its own: priced, run, released, verified, proved, audited.

It has another choice (the last run, whatever the scores), and a private training after it. Nothing
of the library is edited; its flags come from its fields.
"""

import importlib
import json
import pathlib
import subprocess
import sys

import pytest

from dpjax import accounting, auditing, certificate, tuning
from dpjax.tuning import verification

SOURCE = pathlib.Path(__file__).parent / "own_tuner.py"
RUN = tuning.RunOptions(lot_size=16, steps=2)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """The module, in a package that is nowhere near the library."""
    folder = tmp_path_factory.mktemp("own") / "own_package"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "last_run.py").write_text(SOURCE.read_text())
    sys.path.insert(0, str(folder.parent))
    try:
        yield importlib.import_module("own_package.last_run")
    finally:
        sys.path.remove(str(folder.parent))


def test_it_is_priced_run_released_verified_and_proved(own, task, tuned, statement_of):
    result = tuned(task, own.LastRun(2), epsilon=3.0, run=RUN, delta=1e-5)
    assert result.curator.winner == 1 and result.curator.number_of_candidates == 2
    assert 2.9 < result.guarantee.epsilon(1e-5) <= 3.0
    # Not chosen by its score, it costs what two trainings cost.
    one = result.run_guarantee
    assert result.guarantee.epsilon(1e-5) == accounting.compose(one, one).epsilon(1e-5)
    path = statement_of(result)
    assert verification.verify_release(path).epsilon <= 3.0
    claim = json.loads(path.read_text())
    assert claim["selection"] == {"rule": own.RULE, "runs": 2}
    with pytest.raises(certificate.Unproved, match="by the rule .* are beyond this program"):
        certificate.check(str(path.parent))


def test_the_same_numbers_chosen_by_their_scores_cost_more(own, task, tuned):
    best = tuned(task, tuning.RandomRepetitions(accounting.Fixed(2)))
    last = tuned(task, own.LastRun(2))
    assert best.guarantee.epsilon(1e-5) > last.run_guarantee.epsilon(1e-5)


def test_it_is_audited(own):
    found = auditing.audit(
        own.LastRun(2),
        auditing.CANARIES["gradient"],
        space=tuning.Space(learning_rate=1.0, clip_norm=1.0),
        number=4_000,
        delta=0.02,
        run=tuning.RunOptions(lot_size=8, steps=1, noise_multiplier=2.0),
        seed=1,
    )
    # The search is paid for, and the final training alone is seen.
    assert found.stands and found.seen.value > 0.15 * found.claimed


def test_it_has_its_flags(own, tmp_path):
    program = (
        "import own_package.last_run\n"
        "from dpjax.commands import command_line, tune\n"
        "command_line.run(tune.main)"
    )
    small = ["--method=last_run", "--runs=2", "--steps=2", "--noise_multiplier=4", "--seed=1"]
    folder = tmp_path / "run"
    told = subprocess.run(
        [sys.executable, "-c", program, *small, f"--out_dir={folder}"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": f"{sys.path[0]}:{pathlib.Path.cwd()}", "JAX_PLATFORMS": "cpu"},
        check=False,
    )
    assert told.returncode == 0, told.stderr
    claim = json.loads((folder / "release" / "guarantee.json").read_text())
    assert claim["selection"]["runs"] == 2


def test_where_it_is_not_imported_verification_says_so(own, task, tuned, statement_of, monkeypatch):
    path = statement_of(tuned(task, own.LastRun(2)))
    monkeypatch.setattr("dpjax.tuning.tuner._REBUILDERS", {})
    with pytest.raises(
        verification.NotVerified, match="no tuner is registered for the rule .*: import"
    ):
        verification.verify_release(path)


def test_names_and_rules_are_unique(own):
    with pytest.raises(ValueError, match="'last_run' is registered already"):
        tuning.register_tuner("last_run", rule="another")(own.LastRun)
    with pytest.raises(ValueError, match="the rule .* is registered already"):
        tuning.register_tuner("another", rule=own.RULE)(own.LastRun)
    assert tuning.registered_tuners()["last_run"] is own.LastRun


def test_what_is_no_tuner_is_refused(task):
    for wrong in ("random_repetitions", tuning.RandomRepetitions, None):
        with pytest.raises(ValueError, match="tuner must be a tuner, such as RandomRepetitions"):
            tuning.tune(task, None, wrong)
