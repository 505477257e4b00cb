"""Loss distributions: rounding only ever upwards, exact where it can be."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax import accounting
from dpjax.accounting.numerics.composition import composition
from dpjax.accounting.numerics.loss_distribution import (
    LossDistribution,
    LossPair,
    common_interval,
    decayed_sums,
)
from dpjax.accounting.numerics.privacy_profile import pair_from_profiles

GRID = np.linspace(-6.0, 6.0, 97)


def brute_force_delta(atoms, epsilon: float) -> float:
    """Divergence from (loss, mass) atoms."""
    return sum(max(0.0, mass * -math.expm1(epsilon - loss)) for loss, mass in atoms)


@st.composite
def small_laws(draw):
    """A law on few losses whose mirrored mass is at most 1, as a real pair's is."""
    size = draw(st.integers(1, 6))
    losses = draw(st.lists(st.integers(-30, 30), min_size=size, max_size=size, unique=True))
    weights = np.array(draw(st.lists(st.floats(0.01, 1.0), min_size=size, max_size=size)))
    infinity = draw(st.sampled_from([0.0, 1e-3, 0.2]))
    interval = draw(st.sampled_from([0.1, 0.037, 0.01]))
    masses = np.zeros(61)
    masses[np.array(losses) + 30] = weights / weights.sum() * (1 - infinity)
    law = LossDistribution(interval, -30, masses, infinity)
    scale = law.mirrored_mass()
    if scale > 1.0:
        # Move to larger losses until it is one.
        shift = math.ceil(math.log(scale) / interval)
        law = LossDistribution(interval, -30 + shift, masses, infinity)
    return law


@settings(max_examples=60, deadline=None, derandomize=True)
@given(law=small_laws(), interval=st.sampled_from([0.003, 0.05, 0.11, 0.2]))
def test_regridding_dominates_and_keeps_both_masses(law, interval):
    coarse = law.regridded(interval)
    assert coarse.total_mass() == pytest.approx(1.0, abs=1e-12)
    assert coarse.mirrored_mass() == pytest.approx(law.mirrored_mass(), rel=1e-12)
    assert np.all(coarse.delta(GRID) >= law.delta(GRID) - 1e-12)


def test_regridding_onto_a_finer_multiple_is_exact():
    law = accounting.pure(0.1).pair.forward
    fine = law.regridded(0.1 / 64)
    np.testing.assert_allclose(fine.delta(GRID), law.delta(GRID), atol=1e-15)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(law=small_laws(), delta=st.floats(1e-9, 0.99))
def test_delta_and_epsilon_are_inverse_and_exact(law, delta):
    atoms = list(zip(law.losses, law.masses))
    for epsilon in GRID[::8]:
        expected = law.infinity_mass + brute_force_delta(atoms, epsilon)
        assert float(law.delta(epsilon)) == pytest.approx(min(expected, 1.0), abs=1e-12)
    epsilon = law.epsilon(delta)
    if math.isinf(epsilon):
        assert law.infinity_mass > delta
    else:
        assert float(law.delta(epsilon)) <= delta + 1e-12
        if epsilon > 1e-9:
            assert float(law.delta(epsilon - 1e-9)) >= delta - 1e-12


@pytest.mark.parametrize(
    "guarantee",
    [
        accounting.gaussian(1.3),
        accounting.dp_sgd(0.01, 1.0, 1000),
        accounting.dp_sgd_fixed_lots(1000, 100, 2.0, 50),
        accounting.pure(0.7),
        accounting.zcdp(0.3),
        accounting.best_of(accounting.gaussian(3.0), accounting.Geometric(10.0)),
    ],
    ids=lambda g: g.provenance["mechanism"],
)
def test_masses_are_conserved_in_both_directions(guarantee):
    """Spec 3.2 (c, d): neither mass may exceed 1; the two directions are mirror images."""
    pair = guarantee.pair
    for law, mirror in ((pair.forward, pair.backward), (pair.backward, pair.forward)):
        assert law.total_mass() == pytest.approx(1.0, abs=1e-9)
        assert law.mirrored_mass() == pytest.approx(1.0 - mirror.infinity_mass, abs=1e-9)
        # H_t(P||Q) = 1 - t + t H_{1/t}(Q||P), a check of every atom at once.
        epsilons = np.linspace(-3.0, 3.0, 61)
        t = np.exp(epsilons)
        np.testing.assert_allclose(
            law.delta(epsilons), 1.0 - t + t * mirror.delta(-epsilons), atol=1e-9
        )


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    interval=st.sampled_from([0.01, 0.1]),
    drops=st.lists(st.floats(0.0, 1.0), min_size=3, max_size=40),
    other=st.lists(st.floats(0.0, 1.0), min_size=3, max_size=40),
)
def test_pairs_from_any_profiles_dominate_the_convex_profiles_below(interval, drops, other):
    """Arbitrary bounds, clipped or not convex: what lies below their hull stays below the pair."""
    bounds = []
    for values in (drops, other):
        bound = np.minimum.accumulate(np.clip(np.cumsum(-0.2 * np.array(values)) + 1.4, 0.0, 1.0))
        bounds.append(bound)
    pair = pair_from_profiles(interval, *bounds)
    for law in (pair.forward, pair.backward):
        assert law.total_mass() == pytest.approx(1.0, abs=1e-9)
        assert np.all(law.masses >= 0)
    # Randomised responses and Gaussians that obey both bounds at the knots.
    for candidate in (accounting.pure(0.3), accounting.gaussian(2.0), accounting.gaussian(0.7)):
        knots = [interval * np.arange(bound.size) for bound in bounds]
        if all(
            np.all(candidate.pair.delta(k) <= b) and candidate.pair.delta(k[-1]) <= b[-1]
            for k, b in zip(knots, bounds)
        ):
            span = np.linspace(-knots[0][-1], min(k[-1] for k in knots), 50)
            assert np.all(pair.forward.delta(span) >= candidate.pair.forward.delta(span) - 1e-9)


def lower_hull(interval: float, profile: list[float], mirror: list[float]):
    """The largest convex function of t below both halves' bounds, in 60 digits: the oracle."""
    grow = [mpmath.exp(mpmath.mpf(interval) * k) for k in range(max(len(profile), len(mirror)))]
    points = [(t, mpmath.mpf(v)) for t, v in zip(grow, profile)]
    points += [(1 / t, 1 - (1 - mpmath.mpf(v)) / t) for t, v in zip(grow, mirror)]
    points.append((mpmath.mpf(0), mpmath.mpf(1)))
    points.append((mpmath.mpf(10) ** 80, min(v for _, v in points)))  # H_t never rises.
    points.sort()
    hull: list = []
    for t, v in points:
        while hull and hull[-1][0] == t:
            if hull[-1][1] <= v:
                break
            hull.pop()
        if hull and hull[-1][0] == t:
            continue
        while len(hull) >= 2:
            (a, x), (b, y) = hull[-2], hull[-1]
            if (y - x) * (t - b) < (v - y) * (b - a):
                break
            hull.pop()
        hull.append((t, v))

    def value(epsilon: float):
        t = mpmath.exp(mpmath.mpf(epsilon))
        for (a, x), (b, y) in zip(hull, hull[1:]):
            if a <= t <= b:
                return x + (y - x) * (t - a) / (b - a)
        raise AssertionError(epsilon)

    return value


def random_profile(generator: np.random.Generator, count: int) -> np.ndarray:
    """Bounds that fall early or late, steeply or not, often clipped at 1, to 0 or not."""
    kind = generator.integers(4)
    if kind == 0:
        values = np.sort(generator.random(count))[::-1]
    elif kind == 1:
        values = 1.0 - 10.0 ** -np.sort(generator.uniform(0, 17, count))[::-1]
    elif kind == 2:
        values = 10.0 ** -np.sort(generator.uniform(0, 14, count))
    else:
        values = generator.uniform(0, 1.5) - np.cumsum(generator.random(count)) / count
    values = np.clip(values, 0.0, 1.0)
    values[: generator.integers(count)] = 1.0 if generator.random() < 0.5 else values[0]
    if generator.random() < 0.5:
        values[-1] = 0.0
    return np.minimum.accumulate(values)


def check_pair_from_profiles(generator: np.random.Generator) -> None:
    """One random pair of bounds: the pair has their hull's profile, at both signs of epsilon."""
    interval = float(10.0 ** generator.uniform(-4, 1))
    halves = [random_profile(generator, int(generator.integers(2, 12))) for _ in range(2)]
    if generator.random() < 0.3:
        halves[1] = halves[0]
    pair = pair_from_profiles(interval, *halves)
    reach = interval * max(half.size for half in halves)
    epsilons = np.append(generator.uniform(-reach, reach, 6), [0.0, interval, -interval])
    for law, mine, other in ((pair.forward, *halves), (pair.backward, *halves[::-1])):
        assert law.total_mass() == pytest.approx(1.0, abs=1e-12)
        exact = np.array([float(lower_hull(interval, mine, other)(e)) for e in epsilons])
        found = law.delta(epsilons)
        assert np.all(found >= exact - 1e-13), (interval, halves, epsilons, found, exact)
        # Not looser either, where the bounds say anything.
        if law.infinity_mass < 1.0:
            assert np.all(found <= exact + 1e-10), (interval, halves, epsilons, found, exact)


def test_pairs_from_profiles_are_their_lower_hull():
    generator = np.random.default_rng(3)
    with mpmath.workdps(60):
        for _ in range(150):
            check_pair_from_profiles(generator)


@pytest.mark.parametrize("start", [20, 36, 40, 100, 800])
def test_bounds_of_one_up_to_large_losses_keep_their_mass(start):
    """The bridge's masses, where its slope in t = e^epsilon is far below the rounding of 1."""
    forward = np.append(np.ones(30), 1.0 - 10.0 ** -np.linspace(13, 0.2, 20))
    backward = np.append(np.ones(start), np.linspace(0.9, 0.0, 20))
    pair = pair_from_profiles(1.0, forward, backward)
    for law in (pair.forward, pair.backward):
        assert law.total_mass() == pytest.approx(1.0, abs=1e-12)


def test_lost_mass_is_refused_wherever_a_distribution_is_made():
    with pytest.raises(ValueError, match="lacks 2.00e-09.*infinity_mass"):
        LossDistribution(0.1, 0, np.array([0.5, 0.5 - 2e-9]), 0.0)
    with pytest.raises(ValueError, match="lacks"):
        LossDistribution(0.1, 0, np.zeros(3), 0.9)
    kept = LossDistribution(0.1, 0, np.array([0.5, 0.5 - 2e-9]), 2e-9)
    # What one copy may lack, a thousand copies lack a thousand times over: it goes to infinity.
    rounded = LossDistribution(0.1, 0, np.array([0.5, 0.5 - 5e-10]), 0.0)
    rounded, kept = LossPair(rounded, rounded), LossPair(kept, kept)
    for many in (composition([(rounded, 1000)]), composition([(rounded, 1), (rounded, 1)])):
        assert many.forward.total_mass() == pytest.approx(1.0, abs=1e-12)
        assert many.forward.infinity_mass >= 9.9e-10
    assert composition([(kept, 1000)]).forward.infinity_mass == pytest.approx(2e-6, rel=1e-5)


def test_profile_round_trip():
    """A pair rebuilt from its own profile has the same profile (to 1e-6)."""
    for guarantee in (
        accounting.gaussian(1.1),
        accounting.best_of(accounting.gaussian(2.236), accounting.Geometric(10.0)),
        accounting.dp_sgd(0.05, 2.0, 500),
    ):
        pair = guarantee.pair
        count = pair.forward.lowest + pair.forward.masses.size
        knots = pair.interval * np.arange(count + 1)
        rebuilt = pair_from_profiles(
            pair.interval, pair.forward.delta(knots), pair.backward.delta(knots)
        )
        grid = np.linspace(0.0, 6.0, 301)
        np.testing.assert_allclose(rebuilt.delta(grid), pair.delta(grid), atol=1e-12)
        assert rebuilt.epsilon(1e-6) == pytest.approx(pair.epsilon(1e-6), abs=1e-9)


def test_a_profile_clipped_at_one_needs_the_bridge():
    """Bounds that say nothing near epsilon 0 still make a distribution of mass 1."""
    profile = np.array([1.0, 1.0, 1.0, 0.2, 0.05, 0.0])
    pair = pair_from_profiles(0.5, profile)
    assert pair.forward.total_mass() == pytest.approx(1.0, abs=1e-12)
    assert pair.forward.mirrored_mass() == pytest.approx(1.0, abs=1e-12)
    assert np.all(pair.delta(0.5 * np.arange(6)) <= profile + 1e-12)
    # Anything below the profile and convex is below the pair: pure(2) is.
    weak = accounting.pure(1.0)
    assert np.all(pair.delta(np.linspace(0, 3, 40)) >= 0.0)
    assert float(weak.pair.delta(1.6)) <= float(pair.delta(1.6))


def test_common_interval():
    def pair(interval: float, size: int) -> LossPair:
        law = LossDistribution(interval, 0, np.full(size, 1.0 / size), 0.0)
        return LossPair(law, law)

    assert common_interval([pair(1e-3, 50), pair(1e-4, 50)]) == 1e-4
    assert common_interval([pair(0.1, 3), pair(0.1, 3)]) == 0.1
    assert common_interval([pair(0.0646, 3), pair(0.1, 3)]) == 1e-4
    assert common_interval([pair(1.0, 3000), pair(math.pi, 3000)]) > 1e-3


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 99, 10_007])
def test_decayed_sums_are_those_of_the_recurrence(size):
    values = np.random.default_rng(size).random(size)
    for decay in (0.0, 0.3, 0.99, math.exp(-1e-4), 1.0):
        expected, following = [], 0.0
        for value in values[::-1].tolist():
            following = value + decay * following
            expected.append(following)
        np.testing.assert_allclose(decayed_sums(values, decay), expected[::-1], rtol=1e-12)
