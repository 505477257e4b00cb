"""Deprecated: `dpjax.pareto` by its earlier name, kept for one version."""

import warnings

from dpjax.pareto import *  # noqa: F403
from dpjax.pareto import __all__ as __all__

message = "dpjax.tuning.pareto is deprecated: write `from dpjax import pareto`"
warnings.warn(message, DeprecationWarning, stacklevel=2)
