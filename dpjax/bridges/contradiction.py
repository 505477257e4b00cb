"""What stops a whole tuning: a run that was not what is charged for it."""

from __future__ import annotations


class ContradictionError(RuntimeError):
    """A run contradicts the guarantee declared for it, so that nothing may be released.

    Any other exception of a run counts and ranks worst. This one ends the tuning, wherever the run
    was: its price is not the one that the release would state. Its message is the curator's.

    Example:
      >>> from dpjax import accounting, bridges, tuning
      >>> def run(seed, hyperparameters):  # Of a training that counts its own steps.
      ...     raise bridges.ContradictionError("1200 steps were made where 1000 are paid for")
      >>> bridges.tune(
      ...     run,
      ...     tuning.Space(rate=tuning.LogUniform(0.01, 1)),
      ...     base=accounting.gaussian(2.0),
      ...     score=bridges.CountedScore("disjoint", public_size=1000),
      ...     repetitions=accounting.Fixed(3),
      ... )
      Traceback (most recent call last):
          ...
      dpjax.bridges.contradiction.ContradictionError: 1200 steps were made where 1000 are paid for
    """
