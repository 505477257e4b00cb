"""Random repetitions end to end on small real trainings, and every precondition."""

import json

import flat_call
import flax.linen as nn
import jax
import numpy as np
import optax
import pytest
import small_tasks
from flax import nnx

from dpjax import accounting, models, training, tuning
from dpjax.tuning import Choice, LogUniform, Records, Space


def _parts(**options):
    """200 records in halves."""
    both = small_tasks.parts(200, 4, 0.5, **options)
    return both.train, both.validation


def _task(**more):
    return small_tasks.linear(small_tasks.parts(200, 4, 0.5), **more)


SPACE = Space(learning_rate=LogUniform(0.1, 1.0), clip_norm=1.0)
DELTA = 1e-6
QUICK = dict(delta=DELTA, lot_size=20, steps=8, optimizer=training.sgd(), seed=5)
# Priced in .1 s at this delta and with this cap: no profile of all runs together, no exact bound.
LAW = accounting.AtMost(accounting.Geometric(mean=3), cap=65)


def _run(space=SPACE, task=None, tuner=tuning.RandomRepetitions, **more):
    arguments = dict(repetitions=LAW, noise_multiplier=2.0) | QUICK | more
    return flat_call.tune(tuner, task or _task(), space, **arguments)


def test_the_whole_procedure_meets_the_target_and_learns():
    result = _run(steps=30, epsilon=8.0, noise_multiplier=None)
    assert 0.9 * 8.0 < result.guarantee.epsilon(DELTA) <= 8.0
    assert result.run_guarantee.epsilon(DELTA) < result.guarantee.epsilon(DELTA)
    assert 1 <= result.curator.number_of_candidates <= LAW.cap
    assert result.curator.accuracies[result.curator.winner] > 0.7
    scores = result.curator.scores
    assert result.curator.winner == int(np.argmax(scores))
    learning_rate = result.release.hyperparameters["learning_rate"]
    drawn = result.curator.hyperparameters["learning_rate"]
    assert learning_rate == drawn[result.curator.winner]


def test_the_claim_is_the_selection_over_training_and_score_in_parallel():
    result = _run()
    statement = result.release.statement
    assert statement["epsilon"] == result.guarantee.stated_epsilon(DELTA)
    rebuilt = accounting.from_provenance(json.loads(json.dumps(statement["mechanism"])))
    assert rebuilt.stated_epsilon(DELTA) == statement["epsilon"]
    setting = statement["training"][0]
    train = accounting.dp_sgd(
        sampling_probability=0.2, noise_multiplier=setting["noise_multiplier"], steps=8
    )
    # Truncation and the score add next to nothing, but never subtract.
    bare = accounting.best_of(train, LAW).epsilon(DELTA)
    assert bare <= statement["epsilon"] <= 1.02 * bare


def test_validation_noise_costs_what_it_costs():
    free = _run()
    loud = _run(score_noise=0.5)
    public = _run(validation_is_public=True)
    assert loud.guarantee.epsilon(DELTA) > 1.5 * free.guarantee.epsilon(DELTA)
    assert public.guarantee.epsilon(DELTA) <= free.guarantee.epsilon(DELTA)
    assert free.guarantee.epsilon(DELTA) <= 1.02 * public.guarantee.epsilon(DELTA)
    # A score is a count over the public size, an accuracy one over the real number.
    validation = _task().validation
    exact = public.curator.scores * validation.public_size
    np.testing.assert_allclose(exact, public.curator.accuracies * validation.number)
    assert np.any(free.curator.scores != public.curator.scores)


def test_spaces_over_accounted_settings_cost_their_mixture():
    space = Space(
        learning_rate=0.3,
        clip_norm=1.0,
        lot_size=Choice([10, 20]),
        steps=Choice([4, 12], [0.25, 0.75]),
        noise_multiplier=Choice([1.5, 3.0]),
    )
    result = flat_call.tune(
        tuning.RandomRepetitions,
        _task(),
        space,
        repetitions=accounting.Fixed(6),
        delta=DELTA,
        optimizer=training.sgd(),
        seed=2,
        validation_is_public=True,
    )
    runs = [
        accounting.dp_sgd(sampling_probability=lot / 100, noise_multiplier=noise, steps=steps)
        for lot in (10, 20)
        for steps in (4, 12)
        for noise in (1.5, 3.0)
    ]
    weights = [weight / 4 for _ in (10, 20) for weight in (0.25, 0.75) for _ in (1.5, 3.0)]
    mixed = accounting.mixture(runs, weights=weights).epsilon(DELTA)
    assert mixed <= result.run_guarantee.epsilon(DELTA) <= 1.01 * mixed
    worst = max(run.epsilon(DELTA) for run in runs)
    assert result.run_guarantee.epsilon(DELTA) < worst
    assert result.curator.number_of_candidates == 6
    assert np.isfinite(result.curator.scores).all()


def test_one_compilation_a_sweep():
    traces = []

    def loss(scores, labels):
        traces.append(1)
        return models.cross_entropy(scores, labels)

    _run(task=_task(loss=loss), repetitions=accounting.Fixed(7), chunk_size=2)
    first = len(traces)
    traces.clear()
    _run(task=_task(loss=loss), repetitions=accounting.Fixed(2), chunk_size=2)
    assert first == len(traces)


def test_not_private_says_so_everywhere():
    result = _run(noise_multiplier=0.0, not_private=True)
    assert result.guarantee is None
    assert result.release.statement["private"] is False


class _Net(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(4, 8, rngs=rngs)
        self.second = nnx.Linear(8, 2, rngs=rngs)

    def __call__(self, inputs):
        return self.second(nnx.relu(self.first(inputs)))


def test_nnx_models_and_frozen_parameters():
    task = tuning.classification(
        lambda rngs: _Net(rngs), *_parts(), trainable=lambda path, leaf: "second" in path
    )
    result = _run(task=task, repetitions=accounting.Fixed(1))
    key = training.candidate_keys(1, seed=QUICK["seed"])[0]
    initial = task.initial(training.stream(key, "initial"))
    released = jax.tree_util.tree_leaves_with_path(result.release.params)
    for (path, leaf), before in zip(released, jax.tree.leaves(initial)):
        # Initial parameters drawn inside a compiled program round in their own way.
        moved = not np.allclose(leaf, np.asarray(before), rtol=1e-5, atol=1e-7)
        assert moved == ("second" in jax.tree_util.keystr(path)), path


def test_a_model_that_does_not_fit_its_labels_or_parameters_is_refused():
    """Before any budget is spent: a class without an output could never be predicted."""
    train, validation = _parts()
    train.labels[0] = 2
    with pytest.raises(ValueError, match="one output, .* pass a model with 2 outputs, or a loss"):
        tuning.classification(nn.Dense(1), train, validation)
    with pytest.raises(ValueError, match="labels of the train records are not all in 0..1"):
        tuning.classification(nn.Dense(2), train, validation)
    variables = {"params": _task().initial(jax.random.key(0))}
    # What `init` returns is taken too.
    kept = _task(initial=variables).initial(jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, kept, variables["params"])


def test_an_optax_transformation_in_place_of_a_function_of_hyperparameters():
    with pytest.raises(ValueError, match="optimizer.*function"):
        _run(optimizer=optax.sgd(0.1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(noise_multiplier=None), "neither"),
        (dict(epsilon=1.0), "both"),
        (dict(noise_multiplier=0.0), "not_private"),
        (dict(lot_size=101), "lot_size=101"),
        (dict(steps=2, epochs=3.0), "steps and epochs are both given"),
        (dict(epsilon=3.0, noise_multiplier=None, delta=1e-10), "attain"),
        (dict(epsilon=3.0, noise_multiplier=None, score_noise=1.0), "score_noise"),
        (dict(space=Space(learning_rate=0.1, clip_norm=Choice([-1.0, 1.0]))), "clip_norm"),
    ],
)
def test_bad_input_gets_one_clear_line(change, message):
    with pytest.raises(ValueError, match=message) as caught:
        _run(**change)
    assert "\n" not in str(caught.value)


def test_more_records_than_the_public_bound_are_refused():
    with pytest.raises(ValueError, match="size_bound"):
        Records((np.zeros(5),), public_size=3, size_bound=4)
    with pytest.raises(ValueError, match="one length"):
        Records((np.zeros(5), np.zeros(4)), public_size=5, size_bound=5)
