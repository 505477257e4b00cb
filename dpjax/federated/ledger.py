"""What a client has spent in federations, in a file of its own, so that none can ask too often.

One line of JSON for each vote that was sent, whatever became of it, and one for the training after
it, written before the first update is sent: the rest of what the run costs in all, whose rounds
are composed in one number. Runs add up by basic composition, which is sound and easy to check by
hand; `accounting.compose` is tighter.
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
    """Refuses a run that would take a client above its own limit.

    Args:
      node_config: `max-epsilon`, the limit of all that is in the file `ledger`, or without a ledger
        of a single run; no limit without it.
      epsilon: what is asked for.

    Raises:
      ProtocolRefusal: if the limit would be passed.
      ValueError: for a ledger that cannot be read.
    """
    if LIMIT not in node_config:
        return
    limit = float(node_config[LIMIT])
    before = sum(line["epsilon"] for line in entries(node_config.get(LEDGER)))
    # Parts of one run add up to its total but for rounding.
    if before + epsilon > limit * (1.0 + 1e-12):
        earlier = f" and {before:g} were spent before" if before else ""
        raise ProtocolRefusal(
            f"epsilon {epsilon:g} is above this client's limit: it is {limit:g}{earlier}"
        )


def entries(path: object) -> list[dict[str, Any]]:
    """The lines of a ledger: `epsilon`, `delta`, `fingerprint` and `what`; none without a file.

    Raises:
      ValueError: for a file that is no ledger.
    """
    if not path or not os.path.exists(str(path)):
        return []
    with open(str(path), encoding="utf-8") as file:
        try:
            found = [json.loads(line) for line in file]
            return [line | {"epsilon": float(line["epsilon"])} for line in found]
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path} is no ledger: mend it or name another") from None


def charge(path: object, epsilon: float, delta: float, fingerprint: str, what: str) -> None:
    """Appends a line, on the disk before this returns; nothing without a path.

    Formal guarantees:
      Called before the vote is sent, and before the first update: what left the client is in its
      ledger.
    """
    if not path:
        return
    facts = {"epsilon": epsilon, "delta": delta, "fingerprint": fingerprint, "what": what}
    line = json.dumps(facts) + "\n"
    descriptor = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, line.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
