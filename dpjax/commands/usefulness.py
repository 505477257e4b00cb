"""Warnings to the curator that a released model may be of no use; computed without noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def accuracies(predicted: np.ndarray, labels: np.ndarray, classes: int) -> tuple[float, float]:
    """Returns the accuracy, and its mean over the classes that occur."""
    right = predicted == labels
    of_classes = [right[labels == one].mean() for one in range(classes) if (labels == one).any()]
    return float(right.mean()), float(np.mean(of_classes))


def doubts(
    predicted: np.ndarray, labels: np.ndarray, scored: np.ndarray, priors: Sequence[float] | None
) -> list[str]:
    """Returns the signs that a model is of no use, one line each; for the curator, not private.

    `predicted` (n,) are classes of scored records with `labels`, `scored` (K,) the exact scores of
    all candidates, `priors` the classes' public shares, if given.
    """
    found = []
    advice = "pass --class_priors, the classes' public shares"
    if len(predicted) and (predicted == predicted[0]).all():
        found.append(f"the model predicts class {int(predicted[0])} for every record: {advice}")
    if len(scored) > 1 and np.ptp(scored) == 0:
        found.append(
            "all candidates score the same, so noise chose among them: pass --score=log_likelihood "
            "or --class_priors"
        )
    if not len(predicted):
        return found
    classes = int(max(labels.max(), predicted.max())) + 1
    accuracy, of_classes = accuracies(predicted, labels, classes)
    most = max(priors) if priors is not None else float(np.bincount(labels).max() / len(labels))
    if priors is None and accuracy <= most:
        found.append(
            f"the model is right for {accuracy:.3f} of the records, no more than always naming the "
            f"most frequent class would be ({most:.3f}): {advice}"
        )
    elif priors is not None and of_classes <= 1.0 / len(priors) + 0.01:
        found.append(
            f"the model is right for {of_classes:.3f} of each class on average, no more than "
            "guessing: larger --epsilon, more records, or --score=log_likelihood may help"
        )
    return found
