"""No bound on a selection may fall below the truth: exact best-of-K divergences on small pairs.

For every total order of the outcomes of a random discrete pair the winner's law is known exactly,
A(y) = f(Q(<= y)) - f(Q(< y)), so its hockey-stick and Renyi divergences are too.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax import accounting
from dpjax.accounting import provenance
from dpjax.accounting.numerics.loss_distribution import LossDistribution, LossPair
from dpjax.accounting.numerics.privacy_profile import pair_from_profiles
from dpjax.accounting.numerics.renyi import RenyiCurve
from dpjax.accounting.numerics.tradeoff import right_slopes, tradeoff_vertices
from dpjax.accounting.selection.envelope import selected_profiles
from dpjax.accounting.selection.exact import Cells
from dpjax.accounting.selection.laws import families

LAWS = [
    accounting.Fixed(2),
    accounting.Fixed(5),
    accounting.Logarithmic(4.0),
    accounting.Geometric(3.0),
    accounting.Geometric(40.0),
    accounting.TruncatedNegativeBinomial(-0.5, 6.0),
    accounting.TruncatedNegativeBinomial(-0.95, 1.5),
    accounting.TruncatedNegativeBinomial(2.5, 7.0),
    accounting.Poisson(0.5),
    accounting.Poisson(6.0),
    accounting.Binomial(8, 0.4),
    accounting.Binomial(3, 0.1),
    accounting.AtMost(accounting.Geometric(5.0), 6),
    accounting.AtMost(accounting.Poisson(2.0), 3),
    accounting.Tabulated([1, 100], [0.9, 0.1]),
    accounting.Tabulated([0, 2, 7], [0.3, 0.5, 0.2]),
    accounting.AtMost(accounting.Tabulated([1, 5, 300], [0.5, 0.2, 0.3]), 20),
]
# A family that is new to the registry is held against the truth without a line here.
LAWS += [
    family.of_mean(4.0)
    for name, family in families().items()
    if hasattr(family, "of_mean") and not any(law.family == name for law in LAWS)
]
INTERVAL = 1e-3
GRID = np.array([0.0, 0.01, 0.1, 0.3, 0.7, 1.3, 2.5, 4.0, 7.0])


def pair_of(p: np.ndarray, q: np.ndarray) -> LossPair:
    """The pair of two probability vectors, its losses split onto the grid."""
    laws = []
    for first, second in ((p, q), (q, p)):
        finite = (first > 0) & (second > 0)
        losses = np.log(first[finite] / second[finite])
        masses = first[finite]
        infinity = float(first[(first > 0) & (second == 0)].sum())
        below = np.floor(losses / INTERVAL).astype(int)
        lowest = int(below.min(initial=0))
        grid = np.zeros(int(below.max(initial=0)) - lowest + 2)
        excess = losses - below * INTERVAL
        up = masses * np.expm1(-excess) / math.expm1(-INTERVAL)
        np.add.at(grid, below - lowest, masses - up)
        np.add.at(grid, below - lowest + 1, up)
        laws.append(LossDistribution(INTERVAL, lowest, np.maximum(grid, 0.0), infinity))
    return LossPair(*laws)


def renyi_of(p: np.ndarray, q: np.ndarray) -> RenyiCurve:
    """Exact Renyi curve, the larger direction."""

    def evaluate(orders: np.ndarray) -> np.ndarray:
        values = []
        for first, second in ((p, q), (q, p)):
            if np.any((first > 0) & (second == 0)):
                return np.full(orders.shape, np.inf)
            held = first > 0
            a = orders[:, None]
            logs = a * np.log(first[held]) + (1 - a) * np.log(second[held])
            values.append(np.logaddexp.reduce(logs, axis=1) / (orders - 1))
        return np.maximum(*values)

    return RenyiCurve(evaluate)


def guarantee_of(p: np.ndarray, q: np.ndarray) -> accounting.Guarantee:
    return accounting.Guarantee(
        relation="replace_one",
        provenance=provenance.node("test", {}),
        pair=pair_of(p, q),
        renyi=renyi_of(p, q),
    )


def winner(law, p: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    """Law of the best of K under a total order (last is best), K = 0 in front."""
    cumulative = np.append(0.0, np.cumsum(p[list(order)]))
    cumulative[-1] = 1.0
    masses = np.diff(law.generating_function(cumulative))
    # Sums a rounding above 1 would leave an outcome less than no mass, which counts e^35 times.
    return np.append(law.pmf(0), np.maximum(masses, 0.0))


def worst_divergence(law, p: np.ndarray, q: np.ndarray, epsilons: np.ndarray) -> np.ndarray:
    """Largest hockey-stick divergence over all orders and both directions, (epsilons,)."""
    worst = np.zeros(epsilons.shape)
    growth = np.exp(epsilons)[:, None]
    for order in itertools.permutations(range(p.size)):
        a, b = winner(law, p, order), winner(law, q, order)
        for first, second in ((a, b), (b, a)):
            found = np.maximum(first - growth * second, 0.0).sum(axis=1)
            worst = np.maximum(worst, found)
    return worst


def worst_renyi(law, p: np.ndarray, q: np.ndarray, order_of_divergence: float) -> float:
    worst = 0.0
    a = order_of_divergence
    for order in itertools.permutations(range(p.size)):
        laws = (winner(law, p, order), winner(law, q, order))
        for first, second in (laws, laws[::-1]):
            held = first > 0
            if np.any(second[held] <= 0):
                return math.inf
            logs = a * np.log(first[held]) + (1 - a) * np.log(second[held])
            worst = max(worst, float(np.logaddexp.reduce(logs)) / (a - 1))
    return worst


@st.composite
def pairs(draw, zeros: bool = True):
    """Two probability vectors on 2 to 5 outcomes, some impossible under one of them."""
    size = draw(st.integers(2, 5))
    weight = st.floats(1e-6, 1.0)
    p = np.array(draw(st.lists(weight, min_size=size, max_size=size)))
    tilt = np.array(draw(st.lists(st.floats(-2.0, 2.0), min_size=size, max_size=size)))
    q = p * np.exp(tilt)
    if zeros:
        hidden = draw(st.lists(st.sampled_from(["both", "p", "q"]), min_size=size, max_size=size))
        rare = np.array([draw(st.booleans()) for _ in range(size)])
        p = np.where((np.array(hidden) == "q") & rare & (p < 0.01), 0.0, p)
        q = np.where((np.array(hidden) == "p") & rare & (q < 0.01), 0.0, q)
    if p.sum() == 0 or q.sum() == 0 or not np.any((p > 0) & (q > 0)):
        p = q = np.ones(size)
    return p / p.sum(), q / q.sum()


@pytest.mark.parametrize("law", LAWS, ids=repr)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(pair=pairs())
def test_envelope_never_falls_below_the_exact_divergence(law, pair):
    p, q = pair
    exact = worst_divergence(law, p, q, GRID)
    interval, profiles = selected_profiles(pair_of(p, q), law)
    selected = pair_from_profiles(interval, *profiles)
    bound = selected.delta(GRID)
    assert np.all(bound >= exact * (1 - 1e-9) - 1e-12), (bound, exact)
    # Negative epsilons too, which composition needs: both directions at once.
    growth = np.exp(-GRID)[:, None]
    for order in itertools.permutations(range(p.size)):
        a, b = winner(law, p, order), winner(law, q, order)
        held = np.maximum(a - growth * b, 0.0).sum(axis=1)
        assert np.all(selected.forward.delta(-GRID) >= held - 1e-9)


def split_order(law, p: np.ndarray, q: np.ndarray, epsilon: float, copies: int = 30) -> float:
    """Exact divergence of an order that ranks the copies of every outcome as is worst.

    An outcome's copies are told apart by independent randomness, so the pair is as private as it
    was. Next in rank comes the most revealing copy of those left, in the event, or the least.
    """
    ratio = np.where(p > 0, q / np.maximum(p, 1e-300), np.inf)
    order = np.repeat(np.argsort(ratio), copies)
    m, g = (np.append(0.0, np.cumsum(masses[order] / copies)) for masses in (p, q))
    n, h = (np.append(0.0, np.cumsum(masses[order[::-1]] / copies)) for masses in (p, q))
    value, best = np.zeros(m.size), 0.0

    def rate(y):
        return law.derivative(np.minimum(y, 1.0))

    for k in range(m.size - 1):
        # From below, without differences of the generating function, which lose their digits.
        earned = (m[k + 1] - m[k]) * rate(n + 0.5 * (m[k] + m[k + 1]))
        lost = 0.5 * (g[k + 1] - g[k]) * (rate(h + g[k]) + rate(h + g[k + 1]))
        room = n + m[k + 1] <= 1.0 + 1e-12
        value = np.maximum.accumulate(value)
        value = np.where(room, value + earned - math.exp(epsilon) * lost, -np.inf)
        best = max(best, float(value.max()))
    return best


@pytest.mark.parametrize("law", LAWS + [accounting.Poisson(40.0), accounting.Fixed(30)], ids=repr)
@settings(max_examples=3, deadline=None, derandomize=True)
@given(pair=pairs(), place=st.integers(0, 11))
def test_exact_bound_never_falls_below_the_exact_divergence(law, pair, place):
    p, q = pair
    losses = pair_of(p, q)
    grid = np.append(GRID, [12.0, 20.0, 35.0])
    bounds = [
        Cells(losses.forward, losses.backward, law).profile(grid),
        Cells(losses.backward, losses.forward, law).profile(grid),
    ]
    exact = worst_divergence(law, p, q, grid)
    assert np.all(np.maximum(*bounds) >= exact * (1 - 1e-9) - 1e-12)
    # Outcomes may be split: these orders come as close to the bound as they are fine.
    for bound, first, second in ((bounds[0], p, q), (bounds[1], q, p)):
        reached = split_order(law, first, second, grid[place])
        assert bound[place] >= reached * (1 - 1e-9) - 1e-12


@pytest.mark.parametrize("law", LAWS, ids=repr)
@settings(max_examples=10, deadline=None, derandomize=True)
@given(pair=pairs(zeros=False), a=st.floats(1.05, 12.0))
def test_renyi_theorems_never_fall_below_the_exact_divergence(law, pair, a):
    p, q = pair
    bound = accounting.best_of(guarantee_of(p, q), law, method="rdp").rdp([a])[0]
    assert bound >= worst_renyi(law, p, q, a) - 1e-9


@pytest.mark.parametrize("law", LAWS, ids=repr)
@pytest.mark.parametrize("epsilon", [0.02, 0.3, 1.5])
def test_pure_bound_covers_randomised_response_and_its_refinements(law, epsilon):
    claimed = accounting.best_of(accounting.pure(epsilon), law).epsilon(0)
    generator = np.random.default_rng(5)
    pairs_ = [np.array([[1.0, math.exp(epsilon)], [math.exp(epsilon), 1.0]])]
    for _ in range(30):
        # Extreme points of the epsilon-DP pairs: every ratio is e^epsilon or e^-epsilon.
        q = generator.dirichlet(np.ones(4))
        high = generator.random(4) < 0.5
        share = q[high].sum()
        if 0 < share < 1:
            # Rescale so that both vectors are distributions.
            q = np.where(high, q / share / (1 + math.exp(epsilon)), q)
            q = np.where(high, q, q / (1 - share) * math.exp(epsilon) / (1 + math.exp(epsilon)))
            p = np.where(high, q * math.exp(epsilon), q * math.exp(-epsilon))
            pairs_.append(np.array([p, q]))
    for p, q in pairs_:
        p, q = p / p.sum(), q / q.sum()
        assert worst_divergence(law, p, q, np.array([claimed]))[0] <= 1e-12


@pytest.mark.parametrize("law", [law for law in LAWS if not isinstance(law, accounting.AtMost)])
def test_failure_mass_is_multiplied_by_the_selection(law):
    """A base that reveals all with probability d, the revealing outcomes ranked anywhere."""
    d, epsilon = 1e-3, 0.8
    high = math.exp(epsilon) / (1 + math.exp(epsilon))
    p = np.array([d, 0.0, (1 - d) * high, (1 - d) * (1 - high)])
    q = np.array([0.0, d, (1 - d) * (1 - high), (1 - d) * high])
    exact = worst_divergence(law, p, q, GRID)
    assert exact[-1] > d * min(1.0, law.mean) * 0.5
    base = accounting.Guarantee(
        relation="replace_one",
        provenance=provenance.node("test", {}),
        pair=accounting.pure(epsilon).pair.with_failure(d),
        renyi=RenyiCurve(accounting.pure(epsilon).renyi.evaluate, d),
    )
    for method in ("tight", "envelope", "rdp"):
        selected = accounting.best_of(base, law, method=method)
        claimed = np.array([selected.delta(e) for e in GRID])
        assert np.all(claimed >= exact - 1e-12), method
    # Useful, too: at a delta above the failures' share a finite epsilon remains, by Renyi alone.
    failed = float(law.success_probability(d))
    assert math.isfinite(accounting.best_of(base, law).epsilon(min(0.9, failed * 1.5), "rdp"))


@pytest.mark.parametrize("law", [accounting.Poisson(10.0), accounting.Binomial(20, 0.5)])
def test_a_part_without_failures_is_not_conditioned_on_one(law):
    """Theorem 6 and Lemma 7 on `parallel`, where only the harmless part can fail."""
    failing = accounting.dp_sgd(1.0, 50.0, 1, failure_probability=0.05)
    safe = accounting.gaussian(2.236)
    orders = np.array([1.5, 2.0, 5.0, 20.0])
    whole = accounting.best_of(accounting.parallel(failing, safe), law, "rdp").renyi
    # Given that no run failed, K is thinned and the part without failures is as it was.
    alone = accounting.best_of(safe, law.thinned(0.05), "rdp").renyi
    assert np.all(whole.evaluate(orders) >= alone.evaluate(orders) * (1 - 1e-9))


def test_slopes_of_the_trade_off_survive_atoms_lighter_than_rounding():
    masses = np.zeros(101)
    masses[[60, 50, 40]] = 0.6, 3e-17, 0.3  # losses 1, 0 and -1
    law = LossDistribution(0.1, -50, masses, 0.1)
    corners, _ = tradeoff_vertices(law)
    slopes = right_slopes(law, np.append(corners, 0.5 * corners[1]))
    # The line from the first atom's end must lie above what the last one still adds.
    assert slopes[0] == slopes[-1] == pytest.approx(math.e)
    assert slopes[1] >= math.exp(-1.0)
    assert slopes[-2] == 0.0
