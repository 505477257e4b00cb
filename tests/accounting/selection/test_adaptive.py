"""The price of adaptive proposals against the worst proposals there are, found exactly.

For small mechanisms the adversary's best policy is a dynamic programme: for a fixed order of the
outcomes and a fixed event of winners, the divergence is linear in the proposal of every history.
"""

import itertools
import math

import numpy as np
import pytest

from dpjax import accounting
from tests.accounting.selection.test_selection_soundness import (
    guarantee_of,
    pair_of,
    worst_divergence,
)

EPSILONS = np.array([0.0, 0.2, 1.0, 2.5])
RATIOS = [(0.9, 1.1), (0.75, 4.0 / 3.0), (0.5, 3.0), (0.2, 1.2), (0.95, 8.0), (1e-6, 1e3)]
LAWS = [
    accounting.Fixed(2),
    accounting.Fixed(4),
    accounting.Tabulated([1, 2, 4], [0.5, 0.3, 0.2]),
    accounting.Tabulated([0, 1, 3], [0.2, 0.5, 0.3]),
    accounting.AtMost(accounting.Geometric(3.0), 4),
    accounting.AtMost(accounting.Poisson(2.0), 4),
    accounting.Binomial(4, 0.5),
]


def best_proposal(values, prior, ratio):
    """max over laws of density in [c, C] over the prior of the mean value; (..., m) -> (...)."""
    low, high = ratio
    order = np.argsort(-values, axis=-1)
    sorted_values = np.take_along_axis(values, order, axis=-1)
    room = (high - low) * prior[order]
    before = np.cumsum(room, axis=-1) - room
    extra = np.clip(1.0 - low - before, 0.0, room)
    return low * values @ prior + np.sum(extra * sorted_values, axis=-1)


def worst_adaptive(law, p, q, prior, ratio, rank, epsilon):
    """The largest divergence of order e^epsilon over all events and policies, exactly.

    Args:
      law: of K, of a largest K.
      p, q: (m, r), outcomes' laws of each candidate under either neighbour.
      prior: (m,).
      ratio: c and C.
      rank: (m * r,) of the outcomes of all candidates; ties are the earlier run's.
    """
    n, most = p.size, int(law.maximum)
    masses = law.pmf(np.arange(most + 1))
    events = np.array(list(itertools.product([0.0, 1.0], repeat=n)))  # (2^n, n)
    winner = [np.zeros(1, dtype=int)]
    likely = [(np.ones(1), np.ones(1))]
    for depth in range(most):
        outcome = np.tile(np.arange(n), n**depth)
        held = np.repeat(winner[-1], n)
        better = (rank[outcome] > rank[held]) if depth else np.ones(n, dtype=bool)
        winner.append(np.where(better, outcome, held))
        likely.append(tuple(np.outer(a, b.ravel()).ravel() for a, b in zip(likely[-1], (p, q))))
    value = np.zeros((len(events), n**most))
    for depth in range(most, 0, -1):
        gained = likely[depth][0] - math.exp(epsilon) * likely[depth][1]
        value = value + masses[depth] * events[:, winner[depth]] * gained
        of_candidate = value.reshape(len(events), n ** (depth - 1), *p.shape).sum(axis=-1)
        value = best_proposal(of_candidate, prior, ratio)
    return float(value.max())


def mechanism(generator, size, outcomes, spread):
    """Random laws of outcomes under two neighbours (m, r), and a prior (m,)."""
    p = generator.dirichlet(np.full(outcomes, 0.7), size)
    q = p * np.exp(generator.uniform(-spread, spread, p.shape))
    prior = generator.dirichlet(np.ones(size))
    return p, q / q.sum(axis=1, keepdims=True), prior


def base_of(p, q, prior):
    return (prior[:, None] * p).ravel(), (prior[:, None] * q).ravel()


def rankings(generator, n, some=8):
    """Orders of n outcomes, and some with ties."""
    orders = [generator.permutation(n) for _ in range(some)]
    return orders + [order // 2 for order in orders[: some // 2]]


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_the_adversary_without_freedom_is_that_of_independent_runs(law):
    generator = np.random.default_rng(3)
    p, q, prior = mechanism(generator, 2, 2, 1.5)
    one, other = base_of(p, q, prior)
    reached = np.max(
        [
            [worst_adaptive(law, *sides, prior, (1.0, 1.0), np.array(order), e) for e in EPSILONS]
            for order in itertools.permutations(range(4))
            for sides in ((p, q), (q, p))
        ],
        axis=0,
    )
    np.testing.assert_allclose(reached, worst_divergence(law, one, other, EPSILONS), atol=1e-12)


@pytest.mark.parametrize("law", LAWS, ids=repr)
@pytest.mark.parametrize("ratio", RATIOS, ids=str)
def test_never_below_the_worst_proposals(law, ratio):
    generator = np.random.default_rng(11)
    for size, outcomes, spread in [(2, 2, 0.3), (2, 2, 2.5), (3, 1, 0.0), (2, 3, 1.0), (3, 2, 1.0)]:
        p, q, prior = mechanism(generator, size, outcomes, spread)
        if size * outcomes > 4 and law.maximum > 3:
            continue
        claimed = accounting.best_of_adaptive(guarantee_of(*base_of(p, q, prior)), law, ratio)
        bounds = [claimed.delta(epsilon) for epsilon in EPSILONS]
        for rank in rankings(generator, p.size, 4 if p.size == 4 else 2):
            for sides in ((p, q), (q, p)):
                for epsilon, bound in zip(EPSILONS, bounds):
                    reached = worst_adaptive(law, *sides, prior, ratio, rank, epsilon)
                    assert reached <= bound * (1 + 1e-9) + 1e-12, (ratio, epsilon)


def test_the_price_of_independent_candidates_would_be_too_little():
    law, ratio = accounting.Fixed(4), (0.3, 3.0)
    p, q = np.array([[0.9, 0.1], [0.5, 0.5]]), np.array([[0.75, 0.25], [0.5, 0.5]])
    prior = np.array([0.5, 0.5])
    base = guarantee_of(*base_of(p, q, prior))
    independent = accounting.best_of(base, law).delta(0.5)
    reached = max(
        worst_adaptive(law, *sides, prior, ratio, np.array(order), 0.5)
        for order in itertools.permutations(range(4))
        for sides in ((p, q), (q, p))
    )
    assert reached > 1.1 * independent
    assert reached <= accounting.best_of_adaptive(base, law, ratio).delta(0.5)


def test_only_what_was_learnt_can_be_used():
    """Outcomes that tell nothing leave nothing to adapt to; the price does not know that."""
    p = np.array([[0.2, 0.8], [0.7, 0.3]])
    for rank in itertools.permutations(range(4)):
        found = worst_adaptive(
            accounting.Fixed(3), p, p, np.array([0.4, 0.6]), (0.5, 2.0), np.array(rank), 0.0
        )
        assert found == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    "law", [accounting.Geometric(10.0), accounting.Poisson(5.0), accounting.Logarithmic(4.0)]
)
def test_without_freedom_it_is_the_price_of_independent_candidates(law):
    base = accounting.gaussian(4.0)
    free = accounting.best_of_adaptive(base, law, (1.0, 1.0))
    assert free.epsilon(1e-6) == accounting.best_of(base, law).epsilon(1e-6)
    # A density of 1 at least is 1.
    assert accounting.best_of_adaptive(base, law, (1.0, 5.0)).epsilon(1e-6) == free.epsilon(1e-6)
    envelope = accounting.best_of(base, law, method="envelope").epsilon(1e-6)
    almost = accounting.best_of_adaptive(base, law, (1.0 - 1e-9, 1.0 + 1e-9)).epsilon(1e-6)
    assert almost == pytest.approx(envelope, rel=1e-4)


def test_more_freedom_costs_more():
    base, law = accounting.gaussian(4.0), accounting.Geometric(10.0)
    for ratios in (
        [(1 - share, 1 + share) for share in (0.01, 0.05, 0.2, 0.5)],
        [(0.8, high) for high in (1.05, 1.2, 2.0, 5.0)],
        [(low, 1.2) for low in (0.95, 0.8, 0.5, 0.1)],
    ):
        epsilons = [accounting.best_of_adaptive(base, law, r).epsilon(1e-6) for r in ratios]
        assert np.all(np.diff(epsilons) > 0.0)
        assert epsilons[0] > accounting.best_of(base, law).epsilon(1e-6)


def test_one_run_costs_the_ratio_of_its_densities():
    """f' = 1: phi(s) = [C - s c]_+, so that H_t = C H_{t c / C}."""
    base, (low, high) = accounting.gaussian(2.0), (0.6, 1.5)
    one = accounting.best_of_adaptive(base, accounting.Fixed(1), (low, high))
    for epsilon in (0.0, 0.8, 2.0, 3.0):
        exact = high * float(base.pair.delta(epsilon - math.log(high / low)))
        assert one.delta(epsilon) <= exact * (1 + 1e-3)
        # At small epsilons no pair has all of it: H_1 is at most 1 - e^-epsilon (1 - H_epsilon).
        assert epsilon < 2.0 or one.delta(epsilon) >= exact * (1 - 1e-9)


def test_against_phi_evaluated_pointwise():
    """The numerics lose a thousandth of epsilon, upwards."""
    sigma, (low, high) = 4.0, (0.75, 4.0 / 3.0)
    law = accounting.Geometric(10.0)
    from scipy import integrate, stats

    x = np.concatenate([np.geomspace(1e-13, 0.5, 6000), 1 - np.geomspace(1e-13, 0.5, 6000)[::-1]])
    h = stats.norm.cdf(stats.norm.ppf(x) + 1.0 / sigma)
    earned = high * law.derivative(np.maximum(low * x, 1.0 - high * (1.0 - x)))
    lost = low * law.derivative(np.minimum(high * h, 1.0 - low * (1.0 - h)))

    def profile(epsilon):
        def integrand(z):
            u = math.exp(epsilon - z / sigma - 0.5 / sigma**2)
            return max(0.0, float(np.max(earned - u * lost))) * stats.norm.pdf(z)

        z = np.linspace(-2.0, 9.0, 801)
        return integrate.simpson([integrand(v) for v in z], x=z)

    claimed = accounting.best_of_adaptive(accounting.gaussian(sigma), law, (low, high))
    epsilon = claimed.epsilon(1e-4)
    assert profile(epsilon) <= 1e-4 * (1 + 1e-3)
    assert profile(epsilon * 0.995) >= 1e-4


def test_it_composes_is_rebuilt_and_takes_failures():
    base, law = accounting.dp_sgd(0.01, 1.2, 300, failure_probability=1e-9), accounting.Geometric(5)
    found = accounting.best_of_adaptive(base, law, (0.8, 1.25))
    again = accounting.from_provenance(found.provenance)
    assert again.epsilon(1e-6) == found.epsilon(1e-6) and again.provenance == found.provenance
    assert accounting.compose(found, base).epsilon(1e-6) > found.epsilon(1e-6)
    assert found.delta(60.0) >= 1e-9
    # A base that is known by its Renyi curve has loss distributions as well.
    renyi = accounting.best_of_adaptive(accounting.zcdp(0.05), law, (0.8, 1.25))
    assert renyi.epsilon(1e-6) > accounting.best_of(accounting.zcdp(0.05), law).epsilon(1e-6)


@pytest.mark.parametrize("ratio", [(0.0, 2.0), (1.1, 2.0), (0.5, 0.9), (0.5,), (-1.0, 2.0), 3.0])
def test_bounds_that_no_density_keeps_are_refused(ratio):
    with pytest.raises(ValueError, match="ratio") as refused:
        accounting.best_of_adaptive(accounting.gaussian(2.0), accounting.Geometric(3.0), ratio)
    assert len(str(refused.value).splitlines()) == 1


def test_no_law_is_refused():
    with pytest.raises(ValueError, match="needs a law of K, such as Geometric"):
        accounting.best_of_adaptive(accounting.gaussian(2.0), 10, (0.5, 2.0))


def test_the_pair_dominates_at_negative_epsilons_too():
    generator = np.random.default_rng(5)
    p, q, prior = mechanism(generator, 2, 2, 1.0)
    one, other = base_of(p, q, prior)
    pair = accounting.best_of_adaptive(
        guarantee_of(one, other), accounting.Fixed(2), (0.7, 1.3)
    ).pair
    base = pair_of(one, other)
    for epsilon in (-2.0, -0.5):
        assert pair.forward.delta(epsilon) >= base.forward.delta(epsilon) - 1e-9


def test_its_formal_guarantees_name_what_a_caller_must_keep():
    documentation = accounting.best_of_adaptive.__doc__
    section = " ".join(documentation.split("Formal guarantees:")[1].split("Args:")[0].split())
    for words in (
        "at least c and at most C everywhere",
        "depends on nothing else: not on K",
        "ties are broken by independent randomness, or for the earlier run",
        "The chain rule over the runs",
    ):
        assert words in section
