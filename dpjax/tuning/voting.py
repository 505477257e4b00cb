"""DP-HYPE: clients vote for hyperparameters, and only the noisy sum of their votes is seen.

Liebenow, Peinemann & Mohammadi, "DP-HYPE: Distributed Differentially Private Hyperparameter
Search", 2025 (arXiv:2510.04902). Every client trains all p candidates on its own records, names
its k best in a ballot of zeros and ones, adds its own share of integer noise, and hands the result
to a secure sum. The candidate with the largest noisy count is released, and nothing else.

This is the mechanism alone, free of any framework: `train_clients` makes the scores, `ballots` the
votes, `VoteSettings.plan` the noise, `noisy_ballot` what a client sends, `tally` what the server
makes of the sum. NumPy on the host; noise from the operating system's randomness.

The artifact of the authors lets the server draw Gaussian noise after it has seen the votes in
clear; here the noise is the clients' own, integer, and large enough without those who drop out.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import optimize

from dpjax import accounting
from dpjax.accounting.voting import minimum_survivors
from dpjax.tuning import integer_laws
from dpjax.tuning.host_randomness import HostRandomness
from dpjax.tuning.integer_laws import NOISES
from dpjax.tuning.vote_candidates import candidate_grid
from dpjax.tuning.vote_clients import ClientScores, train_clients

__all__ = [
    "MINIMUM_CLIENTS",
    "NOISES",
    "ClientScores",
    "VoteAborted",
    "VotePlan",
    "VoteSettings",
    "ballots",
    "candidate_grid",
    "noisy_ballot",
    "tally",
    "train_clients",
]

MINIMUM_CLIENTS = 3
"""With two clients, each could subtract its own ballot from the sum and be left with the other's
and half the noise."""

_MODULUS_BITS = 32
_CALIBRATION_SLACK = 2e-5
"""Relative noise added to the least that meets the target, above any rounding of it."""


class VoteAborted(ValueError):
    """The vote ends without an output: too few clients' noise is in the sum, or it is no sum."""


def ballots(losses: np.ndarray, accuracies: np.ndarray, votes: int = 5) -> np.ndarray:
    """Each client's k best candidates: by accuracy, ties by loss, then by the lower index.

    A candidate whose accuracy or loss is NaN ranks below all others whatever the other number says
    (a diverged net that predicts one class may well score). Small clients leave many exact ties in
    accuracy, so the loss decides often.

    Args:
      losses: (..., p) float, lower is better.
      accuracies: (..., p) float, higher is better; any score will do.
      votes: k.

    Returns:
      (..., p) int64 of zeros and k ones along the last axis.

    Raises:
      ValueError: for arrays of different shapes, or unless 1 <= votes < p.
    """
    losses, accuracies = (np.asarray(values, dtype=np.float64) for values in (losses, accuracies))
    if losses.shape != accuracies.shape or losses.ndim == 0:
        raise ValueError(
            f"losses {losses.shape} and accuracies {accuracies.shape}: pass one of each per "
            "candidate"
        )
    votes = _checked_votes(votes, losses.shape[-1])
    failed = np.isnan(losses) | np.isnan(accuracies)
    # lexsort: the last key is the first to decide, and equal ones keep their order.
    order = np.lexsort(
        (np.where(failed, 0.0, losses), np.where(failed, 0.0, -accuracies), failed), axis=-1
    )
    chosen = np.zeros(losses.shape, dtype=np.int64)
    np.put_along_axis(chosen, order[..., :votes], 1, axis=-1)
    return chosen


@dataclasses.dataclass(frozen=True)
class VoteSettings:
    """The public rule of a vote; fix it before anyone looks at data.

    Attributes:
      clients: n, how many clients take part.
      candidates: p, how many candidates there are.
      votes: k, how many of them each client names.
      epsilon: target of the whole vote.
      delta: target.
      missing_fraction: xi; all of the privacy is left when up to this fraction of the clients drop
        out or collude with the server (both together).
      noise: "skellam" (closed under sums, so that nothing is lost by splitting it) or
        "discrete_gaussian".
      scale: factor of every vote; above 1 it makes the grid of the noise finer, which a sum of
        discrete Gaussians needs where a client's share is small (and costs time to account for
        where it is not).
    """

    clients: int
    candidates: int
    votes: int = 5
    epsilon: float = 1.0
    delta: float = 1e-5
    missing_fraction: float = 0.1
    noise: str = "skellam"
    scale: int = 1

    def __post_init__(self):
        for name in ("clients", "candidates", "votes", "scale"):
            object.__setattr__(self, name, _whole(name, getattr(self, name)))
        _checked_votes(self.votes, self.candidates)
        if self.clients < MINIMUM_CLIENTS:
            raise ValueError(
                f"{self.clients} client(s): pass at least {MINIMUM_CLIENTS}; the sum of fewer "
                "shows one client's ballot to another"
            )
        if not (0.0 < self.epsilon < math.inf and 0.0 < self.delta < 1.0):
            raise ValueError(
                f"epsilon={self.epsilon}, delta={self.delta}: pass a finite epsilon above 0 and a "
                "delta between 0 and 1"
            )
        if self.noise not in NOISES:
            raise ValueError(f"unknown noise {self.noise!r}: pass one of {', '.join(NOISES)}")
        if self.scale < 1:
            raise ValueError(f"scale={self.scale}: pass a whole number of at least 1")
        minimum_survivors(self.clients, self.missing_fraction)

    def plan(self) -> VotePlan:
        """Calibrates the noise: the least for which `VotePlan.guarantee` meets the target.

        Raises:
          ValueError: if the noise would be too wide for a secure sum modulo 2^32.
        """
        return _plan(self)


@dataclasses.dataclass(frozen=True)
class VotePlan:
    """A calibrated vote.

    Formal guarantees: replace one client (all of its records). The winner, and even the whole noisy
    sum, is (epsilon, delta)-private as `guarantee` states, by the exact law of the noise, if
      * every honest client sends `noisy_ballot` once, with noise of its own secret randomness;
      * the server sees nothing but the sum, and at least `minimum_survivors` of the ballots in it
        come from clients whose noise it does not know (colluders count as missing);
      * who drops out does not depend on anyone's records.
    Noise beyond that of `minimum_survivors` only adds privacy. `local_noise` has its law up to a
    total variation of 2^-300 a count, and never exceeds `clip` together with a vote.

    Attributes:
      settings: the rule.
      local_variance: variance (parameter) of one client's noise on one count, after scaling.
    """

    settings: VoteSettings
    local_variance: float

    @functools.cached_property
    def guarantee(self) -> accounting.Guarantee:
        """Of one vote, client level, with as few survivors as allowed."""
        return _guarantee(self.settings, self.local_variance)

    @property
    def minimum_survivors(self) -> int:
        """Abort the vote with fewer ballots than this in the sum."""
        return minimum_survivors(self.settings.clients, self.settings.missing_fraction)

    @property
    def clip(self) -> int:
        """A power of two that no entry of a noisy ballot ever exceeds in absolute value."""
        return 1 << (self._law.reach + self.settings.scale - 1).bit_length()

    @property
    def standard_deviation(self) -> float:
        """Of the noise on one count when all clients' ballots are in the sum, in votes."""
        return math.sqrt(self.local_variance * self.settings.clients) / self.settings.scale

    @property
    def _law(self) -> integer_laws.IntegerLaw:
        return integer_laws.integer_law(self.settings.noise, self.local_variance)

    def local_noise(self, source: HostRandomness, stream: int = 0) -> np.ndarray:
        """One client's share of the noise, (p,) int64.

        Args:
          source: `HostRandomness()`, the operating system's; a seeded one is for simulation only.
          stream: of a seeded source; a number of its own for each client and vote.
        """
        return self._law.draw(self.settings.candidates, source, stream)

    def success_bound(self, gap: float, bad_candidates: int, method: str = "exact") -> float:
        """Lower bound on the probability that no bad candidate wins (Theorem V.1 and tighter).

        Args:
          gap: by how many votes every bad candidate trails the best.
          bad_candidates: their number.
          method: see `accounting.vote_success_bound`, which takes the noise as Gaussian.
        """
        return accounting.vote_success_bound(gap, self.standard_deviation, bad_candidates, method)

    def fingerprint(self, candidates: Sequence[Mapping[str, float]]) -> str:
        """SHA-256 of the rule and the list of candidates, order included.

        Clients refuse a vote whose fingerprint is not that of their own list: an index would mean
        another candidate to them.

        Raises:
          ValueError: if the list has another length than `settings.candidates`.
        """
        if len(candidates) != self.settings.candidates:
            raise ValueError(
                f"{len(candidates)} candidates where the vote has {self.settings.candidates}: pass "
                "the same list everywhere"
            )
        content = {
            "settings": dataclasses.asdict(self.settings),
            "local_variance": self.local_variance,
            "candidates": [
                {name: float(value) for name, value in candidate.items()}
                for candidate in candidates
            ],
        }
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def statement(self, *, secret: bool = True) -> dict[str, Any]:
        """What `guarantee.json` says of the vote; how the sum is made safe is the caller's to add.

        Args:
          secret: whether the noise came from the operating system's randomness.
        """
        settings = self.settings
        return {
            "private": True,
            "epsilon": self.guarantee.epsilon(settings.delta),
            "delta": settings.delta,
            "neighbouring_relation": self.guarantee.relation,
            "unit_of_privacy": "one client with all of its records",
            "mechanism": self.guarantee.provenance,
            "settings": dataclasses.asdict(settings)
            | {"local_variance": self.local_variance, "clip": self.clip},
            "dropouts": (
                f"at least {self.minimum_survivors} of {settings.clients} ballots are in the sum, "
                "or there is no output; clients that collude with the server count as missing"
            ),
            "assumptions": [
                "the candidates and every setting were fixed before the data was seen",
                "the server sees no ballot, only the sum, and releases only the winner",
                "which clients drop out does not depend on their records",
                "a client votes once; another vote on the same records is composed with this one",
            ],
            "randomness": {
                "secret": secret,
                "statement": (
                    "each client's integer noise comes from its operating system's randomness"
                    if secret
                    else "NOT SECRET: a seed was given; whoever knows it can subtract the noise"
                ),
            },
        }


def noisy_ballot(
    ballot: np.ndarray, plan: VotePlan, source: HostRandomness, stream: int = 0
) -> np.ndarray:
    """What a client hands to the secure sum: its scaled ballot plus its share of the noise.

    Formal guarantees: alone it is no private release; it must not leave the client but through a
    secure sum of at least `plan.minimum_survivors` of its kind.

    Args:
      ballot: (p,) integers, zeros and k ones.
      plan: of the vote.
      source, stream: see `VotePlan.local_noise`.

    Returns:
      (p,) int64, each entry at most `plan.clip` in absolute value.

    Raises:
      ValueError: for anything but a ballot of this vote.
    """
    ballot = np.asarray(ballot)
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
    noisy = settings.scale * ballot.astype(np.int64) + plan.local_noise(source, stream)
    assert np.abs(noisy).max() <= plan.clip  # By construction of clip: a wrap would ruin the sum.
    return noisy


def tally(total: np.ndarray, plan: VotePlan, survivors: int) -> int:
    """The winner: the candidate with the largest noisy count, the lower index where equal.

    Post-processing of the noisy sum; the sum itself is not to be published, since the guarantee of
    the release need not be stretched over it.

    Args:
      total: (p,) integers, the sum of the survivors' noisy ballots.
      plan: of the vote.
      survivors: how many noisy ballots are in the sum.

    Returns:
      The index of the winner.

    Raises:
      VoteAborted: if fewer than `plan.minimum_survivors` (or more than all) ballots are in the sum,
        or the total is not what such a sum can be.
    """
    survivors = _whole("survivors", survivors)
    if not plan.minimum_survivors <= survivors <= plan.settings.clients:
        raise VoteAborted(
            f"no output: {survivors} of {plan.settings.clients} ballots are in the sum, and the "
            f"noise needs {plan.minimum_survivors}; hold the vote again"
        )
    total = np.asarray(total)
    if (
        total.shape != (plan.settings.candidates,)
        or total.dtype.kind not in "iu"
        or np.abs(total.astype(np.int64)).max() > survivors * plan.clip
    ):
        raise VoteAborted(
            f"no output: the total is not a sum of {survivors} ballots of "
            f"{plan.settings.candidates} whole numbers within {plan.clip}"
        )
    return int(np.argmax(total))


def _guarantee(settings: VoteSettings, local_variance: float) -> accounting.Guarantee:
    """The exact cost of a vote whose clients each add this much noise."""
    common = {"votes": settings.votes, "candidates": settings.candidates, "scale": settings.scale}
    if settings.noise == "skellam":
        survivors = minimum_survivors(settings.clients, settings.missing_fraction)
        return accounting.skellam_vote(local_variance * survivors, **common)
    return accounting.discrete_gaussian_vote(
        local_variance,
        settings.clients,
        missing_fraction=settings.missing_fraction,
        **common,
    )


@functools.lru_cache(maxsize=64)
def _plan(settings: VoteSettings) -> VotePlan:
    sigma = settings.scale * accounting.calibrate_vote(
        settings.epsilon, settings.delta, settings.votes, settings.candidates
    )
    start = math.log(
        accounting.local_noise_variance(sigma**2, settings.clients, settings.missing_fraction)
    )

    def excess(log_variance: float) -> float:
        """Positive while too little noise is added; relative to the target."""
        guarantee = _guarantee(settings, math.exp(log_variance))
        return guarantee.epsilon(settings.delta) / settings.epsilon - 1.0

    low, high = start - 0.1, start + 0.1
    while excess(low) <= 0.0:
        low -= 0.5
    while excess(high) > 0.0:
        high += 0.5
    variance = math.exp(optimize.brentq(excess, low, high, xtol=1e-9) + _CALIBRATION_SLACK)
    # Six digits, rounded up: the same number on every client's machine and library versions.
    digits = 10.0 ** (5 - math.floor(math.log10(variance)))
    plan = VotePlan(settings, math.ceil(variance * digits) / digits)
    if 2 * plan.clip * settings.clients >= 1 << _MODULUS_BITS:
        raise ValueError(
            f"{settings.clients} noisy ballots within {plan.clip} overflow a sum modulo "
            f"2^{_MODULUS_BITS}: pass a smaller scale or a larger epsilon"
        )
    return plan


def _whole(name: str, value: int) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number, got {value!r}") from None


def _checked_votes(votes: int, candidates: int) -> int:
    votes = _whole("votes", votes)
    if not 1 <= votes < candidates:
        raise ValueError(
            f"votes={votes} of {candidates} candidates: pass at least 1 and fewer than there are "
            "candidates; a client that names all says nothing"
        )
    return votes
