"""The exact bound over all orders: how close to it an explicit order comes, and when it is used.

That it never falls below the truth is in test_selection_soundness.py.
"""

import math

import numpy as np
import pytest

from dpjax import accounting
from dpjax.accounting.numerics.loss_distribution import LossDistribution
from dpjax.accounting.numerics.privacy_profile import touching_line
from dpjax.accounting.selection import best_of as selection
from dpjax.accounting.selection.envelope import selected_profiles
from dpjax.accounting.selection.exact import TAIL_DELTA, Cells, tightened
from experiments.benchmarks.selection_adversary import reached, worst_order

SHIFT = math.sqrt(0.2)


@pytest.fixture(scope="module")
def gaussian():
    """0.1-zCDP."""
    return accounting.gaussian(1.0 / SHIFT)


@pytest.mark.parametrize(
    "law,envelope,stated",
    [
        (accounting.Poisson(100.0), 13.68, 12.25),
        (accounting.Poisson(1000.0), 33.63, 25.19),
        (accounting.Fixed(20), 8.96, 8.15),
        (accounting.Geometric(10.0), 2.892, 2.892),
    ],
    ids=repr,
)
def test_an_explicit_order_comes_within_one_percent(gaussian, law, envelope, stated):
    found = accounting.best_of(gaussian, law).epsilon(1e-6)
    assert found == pytest.approx(stated, rel=2e-3)
    order = reached(law, 1e-6, SHIFT, points=300)
    assert order <= found <= 1.01 * order
    known = accounting.best_of(gaussian, law, method="envelope").epsilon(1e-6)
    assert known == pytest.approx(envelope, rel=1e-3)


def test_an_explicit_order_comes_as_close_at_a_tiny_delta():
    """There rounding is small only if large charges for moving inside a cell are left out."""
    law = accounting.Fixed(3)
    order = reached(law, 3e-12, 2.0, points=300)
    found = accounting.best_of(accounting.gaussian(0.5), law).epsilon(3e-12)
    assert order <= found <= 1.005 * order


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.5])
@pytest.mark.parametrize(
    "law", [accounting.Geometric(10.0), accounting.Poisson(30.0), accounting.Fixed(5)], ids=repr
)
def test_the_bulk_is_as_close(gaussian, law, epsilon):
    """What compositions read: the envelope is up to 2.5 times the truth there."""
    order = worst_order(law, epsilon, SHIFT, 250, True)
    claimed = accounting.best_of(gaussian, law).delta(epsilon)
    assert order <= claimed <= 1.04 * order
    assert accounting.best_of(gaussian, law, "envelope").delta(epsilon) > 1.2 * order


def test_ten_selections_composed():
    selected = accounting.best_of(accounting.gaussian(20.0), accounting.Geometric(10.0))
    composed = accounting.repeat(selected, 10).epsilon(1e-5)
    # One order ten times over costs 1.03; the envelope says 1.69.
    assert 1.03 < composed < 1.20
    loose = accounting.best_of(
        accounting.gaussian(20.0), accounting.Geometric(10.0), method="envelope"
    )
    assert accounting.repeat(loose, 10).epsilon(1e-5) > 1.68


@pytest.mark.parametrize(
    "law", [accounting.Geometric(10.0), accounting.AtMost(accounting.Logarithmic(20.0), 64)]
)
def test_small_deltas_of_common_laws_do_not_pay_for_it(gaussian, law, monkeypatch):
    assert law.envelope_suffices
    whole = accounting.best_of(gaussian, law)
    whole.pair.delta(0.0)
    monkeypatch.setattr(selection, "tightened", None)
    again = accounting.best_of(gaussian, law)
    for delta in (TAIL_DELTA, 1e-6, 1e-9):
        # The same number whether or not the whole profile was asked for.
        assert again.epsilon(delta) == whole.epsilon(delta) == whole.pair.epsilon(delta)


@pytest.mark.parametrize(
    "law",
    [
        accounting.Fixed(2),
        accounting.Fixed(3),
        accounting.Fixed(6),
        accounting.Poisson(30.0),
        accounting.Binomial(12, 0.5),
        accounting.Tabulated([1, 2, 40], [0.5, 0.3, 0.2]),
        accounting.Tabulated([1, 2], [1e-6, 1.0 - 1e-6]),
    ],
    ids=repr,
)
def test_the_bound_at_one_delta_is_that_of_the_whole_profile_without_its_chords(gaussian, law):
    selected = accounting.best_of(gaussian, law)
    for delta in (1e-2, TAIL_DELTA, 1e-6, 1e-9):
        whole = selected.pair.epsilon(delta)
        assert whole * (1 - 2e-3) <= selected.epsilon(delta) <= whole * (1 + 1e-7)
        assert selected.rough_epsilon(delta) >= whole * (1 - 1e-12)


@pytest.mark.parametrize(
    "law",
    [
        accounting.AtMost(accounting.Geometric(10.0), 64),
        accounting.AtMost(accounting.Geometric(1.5), 4),
        accounting.Fixed(2),
    ],
    ids=repr,
)
@pytest.mark.parametrize("failure", [0.0, 1e-9])
def test_at_one_delta_no_run_together_is_missed(law, failure):
    """Whether or not the profile ends above 0, where the whole one looks at all runs together."""
    helped = False
    for run in ((0.05, 0.4, 20), (0.06, 3.3, 320)):
        base = accounting.dp_sgd(*run, failure_probability=failure)
        selected = accounting.best_of(base, law)
        alone = accounting.best_of(base, law, "envelope")
        for delta in (TAIL_DELTA, 1e-7):
            whole = selected.pair.epsilon(delta)
            least = whole * (1 - 1e-9 if law.envelope_suffices else 1 - 2e-3)
            assert least <= selected.epsilon(delta) <= whole * (1 + 1e-9)
            helped |= whole < 0.999 * alone.epsilon(delta)
    assert helped == (law.maximum == 2)


def test_the_line_that_touches_a_profile_at_one_delta():
    epsilons = 0.01 * np.arange(400)
    profile = accounting.gaussian(2.0).pair.delta(epsilons)
    # A corner above the hull, where the line may not turn.
    profile[150:160] = profile[150]
    for delta in (1e-2, profile[155], 1e-4):
        line = touching_line(epsilons, profile, delta)
        place = np.count_nonzero(profile > delta)
        assert np.all(line <= profile * (1 + 1e-12))
        straight = np.interp(np.exp(epsilons), np.exp(epsilons[line > 0.0]), line[line > 0.0])
        np.testing.assert_allclose(straight[line > 0.0], line[line > 0.0], rtol=1e-9)
        assert 0.9 * delta < line[place - 1 : place + 1].max() and line[-1] == 0.0
        # It touches the hull on both sides of where that falls to delta.
        touched = np.flatnonzero(np.isclose(line, profile, rtol=1e-9, atol=0.0))
        assert line[touched[0]] >= delta >= line[touched[-1]]
    assert not touching_line(epsilons, profile, 0.9).any()
    assert np.isinf(touching_line(epsilons, profile, profile[-1] / 2)).all()


@pytest.mark.parametrize("law", [accounting.Fixed(6), accounting.Poisson(30.0)], ids=repr)
def test_the_bound_at_one_delta_is_the_exact_one(law):
    for base in (accounting.gaussian(1.0), accounting.dp_sgd(0.02, 1.0, 300)):
        for delta in (1e-2, 1e-6):
            at = np.array([accounting.best_of(base, law).epsilon(delta)])
            there, back = base.pair.forward, base.pair.backward
            exact = [Cells(*pair, law).profile(at)[0] for pair in ((there, back), (back, there))]
            assert max(exact) == pytest.approx(delta, rel=2e-3)


@pytest.mark.parametrize(
    "law",
    [
        accounting.Poisson(5.0),
        accounting.Binomial(30, 0.2),
        accounting.TruncatedNegativeBinomial(5.0, 100.0),
    ],
)
def test_other_laws_have_no_such_tail(law):
    assert not law.envelope_suffices


def test_in_the_tail_the_envelope_suffices():
    for noise, laws in (
        (0.7, [accounting.Geometric(300.0)]),
        (20.0, [accounting.Logarithmic(100.0), accounting.TruncatedNegativeBinomial(2.0, 50.0)]),
    ):
        pair = accounting.gaussian(noise).pair
        for law in laws:
            interval, (profile,) = selected_profiles(pair, law)
            place = np.flatnonzero(profile > TAIL_DELTA)[-1]
            # 0.5% of epsilon, as a share of delta.
            slope = -math.log(profile[place + 1] / profile[place]) / interval
            least = profile[place] * math.exp(-0.01 * slope * place * interval)
            epsilon = np.array([place * interval])
            assert Cells(pair.forward, pair.backward, law).profile(epsilon)[0] >= least


def test_a_law_without_closed_form(gaussian):
    pair = gaussian.pair
    epsilons = np.array([0.0, 1.0, 3.0, 6.0, 9.0])
    for law in (
        accounting.Tabulated([1, 40], [0.7, 0.3]),
        accounting.AtMost(accounting.Poisson(60.0), 100),
    ):
        bound = Cells(pair.forward, pair.backward, law).profile(epsilons)
        order = [reached_delta(law, epsilon) for epsilon in epsilons]
        assert np.all(bound >= order)
        assert np.all(bound <= np.array(order) * 1.1 + 1e-15)


def reached_delta(law, epsilon: float) -> float:
    return worst_order(law, epsilon, SHIFT, 250, True)


def test_infinite_losses_and_noise_in_the_masses(gaussian):
    law, epsilons = accounting.Poisson(20.0), np.array([0.0, 2.0, 4.0, 6.0])
    clean = Cells(gaussian.pair.forward, gaussian.pair.backward, law).profile(epsilons)
    failing = gaussian.pair.with_failure(1e-6)
    bound = Cells(failing.forward, failing.backward, law).profile(epsilons)
    assert np.all(bound >= clean + 0.5e-6 * law.mean * (1.0 - clean))
    assert np.all(bound <= clean + (1.0 + np.exp(epsilons)) * 1.01e-6 * law.mean)
    # A mass of 1e-15 at loss -20 weighs 5e-7 under the other distribution.
    masses, lowest = gaussian.pair.forward.masses, gaussian.pair.forward.lowest
    far = round(-20.0 / gaussian.pair.interval)
    noisy = np.concatenate([np.zeros(lowest - far), masses])
    noisy[0] = 1e-15
    noisy = LossDistribution(gaussian.pair.interval, far, noisy, 0.0)
    assert noisy.mirrored_mass() > 1.0 + 1e-7
    assert np.all(Cells(noisy, noisy, law).profile(epsilons) >= clean * (1.0 - 1e-9))


def order_of_losses(pair, law, epsilon: float) -> float:
    """As `worst_order`, for any mirrored pair of loss distributions: the forward direction."""
    curves = []
    for direction in (pair.forward, pair.backward):
        held = direction.masses > 0
        own = direction.masses[held][::-1]
        other = np.cumsum(own * np.exp(-direction.losses[held][::-1]))
        own = direction.infinity_mass + np.cumsum(own)
        curves.append((np.append(0.0, own), np.append(0.0, other)))
    (m, g), (h, n) = curves
    some = np.unique(np.searchsorted(m, np.geomspace(1e-13, 0.95, 300)).clip(0, m.size - 1))
    m, g = m[some], g[some]
    marks = np.append(np.geomspace(1e-9, 0.5, 300), 1.0 - np.geomspace(0.5, 1e-6, 100))
    some = np.unique(np.searchsorted(n, np.append(0.0, marks)).clip(0, n.size - 1))
    n, h = n[some], h[some]
    value, best = np.zeros(n.size), 0.0
    for k in range(m.size - 1):
        earned = (m[k + 1] - m[k]) * law.derivative(np.minimum(n + 0.5 * (m[k] + m[k + 1]), 1.0))
        ends = [law.derivative(np.minimum(h + end, 1.0)) for end in (g[k], g[k + 1])]
        earned -= math.exp(epsilon) * 0.5 * (g[k + 1] - g[k]) * (ends[0] + ends[1])
        earned = np.where(n + m[k + 1] <= 1.0, earned, -np.inf)
        value = np.maximum.accumulate(value) + earned
        best = max(best, float(value.max()))
    return best


@pytest.mark.parametrize(
    "pair,law",
    [
        (accounting.dp_sgd(0.3, 1.0, 20).pair, accounting.Poisson(100.0)),
        (accounting.gaussian(0.5).pair, accounting.Poisson(300.0)),
        (accounting.gaussian(0.7).pair, accounting.Fixed(40)),
    ],
    ids=["dp_sgd", "gaussian-poisson", "gaussian-fixed"],
)
def test_large_epsilons(pair, law):
    """t = e^60 times what is lost must not drown what is earned."""
    epsilons = np.array([5.0, 20.0, 40.0, 45.0, 47.0, 50.0, 60.0])
    bounds = Cells(pair.forward, pair.backward, law).profile(epsilons)
    other = Cells(pair.backward, pair.forward, law).profile(epsilons)
    assert np.all(np.diff(bounds) <= 0.0)
    swapped = type(pair)(pair.backward, pair.forward)
    for place, epsilon in enumerate(epsilons):
        for bound, direction in ((bounds, pair), (other, swapped)):
            order = order_of_losses(direction, law, epsilon)
            assert bound[place] >= order
            assert bound[place] <= 2.0 * order + 1e-13


@pytest.mark.parametrize(
    "law,within",
    [(accounting.Fixed(1_000_000), 1.025), (accounting.Binomial(1_000_000, 0.5), 1.025)],
    ids=repr,
)
def test_very_many_runs_fall_off_no_cliff(law, within):
    """All runs together were priced: 127,623."""
    stated = accounting.best_of(accounting.gaussian(2.0), law).epsilon(1e-6)
    assert worst_order(law, stated, 0.5, 300, True) <= 1e-6
    assert worst_order(law, stated / within, 0.5, 300, True) > 1e-6


def test_where_float64_ends_a_line_says_so():
    base = accounting.gaussian(0.02)
    with pytest.warns(UserWarning, match=r"leave float64.* 100 times one: pass more noise"):
        found = accounting.best_of(base, accounting.Fixed(100)).epsilon(1e-6)
    assert base.epsilon(1e-6) < found < 101 * base.epsilon(1e-6)


def test_tightened_profiles_are_never_above_the_envelope():
    pair = accounting.dp_sgd(0.02, 1.0, 500).pair
    law = accounting.Poisson(50.0)
    interval, profiles = selected_profiles(pair, law)
    smaller = tightened(pair, law, interval, profiles)
    assert [profile.shape for profile in smaller] == [profile.shape for profile in profiles]
    for before, after in zip(profiles, smaller):
        assert np.all(after <= before) and np.any(after < 0.5 * before)
    # Each direction by its own bound: they differ.
    place = np.array([round(2.0 / interval), round(4.0 / interval)])
    added = Cells(pair.backward, pair.forward, law).profile(interval * place)
    removed = Cells(pair.forward, pair.backward, law).profile(interval * place)
    assert np.all(added > 1.08 * removed)
    for after, exact in zip(smaller, (removed, added)):
        assert np.all(after[place] >= exact * 0.97) and np.all(after[place] <= exact * 1.05)


@pytest.mark.parametrize("chance", [0.01, 0.3, 0.9])
@pytest.mark.parametrize(
    "base",
    [accounting.dp_sgd(20 / 84, 2.0, 1), accounting.gaussian(1.0), accounting.pure(0.5)],
)
def test_one_run_or_none_costs_that_share_of_a_run(base, chance):
    """K is 0 or 1: no outcome is preferred, f' never moves, and delta is the run's by a chance."""
    best = accounting.best_of(base, accounting.Binomial(1, chance))
    for epsilon in (0.05, 0.2, 0.45):
        exact = chance * base.delta(epsilon)
        assert exact <= best.delta(epsilon) * (1 + 1e-9)
        assert best.delta(epsilon) <= exact * (1 + 2e-3) + 1e-12
