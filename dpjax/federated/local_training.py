"""Trains on a client's own records: all candidates for the vote, then rounds of averaging.

Local training is not private and need not be: only a noisy ballot or a noisy update of it leaves
the client (`voting`, `averaging`). The recipe is that of Liebenow, Peinemann & Mohammadi,
"DP-HYPE", 2025: a client keeps a fifth of its records for testing, trains by SGD with momentum in
batches of 64 for five epochs, multiplies the learning rate by the candidate's decay after every
epoch, and votes by the accuracy on its test records. A round of averaging trains the global model
by the winner in the same way, the learning rate starting anew, but on all of the client's records,
as nothing is tested there.

All candidates of a client are one vectorised program. They share the client's initial parameters
and the order of its records, so that they differ by their hyperparameters alone and the first
layer sees one batch for all of them. JAX on the device; orders and splits are NumPy's.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import flatten_util

from dpjax import checks, models

Tree = Any
Loss = Callable[[jax.Array, jax.Array], jax.Array]
Records = tuple[np.ndarray, np.ndarray]
"""inputs (m, ...) and labels (m,) of one client."""

HYPERPARAMETERS = ("learning_rate", "decay", "momentum")
MINIMUM_RECORDS = 2
"""One to train on and one to test on."""

_EVALUATION_BATCH = 256


class ClientScores(NamedTuple):
    """Holds how each client's candidates did on its own test records, (n, p) float64."""

    losses: np.ndarray  # mean; NaN or infinite where training diverged
    accuracies: np.ndarray


class LocalRecords(NamedTuple):
    """Holds one client's records as the compiled program takes them."""

    # (capacity, ...) float32, training records first, then test, then zeros never read
    inputs: np.ndarray
    labels: np.ndarray  # (capacity,) int32
    training: int  # number of training records
    test: int  # number of test records


def train_clients(
    model: Any,
    partitions: Sequence[Records],
    candidates: Sequence[Mapping[str, float]],
    *,
    epochs: int = 5,
    batch_size: int = 64,
    test_fraction: float = 0.2,
    seed: int = 0,
    client_ids: Sequence[int] | None = None,
    loss: Loss = models.cross_entropy,
    chunk_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ClientScores:
    """Trains every candidate on every client's records alone.

    Compiles once for each capacity, the power of two above a client's number of records (all
    clients of one call share one): pass the same model object again to reuse it.

    Example:
      >>> import numpy as np
      >>> from dpjax import federated, models
      >>> rng = np.random.default_rng(0)
      >>> clients = [(rng.normal(size=(20, 3)), rng.integers(0, 2, 20)) for _ in range(3)]
      >>> candidates = [{"learning_rate": 0.1, "decay": 1.0, "momentum": 0.0}] * 2
      >>> model = models.LogisticRegression(2)
      >>> scores = federated.train_clients(model, clients, candidates, epochs=1)
      >>> scores.accuracies.shape
      (3, 2)

    Args:
      model: `models.FunctionalModel`, Linen module or anything `models.functional` adapts.
      partitions: (inputs (m, ...), labels (m,)) per client, two records or more.
      candidates: p of them, each with `learning_rate`, `decay` (its factor after every epoch; 0
        freezes the net after the first) and `momentum`.
      epochs, test_fraction, seed: as in `LocalTraining`.
      batch_size: the last batch of an epoch may be smaller.
      client_ids: (n,) numbers that stand for the clients in their random streams; 0, ..., n-1
        unless given. A client's scores do not depend on the other clients.
      loss: (scores (batch, classes), labels (batch,)) -> (batch,).
      chunk_size: candidates trained at once, the memory knob; all unless given.
      progress: called with (clients done, clients in all).

    Returns:
      `ClientScores`, arrays (n, p).
    """
    epochs, batch_size, chunk_size = check_settings(epochs, batch_size, test_fraction, chunk_size)
    seed = checks.whole("seed", seed, 0)
    checks.function("loss", loss, "of scores and labels")
    if progress is not None:
        checks.function("progress", progress, "of two numbers, done and in all")
    partitions = checks.listed("partitions", partitions, "pairs of inputs and labels")
    candidates = checks.listed("candidates", candidates, "mappings")
    hyperparameters = stacked_candidates(candidates)
    ids: Sequence[int] = range(len(partitions))
    if client_ids is not None:
        ids = checks.listed("client_ids", client_ids, "whole numbers")
        ids = [checks.whole("each of the client_ids", one, 0) for one in ids]
    clients = local_records(partitions, ids, test_fraction=test_fraction, seed=seed)
    functional = adapted(model, clients[0].inputs.shape[1:])
    rows: list[tuple[np.ndarray, np.ndarray]] = []
    for client_id, client in zip(ids, clients):
        key = jax.random.fold_in(jax.random.key(seed), client_id)
        order = batch_order(client, epochs, batch_size, (seed, client_id, 1))
        parts = []
        for chunk in chunks(len(candidates), chunk_size):
            chosen = {name: values[chunk] for name, values in hyperparameters.items()}
            start = broadcast(functional.init(key), len(chunk))
            trained = train(functional, loss, start, chosen, client, order)
            parts.append(evaluate(functional, loss, trained, client))
        losses, accuracies = zip(*parts)
        rows.append((np.concatenate(losses), np.concatenate(accuracies)))
        if progress is not None:
            progress(len(rows), len(clients))
    return ClientScores(*(np.stack(values) for values in zip(*rows)))


def local_records(
    partitions: Sequence[Records], ids: Sequence[int], *, test_fraction: float, seed: int
) -> list[LocalRecords]:
    """Splits every client's records at random into training and test, padded to one capacity."""
    if not len(partitions):
        raise ValueError("there are no clients: pass at least one pair of inputs and labels")
    if len(ids) != len(partitions):
        raise ValueError(f"{len(ids)} client_ids for {len(partitions)} clients: pass one each")
    for number, pair in enumerate(partitions):
        inputs, labels = _pair(number, pair)
        if len(inputs) < MINIMUM_RECORDS or len(inputs) != len(labels):
            raise ValueError(
                f"client {number} has {len(inputs)} inputs and {len(labels)} labels: pass as many "
                f"of each, at least {MINIMUM_RECORDS}, one to train and one to test on"
            )
    largest = max(len(labels) for _, labels in partitions)
    capacity = max(64, 1 << (largest - 1).bit_length())
    found = []
    for client_id, (inputs, labels) in zip(ids, partitions):
        number = len(labels)
        test = min(max(1, round(test_fraction * number)), number - 1)
        shuffled = np.random.default_rng((seed, client_id, 0)).permutation(number)
        records = np.asarray(inputs)[shuffled], np.asarray(labels)[shuffled]
        found.append(_padded(records, capacity, test))
    return found


def _padded(records: Records, capacity: int, test: int) -> LocalRecords:
    """Pads records, the last `test` of which are for testing, with zeros."""
    inputs, labels = records
    number = len(labels)
    padded_inputs = np.zeros((capacity, *np.shape(inputs)[1:]), np.float32)
    padded_labels = np.zeros(capacity, np.int32)
    padded_inputs[:number], padded_labels[:number] = inputs, labels
    return LocalRecords(padded_inputs, padded_labels, number - test, test)


def _pair(number: int, pair: Records) -> Records:
    """Returns a client's inputs and labels; refuses anything but a pair of arrays or lists."""
    with contextlib.suppress(TypeError, ValueError):
        inputs, labels = pair
        _ = len(inputs), len(labels)
        if not isinstance(inputs, str | bytes) and not isinstance(labels, str | bytes):
            return inputs, labels
    # The message does not show the pair itself, which may hold records.
    raise ValueError(
        f"client {number} of the partitions is a {type(pair).__name__}: pass a pair of inputs "
        "(m, ...) and labels (m,)"
    )


def batch_order(
    client: LocalRecords, epochs: int, batch_size: int, stream: tuple[int, ...]
) -> np.ndarray:
    """Draws a fresh order of the training records for each epoch, cut into batches.

    Returns (epochs, steps, batch_size) int32; -1 fills up the last batch of an epoch.
    """
    generator = np.random.default_rng(stream)
    steps = -(-client.training // batch_size)
    order = np.full((epochs, steps * batch_size), -1, np.int32)
    for epoch in range(epochs):
        order[epoch, : client.training] = generator.permutation(client.training)
    return order.reshape(epochs, steps, batch_size)


def stacked_candidates(candidates: Sequence[Mapping[str, float]]) -> dict[str, np.ndarray]:
    """Checks the candidates and returns name -> (p,) float32."""
    if not len(candidates):
        raise ValueError("there are no candidates: pass at least one")
    for number, candidate in enumerate(candidates):
        checks.mapping("each of the candidates", candidate, "from names to numbers")
        unread = sorted(set(candidate) - set(HYPERPARAMETERS))
        if unread:
            raise ValueError(
                f"candidate {number} names {', '.join(unread)}, which nothing reads and a release "
                f"would name: pass {', '.join(HYPERPARAMETERS)} alone, or make_client_app a judge"
            )
        for name, value in candidate.items():
            checks.number(f"{name} of candidate {number}", value)
        values = [candidate.get(name, np.nan) for name in HYPERPARAMETERS]
        if not (np.isfinite(values).all() and min(values) >= 0 and values[2] < 1):
            raise ValueError(
                f"candidate {number} is {dict(candidate)}: pass learning_rate and decay of at "
                "least 0 and a momentum in [0, 1)"
            )
    return {
        name: np.array([candidate[name] for candidate in candidates], np.float32)
        for name in HYPERPARAMETERS
    }


@functools.lru_cache(maxsize=16)
def adapted(model: Any, input_shape: tuple[int, ...]) -> models.FunctionalModel:
    """Adapts the model to pure functions, the same object for the same Linen module."""
    if isinstance(model, models.FunctionalModel):
        return model
    return models.functional(model, jax.ShapeDtypeStruct(input_shape, jnp.float32))


def broadcast(params: Tree, number: int) -> Tree:
    """Repeats the parameters for each of `number` candidates, a leading axis on every leaf."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (number, *leaf.shape)), params)


def chunks(number: int, chunk_size: int | None) -> list[np.ndarray]:
    """Returns the indices of candidates in groups that are trained together."""
    return np.array_split(np.arange(number), -(-number // (chunk_size or number)))


def train(
    model: models.FunctionalModel,
    loss: Loss,
    start: Tree,
    hyperparameters: Mapping[str, np.ndarray],
    client: LocalRecords,
    order: np.ndarray,
) -> Tree:
    """Trains one client's local epochs, all candidates at once.

    Parameters are (p, ...) per leaf, before and after; hyperparameters name -> (p,); the order
    (epochs, steps, batch) as `batch_order` makes it.
    """
    epochs, steps, batch = order.shape
    # Padded so that clients of different sizes share a program; the loop ends at the real steps.
    most = -(-len(client.labels) // batch)
    padded = np.full((epochs, most, batch), -1, np.int32)
    padded[:, :steps] = order
    return trainer(model, loss)(
        start, hyperparameters, client.inputs, client.labels, padded, np.int32(steps)
    )


def evaluate(
    model: models.FunctionalModel, loss: Loss, params: Tree, client: LocalRecords
) -> tuple[np.ndarray, np.ndarray]:
    """Computes each candidate's mean loss and accuracy on the test records, (p,) float64 each."""
    total, correct = _evaluator(model, loss)(
        params, client.inputs, client.labels, np.int32(client.training), np.int32(client.test)
    )
    mean, share = (np.asarray(found, np.float64) / client.test for found in (total, correct))
    return mean, share


@functools.lru_cache(maxsize=16)
def trainer(model: models.FunctionalModel, loss: Callable) -> Callable:
    """Returns the compiled program behind `train`, the same for the same model and loss."""

    def mean_loss(params: Tree, inputs: jax.Array, labels: jax.Array, mask: jax.Array):
        return jnp.sum(mask * loss(model.apply(params, inputs), labels)) / jnp.sum(mask)

    # Only parameters are mapped: candidates share the batch, so the first layer is one product.
    gradients = jax.vmap(jax.grad(mean_loss), in_axes=(0, None, None, None))

    @jax.jit
    def run(start, hyperparameters, inputs, labels, order, steps):
        epochs = order.shape[0]

        def scaled(values: jax.Array, leaf: jax.Array) -> jax.Array:
            return values.reshape(-1, *(1,) * (leaf.ndim - 1))

        def step(number: jax.Array, state: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
            params, velocity = state
            epoch = number // steps
            rows = order[epoch, number % steps]
            mask = (rows >= 0).astype(jnp.float32)
            rows = jnp.maximum(rows, 0)
            # PyTorch's StepLR and momentum without dampening; 0^0 = 1 in the first epoch.
            rate = hyperparameters["learning_rate"] * hyperparameters["decay"] ** epoch
            velocity = jax.tree.map(
                lambda old, new: scaled(hyperparameters["momentum"], old) * old + new,
                velocity,
                gradients(params, inputs[rows], labels[rows], mask),
            )
            params = jax.tree.map(
                lambda leaf, speed: leaf - scaled(rate, leaf) * speed, params, velocity
            )
            return params, velocity

        state = (start, jax.tree.map(jnp.zeros_like, start))
        return jax.lax.fori_loop(0, epochs * steps, step, state)[0]

    return run


@functools.lru_cache(maxsize=16)
def _evaluator(model: models.FunctionalModel, loss: Callable) -> Callable:
    """Returns a compiled function: each candidate's summed loss and correct predictions."""

    @jax.jit
    def run(params, inputs, labels, first, number):
        def block(index: jax.Array, sums: tuple[jax.Array, jax.Array]):
            offsets = index * _EVALUATION_BATCH + jnp.arange(_EVALUATION_BATCH)
            mask = offsets < number
            rows = jnp.where(mask, first + offsets, 0)
            scores = jax.vmap(model.apply, in_axes=(0, None))(params, inputs[rows])
            truth = jnp.broadcast_to(labels[rows], scores.shape[:2])
            losses = jnp.where(mask[None], loss(scores, truth), 0.0)
            right = mask[None] & (jnp.argmax(scores, axis=-1) == truth)
            return sums[0] + losses.sum(axis=1), sums[1] + right.sum(axis=1)

        count = jax.tree.leaves(params)[0].shape[0]
        zeros = (jnp.zeros(count), jnp.zeros(count, jnp.int32))
        return jax.lax.fori_loop(0, -(-number // _EVALUATION_BATCH), block, zeros)

    return run


def check_settings(
    epochs: int, batch_size: int, test_fraction: float, chunk_size: int | None
) -> tuple[int, int, int | None]:
    """Checks the settings of local training; returns epochs, batch size and chunk size."""
    checks.probability("test_fraction", test_fraction)
    return (
        checks.whole("epochs", epochs),
        checks.whole("batch_size", batch_size),
        None if chunk_size is None else checks.whole("chunk_size", chunk_size),
    )


_FIRST_STREAM = 2
"""First stream of a client's orders in rounds: 0 is its split, 1 its order in `train_clients`."""


class FlatModel(NamedTuple):
    """Holds a model whose parameters are one vector."""

    functional: models.FunctionalModel
    dimension: int  # d, number of parameters
    tree: Callable[[jax.Array], Any]  # (d,) float32 -> the parameters as the model takes them

    def initial(self, seed: int) -> np.ndarray:
        """Returns the public initial parameters, (d,) float32."""
        start = self.functional.init(jax.random.key(seed))
        return np.asarray(flatten_util.ravel_pytree(start)[0], np.float32)


@functools.lru_cache(maxsize=16)
def flat_model(module: Any, input_shape: tuple[int, ...]) -> FlatModel:
    """Returns a Linen module (or anything `models.functional` adapts) as a model of one vector.

    The same hashable module gives the same compiled programs; `input_shape` is of one example.
    """
    functional = adapted(module, input_shape)
    flat, tree = flatten_util.ravel_pytree(functional.init(jax.random.key(0)))
    return FlatModel(functional, flat.size, tree)


def whole_records(records: Records, capacity: int | None = None) -> LocalRecords:
    """Pads all of a client's records, for training, to the capacity or else a power of two."""
    return _padded(
        records, capacity or max(64, 1 << max(len(records[1]) - 1, 0).bit_length()), test=0
    )


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
    order = batch_order(client, epochs, batch_size, order_stream(stream))
    start = broadcast(model.tree(jnp.asarray(params)), 1)
    hyperparameters = stacked_candidates([candidate])
    trained = train(model.functional, loss, start, hyperparameters, client, order)
    first = jax.tree.map(lambda leaf: leaf[0], trained)
    after = np.asarray(flatten_util.ravel_pytree(first)[0], np.float64)
    return after - np.asarray(params, np.float64)


def accuracy(model: FlatModel, params: np.ndarray, inputs: np.ndarray, labels: np.ndarray) -> float:
    """Returns the share of records that the model labels correctly."""
    scores = _scorer(model.functional, model.tree)(jnp.asarray(params, jnp.float32), inputs)
    return float(np.mean(np.argmax(np.asarray(scores), axis=-1) == labels))


def order_stream(stream: tuple[int, int, int]) -> tuple[int, int, int]:
    """Returns the stream that a client's order in a round is drawn from."""
    seed, client, number = stream
    return seed, client, _FIRST_STREAM + number


@functools.lru_cache(maxsize=16)
def _scorer(model: models.FunctionalModel, tree: Callable) -> Callable:
    return jax.jit(lambda params, inputs: model.apply(tree(params), inputs))
