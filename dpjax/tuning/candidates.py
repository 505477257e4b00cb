"""Search spaces: the public law that every candidate's hyperparameters are drawn from.

NumPy on the host; nothing here sees data. Random repetitions (Papernot & Steinke, ICLR 2022) needs
candidates that are independent, identically distributed and drawn with replacement from a law that
does not depend on the data. A `Space` is such a law and nothing else: a product of independent
one-dimensional laws, drawn anew for each candidate.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from dpjax import checks

ACCOUNTED = ("noise_multiplier", "lot_size", "steps", "epochs")
"""Hyperparameters that a run's privacy cost depends on: finitely many values, please."""


@dataclasses.dataclass(frozen=True)
class _Interval:
    """The ends of a continuous law."""

    low: float
    high: float

    def __post_init__(self):
        for name in ("low", "high"):
            end = getattr(self, name)
            object.__setattr__(self, name, checks.kept(end, checks.number(name, end)))

    @property
    def lowest(self) -> float:
        """The smallest value drawn."""
        return self.low


@dataclasses.dataclass(frozen=True)
class Uniform(_Interval):
    """Uniform on [low, high]."""

    def __post_init__(self):
        super().__post_init__()
        if not self.low < self.high:
            raise ValueError(f"uniform({self.low},{self.high}): pass finite low < high")

    def sample(self, number: int, generator: np.random.Generator) -> np.ndarray:
        """Returns `number` independent draws, float64."""
        number = _checked_draws(number, generator)
        return generator.uniform(self.low, self.high, number)

    def describe(self) -> dict:
        """Returns the law as JSON-able data."""
        return {"law": "uniform", "low": self.low, "high": self.high}


@dataclasses.dataclass(frozen=True)
class LogUniform(_Interval):
    """exp of a uniform on [log low, log high]."""

    def __post_init__(self):
        super().__post_init__()
        if not 0 < self.low < self.high:
            raise ValueError(f"loguniform({self.low},{self.high}): pass 0 < low < high")

    def sample(self, number: int, generator: np.random.Generator) -> np.ndarray:
        """Returns `number` independent draws, float64."""
        number = _checked_draws(number, generator)
        return np.exp(generator.uniform(math.log(self.low), math.log(self.high), number))

    def describe(self) -> dict:
        """Returns the law as JSON-able data."""
        return {"law": "loguniform", "low": self.low, "high": self.high}


@dataclasses.dataclass(frozen=True)
class Choice:
    """One of finitely many numbers, with public probabilities (equal ones by default)."""

    values: tuple[float, ...]
    probabilities: tuple[float, ...] | None = None

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
        """The smallest value drawn."""
        return min(self.values)

    @property
    def weights(self) -> tuple[float, ...]:
        """The probability of each value."""
        return self.probabilities or (1.0 / len(self.values),) * len(self.values)

    def sample(self, number: int, generator: np.random.Generator) -> np.ndarray:
        """Returns `number` independent draws with replacement, float64."""
        number = _checked_draws(number, generator)
        return np.asarray(self.values)[
            generator.choice(len(self.values), size=number, p=self.weights)
        ]

    def describe(self) -> dict:
        """Returns the law as JSON-able data."""
        return {"law": "choice", "values": list(self.values), "probabilities": list(self.weights)}


Law = Uniform | LogUniform | Choice


def _checked_draws(number: int, generator: np.random.Generator) -> int:
    """The number of draws as an int."""
    checks.instance("generator", generator, np.random.Generator, "np.random.default_rng(0)")
    return checks.whole("number", number, 0)


@dataclasses.dataclass(frozen=True)
class Space:
    """A product of independent public laws, one for each named hyperparameter.

    A bare number stands for a constant. `noise_multiplier`, `lot_size`, `steps` and `epochs` change
    what a run costs in privacy, so they must have finitely many values (`Choice` or a number): the
    cost of a candidate is then the mixture of the costs of the settings it may have.

    Formal guarantees:
      `sample` draws candidates independently, with replacement, from one law that is fixed when the
      space is made; no method takes data. This is the precondition on candidates of Papernot &
      Steinke (ICLR 2022), Theorems 2 and 6.

    Raises:
      ValueError: if the space is empty, or a hyperparameter that accounting depends on is
        continuous.
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
        laws = {}
        for name, law in merged.items():
            checks.text("a name of the parameters", name)
            if not isinstance(law, Law):
                law = Choice([checks.number(name, law, "a law, or a finite number")])
            if name in ACCOUNTED and not isinstance(law, Choice):
                raise ValueError(
                    f"{name} changes the privacy cost of a run, so a continuous law for it cannot "
                    f"be accounted: pass finitely many values, for example {name}=choice(1,2,4)"
                )
            laws[name] = law
        if "steps" in laws and "epochs" in laws:
            raise ValueError("the search space has both steps and epochs: keep one of them")
        object.__setattr__(self, "parameters", laws)

    def sample(self, number: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draws candidates.

        Args:
          number: how many, at least 0.
          generator: NumPy's generator; the draws are public knowledge in law, not in value.

        Returns:
          For each hyperparameter an array of shape (number,), float64.
        """
        return {name: law.sample(number, generator) for name, law in self.parameters.items()}

    def accounted_settings(self) -> Iterator[tuple[dict[str, float], float]]:
        """Yields every combination of the values accounting depends on, with its probability."""
        names = [name for name in ACCOUNTED if name in self.parameters]
        laws = [self.parameters[name] for name in names]
        for picks in itertools.product(*(zip(law.values, law.weights) for law in laws)):
            yield {n: v for n, (v, _) in zip(names, picks)}, math.prod(w for _, w in picks)

    def describe(self) -> dict:
        """Returns the space as JSON-able data, names sorted."""
        return {name: self.parameters[name].describe() for name in sorted(self.parameters)}


def space_from(description: Mapping[str, Mapping]) -> Space:
    """The space that wrote a description.

    Raises:
      ValueError: for a law that is none.
      KeyError: for a word that is missing.
    """
    makers = {
        "uniform": lambda law: Uniform(law["low"], law["high"]),
        "loguniform": lambda law: LogUniform(law["low"], law["high"]),
        "choice": lambda law: Choice(law["values"], law["probabilities"]),
    }
    for name, law in description.items():
        if law["law"] not in makers:
            raise ValueError(f"the law of {name} is none of {', '.join(makers)}")
    return Space({name: makers[law["law"]](law) for name, law in description.items()})


_CALL = re.compile(r"^(uniform|loguniform|choice)\((.*)\)$")


def parse_law(text: str) -> Law:
    """Reads `loguniform(0.01,10)`, `uniform(0,0.9)`, `choice(1,2,4)` or a number.

    Raises:
      ValueError: for anything else, saying what may be written.
    """
    compact = text.replace(" ", "").lower()
    match = _CALL.match(compact)
    try:
        if not match:
            return Choice([float(compact)])
        numbers = [float(part) for part in match.group(2).split(",")]
    except ValueError:
        raise ValueError(
            f"cannot read {text!r}: write loguniform(low,high), uniform(low,high), "
            "choice(a,b,...) or a number"
        ) from None
    if match.group(1) == "choice":
        return Choice(numbers)
    if len(numbers) != 2:
        raise ValueError(f"cannot read {text!r}: write {match.group(1)}(low,high)")
    return (Uniform if match.group(1) == "uniform" else LogUniform)(*numbers)


def parse_space(entries: Sequence[str]) -> Space:
    """Reads `["learning_rate=loguniform(0.01,10)", "clip_norm=1"]`.

    Raises:
      ValueError: for an entry without a name, a name given twice, or an unreadable law.
    """
    words = named_entries(entries, "the search space", "LAW", "learning_rate=loguniform(0.01,10)")
    return Space({name: parse_law(text) for name, text in words.items()})


def named_entries(entries: Sequence[str], of: str, what: str, example: str) -> dict[str, str]:
    """Splits `["name=text", ...]`; for the errors `of` what they are, `what` a text is, `example`.

    Raises:
      ValueError: for an entry without a name, or a name given twice.
    """
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


def read_space(path: str) -> Space:
    """Reads a space from a JSON file: an object of names and laws, the laws as `parse_law` has it.

    Example: `{"learning_rate": "loguniform(0.01,10)", "clip_norm": [0.5, 1.0]}`.

    Raises:
      ValueError: if the file is no such object.
    """
    checks.path("path", path)
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"cannot read the search space from {path}: {error}; pass a JSON object such as "
            '{"learning_rate": "loguniform(0.01,10)"}'
        ) from None
    if not isinstance(content, dict):
        raise ValueError(
            f"{path} holds no JSON object: write names and laws, for example "
            '{"learning_rate": "loguniform(0.01,10)"}'
        )
    return parse_space([f"{name}={_as_text(law)}" for name, law in content.items()])


def _as_text(law: object) -> str:
    """A JSON list stands for a choice."""
    if isinstance(law, list):
        return f"choice({','.join(map(str, law))})"
    return str(law)
