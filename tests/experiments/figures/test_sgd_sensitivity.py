"""The sensitivity of projected SGD: the authors' numbers, and by running it on neighbours."""

import json
import pathlib

import numpy as np
import pytest

from dpjax.accounting import output_perturbation
from experiments.figures.dpareto.sgd_sensitivity import (
    projected_sgd_sensitivity,
    regularised_logistic_sensitivity,
)

ORACLES = pathlib.Path(__file__).parents[2] / "accounting" / "oracles"
LOGREG = [
    row
    for row in json.loads((ORACLES / "dpareto_logreg.json").read_text())
    if row["eps"] is not None
]


@pytest.mark.parametrize("row", LOGREG)
def test_authors_sensitivities_reproduce(row):
    # Their sensitivity is 4 / (lambda n): twice the one needed for logistic loss.
    sensitivity = projected_sgd_sensitivity(row["lam"], row["m"], lipschitz=2.0)
    assert sensitivity == pytest.approx(row["GS"], rel=1e-12)
    ours = regularised_logistic_sensitivity(row["lam"], row["m"])
    assert ours == pytest.approx(row["GS"] / 2)
    assert output_perturbation(ours, row["sigma"]).epsilon(row["delta"]) < row["eps"]


def _distance_after_sgd(records, batch, strong_convexity, smoothness, epochs, position):
    """Runs projected SGD of a linear loss on two data sets that differ in one record; |w - w'|."""
    ours, theirs = np.ones(records), np.ones(records)
    theirs[position] = -1.0
    radius = 1.0 / strong_convexity
    ends = []
    for data in (ours, theirs):
        weight, step = 0.0, 0
        for _ in range(epochs):
            for start in range(0, records, batch):
                step += 1
                rate = min(1.0 / smoothness, 1.0 / (strong_convexity * step))
                gradient = np.mean(data[start : start + batch]) + strong_convexity * weight
                weight = np.clip(weight - rate * gradient, -radius, radius)
        ends.append(weight)
    return abs(ends[0] - ends[1])


@pytest.mark.parametrize("row", json.loads((ORACLES / "dpareto_psgd_sensitivity.json").read_text()))
def test_no_extra_division_by_the_batch_size(row):
    """TF Privacy's `bolt_on` claims 2 L / (lambda n b); a linear loss exceeds it for b > 2."""
    records, strong_convexity = 50, 0.1
    observed = _distance_after_sgd(records, row["b"], strong_convexity, row["beta"], 4, records - 1)
    assert observed == pytest.approx(row["observed"], abs=1e-12)
    bound = projected_sgd_sensitivity(strong_convexity, records, lipschitz=2.0, batch_size=row["b"])
    tight = regularised_logistic_sensitivity(strong_convexity, records, batch_size=row["b"])
    assert bound == pytest.approx(row["bound_2L_over_gm"])
    assert tight == pytest.approx(row["tight_2c_over_gm"])
    assert observed <= tight * (1 + 1e-12)
    claimed = bound / row["b"]
    assert claimed == pytest.approx(row["claimed_with_b"])
    if row["b"] > 2:
        assert observed > claimed


def test_sensitivity_holds_wherever_the_record_is():
    for batch in (1, 5):
        for smoothness in (0.1, 0.5, 1.0):
            for position in range(0, 20, 3):
                observed = _distance_after_sgd(20, batch, 0.1, smoothness, 3, position)
                assert observed <= regularised_logistic_sensitivity(0.1, 20) * (1 + 1e-12)


def test_logistic_regression_really_trained_stays_below():
    generator = np.random.default_rng(0)
    records, strong_convexity, epochs = 40, 0.05, 5
    worst = 0.0
    for _ in range(20):
        inputs = generator.normal(size=(records, 3))
        inputs /= np.linalg.norm(inputs, axis=1, keepdims=True)
        labels = generator.choice([-1.0, 1.0], records)
        other = inputs.copy()
        index = generator.integers(records)
        other[index] = -inputs[index] if generator.random() < 0.5 else 0.0
        ends = []
        for data in (inputs, other):
            weights, step = np.zeros(3), 0
            for _ in range(epochs):
                for row in range(records):
                    step += 1
                    rate = min(1 / (0.25 + strong_convexity), 1 / (strong_convexity * step))
                    margin = labels[row] * (data[row] @ weights)
                    gradient = -labels[row] * data[row] / (1 + np.exp(margin))
                    weights = weights - rate * (gradient + strong_convexity * weights)
                    weights /= max(1.0, strong_convexity * np.linalg.norm(weights))
            ends.append(weights)
        worst = max(worst, np.linalg.norm(ends[0] - ends[1]))
    limit = regularised_logistic_sensitivity(strong_convexity, records)
    assert 0.05 * limit < worst <= limit


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: projected_sgd_sensitivity(0.0, 10, lipschitz=1.0), "strong_convexity"),
        (lambda: projected_sgd_sensitivity(0.1, 10, lipschitz=0.0), "lipschitz"),
        (lambda: projected_sgd_sensitivity(0.1, 10.5, lipschitz=1.0), "dataset_size"),
        (lambda: regularised_logistic_sensitivity(0.1, 10, batch_size=3), "does not divide"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()
