"""Noise that clients add in shares: how many of them count, and how large each must be."""

from __future__ import annotations

import math
from fractions import Fraction

from dpjax.checks import positive, probability, whole


def minimum_survivors(clients: int, missing_fraction: float) -> int:
    """How many clients' noise must be in the sum, ceil((1 - xi) n): abort the vote below it.

    Example:
      >>> from dpjax import accounting
      >>> accounting.minimum_survivors(50, missing_fraction=0.1)
      45
    """
    clients = whole("clients", clients)
    missing = probability("missing_fraction", missing_fraction, zero=True, hint=", for example 0.1")
    # As a decimal: in floats 0.9 * 50 can land just above 45.
    return math.ceil((1 - Fraction(repr(missing))) * clients)


def local_noise_variance(variance: float, clients: int, missing_fraction: float = 0.0) -> float:
    """Noise variance each client adds so that enough is left: variance / ((1 - xi) n).

    Example:
      >>> from dpjax import accounting
      >>> accounting.local_noise_variance(100.0, clients=50)
      2.0

    Args:
      variance: total that the guarantee asks for (sigma^2, not sigma).
      clients: n.
      missing_fraction: xi, largest fraction of clients that drop out or collude, in [0, 1).
    """
    minimum_survivors(clients, missing_fraction)
    return positive("variance", variance) / ((1.0 - missing_fraction) * clients)
