"""Bridges: runs and studies of other libraries, priced here, or tuned and released.

| bridge | what comes in | what goes out |
|---|---|---|
| `bridges.tune` | any function that trains and counts | one model, `release/`, `curator/` |
| `bridges.optuna.tune` | an Optuna objective | the same |
| `bridges.optuna.price_study` | a finished Optuna study | its price |
| `bridges.dp_accounting.SelectionAccountant` | dp_accounting's events | epsilon, delta |
| `bridges.jax_privacy.guarantee_of_plan` | an execution plan | the guarantee of one run |
| `bridges.opacus.guarantee_of_history` | an accountant or its history | that of one run |
| `bridges.opacus.make_private` | a run's module, optimizer, loader | private ones, from its seed |

The guarantee of one run is always the caller's claim. `dpjax.bridges.optuna` and
`dpjax.bridges.jax_privacy` need the extra `bridges`, `bridges.opacus.make_private` the extra
`opacus`; the rest needs no extra.
"""

from dpjax.bridges.any_run import tune
from dpjax.bridges.runs import Candidates, ContradictionError, CountedScore, Outcome, jax_key
from dpjax.releases.ledger import Ledger

__all__ = ["ContradictionError", "CountedScore", "Ledger", "jax_key", "tune"]
