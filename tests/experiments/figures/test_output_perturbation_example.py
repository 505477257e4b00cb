"""The output perturbation example: SGD by a loop, sensitivity, exact means, the paper's data."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest

from dpjax import data
from experiments.figures.dpareto import output_perturbation_example
from experiments.figures.dpareto.output_perturbation_example import OutputPerturbationExample
from experiments.figures.dpareto.sgd_sensitivity import regularised_logistic_sensitivity

ORACLES = pathlib.Path(__file__).parents[2] / "accounting" / "oracles"
PREPARED = pathlib.Path(__file__).parents[4] / "shared" / "data"
WEIGHTS = np.array([1e-3, 0.05, 1.0])


def example(records=40, features=5, seed=0, **options):
    """Random records; some norms are above the bound of 2."""
    source = np.random.default_rng(seed)
    direction = source.normal(size=features)
    inputs = source.normal(size=(2 * records, features))
    positive = inputs @ direction + 0.5 * source.normal(size=2 * records) > 0
    return OutputPerturbationExample.from_records(
        inputs[:records], positive[:records], inputs[records:], positive[records:],
        norm_bound=2.0, **options,
    )  # fmt: skip


def by_a_loop(given, regularisation, orders):
    """Projected SGD as the paper states it, float64; returns w and the largest norm on the way."""
    weights, step, largest = np.zeros(given.train_inputs.shape[1]), 0, 0.0
    for order in orders:
        for record in order:
            step += 1
            signed = given.train_labels[record] * given.train_inputs[record].astype(np.float64)
            gradient = -signed / (1 + np.exp(signed @ weights)) + regularisation * weights
            rate = min(1 / (1 + regularisation), 1 / (regularisation * step))
            weights = weights - rate * gradient
            norm = np.linalg.norm(weights)
            largest = max(largest, norm)
            weights *= min(1.0, 1.0 / (regularisation * max(norm, 1e-300)))
    return weights, largest


@pytest.mark.parametrize("epochs", [1, 3])
def test_training_is_the_stated_algorithm(epochs):
    given = example(epochs=epochs)
    trained = given.train(WEIGHTS, 2, source=np.random.default_rng(5))
    assert trained.shape == (3, 2, 5) and trained.dtype == np.float32
    source = np.random.default_rng(5)
    orders = [[source.permutation(40) for _ in range(2)] for _ in range(epochs)]
    for place, weight in enumerate(WEIGHTS):
        for run in range(2):
            expected, largest = by_a_loop(given, weight, [epoch[run] for epoch in orders])
            assert trained[place, run] == pytest.approx(expected, rel=2e-5, abs=2e-5 / weight**0.5)
            # So the projection that is left out would never have done anything.
            assert largest <= 1 / weight
    # Orders differ between runs.
    assert np.abs(trained[0, 0] - trained[0, 1]).max() > 1e-3


@pytest.mark.parametrize("weight", [0.01, 0.3])
def test_replacing_one_record_moves_the_parameters_by_no_more_than_the_sensitivity(weight):
    given = example(records=30, epochs=2)
    base = given.train([weight], 3, source=np.random.default_rng(1))
    bound = regularised_logistic_sensitivity(weight, 30)
    moved = []
    for record in range(0, 30, 3):
        inputs, labels = given.train_inputs.copy(), given.train_labels.copy()
        inputs[record] = -labels[record] * np.eye(5)[record % 5]
        labels[record] = -labels[record]
        other = dataclasses.replace(given, train_inputs=inputs, train_labels=labels)
        trained = other.train([weight], 3, source=np.random.default_rng(1))
        moved.append(np.linalg.norm(trained - base, axis=-1).max())
    assert max(moved) <= bound * (1 + 1e-4)
    assert max(moved) > 0.1 * bound  # Not vacuous.


def test_epsilons_are_the_authors_with_their_constant():
    for row in json.loads((ORACLES / "dpareto_logreg.json").read_text()):
        if row["eps"] is None:
            continue
        ours = OutputPerturbationExample(*[np.zeros((row["m"], 1), np.float32)] * 4)
        theirs = dataclasses.replace(ours, lipschitz=2.0)
        settings = {"regularisation": [row["lam"]], "noise_std": [row["sigma"]]}
        assert theirs.epsilons(settings) == pytest.approx(row["eps"], abs=1e-6)
        assert ours.epsilons(settings)[0] < row["eps"]
        doubled = {"regularisation": [row["lam"]], "noise_std": [2 * row["sigma"]]}
        assert ours.epsilons(settings) == pytest.approx(theirs.epsilons(doubled))


def test_mean_over_the_noise_is_exact_and_other_scales_are_rejected():
    given = example(records=60)
    trained = given.train([0.05], 2, source=np.random.default_rng(2))
    many = np.repeat(trained, 4000, axis=0)  # (4000, 2, d): every row the same parameters.
    for deviation in (0.3, 3.0):
        noise = np.full(len(many), deviation)
        accuracies = given.noisy_accuracies(many, noise, source=np.random.default_rng(3))
        error = accuracies.std(axis=0) / len(many) ** 0.5
        exact = given.expected_accuracies(trained, [deviation])[0]
        # 5 standard errors: fails once in 800,000.
        assert np.all(np.abs(accuracies.mean(axis=0) - exact) < 5 * error)
        for factor in (2 / 3, 3 / 2):
            wrong = given.expected_accuracies(trained, [factor * deviation])[0]
            assert np.all(np.abs(accuracies.mean(axis=0) - wrong) > 5 * error)


def test_no_noise_is_the_plain_accuracy_and_much_noise_a_guess():
    given = example(records=60)
    trained = given.train([0.01], 3, source=np.random.default_rng(2))
    outputs = trained[0] @ given.test_inputs.T
    plain = np.mean((outputs > 0) == (given.test_labels > 0), axis=1)
    for found in (
        given.expected_accuracies(trained, [1e-9])[0],
        given.noisy_accuracies(trained, [1e-9], source=np.random.default_rng(0))[0],
    ):
        assert found == pytest.approx(plain)
    assert given.expected_accuracies(trained, [1e7])[0] == pytest.approx(0.5, abs=1e-4)


def test_utilities_share_training_between_noises():
    given = example(epochs=1)
    settings = {"regularisation": [0.1, 0.01, 0.1], "noise_std": [1e-9, 1e-9, 1e-9]}
    utilities = given.utilities(settings, 4, source=np.random.default_rng(0))
    assert utilities.shape == (3, 4) and utilities.dtype == np.float64
    assert np.array_equal(utilities[0], utilities[2])
    trained = given.train([0.01, 0.1], 4, source=np.random.default_rng(0))
    expected = given.expected_accuracies(trained[[1, 0, 1]], [1e-9] * 3)
    assert utilities == pytest.approx(expected)


def test_the_oracle_of_a_search_is_a_function_of_settings_and_seeds():
    oracle = example(epochs=1).utility_oracle(6)
    settings = {
        "regularisation": np.array([0.1, 0.01, 0.1]),
        "noise_std": np.array([3.0, 1.0, 3.0]),
    }
    first = oracle(settings, np.array([3, 4, 5]))
    assert first.shape == (3, 6)
    last = {name: values[2:] for name, values in settings.items()}
    assert np.array_equal(oracle(last, np.array([5])), first[2:])
    assert not np.array_equal(first[0], first[2])


def test_records_beyond_the_bound_are_shortened():
    inputs = np.array([[3.0, 4.0], [0.0, 1.0], [0.0, 0.0]])
    given = OutputPerturbationExample.from_records(
        inputs, [True, False, True], inputs, [True, False, False], norm_bound=2.0
    )
    norms = np.linalg.norm(given.train_inputs.astype(np.float64), axis=1)
    assert norms == pytest.approx([1.0, 0.5, 0.0], abs=2e-6) and norms.max() < 1
    assert given.train_labels.tolist() == [1, -1, 1]
    # Zeros get output 0, which is class -1: right for the third test record, with any noise.
    assert given.expected_accuracies(np.zeros((1, 1, 2)), [1.0])[0, 0] == pytest.approx(2 / 3)


def test_progress_is_reported():
    seen = []
    example(epochs=3).train(
        [0.1], 1, source=np.random.default_rng(0), progress=lambda *done: seen.append(done)
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_bad_input_is_refused():
    given = example()
    source = np.random.default_rng(0)
    for settings, match in (
        ({"regularisation": [1.0]}, "lack 'noise_std'"),
        ({"regularisation": [0.0], "noise_std": [1.0]}, "regularisation must be"),
        ({"regularisation": [1.0], "noise_std": [np.inf]}, "noise_std must be"),
        ({"regularisation": [1.0, 1.0], "noise_std": [1.0]}, "one length"),
    ):
        with pytest.raises(ValueError, match=match):
            given.epsilons(settings)
        with pytest.raises(ValueError, match=match):
            given.utilities(settings, 1, source=source)
    with pytest.raises(ValueError, match="above 0"):
        given.train([0.0], 1, source=source)
    with pytest.raises(ValueError, match="repetitions 0"):
        given.train([1.0], 0, source=source)
    ones = np.ones((2, 2))
    for options, match in (
        ({"norm_bound": 0.0}, "norm_bound"),
        ({"norm_bound": 1.0, "lipschitz": 0.5}, "lipschitz below 1"),
    ):
        with pytest.raises(ValueError, match=match):
            OutputPerturbationExample.from_records(ones, [1, 0], ones, [1, 0], **options)
    with pytest.raises(ValueError, match="labels of shape"):
        OutputPerturbationExample.from_records(ones, [1], ones, [1, 0], norm_bound=1.0)
    with pytest.raises(ValueError, match="finite"):
        OutputPerturbationExample.from_records(ones * np.nan, [1, 0], ones, [1, 0], norm_bound=1.0)


def test_grid_is_the_papers_domain():
    settings = output_perturbation_example.grid(5)
    assert len(settings["regularisation"]) == len(settings["noise_std"]) == 25
    assert set(np.round(settings["regularisation"], 9)) == {1e-4, 1e-3, 1e-2, 1e-1, 1.0}
    assert settings["noise_std"].min() == pytest.approx(0.1)
    assert settings["noise_std"].max() == pytest.approx(10.0)


@pytest.mark.skipif(not PREPARED.is_dir(), reason="needs prepared Adult data beside the project")
def test_on_the_papers_data(tmp_path):
    adult = data.load("a1a", data_dir=PREPARED, cache_dir=tmp_path, download=False)
    given = OutputPerturbationExample.from_records(
        adult.train.inputs, adult.train.labels == 1, adult.test.inputs, adult.test.labels == 1,
        norm_bound=14**0.5, epochs=2,
    )  # fmt: skip
    trained = given.train([1e-4, 1.0], 2, source=np.random.default_rng(0))
    found = given.expected_accuracies(trained, [1e-6, 1e-6]).mean(axis=1)
    # 0.839 after ten epochs at the weakest regularisation; the strongest predicts the majority.
    assert found[0] > 0.83
    assert found[1] == pytest.approx(np.mean(adult.test.labels == 0), abs=1e-9)
