"""What a client does in a round of federated averaging: trains the global model, gives the change.

The recipe is the vote's (`vote_clients`): SGD with momentum, the learning rate multiplied by the
candidate's decay after every local epoch and starting anew each round; but on all of the client's
records, for nothing is tested here. JAX on the device; orders are NumPy's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import flatten_util

from dpjax import models
from dpjax.federated import vote_clients
from dpjax.federated.vote_clients import LocalRecords, Records

Loss = Callable[[jax.Array, jax.Array], jax.Array]

_FIRST_STREAM = 2
"""Of a client's orders: 0 is its split and 1 its order in `train_clients`."""


class FlatModel(NamedTuple):
    """Holds a model whose parameters are one vector."""

    functional: models.FunctionalModel
    dimension: int  # d, number of parameters
    tree: Callable[[jax.Array], Any]  # (d,) float32 -> the parameters as the model takes them

    def initial(self, seed: int) -> np.ndarray:
        """(d,) float32: public initial parameters."""
        start = self.functional.init(jax.random.key(seed))
        return np.asarray(flatten_util.ravel_pytree(start)[0], np.float32)


@functools.lru_cache(maxsize=16)
def flat_model(module: Any, input_shape: tuple[int, ...]) -> FlatModel:
    """Makes a Linen module (or anything `models.functional` adapts) a model of one vector.

    The same hashable module gives the same compiled programs; `input_shape` is of one example.
    """
    functional = vote_clients.adapted(module, input_shape)
    flat, tree = flatten_util.ravel_pytree(functional.init(jax.random.key(0)))
    return FlatModel(functional, flat.size, tree)


def whole_records(records: Records, capacity: int | None = None) -> LocalRecords:
    """All of a client's records for training, padded to a power of two unless given a number."""
    inputs, labels = records
    number = len(labels)
    capacity = capacity or max(64, 1 << max(number - 1, 0).bit_length())
    padded_inputs = np.zeros((capacity, *np.shape(inputs)[1:]), np.float32)
    padded_labels = np.zeros(capacity, np.int32)
    padded_inputs[:number], padded_labels[:number] = inputs, labels
    return LocalRecords(padded_inputs, padded_labels, number, 0)


def local_update(
    model: FlatModel,
    loss: Loss,
    params: np.ndarray,
    candidate: Mapping[str, float],
    records: Records,
    *,
    epochs: int,
    batch_size: int,
    stream: tuple[int, int, int],
) -> np.ndarray:
    """Trains one client's local epochs and returns the change of the parameters, (d,) float64.

    It is not finite where training diverged. The stream (public seed, client, round from 0) gives
    the order of the records, of which there is at least one.
    """
    client = whole_records(records)
    order = vote_clients.batch_order(client, epochs, batch_size, order_stream(stream))
    start = vote_clients.broadcast(model.tree(jnp.asarray(params)), 1)
    hyperparameters = vote_clients.stacked_candidates([candidate])
    trained = vote_clients.train(model.functional, loss, start, hyperparameters, client, order)
    first = jax.tree.map(lambda leaf: leaf[0], trained)
    after = np.asarray(flatten_util.ravel_pytree(first)[0], np.float64)
    return after - np.asarray(params, np.float64)


def accuracy(model: FlatModel, params: np.ndarray, inputs: np.ndarray, labels: np.ndarray) -> float:
    """Share of records that the model labels rightly."""
    scores = _scorer(model.functional, model.tree)(jnp.asarray(params, jnp.float32), inputs)
    return float(np.mean(np.argmax(np.asarray(scores), axis=-1) == labels))


def order_stream(stream: tuple[int, int, int]) -> tuple[int, int, int]:
    """Where a client's order in a round is drawn from."""
    seed, client, number = stream
    return seed, client, _FIRST_STREAM + number


@functools.lru_cache(maxsize=16)
def _scorer(model: models.FunctionalModel, tree: Callable) -> Callable:
    return jax.jit(lambda params, inputs: model.apply(tree(params), inputs))
