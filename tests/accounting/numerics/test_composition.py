"""Composition: never below the exact law of the sum, at any delta, and hardly above it."""

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from dpjax import accounting
from dpjax.accounting import provenance
from dpjax.accounting.numerics import composition as composition_module
from dpjax.accounting.numerics.composition import composition
from dpjax.accounting.numerics.loss_distribution import LossDistribution, LossPair

MNIST = (256 / 60000, 1.1, 14062)


def random_pair(generator: np.random.Generator, interval: float) -> LossPair:
    """A real pair on few grid losses, with outcomes impossible on either side."""
    size = int(generator.integers(2, 7))
    losses = generator.choice(np.arange(-20, 21), size, replace=False)
    losses[0], losses[1] = -abs(losses[0]) - 1, abs(losses[1]) + 1
    p = generator.dirichlet(np.full(size, 0.5)) * (1.0 - generator.choice([0.0, 1e-3]))
    q = p * np.exp(-losses * interval)
    scale = max(1.0, q.sum())
    p, q = p / scale, q / scale
    laws = []
    for masses, places in ((p, losses), (q, -losses)):
        grid = np.zeros(43)
        np.add.at(grid, places + 21, masses)
        laws.append(LossDistribution(interval, -21, grid, max(0.0, 1.0 - math.fsum(masses))))
    return LossPair(*laws)


def exact_sum(parts: list[tuple[LossDistribution, int]]) -> LossDistribution:
    """The law of the sum by direct convolution of non-negative numbers."""
    lowest, masses, finite = 0, np.ones(1), 1.0
    for law, count in parts:
        for _ in range(count):
            masses = np.convolve(masses, law.masses)
            lowest += law.lowest
            finite *= 1.0 - law.infinity_mass
    return LossDistribution(parts[0][0].interval, lowest, masses, 1.0 - finite)


@pytest.mark.parametrize("seed", range(30))
def test_never_below_the_law_of_the_sum_and_equal_to_it(seed):
    generator = np.random.default_rng(seed)
    interval = float(generator.choice([0.3, 0.03, 0.002]))
    parts = [
        (random_pair(generator, interval), int(generator.choice([1, 2, 7, 40])))
        for _ in range(generator.integers(1, 4))
    ]
    found = composition(parts)
    for side in ("forward", "backward"):
        exact = exact_sum([(getattr(pair, side), count) for pair, count in parts])
        reach = interval * (exact.masses.size + exact.lowest)
        epsilons = np.append(np.linspace(-2.0, max(reach, 1.0), 400), exact.losses[::7])
        bound, truth = getattr(found, side).delta(epsilons), exact.delta(epsilons)
        assert np.all(bound >= truth * (1.0 - 1e-12) - 1e-15)
        assert np.all(bound <= truth * (1.0 + 1e-9) + 2e-13)
        # In the tail too, where a plain transform leaves 1e-16 everywhere.
        tail = (truth - exact.infinity_mass > 1e-19) & (epsilons > 0.0) & (truth < 1e-3)
        assert np.all(bound[tail] <= truth[tail] * (1.0 + 1e-6) + 5e-20)
    for law in (found.forward, found.backward):
        assert law.total_mass() == pytest.approx(1.0, abs=1e-12)
        assert law.mirrored_mass() <= 1.0 + 1e-12


@pytest.mark.parametrize("count", [50, 3_000, 40_000])
def test_randomised_responses_down_to_1e_18(count):
    """The binomial law of the loss, in 40 digits; a plain transform errs by 1e-16 a copy."""
    epsilon = 0.02
    pair = composition([(accounting.pure(epsilon).pair, count)])
    hit = 1.0 / (1.0 + math.exp(-epsilon))
    for level in (1e-3, 1e-9, 1e-13, 1e-18):
        found = pair.epsilon(level)
        with mpmath.workdps(40):
            order = mpmath.mpf(found)
            centre = int(stats.binom.isf(level, count, hit)) if level > 1e-300 else 0
            first = max(0, math.ceil((found / epsilon + count) / 2))
            last = min(count, max(first, centre) + 40 + 12 * math.isqrt(count))
            log_hit, log_miss = mpmath.log(mpmath.mpf(hit)), mpmath.log(1 - mpmath.mpf(hit))
            total = mpmath.mpf(0)
            mass = mpmath.exp(
                mpmath.loggamma(count + 1)
                - mpmath.loggamma(first + 1)
                - mpmath.loggamma(count - first + 1)
                + first * log_hit
                + (count - first) * log_miss
            )
            odds = mpmath.mpf(hit) / (1 - mpmath.mpf(hit))
            for k in range(first, last + 1):
                total += mass * max(0, 1 - mpmath.exp(order - epsilon * (2 * k - count)))
                mass *= odds * (count - k) / (k + 1)
        # epsilon(level) is where the bound crosses the level: the truth is just below it there.
        assert total <= level * (1 + 1e-9)
        assert total >= level * (1 - 1e-4) - 5e-20


@pytest.mark.parametrize("noise,count", [(30.0, 1000), (3e3, 10**7), (1e5, 10**9)])
def test_gaussians_in_any_number_equal_one(noise, count):
    """Where one grid does not hold all copies they are composed in stages."""
    together = accounting.gaussian(noise, steps=count)
    apart = accounting.repeat(accounting.gaussian(noise), count)
    for delta in (1e-3, 1e-6, 1e-10, 1e-15):
        exact = together.pair.epsilon(delta)
        assert exact - 1e-6 <= apart.pair.epsilon(delta) <= exact * (1.0 + 2e-3) + 1e-6


@pytest.mark.parametrize("count", [16, 997, 10**6 + 3, 10**9, 2**40 + 1])
def test_stages_hold_every_copy_and_hardly_more(count):
    stages, block = composition_module._stages(count)
    assert count <= stages * block <= count * (1 + 1e-3) + block


def test_no_cliff_at_small_deltas():
    """Rounding was infinite mass: 14,062 steps had no finite epsilon at 1e-12 but Renyi's."""
    run = accounting.dp_sgd(*MNIST)
    assert run.pair.forward.infinity_mass < 1e-18
    found = [run.epsilon(delta) for delta in (1e-5, 1e-9, 1e-10, 1e-12)]
    # Richardson's limit of ever finer grids at 1e-5: 2.38158.
    assert 2.38158 < found[0] < 2.38158 * 1.001
    assert found[1:] == pytest.approx([3.5006, 3.7363, 4.1750], abs=1e-3)
    million = accounting.dp_sgd(1e-3, 2.0, 1_000_000)
    assert million.epsilon(1e-9) < 3.125
    assert million.epsilon(1e-12) < million.epsilon(1e-12, "rdp") - 0.1


def test_float64_does_where_long_double_is_no_longer(monkeypatch):
    wide = accounting.dp_sgd(*MNIST).pair
    monkeypatch.setattr(composition_module, "_widest", lambda: (np.float64, 2.0**-53))
    narrow = accounting.dp_sgd(*MNIST).pair
    for delta in (1e-5, 1e-9, 1e-12, 1e-15):
        difference = narrow.epsilon(delta) - wide.epsilon(delta)
        assert -1e-9 <= difference <= 1e-6


@pytest.mark.parametrize("rare", [1e-5, 1e-9])
def test_rare_large_losses_among_tiny_ones(rare):
    """Two modes, a convex rate between them: 64 small losses, or one of them that shows it all."""
    p = np.zeros(401)
    p[[199, 201, 400]] = 0.4975, 0.5025, rare
    p /= p.sum()
    losses = 0.01 * np.arange(-200, 201)
    q = p * np.exp(-losses)
    # What D' leaves is an outcome impossible under D.
    forward = LossDistribution(0.01, -200, p, 0.0)
    backward = LossDistribution(0.01, -200, q[::-1].copy(), max(0.0, 1.0 - q.sum()))
    found = composition([(LossPair(forward, backward), 64)]).forward
    exact = forward
    for _ in range(6):
        exact = LossDistribution(
            0.01, 2 * exact.lowest, np.convolve(exact.masses, exact.masses), 0.0
        )
    for epsilon in (0.0, 0.2, 0.6, 1.0, 1.5, 1.9):
        truth = float(exact.delta(epsilon))
        assert truth * (1 - 1e-12) <= float(found.delta(epsilon)) <= truth * (1 + 1e-4) + 5e-20


def test_adding_a_mechanism_never_costs_less():
    generator = np.random.default_rng(5)
    epsilons = np.linspace(0.0, 4.0, 41)
    parts = [accounting.dp_sgd(0.02, 1.1, 200), accounting.pure(0.3), accounting.zcdp(0.02)]
    parts.append(accounting.best_of(accounting.gaussian(4.0), accounting.Geometric(5.0)))
    for _ in range(6):
        chosen = [parts[i] for i in generator.integers(0, len(parts), 3)]
        whole = accounting.compose(*chosen).pair.delta(epsilons)
        for part in chosen:
            assert np.all(whole >= part.pair.delta(epsilons) - 1e-12)


def test_composing_with_a_mechanism_that_reveals_everything():
    law = LossDistribution(1e-4, 0, np.zeros(1), 1.0)
    open_book = accounting.Guarantee(
        relation="add_or_remove_one",
        provenance=provenance.node("test", {}),
        pair=LossPair(law, law),
    )
    for composed in (
        accounting.compose(open_book, accounting.gaussian(1.0)),
        accounting.compose(accounting.gaussian(1.0), open_book),
        accounting.repeat(open_book, 3),
        accounting.best_of(open_book, accounting.Fixed(3)),
        accounting.best_of(open_book, accounting.Geometric(3.0)),
    ):
        assert composed.epsilon(0.5) == math.inf
        assert composed.delta(10.0) == 1.0
