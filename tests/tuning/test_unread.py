"""A release names no hyperparameter that nothing read, in the Python API as on the command line."""

import importlib

import flat_call
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import training, tuning
from dpjax.federated import local_training
from dpjax.tuning import Records, Task
from dpjax.tuning.problem.inspection import refuse_unread
from experiments.figures.leaderboard.extrapolation import Extrapolation

TASK = Task(
    initial=lambda key: {"w": jnp.zeros(3), "frozen": jnp.zeros(2, jnp.int32)},
    loss=lambda params, value: jnp.sum(params["w"]) * value,
    correct=lambda params, value: params["w"][0] > value,
    train=Records(
        np.ones(20, np.float32), 20, 20, identifiers=np.arange(20), stable_under_removal=True
    ),
    validation=Records(
        np.ones(10, np.float32), 10, 10, identifiers=np.arange(10), stable_under_removal=True
    ),
    trainable={"w": True, "frozen": False},
)


def lazily(hyperparameters):
    """Reads `decay` in a schedule only, inside the update."""
    return training.sgd(lambda step: hyperparameters["decay"] ** step)(hyperparameters)


def kept_for_later(hyperparameters):
    """`warmth` decides what the second update is, and not the first."""

    def update(gradient, state, params):
        moved = jax.tree.map(lambda leaf: leaf * state, gradient)
        return moved, state * 0 + hyperparameters["warmth"]

    return optax.GradientTransformation(lambda params: jnp.zeros(()), update)


def copied(hyperparameters):
    """Looks at a copy of them all, uses `learning_rate`."""
    return optax.sgd({**hyperparameters}["learning_rate"])


def only_looked_at(hyperparameters):
    """Reads `dropout` and does nothing with it."""
    _ = hyperparameters["dropout"], hyperparameters.get("weight_decay")
    return optax.sgd(hyperparameters["learning_rate"])


RATE = {"learning_rate"}
CASES = [
    (training.sgd(), RATE, set()),
    (training.sgd(), {"momentum"} | RATE, {"momentum"}),
    (training.momentum(), {"momentum"} | RATE, set()),
    (training.adam(), {"beta_1", "beta_2", "adam_epsilon"} | RATE, set()),
    (training.adam(), {"momentum", "decay"} | RATE, {"momentum", "decay"}),
    (
        training.sgd(),
        {"clip_norm", "steps", "lot_size", "noise_multiplier", "epochs"} | RATE,
        set(),
    ),
    (lazily, {"decay"} | RATE, set()),
    (kept_for_later, {"warmth"}, set()),
    (copied, {"momentum"} | RATE, {"momentum"}),
    (only_looked_at, {"dropout", "weight_decay"} | RATE, {"dropout", "weight_decay"}),
    (lambda h: optax.adamw(h["learning_rate"], weight_decay=h["decay"]), {"decay"} | RATE, set()),
    (
        lambda h: optax.chain(optax.clip_by_global_norm(h["cut"]), optax.sgd(h["learning_rate"])),
        {"cut"} | RATE,
        set(),
    ),
]


@pytest.mark.parametrize(("optimizer", "names", "unread"), CASES)
def test_what_no_update_depends_on_is_refused(optimizer, names, unread):
    if not unread:
        refuse_unread(TASK, optimizer, names)
        return
    with pytest.raises(ValueError, match=f"have {', '.join(sorted(unread))}, which nothing reads"):
        refuse_unread(TASK, optimizer, names)


def _space(**more):
    return tuning.Space(learning_rate=0.1, clip_norm=1.0, **more)


ARGUMENTS = dict(noise_multiplier=2.0, delta=1e-6, lot_size=4, steps=2, optimizer=training.sgd())
CALLS = {
    "random_repetitions": lambda: flat_call.tune(
        tuning.RandomRepetitions, TASK, _space(dropout=0.5), **ARGUMENTS
    ),
    "threshold_stopping": lambda: flat_call.tune(
        tuning.ThresholdStopping,
        TASK,
        _space(dropout=tuning.Choice([0.1, 0.5])),
        threshold=0.5,
        **ARGUMENTS,
    ),
    "exponential": lambda: flat_call.tune(
        tuning.Exponential, TASK, _space(dropout=0.5), partitions=2, candidates=2, **ARGUMENTS
    ),
    "permute_and_flip": lambda: flat_call.tune(
        tuning.Exponential,
        TASK,
        _space(dropout=0.5),
        partitions=2,
        candidates=2,
        mechanism="permute_and_flip",
        **ARGUMENTS,
    ),
    "extrapolation": lambda: flat_call.tune(
        Extrapolation,
        TASK,
        tuning.Space(learning_rate=tuning.Uniform(0.1, 1.0), clip_norm=1.0, dropout=0.5),
        stage_noise=(9.0, 5.0),
        **ARGUMENTS,
    ),
    "doubling, listed": lambda: flat_call.tune(
        tuning.Doubling,
        TASK,
        _space(dropout=0.5),
        partitions=2,
        candidates=[dict(learning_rate=0.1, clip_norm=1.0, dropout=0.5)],
        **ARGUMENTS,
    ),
    "the clients of a vote": lambda: local_training.stacked_candidates(
        [{"learning_rate": 0.1, "decay": 1.0, "momentum": 0.0, "dropout": 0.5}]
    ),
    "a federation": lambda: importlib.import_module("dpjax.federated").Election.from_config(
        {
            "clients": 5,
            "votes": 1,
            "epsilon": 1.0,
            "candidates": '[{"learning_rate": 0.1, "decay": 1, "momentum": 0, "dropout": 0.5},'
            ' {"learning_rate": 0.2, "decay": 1, "momentum": 0, "dropout": 0.5}]',
        }
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_procedure_refuses_it_in_one_line(name):
    if name == "a federation":
        pytest.importorskip("flwr")
    with pytest.raises(ValueError, match="dropout, which nothing reads") as caught:
        CALLS[name]()
    assert "\n" not in str(caught.value)
