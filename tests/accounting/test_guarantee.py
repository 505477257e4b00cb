"""Guarantee: conversions, composition, provenance, immutability, refusals."""

import json
import math
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy import optimize, special

from dpjax import accounting
from dpjax.accounting.guarantee import Guarantee
from dpjax.accounting.mechanisms.elementary import _smooth_discrete_gaussian_pair


def analytic_gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Balle & Wang (2018), Theorem 8, solved with log-space tails."""
    shift = 0.5 / noise_multiplier

    def excess(epsilon):
        scaled = epsilon * noise_multiplier
        found = special.ndtr(shift - scaled) - math.exp(
            epsilon + float(special.log_ndtr(-shift - scaled))
        )
        return found - delta

    return optimize.brentq(excess, 0.0, 200.0, xtol=1e-12)


@pytest.mark.parametrize("noise_multiplier", [0.3, 1.0, 2.236, 50.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-9])
def test_gaussian_is_the_analytic_gaussian(noise_multiplier, delta):
    expected = analytic_gaussian_epsilon(noise_multiplier, delta)
    found = accounting.gaussian(noise_multiplier).epsilon(delta)
    assert expected - 1e-9 <= found <= expected + 2e-6 * (1 + expected)


def test_gaussian_steps_compose_exactly():
    together = accounting.gaussian(3.0, steps=9)
    assert together.epsilon(1e-6) == accounting.gaussian(1.0).epsilon(1e-6)
    apart = accounting.repeat(accounting.gaussian(3.0), 9)
    assert apart.epsilon(1e-6) == pytest.approx(together.epsilon(1e-6), abs=1e-4)
    assert apart.rdp(3.0) == pytest.approx(together.rdp(3.0))


@pytest.mark.parametrize("sigma,sensitivity", [(0.6, 1), (3.0, 2), (7.5, 3)])
def test_discrete_gaussian_is_exact(sigma, sensitivity):
    x = np.arange(-400, 401)
    weights = np.exp(-0.5 * (x / sigma) ** 2)
    p = weights / weights.sum()
    q = np.exp(-0.5 * ((x - sensitivity) / sigma) ** 2) / weights.sum()
    guarantee = accounting.discrete_gaussian(sigma, sensitivity)
    for epsilon in (0.0, 0.1, 0.5, 1.0, 3.0):
        exact = np.maximum(p - math.exp(epsilon) * q, 0.0).sum()
        assert guarantee.delta(epsilon) == pytest.approx(exact, abs=1e-13, rel=1e-9)
    held = (p > 1e-290) & (q > 1e-290)
    for order in (1.5, 2.0, 6.0):
        logs = order * np.log(p[held]) + (1 - order) * np.log(q[held])
        exact = np.logaddexp.reduce(logs) / (order - 1)
        assert guarantee.rdp(order) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("delta", [1e-34, 1e-40, 1e-100, 1e-200])
def test_discrete_gaussian_at_a_delta_beyond_what_is_tabulated(delta):
    """What is left out of the losses' table, at 12.5 standard deviations, reveals everything."""
    for sigma, sensitivity in ((0.6, 1), (1.0, 1), (5.0, 2)):
        epsilon = accounting.discrete_gaussian(sigma, sensitivity).epsilon(delta)
        # Logarithms of what float64 could not hold the sum of.
        x = np.arange(-400, 401)
        p, q = (-0.5 * ((x - moved) / sigma) ** 2 for moved in (0, sensitivity))
        larger = p - q > epsilon
        terms = p[larger] + np.log1p(-np.exp(epsilon - (p - q)[larger]))
        true = np.logaddexp.reduce(terms) - np.logaddexp.reduce(p)
        assert true <= math.log(delta) + 1e-6


def test_steps_that_reveal_less_than_the_rounding_of_one_add_up():
    """A total variation distance below 1e-16 was 0, and so was that of 1e15 such steps."""
    step = accounting.dp_sgd(1e-16, 1.0, 1)
    exact = 1e-16 * math.erf(0.5 / math.sqrt(2.0))  # Of a mixture, q times the Gaussian's.
    assert exact <= step.delta(0.0) <= exact * (1.0 + 1e-9)
    assert step.epsilon(1e-18) > 0.0
    # By the central limit theorem the losses of all are Gaussian, of this mu.
    mu = 1e-16 * math.sqrt(10**15 * math.expm1(1.0))
    limit = math.erf(mu / math.sqrt(8.0))
    assert limit <= accounting.dp_sgd(1e-16, 1.0, 10**15).delta(0.0) < 1.5 * limit
    # Randomised response's in the middle of a range of 1e-16.
    drawn = accounting.exponential_mechanism(1e-16)
    assert drawn.delta(0.0) == pytest.approx(0.25e-16, rel=1e-9)
    assert accounting.repeat(drawn, 10**6).delta(0.0) >= 1e-14


@pytest.mark.parametrize("failure", [1e-12, 1e-17, 1e-40])
def test_no_combination_is_finite_at_a_delta_below_what_fails(failure):
    """A mixture lost a failure below 1e-16, and so did the replacement of a record."""
    one, other = accounting.approximate(1.0, failure), accounting.approximate(0.5, failure)
    mixed = accounting.mixture([one, other], [0.25, 0.75])
    replaced = accounting.replace_one(one)
    nothing_else = accounting.replace_one(accounting.approximate(0.0, failure))
    composed = accounting.compose(one, other), accounting.repeat(one, 3)
    for guarantee in (mixed, replaced, nothing_else, *composed):
        assert guarantee.epsilon(0.5 * failure) == math.inf
    assert mixed.epsilon(0.5 * failure, method="rdp") == math.inf
    # Either of two failures, the first with all that a step of epsilon 1 may add to it.
    least = failure * (1.0 + math.e)
    assert replaced.epsilon(1.0001 * least) <= 2.0 + 1e-9
    assert replaced.epsilon(0.999 * failure * (1.0 + math.exp(-1.0))) == math.inf


def test_discrete_gaussian_of_any_width():
    """1e7 asked for gigabytes; from 40,000 on it is the Gaussian's profile, raised."""
    for sigma, sensitivity in ((5e4, 1), (5e4, 3), (1e7, 1), (1e9, 10**9)):
        wide = accounting.discrete_gaussian(sigma, sensitivity).pair
        plain = accounting.gaussian(sigma / sensitivity).pair
        for epsilon in (0.0, 1.0 * sensitivity / sigma, 4.0 * sensitivity / sigma):
            assert plain.delta(epsilon) <= wide.delta(epsilon) <= plain.delta(epsilon) * (1 + 1e-6)
    # What it is raised by covers the difference, where both can be summed.
    for sigma, sensitivity in ((40.0, 1), (40.0, 40), (40.0, 200), (200.0, 7)):
        summed = accounting.discrete_gaussian(sigma, sensitivity).pair.forward
        smooth = _smooth_discrete_gaussian_pair(sigma, sensitivity).forward
        reach = 6.0 * sensitivity / sigma + 0.5 * (sensitivity / sigma) ** 2
        epsilons = np.linspace(0.0, reach, 50)
        assert np.all(smooth.delta(epsilons) >= summed.delta(epsilons) * (1 - 1e-9))
        assert np.all(smooth.delta(epsilons) <= summed.delta(epsilons) * (1 + 60.0 / sigma**2))


def test_mixtures_of_hundreds_fit_in_memory():
    runs = [accounting.gaussian(0.5 + 0.01 * index) for index in range(120)]
    for run in runs:
        run.pair  # noqa: B018 - made beforehand, so that only the mixture is measured.
    mixed = accounting.mixture(runs)
    tracemalloc.start()
    found = mixed.epsilon(1e-5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2.5e8
    average = np.mean([run.delta(found) for run in runs])
    assert average <= 1e-5 * (1 + 1e-9)
    assert average >= 0.999e-5


@pytest.mark.parametrize(
    "steps,optimal",
    [(7, 0.6990896611904688), (20, 1.5979807018902394), (100, 4.306791372516508)],
)
def test_pure_composes_optimally(steps, optimal):
    """Kairouz, Oh & Viswanath (2015); numbers of oracles/svt_composition.json."""
    composed = accounting.repeat(accounting.pure(0.1), steps)
    assert composed.epsilon(1e-5) == pytest.approx(optimal, abs=1e-9)
    assert composed.epsilon(0) == pytest.approx(0.1 * steps)
    listed = accounting.compose(*[accounting.pure(0.1)] * steps)
    assert listed.epsilon(1e-5) == composed.epsilon(1e-5)


def test_pure_of_unequal_epsilons():
    mixed = accounting.compose(accounting.pure(0.0646123), accounting.pure(0.1))
    assert mixed.epsilon(0) == pytest.approx(0.1646123)
    assert mixed.epsilon(1e-9) <= 0.1646123
    assert mixed.delta(0.17) == 0.0
    assert 0.0 < mixed.delta(0.1) < 0.1
    assert accounting.pure(0.0).epsilon(0) == 0.0


def test_composition_across_grids_and_kinds():
    parts = [
        accounting.pure(0.1),
        accounting.gaussian(2.0),
        accounting.dp_sgd(0.01, 1.0, 1000),
        accounting.zcdp(0.01),
    ]
    total = accounting.compose(*parts)
    assert total.epsilon(1e-5) > max(part.epsilon(1e-5) for part in parts)
    assert total.epsilon(1e-5) < sum(part.epsilon(2.5e-6) for part in parts)
    assert total.epsilon(1e-5) < total.epsilon(1e-5, "rdp") < total.epsilon(1e-5, "rdp_classic")
    np.testing.assert_allclose(total.rdp([2, 5]), sum(part.rdp([2, 5]) for part in parts))
    with pytest.raises(ValueError, match="not pure"):
        total.epsilon(0)


def test_renyi_only_parts_add_as_curves():
    parts = accounting.compose(*[accounting.zcdp(0.01)] * 10)
    assert parts.epsilon(1e-6) == pytest.approx(accounting.zcdp(0.1).epsilon(1e-6), abs=1e-9)
    with_gaussian = accounting.compose(parts, accounting.zcdp(0.2), accounting.gaussian(5.0))
    whole = accounting.compose(accounting.zcdp(0.3), accounting.gaussian(5.0))
    assert with_gaussian.epsilon(1e-6) == pytest.approx(whole.epsilon(1e-6), abs=2e-2)


def test_parallel_is_the_larger_profile():
    train, validation = accounting.dp_sgd(0.01, 1.0, 1000), accounting.gaussian(2.0)
    both = accounting.parallel(train, validation)
    for epsilon in (0.0, 0.2, 0.8, 1.7, 3.0):
        larger = max(train.delta(epsilon), validation.delta(epsilon))
        assert larger - 1e-12 <= both.delta(epsilon) <= larger + 1e-5
    for delta in (1e-3, 1e-6, 1e-9):
        larger = max(train.epsilon(delta), validation.epsilon(delta))
        assert both.epsilon(delta) == pytest.approx(larger, abs=1e-5)
    np.testing.assert_allclose(
        both.rdp([2.0, 9.0]), np.maximum(train.rdp([2.0, 9.0]), validation.rdp([2.0, 9.0]))
    )
    assert accounting.parallel(train) is train


@pytest.mark.parametrize("place", [0, 1, 2])
def test_parallel_is_the_one_that_costs_most_wherever_it_stands(place):
    parts = [accounting.gaussian(noise) for noise in (4.0, 7.0)]
    largest = accounting.gaussian(2.0)
    parts.insert(place, largest)
    assert accounting.parallel(*parts).pair is largest.pair


def test_parallel_of_grids_that_share_one_is_exact():
    """Ten steps of 0.0317 divide into eleven: on any other grid masses would be split."""
    step = 0.00317

    def coins(interval, *steps, fails=0.0):
        """One of the coins whose losses are so many steps, or what says which data set it is."""
        with_it, without = {"with": fails}, {"without": fails}
        for number in steps:
            share, loss = (1.0 - fails) / len(steps), (number - 0.01) * interval
            yes, no = share / (1.0 + math.exp(-loss)), share / (1.0 + math.exp(loss))
            with_it |= {(number, 1): yes, (number, 0): no}
            without |= {(number, 1): no, (number, 0): yes}
        pld = privacy_loss_distribution.from_two_probability_mass_functions(
            *({k: math.log(mass) for k, mass in law.items() if mass} for law in (with_it, without)),
            value_discretization_interval=interval,
            symmetric=False,
        )
        return Guarantee.from_pld(pld)

    parts = coins(10 * step, 24, fails=0.01), coins(11 * step, 14, 36)
    both = accounting.parallel(*parts)
    found = [[each.delta(step * k) for k in range(0, 420, 11)] for each in (*parts, both)]
    assert any(np.less(found[0], found[1])) and any(np.greater(found[0], found[1]))
    np.testing.assert_allclose(found[2], np.maximum(found[0], found[1]), rtol=1e-9)


def test_mixture_is_the_average_profile():
    first, second = accounting.gaussian(1.0), accounting.gaussian(4.0)
    mixed = accounting.mixture([first, second], weights=[0.25, 0.75])
    for epsilon in (0.0, 0.5, 2.0):
        average = 0.25 * first.delta(epsilon) + 0.75 * second.delta(epsilon)
        assert mixed.delta(epsilon) == pytest.approx(average, rel=1e-6)
    a = 3.0
    expected = math.log(
        0.25 * math.exp((a - 1) * first.rdp(a)) + 0.75 * math.exp((a - 1) * second.rdp(a))
    ) / (a - 1)
    assert mixed.rdp(a) == pytest.approx(expected)
    uniform = accounting.mixture([first, second])
    assert mixed.epsilon(1e-6) < uniform.epsilon(1e-6) < first.epsilon(1e-6)
    assert accounting.mixture([first, second], [1.0, 0.0]) is first


def test_dp_accounting_round_trip():
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        1.0, sampling_prob=0.01, value_discretization_interval=1e-3
    ).self_compose(1000)
    ours = Guarantee.from_pld(theirs)
    assert ours.epsilon(1e-5) == pytest.approx(theirs.get_epsilon_for_delta(1e-5), abs=1e-9)
    assert ours.delta(1.0) == pytest.approx(theirs.get_delta_for_epsilon(1.0), rel=1e-9)
    back = ours.to_pld()
    assert back.get_epsilon_for_delta(1e-5) == pytest.approx(ours.epsilon(1e-5), abs=1e-9)
    # And the same run by our own constructor, on its own, finer grid.
    run = accounting.dp_sgd(0.01, 1.0, 1000)
    assert run.epsilon(1e-5) < theirs.get_epsilon_for_delta(1e-5)
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        1.0, sampling_prob=0.01, value_discretization_interval=run.pair.interval
    ).self_compose(1000)
    assert run.epsilon(1e-5) == pytest.approx(theirs.get_epsilon_for_delta(1e-5), abs=1e-5)
    assert run.to_pld().get_epsilon_for_delta(1e-5) == pytest.approx(run.epsilon(1e-5), abs=1e-9)
    rebuilt = accounting.from_provenance(json.loads(json.dumps(ours.provenance)))
    assert rebuilt.epsilon(1e-5) == ours.epsilon(1e-5)
    optimistic = privacy_loss_distribution.from_gaussian_mechanism(1.0, pessimistic_estimate=False)
    with pytest.raises(ValueError, match="pessimistic"):
        Guarantee.from_pld(optimistic, symmetric=True)


def test_one_direction_of_two_is_no_guarantee():
    """dp_accounting thinks two mass functions symmetric unless told otherwise."""
    p, q = np.array([0.70, 0.25, 0.05]), np.array([0.55, 0.25, 0.20])
    both = [dict(enumerate(np.log(masses))) for masses in (p, q)]
    make = privacy_loss_distribution.from_two_probability_mass_functions
    exact = max(np.maximum(a - math.exp(0.3) * b, 0.0).sum() for a, b in ((p, q), (q, p)))
    one = make(*both)
    with pytest.raises(ValueError, match="one direction alone: pass symmetric=True"):
        Guarantee.from_pld(one)
    other = make(*both[::-1])
    least = min(Guarantee.from_pld(pld, symmetric=True).delta(0.3) for pld in (one, other))
    two = make(*both, symmetric=False)
    assert least < 0.9 * exact <= 0.9 * Guarantee.from_pld(two).delta(0.3)


@pytest.mark.parametrize(
    "guarantee",
    [
        accounting.dp_sgd(0.02, 1.1, 300, failure_probability=1e-9),
        accounting.repeat(accounting.dp_sgd(0.02, 1.1, 300), 3),
        accounting.compose(
            accounting.best_of(accounting.gaussian(3.0), accounting.Logarithmic(5.0)),
            accounting.gaussian(2.0),
            accounting.gaussian(2.0),
        ),
    ],
    ids=lambda g: g.provenance["mechanism"],
)
def test_provenance_rebuilds_the_same_numbers(guarantee):
    """Of one guarantee inside another; each alone is in tests/conformance."""
    tree = json.loads(json.dumps(guarantee.provenance))
    rebuilt = accounting.from_provenance(tree)
    assert rebuilt.epsilon(1e-5) == guarantee.epsilon(1e-5)
    assert rebuilt.delta(0.7) == guarantee.delta(0.7)
    assert rebuilt.relation == guarantee.relation
    assert rebuilt.provenance == guarantee.provenance


def test_a_guarantee_cannot_be_changed():
    guarantee = accounting.gaussian(1.0)
    with pytest.raises(AttributeError, match="cannot be changed"):
        guarantee.relation = "replace_one"
    with pytest.raises(AttributeError, match="cannot be changed"):
        del guarantee.relation
    guarantee.provenance["parameters"]["noise_multiplier"] = 9.0
    assert guarantee.provenance["parameters"]["noise_multiplier"] == 1.0
    assert "gaussian" in repr(guarantee)


def test_importing_the_room_does_not_import_jax():
    code = "import sys, dpjax.accounting; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "join",
    [accounting.compose, accounting.parallel, lambda *parts: accounting.mixture(parts)],
)
def test_mismatched_relations_are_refused(join):
    with pytest.raises(ValueError, match="different neighbouring relations"):
        join(accounting.gaussian(1.0), accounting.gaussian(1.0, relation="replace_one"))


def test_a_composition_is_known_roughly_where_its_parts_are():
    run = accounting.dp_sgd(0.01, 1.2, 100)
    selected = accounting.best_of(run, accounting.Geometric(4.0))
    assert accounting.compose(run, run).rough_epsilon(1e-5) is None
    for parts in ([selected, run], [selected, selected, selected, run]):
        composed = accounting.compose(*parts)
        tight, rough = composed.epsilon(1e-5), composed.rough_epsilon(1e-5)
        assert tight <= rough < 1.1 * tight
