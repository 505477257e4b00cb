"""Reads dp_accounting's events by `interop`, which is imported at the first one.

dp_accounting takes most of a second to import; prices of our own mechanisms need none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpjax.accounting import provenance
from dpjax.accounting.guarantee import Guarantee, register_reader
from dpjax.neighbouring import ADD_OR_REMOVE_ONE

if TYPE_CHECKING:
    from dp_accounting import dp_event as dp_events


def from_dp_event(event: dp_events.DpEvent, relation: object = ADD_OR_REMOVE_ONE) -> Guarantee:
    """Returns the guarantee of a dp_accounting event.

    dp_accounting's noise multipliers are noise / clip norm C whatever the relation; replacing one
    record moves a clipped sum by 2C, so under "replace_one" a Gaussian event's multiplier is
    halved here, in Renyi and loss distributions alike (dp_accounting 0.6.0 halves it in one only).

    Example:
      >>> import dp_accounting
      >>> from dpjax import accounting
      >>> event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(4.0), 10)
      >>> print(f"{accounting.from_dp_event(event).epsilon(1e-5):.2f}")
      3.34

    Args:
      event: NoOp, Gaussian, Laplace, DiscreteLaplace, RandomizedResponse, MixtureOfGaussians,
        ZCDp, TruncatedSubsampledGaussian, PoissonSampled of Gaussians, SampledWithoutReplacement
        of Gaussians (replace one), RepeatAndSelect, events of `register_selection`, and Composed
        and SelfComposed of these.
      relation: neighbouring relation of the guarantee.
    """
    from dpjax.accounting import interop

    return interop.from_dp_event(event, relation)


def _rebuilt(parameters: dict[str, Any], parts: list[Guarantee]) -> Guarantee:
    """Rebuilds the guarantee of an event from its node in a provenance."""
    # If the event has a constructor here, the result's node is the constructor's, not this one.
    from dpjax.accounting import interop

    event = interop.from_plain(parameters["event"])
    return interop.from_dp_event(event, parameters["relation"])


provenance.register("dp_accounting_event", _rebuilt)
register_reader("dp_event", from_dp_event)
