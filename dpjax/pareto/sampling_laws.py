"""What settings are drawn from without a model: the unit cube, and grids."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping

import numpy as np

from dpjax import checks
from dpjax.pareto.domain import Domain, Settings, select


@dataclasses.dataclass(frozen=True)
class UniformOver:
    """Uniform over the unit cube of a domain: logarithmic where its ranges are.

    Example:
      >>> import numpy as np
      >>> from dpjax import pareto
      >>> domain = pareto.Domain(rate=pareto.Log(0.01, 1.0), momentum=0.9)
      >>> pareto.UniformOver(domain).sample(3, np.random.default_rng(0))["rate"].shape
      (3,)
    """

    domain: Domain

    def __post_init__(self) -> None:
        checks.instance("domain", self.domain, Domain, "pareto.Domain(rate=pareto.Log(0.001, 1))")

    def sample(self, number: int, generator: np.random.Generator) -> Settings:
        """Settings of `number` evaluations."""
        return self.domain.from_unit(self.domain.sample(number, generator))

    def describe(self) -> str:
        """The law as JSON-able data; a record names the domain itself."""
        return "uniform over the unit cube"


def grid(domain: Domain, points_per_parameter: int | Mapping[str, int]) -> Settings:
    """Every combination of evenly spaced values of each range, on the range's own scale.

    The paper's grids are even on a linear scale: pass a domain of `Real` and `Integer` for those.

    Example:
      >>> from dpjax import pareto
      >>> domain = pareto.Domain(rate=pareto.Log(0.01, 1.0), momentum=pareto.Real(0.0, 0.8))
      >>> settings = pareto.grid(domain, {"rate": 3, "momentum": 2})
      >>> settings["rate"].round(2).tolist()
      [0.01, 0.01, 0.1, 0.1, 1.0, 1.0]

    Args:
      domain: what to cover.
      points_per_parameter: values of each range, ends included, >= 1 (one: the middle); or by
        name.

    Raises:
      ValueError: fewer than one point, or a name that the domain lacks.
    """
    checks.instance("domain", domain, Domain, "pareto.Domain(rate=pareto.Log(0.001, 1))")
    if isinstance(points_per_parameter, Mapping):
        counts = dict(points_per_parameter)
    else:
        counts = dict.fromkeys(domain.parameters, points_per_parameter)
    counts = {
        name: checks.whole(f"points_per_parameter of {name}", count, 0)
        for name, count in counts.items()
    }
    if set(counts) != set(domain.parameters) or min(counts.values()) < 1:
        raise ValueError(
            f"points per parameter {counts}: pass at least 1 for each of "
            f"{', '.join(domain.parameters)}"
        )
    axes = [law.grid(counts[name]) for name, law in domain.parameters.items()]
    columns = np.array(list(itertools.product(*axes))).T
    settings = dict(zip(domain.parameters, columns)) | {
        name: np.full(columns.shape[1], value) for name, value in domain.constants.items()
    }
    kept = domain.may_be_evaluated(settings)
    if not kept.any():
        raise ValueError(f"no point of the grid over {domain} is feasible: widen its ranges")
    return select(settings, kept)
