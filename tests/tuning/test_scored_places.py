"""One validation record moves a score by one sensitivity: it moves no other record's score.

A forward pass may round otherwise at the last places of an array. Scores of rows in an array of as
many rows as there are records moved by 8 sensitivities when one was removed.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpjax import training, tuning
from dpjax.tuning.problem.task import total_units
from dpjax.tuning.runner import placed_to_be_scored, scored_run

OPTIMISED = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
FEATURES, NUMBER, BOUND = 784, 397, 403
GENERATOR = np.random.default_rng(0)
KERNEL = GENERATOR.normal(size=(FEATURES, 1)).astype(np.float32)


def _part(x, y):
    return tuning.Records((x, y), public_size=NUMBER, size_bound=BOUND)


@functools.cache
def _records():
    """Equal records whose prediction has other bits at the last places, the first's as their
    target, and what they differ by; zero where this machine rounds alike everywhere."""
    predicted = jax.jit(
        lambda x: jax.vmap(lambda one: (one @ KERNEL)[0])(x), compiler_options=OPTIMISED
    )
    for _ in range(60):
        row = np.round(GENERATOR.uniform(0, 255, size=FEATURES)).astype(np.float32)
        found = np.asarray(predicted(np.repeat(row[None], NUMBER, 0)))
        if len(set(found.tolist())) > 1:
            break
    x, y = np.repeat(row[None], NUMBER, 0), np.full(NUMBER, found[0])
    return x, y, float(np.abs(found - found[0]).max())


def _task(x, y, scale):
    none = np.ones((9, FEATURES), np.float32), np.zeros(9, np.float32)
    return tuning.regression(nn.Dense(1), _part(*none), _part(x, y), error_scale=scale)


def _scored(task, validation):
    placed = jax.jit(functools.partial(scored_run, task), compiler_options=OPTIMISED)
    params = task.initial(jax.random.key(0))
    params = jax.tree.map(
        lambda leaf: jnp.asarray(KERNEL if leaf.shape == KERNEL.shape else 0 * leaf), params
    )
    return int(placed(params, *validation)["units"])


def test_one_record_less_moves_a_score_by_one_sensitivity():
    x, y, apart = _records()
    scale = apart or 1.0
    more, less = _task(x, y, scale), _task(x[:-1], y[:-1], scale)
    for key in range(4):
        keys = training.candidate_keys(3, seed=key)
        (arrays, mask), (fewer, part) = (
            placed_to_be_scored(task.validation, keys) for task in (more, less)
        )
        # The others stand where they stood; there is a hole at the record's place.
        assert mask.shape == part.shape == (BOUND,)
        assert mask.sum() == NUMBER and (mask ^ part).sum() == 1
        for one, other in zip(arrays, fewer):
            np.testing.assert_array_equal(one[part], other[part])
        found = _scored(more, (arrays, mask)) - _scored(less, (fewer, part))
        assert abs(found) <= more.units
    if apart:  # As many rows as there are records move the others' scores.

        def unplaced(rows):
            params = {"kernel": KERNEL, "bias": np.zeros(1, np.float32)}
            own = jax.jit(
                lambda arrays: total_units(more, params, arrays), compiler_options=OPTIMISED
            )
            return int(own((x[:rows], y[:rows])))

        found = {unplaced(rows) - unplaced(rows - 1) for rows in range(NUMBER - 8, NUMBER + 1)}
        assert max(map(abs, found)) > more.units


def test_a_record_that_is_replaced_moves_a_score_by_one_sensitivity():
    x, y, apart = _records()
    scale, other = 10 * (apart or 1.0), y.copy()
    other[5] += 2 * scale
    tasks = _task(x, y, scale), _task(x, other, scale)
    keys = training.candidate_keys(1, seed=0)
    left, right = (_scored(task, placed_to_be_scored(task.validation, keys)) for task in tasks)
    assert 0 < abs(left - right) <= tasks[0].units


@pytest.mark.parametrize(("size", "features"), [(7, 1), (7, 3), (4, 1)])
def test_a_record_s_pixels_are_not_read_in_another_one_s_score(size, features):
    """XLA's own convolution reads them on a CPU: one record moves such a count by 2 or 3."""
    number, place = 32, 5
    images = np.zeros((number, size, size, features), np.float32)
    arrays, kernel = (images, np.ones(number, np.float32)), jnp.ones((3, 3, features, 4))

    def correct(params, record):
        found = jax.lax.conv_general_dilated(
            record[0][None], params, (1, 1), [(-1, 1)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )  # fmt: skip
        return jnp.sum(found) > record[1]

    parts = [tuning.Records(jax.tree.map(np.copy, arrays), number, number) for _ in range(2)]
    task = tuning.Task(
        initial=lambda key: kernel,
        loss=lambda params, record: jnp.sum(params),
        correct=correct,
        train=parts[0],
        validation=parts[1],
    )
    scored = jax.jit(functools.partial(scored_run, task, kernel), compiler_options=OPTIMISED)
    without = scored(arrays, np.arange(number) != place)["units"]
    bright = np.where(np.arange(number)[:, None, None, None] == place, np.float32(100.0), images)
    whole = scored((bright, arrays[1]), np.ones(number, bool))["units"]
    assert int(whole) - int(without) == task.units


def test_validation_records_stand_at_uniformly_random_places_of_a_secret_order():
    """By the candidates' first key, and by nothing else."""
    records = tuning.Records((np.arange(1.0, 4.0), np.zeros(3)), public_size=3, size_bound=5)
    keys = training.candidate_keys(400, seed=7)
    seen = [np.asarray(placed_to_be_scored(records, key)[0][0]) for key in keys.reshape(-1, 1)]
    again = placed_to_be_scored(records, keys[:1])[0][0]
    np.testing.assert_array_equal(seen[0], again)
    for record in (1.0, 2.0, 3.0):
        places = np.bincount([int((row == record).argmax()) for row in seen], minlength=5)
        assert scipy.stats.chisquare(places).pvalue > 1e-4
    arrays, mask = placed_to_be_scored(records, keys[:0])
    assert mask.tolist() == [True] * 3 + [False] * 2 and arrays[0][:3].tolist() == [1.0, 2.0, 3.0]


def test_rows_that_are_no_records_add_nothing():
    x, y, _ = _records()
    task = _task(x, y, 1.0)
    arrays, mask = placed_to_be_scored(task.validation, training.candidate_keys(1, seed=0))
    assert _scored(task, (arrays, np.zeros_like(mask))) == 0
    assert _scored(task, (arrays, mask)) > 0
