"""A provenance tree is refused unless it is what its guarantee writes of itself."""

import copy
import json

import pytest
from dp_accounting import dp_event

from dpjax import accounting
from dpjax.accounting import provenance

_BASE = accounting.dp_sgd(0.1, 2.0, 5)
_COUNT = accounting.discrete_gaussian(3.0)
TREES = {
    "best of": accounting.best_of(
        accounting.parallel(_BASE, _COUNT), accounting.AtMost(accounting.Geometric(3), 5)
    ),
    "composed": accounting.compose(_BASE, accounting.pure(0.1), _BASE),
    "mixture": accounting.mixture([_BASE, accounting.zcdp(0.1)], [0.25, 0.75]),
    "threshold": accounting.stop_at_threshold(accounting.gaussian(2.0), 0.5),
    "split": accounting.split(_BASE, accounting.zcdp(0.1), probability=0.25),
    "loop": accounting.doubling_loop(0.1, 5),
    "exponential": accounting.exponential_mechanism(0.5),
    "fixed lots": accounting.dp_sgd_fixed_lots(100, 10, 2.0, 3),
    "table": accounting.renyi_only([2.0, 3.0], [0.1, 0.2]),
    "masses": accounting.Guarantee.from_pld(accounting.pure(0.5).to_pld(), symmetric=True),
}


@pytest.mark.parametrize("tree", [TREES[name].provenance for name in TREES], ids=TREES)
def test_parts_that_are_extra_missing_or_doubled_are_refused(tree):
    tree = json.loads(json.dumps(tree))
    assert accounting.from_provenance(tree).provenance == tree
    spare = accounting.pure(1.0).provenance
    for path, node in _nodes(tree):
        parts = node["parts"]
        changed = [
            *({key: value for key, value in node.items() if key != gone} for gone in node),
            node | {"extra": 1},
            # One more mechanism on disjoint records is another guarantee.
            *([] if node["mechanism"] == "parallel" else [node | {"parts": [*parts, spare]}]),
            node | {"parts": parts[1:] if parts else [spare]},
            node | {"parameters": node["parameters"] | {"extra": 1}},
            *(
                node | {"parameters": {k: v for k, v in node["parameters"].items() if k != gone}}
                for gone in node["parameters"]
            ),
        ]
        for other in changed:
            with pytest.raises(ValueError) as refused:
                print(accounting.from_provenance(_with(tree, path, other)))
            assert len(str(refused.value).splitlines()) == 1


def _nodes(tree, path=()):
    yield path, tree
    for index, part in enumerate(tree["parts"]):
        yield from _nodes(part, (*path, index))


def _with(tree, path, other):
    if not path:
        return other
    tree = copy.deepcopy(tree)
    node = tree
    for index in path[:-1]:
        node = node["parts"][index]
    node["parts"][path[-1]] = other
    return tree


def _composed(counts):
    tree = accounting.compose(accounting.pure(1.0), accounting.pure(2.0)).provenance
    return tree | {"parameters": {"counts": counts}}


def _event(name, **fields):
    return provenance.node(
        "dp_accounting_event",
        {"event": {"name": name, "fields": fields}, "relation": "add_or_remove_one"},
    )


def _masses(masses):
    tree = TREES["masses"].provenance
    for law in tree["parameters"]["directions"]:
        law["masses"] = masses
    return tree


def _deep():
    tree = accounting.pure(1.0).provenance
    for _ in range(5000):
        tree = {"mechanism": "parallel", "parameters": {}, "parts": [tree]}
    return tree


@pytest.mark.parametrize(
    "tree",
    [
        _composed([0, 1]),
        _composed([1]),
        _composed([1, 1, 1]),
        _composed([1, 1.5]),
        _composed([True, 1]),
        _composed("11"),
        TREES["mixture"].provenance | {"parameters": {"weights": [1.0, 0.0]}},
        TREES["mixture"].provenance | {"parameters": {"weights": [0.5, 0.75]}},
        _masses([0.1, 0.0, 0.1]),
        _masses([]),
        # Names of the events' module that are no events: its imports among them.
        _event("attr"),
        _event("Any"),
        _event("List", events=[]),
        _event("__loader__"),
        # An event, but not one that is priced as it stands.
        _event("NoOpDpEvent"),
        _event("GaussianDpEvent", noise_multiplier=1.0),
        provenance.node(
            "best_of", {"law": {"law": "mine"}, "method": "tight"}, [_composed([1, 1])]
        ),
        provenance.node("gaussian", {"noise_multiplier": {}, "relation": [], "steps": None}),
        _deep(),
        None,
        7,
        {"mechanism": None},
        {"mechanism": {"a": 1}, "parameters": {}, "parts": []},
        {"mechanism": "pure", "parameters": [], "parts": {}},
    ],
)
def test_trees_that_no_guarantee_writes_are_one_line(tree):
    with pytest.raises(ValueError) as refused:
        print(accounting.from_provenance(tree))
    assert len(str(refused.value).splitlines()) == 1


def test_first_difference_names_the_place():
    one = {"a": [1, {"b": 2.0}], "c": "x"}
    differs = provenance.first_difference
    assert differs(one, copy.deepcopy(one)) is None
    assert differs(one, one | {"a": [1, {"b": 2}]}) is None
    assert differs(one, one | {"a": [1, {"b": 2.5}]}) == "a.1.b"
    assert differs(one, one | {"a": [1]}) == "a"
    assert differs(one, {"a": one["a"]}) == "c"
    assert differs([True], [1]) == "0" and differs([1.0], [True]) == "0"
    assert differs(1.0, 1.0 + 1e-10, tolerance=1e-9) is None
    assert differs(10**9 + 1, 10**9, tolerance=1e-8) == "the top"
    for other in (float("inf"), float("nan")):
        assert differs(1.0, other, tolerance=1e-9) == "the top"


@pytest.mark.parametrize("name", [name for name in vars(dp_event) if not name.endswith("DpEvent")])
def test_nothing_but_events_is_called_from_a_tree(name):
    """Whatever else stands in the events' module, inside another event too."""
    inside = {"name": name, "fields": {}}
    for tree in (_event(name), _event("PoissonSampledDpEvent", event=inside)):
        with pytest.raises(ValueError, match=f"'{name}' is not an event"):
            accounting.from_provenance(tree)
