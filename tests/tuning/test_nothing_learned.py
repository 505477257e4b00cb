"""Where nothing can be learned, or nothing was, the curator hears of it."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting, training, tuning
from dpjax.tuning.cautions import UselessModelWarning
from dpjax.tuning.problem.inspection import UselessLossWarning
from dpjax.tuning.steps import Material

SOURCE = np.random.default_rng(0)
INPUTS = SOURCE.normal(size=(60, 3)).astype(np.float32)
TARGETS = INPUTS.sum(axis=1)


def _records(outputs, inputs=INPUTS):
    train = tuning.Records((inputs[:40].copy(), outputs[:40].copy()), 40, 40)
    return train, tuning.Records((inputs[40:].copy(), outputs[40:].copy()), 20, 20)


def _line(loss, outputs=TARGETS, initial=lambda key: jnp.zeros(3), **more):
    train, validation = _records(outputs)
    return tuning.Task(
        initial=initial,
        loss=loss,
        score=lambda w, example: 1 - jnp.abs(jnp.sum(example[0]) - example[1]),
        train=train,
        validation=validation,
        **more,
    )


def _tuned(task, rate=0.1, steps=3, **more):
    return tuning.tune(
        task,
        tuning.Space(learning_rate=rate, clip_norm=1.0),
        tuning.RandomRepetitions(accounting.Fixed(2), score_noise=9.0),
        run=tuning.RunOptions(lot_size=20, steps=steps, noise_multiplier=0.5),
        optimizer=training.sgd(),
        delta=1e-3,
        seed=1,
        **more,
    )


BEFORE = {
    "targets that are NaN": lambda: tuning.regression(
        nn.Dense(1), *_records(np.full(60, np.nan, np.float32)), error_scale=2.0
    ),
    "inputs that are NaN": lambda: tuning.regression(
        nn.Dense(1), *_records(TARGETS, np.full_like(INPUTS, np.inf)), error_scale=2.0
    ),
    "a loss that reads no parameter": lambda: _line(lambda w, example: jnp.sum(example[0])),
    "a loss of frozen parameters alone": lambda: _line(
        lambda w, example: jnp.sum(w["frozen"] * example[0]),
        initial=lambda key: {"frozen": jnp.ones(3), "trained": jnp.ones(3)},
        trainable=lambda path, leaf: "trained" in jax.tree_util.keystr(path),
    ),
    "a gradient that is never finite on these records": lambda: _line(
        lambda w, example: jnp.log(example[1] - 5.0 + example[0] @ w)
    ),
}


@pytest.mark.parametrize("name", BEFORE)
def test_what_cannot_be_learned_is_said_before_the_draw(name):
    task = BEFORE[name]()
    with pytest.warns(UselessLossWarning):
        Material.of(task, tuning.Space(learning_rate=0.1), training.sgd()).check()


def test_a_regressor_that_is_no_better_than_a_constant_is_named():
    train, validation = _records(TARGETS)
    task = tuning.regression(nn.Dense(1), train, validation, error_scale=2.0)
    with pytest.warns(UselessModelWarning, match="curator alone.*no more than always predicting"):
        _tuned(task, rate=1e-6)


def test_several_labels_and_tokens_are_judged_too():
    labels = (INPUTS > 0).astype(np.int32)
    task = tuning.multi_label(nn.Dense(3), *_records(labels))
    constant = task.constant_score(task.validation.single)
    assert constant == np.maximum(labels[40:].mean(0), 1 - labels[40:].mean(0)).mean()
    tokens = np.tile(np.array([0, 1, 1, 1], np.int32), (60, 1))
    parts = [tuning.Records(one, len(one), len(one)) for one in (tokens[:40], tokens[40:].copy())]
    model = nn.Sequential([nn.Embed(3, 4), nn.Dense(3)])
    assert tuning.next_token(model, *parts).constant_score((None, tokens[40:, 1:])) > 0.99
    assert tuning.next_token(model, *parts, padding=1).constant_score((None, tokens[:, 1:])) == 0.0


def test_the_gradients_are_named_where_they_were_never_finite():
    train, validation = _records(TARGETS)

    def loss(predictions, targets):  # Its value is finite, its gradient is not.
        return jnp.sqrt(jnp.sum(predictions - jax.lax.stop_gradient(predictions), axis=-1))

    with pytest.warns(UselessLossWarning):
        task = tuning.regression(nn.Dense(1), train, validation, error_scale=0.01, loss=loss)
    with pytest.warns(UselessModelWarning, match="trained on noise alone"):
        _tuned(task)


def test_of_a_good_regressor_nothing_is_said(recwarn):
    task = tuning.regression(nn.Dense(1), *_records(TARGETS), error_scale=2.0)
    _tuned(task, rate=1.0, steps=60)
    assert not [one for one in recwarn if issubclass(one.category, UselessModelWarning)]
