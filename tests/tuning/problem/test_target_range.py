"""Regression by a public range: what is learned, scored, released and served."""

import json
import warnings

import flax.linen as nn
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import models, tuning
from dpjax.releases.release import sealed
from dpjax.tuning.problem.public_defaults import defaults_of

GENERATOR = np.random.default_rng(5)
INPUTS = GENERATOR.random((360, 3)).astype(np.float32)
TARGETS = (INPUTS @ np.array([3.0, -2.0, 4.0]) - 2.5).astype(np.float32)
"""From -5 to 5."""


def _task(target_range=(-5, 5), add=0.0, times=1.0, model=None, **more):
    """A regression whose targets are `add` + `times` * `TARGETS`."""
    y = (add + times * TARGETS).astype(np.float32)
    train = tuning.Records((INPUTS[:300].copy(), y[:300].copy()), 300, 320)
    validation = tuning.Records((INPUTS[300:].copy(), y[300:].copy()), 60, 60)
    given = dict(error_scale=2.0 * times, target_range=target_range) | more
    return tuning.regression(model or nn.Dense(1), train, validation, **given)


def _released(task):
    run = tuning.RunOptions(steps=40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of the seed, and of a model that is of no use.
        return tuning.tune(task, None, tuning.Untuned(), epsilon=8.0, run=run, seed=3).release


def test_the_ends_of_the_range_are_learned_as_minus_5_and_5():
    seen = _task((100, 300), loss=lambda outputs, targets: targets + 0.0 * outputs[:, 0])
    params = seen.initial(jax.random.key(0))
    learned = [float(seen.loss(params, (INPUTS[0], np.float32(y)))) for y in (100, 200, 300, 320)]
    np.testing.assert_allclose(learned, [-5.0, 0.0, 5.0, 6.0], rtol=1e-6)


def test_targets_of_several_outputs_and_whole_numbers_are_mapped_too():
    y = np.array([[0, 4], [2, 2]] * 20)
    parts = [tuning.Records((INPUTS[:40].copy(), y.copy()), 40, 40) for _ in range(2)]
    task = tuning.regression(nn.Dense(2), *parts, error_scale=4.0, target_range=(0, 4))
    params = jax.tree.map(jnp.zeros_like, task.initial(jax.random.key(0)))  # Its outputs are 0.
    assert float(task.loss(params, (INPUTS[0], y[0]))) == pytest.approx(0.5 * 25)
    assert float(task.loss(params, (INPUTS[0], y[1]))) == 0.0
    assert float(task.score(params, (INPUTS[0], y[0]))) == pytest.approx(0.5)


def test_a_score_is_in_the_units_of_the_target():
    task = _task((100, 300), error_scale=50.0)
    params = jax.tree.map(jnp.zeros_like, task.initial(jax.random.key(0)))
    found = [float(task.score(params, (INPUTS[0], np.float32(y)))) for y in (200, 225, 190, 300)]
    np.testing.assert_allclose(found, [1.0, 0.5, 0.8, 0.0], atol=1e-6)


def test_half_precision_outputs_are_mapped_back_in_single_precision():
    task = _task((1000.0, 1001.0))
    found = task.targets.predicted(jnp.asarray([2.5], jnp.bfloat16))
    assert found.dtype == jnp.float32 and float(found[0]) == 1000.75


def test_targets_in_the_learned_range_are_learned_as_without_a_range():
    ranged, plain = _task((-5, 5)), _task(None)
    params = ranged.initial(jax.random.key(1))
    for at in range(5):
        example = (INPUTS[at], TARGETS[at])
        grads = [jax.grad(one.loss)(params, example) for one in (ranged, plain)]
        jax.tree.map(np.testing.assert_array_equal, *grads)
        assert ranged.score(params, example) == plain.score(params, example)


@pytest.mark.parametrize("times, add", [(1e-3, 0.0), (0.1, 0.5), (1.0, 30.0), (2000.0, 1e4)])
def test_the_default_learns_targets_of_any_scale_alike(times, add):
    mapped = _task((add - 5 * times, add + 5 * times), add, times)
    own = _task()
    params = [_released(task).params for task in (mapped, own)]
    kernels = [np.asarray(one["kernel"]) for one in params]
    np.testing.assert_allclose(*kernels, atol=0.02 * np.abs(kernels[1]).max())
    outputs = INPUTS @ kernels[0] + params[0]["bias"]
    error = np.asarray(mapped.targets.predicted(outputs))[:, 0] - (add + times * TARGETS)
    assert 1 - np.var(error) / np.var(times * TARGETS) > 0.7


def test_what_is_released_is_served_in_the_units_of_the_target(tmp_path):
    """By its files alone, as the guide on serving says."""
    task = _task((0, 20_000), 10_000.0, 2000.0)
    release = _released(task)
    release.save(tmp_path / "release", certificate=False)
    claim = json.loads((tmp_path / "release" / "guarantee.json").read_text())
    assert claim["targets"] == {
        "range": [0.0, 20_000.0], "learned_as": [-5.0, 5.0], "add": 10_000.0, "times": 2000.0,
    }  # fmt: skip
    params = flax.serialization.msgpack_restore(
        (tmp_path / "release" / "model.msgpack").read_bytes()
    )
    outputs = nn.Dense(1).apply({"params": params}, INPUTS)[:, 0]
    served = claim["targets"]["add"] + claim["targets"]["times"] * outputs
    assert np.corrcoef(served, TARGETS)[0, 1] > 0.8
    assert abs(np.mean(served) - np.mean(10_000 + 2000 * TARGETS)) < 2000
    assert tuning.verify_release(tmp_path / "release").epsilon <= 8.0


@pytest.mark.parametrize(
    "change",
    [
        {"times": 2001.0}, {"add": 0.0}, {"range": [0.0, 10_000.0]}, {"learned_as": [-1.0, 1.0]},
        {"range": [20_000.0, 0.0]}, {"range": [0.0]}, {"unit": "dollars"},
    ],
)  # fmt: skip
def test_a_map_that_does_not_follow_from_its_ranges_is_not_verified(change, tmp_path):
    release = _released(_task((0, 20_000), 10_000.0, 2000.0))
    statement = dict(release.statement)
    statement["targets"] = statement["targets"] | change
    files = release.model_files() | {"hyperparameters.json": b"{}"}
    for name, content in sealed(files, statement).items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(tuning.NotVerified, match="targets|range"):
        tuning.verify_release(tmp_path)


def test_the_default_leaves_as_much_noise_in_a_line_as_in_a_net_of_its_width():
    named, unnamed = defaults_of(_task(), 2.0), defaults_of(_task(None), 2.0)
    assert unnamed.learning_rate == pytest.approx(6 * named.learning_rate)
    assert named.average == unnamed.average is not None


def test_without_a_range_the_default_says_what_it_lacks():
    with pytest.warns(UserWarning, match=r"target_range=\(lowest, highest\)"):
        result = tuning.tune(
            _task(None), None, tuning.Untuned(), epsilon=8.0, run=tuning.RunOptions(steps=2), seed=1
        )
    assert "targets" not in result.release.statement


def test_a_loss_of_ones_own_is_named_as_ever():
    def absolute(outputs, targets):
        return jnp.abs(outputs[:, 0] - targets)

    task = _task((0, 1), loss=absolute, model=models.MLP((4,), 1))
    assert "trained with the loss" in task.description and "absolute" not in _task().description
    assert task.description == _task(None, loss=absolute, model=models.MLP((4,), 1)).description


@pytest.mark.parametrize(
    "target_range", [(1,), (2, 1), (1, 1), (0, np.inf), "0..1", (0, 1, 2), 5.0, (-1e308, 1e308)]
)
def test_what_is_no_range_is_refused_in_one_line(target_range):
    with pytest.raises(ValueError, match="target_range must be") as caught:
        _task(target_range)
    assert "\n" not in str(caught.value)
