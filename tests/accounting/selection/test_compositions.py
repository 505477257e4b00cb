"""Selections in a row, against an adversary that chooses each order by the loss so far."""

import itertools

import numpy as np
import pytest
from scipy import special

from dpjax import accounting
from dpjax.accounting.selection.envelope import envelope
from experiments.benchmarks.composed_adversary import Orders, by_size, hulled, reached
from experiments.benchmarks.selection_adversary import worst_order

LAWS = [accounting.Geometric(10.0), accounting.Fixed(5), accounting.Poisson(10.0)]


@pytest.mark.parametrize(
    "law,within",
    [
        (LAWS[0], (1.015, 1.025, 1.10)),
        (LAWS[1], (1.03, 1.075, 1.18)),
        (LAWS[2], (1.01, 1.045, 1.16)),
    ],
    ids=repr,
)
def test_the_claim_is_above_the_adversary_and_not_far(law, within):
    costs = reached(law, 20.0, 10, 1e-5)
    selected = accounting.best_of(accounting.gaussian(20.0), law)
    for times, most in zip((1, 2, 10), within):
        claimed = accounting.repeat(selected, times).epsilon(1e-5)
        assert costs[times - 1] <= claimed <= most * costs[times - 1], times


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_alone_it_is_the_adversary_of_one_selection(law):
    """The same orders by another program, which discretises otherwise."""
    orders = Orders(law, 0.3, 200)
    for epsilon in (0.0, 0.4, 1.0):
        t = np.exp(epsilon)
        slope, height = orders.lines(np.array([0.0, 1.0]), np.array([0.0, 1.0]), np.array([t]))
        other = worst_order(law, epsilon, 0.3, 250, True)
        assert height[0] - t * slope[0] == pytest.approx(other, rel=0.03)


def test_by_enumeration():
    """Two selections of three outcomes: all orders of the second, one for each loss so far."""
    generator = np.random.default_rng(7)
    for _ in range(20):
        law = accounting.Tabulated((1, 3), (0.4, 0.6))
        p, q = generator.dirichlet(np.ones(3), 2) + 0.02
        p, q = p / p.sum(), q / q.sum()
        winners = []
        for order in itertools.permutations(range(3)):
            place = list(order)  # Best first.
            both = []
            for masses in (p, q):
                beaten = 1.0 - law.success_probability(
                    np.append(0.0, np.cumsum(masses[place])).clip(0, 1)
                )
                both.append(beaten[:-1] - beaten[1:])
            winners.append(both)
        for t in (1.0, 1.5, 3.0):
            best = 0.0
            for first, its in winners:
                followed = [
                    max(np.maximum(a - s * b, 0.0).sum() for a, b in winners)
                    for s in t * its / first
                ]
                best = max(best, float(first @ followed))
            base = accounting.Guarantee.from_pld(_pld(p, q))
            selected = accounting.best_of(base, law)
            assert accounting.repeat(selected, 2).delta(np.log(t)) >= best - 1e-12


def _pld(p, q):
    from dp_accounting.pld import privacy_loss_distribution

    logs = [dict(enumerate(np.log(masses))) for masses in (p, q)]
    return privacy_loss_distribution.from_two_probability_mass_functions(
        *logs, value_discretization_interval=1e-3, symmetric=False
    )


def test_lines_are_the_largest_of_all():
    generator = np.random.default_rng(3)
    lines = generator.random((2, 40))
    lines = np.concatenate([lines, [[0.0], [0.0]]], axis=1)
    at = np.linspace(0.0, 5.0, 300)
    kept = hulled(*lines)
    exact = np.maximum((lines[1] - at[:, None] * lines[0]).max(axis=1), 0.0)
    # Lines may be largest at negative orders only; at the others nothing is lost.
    assert np.allclose(envelope(at, *kept), exact)


def test_many_selections_cost_what_the_order_by_size_of_the_loss_does():
    law = accounting.Geometric(10.0)
    found = by_size(law, 20.0, 100, 1e-5)
    selected = accounting.best_of(accounting.gaussian(20.0), law)
    assert 3.85 < found <= accounting.repeat(selected, 100).epsilon(1e-5) < 1.17 * found
    # In the limit they are one Gaussian (docs/proofs/composition.md), and near it already.
    x = (np.arange(100_000) + 0.5) / 100_000
    second = np.mean(law.derivative(x) * special.ndtri(1.0 - 0.5 * x) ** 2)
    limit = accounting.gaussian(20.0 / np.sqrt(100 * second)).epsilon(1e-5)
    assert found == pytest.approx(limit, rel=0.015)
