"""Named schedules: their shapes, optax's where it has them, and whole runs of different length."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import training
from dpjax.training import schedules
from dpjax.tuning.problem.inspection import of_optimizer

STEPS = 12
OPTAX = {
    "constant": lambda: optax.constant_schedule(1.0),
    "cosine": lambda: optax.cosine_decay_schedule(1.0, STEPS),
    "linear": lambda end_factor: optax.linear_schedule(1.0, end_factor, STEPS),
    "warmup_cosine": lambda warmup_share: optax.join_schedules(
        [
            lambda step: (step + 1) / np.ceil(warmup_share * STEPS),
            optax.cosine_decay_schedule(1.0, STEPS - int(np.ceil(warmup_share * STEPS))),
        ],
        [int(np.ceil(warmup_share * STEPS))],
    ),
}
SETTINGS = {
    "linear": {"end_factor": 0.2},
    "warmup_cosine": {"warmup_share": 0.3},
}


@pytest.mark.parametrize("name", schedules.SCHEDULES)
def test_every_schedule_is_the_one_of_its_name(name):
    own = SETTINGS.get(name, {})
    shape = schedules.shape_of(name, own) or (lambda step, steps: 1.0)
    found = [float(shape(jnp.int32(step), jnp.float32(STEPS))) for step in range(STEPS)]
    np.testing.assert_allclose(found, [OPTAX[name](**own)(n) for n in range(STEPS)], rtol=1e-5)
    whole = [float(shape(step, 1)) for step in range(1)]  # A run of one step.
    assert np.all(np.isfinite(whole)) and whole[0] > 0


@pytest.mark.parametrize("name", schedules.SCHEDULES)
def test_candidates_of_different_length_each_follow_their_own(name):
    """Slots of a mixed sweep, whose steps are traced: moves by hand."""
    base = training.TrainConfig(
        loss_fn=lambda params, example: params * example,
        lots=training.PoissonLots(4, 1.0, 4),
        steps=1,
        expected_lot_size=4,
        optimizer=training.scheduled(training.sgd, name, **SETTINGS.get(name, {})),
    )
    lengths = (3, 7, 5)
    given = {
        "clip_norm": np.full(3, 9.0), "noise_multiplier": np.zeros(3), "learning_rate": np.ones(3),
        "steps": np.array(lengths, float),
    }  # fmt: skip
    shape = schedules.shape_of(name, SETTINGS.get(name, {})) or (lambda step, steps: 1.0)
    results = training.mixed_sweep(
        [dataclasses.replace(base, steps=steps) for steps in lengths],
        training.candidate_keys(3), given, np.ones(4, np.float32),
        initial=lambda key: jnp.zeros(()), chunk_size=2, steps_per_call=2,
    )  # fmt: skip
    for indices, params in results:
        for index, found in zip(indices, params):
            steps = lengths[index]
            moves = [float(shape(np.float32(n), np.float32(steps))) for n in range(steps)]
            assert found == pytest.approx(-sum(moves), rel=1e-4)


def test_a_release_names_a_schedule_and_all_its_settings():
    said = of_optimizer(training.scheduled(training.adam, "warmup_cosine"))
    assert said == {
        "name": "dpjax.training.optimizers.adam",
        "learning_rate_schedule": "warmup_cosine over the run's steps, warmup_share 0.1",
    }
    assert schedules.in_words("cosine") == "cosine over the run's steps"
    assert schedules.in_words("constant") == "constant"


def test_a_schedule_of_ones_own_is_one_function():
    try:

        @training.register_schedule("inverse")
        def inverse(offset: float = 1.0):
            """Falls as one over the step."""
            return lambda step, steps: offset / (offset + step)

        optimizer = training.scheduled(training.sgd, "inverse", offset=2.0)
        tx = optimizer({"learning_rate": 1.0, "steps": 5.0})
        moved, _ = jax.jit(tx.update)(jnp.ones(2), tx.init(jnp.ones(2)))
        np.testing.assert_allclose(moved, -1.0)
        assert "offset 2" in optimizer.description["learning_rate_schedule"]
    finally:
        schedules.SCHEDULES.pop("inverse", None)
