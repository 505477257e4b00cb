"""One setting without replacement: against the grid's independent numerics and high precision."""

import mpmath
import numpy as np
import pytest

from dpjax.accounting import rdp_grid
from dpjax.accounting.numerics import without_replacement

ORDERS = np.array([2, 3, 8, 17, 32, 64, 128, 256, 300, 512, 513])


@pytest.mark.parametrize("noise", [0.3, 1.0, 4.0, 20.0, 300.0])
@pytest.mark.parametrize("fraction", [1e-4, 0.01, 0.4, 1.0])
def test_equals_the_grid(fraction, noise):
    ours = without_replacement.divergences(fraction, noise, ORDERS)
    grid = rdp_grid(fraction, noise, 1, ORDERS, sampling="without_replacement")[0]
    np.testing.assert_allclose(ours, grid, rtol=1e-9)


@pytest.mark.parametrize("noise", [0.4, 2.0, 15.0])
def test_moments_in_high_precision(noise):
    ours = without_replacement.log_even_moments(noise, 64)
    with mpmath.workdps(120):
        for power in (2, 10, 64):
            exact = mpmath.fsum(
                mpmath.binomial(power, k)
                * (-1) ** (power - k)
                * mpmath.exp(mpmath.mpf(k * (k - 1)) / (2 * mpmath.mpf(noise) ** 2))
                for k in range(power + 1)
            )
            assert ours[power // 2 - 1] == pytest.approx(float(mpmath.log(exact)), rel=1e-11)
