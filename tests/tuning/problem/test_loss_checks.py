"""A loss that could train nothing is refused or warned of, before a record is read."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

from dpjax import models, training, tuning
from dpjax.tuning.problem.inspection import UselessLossWarning, check_loss, warn_of_loss
from dpjax.tuning.steps import Material

INPUTS = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)


def _records():
    return tuning.Records((INPUTS.copy(), np.zeros(30, np.int32)), 30, 35)


def _task(loss, **changes):
    return tuning.Task(**{
        "initial": lambda key: {"w": jnp.ones(3)},
        "loss": loss,
        "correct": lambda params, example: example[0] @ params["w"] > 0,
        "train": _records(),
        "validation": _records(),
        **changes,
    })  # fmt: skip


def _line(params, example):
    return (example[0] @ params["w"] - example[1]) ** 2


@pytest.mark.parametrize(
    "loss, changes, message",
    [
        (lambda params, example, key: 0.0, {}, "with_rng=True .* or loss_reads"),
        (lambda params, example, key, given: 0.0, {"loss_reads": ("rate",)}, "pass with_rng=True"),
        (_line, {"with_rng": True}, "pass with_rng=False"),
        (lambda params: 0.0, {}, r"pass a function of \(parameters, example\)"),
        (lambda params, example: params["w"], {}, r"float32 of shape \(3,\): pass a function of"),
        (lambda params, example: jnp.int32(1), {}, "int32 of shape"),
        (lambda params, example: (1.0, 2.0), {}, "a tuple"),
    ],
)
def test_what_is_no_loss_is_refused_in_one_line(loss, changes, message):
    task = _task(loss, **changes)
    with pytest.raises(ValueError, match=message) as refusal:
        Material(task, training.sgd(), ["learning_rate", *task.loss_reads]).check()
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "loss",
    [
        lambda params, example: jnp.log(-1.0 - jnp.sum(params["w"] ** 2)),
        lambda params, example: jnp.sum(example[0] @ params["w"]) / 0.0,
        # Finite itself: the square root's slope at 0 times 0.
        lambda params, example: jnp.sqrt(jnp.sum(params["w"] * 0.0)),
    ],
)
def test_a_loss_that_is_never_finite_is_warned_of(loss):
    with pytest.warns(UselessLossWarning, match="noise alone: pass a loss that is finite"):
        Material(_task(loss), training.sgd(), ["learning_rate"]).check()


@pytest.mark.parametrize(
    "loss",
    [
        _line,
        # Finite on one of the made-up examples, which suits it, and on no other.
        lambda params, example: jnp.log(jnp.min(example[0] - 0.9)) * params["w"][0],
    ],
)
def test_a_loss_that_may_be_finite_passes_in_silence(loss):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "for the curator alone")  # Of records, not of the loss.
        Material(_task(loss), training.sgd(), ["learning_rate"]).check()


def test_the_records_do_not_decide_whether_a_loss_is_warned_of():
    bad = np.full_like(INPUTS, np.nan)
    task = _task(_line, train=tuning.Records((bad, np.zeros(30, np.int32)), 30, 35))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_loss(task)


def test_a_key_that_nothing_draws_by_is_warned_of():
    def draws(params, example, key):
        return _line(params, example) * jax.random.uniform(key)

    def draws_in_vain(params, example, key):
        jax.random.uniform(key)
        return _line(params, example)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_loss(_task(draws, with_rng=True))
    with pytest.warns(UselessLossWarning, match="it draws nothing with it: drop with_rng"):
        warn_of_loss(_task(draws_in_vain, with_rng=True))
    plain = tuning.classification(nn.Dense(2), _records(), _records(), with_rng=True)
    with pytest.warns(UselessLossWarning, match="drop with_rng"):
        warn_of_loss(plain)


def test_an_own_loss_of_a_ready_task():
    def never(scores, labels):
        return jnp.log(-jnp.sum(scores**2, axis=-1) - 1.0)

    with pytest.warns(UselessLossWarning, match="not finite on any made-up example"):
        tuning.classification(nn.Dense(2), _records(), _records(), loss=never)

    def mean(scores, labels):
        return jnp.mean(models.cross_entropy(scores, labels))

    task = tuning.classification(nn.Dense(2), _records(), _records(), loss=mean)
    with pytest.raises(ValueError, match=r"shape \(\) for a batch of one: pass a loss with one"):
        check_loss(task)
    assert task.description.endswith(
        f", trained with the loss {__name__}.test_an_own_loss_of_a_ready_task"
    )
    usual = tuning.classification(nn.Dense(2), _records(), _records())
    assert "loss" not in usual.description
    assert "loss" not in tuning.multi_label(
        nn.Dense(2), *[tuning.Records((INPUTS, np.zeros((30, 2), np.int32)), 30, 35)] * 1,
        tuning.Records((INPUTS.copy(), np.zeros((30, 2), np.int32)), 30, 35),
    ).description  # fmt: skip
    hinged = tuning.classification(nn.Dense(2), _records(), _records(), loss=models.hinge)
    assert hinged.description.endswith("trained with the loss dpjax.models.losses.hinge")


class _Called(nnx.Module):
    def __init__(self, rngs):
        self.out = nnx.Linear(3, 2, rngs=rngs)

    def __call__(self, inputs, rngs):
        return self.out(inputs)


class _CalledWithMore(nn.Module):
    @nn.compact
    def __call__(self, inputs, mask):
        return nn.Dense(2)(inputs * mask)


def test_a_module_that_is_called_on_more_than_inputs_is_refused():
    for model, message in (
        (_Called, r"_Called.__call__ needs rngs.*pass with_rng=True"),
        (_Called(nnx.Rngs(0)), "needs rngs"),
        (_CalledWithMore(), "needs mask.*give it a default"),
    ):
        with pytest.raises(ValueError, match=message):
            models.functional(model, INPUTS[0])
