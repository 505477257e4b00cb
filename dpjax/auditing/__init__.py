"""Auditing: lower bounds on a procedure's epsilon, from running it many times on two neighbours.

A claim is an upper bound that was proved; an audit is a lower bound that was observed. Where the
second exceeds the first, the claim, the code or an assumption is wrong. Where it does not, nothing
is proved: another record or a cleverer adversary may see more.

| function | what it bounds | what it assumes |
|---|---|---|
| `epsilon_lower_bound` | epsilon at one delta | independent executions |
| `refuted` | a whole claim, at all its deltas | the same |

| function | what it makes many times over |
|---|---|
| `executions` | the release of a tuner |
"""

from dpjax.auditing.audits import Audit, audit
from dpjax.auditing.canaries import CANARIES, Canary
from dpjax.auditing.executions import Released, executions
from dpjax.auditing.lower_bounds import LowerBound, Seen, epsilon_lower_bound, refuted

__all__ = ["CANARIES", "audit", "epsilon_lower_bound", "executions"]
