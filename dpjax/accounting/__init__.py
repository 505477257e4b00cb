"""Prices computations: what each costs in privacy, in NumPy and SciPy float64.

Constructors of base runs return a `Guarantee`; `compose`, `repeat`, `parallel`, `mixture`,
`best_of` and `split` make one guarantee from others; `Geometric` and others are laws of the number
of runs K. A user-defined constructor is a function decorated with `mechanism`, a user-defined law
of K a `Tabulated`.
"""

from dpjax.accounting.calibration import calibrate, calibrate_largest
from dpjax.accounting.combine import compose, mixture, parallel, repeat, replace_one
from dpjax.accounting.events import from_dp_event
from dpjax.accounting.guarantee import Guarantee
from dpjax.accounting.mechanisms.balls_in_bins import dp_sgd_balls_in_bins
from dpjax.accounting.mechanisms.doubling import (
    ThresholdLoop,
    advanced_composition,
    doubling_loop,
    max_iterations,
    sparse_vector,
    threshold_levels,
)
from dpjax.accounting.mechanisms.dp_sgd import (
    dp_sgd,
    dp_sgd_fixed_lots,
    lot_capacity,
    truncation_probability,
)
from dpjax.accounting.mechanisms.elementary import (
    approximate,
    discrete_gaussian,
    gaussian,
    output_perturbation,
    pure,
    renyi_only,
    zcdp,
)
from dpjax.accounting.mechanisms.exponential import exponential_mechanism, selection_noise_ratio
from dpjax.accounting.mechanisms.federated_averaging import (
    calibrate_federated_averaging,
    federated_averaging,
)
from dpjax.accounting.mechanisms.mechanism import mechanism
from dpjax.accounting.mechanisms.vote import (
    calibrate_vote,
    discrete_gaussian_vote,
    local_noise_variance,
    minimum_survivors,
    skellam_vote,
    vote,
)
from dpjax.accounting.numerics.rdp_grid import epsilon_grid, rdp_grid
from dpjax.accounting.privacy_filter import PrivacyFilter
from dpjax.accounting.provenance import from_provenance
from dpjax.accounting.selection.best_of import best_of
from dpjax.accounting.selection.families import (
    Binomial,
    Fixed,
    Geometric,
    Logarithmic,
    Poisson,
    TruncatedNegativeBinomial,
)
from dpjax.accounting.selection.laws import AtMost, RepetitionLaw, Tabulated, law_from_dict
from dpjax.accounting.selection.split import split
from dpjax.accounting.selection.threshold import stop_at_threshold

__all__ = [
    "AtMost",
    "Binomial",
    "Fixed",
    "Geometric",
    "Guarantee",
    "Logarithmic",
    "Poisson",
    "PrivacyFilter",
    "RepetitionLaw",
    "Tabulated",
    "TruncatedNegativeBinomial",
    "approximate",
    "best_of",
    "calibrate",
    "calibrate_vote",
    "compose",
    "discrete_gaussian",
    "discrete_gaussian_vote",
    "doubling_loop",
    "dp_sgd",
    "dp_sgd_balls_in_bins",
    "dp_sgd_fixed_lots",
    "epsilon_grid",
    "exponential_mechanism",
    "federated_averaging",
    "from_dp_event",
    "from_provenance",
    "gaussian",
    "max_iterations",
    "mechanism",
    "mixture",
    "output_perturbation",
    "parallel",
    "pure",
    "rdp_grid",
    "renyi_only",
    "repeat",
    "replace_one",
    "skellam_vote",
    "sparse_vector",
    "split",
    "stop_at_threshold",
    "vote",
    "zcdp",
]
