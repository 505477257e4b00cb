"""Labels that no model can be trained or scored on are refused before anything is drawn."""

import dataclasses

import flax.linen as nn
import numpy as np
import pytest

from dpjax import models, tuning

SOURCE = np.random.default_rng(0)
INPUTS = SOURCE.normal(size=(40, 3)).astype(np.float32)
LABELS = (np.arange(40) % 2).astype(np.int32)


def _changed(label, place=3):
    changed = LABELS.copy()
    changed[place] = label
    return changed


BAD = {
    "unlabelled": (_changed(-1), "train records are not all in 0..1"),
    "unlabelled as in torch": (_changed(-100), "not all in 0..1"),
    "beyond the classes": (_changed(2), "not all in 0..1.*a model with more outputs"),
    "float": (LABELS.astype(np.float32), "are float32 of shape .*labels.astype"),
    "nan": (np.where(LABELS == 1, np.nan, 0.0), "are float"),
    "text": (LABELS.astype(str), "are <U"),
    "objects": (LABELS.astype(object), "are object"),
    "bool": (LABELS == 1, "are bool"),
    "one-hot": (np.eye(2, dtype=np.int32)[LABELS], "shape"),
    "one column": (LABELS[:, None], "shape"),
    "masked": (np.ma.masked_array(LABELS, LABELS == 1), "masked"),
}


def _records(labels, inputs=INPUTS):
    return tuning.Records((inputs.copy(), labels.copy()), public_size=40, size_bound=50)


def _of_users(labels):
    return tuning.Records.of_users(
        (INPUTS, labels), np.arange(40) // 2, most_records=2, public_size=20, size_bound=30
    )


@pytest.mark.parametrize("records", [_records, _of_users])
@pytest.mark.parametrize("part", ["train", "validation"])
@pytest.mark.parametrize("name", BAD)
def test_labels_of_both_parts_are_refused_in_one_line(name, part, records):
    labels, message = BAD[name]
    with pytest.raises(ValueError, match=message.replace("train", part)) as caught:
        parts = {"train": LABELS, "validation": LABELS} | {part: labels}
        if records is _of_users:
            one = {key: _of_users(of) for key, of in parts.items()}
            one["validation"] = dataclasses.replace(
                one["validation"], identifiers=one["validation"].identifiers + 100
            )
        else:
            one = {key: _records(of) for key, of in parts.items()}
        tuning.classification(models.LogisticRegression(2), **one)
    assert "\n" not in str(caught.value)


def test_records_that_take_the_place_of_others_are_tried_too():
    task = tuning.classification(models.LogisticRegression(2), _records(LABELS), _records(LABELS))
    with pytest.raises(ValueError, match="validation records are not all in 0..1"):
        dataclasses.replace(task, validation=_records(_changed(-1)))


def test_the_hinge_loss_says_which_labels_it_takes():
    with pytest.raises(ValueError, match="models.hinge takes as 0 and 1, not -1 and 1"):
        tuning.classification(
            nn.Dense(1), _records(2 * LABELS - 1), _records(LABELS), loss=models.hinge
        )


@pytest.mark.parametrize("label", [-1, 2, np.nan])
def test_several_labels_at_once_are_0_or_1(label):
    labels = np.stack([LABELS, LABELS], axis=1).astype(np.float32)
    bad = labels.copy()
    bad[3, 1] = label
    tuning.multi_label(nn.Dense(2), _records(labels), _records(labels))
    with pytest.raises(ValueError, match="validation records are not all 0 or 1"):
        tuning.multi_label(nn.Dense(2), _records(labels), _records(bad))


@pytest.mark.parametrize("token", [-1, 7])
def test_tokens_are_in_the_vocabulary_of_the_model(token):
    tokens = np.tile(np.arange(7, dtype=np.int32), (40, 1))
    bad = tokens.copy()
    bad[3, 4] = token
    train, validation = (tuning.Records(one, 40, 50) for one in (tokens, bad))
    model = nn.Sequential([nn.Embed(7, 4), nn.Dense(7)])
    with pytest.raises(ValueError, match="validation records are not all in 0..6"):
        tuning.next_token(model, train, validation)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (INPUTS.astype(complex), "complex128"),
        (INPUTS.astype(object), "object"),
        (np.ma.masked_array(INPUTS, INPUTS > 9), "masked"),
        (np.zeros((40, 0), np.float32), "at least one number a record"),
    ],
)
def test_inputs_that_no_model_is_trained_on_are_refused(inputs, message):
    with pytest.raises(ValueError, match=message):
        _records(LABELS, inputs)
