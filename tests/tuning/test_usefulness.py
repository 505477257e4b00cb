"""What the curator hears of a model that is of no use."""

import numpy as np

from dpjax.tuning.cautions import accuracies, doubts

LABELS = np.array([0] * 9 + [1])


def test_a_model_that_says_no_to_everyone_is_named():
    never = np.zeros(10, int)
    assert accuracies(never, LABELS, 2) == (0.9, 0.5)
    found = list(doubts(never, LABELS, np.full(8, 0.9), ()))
    assert [words[0].partition(":")[0] for words in found] == [
        "the model predicts class 0 for every record",
        "all candidates score the same, so noise chose among them",
        "the model is right for 0.900 of the records, no more than always naming the most frequent "
        "class would be (0.900)",
    ]
    found = list(doubts(never, LABELS, np.array([0.9, 0.8]), (0.11, 1.0)))
    assert len(found) == 2 and "no more than guessing" in found[1][0]


def test_of_a_good_model_nothing_is_said():
    assert list(doubts(LABELS, LABELS, np.array([0.5, 0.9]), ())) == []
    found = np.where(np.arange(10) == 0, 1, LABELS)
    assert list(doubts(found, LABELS, np.array([0.5, 0.9]), (0.11, 1.0))) == []
    assert list(doubts(LABELS[:0], LABELS[:0], np.array([]), ())) == []
