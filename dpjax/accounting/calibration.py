"""Finds the smallest noise, or the largest other setting, that meets a target (epsilon, delta)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from dpjax.accounting.guarantee import Guarantee
from dpjax.accounting.stated_epsilon import aim_below
from dpjax.checks import Refused, flag, number, positive, probability, refused, shown, vector

TOLERANCE = 2e-4
"""Relative width of the final bracket; the returned end is on the private side."""

ROUGHLY = 5e-2
"""Relative width of the bracket down to which the faster, rough bound is searched."""

LARGEST_STEPS = 10**7
"""Most steps of a run that is searched or priced: more take minutes to price, days to train."""

LEAST_NOISE_MULTIPLIER = 1e-3
"""Least noise multiplier: below it nothing is protected, one step costs an epsilon above 5e5."""

_LARGEST_LOSS = 1e6
"""Largest privacy loss of a run, roughly: an epsilon in the millions is useless and slow."""


def check_worth_pricing(steps: int, noise_multiplier: float, sampling_probability: float) -> None:
    """Refuses a run of DP-SGD whose epsilon would be useless, or would take minutes to compute.

    A noise multiplier of 0, or nan if it is not known yet, is not checked.
    """
    if steps > LARGEST_STEPS:
        raise Refused(("steps", steps), f": pass at most {LARGEST_STEPS:.0e}")
    if not noise_multiplier > 0:
        return
    noise = ("noise_multiplier", noise_multiplier)
    if noise_multiplier < LEAST_NOISE_MULTIPLIER:
        raise Refused(noise, f" protects nothing: pass {LEAST_NOISE_MULTIPLIER:g} or more")
    if steps * (sampling_probability / noise_multiplier) ** 2 > _LARGEST_LOSS:
        words = f" protects nothing in {steps:.6g} steps: pass more noise, or fewer steps"
        raise Refused(noise, words)


def calibrate(
    make_guarantee: Callable[[float], Guarantee],
    *,
    epsilon: float,
    delta: float,
    bracket: tuple[float, float] = (1e-2, 1e4),
    near: float | None = None,
) -> float:
    """Finds the smallest noise multiplier whose guarantee meets (epsilon, delta).

    Example:
      >>> from dpjax import accounting
      >>> noise = accounting.calibrate(accounting.gaussian, epsilon=1.0, delta=1e-5)
      >>> print(f"noise multiplier {noise:.2f}")
      noise multiplier 3.73

    Args:
      make_guarantee: noise multiplier -> Guarantee of the WHOLE procedure, its epsilon falling as
        noise grows; for example lambda z: best_of(dp_sgd(q, z, steps), law).
      epsilon: target, nats, > 0.
      delta: in (0, 1), or 0 for pure guarantees.
      bracket: smallest and largest noise multiplier to consider.
      near: a noise multiplier to begin at, such as one found for nearly the same target; it saves
        time, and changes the result within its rounding.

    Returns:
      The noise multiplier, rounded up by at most 2e-4 relative: its guarantee was evaluated and
      meets the target, also as it is stated (`Guarantee.stated_epsilon`), on any machine.
    """
    low, high = _ends(bracket, "noise multipliers")
    epsilon, delta = _target(epsilon, delta)
    aim = aim_below(epsilon)
    _check_function(make_guarantee, "a noise multiplier, such as lambda z: dp_sgd(0.01, z, 1000)")

    made = functools.cache(make_guarantee)

    def excess(noise_multiplier: float) -> float:
        return _excess(made(noise_multiplier).epsilon(delta), aim)

    def rough_excess(noise_multiplier: float) -> float:
        found = made(noise_multiplier).rough_epsilon(delta)
        return _excess(math.inf if found is None else found, aim)

    start, factor = min(max(1.0, low), high), 2.0
    if near is not None:
        start = min(max(positive("near", near), low), high)
        # Epsilon falls about as fast as the noise rises, or faster.
        factor = math.exp(min(abs(excess(start)), 1.0))
    elif made(start).rough_epsilon(delta) is not None:
        # A bound that is computed faster shows where to look.
        failing, above, meeting, below = _root(rough_excess, start, factor, low, high, ROUGHLY)
        start, factor = meeting, meeting / failing
        if failing < meeting and math.isfinite(above):
            slope = (above - below) / math.log(factor)
            factor = math.exp(max(0.0, -excess(start)) / max(slope, 0.1) + 0.45 * TOLERANCE)
    failing, above, meeting, below = _root(excess, start, max(factor, 1.0 + TOLERANCE), low, high)
    if below > 0:
        attained = made(high).epsilon(delta)
        raise Refused(
            *(("epsilon", epsilon), " at ", ("delta", delta), " is out of reach: the largest "),
            f"noise multiplier {high:g} attains {attained:.4g}; pass at least that, or fewer steps",
        )
    return meeting


def _excess(found: float, aim: float) -> float:
    """Returns log(epsilon / aim): above 0 if the target is missed, infinite for NaN."""
    # On a log scale epsilon is nearly a power of the noise, so secants converge fast.
    return math.log(max(found, 1e-300) / aim) if found < math.inf else math.inf


def _root(
    excess: Callable[[float], float],
    start: float,
    factor: float,
    low: float,
    high: float,
    tolerance: float = TOLERANCE,
) -> tuple[float, float, float, float]:
    """Returns where a falling function is above 0 and where it is not, each with its value.

    They are `tolerance` apart; if the root lies outside, both are `high` or both `low`. The search
    begins at `start`, with a step by this factor.
    """
    values = {start: excess(start)}
    failing = meeting = start
    while values[meeting] > 0 and meeting < high:
        failing, meeting = meeting, min(meeting * factor, high)
        values[meeting] = excess(meeting)
        factor = max(factor, min(factor**4, 2.0))
    while values[failing] <= 0 and failing > low:
        meeting, failing = failing, max(failing / factor, low)
        values[failing] = excess(failing)
        factor = max(factor, min(factor**4, 2.0))
    if values[meeting] > 0 or values[failing] <= 0:
        failing = meeting = meeting if values[meeting] > 0 else failing
    turn = 0
    while meeting / failing > 1.0 + tolerance:
        above, below = values[failing], values[meeting]
        share = 0.5
        if math.isfinite(above) and turn % 3 != 2:
            share = above / (above - below)
            # Aim just beyond the root, on alternating sides, so that both ends close in.
            beyond = 0.45 * tolerance / math.log(meeting / failing)
            beyond = max(0.06 * min(share, 1.0 - share), beyond) * (-1.0) ** turn
            share += beyond if 0.0 < share + beyond < 1.0 else -beyond
        probe = failing * (meeting / failing) ** share
        values[probe] = excess(probe)
        if values[probe] > 0:
            failing = probe
        else:
            meeting = probe
        turn += 1
    return failing, values[failing], meeting, values[meeting]


def calibrate_largest(
    make_guarantee: Callable[[float], Guarantee],
    *,
    epsilon: float,
    delta: float,
    bracket: tuple[float, float],
    whole: bool = True,
) -> float:
    """Finds the largest number of steps, lot size or mean of K that meets (epsilon, delta).

    It bisects, so any setting will do whose cost grows with it.

    Example:
      >>> from dpjax import accounting
      >>> run_of = lambda steps: accounting.dp_sgd(0.01, 1.0, steps)
      >>> accounting.calibrate_largest(run_of, epsilon=2.0, delta=1e-5, bracket=(1, 10_000))
      1202

    Args:
      make_guarantee: the setting, an int if `whole` -> Guarantee of the WHOLE procedure.
      epsilon, delta: as in `calibrate`.
      bracket: smallest and largest setting to consider.
      whole: whether the setting is a whole number (steps, lot size), or any number (a mean).

    Returns:
      The setting, an int if `whole`, else a float rounded down by at most 2e-4 relative: its
      guarantee was evaluated and meets the target. If the upper end does, that end.
    """
    meeting, failing = _ends(bracket, "settings")
    whole = flag("whole", whole)
    if whole and not all(end.is_integer() for end in (meeting, failing)):
        raise ValueError(f"bracket must be two whole numbers, not {shown(bracket)}")
    epsilon, delta = _target(epsilon, delta)
    _check_function(make_guarantee, "the setting, such as lambda n: dp_sgd(0.01, 1.0, n)")
    if whole:
        meeting, failing = int(meeting), int(failing)
    attained = make_guarantee(meeting).epsilon(delta)
    # Infinity and NaN miss the target.
    aim = aim_below(epsilon)
    if not attained <= aim:
        raise Refused(
            *(("epsilon", epsilon), " at ", ("delta", delta), f" is out of reach: {meeting:g} "),
            f"attains {attained:.4g}; pass at least that, a smaller bracket or more noise",
        )
    if make_guarantee(failing).epsilon(delta) <= aim:
        return failing
    while failing - meeting > 1 if whole else failing / meeting > 1.0 + TOLERANCE:
        # Prices are nearly powers of the setting.
        probe = math.sqrt(meeting * failing)
        if whole:
            probe = min(max(round(probe), meeting + 1), failing - 1)
        if make_guarantee(probe).epsilon(delta) <= aim:
            meeting = probe
        else:
            failing = probe
    return meeting


def _ends(bracket: tuple[float, float], of: str) -> tuple[float, float]:
    """Returns a bracket's two ends; refuses others than 0 < low < high."""
    ends = vector("bracket", bracket)
    if not (ends.size == 2 and 0.0 < ends[0] < ends[1]):
        raise ValueError(f"bracket must be two {of} 0 < low < high, not {shown(bracket)}")
    return float(ends[0]), float(ends[1])


def _target(epsilon: float, delta: float) -> tuple[float, float]:
    """Checks and returns a target epsilon and delta."""
    epsilon = number("epsilon", epsilon, "> 0")
    if not epsilon > 0.0:
        raise refused("epsilon", epsilon, "> 0")
    return epsilon, probability("delta", delta, zero=True)


def _check_function(make_guarantee: object, of: str) -> None:
    if not callable(make_guarantee):
        raise ValueError(f"make_guarantee must be a function of {of}, not {shown(make_guarantee)}")
