"""The hyperparameters predicted best for a wanted epsilon, from the processes of a search.

Avent et al. 2020 (section 7) leave open how to come from a front to a setting for an epsilon that
no point of it has. The process of the utility predicts every setting, and the privacy oracle prices
every setting exactly: so the suggestion maximises the first under the second.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from dpjax import checks
from dpjax.pareto import fronts
from dpjax.pareto.domain import Domain
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
"""The predicted log epsilon may exceed the wanted one by this before a candidate is left out: the
true one decides."""


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
    generator = np.random.default_rng((0, len(record)))  # The same question, the same answer.
    cost, utility = fitted(record, generator)
    domain = record.domain
    seen = record.unit[record.succeeded][-_CANDIDATES // 2 :]
    pool = np.concatenate([seen, domain.sample(_CANDIDATES - len(seen), generator)])
    price = _Prices(domain, privacy)
    best = _ranked(pool, cost, utility, price, epsilon, domain)
    if not len(best):
        best = _most_private(pool, cost, price, epsilon, domain, generator)
    for width in _LOCAL_WIDTHS:
        parents = best[generator.integers(len(best), size=_NEAR - len(best))]
        near = np.clip(parents + width * generator.normal(size=parents.shape), 0.0, 1.0)
        near = near[domain.allowed(near)]
        found = _ranked(np.concatenate([best, near]), cost, utility, price, epsilon, domain)
        best = found if len(found) else best
    true = price(best)
    if not (true <= epsilon).any():
        raise ValueError(
            f"no setting found with epsilon {epsilon:g} or below: the most private one found has "
            f"{np.nanmin(true):.4g}; ask for more, or widen the domain"
        )
    chosen = best[true <= epsilon][:1]
    mean, variance = utility.predict(_rounded(domain, chosen))
    deviation = float(np.sqrt(variance[0] + utility.noise_variance))
    ends = mean[0] + deviation * _NORMAL_95 * np.array([0.0, -1.0, 1.0])
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


def _most_private(pool, cost, price, epsilon, domain, generator) -> np.ndarray:
    """Returns the candidates (_PARENTS, d) of the least epsilon found, walking down from the pool.

    The least epsilon of a domain usually lies in a corner, where no random candidate does: each
    coordinate is moved to its ends too. Stops where a candidate has at most `epsilon`.
    """
    best = pool[np.argsort(cost.predict(pool)[0], kind="stable")[:_PARENTS]]
    for width in _DESCENT_WIDTHS:
        if (price(best) <= epsilon).any():
            break
        parents = best[generator.integers(len(best), size=_NEAR - len(best))]
        near = np.clip(parents + width * generator.normal(size=parents.shape), 0.0, 1.0)
        ends = np.repeat(best[:1], 2 * domain.dimension, axis=0)
        for column in range(domain.dimension):
            ends[2 * column : 2 * column + 2, column] = 0.0, 1.0
        near = np.concatenate([near[: _NEAR - len(best) - len(ends)], ends])
        near = near[domain.allowed(near)]
        order = np.argsort(cost.predict(_rounded(domain, near))[0], kind="stable")[:_PARENTS]
        asked = np.concatenate([best, near[order], ends[domain.allowed(ends)]])
        best = asked[np.argsort(price(asked), kind="stable")[:_PARENTS]]
    return best


class _Prices:
    """True epsilons of points, each distinct setting priced once; infinite where it failed."""

    def __init__(self, domain: Domain, privacy: PrivacyOracle):
        self._domain, self._privacy = domain, privacy
        self._known: dict[bytes, float] = {}

    def __call__(self, points: np.ndarray) -> np.ndarray:
        """Returns those (n,) float64 of points (n, d)."""
        rounded = _rounded(self._domain, points)
        names = [row.tobytes() for row in np.round(rounded, 12) + 0.0]
        new = [place for place, name in enumerate(names) if name not in self._known]
        if new:
            found, _ = evaluate_privacy(self._privacy, self._domain.from_unit(points[new]))
            for place, value in zip(new, found):
                self._known[names[place]] = np.inf if np.isnan(value) else float(value)
        return np.array([self._known[name] for name in names])


def _rounded(domain: Domain, points: np.ndarray) -> np.ndarray:
    """Returns the points that the settings of `points` have."""
    return domain.to_unit(domain.from_unit(points))


def _ranked(pool, cost, utility, price, epsilon, domain) -> np.ndarray:
    """Returns the feasible points of the pool, best predicted utility first, `_PARENTS` at most."""
    points = _rounded(domain, pool)
    likely = cost.predict(points)[0] <= np.log(epsilon) + _SLACK
    error = np.where(likely, utility.predict(points)[0], np.inf)
    order = np.argsort(error, kind="stable")[: min(_PRICED, int(likely.sum()))]
    affordable: list[int] = []
    # The true price of the best ones first, and of no more than needed: it is the slow part.
    for start in range(0, len(order), _PARENTS):
        some = order[start : start + _PARENTS]
        affordable += some[price(pool[some]) <= epsilon].tolist()
        if len(affordable) >= _PARENTS:
            break
    return pool[affordable[:_PARENTS]]
