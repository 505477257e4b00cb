"""A federation's processes on this machine: started in order, watched, stopped together."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
import warnings
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console

from dpjax.federated.flower import storage
from dpjax.federated.flower.election import Election
from experiments.federation import hospitals, keys, offline

APP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "app")
_PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(APP)))
CONNECTION = "hospitals"
_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.1
_ASK_SECONDS = 10.0


class Deployment:
    """Processes of one federation, each with its log; all stopped on exit.

    `address` is host:port of the SuperLink, once it is started.
    """

    def __init__(self, folder: str, timeout: float):
        self.folder = folder
        self.address = ""
        self.deadline = time.monotonic() + timeout
        self._processes: dict[str, subprocess.Popen] = {}
        self._commands: dict[str, Sequence[str]] = {}
        self.environment = offline.stay_offline(dict(os.environ)) | {
            "FLWR_HOME": os.path.join(folder, "flower_home"),
            # The SuperLink's and SuperNodes' child processes import dpjax from here.
            "PYTHONPATH": os.pathsep.join(
                filter(None, [_PROJECT, os.environ.get("PYTHONPATH", "")])
            ),
            # Children are started by name.
            "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")]),
        }
        os.makedirs(self.environment["FLWR_HOME"], mode=0o700)
        os.makedirs(os.path.join(folder, "logs"))

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    def start(self, name: str, command: Sequence[str]) -> None:
        """Starts a process that is to stay."""
        self._commands[name] = command
        with open(self._log(name), "ab") as log:
            self._processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self.folder,
                # Its children are stopped with it, as one group.
                start_new_session=True,
            )

    def restart(self, name: str) -> None:
        """Ends a process and its children and starts it anew: all that it held in memory is gone.

        Not by a kill: the SuperLink takes such a node for alive, and its successor for an intruder,
        until it has missed some heartbeats.
        """
        self._end([self._processes[name]])
        self.start(name, self._commands[name])

    def call(self, name: str, command: Sequence[str]) -> str:
        """Runs a command to its end; returns what it printed."""
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self.environment,
            cwd=self.folder,
            timeout=max(1.0, self.deadline - time.monotonic()),
            check=False,
        )
        with open(self._log(name), "a", encoding="utf-8") as log:
            log.write(f"$ {shlex.join(command)}\n{done.stdout}{done.stderr}\n")
        if done.returncode:
            raise ValueError(f"{name} failed; see {self._log(name)}")
        return done.stdout

    def check_alive(self) -> None:
        """Raises ValueError if time is up or a process has ended."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise ValueError(
                    f"{name} ended with code {process.returncode}; see {self._log(name)}"
                )
        if time.monotonic() > self.deadline:
            raise ValueError(f"no result in time; see {os.path.join(self.folder, 'logs')}")

    def wait_for_port(self, port: int) -> None:
        """Returns when something listens on the port of this machine."""
        while True:
            self.check_alive()
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
                return
            except OSError:
                time.sleep(_POLL_SECONDS)

    def wait_for_run(self, run_id: str, outcome: str) -> None:
        """Returns when a run has finished and written its outcome; raises ValueError if it failed.

        Asking Flower starts a process, which takes cores from the run itself, so it is asked
        rarely until the outcome is there.
        """
        command = ["flwr", "list", CONNECTION, "--run-id", run_id, "--format", "json"]
        while True:
            ask_at = time.monotonic() + _ASK_SECONDS
            while not os.path.isdir(outcome) and time.monotonic() < ask_at:
                self.check_alive()
                time.sleep(_POLL_SECONDS)
            status = json.loads(self.call("list", command))["runs"][0]["status"]
            if not status.startswith("finished"):
                continue
            if status == "finished:completed" and os.path.isdir(outcome):
                return
            raise ValueError(f"the run is {status}; see {os.path.join(self.folder, 'logs')}")

    def stop(self) -> None:
        """Ends every process and its children, nodes first."""
        self._end(list(reversed(self._processes.values())))
        self._processes.clear()

    def _end(self, processes: Sequence[subprocess.Popen]) -> None:
        for process in processes:
            _signal_group(process, signal.SIGTERM)
        limit = time.monotonic() + _STOP_SECONDS
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, limit - time.monotonic()))
            # What a process leaves behind in its group goes with it.
            _signal_group(process, signal.SIGKILL)
            process.wait()

    def _log(self, name: str) -> str:
        return os.path.join(self.folder, "logs", f"{name}.log")


def _signal_group(process: subprocess.Popen, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def free_ports(number: int) -> list[int]:
    """Ports of 127.0.0.1 that nothing uses at the moment."""
    sockets = [socket.socket() for _ in range(number)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def node_config(folder: str, name: str, own: str, limit: float, delta: float) -> str:
    """What a hospital tells its SuperNode: where its records are, and what it may spend."""
    facts = {
        "data": own,
        storage.LEDGER: ledger_of(folder, name),
        storage.MAX_EPSILON: limit,
        storage.MAX_DELTA: delta,
    }
    return " ".join(f"{key}={json.dumps(value)}" for key, value in facts.items())


def ledger_of(folder: str, name: str) -> str:
    """Path of a hospital's own list of the votes it sent."""
    return os.path.join(folder, f"votes_of_{name}.jsonl")


def _apart(secret: str, name: str) -> list[str]:
    """Flags by which apps are started by a process that knows a secret, and by no other.

    Otherwise whoever reaches the port can take an app's place, and with it the node's state.
    """
    path = os.path.join(secret, f"{name}_apps")
    if not os.path.exists(path):
        keys.write_token(secret, f"{name}_apps")
    return ["--isolation", "process", "--superexec-auth-secret-file", path]


def _apps(secret: str, name: str, port: int, authority: str) -> list[str]:
    """The process that starts apps for the SuperLink or a SuperNode."""
    return [
        *("flower-superexec", "--runtime-api-address", f"127.0.0.1:{port}"),
        *("--root-certificates", authority),
        *("--superexec-auth-secret-file", os.path.join(secret, f"{name}_apps")),
    ]


def write_credentials(home: str, address: str, token: str) -> None:
    """Writes the token where the `flwr` command looks for an account's, for its owner to read."""
    from flwr.cli import constant
    from flwr.common.constant import AuthnType
    from flwr.supercore.credential_store.file_credential_store import FileCredentialStore

    with open(token, "rb") as file:
        value = file.read()
    store = FileCredentialStore(pathlib.Path(home, "credentials.yaml"))
    store.set(constant.AUTHN_TYPE_STORE_KEY % address, AuthnType.OIDC.encode())
    for key in (constant.ACCESS_TOKEN_STORE_KEY, constant.REFRESH_TOKEN_STORE_KEY):
        store.set(key % address, value)


def forget_secrets(folder: str) -> None:
    """Removes the keys and tokens of a deployment, which are of no further use."""
    shutil.rmtree(os.path.join(folder, "keys"), ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        os.remove(os.path.join(folder, "flower_home", "credentials.yaml"))


def bundle(app: str) -> bytes:
    """The app of a folder as `flwr run` sends it, byte for byte."""
    from flwr.cli.build import build_fab_from_disk

    with warnings.catch_warnings():
        # Flower names a kind of pattern that its library has renamed.
        warnings.filterwarnings("ignore", message="GitWildMatch", category=DeprecationWarning)
        return build_fab_from_disk(pathlib.Path(app))


def app_config() -> dict[str, str | int | float]:
    """The app's settings, as its pyproject.toml lists them."""
    with open(os.path.join(APP, "pyproject.toml"), "rb") as file:
        return tomllib.load(file)["tool"]["flwr"]["app"]["config"]


def as_toml(values: Mapping[str, str | int | float]) -> str:
    """Flat settings as TOML; JSON's strings and numbers are TOML's too."""
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())


def deploy(
    folder: str, run_config: Mapping[str, str | int | float], *, timeout: float, console: Console
) -> str:
    """Runs the whole federation in an empty folder; returns the folder of its outcome.

    `run_config` overrides the app's configuration; `timeout` is of everything, in seconds.
    """
    outcome = os.path.join(folder, "outcome")
    election = Election.from_config(app_config() | dict(run_config))
    limits = election.total_epsilon, election.settings.delta
    with started(folder, limits, timeout=timeout, console=console) as running:
        console.print("flwr run: candidates, the vote under masks, then training under masks")
        run_id = start_run(running, {**run_config, "out-dir": outcome})
        running.wait_for_run(run_id, outcome)
    return outcome


@contextlib.contextmanager
def started(
    folder: str, limits: tuple[float, float], *, timeout: float, console: Console, app: str = APP
) -> Iterator[Deployment]:
    """A SuperLink and a SuperNode for each hospital, in a folder; stopped on exit.

    Each hospital may spend these limits, epsilon and delta, and trusts the app in this folder
    alone.
    """
    secret = os.path.join(folder, "keys")
    os.mkdir(secret, 0o700)
    data = hospitals.write_hospitals(os.path.join(folder, "data"))
    files = keys.write_certificates(secret)
    node_keys = [keys.write_node_key(secret, name) for name in hospitals.NAMES]
    token = keys.write_token(secret, "control_token")
    signatures, trusted = keys.sign_app(secret, bundle(app))
    port, *node_ports = free_ports(1 + len(data))
    address = f"127.0.0.1:{port}"
    certified = [
        *("--ssl-ca-certfile", files["authority"]),
        *("--ssl-certfile", files["certificate"], "--ssl-keyfile", files["key"]),
    ]
    with Deployment(folder, timeout) as running:
        running.address = address
        home = running.environment["FLWR_HOME"]
        with open(os.path.join(home, "config.toml"), "w", encoding="utf-8") as file:
            connection = {"address": address, "root-certificates": files["authority"]}
            file.write(f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n')
            file.write(as_toml(connection))
        write_credentials(home, address, token)
        console.print(f"SuperLink with TLS on {address}, its control behind a token")
        running.start(
            "superlink",
            [
                *(sys.executable, "-m", "experiments.federation.superlink", token, signatures),
                *("--host", "127.0.0.1", "--port", str(port)),
                *certified,
                "--enable-supernode-auth",
                "--disable-runtime-dependency-installation",
                *_apart(secret, "superlink"),
            ],
        )
        running.wait_for_port(port)
        running.start("superlink_apps", _apps(secret, "superlink", port, files["authority"]))
        for name, (private, public), own, own_port in zip(
            hospitals.NAMES, node_keys, data, node_ports
        ):
            running.call("register", ["flwr", "supernode", "register", public, CONNECTION])
            console.print(f"SuperNode {name}, authenticated, reads {own}")
            running.start(
                name,
                [
                    *("flower-supernode", "--superlink", address),
                    *("--root-certificates", files["authority"]),
                    *("--auth-supernode-private-key", private),
                    *("--host", "127.0.0.1", "--port", str(own_port)),
                    *certified,
                    *("--node-config", node_config(folder, name, own, *limits)),
                    *("--trusted-entities", trusted),
                    *_apart(secret, name),
                ],
            )
        for name, own_port in zip(hospitals.NAMES, node_ports):
            running.wait_for_port(own_port)
            running.start(f"{name}_apps", _apps(secret, name, own_port, files["authority"]))
        yield running


def start_run(
    running: Deployment, run_config: Mapping[str, str | int | float], app: str = APP
) -> str:
    """Starts an app in a federation, as its account; returns Flower's number of the run."""
    settings = os.path.join(running.folder, "run.toml")
    with open(settings, "w", encoding="utf-8") as file:
        file.write(as_toml(run_config))
    command = ["flwr", "run", app, CONNECTION, "--run-config", settings, "--format", "json"]
    return str(json.loads(running.call("run", command))["run-id"])


def check(folder: str, outcome: str) -> dict[str, float]:
    """Recomputes the claim of a release and reads what the hospitals say they spent.

    Returns the released hyperparameters.
    """
    from dpjax import accounting
    from dpjax.federated.flower import storage

    found = {}
    for name in ("hyperparameters", "guarantee"):
        path = os.path.join(outcome, "release", f"{name}.json")
        with open(path, encoding="utf-8") as file:
            found[name] = json.load(file)
    claim = found["guarantee"]
    recomputed = accounting.from_provenance(claim["mechanism"]).epsilon(claim["delta"])
    if recomputed > claim["epsilon"] * (1 + 1e-9):
        raise ValueError(f"the release claims {claim['epsilon']}, the truth is {recomputed}")
    for name in hospitals.NAMES:
        lines = storage.entries(ledger_of(folder, name))
        votes = [line["fingerprint"] for line in lines if line["what"] == "vote"]
        if votes != [claim["fingerprint"]]:
            raise ValueError(f"{name} sent {len(votes)} votes, and not just this one")
        noted = sum(line["epsilon"] for line in lines)
        if noted < claim["epsilon"] * (1 - 1e-9):
            raise ValueError(f"{name} noted epsilon {noted:g}, the claim is {claim['epsilon']:g}")
    return found["hyperparameters"]
