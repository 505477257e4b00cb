"""DP-HYPE: clients vote for hyperparameters, and only the noisy sum of their votes is seen.

Liebenow, Peinemann & Mohammadi, "DP-HYPE: Distributed Differentially Private Hyperparameter
Search", 2025 (arXiv:2510.04902). Every client trains all p candidates on its own records, names
its k best in a ballot of zeros and ones, adds its own share of integer noise, and hands the result
to a secure sum. The candidate with the largest noisy count is released, and nothing else.

This is the mechanism alone, free of any framework: `clients` makes the scores, `ballots` the votes,
`VoteSettings.plan` the noise, `noisy_ballot` what a client sends, `tally` what the server makes of
the sum. NumPy on the host; noise from the operating system's randomness.

The artifact of the authors lets the server draw Gaussian noise after it has seen the votes in
clear; here the noise is the clients' own, integer, and large enough without those who drop out.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from scipy import optimize

from dpjax import accounting, checks
from dpjax.accounting import stated_epsilon
from dpjax.federated.summed import SummedMechanism, check_settings
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.randomness.integer_laws import NOISES

_CALIBRATION_SLACK = 2e-5
"""Relative increase of the noise over the least that meets the target: exceeds rounding errors."""

_STATED_ABOVE = 1.0 + 1e-6
"""Factor on epsilon before it is rounded up to be stated: two programs that bound the same exact
price, each with its own rounding, differ by less (docs/certificates.md)."""


@dataclasses.dataclass(frozen=True)
class VoteSettings:
    """States the public rules of a vote; fix them before anyone looks at data.

    Example:
      >>> from dpjax import federated
      >>> settings = federated.VoteSettings(clients=50, candidates=100, epsilon=1.0)
      >>> print(f"noise of {settings.plan().standard_deviation:.1f} votes on a count")
      noise of 12.4 votes on a count

    Attributes:
      clients: n, how many clients take part.
      candidates: p, how many candidates there are.
      votes: k, how many of them each client names.
      epsilon: target of the whole vote.
      delta: target.
      missing_fraction: xi; the guarantee holds in full while at most this fraction of the clients
        drop out or collude with the server (both together).
      noise: "skellam" (closed under sums, so that nothing is lost by splitting it) or
        "discrete_gaussian".
      scale: factor of every vote; above 1 it makes the grid of the noise finer. A sum of discrete
        Gaussians needs that if each client's share of the noise is small: a share with a variance
        below 4 is refused.
    """

    clients: int
    candidates: int = dataclasses.field(metadata={"flag": None})
    votes: int = 5
    epsilon: float = 1.0
    delta: float = 1e-5
    missing_fraction: float = 0.1
    noise: str = dataclasses.field(default="skellam", metadata={"choices": NOISES})
    scale: int = 1

    def __post_init__(self):
        # `_checked_votes` refuses too few and too many votes, with a reason.
        check_settings(
            self,
            "ballot",
            whole={"candidates": 0, "votes": 0, "scale": 1},
            numbers={"epsilon": checks.positive, "delta": checks.probability},
        )
        _checked_votes(self.votes, self.candidates)
        checks.one_of("noise", self.noise, NOISES)

    def plan(self) -> VotePlan:
        """Calibrates the noise: the least for which `VotePlan.guarantee` meets the target."""
        return _plan(self)


@dataclasses.dataclass(frozen=True)
class VotePlan(SummedMechanism):
    """Plans a vote with calibrated noise.

    Formal guarantees: replace one client (all of its records). The winner, and even the whole noisy
    sum, is (epsilon, delta)-private as `guarantee` states, by the exact law of the noise, if
      * every honest client sends `noisy_ballot` once, with noise of its own secret randomness;
      * the server sees nothing but the sum, and at least `minimum_survivors` of the ballots in it
        come from clients whose noise it does not know (colluders count as missing);
      * who drops out does not depend on anyone's records.
    Noise beyond that of `minimum_survivors` only adds privacy. `local_noise` has its law up to a
    total variation of 2^-300 per count, and never exceeds `clip` together with a vote.

    Attributes:
      settings: the rule.
      local_variance: variance (parameter) of one client's noise on one count, after scaling.
    """

    settings: VoteSettings
    local_variance: float
    vector: ClassVar[str] = "ballot"

    @functools.cached_property
    def guarantee(self) -> accounting.Guarantee:
        """Returns the cost of the vote to one client, with as few survivors as allowed."""
        return _guarantee(self.settings, self.local_variance)

    @property
    def entries(self) -> int:
        """Returns the number of counts of a ballot, one for each candidate."""
        return self.settings.candidates

    @property
    def largest_entry(self) -> int:
        """Returns one vote, scaled."""
        return self.settings.scale

    @property
    def noise(self) -> str:
        """Names the distribution of the noise."""
        return self.settings.noise

    @property
    def standard_deviation(self) -> float:
        """Returns the std of the noise on one count if all ballots are in the sum, in votes."""
        return math.sqrt(self.local_variance * self.settings.clients) / self.settings.scale

    def fingerprint(self, candidates: Sequence[Mapping[str, float]]) -> str:
        """Returns the SHA-256 of the rule and the list of candidates, order included.

        Clients refuse a vote whose fingerprint is not that of their own list: an index would mean
        another candidate to them.
        """
        candidates = checks.listed("candidates", candidates, "mappings")
        if len(candidates) != self.settings.candidates:
            raise ValueError(
                f"{len(candidates)} candidates where the vote has {self.settings.candidates}: pass "
                "the same list everywhere"
            )
        for candidate in candidates:
            checks.mapping("each of the candidates", candidate, "from names to numbers")
        content = {
            "settings": dataclasses.asdict(self.settings),
            "local_variance": self.local_variance,
            "candidates": [
                {
                    name: checks.number(f"{name} of a candidate", value)
                    for name, value in candidate.items()
                }
                for candidate in candidates
            ],
        }
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def statement(self, *, secret: bool = True) -> dict[str, Any]:
        """States the vote for `guarantee.json`; the caller adds how the sum is kept safe.

        Args:
          secret: whether the noise came from the operating system's randomness.
        """
        checks.flag("secret", secret)
        settings = self.settings
        epsilon = _STATED_ABOVE * self.guarantee.epsilon(settings.delta)
        return {
            "private": True,
            "epsilon": stated_epsilon.six_digits_up(epsilon),
            stated_epsilon.FIELD: stated_epsilon.EPSILON_IS,
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


def _guarantee(settings: VoteSettings, local_variance: float) -> accounting.Guarantee:
    """Returns the exact cost of a vote whose clients each add this much noise."""
    common = {"votes": settings.votes, "candidates": settings.candidates, "scale": settings.scale}
    if settings.noise == "skellam":
        survivors = accounting.minimum_survivors(settings.clients, settings.missing_fraction)
        return accounting.skellam_vote(local_variance * survivors, **common)
    return accounting.discrete_gaussian_vote(
        local_variance, settings.clients, missing_fraction=settings.missing_fraction, **common
    )


@functools.lru_cache(maxsize=64)
def _plan(settings: VoteSettings) -> VotePlan:
    """Finds the least noise of one client with which the vote meets its target."""
    sigma = settings.scale * accounting.calibrate_vote(
        settings.epsilon, settings.delta, settings.votes, settings.candidates
    )
    start = math.log(
        accounting.local_noise_variance(sigma**2, settings.clients, settings.missing_fraction)
    )

    aim = stated_epsilon.aim_below(settings.epsilon) / _STATED_ABOVE

    def excess(log_variance: float) -> float:
        """Returns the excess over the target, relative: positive while noise is too small."""
        guarantee = _guarantee(settings, math.exp(log_variance))
        return guarantee.epsilon(settings.delta) / aim - 1.0

    # The continuous Gaussian's variance is close: search around it, in the logarithm.
    low, high = start - 0.1, start + 0.1
    while excess(low) <= 0.0:
        low -= 0.5
    while excess(high) > 0.0:
        high += 0.5
    variance = math.exp(optimize.brentq(excess, low, high, xtol=1e-9) + _CALIBRATION_SLACK)
    plan = VotePlan(settings, stated_epsilon.six_digits_up(variance))
    plan.check_modulus("a smaller scale or a larger epsilon")
    return plan


def _checked_votes(votes: int, candidates: int) -> int:
    """Returns `votes` as an int; refuses it unless 1 <= votes < candidates."""
    votes = checks.whole("votes", votes, 0)
    if not 1 <= votes < candidates:
        words = f" of {candidates} candidates: pass at least 1 and fewer than there are candidates"
        raise checks.Refused(("votes", votes), words, "; a client that names all says nothing")
    return votes


class VoteAborted(ValueError):
    """Says that a vote ended without output: too few ballots in the sum, or no valid sum."""


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
    votes = _checked_votes(votes, losses.shape[-1])
    failed = np.isnan(losses) | np.isnan(accuracies)
    # In lexsort the last key decides first, and equal candidates keep their order.
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

    The vote's guarantee assumes that all clients send a ballot; staying away would reveal a lack of
    records. A random ballot favours no candidate. Ranking NaN scores instead would make every such
    client vote for the lowest indices.
    """
    candidates = checks.whole("candidates", candidates, 0)
    votes = _checked_votes(votes, candidates)
    checks.instance("source", source, HostRandomness, "HostRandomness()")
    below = source.uniform_integers(stream)
    chosen = np.zeros(candidates, dtype=np.int64)
    left = list(range(candidates))
    for _ in range(votes):
        chosen[left.pop(below(len(left)))] = 1
    return chosen


def whole_ballot(
    losses: np.ndarray, accuracies: np.ndarray, votes: int, source: HostRandomness
) -> np.ndarray:
    """Returns one client's ballot as `ballots` does, but draws by lot among failed candidates.

    A candidate has failed if its loss or accuracy, (p,) each, is NaN. `ballots` would rank the
    failed ones by index, if fewer than k are left.
    """
    ballot = ballots(losses, accuracies, votes)
    failed = np.isnan(losses) | np.isnan(accuracies)
    left = votes - int(np.sum(~failed))
    if left > 0:
        ballot[~failed] = 1
        ballot[failed] = random_ballot(int(failed.sum()), left, source)
    return ballot


def noisy_ballot(
    ballot: np.ndarray, plan: VotePlan, source: HostRandomness, stream: int = 0
) -> np.ndarray:
    """Returns a client's vector for the secure sum: its scaled ballot plus its share of the noise.

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

    This is post-processing of the noisy sum (p,); the sum itself should not be published, although
    the guarantee covers it. Raises `VoteAborted` if fewer than `plan.minimum_survivors` (or more
    than all) ballots are in the sum, or if no such sum can have this total.
    """
    checks.instance("plan", plan, VotePlan, "VoteSettings(50, 100).plan()")
    total = plan.checked_total(total, survivors, VoteAborted, "; hold the vote again")
    return int(np.argmax(total))


RATES = {
    # Of the authors' published code, https://github.com/UzL-PrivSec/dp-hype.
    "artifact": (0.5, 0.1, 0.05, 5e-4, 1e-4, 1e-6, 5e-7, 1e-7, 5e-8, 1e-8),
    # Of the paper, four of which differ; decays and momenta are the same.
    "table_iii": (0.5, 0.1, 0.05, 1e-3, 5e-3, 1e-5, 1e-6, 5e-6, 5e-7, 1e-7),
    # Ours: evenly spaced between the artifact's ends.
    "log_spaced": tuple(float(f"{rate:.3g}") for rate in np.geomspace(0.5, 1e-8, 10)),
}
"""Named lists of learning rates of DP-HYPE's experiments."""

DECAYS = (0.0, 0.1, 0.25, 0.99, 1.0)
"""Factor of the learning rate after every epoch; 0 freezes the net after the first."""

MOMENTA = (0.0, 0.9)


def candidate_grid(
    rates: str | Sequence[float] = "artifact",
    decays: Sequence[float] = DECAYS,
    momenta: Sequence[float] = MOMENTA,
) -> list[dict[str, float]]:
    """Returns every combination, the rate varying slowest and the momentum fastest; 100 by default.

    Rates may be the name of a list in `RATES`.
    """
    if isinstance(rates, str):
        rates = RATES[checks.one_of("rates", rates, tuple(RATES))]
    lists = (("rates", rates), ("decays", decays), ("momenta", momenta))
    return [
        {"learning_rate": rate, "decay": decay, "momentum": momentum}
        for rate, decay, momentum in itertools.product(
            *(checks.vector(name, values).tolist() for name, values in lists)
        )
    ]
