"""Records how a guarantee was made, as a tree of plain JSON values, and rebuilds it from that.

Each node is {"mechanism": name, "parameters": {...}, "parts": [children]}. The decorator
`mechanism` writes a constructor's node and registers how it is rebuilt; constructors whose node
holds something derived do both themselves. `from_provenance` walks the tree.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Rebuild = Callable[[dict[str, Any], list[Any]], Any]

_REBUILDERS: dict[str, Rebuild] = {}

REMOVED = dict.fromkeys(
    ("best_of_adaptive", "laplace", "profile_table", "randomised_response"), "0.2.0"
)
"""Mechanism -> the last version that can price it and rebuild its guarantees."""


def register(mechanism: str, rebuild: Rebuild) -> None:
    """Registers a mechanism's function (parameters, rebuilt parts) -> Guarantee."""
    if mechanism in _REBUILDERS:
        raise ValueError(f"mechanism {mechanism!r} is registered already: choose another name")
    _REBUILDERS[mechanism] = rebuild


def registered() -> tuple[str, ...]:
    """Returns the sorted names of all mechanisms that a tree can be rebuilt with."""
    return tuple(sorted(_REBUILDERS))


def node(
    mechanism: str, parameters: Mapping[str, Any], parts: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Makes one node of the tree; copies its values through JSON, so that they cannot change later.

    JSON keeps every float64 exactly, so a rebuilt guarantee has the same epsilon, bit for bit.
    """
    return json.loads(
        json.dumps({"mechanism": mechanism, "parameters": dict(parameters), "parts": list(parts)})
    )


def from_provenance(tree: Mapping[str, Any]) -> Any:
    """Rebuilds the guarantee that a tree describes, equal in every number to the original.

    Formal guarantees: the tree is what the guarantee returned writes of itself, value for value: a
    part that is missing, one that nothing reads, or a number that is no longer what was accounted
    is refused. What a caller stated (loss distributions of `Guarantee.from_pld`, a Renyi table, an
    epsilon) is not checked.

    Example:
      >>> from dpjax import accounting
      >>> best = accounting.best_of(accounting.pure(0.5), accounting.Geometric(10))
      >>> accounting.from_provenance(best.provenance).epsilon(0.0) == best.epsilon(0.0)
      True

    Args:
      tree: `Guarantee.provenance`, possibly read back from JSON. A user-defined mechanism is known
        once its module is imported.
    """
    try:
        guarantee = _rebuilt(tree)
        written = guarantee.provenance
    except RecursionError:
        raise ValueError("the provenance is nested too deep: pass Guarantee.provenance") from None
    place = first_difference(tree, written)
    if place is not None:
        raise ValueError(
            f"the provenance of {written['mechanism']!r} does not rebuild itself: it differs at "
            f"{place}; pass Guarantee.provenance as it was written"
        )
    return guarantee


def _rebuilt(tree: Mapping[str, Any]) -> Any:
    """Rebuilds a node after its parts; refuses unknown mechanisms and malformed fields."""
    if not isinstance(tree, Mapping) or "mechanism" not in tree:
        raise ValueError("not a provenance tree: pass Guarantee.provenance (a dict with mechanism)")
    name, parameters, parts = (tree.get(key) for key in ("mechanism", "parameters", "parts"))
    if isinstance(name, str) and name in REMOVED:
        raise ValueError(f"{name!r} was last priced by version {REMOVED[name]}: use that version")
    if not isinstance(name, str) or name not in _REBUILDERS:
        raise ValueError(f"unknown mechanism {str(name)[:80]!r}: pass one of {list(registered())}")
    if not isinstance(parameters, Mapping) or not isinstance(parts, Sequence):
        raise ValueError(f"the provenance of {name!r} lacks or misnames a field: parameters, parts")
    rebuilt = [_rebuilt(part) for part in parts]
    try:
        return _REBUILDERS[name](dict(parameters), rebuilt)
    except ValueError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"the provenance of {name!r} lacks or misnames a field: {error}") from None


def first_difference(
    given: Any, written: Any, place: str = "", tolerance: float = 0.0
) -> str | None:
    """Finds where two trees of JSON values first differ, as names and positions joined by dots.

    Numbers are compared by value (1 and 1.0 are equal), and booleans are not numbers. `place` is
    the path so far; `tolerance` is relative, for numbers that are not both whole.
    """
    name = place or "the top"
    if isinstance(given, Mapping) and isinstance(written, Mapping):
        for key in sorted(given.keys() ^ written.keys(), key=str):
            return f"{place}.{key}".lstrip(".")
        for key in sorted(written):
            within = f"{place}.{key}".lstrip(".")
            found = first_difference(given[key], written[key], within, tolerance)
            if found is not None:
                return found
        return None
    if isinstance(given, list | tuple) and isinstance(written, list | tuple):
        if len(given) != len(written):
            return name
        for index, (one, other) in enumerate(zip(given, written)):
            found = first_difference(one, other, f"{place}.{index}".lstrip("."), tolerance)
            if found is not None:
                return found
        return None
    numbers = all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in (given, written)
    )
    if not numbers:
        return None if type(given) is type(written) and given == written else name
    if given == written:
        return None
    whole = isinstance(given, int) and isinstance(written, int)
    return name if whole or not math.isclose(given, written, rel_tol=tolerance) else None
