"""Replacing one record, from a guarantee for adding or removing one."""

from __future__ import annotations

from dpjax.accounting.guarantee import Guarantee, check_guarantee
from dpjax.accounting.mechanisms.mechanism import mechanism
from dpjax.accounting.numerics.groups import replaced_pair
from dpjax.neighbouring import ADD_OR_REMOVE_ONE, REPLACE_ONE


@mechanism
def replace_one(guarantee: Guarantee) -> Guarantee:
    """What a mechanism known for adding or removing one record costs where one is replaced.

    A replaced record goes, and another comes: the trade-off of the one step composed with that of
    the other (Dong, Roth & Su 2022, Theorem 2.14, on both directions of the dominating pair). It
    holds of every mechanism; one priced under replace-one itself (`dp_sgd_fixed_lots`) costs less.

    Example:
      >>> from dpjax import accounting
      >>> print(f"{accounting.replace_one(accounting.gaussian(2.0)).epsilon(1e-5):.2f}")
      4.38

    Args:
      guarantee: under add-or-remove one.

    Returns:
      Guarantee under replace-one, with loss distributions, and twice a pure epsilon; without a
      Renyi curve.
    """
    check_guarantee("guarantee", guarantee)
    if guarantee.relation != ADD_OR_REMOVE_ONE:
        raise ValueError("guarantee is under replace_one already: pass one under add_or_remove_one")
    known = guarantee.pure_epsilon
    return Guarantee(
        relation=REPLACE_ONE,
        pair=lambda: replaced_pair(guarantee.pair),
        pure_epsilon=None if known is None else 2.0 * known,
    )
