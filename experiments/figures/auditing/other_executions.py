"""What the library's audits do not repeat: federated sums.

Each makes independent executions by the functions of a deployment. Together they have no guarantee:
they are for audits, never for publishing.
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

    Each execution is `voting.noisy_ballot` of every survivor, their plain sum, and `voting.tally`,
    with noise of its own. Returns the winners (number,) int64, and the noisy sums (number,
    candidates) int64, which only the server sees, and which the claim covers.

    Args:
      plan: the vote's.
      ballots: (plan.minimum_survivors, candidates) zeros and ones, the survivors' own.
      number: of executions.
      seed: None for the operating system's randomness, as clients use it.
    """
    ballots = checks.plain_array("ballots", ballots)
    survivors = plan.minimum_survivors
    _check_survivors("ballots", ballots, survivors, plan.entries)
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

    Each round is `averaging.noisy_update` of every survivor, their plain sum, and
    `averaging.averaged`. Returns the server's steps, (number, rounds, d) float64.

    Args:
      plan: the averaging's.
      updates: (plan.minimum_survivors, d) float, each survivor's update in every round, not clipped
        yet.
      number, seed: as in `vote_executions`.
    """
    updates = checks.array("updates", updates)
    survivors, rounds = plan.minimum_survivors, plan.settings.rounds
    _check_survivors("updates", updates, survivors, plan.entries)
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


def _check_survivors(name: str, sent: np.ndarray, survivors: int, entries: int) -> None:
    """Refuses all but one vector for each client that has to survive: more would add noise."""
    if sent.shape != (survivors, entries):
        raise ValueError(
            f"{name} of shape {sent.shape}: pass ({survivors}, {entries}), one for each client "
            "that has to survive"
        )
