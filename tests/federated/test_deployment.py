"""Parts of the deployment script; the whole is `python -m experiments.federation.deploy`."""

import json
import os
import socket
import ssl
import stat
import sys
import threading
import time
import tomllib

import numpy as np
import pytest

from dpjax.federated.flower import messages, storage
from dpjax.federated.flower.election import Election
from dpjax.federated.flower.storage import NodeSettings, read_folder
from experiments.federation import deployment, hospitals, keys, offline


def test_hospitals_differ_and_hold_every_patient_once(tmp_path):
    paths = hospitals.write_hospitals(str(tmp_path / "data"))
    held = [read_folder(path) for path in paths]
    sizes = [len(labels) for _, labels in held]
    assert sum(sizes) == 569 and len(set(sizes)) == 3
    ill = [float(np.mean(labels == 0)) for _, labels in held]
    assert max(ill) - min(ill) > 0.15
    everything = np.concatenate([inputs for inputs, _ in held])
    assert len(np.unique(everything, axis=0)) == 569
    assert everything.min() >= 0 and everything.max() < 1.5


def test_certificates_are_accepted_by_whoever_knows_the_authority_and_by_nobody_else(tmp_path):
    files = keys.write_certificates(str(tmp_path))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(files["certificate"], files["key"])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(120.0)

        def serve():
            for _ in range(2):
                connection, _ = listener.accept()
                try:
                    server.wrap_socket(connection, server_side=True).close()
                except OSError:
                    connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        knows = ssl.create_default_context(cafile=files["authority"])
        # As from Python 3.13 on: an authority that does not say what its key is for is none.
        knows.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
        address = listener.getsockname()
        with (
            socket.create_connection(address) as plain,
            knows.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
        ):
            assert secure.version() == "TLSv1.3"
        with socket.create_connection(address) as plain, pytest.raises(ssl.SSLError):
            ssl.create_default_context().wrap_socket(plain, server_hostname="127.0.0.1")
        thread.join()


def test_private_keys_are_readable_by_their_owner_only(tmp_path):
    private, public = keys.write_node_key(str(tmp_path), "clinic")
    files = keys.write_certificates(str(tmp_path))
    for path in (private, files["key"]):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    with open(public, encoding="ascii") as file:
        assert file.read().startswith("ecdsa-sha2-nistp384 ")


def test_the_app_of_the_example_is_an_election_with_every_setting_named():
    config = deployment.app_config()
    election = Election.from_config(config)
    assert election.settings.clients == len(hospitals.NAMES)
    assert election.training.classes == hospitals.CLASSES
    assert election.plan.minimum_survivors == 2
    # --run-config overrides only what is named there.
    assert set(election.config()) <= set(config)


def test_flat_settings_are_toml():
    values = {"epsilon": 1.5, "clients": 3, "out-dir": '/a "b"/c', "candidates": '[{"a": 1.0}]'}
    assert tomllib.loads(deployment.as_toml(values)) == values


def test_switches_are_set_in_the_environment_given_and_nowhere_else():
    before = dict(os.environ)
    environment = offline.stay_offline({"A": "b"})
    assert environment == {
        "A": "b",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    assert dict(os.environ) == before


def test_processes_are_stopped_with_their_children(tmp_path):
    program = (
        "import subprocess, sys, time; "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(900)']); "
        "print(child.pid, flush=True); time.sleep(900)"
    )
    with deployment.Deployment(str(tmp_path), timeout=30.0) as running:
        running.start("node", [sys.executable, "-c", program])
        running.check_alive()
        log = tmp_path / "logs" / "node.log"
        while not log.read_text().strip():
            time.sleep(0.05)
        child = int(log.read_text())
    for _ in range(2400):  # Two minutes: on a machine that is busy it takes a while.
        # A child without a parent may stay as a zombie until someone collects it.
        try:
            with open(f"/proc/{child}/stat", encoding="ascii") as file:
                state = file.read().rsplit(")", 1)[1].split()[0]
        except OSError:
            break
        if state == "Z":
            break
        time.sleep(0.05)
    else:
        pytest.fail("a child outlived its federation")


def test_a_process_that_ends_is_noticed_and_its_log_named(tmp_path):
    with deployment.Deployment(str(tmp_path), timeout=30.0) as running:
        running.start("node", [sys.executable, "-c", "raise SystemExit(3)"])
        with pytest.raises(ValueError, match=r"node ended with code 3; see .*node\.log"):
            while True:
                running.check_alive()
                time.sleep(0.02)
        with pytest.raises(ValueError, match="call failed"):
            running.call("call", [sys.executable, "-c", "raise SystemExit(4)"])


def test_a_claim_that_is_too_small_is_found(tmp_path):
    election = Election.from_config({"clients": 3, "epsilon": 5.0, "missing-fraction": 0.34})
    release = tmp_path / "release"
    release.mkdir()
    (release / "hyperparameters.json").write_text(json.dumps(election.candidates[0]))
    claim = election.plan.statement() | {"fingerprint": election.fingerprint}

    def charge(path, run, epsilon, fingerprint=election.fingerprint):
        spending = messages.Spending(fingerprint, "vote", epsilon, 1e-5)
        storage.charge(NodeSettings(path), run, 0, spending)

    for name in hospitals.NAMES:
        charge(deployment.ledger_of(str(tmp_path), name), 1, 5.0)
    (release / "guarantee.json").write_text(json.dumps(claim))
    folder = str(tmp_path)
    assert deployment.check(folder, folder) == election.candidates[0]
    (release / "guarantee.json").write_text(json.dumps(claim | {"epsilon": 4.9}))
    with pytest.raises(ValueError, match="claims 4.9"):
        deployment.check(folder, folder)
    (release / "guarantee.json").write_text(json.dumps(claim))
    path = deployment.ledger_of(folder, hospitals.NAMES[1])
    charge(path, 2, 5.0, "another")
    with pytest.raises(ValueError, match="university_clinic sent 2 votes"):
        deployment.check(folder, folder)
    os.remove(path)
    charge(path, 1, 4.0)
    with pytest.raises(ValueError, match="university_clinic noted epsilon 4"):
        deployment.check(folder, folder)
