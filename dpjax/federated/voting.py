"""DP-HYPE: clients vote for hyperparameters, and only the noisy sum of their votes is seen.

Liebenow, Peinemann & Mohammadi, "DP-HYPE: Distributed Differentially Private Hyperparameter
Search", 2025 (arXiv:2510.04902). Every client trains all p candidates on its own records, names
its k best in a ballot of zeros and ones, adds its own share of integer noise, and hands the result
to a secure sum. The candidate with the largest noisy count is released, and nothing else.

This is the mechanism alone, free of any framework: `vote_clients` makes the scores, `ballots` the
votes, `VoteSettings.plan` the noise, `noisy_ballot` what a client sends, `tally` what the server
makes of the sum. NumPy on the host; noise from the operating system's randomness.

The artifact of the authors lets the server draw Gaussian noise after it has seen the votes in
clear; here the noise is the clients' own, integer, and large enough without those who drop out.
"""

from __future__ import annotations

import numpy as np

from dpjax import checks
from dpjax.federated.summed import MINIMUM_CLIENTS
from dpjax.federated.vote_candidates import candidate_grid
from dpjax.federated.vote_plan import VotePlan, VoteSettings, checked_votes
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.randomness.integer_laws import NOISES

__all__ = [
    "MINIMUM_CLIENTS",
    "NOISES",
    "VoteAborted",
    "VotePlan",
    "VoteSettings",
    "ballots",
    "candidate_grid",
    "noisy_ballot",
    "random_ballot",
    "tally",
]


class VoteAborted(ValueError):
    """The vote ended without output: too little noise is in the sum, or the sum is not valid.

    Example:
      >>> import numpy as np
      >>> from dpjax import federated
      >>> plan = federated.VoteSettings(clients=50, candidates=2, votes=1).plan()
      >>> try:
      ...     federated.voting.tally(np.zeros(2, np.int64), plan, survivors=40)
      ... except federated.VoteAborted as error:
      ...     print(error)
      no output: 40 of 50 ballots are in the sum, and the noise needs 45; hold the vote again
    """


def ballots(losses: np.ndarray, accuracies: np.ndarray, votes: int = 5) -> np.ndarray:
    """Marks each client's k best candidates: by accuracy, ties by loss, then by the lower index.

    A candidate whose accuracy or loss is NaN ranks below all others whatever the other number says
    (a diverged net that predicts one class may well score). Small clients leave many exact ties in
    accuracy, so the loss decides often. Losses and accuracies (any score will do) are (..., p);
    the ballots (..., p) int64 of zeros and k ones along the last axis, 1 <= k < p.
    """
    losses = checks.array("losses", losses, nan=True)
    accuracies = checks.array("accuracies", accuracies, nan=True)
    if losses.shape != accuracies.shape or losses.ndim == 0:
        raise ValueError(
            f"losses {losses.shape} and accuracies {accuracies.shape}: pass one of each per "
            "candidate"
        )
    votes = checked_votes(votes, losses.shape[-1])
    failed = np.isnan(losses) | np.isnan(accuracies)
    # lexsort: the last key is the first to decide, and equal ones keep their order.
    order = np.lexsort(
        (np.where(failed, 0.0, losses), np.where(failed, 0.0, -accuracies), failed), axis=-1
    )
    chosen = np.zeros(losses.shape, dtype=np.int64)
    np.put_along_axis(chosen, order[..., :votes], 1, axis=-1)
    return chosen


def random_ballot(
    candidates: int, votes: int, source: HostRandomness, stream: int = 0
) -> np.ndarray:
    """Draws the ballot of a client that cannot judge: k candidates uniformly, records unseen.

    The vote's guarantee is about clients that all send a ballot; one that stayed away for want of
    records would tell that it has none. Drawn by lot it favours no candidate, where the k lowest
    indices of a list of NaN scores would favour those in every such client.
    """
    candidates = checks.whole("candidates", candidates, 0)
    votes = checked_votes(votes, candidates)
    checks.instance("source", source, HostRandomness, "HostRandomness()")
    below = source.uniform_integers(stream)
    chosen = np.zeros(candidates, dtype=np.int64)
    left = list(range(candidates))
    for _ in range(votes):
        chosen[left.pop(below(len(left)))] = 1
    return chosen


def noisy_ballot(
    ballot: np.ndarray, plan: VotePlan, source: HostRandomness, stream: int = 0
) -> np.ndarray:
    """Returns what a client hands to the secure sum: its scaled ballot plus its share of the noise.

    Formal guarantees: alone it is no private release; it must not leave the client but through a
    secure sum of at least `plan.minimum_survivors` of its kind.

    It is (p,) int64, each entry at most `plan.clip` in absolute value. For `source` and `stream`
    see `VotePlan.local_noise`.
    """
    checks.instance("plan", plan, VotePlan, "VoteSettings(50, 100).plan()")
    ballot = checks.plain_array("ballot", ballot)
    settings = plan.settings
    if (
        ballot.shape != (settings.candidates,)
        or ballot.dtype.kind not in "iub"
        or not np.isin(ballot, (0, 1)).all()
        or int(ballot.sum()) != settings.votes
    ):
        raise ValueError(
            f"not a ballot: pass {settings.candidates} whole numbers, {settings.votes} ones and "
            "zeros otherwise, as voting.ballots returns"
        )
    return plan.noisy(settings.scale * ballot.astype(np.int64), source, stream)


def tally(total: np.ndarray, plan: VotePlan, survivors: int) -> int:
    """Returns the index of the winner: the largest noisy count, the lower index where equal.

    Post-processing of the noisy sum (p,); the sum itself is not to be published, since the
    guarantee of the release need not be stretched over it. Raises `VoteAborted` if fewer than
    `plan.minimum_survivors` (or more than all) ballots are in the sum, or the total is not what
    such a sum can be.
    """
    checks.instance("plan", plan, VotePlan, "VoteSettings(50, 100).plan()")
    total = plan.checked_total(total, survivors, VoteAborted, "; hold the vote again")
    return int(np.argmax(total))
