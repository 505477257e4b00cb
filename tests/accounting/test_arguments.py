"""Every public function of accounting refuses what is no such argument: one line that names it."""

import inspect
import math

import numpy as np
import pytest
from bad_arguments import BAD as SHARED
from bad_arguments import NOT_NUMBERS, check_refusals
from dp_accounting import dp_event as dp_events
from dp_accounting.pld import privacy_loss_distribution

from dpjax import accounting, checks

BASE = accounting.gaussian(2.0)
LAW = accounting.Geometric(3.0)

NOT_LISTS = [math.nan, "12", b"1", {"a": 1}, 1j, object(), None, ["a", "b"], [1j], [[2.0], [3.0]]]
NOT_LISTS += [[None], [math.nan], [True, False]]
BAD = SHARED | {
    "threshold": NOT_NUMBERS,  # Infinity has a meaning.
    "list": NOT_LISTS,
    "grid": [entry for entry in NOT_LISTS if not (isinstance(entry, list) and entry[0] == [2.0])],
    "word": [3, None, "nonsense", ["rdp"], math.nan, ("rdp",), True],
    "relation": [3, None, "nonsense", ["add_or_remove_one"], math.nan, True],
    "guarantee": [3.0, None, "gaussian", {}, LAW, [BASE]],
    "guarantees": [3.0, None, {}, BASE, [BASE, 3.0], [], (entry for entry in [BASE, BASE])],
    "law": [3.0, None, "geometric", {}, BASE],
    "dict": [3.0, None, "geometric", [], BASE, {"law": ["geometric"]}, {}],
    "tree": [3.0, None, "gaussian", [], BASE, {}],
    "function": [3.0, None, "gaussian", BASE],
    "event": [3.0, None, "GaussianDpEvent", BASE, dp_events.GaussianDpEvent],
    "pld": [3.0, None, "gaussian", BASE],
    "generator": [3.0, None, 7, "default"],
}
"""What each kind of argument must refuse."""
ALSO = {
    "relation": {"neighbouring relation"},
    "tree": {"provenance tree"},
    "law": {"a law of K"},
    "values": {"a law of K"},
}
"""Other words by which arguments are named."""


def spec(call, **arguments):
    """(function, {name: (good value, kind)}); a kind ending in "?" may be None."""
    return call, arguments


VOTES = {"votes": (2, "whole"), "candidates": (7, "whole")}
REPLACE = {"relation": ("replace_one", "relation")}

PUBLIC = {
    "AtMost": spec(accounting.AtMost, law=(LAW, "law"), cap=(5, "whole")),
    "Binomial": spec(accounting.Binomial, trials=(4, "whole"), probability=(0.5, "number")),
    "Fixed": spec(accounting.Fixed, k=(4, "whole")),
    "Geometric": spec(accounting.Geometric, mean=(4.0, "number")),
    "Logarithmic": spec(accounting.Logarithmic, mean=(4.0, "number")),
    "Poisson": spec(accounting.Poisson, mean=(4.0, "number")),
    "Tabulated": spec(accounting.Tabulated, k=([1, 2], "list"), masses=([0.5, 0.5], "list")),
    "TruncatedNegativeBinomial": spec(
        accounting.TruncatedNegativeBinomial, shape=(0.5, "number"), mean=(4.0, "number")
    ),
    "ThresholdLoop": spec(
        accounting.ThresholdLoop,
        levels=(8, "whole"),
        maximum_iterations=(5, "whole?"),
        maximum_hits=(3, "whole?"),
    ),
    "Guarantee.epsilon": spec(BASE.epsilon, delta=(1e-5, "number"), method=("rdp", "word")),
    "Guarantee.delta": spec(BASE.delta, epsilon=(0.5, "threshold")),
    "Guarantee.rdp": spec(BASE.rdp, orders=([2.0, 3.0], "list")),
    "Guarantee.tradeoff": spec(BASE.tradeoff, false_positive_rate=([0.1, 0.5], "list")),
    "Guarantee.attack_success": spec(BASE.attack_success, false_positive_rate=([0.1, 0.5], "list")),
    "Guarantee.gaussian_mu": spec(BASE.gaussian_mu, slack=(1e-6, "number")),
    "Guarantee.group_epsilon": spec(
        BASE.group_epsilon, records=(2, "whole"), delta=(1e-5, "number")
    ),
    "Guarantee.from_pld": spec(
        accounting.Guarantee.from_pld,
        pld=(privacy_loss_distribution.from_gaussian_mechanism(1.0), "pld"),
        **REPLACE,
    ),
    "RepetitionLaw.quantile": spec(LAW.quantile, probability=(0.5, "number")),
    "RepetitionLaw.sample": spec(LAW.sample, size=(3, "count?")),
    "advanced_composition": spec(
        accounting.advanced_composition,
        epsilon_per_iteration=(0.1, "number"),
        iterations=(5, "whole"),
        delta=(1e-5, "number"),
    ),
    "approximate": spec(
        accounting.approximate, epsilon=(0.5, "number"), delta=(1e-6, "number"), **REPLACE
    ),
    "best_of": spec(
        accounting.best_of, guarantee=(BASE, "guarantee"), law=(LAW, "law"), method=("rdp", "word")
    ),
    "calibrate": spec(
        accounting.calibrate,
        make_guarantee=(accounting.gaussian, "function"),
        epsilon=(1.0, "threshold"),
        delta=(1e-5, "number"),
        bracket=((0.1, 50.0), "list"),
    ),
    "calibrate_federated_averaging": spec(
        accounting.calibrate_federated_averaging,
        epsilon=(5.0, "number"),
        delta=(1e-5, "number"),
        bound=(8, "whole"),
        dimension=(30, "whole"),
        clients=(50, "whole"),
        rounds=(3, "whole"),
        missing_fraction=(0.1, "number"),
        before=(accounting.gaussian(9.0, relation="replace_one"), "guarantee?"),
    ),
    "calibrate_largest": spec(
        accounting.calibrate_largest,
        make_guarantee=(lambda n: accounting.gaussian(9.0, steps=n), "function"),
        epsilon=(1.0, "threshold"),
        delta=(1e-5, "number"),
        bracket=((1, 50), "list"),
        whole=(True, "flag"),
    ),
    "calibrate_vote": spec(
        accounting.calibrate_vote,
        epsilon=(1.0, "number"),
        delta=(1e-5, "number"),
        method=("rdp", "word"),
        **VOTES,
    ),
    "discrete_gaussian": spec(
        accounting.discrete_gaussian,
        noise_std=(3.0, "number"),
        sensitivity=(1, "whole"),
        **REPLACE,
    ),
    "discrete_gaussian_vote": spec(
        accounting.discrete_gaussian_vote,
        local_variance=(8.0, "number"),
        clients=(10, "whole"),
        missing_fraction=(0.1, "number"),
        scale=(1, "whole"),
        **VOTES,
    ),
    "doubling_loop": spec(
        accounting.doubling_loop,
        epsilon_per_iteration=(0.1, "number"),
        iterations=(20, "whole?"),
        granularity=(0.1, "number?"),
        lower_bound=(0.2, "number"),
        variant=("segments", "word"),
        hits=(3, "whole?"),
        **REPLACE,
    ),
    "dp_sgd": spec(
        accounting.dp_sgd,
        sampling_probability=(0.01, "number"),
        noise_multiplier=(1.0, "number"),
        steps=(10, "whole"),
        failure_probability=(1e-9, "number"),
    ),
    "dp_sgd_fixed_lots": spec(
        accounting.dp_sgd_fixed_lots,
        dataset_size=(100, "whole"),
        lot_size=(10, "whole"),
        noise_multiplier=(1.0, "number"),
        steps=(10, "whole"),
        failure_probability=(1e-9, "number"),
    ),
    "epsilon_grid": spec(
        accounting.epsilon_grid,
        rdp=([[0.1, 0.2]], "grid"),
        orders=([2.0, 3.0], "list"),
        delta=([1e-5], "grid"),
        method=("rdp", "word"),
    ),
    "exponential_mechanism": spec(
        accounting.exponential_mechanism, epsilon=(0.7, "number"), **REPLACE
    ),
    "federated_averaging": spec(
        accounting.federated_averaging,
        local_variance=(4.0, "number"),
        bound=(8, "whole"),
        dimension=(30, "whole"),
        clients=(50, "whole"),
        rounds=(3, "whole"),
        missing_fraction=(0.1, "number"),
    ),
    "from_dp_event": spec(
        accounting.from_dp_event, event=(dp_events.GaussianDpEvent(1.0), "event"), **REPLACE
    ),
    "from_provenance": spec(accounting.from_provenance, tree=(BASE.provenance, "tree")),
    "gaussian": spec(
        accounting.gaussian, noise_multiplier=(1.0, "number"), steps=(3, "whole"), **REPLACE
    ),
    "law_from_dict": spec(accounting.law_from_dict, values=(LAW.to_dict(), "dict")),
    "local_noise_variance": spec(
        accounting.local_noise_variance,
        variance=(4.0, "number"),
        clients=(9, "whole"),
        missing_fraction=(0.1, "number"),
    ),
    "lot_capacity": spec(
        accounting.lot_capacity,
        dataset_size=(100, "whole"),
        sampling_probability=(0.1, "number"),
        steps=(10, "whole"),
        failure_probability=(1e-8, "number"),
    ),
    "max_iterations": spec(
        accounting.max_iterations, granularity=(0.1, "number"), lower_bound=(0.2, "number")
    ),
    "minimum_survivors": spec(
        accounting.minimum_survivors, clients=(9, "whole"), missing_fraction=(0.1, "number")
    ),
    "mixture": spec(
        accounting.mixture, guarantees=([BASE, BASE], "guarantees"), weights=([0.5, 0.5], "list?")
    ),
    "split": spec(
        accounting.split,
        tuned=(BASE, "guarantee"),
        final=(BASE, "guarantee"),
        probability=(0.2, "number"),
        final_on=("rest", "word"),
    ),
    "output_perturbation": spec(
        accounting.output_perturbation, sensitivity=(1.0, "number"), noise_std=(2.0, "number")
    ),
    "plan": spec(
        accounting.plan,
        base=(accounting.gaussian(5.0), "guarantee?"),
        candidates=(20, "whole"),
        success=(0.5, "number"),
        runs_99=(500, "whole?"),
        epsilon=(9.0, "number?"),
        delta=(1e-5, "number"),
        shapes=([1.0], "list"),
    ),
    "pure": spec(accounting.pure, epsilon=(0.5, "number"), **REPLACE),
    "rdp_grid": spec(
        accounting.rdp_grid,
        sampling_probability=(0.1, "grid"),
        noise_multiplier=(1.0, "grid"),
        steps=([3, 4], "grid"),
        orders=([2.0, 3.0], "grid"),
        sampling=("poisson", "word"),
    ),
    "renyi_only": spec(
        accounting.renyi_only,
        orders=([2.0, 3.0], "list"),
        divergences=([0.1, 0.2], "list"),
        **REPLACE,
    ),
    "repeat": spec(accounting.repeat, guarantee=(BASE, "guarantee"), times=(3, "whole")),
    "replace_one": spec(accounting.replace_one, guarantee=(BASE, "guarantee")),
    "selection_noise_ratio": spec(
        accounting.selection_noise_ratio,
        candidates=(9, "whole"),
        partitions=(9, "whole"),
        epsilon=(0.1, "number"),
    ),
    "skellam_vote": spec(
        accounting.skellam_vote, variance=(9.0, "number"), scale=(1, "whole"), **VOTES
    ),
    "sparse_vector": spec(
        accounting.sparse_vector,
        noise=(9.0, "number"),
        bound=(3, "whole"),
        allocation=("optimal", "word"),
        **REPLACE,
    ),
    "stop_at_threshold": spec(
        accounting.stop_at_threshold,
        guarantee=(BASE, "guarantee"),
        halting_probability=(0.1, "number"),
    ),
    "threshold_levels": spec(
        accounting.threshold_levels, granularity=(0.1, "number"), lower_bound=(0.2, "number")
    ),
    "truncation_probability": spec(
        accounting.truncation_probability,
        dataset_size=(100, "whole"),
        sampling_probability=(0.1, "number"),
        capacity=(30, "whole"),
        steps=(10, "whole"),
    ),
    "vote": spec(accounting.vote, sigma=(3.0, "number"), **VOTES),
    "zcdp": spec(accounting.zcdp, rho=(0.1, "number"), **REPLACE),
}

RECORDS = {"Guarantee", "Plan", "RepetitionLaw"}
"""What these make is only ever made by the library; their methods are in the table."""


def good(arguments: dict) -> dict:
    return {name: value for name, (value, _) in arguments.items()}


def test_the_table_names_every_public_function_and_every_argument():
    named = {name for name in PUBLIC if "." not in name}
    apart = {"compose", "parallel"}  # Below.
    apart |= {"mechanism"}  # Has worked examples in conformance/.
    assert named | RECORDS | apart == set(accounting.__all__)
    for name, (call, arguments) in PUBLIC.items():
        wanted = set(inspect.signature(call).parameters) - {"source", "provenance", "renyi"}
        wanted -= {"pure_epsilon"}
        assert set(arguments) == wanted, name


@pytest.mark.parametrize("name", PUBLIC)
def test_what_is_no_such_argument_is_refused_in_one_line_that_names_it(name):
    call, arguments = PUBLIC[name]
    call(**good(arguments))
    kinds = {argument: kind for argument, (_, kind) in arguments.items()}
    for _ in check_refusals(name, call, good(arguments), kinds, BAD, also=ALSO, errors=ValueError):
        pass


@pytest.mark.parametrize("join", [accounting.compose, accounting.parallel])
@pytest.mark.parametrize("bad", BAD["guarantee"])
def test_what_is_no_guarantee_is_not_joined(join, bad):
    with pytest.raises(ValueError, match="every guarantee of .* must be a Guarantee"):
        join(BASE, bad)


@pytest.mark.parametrize("name", PUBLIC)
def test_numpy_scalars_are_numbers(name):
    call, arguments = PUBLIC[name]
    values = good(arguments)
    for argument, (value, kind) in arguments.items():
        if kind.rstrip("?") in ("number", "threshold"):
            values[argument] = np.float64(value)
        elif kind.rstrip("?") in ("whole", "count"):
            values[argument] = np.int64(value)
    made, plain = call(**values), call(**good(arguments))
    if isinstance(made, accounting.Guarantee):
        assert made.provenance == plain.provenance
    elif isinstance(made, float | int):
        assert made == plain


@pytest.mark.parametrize("value", [3, 3.0, np.int32(3), np.float32(3.0), np.array(3)])
def test_whole_numbers(value):
    assert checks.whole("count", value) == 3
    assert isinstance(checks.whole("count", value), int)
    assert checks.positive("noise", value) == 3.0


def test_long_values_are_cut():
    with pytest.raises(ValueError) as caught:
        checks.positive("noise", list(range(1000)))
    assert len(str(caught.value)) < 150
