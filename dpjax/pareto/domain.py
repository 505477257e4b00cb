"""Domains of a search: laws of hyperparameters by name, mapped to the unit cube.

The laws are those of `tuning.Space`, here also under the names of Avent et al. 2020. The models and
the acquisition function work in the unit cube; an integer is rounded only when a setting is
evaluated, as in that paper, so that two points of the cube may stand for one setting.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dpjax import checks
from dpjax.tuning.problem.space import (
    Choice,
    Law,
    LogUniform,
    Uniform,
    as_law,
    named_entries,
    parse_law,
)

Real, Log = Uniform, LogUniform

Settings = dict[str, np.ndarray]
"""Settings of n evaluations: name -> float64 array (n,)."""

_DRAWS_FOR_FEASIBLE = 200
"""Rounds of draws after which a domain counts as having no feasible setting."""


@dataclasses.dataclass(frozen=True)
class Domain:
    """The settings that a search may choose: laws and constants by name.

    Example:
      >>> from dpjax import pareto
      >>> pareto.Domain(rate=pareto.Log(0.01, 1), momentum=0.9).names
      ('rate', 'momentum')

    Attributes:
      parameters: name -> law, such as a range; these are searched, in this order.
      constants: name -> number; part of every setting.
      feasible: settings of n evaluations -> bool (n,), True for those that may be evaluated; None
        if all may. It must not depend on private data.
    """

    parameters: Mapping[str, Law]
    constants: Mapping[str, float]
    feasible: Callable[[Settings], np.ndarray] | None

    def __init__(
        self,
        parameters: Mapping[str, Law | float] | None = None,
        /,
        *,
        feasible: Callable[[Settings], np.ndarray] | None = None,
        **named: Law | float,
    ):
        """Takes laws and constants as a mapping, by keyword, or both."""
        if parameters is not None:
            checks.mapping("parameters", parameters, "from names to ranges or numbers")
        if feasible is not None:
            checks.function("feasible", feasible, "of settings")
        ranges, constants = {}, {}
        for name, given in {**(parameters or {}), **named}.items():
            law = as_law(name, given)
            if law.lowest < law.highest:
                ranges[name] = law
            else:
                constants[name] = law.lowest
        if not ranges:
            raise ValueError(
                "the domain leaves nothing to search: pass at least one range, for example "
                "learning_rate=log(0.001,1)"
            )
        object.__setattr__(self, "parameters", ranges)
        object.__setattr__(self, "constants", constants)
        object.__setattr__(self, "feasible", feasible)

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the names in a setting: ranges, then constants."""
        return (*self.parameters, *self.constants)

    @property
    def dimension(self) -> int:
        """Counts the unit cube's coordinates: one per parameter, or one per value of a category."""
        return sum(map(_width, self.parameters.values()))

    def largest(self, name: str) -> float | None:
        """Returns the largest value of `name` in any setting; None for an unknown name."""
        if name in self.parameters:
            return self.parameters[name].highest
        return self.constants.get(name)

    def smallest(self, name: str) -> float | None:
        """Returns the least value of `name` in any setting; None for an unknown name."""
        if name in self.parameters:
            return self.parameters[name].lowest
        return self.constants.get(name)

    def from_unit(self, unit: np.ndarray) -> Settings:
        """Returns the settings at points (n, dimension); integers rounded, constants included."""
        unit = checks.array("unit", unit)
        if unit.ndim != 2 or unit.shape[1] != self.dimension:
            raise ValueError(f"points have shape {unit.shape}: pass (n, {self.dimension})")
        settings: Settings = {}
        end = 0
        for name, parameter in self.parameters.items():
            start, end = end, end + _width(parameter)
            settings[name] = _values(parameter, unit[:, start:end])
        return settings | {
            name: np.full(len(unit), value) for name, value in self.constants.items()
        }

    def to_unit(self, settings: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the points (n, dimension) float64 in the unit cube that stand for settings."""
        checks.mapping("settings", settings, "from names to arrays (n,)")
        return np.concatenate(
            [_columns(law, settings[name]) for name, law in self.parameters.items()], axis=1
        )

    def rounded(self, unit: np.ndarray) -> np.ndarray:
        """Returns the points (n, dimension) of the rounded settings of `unit`."""
        return self.to_unit(self.from_unit(unit))

    def allowed(self, unit: np.ndarray) -> np.ndarray:
        """Marks the points (n, dimension) that stand for feasible settings, bool (n,)."""
        return self.may_be_evaluated(self.from_unit(unit))

    def may_be_evaluated(self, settings: Settings) -> np.ndarray:
        """Marks the settings that are feasible, bool (n,)."""
        number = number_of(settings)
        if self.feasible is None:
            return np.ones(number, bool)
        return np.broadcast_to(np.asarray(self.feasible(settings), bool), number)

    def sample(self, number: int, generator: np.random.Generator) -> np.ndarray:
        """Draws points (number, dimension) float64, uniform over the feasible part of the cube."""
        number = checks.whole("number", number, 0)
        checks.instance("generator", generator, np.random.Generator, "np.random.default_rng(0)")
        kept = np.zeros((0, self.dimension))
        for _ in range(_DRAWS_FOR_FEASIBLE):
            drawn = generator.random((max(number, 1), self.dimension))
            kept = np.concatenate([kept, drawn[self.allowed(drawn)]])
            if len(kept) >= number:
                return kept[:number]
        if not len(kept):
            raise ValueError(f"no setting of the domain {self} is feasible: widen its ranges")
        return kept[np.arange(number) % len(kept)]

    def describe(self) -> dict[str, str | float]:
        """Returns the domain for JSON; `parse_domain` reads it back."""
        # A law has several names; records of earlier searches have the last.
        ranges = {name: law.text(law.words[-1]) for name, law in self.parameters.items()}
        return ranges | dict(self.constants)

    def __str__(self) -> str:
        return " ".join(f"{name}={given}" for name, given in self.describe().items())


def _width(law: Law) -> int:
    """Counts the coordinates of a law in the unit cube."""
    return len(law.values) if isinstance(law, Choice) and not law.ordered else 1


def _values(law: Law, unit: np.ndarray) -> np.ndarray:
    """Returns values (n,) at coordinates (n, width); a category's largest coordinate decides."""
    if isinstance(law, Choice) and not law.ordered:
        return np.asarray(law.values)[np.argmax(unit, axis=1)]
    return law.from_unit(unit[:, 0])


def _columns(law: Law, values: np.ndarray) -> np.ndarray:
    """Returns coordinates (n, width) of values (n,); a category has 1 at its place, 0 elsewhere."""
    if isinstance(law, Choice) and not law.ordered:
        away = np.abs(np.asarray(values, np.float64)[:, None] - np.asarray(law.values))
        return np.eye(len(law.values))[np.argmin(away, axis=1)]
    return law.to_unit(values)[:, None]


def parse_domain(entries: Sequence[str]) -> Domain:
    """Reads `["learning_rate=log(0.001,1)", "lot_size=log_integer(8,512)", "clip_norm=1"]`.

    Example:
      >>> from dpjax import pareto
      >>> pareto.parse_domain(["learning_rate=log(0.001,1)", "clip_norm=1"]).names
      ('learning_rate', 'clip_norm')
    """
    words = named_entries(entries, "the domain", "RANGE", "learning_rate=log(0.001,1)")
    return Domain({name: parse_law(text) for name, text in words.items()})


def grid(domain: Domain, points_per_parameter: int | Mapping[str, int]) -> Settings:
    """Returns every combination of evenly spaced values of each range, on the range's own scale.

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


def number_of(settings: Mapping[str, np.ndarray]) -> int:
    """Returns n, the number of evaluations in settings of (n,) each."""
    return len(next(iter(settings.values())))


def select(settings: Mapping[str, np.ndarray], which: np.ndarray | list[int] | slice) -> Settings:
    """Returns the settings at some positions: an index array, a mask or a slice."""
    return {name: np.asarray(values)[which] for name, values in settings.items()}
