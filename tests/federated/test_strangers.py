"""Who reaches what: Flower's SuperLink answers those who hold its token, nodes run signed apps."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
import warnings

import pytest

from dpjax.federated.flower import internals  # noqa: F401  Quietens Flower's imports.
from experiments.federation import deployment, keys

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from flwr.supercore.fab import Fab
    from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
    from flwr.superlink.main import create_app
    from flwr.supernode.start_client_internal import _verify_fab
    from starlette.testclient import TestClient

    from experiments.federation import superlink

_PROTOBUF = {"content-type": "application/protobuf", "accept": "application/protobuf"}


@pytest.fixture
def started(tmp_path, monkeypatch):
    """A function from flags to a client of the SuperLink that they start, but for its port."""

    def start(*flags):
        module = sys.modules[superlink.flower_superlink.__module__]
        found = []
        # Put back what the program puts in their place.
        monkeypatch.setattr(module, "load_control_authn_plugin", module.load_control_authn_plugin)
        monkeypatch.setattr(
            superlink.control_handlers, "Fab", superlink.control_handlers.Fab, raising=True
        )
        monkeypatch.setattr(
            module, "_run_superlink_http_api", lambda lifespan_config: found.append(lifespan_config)
        )
        monkeypatch.setattr(sys, "argv", ["superlink", *map(str, flags)])
        superlink.main()
        (config,) = found
        return TestClient(create_app(config, SuperLinkLifespan))

    return start


def test_control_and_apps_answer_nobody_without_their_secrets(tmp_path, started):
    token = keys.write_token(str(tmp_path), "token")
    signatures, _ = keys.sign_app(str(tmp_path), b"an app")
    client = started(token, signatures, "--insecure", *deployment._apart(str(tmp_path), "link"))

    def status(path, **headers):
        return client.post(f"/v1/{path}", headers=_PROTOBUF | headers).status_code

    paths = ("control/list-nodes", "control/start-run", "control/register-node")
    for path in paths:
        for given in ({}, {"authorization": "Bearer x"}, {"authorization": "Bearer "}):
            assert status(path, **given) == 401
    assert status("runtime/acquire-task") == 401
    # Nobody makes a token of a token, or of nothing.
    assert status("control/refresh-auth-tokens") >= 400
    with open(token, encoding="ascii") as file:
        bearer = {"authorization": f"Bearer {file.read()}"}
    assert status("control/list-nodes", **bearer) == 200


def test_a_token_that_could_be_guessed_is_refused():
    with pytest.raises(ValueError, match="too short"):
        superlink.TokenAuthentication("")


def test_a_node_runs_the_app_that_was_signed_and_no_other(tmp_path, started):
    app = deployment.bundle(deployment.APP)
    signatures, trusted = keys.sign_app(str(tmp_path), app)
    started(keys.write_token(str(tmp_path), "token"), signatures, "--insecure")
    with open(trusted, encoding="utf-8") as file:
        entities = json.load(file)
    digest = superlink.control_handlers.hashlib.sha256
    # As Flower makes it of what the `flwr` command sends.
    sent = superlink.control_handlers.Fab(digest(app).hexdigest(), app, {})
    assert sent.verifications["valid_license"] and _verify_fab(sent, entities)
    other = superlink.control_handlers.Fab(digest(app + b"x").hexdigest(), app + b"x", {})
    assert not other.verifications
    # A SuperLink that passes another app under the signature of this one.
    assert not _verify_fab(Fab(sent.hash_str, app + b"x", sent.verifications), entities)
    assert not _verify_fab(sent, {})


def test_a_bundle_is_the_same_bytes_each_time():
    assert deployment.bundle(deployment.APP) == deployment.bundle(deployment.APP)


def test_tokens_are_readable_by_their_owner_only_and_are_forgotten(tmp_path):
    os.mkdir(tmp_path / "keys")
    home = tmp_path / "flower_home"
    os.mkdir(home)
    token = keys.write_token(str(tmp_path / "keys"), "token")
    deployment.write_credentials(str(home), "127.0.0.1:1", token)
    for path in (token, home / "credentials.yaml"):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    deployment.forget_secrets(str(tmp_path))
    assert os.listdir(tmp_path) == ["flower_home"] and os.listdir(home) == []


_STOPPED = """
import os, sys, time
from experiments.federation import deploy, deployment

def slow(folder, *_, **__):
    os.mkdir(os.path.join(folder, "keys"))
    open(os.path.join(folder, "keys", "private"), "w").close()
    with deployment.Deployment(folder, 60.0) as running:
        running.start("node", [sys.executable, "-c", "import time; time.sleep(900)"])
        print(running._processes["node"].pid, flush=True)
        while True:  # As the program waits: another thread may have heard the signal.
            running.check_alive()
            time.sleep(0.1)

deployment.deploy = slow
deploy.run()
"""


# Whatever the suite was started under.
_USUAL = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"


def test_a_closed_terminal_stops_the_nodes_and_removes_the_keys(tmp_path):
    folder = tmp_path / "deployed"
    with subprocess.Popen(
        [sys.executable, "-c", _USUAL + _STOPPED, f"--out_dir={folder}", "--candidates=artifact"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        child = int(process.stdout.readline())
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)  # Impatience changes nothing.
        _, errors = process.communicate(timeout=300)
    assert process.returncode in (128 + signal.SIGHUP, 128 + signal.SIGTERM), errors
    assert errors == "" and not (folder / "keys").exists()
    for _ in range(2400):  # Two minutes: on a machine that is busy it takes a while.
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            break
        time.sleep(0.05)
    else:
        pytest.fail("a node outlived its federation")
