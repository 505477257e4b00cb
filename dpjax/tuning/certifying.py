"""Writes a release's certificate: what `python -m dpjax.certificate` needs to prove its statement.

The proof is found by the program that checks it; what is handed over are its grids, its method and
the lines behind phi, which it verifies again.
"""

from __future__ import annotations

import functools
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
    tree = json.dumps(words["mechanism"])
    selects = "best_of" in tree
    # A loss of epsilon between two knots of a coarse grid costs too much by far.
    hopeless = np.inf if '"pure"' in tree else HOPELESS * words["delta"]
    # The exact bound evaluates f' a million times.
    bounds = 2 if _largest_table(words["mechanism"]) <= LONGEST_TABLE else 1
    least = np.inf
    for step, fine in GRIDS:
        hints: dict[str, Any] = {"step": step, "fine": fine, "lines": None}

        def written(ways: Any, law: Law, hints: dict[str, Any] = hints) -> list[list[list[float]]]:
            hints["lines"] = [lines_above_phi(other, law) for _, other in ways]
            return hints["lines"]

        for lines in (written, None)[:bounds] if selects else (None,):
            hints["lines"] = None
            sums = certificate.prove(words, case, hints | {"lines": lines})
            least = min(least, max(sums))
            if max(sums) <= words["delta"]:
                return hints | {"sums": sums}
        if least > hopeless:
            break
    raise Unproved(
        f"at the stated epsilon {words['epsilon']:.9g} delta is at most {least:.8g} by "
        f"dpjax.certificate, and {words['delta']:.8g} is claimed"
    )


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
