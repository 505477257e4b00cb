"""--compute_dtype: read, refused in one line, stated; the public default keeps it."""

import json

RUN = ["--method=untuned", "--epsilon=8", "--steps=3", "--seed=1"]


def test_the_type_is_read_and_stated_beside_a_space_and_the_public_default(run_cases, tmp_path):
    given = [f"--space={name}={value}" for name, value in (("learning_rate", 1), ("clip_norm", 1))]
    cases = [
        [*RUN, "--compute_dtype=bfloat16", f"--out_dir={tmp_path / 'default'}"],
        [
            *RUN,
            *given,
            "--optimizer=sgd",
            "--compute_dtype=bfloat16",
            f"--out_dir={tmp_path / 's'}",
        ],
        [*RUN, "--compute_dtype=float16", f"--out_dir={tmp_path / 'none'}"],
    ]
    found = run_cases("experiments.tune", cases)
    assert [code for code, _, _ in found][:2] == [0, 0] and found[2][0] != 0, found
    assert "bfloat16" in "".join(found[2][1:])
    assert not (tmp_path / "none").exists()
    for name in ("default", "s"):
        claim = json.loads((tmp_path / name / "release" / "guarantee.json").read_text())
        assert claim["run_options"]["compute_dtype"] == "bfloat16"
