"""Local training: one candidate is plain SGD, many are many of one, clients do not meet."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import models
from dpjax.federated import local_training, voting
from dpjax.federated.local_training import train_clients

MODEL = models.MLP((6,), 3)


def _client(number, seed):
    generator = np.random.default_rng(seed)
    inputs = generator.normal(size=(number, 4)).astype(np.float32)
    return inputs, (inputs[:, 0] > 0).astype(np.int64) + (inputs[:, 1] > 0.5)


PARTITIONS = [_client(50, 1), _client(23, 2), _client(101, 3)]
CANDIDATES = [
    {"learning_rate": 0.3, "decay": 1.0, "momentum": 0.9},
    {"learning_rate": 0.1, "decay": 0.5, "momentum": 0.0},
    {"learning_rate": 0.3, "decay": 0.0, "momentum": 0.9},
    {"learning_rate": 1e-6, "decay": 1.0, "momentum": 0.0},
]
SETTINGS = {"epochs": 3, "batch_size": 16, "seed": 4}


@pytest.fixture(scope="module")
def scores():
    return train_clients(MODEL, PARTITIONS, CANDIDATES, **SETTINGS)


def _by_hand(client_id, partition, candidate, epochs, batch_size, seed):
    """One candidate by a plain loop, batches cut as PyTorch's loader cuts them."""
    inputs, labels = partition
    shuffled = np.random.default_rng((seed, client_id, 0)).permutation(len(labels))
    test = round(0.2 * len(labels))
    rows, held_out = shuffled[: len(labels) - test], shuffled[len(labels) - test :]
    params = MODEL.init(jax.random.fold_in(jax.random.key(seed), client_id), inputs[:1])["params"]

    def mean_loss(params, x, y):
        logits = jax.nn.log_softmax(MODEL.apply({"params": params}, x))
        return -logits[jnp.arange(len(y)), y].mean()

    velocity = jax.tree.map(jnp.zeros_like, params)
    order = np.random.default_rng((seed, client_id, 1))
    rate = candidate["learning_rate"]
    for _ in range(epochs):
        permuted = rows[order.permutation(len(rows))]
        for start in range(0, len(permuted), batch_size):
            batch = permuted[start : start + batch_size]
            gradient = jax.grad(mean_loss)(params, inputs[batch], labels[batch])
            velocity = jax.tree.map(lambda v, g: candidate["momentum"] * v + g, velocity, gradient)
            params = jax.tree.map(lambda w, v, rate=rate: w - rate * v, params, velocity)
        rate *= candidate["decay"]
    logits = MODEL.apply({"params": params}, inputs[held_out])
    accuracy = np.mean(np.argmax(logits, axis=1) == labels[held_out])
    return float(mean_loss(params, inputs[held_out], labels[held_out])), float(accuracy)


@pytest.mark.parametrize("client", [0, 1])
@pytest.mark.parametrize("candidate", range(4))
def test_a_candidate_is_plain_sgd(scores, client, candidate):
    loss, accuracy = _by_hand(client, PARTITIONS[client], CANDIDATES[candidate], 3, 16, 4)
    assert scores.losses[client, candidate] == pytest.approx(loss, rel=1e-4)
    assert scores.accuracies[client, candidate] == pytest.approx(accuracy)


def test_decay_zero_freezes_after_the_first_epoch(scores):
    once = train_clients(MODEL, PARTITIONS[:1], CANDIDATES[2:3], **{**SETTINGS, "epochs": 1})
    assert scores.losses[0, 2] == pytest.approx(once.losses[0, 0], rel=1e-5)
    assert abs(scores.losses[0, 2] - scores.losses[0, 0]) > 1e-3


def test_candidates_and_clients_do_not_influence_each_other(scores):
    assert scores.losses.shape == scores.accuracies.shape == (3, 4)
    chunked = train_clients(MODEL, PARTITIONS, CANDIDATES, chunk_size=3, **SETTINGS)
    np.testing.assert_allclose(chunked.losses, scores.losses, rtol=1e-4)
    alone = train_clients(MODEL, PARTITIONS[1:2], CANDIDATES[1:2], client_ids=[1], **SETTINGS)
    assert alone.losses[0, 0] == pytest.approx(scores.losses[1, 1], rel=1e-4)
    other = train_clients(MODEL, PARTITIONS[1:2], CANDIDATES[1:2], client_ids=[7], **SETTINGS)
    assert abs(other.losses[0, 0] - scores.losses[1, 1]) > 1e-6


def test_clients_of_all_sizes_share_one_program():
    model = models.functional(MODEL, np.zeros(4, np.float32))
    train_clients(model, PARTITIONS, CANDIDATES, **SETTINGS)
    assert local_training.trainer(model, models.cross_entropy)._cache_size() == 1
    assert local_training._evaluator(model, models.cross_entropy)._cache_size() == 1


def test_a_diverged_candidate_ranks_worst_and_one_class_is_no_trouble():
    inputs, _ = _client(40, 5)
    wild = {"learning_rate": 1e30, "decay": 1.0, "momentum": 0.9}
    found = train_clients(MODEL, [(inputs, np.zeros(40, int))], [wild, *CANDIDATES], **SETTINGS)
    assert np.isnan(found.losses[0, 0])
    # Its argmax of NaN is class 0, the only one there is: by accuracy alone it would win.
    ballot = voting.ballots(found.losses[0], found.accuracies[0], 4)
    assert ballot.tolist() == [0, 1, 1, 1, 1]
    assert np.isfinite(found.losses[0, 1:]).all()


@pytest.mark.parametrize(
    ("partitions", "candidates", "changes", "message"),
    [
        ([], CANDIDATES, {}, "there are no clients"),
        ([(np.zeros((0, 4)), np.zeros(0))], CANDIDATES, {}, "client 0 has 0 inputs"),
        ([(np.zeros((1, 4)), np.zeros(1))], CANDIDATES, {}, "at least 2, one to train"),
        ([(np.zeros((9, 4)), np.zeros(8))], CANDIDATES, {}, "9 inputs and 8 labels"),
        (PARTITIONS, [], {}, "there are no candidates"),
        (PARTITIONS, [{"learning_rate": 0.1}], {}, "candidate 0 is {'learning_rate': 0.1}: pass"),
        (PARTITIONS, [{**CANDIDATES[0], "momentum": 1.0}], {}, r"a momentum in \[0, 1\)"),
        (PARTITIONS, CANDIDATES, {"epochs": 0}, "epochs must be"),
        (PARTITIONS, CANDIDATES, {"test_fraction": 1.0}, "test_fraction must be"),
        (PARTITIONS, CANDIDATES, {"client_ids": [1]}, "1 client_ids for 3 clients"),
    ],
)
def test_bad_input_is_one_line(partitions, candidates, changes, message):
    with pytest.raises(ValueError, match=message) as error:
        train_clients(MODEL, partitions, candidates, **{**SETTINGS, **changes})
    assert "\n" not in str(error.value)
