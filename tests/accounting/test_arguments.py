"""Every public function of accounting refuses what is no such argument: one line that names it."""

import inspect
import math

import numpy as np
import pytest
from bad_arguments import BAD as SHARED
from bad_arguments import NOT_NUMBERS, check_refusals, good, spec
from dp_accounting import dp_event as dp_events
from dp_accounting.pld import privacy_loss_distribution

from dpjax import accounting, checks
from dpjax.accounting import provenance
from dpjax.accounting.numerics.integer_noise import discrete_gaussian_sum

BASE = accounting.gaussian(2.0)
LAW = accounting.Geometric(3.0)

NOT_LISTS = [math.nan, "12", b"1", {"a": 1}, 1j, object(), None, ["a", "b"], [1j], [[2.0], [3.0]]]
NOT_LISTS += [[None], [math.nan], [True, False]]
BAD = SHARED | {
    "threshold": [*NOT_NUMBERS, -1.0],  # Infinity has a meaning.
    "probability": [*NOT_NUMBERS, math.inf, 0.0, -0.1, 1.1],
    "share": [*NOT_NUMBERS, math.inf, -1e-9, 1.0, 2.0],
    "between": [*NOT_NUMBERS, math.inf, 0.0, -0.1, 1.0],
    "mean": [*NOT_NUMBERS, math.inf, 0.9],
    "shape": [*NOT_NUMBERS, math.inf, -1.0],
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


VOTES = {"votes": (2, "whole"), "candidates": (7, "whole")}
REPLACE = {"relation": ("replace_one", "relation")}

PUBLIC = {
    "AtMost": spec(accounting.AtMost, law=(LAW, "law"), cap=(5, "whole")),
    "Binomial": spec(accounting.Binomial, trials=(4, "whole"), probability=(0.5, "probability")),
    "Fixed": spec(accounting.Fixed, k=(4, "whole")),
    "Geometric": spec(accounting.Geometric, mean=(4.0, "mean")),
    "Logarithmic": spec(accounting.Logarithmic, mean=(4.0, "mean")),
    "Poisson": spec(accounting.Poisson, mean=(4.0, "positive")),
    "Tabulated": spec(accounting.Tabulated, k=([1, 2], "list"), masses=([0.5, 0.5], "list")),
    "TruncatedNegativeBinomial": spec(
        accounting.TruncatedNegativeBinomial, shape=(0.5, "shape"), mean=(4.0, "mean")
    ),
    "ThresholdLoop": spec(
        accounting.ThresholdLoop,
        levels=(8, "whole"),
        maximum_iterations=(5, "whole?"),
        maximum_hits=(3, "whole?"),
    ),
    "Guarantee.epsilon": spec(BASE.epsilon, delta=(1e-5, "share"), method=("rdp", "word")),
    "Guarantee.delta": spec(BASE.delta, epsilon=(0.5, "threshold")),
    "Guarantee.rdp": spec(BASE.rdp, orders=([2.0, 3.0], "list")),
    "Guarantee.tradeoff": spec(BASE.tradeoff, false_positive_rate=([0.1, 0.5], "list")),
    "Guarantee.attack_success": spec(BASE.attack_success, false_positive_rate=([0.1, 0.5], "list")),
    "Guarantee.gaussian_mu": spec(BASE.gaussian_mu, slack=(1e-6, "share")),
    "Guarantee.group_epsilon": spec(
        BASE.group_epsilon, records=(2, "whole"), delta=(1e-5, "share")
    ),
    "Guarantee.from_pld": spec(
        accounting.Guarantee.from_pld,
        pld=(privacy_loss_distribution.from_gaussian_mechanism(1.0), "pld"),
        symmetric=(True, "flag"),
        **REPLACE,
    ),
    "RepetitionLaw.quantile": spec(LAW.quantile, probability=(0.5, "share")),
    "RepetitionLaw.sample": spec(LAW.sample, size=(3, "count?")),
    "advanced_composition": spec(
        accounting.advanced_composition,
        epsilon_per_iteration=(0.1, "positive"),
        iterations=(5, "whole"),
        delta=(1e-5, "between"),
    ),
    "approximate": spec(
        accounting.approximate, epsilon=(0.5, "not negative"), delta=(1e-6, "share"), **REPLACE
    ),
    "best_of": spec(
        accounting.best_of, guarantee=(BASE, "guarantee"), law=(LAW, "law"), method=("rdp", "word")
    ),
    "calibrate": spec(
        accounting.calibrate,
        make_guarantee=(accounting.gaussian, "function"),
        epsilon=(1.0, "threshold"),
        delta=(1e-5, "share"),
        bracket=((0.1, 50.0), "list"),
        near=(3.0, "positive?"),
    ),
    "calibrate_federated_averaging": spec(
        accounting.calibrate_federated_averaging,
        epsilon=(5.0, "positive"),
        delta=(1e-5, "between"),
        bound=(8, "whole"),
        dimension=(30, "whole"),
        clients=(50, "whole"),
        rounds=(3, "whole"),
        missing_fraction=(0.1, "share"),
        before=(accounting.gaussian(9.0, relation="replace_one"), "guarantee?"),
    ),
    "calibrate_largest": spec(
        accounting.calibrate_largest,
        make_guarantee=(lambda n: accounting.gaussian(9.0, steps=n), "function"),
        epsilon=(1.0, "threshold"),
        delta=(1e-5, "share"),
        bracket=((1, 50), "list"),
        whole=(True, "flag"),
    ),
    "calibrate_vote": spec(
        accounting.calibrate_vote,
        epsilon=(1.0, "positive"),
        delta=(1e-5, "between"),
        method=("rdp", "word"),
        **VOTES,
    ),
    "discrete_gaussian": spec(
        accounting.discrete_gaussian,
        noise_std=(3.0, "positive"),
        sensitivity=(1, "whole"),
        **REPLACE,
    ),
    "discrete_gaussian_vote": spec(
        accounting.discrete_gaussian_vote,
        local_variance=(8.0, "positive"),
        clients=(10, "whole"),
        missing_fraction=(0.1, "share"),
        scale=(1, "whole"),
        **VOTES,
    ),
    "doubling_loop": spec(
        accounting.doubling_loop,
        epsilon_per_iteration=(0.1, "positive"),
        iterations=(20, "whole?"),
        granularity=(0.1, "probability?"),
        lower_bound=(0.2, "share"),
        variant=("segments", "word"),
        hits=(3, "whole?"),
        **REPLACE,
    ),
    "dp_sgd": spec(
        accounting.dp_sgd,
        sampling_probability=(0.01, "probability"),
        noise_multiplier=(1.0, "positive"),
        steps=(10, "whole"),
        failure_probability=(1e-9, "share"),
    ),
    "dp_sgd_balls_in_bins": spec(
        accounting.dp_sgd_balls_in_bins,
        noise_multiplier=(1.0, "positive"),
        steps_per_epoch=(10, "whole"),
        epochs=(2, "whole"),
        failure_probability=(1e-9, "share"),
    ),
    "dp_sgd_fixed_lots": spec(
        accounting.dp_sgd_fixed_lots,
        dataset_size=(100, "whole"),
        lot_size=(10, "whole"),
        noise_multiplier=(1.0, "positive"),
        steps=(10, "whole"),
        failure_probability=(1e-9, "share"),
    ),
    "epsilon_grid": spec(
        accounting.epsilon_grid,
        rdp=([[0.1, 0.2]], "grid"),
        orders=([2.0, 3.0], "list"),
        delta=([1e-5], "grid"),
        method=("rdp", "word"),
    ),
    "exponential_mechanism": spec(
        accounting.exponential_mechanism, epsilon=(0.7, "positive"), **REPLACE
    ),
    "federated_averaging": spec(
        accounting.federated_averaging,
        local_variance=(4.0, "positive"),
        bound=(8, "whole"),
        dimension=(30, "whole"),
        clients=(50, "whole"),
        rounds=(3, "whole"),
        missing_fraction=(0.1, "share"),
    ),
    "from_dp_event": spec(
        accounting.from_dp_event, event=(dp_events.GaussianDpEvent(1.0), "event"), **REPLACE
    ),
    "from_provenance": spec(accounting.from_provenance, tree=(BASE.provenance, "tree")),
    "gaussian": spec(
        accounting.gaussian, noise_multiplier=(1.0, "positive"), steps=(3, "whole"), **REPLACE
    ),
    "law_from_dict": spec(accounting.law_from_dict, values=(LAW.to_dict(), "dict")),
    "local_noise_variance": spec(
        accounting.local_noise_variance,
        variance=(4.0, "positive"),
        clients=(9, "whole"),
        missing_fraction=(0.1, "share"),
    ),
    "lot_capacity": spec(
        accounting.lot_capacity,
        dataset_size=(100, "whole"),
        sampling_probability=(0.1, "probability"),
        steps=(10, "whole"),
        failure_probability=(1e-8, "between"),
    ),
    "max_iterations": spec(
        accounting.max_iterations, granularity=(0.1, "probability"), lower_bound=(0.2, "share")
    ),
    "minimum_survivors": spec(
        accounting.minimum_survivors, clients=(9, "whole"), missing_fraction=(0.1, "share")
    ),
    "PrivacyFilter": spec(
        accounting.PrivacyFilter,
        epsilon=(8.0, "positive"),
        delta=(1e-5, "probability"),
        planned=(BASE, "guarantee"),
        failures=(0.0, "share"),
    ),
    "mixture": spec(
        accounting.mixture, guarantees=([BASE, BASE], "guarantees"), weights=([0.5, 0.5], "list?")
    ),
    "split": spec(
        accounting.split,
        tuned=(BASE, "guarantee"),
        final=(BASE, "guarantee"),
        probability=(0.2, "between"),
        final_on=("rest", "word"),
    ),
    "output_perturbation": spec(
        accounting.output_perturbation, sensitivity=(1.0, "positive"), noise_std=(2.0, "positive")
    ),
    "pure": spec(accounting.pure, epsilon=(0.5, "not negative"), **REPLACE),
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
        epsilon=(0.1, "positive"),
    ),
    "skellam_vote": spec(
        accounting.skellam_vote, variance=(9.0, "positive"), scale=(1, "whole"), **VOTES
    ),
    "sparse_vector": spec(
        accounting.sparse_vector,
        noise=(9.0, "positive"),
        bound=(3, "whole"),
        allocation=("optimal", "word"),
        **REPLACE,
    ),
    "stop_at_threshold": spec(
        accounting.stop_at_threshold,
        guarantee=(BASE, "guarantee"),
        halting_probability=(0.1, "probability"),
    ),
    "threshold_levels": spec(
        accounting.threshold_levels, granularity=(0.1, "probability"), lower_bound=(0.2, "share")
    ),
    "truncation_probability": spec(
        accounting.truncation_probability,
        dataset_size=(100, "whole"),
        sampling_probability=(0.1, "probability"),
        capacity=(30, "whole"),
        steps=(10, "whole"),
    ),
    "vote": spec(accounting.vote, sigma=(3.0, "positive"), **VOTES),
    "zcdp": spec(accounting.zcdp, rho=(0.1, "not negative"), **REPLACE),
}

RECORDS = {"Guarantee", "RepetitionLaw"}
"""What these make is only ever made by the library; their methods are in the table."""


def test_the_table_names_every_public_function_and_every_argument():
    named = {name for name in PUBLIC if "." not in name}
    apart = {"compose", "parallel"}  # Below.
    apart |= {"mechanism"}  # Has worked examples in conformance/.
    assert set(accounting.__all__) <= named | RECORDS | apart <= set(dir(accounting))
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


FAR = {
    "positive": [1e-200, 1e-60, 1e60, 1e160, 10**400],
    "not negative": [1e-200, 1e-60, 1e60, 1e160],
    "whole": [10**99, 10**400],
    "probability": [5e-324],
    "mean": [1e60, 1e160],
}
"""Numbers of each kind that float64 holds and whose squares, or sums, it may not."""


def _no_numbers(found):
    """What a result holds that is neither a number from 0 on nor infinity."""
    if isinstance(found, accounting.Guarantee):
        found = [found.epsilon(1e-5), found.delta(1.0)]
    held = np.ravel(found).tolist()
    return [one for one in held if isinstance(one, int | float) and not one >= 0]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", PUBLIC)
def test_a_number_at_the_end_of_float64_is_answered_or_refused_in_one_line(name):
    call, arguments = PUBLIC[name]
    for argument, (_, kind) in arguments.items():
        for value in FAR.get(kind.rstrip("?"), []):
            try:
                found = call(**good(arguments) | {argument: value})
                assert not _no_numbers(found), (argument, value)
            except ValueError as error:
                assert "\n" not in str(error) and len(str(error)) < 300
                assert "math" not in str(error), (argument, value, error)


@pytest.mark.parametrize("join", [accounting.compose, accounting.parallel])
@pytest.mark.parametrize("bad", BAD["guarantee"])
def test_what_is_no_guarantee_is_not_joined(join, bad):
    with pytest.raises(ValueError, match="every guarantee of .* must be a Guarantee"):
        join(BASE, bad)


@pytest.mark.parametrize("name", PUBLIC)
def test_numpy_scalars_are_numbers(name):
    call, arguments = PUBLIC[name]
    values = good(arguments)
    for argument, (value, _) in arguments.items():
        if type(value) in (float, int):
            values[argument] = np.array(value)[()]
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


SLOTS = accounting.gaussian(1.0, relation="replace_one")
EVENT = dp_events.GaussianDpEvent(1.5)
REFUSED = {
    "at least one guarantee": lambda: accounting.compose(),
    "weights must be 1 probabilities that sum to 1": lambda: accounting.mixture([BASE], [0.5]),
    "not pure: pass a delta in": lambda: BASE.epsilon(0),
    "unknown mechanism": lambda: accounting.from_provenance({"mechanism": "magic"}),
    "lacks or misnames": lambda: accounting.from_provenance({"mechanism": "zcdp"}),
    "not a provenance tree": lambda: accounting.from_provenance([1]),
    "registered already": lambda: provenance.register("zcdp", lambda p, q: None),
    "one length": lambda: accounting.renyi_only([2.0, 3.0], [0.1]),
    "use accounting.pure": lambda: accounting.approximate(1.0, 0.0),
    "lot_size=11 exceeds": lambda: accounting.dp_sgd_fixed_lots(10, 11, 1.0, 5),
    "local_variance 0.2: pass at least 0.25": lambda: accounting.federated_averaging(0.2, 1, 1, 3),
    "a client that names all": lambda: accounting.vote(1.0, 5, 5),
    "variance 3.99 .*raise the scale of the votes": lambda: discrete_gaussian_sum(3.99, 5),
    "cap known beforehand": lambda: accounting.doubling_loop(0.1),
    "hits.*segments": lambda: accounting.doubling_loop(0.1, 3, hits=2),
    "granularity|lower_bound": lambda: accounting.max_iterations(granularity=0.2, lower_bound=0.9),
    "fit no grid: pass more noise, or fewer steps": lambda: accounting.repeat(
        accounting.pure(5.0), 10**9
    ).pair.epsilon(1e-5),
    "orders": lambda: accounting.rdp_grid(0.1, 1.0, 1, [np.inf]),
    "equally long": lambda: accounting.rdp_grid([0.1, 0.2], [1.0, 1.0, 1.0], 1, [2]),
    "one-dimensional": lambda: accounting.rdp_grid([[0.1]], 1.0, 1, [2]),
    "delta": lambda: accounting.epsilon_grid([[1.0]], [2.0], 0.0),
    "last axis": lambda: accounting.epsilon_grid([[1.0, 2.0]], [2.0], 1e-5),
    "shape 3e.15 .* pass at most": lambda: accounting.TruncatedNegativeBinomial(3e15, 10.0),
    "larger shape or a smaller mean": lambda: accounting.TruncatedNegativeBinomial(-0.99, 1e6),
    "trials must be at most 1000000": lambda: accounting.Binomial(10**15, 1e-14),
    "cap must be a whole number >= 3": lambda: accounting.AtMost(accounting.Fixed(3), 2),
    "masses must be > 0 and sum to 1": lambda: accounting.Tabulated([1, 2], [0.5, 0.6]),
    "k must be at most 1000000": lambda: accounting.Tabulated([10**9], [1.0]),
    "unknown law": lambda: accounting.law_from_dict({"law": "zipf"}),
    "needs the value": lambda: accounting.law_from_dict({"law": "poisson"}),
    "tuned is under 'replace_one'.*pass a guarantee": lambda: accounting.split(
        SLOTS, BASE, probability=0.5
    ),
    "final is under 'replace_one'.*pass a guarantee": lambda: accounting.split(
        BASE, SLOTS, probability=0.5
    ),
    "pass one under add_or_remove_one": lambda: accounting.replace_one(SLOTS),
    "^NonPrivateDpEvent is not supported": lambda: accounting.from_dp_event(
        dp_events.NonPrivateDpEvent()
    ),
    "UnsupportedDpEvent is not supported": lambda: accounting.from_dp_event(
        dp_events.UnsupportedDpEvent()
    ),
    "noise_multiplier must be": lambda: accounting.from_dp_event(dp_events.GaussianDpEvent(0.0)),
    "add noise": lambda: accounting.from_dp_event(dp_events.LaplaceDpEvent(0.0)),
    "WithReplacementDpEvent is not supported": lambda: accounting.from_dp_event(
        dp_events.SampledWithReplacementDpEvent(10, 2, EVENT)
    ),
    "refuses the event": lambda: accounting.from_dp_event(
        dp_events.RandomizedResponseDpEvent(0.5, 4)
    ),
    "mean of this law": lambda: accounting.from_dp_event(
        dp_events.RepeatAndSelectDpEvent(EVENT, 0.5, 1.0)
    ),
    "shape must be finite and > -1": lambda: accounting.from_dp_event(
        dp_events.RepeatAndSelectDpEvent(EVENT, 5.0, -1.5)
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_its_type_does_not_show_is_refused_in_one_line(words):
    with pytest.raises(ValueError, match=words) as refused:
        REFUSED[words]()
    assert "\n" not in str(refused.value)
