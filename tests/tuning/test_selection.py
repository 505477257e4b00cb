"""The selection: one total order, whatever the chunks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
