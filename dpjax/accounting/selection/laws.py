"""Laws (probability distributions) of the number of runs K, also by a table or with a cap.

A law must be fixed before the data is seen. All functions are evaluated in y = 1 - x, where the
generating function f(x) = E[x^K] loses no digits near x = 1.
The law gives the bounds on a selection's cost. The defaults here hold for every law; a family with
a theorem of its own (`families.py`) overrides them.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np

from dpjax import checks
from dpjax.accounting.numerics.tradeoff import largest_mass

if TYPE_CHECKING:
    from dpjax.accounting.guarantee import Guarantee
    from dpjax.accounting.numerics.renyi import RenyiCurve

LONGEST_TABLE = 1 << 22
"""Largest K that can be drawn: longer tables, only needed for means near a million, are refused."""

LARGEST_TABULATED = 1_000_000
"""Largest K whose functions are sums over a table of masses."""

LogMoment = Callable[[np.ndarray], np.ndarray]


class RepetitionLaw(abc.ABC):
    """Law of K, the number of runs; its families are frozen dataclasses.

    A law of your own is `Tabulated`, a table of its masses, which every bound of `best_of` reads:

    ```python
    import numpy as np

    from dpjax import accounting

    k = np.arange(1, 41)
    masses = k**-3.0
    law = accounting.Tabulated(k, masses / masses.sum())
    accounting.best_of(accounting.gaussian(2.0), law).epsilon(1e-6)
    ```

    Attributes:
      mean: E[K], finite and > 0.
    """

    if TYPE_CHECKING:  # Properties here would stand in the way of a family's fields.

        @property
        def mean(self) -> float: ...

        @property
        def _table(self) -> np.ndarray:
            """Returns P[K = k] at k = 0..maximum, (maximum + 1,), of a law without formulas."""

    family: ClassVar[str]
    """The name that `law_from_dict` knows the law by; set by the decorator `law_family`."""
    _written: ClassVar[dict[str, str]]
    """Field -> the name that `to_dict` writes it under; set with `family`."""
    has_formulas: ClassVar[bool] = False
    """Whether the functions are formulas, quick at any number of points."""

    @property
    def envelope_suffices(self) -> bool:
        """Returns whether the exact bound gains nothing on the envelope at small deltas."""
        return False

    @property
    def minimum(self) -> int:
        """Returns the smallest K of positive probability."""
        return int(np.argmax(self._table > 0.0))

    @property
    def maximum(self) -> float:
        """Returns the largest K of positive probability; inf if K is unbounded."""
        return math.inf

    @abc.abstractmethod
    def log_pmf(self, k: np.ndarray) -> np.ndarray:
        """Returns log P[K = k] at whole numbers k, (n,) -> (n,)."""

    def generating_function(self, x: np.ndarray | float) -> np.ndarray:
        """Returns f(x) = E[x^K] at x in [0, 1], accurate near x = 0."""
        return power_series(self._table, x)

    def success_probability(self, y: np.ndarray | float) -> np.ndarray:
        """Returns 1 - f(1 - y), the probability that an event of probability y occurs in K runs."""
        y = np.asarray(y, dtype=np.float64)
        k = np.flatnonzero(self._table)
        with np.errstate(divide="ignore"):
            log_miss = np.log1p(-y).ravel()
        total = np.zeros(log_miss.size)
        for start in range(0, log_miss.size, 16):
            with np.errstate(invalid="ignore"):  # 0 times -inf: K = 0 never succeeds.
                missed = np.where(k > 0, k * log_miss[start : start + 16, None], 0.0)
            total[start : start + 16] = -np.expm1(missed) @ self._table[k]
        return total.reshape(y.shape)

    def derivative(self, y: np.ndarray | float) -> np.ndarray:
        """Returns f'(1 - y) = E[K (1 - y)^(K-1)], decreasing in y in [0, 1], E[K] at 0."""
        k = np.arange(self._table.size)
        return power_series((k * self._table)[1:], 1.0 - np.asarray(y, dtype=np.float64))

    def second_derivative(self, y: np.ndarray | float) -> np.ndarray:
        """Returns f''(1 - y) = E[K (K-1) (1 - y)^(K-2)], decreasing in y in [0, 1]."""
        k = np.arange(float(self._table.size))
        return power_series((k * (k - 1.0) * self._table)[2:], 1.0 - np.asarray(y, dtype=float))

    def thinned(self, failure: float) -> RepetitionLaw:
        """Returns the law of K conditional on no run failing; each fails with this probability.

        Its generating function is f(x (1 - failure)) / f(1 - failure) (Papernot & Steinke 2022,
        Lemma 20).
        """
        return Thinned(self, failure)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values that `law_from_dict` turns back into this law."""
        written = {name: _plain(getattr(self, field)) for field, name in self._written.items()}
        return {"law": self.family, **written}

    def log_moment(self, guarantee: Guarantee, base: RenyiCurve) -> LogMoment:
        """Returns a function of orders l: a bound on (l-1) D_l of the selection, without K = 0.

        `base` is the Renyi curve of one run, given no failure.
        """
        return self.log_moment_theorem(guarantee, base) or self._lemma_7(guarantee, base)

    def log_moment_theorem(self, guarantee: Guarantee, base: RenyiCurve) -> LogMoment | None:
        """Returns `log_moment` by a theorem on this family alone; None if there is none."""
        return None

    def _lemma_7(self, guarantee: Guarantee, base: RenyiCurve) -> LogMoment:
        """Returns Lemma 7's bound, corrected: (l-1) eps + log sup of f'(q)^l f'(q')^(1-l)."""
        tails = np.append(0.0, np.geomspace(1e-16, 0.5, 2000))
        tails = np.append(tails, 1.0 - tails[-2::-1])
        pieces = []
        # The pair includes failures, which only makes h, and the bound, larger.
        pair = guarantee.pair
        for direction in {
            id(pair.forward): pair.forward,
            id(pair.backward): pair.backward,
        }.values():
            reached = largest_mass(direction, tails)
            with np.errstate(divide="ignore"):
                # On a cell the left end bounds f'(q) from above, the right end f'(q') from below.
                upper, lower = self.derivative(tails[:-1]), self.derivative(reached[1:])
                pieces.append((np.log(upper), np.maximum(np.log(lower), -1e300)))

        def log_moment(orders: np.ndarray) -> np.ndarray:
            # The supremum is taken over both directions, as the largest over all cells.
            worst = np.full(orders.shape, -np.inf)
            for upper, lower in pieces:
                for index, order in enumerate(orders):
                    terms = order * upper + (1.0 - order) * lower
                    worst[index] = max(worst[index], float(np.max(terms)))
            return (orders - 1.0) * base(orders) + worst

        return log_moment

    def largest_log_ratio(self, epsilon: float) -> float:
        """Bounds log sup_x f'(1-x) / f'(1 - h(x)) from above, h randomised response's trade-off.

        Right of h's corner, x = 1/(1 + e^epsilon), the ratio is f'(w) / f'(e^-epsilon w) with
        w = 1 - x, which grows with w for every power series of non-negative coefficients. Left of
        the corner h(x) = e^epsilon x, and the ratio is searched by branch and bound: a cell is
        bounded by f' at its left end over f' at the image of its right end; cells that might exceed
        the largest value known by more than 1e-6 are halved, 40 times at most. Possibly inf.
        """
        if epsilon > 700.0:
            # e^epsilon overflows: return the largest ratio that any pair can have.
            ends = self.derivative(np.array([0.0, 1.0]))
            return math.log(ends[0] / ends[1]) if ends[1] > 0.0 else math.inf
        corner, growth = 1.0 / (1.0 + math.exp(epsilon)), math.exp(epsilon)
        # h is rounded upwards: f'(1 - h) may depend strongly on the last digits of 1 - h.
        image = min((1.0 - corner) * (1.0 + 2.0**-52), 1.0)
        largest, smallest = self.derivative(np.array([corner, image]))
        if smallest == 0.0:
            return math.inf
        known = float(largest / smallest)
        cells = np.linspace(0.0, corner, 513)
        low, high = cells[:-1], cells[1:]
        bound = known
        for _ in range(40):
            with np.errstate(divide="ignore"):
                beyond = np.minimum(growth * high * (1.0 + 2.0**-50), 1.0)
                bounds = self.derivative(low) / self.derivative(beyond)
                found = self.derivative(low) / self.derivative(np.minimum(growth * low, 1.0))
            known = max(known, float(np.max(found)))
            bound = known * (1.0 + 1e-6)
            open_cells = bounds > bound
            if not open_cells.any() or open_cells.sum() > 4096:
                break
            bound = float(bounds.max())
            middle = 0.5 * (low + high)
            low, high, middle = low[open_cells], high[open_cells], middle[open_cells]
            low, high = np.append(low, middle), np.append(middle, high)
        return math.log(max(bound, float(bounds.max()) if open_cells.any() else 0.0))

    def published_pure_epsilon(self, epsilon: float) -> float | None:
        """Returns the published bound for a pure base; None if no theorem covers the law."""
        return None

    def pmf(self, k: np.ndarray | int) -> np.ndarray:
        """Returns P[K = k]; zero at negative or fractional k. Shape of `k`."""
        k = np.asarray(k, dtype=np.float64)
        whole = (k >= 0) & (k == np.floor(k))
        with np.errstate(divide="ignore"):
            values = np.exp(self.log_pmf(np.where(whole, k, 0.0).ravel())).reshape(k.shape)
        return np.where(whole, values, 0.0)

    def quantile(self, probability: float) -> int:
        """Returns the smallest k with P[K <= k] >= probability, probability in [0, 1)."""
        checks.probability("probability", probability, zero=True)
        return self._invert(probability, "left")

    def sample(self, size: int | None = None, source: np.random.Generator | None = None):
        """Draws K by inversion of the pmf at 53-bit uniforms.

        Formal guarantees: with `source` None the bits come from the operating system
        (os.urandom); the law drawn is within 2^-53 plus float64 rounding of the pmf. K is secret:
        it may reach no log, file, array shape or clock that leaves the curator.

        Args:
          size: number of independent draws, int64 (size,); None for one, an int.
          source: a NumPy generator, to reproduce a run; K is then only as secret as its seed.
        """
        count = 1 if size is None else checks.whole("size", size, 0)
        if source is None:
            words = np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
            uniforms = (words >> np.uint64(11)) * 2.0**-53
        else:
            uniforms = source.random(count)
        draws = np.array([self._invert(u, "right") for u in uniforms], dtype=np.int64)
        return int(draws[0]) if size is None else draws

    def _invert(self, probability: float, side: Literal["left", "right"]) -> int:
        """Returns the k at which P[K <= k] reaches (side "right": exceeds) a probability."""
        length = 1024
        while True:
            table = self._cumulative(length)
            index = int(np.searchsorted(table, probability, side=side))
            if index < table.size:
                return index
            if length > self.maximum:
                # The table ends just below 1, by rounding.
                return int(self.maximum)
            if length >= LONGEST_TABLE:
                raise ValueError(f"K beyond {LONGEST_TABLE}: pass a smaller mean, or AtMost")
            length *= 4

    def _cumulative(self, length: int) -> np.ndarray:
        """Returns P[K <= k] for k = 0..length - 1 (or to the maximum)."""
        tables = self.__dict__.setdefault("_cumulative_tables", {})
        if length not in tables:
            top = int(min(length - 1, self.maximum))
            with np.errstate(divide="ignore"):
                tables[length] = np.cumsum(np.exp(self.log_pmf(np.arange(top + 1.0))))
        return tables[length]


_FAMILIES: dict[str, Callable[..., RepetitionLaw]] = {}
_CLASSES: dict[str, type[RepetitionLaw]] = {}
Law = TypeVar("Law", bound=RepetitionLaw)


def law_family(name: str, **written_as: str) -> Callable[[type[Law]], type[Law]]:
    """Class decorator: names a family, whose laws `to_dict` and `law_from_dict` write and read.

    `written_as`: constructor argument -> the name it is written under, if another one."""

    def register(cls: type[Law]) -> type[Law]:
        if name in _CLASSES:
            raise ValueError(f"a law {name!r} is registered already: choose another name")
        if not cls.__module__.startswith("dpjax."):
            raise ValueError(
                f"the law {name!r} is of {cls.__module__}, where nothing compares its functions "
                "with its masses: pass accounting.Tabulated, or put it into dpjax's families.py"
            )
        written = {
            field: written_as.get(field, field) for field in inspect.signature(cls).parameters
        }
        cls.family, cls._written = name, written
        _CLASSES[name] = cls
        _FAMILIES[name] = lambda values: cls(**{f: _read(values[w]) for f, w in written.items()})
        return cls

    return register


def families() -> dict[str, type[RepetitionLaw]]:
    """Returns the families by name; command lines offer the families that have `of_mean`."""
    return dict(_CLASSES)


def check_law(name: str, law: Any) -> None:
    """Refuses anything but the library's laws: only their pmf, functions and draws surely agree."""
    if type(law) not in _CLASSES.values():
        raise ValueError(
            f"{name} needs a law of K, such as Geometric(10), or Tabulated for one of your own, "
            f"not {law!r}"
        )


def law_from_dict(values: Mapping[str, Any]) -> RepetitionLaw:
    """Rebuilds a law from the plain values that `to_dict` returned."""
    if not isinstance(values, Mapping) or not isinstance(values.get("law"), str):
        shown = checks.shown(values)
        raise ValueError(f"not a law of K: pass what law.to_dict() gave, not {shown}")
    if values["law"] not in _FAMILIES:
        raise ValueError(f"unknown law {values['law']!r}: pass one of {sorted(_FAMILIES)}")
    try:
        return _FAMILIES[values["law"]](values)
    except KeyError as error:
        raise ValueError(f"a {values['law']} law needs the value {error}") from None


def _plain(value: Any) -> Any:
    """Returns a law's field as JSON holds it."""
    if isinstance(value, RepetitionLaw):
        return value.to_dict()
    return list(value) if isinstance(value, tuple) else value


def _read(value: Any) -> Any:
    return law_from_dict(value) if isinstance(value, Mapping) else value


@law_family("tabulated")
@dataclasses.dataclass(frozen=True)
class Tabulated(RepetitionLaw):
    """K drawn by a table of probabilities.

    Example:
      >>> import numpy as np
      >>> from dpjax import accounting
      >>> accounting.Tabulated((1, 2, 8), (0.5, 0.25, 0.25)).mean
      3.0

    Attributes:
      k: (n,) whole numbers >= 0, ascending, at most a million.
      masses: (n,) P[K = k], > 0, that sum to 1.
    """

    k: tuple[int, ...]
    masses: tuple[float, ...]

    def __init__(self, k: Sequence[int], masses: Sequence[float]):
        values, shares = checks.vector("k", k).tolist(), checks.vector("masses", masses)
        set_field(self, "k", tuple(checks.whole("k", value, 0) for value in values))
        set_field(self, "masses", tuple(shares.tolist()))
        if not self.k or len(self.k) != len(self.masses) or np.any(np.diff(self.k) <= 0):
            raise ValueError("a table needs ascending k and as many masses: pass such lists")
        if self.k[-1] > LARGEST_TABULATED:
            raise ValueError(f"k must be at most {LARGEST_TABULATED}, not {self.k[-1]}")
        total = math.fsum(self.masses)
        if not (min(self.masses) > 0.0 and abs(total - 1.0) <= 1e-9):
            raise ValueError(f"masses must be > 0 and sum to 1, not to {total}")

    @functools.cached_property
    def _table(self) -> np.ndarray:
        table = np.zeros(self.k[-1] + 1)
        table[list(self.k)] = self.masses
        return table

    @functools.cached_property
    def mean(self) -> float:
        return math.fsum(k * mass for k, mass in zip(self.k, self.masses))

    @property
    def minimum(self) -> int:
        return self.k[0]

    @property
    def maximum(self) -> float:
        return self.k[-1]

    def log_pmf(self, k: np.ndarray) -> np.ndarray:
        place = np.minimum(np.searchsorted(self.k, k), len(self.k) - 1)
        found = np.asarray(self.k)[place] == k
        with np.errstate(divide="ignore"):
            return np.log(np.where(found, np.asarray(self.masses)[place], 0.0))


@law_family("at_most", law="inner")
@dataclasses.dataclass(frozen=True)
class AtMost(RepetitionLaw):
    """A law conditioned on K <= cap: drawn again until it fits, never min(K, cap).

    Example:
      >>> from dpjax import accounting
      >>> law = accounting.AtMost(accounting.Geometric(10), 64)
      >>> print(f"mean {law.mean:.2f}, at most {law.maximum:.0f}")
      mean 9.92, at most 64

    Attributes:
      law: the law to condition.
      cap: whole number >= max(1, law.minimum), at most a million.
    """

    law: RepetitionLaw
    cap: int

    def __post_init__(self) -> None:
        check_law("AtMost", self.law)
        set_field(self, "cap", checks.whole("cap", self.cap, 1))
        if self.cap > LARGEST_TABULATED:
            raise ValueError(f"cap must be at most 1,000,000, not {self.cap}")
        if self.kept == 0.0:
            raise ValueError(f"cap must be a whole number >= {self.law.minimum}, not {self.cap}")

    @functools.cached_property
    def _inner_logs(self) -> np.ndarray:
        """Returns log P[inner K = k], k = 0..maximum."""
        k = np.arange(min(self.cap, self.law.maximum) + 1.0)
        with np.errstate(divide="ignore"):
            logs = np.asarray(self.law.log_pmf(k), dtype=np.float64)
        # The largest K that the cap leaves: a table may lack the cap itself.
        return logs[: 1 + int(np.max(np.flatnonzero(logs > -np.inf), initial=0))]

    @functools.cached_property
    def _table(self) -> np.ndarray:
        weights = np.exp(self._inner_logs - self._inner_logs.max())
        return weights / weights.sum()

    @functools.cached_property
    def kept(self) -> float:
        """Returns P[K <= cap] under the inner law."""
        return min(1.0, float(np.exp(self._inner_logs).sum()))

    @functools.cached_property
    def mean(self) -> float:
        return float(np.sum(np.arange(self._table.size) * self._table))

    @property
    def maximum(self) -> float:
        return self._inner_logs.size - 1

    def log_pmf(self, k: np.ndarray) -> np.ndarray:
        k = np.asarray(k, dtype=np.float64)
        inside = k < self._table.size
        chosen = self._table[np.where(inside, k, 0.0).astype(np.int64)]
        with np.errstate(divide="ignore"):
            return np.where(inside, np.log(chosen), -np.inf)

    def thinned(self, failure: float) -> RepetitionLaw:
        if type(self.law).thinned is RepetitionLaw.thinned:
            return super().thinned(failure)  # AtMost refuses `Thinned`, which is no family.
        return AtMost(self.law.thinned(failure), self.cap)

    @property
    def envelope_suffices(self) -> bool:
        return self.law.envelope_suffices

    def log_moment_theorem(self, guarantee: Guarantee, base: RenyiCurve) -> LogMoment | None:
        """Returns Papernot & Steinke (2022), Lemma 22, on top of the inner law's theorem.

        f' shrinks by at most E[K; K <= cap] / E[K], and is divided by P[K <= cap].
        """
        inner = self.law.log_moment_theorem(guarantee, base)
        if inner is None:
            return None
        log_kept = math.log(self.kept)
        log_share = math.log(self.mean) + log_kept - math.log(self.law.mean)
        return lambda orders: inner(orders) - log_kept - (orders - 1.0) * log_share


@dataclasses.dataclass(frozen=True)
class Thinned(RepetitionLaw):
    """The law of K conditional on no run failing; each fails independently with this probability.

    Papernot & Steinke (2022), Lemma 20.
    """

    law: RepetitionLaw
    failure: float

    @functools.cached_property
    def _kept(self) -> float:
        """Returns the probability that no run fails."""
        return float(self.law.generating_function(1.0 - self.failure))

    def _hit(self, y: np.ndarray | float) -> np.ndarray:
        """Returns the probability of a failure or of an event of probability y given none."""
        return self.failure + np.asarray(y, dtype=np.float64) * (1.0 - self.failure)

    @property
    def mean(self) -> float:
        return float(self.derivative(0.0))

    @property
    def minimum(self) -> int:
        return self.law.minimum

    @property
    def maximum(self) -> float:
        return self.law.maximum

    def log_pmf(self, k: np.ndarray) -> np.ndarray:
        return self.law.log_pmf(k) + k * math.log1p(-self.failure) - math.log(self._kept)

    def generating_function(self, x: np.ndarray | float) -> np.ndarray:
        x = np.asarray(x, dtype=np.float64)
        return self.law.generating_function(x * (1.0 - self.failure)) / self._kept

    def success_probability(self, y: np.ndarray | float) -> np.ndarray:
        found = self.law.success_probability(self._hit(y))
        return (found - self.law.success_probability(self.failure)) / self._kept

    def derivative(self, y: np.ndarray | float) -> np.ndarray:
        return (1.0 - self.failure) * self.law.derivative(self._hit(y)) / self._kept

    def second_derivative(self, y: np.ndarray | float) -> np.ndarray:
        return (1.0 - self.failure) ** 2 * self.law.second_derivative(self._hit(y)) / self._kept


def power_series(coefficients: np.ndarray, x: np.ndarray | float) -> np.ndarray:
    """Returns sum_k c_k x^k for coefficients >= 0, lowest first, at x in [0, 1]; shape of `x`.

    Blocks of about sqrt(n) powers are summed by one matrix product each, and Horner's rule joins
    them: a million terms at ten thousand x take seconds, and lose three digits at most. Where few
    coefficients are not 0, they are summed alone.
    """
    x = np.asarray(x, dtype=np.float64)
    # Top coefficients far below the rounding of the sum at x = 1 change no digit.
    rest = np.cumsum(coefficients[::-1])
    useful = int(np.count_nonzero(rest > 1e-25 * rest[-1])) if rest.size else 0
    width = max(1, math.isqrt(useful))
    held = np.flatnonzero(coefficients[:useful])
    if held.size <= width:
        sums = [
            np.power(x[..., None], held[i : i + 64]) @ coefficients[held[i : i + 64]]
            for i in range(0, held.size, 64)
        ]
        return np.sum(sums, axis=0) if sums else np.zeros(x.shape)
    rows = -(-useful // width)
    blocks = np.zeros((rows, width))
    blocks.ravel()[:useful] = coefficients[:useful]
    points = x.ravel()
    total = np.zeros(points.size)
    for start in range(0, points.size, 1024):
        part = points[start : start + 1024]
        inner = part[:, None] ** np.arange(width) @ blocks.T
        step = part**width
        for row in range(rows - 1, -1, -1):
            total[start : start + 1024] = total[start : start + 1024] * step + inner[:, row]
    return total.reshape(x.shape)


def set_field(law: RepetitionLaw, name: str, value: object) -> None:
    """Sets a field of a frozen law while it is being made."""
    object.__setattr__(law, name, value)
