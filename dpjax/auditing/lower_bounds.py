"""Lower bounds on a procedure's epsilon, from its outputs on two neighbouring inputs.

An adversary gives every execution a number, the larger (or the smaller) the more it looks as if
the record was there. An event, "the number is above (below) a threshold, with the record (without
it)", is chosen on the first half of the executions and counted on the second half, so the choice
cannot bias the counts; Clopper and Pearson's exact bounds (Biometrika 26, 1934) turn the two counts
into a bound. The executions must be independent of each other; nothing else is assumed.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable

import numpy as np
from scipy import special

from dpjax import accounting, checks
from dpjax.accounting.guarantee import check_guarantee

FAILURE = 0.05
THRESHOLDS = 400
"""Number of thresholds to choose from: quantiles of all numbers of the first half."""

_ORDERS = 120
"""Number of epsilons at which a claimed privacy profile is read."""

Tradeoff = Callable[[np.ndarray], np.ndarray]
"""Probability of an event for one input -> the largest that a claim allows for the other."""

Shown = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(lower bound on an event's probability for one input, upper bound for the other) -> value shown.
"""


@dataclasses.dataclass(frozen=True)
class Seen:
    """The counts of one event with a record and without it, in executions not used to choose it.

    Example:
      >>> import numpy as np
      >>> from dpjax import auditing
      >>> rng = np.random.default_rng(0)
      >>> bound = auditing.epsilon_lower_bound(rng.normal(1, 1, 5000), rng.normal(0, 1, 5000), 1e-5)
      >>> seen = bound.seen
      >>> seen.executions, seen.low > seen.high
      ((2500, 2500), True)

    Attributes:
      threshold: where the event begins.
      above: whether the event is a number above the threshold, or below it.
      likelier_with_record: whether the record makes the event likelier, or less likely.
      hits: how often the event happened on the likelier side, and on the other.
      executions: number of executions on the likelier side, and on the other.
      low: lower bound on the probability of the likelier side.
      high: upper bound on that of the other side; both hold except with `failure_probability`.
      failure_probability: probability that either of the two bounds fails.
    """

    threshold: float
    above: bool
    likelier_with_record: bool
    hits: tuple[int, int]
    executions: tuple[int, int]
    low: float
    high: float
    failure_probability: float


@dataclasses.dataclass(frozen=True)
class LowerBound:
    """A lower bound, and the event that shows it.

    Example:
      >>> import numpy as np
      >>> from dpjax import auditing
      >>> rng = np.random.default_rng(0)
      >>> seen = auditing.epsilon_lower_bound(rng.normal(1, 1, 500), rng.normal(0, 1, 500), 1e-5)
      >>> type(seen).__name__
      'LowerBound'

    Attributes:
      value: the bound; 0 if nothing was seen.
      seen: the event behind it.
    """

    value: float
    seen: Seen


def epsilon_lower_bound(
    with_record: np.ndarray,
    without_record: np.ndarray,
    delta: float,
    *,
    failure_probability: float = FAILURE,
) -> LowerBound:
    """Returns a lower bound on epsilon at `delta`, whatever the procedure is.

    Formal guarantees:
      If the procedure is (epsilon, delta)-differentially private, the value is above epsilon with
      probability `failure_probability` at most, over the executions, which must be independent. An
      event of probability p for one input and q for the other shows log((p - delta) / q); the bound
      takes p's lower end and q's upper end, half of the failure probability each. It says nothing
      of what another adversary, or another pair of inputs, would see.

    Example:
      >>> import numpy as np
      >>> from dpjax import auditing
      >>> rng = np.random.default_rng(0)
      >>> seen = auditing.epsilon_lower_bound(rng.normal(1, 1, 5000), rng.normal(0, 1, 5000), 1e-5)
      >>> 0.5 < seen.value < 4.38  # A Gaussian's epsilon at noise multiplier 1 is 4.38.
      True

    Args:
      with_record: (n,) numbers of independent executions whose input holds the record.
      without_record: (m,) numbers of executions whose input does not.
      delta: the claim's delta, in [0, 1).
      failure_probability: in (0, 1).
    """
    delta = checks.number("delta", delta, "in [0, 1)")
    if not 0.0 <= delta < 1.0:
        raise checks.refused("delta", delta, "in [0, 1), such as 1e-5")

    def shown(low: np.ndarray, high: np.ndarray) -> np.ndarray:
        return np.log(np.maximum(low - delta, 0.0) / high)

    return _bound(shown, with_record, without_record, failure_probability)


def refuted(
    claim: accounting.Guarantee,
    with_record: np.ndarray,
    without_record: np.ndarray,
    *,
    failure_probability: float = FAILURE,
) -> LowerBound:
    """Tests a claim at all its deltas; a value above 0 means that the executions contradict it.

    Formal guarantees:
      If the claim holds, the value is above 0 with probability `failure_probability` at most. The
      value is p's lower end less the most that the claim allows, the smallest over epsilon of
      e^epsilon q + delta(epsilon), at q's upper end. A claim of one epsilon and delta is weaker
      than its whole profile, so a mistake shows here first.

    Example:
      >>> import numpy as np
      >>> from dpjax import accounting, auditing
      >>> rng = np.random.default_rng(0)
      >>> scores = rng.normal(1, 0.5, 5000), rng.normal(0, 0.5, 5000)  # Half of the noise claimed.
      >>> auditing.refuted(accounting.gaussian(1.0), *scores).value > 0
      True

    Args:
      claim: the guarantee that is stated for the procedure.
      with_record, without_record, failure_probability: as in `epsilon_lower_bound`.
    """
    allowed = tradeoff_of(claim)
    return _bound(
        lambda low, high: low - allowed(high), with_record, without_record, failure_probability
    )


def numbers_of(name: str, given: object) -> np.ndarray:
    """Returns one number for each execution, (n,) float64; guesses True and False count as 1 and 0.

    Raises:
      ValueError: for anything but a list of finite numbers.
    """
    found = checks.plain_array(name, given)
    if found.dtype.kind not in "biuf":
        raise checks.refused(name, given, "numbers, one for each execution")
    if found.ndim != 1:
        raise ValueError(f"{name} has shape {found.shape}: pass (executions,), one number for each")
    found = found.astype(np.float64)
    if bad := int(np.sum(~np.isfinite(found))):
        raise ValueError(
            f"{name} holds {bad} numbers that are NaN or infinite: pass finite ones; give an "
            "execution without an output a number that no other has"
        )
    return found


def tradeoff_of(claim: accounting.Guarantee) -> Tradeoff:
    """Returns a claim's trade-off: an event's largest probability, given its neighbour's.

    Returns:
      q -> the smallest of e^epsilon q + delta(epsilon), and of the same bound for the event's
      complement, over epsilons from 0 to where delta is 1e-12. It is never below the true curve,
      since only some epsilons are tried.
    """
    check_guarantee("claim", claim)
    largest = claim.epsilon(1e-12)
    if not math.isfinite(largest):
        largest = 50.0
    epsilons = largest * np.linspace(0.0, 1.0, _ORDERS) ** 2
    deltas = np.array([claim.delta(epsilon) for epsilon in epsilons])

    def allowed(q: np.ndarray) -> np.ndarray:
        q = np.asarray(q)[..., None]
        lines = np.exp(epsilons) * q + deltas
        complements = 1.0 - (1.0 - q - deltas) * np.exp(-epsilons)
        return np.minimum(np.minimum(lines, complements).min(axis=-1), 1.0)

    return allowed


def _bound(
    shown: Shown, with_record: np.ndarray, without_record: np.ndarray, failure_probability: float
) -> LowerBound:
    """Chooses an event on the first half of the executions, and bounds its value on the second."""
    failure = checks.probability("failure_probability", failure_probability)
    choosing, counting = [], []
    named = {"with_record": with_record, "without_record": without_record}
    for name, given in named.items():
        numbers = numbers_of(name, given)
        if len(numbers) < 4:
            raise ValueError(f"{name} has {len(numbers)} numbers: pass at least 4 executions")
        half = len(numbers) // 2
        choosing.append(numbers[:half])
        counting.append(numbers[half:])
    event = _best_event(shown, choosing, failure)
    seen = _seen(counting, *event, failure)
    with np.errstate(divide="ignore"):
        value = float(shown(np.array(seen.low), np.array(seen.high)))
    return LowerBound(max(value, 0.0), seen)


def _best_event(
    shown: Shown, samples: list[np.ndarray], failure: float
) -> tuple[float, bool, bool]:
    """Returns the event that shows most: its threshold, side, and whether the record favours it."""
    quantiles = np.linspace(0.0, 1.0, THRESHOLDS)
    thresholds = np.unique(np.quantile(np.concatenate(samples), quantiles))
    best, found = -math.inf, (float(thresholds[0]), True, True)
    for above, with_record in itertools.product((True, False), repeat=2):
        _, _, low, high = _counts(samples, thresholds, above, with_record, failure)
        with np.errstate(divide="ignore"):
            merit = shown(low, high)
        place = int(np.argmax(merit))
        if merit[place] > best:
            best, found = float(merit[place]), (float(thresholds[place]), above, with_record)
    return found


def _seen(
    samples: list[np.ndarray], threshold: float, above: bool, with_record: bool, failure: float
) -> Seen:
    """Counts how often an event occurs with the record and without it, with bounds."""
    at = np.array([threshold])
    (p, q), executions, low, high = _counts(samples, at, above, with_record, failure)
    hits = int(p[0]), int(q[0])
    ends = float(low[0]), float(high[0])
    return Seen(threshold, above, with_record, hits, executions, *ends, failure)


def _counts(
    samples: list[np.ndarray],
    thresholds: np.ndarray,
    above: bool,
    with_record: bool,
    failure: float,
) -> tuple[list[np.ndarray], tuple[int, int], np.ndarray, np.ndarray]:
    """Returns hits, executions and bounds at each threshold; the likelier side's come first."""
    likelier, other = samples if with_record else samples[::-1]
    hits = [_number_beyond(numbers, thresholds, above) for numbers in (likelier, other)]
    executions = len(likelier), len(other)
    return hits, executions, *_clopper_pearson(hits, executions, failure)


def _number_beyond(numbers: np.ndarray, thresholds: np.ndarray, above: bool) -> np.ndarray:
    """Returns how many numbers are above (below) each threshold, (thresholds,)."""
    ordered = np.sort(numbers)
    if above:
        return len(ordered) - np.searchsorted(ordered, thresholds, side="right")
    return np.searchsorted(ordered, thresholds, side="left")


def _clopper_pearson(
    hits: list[np.ndarray], sizes: tuple[int, int], failure: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns lower bounds on one probability, upper bounds on the other; half `failure` each."""
    (p, q), (n, m) = hits, sizes
    with np.errstate(invalid="ignore"):
        low = special.betaincinv(p, n - p + 1.0, failure / 2)
        high = special.betainccinv(q + 1.0, m - q, failure / 2)
    return np.where(p > 0, low, 0.0), np.where(q < m, high, 1.0)
