"""What both sides of a federation agree on: the rules of a masked sum, the names of messages.

A sum is exact: it adds integers, which leave the clients under the masks of Flower's SecAgg+ alone.
Flower sums weighted floats quantised at random. With every weight 1, a clip C that is a power of
two and a quantisation range of 2 C, quantising an integer of at most C in absolute value is exact,
and the mean times the number of survivors is their integer sum. If this goes wrong, Flower raises
nothing; here every such case raises, on the client before anything leaves it and on the server
before anything is unmasked:

| trap in Flower | what happens there | here |
|---|---|---|
| default clip of 8 | larger entries are cut off, silently | entries beyond C refused |
| n 2C >= 2^32 | the sum wraps, silently | such rules are refused |
| weights by `num_examples` | no sum; the number travels in clear | any weight but 1 refused |
| metrics, messages, further records in the reply | travel in clear | refused |
| a train handler with an action name | nothing is masked | refused: only plain train is answered |
| a dropped client | the sum has less noise than planned | below the minimum nothing is unmasked |
| a restart (sum, node, run) after vectors were sent | a second answer | one a run, by a ledger |
| messages at once, each with a copy of the state | all are answered | the first alone |

A client prepares for a phase (trains, adds its noise) when it is asked to, and keeps the noisy
vector in its own state until the secure sum of that phase asks for it. `client.secure_sum_only`
holds the client's side of a sum, `server.secure_sum` the server's.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dpjax.federated.federation_settings import MINIMUM_CLIENTS, MODULUS
from dpjax.federated.flower import internals as flower

_SHARES = 11

Vector = np.ndarray


class ProtocolRefusal(ValueError):
    """Says that a client refuses a request, in words that never depend on its data."""


class SumAborted(ValueError):
    """Says that the server ended a sum without a result: nothing was unmasked."""


@dataclasses.dataclass(frozen=True)
class SumRules:
    """States the rules of one secure sum, agreed on by all before it starts.

    Attributes:
      clients: n, the number of clients planned for.
      minimum_survivors: fewer vectors than this are never unmasked.
      clip: C, a power of two; every entry of every vector lies in [-C, C].
      length: entries of a vector.
    """

    clients: int
    minimum_survivors: int
    clip: int
    length: int

    def __post_init__(self) -> None:
        if self.clients < MINIMUM_CLIENTS:
            raise ValueError(
                f"{self.clients} client{'s' if self.clients != 1 else ''}: a secure sum needs at "
                f"least {MINIMUM_CLIENTS}; with fewer each could subtract its own vector"
            )
        if not 1 <= self.minimum_survivors <= self.clients:
            raise ValueError(
                f"minimum_survivors {self.minimum_survivors}: pass 1 to {self.clients} (clients)"
            )
        if self.clip < 1 or self.clip & (self.clip - 1):
            raise ValueError(f"clip {self.clip}: pass a power of two; anything else is rounded")
        if self.clients * 2 * self.clip >= MODULUS:
            largest = 2 ** int(np.log2((MODULUS - 1) // (2 * self.clients)))
            raise ValueError(
                f"clip {self.clip} with {self.clients} clients: the sum would wrap at 2^32 and be "
                f"wrong; pass at most {largest}, that is less noise or a smaller scale"
            )
        if self.length < 1:
            raise ValueError(f"length {self.length}: pass at least 1")

    def check_members(self, members: int) -> None:
        """Refuses to begin with fewer clients than the minimum, or than three (`SumAborted`)."""
        needed = max(self.minimum_survivors, MINIMUM_CLIENTS)
        if not needed <= members <= self.clients:
            raise SumAborted(
                f"{members} clients are ready and the plan asks for {needed} to {self.clients}: "
                "nothing was summed and nothing is released"
            )

    def shares(self, members: int) -> int:
        """Returns how many shares each client's keys are split into: at most a fixed odd number."""
        return min(_SHARES, members)

    def threshold(self, members: int) -> int:
        """Returns how many shares reconstruct a key: a majority."""
        return self.shares(members) // 2 + 1

    def settings(self, members: int) -> dict[str, int | float]:
        """Returns Flower's settings under which the sum over `members` clients is exact."""
        return {
            flower.Key.SAMPLE_NUMBER: members,
            flower.Key.SHARE_NUMBER: self.shares(members),
            flower.Key.THRESHOLD: self.threshold(members),
            flower.Key.CLIPPING_RANGE: float(self.clip),
            flower.Key.TARGET_RANGE: 2 * self.clip,
            flower.Key.MOD_RANGE: MODULUS,
            flower.Key.MAX_WEIGHT: 1.0,
        }

    def check_vector(self, vector: Vector) -> None:
        """Refuses a vector whose masked sum would not be exact: of another shape, type or range."""
        if vector.shape != (self.length,):
            raise ValueError(f"vector of shape {vector.shape}: pass ({self.length},)")
        if not np.array_equal(vector, np.rint(vector)):
            raise ValueError("vector holds fractions: they would be rounded; pass integers")
        if np.max(np.abs(vector)) > self.clip:
            raise ValueError(f"vector holds an entry beyond the clip {self.clip}: it would be cut")


TRAIN_ACTION = "train_candidates"
ROUND_ACTION = "train_round"
TRAIN_MESSAGE = f"query.{TRAIN_ACTION}"
ROUND_MESSAGE = f"query.{ROUND_ACTION}"
"""Queries, not train messages: Flower does not mask them, and they hold nothing to mask."""

ELECTION_RECORD = "dpjax_election"
PARAMETERS_RECORD = "dpjax_parameters"
FINGERPRINT = "fingerprint"
PHASE = "phase"
WINNER = "winner"
VOTE_PHASE = 0
"""Rounds of averaging are the phases 1, 2, ..."""

PREPARED = "dpjax_prepared"
NOISY_VECTOR = "dpjax_noisy_vector"
LOCAL_SCORES = "dpjax_local_scores"
"""Records in the client's own state: rules and fingerprint of the phase it is ready for; what is to
be sent under masks; how each candidate did on its own records, which is never sent."""

Records = tuple[np.ndarray, np.ndarray]
LoadRecords = Callable[[flower.Context], Any]
"""Gives `Records`, unless the client has a judge of its own."""
Judge = Callable[[Any, list[Any]], Any]
"""(a client's records, p candidates, each a dict) -> losses (p,), lower is better."""


@dataclasses.dataclass(frozen=True)
class Spending:
    """States what a run has cost a client in total, once a vector is sent.

    Attributes:
      fingerprint: of the rules that the cost follows from.
      what: "vote", "training", or a word for another sum.
      epsilon, delta: cost of everything sent in the run under these rules; by default unknown,
        which counts as not private.
    """

    fingerprint: str = ""
    what: str = "sum"
    epsilon: float = math.inf
    delta: float = 0.0

    def __post_init__(self) -> None:
        if not (is_cost(self.epsilon) and is_cost(self.delta)):
            raise ValueError(
                f"epsilon={self.epsilon!r}, delta={self.delta!r}: pass numbers of at least 0"
            )


def is_cost(value: object) -> bool:
    """Returns whether a value is a number >= 0, as an epsilon or delta must be."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


def keep_prepared(
    context: flower.Context,
    rules: SumRules,
    noisy_vector: np.ndarray,
    *,
    phase: int,
    spending: Spending,
) -> None:
    """Stores in the client's own state what it will send, by which rules and at what cost.

    `spending` is the client's total cost in this run once the vector has been sent.
    """
    context.state.config_records[PREPARED] = flower.ConfigRecord(
        {
            # Flower passes the state of a run on to the next one of its series.
            "run": str(context.run_id),
            PHASE: phase,
            **dataclasses.asdict(rules),
            **dataclasses.asdict(spending),
        }
    )
    context.state.array_records[NOISY_VECTOR] = flower.ArrayRecord([noisy_vector])


class Prepared(NamedTuple):
    """Holds what a client is ready to send in this run: by which rules, when, at what cost."""

    rules: SumRules
    phase: int
    spending: Spending


def prepared(context: flower.Context) -> Prepared:
    """Returns the vector that this client has prepared in this run; refuses if there is none."""
    kept = context.state.config_records.get(PREPARED)
    if kept is None or kept["run"] != str(context.run_id):
        raise ProtocolRefusal("this client has trained nothing yet in this run: train first")
    return Prepared(
        SumRules(*(kept[name] for name in ("clients", "minimum_survivors", "clip", "length"))),
        kept[PHASE],
        Spending(*(kept[name] for name in (FINGERPRINT, "what", "epsilon", "delta"))),
    )
