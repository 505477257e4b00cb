"""The most steps, records or runs that a budget pays for."""

import math
import signal

import pytest

from dpjax import accounting

TARGET = {"epsilon": 1.0, "delta": 1e-5}


def test_steps_of_a_gaussian_by_its_closed_form():
    found = accounting.calibrate_largest(
        lambda n: accounting.gaussian(40.0, steps=n), bracket=(1, 10_000), **TARGET
    )
    noise = accounting.calibrate(accounting.gaussian, **TARGET)
    assert isinstance(found, int)
    assert found == pytest.approx((40.0 / noise) ** 2, abs=1.0)
    assert accounting.gaussian(40.0, steps=found).epsilon(1e-5) <= 1.0
    assert accounting.gaussian(40.0, steps=found + 1).epsilon(1e-5) > 1.0


def test_a_mean_is_no_whole_number_and_lots_may_be():
    run = accounting.gaussian(6.0)
    mean = accounting.calibrate_largest(
        lambda m: accounting.best_of(run, accounting.Geometric(m)),
        bracket=(1.5, 1000.0),
        whole=False,
        **TARGET,
    )
    assert 1.5 < mean < 1000.0 and mean != round(mean)
    cost = accounting.best_of(run, accounting.Geometric(mean)).epsilon(1e-5)
    more = accounting.best_of(run, accounting.Geometric(mean * 1.001)).epsilon(1e-5)
    assert cost <= 1.0 < more
    lot = accounting.calibrate_largest(
        lambda n: accounting.dp_sgd(n / 10_000, 1.0, 100), bracket=(1, 9999), **TARGET
    )
    epsilons = [accounting.dp_sgd(n / 10_000, 1.0, 100).epsilon(1e-5) for n in (lot, lot + 1)]
    assert epsilons[0] <= 1.0 < epsilons[1]


def test_ends_of_the_bracket():
    def make(n):
        return accounting.pure(0.1 * n)

    target = {"epsilon": 1.0, "delta": 0.0}
    assert accounting.calibrate_largest(make, bracket=(1, 5), **target) == 5
    with pytest.raises(ValueError, match="11 attains 1.1; pass at least that"):
        accounting.calibrate_largest(make, bracket=(11, 50), **target)
    with pytest.raises(ValueError, match="two whole numbers"):
        accounting.calibrate_largest(make, bracket=(1.5, 50), **target)


def test_an_epsilon_that_is_none_misses_the_target():
    def make(n):
        return accounting.approximate(0.1, 1e-5 if n < 7 else 1e-3)

    assert math.isinf(make(8).epsilon(1e-4))
    target = {"epsilon": 1.0, "delta": 1e-4}
    assert accounting.calibrate_largest(make, bracket=(1, 100), **target) == 6


@pytest.mark.parametrize("law", [accounting.Poisson(100.0), accounting.Fixed(2)], ids=repr)
def test_a_bound_that_is_found_faster_only_says_where_to_look(law):
    """The quick bound of the first law is a tenth larger: it would ask for more noise."""

    def whole(noise: float) -> accounting.Guarantee:
        return accounting.best_of(accounting.gaussian(noise), law)

    noise = accounting.calibrate(whole, epsilon=5.0, delta=1e-5)
    assert whole(noise).stated_epsilon(1e-5) <= 5.0 < whole(noise / 1.0005).epsilon(1e-5)


def test_ends_of_the_bracket_with_such_a_bound():
    def whole(noise: float) -> accounting.Guarantee:
        return accounting.best_of(accounting.gaussian(noise), accounting.Poisson(20.0))

    target = {"epsilon": 3.0, "delta": 1e-5}
    least = accounting.calibrate(whole, **target)
    assert accounting.calibrate(whole, bracket=(2 * least, 9 * least), **target) == 2 * least
    # Only the exact price meets the target at this end.
    assert whole(1.001 * least).rough_epsilon(1e-5) > 3.0
    end = 1.001 * least
    assert accounting.calibrate(whole, bracket=(0.5, end), **target) == pytest.approx(least, 3e-4)
    with pytest.raises(ValueError, match="out of reach: the largest noise multiplier"):
        accounting.calibrate(whole, bracket=(0.5, 0.9 * least), **target)


def test_a_search_ends_where_no_noise_meets_the_target():
    def too_long(*_):
        raise AssertionError("the search goes on beyond the bracket")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(20)
    try:
        with pytest.raises(ValueError, match="the largest noise multiplier 64 attains 2"):
            accounting.calibrate(
                lambda noise: accounting.pure(2.0), bracket=(0.5, 64.0), epsilon=1.0, delta=0.0
            )
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
