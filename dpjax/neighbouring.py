"""Neighbouring relations: which pairs of data sets a guarantee holds for.

Every package may import this module; it imports none of them.
"""

from __future__ import annotations

ADD_OR_REMOVE_ONE = "add_or_remove_one"
"""Neighbours differ by the presence of one record; the number of records is private."""

REPLACE_ONE = "replace_one"
"""Neighbours have equally many records and differ in the value of one; their number is public."""

RELATIONS = (ADD_OR_REMOVE_ONE, REPLACE_ONE)


def normalise_relation(relation: object) -> str:
    """Returns the canonical name of a neighbouring relation.

    Args:
      relation: one of the two names above, in any case and with `-` or spaces for `_`, or a member
        of `dp_accounting.NeighboringRelation`.
    """
    name = str(getattr(relation, "name", relation)).strip().lower()
    name = name.replace("-", "_").replace(" ", "_")
    if name not in RELATIONS:
        raise ValueError(
            f"unknown neighbouring relation {relation!r}: pass {ADD_OR_REMOVE_ONE!r} or "
            f"{REPLACE_ONE!r}"
        )
    return name
