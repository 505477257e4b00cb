"""What settings are drawn from without a model: random search's laws, and grids.

The laws of the paper's random search are truncated by rejection, which `Law.sample` reproduces.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping

import numpy as np

from dpjax import checks
from dpjax.tuning.pareto.domain import Domain, Settings, select
from dpjax.tuning.problem import space

_MOST_ROUNDS = 10_000
_KINDS = ("uniform", "log_uniform", "normal", "shifted_exponential")


@dataclasses.dataclass(frozen=True)
class Law:
    """A law used only for drawing: truncated by rejection, then rounded if `whole`.

    Example:
      >>> import numpy as np
      >>> from dpjax.tuning import pareto
      >>> law = pareto.Law("normal", 16.0, 8.0, least=1.0, whole=True)
      >>> law.sample(5, np.random.default_rng(0)).shape
      (5,)

    Attributes:
      kind: "uniform" (first, second: ends), "log_uniform" (ends), "normal" (mean, standard
        deviation) or "shifted_exponential" (rate, shift).
      first, second: its parameters.
      least, most: draws outside are rejected.
      whole: whether draws are rounded.
    """

    kind: str
    first: float
    second: float
    least: float = -math.inf
    most: float = math.inf
    whole: bool = False

    def __post_init__(self) -> None:
        checks.one_of("kind", self.kind, _KINDS)
        checks.number("first", self.first)
        checks.number("second", self.second)
        checks.number("least", self.least, "a number", finite=False)
        checks.number("most", self.most, "a number", finite=False)
        checks.flag("whole", self.whole)

    def sample(self, number: int, generator: np.random.Generator) -> np.ndarray:
        """Returns `number` independent draws, float64.

        Raises:
          ValueError: an unknown kind, or limits that leave nothing.
        """
        number = checks.whole("number", number, 0)
        checks.instance("generator", generator, np.random.Generator, "np.random.default_rng(0)")
        kept = np.zeros(0)
        for _ in range(_MOST_ROUNDS):
            drawn = self._draws(max(number, 16), generator)
            kept = np.append(kept, drawn[(self.least <= drawn) & (drawn <= self.most)])
            if len(kept) >= number:
                return np.round(kept[:number]) if self.whole else kept[:number]
        raise ValueError(f"{self} leaves nothing to draw: widen its limits")

    def _draws(self, number: int, generator: np.random.Generator) -> np.ndarray:
        match self.kind:
            case "uniform":
                return space.Uniform(self.first, self.second).sample(number, generator)
            case "log_uniform":
                return space.LogUniform(self.first, self.second).sample(number, generator)
            case "normal":
                return generator.normal(self.first, self.second, number)
            case "shifted_exponential":
                return self.second + generator.exponential(1.0 / self.first, number)
        raise AssertionError(self.kind)


_DRAWN = (Law, space.Law)
"""What is drawn; all else is constant."""


@dataclasses.dataclass(frozen=True)
class Laws:
    """Independent laws (also those of a `Space`) and constants by name, to draw settings from.

    Example:
      >>> import numpy as np
      >>> from dpjax.tuning import pareto
      >>> law = pareto.Law("uniform", 16, 64, whole=True)
      >>> laws = pareto.Laws({"lot_size": law, "momentum": 0.9})
      >>> laws.sample(3, np.random.default_rng(0))["momentum"].tolist()
      [0.9, 0.9, 0.9]
    """

    laws: Mapping[str, Law | space.Law | float]

    def __post_init__(self) -> None:
        checks.mapping("laws", self.laws, "from names to laws or numbers")
        for name, law in self.laws.items():
            if not isinstance(law, _DRAWN):
                checks.number(name, law, "one of the laws, or a finite number")

    def sample(self, number: int, generator: np.random.Generator) -> Settings:
        """Settings of `number` evaluations."""
        number = checks.whole("number", number, 0)
        checks.instance("generator", generator, np.random.Generator, "np.random.default_rng(0)")
        return {
            name: law.sample(number, generator) if isinstance(law, _DRAWN) else np.full(number, law)
            for name, law in self.laws.items()
        }

    def describe(self) -> dict[str, str | float]:
        """The laws as JSON-able data."""
        return {
            name: repr(law) if isinstance(law, _DRAWN) else law for name, law in self.laws.items()
        }


@dataclasses.dataclass(frozen=True)
class UniformOver:
    """Uniform over the unit cube of a domain: logarithmic where its ranges are.

    Example:
      >>> import numpy as np
      >>> from dpjax.tuning import pareto
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
      >>> from dpjax.tuning import pareto
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
