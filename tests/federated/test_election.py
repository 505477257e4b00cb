"""One object for the public rules, the same from every configuration, and its fingerprint."""

import dataclasses
import json

import pytest

from dpjax.federated.federation_settings import LocalTraining
from dpjax.federated.flower.election import Election, parse_candidates
from dpjax.federated.voting import VoteSettings

_CANDIDATES = tuple(
    {"learning_rate": rate, "decay": 1.0, "momentum": 0.9} for rate in (0.1, 0.01, 0.001)
)
_ELECTION = Election(
    VoteSettings(clients=5, candidates=3, votes=1, epsilon=2.0, missing_fraction=0.2),
    _CANDIDATES,
    LocalTraining(classes=3, widths=(16, 8), epochs=2),
)


def test_configuration_gives_the_same_election_again():
    config = _ELECTION.config()
    assert all(type(value) in (str, int, float) for value in config.values())
    assert not any("_" in name for name in config)
    again = Election.from_config(config | {"out-dir": "elsewhere", "dataset": "digits"})
    assert again == _ELECTION
    assert again.fingerprint == _ELECTION.fingerprint


def test_rules_of_the_sum_follow_the_plan():
    rules = _ELECTION.rules
    assert (rules.clients, rules.minimum_survivors, rules.length) == (5, 4, 3)
    assert rules.clip == _ELECTION.plan.clip


@pytest.mark.parametrize(
    "changed",
    [
        dataclasses.replace(_ELECTION, candidates=_CANDIDATES[::-1]),
        dataclasses.replace(
            _ELECTION, candidates=(*_CANDIDATES[:2], _CANDIDATES[2] | {"momentum": 0.0})
        ),
        dataclasses.replace(_ELECTION, training=LocalTraining(classes=3, widths=(16, 8))),
        dataclasses.replace(
            _ELECTION, settings=dataclasses.replace(_ELECTION.settings, epsilon=2.5)
        ),
    ],
)
def test_fingerprint_tells_any_difference(changed):
    assert changed.fingerprint != _ELECTION.fingerprint


def test_defaults_and_whole_numbers():
    election = Election.from_config({"clients": 50, "epsilon": 3})
    assert election.settings == VoteSettings(clients=50, candidates=100, votes=5, epsilon=3.0)
    assert type(election.settings.epsilon) is float
    assert election.training == LocalTraining()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "no 'clients'"),
        ({"clients": 5.0}, "clients=5.0: pass an int"),
        ({"clients": 1}, "at least 3"),
        ({"clients": 2}, "at least 3"),
        ({"clients": 5, "votes": 100}, "fewer than there are candidates"),
        ({"clients": 5, "votes": 101}, "fewer than there are candidates"),
        ({"clients": 5, "epsilon": "much"}, "epsilon='much': pass a float"),
        ({"clients": 5, "epsilon": -1.0}, "epsilon"),
        ({"clients": 5, "widths": "a,b"}, "widths"),
        ({"clients": 5, "candidates": "every"}, "pass one of"),
        ({"clients": 5, "candidates": "[]"}, "pass one of"),
        ({"clients": 5, "candidates": "[1, 2]"}, "pass one of"),
        ({"clients": 5, "noise": "loud"}, "unknown noise"),
        ({"clients": 5, "model": "oracle"}, "unknown model 'oracle'"),
        ({"clients": 5, "classes": 1}, "classes=1"),
        ({"clients": 5, "epochs": 0}, "epochs=0"),
        ({"clients": 5, "test-fraction": 1.0}, "test_fraction=1.0"),
    ],
)
def test_bad_configurations_are_refused_in_one_line(config, message):
    with pytest.raises(ValueError, match=message) as caught:
        Election.from_config(config)
    assert "\n" not in str(caught.value)


def test_the_papers_nets_can_be_trained():
    for name in ("conv_pool", "conv_blocks", "mlp", "logistic_regression"):
        training = LocalTraining(model=name)
        assert training.module() == training.module()
        assert callable(training.loss())


def test_candidates_are_read_from_json():
    assert parse_candidates(json.dumps(_CANDIDATES)) == _CANDIDATES
    assert len(parse_candidates("artifact")) == 100


def test_lists_of_another_length_are_refused():
    with pytest.raises(ValueError, match="2 candidates where the vote has 3"):
        dataclasses.replace(_ELECTION, candidates=_CANDIDATES[:2])
