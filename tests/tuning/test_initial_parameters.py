"""A batch of candidates starts as each would alone, and no batch of matrices is factorised.

jaxlib factorises a batch on a CPU inside the threads that it waits for: two such calls at once can
wait for ever. `jax.jit(jax.vmap(model.init))` of an LSTM does, within a few hundred calls.
"""

import jax
import numpy as np
import pytest
from flax import linen as nn

from dpjax import models, training, tuning
from dpjax.tuning import runner
from dpjax.tuning.steps import Material


class Recurrent(nn.Module):
    @nn.compact
    def __call__(self, inputs):
        return nn.Dense(2)(nn.RNN(nn.LSTMCell(4))(inputs)[:, -1])


def _task(model):
    def part(number):
        generator = np.random.default_rng(number)
        inputs = generator.normal(size=(number, 5, 3)).astype(np.float32)
        return tuning.Records((inputs, generator.integers(0, 2, number)), number, number + 5)

    return tuning.classification(model, part(40), part(20))


def _equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for leaf in jax.tree.leaves(list(equation.params.values())):
            inner = getattr(leaf, "jaxpr", leaf)
            if hasattr(inner, "eqns"):
                yield from _equations(inner)


@pytest.mark.parametrize("model", [Recurrent(), models.LogisticRegression(2)])
def test_a_batch_starts_as_each_alone_and_factorises_one_matrix_at_a_time(model):
    task, keys = _task(model), jax.random.split(jax.random.key(3), 4)

    def batch(keys):
        return jax.vmap(lambda key: runner.initial_parameters(task, key))(keys)

    found = list(_equations(jax.make_jaxpr(batch)(keys).jaxpr))
    factorised = [one for one in found if one.primitive is jax.lax.linalg.qr_p]
    loops = [one for one in found if one.primitive.name == "scan"]
    recurrent = isinstance(model, Recurrent)
    assert bool(factorised) == recurrent and bool(loops) == recurrent
    assert all(one.invars[0].aval.ndim == 2 for one in factorised)
    together = jax.jit(batch)(keys)
    for place, key in enumerate(keys):
        alone = jax.jit(task.initial)(key)
        for one, other in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            np.testing.assert_array_equal(one[place], other)


def test_a_sweeps_program_factorises_one_matrix_at_a_time():
    task = _task(Recurrent())
    lots = training.FixedLots(dataset_size=40, lot_size=10)
    config = runner.train_config(
        Material(task, training.momentum(), ()), lots, steps=1, lot_size=10
    )
    one = runner.run_of(task, config)
    records = runner.placed_records(task.train)
    given = {name: np.ones(3, np.float32) for name in ("learning_rate", "momentum", "clip_norm")}
    given["noise_multiplier"] = given["clip_norm"]

    def sweep(keys, given):
        return jax.vmap(lambda key, these: one(key, these, records))(keys, given)

    found = _equations(jax.make_jaxpr(sweep)(jax.random.split(jax.random.key(0), 3), given).jaxpr)
    matrices = [of.invars[0].aval.ndim for of in found if of.primitive is jax.lax.linalg.qr_p]
    assert matrices and set(matrices) == {2}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_recurrent_candidates_are_trained_side_by_side():
    space = tuning.Space(learning_rate=tuning.LogUniform(0.01, 0.1), momentum=0.9, clip_norm=1.0)
    run = tuning.RunOptions(lot_size=10, steps=2, noise_multiplier=4.0)
    tuner = tuning.RandomRepetitions(score_on_training=True)
    result = tuning.tune(_task(Recurrent()), space, tuner, delta=1e-3, run=run)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.release.params))
