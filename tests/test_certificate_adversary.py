"""Nobody who writes a certificate can make it prove less than what is true.

A certificate holds a few whole numbers, each a choice among bounds that are sound. So the adversary
here tries the corners of their ranges and then climbs from the best, on every kind of release, with
an epsilon 1% below the stated one; and hands over what certificates once held, or never.
"""

import json
import math
import pathlib

import numpy as np
import pytest

from dpjax import certificate

STATEMENTS = sorted((pathlib.Path(__file__).parent / "tuning" / "statements").glob("*.json"))
CORNERS = [
    {"step": step, "fine": fine, "exact": exact}
    for step in (4, 12, 13)
    for fine in (6, 10, 11)
    for exact in (0, 1, 16)
]
TRIES = 6


def _found(words, hints):
    """The largest bound on delta in any case of neighbours; infinity where nothing is proved."""
    certificate.Work.done = 0.0
    try:
        cases = range(certificate.cases_of(words["mechanism"]))
        return max(max(certificate.prove(words, case, hints)) for case in cases)
    except certificate.Unproved:
        return math.inf


@pytest.mark.parametrize("path", STATEMENTS, ids=lambda path: path.stem)
def test_no_choice_of_hints_proves_an_epsilon_below_the_truth(path):
    words = json.loads(path.read_text())
    lower = words | {"epsilon": 0.99 * words["epsilon"]}
    random = np.random.default_rng(len(path.stem))
    tried = [CORNERS[i] for i in random.permutation(len(CORNERS))[: TRIES // 2]]
    best = min(tried, key=lambda hints: _found(lower, hints))
    for _ in range(TRIES // 2):
        name = ("step", "fine", "exact")[random.integers(3)]
        moved = best | {name: best[name] + int(random.choice([-2, -1, 1, 2]))}
        best = min((best, moved), key=lambda hints: _found(lower, hints))
    assert _found(lower, best) > words["delta"]


NEVER = [
    {"step": 12, "fine": 10, "exact": 0, "lines": [[[0.0, 0.0], [1.0, 0.0]]]},
    {"step": 12, "fine": 10},
    {"step": 12, "fine": 10, "exact": True},
    {"step": 12.0, "fine": 10, "exact": 0},
    {"step": -12, "fine": 10, "exact": 0},
    {"step": 12, "fine": 10, "exact": -1},
    {"step": 12, "fine": 10**9, "exact": 0},
    {"step": math.nan, "fine": 10, "exact": 0},
    {"step": None, "fine": None, "exact": None},
    [],
]


@pytest.mark.parametrize("hints", NEVER, ids=repr)
def test_hints_that_are_none_prove_nothing(hints):
    words = json.loads(STATEMENTS[0].read_text())
    with pytest.raises((certificate.Unproved, TypeError, KeyError, AttributeError)):
        certificate.prove(words, 0, hints)
