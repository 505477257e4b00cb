"""The flags that name how one candidate is selected, and the call of that procedure."""

from __future__ import annotations

import math
from typing import Any

from absl import flags

from dpjax import accounting, tuning
from dpjax.tuning.evaluations.partitions import PARTITION_TRAININGS
from experiments import law_flags

RANDOM_REPETITIONS, THRESHOLD_STOPPING = "random_repetitions", "threshold_stopping"
EXPONENTIAL, DOUBLING = "exponential", "doubling"
PARTITIONED = (EXPONENTIAL, DOUBLING)

_METHOD = flags.DEFINE_enum(
    "method",
    RANDOM_REPETITIONS,
    [RANDOM_REPETITIONS, THRESHOLD_STOPPING, *PARTITIONED],
    "How one candidate is selected: the best of a random number of private runs; the first run "
    "above a threshold; or by the average accuracy of models trained on partitions of the records, "
    "drawn by the exponential mechanism or found by a loop of doubling thresholds.",
)
_THRESHOLD = flags.DEFINE_float("threshold", None, "The accuracy that is good enough.")
_HALTING_PROBABILITY = flags.DEFINE_float(
    "halting_probability", 0.05, "Chance to stop before each run."
)
_CANDIDATES = flags.DEFINE_integer("candidates", 16, "Number of candidates; public.")
_PARTITIONS = flags.DEFINE_integer(
    "partitions", 24, "Partitions of the training records; each candidate is trained on each."
)
_SELECTION_EPSILON = flags.DEFINE_float(
    "selection_epsilon",
    None,
    "epsilon_0: of the one draw (exponential, 1 if unset) or of one iteration (doubling, 0.1).",
)
_PARTITION_TRAINING = flags.DEFINE_enum(
    "partition_training",
    PARTITION_TRAININGS[0],
    list(PARTITION_TRAININGS),
    "How models of partitions are trained; same guarantee. rehearsal: with the clipping and the "
    "noise of an averaged gradient that the final training will have.",
)
_GRANULARITY = flags.DEFINE_float("granularity", 0.01, "Smallest step of the threshold.")
_LOWER_BOUND = flags.DEFINE_float(
    "lower_bound", 0.0, "Average accuracy that is known to be reached, in [0, 1)."
)
_VARIANT = flags.DEFINE_enum(
    "variant",
    "iterations",
    ["iterations", "segments"],
    "What is charged: every iteration, or hits only (threshold noise kept through misses).",
)
_ITERATIONS_CAP = flags.DEFINE_integer(
    "iterations_cap",
    None,
    "Cap on iterations; 0 for the loop's own bound; 20 if unset, and none for --variant=segments.",
)
_HITS_CAP = flags.DEFINE_integer(
    "hits_cap", None, "--variant=segments: cap on hits; 0 for the loop's own bound; 10 if unset."
)

_OF_RUNS = (RANDOM_REPETITIONS, THRESHOLD_STOPPING)
_BELONGS = {
    **dict.fromkeys(("repetitions", "mean", "shape", "trials", "cap"), (RANDOM_REPETITIONS,)),
    **dict.fromkeys(("threshold", "halting_probability"), (THRESHOLD_STOPPING,)),
    **dict.fromkeys(("score_noise", "not_private"), _OF_RUNS),
    **dict.fromkeys(
        ("candidates", "partitions", "selection_epsilon", "partition_training"), PARTITIONED
    ),
    **dict.fromkeys(
        ("granularity", "lower_bound", "variant", "iterations_cap", "hits_cap"), (DOUBLING,)
    ),
}
"""The methods that each flag belongs to."""


def method() -> str:
    """Returns the method, after refusing flags of others.

    Raises:
      ValueError: for a flag that the method does not read, or one it lacks.
    """
    chosen = _METHOD.value
    for name, methods in _BELONGS.items():
        if flags.FLAGS[name].present and chosen not in methods:
            raise ValueError(
                f"--{name} belongs to --method={' or '.join(methods)}: drop it, or change the "
                "method"
            )
    if chosen == THRESHOLD_STOPPING and _THRESHOLD.value is None:
        raise ValueError("--method=threshold_stopping and --threshold go together: pass both")
    if not 0 < _HALTING_PROBABILITY.value <= 1:
        raise ValueError(
            f"--halting_probability={_HALTING_PROBABILITY.value}: pass a number in (0, 1]"
        )
    for flag in (_ITERATIONS_CAP, _HITS_CAP):
        if flag.value is not None and flag.value < 0:
            raise ValueError(f"--{flag.name}={flag.value}: pass at least 1, or 0 for no cap")
    if _HITS_CAP.value and _VARIANT.value != "segments":
        raise ValueError("--hits_cap caps hits, which only --variant=segments charges: pass both")
    return chosen


def mean_runs() -> float:
    """The mean number of runs of a method that trains a random number of them."""
    if _METHOD.value == THRESHOLD_STOPPING:
        return 1.0 / _HALTING_PROBABILITY.value - 1.0
    return law_flags.law_of_repetitions().mean


def select(
    task: tuning.Task,
    space: tuning.Space,
    settings: dict[str, Any],
    of_runs: dict[str, Any],
) -> tuning.Result | None:
    """Calls the procedure that the flags name.

    Args:
      task: what to learn.
      space: public law of the hyperparameters.
      settings: arguments that all procedures take.
      of_runs: arguments of those that select among private runs.
    """
    chosen = _METHOD.value
    if chosen == THRESHOLD_STOPPING:
        return tuning.threshold_stopping(
            task,
            space,
            threshold=_THRESHOLD.value,
            halting_probability=_HALTING_PROBABILITY.value,
            **settings,
            **of_runs,
        )
    if chosen == RANDOM_REPETITIONS:
        law = law_flags.law_of_repetitions()
        return tuning.random_repetitions(task, space, repetitions=law, **settings, **of_runs)
    shared = dict(
        candidates=_CANDIDATES.value,
        partitions=_PARTITIONS.value,
        partition_training=_PARTITION_TRAINING.value,
        **settings,
    )
    if chosen == EXPONENTIAL:
        epsilon = 1.0 if _SELECTION_EPSILON.value is None else _SELECTION_EPSILON.value
        return tuning.exponential(task, space, selection_epsilon=epsilon, **shared)
    segments = _VARIANT.value == "segments"
    return tuning.doubling(
        task,
        space,
        selection_epsilon=0.1 if _SELECTION_EPSILON.value is None else _SELECTION_EPSILON.value,
        granularity=_GRANULARITY.value,
        lower_bound=_LOWER_BOUND.value,
        variant=_VARIANT.value,
        iterations=_cap(_ITERATIONS_CAP.value, None if segments else 20),
        hits=_cap(_HITS_CAP.value, 10) if segments else None,
        **shared,
    )


def _cap(given: int | None, default: int | None) -> int | None:
    """A cap as the procedures take it: 0 stands for none."""
    return default if given is None else given or None


def cost_rows(result: tuning.Result, delta: float) -> list[tuple[str, float, str]]:
    """What a private result and its parts cost, in the order to show.

    Returns:
      (name, epsilon at `delta`, words); the name of the whole is "epsilon".
    """
    one = result.run_guarantee.epsilon(delta)
    whole = ("epsilon", result.guarantee.epsilon(delta), "[bold]the whole tuning")
    if result.selection_guarantee is not None:
        selection = result.selection_guarantee.epsilon(delta)
        return [
            ("epsilon_of_the_selection", selection, "the selection alone"),
            ("epsilon_of_the_final_training", one, "the final training alone"),
            whole,
        ]
    runs = max(1, math.ceil(mean_runs() - 1e-9))
    whose = "the mean of K" if math.isclose(runs, mean_runs()) else f"K's mean is {mean_runs():.3g}"
    naive = accounting.compose(*[result.run_guarantee] * runs).epsilon(delta)
    return [
        ("epsilon_of_one_run", one, "one run"),
        whole,
        ("epsilon_of_naive_composition", naive, f"naive composition of {runs} runs, {whose}"),
    ]
