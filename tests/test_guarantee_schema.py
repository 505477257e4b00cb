"""`dpjax/guarantee.schema.json` describes what is written today, and both checkers keep to it."""

import copy
import json
import pathlib

import certificate_adversary as adversary
import pytest
from processes import python

from dpjax import certificate
from dpjax.releases import release, verification

ROOT = pathlib.Path(__file__).parents[1]
SCHEMA = certificate.schema()
COMMITTED = sorted(
    path
    for folder in ("tests", "docs", "experiments")
    for path in (ROOT / folder).rglob("*.json")
    if b'"neighbouring_relation"' in (content := path.read_bytes()) and b'"private"' in content
    if "private" in json.loads(content)
)
KINDS = adversary.kinds()
WHOLE = [name for name in KINDS if name.startswith(("released", "committed"))]
"""Statements with all their fields; `words` are those that a proof needs."""
VALUES = (7, 0.5, "word", True, None, [1], {"a": 1})


def _odd(words):
    return next(certificate.outside(words, SCHEMA), None)


def _places(value, path=()):
    yield path, value
    listed = enumerate(value) if isinstance(value, list) else ()
    for key, one in value.items() if isinstance(value, dict) else listed:
        yield from _places(one, (*path, key))


def _with(value, path, change):
    if not path:
        return change(value)
    value = copy.copy(value)
    value[path[0]] = _with(value[path[0]], path[1:], change)
    return value


@pytest.mark.parametrize("name", KINDS)
def test_what_every_procedure_writes_is_described(name):
    assert _odd(KINDS[name]()) is None


@pytest.mark.parametrize("rounds", [0, 2])
def test_what_a_federation_writes_is_described(rounds, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "releases"))
    import test_verification

    folder = test_verification._federation(tmp_path, rounds)
    assert _odd(json.loads((folder / "guarantee.json").read_text())) is None


def test_every_statement_in_the_tree_is_described():
    assert len(COMMITTED) > 150
    for path in COMMITTED:
        assert _odd(json.loads(path.read_text())) is None, path


def _rules(value):
    """Every schema within a schema, and its place."""
    return [
        (path, rule)
        for path, rule in _places(json.loads(json.dumps(value)))
        if isinstance(rule, dict) and path and path[-2:-1] in (("properties",), ("$defs",))
    ]


def test_every_field_has_a_type_a_meaning_and_readers():
    assert SCHEMA["x-version"] == 1 and len(_rules(SCHEMA)) > 150
    for path, rule in _rules(SCHEMA):
        if path[-1] != "rule" or "enum" not in rule:  # Of the condition, whose field has them.
            assert {"type", "$ref"} & rule.keys() and rule["description"], path
            assert set(rule["x-read-by"]) <= {"certificate", "verification", "people"}, path
            assert rule["x-read-by"], path
    numbers = [rule for _, rule in _rules(SCHEMA) if rule.get("type") == "number"]
    assert sum("x-unit" in rule for rule in numbers) > 0.7 * len(numbers)


def test_no_keyword_is_used_that_the_checkers_do_not_know():
    known = {"$ref", "type", "enum", "items", "properties", "required", "additionalProperties"}
    words = {"description", "x-unit", "x-read-by", "x-version", "$schema", "title", "$comment"}
    inner = {path for path, _ in _places(json.loads(json.dumps(SCHEMA)))}
    for path in inner:
        names = path[-2:-1] in (("properties",), ("$defs",))
        if path and isinstance(path[-1], str) and not names:
            assert path[-1] in known | words | {"$defs", "if", "then"}, path


def test_its_rules_are_those_that_are_registered():
    (rule,) = [one for path, one in _rules(SCHEMA) if path[-1] == "rule" and "enum" in one]
    # In a process of its own: other tests register tuners of theirs in this one.
    program = (
        "import importlib, json; from dpjax.releases import rules;"
        "[importlib.import_module(name) for name in rules.MODULES];"
        # The leaderboard's own tuners.
        "from experiments.figures.leaderboard import extrapolation, subset_tuning;"
        "print(json.dumps(list(rules._REBUILDERS)))"
    )
    ran = python("-c", program)
    assert sorted(json.loads(ran.stdout)) == sorted(rule["enum"]), ran.stderr
    assert certificate.PUBLIC in rule["enum"]


def test_laws_and_mechanisms_of_the_certificate_are_described():
    fields = SCHEMA["$defs"]["mechanism"]["properties"]["parameters"]["properties"]
    named = {one for names, _ in certificate.MECHANISMS.values() for one in names.split()}
    assert named == fields.keys()
    law = SCHEMA["$defs"]["law_of_K"]["properties"]
    assert set().union(*certificate.LAWS.values()) <= law.keys()


@pytest.mark.parametrize("name", WHOLE)
def test_other_names_and_other_types_are_outside(name):
    """In every object whose names are fixed, and at every leaf."""
    words = KINDS[name]()
    tried = 0
    for path, value in _places(words):
        rule = _rule_at(path)
        if isinstance(value, dict) and rule.get("additionalProperties") is False:
            tried += 1
            assert _odd(_with(words, path, lambda one: one | {"another": 1})), path
            for gone in rule.get("required", ()):
                assert _odd(_with(words, path, lambda one, g=gone: _without(one, g))), path
        for other in VALUES:
            kinds = rule.get("type", "object")
            if not any(_is(other, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)):
                assert _odd(_with(words, path, lambda one, other=other: other)), (path, other)
    assert tried > 5


def _without(value, gone):
    return {key: one for key, one in value.items() if key != gone}


def _is(value, kind):
    types = {"integer": int, "number": (int, float), "string": str, "boolean": bool}
    types |= {"array": list, "object": dict, "null": type(None)}
    return isinstance(value, types[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _rule_at(path):
    """What the schema says of a place."""
    rule = SCHEMA
    for key in path:
        if "$ref" in rule:
            rule = SCHEMA["$defs"][rule["$ref"].split("/")[-1]]
        rule = SCHEMA["$defs"]["selection"] if "then" in rule else rule
        known = rule.get("properties", {}).get(key, rule.get("additionalProperties", {}))
        rule = rule.get("items", {}) if isinstance(key, int) else known
    if "$ref" in rule:
        rule = SCHEMA["$defs"][rule["$ref"].split("/")[-1]]
    return SCHEMA["$defs"]["selection"] if "then" in rule else rule


@pytest.mark.parametrize(
    "edit, why",
    [
        (lambda one: one | {"a promise": True}, "a promise is not a field"),
        (lambda one: one | {"delta": "1e-5"}, "delta is not what may stand there"),
        (lambda one: one | {"score": one["score"] | {"rounds": 3}}, "score.rounds is not a field"),
        (
            lambda one: one | {"selection": one["selection"] | {"k": 1}},
            "selection.k is not a field",
        ),
        (lambda one: _without(one, "private"), "private"),
    ],
)
def test_both_checkers_refuse_what_is_outside(edit, why, tmp_path):
    words = KINDS["committed: Adult-2-random_repetitions_prior"]()
    claim = edit(words)
    files = {
        "hyperparameters.json": b"{}",
        certificate.CERTIFICATE: json.dumps(
            {"statement": certificate.digest(claim), "cases": []}
        ).encode(),
    }
    for name, content in release.sealed(files, claim).items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(certificate.Unproved, match=why):
        certificate.check(str(tmp_path))
    with pytest.raises(ValueError, match=why):
        verification.verify_release(tmp_path)


def test_a_tuner_of_ones_own_may_have_numbers_of_its_own():
    words = KINDS["committed: Adult-2-random_repetitions_prior"]()
    words["selection"] = {"rule": "the last of a fixed number of runs", "runs": 2}
    assert _odd(words) is None


@pytest.mark.parametrize("name", WHOLE)
def test_another_reader_of_schemas_says_the_same(name):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(json.dumps(SCHEMA))
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    words = KINDS[name]()
    assert validator.is_valid(words)
    for path, _ in _places(words):
        for other in (True, "word", None, {"another": 1}):
            edited = _with(words, path, lambda one, other=other: other)
            assert validator.is_valid(edited) == (_odd(edited) is None), (path, other)


def _looked_at(words, place=()):
    """Places that a proof has read, without positions in lists."""
    if isinstance(words, list):
        for one in words:
            yield from _looked_at(one, place)
    elif isinstance(words, certificate.Words):
        for name, value in words.items():
            if name in words.read:
                yield (*place, name)
                yield from _looked_at(value, (*place, name))


def test_the_certificate_reads_what_the_schema_says_that_it_reads():
    looked = {("private",), ("sha256",), ("sha256", certificate.OWN), ("epsilon",), ("delta",)}
    for make in KINDS.values():
        text = json.dumps(make())
        words = json.loads(text, object_pairs_hook=certificate._no_name_twice)
        certificate.check_same(words["mechanism"], certificate.tree_of(words))
        certificate.relations_of(words["mechanism"])
        looked |= set(_looked_at(words))
    laws = set().union(*certificate.LAWS.values())  # Of which not each has a release here.
    looked = {
        place[: place.index("mechanism") + 1] if "mechanism" in place else place for place in looked
    }
    looked |= {(*place, one) for place in looked if place[-1] == "law_of_K" for one in laws}
    for place in looked:
        assert "certificate" in _said_of(place)["x-read-by"], place
    said = {path for path, _ in _names(SCHEMA) if "certificate" in _said_of(path)["x-read-by"]}
    assert not said - looked, sorted(said - looked)


def _said_of(place):
    rule = SCHEMA
    for key in place:
        while "properties" not in rule or key not in rule["properties"]:
            rule = (
                SCHEMA["$defs"][rule["$ref"].split("/")[-1]]
                if "$ref" in rule
                else rule["then"]
                if "then" in rule
                else rule["items"]
            )
        rule = rule["properties"][key]
    return rule


def _names(rule, place=()):
    """Places of fields, mechanisms left out."""
    if "$ref" in rule:
        name = rule["$ref"].split("/")[-1]
        if name == "mechanism" or place.count("inner") > 0:
            return
        rule = SCHEMA["$defs"][name]
    for within in [rule.get("then"), rule.get("items")]:
        if within:
            yield from _names(within, place)
    for key, one in rule.get("properties", {}).items():
        yield (*place, key), one
        yield from _names(one, (*place, key))
