"""Nobody who writes a certificate can make it prove less than what is true.

A certificate holds a few whole numbers, each a choice among bounds that are sound. The adversary of
`tests/helpers/certificate_adversary.py` searches them, and hands over whatever else JSON can hold
in their places, for every kind of release; as a script it does so for as long as one likes.
"""

import math

import certificate_adversary as adversary
import pytest

from dpjax import certificate

KINDS = adversary.kinds()
MADE_AT_ONCE = [name for name in KINDS if not name.startswith("released")]
"""Those whose statements need no tuning."""


def _attacked(name, factor, folder, *, odd, climbs):
    words = KINDS[name]()
    seen = adversary.Attempts()
    one = adversary.Adversary(words, factor, folder, len(name), seen)
    one.offer_oddities(number=odd)
    one.climb(climbs)
    assert not seen.proved, seen.proved[0]
    return seen


@pytest.mark.parametrize("name", MADE_AT_ONCE)
def test_an_adversary_proves_no_smaller_epsilon(name, tmp_path):
    """A short form: twenty files that are none, and one that is. The script climbs on, and for
    releases of every tuner."""
    seen = _attacked(name, 0.99, tmp_path, odd=20, climbs=1)
    assert seen.number >= 21 and seen.computed and seen.least > 1.0


def test_nothing_that_json_can_hold_proves_a_smaller_epsilon(tmp_path):
    seen = _attacked("words: a vote, scaled", 0.99, tmp_path, odd=None, climbs=0)
    assert seen.number > 300 and seen.least > 1.0


def test_the_adversary_sees_what_is_true(tmp_path):
    """Else its failures would show nothing: a true epsilon is proved to it in a few attempts."""
    seen = adversary.Attempts()
    words = KINDS["words: a vote, scaled"]()
    adversary.Adversary(words, 1.001, tmp_path, 0, seen).climb(9)
    assert seen.proved


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
    words = KINDS[MADE_AT_ONCE[0]]()
    with pytest.raises((certificate.Unproved, TypeError, KeyError, AttributeError)):
        certificate.prove(words, 0, hints)
