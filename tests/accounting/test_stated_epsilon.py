"""Stated numbers: rounded up at the sixth digit, and targets that no machine states above."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpjax import accounting
from dpjax.accounting import stated_epsilon

POSITIVE = st.floats(1e-9, 1e9)


@given(POSITIVE)
def test_it_is_rounded_up_by_no_more_than_a_digit(value):
    found = stated_epsilon.six_digits_up(value)
    assert value * (1.0 + 0.9 * stated_epsilon.MARGIN) <= found <= value * (1.0 + 1.1e-5)
    assert float(f"{found:.5e}") == found
    assert found - value <= 1.01 * stated_epsilon.place(found)


@given(POSITIVE)
def test_a_price_that_is_aimed_at_is_stated_at_most_at_the_target_on_any_machine(target):
    aim = stated_epsilon.aim_below(target)
    assert stated_epsilon.six_digits_up(aim * (1.0 + stated_epsilon.MARGIN)) <= target
    assert aim >= target * (1.0 - 1.1e-5)


@pytest.mark.parametrize("value", [0.0, math.inf])
def test_what_has_no_digits_stays(value):
    assert stated_epsilon.six_digits_up(value) == value


@pytest.mark.parametrize("target", [1.0, 2.0, 0.123456789, 3.3333333333])
def test_a_calibrated_procedure_states_its_target_at_most(target):
    noise = accounting.calibrate(accounting.gaussian, epsilon=target, delta=1e-5)
    found = accounting.gaussian(noise)
    assert found.stated_epsilon(1e-5) <= target and found.meets(target, 1e-5)
    # The Gaussian's epsilon falls with the noise: as little more of it as the search leaves.
    assert not accounting.gaussian(noise * (1.0 - 1e-3)).meets(target, 1e-5)
