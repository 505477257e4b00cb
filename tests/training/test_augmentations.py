"""Augmentations: the mean gradient clipped once, the ready transforms, micro-batches, an audit."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_tasks
from audits import epsilon_lower_bound

from dpjax import accounting, training
from dpjax.training import augmentations
from dpjax.tuning.problem.task import accuracy_of

GENERATOR = np.random.default_rng(3)
IMAGES = GENERATOR.normal(size=(9, 6, 5, 2)).astype(np.float32)
LABELS = GENERATOR.normal(size=9).astype(np.float32)
PARAMS = {"w": GENERATOR.normal(size=(6, 5, 2)).astype(np.float32)}
AUGMENT = augmentations.on_inputs(augmentations.flipped, augmentations.shifted(2))


def _loss(params, example):
    return 0.5 * (jnp.sum(params["w"] * example[0]) - example[1]) ** 2


def _noisy_loss(params, example, rng):
    return _loss(params, example) * jax.random.uniform(rng)


@pytest.mark.parametrize("multiplicity", [1, 4])
@pytest.mark.parametrize("with_rng", [False, True])
def test_a_records_gradient_is_the_mean_over_augmentations_clipped_once(multiplicity, with_rng):
    inner = _noisy_loss if with_rng else _loss
    loss = training.augmented(inner, AUGMENT, multiplicity, with_rng=with_rng)
    keys = jax.random.split(jax.random.key(4), 9)
    grad_fn = training.clipped_grad(loss, with_rng=True)
    summed, aux = grad_fn(PARAMS, (IMAGES, LABELS), clip_norm=1.0, rng=keys)
    expected = np.zeros((6, 5, 2))
    for row in range(9):
        each = []
        for key in jax.random.split(keys[row], multiplicity):
            own, of_loss = jax.random.split(key) if with_rng else (key, key)
            example = AUGMENT(own, (IMAGES[row], LABELS[row]))
            rest = (of_loss,) if with_rng else ()
            each.append(jax.grad(inner)(PARAMS, example, *rest)["w"])
        gradient = np.mean(each, axis=0)
        assert aux.norms[row] == pytest.approx(np.linalg.norm(gradient), rel=1e-4)
        expected += gradient / max(1.0, np.linalg.norm(gradient))
    np.testing.assert_allclose(summed["w"], expected, rtol=1e-3, atol=1e-4)


def test_flips_and_shifts_are_those_of_numpy_each_alike_often():
    image = IMAGES[0]
    keys = jax.random.split(jax.random.key(0), 2500)
    flips = np.asarray(jax.vmap(augmentations.flipped, (0, None))(keys, image))
    exchanged = np.array([np.array_equal(one, image[:, ::-1]) for one in flips])
    assert all(np.array_equal(one, image) for one in flips[~exchanged])
    assert abs(exchanged.mean() - 0.5) < 0.04
    padded = np.pad(image, ((2, 2), (2, 2), (0, 0)), mode="reflect")
    crops = {
        padded[top : top + 6, left : left + 5].tobytes(): 0 for top in range(5) for left in range(5)
    }
    for one in np.asarray(jax.vmap(augmentations.shifted(2), (0, None))(keys, image)):
        crops[one.tobytes()] += 1
    assert len(crops) == 25 and all(abs(times - 100) < 45 for times in crops.values())
    plain = augmentations.shifted(1)(keys[0], image[..., 0])  # Without channels.
    assert plain.shape == (6, 5)


@functools.cache
def _trained(micro_batch_size):
    config = training.TrainConfig(
        loss_fn=training.augmented(_loss, AUGMENT, 3),
        with_rng=True,
        lots=training.PoissonLots(9, 0.6, 9),
        steps=3,
        expected_lot_size=5,
        optimizer=training.sgd(),
        micro_batch_size=micro_batch_size,
    )
    given = {"clip_norm": 1.0, "noise_multiplier": 0.5, "learning_rate": 0.3}
    run = jax.jit(training.make_train(config))
    return run(jax.random.key(1), given, PARAMS, (IMAGES, LABELS))["w"]


@pytest.mark.parametrize("rows", [1, 4])
def test_micro_batches_train_the_same(rows):
    np.testing.assert_allclose(_trained(rows), _trained(None), rtol=1e-4, atol=1e-5)
    assert np.max(np.abs(_trained(None) - PARAMS["w"])) > 0.05


def test_what_is_scored_is_not_augmented():
    task = small_tasks.linear()

    def spoilt(key, example):
        return jax.tree.map(lambda leaf: 0 * leaf, example)

    other = dataclasses.replace(task, loss=training.augmented(task.loss, spoilt, 2), with_rng=True)
    params = task.initial(jax.random.key(0))
    accuracies = [accuracy_of(one, params, task.validation.arrays) for one in (task, other)]
    assert accuracies[0] == accuracies[1]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: training.augmented(_loss, AUGMENT, 0), "multiplicity"),
        (lambda: training.augmented(3, AUGMENT, 2), "loss_fn"),
        (lambda: training.augmented(_loss, "flip", 2), "augment must"),
        (lambda: training.augmented(_loss, AUGMENT, 2, with_rng=1), "with_rng"),
        (lambda: augmentations.on_inputs("flip"), "transforms"),
        (lambda: augmentations.shifted(0), "pixels"),
        (lambda: augmentations.shifted(5)(jax.random.key(0), IMAGES[0]), "pixels=5"),
    ],
)
def test_what_is_no_augmentation_is_refused_in_one_line(make, message):
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


# ---- audit: a canary whose augmentations all pull one way

RUNS, DELTA, MULTIPLIER, TIMES = 40_000, 1e-3, 1.2, 4


@functools.cache
def _outcomes(with_canary, multiplier, clipped_by):
    loss, values = lambda params, value: -params * value, [0.0, 9.0][: 1 + with_canary]
    if clipped_by == "record":
        loss = training.augmented(
            loss, lambda key, value: value * jax.random.uniform(key, minval=0.5), TIMES
        )
    else:  # The mistake: each augmentation is clipped by itself.
        values = np.repeat(values, TIMES)
    config = training.TrainConfig(
        loss_fn=loss,
        with_rng=clipped_by == "record",
        lots=training.PoissonLots(2 * TIMES, 1.0, 2 * TIMES),
        steps=2,
        expected_lot_size=1,
        optimizer=training.sgd(),
    )
    given = {"clip_norm": 1.0, "noise_multiplier": multiplier, "learning_rate": 1.0}
    run = jax.jit(jax.vmap(training.make_train(config), in_axes=(0, None, None, None)))
    keys = jax.random.split(jax.random.key(21 + with_canary), RUNS)
    found = run(keys, given, jnp.zeros(()), np.asarray(values, np.float32))
    return np.array(found)  # A copy: nothing stays on devices.


def _audit(multiplier=MULTIPLIER, clipped_by="record"):
    inside, outside = (_outcomes(one, multiplier, clipped_by) for one in (True, False))
    return epsilon_lower_bound(inside, outside, DELTA)


@functools.cache
def _claim():
    cost = accounting.dp_sgd(sampling_probability=1.0, noise_multiplier=MULTIPLIER, steps=2)
    return cost.epsilon(DELTA)


def test_an_augmented_record_stays_below_the_claim_and_the_audit_has_power():
    assert 0.5 * _claim() <= _audit() <= _claim()


def test_half_the_noise_is_caught():
    assert _audit(multiplier=MULTIPLIER / 2) > _claim()


def test_clipping_each_augmentation_is_caught():
    assert _audit(clipped_by="augmentation") > _claim()


def test_what_is_forgotten_is_named_in_one_line():
    usual, flipped = augmentations.on_inputs(augmentations.flipped), augmentations.flipped
    loss = training.augmented(lambda params, example: params, usual, 2)
    with pytest.raises(ValueError, match="was given no key: pass with_rng=True beside it") as one:
        loss(0.0, (np.zeros((4, 4)), 1))
    of_records = training.augmented(lambda params, example: params, flipped, 2)
    with pytest.raises(ValueError, match=r"given a tuple: pass .*on_inputs\(flipped\)") as other:
        of_records(0.0, (np.zeros((4, 4)), 1), jax.random.key(0))
    with pytest.raises(ValueError, match=r"an array of shape \(9,\): pass .*shifted\(2\)\)"):
        augmentations.shifted(2)(jax.random.key(0), jnp.zeros(9))
    assert all("\n" not in str(caught.value) for caught in (one, other))
