"""Bridges: runs and studies of other libraries come in, our price and our release go out.

| bridge | what comes in | what goes out |
|---|---|---|
| `bridges.tune` | any function that trains and counts | one model, `release/`, `curator/` |
| `bridges.ray.executor` | a Ray cluster | where `bridges.tune` runs candidates |
| `bridges.optuna.PrivateStudy` | an Optuna objective | the same; trials for the curator |
| `bridges.optuna.price_study` | a finished Optuna study | its price |
| `bridges.dp_accounting.SelectionAccountant` | dp_accounting's events | epsilon, delta |
| `bridges.jax_privacy.guarantee_of_plan` | an execution plan | the guarantee of one run |
| `bridges.opacus.guarantee_of_history` | an accountant or its history | the same |

The guarantee of one run is the caller's claim throughout: nothing here looks into the run.
`dpjax.bridges.optuna` and `dpjax.bridges.jax_privacy` need the extra `bridges`,
`dpjax.bridges.ray` the extra `ray`; the rest needs no extra.
"""

from dpjax.bridges.any_run import tune
from dpjax.bridges.candidates import Candidates
from dpjax.bridges.counted_score import CountedScore
from dpjax.bridges.outcomes import Outcome
from dpjax.bridges.seeds import jax_key

__all__ = ["Candidates", "CountedScore", "Outcome", "jax_key", "tune"]
