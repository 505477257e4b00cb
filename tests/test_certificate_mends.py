"""Ways in which a certificate once proved too much, each as a class; derived from the tables."""

import copy
import json
import sys

import certificate_adversary as adversary
import numpy as np
import pytest

from dpjax import certificate

KINDS = {name: make for name, make in adversary.kinds().items() if not name.startswith("released")}
RULED = [name for name in KINDS if not name.startswith("words: a vote")]
"""Whose words name a rule of selection."""
HINTS = {"step": 12, "fine": 10, "exact": 0}


def test_a_hull_that_falls_at_its_end_lowers_nothing():
    """Its lines are as high as those given, and its last corner is a cap that cuts none of them."""
    t = np.append(0.0, np.geomspace(1e-3, 1e3, 200))[:, None]
    for end in ((0.9, 1e-3), (5.0, 0.5), (2.0, 0.0), (0.3, -1.0)):
        flat, high = np.array([0.1, 0.2, 0.4, 0.8, end[0]]), np.array([2.0, 3.0, 4.0, 4.5, end[1]])
        a, b = certificate.hull(flat, high)
        assert np.all(np.diff(a) > 0.0) and np.all(np.diff(b) > 0.0)
        phi = np.minimum(np.maximum(b - a * t, 0.0).max(axis=1), b[-1])
        least = np.maximum(high - flat * t, 0.0).max(axis=1)
        assert np.all(phi >= least * (1.0 - 1e-12))


def test_lines_through_points_that_are_no_numbers_prove_nothing():
    flat, high = np.array([0.1, 0.2, 0.4]), np.array([2.0, 3.0, 4.0])
    certificate.hull(flat, high)
    for place in range(3):
        with pytest.raises(certificate.Unproved, match="not above it"):
            certificate.hull(flat, np.where(np.arange(3) == place, np.nan, high))


@pytest.mark.parametrize("name", RULED)
def test_a_rule_with_other_words_beside_it_is_none(name):
    words = KINDS[name]()
    rule = words["selection"]["rule"]
    certificate.tree_of(words)
    for other in (
        *(f"{rule} after 999 others", f"{rule} ", f"{rule}.", f" {rule}", f"best of 999: {rule}"),
        *(
            rule[:-1],
            rule.upper(),
            rule.split()[0],
            rule.split(";")[0] + ";",
            rule + "\n",
            "",
            None,
        ),
        *(["none: one private run was enough after 999 others"], rule.split()),
    ):
        edited = copy.deepcopy(words)
        edited["selection"]["rule"] = other
        with pytest.raises(certificate.Unproved, match="beyond this program"):
            certificate.tree_of(edited)


def _sample(name, parts):
    """A value of a parameter, as `is_parameter` takes it."""
    for value in ({"law": "geometric", "mean": 2.0}, "tight", "rest", "segments", *_NUMBERS):
        value = [value] * parts if name in ("counts", "weights") else value
        if certificate.is_parameter(name, value, parts):
            return value
    raise AssertionError(name)


_NUMBERS = (1, 0.5, 0.0, "add_or_remove_one", "replace_one")


def _node(entry, parts=None):
    """The mechanism of an entry of the table, with parameters that are good."""
    names, number = certificate.MECHANISMS[entry]
    below = [_node("dp_sgd") for _ in range(number if number is not None else 1)]
    below = below if parts is None else parts
    values = {one: _sample(one, len(below)) for one in names.split()}
    values |= {"votes": 1, "candidates": 3} if "votes" in values else {}
    if "variant" in values:
        values["variant"] = "segments" if "hits" in values else "iterations"
    return certificate.node(entry.split(" by ")[0], below, **values)


@pytest.mark.parametrize("entry", certificate.MECHANISMS)
def test_a_mechanism_has_its_parameters_and_no_others(entry):
    """Twenty iterations with "hits": 1 beside them have no price, nor has less than is needed."""
    tree = _node(entry)
    certificate.relations_of(tree)
    named = {one for names, _ in certificate.MECHANISMS.values() for one in names.split()}
    bad = [tree["parameters"] | {one: 1} for one in sorted(named - tree["parameters"].keys())]
    assert bad
    bad += [
        {key: one for key, one in tree["parameters"].items() if key != gone}
        for gone in tree["parameters"]
    ]
    bad += [tree["parameters"] | {"parts": []}, {**tree["parameters"], "": 1}]
    for values in bad:
        _refused(tree | {"parameters": values})


@pytest.mark.parametrize("entry", certificate.MECHANISMS)
def test_a_mechanism_has_as_many_parts_as_it_takes(entry):
    tree, number = _node(entry), certificate.MECHANISMS[entry][1]
    for count in {0, 1, 2, 3} - {number}:
        if number is not None or count == 0:
            parts = [_node("dp_sgd") for _ in range(count)]
            _refused(tree | {"parts": parts})
    _refused(tree | {"extra": 1})
    _refused({key: one for key, one in tree.items() if key != "parts"})


def _refused(tree):
    with pytest.raises(certificate.Unproved, match="beyond this program"):
        certificate.relations_of(tree)
    with pytest.raises((certificate.Unproved, KeyError)):
        certificate.bounds(tree, 0, 1.0, 1e-14, HINTS)


def _counted(function, most):
    """Calls it; lines of the program that it runs are counted, and not seconds."""
    lines, own = [0], certificate.__file__
    certificate.schema()  # Is read once.

    def traced(frame, event, argument):
        if frame.f_code.co_filename != own:
            return None
        lines[0] += event == "line"
        if lines[0] > most:
            raise AssertionError("it does not end")
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        return function()
    finally:
        sys.settrace(before)


def _names(value):
    """Of the numbers in a statement, wherever they stand."""
    if isinstance(value, list):
        return set().union(*map(_names, value))
    found = set[str]()
    if not isinstance(value, dict):
        return found
    for key, one in value.items():
        found |= _names(one) | ({key} if type(one) in (int, float) else set())
    return found


def _everywhere(words, name, value):
    if isinstance(words, list):
        return [_everywhere(one, name, value) for one in words]
    if not isinstance(words, dict):
        return words
    return {
        key: value if key == name and type(one) in (int, float) else _everywhere(one, name, value)
        for key, one in words.items()
    }


@pytest.mark.parametrize("name", KINDS)
def test_a_hostile_number_is_refused_at_once(name):
    """Wherever it stands, the words and the mechanism alike, unless no cost hangs on it."""
    words = KINDS[name]()
    meant, tried = certificate.tree_of(words), 0
    for key in sorted(_names(words)):
        for size in (10**12, 10**18, 1 << 62, 10**300, 1e300):
            hostile = _everywhere(words, key, size)

            def proved(hostile=hostile, key=key, size=size):
                mechanism = certificate.tree_of(hostile)
                claimed = {name: hostile[name] for name in ("epsilon", "delta")}
                if mechanism == meant and claimed.items() <= words.items():
                    return
                certificate.prove(hostile | {"mechanism": mechanism}, 0, HINTS)
                raise AssertionError(f"{key} may be {size}")

            try:
                _counted(proved, 60_000)
            except (certificate.Unproved, ArithmeticError):
                tried += 1
    assert tried > 20


def test_work_is_counted_before_it_is_done(monkeypatch):
    """Sums of many terms, and trees that are deep or wide."""
    certificate.Work.done = 0.0
    with monkeypatch.context() as context:
        context.setattr(certificate, "MOST_WORK", 1e6)
        with pytest.raises(certificate.Unproved, match="more work"):
            _counted(lambda: certificate.overflow(10**18, 0.5, 10**18 // 2 + 9, 9), 5_000)
    certificate.Work.done = 0.0
    tree = _node("dp_sgd")
    for _ in range(certificate.DEEPEST + 1):
        tree = certificate.node("parallel", [tree])
    _refused(tree)
    certificate.Work.done = 0.0
    wide = certificate.node("parallel", [_node("dp_sgd")] * (certificate.MOST_NODES + 1))
    with pytest.raises(certificate.Unproved, match="more work"):
        certificate.relations_of(wide)


@pytest.mark.parametrize("name", KINDS)
def test_what_is_not_read_is_said(name, tmp_path):
    """Whatever a proof does not look at may be changed, and the line names all of that."""
    made = KINDS[name]()
    words, tree = _read(made), certificate.tree_of(made)
    certificate.check_same(words["mechanism"], certificate.tree_of(words))
    said = certificate.unread(words)
    assert {"unit_of_privacy", "assumptions"} & words.keys() <= set(said)
    for place in said:
        edited = _changed(copy.deepcopy(made), place.split("."))
        assert certificate.tree_of(edited) == tree, place
    hidden = certificate.Words(words)
    hidden["a promise"] = _read({"that": ["nobody", {"reads": 1}]})
    assert "a promise" in certificate.unread(hidden)


def _read(words):
    """As the program reads a file."""
    return json.loads(json.dumps(words), object_pairs_hook=certificate._no_name_twice)


def _changed(words, path):
    if isinstance(words, list):
        return [_changed(one, path) for one in words]
    if path[0] in words:
        words[path[0]] = _changed(words[path[0]], path[1:]) if path[1:] else "another"
    return words
