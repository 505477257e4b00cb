"""What is fixed, and public, before the first run of a function that is not dpjax's."""

from __future__ import annotations

import dataclasses
import math

from dpjax import accounting, checks
from dpjax.accounting.guarantee import check_guarantee
from dpjax.bridges.candidates import Candidates
from dpjax.bridges.counted_score import CountedScore
from dpjax.tuning.ledger import Ledger
from dpjax.tuning.selection import BestOf


@dataclasses.dataclass(frozen=True)
class Procedure:
    """The rules of a selection among such runs, and its cost, before the first run.

    `deviation` is the std of the count's noise in records, 0 for none; `base` is what the caller
    declares of one run, training alone, and `run_guarantee` has its noisy count too.
    """

    candidates: Candidates
    base: accounting.Guarantee
    score: CountedScore
    choice: BestOf
    delta: float
    model: str
    deviation: float
    run_guarantee: accounting.Guarantee
    guarantee: accounting.Guarantee
    ledger: Ledger | None = None


def planned(
    candidates: Candidates,
    *,
    base: accounting.Guarantee | None,
    score: CountedScore | None,
    repetitions: accounting.RepetitionLaw,
    delta: float,
    model: str,
    ledger: Ledger | None = None,
) -> Procedure:
    """Returns the procedure with its cost."""
    # Neither has a default: who trains knows what it costs, and what is counted.
    if base is None:
        raise ValueError(
            "pass base=, the guarantee of one run, such as accounting.dp_sgd(0.01, 1.0, 1000)"
        )
    if score is None:
        raise ValueError(
            "pass score=, which records are counted, such as bridges.CountedScore('disjoint', 1000)"
        )
    check_guarantee("base", base)
    checks.instance("score", score, CountedScore, "bridges.CountedScore('disjoint', 1000)")
    checks.probability("delta", delta, hint=", for example 1e-5")
    checks.text("model", model)
    if ledger is not None:
        checks.instance("ledger", ledger, Ledger, "bridges.Ledger('runs/mine', name, records)")
    choice = BestOf(repetitions)
    deviation = score.deviation(base, delta)
    run = score.charged(base, deviation)
    guarantee = choice.guarantee(run)
    if not math.isfinite(guarantee.epsilon(delta)):
        raise ValueError(
            f"no epsilon holds at delta {delta:g}: pass a larger delta, or another base"
        )
    return Procedure(
        candidates, base, score, choice, delta, model, deviation, run, guarantee, ledger
    )
