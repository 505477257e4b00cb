"""A real federation on this machine: SuperLink, three SuperNodes, TLS and authenticated nodes.

Starts, runs, checks and stops it all:

  1. three hospitals' folders of .npz files, a certificate authority, and a key for each hospital;
  2. the SuperLink with TLS, a token for its control and --enable-supernode-auth, and the hospitals'
     public keys registered with it;
  3. three `flower-supernode`, each knowing only its own folder, and running only the app that was
     signed for them;
  4. `flwr run`, which sends the app of experiments/federation/app to all of them;
  5. the release's claim is recomputed, the hospitals' ledgers show one vote each and as much
     epsilon as is claimed; all is stopped.

  python -m experiments.federation.deploy                      # the vote, then rounds of training
  python -m experiments.federation.deploy --train_rounds=0     # the vote alone, about a minute
  python -m experiments.federation.deploy --epsilon=1          # 3 clients under much noise

Nothing is fetched or told to anyone: telemetry, update checks and the installation of dependencies
at run time are off. Three clients are far too few for a useful vote at epsilon = 1, where the noise
on a count has a standard deviation of 14 votes and a count is at most 3; at the default,
--epsilon=20, it is 0.85. Nor do three suffice to train privately: --total_epsilon=60 protects
nobody. This shows that a deployment works. Logs go to <out_dir>/logs.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from absl import app, flags
from rich.console import Console

from dpjax.commands import command_line, run_folder
from experiments.federation import offline

_OUT_DIR = flags.DEFINE_string("out_dir", None, "Folder to make. Default: runs/hospitals-<time>.")
_EPSILON = flags.DEFINE_float("epsilon", 20.0, "Target of the whole vote.")
_CANDIDATES = flags.DEFINE_string("candidates", "artifact", "A named list, or a JSON list.")
_TRAIN_ROUNDS = flags.DEFINE_integer("train_rounds", 2, "Rounds of training with the winner.")
_TOTAL_EPSILON = flags.DEFINE_float(
    "total_epsilon", 60.0, "Target of the vote and the training together."
)
_TIMEOUT = flags.DEFINE_float("timeout_seconds", 600.0, "Give up after this long.")


def main() -> int:
    """Deploys, checks the release, says where it is; returns the exit code."""
    if importlib.util.find_spec("flwr") is None:
        raise ValueError(
            "a deployment needs Flower: pip install -e '.[federated]' in dpjax's folder"
        )
    offline.stay_offline()
    from dpjax.federated.flower import election
    from experiments.federation import deployment

    overrides = {
        "epsilon": _EPSILON.value,
        "candidates": _CANDIDATES.value,
        "rounds": _TRAIN_ROUNDS.value,
        "total-epsilon": _TOTAL_EPSILON.value,
    }
    # What is wrong with the rules is said now, not by three nodes.
    _ = election.Election.from_config(deployment.app_config() | overrides).fingerprint
    console = Console(highlight=False, soft_wrap=True)
    with run_folder.claimed(_OUT_DIR.value, "hospitals") as folder:
        return deploy(folder, overrides, console)


def deploy(folder: str, overrides: Mapping[str, Any], console: Console) -> int:
    """Deploys in a folder that this process has claimed; see `main`."""
    from experiments.federation import deployment

    started = time.monotonic()
    os.makedirs(folder)
    try:
        outcome = deployment.deploy(folder, overrides, timeout=_TIMEOUT.value, console=console)
    finally:
        # Private keys of an example are of no further use.
        deployment.forget_secrets(folder)
    winner = deployment.check(folder, outcome)
    described = ", ".join(f"{name} {value:g}" for name, value in winner.items())
    console.print(f"released: {described}; the claim was recomputed and holds")
    console.print(f"everything is stopped, after {time.monotonic() - started:.0f} seconds")
    console.print(f"release (may be published):  {os.path.join(outcome, 'release')}")
    console.print(f"curator (never publish):     {os.path.join(outcome, 'curator')}")
    return 0


def run() -> None:
    """Runs the program in the main thread: a stop of any kind unwinds it and stops the nodes."""

    stops = [signal.SIGINT, signal.SIGTERM]
    # A terminal that is closed stops it, unless the user (`nohup`) has said that it must not.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        stops.append(signal.SIGHUP)

    stopping = False

    def stopped(number: int, _: object) -> None:
        nonlocal stopping
        # Once: a second stop would end the stopping, and leave nodes and keys behind.
        if not stopping:
            stopping = True
            raise SystemExit(128 + number)

    for number in stops:
        signal.signal(number, stopped)
    app.run(lambda _: command_line.guarded(main), flags_parser=command_line.parse)


if __name__ == "__main__":
    run()
