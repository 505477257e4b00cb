"""Laplace noise on one number."""

from __future__ import annotations

import numpy as np

from dpjax.accounting.guarantee import Guarantee
from dpjax.accounting.mechanisms.elementary import grid_interval
from dpjax.accounting.mechanisms.mechanism import mechanism
from dpjax.accounting.numerics.privacy_profile import pair_from_function
from dpjax.accounting.numerics.renyi import RenyiCurve
from dpjax.checks import positive
from dpjax.neighbouring import ADD_OR_REMOVE_ONE


@mechanism
def laplace(noise_multiplier: float, *, relation: object = ADD_OR_REMOVE_ONE) -> Guarantee:
    """Laplace noise on one real number of bounded sensitivity (Dwork et al. 2006).

    The profile is exact: 1 - exp((epsilon - 1/b) / 2) up to epsilon = 1/b with b the noise
    multiplier, 0 beyond (Balle, Barthe & Gaboardi 2018, Theorem 3); so is the Renyi curve (Mironov
    2017, Proposition 6). Of a vector of L1 sensitivity the same noise on every entry is
    pure(sensitivity / scale); more is not claimed here. Noise of floating-point numbers shows by
    its last bits what it was added to (Mironov 2012): draw it on a grid.

    Example:
      >>> from dpjax import accounting
      >>> print(f"{accounting.laplace(1.0).delta(0.5):.4f}")
      0.2212

    Args:
      noise_multiplier: scale of the noise / sensitivity of the number UNDER `relation`.
      relation: neighbouring relation.

    Returns:
      Guarantee with a pure epsilon, loss distributions and Renyi curve.

    Raises:
      ValueError: noise_multiplier <= 0, or so small that the losses fit no grid.
    """
    epsilon = 1.0 / positive("noise_multiplier", noise_multiplier)
    # Rounded up, so that it is an epsilon of the real scale.
    epsilon = float(np.nextafter(epsilon, np.inf))
    interval = grid_interval(min(1e-4, epsilon / 2000.0), 2.0 * epsilon)

    def profile(epsilons: np.ndarray) -> np.ndarray:
        return -np.expm1(np.minimum((epsilons - epsilon) / 2.0, 0.0)) * (1.0 + 2.0**-48)

    return Guarantee(
        relation=relation,
        pair=lambda: pair_from_function(profile, interval, epsilon),
        renyi=RenyiCurve(lambda orders: _divergences(orders, epsilon)),
        pure_epsilon=epsilon,
    )


def _divergences(orders: np.ndarray, epsilon: float) -> np.ndarray:
    """log(a/(2a-1) e^{(a-1) e} + (a-1)/(2a-1) e^{-a e}) / (a-1), raised by its rounding."""
    total = 2.0 * orders - 1.0
    up = np.log(orders / total) + (orders - 1.0) * epsilon
    down = np.log((orders - 1.0) / total) - orders * epsilon
    rounding = 2.0**-48 * (1.0 + orders * epsilon)
    # No more than the curve of any mechanism of this pure epsilon ever needs.
    return np.minimum((np.logaddexp(up, down) + rounding) / (orders - 1.0), epsilon)
