"""Batches of proposals: settings where two Gaussian processes predict the largest gain.

A proposal maximises an acquisition function over many candidates: half of them a Latin hypercube
over the unit cube, half drawn by the domain, then draws around the best of them and around the
settings on the front, in rounds of shrinking width. The proposals of a batch are found one after
the other, each believed to come out at its predicted mean (the Kriging believer of Ginsbourger, Le
Riche & Carraro 2010), so that a batch of q can be evaluated at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from dpjax import checks
from dpjax.pareto import acquisition as acquisitions
from dpjax.pareto import fronts
from dpjax.pareto.domain import Domain
from dpjax.pareto.gaussian_process import GaussianProcess

_CANDIDATES = 2048
_AT_ONCE = 256  # candidates per local round, or per call that evaluates them again
# Standard deviations of the draws around a centre, in edges of the cube, one for each round.
_LOCAL_WIDTHS = (0.1, 0.03, 0.01)
_CENTRES = 8


# Points (m, d) -> predicted means (m, 2) and values of the acquisition (m,).
_Criterion = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def latin_hypercube(number: int, dimension: int, generator: np.random.Generator) -> np.ndarray:
    """Returns points (number, dimension) in the unit cube, float64: each of `number` equal slices

    of each coordinate holds exactly one (McKay, Beckman & Conover 1979)."""
    slices = generator.permuted(np.tile(np.arange(number), (dimension, 1)), axis=1).T
    return (slices + generator.random((number, dimension))) / number


def objectives_at(
    processes: Sequence[GaussianProcess], points: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns posterior mean (m, 2) and variance (m, 2) of both processes at points (m, d)."""
    means, variances = zip(*(process.predict(points) for process in processes))
    return np.stack(means, axis=1), np.stack(variances, axis=1)


class _Pool:
    """The candidates of one batch with their predicted means and latest acquisition values.

    A proposal is believed to come out at its mean. That moves no mean, but it shrinks variances and
    grows the front, so no expected hypervolume improvement rises: an old value is an upper bound.
    So after each proposal only the leading candidates are evaluated again (the lazy greedy
    algorithm of Minoux 1978). (In units of epsilon a smaller variance of its logarithm can raise a
    value, but only by little, because that process is noise-free.)
    """

    def __init__(self, dimension: int):
        self.points = np.zeros((0, dimension))
        self.means = np.zeros((0, 2))
        self.values = np.zeros(0)

    def order(self) -> np.ndarray:
        """Returns the indices of the candidates, the best first."""
        return np.argsort(-self.values, kind="stable")

    def add(self, points: np.ndarray, criterion: _Criterion) -> None:
        """Adds candidates (m, d) and values them."""
        if len(points):
            means, values = criterion(points)
            self.points = np.concatenate([self.points, points])
            self.means = np.concatenate([self.means, means])
            self.values = np.append(self.values, values)

    def keep(self, mask: np.ndarray) -> None:
        """Drops the candidates not in the mask."""
        self.points, self.means = self.points[mask], self.means[mask]
        self.values = self.values[mask]

    def refresh(self, criterion: _Criterion) -> None:
        """Evaluates the leading candidates again until one of them is certain to lead."""
        stale = np.ones(len(self.values), dtype=bool)
        while stale.any():
            leading = self.order()[:_AT_ONCE]
            if not stale[leading[0]]:
                return
            leading = leading[stale[leading]]
            self.means[leading], self.values[leading] = criterion(self.points[leading])
            stale[leading] = False


def propose(
    processes: Sequence[GaussianProcess],
    domain: Domain,
    number: int,
    *,
    anti_ideal: ArrayLike,
    generator: np.random.Generator,
    acquisition: acquisitions.Acquisition = acquisitions.expected_hypervolume_improvement,
    observed_inputs: ArrayLike | None = None,
    observed_objectives: ArrayLike | None = None,
    candidates: int = _CANDIDATES,
) -> np.ndarray:
    """Proposes a batch of settings to evaluate at once.

    Args:
      processes: two, for log epsilon and for the logit of the error (`fronts.to_model_units`),
        fitted at rounded points of the unit cube of `domain`. Of the first only `predict` and
        `condition` are used, so an exactly computed epsilon, of variance 0, can take its place.
      domain: search domain of the settings.
      number: q, the size of the batch, >= 1.
      anti_ideal: (2,) in model units: `fronts.to_model_units(anti_ideal)`.
      generator: source of all randomness; its state and the arguments determine the batch.
      acquisition: criterion to maximise, see `acquisition.py`.
      observed_inputs: (n, d) every setting evaluated or failed so far, never proposed again;
        the inputs of the second process always count.
      observed_objectives: (n, 2) in model units, the points whose front is to be improved. By
        default the processes' means at the inputs of the second, which do not mistake a lucky
        measurement for a gain; pass the measured points for the paper's procedure.
      candidates: how many candidates to draw over the whole cube for the batch, >= 2.

    Returns:
      Array (q, d), float64 in the unit cube, unrounded. Fewer rows, or none, when `domain` has no
      more settings that differ after rounding.
    """
    checks.whole("number", number)
    checks.whole("candidates", candidates, 2)
    dimension = domain.dimension
    settings = processes[1].inputs
    if settings.shape[1] != dimension:
        raise ValueError(
            f"the domain has dimension {dimension}, the processes {settings.shape[1]}: fit "
            "them on this domain's settings"
        )
    anti_ideal = np.asarray(anti_ideal, dtype=np.float64)

    means, _ = objectives_at(processes, settings)
    known = means
    if observed_objectives is not None:
        known = np.asarray(observed_objectives, dtype=np.float64).reshape(-1, 2)
    centres = settings[fronts.non_dominated(means) & (means < anti_ideal).all(axis=1)]

    def names(points: np.ndarray) -> list[bytes]:
        # The same bytes for equal settings: adding 0 turns -0, whose bytes differ, into 0.
        return [row.tobytes() for row in np.round(domain.rounded(points), 9) + 0.0]

    taken = set(names(settings))
    if observed_inputs is not None:
        observed = np.asarray(observed_inputs, dtype=np.float64).reshape(-1, dimension)
        taken.update(names(observed))

    def is_new(points: np.ndarray) -> np.ndarray:
        return np.array([name not in taken for name in names(points)], dtype=bool)

    def new(points: np.ndarray) -> np.ndarray:
        points = points[domain.allowed(points)]
        return points[is_new(points)]

    def criterion(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        means, variances = objectives_at(processes, domain.rounded(points))
        return means, acquisition(means, variances, known, anti_ideal)

    half = candidates // 2
    drawn = [latin_hypercube(candidates - half, dimension, generator)]
    drawn.append(domain.sample(half, generator))
    pool = _Pool(dimension)
    pool.add(new(np.concatenate(drawn)), criterion)
    batch: list[np.ndarray] = []
    while len(batch) < number and len(pool.points):
        for width in _LOCAL_WIDTHS:
            around = np.concatenate([pool.points[pool.order()[:_CENTRES]], centres])
            chosen = around[generator.integers(len(around), size=_AT_ONCE)]
            near = np.clip(chosen + width * generator.normal(size=chosen.shape), 0.0, 1.0)
            pool.add(new(near), criterion)
        # If the criterion is 0 everywhere, any candidate is as good: take a random one.
        index = pool.order()[0]
        if pool.values[index] <= 0:
            index = generator.integers(len(pool.points))
        best, believed = pool.points[[index]], pool.means[[index]]
        batch.append(best[0])
        processes = tuple(
            process.condition(domain.rounded(best), believed[:, column])
            for column, process in enumerate(processes)
        )
        known = np.concatenate([known, believed])
        centres = np.concatenate([centres, best])
        taken.update(names(best))
        pool.keep(is_new(pool.points))
        pool.refresh(criterion)
    return np.reshape(batch, (-1, dimension))
