"""The cost of noisy sums of clients' updates: an upper bound, and not a loose one."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from dpjax import accounting
from dpjax.accounting.numerics.composition import composition

ORDERS = np.array([1.5, 2.0, 3.0, 8.0])


def _sum_law(variance, clients, reach=400):
    """P[sum of `clients` discrete Gaussians = x], x = -reach..reach: convolved by brute force."""
    x = np.arange(-reach, reach + 1)
    local = np.exp(-(x**2) / (2 * variance))
    local /= local.sum()
    law = np.ones(1)
    for _ in range(clients):
        law = np.convolve(law, local)
        middle = law.size // 2
        law = law[max(0, middle - reach) : middle + reach + 1]
    return law


def _divergence(law, shift, order):
    """Renyi divergence of the law and its shift, where both are above rounding."""
    ours, theirs = law[: law.size - shift], law[shift:]
    kept = (ours > 1e-250) & (theirs > 1e-250)
    terms = order * np.log(ours[kept]) + (1 - order) * np.log(theirs[kept])
    return float(special.logsumexp(terms)) / (order - 1)


@pytest.mark.parametrize("variance", [0.25, 0.35, 0.5, 1.0, 4.0])
@pytest.mark.parametrize("clients", [1, 2, 7, 20])
def test_one_entry_is_an_upper_bound_on_brute_force(variance, clients):
    law = _sum_law(variance, clients)
    bound = accounting.federated_averaging(variance, 1, 1, clients).rdp(ORDERS)
    for order, limit in zip(ORDERS, bound):
        for shift in (1, 2):
            # Enough of the tail is above rounding where the exact number is below 40.
            exact = _divergence(law, shift, order)
            if limit < 40:
                assert exact <= limit * (1 + 1e-9)
    if variance >= 1.0:
        # The bound is attained where a client moves the sum by the whole of 2 bound.
        assert bound[1] == pytest.approx(_divergence(law, 2, 2.0), rel=5e-3)


@pytest.mark.parametrize("variance", [0.3, 0.6, 2.0])
def test_every_integer_vector_in_the_ball_costs_no_more(variance):
    """Three entries, two vectors of norm at most 2: every difference, entry by entry."""
    clients, bound = 5, 2
    law = _sum_law(variance, clients)
    ball = [v for v in itertools.product(range(-2, 3), repeat=3) if sum(x * x for x in v) <= 4]
    moves = {tuple(abs(a - b) for a, b in zip(v, w)) for v in ball for w in ball}
    limit = accounting.federated_averaging(variance, bound, 3, clients).rdp(ORDERS)
    for order, most in zip(ORDERS[:3], limit[:3]):
        costs = {0: 0.0} | {shift: _divergence(law, shift, order) for shift in range(1, 5)}
        worst = max(sum(costs[part] for part in move) for move in moves)
        assert worst <= most * (1 + 1e-9)
        if variance == 2.0:
            assert worst == pytest.approx(most, rel=1e-3)


def test_small_shares_cost_more_than_a_gaussian_and_large_ones_do_not():
    orders = np.array([2.0])
    for variance, excess in ((0.25, 1.05), (0.5, 1.0005)):
        found = accounting.federated_averaging(variance, 4, 10, 100).rdp(orders)[0]
        assert found > excess * 2 * 8**2 / (2 * 100 * variance)
    large = accounting.federated_averaging(9.0, 4, 50_000, 100).rdp(orders)[0]
    assert large == pytest.approx(2 * 8**2 / (2 * 900), rel=1e-12)


@pytest.mark.parametrize(("variance", "dimension"), [(0.3, 1), (0.3, 40), (0.4, 5000), (1.2, 9)])
def test_the_least_of_the_three_bounds_by_hand(variance, dimension):
    clients, bound, order = 8, 3, 2.5
    tau = 10 * sum(math.exp(-2 * math.pi**2 * variance * k / (k + 1)) for k in range(1, clients))
    move, spread = 2 * bound, math.sqrt(clients * variance)
    absolute = min(math.sqrt(dimension) * move, move**2)
    by_hand = min(
        order / 2 * (move / spread) ** 2 + tau * dimension,
        order / 2 * ((move / spread) ** 2 + 2 * absolute * tau / spread + tau**2 * dimension),
        order / 2 * (move / spread + tau * math.sqrt(dimension)) ** 2,
    )
    found = accounting.federated_averaging(variance, bound, dimension, clients)
    assert found.rdp(order) == pytest.approx(by_hand, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    st.floats(0.3, 30.0), st.integers(1, 50), st.integers(1, 1000), st.integers(3, 60),
    st.integers(1, 9),
)  # fmt: skip
def test_more_noise_costs_less_and_more_of_anything_else_costs_more(v, bound, d, n, rounds):
    base = accounting.federated_averaging(v, bound, d, n, rounds).rdp(3.0)
    larger = [
        (v, bound + 1, d, n, rounds),
        (v, bound, d + 1, n, rounds),
        (v, bound, d, n, rounds + 1),
    ]
    assert all(accounting.federated_averaging(*args).rdp(3.0) >= base for args in larger)
    assert accounting.federated_averaging(1.1 * v, bound, d, n, rounds).rdp(3.0) <= base


def test_only_the_survivors_noise_counts():
    missing = accounting.federated_averaging(4.0, 8, 30, 50, 3, missing_fraction=0.2)
    fewer = accounting.federated_averaging(4.0, 8, 30, 40, 3)
    assert missing.epsilon(1e-5) == fewer.epsilon(1e-5)
    assert missing.relation == "replace_one"


def test_the_claim_is_above_the_exact_cost_of_one_entry_and_by_how_much():
    """Exact loss distribution of one entry against the bound: a few percent, never below."""
    from dpjax.accounting.numerics.integer_noise import discrete_gaussian_sum, shift_pair

    exact = composition([(shift_pair(discrete_gaussian_sum(4.0, 20, 8), 1e-4, 8), 3)])
    claimed = accounting.federated_averaging(4.0, 4, 1, 20, 3)
    for delta in (1e-3, 1e-5, 1e-7):
        ratio = claimed.epsilon(delta) / exact.epsilon(delta)
        assert 1.0 <= ratio < 1.12


def test_calibration_meets_the_target_with_what_came_before():
    vote = accounting.skellam_vote(600.0, votes=5, candidates=100)
    options = dict(bound=64, dimension=650, clients=50, rounds=5, missing_fraction=0.1)
    variance = accounting.calibrate_federated_averaging(4.0, 1e-5, before=vote, **options)
    training = accounting.federated_averaging(variance, **options)
    total = accounting.compose(vote, training).epsilon(1e-5)
    assert 0.99 * 4.0 < total <= 4.0
    assert training.epsilon(1e-5) < 4.0
    alone = accounting.calibrate_federated_averaging(4.0, 1e-5, **options)
    assert alone < variance
    with pytest.raises(ValueError, match="costs .* alone: pass a larger epsilon"):
        accounting.calibrate_federated_averaging(0.3, 1e-5, before=vote, **options)


@pytest.mark.parametrize("variance", [0.25, 1.0])
def test_one_client_more_than_are_added_one_by_one_costs_no_less(variance):
    few, many = (
        accounting.federated_averaging(variance, 8, 30, clients, 1).rdp([2.0, 30.0])
        for clients in (10**7, 10**7 + 2)
    )
    assert np.all(few <= many)
    assert accounting.federated_averaging(9.0, 8, 30, 10**99, 1).epsilon(1e-5) >= 0.0
