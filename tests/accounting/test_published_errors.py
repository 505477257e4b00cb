"""Published claims and library paths that are wrong, each with its counterexample.

Papers: Papernot & Steinke (ICLR 2022), E1 and E2 of this project's notes. Library: dp_accounting,
B1 and B2 (its development head) and B3 and B4 (0.6.0). Each test shows the wrong number to be wrong
and ours to be right.
"""

import itertools
import math

import attr
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting import dp_event as dp_events
from dp_accounting import pld as pld_accounting
from dp_accounting import rdp as rdp_accounting

from dpjax import accounting
from dpjax.accounting import provenance
from dpjax.accounting.numerics.loss_distribution import LossDistribution, LossPair
from dpjax.accounting.numerics.renyi import RenyiCurve
from dpjax.neighbouring import REPLACE_ONE


def renyi(p: np.ndarray, q: np.ndarray, order: float) -> float:
    logs = order * np.log(p) + (1 - order) * np.log(q)
    return float(np.logaddexp.reduce(logs) / (order - 1))


def winner(law, p: np.ndarray) -> np.ndarray:
    """Law of the best of K when outcomes are ordered as listed; K = 0 in front."""
    cumulative = np.append(0.0, np.cumsum(p))
    return np.append(law.pmf(0), np.diff(law.generating_function(cumulative)))


# --- E1: Lemma 7 and Theorem 6 leave out the event K = 0 -------------------------------------


@pytest.mark.parametrize("mean", [0.2, 0.5, 0.9])
def test_e1_published_theorem_6_claims_negative_divergences(mean):
    """Q = Q' costs exactly nothing; the published bound is log(mean) / (order - 1) < 0."""
    for order in (1.5, 2.0, 8.0):
        published = 0.0 + mean * 0.0 + math.log(mean) / (order - 1)
        assert published < 0.0
        corrected = accounting.best_of(
            accounting.pure(0.0), accounting.Poisson(mean), method="rdp"
        ).rdp(order)
        assert 0.0 <= corrected < 1e-6


def test_e1_published_lemma_7_is_violated_by_a_real_pair():
    """Not only at Q = Q': a binary pair whose exact divergence exceeds the published bound."""
    p, q = np.array([0.55, 0.45]), np.array([0.45, 0.55])
    law, order = accounting.Poisson(0.3), 2.0
    exact = renyi(winner(law, p), winner(law, q), order)
    below = np.linspace(0.0, 1.0, 2001)
    # sup f'(a)^order f'(b)^(1 - order) over the pairs (a, b) that the trade-off of (p, q) allows.
    allowed = np.clip(np.minimum(below * 0.55 / 0.45, 1 - (1 - below) * 0.45 / 0.55), 0.0, 1.0)
    slopes = np.log(law.derivative(1 - allowed)) * order
    supremum = np.max(slopes + np.log(law.derivative(1 - below)) * (1 - order))
    published = renyi(p, q, order) + supremum / (order - 1)
    assert published < 0.0 < exact
    base = accounting.Guarantee(
        relation=REPLACE_ONE,
        provenance=provenance.node("test", {}),
        pair=accounting.pure(math.log(0.55 / 0.45)).pair,
        renyi=RenyiCurve(lambda orders: np.array([renyi(p, q, a) for a in orders])),
    )
    assert accounting.best_of(base, law, method="rdp").rdp(order) >= exact


# --- E2: Proposition 15 and Corollary 16 for orders below 2 ----------------------------------


def proposition_15(p, q, good, order, inverse_p, inverse_q, corrected: bool) -> float:
    """The bound on D_order(Q|S || Q'|S), 1/p + 1/q + 1/r = 1."""
    r = 1.0 / (1.0 - inverse_p - inverse_q)
    lead = (order - inverse_p - 1.0 / r) / (order - 1.0)
    total = lead * renyi(p, q, r * (order - inverse_p))
    weight = (order + inverse_q - 2.0) / (order - 1.0)
    if not (corrected and order + inverse_q < 2.0):
        total += weight * renyi(q, p, order + inverse_q - 1.0)
    return total + (1.0 / r + 1.0) / (order - 1.0) * math.log(1.0 / p[good].sum())


def test_e2_published_proposition_15_is_false_below_order_2():
    """S = everything, order 1.5: the negative second term pushes the bound below the truth."""
    p, q = np.array([0.5, 0.5]), np.array([0.4, 0.6])
    everything = np.array([True, True])
    exact = renyi(p, q, 1.5)
    published = proposition_15(p, q, everything, 1.5, 0.0, 0.0, corrected=False)
    assert published < exact - 1e-3
    assert proposition_15(p, q, everything, 1.5, 0.0, 0.0, corrected=True) >= exact


@pytest.mark.parametrize("order", [1.05, 1.5, 1.9])
def test_e2_corrected_bound_holds_on_random_conditioned_pairs(order):
    generator = np.random.default_rng(8)
    violated = 0
    for _ in range(300):
        p, q = generator.dirichlet(np.ones(4)), generator.dirichlet(np.ones(4))
        good = generator.random(4) < 0.6
        if not good.any():
            continue
        exact = renyi(p[good] / p[good].sum(), q[good] / q[good].sum(), order)
        for inverse_p in (0.0, 0.3):
            arguments = (p, q, good, order, inverse_p, 0.0)
            violated += proposition_15(*arguments, corrected=False) < exact - 1e-12
            assert proposition_15(*arguments, corrected=True) >= exact - 1e-9
    assert violated > 0


# --- B1: a delta inside a selection ------------------------------------------------------------


@attr.s(frozen=True, auto_attribs=True)
class EpsilonDeltaDpEvent(dp_events.DpEvent):
    """Stands for the event of dp_accounting's development head."""

    epsilon: float
    delta: float


def test_b1_inner_delta_is_paid_mean_times():
    """Exact winner of a base that reveals all with probability d: d once is far too little."""
    law, d = accounting.Geometric(10.0), 1e-4
    high = 1.0 / (1.0 + math.exp(-0.5))
    p = np.array([0.0, (1 - d) * (1 - high), (1 - d) * high, d])
    q = np.array([d, (1 - d) * high, (1 - d) * (1 - high), 0.0])
    a, b = winner(law, p), winner(law, q)
    exact = float(np.maximum(a - math.exp(6.0) * b, 0.0).sum())
    assert exact > 9.9 * d
    base = accounting.Guarantee(
        relation=REPLACE_ONE,
        provenance=provenance.node("test", {}),
        pair=accounting.pure(0.5).pair.with_failure(d),
    )
    selected = accounting.best_of(base, law)
    assert exact <= selected.delta(6.0) <= 10.0 * d * (1 + 1e-6)


@pytest.mark.parametrize("method", ["tight", "envelope"])
def test_b1_inner_delta_may_be_paid_more_than_mean_times(method):
    """The other side's failure ranks first and makes the rest worse: (1 + e^epsilon) mean d."""
    law, d, t = accounting.Geometric(10.0), 1e-5, 75.0
    epsilon = math.log(t)
    clean_p, clean_q = np.array([0.5, 0.5]), np.array([0.999, 0.001])
    # Worst outcome first; the last ones are what the other side never shows, and never this side.
    p = np.concatenate([(1 - d) * clean_p, [d, 0.0]])
    q = np.concatenate([(1 - d) * clean_q, [0.0, d]])
    exact = float(np.maximum(winner(law, p) - t * winner(law, q), 0.0).sum())
    clean = [
        float(np.maximum(winner(law, clean_p[o]) - t * winner(law, clean_q[o]), 0.0).sum())
        for o in ([0, 1], [1, 0])
    ]
    # "A failure costs at most mean times d" is false, for the truth and for every sound bound:
    assert exact - max(clean) > 1.3 * 10.0 * d
    pair = outcomes_pair(clean_p, clean_q)
    claims = [
        accounting.best_of(
            accounting.Guarantee(
                relation=REPLACE_ONE, provenance=provenance.node("test", {}), pair=base
            ),
            law,
            method,
        ).pair.forward.delta(epsilon)
        for base in (pair, pair.with_failure(d))
    ]
    assert claims[1] >= exact
    assert claims[1] <= claims[0] + (1.0 + t) * 10.0 * d


def outcomes_pair(p: np.ndarray, q: np.ndarray) -> LossPair:
    """Loss distributions of two probability vectors, losses rounded upwards to a fine grid."""
    interval, laws = 1e-4, []
    for first, second in ((p, q), (q, p)):
        index = np.ceil(np.log(first / second) / interval).astype(int)
        masses = np.zeros(index.max() - index.min() + 1)
        np.add.at(masses, index - index.min(), first)
        laws.append(LossDistribution(interval, int(index.min()), masses, 0.0))
    return LossPair(*laws)


@pytest.mark.parametrize("wrap", [lambda e: e, lambda e: dp_events.SelfComposedDpEvent(e, 2)])
def test_b1_such_events_are_refused_inside_a_selection(wrap):
    event = dp_events.RepeatAndSelectDpEvent(wrap(EpsilonDeltaDpEvent(1.0, 1e-6)), 10.0, 1.0)
    with pytest.raises(ValueError, match="delta inside a selection: pass best_of"):
        accounting.Guarantee.from_dp_event(event)


# --- B2, B3: counts that are ignored -----------------------------------------------------------


@pytest.mark.parametrize(
    "event,relation",
    [
        (dp_events.LaplaceDpEvent(2.0), "add_or_remove_one"),
        (dp_events.DiscreteLaplaceDpEvent(0.5, 1), "add_or_remove_one"),
        (dp_events.RandomizedResponseDpEvent(0.5, 4), "replace_one"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_b2_b3_every_count_is_respected(event, relation):
    """An exponential mechanism (B2) is charged here as `pure`, whose counts compose exactly."""
    once = accounting.Guarantee.from_dp_event(event, relation)
    ten = accounting.Guarantee.from_dp_event(dp_events.SelfComposedDpEvent(event, 10), relation)
    listed = accounting.Guarantee.from_dp_event(dp_events.ComposedDpEvent([event] * 10), relation)
    assert ten.epsilon(1e-6) > 2.0 * once.epsilon(1e-6)
    assert listed.epsilon(1e-6) == pytest.approx(ten.epsilon(1e-6), abs=2e-3)
    if ten.renyi is not None:
        np.testing.assert_allclose(ten.rdp([2.0, 5.0]), 10.0 * once.rdp([2.0, 5.0]), rtol=1e-9)
        assert ten.epsilon(1e-6) <= ten.epsilon(1e-6, "rdp") + 1e-9


def test_b3_dp_accounting_ignores_the_count_of_randomised_response():
    event = dp_events.RandomizedResponseDpEvent(0.5, 4)
    wrong = {}
    for count in (1, 10):
        accountant = pld_accounting.PLDAccountant(NeighboringRelation.REPLACE_ONE)
        accountant.compose(event, count)
        wrong[count] = accountant.get_epsilon(1e-6)
    assert wrong[10] == wrong[1]
    # The truth: 10 independent answers; the likelihood ratio of "all truthful" alone shows more.
    p = np.array([0.5 + 0.125, 0.125])
    q = np.array([0.125, 0.5 + 0.125])
    total = 0.0
    for outcome in itertools.product((0, 1), repeat=10):
        index = list(outcome)
        total += max(0.0, float(np.prod(p[index]) - math.exp(wrong[10]) * np.prod(q[index])))
    assert total > 1e-2
    ours = accounting.Guarantee.from_dp_event(
        dp_events.SelfComposedDpEvent(event, 10), "replace_one"
    )
    assert ours.delta(wrong[10]) >= total


# --- B4: replace-one Gaussians -----------------------------------------------------------------


def test_b4_dp_accounting_doubles_the_sensitivity_in_one_place_only():
    event = dp_events.GaussianDpEvent(1.0)
    relation = NeighboringRelation.REPLACE_ONE
    by_renyi = rdp_accounting.RdpAccountant(neighboring_relation=relation).compose(event)
    by_loss = pld_accounting.PLDAccountant(relation).compose(event)
    assert by_renyi.get_epsilon(1e-5) == pytest.approx(4.73, abs=0.01)
    assert by_loss.get_epsilon(1e-5) == pytest.approx(10.00, abs=0.01)
    # Two sums of vectors of norm 1 that differ in one record lie 2 apart: exact divergence.
    x = np.linspace(-12, 14, 400_001)
    p, q = np.exp(-0.5 * (x - 2) ** 2), np.exp(-0.5 * x**2)
    exact = np.maximum(p - math.exp(4.73) * q, 0).sum() / p.sum()
    assert exact > 1e-2
    ours = accounting.Guarantee.from_dp_event(event, "replace_one")
    assert ours.delta(4.73) >= exact * (1 - 1e-6)
    assert ours.epsilon(1e-5) == pytest.approx(10.00, abs=0.01)
    assert ours.epsilon(1e-5, "rdp") >= ours.epsilon(1e-5)
    assert ours.rdp(3.0) == pytest.approx(3.0 / (2 * 0.5**2))
