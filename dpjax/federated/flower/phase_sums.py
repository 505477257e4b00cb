"""One phase from the server's side: every node prepares, then one masked sum of those ready."""

from __future__ import annotations

from collections.abc import Sequence

from dpjax.federated.flower import internals as flower
from dpjax.federated.flower.election import Election
from dpjax.federated.flower.phases import ELECTION_RECORD, FINGERPRINT, PHASE
from dpjax.federated.flower.secure_sum import SecureSum, secure_sum
from dpjax.federated.flower.sum_rules import SumAborted, SumRules


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
    """Lets every node prepare, then sums what those that are ready answer in this phase.

    The phase is `VOTE_PHASE` or the number of a round; `rules` are of its sum; the request to
    prepare is the same for all; `timeout` is in seconds for each stage. Raises a ValueError if a
    client holds other rules, `SumAborted` if too few are ready, or left.
    """
    ready = _prepared_nodes(grid, nodes, election, message_type, content, timeout)
    instructions: dict[str, str | int] = {FINGERPRINT: election.fingerprint, PHASE: phase}
    return secure_sum(grid, context, ready, rules, instructions=instructions, timeout=timeout)


def _prepared_nodes(
    grid: flower.Grid,
    nodes: Sequence[int],
    election: Election,
    message_type: str,
    content: flower.RecordDict,
    timeout: float,
) -> list[int]:
    """Lets every node prepare for a phase; returns those that are ready for its secure sum."""
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
    return ready
