"""Domains of a search: named ranges of hyperparameters, and the unit cube the models see.

A range is linear or logarithmic, of real numbers or of integers. The models and the acquisition
work in the unit cube; an integer is rounded when a setting is evaluated and nowhere else, as in
Avent et al. 2020, so that two points of the cube may stand for one setting.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dpjax import checks
from dpjax.tuning.candidates import named_entries

Settings = dict[str, np.ndarray]
"""Settings of n evaluations: name -> float64 array (n,)."""

_DRAWS_FOR_FEASIBLE = 200
"""Draws per wanted point before a domain is said to hold no feasible setting."""


@dataclasses.dataclass(frozen=True)
class _Range:
    """Numbers from low to high, evenly spread in the unit interval on a scale of their own."""

    low: float
    high: float

    word = ""
    logarithmic = False
    whole = False

    def __post_init__(self) -> None:
        low, high = (checks.number(name, getattr(self, name)) for name in ("low", "high"))
        if not low < high:
            raise ValueError(
                f"{self}: no number lies in this range: pass finite low < high, or a number alone"
            )
        if self.logarithmic and not low > 0:
            raise ValueError(f"{self}: pass low above 0, or a range that is not logarithmic")
        if self.whole and not (low == round(low) and high == round(high)):
            raise ValueError(f"{self}: pass whole numbers as the ends of a range of integers")

    def __str__(self) -> str:
        return f"{self.word}({self.low:g},{self.high:g})"

    def from_unit(self, unit: np.ndarray) -> np.ndarray:
        """Numbers (n,) float64 of points (n,) of the unit interval; whole where they must be."""
        low, high = self._ends()
        values = low + np.asarray(unit, np.float64) * (high - low)
        values = np.exp(values) if self.logarithmic else values
        # Rounding of the scale must not leave the range.
        return np.clip(np.round(values) if self.whole else values, self.low, self.high)

    def to_unit(self, values: np.ndarray) -> np.ndarray:
        """Points (n,) of the unit interval; values outside the range lie at its nearer end."""
        low, high = self._ends()
        inside = np.clip(np.asarray(values, np.float64), self.low, self.high)
        return np.clip((self._scaled(inside) - low) / (high - low), 0.0, 1.0)

    def _ends(self) -> np.ndarray:
        """What 0 and 1 stand for on the scale, (2,).

        Half beyond the ends where numbers are rounded: an end is then what rounds to it from both
        sides, like every other number, and is drawn as often.
        """
        beyond = 0.5 if self.whole else 0.0
        return self._scaled(np.array([self.low - beyond, self.high + beyond]))

    def _scaled(self, values: np.ndarray) -> np.ndarray:
        return np.log(values) if self.logarithmic else values


class Real(_Range):
    """Real numbers, on a linear scale."""

    word = "real"


class Log(_Range):
    """Positive real numbers, on a logarithmic scale."""

    word = "log"
    logarithmic = True


class Integer(_Range):
    """Whole numbers, both ends included, on a linear scale."""

    word = "integer"
    whole = True


class LogInteger(_Range):
    """Positive whole numbers, both ends included, on a logarithmic scale."""

    word = "log_integer"
    logarithmic = True
    whole = True


Parameter = Real | Log | Integer | LogInteger

_WORDS = {kind.word: kind for kind in (Real, Log, Integer, LogInteger)}
# The words that `tuning.parse_space` knows the same ranges by.
_WORDS |= {"uniform": Real, "loguniform": Log}
_CALL = re.compile(r"^([a-z_]+)\(([^,()]+),([^,()]+)\)$")


@dataclasses.dataclass(frozen=True)
class Domain:
    """Ranges and constants by name; what a search may choose.

    Attributes:
      parameters: name -> range; these are searched, in this order.
      constants: name -> number; part of every setting.
      feasible: settings of n evaluations -> bool (n,), True for those that may be evaluated; None
        if all may. It must not depend on private data.
    """

    parameters: Mapping[str, Parameter]
    constants: Mapping[str, float]
    feasible: Callable[[Settings], np.ndarray] | None

    def __init__(
        self,
        parameters: Mapping[str, Parameter | float] | None = None,
        /,
        *,
        feasible: Callable[[Settings], np.ndarray] | None = None,
        **named: Parameter | float,
    ):
        """Takes ranges and constants as a mapping, by keyword, or both.

        Raises:
          ValueError: if nothing is left to search.
        """
        if parameters is not None:
            checks.mapping("parameters", parameters, "from names to ranges or numbers")
        if feasible is not None:
            checks.function("feasible", feasible, "of settings")
        ranges, constants = {}, {}
        for name, given in {**(parameters or {}), **named}.items():
            checks.text("a name of the parameters", name)
            if isinstance(given, _Range):
                ranges[name] = given
            else:
                constants[name] = checks.number(name, given, "a range, or a finite number")
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
        """What a setting consists of: ranges, then constants."""
        return (*self.parameters, *self.constants)

    @property
    def dimension(self) -> int:
        """Of the unit cube."""
        return len(self.parameters)

    def largest(self, name: str) -> float | None:
        """The largest value a setting may have under a name; None if it has none."""
        if name in self.parameters:
            return self.parameters[name].high
        return self.constants.get(name)

    def from_unit(self, unit: np.ndarray) -> Settings:
        """Settings (n,) each of points (n, dimension); integers rounded, constants included."""
        unit = checks.array("unit", unit)
        if unit.ndim != 2 or unit.shape[1] != self.dimension:
            raise ValueError(f"points have shape {unit.shape}: pass (n, {self.dimension})")
        settings = {
            name: parameter.from_unit(unit[:, column])
            for column, (name, parameter) in enumerate(self.parameters.items())
        }
        return settings | {
            name: np.full(len(unit), value) for name, value in self.constants.items()
        }

    def to_unit(self, settings: Mapping[str, np.ndarray]) -> np.ndarray:
        """Points (n, dimension) float64 in the unit cube of settings (n,) each."""
        checks.mapping("settings", settings, "from names to arrays (n,)")
        return np.stack(
            [parameter.to_unit(settings[name]) for name, parameter in self.parameters.items()],
            axis=1,
        )

    def allowed(self, unit: np.ndarray) -> np.ndarray:
        """Which points (n, dimension) stand for feasible settings, bool (n,)."""
        if self.feasible is None:
            return np.ones(len(unit), bool)
        return np.broadcast_to(np.asarray(self.feasible(self.from_unit(unit)), bool), len(unit))

    def sample(self, number: int, generator: np.random.Generator) -> np.ndarray:
        """Feasible points (number, dimension) float64, uniform over those of the unit cube.

        Raises:
          ValueError: if no feasible setting is found.
        """
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
        """The domain as JSON-able data; `parse_domain` reads it back."""
        ranges = {name: repr_of(parameter) for name, parameter in self.parameters.items()}
        return ranges | dict(self.constants)

    def __str__(self) -> str:
        return " ".join(f"{name}={given}" for name, given in self.describe().items())


def repr_of(parameter: Parameter) -> str:
    """A range as text that `parse_parameter` reads back to the same numbers."""
    ends = [
        repr(int(end) if parameter.whole else float(end)) for end in (parameter.low, parameter.high)
    ]
    return f"{parameter.word}({ends[0]},{ends[1]})"


def parse_parameter(text: str) -> Parameter | float:
    """Reads `real(0.1,4)`, `log(0.001,1)`, `integer(1,64)`, `log_integer(8,512)` or a number.

    `uniform` and `loguniform` are accepted for `real` and `log`.

    Raises:
      ValueError: for anything else, saying what may be written.
    """
    compact = checks.text("text", text).replace(" ", "").lower()
    match = _CALL.match(compact)
    try:
        if match is None:
            return float(compact)
        kind = _WORDS[match[1]]
        low, high = float(match[2]), float(match[3])
    except (ValueError, KeyError):
        raise ValueError(
            f"cannot read {text!r}: write real(low,high), log(low,high), integer(low,high), "
            "log_integer(low,high) or a number"
        ) from None
    return kind(low, high)


def parse_domain(entries: Sequence[str]) -> Domain:
    """Reads `["learning_rate=log(0.001,1)", "lot_size=log_integer(8,512)", "clip_norm=1"]`.

    Raises:
      ValueError: for an entry without a name, a name given twice, an unreadable or empty range.
    """
    words = named_entries(entries, "the domain", "RANGE", "learning_rate=log(0.001,1)")
    return Domain({name: parse_parameter(text) for name, text in words.items()})


def number_of(settings: Mapping[str, np.ndarray]) -> int:
    """How many evaluations these are the settings of."""
    return len(next(iter(settings.values())))


def select(settings: Mapping[str, np.ndarray], which: object) -> Settings:
    """The settings at some positions: an index array, a mask or a slice."""
    return {name: np.asarray(values)[which] for name, values in settings.items()}


def concatenate(parts: Sequence[Mapping[str, np.ndarray]]) -> Settings:
    """All parts' settings one after the other."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
