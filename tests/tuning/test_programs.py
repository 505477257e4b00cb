"""Programs are told apart by what they compute, and recognised in another process."""

import json
import os
import pathlib
import subprocess
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import training, tuning
from dpjax.data import Split
from dpjax.tuning.problem import inspection

ROOT = pathlib.Path(__file__).parents[2]
GENERATOR = np.random.default_rng(0)
NUMBERS = GENERATOR.normal(size=40)


class Net(nn.Module):
    width: int = 4

    @nn.compact
    def __call__(self, inputs, train=False):
        hidden = nn.relu(nn.Dense(self.width)(inputs))  # its derivative is a Python function
        return nn.Dense(2)(nn.Dropout(0.5, deterministic=not train)(nn.silu(hidden)))


def task(**more):
    inputs, labels = NUMBERS.reshape(20, 2).astype(np.float32), (NUMBERS[::2] > 0).astype(np.int32)
    parts = [Split(inputs.copy(), labels.copy(), 20, 20, np.arange(20)) for _ in range(2)]
    return tuning.classification(Net(**more), *parts, with_rng=True)


def of_task(task):
    return inspection.programs(task, training.adam(), ["learning_rate", "steps"])


def test_another_process_finds_the_same_fingerprints():
    """Where addresses in memory and the order of sets are others."""
    program = "import json, test_programs as t; print(json.dumps(t.of_task(t.task())))"
    environment = os.environ | {
        "PYTHONHASHSEED": "77",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(pathlib.Path(__file__).parent)]),
    }
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == of_task(task())


def test_another_model_has_another_loss_score_and_initial_values():
    ours, wider = of_task(task()), of_task(task(width=5))
    assert all(ours[name] != wider[name] for name in ours)


@jax.custom_jvp
def kept(x):
    return x


kept.defjvp(lambda primals, tangents: (primals[0], 2.0 * tangents[0]))


@pytest.mark.parametrize(
    "one, other",
    [
        (lambda x: x * 2.0, lambda x: x * 3.0),
        (lambda x: x + NUMBERS[:3], lambda x: x + NUMBERS[1:4]),
        (lambda x: x, lambda x: x + 0.0),
        (lambda x: x, lambda x: {"x": x}),
        (lambda x: jnp.ones(3), lambda x: jnp.zeros(3)),
        (lambda x: NUMBERS[:3], lambda x: NUMBERS[1:4]),
        (jax.grad(lambda x: jnp.sum(x)), jax.grad(lambda x: jnp.sum(kept(x)))),
        *(
            (
                lambda x, wrap=wrap: wrap(lambda y: y * jnp.asarray(NUMBERS[:3]))(x),
                lambda x, wrap=wrap: wrap(lambda y: y * jnp.asarray(NUMBERS[1:4]))(x),
            )
            for wrap in (
                jax.jit,
                jax.checkpoint,
                jax.vmap,
                lambda f: lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, length=2)[0],
                lambda f: lambda x: jax.lax.cond(x[0] > 0, f, lambda y: y, x),
                lambda f: lambda x: jax.lax.fori_loop(0, 3, lambda _, c: f(c), x),
            )
        ),
    ],
)
def test_whatever_changes_a_result_changes_the_fingerprint(one, other):
    x = jnp.ones(3)
    assert inspection.fingerprint(one, x) == inspection.fingerprint(one, x)
    assert inspection.fingerprint(one, x) != inspection.fingerprint(other, x)


def test_a_key_that_was_closed_over_counts():
    keys = [jax.random.key(seed) for seed in (1, 2)]
    first, second = (
        inspection.fingerprint(lambda x, key=key: x + jax.random.normal(key), 1.0) for key in keys
    )
    assert first != second
