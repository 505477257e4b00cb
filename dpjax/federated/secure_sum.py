"""Exact sums of integer vectors that only exist masked: Flower's SecAgg+ with its traps guarded.

Flower sums weighted floats quantised at random. With every weight 1, a clip C that is a power of
two and a quantisation range of 2 C, quantising an integer of at most C in absolute value is exact,
and the mean times the number of survivors is their integer sum. Nothing in Flower raises where this
goes wrong; here everything does, on the client before anything leaves it and on the server before
anything is unmasked:

| trap in Flower | what happens there | here |
|---|---|---|
| default clip of 8 | larger entries are cut off, silently | entries beyond C refused |
| n 2C >= 2^32 | the sum wraps, silently | such rules are refused |
| weights by `num_examples` | no sum; the number travels in clear | any weight but 1 refused |
| metrics in the reply | travel in clear | refused |
| a train handler with an action name | nothing is masked | refused: only plain train is answered |
| a dropped client | the sum has less noise than planned | below the minimum nothing is unmasked |
| a restart after the vectors were sent | a second noisy answer | each client answers once a run |
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dpjax.federated import flower_internals as flower

SMALLEST_FEDERATION = 3
"""Of two clients, each could subtract its own vector from the sum."""

MODULUS = 2**32
_SHARES = 11
_MEMORY = "dpjax_secure_sum"
_TRAIN = "train"
_LOG = logging.getLogger("dpjax.federated")

Vector = np.ndarray
Handler = Callable[[Any, Any], Any]


class ProtocolRefusal(ValueError):
    """A client refuses a request; the text depends on the request only, never on data."""


class SumAborted(ValueError):
    """The server ends a sum without any result: nothing was unmasked."""


@dataclasses.dataclass(frozen=True)
class SumRules:
    """What one secure sum is, agreed on by all before it starts.

    Attributes:
      clients: n, the number of clients planned for.
      minimum_survivors: fewer vectors than this are never unmasked.
      clip: C, a power of two; every entry of every vector lies in [-C, C].
      length: entries of a vector.

    Raises:
      ValueError: where the sum would not be exact, or would not hide anything.
    """

    clients: int
    minimum_survivors: int
    clip: int
    length: int

    def __post_init__(self) -> None:
        if self.clients < SMALLEST_FEDERATION:
            raise ValueError(
                f"{self.clients} client{'s' if self.clients != 1 else ''}: a secure sum needs at "
                f"least {SMALLEST_FEDERATION}, of fewer each could subtract its own vector"
            )
        if not 1 <= self.minimum_survivors <= self.clients:
            raise ValueError(
                f"minimum_survivors {self.minimum_survivors}: pass 1 to {self.clients} (clients)"
            )
        if self.clip < 1 or self.clip & (self.clip - 1):
            raise ValueError(f"clip {self.clip}: pass a power of two, anything else is rounded")
        if self.clients * 2 * self.clip >= MODULUS:
            largest = 2 ** int(np.log2((MODULUS - 1) // (2 * self.clients)))
            raise ValueError(
                f"clip {self.clip} with {self.clients} clients: the sum would wrap at 2^32 and be "
                f"wrong; pass at most {largest}, that is less noise or a smaller scale"
            )
        if self.length < 1:
            raise ValueError(f"length {self.length}: pass at least 1")

    def check_members(self, members: int) -> None:
        """Refuses to begin with too few clients.

        Raises:
          SumAborted: if fewer than the minimum, or than three, would take part.
        """
        needed = max(self.minimum_survivors, SMALLEST_FEDERATION)
        if not needed <= members <= self.clients:
            raise SumAborted(
                f"{members} clients are ready and the plan asks for {needed} to {self.clients}: "
                "nothing was summed and nothing is released"
            )

    def shares(self, members: int) -> int:
        """Into how many shares each client's keys are split: all, or a fixed odd number."""
        return min(_SHARES, members)

    def threshold(self, members: int) -> int:
        """How many shares reconstruct a key: a majority."""
        return self.shares(members) // 2 + 1

    def settings(self, members: int) -> dict[str, int | float]:
        """Flower's settings under which the sum over `members` clients is exact."""
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
        """Refuses a vector whose masked sum would not be exact.

        Raises:
          ValueError: for another shape, entries that are no integers, or one beyond the clip.
        """
        if vector.shape != (self.length,):
            raise ValueError(f"vector of shape {vector.shape}: pass ({self.length},)")
        if not np.array_equal(vector, np.rint(vector)):
            raise ValueError("vector holds fractions: they would be rounded; pass integers")
        if np.max(np.abs(vector)) > self.clip:
            raise ValueError(f"vector holds an entry beyond the clip {self.clip}: it would be cut")


# The client's side.


@contextlib.contextmanager
def kept_to_itself() -> Iterator[None]:
    """Lets no error text leave a client: Flower sends what an app raises to the server, in clear.

    A `ProtocolRefusal` passes, for it speaks of the request alone. Everything else goes to the
    client's own log.

    Raises:
      RuntimeError: of constant text, instead of whatever was raised.
    """
    try:
        yield
    except ProtocolRefusal:
        raise
    except Exception as error:
        _LOG.error("this client cannot take part: %s", error)
        raise RuntimeError("this client cannot take part; its own log says why") from None


def vector_reply(message: flower.Message, vector: Vector) -> flower.Message:
    """Returns a handler's reply that holds one integer vector, for `secure_sum_only` to mask."""
    result = flower.FitRes(
        status=flower.Status(flower.StatusCode.OK, ""),
        parameters=flower.ndarrays_to_parameters([np.asarray(vector, dtype=np.float64)]),
        num_examples=1,
        metrics={},
    )
    return flower.Message(flower.fitres_to_recorddict(result, False), reply_to=message)


def secure_sum_only(rules_for: Callable[[flower.Context], SumRules]) -> Callable[..., Any]:
    """Makes the client mod under which a train handler answers: masked, once, and exactly.

    Formal guarantees:
      The handler is called at most once in a run, and only for a request of message type `train`
      that carries the masking stage of SecAgg+, agreed on with the settings of `rules`. What it
      returns leaves the client masked; every other part of the reply is constant. Against a server
      that follows the protocol nothing but the sum over at least `minimum_survivors` clients can be
      computed from the replies, up to the strength of Flower's masks (docs/federated.md).

    Args:
      rules_for: gives the rules that this client agreed to, from its own context.

    Returns:
      A Flower mod, for `ClientApp.train(mods=[...])`.
    """

    def mod(message: flower.Message, context: flower.Context, call_next: Handler) -> flower.Message:
        rules = rules_for(context)
        configs = _protocol_record(message)
        _check_stage(context, configs, message.metadata.dst_node_id, rules)

        def checked(request: flower.Message, own: flower.Context) -> flower.Message:
            with kept_to_itself():
                reply = call_next(request, own)
                result = flower.recorddict_to_fitres(reply.content, keep_input=True)
                check_result(result, rules)
            return reply

        return flower.secaggplus_mod(message, context, checked)

    return mod


def _protocol_record(message: flower.Message) -> Mapping[str, Any]:
    """The request's secure-aggregation record; without one, or bypassing the mod, a refusal."""
    if message.metadata.message_type != _TRAIN:
        raise ProtocolRefusal(
            f"message type {message.metadata.message_type!r}: Flower masks only {_TRAIN!r}, "
            "everything else would leave in clear"
        )
    if flower.RECORD_KEY_CONFIGS not in message.content.config_records:
        raise ProtocolRefusal("no secure-aggregation record: a vote is cast under masks only")
    return message.content.config_records[flower.RECORD_KEY_CONFIGS]


def _check_stage(
    context: flower.Context, configs: Mapping[str, Any], own_id: int, rules: SumRules
) -> None:
    """Refuses what a server following the protocol and the rules would not ask."""
    stage = configs.get(flower.Key.STAGE)
    if _MEMORY not in context.state.config_records:
        context.state.config_records[_MEMORY] = flower.ConfigRecord({"answered": False})
    memory = context.state.config_records[_MEMORY]
    if memory["answered"] and stage != flower.Stage.UNMASK:
        raise ProtocolRefusal("this client has answered in this run: a second answer costs again")
    if stage == flower.Stage.SETUP:
        members = configs.get(flower.Key.SAMPLE_NUMBER)
        if not isinstance(members, int):
            raise ProtocolRefusal("the number of members is missing from the setup")
        rules.check_members(members)
        given = {key: value for key, value in configs.items() if key != flower.Key.STAGE}
        if given != rules.settings(members):
            raise ProtocolRefusal(
                f"secure-aggregation settings {given} are not those agreed on, "
                f"{rules.settings(members)}: the sum would be wrong"
            )
        memory["members"] = members
    elif stage == flower.Stage.SHARE_KEYS:
        peers = sorted(int(key) for key in configs if key != flower.Key.STAGE)
        if len(peers) != rules.shares(memory["members"]) or own_id not in peers:
            raise ProtocolRefusal("a peer is missing from the key exchange: begin again without it")
        memory["peers"] = peers
    elif stage == flower.Stage.COLLECT_MASKED_VECTORS:
        sources = sorted([*configs[flower.Key.SOURCE_LIST], own_id])
        if sources != list(memory["peers"]):
            raise ProtocolRefusal("a peer's key shares are missing: begin again without it")
        memory["answered"] = True
    elif stage == flower.Stage.UNMASK:
        active = list(configs[flower.Key.ACTIVE_NODE_ID_LIST])
        dead = list(configs[flower.Key.DEAD_NODE_ID_LIST])
        if sorted(active + dead) != list(memory["peers"]) or own_id not in active:
            raise ProtocolRefusal("the lists of survivors and lost do not name every peer once")
        if len(dead) > memory["members"] - rules.minimum_survivors:
            raise ProtocolRefusal(
                f"{len(dead)} peers are lost: fewer than {rules.minimum_survivors} clients' noise "
                "would be in the sum"
            )
    else:
        raise ProtocolRefusal(f"unknown stage {stage!r} of the secure aggregation")


def check_result(result: flower.FitRes, rules: SumRules) -> None:
    """Refuses a handler's result that Flower would weigh, leak or round.

    Raises:
      ValueError: for a weight other than 1, metrics, or anything but one vector within the rules.
    """
    if result.num_examples != 1:
        raise ValueError(
            f"num_examples {result.num_examples}: it travels in clear and weighs the sum; pass 1"
        )
    if result.metrics:
        raise ValueError("metrics travel in clear: leave them empty")
    vectors = flower.parameters_to_ndarrays(result.parameters)
    if len(vectors) != 1:
        raise ValueError(f"{len(vectors)} arrays: pass one vector")
    rules.check_vector(vectors[0])


# The server's side.


@dataclasses.dataclass(frozen=True)
class SecureSum:
    """What the server learns.

    Attributes:
      total: (length,) int64, the sum over the survivors.
      survivors: the node ids whose vectors are in it.
      lost: the node ids that were asked and are not.
    """

    total: Vector
    survivors: tuple[int, ...]
    lost: tuple[int, ...]


def secure_sum(
    grid: flower.Grid,
    context: flower.Context,
    node_ids: Iterable[int],
    rules: SumRules,
    *,
    instructions: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> SecureSum:
    """Asks every node's train handler for a vector and returns the exact sum over the survivors.

    Clients lost before any vector was sent are left out and the key exchange begins again with the
    others. Clients lost later are tolerated down to the minimum: below it, nothing is unmasked.

    Args:
      grid: Flower's connection to the nodes.
      context: the ServerApp's.
      node_ids: who takes part.
      rules: the same that the clients agreed to.
      instructions: sent in clear to the handlers.
      timeout: seconds to wait for the replies to each stage; None: for ever.

    Raises:
      SumAborted: if too few clients take part or are left; there is no output then.
    """
    asked = tuple(sorted(set(node_ids)))
    members = asked
    while True:
        rules.check_members(len(members))
        workflow = _Workflow(rules, members, dict(instructions or {}), timeout)
        try:
            total, survivors = workflow.run(grid, context)
        except _LostBeforeVectors as loss:
            members = loss.remaining
            continue
        lost = tuple(node for node in asked if node not in survivors)
        return SecureSum(total=total, survivors=survivors, lost=lost)


class _LostBeforeVectors(Exception):
    """Clients were lost before any vector was sent."""

    def __init__(self, remaining: tuple[int, ...]):
        super().__init__(remaining)
        self.remaining = remaining


@dataclasses.dataclass
class _Node:
    """As much of a client proxy as the workflow reads."""

    node_id: int


class _Round:
    """Strategy and client manager of a workflow: fixed members, and a place for the outcome."""

    def __init__(self, members: Sequence[int], instructions: Mapping[str, str]):
        self.members = members
        self.instructions = dict(instructions)
        self.results: list[flower.FitRes] = []

    def num_available(self) -> int:
        return len(self.members)

    def configure_fit(self, server_round, parameters, client_manager):
        """The same instructions for every member."""
        return [
            (_Node(node), flower.FitIns(parameters, dict(self.instructions)))
            for node in self.members
        ]

    def aggregate_fit(self, server_round, results, failures):
        """Keeps the results, in each of which the workflow has put the mean."""
        self.results = [result for _, result in results]
        return None, {}


class _Workflow(flower.SecAggPlusWorkflow):
    """Flower's workflow, halting with an exception and before anything is unmasked."""

    def __init__(
        self,
        rules: SumRules,
        members: tuple[int, ...],
        instructions: Mapping[str, str],
        timeout: float | None,
    ):
        settings = rules.settings(len(members))
        super().__init__(
            num_shares=settings[flower.Key.SHARE_NUMBER],
            reconstruction_threshold=settings[flower.Key.THRESHOLD],
            max_weight=settings[flower.Key.MAX_WEIGHT],
            clipping_range=settings[flower.Key.CLIPPING_RANGE],
            quantization_range=settings[flower.Key.TARGET_RANGE],
            modulus_range=settings[flower.Key.MOD_RANGE],
            timeout=timeout,
        )
        self._rules = rules
        self._members = members
        self._round = _Round(members, instructions)
        self._survivors: tuple[int, ...] = ()

    def run(self, grid: flower.Grid, context: flower.Context) -> tuple[Vector, tuple[int, ...]]:
        """Returns (sum, survivors)."""
        legacy = flower.LegacyContext(
            context=context,
            strategy=self._round,
            client_manager=self._round,
        )
        records = legacy.state
        records.config_records[flower.MAIN_CONFIGS_RECORD] = flower.ConfigRecord(
            {flower.WorkflowKey.CURRENT_ROUND: 1}
        )
        records.array_records[flower.MAIN_PARAMS_RECORD] = flower.ArrayRecord()
        self(grid, legacy)
        results = self._round.results
        if len(results) != len(self._survivors) or any(
            result.num_examples != 1 for result in results
        ):
            raise SumAborted("the masks could not be removed: nothing is released")
        (mean,) = flower.parameters_to_ndarrays(results[0].parameters)
        total = np.rint(mean * len(results)).astype(np.int64)
        if total.shape != (self._rules.length,):
            raise SumAborted(f"the sum has {total.shape} entries instead of {self._rules.length}")
        return total, self._survivors

    def setup_stage(self, grid, context, state) -> bool:
        """Key pairs; all members must answer."""
        return self._all_present(super().setup_stage(grid, context, state), state)

    def share_keys_stage(self, grid, context, state) -> bool:
        """Shares of the keys; all members must answer."""
        return self._all_present(super().share_keys_stage(grid, context, state), state)

    def collect_masked_vectors_stage(self, grid, context, state) -> bool:
        """Masked vectors; enough must arrive that the noise in their sum is enough."""
        enough = super().collect_masked_vectors_stage(grid, context, state)
        self._survivors = tuple(sorted(state.active_node_ids))
        if len(self._survivors) < self._rules.minimum_survivors:
            raise SumAborted(
                f"{len(self._survivors)} of {len(self._members)} clients sent a masked vector, the "
                f"guarantee needs {self._rules.minimum_survivors}: nothing was unmasked and "
                "nothing is released"
            )
        return self._protocol_holds(enough, state)

    def unmask_stage(self, grid, context, state) -> bool:
        """Shares of the survivors' masks."""
        return self._protocol_holds(super().unmask_stage(grid, context, state), state)

    def _all_present(self, went_well: bool, state: flower.WorkflowState) -> bool:
        if len(state.active_node_ids) < len(self._members):
            raise _LostBeforeVectors(tuple(sorted(state.active_node_ids)))
        return self._protocol_holds(went_well, state)

    def _protocol_holds(self, went_well: bool, state: flower.WorkflowState) -> bool:
        if not went_well:
            raise SumAborted(
                f"{len(state.active_node_ids)} clients are left, too few of one neighbourhood to "
                "remove the masks: nothing is released"
            )
        return True
