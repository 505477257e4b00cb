"""Differentially private hyperparameter tuning in JAX.

The packages: `dpjax.accounting` (what a computation costs), `dpjax.training` (many private runs at
once), `dpjax.tuning` (one selection, one release), `dpjax.pareto` (fronts that are not private, for
public data), `dpjax.models` and `dpjax.data`. Importing this package touches no device,
environment variable or network.
"""

__version__ = "0.3.0"
