"""A model in one file: defined here, with nothing of the library edited; priced, run, released."""

import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import serialization

from dpjax import models, training, tuning


class TwoPaths(nn.Module):
    """A linear path beside a hidden layer, whose outputs add up.

    Attributes:
      classes: number of classes.
      width: of the hidden layer.
    """

    classes: int
    width: int = 4

    @nn.compact
    def __call__(self, inputs):
        hidden = nn.tanh(nn.LayerNorm()(nn.Dense(self.width)(inputs)))
        return nn.Dense(self.classes)(hidden) + nn.Dense(self.classes, use_bias=False)(inputs)


class BatchStatistics(TwoPaths):
    """The same after batch normalisation, which mixes the records of a lot."""

    @nn.compact
    def __call__(self, inputs, train: bool = False):
        return nn.Dense(self.classes)(nn.BatchNorm(use_running_average=not train)(inputs))


def test_its_gradients_are_clipped_without_a_copy_of_a_kernel_for_each_example(parts):
    model = models.functional(TwoPaths(2), parts.train.inputs[0])
    params = model.init(jax.random.key(0))
    grad_fn = training.clipped_grad(model.example_loss(models.cross_entropy))
    batch = (jnp.asarray(parts.train.inputs[:4]), jnp.asarray(parts.train.labels[:4]))
    explanation = grad_fn.explain(params, batch)
    rules = {path: one.rule for path, one in explanation.items() if path.endswith("kernel")}
    assert len(rules) == 3 and set(rules.values()) == {"dense"}
    # Neither its layers nor their sum can raise what one record moves.
    assert grad_fn.sensitivity("add_or_remove_one", 0.5) == 0.5


def test_it_is_priced_run_released_and_verified(parts, tuned, statement_of, released_and_verified):
    task = tuning.classification(TwoPaths(2), parts.train, parts.validation)
    result = tuned(task)
    verified = released_and_verified(result)
    assert verified.epsilon == result.guarantee.stated_epsilon(1e-6)
    # Its price is its runs', not its layers'.
    plain = tuned(tuning.classification(nn.Dense(2), parts.train, parts.validation))
    assert plain.guarantee.stated_epsilon(1e-6) == verified.epsilon
    # Its name is public, and taken at its word: whoever verifies need not have the class.
    assert "TwoPaths" in json.dumps(result.release.statement["model"])


def test_what_is_released_is_the_model_that_was_chosen(parts, tuned, statement_of):
    task = tuning.classification(TwoPaths(2), parts.train, parts.validation)
    result = tuned(task)
    stored = statement_of(result).with_name("model.msgpack").read_bytes()
    params = serialization.msgpack_restore(stored)
    model = models.functional(TwoPaths(2), parts.train.inputs[0])
    scores = model.apply(params, parts.validation.inputs)
    accuracy = np.mean(np.argmax(scores, axis=-1) == parts.validation.labels)
    assert accuracy == pytest.approx(result.curator.accuracies[result.curator.winner])


def test_one_whose_records_meet_in_a_batch_is_refused_before_anything_is_trained(parts):
    with pytest.raises(ValueError, match="batch_stats.*use GroupNorm or LayerNorm"):
        tuning.classification(BatchStatistics(2), parts.train, parts.validation)
