"""Simulated federations: each client as alone, votes and rounds as the mechanism."""

import dataclasses
import math

import jax
import numpy as np
import pytest
from scipy import stats
from small_federations import CANDIDATE, MODEL, PARTITIONS, client

from dpjax import models
from dpjax.federated import averaging, local_training, voting
from dpjax.randomness.host_randomness import HostRandomness
from experiments.federation import many_clients


@pytest.fixture(scope="module")
def model():
    return local_training.flat_model(MODEL, (4,))


def test_many_clients_at_once_are_each_alone(model):
    options = dict(epochs=2, batch_size=8)
    params = model.initial(0)
    together = many_clients.FederationUpdates(
        model, models.cross_entropy, PARTITIONS, seed=4, clients_at_once=2, **options
    ).of_round(params, CANDIDATE, 3)
    assert len(together) == 3 and not together[2].any()
    for number in range(2):
        alone = local_training.local_update(
            model, models.cross_entropy, params, CANDIDATE, PARTITIONS[number],
            stream=(4, number, 3), **options,
        )  # fmt: skip
        np.testing.assert_allclose(together[number], alone, atol=1e-5)


def test_simulated_training_is_the_mechanism_and_learns(model):
    parts = [client(40, seed) for seed in range(10)]
    updates = many_clients.FederationUpdates(
        model, models.cross_entropy, parts, epochs=2, batch_size=8, seed=0
    )
    rule = averaging.AveragingSettings(10, model.dimension, 4, math.inf, clip_norm=2.0)
    seen = []
    params = many_clients.train_privately(
        updates, rule.plan(), model.initial(0), CANDIDATE,
        on_round=lambda number, _: seen.append(number),
    )  # fmt: skip
    inputs, labels = client(500, 99)
    assert seen == [1, 2, 3, 4]
    assert local_training.accuracy(model, params, inputs, labels) > 0.7
    # By hand, the first round of plain averaging.
    one = dataclasses.replace(rule, rounds=1).plan()
    start = model.initial(0)
    mean = sum(averaging.quantised(u, one) for u in updates.of_round(start, CANDIDATE, 0))
    first = many_clients.train_privately(updates, one, start, CANDIDATE)
    np.testing.assert_allclose(first, start + mean / (10 * one.scale), atol=1e-6)
    # With noise: that of all clients together, and another for another seed.
    noisy = dataclasses.replace(rule, rounds=1, epsilon=30.0).plan()
    found = [
        many_clients.train_privately(updates, noisy, start, CANDIDATE, seed=seed) - first
        for seed in range(40)
    ]
    assert np.std(found) == pytest.approx(noisy.standard_deviation, rel=0.1)


def test_federated_averaging_by_hand():
    """Two rounds of two clients: train from the mean, average by the training records."""
    two = [client(50, 1), client(23, 2)]
    candidates = [
        {"learning_rate": 0.3, "decay": 1.0, "momentum": 0.9},
        {"learning_rate": 0.1, "decay": 0.5, "momentum": 0.0},
    ]
    found = many_clients.federated_accuracies(
        MODEL, two, candidates, rounds=2, epochs=3, batch_size=16, seed=4, first=7
    )
    model = models.functional(MODEL, np.zeros(4, np.float32))
    clients = local_training.local_records(two, [0, 1], test_fraction=0.2, seed=4)
    hyper = local_training.stacked_candidates(candidates)
    # Each candidate's initial parameters are its own, by its number in the whole list.
    own = [model.init(jax.random.fold_in(jax.random.key(4), number)) for number in (7, 8)]
    params = jax.tree.map(lambda *leaves: np.stack(leaves), *own)
    for number in range(2):
        trained = [
            local_training.train(
                model, models.cross_entropy, params, hyper, client,
                local_training.batch_order(client, 3, 16, (4, place, 2 + number)),
            )
            for place, client in enumerate(clients)
        ]  # fmt: skip
        params = jax.tree.map(lambda a, b: (40 * a + 18 * b) / 58, *trained)
    right = sum(
        client.test * local_training.evaluate(model, models.cross_entropy, params, client)[1]
        for client in clients
    )
    np.testing.assert_allclose(found, right / 15)
    assert found.min() > 0.3


def test_votes_are_held_on_one_table():
    candidates = 12
    accuracies = np.tile(np.linspace(0, 0.9, candidates), (40, 1))
    scores = local_training.ClientScores(1 - accuracies, accuracies)
    epsilons = (0.01, 3.0, np.inf)
    held = many_clients.hold_votes(scores, epsilons, 60, votes=2, seed=1)
    won = {e: {o.winner: o.won for o in held if o.epsilon == e} for e in epsilons}
    assert all(sum(found.values()) == 60 for found in won.values())
    assert won[np.inf] == {10: 60}  # two candidates with 40 votes each: the lower index
    assert set(won[3.0]) == {10, 11} and min(won[3.0].values()) > 10
    assert len(won[0.01]) > 2
    assert held == many_clients.hold_votes(scores, epsilons, 60, votes=2, seed=1)
    assert held != many_clients.hold_votes(scores, epsilons, 60, votes=2, seed=2)


def test_votes_on_a_sum_win_as_often_as_votes_of_ballots():
    """One draw for the sum has the law of the clients' shares: winners' shares by chi-squared."""
    source = np.random.default_rng(2)
    accuracies = np.clip(np.linspace(0.4, 0.6, 8) + source.normal(0, 0.2, (20, 8)), 0, 1)
    scores = local_training.ClientScores(1 - accuracies, accuracies)
    held = many_clients.hold_votes(scores, (2.0,), 4_000, votes=2, seed=3)
    plan = voting.VoteSettings(20, 8, 2, 2.0, 1e-5, missing_fraction=0.0).plan()
    ballots = voting.ballots(scores.losses, scores.accuracies, 2)
    by_hand = np.zeros(8, int)
    for run in range(1_000):
        drawn = HostRandomness(5)
        noisy = [
            voting.noisy_ballot(ballot, plan, drawn, stream=20 * run + client)
            for client, ballot in enumerate(ballots)
        ]
        by_hand[voting.tally(np.sum(noisy, axis=0), plan, 20)] += 1
    at_once = np.zeros(8, int)
    for outcome in held:
        at_once[outcome.winner] += outcome.won
    assert stats.chi2_contingency([at_once, by_hand]).pvalue > 1e-4
    # Noise of another size would be noticed: twice epsilon is refused by the same test.
    other = np.zeros(8, int)
    for outcome in many_clients.hold_votes(scores, (4.0,), 4_000, votes=2, seed=3):
        other[outcome.winner] += outcome.won
    assert stats.chi2_contingency([other, by_hand]).pvalue < 1e-6
