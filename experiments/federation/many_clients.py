"""A whole DP-HYPE federation in one process, for figures: training once, votes many times.

What is costly, the training of every candidate on every client, does not depend on epsilon; what
depends on epsilon is a draw of noise. So one table of scores per division of the data serves every
epsilon and every repetition. The baselines come from training each candidate by federated
averaging: OPT is the best of them, RANDGUESS their mean.

`train_privately` is the second half, federated averaging with noise; here, too, many clients are
one compiled program, and noise is one draw for the sum.

Nothing here is private: whoever simulates a federation sees all of its data.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import flatten_util

from dpjax import models
from dpjax.federated import averaging, local_training, voting
from dpjax.federated.local_training import FlatModel, Loss, order_stream, whole_records
from dpjax.randomness import integer_laws
from dpjax.randomness.host_randomness import HostRandomness


class FederationUpdates:
    """Updates of many clients at once, for simulations.

    Clients are padded to one size and trained `clients_at_once` together, the memory knob.
    """

    def __init__(
        self,
        model: FlatModel,
        loss: Loss,
        partitions: Sequence[local_training.Records],
        *,
        epochs: int,
        batch_size: int,
        seed: int,
        clients_at_once: int = 64,
    ):
        most = max(len(labels) for _, labels in partitions)
        # Not a power of two: nothing is compiled anew for another federation's sake.
        self._clients = [whole_records(records, max(most, 1)) for records in partitions]
        self._program = _many_clients(model.functional, loss, model.tree)
        self._options = (epochs, batch_size, seed)
        self._at_once = clients_at_once

    def of_round(
        self, params: np.ndarray, candidate: Mapping[str, float], number: int
    ) -> list[np.ndarray]:
        """Every client's update of parameters (d,), float64; zeros for one without records."""
        hyperparameters = local_training.stacked_candidates([candidate])
        before = np.asarray(params, np.float64)
        updates = []
        for start in range(0, len(self._clients), self._at_once):
            part = range(start, min(start + self._at_once, len(self._clients)))
            orders, steps = zip(*(self._order(client, number) for client in part))
            held = [self._clients[client] for client in part]
            after = self._program(
                jnp.asarray(params),
                hyperparameters,
                np.stack([client.inputs for client in held]),
                np.stack([client.labels for client in held]),
                np.stack(orders),
                np.array(steps, np.int32),
            )
            for client, row in zip(held, np.asarray(after, np.float64)):
                updates.append(row - before if client.training else np.zeros_like(before))
        return updates

    def _order(self, client: int, number: int) -> tuple[np.ndarray, int]:
        epochs, batch_size, seed = self._options
        held = self._clients[client]
        found = local_training.batch_order(
            held, epochs, batch_size, order_stream((seed, client, number))
        )
        most = -(-len(held.labels) // batch_size)
        padded = np.full((epochs, most, batch_size), -1, np.int32)
        padded[:, : found.shape[1]] = found
        return padded, found.shape[1]


def federated_accuracies(
    model: Any,
    partitions: Sequence[local_training.Records],
    candidates: Sequence[Mapping[str, float]],
    *,
    rounds: int = 5,
    epochs: int = 5,
    batch_size: int = 64,
    test_fraction: float = 0.2,
    seed: int = 0,
    first: int = 0,
    loss: Callable[[jax.Array, jax.Array], jax.Array] = models.cross_entropy,
    chunk_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """Trains every candidate by federated averaging (McMahan et al. 2017), without noise.

    Every round each client trains the global model for the local epochs, its learning rate starting
    anew, and the results are averaged by their numbers of training records. Each candidate has
    initial parameters of its own, drawn by the seed and its number; the first's number is `first`.
    The clients' splits are those of `train_clients` with the same seed, and so are the other
    arguments. Returns (p,) float64, the accuracy on all clients' test records together; 0 where
    training diverged.
    """
    local_training.check_settings(min(epochs, rounds), batch_size, test_fraction, chunk_size)
    hyperparameters = local_training.stacked_candidates(candidates)
    clients = local_training.local_records(
        partitions, range(len(partitions)), test_fraction=test_fraction, seed=seed
    )
    functional = local_training.adapted(model, clients[0].inputs.shape[1:])
    weights = np.array([client.training for client in clients], np.float64)
    weights /= weights.sum()
    pieces = local_training.chunks(len(candidates), chunk_size)
    accuracies, done = [], 0
    for piece in pieces:
        chosen = {name: values[piece] for name, values in hyperparameters.items()}
        # Shared, they would give all candidates that learn nothing the accuracy of one net.
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), first + piece)
        params = jax.vmap(functional.init)(keys)
        for number in range(rounds):
            mean = None
            for place, (client, weight) in enumerate(zip(clients, weights)):
                order = local_training.batch_order(
                    client, epochs, batch_size, (seed, place, 2 + number)
                )
                trained = local_training.train(functional, loss, params, chosen, client, order)
                share = np.float32(weight)
                scaled = jax.tree.map(lambda leaf, share=share: share * leaf, trained)
                mean = scaled if mean is None else jax.tree.map(jnp.add, mean, scaled)
                done += 1
                if progress is not None:
                    progress(done, rounds * len(clients) * len(pieces))
            params = mean
        scores = [local_training.evaluate(functional, loss, params, client) for client in clients]
        tests = np.array([client.test for client in clients])[:, np.newaxis]
        losses = np.stack([pair[0] for pair in scores])
        right = np.stack([pair[1] for pair in scores])
        pooled = (right * tests).sum(axis=0) / tests.sum()
        accuracies.append(np.where(np.isnan(losses).any(axis=0), 0.0, pooled))
    return np.concatenate(accuracies)


class Wins(NamedTuple):
    """How many of the votes at one epsilon, infinite without noise, one candidate won."""

    epsilon: float
    winner: int
    won: int


def hold_votes(
    scores: local_training.ClientScores,
    epsilons: Sequence[float],
    runs: int,
    *,
    votes: int = 5,
    delta: float = 1e-5,
    missing_fraction: float = 0.0,
    seed: int = 0,
) -> list[Wins]:
    """Holds `runs` votes at each epsilon on one table of scores (n, p): ballots once, noise anew.

    The noise of a sum is one draw from the Skellam law of n times the local variance. A sum of n
    clients' shares has that law, since Skellam laws are closed under sums, and takes n times as
    long. The winner is `voting.tally`'s: the largest count, the lower index where equal. Votes of
    infinite epsilon are counted without noise, not private. Nobody drops out, whatever the plan's
    `missing_fraction`. The seed is for drawing a figure again.
    """
    counts = voting.ballots(scores.losses, scores.accuracies, votes).sum(axis=0)
    clients, candidates = scores.losses.shape
    source = HostRandomness(seed)
    found = []
    for place, epsilon in enumerate(epsilons):
        sums = np.tile(counts, (runs, 1)).astype(np.int64)
        if not math.isinf(epsilon):
            settings = voting.VoteSettings(
                clients, candidates, votes, epsilon, delta, missing_fraction=missing_fraction
            )
            law = integer_laws.integer_law("skellam", clients * settings.plan().local_variance)
            sums += law.draw(sums.size, source, place).reshape(sums.shape)
        found += wins(epsilon, sums.argmax(axis=1))
    return found


def wins(epsilon: float, winners: Sequence[int]) -> list[Wins]:
    """Counts the winners of votes at one epsilon."""
    return [
        Wins(epsilon, int(winner), int(won))
        for winner, won in zip(*np.unique(winners, return_counts=True))
    ]


def train_privately(
    updates: FederationUpdates,
    plan: averaging.AveragingPlan,
    start: np.ndarray,
    candidate: Mapping[str, float],
    *,
    seed: int | None = None,
    on_round: Callable[[int, np.ndarray], None] | None = None,
) -> np.ndarray:
    """Federated averaging with the noise of a plan, from parameters (d,); nobody drops out.

    Every client's update is `averaging.quantised`, as a real client's. Their noise is one draw from
    the discrete Gaussian of n times the local variance: the sum of n shares differs from it by the
    tau of `accounting.federated_averaging`, here below 1e-60, and costs n times as long to draw. A
    plan without noise gives plain, NOT private, averaging. `on_round` is called with the number of
    rounds done and the parameters.
    """
    settings = plan.settings
    source = HostRandomness(seed)
    law = (
        integer_laws.integer_law("discrete_gaussian", settings.clients * plan.local_variance)
        if settings.private
        else None
    )
    params = np.asarray(start, np.float32)
    for number in range(settings.rounds):
        total = sum(
            (averaging.quantised(u, plan) for u in updates.of_round(params, candidate, number)),
            np.zeros(settings.dimension, np.int64),
        )
        if law is not None:
            total = total + law.draw(settings.dimension, source, number)
        step = averaging.averaged(total, plan, settings.clients)
        params = (params + step).astype(np.float32)
        if on_round is not None:
            on_round(number + 1, params)
    return params


@functools.lru_cache(maxsize=16)
def _many_clients(model: models.FunctionalModel, loss: Loss, tree: Callable) -> Callable:
    # A batch of one candidate for each of many clients; those with fewer steps stop earlier.
    train = jax.vmap(local_training.trainer(model, loss), in_axes=(None, None, 0, 0, 0, 0))

    @jax.jit
    def run(params, hyperparameters, inputs, labels, orders, steps):
        start = local_training.broadcast(tree(params), 1)
        trained = train(start, hyperparameters, inputs, labels, orders, steps)
        return jax.vmap(
            lambda held: flatten_util.ravel_pytree(jax.tree.map(lambda leaf: leaf[0], held))[0]
        )(trained)

    return run
