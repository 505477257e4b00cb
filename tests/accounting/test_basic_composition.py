"""What is declared with a delta composes to the sum, and it is said where no epsilon holds."""

import math

import pytest

from dpjax import accounting
from dpjax.bridges import study_price

PAIR = accounting.approximate(1.0, 1e-5)


@pytest.mark.parametrize(
    ("guarantee", "delta", "epsilon"),
    [
        (accounting.compose(accounting.pure(1.0), PAIR), 1e-5, 2.0),
        (accounting.compose(PAIR, accounting.approximate(2.0, 1e-6)), 1.1e-5, 3.0),
        (accounting.repeat(accounting.approximate(3.0, 1e-5), 37), 37e-5, 111.0),
        (accounting.compose(accounting.repeat(PAIR, 3), accounting.pure(0.5)), 3e-5, 3.5),
        (accounting.repeat(PAIR, 1), 1e-5, 1.0),
    ],
)
def test_basic_composition_holds_at_the_sum_of_the_deltas(guarantee, delta, epsilon):
    assert guarantee.epsilon(delta) <= epsilon * (1 + 1e-12)
    assert guarantee.epsilon(delta) > 0.9 * epsilon
    assert guarantee.delta(epsilon) <= delta
    assert accounting.from_provenance(guarantee.provenance).epsilon(delta) <= epsilon


def test_below_the_chance_that_a_part_fails_nothing_holds():
    """Randomised response that reveals all with probability delta attains the product."""
    composed = accounting.repeat(accounting.approximate(1.0, 0.01), 5)
    failing = 1 - 0.99**5
    assert composed.least_delta == pytest.approx(failing, rel=1e-9)
    assert composed.least_delta >= failing
    assert math.isinf(composed.epsilon(failing * (1 - 1e-6)))
    assert composed.epsilon(failing * (1 + 1e-6)) <= 5.0


def test_below_the_sum_of_the_epsilons_the_sum_of_the_deltas_is_no_bound():
    composed = accounting.compose(PAIR, PAIR)
    assert composed.delta(2.0) <= 2e-5 < 1e-2 < composed.delta(1.9)


def test_what_has_no_declared_delta_has_no_basic_composition():
    assert accounting.gaussian(1.0).least_delta is None
    assert accounting.compose(accounting.gaussian(1.0), PAIR).least_delta is None
    assert accounting.pure(1.0).least_delta == 0.0


def test_a_price_says_why_no_epsilon_holds():
    given = dict(most_trials=37, independent=False)
    trial = accounting.approximate(3.0, 1e-5)
    with pytest.raises(ValueError, match="delta 1e-05, .* add up to 0.00037 .*dp_sgd"):
        study_price.price_of_trials(trial, delta=1e-5, **given)
    assert study_price.price_of_trials(trial, delta=37e-5, **given).epsilon <= 111.0
