"""A small linear model whose candidates are swept side by side, for options of a run."""

import jax.numpy as jnp
import numpy as np

from dpjax import training

DATA = jnp.asarray(np.random.default_rng(3).normal(size=(40, 3)), jnp.float32)
SEED, RATE = 6, 0.01


def loss(params, row):
    return 0.5 * (row @ params["w"] - 1.0) ** 2


def mixed(configs, given, folder=None, **options):
    """Sweeps candidates that all have these hyperparameters, two steps a call, saved each time."""
    given = given | {"learning_rate": RATE}
    return training.mixed_sweep(
        configs,
        training.candidate_keys(len(configs), seed=SEED),
        {name: np.full(len(configs), value) for name, value in given.items()},
        DATA,
        initial=lambda key: {"w": jnp.zeros(3)},
        useful_work=0.5,
        checkpoints=folder and training.Checkpoints(folder, every_seconds=0.0),
        **({"chunk_size": 3, "steps_per_call": 2} | options),
    )


def collected(found):
    """Candidate -> its parameters."""
    return {int(place): leaf for places, trees in found for place, leaf in zip(places, trees["w"])}


def alone(made, given, index, number):
    """The parameters of one candidate of `number`, trained by itself."""
    key = training.candidate_keys(number, seed=SEED)[index]
    train = training.jit(training.make_train(made))
    return train(key, given | {"learning_rate": RATE}, {"w": jnp.zeros(3)}, DATA)["w"]


def assert_those_alone(configs, given):
    """Candidates side by side are those alone; returns the former."""
    found = collected(mixed(configs, given))
    for index, made in enumerate(configs):
        own = alone(made, given, index, len(configs))
        np.testing.assert_allclose(found[index], own, rtol=2e-5, atol=1e-6)
    return found


def assert_killed_goes_on(candidates, given, folder, between=lambda: None):
    """A sweep of `candidates()` that is killed goes on to the identical result."""
    whole = collected(mixed(candidates(), given))
    killed = mixed(candidates(), given, folder)
    next(killed)
    del killed
    between()
    again = collected(mixed(candidates(), given, folder))
    assert again.keys() == whole.keys()
    assert all((again[index] == whole[index]).all() for index in whole)
