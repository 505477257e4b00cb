"""The hyperparameters with the best predicted utility for a wanted epsilon.

Avent et al. 2020 (section 7) leave open how to come from a front to a setting for an epsilon that
no point of it has. The Gaussian process of a search predicts the utility of every setting, and the
privacy oracle prices it exactly: the suggestion is the best prediction within the wanted epsilon.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from dpjax import checks
from dpjax.pareto import fronts
from dpjax.pareto.oracles import PrivacyOracle, evaluate_privacy
from dpjax.pareto.record import SearchRecord, fitted

_CANDIDATES = 4096
_NEAR = 1024
_PRICED = 64
_LOCAL_WIDTHS = (0.1, 0.05, 0.02, 0.01)
_DESCENT_WIDTHS = (0.3, 0.3, 0.1, 0.1, 0.05, 0.02)
_PARENTS = 8
_NORMAL_95 = 1.959963984540054
_SLACK = 0.02
"""A candidate is left out if its predicted log epsilon exceeds the wanted one by more than this;
the others are priced exactly."""


@dataclasses.dataclass(frozen=True)
class Suggestion:
    """The setting suggested for a wanted epsilon.

    NOT private where the search looked at private data: see `search`.

    Attributes:
      setting: name -> number, integers rounded.
      wanted_epsilon: asked for.
      epsilon: of the setting, by the privacy oracle; at most the wanted one.
      utility: predicted mean over the repetitions of a training (median of the prediction).
      low, high: ends of a 95% interval of that mean, as one more evaluation would measure it.
    """

    setting: Mapping[str, float]
    wanted_epsilon: float
    epsilon: float
    utility: float
    low: float
    high: float


def suggest(record: SearchRecord, privacy: PrivacyOracle, epsilon: float) -> Suggestion:
    """Suggests the setting of best predicted utility whose accounted epsilon is at most `epsilon`.

    Args:
      record: of a search with any method.
      privacy: the oracle of the search.
      epsilon: wanted, finite, above 0; a ValueError says how private the domain can be.
    """
    checks.instance("record", record, SearchRecord, "pareto.search(...)")
    checks.function("privacy", privacy, "of settings")
    epsilon = checks.positive("epsilon", epsilon)
    domain, question = record.domain, _Ranking(record, privacy, epsilon)
    seen = record.unit[record.succeeded][-_CANDIDATES // 2 :]
    drawn = domain.sample(_CANDIDATES - len(seen), question.generator)
    pool = np.concatenate([seen, drawn])
    best = question.ranked(pool)
    if not len(best):
        best = question.most_private(pool)
    for width in _LOCAL_WIDTHS:
        near = question.around(best, width)
        found = question.ranked(np.concatenate([best, near[domain.allowed(near)]]))
        best = found if len(found) else best
    true = question.price(best)
    if not (true <= epsilon).any():
        raise ValueError(
            f"no setting found with epsilon {epsilon:g} or below: the most private one found has "
            f"{np.nanmin(true):.4g}; ask for more, or widen the domain"
        )
    chosen = best[true <= epsilon][:1]
    mean, variance = question.utility.predict(domain.rounded(chosen))
    std = float(np.sqrt(variance[0] + question.utility.noise_variance))
    ends = mean[0] + std * _NORMAL_95 * np.array([0.0, -1.0, 1.0])
    # The process knows the logit of the error, which falls as the utility grows.
    error, least, most = fronts.from_model_units(np.stack([np.zeros(3), ends], axis=1))[:, 1]
    return Suggestion(
        setting={name: float(values[0]) for name, values in domain.from_unit(chosen).items()},
        wanted_epsilon=float(epsilon),
        epsilon=float(true[true <= epsilon][0]),
        utility=1.0 - float(error),
        low=1.0 - float(most),
        high=1.0 - float(least),
    )


class _Ranking:
    """Ranks points (n, d) of the unit cube that `epsilon` allows, by predicted utility."""

    def __init__(self, record: SearchRecord, privacy: PrivacyOracle, epsilon: float):
        self._domain, self._privacy, self._epsilon = record.domain, privacy, epsilon
        self._prices: dict[bytes, float] = {}
        self.generator = np.random.default_rng((0, len(record)))  # The same answer every time.
        self._cost, self.utility = fitted(record, self.generator)

    def price(self, points: np.ndarray) -> np.ndarray:
        """Returns true epsilons (n,), infinite where pricing failed; no setting is priced twice."""
        # Equal settings have equal bytes: adding 0 turns -0 into 0.
        names = [row.tobytes() for row in np.round(self._domain.rounded(points), 12) + 0.0]
        new = [place for place, name in enumerate(names) if name not in self._prices]
        if new:
            found, _ = evaluate_privacy(self._privacy, self._domain.from_unit(points[new]))
            for place, value in zip(new, found):
                self._prices[names[place]] = np.inf if np.isnan(value) else float(value)
        return np.array([self._prices[name] for name in names])

    def around(self, best: np.ndarray, width: float) -> np.ndarray:
        """Draws points around the best ones: `_NEAR` together with these."""
        parents = best[self.generator.integers(len(best), size=_NEAR - len(best))]
        return np.clip(parents + width * self.generator.normal(size=parents.shape), 0.0, 1.0)

    def ranked(self, pool: np.ndarray) -> np.ndarray:
        """Returns the affordable points, best predicted utility first, `_PARENTS` at most."""
        points = self._domain.rounded(pool)
        likely = self._cost.predict(points)[0] <= np.log(self._epsilon) + _SLACK
        error = np.where(likely, self.utility.predict(points)[0], np.inf)
        order = np.argsort(error, kind="stable")[: min(_PRICED, int(likely.sum()))]
        affordable: list[int] = []
        # The best are priced first, and no more than needed, since pricing is the slow part.
        for start in range(0, len(order), _PARENTS):
            some = order[start : start + _PARENTS]
            affordable += some[self.price(pool[some]) <= self._epsilon].tolist()
            if len(affordable) >= _PARENTS:
                break
        return pool[affordable[:_PARENTS]]

    def most_private(self, pool: np.ndarray) -> np.ndarray:
        """Returns the points (_PARENTS, d) of least epsilon, searched for from the pool downwards.

        The least epsilon of a domain usually lies in a corner, where no random candidate does: each
        coordinate is moved to its ends too. Stops once a point has at most the wanted epsilon.
        """
        domain = self._domain
        best = pool[np.argsort(self._cost.predict(pool)[0], kind="stable")[:_PARENTS]]
        for width in _DESCENT_WIDTHS:
            if (self.price(best) <= self._epsilon).any():
                break
            near = self.around(best, width)
            ends = np.repeat(best[:1], 2 * domain.dimension, axis=0)
            for column in range(domain.dimension):
                ends[2 * column : 2 * column + 2, column] = 0.0, 1.0
            near = np.concatenate([near[: len(near) - len(ends)], ends])
            near = near[domain.allowed(near)]
            predicted = self._cost.predict(domain.rounded(near))[0]
            order = np.argsort(predicted, kind="stable")[:_PARENTS]
            tried = np.concatenate([best, near[order], ends[domain.allowed(ends)]])
            best = tried[np.argsort(self.price(tried), kind="stable")[:_PARENTS]]
        return best
