"""Balls in bins: an epoch's price against integrals, exact moments, fractions, simulation."""

import functools
import itertools
import math
import pathlib
from fractions import Fraction

import numpy as np
import pytest
from scipy import special

from dpjax import accounting
from dpjax.accounting.numerics import ratio_means
from dpjax.accounting.numerics.loss_distribution import LossDistribution, LossPair

EPSILONS = (0.0, 0.1, 0.5, 1.0, 2.0, 3.0)
NODES = 1501


def run(noise, steps, epochs=1, **own):
    return accounting.dp_sgd_balls_in_bins(noise, steps, epochs, **own)


# One epoch, exactly -------------------------------------------------------------------------------


def call(strike, noise):
    """E max(u - strike, 0) for one log-normal ratio u of mean 1, in closed form."""
    above = np.log(np.maximum(strike, 1e-300)) * noise
    inside = special.ndtr(0.5 / noise - above) - strike * special.ndtr(-0.5 / noise - above)
    return np.where(strike > 0.0, inside, 1.0 - strike)


def excess(noise, steps, tau):
    """E max(mean of `steps` ratios - tau, 0): all but one by the trapezoidal rule."""
    z, width = np.linspace(-9.0, 9.0 + 1.0 / noise, NODES, retstep=True)
    weights = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) * width
    ratios = np.exp(z / noise - 0.5 / noise**2)
    total = 0.0
    for chosen in itertools.product(range(NODES), repeat=steps - 2):
        others = ratios[list(chosen)].sum()
        weight = weights[list(chosen)].prod()
        total += weight * float(weights @ call(steps * tau - ratios - others, noise))
    return total / steps


@pytest.mark.parametrize("noise, steps", [(1.0, 2), (0.5, 2), (2.5, 2), (1.0, 3), (0.6, 3)])
def test_both_directions_are_above_integrals_and_hardly(noise, steps):
    pair = run(noise, steps).pair
    for epsilon in EPSILONS if steps == 2 else EPSILONS[1::2]:
        t = math.exp(epsilon)
        removed = excess(noise, steps, t)
        # max(1 - t R, 0) = 1 - t R + t max(R - 1/t, 0)
        added = 1.0 - t + t * excess(noise, steps, 1.0 / t)
        for law, exact in ((pair.forward, removed), (pair.backward, added)):
            found = float(law.delta(epsilon))
            assert exact - 1e-11 <= found
            if exact > 1e-6:
                assert found <= exact * 1.001


@pytest.mark.parametrize("noise", [0.3, 1.0, 7.0])
def test_one_step_an_epoch_is_the_gaussian(noise):
    exact = accounting.gaussian(noise, steps=5)
    assert run(noise, 1, 5).epsilon(1e-6) == exact.epsilon(1e-6)
    assert run(0.04, 1000, 5).epsilon(1e-6) == accounting.gaussian(0.04, steps=5).epsilon(1e-6)
    # The grid of ratios, too, which starts from it.
    assert exact.epsilon(1e-6) > run(noise, 2, 5).epsilon(1e-6)


def moments(noise, steps, top):
    """log E (mean of ratios)^a for a = 0, ..., top: sums over compositions of a, exact.

    The sum's moment over a! is a coefficient of the power of sum_k E[u^k] z^k / k!.
    """
    k = np.arange(top + 1)
    power = k * (k - 1) / (2 * noise * noise) - special.gammaln(k + 1)

    def product(a, b):
        return np.array([np.logaddexp.reduce(a[: i + 1] + b[i::-1]) for i in k])

    total, left = np.where(k == 0, 0.0, -np.inf), steps
    while left:
        if left & 1:
            total = product(total, power)
        power, left = product(power, power), left >> 1
    return total + special.gammaln(k + 1) - k * math.log(steps)


@pytest.mark.parametrize(
    "noise, steps, orders",
    [
        (1.0, 2, (2, 3, 4, 8)),
        (1.0, 3, (2, 3, 8)),
        (1.0, 1000, (2, 4, 8)),
        (0.5, 200, (2, 3, 4)),
        (4.0, 977, (2, 3, 8, 32, 64)),
        (30.0, 100, (2, 3, 64)),
    ],
)
def test_renyi_divergences_of_removing_are_the_sums_over_compositions(noise, steps, orders):
    """Within 0.1%, and not below; higher orders than these see the cut at 1e-25."""
    exact = moments(noise, steps, max(orders))
    found = run(noise, steps).renyi(np.array(orders, float))
    for order, own in zip(orders, found):
        assert exact[order] / (order - 1) <= own <= 1.001 * exact[order] / (order - 1)


def test_moments_of_the_oracle_are_those_of_all_compositions():
    noise, steps = 0.8, 3
    for order in (2, 3, 4):
        every = itertools.product(range(steps), repeat=order)
        total = sum(
            math.exp(sum(n * (n - 1) for n in np.bincount(one)) / (2 * noise**2)) for one in every
        )
        assert moments(noise, steps, 4)[order] == pytest.approx(math.log(total / steps**order))


@pytest.mark.parametrize("noise, steps", [(0.8, 50), (2.0, 90), (0.5, 37)])
def test_simulations_agree_in_both_directions(noise, steps):
    """200,000 draws, 5 standard errors: wrong with probability 1e-5."""
    generator, number = np.random.default_rng(7), 200_000
    ratios = np.empty(number)
    for start in range(0, number, 20_000):
        z = generator.normal(size=(20_000, steps))
        z[:, 0] += 1.0 / noise
        ratios[start : start + 20_000] = np.exp(z / noise - 0.5 / noise**2).mean(axis=1)
    pair = run(noise, steps).pair
    # Means under Q are means under P of 1/R times the same.
    for epsilon in (0.0, 0.2, 0.5, 1.0):
        t = math.exp(epsilon)
        for law, each in (
            (pair.forward, np.maximum(1.0 - t / ratios, 0.0)),
            (pair.backward, np.maximum(1.0 - t * ratios, 0.0) / ratios),
        ):
            found, error = float(law.delta(epsilon)), each.std() / math.sqrt(number)
            assert each.mean() - 5 * error <= found <= 1.005 * each.mean() + 5 * error + 1e-9


# The arithmetic of means --------------------------------------------------------------------------


def small_law():
    """Four ratios, R = 0 and R = infinity, whose masses are exact in float64."""
    interval, at_zero = 0.5, 2.0**-12  # A large mass at 0 would be spread far.
    masses = np.array([0.375 - at_zero, 0.25, 0.125, 0.25])
    under_p = float(masses @ np.exp(interval * np.arange(-2, 2)))
    return ratio_means.RatioLaw(interval, -2, masses, at_zero, 1.0 - under_p)


@pytest.mark.parametrize("count", [2, 3, 5, 6])
def test_means_of_a_small_law_are_above_those_of_all_outcomes(count):
    """In fractions, every outcome of `count` ratios: both directions, at many t."""
    law = small_law()
    points = [(Fraction(math.exp(x)), Fraction(float(q))) for x, q in zip(law.losses, law.masses)]
    points.append((Fraction(0), Fraction(law.at_zero)))
    sums = {Fraction(0): Fraction(1)}
    for _ in range(count):
        following = {}
        for (total, one), (ratio, mass) in itertools.product(sums.items(), points):
            following[total + ratio] = following.get(total + ratio, 0) + one * mass
        sums = following
    found = ratio_means.mean_of(law, count)
    pair = found.pair()
    for epsilon in np.linspace(-2.0, 2.0, 41):
        t = Fraction(math.exp(epsilon))
        removed = sum(max(r / count - t, 0) * q for r, q in sums.items()) + Fraction(
            law.at_infinity
        )
        added = sum(max(1 - t * r / count, 0) * q for r, q in sums.items())
        for own, exact in ((pair.forward, removed), (pair.backward, added)):
            value = own.infinity_mass + float(
                own.masses @ np.maximum(1.0 - np.exp(epsilon - own.losses), 0.0)
            )
            assert float(exact) * (1.0 - 1e-14) <= value <= float(exact) * 1.01 + 2e-3


def test_means_keep_both_masses_and_only_round_up():
    for count in (2, 3, 7, 64, 1000):
        law = ratio_means.mean_of(small_law(), count)
        under_q = law.total
        under_p = float(law.under_p.sum()) + law.at_infinity
        for mass, exact in (
            (under_q, 1.0),
            (under_p, 1.0),
        ):
            assert exact * (1.0 - 1e-15) <= mass <= exact * (1.0 + 1e-10 * count)
        assert law.at_zero < 2.0**-11


def test_a_law_is_read_off_either_direction_of_a_symmetric_pair():
    q = 1.0 / (1.0 + math.exp(0.5))
    masses = np.array([q, 0.0, 1.0 - q])  # Randomised response of epsilon 0.5.
    loss = LossDistribution(0.5, -1, masses, 0.0)
    law = ratio_means.law_of_symmetric(LossPair(loss, loss))
    assert law.losses == pytest.approx([-0.5, 0.0, 0.5])
    assert law.masses == pytest.approx([1.0 - q, 0.0, q]) and law.under_p == pytest.approx(masses)


# What a run costs ---------------------------------------------------------------------------------

AUTHORS = {
    (1.0, 2, 1): (3.6556, 3.7368),
    (0.6, 235, 1): (2.6076, 2.6337),
    (0.7, 59, 10): (5.5078, 5.5913),
}
"""Lower and upper bounds at delta 1e-5 of PLD_accounting 2.0, by Feldman & Shenfeld."""


@pytest.mark.parametrize("noise, steps, epochs", AUTHORS)
def test_prices_lie_between_the_bounds_of_the_authors(noise, steps, epochs):
    low, high = AUTHORS[noise, steps, epochs]
    assert low <= run(noise, steps, epochs).epsilon(1e-5) <= high


@functools.cache
def priced(noise, steps, epochs, delta=1e-5):
    return run(noise, steps, epochs).epsilon(delta)


@pytest.mark.parametrize("noise, steps, epochs", [(0.7, 59, 10), (1.1, 235, 60), (4.0, 12, 300)])
def test_it_costs_a_little_less_than_poisson_lots(noise, steps, epochs):
    poisson = accounting.dp_sgd(1.0 / steps, noise, steps * epochs).epsilon(1e-5)
    assert 0.9 * poisson < priced(noise, steps, epochs) < 0.995 * poisson


def test_at_a_large_delta_it_costs_more():
    """Poisson lots may leave a record out: neither dominates."""
    assert accounting.dp_sgd(0.2, 0.7, 5).epsilon(0.3) == 0.0 < priced(0.7, 5, 1, 0.3)
    assert accounting.dp_sgd(0.2, 0.7, 5).epsilon(0.01) > priced(0.7, 5, 1, 0.01)


def test_more_noise_more_steps_and_fewer_epochs_cost_less():
    by_noise = [priced(noise, 40, 5) for noise in (0.6, 0.8, 1.2, 3.0, 30.0, 300.0)]
    assert by_noise == sorted(by_noise, reverse=True) and by_noise[-1] < 0.01
    by_steps = [priced(1.0, steps, 5) for steps in (1, 2, 3, 5, 8, 100, 101)]
    assert by_steps == sorted(by_steps, reverse=True)
    by_epochs = [priced(1.0, 40, epochs) for epochs in (1, 2, 5, 30)]
    assert by_epochs == sorted(by_epochs)


def test_an_assignment_that_is_kept_costs_more():
    """One epoch with noise s / sqrt(E), as jax-privacy simulates what its sampling costs."""
    from jax_privacy import batch_selection
    from jax_privacy.experimental.monte_carlo import sample_generation

    assert priced(1.0 / math.sqrt(5), 40, 1) > 1.5 * priced(1.0, 40, 5)
    noise, steps, epochs, number = 1.5, 6, 4, 40_000
    seen = sample_generation.generate_sample(
        batch_selection.BallsInBinsSampling(steps * epochs, steps), noise,
        np.array([1.0, 0.0]), seed=3, num_samples=number,
    )  # fmt: skip
    gains = ((seen - 0.5) / noise**2).reshape(epochs, steps, number).sum(axis=0)
    ratios = np.exp(gains).mean(axis=0)
    pair = run(noise / math.sqrt(epochs), steps).pair
    for epsilon in (0.3, 1.0):
        each = np.maximum(1.0 - math.exp(epsilon) / ratios, 0.0)
        error = 5.0 * each.std() / math.sqrt(number)
        assert abs(float(pair.forward.delta(epsilon)) - each.mean()) < error < 0.1 * each.mean()


def test_epochs_compose_and_failures_count_once():
    once = run(1.0, 40, 3)
    assert accounting.repeat(run(1.0, 40), 3).epsilon(1e-5) == pytest.approx(once.epsilon(1e-5))
    failing = run(1.0, 40, 3, failure_probability=9e-6)
    assert failing.epsilon(1e-5) == pytest.approx(once.epsilon(1e-6), rel=1e-4)
    assert failing.epsilon(9e-6) == math.inf and failing.epsilon(8e-6, "rdp") == math.inf
    for delta in (1e-4, 1e-6):
        assert once.epsilon(delta) <= once.epsilon(delta, "rdp") < 1.3 * once.epsilon(delta)


def test_masses_of_infinite_loss_stay_within_what_the_curve_leaves_out():
    for noise, steps in ((0.05, 3), (1.0, 1000), (50.0, 12)):
        pair = run(noise, steps).pair
        assert 0.0 < max(pair.forward.infinity_mass, pair.backward.infinity_mass) < 1e-22


def test_the_page_says_what_it_saves():
    """Every row of its table: what noise costs, rounded up, and what less noise would do."""
    page = pathlib.Path(__file__).parents[3].joinpath("docs", "training.md").read_text("utf-8")
    rows = page.split("noise saved at the same epsilon |\n")[1].split("\n\n")[0].splitlines()[1:]
    assert len(rows) == 8
    for row in rows:
        cells = [float(cell.strip(" %")) for cell in row.strip("|").split("|")]
        steps, epochs = int(cells[0]), int(cells[1])
        noise, poisson, own, saved = cells[2:]
        rate = accounting.dp_sgd(1 / steps, noise, steps * epochs).epsilon(1e-5)
        assert rate == pytest.approx(poisson, rel=2e-3)
        assert 0.0 <= own - priced(noise, steps, epochs) <= 0.0101
        less = noise * (1.0 - saved / 100.0)
        assert priced(less, steps, epochs) == pytest.approx(rate, rel=4e-3)


def test_noise_and_epochs_too_large_for_the_grid():
    for noise in (1e8, 1e20, 1e60):
        assert 0.0 <= run(noise, 10, 3).epsilon(1e-9) <= run(1e6, 10, 3).epsilon(1e-9)
    assert 0.0 <= run(1.0, 2**40).epsilon(1e-9) <= run(1.0, 2**30).epsilon(1e-9)
    with pytest.raises(ValueError, match="steps_per_epoch=1099511627777: pass at most 1099511627"):
        run(1.0, 2**40 + 1)
