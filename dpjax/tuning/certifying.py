"""Writes a release's certificate: what `python -m dpjax.certificate` needs to prove its statement.

The proof is found by the program that checks it; what is handed over are its grids, its method and
the lines behind phi, which it verifies again.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from dpjax import certificate
from dpjax.certificate import Law, Measure, Unproved

GRIDS = ((12, 10), (13, 11), (14, 13), (16, 14))
"""Minus the binary logarithms of the grids of losses and of normal deviates, coarse ones first."""

HOPELESS = 1.01
"""Multiple of the stated delta beyond which no finer grid is tried."""

LONGEST_TABLE = 256
"""Largest K, of laws that end, with which the exact bound is tried: 10 to 20 s."""

NESTED = ((GRIDS[0], 16), (GRIDS[0], 48), (GRIDS[2], 32), (GRIDS[2], 64))
"""Grids, and numbers of orders of the exact bound, for a selection inside another mechanism."""

KNOTS = 1500
"""Values of t between which phi is replaced by its chords: epsilon grows by 0.004%."""


@functools.lru_cache(maxsize=64)
def found(statement: bytes) -> dict[str, Any] | None:
    """The certificate of a statement as it is written; None where there is none.

    Args:
      statement: JSON, without hashes.
    """
    words = json.loads(statement)
    if words.get("private") is not True:
        return None
    try:
        return certified(words)
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError):
        return None  # `Unproved`, or words of a rule that the program does not know.


def certified(words: Mapping[str, Any]) -> dict[str, Any]:
    """The certificate of a statement.

    Formal guarantees: `certificate.prove` accepts it, here and now, at the stated epsilon and
    delta.

    Args:
      words: what `guarantee.json` says, without its hashes.

    Returns:
      JSON-able: the statement's hash; for either case of neighbours (a record that is trained on,
      one that is validated on) the grids, the lines behind phi in both directions (None where none
      is used) and the final sums.

    Raises:
      Unproved: in one line, for a statement that `dpjax.certificate` does not prove.
    """
    cases = range(certificate.cases_of(words["mechanism"]))
    return {
        "statement": certificate.digest(words),
        "cases": [_case(words, case) for case in cases],
    }


def _case(words: Mapping[str, Any], case: int) -> dict[str, Any]:
    """The coarsest grid and the quickest bound that prove a case."""
    tree = words["mechanism"]
    # A loss of epsilon between two knots of a coarse grid costs too much by far; so does a
    # selection inside another mechanism without the exact bound.
    hopeless = HOPELESS * words["delta"]
    if _nested(tree) or '"pure"' in json.dumps(tree):
        hopeless = np.inf
    least = np.inf
    for _, tried in itertools.groupby(_attempts(tree), lambda one: one[0]):
        for (step, fine), by_lines, orders in tried:
            lines: list[Any] | None = [] if by_lines else None
            hints = {"step": step, "fine": fine, "lines": lines, "exact": orders}
            written = None if lines is None else functools.partial(_written, lines)
            try:
                sums = certificate.prove(words, case, hints | {"lines": written})
            except Unproved:
                if lines is None:  # A selection inside another mechanism needs them.
                    continue
                raise
            least = min(least, max(sums))
            if max(sums) <= words["delta"]:
                return hints | {"sums": sums}
        if least > hopeless:
            break
    raise Unproved(
        f"at the stated epsilon {words['epsilon']:.9g} delta is at most {least:.8g} by "
        f"dpjax.certificate, and {words['delta']:.8g} is claimed"
    )


def _attempts(tree: Mapping[str, Any]) -> list[tuple[tuple[int, int], bool, int]]:
    """Grids, whether there are lines, and how many orders the exact bound is taken at; in turn."""
    if not _selects(tree):
        return [(grids, False, 0) for grids in GRIDS]
    # The exact bound evaluates f' a million times.
    exactly = _largest_table(tree) <= LONGEST_TABLE and "best_of_adaptive" not in json.dumps(tree)
    if not _nested(tree):
        ways = (True, False) if exactly else (True,)
        return [(grids, lines, 0) for grids in GRIDS for lines in ways]
    closer = NESTED if exactly else ()
    last = [(GRIDS[0], False, 0)] if exactly else []  # For the case that has one selection alone.
    return [(GRIDS[0], True, 0), *last, *((grids, True, orders) for grids, orders in closer)]


def _nested(tree: Mapping[str, Any]) -> bool:
    """Whether a selection is inside another mechanism."""
    inside = _nested if tree["mechanism"] == "parallel" else _selects
    return any(map(inside, tree["parts"]))


def _selects(tree: Mapping[str, Any]) -> bool:
    """Whether there is a selection among more than one run."""
    own = "best_of" in tree["mechanism"] and tree["parameters"]["law"] != {"law": "fixed", "k": 1}
    return own or any(map(_selects, tree["parts"]))


def _written(lines: list[Any], ways: Any, law: Law) -> list[list[list[float]]]:
    """The lines of one selection in both directions, which are added to these."""
    lines.append([lines_above_phi(other, law) for _, other in ways])
    return lines[-1]


def _largest_table(tree: Any) -> int:
    """The largest K of the laws in a tree of mechanisms that end; 0 where none does."""
    if isinstance(tree, list):
        return max(map(_largest_table, tree), default=0)
    if not isinstance(tree, dict):
        return 0
    own = [tree[name] for name in ("cap", "k", "trials") if isinstance(tree.get(name), int)]
    return max([*own, *map(_largest_table, tree.values())], default=0)


def lines_above_phi(reverse: Measure, law: Law) -> list[list[float]]:
    """Lines b - a t, [a, b] with a ascending from 0, the largest of which is at least phi(t).

    phi is convex, so the chords between its values at some t are above it.

    Args:
      reverse: law of log(dQ'/dQ) under Q'.
      law: of K.
    """
    a, b = _hull(*certificate.points(reverse, law))
    with np.errstate(divide="ignore", over="ignore"):
        turns = np.diff(b) / np.diff(a)
    largest = min(float(np.max(turns, initial=2.0)), 1e30)
    t = np.append(0.0, np.geomspace(1e-3, largest, KNOTS))
    best = np.searchsorted(-turns, -t, side="left")
    phi = np.maximum(b[best] - a[best] * t, 0.0)
    falls = -np.diff(phi) / np.diff(t)
    heights = phi[:-1] + falls * t[:-1]
    flat, high = np.append(0.0, falls[::-1]), np.append(phi[-1], heights[::-1])
    # Above the points by more than rounding.
    a, b = _hull(flat, high * (1.0 + 1e-9) + 1e-14)
    return np.stack([a, b], axis=1).tolist()


def _hull(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Vertices of the upper concave hull of points, where it rises."""
    order = np.lexsort((b, a))
    a, b = a[order], b[order]
    # A line that is no higher than a flatter one is never the largest.
    rising = np.append(True, b[1:] > np.maximum.accumulate(b)[:-1])
    a, b = a[rising], b[rising]
    highest = np.append(np.diff(a) > 0.0, True)
    kept: list[tuple[float, float]] = []
    for x, y in zip(a[highest].tolist(), b[highest].tolist()):
        while len(kept) >= 2:
            (x0, y0), (x1, y1) = kept[-2:]
            if (y - y1) * (x1 - x0) < (y1 - y0) * (x - x1):
                break
            kept.pop()
        kept.append((x, y))
    found = np.array(kept)
    return found[:, 0], found[:, 1]
