"""Writes a release's certificate: what `python -m dpjax.certificate` needs to prove its statement.

The program that checks a proof also finds it. It is only told which grids and which method to use,
and whatever it is told, its result is an upper bound.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from dpjax import certificate
from dpjax.certificate import Unproved

GRIDS = ((12, 10), (13, 11), (14, 13), (16, 14))
"""Minus the binary logarithms of the grids of losses and of normal deviates, coarse ones first."""

HOPELESS = 1.01
"""Multiple of the stated delta beyond which no finer grid is tried."""

LONGEST_TABLE = 256
"""Largest K, of laws that end, with which the exact bound is tried: 10 to 20 s."""

NESTED = ((GRIDS[0], 16), (GRIDS[1], 24), (GRIDS[2], 24), (GRIDS[2], 48))
"""Grids, and numbers of orders of the exact bound, for a selection inside another mechanism."""


@functools.lru_cache(maxsize=64)
def found(statement: bytes) -> dict[str, Any] | None:
    """Returns the certificate of a statement (JSON without hashes); None if there is no proof."""
    words = json.loads(statement)
    if words.get("private") is not True:
        return None
    try:
        return certified(words)
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError):
        return None  # `Unproved`, or a statement with a rule that the program does not know.


def certified(words: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the certificate of a statement, given without hashes; refuses what is not proved.

    Formal guarantees: `certificate.prove` accepts it, here and now, at the stated epsilon and
    delta.

    For JSON: the statement's hash; for either case of neighbours (a record that is trained on,
    one that is validated on) the grids, at how many orders the exact bound is taken (0: the
    envelope alone) and the final sums.
    """
    cases = range(certificate.cases_of(words["mechanism"]))
    return {"statement": certificate.digest(words), "cases": [_case(words, case) for case in cases]}


def _case(words: Mapping[str, Any], case: int) -> dict[str, Any]:
    """Returns the coarsest grid and the quickest bound that prove one case of neighbours."""
    tree = words["mechanism"]
    # A grid whose bound is far above the claim ends the search, but for two kinds of mechanism that
    # coarse grids overstate by far: pure ones, and a selection inside another mechanism.
    hopeless = HOPELESS * words["delta"]
    if _nested(tree) or '"pure"' in json.dumps(tree):
        hopeless = np.inf
    least = np.inf
    for _, tried in itertools.groupby(_attempts(tree), lambda one: one[0]):
        for (step, fine), orders in tried:
            hints = {"step": step, "fine": fine, "exact": orders}
            sums = certificate.prove(words, case, hints)
            least = min(least, max(sums))
            if max(sums) <= words["delta"]:
                return hints | {"sums": sums}
        if least > hopeless:
            break
    raise Unproved(
        f"at the stated epsilon {words['epsilon']:.9g} delta is at most {least:.8g} by "
        f"dpjax.certificate, and {words['delta']:.8g} is claimed"
    )


def _attempts(tree: Mapping[str, Any]) -> list[tuple[tuple[int, int], int]]:
    """Returns grids, and at how many orders the exact bound is taken, in the order of trial."""
    if not _selects(tree):
        return [(grids, 0) for grids in GRIDS]
    # The exact bound evaluates f' a million times: too slow where K has a long table.
    exactly = _largest_table(tree) <= LONGEST_TABLE
    if not _nested(tree):
        return [(grids, orders) for grids in GRIDS for orders in ((0, 1) if exactly else (0,))]
    # A nested selection needs many orders; one is enough for a case without the other mechanism.
    last = [(GRIDS[0], 1), *NESTED] if exactly else []
    return [(GRIDS[0], 0), *last]


def _nested(tree: Mapping[str, Any]) -> bool:
    """Returns whether a selection is inside another mechanism."""
    inside = _nested if tree["mechanism"] == "parallel" else _selects
    return any(map(inside, tree["parts"]))


def _selects(tree: Mapping[str, Any]) -> bool:
    """Returns whether there is a selection among more than one run."""
    own = tree["mechanism"] == "best_of" and tree["parameters"]["law"] != {"law": "fixed", "k": 1}
    return own or any(map(_selects, tree["parts"]))


def _largest_table(tree: Any) -> int:
    """Returns the largest bound on K in a tree of mechanisms; 0 where no K is bounded."""
    if isinstance(tree, list):
        return max(map(_largest_table, tree), default=0)
    if not isinstance(tree, dict):
        return 0
    own = [tree[name] for name in ("cap", "k", "trials") if isinstance(tree.get(name), int)]
    return max([*own, *map(_largest_table, tree.values())], default=0)
