"""Kills `experiments.tune` at random moments, and starts it twice at once: nothing may be lost.

A long run, not collected by pytest:

  python tests/long_runs/interrupted_jobs.py --kills=100 --pairs=20

Every job is killed some times (SIGKILL), at a random time or right after a random operation on a
file, and then left to finish with the same command. With a seed, its release and its list of
candidates must be those of an undisturbed job, byte for byte; without one, the first draw on the
disk must be the one that is released, every candidate of it trained. Of two processes with the same
command, each must end like an undisturbed one or in one line that says why not. Nothing is left
beside a finished run. Prints what happened, how often; exits with 1 if anything else did.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import csv
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time

import numpy as np

ROOT = pathlib.Path(__file__).parents[2]
SMALL = ["--steps=30", "--lot_size=32", "--noise_multiplier=3", "--chunk_size=2"]
SEED = "--seed=3"
METHODS = {
    "best of K runs": ["--mean=3", "--cap=4"],
    "exponential": ["--method=exponential", "--candidates=3", "--partitions=3"],
}
AGAIN = ["--resume", "--checkpoint_seconds=0"]
FILE_EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.link", "os.rmdir")


def start(arguments, folder, kill_after_operation=None):
    """Forks a process that runs the job in `folder`; all have imported the same modules."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    os.chdir(folder)
    out = os.open(f"{folder}/log-{os.getpid()}", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    if kill_after_operation is not None:
        left = [kill_after_operation]

        def count(event, given):
            mine = event in FILE_EVENTS and str(folder) in str(given[0])
            if mine and "/log-" not in str(given[0]):
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
    from dpjax.commands import command_line, tune

    code = 1
    with contextlib.suppress(SystemExit):
        command_line.parse(["tune", *arguments])
        code = command_line.guarded(tune.main)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def ended(child, after=None):
    """Waits for a process, which is killed after so many seconds; returns its exit code or None."""
    deadline = None if after is None else time.monotonic() + after
    while deadline is not None:
        gone, status = os.waitpid(child, os.WNOHANG)
        if gone:
            break
        if time.monotonic() >= deadline:
            os.kill(child, signal.SIGKILL)
            deadline = None
        time.sleep(0.005)
    else:
        _, status = os.waitpid(child, 0)
    return None if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)


def said(folder, child):
    return (folder / f"log-{child}").read_text()


def outcome(run):
    """Everything of a finished run that another one of the same draw must have too."""
    files = sorted(path for path in (run / "release").iterdir())
    found = {path.name: path.read_bytes() for path in files}
    return found | {"candidates.csv": (run / "curator" / "candidates.csv").read_bytes()}


def draws(run):
    """The name and the number of candidates of the draw that a killed job left, if it left one."""
    for name in ("outcome.npz", "drawn.npz"):
        path = run.with_name(f"{run.name}.curator") / name
        if path.exists():
            with np.load(path) as file:
                count = int(file["counts"].sum()) if "counts" in file else None
                return file["draw"].tobytes(), count
    return None


class Trial:
    """One job's folder, and what is wrong with it."""

    def __init__(self, base, number):
        self.folder = base / str(number)
        self.folder.mkdir()
        self.run = self.folder / "run"
        self.faults = []

    def check_end(self, child, code, reference):
        words = said(self.folder, child)
        if code != 0:
            self.faults.append(f"exit code {code}: {words[-300:]}")
            return
        if reference is not None and outcome(self.run) != reference:
            self.faults.append("another outcome than undisturbed")
        beside = sorted(name for name in os.listdir(self.folder) if not name.startswith("log-"))
        if beside != ["run"]:
            self.faults.append(f"left beside the run: {beside}")


def kill_and_go_on(trial, arguments, kills, source, usual, operations, reference):
    """Kills a job `kills` times, then lets it finish; returns what each attempt ended as."""
    ends, first = [], None
    command = [*arguments, *AGAIN, f"--out_dir={trial.run}"]
    for _ in range(kills):
        if source.random() < 0.5:
            child = start(command, trial.folder, source.randrange(int(operations)))
            code = ended(child)
        else:
            child = start(command, trial.folder)
            code = ended(child, source.uniform(0.0, usual))
        ends.append("killed" if code is None else "finished before it was killed")
        found = draws(trial.run)
        first = first or found
        if found is not None and found != first:
            trial.faults.append("a second draw in one folder")
        if code not in (None, 0):
            trial.faults.append(f"exit code {code}: {said(trial.folder, child)[-300:]}")
    child = start(command, trial.folder)
    trial.check_end(child, ended(child), reference)
    if "nothing left to do" in said(trial.folder, child):
        ends.append("had finished before it was killed for the last time")
    else:
        ends.append("went on to its end")
    if not trial.faults:
        record = json.loads((trial.run / "curator" / "run.json").read_text())
        if first and first[1] not in (None, record["number_of_candidates"]):
            trial.faults.append("another number of candidates than drawn")
        lines = (trial.run / "curator" / "candidates.csv").read_text().splitlines()
        scores = [float(row["score"]) for row in csv.DictReader(lines)]
        if len(scores) != record["number_of_candidates"] or not np.isfinite(scores).all():
            trial.faults.append("a candidate was not trained")
    return ends


def both(trial, commands):
    """Runs commands at once; returns (exit code, what was printed) of each."""
    children = [start(command, trial.folder) for command in commands]
    codes = [ended(child) for child in children]
    return [(code, said(trial.folder, child)) for code, child in zip(codes, children)]


REFUSALS = ("another process works in", "exists already", "belongs to an interrupted run")


def pair(trial, kind, references):
    """Two processes with one command; returns what they ended as."""
    arguments = [*SMALL, *METHODS["best of K runs"], SEED]
    place = [f"--out_dir={trial.run}"]
    if kind == "shards":
        for code, words in both(
            trial, [[*arguments, *place, f"--shard={i}/2", AGAIN[1]] for i in range(2)]
        ):
            if code != 0:
                trial.faults.append(f"exit code {code}: {words[-300:]}")
        command = [*arguments, *place, "--shard=merge/2"]
    else:
        command = {
            "plain": [*arguments, *place],
            "resume": [*arguments, *place, *AGAIN],
            "usual name": arguments,
        }[kind]
    ends = []
    for code, words in both(trial, [command, command]):
        errors = [line for line in words.splitlines() if line.startswith("error: ")]
        if code == 0:
            ends.append("left as it was" if "nothing left to do" in words else "released")
        elif code == 2 and len(errors) == 1 and any(why in errors[0] for why in REFUSALS):
            ends.append("one line")
        else:
            trial.faults.append(f"exit code {code}: {words[-300:]}")
    runs = [trial.run] if kind != "usual name" else sorted((trial.folder / "runs").iterdir())
    if len(runs) != ends.count("released"):
        trial.faults.append(f"{ends.count('released')} released, {len(runs)} runs are there")
    reference = references["plain" if kind in ("plain", "usual name") else "resume"]
    for run in runs:
        if outcome(run) != reference:
            trial.faults.append("another outcome than undisturbed")
    rest = [name for name in os.listdir(trial.folder) if not name.startswith("log-")]
    if rest != ["runs" if kind == "usual name" else "run"]:
        trial.faults.append(f"left beside the run: {rest}")
    return ends


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None, help="of the moments")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**9) if given.seed is None else given.seed
    print(f"moments drawn from --seed={seed}", flush=True)
    source = random.Random(seed)
    base = pathlib.Path(tempfile.mkdtemp(prefix="interrupted_jobs_"))
    # Compiling is most of what these small jobs do.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(base / "compiled")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    os.environ["JAX_PLATFORMS"] = "cpu"
    sys.path.insert(0, str(ROOT))
    import experiments.tune  # noqa: F401

    counts, faults, numbers = collections.Counter(), [], iter(range(10**6))
    references, seconds, operations = {}, {}, {}
    for name, more in (*METHODS.items(), ("plain", METHODS["best of K runs"])):
        # The first compiles; the second says how long one takes.
        for _ in range(2):
            trial = Trial(base, next(numbers))
            command = [*SMALL, *more, SEED, f"--out_dir={trial.run}"]
            command += [] if name == "plain" else AGAIN
            began = time.monotonic()
            child = start(command, trial.folder)
            trial.check_end(child, ended(child), None)
            seconds[name] = time.monotonic() - began
            assert not trial.faults, trial.faults
        references[name] = outcome(trial.run)
        print(f"undisturbed: {name}, {seconds[name]:.1f} seconds", flush=True)
    references["resume"] = references["best of K runs"]
    for name in METHODS:
        # About as many operations as an undisturbed job has, found by doubling.
        operations[name] = 16
        while True:
            trial = Trial(base, next(numbers))
            command = [*SMALL, *METHODS[name], SEED, *AGAIN, f"--out_dir={trial.run}"]
            if ended(start(command, trial.folder, operations[name])) == 0:
                break
            operations[name] *= 1.4
    killed = job = 0
    while killed < given.kills:
        name = list(METHODS)[job % 3 == 2]
        seeded = job % 2 == 0
        trial = Trial(base, next(numbers))
        arguments = [*SMALL, *METHODS[name], *([SEED] if seeded else [])]
        ends = kill_and_go_on(
            trial, arguments, min(source.randint(1, 6), given.kills - killed), source,
            seconds[name], operations[name], references[name] if seeded else None,
        )  # fmt: skip
        killed += ends.count("killed")
        job += 1
        words = "with a seed" if seeded else "without a seed"
        counts.update((f"{name}, {words}", end) for end in ends)
        faults += [(f"{name}, {words}", fault) for fault in trial.faults]
        if not trial.faults:
            shutil.rmtree(trial.folder)
        print(f"{killed} kills of {given.kills}, {len(faults)} faults", flush=True)
        for fault in trial.faults:
            print(f"FAULT  {trial.folder}: {fault}", flush=True)
    for number in range(given.pairs):
        kind = ("plain", "resume", "usual name", "shards")[number % 4]
        trial = Trial(base, next(numbers))
        ends = pair(trial, kind, references)
        counts[f"pair, {kind}", " and ".join(sorted(ends))] += 1
        faults += [(f"pair, {kind}", fault) for fault in trial.faults]
        if not trial.faults:
            shutil.rmtree(trial.folder)
    print(f"{killed} kills of {job} jobs, {given.pairs} pairs, {len(faults)} faults")
    for (what, end), count in sorted(counts.items()):
        print(f"  {count:4d}  {what}: {end}")
    for what, fault in faults:
        print(f"FAULT  {what}: {fault}")
    if not faults:
        shutil.rmtree(base)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
