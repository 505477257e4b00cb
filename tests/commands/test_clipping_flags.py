"""--clipping and the flags of its rules: read, refused in one line, stated, verified."""

import json

RUN = [
    *("--repetitions=fixed", "--mean=1", "--epochs=1", "--lot_size=400", "--seed=1"),
    *("--noise_multiplier=2", "--validation_is_public"),
]


def test_rules_are_read_stated_and_verified(run_cases, tmp_path):
    rules = {
        "automatic": ["--clipping=automatic", "--clip_stability=0.5"],
        "grouped": ["--clipping=grouped", "--clip_groups=Dense_0/kernel,Dense_0/bias"],
    }
    cases = [[*RUN, *own, f"--out_dir={tmp_path / name}"] for name, own in rules.items()]
    assert [code for code, _, _ in run_cases("experiments.tune", cases)] == [0] * 2
    stated = {
        name: json.loads((tmp_path / name / "release" / "guarantee.json").read_text())
        for name in rules
    }
    assert {name: one["run_options"]["clipping"] for name, one in stated.items()} == {
        "automatic": {"rule": "automatic", "stability": 0.5},
        "grouped": {
            "rule": "grouped",
            "groups_of": ["Dense_0/kernel", "Dense_0/bias"],
            "shares": None,
        },
    }
    verified = run_cases(
        "experiments.epsilon",
        [[f"--verify={tmp_path / name / 'release' / 'guarantee.json'}"] for name in rules],
    )
    assert [code for code, _, _ in verified] == [0] * 2
