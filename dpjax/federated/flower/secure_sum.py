"""The server's side of a secure sum: Flower's workflow, halted before it unmasks too little.

`sum_rules` says why the sum is exact, and lists what Flower does not check and this project does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from dpjax.federated.flower import internals as flower
from dpjax.federated.flower.sum_rules import SumAborted, SumRules, Vector


@dataclasses.dataclass(frozen=True)
class SecureSum:
    """Holds what the server learns."""

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
    """Holds as much of a client proxy as the workflow reads."""

    node_id: int


class _Round:
    """Serves a workflow as strategy and client manager: fixed members, a place for the outcome."""

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
        """Keeps the results, in each of which the workflow has put the mean."""
        self.results = [result for _, result in results]
        return None, {}


class _Workflow(flower.SecAggPlusWorkflow):
    """Runs Flower's workflow, but halts with an exception and before anything is unmasked."""

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
        """Collects key pairs; all members must answer."""
        return self._all_present(super().setup_stage(grid, context, state), state)

    def share_keys_stage(self, grid, context, state) -> bool:
        """Shares of the keys; all members must answer."""
        return self._all_present(super().share_keys_stage(grid, context, state), state)

    def collect_masked_vectors_stage(self, grid, context, state) -> bool:
        """Collects masked vectors: enough that their noise is enough."""
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
