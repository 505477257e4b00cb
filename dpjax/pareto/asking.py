"""Asking oracles that may fail: a point that fails is named, with the reason; the others go on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from dpjax.pareto.domain import Settings, number_of, select
from dpjax.pareto.oracles import PrivacyOracle, UtilityOracle


def asked_privacy(privacy: PrivacyOracle, settings: Settings) -> tuple[np.ndarray, list[str]]:
    """Epsilons (n,), nan where failed, and the reasons, empty where not."""
    number = number_of(settings)
    answers, why = _one_by_one_if_needed(lambda which: privacy(select(settings, which)), number)
    epsilon = np.full(number, np.nan)
    for place, answer in enumerate(answers):
        if why[place]:
            continue
        if np.shape(answer) != ():
            raise ValueError(
                f"the privacy oracle answered {np.shape(answer)} for a point: return one epsilon "
                "for each setting, shape (n,)"
            )
        if np.isfinite(answer) and answer >= 0:
            epsilon[place] = answer
        else:
            why[place] = f"the privacy oracle gave epsilon {float(answer):g}"
    return epsilon, why


def asked_utility(
    utility: UtilityOracle, settings: Settings, seeds: np.ndarray, failed_as: float | None
) -> tuple[list[np.ndarray], list[str]]:
    """Utilities (R,) of each setting, and the reasons of failure, empty where there is none."""
    takes_seeds = "seeds" in inspect.signature(utility).parameters

    def ask(which: np.ndarray) -> np.ndarray:
        chosen = select(settings, which)
        return utility(chosen, seeds=seeds[which]) if takes_seeds else utility(chosen)

    answers, why = _one_by_one_if_needed(ask, len(seeds))
    measured = []
    for place, answer in enumerate(answers):
        own = np.zeros(0) if why[place] else np.asarray(answer, np.float64)
        if not why[place]:
            if own.ndim != 1 or not own.size:
                raise ValueError(
                    f"the utility oracle answered {own.shape} for a point: return the utilities of "
                    "all repetitions, shape (n, R)"
                )
            real = own[~np.isnan(own)]
            if ((real < 0) | (real > 1)).any():
                why[place] = f"a utility of {real[(real < 0) | (real > 1)][0]:g} is not in [0, 1]"
            elif failed_as is None and len(real) < len(own):
                why[place] = f"{len(own) - len(real)} of {len(own)} repetitions failed"
        measured.append(own)
    return measured, why


def _one_by_one_if_needed(
    ask: Callable[[np.ndarray], np.ndarray], number: int
) -> tuple[list[Any], list[str]]:
    """Asks for all points at once; if that raises, for each alone, to find which ones fail."""
    try:
        answers = ask(np.arange(number))
        if len(answers) != number:
            raise ValueError(
                f"an oracle gave {len(answers)} answers for {number} settings: return one for each"
            )
        return list(answers), [""] * number
    except Exception as error:
        if number == 1:
            return [None], [_one_line(error)]
    alone = [_alone(ask, place) for place in range(number)]
    return [answer for answer, _ in alone], [reason for _, reason in alone]


def _alone(ask: Callable[[np.ndarray], np.ndarray], place: int) -> tuple[Any, str]:
    try:
        (answer,) = ask(np.array([place]))
        return answer, ""
    except Exception as error:
        return None, _one_line(error)


def _one_line(error: Exception) -> str:
    """What went wrong, in one line that is never empty."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
