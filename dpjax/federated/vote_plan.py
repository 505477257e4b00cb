"""The public rule of a DP-HYPE vote, and the noise calibrated for it.

Liebenow, Peinemann & Mohammadi, "DP-HYPE", 2025 (arXiv:2510.04902); what is done with a plan is in
`dpjax.federated.voting`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from scipy import optimize

from dpjax import accounting, checks
from dpjax.accounting import stated
from dpjax.federated.summed import SummedMechanism, check_clients
from dpjax.randomness.integer_laws import NOISES

_CALIBRATION_SLACK = 2e-5
"""Relative noise added to the least that meets the target, above any rounding of it."""

_STATED_ABOVE = 1.0 + 1e-6
"""Factor of epsilon before it is rounded up to be stated: two programs that bound one exact law,
each with its own roundings, agree to less (docs/certificates.md)."""


@dataclasses.dataclass(frozen=True)
class VoteSettings:
    """The public rules of a vote; fix them before anyone looks at data.

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
      missing_fraction: xi; all of the privacy is left when up to this fraction of the clients drop
        out or collude with the server (both together).
      noise: "skellam" (closed under sums, so that nothing is lost by splitting it) or
        "discrete_gaussian".
      scale: factor of every vote; above 1 it makes the grid of the noise finer, which a sum of
        discrete Gaussians needs where a client's share is small: of a variance below 4 it is
        refused.
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
        # What few clients, and few or many votes, would do is said below.
        for name, least in (("clients", 0), ("candidates", 0), ("votes", 0), ("scale", 1)):
            object.__setattr__(self, name, checks.whole(name, getattr(self, name), least))
        checked_votes(self.votes, self.candidates)
        check_clients(self.clients, "ballot")
        for name, check in (("epsilon", checks.positive), ("delta", checks.probability)):
            value = getattr(self, name)
            object.__setattr__(self, name, checks.kept(value, check(name, value)))
        checks.one_of("noise", self.noise, NOISES)
        accounting.minimum_survivors(self.clients, self.missing_fraction)
        missing = checks.kept(self.missing_fraction, float(self.missing_fraction))
        object.__setattr__(self, "missing_fraction", missing)

    def plan(self) -> VotePlan:
        """Calibrates the noise: the least for which `VotePlan.guarantee` meets the target.

        Raises:
          ValueError: if the noise would be too wide for a secure sum modulo 2^32.
        """
        return _plan(self)


@dataclasses.dataclass(frozen=True)
class VotePlan(SummedMechanism):
    """A vote with calibrated noise.

    Formal guarantees: replace one client (all of its records). The winner, and even the whole noisy
    sum, is (epsilon, delta)-private as `guarantee` states, by the exact law of the noise, if
      * every honest client sends `noisy_ballot` once, with noise of its own secret randomness;
      * the server sees nothing but the sum, and at least `minimum_survivors` of the ballots in it
        come from clients whose noise it does not know (colluders count as missing);
      * who drops out does not depend on anyone's records.
    Noise beyond that of `minimum_survivors` only adds privacy. `local_noise` has its law up to a
    total variation of 2^-300 a count, and never exceeds `clip` together with a vote.

    Example:
      >>> from dpjax import federated
      >>> plan = federated.VoteSettings(clients=50, candidates=100, epsilon=1.0).plan()
      >>> print(f"{plan.guarantee.epsilon(1e-5):.3f}")
      1.000

    Attributes:
      settings: the rule.
      local_variance: variance (parameter) of one client's noise on one count, after scaling.
    """

    settings: VoteSettings
    local_variance: float
    vector: ClassVar[str] = "ballot"

    @functools.cached_property
    def guarantee(self) -> accounting.Guarantee:
        """Of one vote, client level, with as few survivors as allowed."""
        return _guarantee(self.settings, self.local_variance)

    @property
    def entries(self) -> int:
        """Counts of a ballot, one a candidate."""
        return self.settings.candidates

    @property
    def largest_entry(self) -> int:
        """One vote, scaled."""
        return self.settings.scale

    @property
    def noise(self) -> str:
        """The law of the noise."""
        return self.settings.noise

    @property
    def standard_deviation(self) -> float:
        """Of the noise on one count when all clients' ballots are in the sum, in votes."""
        return math.sqrt(self.local_variance * self.settings.clients) / self.settings.scale

    def fingerprint(self, candidates: Sequence[Mapping[str, float]]) -> str:
        """SHA-256 of the rule and the list of candidates, order included.

        Clients refuse a vote whose fingerprint is not that of their own list: an index would mean
        another candidate to them.

        Raises:
          ValueError: if the list has another length than `settings.candidates`.
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
        """What `guarantee.json` says of the vote; how the sum is made safe is the caller's to add.

        Args:
          secret: whether the noise came from the operating system's randomness.
        """
        checks.flag("secret", secret)
        settings = self.settings
        return {
            "private": True,
            "epsilon": stated.six_digits_up(_STATED_ABOVE * self.guarantee.epsilon(settings.delta)),
            stated.FIELD: stated.EPSILON_IS,
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
    """The exact cost of a vote whose clients each add this much noise."""
    common = {"votes": settings.votes, "candidates": settings.candidates, "scale": settings.scale}
    if settings.noise == "skellam":
        survivors = accounting.minimum_survivors(settings.clients, settings.missing_fraction)
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

    aim = stated.aim_below(settings.epsilon) / _STATED_ABOVE

    def excess(log_variance: float) -> float:
        """Positive while too little noise is added; relative to the target."""
        guarantee = _guarantee(settings, math.exp(log_variance))
        return guarantee.epsilon(settings.delta) / aim - 1.0

    low, high = start - 0.1, start + 0.1
    while excess(low) <= 0.0:
        low -= 0.5
    while excess(high) > 0.0:
        high += 0.5
    variance = math.exp(optimize.brentq(excess, low, high, xtol=1e-9) + _CALIBRATION_SLACK)
    plan = VotePlan(settings, stated.six_digits_up(variance))
    plan.check_modulus("a smaller scale or a larger epsilon")
    return plan


def checked_votes(votes: int, candidates: int) -> int:
    """`votes` as an int, or a ValueError unless 1 <= votes < candidates."""
    votes = checks.whole("votes", votes, 0)
    if not 1 <= votes < candidates:
        raise ValueError(
            f"votes={votes} of {candidates} candidates: pass at least 1 and fewer than there are "
            "candidates; a client that names all says nothing"
        )
    return votes
