"""The server's side of a federation: ask all to train, sum masked answers, name the winner.

The server only ever holds who took part and the noisy sums: of the votes, and of each round of
averaging with the winner that was agreed on. It releases the winner, and the model if it
was trained privately. A secure sum is Flower's workflow, halted before it unmasks too little.
Parameters travel in clear: they are public, being made of public initial ones and noisy sums alone.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from dpjax.federated.averaging import averaged
from dpjax.federated.federation_settings import Config
from dpjax.federated.flower import internals as flower
from dpjax.federated.flower.election import Election
from dpjax.federated.flower.messages import (
    ELECTION_RECORD,
    FINGERPRINT,
    PARAMETERS_RECORD,
    PHASE,
    ROUND_MESSAGE,
    TRAIN_MESSAGE,
    VOTE_PHASE,
    WINNER,
    SumAborted,
    SumRules,
    Vector,
)
from dpjax.federated.voting import tally


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Holds what the server knows at the end; `vote_release` says which parts may be released.

    Attributes:
      election: the rules.
      winner: index of the winning candidate.
      noisy_counts: (p,) int64, the sum of all noisy ballots, after scaling; the curator's.
      survivors: number of ballots in it.
      lost: number of clients that were planned for and are not in it.
      nodes: ids of the nodes whose ballots are in it.
      params: (d,) float32, the model after all rounds of averaging; None without rounds.
      round_survivors: number of updates in the sum of each round.
    """

    election: Election
    winner: int
    noisy_counts: np.ndarray
    survivors: int
    lost: int
    nodes: tuple[int, ...] = ()
    params: np.ndarray | None = None
    round_survivors: tuple[int, ...] = ()


_POLL_SECONDS = 0.5


def make_server_app(
    defaults: Config | None = None, on_outcome: Callable[[Outcome, Config], None] | None = None
) -> flower.ServerApp:
    """Makes the server's Flower app, for a SuperLink, a simulation or this process.

    The public rules (`Election`) are read from `defaults`, then from the run's configuration. Both
    may hold `timeout-seconds` as well, the time to wait for nodes and for replies to a request.

    Args:
      defaults: settings that the run's configuration need not repeat.
      on_outcome: called with the outcome and the configuration, for example to write the release.
    """
    app = flower.ServerApp()

    @app.main()
    def main(grid: flower.Grid, context: flower.Context) -> None:
        config = {**(defaults or {}), **context.run_config}
        election = Election.from_config(config)
        timeout = float(config.get("timeout-seconds", 600.0))
        outcome = run_election(grid, context, election, timeout=timeout)
        if election.averaging.rounds:
            outcome = run_rounds(grid, context, outcome, timeout=timeout)
        if on_outcome is not None:
            on_outcome(outcome, config)

    return app


def run_election(
    grid: flower.Grid, context: flower.Context, election: Election, *, timeout: float = 600.0
) -> Outcome:
    """Holds one vote among the connected clients.

    Formal guarantees: those of `VotePlan`, for a server that follows this function. It asks for
    nothing that depends on records but the masked votes, and unmasks their sum only if at least
    `minimum_survivors` are in it.

    Args:
      grid: Flower's connection to the nodes.
      context: the ServerApp's.
      election: the rules, the same at every client.
      timeout: seconds to wait for each stage.

    Raises:
      ValueError: before any vote, if clients are missing, cannot take part or hold other rules.
      SumAborted, VoteAborted: without output, if too few votes arrive.
    """
    # Before anyone trains: calibrates the noise, and refuses it if a sum could wrap.
    rules = election.rules
    if election.averaging.rounds:
        _ = election.averaging_rules
    nodes = _wait_for_nodes(grid, rules.clients, timeout)
    invited = flower.RecordDict(
        {ELECTION_RECORD: flower.ConfigRecord({FINGERPRINT: election.fingerprint})}
    )
    summed = summed_phase(
        grid, context, nodes, election, rules, VOTE_PHASE, TRAIN_MESSAGE, invited, timeout
    )
    return Outcome(
        election=election,
        winner=tally(summed.total, election.plan, len(summed.survivors)),
        noisy_counts=summed.total,
        survivors=len(summed.survivors),
        lost=len(nodes) - len(summed.survivors),
        nodes=summed.survivors,
    )


def _wait_for_nodes(grid: flower.Grid, clients: int, timeout: float) -> list[int]:
    """Waits for exactly the planned number of nodes; returns their ids."""
    deadline = time.monotonic() + timeout
    while True:
        nodes = sorted(grid.get_node_ids())
        if len(nodes) > clients:
            raise ValueError(
                f"{len(nodes)} nodes are connected and the vote is planned for {clients}: plan it "
                f"for clients={len(nodes)}"
            )
        if len(nodes) == clients:
            return nodes
        if time.monotonic() > deadline:
            raise ValueError(
                f"{len(nodes)} of {clients} nodes are connected after {timeout:g} seconds: start "
                "the others, or plan the vote for fewer"
            )
        time.sleep(_POLL_SECONDS)


def run_rounds(
    grid: flower.Grid, context: flower.Context, outcome: Outcome, *, timeout: float = 600.0
) -> Outcome:
    """Trains a model with the winner, round by round, on all clients that are left.

    Formal guarantees: those of `AveragingPlan`, for a server that follows this function. It asks
    for nothing that depends on records but the masked updates, and unmasks a sum only if at least
    `minimum_survivors` are in it; else everything ends without output.

    A client that is lost in one round is not asked in the next. The server divides by the public
    number of clients, no matter which are lost.

    Args:
      grid, context, timeout: as in `run_election`.
      outcome: of the vote.

    Returns:
      The outcome with the trained parameters.

    Raises:
      SumAborted, AveragingAborted: without output, if too few updates arrive in some round.
    """
    election = outcome.election
    plan, rules = election.averaging_plan, election.averaging_rules
    params = election.model.initial(election.training.seed)
    nodes, survivors = outcome.nodes, []
    for number in range(1, plan.settings.rounds + 1):
        facts = {FINGERPRINT: election.fingerprint, PHASE: number, WINNER: outcome.winner}
        content = flower.RecordDict(
            {
                ELECTION_RECORD: flower.ConfigRecord(facts),
                PARAMETERS_RECORD: flower.ArrayRecord([params]),
            }
        )
        summed = summed_phase(
            grid, context, nodes, election, rules, number, ROUND_MESSAGE, content, timeout
        )
        step = averaged(summed.total, plan, len(summed.survivors))
        params = (params + step).astype(np.float32)
        nodes = summed.survivors
        survivors.append(len(nodes))
    return dataclasses.replace(outcome, params=params, round_survivors=tuple(survivors))


def summed_phase(
    grid: flower.Grid,
    context: flower.Context,
    nodes: Sequence[int],
    election: Election,
    rules: SumRules,
    phase: int,
    message_type: str,
    content: flower.RecordDict,
    timeout: float,
) -> SecureSum:
    """Asks every node to prepare, then sums the answers of those that are ready.

    The phase is `VOTE_PHASE` or the number of a round; `rules` are those of its sum; the request to
    prepare is the same for all; `timeout` is in seconds for each stage. Raises a ValueError if a
    client holds other rules, `SumAborted` if too few are ready, or left.
    """
    requests = [
        flower.Message(content, dst_node_id=node, message_type=message_type, group_id="0")
        for node in nodes
    ]
    replies = grid.send_and_receive(requests, timeout=timeout)
    ready, strangers, unable = [], [], []
    for reply in replies:
        node = reply.metadata.src_node_id
        if reply.has_error():
            unable.append(reply.error.reason or "no reason given")
        elif reply.content.config_records[ELECTION_RECORD][FINGERPRINT] != election.fingerprint:
            strangers.append(node)
        else:
            ready.append(node)
    if strangers:
        raise ValueError(
            f"{len(strangers)} of {len(nodes)} clients hold other candidates or settings than the "
            "server (their fingerprints differ): give all of them the same"
        )
    try:
        election.rules.check_members(len(ready))
    except SumAborted as abort:
        reasons = f" ({'; '.join(sorted(set(unable)))})" if unable else ""
        raise SumAborted(f"{abort}{reasons}") from None
    instructions: dict[str, str | int] = {FINGERPRINT: election.fingerprint, PHASE: phase}
    return secure_sum(grid, context, ready, rules, instructions=instructions, timeout=timeout)


@dataclasses.dataclass(frozen=True)
class SecureSum:
    """Holds what the server learns from one secure sum."""

    total: Vector  # (length,) int64, the sum over the survivors
    survivors: tuple[int, ...]  # the node ids whose vectors are in it
    lost: tuple[int, ...]  # the node ids that were asked and are not in it


def secure_sum(
    grid: flower.Grid,
    context: flower.Context,
    node_ids: Iterable[int],
    rules: SumRules,
    *,
    instructions: Mapping[str, str | int] | None = None,
    timeout: float | None = None,
) -> SecureSum:
    """Asks every node's train handler for a vector and returns the exact sum over the survivors.

    Clients lost before any vector was sent are left out and the key exchange begins again with the
    others. Clients lost later are tolerated down to the minimum: below it, nothing is unmasked
    (`SumAborted`). The instructions are sent in clear; `timeout` is in seconds for each stage.
    """
    invited = tuple(sorted(set(node_ids)))
    members = invited
    while True:
        rules.check_members(len(members))
        workflow = _Workflow(rules, members, dict(instructions or {}), timeout)
        try:
            total, survivors = workflow.run(grid, context)
        except _LostBeforeVectors as loss:
            members = loss.remaining
            continue
        lost = tuple(node for node in invited if node not in survivors)
        return SecureSum(total=total, survivors=survivors, lost=lost)


class _LostBeforeVectors(Exception):
    """Says that clients were lost before any vector was sent, and which remain."""

    def __init__(self, remaining: tuple[int, ...]):
        super().__init__(remaining)
        self.remaining = remaining


@dataclasses.dataclass
class _Node:
    """Stands for a Flower client proxy, of which the workflow reads the id alone."""

    node_id: int


class _Round:
    """Serves as a workflow's strategy and client manager, with fixed members; keeps its results."""

    def __init__(self, members: Sequence[int], instructions: Mapping[str, str | int]):
        self.members = members
        self.instructions = dict(instructions)
        self.results: list[flower.FitRes] = []

    def num_available(self) -> int:
        return len(self.members)

    def configure_fit(self, server_round, parameters, client_manager):
        """Returns the same instructions for every member."""
        return [
            (_Node(node), flower.FitIns(parameters, dict(self.instructions)))
            for node in self.members
        ]

    def aggregate_fit(self, server_round, results, failures):
        """Keeps the results; the workflow has put the mean into each of them."""
        self.results = [result for _, result in results]
        return None, {}


class _Workflow(flower.SecAggPlusWorkflow):
    """Runs Flower's workflow, but raises if a stage fails, before anything is unmasked."""

    def __init__(
        self,
        rules: SumRules,
        members: tuple[int, ...],
        instructions: Mapping[str, str | int],
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
        """Runs all stages; returns the sum and the survivors."""
        legacy = flower.LegacyContext(
            context=context, strategy=self._round, client_manager=self._round
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
        """Collects key pairs; all members must answer."""
        return self._all_present(super().setup_stage(grid, context, state), state)

    def share_keys_stage(self, grid, context, state) -> bool:
        """Exchanges shares of the keys; all members must answer."""
        return self._all_present(super().share_keys_stage(grid, context, state), state)

    def collect_masked_vectors_stage(self, grid, context, state) -> bool:
        """Collects masked vectors; aborts if there are too few for the noise to be enough."""
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
        """Collects the shares that unmask the sum."""
        return self._protocol_holds(super().unmask_stage(grid, context, state), state)

    def _all_present(self, went_well: bool, state: flower.WorkflowState) -> bool:
        """Refuses a round in which a member was lost before it sent a vector."""
        if len(state.active_node_ids) < len(self._members):
            raise _LostBeforeVectors(tuple(sorted(state.active_node_ids)))
        return self._protocol_holds(went_well, state)

    def _protocol_holds(self, went_well: bool, state: flower.WorkflowState) -> bool:
        """Refuses a round that has lost too many clients to remove the masks."""
        if not went_well:
            raise SumAborted(
                f"{len(state.active_node_ids)} clients are left, too few of one neighbourhood to "
                "remove the masks: nothing is released"
            )
        return True
