"""Privacy filters: the exact worst case over adaptive choices stays within the budget."""

import functools
import math

import numpy as np
import pytest

from dpjax import accounting
from dpjax.neighbouring import REPLACE_ONE

EPOCH = accounting.dp_sgd(0.01, 1.0, steps=100)


def worst_delta(menu, epsilon, admitted):
    """The exact largest delta of an adversary that chooses the next mechanism by all results.

    Mechanisms are randomised responses at the epsilons of `menu`, so that their loss is +-epsilon;
    `admitted(counts)` says whether so many of each may run. Dynamic programming over the loss.
    """
    chances = {e: 1.0 / (1.0 + math.exp(-e)) for e in menu}

    @functools.cache
    def value(counts, loss):
        best = max(0.0, -math.expm1(epsilon - loss))
        for place, e in enumerate(menu):
            after = counts[:place] + (counts[place] + 1,) + counts[place + 1 :]
            if admitted(after):
                high = value(after, round(loss + e, 9))
                low = value(after, round(loss - e, 9))
                best = max(best, chances[e] * high + (1.0 - chances[e]) * low)
        return best

    return value((0,) * len(menu), 0.0)


def exact_delta(menu, counts, epsilon):
    """Delta of so many randomised responses, fixed beforehand."""
    masses = {0.0: 1.0}
    for e, count in zip(menu, counts):
        for _ in range(count):
            after = {}
            for loss, mass in masses.items():
                for step in (e, -e):
                    key = round(loss + step, 9)
                    after[key] = after.get(key, 0.0) + mass / (1.0 + math.exp(-step))
            masses = after
    return sum(
        mass * -math.expm1(epsilon - loss) for loss, mass in masses.items() if loss > epsilon
    )


@pytest.mark.parametrize(
    "menu, epsilon, delta",
    [((0.1, 0.3), 1.0, 1e-2), ((0.1, 0.5), 2.0, 1e-3), ((0.1, 0.2, 0.8), 2.0, 1e-3)],
)
def test_an_adversary_that_adapts_stays_within_a_filter_and_beats_composition(menu, epsilon, delta):
    parts = [accounting.pure(e) for e in menu]
    reached = 0.0
    for planned in parts:

        @functools.cache
        def filtered(counts, planned=planned):
            budget = accounting.PrivacyFilter(epsilon, delta, planned)
            for part, count in zip(parts, counts):
                if count and not budget.admits(part, count):
                    return False
                if count:
                    budget.spend(part, count)
            return True

        found = worst_delta(menu, epsilon, filtered)
        assert found <= delta
        reached = max(reached, found)
    # The bound is not idle: a budget of a tenth of this delta would be passed.
    assert reached > 0.1 * delta

    # The sum of what was chosen, by composition, is no bound: the same adversary passes its delta.
    @functools.cache
    def composed(counts):
        return sum(counts) <= 60 and exact_delta(menu, counts, epsilon) <= delta

    assert worst_delta(menu, epsilon, composed) > 1.3 * delta


def test_failures_are_taken_out_of_their_part_of_delta():
    part = accounting.approximate(0.5, 1e-6)
    budget = accounting.PrivacyFilter(4.0, 1e-5, part, failures=3e-6)
    assert not budget.admits(part, 4)
    for _ in range(3):
        budget.spend(part)
    assert not budget.admits(part) and budget.spent < 0.5
    assert budget.guarantee().epsilon(1e-5) == 4.0
    assert not accounting.PrivacyFilter(4.0, 1e-5, EPOCH).admits(part)
    # What failures may use is no longer there for the rest.
    rest = accounting.renyi_only([budget.order], [budget.capacity])
    assert rest.epsilon(7e-6) == pytest.approx(4.0, rel=1e-9)


def test_a_budget_is_the_conversion_of_its_divergence_and_the_order_the_best():
    budget = accounting.PrivacyFilter(2.0, 1e-5, EPOCH)
    assert budget.guarantee().epsilon(1e-5) == pytest.approx(2.0, rel=1e-9)
    assert budget.guarantee().epsilon(1e-5) <= 2.0
    times = 0
    while budget.admits(EPOCH):
        budget.spend(EPOCH)
        times += 1
    # As many as Renyi accounting at the best order allows, and not one more.
    assert accounting.repeat(EPOCH, times).epsilon(1e-5, method="rdp") <= 2.0
    assert accounting.repeat(EPOCH, times + 1).epsilon(1e-5, method="rdp") > 2.0
    assert budget.spent == pytest.approx(times * EPOCH.rdp(budget.order) / budget.capacity)
    for order in np.array([0.5, 2.0]) * budget.order:
        room = 2.0 - accounting.renyi_only([order], [0.0]).epsilon(1e-5)
        assert room / EPOCH.rdp(order) < budget.capacity / EPOCH.rdp(budget.order)


def test_two_at_once_are_two_one_after_the_other():
    one, other = (accounting.PrivacyFilter(2.0, 1e-5, EPOCH) for _ in range(2))
    one.spend(EPOCH, 2)
    other.spend(EPOCH)
    other.spend(EPOCH)
    assert one.spent == pytest.approx(other.spent, rel=1e-12)


def test_what_does_not_fit_is_refused_and_costs_nothing():
    budget = accounting.PrivacyFilter(2.0, 1e-5, EPOCH)
    strong = accounting.gaussian(0.1)
    with pytest.raises(ValueError, match="part does not fit into what is left of epsilon=2 at"):
        budget.spend(strong)
    assert budget.spent == 0.0
    assert budget.admits(EPOCH)
    with pytest.raises(ValueError, match="part is priced for replace_one, the budget for add_or"):
        budget.admits(accounting.gaussian(1.0, relation=REPLACE_ONE))
    with pytest.raises(ValueError, match="planned does not fit into epsilon=1 at delta"):
        accounting.PrivacyFilter(1.0, 1e-5, EPOCH)
    with pytest.raises(ValueError, match="failure probability of 1e-06: pass failures="):
        accounting.PrivacyFilter(4.0, 1e-5, accounting.approximate(0.5, 1e-6))
    with pytest.raises(
        ValueError, match=r"failures must be in \[0, delta\), delta 1e-05, not 1e-05"
    ):
        accounting.PrivacyFilter(1.0, 1e-5, EPOCH, failures=1e-5)


def test_a_budget_stays_what_it_was():
    budget = accounting.PrivacyFilter(2.0, 1e-5, EPOCH)
    for name in ("epsilon", "delta", "failures", "order", "capacity", "relation", "spent"):
        with pytest.raises(AttributeError, match=f"{name} of a PrivacyFilter is fixed"):
            setattr(budget, name, 10.0)
