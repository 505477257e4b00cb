"""A run's flags as one file: what a run leaves behind makes the same run again."""

import json

import pytest

QUICK = ["--epochs=0.2", "--lot_size=256", "--mean=2", "--seed=3"]


@pytest.fixture(scope="module")
def first(run_cases, tmp_path_factory):
    folder = tmp_path_factory.mktemp("config") / "first"
    arguments = [*QUICK, "--space=learning_rate=choice(0.1,0.2)", "--space=clip_norm=1"]
    arguments += ["--optimizer=sgd", "--validation_is_public", f"--out_dir={folder}"]
    ((code, _, errors),) = run_cases("experiments.tune", [arguments])
    assert code == 0, errors
    return folder


def test_it_holds_what_was_asked_in_the_curators_folder(first):
    held = json.loads((first / "curator" / "config.json").read_text())
    given = {
        "epochs": 0.2,
        "lot_size": 256,
        "mean": 2.0,
        "optimizer": "sgd",
        "seed": 3,
        "space": ["learning_rate=choice(0.1,0.2)", "clip_norm=1"],
        "validation_is_public": True,
    }
    # Every field, those of other tuners too.
    unset = {"cap": 64, "delta": 1e-5, "epsilon": None, "partitions": None, "widths": ["64"]}
    assert held | given | unset == held
    assert not (first / "release" / "config.json").exists()


def test_it_makes_the_same_release_again_and_flags_beside_it_win(run_cases, first, tmp_path):
    config = f"--config={first / 'curator' / 'config.json'}"
    again, other = tmp_path / "again", tmp_path / "other"
    results = run_cases(
        "experiments.tune",
        [[config, f"--out_dir={again}"], [config, f"--out_dir={other}", "--lot_size=200"]],
    )
    assert [code for code, _, _ in results] == [0, 0], results
    assert (again / "release" / "guarantee.json").read_bytes() == (
        first / "release" / "guarantee.json"
    ).read_bytes()
    claim = json.loads((other / "release" / "guarantee.json").read_text())
    assert claim["training"][0]["lot_size"] == 200
    assert claim["optimizer"]["name"] == "sgd"


@pytest.mark.parametrize(
    "content,message",
    [
        ("[1]", "pass a JSON object of flags"),
        ("{", "cannot be read"),
        ('{"wieght": 1}', "names 'wieght', which is not a flag of this program"),
        ('{"mean": {"a": 1}}', "mean must be a number, a text or a list"),
        ('{"epsilon": "much"}', "epsilon"),
        ('{"config": "again.json"}', "names 'config'"),
        ('{"threshold": 0.5}', "--threshold belongs to --method=threshold_stopping"),
    ],
)
def test_what_is_no_config_is_refused_in_one_line(run_cases, tmp_path, content, message):
    path = tmp_path / "run.json"
    path.write_text(content)
    ((code, _, errors),) = run_cases(
        "experiments.tune", [[f"--config={path}", f"--out_dir={tmp_path / 'run'}"]]
    )
    assert code == 2 and message in errors and len(errors.strip().splitlines()) == 1, errors
    assert not (tmp_path / "run").exists()
