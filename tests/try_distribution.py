"""Installs each built distribution into a clean environment and runs it; `make dist` calls it.

python tests/try_distribution.py dist/dpjax-0.3.0-py3-none-any.whl dist/dpjax-0.3.0.tar.gz
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile
import time
import venv

ROOT = pathlib.Path(__file__).resolve().parents[1]


def tried(distribution: pathlib.Path) -> None:
    """Installs one, prices a run and asks what is there, in a folder without the checkout."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        venv.create(f"{folder}/venv", with_pip=True)
        programs = pathlib.Path(folder, "venv", "bin")

        def run(*command: str) -> str:
            done = subprocess.run(
                command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True
            )
            return done.stdout

        pip = (str(programs / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet")
        run(*pip, "install", "--constraint", str(ROOT / "constraints.txt"), str(distribution))
        installed = time.monotonic()
        dpjax = str(programs / "dpjax")
        prices = json.loads(run(dpjax, "price", "--rho=0.1", "--mean=5", "--json"))["epsilon"]
        assert prices["whole_tuning"] > prices["one_run"] > 0
        priced = time.monotonic()
        said = run(str(programs / "python"), "-m", "dpjax")
        assert "federated not installed: pip install -e '.[federated]'" in " ".join(said.split()), (
            said
        )
        run(dpjax, "tune", "--method=untuned", "--steps=5", "--out_dir=run", "--nocompile_cache")
        run(dpjax, "verify", "run")
        print(
            f"{distribution.name}: installed in {installed - begun:.0f} s, first price "
            f"{priced - installed:.1f} s later; tunes and verifies"
        )


def tried_without_jax(wheel: pathlib.Path) -> None:
    """Installs the wheel alone beside NumPy, SciPy and mpmath, prices a study, proves a release."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(f"{folder}/venv", with_pip=True)
        python = str(pathlib.Path(folder, "venv", "bin", "python"))
        pip = (python, "-m", "pip", "--disable-pip-version-check", "--quiet", "install")
        constraint = ("--constraint", str(ROOT / "constraints.txt"))
        subprocess.run([*pip, *constraint, "numpy", "scipy", "mpmath"], check=True)
        subprocess.run([*pip, "--no-deps", str(wheel)], check=True)
        program = ROOT / "tests" / "helpers" / "without_jax.py"
        proved = ROOT / "tests" / "frozen" / "threshold_stopping_plain"
        subprocess.run([python, str(program), str(proved)], cwd=folder, check=True)
        print(f"{wheel.name}: prices and proves without JAX")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        tried(pathlib.Path(name).resolve())
    for name in sys.argv[1:]:
        if name.endswith(".whl"):
            tried_without_jax(pathlib.Path(name).resolve())
