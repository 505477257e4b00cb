"""The selection: one total order, whatever the chunks."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpjax.tuning import selection
from dpjax.tuning.selection import BestOfRuns


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([-np.inf, 0.0, 1.0, 2.0])), max_size=20),
    st.integers(1, 7),
    st.randoms(use_true_random=False),
)
def test_chunks_and_their_order_do_not_matter(runs, chunk, shuffler):
    owners = np.asarray([owner for owner, _ in runs], dtype=int)
    scores = np.asarray([score for _, score in runs], dtype=float)
    order = list(range(len(runs)))
    shuffler.shuffle(order)
    best = BestOfRuns(executions=4)
    for start in range(0, len(order), chunk):
        members = np.asarray(order[start : start + chunk])
        best.update(owners[members], members, scores[members], {"a": members * 10.0})
    for execution in range(4):
        mine = [i for i in range(len(runs)) if owners[i] == execution]
        if not mine:
            assert best.output(execution) is None and best.candidate[execution] == -1
            continue
        winner = max(mine, key=lambda i: (scores[i], -i))
        assert best.candidate[execution] == winner
        assert best.output(execution)["a"] == winner * 10.0


def test_nan_scores_are_refused():
    with pytest.raises(ValueError, match="-inf"):
        BestOfRuns(1).update(np.zeros(1, int), np.zeros(1, int), np.full(1, np.nan), np.zeros(1))


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_of_shares_the_one_with_the_best_keeps_it(order):
    """Of each execution, wherever its share stands; a tie goes to the earlier candidate."""
    scores = np.array([[0.9, 0.5, 0.5, -np.inf], [0.8, 0.7, 0.5, 0.1], [0.7, 0.6, 0.4, -np.inf]])
    best = np.array([[6, 3, 7, -1], [1, 4, 5, 8], [0, 2, 9, -1]])
    shares = [
        {selection.OWN_BEST: best[place].copy(), "best_score": scores[place]} for place in order
    ]
    places = selection.leading(shares)
    kept = np.max([share[selection.OWN_BEST] for share in shares], axis=0)
    np.testing.assert_array_equal(kept, [6, 4, 5, 8])
    assert sorted(order[place] for place in places) == [0, 1]
    for place, share in zip(order, shares):
        own = share[selection.OWN_BEST]
        np.testing.assert_array_equal(own[own >= 0], best[place][own >= 0])
        assert (own >= 0).sum() == {0: 1, 1: 3, 2: 0}[place]
