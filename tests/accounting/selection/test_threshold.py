"""Stopping at a threshold: never below the exact cost of the loop, on every acceptance set."""

import itertools
import math

import numpy as np
import pytest
from scipy import optimize, special

from dpjax import accounting
from dpjax.accounting.mechanisms.elementary import gaussian_delta
from dpjax.accounting.numerics.loss_distribution import LossDistribution, LossPair
from dpjax.accounting.numerics.renyi import RenyiCurve, zcdp_curve
from dpjax.accounting.numerics.tradeoff import largest_mass
from dpjax.accounting.selection import threshold
from dpjax.accounting.selection.threshold import _stopped_pair
from experiments.figures.papernot_steinke import figure_8

INTERVAL = 1e-3


def pair_of(p: np.ndarray, q: np.ndarray) -> LossPair:
    """A pair of positive probability vectors on the grid, pessimistically."""
    laws = []
    for first, second in ((p, q), (q, p)):
        losses = np.log(first / second)
        below = np.floor(losses / INTERVAL).astype(int)
        masses = np.zeros(int(below.max() - below.min()) + 2)
        up = first * np.expm1(below * INTERVAL - losses) / math.expm1(-INTERVAL)
        np.add.at(masses, below - below.min(), first - up)
        np.add.at(masses, below - below.min() + 1, up)
        laws.append(LossDistribution(INTERVAL, int(below.min()), masses, 0.0))
    return LossPair(*laws)


def outputs(p: np.ndarray, good: np.ndarray, halting: float) -> np.ndarray:
    """Law of the loop's output: an accepted outcome, or (last) nothing."""
    stop = halting + (1 - halting) * p[good].sum()
    return np.append(np.where(good, (1 - halting) * p, 0.0), halting) / stop


@pytest.mark.parametrize("halting", [1e-3, 0.1, 0.6])
def test_never_below_the_exact_loop(halting):
    generator = np.random.default_rng(4)
    epsilons = np.array([0.0, 0.05, 0.2, 0.7, 1.5, 3.0])
    growth = np.exp(epsilons)[:, None]
    for _ in range(6):
        size = int(generator.integers(2, 6))
        p = generator.dirichlet(np.ones(size)) + 1e-4
        q = p * np.exp(generator.normal(0.0, 0.7, size))
        p, q = p / p.sum(), q / q.sum()
        bound = _stopped_pair(pair_of(p, q), halting).delta(epsilons)
        for chosen in itertools.product((False, True), repeat=size):
            good = np.array(chosen)
            a, b = outputs(p, good, halting), outputs(q, good, halting)
            for first, second in ((a, b), (b, a)):
                exact = np.maximum(first - growth * second, 0.0).sum(axis=1)
                assert np.all(bound >= exact - 1e-12)


def test_never_below_randomised_sets_and_attained():
    """Sets that take each outcome with a chance, over 25 pairs and coins; some sets reach it."""
    generator = np.random.default_rng(11)
    epsilons = np.array([0.0, 0.1, 0.4, 1.0, 2.0])
    ratios = []
    for _ in range(25):
        size, halting = int(generator.integers(2, 6)), float(10 ** -generator.uniform(0.1, 3.0))
        p = generator.dirichlet(np.ones(size)) + 1e-3
        q = p * np.exp(generator.normal(0.0, 0.7, size))
        p, q = p / p.sum(), q / q.sum()
        # Each outcome lies in the set whole, in part or not at all.
        parts = generator.choice([0.0, 1.0, generator.random()], (200, size))
        reached = np.zeros(epsilons.size)
        for first, second in ((p, q), (q, p)):
            laws = []
            for masses in (first, second):
                kept = np.append((1 - halting) * parts * masses, np.full((200, 1), halting), 1)
                laws.append(kept / kept.sum(axis=1, keepdims=True))
            exact = laws[0][:, None] - np.exp(epsilons)[:, None] * laws[1][:, None]
            reached = np.maximum(reached, np.maximum(exact, 0.0).sum(axis=2).max(axis=0))
        bound = _stopped_pair(pair_of(p, q), halting).delta(epsilons)
        assert np.all(bound >= reached - 1e-12)
        ratios.append(bound[reached > 1e-3] / reached[reached > 1e-3])
    # Some pairs of few outcomes have an optimal set among the 200.
    assert np.quantile(np.concatenate(ratios), 0.1) < 1.01


@pytest.mark.parametrize(
    "noise,halting,most", [(2.236, 0.1, 1.004), (20.0, 0.1, 1.005), (2.236, 1e-6, 1.003)]
)
def test_nothing_is_left_to_gain_at_large_delta(noise, halting, most):
    """Disjoint events on 800 x 800 points of a Gaussian run, without the code's laws."""
    z = np.append(-40.0, np.linspace(-8.0, 8.0, 800))
    n, h, m, g = (special.ndtr(z + moved) for moved in (0.0, 1 / noise, 0.0, -1 / noise))
    x = halting + (1 - halting) * (n[:, None] + m)
    moved = halting + (1 - halting) * (h[:, None] + g)
    possible = n[:, None] + m <= 1.0

    def excess(epsilon: float) -> float:
        t = math.exp(epsilon)
        found = (1 - halting) * (m / x - t * g / moved)
        found += halting * np.maximum(1 / x - t / moved, 0.0)
        return float(found[possible].max()) - 1e-3

    best = optimize.brentq(excess, 0.0, 20.0)
    base = accounting.gaussian(noise)
    stated = accounting.stop_at_threshold(base, halting).epsilon(1e-3)
    by_one_event = _stopped_pair(base.pair, halting, exact=False).epsilon(1e-3)
    assert best <= stated <= most * best
    assert stated < by_one_event


def test_the_loop_is_what_is_stated():
    """Simulation of the documented rounds against `outputs` (seed 0, 5 standard errors)."""
    generator = np.random.default_rng(0)
    p, good, halting = np.array([0.5, 0.3, 0.2]), np.array([False, True, True]), 0.2
    counts = np.zeros(4)
    for _ in range(20_000):
        while True:
            if generator.random() < halting:
                counts[3] += 1
                break
            drawn = generator.choice(3, p=p)
            if good[drawn]:
                counts[drawn] += 1
                break
    expected = outputs(p, good, halting)
    error = 5 * np.sqrt(expected / counts.sum())
    assert np.all(np.abs(counts / counts.sum() - expected) <= error + 1e-12)


def test_cost_grows_as_the_coin_gets_rarer():
    base = accounting.gaussian(1.0 / math.sqrt(0.2))
    costs = [accounting.stop_at_threshold(base, p).epsilon(1e-6) for p in (1.0, 0.5, 0.1, 0.01)]
    assert costs[0] == 0.0  # Nothing is ever run.
    assert np.all(np.diff(costs) > 0)
    assert costs[-1] < 2 * base.epsilon(1e-8)


def test_pure_base_and_composition():
    stopped = accounting.stop_at_threshold(accounting.pure(0.1), 0.01)
    assert 0.1 < stopped.epsilon(0) < 0.2
    p = np.array([1.0, math.exp(0.1)]) / (1 + math.exp(0.1))
    a = outputs(p, np.array([False, True]), 0.01)
    b = outputs(p[::-1], np.array([False, True]), 0.01)
    assert np.max(np.log(a[[1, 2]] / b[[1, 2]])) <= stopped.epsilon(0) + 1e-12
    far = accounting.stop_at_threshold(accounting.pure(800.0), 0.01).epsilon(0)
    assert far == pytest.approx(800.0 - math.log(0.01))
    both = accounting.compose(stopped, accounting.pure(0.1))
    assert both.epsilon(0) == pytest.approx(stopped.epsilon(0) + 0.1)
    assert both.epsilon(1e-6) <= both.epsilon(0)


def pointwise_epsilon(noise: float, halting: float, delta: float) -> float:
    """The supremum over u on 20,001 points, with the Gaussian's own h(u) = Phi(Phi^-1(u) + m)."""
    z = np.linspace(-9.0, 9.0, 20_001)
    x = halting + (1 - halting) * special.ndtr(z)
    moved = np.log((halting + (1 - halting) * special.ndtr(z + 1 / noise)) / x)

    def excess(epsilon: float) -> float:
        inside = (1 - halting) / x * gaussian_delta(epsilon - moved, noise)
        nothing = halting / x * np.maximum(-np.expm1(np.minimum(epsilon - moved, 0.0)), 0.0)
        return float(np.max(inside + nothing)) - delta

    return optimize.brentq(excess, 0.0, 60.0, xtol=1e-10)


@pytest.mark.parametrize("delta", [1e-6, 1e-9])
@pytest.mark.parametrize(
    "noise,halting",
    [
        (1000.0, 0.1),
        (100.0, 0.01),
        (10.0, 0.1),
        (2.236, 1e-6),
        (2.236, 0.9),
        (1.0, 0.1),
        (0.2, 0.1),
    ],
)
def test_the_grid_of_halting_masses_costs_nothing(noise, halting, delta):
    """800 cells of two ends each cost 0.0642 nats at noise 1000: 0.0677 for 0.0040."""
    stopped = accounting.stop_at_threshold(accounting.gaussian(noise), halting)
    best = pointwise_epsilon(noise, halting, delta)
    assert best * (1 - 1e-9) <= stopped.pair.epsilon(delta) <= best * (1 + 2e-4)


@pytest.mark.parametrize(
    "noise,halting", [(0.3, 0.01), (1.0, 0.01), (1.0, 0.5), (30.0, 0.01), (30.0, 1e-6)]
)
def test_the_points_enclose_every_set(noise, halting):
    """The largest a/X - b/X' of all sets and weights: a chord on a convex cell would cut it off."""
    reverse = accounting.gaussian(noise).pair.regridded(1e-3 if noise < 5.0 else 1e-4).forward
    u = special.ndtr(np.linspace(-9.0, 9.0, 4_001))
    x = halting + (1 - halting) * u
    # h of the same thinned law: only the lines of the cells are in question.
    moved = largest_mass(reverse.kept_at(reverse.knots(*threshold.KNOTS)), u)
    moved = halting + (1 - halting) * moved
    slopes, weights = threshold._points(reverse, halting)
    for growth in np.exp(np.linspace(-0.5, 1.5, 41) * (0.5 / noise**2 + 3.0 / noise)):
        largest = np.max(1.0 / x - growth / moved)
        found = np.max(weights - growth * slopes)
        assert largest <= found <= largest + 1e-2 * abs(largest)


@pytest.mark.parametrize("halting", [1e-300, 1e-12])
def test_a_coin_that_hardly_ever_stops(halting):
    stopped = accounting.stop_at_threshold(accounting.gaussian(2.0), halting)
    usual = accounting.stop_at_threshold(accounting.gaussian(2.0), 1e-3)
    assert stopped.epsilon(1e-6) >= usual.epsilon(1e-6)
    assert stopped.pair.forward.total_mass() == pytest.approx(1.0, abs=1e-9)


# ---- in Renyi terms (Papernot & Steinke 2022, Appendix C)


def divergences(p: np.ndarray, q: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """The larger direction's, exactly; of laws with the same outcomes."""
    kept = p > 0
    logs, others = np.log(p[kept]), np.log(q[kept])
    both = [
        special.logsumexp(orders[:, None] * a + (1 - orders[:, None]) * b, axis=1)
        for a, b in ((logs, others), (others, logs))
    ]
    return np.max(both, axis=0) / (orders - 1)


@pytest.mark.parametrize("halting", [1e-4, 0.1, 0.6, 1.0])
def test_renyi_never_below_the_exact_loop(halting):
    """Every set of small random pairs; orders below 2, where the paper's statement is false."""
    generator = np.random.default_rng(5)
    orders, published = np.array([1.01, 1.3, 1.9, 2.0, 2.1, 3.0, 8.0, 40.0, 1e3]), 0
    for _ in range(8):
        size = int(generator.integers(2, 6))
        p = generator.dirichlet(np.ones(size)) + 1e-4
        q = p * np.exp(generator.normal(0.0, 1.0, size))
        p, q = p / p.sum(), q / q.sum()
        base = RenyiCurve(lambda found, p=p, q=q: divergences(p, q, found))
        bound = threshold._stopped_curve(base, halting, None)(orders)
        assert np.all(np.diff(bound) >= -1e-12)
        for chosen in itertools.product((False, True), repeat=size):
            good = np.array(chosen)
            exact = divergences(outputs(p, good, halting), outputs(q, good, halting), orders)
            assert np.all(bound >= exact - 1e-12)
            if good.any():
                least = min(p[good].sum(), q[good].sum())
                given = divergences(p[good] / p[good].sum(), q[good] / q[good].sum(), orders)
                assert np.all(threshold.conditioned(orders, base, least) >= given - 1e-12)
                second = base(orders) + 2 / (orders - 1) * math.log(1 / least)
                second += (orders - 2) / (orders - 1) * base(np.maximum(orders - 1, 1 + 1e-9))
                published += int(np.sum(second < given - 1e-12))
    assert published > 0  # Corollary 16 (ii) as printed.


def test_renyi_is_as_tight_as_the_papers_example():
    """Appendix D.2's pair at its order: never below it, and within 30% at orders from 10 on."""
    for order, a in ((3.0, 0.05), (10.0, 0.05), (25.0, 0.05)):
        s, t = figure_8.solve_at_order(order, a, (0.5, 0.5))
        p, q = (np.exp(law) for law in figure_8.pair(a, s, t))
        given = divergences(p[:2] / p[:2].sum(), q[:2] / q[:2].sum(), np.array([order]))
        found = threshold.conditioned(np.array([order]), zcdp_curve(0.1), float(p[:2].sum()))
        assert given <= found and (order < 10 or found < 1.3 * given)


def test_renyi_of_the_loop_by_its_parts():
    """`rdp` gives it; its epsilon is above the exact profile's, a pure base's below its own."""
    loop = accounting.stop_at_threshold(accounting.gaussian(2.0), 0.1)
    assert loop.epsilon(1e-5) < loop.epsilon(1e-5, method="rdp") < 2 * loop.epsilon(1e-5)
    pure = accounting.stop_at_threshold(accounting.pure(0.5), 0.1)
    wanted = accounting.pure(pure.pure_epsilon).rdp([1.5, 4.0, 100.0])
    assert np.all(pure.rdp([1.5, 4.0, 100.0]) <= wanted)
    table = accounting.renyi_only([2.0, 4.0, 8.0, 64.0], [0.2, 0.4, 0.8, 6.4])
    found = accounting.stop_at_threshold(table, 0.1).rdp([2.0, 8.0])
    # By hand: the round's divergence at the order itself, and log 10 twice over (order - 1).
    assert found[0] <= math.log(0.1 + 0.9 * math.exp(0.2)) + 2 * math.log(10)
    with pytest.raises(ValueError, match="no Renyi curve"):
        accounting.stop_at_threshold(accounting.approximate(0.5, 1e-6), 0.1).rdp(2.0)
