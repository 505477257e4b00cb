"""Shares of several processes; what they exchange is tested where it is used, in test_job.py."""

import socket
import sys

import numpy as np
import pytest
from processes import python

from dpjax.training.sweep import hosts


@pytest.mark.parametrize(("number", "count"), [(0, 3), (2, 3), (7, 3), (12, 4), (5, 1)])
def test_shares_hold_every_candidate_once(number, count):
    shares = [hosts.own_share(number, index, count) for index in range(count)]
    assert sorted(np.concatenate(shares).tolist()) == list(range(number))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_alone_one_has_everything():
    assert hosts.own_share(4).tolist() == [0, 1, 2, 3]
    assert hosts.bytes_from_first(b"own") == b"own"
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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    done = python("-c", _LISTENERS, str(port), check=True)
    # 127.0.0.1, which gRPC may hold as an IPv4 address within IPv6; all interfaces are zeros.
    (address,) = done.stdout.split()
    assert address in ("0100007F", "0000000000000000FFFF00000100007F")
