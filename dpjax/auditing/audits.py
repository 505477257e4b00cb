"""Audits a whole tuning: compares its claim with what many executions reveal of one record."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np

from dpjax import accounting, checks
from dpjax.auditing.canaries import RECORDS, Canary
from dpjax.auditing.executions import Released, executions
from dpjax.auditing.lower_bounds import LowerBound, epsilon_lower_bound, numbers_of, refuted
from dpjax.tuning.problem.space import Space
from dpjax.tuning.tuner import Tuner

FAILURE = 1e-3


@dataclasses.dataclass(frozen=True)
class Audit:
    """A privacy claim, and the lower bound on epsilon that an audit of it found.

    Example:
      >>> import numpy as np
      >>> from dpjax import accounting, auditing
      >>> rng = np.random.default_rng(0)  # Stands for executions with a record and without it.
      >>> numbers = rng.normal(1, 1, 5000), rng.normal(0, 1, 5000)
      >>> found = auditing.Audit.of(accounting.gaussian(1.0), *numbers, 1e-5)
      >>> found.stands, 0 < found.seen.value < found.claimed
      (True, True)

    Attributes:
      claim: the guarantee that every execution states.
      delta: the delta at which epsilons are compared, in (0, 1).
      seen: lower bound on epsilon at delta, and the event that shows it.
      contradiction: above 0 where the whole claim is refuted.
      executions: number of executions, with the record and without it together.
      cpu_seconds: CPU time of this process for all of them.
    """

    claim: accounting.Guarantee
    delta: float
    seen: LowerBound
    contradiction: LowerBound
    executions: int
    cpu_seconds: float

    @classmethod
    def of(
        cls,
        claim: accounting.Guarantee,
        with_record: np.ndarray,
        without_record: np.ndarray,
        delta: float,
        *,
        failure_probability: float = FAILURE,
        cpu_seconds: float = 0.0,
    ) -> Audit:
        """Compares a claim with the numbers that an adversary computed from executions.

        Args:
          claim, delta, cpu_seconds: as in `Audit`.
          with_record, without_record: (n,) and (m,) numbers of independent executions.
          failure_probability: probability, for each of the two bounds, that it does not hold.
        """
        checks.probability("delta", delta)
        pair = with_record, without_record
        return cls(
            claim=claim,
            delta=delta,
            seen=epsilon_lower_bound(*pair, delta, failure_probability=failure_probability),
            contradiction=refuted(claim, *pair, failure_probability=failure_probability),
            executions=len(with_record) + len(without_record),
            cpu_seconds=cpu_seconds,
        )

    @property
    def claimed(self) -> float:
        """Returns epsilon at `delta`, an upper bound if the claim is true."""
        return self.claim.epsilon(self.delta)

    @property
    def stands(self) -> bool:
        """Returns whether the executions leave the claim uncontradicted."""
        return self.seen.value <= self.claimed and self.contradiction.value <= 0.0


def audit(
    tuner: Tuner,
    canary: Canary,
    space: Space,
    *,
    number: int,
    delta: float,
    records: int = RECORDS,
    failure_probability: float = FAILURE,
    seed: int | None = None,
    **request: Any,
) -> Audit:
    """Audits a tuner: runs it many times with a canary and without, and compares with its claim.

    Formal guarantees:
      If the tuner's claim is true, `stands` is false with probability 2 `failure_probability` at
      most (two bounds). If it stands, nothing is proved: another record may be seen better. Plans
      with the record and without it must claim the same, or a public number depends on it.

    Example:
      >>> from dpjax import auditing, tuning
      >>> found = auditing.audit(
      ...     tuning.Untuned(),
      ...     auditing.CANARIES["gradient"],
      ...     tuning.Space(learning_rate=1.0, clip_norm=1.0),
      ...     number=500,  # 10,000 and more show more.
      ...     delta=0.02,
      ...     run=tuning.RunOptions(lot_size=8, steps=1, noise_multiplier=2.0),
      ...     seed=0,
      ... )
      >>> found.stands
      True

    Args:
      tuner, space: what is audited.
      canary: the record that is there or not.
      number: executions with the record, and as many without it.
      delta: the delta at which epsilons are compared; at a larger one an audit sees more.
      records: public number of training records, the canary's included; a tuner that draws a part
        or partitions of them takes time that grows as 2^records.
      seed: None for the operating system's randomness.
      **request: other arguments of `executions`.

    Raises:
      RuntimeError: if the claim depends on the record.
    """
    checks.instance("canary", canary, Canary, "auditing.CANARIES['gradient']")
    checks.probability("delta", delta)
    records = checks.whole("records", records, 2)
    request.setdefault("optimizer", canary.optimizer)
    started, numbers, claims = time.process_time(), [], []
    for with_record in (True, False):
        found = executions(
            tuner,
            canary.task(with_record, records),
            space,
            number,
            delta=delta,
            seed=None if seed is None else 2 * seed + with_record,
            **request,
        )
        numbers.append(_numbers_of(canary, found, number))
        claims.append(found.guarantee)
    if claims[0].provenance != claims[1].provenance:
        raise RuntimeError(
            "the claim is not the same with the record and without it: a number in it depends on "
            "the data, so pass a plan made of public numbers"
        )
    return Audit.of(
        claims[0],
        numbers[0],
        numbers[1],
        delta,
        failure_probability=failure_probability,
        cpu_seconds=time.process_time() - started,
    )


def _numbers_of(canary: Canary, found: Released, number: int) -> np.ndarray:
    """Returns the number that the canary's adversary computes from each execution, (number,)."""
    numbers = numbers_of(f"numbers of the canary {canary.name!r}", canary.numbers(found))
    if numbers.shape != (number,):
        raise ValueError(
            f"numbers of the canary {canary.name!r} have shape {numbers.shape}: return one for "
            f"each execution, ({number},)"
        )
    return numbers
