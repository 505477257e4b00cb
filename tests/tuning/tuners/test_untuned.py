"""One public run: its cost, what it may depend on, and the rule that its default comes from."""

import dataclasses

import flat_call
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_tasks

from dpjax import accounting, models, training, tuning
from dpjax.tuning.problem.public_defaults import (
    AVERAGE,
    NET_FROM,
    OUTPUT_NOISE,
    OUTPUT_NOISE_OF_NETS,
    OUTPUT_NOISE_WITHOUT_AVERAGE,
    RECORDS_A_PARAMETER,
    defaults_of,
)
from dpjax.tuning.problem.run_settings import RunShape

SPACE = tuning.Space(learning_rate=0.3, momentum=0.5, clip_norm=1.0)
RUN = dict(delta=1e-3, lot_size=20, steps=8)


def test_the_cost_is_that_of_one_run():
    task = small_tasks.linear()
    result = flat_call.tune(tuning.Untuned, task, SPACE, epsilon=1.5, seed=3, **RUN)
    assert 1.49 < result.guarantee.epsilon(1e-3) <= 1.5
    (stated,) = result.release.statement["training"]
    shape = RunShape(20, 8, "poisson", 80, task.train.size_bound)
    assert shape.lots.capacity == stated["capacity"]
    alone = shape.price(stated["noise_multiplier"])
    assert result.guarantee.provenance == alone.provenance
    assert result.guarantee.epsilon(1e-3) == alone.epsilon(1e-3)
    assert result.release.statement["epsilon"] == alone.stated_epsilon(1e-3)
    assert result.curator.number_of_candidates == 1
    assert result.release.hyperparameters == dict(learning_rate=0.3, momentum=0.5, clip_norm=1.0)
    assert result.release.statement["selection"] == {
        "rule": "none: one private run with hyperparameters that were public beforehand"
    }


def test_the_release_depends_on_no_validation_record(tmp_path):
    parts = small_tasks.parts()
    wrong = tuning.classification(
        nn.Dense(2),
        parts.train,
        parts.validation.subset(
            np.arange(parts.validation.number_of_records) < 3, public_size=9, size_bound=9
        ),
    )
    for name, task in (("one", small_tasks.linear(parts)), ("other", wrong)):
        flat_call.tune(tuning.Untuned, task, SPACE, epsilon=1.5, seed=3, **RUN).release.save(
            tmp_path / name
        )
    one, other = (
        {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()}
        for name in ("one", "other")
    )
    assert one == other and len(one) == 3


def test_it_is_the_run_that_random_repetitions_would_make_of_it():
    task = small_tasks.linear()
    own = flat_call.tune(tuning.Untuned, task, SPACE, noise_multiplier=1.0, seed=3, **RUN)
    best_of_one = flat_call.tune(
        tuning.RandomRepetitions,
        task,
        SPACE,
        repetitions=accounting.Fixed(1),
        noise_multiplier=1.0,
        validation_is_public=True,
        seed=3,
        **RUN,
    )
    jax.tree.map(np.testing.assert_array_equal, own.release.params, best_of_one.release.params)
    assert own.guarantee.epsilon(1e-3) <= best_of_one.guarantee.epsilon(1e-3)


def test_a_run_that_is_not_finite_releases_what_depends_on_no_record():
    def infinite(hyperparameters):
        return training.sgd()({"learning_rate": jnp.inf * hyperparameters["learning_rate"]})

    space = tuning.Space(learning_rate=1.0, clip_norm=1.0)
    task, run = small_tasks.linear(), RUN | dict(noise_multiplier=1.0, seed=3)
    with pytest.warns(UserWarning, match="the run is not finite"):
        result = flat_call.tune(tuning.Untuned, task, space, optimizer=infinite, **run)
    assert set(result.release.hyperparameters.values()) == {None}
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.release.params))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epsilon": None}, "the default depends on epsilon: pass epsilon, or a space"),
        (
            {"optimizer": training.adam()},
            r"the default is for training.momentum\(\) with a constant rate, and",
        ),
        (
            {"space": tuning.Space(learning_rate=-0.1, momentum=0.9)},
            "learning_rate must not be negative",
        ),
        # Finite in float64, infinite in float32: no run would be finite.
        (
            {"space": tuning.Space(learning_rate=1e39, clip_norm=1.0, momentum=0.9)},
            r"learning_rate=1e\+39: pass at most 3.4e\+38",
        ),
        (
            {"space": tuning.Space(learning_rate=0.1, clip_norm=1e39, momentum=0.9)},
            r"clip_norm=1e\+39: pass at most 3.4e\+38",
        ),
        (
            {
                "space": tuning.Space(learning_rate=0.1, clip_norm=1.0, momentum=0.9),
                "epsilon": None,
                "noise_multiplier": 1e39,
            },
            r"noise_multiplier=1e\+39: pass at most 3.4e\+38",
        ),
        ({"epochs": 3}, "the default is for steps, not epochs: pass steps, or a space"),
        ({"bands": 4}, "rate is for independent noise: pass a space, or no bands"),
        (
            {"stages": training.Stages((0.5, 0.5))},
            "rate is for steps that are all alike: pass a space, or no stages",
        ),
        (
            {"space": tuning.Space(learning_rate=tuning.Uniform(0.1, 1.0), momentum=0.9)},
            r"learning_rate is drawn from uniform\(0.1,1.0\): pass a number for it",
        ),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        flat_call.tune(tuning.Untuned, small_tasks.linear(), **{"epsilon": 2.0} | arguments)


# The rule -----------------------------------------------------------------------------------------


def _noise_of_an_output(default, records, inputs, epsilon, delta=1e-5):
    """Standard deviation of the noise in an output whose inputs have size 1, by its definition."""
    shape = RunShape(default.lot_size, default.steps, "poisson", records, records)
    noise = accounting.calibrate(shape.price, epsilon=epsilon, delta=delta)
    of_a_step = default.learning_rate * noise * default.clip_norm / default.lot_size
    return of_a_step / (1 - default.momentum) * np.sqrt(default.steps * inputs)


@pytest.mark.parametrize(
    ("records", "inputs", "epsilon"), [(60_000, 785, 2.0), (1_000, 11, 0.5), (25_000, 105, 8.0)]
)
def test_the_rate_leaves_the_noise_that_the_rule_states(records, inputs, epsilon):
    default = tuning.public_defaults(records, inputs, epsilon)
    found = _noise_of_an_output(default, records, inputs, epsilon)
    few = records < RECORDS_A_PARAMETER * inputs
    linear = OUTPUT_NOISE_WITHOUT_AVERAGE if few else OUTPUT_NOISE
    assert found == pytest.approx(linear, rel=1e-6)
    assert default.average == (None if few else training.TailAverage(0.5))
    net = tuning.public_defaults(records, inputs, epsilon, outputs=None)
    found = _noise_of_an_output(net, records, inputs, epsilon)
    assert found == pytest.approx(OUTPUT_NOISE_OF_NETS, rel=1e-6)
    assert net.average == training.TailAverage(0.5)
    classes = tuning.public_defaults(records, inputs, epsilon, outputs=records)
    assert classes.average is None and classes.learning_rate <= default.learning_rate
    other = tuning.public_defaults(records, inputs, epsilon, lot_size=50, steps=30)
    assert (other.lot_size, other.steps) == (50, 30)
    found = _noise_of_an_output(other, records, inputs, epsilon)
    assert found == pytest.approx(linear, rel=1e-6)


def test_momentum_said_aloud_has_the_usual_default():
    task = small_tasks.linear()
    asked = dict(epsilon=2.0, delta=1e-3, lot_size=20, steps=8, seed=1)
    said, usual = (
        flat_call.tune(tuning.Untuned, task, optimizer=optimizer, **asked).release
        for optimizer in (training.momentum(), None)
    )
    assert said.hyperparameters == usual.hyperparameters
    with pytest.raises(ValueError, match="with a constant rate"):
        cosine = training.scheduled(training.momentum, "cosine")
        flat_call.tune(tuning.Untuned, task, optimizer=cosine, **asked)


def test_more_privacy_and_more_inputs_lower_the_rate_and_more_records_raise_it():
    rate = tuning.public_defaults(10_000, 100, 2.0).learning_rate
    assert tuning.public_defaults(10_000, 100, 1.0).learning_rate < rate
    assert tuning.public_defaults(10_000, 200, 2.0).learning_rate == pytest.approx(rate / 2**0.5)
    assert tuning.public_defaults(40_000, 100, 2.0).learning_rate > rate


def test_a_task_is_known_by_its_public_size_and_by_its_widest_layer():
    class Two(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(2)(nn.relu(nn.Dense(50)(x)))

    parts = small_tasks.parts(size_bound=200)
    task = tuning.classification(Two(), parts.train, parts.validation)
    assert task.train.number != 80  # Which is what may not be known of them.
    net = tuning.public_defaults(80, 51, 2.0, 1e-3, outputs=None)
    assert defaults_of(task, 2.0, 1e-3) == net
    frozen = tuning.classification(
        Two(), parts.train, parts.validation, trainable=lambda path, leaf: "Dense_1" in path
    )
    assert defaults_of(frozen, 2.0, 1e-3) == tuning.public_defaults(80, 4, 2.0, 1e-3)


class _Bag(nn.Module):
    """Embeddings of tokens, averaged; with `tied` the table makes the scores, too."""

    tied: bool = False

    @nn.compact
    def __call__(self, tokens):
        table = nn.Embed(500, 8)
        hidden = nn.Dense(8)(table(tokens).mean(-2))
        return table.attend(hidden)[..., :2] if self.tied else nn.Dense(2)(hidden)


class _Recurrent(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        return nn.Dense(2)(nn.RNN(nn.LSTMCell(6))(nn.Embed(500, 4)(tokens))[:, -1])


class _Convolution(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        return nn.Dense(2)(nn.relu(nn.Conv(7, (3,))(nn.Embed(500, 4)(tokens))).mean(-2))


@pytest.mark.parametrize(
    ("model", "inputs"),
    [(_Bag(), 8), (_Bag(tied=True), 8), (_Recurrent(), 6), (_Convolution(), 3 * 4)],
)
def test_a_table_that_is_looked_up_is_no_layer_with_as_many_inputs_as_rows(model, inputs):
    tokens = np.random.default_rng(0).integers(500, size=(2, 40, 5)).astype(np.int32)
    labels = (tokens[..., 0] % 2).astype(np.int32)
    task = tuning.classification(
        model, *(tuning.Records(part, 40, 40) for part in zip(tokens, labels, strict=True))
    )
    wanted = tuning.public_defaults(40, 1 + inputs, 2.0, 1e-3, outputs=None)
    assert defaults_of(task, 2.0, 1e-3) == wanted


def test_the_default_clips_automatically_and_averages_unless_something_else_is_said():
    parts = small_tasks.parts()
    task = tuning.classification(models.MLP((4,), 2), parts.train, parts.validation)
    asked = dict(epsilon=2.0, delta=1e-3, lot_size=20, steps=8, seed=1)
    stated = flat_call.tune(tuning.Untuned, task, **asked).release.statement
    assert stated["run_options"]["clipping"] == training.AutomaticClipping().describe()
    assert stated["optimizer"]["released"] == AVERAGE.words
    own = dataclasses.replace(task, average=training.ExponentialAverage(0.5))
    said = flat_call.tune(tuning.Untuned, own, clipping="global", **asked).release.statement
    assert (
        "clipping" not in said["run_options"] and said["optimizer"]["released"] == own.average.words
    )
    numbers = dict(learning_rate=0.3, momentum=0.5, clip_norm=1.0)
    spaced = flat_call.tune(tuning.Untuned, task, tuning.Space(**numbers), **asked).release
    assert "clipping" not in spaced.statement["run_options"]
    assert "released" not in spaced.statement["optimizer"]


def test_a_table_has_a_linear_model_where_records_are_few():
    assert tuning.public_model(NET_FROM - 1, 3) == models.LogisticRegression(3)
    assert tuning.public_model(NET_FROM, 3) == models.MLP((128, 64), 3)


def test_the_prior_lies_around_the_default():
    default = tuning.public_defaults(10_000, 100, 2.0)
    prior = default.space(factor=3.0)
    assert prior.parameters["learning_rate"] == tuning.LogNormal(default.learning_rate, 3.0)
    assert dict(default.space().describe()) != dict(prior.describe())
    assert (default.run.lot_size, default.run.steps) == (default.lot_size, default.steps)
