"""What stops a whole tuning: a run that was not what is charged for it."""

from __future__ import annotations


class ContradictionError(RuntimeError):
    """A run contradicts the guarantee declared for it, so that nothing may be released.

    Any other exception of a run counts and ranks worst. This one ends the tuning, wherever the run
    was: its price is not the one that the release would state. Its message is the curator's.
    """
