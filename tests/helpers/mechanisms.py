"""Good arguments of every registered mechanism, and the guarantees they make."""

import functools

from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution

from dpjax import accounting

_PURE, _TABLE = accounting.pure(0.5), accounting.renyi_only([2.0, 8.0, 64.0], [0.02, 0.08, 0.7])
_LOSSES = privacy_loss_distribution.from_gaussian_mechanism(2.0, value_discretization_interval=1e-3)
_VOTE = {"votes": 2, "candidates": 7}

CALLS = {
    "dp_accounting_event": accounting.from_dp_event,
    "loss_distributions": accounting.Guarantee.from_pld,
}
"""What makes a mechanism, where that is not the function of accounting of its name."""

GOOD = {
    "approximate": {"epsilon": 0.5, "delta": 1e-10},
    "best_of": {"guarantee": _PURE, "law": accounting.Geometric(3.0)},
    "compose": [_PURE, _TABLE, _PURE],
    "discrete_gaussian": {"noise_std": 3.0, "sensitivity": 2},
    "discrete_gaussian_vote": {
        "local_variance": 8.0,
        "clients": 10,
        "missing_fraction": 0.1,
        "scale": 2,
        **_VOTE,
    },
    "doubling_loop": {"epsilon_per_iteration": 0.1, "granularity": 0.1, "variant": "segments"},
    "dp_accounting_event": {"event": dp_event.LaplaceDpEvent(2.0)},
    "dp_sgd": {
        "sampling_probability": 0.01,
        "noise_multiplier": 1.0,
        "steps": 10,
        "failure_probability": 1e-12,
    },
    "dp_sgd_balls_in_bins": {"noise_multiplier": 1.0, "steps_per_epoch": 7, "epochs": 3},
    "dp_sgd_fixed_lots": {
        "dataset_size": 100,
        "lot_size": 10,
        "noise_multiplier": 1.0,
        "steps": 10,
    },
    "exponential_mechanism": {"epsilon": 0.7},
    "federated_averaging": {
        "local_variance": 4.0,
        "bound": 8,
        "dimension": 30,
        "clients": 50,
        "rounds": 3,
        "missing_fraction": 0.1,
    },
    "gaussian": {"noise_multiplier": 2.0, "steps": 3},
    "loss_distributions": {"pld": _LOSSES, "symmetric": True},
    "mixture": {"guarantees": [_PURE, _TABLE], "weights": [0.25, 0.75]},
    "output_perturbation": {"sensitivity": 1.0, "noise_std": 2.0},
    "parallel": [_PURE, accounting.gaussian(3.0)],
    "pure": {"epsilon": 0.5},
    "renyi_only": {"orders": [2.0, 8.0, 64.0], "divergences": [0.02, 0.08, 0.7]},
    "replace_one": {"guarantee": accounting.gaussian(3.0)},
    "skellam_vote": {"variance": 9.0, "scale": 2, **_VOTE},
    "sparse_vector": {"noise": 40.0, "bound": 3, "allocation": "optimal"},
    "split": {"tuned": _PURE, "final": _TABLE, "probability": 0.3, "final_on": "all"},
    "stop_at_threshold": {"guarantee": _PURE, "halting_probability": 0.2},
    "vote": {"sigma": 3.0, **_VOTE},
    "zcdp": {"rho": 0.05},
}
"""Arguments by name of each mechanism; a list where it takes any number of guarantees."""


def constructor(name):
    return CALLS.get(name) or getattr(accounting, name)


@functools.cache
def guarantee_of(name):
    arguments = GOOD[name]
    call = constructor(name)
    return call(*arguments) if isinstance(arguments, list) else call(**arguments)
