"""What a guarantee pays for: requests and runs, by the tree that says how it was made.

Nothing here knows whether a price is right. A guarantee is a tree of the runs that it was made
from, and what a tuner asks for has to be found in it, each node once.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from dpjax import accounting
from dpjax.tuning.problem.run_settings import RunSetting, count_guarantee, training_guarantee
from dpjax.tuning.selection import BestOf, FirstAbove

Charge = tuple[float, float]
"""How many requests a guarantee pays for, and how many runs."""

NO_CHARGE, ANY_CHARGE = (0.0, 0.0), (math.inf, math.inf)

ALONE, OWN, SELECTED = "alone", "own", "selected"
"""How a request's runs are paid: each by itself; by a rule of somebody's own, which is taken at its
word; or together, by the one selection that draws their number."""

HOWS = (ALONE, OWN, SELECTED)


class Item(NamedTuple):
    """What a request takes from a guarantee: a node of its tree, as text, and how."""

    node: str
    how: str
    trained: bool


# An audit asks the same for each of many executions.
_of_few = functools.lru_cache(maxsize=32)


@_of_few
def written(guarantee: accounting.Guarantee) -> str:
    """Returns the tree of a guarantee as text."""
    return json.dumps(guarantee.provenance, sort_keys=True)


@_of_few
def charges(
    total: accounting.Guarantee, items: frozenset[Item], own_rules: bool
) -> dict[str, Charge]:
    """Returns what a guarantee pays of each node that is taken, in their presence.

    `own_rules` says whether a selection pays for the runs that somebody's own rule draws; else it
    pays for one run, and only if it never has none.
    """
    nodes = {one.node: one for one in items}
    trees = [(json.loads(node), one) for node, one in nodes.items()]
    return dict.fromkeys(nodes, NO_CHARGE) | _charged(total.provenance, trees, own_rules)


_MIXED, _DISJOINT, _COUNTED, _SUMS = "mixture", "parallel", "compose", ("split", "replace_one")
_SELECTIONS = ("best_of", "stop_at_threshold")


def _charged(
    tree: Mapping[str, Any], nodes: list[tuple[Any, Item]], own_rules: bool
) -> dict[str, Charge]:
    """Returns what a tree pays of each node that it holds; a node pays nothing of its parts."""
    for found, item in nodes:
        if found == tree:
            return {item.node: (1.0, math.inf if item.how == SELECTED else 1.0)}
    parts = [_charged(part, nodes, own_rules) for part in tree["parts"]]
    held = {node for part in parts for node in part}
    rule = tree["mechanism"]
    if not held:
        return {}
    if rule == _MIXED:  # It costs less than its dearest part, so it pays what each part pays.
        return {node: _least(part.get(node, NO_CHARGE) for part in parts) for node in held}
    if rule == _DISJOINT:
        # Of one material. Runs on several others need a mechanism of the tuner's own.
        trained = {item.node for _, item in nodes if item.trained}
        if sum(bool(trained & set(part)) for part in parts) > 1:
            return {}
    if rule in _SELECTIONS:
        return {
            node: (1.0, math.inf) if own_rules else _of_one_run(tree)
            for node in held
            if any(part.get(node, NO_CHARGE)[0] >= 1 for part in parts)
        }
    if rule not in (_COUNTED, _DISJOINT, *_SUMS):
        return dict.fromkeys(held, ANY_CHARGE)
    counts = tree["parameters"]["counts"] if rule == _COUNTED else [1] * len(parts)
    return {
        node: (
            sum(n * part.get(node, NO_CHARGE)[0] for n, part in zip(counts, parts, strict=True)),
            sum(n * part.get(node, NO_CHARGE)[1] for n, part in zip(counts, parts, strict=True)),
        )
        for node in held
    }


def _least(found: Iterable[Charge]) -> Charge:
    requests, runs = zip(*found)
    return min(requests), min(runs)


def _of_one_run(selection: Mapping[str, Any]) -> Charge:
    """Returns what a selection pays of one run that is made for sure."""
    if selection["mechanism"] != "best_of":
        return NO_CHARGE
    law = accounting.law_from_dict(selection["parameters"]["law"])
    return (1.0, 1.0) if law.minimum >= 1 else NO_CHARGE


def items_of(
    run: accounting.Guarantee,
    total: accounting.Guarantee,
    selection: Any = None,
    score: accounting.Guarantee | None = None,
) -> list[Item]:
    """Returns what a request takes of a total: its runs, and its scores if runs do not hold them.

    Args:
      run: what the request's plan says that one run costs.
      total: what the tuner's plan says that all of it costs.
      selection: that draws the number of runs; None for one run.
      score: the cost of one score, None where there is none to pay.
    """
    taken = [_item(run, total, selection, True)]
    if score is not None and not scored(run, score):
        taken.append(_item(score, total, selection, False))
    return taken


def scored(guarantee: accounting.Guarantee, score: accounting.Guarantee) -> bool:
    """Returns whether a guarantee holds a mechanism of a score's kind."""
    return _holds(guarantee.provenance, score.provenance["mechanism"])


def _holds(tree: Mapping[str, Any], mechanism: str) -> bool:
    return tree["mechanism"] == mechanism or any(_holds(one, mechanism) for one in tree["parts"])


def _item(
    one: accounting.Guarantee, total: accounting.Guarantee, selection: Any, trained: bool
) -> Item:
    if selection is None:
        return Item(written(one), ALONE, trained)
    if type(selection) not in (BestOf, FirstAbove):
        return Item(written(one), OWN, trained)
    # Its runs are paid by this very selection, for another law has another price; or else one by
    # one, if their number is no secret.
    item = Item(written(_selected(selection, one)), SELECTED, trained)
    known = isinstance(selection, BestOf) and (
        selection.repetitions.minimum == selection.repetitions.maximum
    )
    if known and not charges(total, frozenset([item]), False)[item.node][0]:
        return Item(written(one), ALONE, trained)
    return item


@_of_few
def _selected(selection: BestOf | FirstAbove, one: accounting.Guarantee) -> accounting.Guarantee:
    return selection.guarantee(one)


_WHOLE = ("compose", "parallel")
"""Mechanisms that cost at least as much as each of their parts.

A mixture costs less than its dearest part, and so may a selection that can have no run.
"""


def includes(tree: Mapping[str, Any], part: Mapping[str, Any]) -> bool:
    """Returns whether a guarantee is seen to cost at least as much as a part of it."""
    return tree == part or (
        tree["mechanism"] in _WHOLE and any(includes(one, part) for one in tree["parts"])
    )


@_of_few
def costs_at_most(
    settings: tuple[RunSetting, ...], charged: accounting.Guarantee, score: float | None, units: int
) -> bool:
    """Returns whether a run costs a part of a guarantee, or at most as much everywhere.

    `score` is the std of the noise, in records, of a score on the records that it is trained on;
    None: there is none, and training alone is compared.
    """
    cost = training_guarantee(list(settings))
    if cost.relation != charged.relation:
        return False
    if score is not None:
        cost = accounting.compose(cost, count_guarantee(score, cost.relation, units))
    if includes(charged.provenance, cost.provenance):
        return True
    grid = np.concatenate([[0.0], np.geomspace(1e-3, 100.0, 120)])
    # Both directions: what is made of a guarantee may read either.
    return all(
        bool(np.all(mine.delta(grid) <= its.delta(grid) + 1e-15))
        for mine, its in (
            (cost.pair.forward, charged.pair.forward),
            (cost.pair.backward, charged.pair.backward),
        )
    )
