"""Exact samplers: discrete Laplace noise, and private choices among integer scores.

Everything here is whole numbers: scores are integers, rates are exact fractions, and the only
randomness is uniform integers below a bound. No logarithm or exponential is ever evaluated, so the
laws are those of the theorems, not of their floating-point images (Mironov 2012 showed what the
latter give away). A draw takes some ten microseconds of Python; a selection needs thousands at
most.

Source: Canonne, Kamath & Steinke, "The Discrete Gaussian for Differential Privacy", 2020,
https://arxiv.org/abs/2004.00010, Algorithms 1 and 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

UniformBelow = Callable[[int], int]
"""n -> a uniform integer in 0..n-1; `HostRandomness.uniform_integers` makes one."""


def bernoulli_exp(rate: Fraction, below: UniformBelow) -> bool:
    """Returns True with probability exactly exp(-rate), for a rate of at least 0.

    (Algorithm 1.) For a rate in [0, 1] the first failure of a chain of coins with probabilities
    rate/1, rate/2, ... comes at an odd place with probability exp(-rate), by its power series; a
    larger rate is a sum of ones and a rest.
    """
    whole, rest = divmod(rate.numerator, rate.denominator)
    for _ in range(whole):
        if not _chain_ends_odd(1, 1, below):
            return False
    return _chain_ends_odd(rest, rate.denominator, below)


def _chain_ends_odd(numerator: int, denominator: int, below: UniformBelow) -> bool:
    """Returns True with probability exp(-numerator / denominator), in [0, 1]; the hot loop."""
    place = 1
    while below(denominator * place) < numerator:
        place += 1
    return place % 2 == 1


def discrete_laplace(scale: Fraction, below: UniformBelow) -> int:
    """Draws an integer z with probability exactly tanh(1 / (2 scale)) exp(-|z| / scale).

    (Algorithm 2.) With scale t/s, a geometric integer with ratio exp(-1/t) is drawn: its remainder
    modulo t by rejection, its quotient by coins. It is divided by s and given a random sign; minus
    zero is drawn anew.

    Formal guarantees:
      For scores that are integers and change by at most D, adding a draw of scale D / epsilon is
      epsilon-differentially private, as Laplace noise on real scores is: for integers z and d the
      ratio of the probabilities of z and z + d is at most exp(|d| / scale). The law is exact for
      ideal randomness; nothing is truncated.
    """
    if not scale > 0:
        raise ValueError(f"scale {scale}: pass a fraction above 0")
    numerator, denominator = scale.numerator, scale.denominator
    while True:
        rest = below(numerator)
        if not _chain_ends_odd(rest, numerator, below):
            continue
        quotient = 0
        while _chain_ends_odd(1, 1, below):
            quotient += 1
        magnitude = (rest + numerator * quotient) // denominator
        negative = below(2) == 1
        if magnitude or not negative:
            return -magnitude if negative else magnitude


def exponential_choice(scores: Sequence[int], rate: Fraction, below: UniformBelow) -> int:
    """Draws an index i with probability exactly proportional to exp(rate * scores[i]).

    Uniform indices are proposed until one is accepted, with probability exp(-rate (largest -
    scores[i])); the largest is always accepted, so len(scores) proposals suffice on average. The
    law is that of adding Gumbel noise of scale 1 / rate to every score and taking the largest,
    which floating-point Gumbel noise would only approximate.

    Formal guarantees:
      With rate epsilon / (2 D) and integer scores that each change by at most D between neighbours,
      the log ratio of any two indices' probabilities changes by at most epsilon: the choice is
      epsilon-bounded-range (Durfee & Rogers 2019), hence epsilon-differentially private, and costs
      `accounting.exponential_mechanism(epsilon)`. The number of proposals, hence the time, depends
      on the scores: it is for the curator only.
    """
    if not scores or not rate > 0:
        raise ValueError("pass at least one score, and a rate above 0")
    largest = max(scores)
    while True:
        index = below(len(scores))
        if bernoulli_exp(rate * (largest - scores[index]), below):
            return index


def permute_and_flip_choice(scores: Sequence[int], rate: Fraction, below: UniformBelow) -> int:
    """Draws an index by permute-and-flip: tries indices in random order, each with its own coin.

    McKenna & Sheldon, NeurIPS 2020, https://arxiv.org/abs/2010.12603, Algorithm 1. The indices come
    up in a uniformly random order; each is chosen if its coin shows heads, with probability
    exp(-rate (largest - scores[i])). The coin of a largest one cannot fail, so that one pass is
    enough. The law is that of adding exponential noise of mean 1 / rate to every score and taking
    the largest (Ding et al. 2021), which floating-point noise would only approximate.

    It is `exponential_choice` without replacement: no index has a second chance, which makes it the
    better of the two at the same rate.

    Formal guarantees:
      With rate epsilon / (2 D) and integer scores that each change by at most D between neighbours,
      the probability of every index changes by a factor of at most e^epsilon: the choice is
      epsilon-differentially private and costs `accounting.pure(epsilon)`. It is NOT
      epsilon-bounded-range: with two scores the range of the losses reaches epsilon + log(2 -
      e^-epsilon), and `accounting.exponential_mechanism(epsilon)` would charge too little. The
      number of coins, hence the time, depends on the scores: it is for the curator only.
    """
    if not scores or not rate > 0:
        raise ValueError("pass at least one score, and a rate above 0")
    largest = max(scores)
    waiting = list(range(len(scores)))
    while True:
        # A uniform choice among the remaining indices builds a uniform permutation.
        place = below(len(waiting))
        waiting[place], waiting[-1] = waiting[-1], waiting[place]
        index = waiting.pop()
        if bernoulli_exp(rate * (largest - scores[index]), below):
            return index
