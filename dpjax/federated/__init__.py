"""DP-HYPE's vote as a Flower federation, with secure aggregation; the extra `federated`.

    app = federated.make_client_app(federated.records_in_folder)   # a client's side
    app = federated.make_server_app(on_outcome=...)                # the server's side

| module | what |
|---|---|
| `election` | everything public about a vote, and its fingerprint |
| `client`, `server` | the two apps |
| `secure_sum` | exact masked sums; every trap of Flower's SecAgg+ refused |
| `records` | where a node's records come from |
| `in_process`, `runtimes` | the same apps in one process, or in Ray's |
| `vote_release` | what may be published |
| `flower_internals` | every import from Flower, one tested version |

Liebenow, Peinemann & Mohammadi, "DP-HYPE", 2025. docs/federated.md says what is protected from
whom.
"""

from dpjax.federated.client import make_client_app
from dpjax.federated.election import Election, LocalTraining
from dpjax.federated.in_process import InProcessGrid
from dpjax.federated.records import parts_of_data_set, records_in_folder
from dpjax.federated.runtimes import run_in_process, run_in_ray
from dpjax.federated.secure_sum import SumAborted, SumRules, secure_sum, secure_sum_only
from dpjax.federated.server import Outcome, make_server_app, run_election
from dpjax.federated.vote_release import save_outcome, statement

__all__ = [
    "Election",
    "InProcessGrid",
    "LocalTraining",
    "Outcome",
    "SumAborted",
    "SumRules",
    "make_client_app",
    "make_server_app",
    "parts_of_data_set",
    "records_in_folder",
    "run_election",
    "run_in_process",
    "run_in_ray",
    "save_outcome",
    "secure_sum",
    "secure_sum_only",
    "statement",
]
