"""The one program `dpjax`, which `python -m dpjax` is too."""

import json
import pathlib
import re
import shutil
import subprocess

import pytest
from processes import python

from dpjax.commands import console, help_page

ROOT = pathlib.Path(__file__).parents[2]
FROZEN = ROOT / "tests" / "frozen" / "random_repetitions_plain"
PROGRAMS = ("tune", "price", "accelerator", "pareto", "vote", "audit")


def run(*arguments, **more):
    return python("-m", "dpjax", *arguments, **more)


def test_prices_need_no_checkout(tmp_path):
    done = run("price", "--rho=0.1", "--json", "--mean=5", cwd=tmp_path)
    prices = json.loads(done.stdout)["epsilon"]
    assert prices["whole_tuning"] > prices["one_run"] > 0


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["tuen"], "unknown command 'tuen': pass one of tune, price"),
        (["verify"], "the following arguments are required: release"),
        (["verify", "/nowhere/guarantee.json"], "cannot be read"),
        (["verify", "a", "b"], "unrecognized arguments: b"),
        (["report", "/nowhere"], "cannot be read"),
        (["certificate"], "the following arguments are required: release"),
        (["ledger", "/nowhere"], "has a ledger: pass the folder of the runs"),
        (["ledger", ".", "--budget=inf"], "--budget: inf: pass a finite number above 0"),
        (["ledger", ".", "--budget=two"], "--budget: two: pass a finite number above 0"),
        (["predict", "a", "b.csv"], "the following arguments are required: out"),
        (["predict", str(FROZEN), "b.csv", "/nowhere.csv"], "has no schema.json: pass a release"),
        (["predict", str(FROZEN), "b.csv", __file__], "is there already: pass another path"),
        (["verify", "--nope"], "there is no flag --nope"),
        (["price", "--rho=-1"], "rho"),
        (["schema", "people.csv"], "the following arguments are required: schema"),
        (["schema", "/nowhere.csv", "/tmp/schema.json"], "/nowhere.csv does not exist"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments, message):
    done = run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_help_names_the_commands_and_each_has_its_own():
    shown = run("--help").stdout
    for command in console._COMMANDS:
        assert re.search(rf"^  {command} ", shown, re.M), command
    for command in console._SMALL:
        done = run(command, "--help")
        assert done.returncode == 0 and f"usage: dpjax {command}" in done.stdout


@pytest.fixture(scope="module")
def pages():
    """Each program's --help."""
    found = {command: run(command, "--help") for command in PROGRAMS}
    assert all(done.returncode == 0 for done in found.values()), found
    return {command: done.stdout for command, done in found.items()}


_CALLS = {
    "tune": r"experiments\.tune|dpjax tune",
    "price": r"experiments\.epsilon|dpjax price",
    "accelerator": r"dpjax accelerator",
    "pareto": r"experiments\.pareto|dpjax pareto",
    "vote": r"experiments\.federated_vote|dpjax vote",
    "audit": r"experiments\.audit|dpjax audit",
}


def _flags_in_guides(command):
    """The flags that follow a call of the command in README and guides, to the end of its text."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text() for page in pages).replace("\\\n", " ")
    calls = re.findall(rf"(?:{_CALLS[command]})((?: +--\S+)*)", text)
    return {flag for call in calls for flag in re.findall(r"--([a-z_]+)", call)}


@pytest.mark.parametrize("command", PROGRAMS)
def test_help_shows_every_flag_of_the_guides_in_groups_with_defaults(pages, command):
    shown = set(re.findall(r"^  --(?:\[no\])?(\w+)", pages[command], re.M))
    # What a guide says of --helpfull and --list is said of them.
    named = _flags_in_guides(command) - {"helpfull", "help", "list"}
    missing = {flag for flag in named if not {flag, flag.removeprefix("no")} & shown}
    assert not missing, f"add {missing} to help_page.GROUPS"
    assert f"dpjax {command} --helpfull lists all flags" in pages[command]
    assert not re.search(
        r"python -m experiments\.(tune|epsilon|pareto|federated_vote)", pages[command]
    )


@pytest.mark.parametrize("command", PROGRAMS)
def test_help_shows_every_flag_of_its_own_examples(pages, command):
    text = pages[command].replace("\\\n", " ")
    used = set(re.findall(r"--([a-z_]+)", " ".join(re.findall(rf"dpjax {command} .*", text))))
    shown = set(re.findall(r"^  --(?:\[no\])?(\w+)", pages[command], re.M))
    assert used - {"helpfull", "list"} <= shown


def test_flags_of_the_readme_stand_in_tunes_help(pages):
    later = ("bands", "stage_shares", "stage_noise", "stage_clip_norm", "stage_lot_size")
    given = ("method", "repetitions", "mean", "score_on_training", "cap", "clipping")
    for flag in (*given, *later, "stream_bytes"):
        assert f"--{flag}" in pages["tune"] or f"--[no]{flag}" in pages["tune"]
    for flag in ("[no]resume", "shard", "config", "epsilon", "claimed_by", "budget"):
        assert f"\n  --{flag}" in pages["tune"], flag
    assert "--delta=1e-05" in pages["tune"] and "Privacy:" in pages["tune"]


def test_no_flag_stands_in_two_groups():
    names = " ".join(help_page.GROUPS.values()).split()
    assert len(names) == len(set(names))


def test_a_release_is_reported_signed_and_verified(tmp_path):
    """By the commands of docs/howto/publish.md."""
    shutil.copytree(FROZEN, tmp_path / "release")
    assert run("report", tmp_path).stdout.split() == [
        str(tmp_path / "statement.md"),
        str(tmp_path / "statement.html"),
    ]
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    guide = (ROOT / "docs" / "howto" / "publish.md").read_text(encoding="utf-8")
    calls = [line.split(" #")[0] for line in guide.splitlines() if line.startswith("openssl ")]
    assert [call.split()[1] for call in calls] == ["genpkey", "pkey", "pkeyutl", "pkeyutl"]
    for call in calls:
        subprocess.run(call.split(), cwd=tmp_path, check=True)
    statement = tmp_path / "release" / "guarantee.json"
    statement.write_text(statement.read_text() + " ")
    assert subprocess.run(calls[-1].split(), cwd=tmp_path).returncode != 0


def test_devices_says_what_is_installed_and_what_jax_finds():
    shown = run("devices").stdout
    assert "JAX devices: " in shown and "bridges" in shown


def test_outside_a_checkout_its_commands_say_so(tmp_path):
    kept = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "dpjax", tmp_path / "dpjax", ignore=kept)
    done = run("pareto", cwd=tmp_path)
    assert done.returncode == 2 and "is part of a checkout" in done.stderr


WRONG = {
    "--epsilon=two": "--epsilon=two: pass a number",
    "--seed=1.5": "--seed=1.5: pass a whole number",
    "--space=learning_rate=0.1": "momentum needs momentum: pass --space=momentum=NUMBER",
    "--learning_rate=0.1": "the space names it, so pass --space=learning_rate=0.1",
    "--epsilonn=2": "there is no flag --epsilonn: did you mean --epsilon?",
    "--flagfile=nope": "--flagfile=nope cannot be read: pass the path of a file",
    "--claimed_by=": "--claimed_by must be one line",
    "--budget=inf": "--budget=inf: pass a finite number above 0",
    "--budget=-1": "--budget=-1: pass a finite number above 0",
}


def test_a_wrong_flag_is_refused_in_one_line(run_cases):
    """All in one process, and the first one by the program too."""
    done = run("tune", *list(WRONG)[:1])
    found = run_cases("dpjax.commands.tune", [[flag] for flag in WRONG])
    wrong = [
        *zip(WRONG.values(), found),
        ([*WRONG.values()][0], (done.returncode, "", done.stderr)),
    ]
    for message, (code, _, errors) in wrong:
        assert code == 2 and message in errors, errors
        assert len(errors.strip().splitlines()) == 1
