"""Output perturbation: train without noise, add Gaussian noise to the final parameters.

Wu, Li, Kumar, Chaudhuri, Jha & Naughton 2017, as used by DPareto's example: projected stochastic
gradient descent on a strongly convex objective moves its output little when one record is replaced.
"""

from __future__ import annotations

from dpjax.accounting.guarantee import Guarantee
from dpjax.accounting.mechanisms.elementary import gaussian
from dpjax.accounting.mechanisms.mechanism import mechanism
from dpjax.checks import positive
from dpjax.neighbouring import REPLACE_ONE


@mechanism
def output_perturbation(sensitivity: float, noise_std: float) -> Guarantee:
    """The cost of releasing parameters with Gaussian noise on every coordinate, replace one.

    Formal guarantees: exact profile of the Gaussian mechanism (Balle & Wang 2018, Theorem 8), for
    parameters whose Euclidean distance is at most `sensitivity` when one record is replaced. Only
    the noisy final parameters are covered: no intermediate ones, no training curve.

    Example:
      >>> from dpjax import accounting
      >>> print(f"{accounting.output_perturbation(0.01, noise_std=0.04).epsilon(1e-5):.2f}")
      0.93

    Args:
      sensitivity: Euclidean, under replacement of one record, above 0.
      noise_std: standard deviation of the noise on each coordinate, above 0.
    """
    sensitivity, noise_std = positive("sensitivity", sensitivity), positive("noise_std", noise_std)
    return gaussian(noise_std / sensitivity, relation=REPLACE_ONE)
