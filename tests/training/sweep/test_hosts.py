"""Shares of several processes; what they exchange is tested where it is used, in test_job.py."""

import json
import pathlib
import sys

import numpy as np
import ports
import pytest
from processes import python

from dpjax.training.sweep import hosts
from dpjax.tuning import selection

ROOT = pathlib.Path(__file__).parents[3]


@pytest.mark.parametrize(("number", "count"), [(0, 3), (2, 3), (7, 3), (12, 4), (5, 1)])
def test_shares_hold_every_candidate_once(number, count):
    shares = [hosts.own_share(number, index, count) for index in range(count)]
    assert sorted(np.concatenate(shares).tolist()) == list(range(number))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_alone_one_has_everything():
    assert hosts.own_share(4).tolist() == [0, 1, 2, 3]
    assert hosts.bytes_from_one(b"own") == b"own"
    assert hosts.bytes_from_all(b"own") == [b"own"]


@pytest.mark.parametrize(
    ("coordinator", "own", "environment", "expected"),
    [
        ("10.0.0.1:77", None, None, "10.0.0.1:77"),
        ("10.0.0.1:77", "172.17.0.2:77", None, "172.17.0.2:77"),
        ("10.0.0.1:77", "172.17.0.2:77", "0.0.0.0:77", "172.17.0.2:77"),
        # JAX reads its own variable where it is given nothing.
        ("10.0.0.1:77", None, "0.0.0.0:77", None),
        (None, "10.0.0.1:77", None, "10.0.0.1:77"),
    ],
)
def test_what_the_coordinator_listens_on(monkeypatch, coordinator, own, environment, expected):
    passed = {}
    monkeypatch.setattr(
        hosts.jax.distributed, "initialize", lambda *_, **options: passed.update(options)
    )
    monkeypatch.delenv("JAX_COORDINATOR_BIND_ADDRESS", raising=False)
    if environment is not None:
        monkeypatch.setenv("JAX_COORDINATOR_BIND_ADDRESS", environment)
    joined = (coordinator, 2, 0) if coordinator else (None, None, None)
    hosts.join(*joined, coordinator_bind_address=own)
    assert passed == {"coordinator_bind_address": expected}


_LISTENERS = """
import sys
from dpjax.training.sweep import hosts
hosts.join(f"127.0.0.1:{sys.argv[1]}", 1, 0)
for name in ("tcp", "tcp6"):
    with open(f"/proc/net/{name}", encoding="ascii") as file:
        for line in file.readlines()[1:]:
            address, port = line.split()[1].split(":")
            if line.split()[3] == "0A" and int(port, 16) == int(sys.argv[1]):
                print(address)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux's list of sockets")
def test_the_coordinator_listens_on_its_own_address_and_no_other():
    with ports.held() as port:
        done = python("-c", _LISTENERS, str(port), check=True)
    # 127.0.0.1, which gRPC may hold as an IPv4 address within IPv6; all interfaces are zeros.
    (address,) = done.stdout.split()
    assert address in ("0100007F", "0000000000000000FFFF00000100007F")


def test_eight_processes_end_with_the_same_result():
    """Real ones, whose payloads of different lengths take several messages; 64 by hand."""
    done = python(ROOT / "tests/long_runs/many_processes.py", "--processes=8", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    # Of the models only the winner's is sent, by the process that has it.
    assert len(said["sent by the last"]["one"]) == 2 and len(said["sent by the last"]["all"]) == 1


def test_merged_shares_keep_no_beaten_model():
    """Ties go to the earlier candidate, and one that failed loses against all others."""
    scores = {0: -np.inf, 1: 3.0, 2: 5.0, 3: 5.0, 4: -np.inf}
    best = []
    for members in ([3, 0], [1, 2], [4], []):
        own = selection.BestOfRuns(2)
        for member in members:
            output = {"w": np.full((1, 3), float(member))}
            owner = np.array([int(member == 4)])
            own.update(owner, np.array([member]), np.array([scores[member]]), output)
        places = np.array(members, int)
        best.append(selection.share_arrays(places, np.zeros(5), np.array([*scores.values()]), own))
    assert selection.leading(best) == [1, 2]
    assert [share["best_candidate"].tolist() for share in best] == [
        [-1, -1],
        [2, -1],
        [-1, 4],
        [-1, -1],
    ]
    assert selection.leading([{"members": np.arange(2)}]) == []
