"""Runs federated votes and rounds of averaging many times, independently.

Every client's vector gets its noise from the function that a deployed client calls, and the server
computes from the sum what it would release. As few clients take part as the rule allows, since the
claim must hold for them. The results are for audits, never for publishing.
"""

from __future__ import annotations

import numpy as np

from dpjax import checks
from dpjax.federated import averaging, voting
from dpjax.randomness.host_randomness import HostRandomness


def vote_executions(
    plan: voting.VotePlan, ballots: np.ndarray, number: int, *, seed: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Holds one vote `number` times with as few survivors as it allows.

    Formal guarantees:
      Each execution is `voting.noisy_ballot` of every survivor, their plain sum, and
      `voting.tally`, with noise of its own. Together they have no guarantee.

    Example:
      >>> import numpy as np
      >>> from dpjax import auditing, federated
      >>> plan = federated.VoteSettings(4, 2, votes=1).plan()
      >>> ballots = np.tile([1, 0], (plan.minimum_survivors, 1))
      >>> winners, sums = auditing.vote_executions(plan, ballots, 100)
      >>> sums.shape
      (100, 2)

    Args:
      ballots: (plan.minimum_survivors, candidates) zeros and ones, the survivors' own.
      number: of executions.
      seed: None for the operating system's randomness, as clients use it.

    Returns:
      The winners (number,) int64, and the noisy sums (number, candidates) int64, which only the
      server sees, and which the claim covers.
    """
    checks.instance("plan", plan, voting.VotePlan, "VoteSettings(50, 100).plan()")
    number = checks.whole("number", number)
    ballots = checks.plain_array("ballots", ballots)
    survivors = plan.minimum_survivors
    if ballots.ndim != 2 or len(ballots) != survivors:
        raise ValueError(
            f"ballots of shape {ballots.shape}: pass ({survivors}, {plan.entries}), one for each "
            "client that has to survive"
        )
    source = HostRandomness(seed)
    sums = np.zeros((number, plan.entries), np.int64)
    winners = np.zeros(number, np.int64)
    for run in range(number):
        sums[run] = sum(
            voting.noisy_ballot(ballot, plan, source, run * survivors + client)
            for client, ballot in enumerate(ballots)
        )
        winners[run] = voting.tally(sums[run], plan, survivors)
    return winners, sums


def averaging_executions(
    plan: averaging.AveragingPlan, updates: np.ndarray, number: int, *, seed: int | None = None
) -> np.ndarray:
    """Holds all rounds of federated averaging `number` times with as few survivors as it allows.

    Formal guarantees:
      Each round of each execution is `averaging.noisy_update` of every survivor, their plain sum,
      and `averaging.averaged`, with noise of its own. Together they have no guarantee.

    Example:
      >>> import numpy as np
      >>> from dpjax import auditing, federated
      >>> plan = federated.AveragingSettings(4, 1, rounds=2).plan()
      >>> updates = np.zeros((plan.minimum_survivors, 1))
      >>> auditing.averaging_executions(plan, updates, 100).shape
      (100, 2, 1)

    Args:
      updates: (plan.minimum_survivors, d) float, each survivor's update in every round, not clipped
        yet.
      number, seed: as in `vote_executions`.

    Returns:
      (number, rounds, d) float64, the server's steps.
    """
    checks.instance("plan", plan, averaging.AveragingPlan, "AveragingSettings(50, 1000).plan()")
    number = checks.whole("number", number)
    updates = checks.array("updates", updates)
    survivors, rounds = plan.minimum_survivors, plan.settings.rounds
    if updates.shape != (survivors, plan.entries):
        raise ValueError(
            f"updates of shape {updates.shape}: pass ({survivors}, {plan.entries}), one for each "
            "client that has to survive"
        )
    source = HostRandomness(seed)
    steps = np.zeros((number, rounds, plan.entries))
    for place in range(number * rounds):
        sent = [
            averaging.noisy_update(update, plan, source, place * survivors + client)
            for client, update in enumerate(updates)
        ]
        total = np.sum(sent, axis=0)
        steps[place // rounds, place % rounds] = averaging.averaged(total, plan, survivors)
    return steps
