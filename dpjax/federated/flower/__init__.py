"""The vote, and training after it, as a Flower federation; the extra `federated`.

| module | what |
|---|---|
| `election` | everything public about vote and training, and its fingerprint |
| `phases` | the names of messages and records; what a client keeps between two messages |
| `client`, `local_training`, `local_rounds` | a client's app: the vote, then rounds of averaging |
| `server`, `phase_sums`, `rounds`, `outcome` | the server's app: the same from its side |
| `sum_rules`, `masking`, `secure_sum` | exact masked sums; every trap of Flower's SecAgg+ refused |
| `records`, `node_settings` | where a node's records come from; what its owner alone decides |
| `ledger` | what a node has answered and spent, on its disk: once, and within its limits |
| `in_process`, `runtimes` | the same apps in one process |
| `vote_release` | what may be published |
| `internals` | every import from Flower, one tested version |
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Election": "election",
    "InProcessGrid": "in_process",
    "Outcome": "outcome",
    "Spending": "ledger",
    "SumAborted": "sum_rules",
    "SumRules": "sum_rules",
    "make_client_app": "client",
    "make_server_app": "server",
    "records_in_folder": "records",
    "run_election": "server",
    "run_in_process": "runtimes",
    "run_rounds": "rounds",
    "save_outcome": "vote_release",
    "secure_sum_only": "masking",
    "statement": "vote_release",
}

__all__ = list(_HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)


# One clear line where Flower is missing, at once.
importlib.import_module("dpjax.federated.flower.internals")


def __getattr__(name: str) -> Any:
    """Imports a public name from its module on first use; see `dpjax.federated`."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
