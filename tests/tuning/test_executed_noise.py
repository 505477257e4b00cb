"""The noise that candidates really get is the noise that is charged, however they are executed.

Gradients are zero, so a candidate's parameters are its noise: its variance is compared with the one
that its accounted setting states, for Poisson and fixed lots, for candidates alike (one program)
and unlike (slots, with settings drawn by the space), and no two candidates' noises correlate.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting, training
from dpjax.randomness import host_randomness
from dpjax.tuning import Choice, Records, RunOptions, Space, Task, private_runs
from dpjax.tuning.selection import BestOf
from dpjax.tuning.steps import Material, Problem, plan_runs

SIZE = 2000
RECORDS = 100
ALIKE = Space(learning_rate=0.5, clip_norm=Choice([0.5, 2.0]))
UNLIKE = Space(
    learning_rate=0.5,
    clip_norm=Choice([0.5, 2.0]),
    lot_size=Choice([10.0, 40.0]),
    noise_multiplier=Choice([1.0, 3.0]),
    steps=3,
)


@pytest.mark.parametrize("sampling,sensitivity", [("poisson", 1.0), ("fixed", 2.0)])
@pytest.mark.parametrize("space", [ALIKE, UNLIKE], ids=["alike", "unlike"])
def test_every_candidate_gets_the_noise_it_is_charged_for(space, sampling, sensitivity):
    """Each variance within 5.5 deviations of its law's, error rate 4e-8 a candidate; fixed seed."""
    task = Task(
        initial=lambda key: {"w": jnp.zeros(SIZE)},
        loss=lambda params, value: 0.0 * jnp.sum(params["w"]) * value,
        correct=lambda params, value: value > 0,
        train=Records(np.zeros(RECORDS, np.float32), RECORDS, RECORDS, True),
        validation=Records(np.ones(5, np.float32), 5, 5, True),
    )
    options = RunOptions(sampling=sampling)
    if space is ALIKE:
        options = RunOptions(20, 3, None, 1.7, sampling)
    procedure = plan_runs(
        Problem.of(task, space, options, training.sgd(), delta=1e-6, validation_is_public=True),
        BestOf(accounting.Fixed(1)),  # So that every run is the best of its execution.
    )
    executed = private_runs.execute(
        procedure,
        Material.of(task, space, training.sgd()),
        randomness=host_randomness.HostRandomness(5),
        executions=36,
        chunk_size=8,
    )
    total = len(executed.counts)
    given = {"lot_size": 20.0, "noise_multiplier": 1.7}
    given = {name: np.full(total, value) for name, value in given.items()} | dict(
        executed.hyperparameters
    )
    charged = given["noise_multiplier"] * given["clip_norm"] * sensitivity
    deviations = 0.5 * np.sqrt(3.0) * charged / given["lot_size"]
    noise = np.asarray(executed.best.outputs["w"], np.float64) / deviations[:, None]
    excess = (np.sum(noise**2, axis=1) - SIZE) / np.sqrt(2.0 * SIZE)
    assert np.abs(excess).max() < 5.5
    correlations = np.corrcoef(noise)[~np.eye(total, dtype=bool)]
    assert np.abs(correlations).max() < 6.0 / np.sqrt(SIZE)
