"""Compares the releases of two checkouts byte by byte, after moves that must change no number.

Runs every tuner, seeded and small, from the command line of both checkouts with this Python, and
compares every file of every `release/` folder (`guarantee.json`, hyperparameters, model) and, for a
Pareto search, the record of its evaluations. (A federated vote knows no seed: its two statements
are compared, at an epsilon where the noise decides nothing.) Products are summed in one thread:
with several, a loaded machine may change their last bits. Prints a line a case; the exit code is
the number of cases that differ. Takes about two minutes a checkout on two cores.

  git worktree add ../before <commit>
  python tests/compare_releases.py ../before .
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile

_SMALL = [
    "--space=learning_rate=loguniform(0.01,1)",
    "--space=momentum=0.9",
    "--space=clip_norm=1",
    "--space=lot_size=256",
    "--space=epochs=1",
    "--seed=3",
]
"""All that a candidate is, so that no default of the checkouts enters."""
_PARTITIONED = ["--candidates=4", "--partitions=6", *_SMALL]

CASES = {
    "random_repetitions": ("experiments.tune", ["--mean=4", *_SMALL]),
    "logarithmic_law": ("experiments.tune", ["--repetitions=logarithmic", "--mean=4", *_SMALL]),
    "poisson_law": ("experiments.tune", ["--repetitions=poisson", "--mean=4", *_SMALL]),
    "mixed_space": (
        "experiments.tune",
        [
            "--mean=4",
            "--seed=3",
            "--space=learning_rate=loguniform(0.01,1)",
            "--space=momentum=0.9",
            "--space=clip_norm=1",
            "--space=lot_size=choice(128,256)",
            "--space=epochs=choice(1,2)",
        ],
    ),
    "fixed_lots": ("experiments.tune", ["--mean=4", "--sampling=fixed", *_SMALL]),
    "threshold_stopping": (
        "experiments.tune",
        ["--method=threshold_stopping", "--threshold=0.5", "--halting_probability=0.3", *_SMALL],
    ),
    "exponential": ("experiments.tune", ["--method=exponential", *_PARTITIONED]),
    "permute_and_flip": (
        "experiments.tune",
        ["--method=exponential", "--mechanism=permute_and_flip", *_PARTITIONED],
    ),
    "doubling": ("experiments.tune", ["--method=doubling", *_PARTITIONED]),
    "federated_vote": (
        "experiments.federated_vote",
        ["--model=logistic_regression", "--clients=6", "--epsilon=60"],
    ),
    "pareto_search": (
        "experiments.pareto",
        ["--quick", "--seed=1", "--domain=epochs=integer(1,2)", "--domain=lot_size=integer(40,64)"],
    ),
}
"""Name -> (binary, flags)."""

_COMPARED = ("release/**/*", "curator/evaluations.jsonl")
_UNSEEDED = {"federated_vote": ("release/*.json",)}


def released(checkout: pathlib.Path, folder: pathlib.Path, case: str) -> dict[str, bytes] | str:
    """Runs one case in a checkout; file name -> content, or the last line of what went wrong."""
    binary, arguments = CASES[case]
    command = [sys.executable, "-m", binary, f"--out_dir={folder / case}", *arguments]
    done = subprocess.run(
        command,
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"},
    )
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no message"])[-1]
    patterns = _UNSEEDED.get(case, _COMPARED)
    files = [path for pattern in patterns for path in sorted((folder / case).glob(pattern))]
    return {str(path.relative_to(folder / case)): path.read_bytes() for path in files}


def main(before: str, after: str) -> int:
    """Compares; returns the number of cases that differ."""
    different = 0
    with tempfile.TemporaryDirectory() as scratch:
        for case in CASES:
            answers = []
            for place, checkout in enumerate((before, after)):
                folder = pathlib.Path(scratch) / str(place)
                folder.mkdir(exist_ok=True)
                answers.append(released(pathlib.Path(checkout).resolve(), folder, case))
            old, new = answers
            if isinstance(old, str) or isinstance(new, str):
                verdict = f"did not run: {old if isinstance(old, str) else new}"
            elif not old:
                verdict = "nothing was compared"
            elif old == new:
                verdict = ""
            else:
                changed = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
                verdict = f"differs in {', '.join(changed)}"
            different += bool(verdict)
            print(f"{case}: {verdict or f'{len(old)} files, byte for byte the same'}", flush=True)
    return different


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python tests/compare_releases.py BEFORE AFTER (two checkouts)")
    sys.exit(main(*sys.argv[1:]))
