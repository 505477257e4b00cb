"""Proposes a law of K from a success target, a cap on K and a privacy budget."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import scipy

from dpjax.accounting.guarantee import Guarantee, check_guarantee
from dpjax.accounting.selection.best_of import best_of
from dpjax.accounting.selection.families import (
    Geometric,
    Logarithmic,
    Poisson,
    TruncatedNegativeBinomial,
)
from dpjax.accounting.selection.laws import RepetitionLaw
from dpjax.checks import positive, probability, vector, whole

SHAPES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, math.inf)
"""Shapes tried; inf is Poisson. Under the tight bound 1 to 2 is best from success 0.8 upwards."""

LARGEST_MEAN = 1e6
"""Largest proposed mean of K; larger ones cannot be drawn reliably either."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """Holds a proposed distribution of the number of runs K.

    Attributes:
      law: of K.
      success: probability that at least one of K runs draws a good candidate.
      median_runs: 50th percentile of K.
      runs_99: 99th percentile of K.
      epsilon: of the whole selection at the given delta; None without a base.
    """

    law: RepetitionLaw
    success: float
    median_runs: int
    runs_99: int
    epsilon: float | None


def plan(
    base: Guarantee | None = None,
    *,
    candidates: int = 20,
    success: float = 0.9,
    runs_99: int | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    shapes: Sequence[float] = SHAPES,
) -> Plan:
    """Proposes a law of K: of those that reach the success target, the cheapest in privacy.

    A selection succeeds if a good candidate is drawn at all: with one good candidate among
    `candidates` equally likely ones, that is 1 - f(1 - 1/candidates). For each shape of the
    truncated negative binomial the smallest sufficient mean is found; one above a million, or with
    a 99th percentile above 4 million, is not proposed. A shape below 0 can never exceed success
    candidates^shape, and shape 0 needs astronomical means; Poisson costs much privacy beyond a
    mean of about 5.

    Example:
      >>> from dpjax import accounting
      >>> proposal = accounting.plan(candidates=10, success=0.5)
      >>> proposal.success >= 0.5, proposal.epsilon
      (True, None)

    Args:
      base: guarantee of one run; None proposes without a privacy budget.
      candidates: number of equally likely candidates, one of them good: the reciprocal of the
        fraction of the search space that would satisfy you.
      success: target probability in (0, 1).
      runs_99: cap on the 99th percentile of K (time or memory); None for no cap.
      epsilon: budget of the whole selection at `delta`; None for no budget.
      delta: in (0, 1); needed with `base`.
      shapes: shapes to try, each > -1; math.inf is Poisson.

    Returns:
      The Plan of smallest epsilon; without a base, the first of geometric and higher shapes that
      meets the cap.
    """
    candidates, success = whole("candidates", candidates, 2), probability("success", success)
    shapes = tuple(vector("shapes", shapes, finite=False).tolist())
    if not min(shapes) > -1.0:
        raise ValueError(f"shapes must be > -1 each, not {shapes}")
    if base is not None:
        check_guarantee("base", base)
    runs_99 = None if runs_99 is None else whole("runs_99", runs_99)
    epsilon = None if epsilon is None else positive("epsilon", epsilon)
    delta = None if delta is None else probability("delta", delta, zero=True)
    if base is not None and delta is None:
        raise ValueError("a base needs a delta: pass delta in (0, 1)")
    if base is None and epsilon is not None:
        raise ValueError("a budget needs a base: pass the guarantee of one run")
    plans = []
    # A larger mean only costs more, so each shape enters with the least mean that reaches success.
    for shape in shapes:
        law = _smallest_law(shape, 1.0 / candidates, success)
        if law is not None:
            plans.append(_describe(law, 1.0 / candidates, base, delta))
    if not plans:
        raise ValueError(
            f"no law of shapes {tuple(shapes)} reaches success {success:g} among {candidates} "
            f"candidates with a mean of K up to {LARGEST_MEAN:,.0f}: pass a shape >= 0.5, or a "
            "smaller success"
        )
    # A percentile limits time: K of a small shape is often 1 and sometimes thousands.
    fitting = [p for p in plans if runs_99 is None or p.runs_99 <= runs_99]
    if not fitting:
        least = min(p.runs_99 for p in plans)
        raise ValueError(
            f"success {success:g} needs a 99th percentile of K of at least {least}: pass "
            f"runs_99 >= {least}, or a smaller success"
        )
    if base is None:
        # Without a price to compare, prefer light tails: the geometric law first.
        plain = [p for p in fitting if _shape(p.law) >= 1.0]
        return min(plain or fitting, key=lambda p: _shape(p.law))
    priced = [(p.epsilon, p) for p in fitting if p.epsilon is not None]
    cost, best = min(priced, key=lambda pair: pair[0])
    if epsilon is not None and cost > epsilon:
        raise ValueError(
            f"epsilon {epsilon:g} is out of reach: the cheapest law, {best.law}, costs "
            f"{cost:.4g}; pass at least that, a smaller success or more noise"
        )
    return best


def law_of_shape(shape: float, mean: float) -> RepetitionLaw:
    """Returns the law of this shape and mean; inf is Poisson, 0 logarithmic, 1 geometric."""
    if math.isinf(shape):
        return Poisson(mean)
    named = {0.0: Logarithmic, 1.0: Geometric}
    if shape in named:
        return named[shape](mean)
    return TruncatedNegativeBinomial(shape, mean)


def _smallest_law(shape: float, probability: float, success: float) -> RepetitionLaw | None:
    """Finds the law of smallest mean that reaches the target and can be drawn, or None."""

    def excess(log_mean: float) -> float:
        law = law_of_shape(shape, math.exp(log_mean))
        return float(law.success_probability(probability)) - success

    low = -5.0 if math.isinf(shape) else 0.0
    high = math.log(LARGEST_MEAN)
    if excess(low) >= 0.0:
        return law_of_shape(shape, math.exp(low))
    if excess(high) < 0.0:
        return None
    root = scipy.optimize.brentq(excess, low, high, xtol=1e-12, rtol=1e-14)
    law = law_of_shape(shape, math.exp(root))
    try:
        law.quantile(0.99)
    except ValueError:
        return None  # Beyond the longest table of K.
    return law


def _describe(
    law: RepetitionLaw, probability: float, base: Guarantee | None, delta: float | None
) -> Plan:
    """Returns the plan of a law: its success, its percentiles and, given a base, its epsilon."""
    cost = None if base is None or delta is None else best_of(base, law).epsilon(delta)
    return Plan(
        law=law,
        success=float(law.success_probability(probability)),
        median_runs=law.quantile(0.5),
        runs_99=law.quantile(0.99),
        epsilon=cost,
    )


def _shape(law: RepetitionLaw) -> float:
    return getattr(law, "shape", math.inf)
