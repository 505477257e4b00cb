"""--micro_batch_size: read, refused in one line, and no part of what is stated."""

import json
import pathlib
import subprocess
import sys

RUN = [
    "--dataset=digits", "--mean=1", "--lot_size=64", "--steps=2", "--noise_multiplier=2", "--seed=3"
]  # fmt: skip


def test_it_is_read_and_does_not_change_the_statement(run_cases, tmp_path):
    def run(size, name):
        return [*RUN, f"--micro_batch_size={size}", f"--out_dir={tmp_path / name}"]

    sizes = {"auto": "auto", "none": "None", "some": "16"}
    found = run_cases("experiments.tune", [run(size, name) for name, size in sizes.items()])
    assert [code for code, _, _ in found] == [0, 0, 0], found

    def written(name, file):
        return pathlib.Path(tmp_path / name / "release" / file).read_bytes()

    # A small model: the rule takes the whole lot, and not a bit is another.
    for file in sorted(path.name for path in (tmp_path / "auto" / "release").iterdir()):
        assert written("auto", file) == written("none", file)
    plain, some = (json.loads(written(name, "guarantee.json")) for name in ("none", "some"))
    assert plain.pop("sha256") != some.pop("sha256")  # of the model, whose last bits are others
    assert plain == some


def test_its_default_and_words_are_those_of_the_job():
    text = (
        "from absl import flags\n"
        "from dpjax.commands import job_flags\n"
        "flag = flags.FLAGS['micro_batch_size']\n"
        "assert flag.default == 'auto' and 'none' in flag.help, flag.help\n"
    )
    subprocess.run([sys.executable, "-c", text], check=True)
