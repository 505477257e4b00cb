"""Randomised response: each person's answer is replaced by chance before anybody sees it."""

from __future__ import annotations

import math

import numpy as np

from dpjax.accounting.guarantee import Guarantee
from dpjax.accounting.mechanisms.mechanism import mechanism
from dpjax.accounting.numerics.loss_distribution import LossDistribution, LossPair
from dpjax.checks import probability, whole
from dpjax.neighbouring import REPLACE_ONE


@mechanism
def randomised_response(truth_probability: float, categories: int = 2) -> Guarantee:
    """The true answer with this probability, else one of the others, all equally likely.

    Warner (1965) with two categories, Kairouz, Bonawitz & Ramage (2016) with more. The profile is
    exact; pure epsilon is log(p (k - 1) / (1 - p)). Under replace-one: another answer of a person
    whose taking part is public.

    Example:
      >>> from dpjax import accounting
      >>> print(f"{accounting.randomised_response(0.75).epsilon():.4f}")
      1.0986

    Args:
      truth_probability: p, above 1 / categories and below 1.
      categories: k, 2 or more, public.

    Returns:
      Guarantee with a pure epsilon, loss distributions and Renyi curve.

    Raises:
      ValueError: a probability outside (1 / categories, 1); fewer than two categories.
    """
    categories = whole("categories", categories, 2)
    truth = probability("truth_probability", truth_probability)
    if not truth * categories > 1.0:
        raise ValueError(
            f"truth_probability must be above 1 / categories, {1 / categories:.4g}, not {truth:g}"
        )
    other = (1.0 - truth) / (categories - 1)
    # A few units of rounding up.
    epsilon = math.log(truth / other) * (1.0 + 2.0**-50) + 2.0**-50
    law = LossDistribution(
        epsilon, -1, np.array([other, (categories - 2) * other, truth]), 0.0
    ).completed()
    return Guarantee(relation=REPLACE_ONE, pair=LossPair(law, law), pure_epsilon=epsilon)
