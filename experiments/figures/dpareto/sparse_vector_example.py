"""DPareto's first example: which of 100 binary queries are 1, by the sparse vector technique.

Avent et al. 2020 ("Automatic Discovery of Privacy-Utility Pareto Fronts"), after Lyu, Su & Li 2017:
ten of a hundred queries have the answer 1, in random order. The threshold 1/2 gets Laplace noise of
scale b1 once, every query fresh Laplace noise of scale b2, with b1 + b2 = b and b1 = b / (1 +
(2C)^(1/3)); a query at or above the noisy threshold is answered 1, and after C such answers the
mechanism stops. Utility is the F1 score of the answers: 2 * (true positives) / (positives answered
+ ten), 0 if there are none.

Because the order is random and the noise of the queries is independent, the answers need not be
simulated query by query. Given the threshold, the numbers A of ones and B of zeros that would pass
are independent binomials, and the first min(C, A + B) of them in a random order hold a
hypergeometric number of ones. That makes simulation fast (a million runs a second), and leaves the
mean F1 score as an integral over the threshold alone, which `expected_utilities` does to 1e-9. So
the true front of this example is known, and any search's front can be judged by true values.

Everything is NumPy float64.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike
from scipy import special

from dpjax import accounting
from dpjax.pareto.domain import Domain, Log
from dpjax.tuning.problem.space import Integer

DOMAIN = Domain(noise=Log(1e-2, 1e2), bound=Integer(1, 30))
"""The paper's: b by its logarithm, C whole."""
Given = Mapping[str, ArrayLike]
"""Settings: name -> (n,) numbers."""
REPETITIONS = 50
"""The paper's number of random orders a setting."""

_THRESHOLD = 0.5
# Where an exponential law is cut: its tail there is 4e-18.
_TAIL = 40.0
_CHUNK = 256


@dataclasses.dataclass(frozen=True)
class SparseVectorExample:
    """Privacy and utility of the example; a setting is `noise` (b) and `bound` (C).

    Attributes:
      queries: number of queries.
      ones: how many of them have the answer 1.
    """

    queries: int = 100
    ones: int = 10

    def __post_init__(self):
        if not 1 <= self.ones <= self.queries:
            raise ValueError(f"ones {self.ones}: pass 1 to the {self.queries} queries")

    def epsilons(self, settings: Given) -> np.ndarray:
        """Returns epsilon of each setting, (n,) float64, at delta = 0 (`accounting.sparse_vector`).

        Args:
          settings: `noise` (n,) > 0 and `bound` (n,) whole numbers >= 1.

        Raises:
          ValueError: for settings out of range or without one of the two.
        """
        noise, bound = _checked(settings)
        pairs = zip(noise.tolist(), bound.tolist())
        return np.array([accounting.sparse_vector(*pair).epsilon(delta=0) for pair in pairs])

    def utilities(self, settings: Given, repetitions: int, *, source: Generator) -> np.ndarray:
        """Runs the mechanism; returns F1 scores (n, repetitions), float64 in [0, 1].

        Args:
          settings: as for `epsilons`.
          repetitions: runs of each setting, each with its own order and noise.
          source: of all randomness. NumPy's floating-point Laplace noise: this is a simulation on
            made-up queries, not a release.

        Raises:
          ValueError: as `epsilons`, and for repetitions below 1.
        """
        if repetitions < 1:
            raise ValueError(f"repetitions {repetitions}: pass 1 or more")
        noise, bound = _checked(settings)
        of_threshold, of_query = _scales(noise, bound)
        threshold = _THRESHOLD + of_threshold[:, None] * source.laplace(
            size=(len(noise), repetitions)
        )
        passing = [
            source.binomial(count, np.exp(_log_survival((threshold - value) / of_query[:, None])))
            for count, value in ((self.ones, 1.0), (self.queries - self.ones, 0.0))
        ]
        answered = np.minimum(bound[:, None], passing[0] + passing[1])
        true_positives = source.hypergeometric(*passing, answered)
        return 2.0 * true_positives / (answered + self.ones)

    def utility_oracle(
        self, repetitions: int = REPETITIONS
    ) -> Callable[[Given, ArrayLike], np.ndarray]:
        """Returns the utility oracle of a search: settings, one seed each -> (n, repetitions)."""

        def oracle(settings: Given, seeds: ArrayLike) -> np.ndarray:
            noise, bound = _checked(settings)
            points = [
                self.utilities(
                    {"noise": [value], "bound": [stop]},
                    repetitions,
                    source=np.random.default_rng(int(seed)),
                )
                for value, stop, seed in zip(noise, bound, np.asarray(seeds))
            ]
            return np.concatenate(points)

        return oracle

    def expected_utilities(self, settings: Given, nodes: int = 40) -> np.ndarray:
        """Returns the exact mean F1 score of each setting, (n,) float64, to about 1e-9.

        Given A and B the mean number of true positives is m A / (A + B), m = min(C, A + B); the
        binomials are summed, and the threshold's law is integrated by Gauss-Legendre nodes between
        the kinks of the integrand: the median of the noise, and where the threshold meets 0 or 1.

        Args:
          settings: as for `epsilons`.
          nodes: of the integral, on each of its four pieces.
        """
        noise, bound = _checked(settings)
        ones, zeros = np.arange(self.ones + 1), np.arange(self.queries - self.ones + 1)
        passing = ones[:, None] + zeros
        result = np.zeros(len(noise))
        for stop in np.unique(bound):
            answered = np.minimum(stop, passing)
            # (ones + 1, zeros + 1): mean F1 given A and B.
            score = (
                2.0 * answered * ones[:, None] / (np.maximum(passing, 1) * (answered + self.ones))
            )
            members = np.flatnonzero(bound == stop)
            for start in range(0, len(members), _CHUNK):
                chunk = members[start : start + _CHUNK]
                of_threshold, of_query = _scales(noise[chunk], bound[chunk])
                shift, weight = _threshold_nodes(of_threshold, nodes)
                arguments = (_THRESHOLD + shift) / of_query[:, None]
                law_of_ones = _binomial(self.ones, arguments - 1.0 / of_query[:, None])
                law_of_zeros = _binomial(self.queries - self.ones, arguments)
                given = np.sum((law_of_ones @ score) * law_of_zeros, axis=-1)
                result[chunk] = np.sum(weight * given, axis=-1)
        return result


def grid(number_of_noises: int) -> dict[str, np.ndarray]:
    """Returns the settings of a grid over the paper's domain: all C, b spaced in its logarithm.

    Args:
      number_of_noises: values of b, >= 2; there are 30 times as many settings.
    """
    noise, bound = DOMAIN.parameters["noise"], DOMAIN.parameters["bound"]
    bounds = np.arange(bound.low, bound.high + 1)
    noises = np.geomspace(noise.low, noise.high, number_of_noises)
    return {
        "noise": np.repeat(noises, len(bounds)),
        "bound": np.tile(bounds, number_of_noises),
    }


def _checked(settings: Given) -> tuple[np.ndarray, np.ndarray]:
    """Returns noise (n,) float64 and bound (n,) int64."""
    missing = {"noise", "bound"} - set(settings)
    if missing:
        raise ValueError(f"settings lack {sorted(missing)[0]!r}: pass arrays noise and bound")
    noise = np.atleast_1d(np.asarray(settings["noise"], dtype=np.float64))
    bound = np.atleast_1d(np.asarray(settings["bound"], dtype=np.float64))
    if noise.ndim != 1 or noise.shape != bound.shape:
        raise ValueError(f"noise {noise.shape} and bound {bound.shape}: pass vectors of one length")
    if not (np.isfinite(noise) & (noise > 0)).all():
        raise ValueError("noise must be positive and finite")
    if not ((bound >= 1) & (bound == np.rint(bound))).all():
        raise ValueError("bound must be a whole number of at least 1: round it first")
    return noise, bound.astype(np.int64)


def _scales(noise: np.ndarray, bound: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the Laplace scales of the threshold and of a query, which sum to `noise`."""
    of_threshold = noise / (1.0 + np.cbrt(2.0 * bound))
    return of_threshold, noise - of_threshold


def _log_survival(values: np.ndarray) -> np.ndarray:
    """Returns log P[X >= value] for X Laplace of scale 1."""
    tail = np.log(0.5) - np.abs(values)
    return np.where(values > 0, tail, np.log1p(-np.exp(tail)))


def _binomial(count: int, arguments: np.ndarray) -> np.ndarray:
    """Returns the law of how many of `count` Laplace variables reach `arguments`.

    Args:
      count: number of variables.
      arguments: (n, nodes), in units of the variables' scale.

    Returns:
      (n, nodes, count + 1) probabilities.
    """
    number = np.arange(count + 1)
    choices = special.gammaln(count + 1) - special.gammaln(number + 1)
    choices -= special.gammaln(count - number + 1)
    # Laplace's law is symmetric: P[X < a] = P[X >= -a].
    reach, miss = _log_survival(arguments)[..., None], _log_survival(-arguments)[..., None]
    return np.exp(choices + number * reach + (count - number) * miss)


def _threshold_nodes(scale: np.ndarray, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns nodes (n, 4 * nodes), weights of a Laplace law of scale (n,), kinks between them."""
    node, weight = np.polynomial.legendre.leggauss(nodes)
    kink = np.minimum(_THRESHOLD / scale, _TAIL)[:, None]
    places, weights = [], []
    for left, right in ((np.zeros_like(kink), kink), (kink, np.full_like(kink, _TAIL))):
        half = 0.5 * (right - left)
        distance = left + half * (node + 1.0)
        share = half * weight * 0.5 * np.exp(-distance)
        places += [distance, -distance]
        weights += [share, share]
    return scale[:, None] * np.concatenate(places, axis=1), np.concatenate(weights, axis=1)
