"""Federations: DP-HYPE's vote over hyperparameters, and private averaging with the winner.

    settings = federated.VoteSettings(clients=50, candidates=100, epsilon=1.0)
    plan = settings.plan()                                         # its noise, without Flower
    app = federated.make_client_app(federated.records_in_folder)   # a client's side, in Flower
    app = federated.make_server_app(on_outcome=...)                # the server's side

The mechanisms stand here, free of any framework; `dpjax.federated.flower`, the extra `federated`,
runs them over Flower. Its names are found here too, and imported on first use.

| module | what |
|---|---|
| `voting` | ballots, their noise and sum; the grids of the paper |
| `summed` | what vote and averaging share: a sum of clients' integers, everyone's own noise |
| `averaging` | private federated averaging: what a client sends, what the server makes of it |
| `local_training` | what a client trains on its own records, in JAX |
| `federation_settings` | local training and averaging, as settings |
| `flower` | the same through Flower's messages, masked |

Liebenow, Peinemann & Mohammadi, "DP-HYPE", 2025; McMahan et al. 2017; Kairouz, Liu & Steinke 2021.
docs/federated_protocol.md says what is protected from whom.
"""

from __future__ import annotations

import importlib
from typing import Any

# Flower starts a process for every message to a client. It imports only what it uses: four of five
# messages need no JAX.
_HOMES = {
    "Averaging": "federation_settings",
    "AveragingAborted": "averaging",
    "AveragingPlan": "averaging",
    "AveragingSettings": "averaging",
    "LocalTraining": "federation_settings",
    "VoteAborted": "voting",
    "VotePlan": "voting",
    "VoteSettings": "voting",
    "train_clients": "local_training",
    "averaging": "",
    "voting": "",
    "flower": "",
    "Election": "flower.election",
    "InProcessGrid": "flower.in_process",
    "Outcome": "flower.server",
    "Spending": "flower.messages",
    "SumAborted": "flower.messages",
    "SumRules": "flower.messages",
    "make_client_app": "flower.client",
    "make_server_app": "flower.server",
    "records_in_folder": "flower.storage",
    "run_election": "flower.server",
    "run_in_process": "flower.in_process",
    "run_rounds": "flower.server",
    "save_outcome": "flower.vote_release",
    "secure_sum_only": "flower.client",
    "statement": "flower.vote_release",
}
"""Name -> the module that it is imported from; empty if the name is a module itself."""

__all__ = [
    "Averaging",
    "AveragingSettings",
    "VoteSettings",
    "make_client_app",
    "make_server_app",
    "run_in_process",
    "save_outcome",
    "secure_sum_only",
    "train_clients",
]


def __dir__() -> list[str]:
    return sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Imports a public name from its module on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_HOMES[name] or name}")
    return getattr(module, name) if _HOMES[name] else module
