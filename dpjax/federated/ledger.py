"""What a client has spent on votes, in a file of its own, so that no server can ask too often.

One line of JSON for each vote that was sent, whatever became of it. Costs add up by basic
composition, which is sound and easy to check by hand; `accounting.compose` is tighter.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from dpjax.federated.sum_rules import ProtocolRefusal

LEDGER = "ledger"
LIMIT = "max-epsilon"


def check(node_config: Mapping[str, Any], epsilon: float) -> None:
    """Refuses a vote that would take a client above its own limit.

    Args:
      node_config: `max-epsilon`, the limit of all votes in the file `ledger`, or without a ledger
        of a single vote; no limit without it.
      epsilon: of the vote asked for.

    Raises:
      ProtocolRefusal: if the limit would be passed.
      ValueError: for a ledger that cannot be read.
    """
    if LIMIT not in node_config:
        return
    limit = float(node_config[LIMIT])
    before = sum(vote["epsilon"] for vote in votes(node_config.get(LEDGER)))
    if before + epsilon > limit:
        earlier = f" and {before:g} were spent before" if before else ""
        raise ProtocolRefusal(
            f"epsilon {epsilon:g} is above this client's limit: it is {limit:g}{earlier}"
        )


def votes(path: object) -> list[dict[str, Any]]:
    """The votes in a ledger: `epsilon`, `delta` and `fingerprint` of each; none without a file.

    Raises:
      ValueError: for a file that is no ledger.
    """
    if not path or not os.path.exists(str(path)):
        return []
    with open(str(path), encoding="utf-8") as file:
        try:
            found = [json.loads(line) for line in file]
            return [vote | {"epsilon": float(vote["epsilon"])} for vote in found]
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path} is no ledger of votes: mend it or name another") from None


def charge(path: object, epsilon: float, delta: float, fingerprint: str) -> None:
    """Appends a vote, on the disk before this returns; nothing without a path.

    Formal guarantees:
      Called before the vote is sent: a vote that left the client is in its ledger.
    """
    if not path:
        return
    line = json.dumps({"epsilon": epsilon, "delta": delta, "fingerprint": fingerprint}) + "\n"
    descriptor = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, line.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
