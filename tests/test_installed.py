"""`python -m dpjax`, the version, and the extras that it names."""

import importlib
import json
import pathlib
import re
import subprocess
import sys
import tomllib

from processes import python

import dpjax
from dpjax.commands import installed

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_one_version_everywhere():
    assert PROJECT["version"] == dpjax.__version__
    assert f"\nversion: {dpjax.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(
        rf"^## {re.escape(dpjax.__version__)}$", (ROOT / "CHANGELOG.md").read_text(), re.M
    )


def test_it_names_every_extra_that_brings_something_to_run():
    assert set(installed.EXTRAS) <= set(PROJECT["optional-dependencies"])
    for_work_on_dpjax = {"bench", "docs", "notebooks", "test"}
    missing = set(PROJECT["optional-dependencies"]) - for_work_on_dpjax - set(installed.EXTRAS)
    assert not missing, f"add {missing} to dpjax.commands.installed.EXTRAS"


def test_what_is_missing_is_said_with_what_to_install(monkeypatch):
    monkeypatch.setitem(installed.EXTRAS, "federated", ("no_such_package",))
    shown = "\n".join(installed.lines())
    assert f"dpjax {dpjax.__version__}, Python 3." in shown and "jax " in shown
    assert "federated not installed: pip install -e '.[federated]'" in " ".join(shown.split())


def test_it_touches_no_device():
    code = "import sys; from dpjax.commands import installed as m; m.lines(); "
    code += "print('jax' in sys.modules)"
    done = python("-c", code, check=True)
    assert done.stdout.split() == ["False"]


def test_with_a_command_it_is_the_command():
    for rest, code, shown in (
        (["nonsense"], 2, "error: unknown command 'nonsense': pass one of tune, price"),
        (["--help"], 0, "usage: dpjax COMMAND"),
        ([], 0, "dpjax COMMAND --help lists"),
    ):
        done = python("-m", "dpjax", *rest)
        assert done.returncode == code and shown in done.stdout + done.stderr


def test_prices_and_proofs_need_no_jax(tmp_path):
    """NumPy, SciPy, mpmath and this package alone; `make dist` does it with the wheel."""
    (tmp_path / "dpjax").symlink_to(ROOT / "dpjax")
    for name in ("numpy", "scipy", "mpmath"):
        home = pathlib.Path(importlib.import_module(name).__file__).parent
        for found in (home, home.with_name(f"{name}.libs")):
            if found.exists():
                (tmp_path / found.name).symlink_to(found)
    program = ROOT / "tests" / "helpers" / "without_jax.py"
    proved = ROOT / "tests" / "frozen" / "threshold_stopping_plain"
    done = subprocess.run(
        [sys.executable, "-S", "-B", program, proved],
        env={"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    prices, said = done.stdout.splitlines()
    one, best, all_of_them, noise = json.loads(prices).values()
    assert 0 < one < best < all_of_them and noise > 1.1
    assert said.startswith("PROVED")
