"""Public weights of classes: scores bounded by 1, losses, decisions that a release names."""

import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting, data, tuning
from dpjax.tuning.problem import class_weights
from dpjax.tuning.problem import task as tasks
from dpjax.tuning.problem.class_weights import SCORES, Weighing


def rare(records=400, share=0.1, seed=0):
    """A class that is rare and overlaps with the other: the best plain decision is nearly never."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(records) < share).astype(np.int32)
    inputs = rng.normal(size=(records, 2)).astype(np.float32)
    inputs[:, 0] += 1.2 * labels
    return data.from_arrays(inputs, labels, public_size=records, classes=2)


def task(**settings):
    parts = rare().parts(0.3, key=b"public")
    return tuning.classification(nn.Dense(2), parts.train, parts.validation, **settings)


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("place", class_weights.PLACES)
@pytest.mark.parametrize("priors", [None, (0.9, 0.1)])
def test_a_record_scores_between_0_and_its_weight(kind, place, priors):
    weighing = Weighing.of(kind, None, priors, place)
    most = (1 / 9, 1.0) if priors else (1.0, 1.0)
    for scores in ([0.0, 0.0], [40.0, -40.0], [-40.0, 40.0], [1e30, 0.0]):
        for label in (0, 1):
            value = float(weighing.score(jnp.asarray(scores), jnp.asarray(label)))
            assert 0.0 <= value <= most[label] + 1e-6, (scores, label, value)
    sure = float(weighing.score(jnp.asarray([-40.0, 40.0]), jnp.asarray(1)))
    assert sure == pytest.approx(1.0)


def test_costs_and_priors_are_one_thing_and_the_rare_class_decides_at_its_prior():
    priors, costs = (
        Weighing.of("accuracy", *of, "decision")
        for of in (
            (None, (0.9, 0.1)),
            ((1.0, 9.0), None),
        )
    )
    assert priors.weights == pytest.approx(costs.weights)
    # A probability of .1 is where the expected costs are equal: above it class 1 is predicted.
    for chance, wanted in ((0.08, 0), (0.12, 1)):
        scores = jnp.log(jnp.asarray([1 - chance, chance]))
        assert int(jnp.argmax(priors.decided(scores))) == wanted
    margin = jnp.asarray([jnp.log(0.12 / 0.88)])
    assert int(jnp.argmax(priors.decided(margin))) == 1
    in_the_loss = Weighing.of("accuracy", None, (0.9, 0.1), "loss")
    assert in_the_loss.decision_weights == ()
    loss = in_the_loss.loss(lambda params, example: jnp.float32(2.0), with_rng=False)
    keys = jax.random.split(jax.random.key(0), 3000)
    for label, weight in ((0, 1 / 9), (1, 1.0)):
        losses = jax.vmap(lambda key, one=label: loss(None, (None, jnp.int32(one)), key))(keys)
        assert set(np.unique(losses).tolist()) <= {0.0, 2.0}
        assert float(jnp.mean(losses)) == pytest.approx(2.0 * weight, abs=0.05)


def test_what_is_no_public_weight_is_refused():
    for settings, why in (
        (dict(score="auc"), "no bound on one record's influence"),
        (dict(weights_in="scores"), "weights_in must be loss or decision, not 'scores'"),
        (dict(class_weights=(1, 2), class_priors=(0.5, 0.5)), "both given"),
        (dict(class_weights=(1, 0)), r"class_weights=\(1, 0\): pass positive numbers"),
        (dict(class_weights=(1.0,)), "pass positive numbers, one a class"),
        (dict(class_priors=(0.5, 0.6)), "must add up to 1"),
        (dict(class_priors=(0.5, 0.25, 0.25)), "3 numbers and the model 2 classes"),
        (dict(class_weights="heavy"), "class_weights"),
    ):
        with pytest.raises(ValueError, match=why):
            task(**settings)


def test_without_weights_the_task_is_as_it_was():
    plain = task()
    assert plain.units == 1 and "scored by" not in plain.description
    assert task(class_priors=(0.9, 0.1)).units == tasks.SCORE_UNITS


def run(**settings):
    return tuning.tune(
        task(**settings),
        tuning.Space(learning_rate=tuning.LogUniform(0.5, 1.0), momentum=0.9, clip_norm=1.0),
        tuning.RandomRepetitions(accounting.AtMost(accounting.Geometric(10), 64)),
        run=tuning.RunOptions(lot_size=64, steps=30, noise_multiplier=0.8),
        seed=4,
    )


@pytest.mark.parametrize("place", class_weights.PLACES)
def test_the_weights_turn_a_model_that_says_no_into_one_that_finds_the_rare(place, tmp_path):
    result = run(class_priors=(0.9, 0.1), weights_in=place)
    task_ = task(class_priors=(0.9, 0.1), weights_in=place)
    held = rare(seed=9).train
    found = task_.classifier.predict(result.release.params, held.inputs)
    recall = [np.mean(found[held.labels == one] == one) for one in (0, 1)]
    assert min(recall) > 0.4, recall
    plain = task()
    never = plain.classifier.predict(run().release.params, held.inputs)
    assert np.mean(never[held.labels == 1]) < recall[1] - 0.2
    # Verified and stated: what was weighed, and what a service needs for the decision.
    result.release.save(tmp_path / "release", certificate=False)
    tuning.verify_release(tmp_path / "release")
    claim = json.loads((tmp_path / "release" / "guarantee.json").read_text())
    assert "public class weights (0.111111, 1)" in claim["model"]
    context = claim.get("context", {})
    assert ("decision_weights" in context) == (place == "decision")
    if place == "decision":
        assert context["decision_weights"] == pytest.approx([1 / 9, 1.0])


def test_one_record_moves_the_sum_of_scores_by_one_at_most():
    weighed = task(class_priors=(0.9, 0.1), score="log_likelihood")
    params = jax.tree.map(jnp.zeros_like, weighed.initial(jax.random.key(0)))
    inputs, labels = weighed.validation.arrays
    whole = int(tasks.total_units(weighed, params, (inputs, labels)))
    for left_out in range(5):
        rest = int(
            tasks.total_units(
                weighed, params, (np.delete(inputs, left_out, 0), np.delete(labels, left_out))
            )
        )
        assert 0 <= whole - rest <= weighed.units
