"""The vote, and training after it, as a Flower federation; the extra `federated`.

| module | what |
|---|---|
| `election` | everything public about vote and training, and its fingerprint |
| `messages` | what both sides agree on: the rules of a masked sum, the names of messages |
| `client` | a client's app: under masks, once a phase; every trap of Flower's SecAgg+ refused |
| `noisy_vectors` | what a client makes of its records: a ballot or an update, with its noise |
| `storage` | what lies on a node: its owner's settings, its records, the ledger of its answers |
| `server` | the server's app: secure sums, the vote, rounds of averaging |
| `in_process` | the same apps in one process |
| `vote_release` | what may be published |
| `internals` | every import from Flower, one tested version |
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Election": "election",
    "InProcessGrid": "in_process",
    "Outcome": "server",
    "Spending": "messages",
    "SumAborted": "messages",
    "SumRules": "messages",
    "make_client_app": "client",
    "make_server_app": "server",
    "records_in_folder": "storage",
    "run_election": "server",
    "run_in_process": "in_process",
    "run_rounds": "server",
    "save_outcome": "vote_release",
    "secure_sum_only": "client",
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
