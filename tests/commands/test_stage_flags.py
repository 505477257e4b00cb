"""--stage_shares and the flags of factors: read, refused in one line, stated, verified."""

import json

RUN = [
    *("--repetitions=fixed", "--mean=1", "--steps=4", "--lot_size=400", "--seed=1"),
    *(
        "--noise_multiplier=2",
        "--validation_is_public",
        "--space=learning_rate=1",
        "--space=clip_norm=1",
    ),
]


def test_stages_are_read_stated_and_verified(run_cases, tmp_path):
    out = tmp_path / "run"
    stages = ["--stage_shares=0.75,0.25", "--stage_noise=1.2,0.8", "--stage_lot_size=0.5,1"]
    cases = [
        [*RUN, "--optimizer=sgd", *stages, f"--out_dir={out}"],
        [*RUN, "--stage_noise=1.2,0.8"],
        [*RUN, "--stage_shares=0.75,0.2"],
        [*RUN, "--stage_shares=0.9,0.1", "--optimizer=sgd", f"--out_dir={tmp_path / 'none'}"],
    ]
    found = run_cases("experiments.tune", cases)
    assert [code for code, _, _ in found] == [0, 2, 2, 2], found
    said = ["".join(texts) for _, *texts in found]
    assert "--stage_noise needs --stage_shares beside it" in said[1]
    assert "--stage_shares=0.75,0.2: pass one number a stage, which sum to 1" in said[2]
    assert "--steps=4 leave a stage without a step" in said[3]
    statement = out / "release" / "guarantee.json"
    words = json.loads(statement.read_text())
    assert words["run_options"]["stages"] == {
        "shares": [0.75, 0.25],
        "noise": [1.2, 0.8],
        "clip_norm": [1.0, 1.0],
        "lot_size": [0.5, 1.0],
    }
    assert [one["steps"] for one in words["training"][0]["stages"]] == [3, 1]
    ((code, _, _),) = run_cases("experiments.epsilon", [[f"--verify={statement}"]])
    assert code == 0
