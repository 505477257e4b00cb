"""The flags of a tuner and a clip rule, and the table of what tuning costs."""

from __future__ import annotations

import math
import typing

from dpjax import accounting, training, tuning
from dpjax.commands import derived_flags, law_flags
from dpjax.tuning.problem import fitting_law
from dpjax.tuning.tuners.partition_models import PartitionModels
from dpjax.tuning.tuners.random_repetitions import PrivateRuns

_METHOD = derived_flags.OneOf(
    "method",
    {name: derived_flags.options_of(cls) for name, cls in tuning.registered_tuners().items()},
    "random_repetitions",
    derived_flags.listed("The tuner", tuning.registered_tuners()),
    ", or change the method",
)
_CLIPPING = derived_flags.OneOf(
    "clipping",
    {name: derived_flags.options_of(cls) for name, cls in training.CLIP_RULES.items()},
    None,
    derived_flags.listed(
        "How gradients are clipped; by default as in the public default, with a --space global",
        training.CLIP_RULES,
    ),
    ", or change the clipping",
)
_LAWS = {
    name: [
        field
        for field, kind in typing.get_type_hints(cls).items()
        if law_flags.LAW in (kind, *typing.get_args(kind))
    ]
    for name, cls in tuning.registered_tuners().items()
}
"""The fields of each tuner that are a law of K."""


def tuner() -> tuning.tuner.Tuner:
    """Returns the tuner that the flags ask for."""
    with_a_law = [name for name, fields in _LAWS.items() if fields]
    values = _METHOD.given(dict.fromkeys(law_flags.names(), with_a_law))
    values |= {field: law_flags.law_or_rule() for field in _LAWS[_METHOD.value]}
    cls = tuning.registered_tuners()[_METHOD.value]
    made = getattr(cls, "from_flags", cls)
    with derived_flags.named_as_flags(_METHOD.names):
        return made(**values)


def settings() -> dict[str, str]:
    """Returns setting -> flag, of the tuner's and the clip rule's own settings."""
    return _METHOD.names | _CLIPPING.names


def clip_rule() -> training.ClipRule | None:
    """Returns the clip rule that the flags ask for; None if they name none."""
    values = _CLIPPING.given()
    if _CLIPPING.value is None:
        return None
    return training.CLIP_RULES[_CLIPPING.value](**values)


def is_partitioned(chosen: tuning.tuner.Tuner) -> bool:
    """Returns whether a tuner trains models on partitions to choose by, and releases none."""
    return isinstance(chosen, PartitionModels)


def trains_once(chosen: tuning.tuner.Tuner) -> bool:
    """Returns whether a tuner makes one run with public hyperparameters, and scores nothing."""
    return isinstance(chosen, tuning.Untuned)


def keeps_validation_records(chosen: tuning.tuner.Tuner) -> bool:
    """Returns whether a tuner scores on validation records, kept out of the training."""
    return not (trains_once(chosen) or getattr(chosen, "score_on_training", False))


def law_in_words(chosen: tuning.tuner.Tuner, space: tuning.Space) -> str | None:
    """Returns which law of K was fitted to the space, and why; None if the flags name a law."""
    if not _LAWS[_METHOD.value] or any(getattr(chosen, name) for name in _LAWS[_METHOD.value]):
        return None
    return f"law of K, fitted to the space: {fitting_law.in_words(space)}"


def cost_rows(
    result: tuning.Result, chosen: tuning.tuner.Tuner, space: tuning.Space, delta: float
) -> list[tuple[str, float, str]]:
    """Returns (name, epsilon, text) of a result and its parts, in order; the whole is "epsilon"."""
    run, total = result.run_guarantee, result.guarantee
    assert run is not None and total is not None  # The result is private.
    if trains_once(chosen):
        return [("epsilon", total.epsilon(delta), "[bold]the one run, nothing tuned")]
    one = run.epsilon(delta)
    whole = ("epsilon", total.epsilon(delta), "[bold]the whole tuning")
    if result.selection_guarantee is not None:
        selection = result.selection_guarantee.epsilon(delta)
        return [
            ("epsilon_of_the_selection", selection, "the selection alone"),
            ("epsilon_of_the_final_training", one, "the final training alone"),
            whole,
        ]
    if type(chosen).steps is not PrivateRuns.steps:
        return [("epsilon_of_one_run", one, "one run"), whole]  # Several searches, or none.
    assert isinstance(chosen, PrivateRuns)
    mean = chosen.choice_in(space).expected_runs
    runs = max(1, math.ceil(mean - 1e-9))
    whose = "the mean of K" if math.isclose(runs, mean) else f"K's mean is {mean:.3g}"
    naive = accounting.compose(*[run] * runs).epsilon(delta)
    return [
        ("epsilon_of_one_run", one, "one run"),
        whole,
        ("epsilon_of_naive_composition", naive, f"naive composition of {runs} runs, {whose}"),
    ]
