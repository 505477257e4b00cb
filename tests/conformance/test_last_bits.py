"""No price hangs on a last bit, of an argument or of a function that machines round apart.

The cases follow from the registry of provenance nodes: every mechanism, alone and inside every node
that takes other guarantees, and every law of K over bases that have broken this before.
"""

import copy
import functools
import inspect

import numpy as np
import other_arithmetic
import pytest
from mechanisms import GOOD, guarantee_of

from dpjax import accounting
from dpjax.accounting import provenance
from dpjax.accounting.selection.laws import families

DELTAS = (1e-3, 1e-5, 1e-8)
STEP = 1e-13
"""Relative change of an argument."""
MOVED = 1e-9
"""Relative change of an epsilon that it may make."""


COUNTS = ("missing_fraction",)
"""Arguments whose decimal digits say a whole number of clients: another one if changed."""
CLIFFS = {"dp_accounting_event": 1e-6}
"""dp_accounting's grid of a Laplace loss grows by a point where 0.5 / 1e-4 is hardly not whole."""
CLIFFS_IN = {("dp_accounting_event", "stop_at_threshold"): 1e-4}
"""The price of a threshold is near enough to the truth to follow that point of dp_accounting's."""

TREES = {name: guarantee_of(name).provenance for name in GOOD}
LEAVES = sorted(name for name, tree in TREES.items() if not tree["parts"])
AROUND = sorted(name for name, tree in TREES.items() if tree["parts"])

_TRAINING = accounting.dp_sgd(0.06251492919297048, 3.404547578600966, 320)
BASES = {
    "a score beside training": accounting.parallel(
        _TRAINING, accounting.discrete_gaussian(3.040703)
    ),
    "few outcomes": accounting.pure(0.5),
    "round numbers": accounting.gaussian(2.0),
    "few steps": accounting.dp_sgd(0.01, 1.0, 10, failure_probability=1e-12),
    "a selection": accounting.best_of(accounting.gaussian(3.0), accounting.Geometric(4.0)),
}
LAWS = {
    "at_most": accounting.AtMost(accounting.Geometric(10.0), 40),
    "binomial": accounting.Binomial(20, 0.5),
    "fixed": accounting.Fixed(5),
    "tabulated": accounting.Tabulated([1, 2, 10], [0.25, 0.25, 0.5]),
}
"""Laws of K that take something else than a mean."""


def _law(family, cls):
    return LAWS[family] if family in LAWS else cls.of_mean(10.0)


LAW_CASES = {name: _law(name, cls) for name, cls in families().items()}


def _epsilons(tree):
    guarantee = provenance._rebuilt(tree)
    return np.array([guarantee.epsilon(delta) for delta in DELTAS])


def _places(tree, path=()):
    """Where real numbers stand in a tree; zeros and whole ones have no neighbours."""
    if isinstance(tree, dict | list):
        pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for key, value in pairs:
            yield from _places(value, (*path, key))
    elif isinstance(tree, float) and tree != 0.0 and np.isfinite(tree) and path[-1] not in COUNTS:
        yield path


def _changed(tree, paths, factor):
    again = copy.deepcopy(tree)
    for path in paths:
        place = again
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] *= factor
    return again


def _move(before, after):
    """The largest relative change of an epsilon."""
    same = (after == before) | ((before == 0.0) & (after < 1e-12))
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(np.max(np.where(same, 0.0, np.abs(after - before) / before)))


def _moves(tree, places, before):
    """When these numbers move up together, and down."""
    up_and_down = (1.0 + STEP, 1.0 - STEP)
    return max(_move(before, _epsilons(_changed(tree, places, one))) for one in up_and_down)


def _moves_apart(tree, inside, own, before):
    """When those inside and a node's own move in opposite directions, both ways.

    By different steps, so that neither a quotient nor a product of the two stays as it is.
    """
    largest = 0.0
    for step in (STEP, -STEP):
        once = _changed(tree, inside, 1.0 + step)
        largest = max(largest, _move(before, _epsilons(_changed(once, own, 1.0 - 0.4 * step))))
    return largest


def _around(name, tree):
    """The node `name` around a tree, with its other arguments; None where it does not take it."""
    good = copy.deepcopy(TREES[name])
    relation = provenance._rebuilt(tree).relation
    others = accounting.gaussian(3.0, relation=relation).provenance
    good["parts"] = [tree] + [others] * (len(good["parts"]) - 1)
    try:
        provenance._rebuilt(good)
    except ValueError as error:
        assert "relation" in str(error) or "replace" in str(error), error
        return None
    return good


@pytest.mark.parametrize("name", LEAVES)
def test_an_argument_moves_a_price_by_no_more_than_it_moved(name):
    places = list(_places(TREES[name]["parameters"], ("parameters",)))
    if len(places) > 12:  # A table: its numbers move together.
        places = places[:3] + places[-3:]
    before = _epsilons(TREES[name])
    moved = max((_moves(TREES[name], [place], before) for place in places), default=0.0)
    assert moved < CLIFFS.get(name, MOVED)


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", LEAVES)
def test_nor_inside_any_node_that_takes_guarantees(name, around):
    tree = _around(around, TREES[name])
    if tree is None:
        return
    inside = list(_places(tree["parts"][0], ("parts", 0)))
    own = list(_places(tree["parameters"], ("parameters",)))
    allowed = CLIFFS_IN.get((name, around), CLIFFS.get(name, MOVED))
    assert _moves_apart(tree, inside, own, _epsilons(tree)) < allowed


@pytest.mark.parametrize("law", LAW_CASES)
@pytest.mark.parametrize("base", BASES)
def test_nor_under_any_law_of_k_here_or_on_another_machine(law, base):
    tree = accounting.best_of(BASES[base], LAW_CASES[law]).provenance
    inside, own = (list(_places(tree[key], (key,))) for key in ("parts", "parameters"))
    before = _epsilons(tree)
    assert _moves_apart(tree, inside, own, before) < MOVED
    with other_arithmetic.jittered(1):
        after = _epsilons(tree)
    np.testing.assert_allclose(after, before, rtol=MOVED)


def test_every_node_is_a_case():
    assert set(LEAVES) | set(AROUND) == set(provenance.registered())
    applicable = [(n, a) for n in LEAVES for a in AROUND if _around(a, TREES[n]) is not None]
    assert len(applicable) > 0.8 * len(LEAVES) * len(AROUND)


def test_a_larger_profile_is_that_of_the_larger_part_and_costs_nothing_more():
    count = accounting.discrete_gaussian(3.040703)
    both = accounting.parallel(_TRAINING, count)
    for delta in DELTAS:
        assert both.epsilon(delta) == pytest.approx(_TRAINING.epsilon(delta), rel=1e-9)
        best, alone = (accounting.best_of(g, accounting.Geometric(10.0)) for g in (both, _TRAINING))
        # At 1e-3 the exact bound's own grid shows.
        close = 2e-4 if delta == 1e-3 else 2e-6
        assert best.epsilon(delta) == pytest.approx(alone.epsilon(delta), rel=close)
    weaker = accounting.gaussian(5.0)
    stronger = accounting.gaussian(2.0)
    for parts in ((weaker, stronger), (stronger, weaker)):
        assert accounting.parallel(*parts).pair is stronger.pair


@functools.cache
def _crossing():
    return accounting.gaussian(3.0), accounting.pure(0.8)


def test_where_profiles_cross_the_larger_is_never_undercut():
    one, other = _crossing()
    both = accounting.parallel(one, other)
    epsilons = np.linspace(0.0, 2.0, 4001)
    for direction in ("forward", "backward"):
        larger = np.maximum(
            getattr(one.pair, direction).delta(epsilons),
            getattr(other.pair, direction).delta(epsilons),
        )
        found = getattr(both.pair, direction).delta(epsilons)
        assert np.all(found >= larger * (1.0 - 1e-12))
        assert np.all(found <= larger + 2e-6)
    for law in (both.pair.forward, both.pair.backward):
        assert abs(law.total_mass() - 1.0) < 1e-9 and abs(law.mirrored_mass() - 1.0) < 1e-9


def test_the_jitter_changes_what_it_should():
    assert inspect.isfunction(other_arithmetic.jittered)
    x = np.linspace(0.1, 3.0, 1000)
    plain = np.exp(x)
    with other_arithmetic.jittered(0):
        one, again = np.exp(x), np.exp(x)
    with other_arithmetic.jittered(1):
        other = np.exp(x)
    assert np.array_equal(one, again) and not np.array_equal(one, other)
    assert 0.0 < np.max(np.abs(one / plain - 1.0)) < 1e-15
    assert np.array_equal(np.exp(x), plain)
