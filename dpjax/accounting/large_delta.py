"""When a delta says little: one line for whoever reads a price."""

from __future__ import annotations

LARGE = 1e-3
"""From here on a delta is large whatever the number of records, where that is not known."""


def caution(delta: float, public_size: int | None = None) -> str | None:
    """A caution about a delta at which a whole record may be published; None where there is none.

    Publishing each record with probability delta satisfies (0, delta), so that of `public_size`
    records one is expected to be published where delta is 1 / `public_size` (Dwork & Roth 2014,
    Section 2.3).

    Example:
      >>> from dpjax.accounting import large_delta
      >>> large_delta.caution(1e-5, 60_000) is None
      True
      >>> large_delta.caution(0.01)
      'delta 0.01 is large: publishing a whole record in 100 would be within it'

    Args:
      delta: in (0, 1).
      public_size: the number of records, where it is public.
    """
    if public_size is not None:
        if not 1.0 / public_size < delta < 1.0:
            return None
        return (
            f"delta {delta:g} is above 1/{public_size}, one over the number of records: publishing "
            "a whole record would be within it"
        )
    if not LARGE <= delta < 1.0:
        return None
    return (
        f"delta {delta:g} is large: publishing a whole record in {1.0 / delta:.0f} would be within "
        "it"
    )
