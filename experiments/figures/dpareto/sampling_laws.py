"""The laws of the paper's random search, which are truncated by rejection."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from dpjax import checks
from dpjax.pareto.domain import Settings
from dpjax.tuning.problem import space

_MOST_ROUNDS = 10_000
_KINDS = ("uniform", "normal", "shifted_exponential")


@dataclasses.dataclass(frozen=True)
class Law:
    """A law used only for drawing: truncated by rejection, then rounded if `whole`.

    Attributes:
      kind: "uniform" (first, second: ends), "normal" (mean, standard deviation) or
        "shifted_exponential" (rate, shift).
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

    def sample(self, number: int, generator: np.random.Generator) -> np.ndarray:
        """Returns `number` independent draws, float64."""
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
            case "normal":
                return generator.normal(self.first, self.second, number)
            case "shifted_exponential":
                return self.second + generator.exponential(1.0 / self.first, number)
        raise AssertionError(self.kind)


@dataclasses.dataclass(frozen=True)
class Laws:
    """Independent laws and constants by name, to draw settings from; a law of `pareto.search`."""

    laws: Mapping[str, Law | float]

    def sample(self, number: int, generator: np.random.Generator) -> Settings:
        """Settings of `number` evaluations."""
        return {
            name: law.sample(number, generator) if isinstance(law, Law) else np.full(number, law)
            for name, law in self.laws.items()
        }

    def describe(self) -> dict[str, str | float]:
        """The laws as JSON-able data."""
        return {name: repr(law) if isinstance(law, Law) else law for name, law in self.laws.items()}
