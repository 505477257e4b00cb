"""DP-HYPE's vote, and training after it, as a Flower federation; the extra `federated`.

    app = federated.make_client_app(federated.records_in_folder)   # a client's side
    app = federated.make_server_app(on_outcome=...)                # the server's side

| module | what |
|---|---|
| `election` | everything public about vote and training, and its fingerprint |
| `client`, `local_training`, `local_rounds` | a client's app: the vote, then rounds of averaging |
| `server`, `rounds` | the server's app: the same from its side |
| `sum_rules`, `masking`, `secure_sum` | exact masked sums; every trap of Flower's SecAgg+ refused |
| `records`, `node_settings` | where a node's records come from; what its owner alone decides |
| `ledger` | what a node has answered and spent, on its disk: once, and within its limits |
| `in_process`, `runtimes` | the same apps in one process, or in Ray's |
| `vote_release` | what may be published |
| `flower_internals` | every import from Flower, one tested version |

Liebenow, Peinemann & Mohammadi, "DP-HYPE", 2025. docs/federated.md says what is protected from
whom.
"""

from __future__ import annotations

import importlib
from typing import Any

# Flower starts a process for every message to a client. What such a process does not use is not
# imported: four of five messages need no JAX.
_HOMES = {
    "Averaging": "election",
    "Election": "election",
    "InProcessGrid": "in_process",
    "LocalTraining": "election",
    "Outcome": "server",
    "SumAborted": "sum_rules",
    "SumRules": "sum_rules",
    "make_client_app": "client",
    "make_server_app": "server",
    "parts_of_data_set": "records",
    "records_in_folder": "records",
    "run_election": "server",
    "run_in_process": "runtimes",
    "run_in_ray": "runtimes",
    "run_rounds": "rounds",
    "save_outcome": "vote_release",
    "Spending": "ledger",
    "secure_sum_only": "masking",
    "statement": "vote_release",
}

__all__ = list(_HOMES)

# One clear line where Flower is missing, at once.
importlib.import_module("dpjax.federated.flower_internals")


def __getattr__(name: str) -> Any:
    """Imports a public name from its module on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
