"""Threshold stopping: run until one run is good enough, or a coin says stop.

Jingcheng Liu and Kunal Talwar, "Private Selection from Private Candidates", STOC 2019; Papernot &
Steinke (ICLR 2022), Appendix C. Without the coin the procedure would have no guarantee at all: how
long it searches depends on the data.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from dpjax import checks
from dpjax.tuning.evaluations.running import Result, run_selection
from dpjax.tuning.problem.run_settings import RunOptions
from dpjax.tuning.problem.space import Space
from dpjax.tuning.problem.task import Task
from dpjax.tuning.tuners.random_repetitions import random_repetitions
from dpjax.tuning.tuners.selections import FirstAbove

_OF_A_RUN = tuple(field.name for field in dataclasses.fields(RunOptions))
_DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(random_repetitions).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY and name != "repetitions"
}
"""The settings that it shares with `random_repetitions`, stated there."""


def threshold_stopping(
    task: Task,
    space: Space,
    *,
    threshold: float,
    halting_probability: float = 0.05,
    **settings: Any,
) -> Result | None:
    """Trains candidates until one scores at least `threshold`, and releases that one.

    Before each run a coin says stop with probability `halting_probability`; then the release holds
    parameters that do not depend on data. So at most 1 / halting_probability - 1 runs are made on
    average, and fewer where good candidates are common.

    Formal guarantees:
      `result.release` is (`result.guarantee.epsilon(delta)`, delta)-differentially private under
      the conditions of `random_repetitions`, with the number of runs in place of K: it is secret,
      the coin comes from the operating system's randomness, and the threshold was fixed before the
      data was seen. The cost is `accounting.stop_at_threshold`'s.

    Args:
      task: what to learn, with its training and validation records.
      space: public law of the hyperparameters.
      threshold: on the score, the noisy validation accuracy over the public size, in [0, 1].
      halting_probability: of the coin, in (0, 1].
      **settings: `epsilon`, `delta`, `noise_multiplier`, `lot_size`, `steps`, `epochs`, `sampling`,
        `optimizer`, `validation_is_public`, `score_noise`, `not_private`, `seed`, `chunk_size`,
        `progress` and `job`, as in `random_repetitions`.

    Returns:
      A `Result`; its curator's record shows how many runs there would have been and which won. None
      for a shard, as in `random_repetitions`.

    Raises:
      ValueError: for a threshold outside [0, 1] or a halting probability outside (0, 1], and as
        `random_repetitions`.
      TypeError: for an unknown setting.

    Warns:
      cautions.LargeDeltaWarning, cautions.KnownRandomnessWarning: before anything is drawn.
      cautions.UntrainedReleaseWarning: if no trained model is released.
    """
    threshold = checks.probability("threshold", threshold, zero=True, one=True)
    halting_probability = checks.probability("halting_probability", halting_probability, one=True)
    unknown = sorted(set(settings) - set(_DEFAULTS))
    if unknown:
        raise TypeError(f"threshold_stopping has no setting {', '.join(unknown)}")
    settings = _DEFAULTS | settings
    of_a_run = {name: settings.pop(name) for name in _OF_A_RUN}
    return run_selection(
        task,
        space,
        FirstAbove(threshold, halting_probability),
        RunOptions(**of_a_run),
        **settings,
    )
