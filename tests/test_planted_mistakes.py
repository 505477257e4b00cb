"""The texts that planted mistakes replace are there: a rebuilding must not lose them unseen."""

import ast
import importlib.util
import pathlib
import sys

import mistake_kinds
import pytest

_PATH = pathlib.Path(__file__).parent / "planted_mistakes.py"
_SPEC = importlib.util.spec_from_file_location("planted_mistakes", _PATH)
planted = importlib.util.module_from_spec(_SPEC)
sys.modules["planted_mistakes"] = planted  # Dataclasses look their module up.
_SPEC.loader.exec_module(planted)


@pytest.mark.parametrize("mistake", planted.MISTAKES, ids=lambda mistake: mistake.name)
def test_each_text_occurs_once_and_its_tests_exist(mistake):
    assert (planted.ROOT / mistake.file).read_text().count(mistake.old) == 1
    for test in mistake.tests:
        file, _, function = test.partition("[")[0].partition("::")
        text = (planted.ROOT / file).read_text()
        assert not function or f"def {function}(" in text, test


def test_every_header_has_a_mistake_below_it():
    """So the test above looks for every test that a header names."""
    assert not planted.out_of_order((planted.ROOT / "tests" / "planted_mistakes.txt").read_text())


@pytest.mark.parametrize(
    ("left_out", "lacking"),
    [(1, ["=== file"]), (2, ["::: test"]), (3, ["# name"]), (slice(2, 5), ["::: test"])],
)
def test_what_lacks_its_next_line_is_found(left_out, lacking):
    whole = ["=== file", "::: test", "# name", "-old", "+new"]
    rest = list(whole)
    del rest[left_out]
    assert planted.out_of_order("\n".join([*whole, *rest, *whole])) == lacking
    assert planted.out_of_order("\n".join([*whole, *rest])) == lacking
    assert planted.out_of_order("\n".join([*whole, *whole])) == []


def test_places_of_every_kind_are_found_and_can_be_planted():
    found = mistake_kinds.places("releases/l")
    assert {place.kind for place in found} == set(mistake_kinds.KINDS)
    assert len({place.name for place in found}) == len(found)
    for place in found:
        text = (planted.ROOT / place.file).read_text()
        assert text.count(place.old) == 1 and place.old != place.new, place.name
        ast.parse(text.replace(place.old, place.new))


def test_a_draw_leaves_out_what_changes_nothing():
    found = mistake_kinds.drawn(50)
    assert len(found) == 50 * len(mistake_kinds.KINDS)
    assert mistake_kinds.REDUNDANT.keys().isdisjoint(place.name for place in found)


def test_the_mistakes_that_are_audited_are_there(monkeypatch):
    monkeypatch.syspath_prepend(_PATH.parent)
    import mistakes_by_audit

    names = {mistake.name for mistake in planted.MISTAKES}
    assert {audited.mistake for audited in mistakes_by_audit.AUDITED} <= names
