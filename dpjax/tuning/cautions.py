"""Warnings of what a reader of the release would object to, in Python and on the command line."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dpjax.accounting.stated_epsilon import large_delta
from dpjax.after_the_draw import told, users_level
from dpjax.checks import Words
from dpjax.tuning.problem.inspection import gradients_are_finite
from dpjax.tuning.problem.task import Task, accuracy_of


class LargeDeltaWarning(UserWarning):
    """Delta is so large that it allows publishing a whole record."""


class KnownRandomnessWarning(UserWarning):
    """A seed was given: the randomness is no secret, so nothing is guaranteed."""


class UntrainedReleaseWarning(UserWarning):
    """What is released was not trained; the release itself shows as much."""


class UselessModelWarning(Words, UserWarning):
    """The released model is no better than a guess; computed without noise, for the curator."""


def of_arguments(delta: float, public_size: int, seed: int | None) -> None:
    """Warns of a delta above one over the public number of training records, and of a seed."""
    words = large_delta(delta, public_size)
    if words is not None:
        warnings.warn(words, LargeDeltaWarning, stacklevel=users_level())
    if seed is not None:
        warnings.warn(
            "a seed makes the randomness known: no secret, no guarantee",
            KnownRandomnessWarning,
            stacklevel=users_level(),
        )


def of_untrained(why: str) -> None:
    """Warns that untrained parameters are released, and why."""
    told(f"{why}: the model is an untrained default", UntrainedReleaseWarning)


def of_model(task: Task, params: Any, scored: np.ndarray) -> None:
    """Warns of a model that is of no use; `scored` (K,) are the exact scores of all candidates."""
    # If runs are not scored, the validation part is a single made-up record.
    judged = task.validation if task.validation.number > 1 else task.train
    found: list[tuple[Any, ...]] = []
    if task.classifier is not None:
        inputs, labels = judged.single
        if judged.users is not None:
            present = np.reshape(judged.arrays.present, -1)
            inputs, labels = inputs[present], labels[present]
        weights = task.classifier.weighing.weights
        found += doubts(task.classifier.predict(params, inputs), labels, scored, weights)
    elif task.constant_score is not None:
        constant, own = task.constant_score(judged.single), accuracy_of(task, params, judged.arrays)
        if own <= constant:
            words = (
                f"the model scores {own:.3f}, no more than always predicting one value would "
                f"({constant:.3f}): a larger epsilon or more records may help"
            )
            found.append((words,))
    if found and not gradients_are_finite(task, params):
        words = (
            "the gradients of training records are not finite and count as 0, so that the model "
            "was trained on noise alone: look for NaN in the records, and for logarithms and roots "
            "of 0 in the loss"
        )
        found.append((words,))
    for one in found:
        told(UselessModelWarning("for the curator alone: ", *one))


def accuracies(predicted: np.ndarray, labels: np.ndarray, classes: int) -> tuple[float, float]:
    """Returns the accuracy, and the mean accuracy of the classes that occur."""
    right = predicted == labels
    of_classes = [right[labels == one].mean() for one in range(classes) if (labels == one).any()]
    return float(right.mean()), float(np.mean(of_classes))


def doubts(
    predicted: np.ndarray, labels: np.ndarray, scored: np.ndarray, weights: Sequence[float]
) -> Iterator[tuple[Any, ...]]:
    """Yields what tells the curator that a model is of no use, as in `Words`; not private.

    `predicted` (n,) are classes of records with `labels`, `weights` the classes' public ones, empty
    where there are none.
    """
    advice = ": pass ", ("class_priors",), ", the classes' public shares"
    if len(predicted) and (predicted == predicted[0]).all():
        yield f"the model predicts class {int(predicted[0])} for every record", *advice
    if len(scored) > 1 and np.ptp(scored) == 0:
        why = "all candidates score the same, so noise chose among them: pass "
        yield why, ("class_priors",), ", or the score log_likelihood"
    if not len(predicted):
        return
    classes = int(max(labels.max(), predicted.max())) + 1
    accuracy, of_classes = accuracies(predicted, labels, classes)
    most = float(np.bincount(labels).max() / len(labels))
    if not weights and accuracy <= most:
        why = (
            f"the model is right for {accuracy:.3f} of the records, no more than always naming the "
            f"most frequent class would be ({most:.3f})"
        )
        yield why, *advice
    elif weights and of_classes <= 1.0 / len(weights) + 0.01:
        why = (
            f"the model is right for {of_classes:.3f} of each class on average, no more than "
            "guessing: a larger epsilon, more records, or the score log_likelihood may help"
        )
        yield (why,)
