"""What a computation costs in privacy. NumPy and SciPy float64; JAX only in `rdp_grid`.

Constructors of base runs return a `Guarantee`; `compose`, `repeat`, `parallel`, `mixture` and
`best_of` make guarantees of guarantees; laws of the number of runs K live in `repetitions`.
"""

from dpjax.accounting.calibration import calibrate
from dpjax.accounting.combine import compose, mixture, parallel, repeat
from dpjax.accounting.dp_sgd import (
    dp_sgd,
    dp_sgd_fixed_lots,
    lot_capacity,
    truncation_probability,
)
from dpjax.accounting.events import from_dp_event
from dpjax.accounting.guarantee import Guarantee
from dpjax.accounting.mechanisms import discrete_gaussian, gaussian, pure, renyi_only, zcdp
from dpjax.accounting.planning import Plan, plan
from dpjax.accounting.provenance import from_provenance
from dpjax.accounting.repetitions import (
    AtMost,
    Binomial,
    Fixed,
    Geometric,
    Logarithmic,
    Poisson,
    RepetitionLaw,
    TruncatedNegativeBinomial,
    law_from_dict,
)
from dpjax.accounting.selection import best_of
from dpjax.accounting.threshold import stop_at_threshold

__all__ = [
    "AtMost",
    "Binomial",
    "Fixed",
    "Geometric",
    "Guarantee",
    "Logarithmic",
    "Plan",
    "Poisson",
    "RepetitionLaw",
    "TruncatedNegativeBinomial",
    "best_of",
    "calibrate",
    "compose",
    "discrete_gaussian",
    "dp_sgd",
    "dp_sgd_fixed_lots",
    "from_dp_event",
    "from_provenance",
    "gaussian",
    "law_from_dict",
    "lot_capacity",
    "mixture",
    "parallel",
    "plan",
    "pure",
    "renyi_only",
    "repeat",
    "stop_at_threshold",
    "truncation_probability",
    "zcdp",
]
