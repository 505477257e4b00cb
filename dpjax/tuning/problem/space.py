"""Public laws of hyperparameters, and the space that every candidate is drawn from.

NumPy on the host; nothing here sees data. A law of one number is drawn from, written and read as
text, stated as JSON and rebuilt, listed as a grid, and mapped to and from the unit interval: all of
it in its class, so that a law of your own is one class with `named_law` above it. A `Space` is a
product of such laws, drawn anew for each candidate; `pareto.Domain` searches the unit cube of the
same laws.

Random repetitions (Papernot & Steinke, ICLR 2022) needs candidates that are independent,
identically distributed and drawn with replacement from a law that does not depend on the data. A
`Space` is such a law and nothing else.
"""

from __future__ import annotations

import abc
import dataclasses
import inspect
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from dpjax import checks

ACCOUNTED = ("noise_multiplier", "lot_size", "steps", "epochs")
"""Hyperparameters that a run's privacy cost depends on, which so have finitely many values."""

MOST_ACCOUNTED = 1000
"""Most values of such a hyperparameter: each is a setting, priced and trained by itself."""

_LAWS: dict[str, type[Law]] = {}
"""Laws by the words they are written with; filled by `named_law`."""


def _names(law: Any) -> list[str]:
    """Returns the names of a law's numbers: every law is a dataclass."""
    return [field.name for field in dataclasses.fields(law)]


class Law(abc.ABC):
    """A public law of one number. Subclasses are frozen dataclasses, named by `named_law`.

    A law of your own, whose fields are numbers, gives its ends and its quantiles; the rest follows:

    ```python
    import dataclasses

    import numpy as np

    from dpjax import tuning
    from dpjax.tuning.problem.space import Law, named_law


    @named_law("triangular")
    @dataclasses.dataclass(frozen=True)
    class Triangular(Law):
        \"\"\"Of density falling from 0 to high.\"\"\"

        high: float

        @property
        def lowest(self):
            return 0.0

        @property
        def highest(self):
            return self.high

        def from_unit(self, unit):
            return self.high * (1.0 - np.sqrt(1.0 - unit))

        def to_unit(self, values):
            return 1.0 - (1.0 - np.clip(values / self.high, 0.0, 1.0)) ** 2


    tuning.parse_space(["dropout=triangular(0.5)"])
    ```

    Its statements are rebuilt wherever the class is imported, and refused as unknown elsewhere.

    Attributes:
      values: all that are drawn, where they are finitely many; else None.
    """

    values: Sequence[float] | None = None

    words: ClassVar[tuple[str, ...]] = ()
    """What the law may be written as: statements have the first word, records of searches the
    last; set by `named_law`."""
    arguments: ClassVar[str | None] = None
    """What stands between the parentheses, for messages; None: the names of the fields."""
    whole: ClassVar[bool] = False
    """Whether every draw is a whole number."""
    labels: ClassVar[Sequence[str] | None] = None
    """What a release calls the values 0, 1, ..., where they stand for names."""

    @property
    @abc.abstractmethod
    def lowest(self) -> float:
        """Returns the smallest value drawn."""

    @property
    @abc.abstractmethod
    def highest(self) -> float:
        """Returns the largest value drawn."""

    @property
    def weights(self) -> tuple[float, ...] | None:
        """Returns the probability of each of the values, where they are finitely many."""
        return None

    @abc.abstractmethod
    def from_unit(self, unit: np.ndarray) -> np.ndarray:
        """Returns values (n,) float64 at points (n,) of the unit interval: its quantiles."""

    @abc.abstractmethod
    def to_unit(self, values: np.ndarray) -> np.ndarray:
        """Returns the values' points (n,) of the unit interval; outside the law, its nearer end."""

    def sample(self, number: int, generator: np.random.Generator) -> np.ndarray:
        """Returns `number` independent draws with replacement, float64."""
        number = _checked_draws(number, generator)
        return self.from_unit(generator.random(number))

    def grid(self, points: int) -> np.ndarray:
        """Returns (points,) values, evenly spaced in the unit interval; one is its middle."""
        return self.from_unit(np.linspace(0.0, 1.0, points) if points > 1 else np.array([0.5]))

    def describe(self) -> dict[str, Any]:
        """Returns the law as data for JSON; `law_from` rebuilds it."""
        return {"law": self.words[0]} | {name: getattr(self, name) for name in _names(self)}

    def text(self, word: str | None = None) -> str:
        """Returns text that `parse_law` reads back to the same numbers; `word` names the law."""
        numbers = [getattr(self, name) for name in _names(self)]
        return f"{word or self.words[0]}({','.join(map(self._written, numbers))})"

    def __str__(self) -> str:
        return self.text()

    @classmethod
    def usage(cls) -> str:
        """Returns how the law is written, such as uniform(low,high)."""
        arguments = ",".join(_names(cls)) if cls.arguments is None else cls.arguments
        return f"{cls.words[0]}({arguments})"

    @classmethod
    def read(cls, arguments: str) -> dict[str, Any]:
        """Reads the constructor's arguments from the text between the parentheses."""
        return dict(zip(_names(cls), map(float, arguments.split(",")), strict=True))

    def _written(self, number: float) -> str:
        """Writes a number as text that reads back to the same number."""
        if self.whole and float(number).is_integer():
            return repr(int(number))
        return repr(float(number))


def named_law(*words: str) -> Callable[[type[Law]], type[Law]]:
    """Registers a law, which is written as `word(numbers)` in flags, statements and records."""

    def register(cls: type[Law]) -> type[Law]:
        for word in words:
            if not (word.isidentifier() and word.isascii() and word == word.lower()):
                raise ValueError(f"a law cannot be named {word!r}: pass a lower-case identifier")
            if word in _LAWS:
                raise ValueError(f"a law named {word!r} is there already: choose another name")
        if not words:
            raise ValueError(f"{cls.__name__} needs a name: pass at least one word")
        cls.words = words
        _LAWS.update(dict.fromkeys(words, cls))
        return cls

    return register


@dataclasses.dataclass(frozen=True)
class _Range(Law):
    """Numbers from low to high, evenly spread in the unit interval on a scale of their own."""

    low: float
    high: float

    logarithmic: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            end = getattr(self, name)
            object.__setattr__(self, name, checks.kept(end, checks.number(name, end)))
        low, high = self.low, self.high
        if not low < high:
            raise ValueError(
                f"{self}: no number lies in this range: pass finite low < high, or a number alone"
            )
        if self.logarithmic and not low > 0:
            raise ValueError(f"{self}: pass low above 0, or a range that is not logarithmic")
        if self.whole and not (low == round(low) and high == round(high)):
            raise ValueError(f"{self}: pass whole numbers as the ends of a range of integers")

    @property
    def lowest(self) -> float:
        return self.low

    @property
    def highest(self) -> float:
        return self.high

    def from_unit(self, unit: np.ndarray) -> np.ndarray:
        low, high = self._ends()
        values = low + np.asarray(unit, np.float64) * (high - low)
        values = np.exp(values) if self.logarithmic else values
        # Rounding of the scale must not leave the range.
        return np.clip(np.round(values) if self.whole else values, self.low, self.high)

    def to_unit(self, values: np.ndarray) -> np.ndarray:
        low, high = self._ends()
        inside = np.clip(np.asarray(values, np.float64), self.low, self.high)
        return np.clip((self._scaled(inside) - low) / (high - low), 0.0, 1.0)

    def _ends(self) -> np.ndarray:
        """Returns where 0 and 1 lie on the scale, (2,).

        Of whole numbers that is half a number beyond the ends, so that as much rounds to an end as
        to any other number.
        """
        beyond = 0.5 if self.whole else 0.0
        return self._scaled(np.array([self.low - beyond, self.high + beyond]))

    def _scaled(self, values: np.ndarray) -> np.ndarray:
        return np.log(values) if self.logarithmic else values


@named_law("uniform", "real")
@dataclasses.dataclass(frozen=True)
class Uniform(_Range):
    """Uniform on [low, high]."""

    # NumPy's own draws rather than `from_unit`, so that a seed gives what it always gave.
    def sample(self, number: int, generator: np.random.Generator) -> np.ndarray:
        number = _checked_draws(number, generator)
        return generator.uniform(self.low, self.high, number)


@named_law("loguniform", "log_uniform", "log")
@dataclasses.dataclass(frozen=True)
class LogUniform(_Range):
    """exp of a uniform on [log low, log high]."""

    logarithmic: ClassVar[bool] = True

    def sample(self, number: int, generator: np.random.Generator) -> np.ndarray:
        number = _checked_draws(number, generator)
        return np.exp(generator.uniform(math.log(self.low), math.log(self.high), number))


@named_law("integer")
@dataclasses.dataclass(frozen=True)
class Integer(_Range):
    """Whole numbers, both ends included, equally likely."""

    whole: ClassVar[bool] = True

    @property
    def values(self) -> Sequence[float]:  # type: ignore[override]  # Of laws nobody assigns.
        return range(round(self.low), round(self.high) + 1)

    @property
    def weights(self) -> tuple[float, ...]:
        ends = np.arange(self.low, self.high + 2) - 0.5
        shares = np.diff(self._scaled(ends))
        return tuple((shares / shares.sum()).tolist())


@named_law("log_integer")
@dataclasses.dataclass(frozen=True)
class LogInteger(Integer):
    """Positive whole numbers, both ends included, evenly spread in their logarithm."""

    logarithmic: ClassVar[bool] = True


@named_law("choice")
@dataclasses.dataclass(frozen=True)
class Choice(Law):
    """One of finitely many numbers, with public probabilities (equal ones by default).

    Example:
      >>> from dpjax import tuning
      >>> tuning.Choice([0.5, 0.9], probabilities=[0.25, 0.75])
      Choice(values=(0.5, 0.9), probabilities=(0.25, 0.75))
    """

    ordered: ClassVar[bool] = True

    values: tuple[float, ...]
    probabilities: tuple[float, ...] | None = None

    arguments: ClassVar[str] = "a,b,..."

    def __init__(self, values: Sequence[float], probabilities: Sequence[float] | None = None):
        numbers = tuple(checks.vector("values", values).tolist())
        if probabilities is not None:
            probabilities = tuple(checks.vector("probabilities", probabilities).tolist())
            if (
                len(probabilities) != len(numbers)
                or min(probabilities) < 0
                or abs(math.fsum(probabilities) - 1) > 1e-9
            ):
                raise ValueError(
                    f"choice{numbers}: pass one probability >= 0 for each value, summing to 1"
                )
        object.__setattr__(self, "values", numbers)
        object.__setattr__(self, "probabilities", probabilities)

    @property
    def lowest(self) -> float:
        return min(self.values)

    @property
    def highest(self) -> float:
        return max(self.values)

    @property
    def weights(self) -> tuple[float, ...]:
        return self.probabilities or (1.0 / len(self.values),) * len(self.values)

    def sample(self, number: int, generator: np.random.Generator) -> np.ndarray:
        number = _checked_draws(number, generator)
        return np.asarray(self.values)[
            generator.choice(len(self.values), size=number, p=self.weights)
        ]

    def from_unit(self, unit: np.ndarray) -> np.ndarray:
        values, ends = self._in_order()
        which = np.searchsorted(ends, np.asarray(unit, np.float64), side="right")
        return values[np.minimum(which, len(values) - 1)]

    def to_unit(self, values: np.ndarray) -> np.ndarray:
        ordered, ends = self._in_order()
        away = np.abs(np.asarray(values, np.float64)[:, None] - ordered[None, :])
        # The middle of the nearest value's share of the unit interval.
        return ((np.append(0.0, ends[:-1]) + ends) / 2)[np.argmin(away, axis=1)]

    def _in_order(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns values by size and where their shares of the unit interval end, (k,) each."""
        order = np.argsort(self.values, kind="stable")
        ends = np.cumsum(np.asarray(self.weights)[order])
        return np.asarray(self.values)[order], ends / ends[-1]

    def describe(self) -> dict[str, Any]:
        """Returns the law as data for JSON, equal probabilities spelled out."""
        return {"law": "choice", "values": list(self.values), "probabilities": list(self.weights)}

    def text(self, word: str | None = None) -> str:
        """Returns text as `Law.text` does; probabilities, if given, follow a semicolon."""
        parts = [self.values, *([] if self.probabilities is None else [self.probabilities])]
        numbers = ";".join(",".join(map(self._written, part)) for part in parts)
        return f"{word or self.words[0]}({numbers})"

    @classmethod
    def read(cls, arguments: str) -> dict[str, Any]:
        """Reads values, and probabilities if they follow a semicolon."""
        values, *probabilities = (
            [float(number) for number in part.split(",")] for part in arguments.split(";")
        )
        if len(probabilities) > 1:
            raise ValueError
        return {"values": values, "probabilities": probabilities[0] if probabilities else None}


@named_law("category")
@dataclasses.dataclass(frozen=True, init=False)
class Category(Choice):
    """One of finitely many numbers that stand for names: neither their order nor distances count.

    Drawn with equal probabilities; a search's models see a coordinate of its own for each.
    """

    ordered: ClassVar[bool] = False

    def __init__(self, values: Sequence[float]):
        super().__init__(values)
        if len(set(self.values)) < len(self.values):
            raise ValueError(f"category{self.values}: pass every number once")

    def describe(self) -> dict[str, Any]:
        return {"law": "category", "values": list(self.values)}

    @classmethod
    def read(cls, arguments: str) -> dict[str, Any]:
        return {"values": [float(number) for number in arguments.split(",")]}


def _checked_draws(number: int, generator: np.random.Generator) -> int:
    """Checks what `sample` is given, and returns the number of draws as an int."""
    checks.instance("generator", generator, np.random.Generator, "np.random.default_rng(0)")
    return checks.whole("number", number, 0)


def as_law(name: str, given: Law | float) -> Law:
    """Returns the distribution of a hyperparameter; a bare number is a constant."""
    checks.text("a name of the parameters", name)
    if isinstance(given, Law):
        law = given
    else:
        wanted = "a law, such as tuning.Choice([0.1, 1]) or LogUniform(0.1, 1), or a finite number"
        law = Choice([checks.number(name, given, wanted)])
    # A subclass of a named law inherits its name: a release would state the wrong law.
    if not law.words or _LAWS[law.words[0]] is not type(law):
        raise ValueError(
            f"the law of {name} has no name to state it by: decorate {type(law).__name__} with "
            "named_law('its_name')"
        )
    return law


@dataclasses.dataclass(frozen=True)
class Space:
    """A product of independent public laws, one for each named hyperparameter.

    A bare number stands for a constant. `noise_multiplier`, `lot_size`, `steps` and `epochs` change
    what a run costs in privacy, so they must have finitely many values (`Choice`, `Integer` or a
    number): the cost of a candidate is then the mixture of the costs of the settings it may have.

    Formal guarantees:
      `sample` draws candidates independently, with replacement, from one law that is fixed when the
      space is made; no method takes data. This is the precondition on candidates of Papernot &
      Steinke (ICLR 2022), Theorems 2 and 6.

    Example:
      >>> from dpjax import tuning
      >>> space = tuning.Space(learning_rate=tuning.LogUniform(0.01, 1.0), clip_norm=1.0)
      >>> sorted(space.parameters)
      ['clip_norm', 'learning_rate']
    """

    parameters: Mapping[str, Law]

    def __init__(self, parameters: Mapping[str, Law | float] | None = None, /, **named):
        if parameters is not None:
            checks.mapping("parameters", parameters, "from names to laws or numbers")
        merged = {**(parameters or {}), **named}
        if not merged:
            raise ValueError(
                "the search space is empty: name at least one hyperparameter, for example "
                "learning_rate=loguniform(0.01,10)"
            )
        laws = {name: as_law(name, given) for name, given in merged.items()}
        for name in (name for name in ACCOUNTED if name in laws):
            values = laws[name].values
            if values is None:
                raise ValueError(
                    f"{name} changes the privacy cost of a run, so a continuous law for it cannot "
                    f"be accounted: pass finitely many values, for example {name}=choice(1,2,4)"
                )
            if len(values) > MOST_ACCOUNTED:
                raise ValueError(
                    f"{name} has {len(values)} values, and a run of each is priced by itself: pass "
                    f"at most {MOST_ACCOUNTED}, for example {name}=choice(1,2,4)"
                )
        if "steps" in laws and "epochs" in laws:
            raise ValueError("the search space has both steps and epochs: keep one of them")
        object.__setattr__(self, "parameters", laws)

    def sample(self, number: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draws candidates.

        Args:
          number: how many, at least 0.
          generator: NumPy's generator; the distribution is public, the draws are not.

        Returns:
          For each hyperparameter an array of shape (number,), float64.
        """
        return {
            name: _as_priced(name, law).sample(number, generator)
            for name, law in self.parameters.items()
        }

    def accounted_settings(self) -> Iterator[tuple[dict[str, float], float]]:
        """Yields every combination of the values accounting depends on, with its probability."""
        names = [name for name in ACCOUNTED if name in self.parameters]
        laws = [self.parameters[name] for name in names]
        weighted = (zip(law.values or (), law.weights or (), strict=True) for law in laws)
        for picks in itertools.product(*weighted):
            yield {n: v for n, (v, _) in zip(names, picks)}, math.prod(w for _, w in picks)

    def describe(self) -> dict:
        """Returns the space as data for JSON, names sorted."""
        return {name: self.parameters[name].describe() for name in sorted(self.parameters)}


def _as_priced(name: str, law: Law) -> Law:
    """Returns the law to draw from: where the accounting reads it, its values and weights alone.

    A user-defined law may draw otherwise than its weights say, and it is priced by its weights.
    """
    if name not in ACCOUNTED or type(law).__module__ == __name__:
        return law
    return Choice(law.values or (), law.weights)


def space_from(description: Mapping[str, Mapping]) -> Space:
    """Rebuilds a space from its description; raises a KeyError if a field is missing."""
    laws = {}
    for name, law in description.items():
        if law["law"] not in _LAWS:
            raise ValueError(f"the law of {name} is not one of {', '.join(_LAWS)}")
        kind = _LAWS[law["law"]]
        laws[name] = kind(**{one: law[one] for one in inspect.signature(kind).parameters})
    return Space(laws)


_CALL = re.compile(r"^([a-z_][a-z0-9_]*)\((.*)\)$")


def parse_law(text: str) -> Law:
    """Reads `loguniform(0.01,10)`, `uniform(0,0.9)`, `integer(1,9)`, `choice(1,2,4)` or a number.

    `log_uniform` and `log` are read as `loguniform`, `log_normal` as `lognormal`, and `real` as
    `uniform`.
    """
    compact = checks.text("text", text).replace(" ", "").lower()
    match = _CALL.match(compact)
    try:
        if match is None:
            return Choice([float(compact)])
        kind = _LAWS[match[1]]
    except (KeyError, ValueError):
        laws = ", ".join(law.usage() for law in dict.fromkeys(_LAWS.values()) if not law.labels)
        raise ValueError(f"cannot read {text!r}: write {laws} or a number") from None
    try:
        given = kind.read(match[2])
    except ValueError:
        raise ValueError(f"cannot read {text!r}: write {kind.usage()}") from None
    return kind(**given)


def parse_space(entries: Sequence[str]) -> Space:
    """Reads `["learning_rate=loguniform(0.01,10)", "clip_norm=1"]`.

    Example:
      >>> from dpjax import tuning
      >>> tuning.parse_space(["learning_rate=loguniform(0.01,10)"]).parameters["learning_rate"]
      LogUniform(low=0.01, high=10.0)
    """
    words = named_entries(entries, "the search space", "LAW", "learning_rate=loguniform(0.01,10)")
    return Space({name: parse_law(text) for name, text in words.items()})


def named_entries(entries: Sequence[str], of: str, what: str, example: str) -> dict[str, str]:
    """Splits `["name=text", ...]`; errors name the whole (`of`), a text (`what`) and `example`."""
    found: dict[str, str] = {}
    for entry in checks.listed("entries", entries, f"texts such as {example!r}"):
        name, equals, text = checks.text("each of the entries", entry).partition("=")
        name = name.strip()
        if not equals or not name.isidentifier():
            raise ValueError(f"cannot read {entry!r}: write NAME={what}, for example {example}")
        if name in found:
            raise ValueError(f"{of} names {name} twice: keep one of them")
        found[name] = text
    return found
