"""Shares of several processes; what they exchange is tested where it is used, in test_job.py."""

import numpy as np
import pytest

from dpjax.training import hosts


@pytest.mark.parametrize(("number", "count"), [(0, 3), (2, 3), (7, 3), (12, 4), (5, 1)])
def test_shares_hold_every_candidate_once(number, count):
    shares = [hosts.own_share(number, index, count) for index in range(count)]
    assert sorted(np.concatenate(shares).tolist()) == list(range(number))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_alone_one_has_everything():
    assert hosts.own_share(4).tolist() == [0, 1, 2, 3]
    assert hosts.bytes_from_first(b"own") == b"own"
    assert hosts.bytes_from_all(b"own") == [b"own"]


def test_bad_input_is_refused_before_anything_connects():
    with pytest.raises(ValueError, match="go together"):
        hosts.join("localhost:1234", 2)
    with pytest.raises(ValueError, match="pass 0 to 1"):
        hosts.join("localhost:1234", 2, 2)
    with pytest.raises(ValueError, match="share 3 of 3"):
        hosts.own_share(5, 3, 3)
