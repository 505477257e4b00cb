"""Attacks on a real federation of this machine: real processes, real messages; minutes, not a test.

A server that departs from the protocol, to which the nodes' owners gave their trust all the same,
runs against three SuperNodes; and strangers try what they can reach. Prints one line an attack and
exits with 1 if any of them got through. The same attacks without processes are tests of the suite
(tests/federated/test_attacks.py, test_strangers.py).

  python -m experiments.federation.attacks --out_dir=/tmp/attacked
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request

from absl import app, flags
from rich.console import Console

from dpjax.commands import command_line, run_folder
from dpjax.federated.flower import storage
from experiments.federation import deployment, hospitals, offline

_OUT_DIR = flags.DEFINE_string("out_dir", None, "Folder to make. Default: runs/attacked-<time>.")
_TIMEOUT = flags.DEFINE_float("timeout_seconds", 1800.0, "Give up after this long.")
_EPSILON, _DELTA = 20.0, 1e-5

_SERVER = '''
"""A server that asks for everything three times, and again after its nodes were started anew."""
import json, os, time
from dpjax.federated.flower import internals as flower
from dpjax.federated.flower.election import Election
from dpjax.federated.flower.server import run_election

app = flower.ServerApp()


class Greedy:
    """A grid that sends one node three copies of what it may answer once, all at a time."""

    def __init__(self, grid):
        self._grid, self.answers = grid, {}

    def __getattr__(self, name):
        return getattr(self._grid, name)

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        records = messages[0].content.config_records.get(flower.RECORD_KEY_CONFIGS, {})
        stage = records.get(flower.Key.STAGE)
        if stage not in (flower.Stage.COLLECT_MASKED_VECTORS, flower.Stage.UNMASK):
            return self._grid.send_and_receive(messages, timeout=timeout)
        first = messages[0].metadata.dst_node_id
        copies = []
        for _ in range(2):
            content = flower.RecordDict(dict(messages[0].content))
            copies.append(
                flower.Message(
                    content, dst_node_id=first, message_type="train", group_id=str(len(copies) + 7)
                )
            )
        replies = list(self._grid.send_and_receive(messages + copies, timeout=timeout))
        good = [r for r in replies if r.metadata.src_node_id == first and not r.has_error()]
        self.answers[stage] = len(good)
        rest = [r for r in replies if r.metadata.src_node_id != first]
        return good[:1] + rest


@app.main()
def main(grid, context):
    config = context.run_config
    election, folder = Election.from_config(config), config["out-dir"]
    greedy = Greedy(grid)
    found = {"votes": run_election(greedy, context, election, timeout=300.0).survivors}
    found["answers"] = greedy.answers
    open(os.path.join(folder, "voted"), "w").close()
    while not os.path.exists(os.path.join(folder, "restarted")):
        time.sleep(0.5)
    try:
        found["again"] = run_election(grid, context, election, timeout=300.0).survivors
    except ValueError as error:
        found["again"] = str(error)
    partial = os.path.join(folder, "found.partial")
    with open(partial, "w") as file:
        json.dump(found, file)
    os.rename(partial, os.path.join(folder, "found.json"))
'''

_FOREIGN = '''
"""An app that nobody has signed."""
import pathlib
pathlib.Path({marker!r}).touch()
from dpjax import federated
app = federated.make_{side}_app({arguments})
'''


def main() -> int:
    """Attacks; returns 1 if anything got through."""
    offline.stay_offline()
    console = Console(highlight=False, soft_wrap=True)
    with run_folder.claimed(_OUT_DIR.value, "attacked") as folder:
        return attack(folder, console)


def attack(folder: str, console: Console) -> int:
    """Attacks a federation in a folder that this process has claimed; returns as `main`."""
    os.makedirs(folder)
    trusted, foreign = (_app(folder, name) for name in ("trusted", "foreign"))
    _write(os.path.join(trusted, "hospital_vote", "server_app.py"), _SERVER)
    markers = {side: os.path.join(folder, f"ran_on_{side}") for side in ("server", "client")}
    for side, arguments in (("server", ""), ("client", "federated.records_in_folder")):
        text = _FOREIGN.format(marker=markers[side], side=side, arguments=arguments)
        _write(os.path.join(foreign, "hospital_vote", f"{side}_app.py"), text)
    try:
        with deployment.started(
            folder, (_EPSILON, _DELTA), timeout=_TIMEOUT.value, console=console, app=trusted
        ) as running:
            results = _strangers(running, foreign, markers)
            results |= _server(running, trusted)
    finally:
        deployment.forget_secrets(folder)
    for name, (got, wanted) in results.items():
        console.print(f"{'held' if got == wanted else 'BROKEN'}: {name}: {got}")
    return int(any(got != wanted for got, wanted in results.values()))


def _strangers(running: deployment.Deployment, foreign: str, markers) -> dict:
    """Whoever reaches the ports, without a token; then an app without a signature."""
    results = {}
    for path in ("control/list-nodes", "control/start-run", "runtime/acquire-task"):
        results[f"a stranger's {path}"] = (_status(f"https://{running.address}/v1/{path}"), 401)
    environment = dict(running.environment, FLWR_HOME=os.path.join(running.folder, "stranger"))
    os.makedirs(environment["FLWR_HOME"])
    shutil.copy(
        os.path.join(running.environment["FLWR_HOME"], "config.toml"), environment["FLWR_HOME"]
    )
    command = ["flwr", "run", foreign, deployment.CONNECTION, "--format", "json"]
    done = subprocess.run(
        command, env=environment, cwd=running.folder, capture_output=True, check=False, timeout=120
    )
    started = done.returncode == 0 and json.loads(done.stdout).get("success", False)
    results["a stranger's flwr run"] = (started, False)
    # With the account's own token: what the SuperLink's owner, or its thief, can do to nodes.
    run_id = deployment.start_run(running, {"timeout-seconds": 60.0}, foreign)
    command = ["flwr", "list", deployment.CONNECTION, "--run-id", run_id, "--format", "json"]
    while True:
        status = json.loads(running.call("list", command))["runs"][0]["status"]
        if status.startswith("finished"):
            break
        time.sleep(2.0)
    results["an unsigned app ran on a node"] = (os.path.exists(markers["client"]), False)
    # The SuperLink is its owner's: his token runs whatever he likes there.
    results["an unsigned app ran on the SuperLink, by its token"] = (
        os.path.exists(markers["server"]),
        True,
    )
    return results


def _status(url: str) -> int:
    """What the SuperLink answers an empty request, from somebody who checks no certificate."""
    kind = "application/protobuf"
    request = urllib.request.Request(url, b"", {"content-type": kind, "accept": kind})
    try:
        context = ssl._create_unverified_context()
        with urllib.request.urlopen(request, context=context, timeout=30.0) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code


def _server(running: deployment.Deployment, trusted: str) -> dict:
    """A server whose app the nodes trust."""
    outcome = os.path.join(running.folder, "asked")
    os.mkdir(outcome)
    settings = {"epsilon": _EPSILON, "rounds": 0, "out-dir": outcome}
    deployment.start_run(running, settings, trusted)
    _wait(running, os.path.join(outcome, "voted"))
    for name in hospitals.NAMES:
        running.restart(name)
    time.sleep(5.0)
    _write(os.path.join(outcome, "restarted"), "")
    _wait(running, os.path.join(outcome, "found.json"))
    with open(os.path.join(outcome, "found.json"), encoding="utf-8") as file:
        found = json.load(file)
    lines = storage.entries(deployment.ledger_of(running.folder, hospitals.NAMES[0]))
    return {
        "votes of three clients": (found["votes"], 3),
        "masked vectors for three requests at once": (
            found["answers"].get("collect_masked_vectors"),
            1,
        ),
        "shares for three requests at once": (found["answers"].get("unmask"), 1),
        "the same run asks again after every SuperNode was stopped and started": (
            "answered in this run" in str(found["again"]),
            True,
        ),
        "a hospital's ledger, epsilon": (sum(line["epsilon"] for line in lines), _EPSILON),
    }


def _wait(running: deployment.Deployment, path: str) -> None:
    while not os.path.exists(path):
        running.check_alive()
        time.sleep(0.2)


def _app(folder: str, name: str) -> str:
    """A copy of the example's app; returns its folder."""
    path = os.path.join(folder, name)
    shutil.copytree(deployment.APP, path, ignore=shutil.ignore_patterns("__pycache__"))
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(os.path.join(path, "build"))
    return path


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    app.run(lambda _: command_line.guarded(main), flags_parser=command_line.parse)
