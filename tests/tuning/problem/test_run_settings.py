"""The noise of a plan: where a search begins changes nothing that it finds."""

import math

import pytest

from dpjax import accounting
from dpjax.tuning.problem.run_settings import least_std, noise_on_training_scores


@pytest.mark.parametrize("wanted", [0.0, 0.5, 0.51, 3.0, 700.0, 1e9])
def test_the_least_std_is_the_same_from_every_guess(wanted):
    asked: list[float] = []

    def suffices(std):
        asked.append(std)
        return std >= wanted

    powers = [0.5 * 1.05**n for n in range(1 + math.floor(math.log(1e4 / 0.5) / math.log(1.05)))]
    expected = round(next((std for std in powers if std >= wanted), powers[-1]), 6)
    for near in (None, 1e-3, 0.5, 2.9, 3.1, 600.0, 1e7):
        asked.clear()
        assert least_std(suffices, 1, near) == expected
        assert len(asked) <= 17
    asked.clear()
    least_std(suffices, 1, expected)
    assert len(asked) <= 2 or wanted == 1e9


def test_the_noise_on_training_scores_is_the_least_power():
    base = accounting.dp_sgd(1 / 16, 2.0, 320)
    std = noise_on_training_scores(base, base.relation, 1e-5)
    most = 1.01 * base.epsilon(1e-5)

    def total(std):
        return accounting.compose(base, accounting.discrete_gaussian(std, 1)).epsilon(1e-5)

    assert total(std) <= most < total(std / 1.05)


@pytest.mark.parametrize("near", [0.3, 1.2, 2.0, 1e6])
def test_a_calibration_from_nearby_meets_the_same_target(near):
    def whole(noise):
        return accounting.best_of(
            accounting.dp_sgd(1 / 16, noise, 320), accounting.AtMost(accounting.Geometric(5.0), 20)
        )

    target = dict(epsilon=4.0, delta=1e-6)
    found = accounting.calibrate(whole, **target, near=near)
    assert whole(found).meets(**target)
    assert not whole(found / (1.0 + 3e-4)).meets(**target)
