"""What is audited beside tuners: federated sums.

In a federation the canary is a client. With it, one client says one thing; without it, the same
client says the opposite: neighbours replace one client. As few clients survive as the rule allows.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import numpy as np

from dpjax import accounting
from dpjax.auditing import Audit
from dpjax.auditing.audits import FAILURE
from dpjax.federated import averaging, voting
from experiments.figures.auditing.other_executions import (
    averaging_executions,
    vote_executions,
)

DELTA = 0.02
CLIENT = "client"
_RULE = {"epsilon": 1.5, "delta": DELTA, "missing_fraction": 0.25}


def _replaced(
    claim: accounting.Guarantee,
    seen: Callable[[int, int | None], np.ndarray],
    seed: int | None,
) -> Audit:
    """Compares what is seen of one client, 0, and of the one in its place, 1; seeds apart."""
    started = time.process_time()
    one, other = (seen(own, None if seed is None else 2 * seed + own) for own in (0, 1))
    return Audit.of(
        claim,
        one,
        other,
        DELTA,
        failure_probability=FAILURE,
        cpu_seconds=time.process_time() - started,
    )


@dataclasses.dataclass(frozen=True)
class Vote:
    """A vote of four clients, of whom three survive, over two candidates.

    What is looked at is the server's noisy sum, or the winner alone.
    """

    of_the_sum: bool
    law = "none"
    canaries = (CLIENT,)
    sampling_probability, steps, expensive = 1.0, 1, True

    @property
    def plan(self) -> voting.VotePlan:
        """The calibrated rule."""
        return voting.VoteSettings(4, 2, votes=1, **_RULE).plan()

    @property
    def noise_multiplier(self) -> float:
        """Deviation of the least noise of a count, in votes."""
        return float(np.sqrt(self.plan.local_variance * self.plan.minimum_survivors))

    def audited(self, canary: str, number: int, seed: int | None = None) -> Audit:
        """Holds it with the client's vote for one candidate and for the other."""
        plan = self.plan

        def seen(own: int, seed: int | None) -> np.ndarray:
            # The others' votes balance: the client decides.
            ballots = np.eye(2, dtype=np.int64)[[*np.arange(plan.minimum_survivors - 1) % 2, own]]
            winners, sums = vote_executions(plan, ballots, number, seed=seed)
            return sums[:, 0] - sums[:, 1] if self.of_the_sum else winners

        return _replaced(plan.guarantee, seen, seed)


@dataclasses.dataclass(frozen=True)
class Averaging:
    """Two rounds of federated averaging of four clients, of whom three survive."""

    law = "none"
    canaries = (CLIENT,)
    sampling_probability, steps, expensive = 1.0, 2, True

    @property
    def plan(self) -> averaging.AveragingPlan:
        """The calibrated rule."""
        return averaging.AveragingSettings(4, 1, rounds=self.steps, **_RULE).plan()

    @property
    def noise_multiplier(self) -> float:
        """Deviation of the least noise of a sum, over the bound of an update."""
        plan = self.plan
        return float(np.sqrt(plan.local_variance * plan.minimum_survivors) / plan.bound)

    def audited(self, canary: str, number: int, seed: int | None = None) -> Audit:
        """Holds it with the client's update as long as it may be, and with the opposite one."""
        plan = self.plan

        def seen(own: int, seed: int | None) -> np.ndarray:
            updates = np.zeros((plan.minimum_survivors, 1))
            updates[-1] = (10.0, -10.0)[own]  # It is clipped.
            steps = averaging_executions(plan, updates, number, seed=seed)
            return steps.sum(axis=(1, 2))

        return _replaced(plan.guarantee, seen, seed)


CASES = {
    "federated vote: the winner": Vote(of_the_sum=False),
    "federated vote: the server's sum": Vote(of_the_sum=True),
    "federated averaging": Averaging(),
}
"""By name."""
