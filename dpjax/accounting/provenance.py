"""How a guarantee was made, as a tree of plain JSON values that can be recomputed.

Each node is {"mechanism": name, "parameters": {...}, "parts": [children]}. A constructor of
guarantees registers how its node is rebuilt; `from_provenance` walks the tree.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Rebuild = Callable[[dict[str, Any], list[Any]], Any]

_REBUILDERS: dict[str, Rebuild] = {}


def register(mechanism: str, rebuild: Rebuild) -> None:
    """Tells how to rebuild a guarantee from a node.

    Args:
      mechanism: the node's name, unique.
      rebuild: (parameters, rebuilt parts) -> Guarantee.
    """
    if mechanism in _REBUILDERS:
        raise ValueError(f"mechanism {mechanism!r} is registered already: choose another name")
    _REBUILDERS[mechanism] = rebuild


def node(
    mechanism: str, parameters: Mapping[str, Any], parts: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """One node of the tree; the values are copied through JSON, so that they cannot change later.

    JSON keeps every float64 exactly, so a rebuilt guarantee has the same epsilon, bit for bit.
    """
    return json.loads(
        json.dumps({"mechanism": mechanism, "parameters": dict(parameters), "parts": list(parts)})
    )


def from_provenance(tree: Mapping[str, Any]) -> Any:
    """Recomputes the guarantee a tree describes.

    Args:
      tree: `Guarantee.provenance`, possibly read back from JSON.

    Returns:
      The Guarantee, equal in every number to the one that wrote the tree.

    Raises:
      ValueError: if the tree names a mechanism this version does not know, or lacks a field.
    """
    if not isinstance(tree, Mapping) or "mechanism" not in tree:
        raise ValueError("not a provenance tree: pass Guarantee.provenance (a dict with mechanism)")
    name = tree["mechanism"]
    if name not in _REBUILDERS:
        raise ValueError(f"unknown mechanism {name!r}: pass one of {sorted(_REBUILDERS)}")
    parts = [from_provenance(part) for part in tree.get("parts", ())]
    try:
        return _REBUILDERS[name](dict(tree.get("parameters", {})), parts)
    except (KeyError, TypeError) as error:
        raise ValueError(f"the provenance of {name!r} lacks or misnames a field: {error}") from None
