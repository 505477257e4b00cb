"""Texts as hashed words: by hand, alone, and without a trace of other texts."""

import numpy as np
import pytest

from dpjax import data
from dpjax.data import tables, text

SCHEMA = {
    "target": {"column": "urgent", "classes": ["no", "yes"]},
    "columns": {"age": {"range": [0, 100]}, "note": {"text": 32}},
}
NOTES = ["Water leak, water!", "", None, "ein Rohr: LECKT"]
TABLE = {"age": [50, 0, 0, 0], "note": NOTES, "urgent": ["yes", "no", "no", "yes"]}


def place(word, slots=32):
    """Where a word falls, by the page's own words: eight bytes of BLAKE2b, little endian."""
    import hashlib

    digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % slots


def test_words_by_hand():
    found = data.from_table(TABLE, SCHEMA, public_size=4)
    assert found.train.inputs.shape == (4, 2 + 32) and len(found.feature_names) == 34
    notes = found.train.inputs[:, 2:]
    assert np.flatnonzero(notes[0]).tolist() == sorted({place("water"), place("leak")})
    assert np.flatnonzero(notes[3]).tolist() == sorted({place(w) for w in ("ein", "rohr", "leckt")})
    assert not notes[1:3].any() and notes.max() == 1.0
    assert found.train.inputs[:, 0].tolist() == [0.5, 0, 0, 0]


def test_case_forms_and_marks_do_not_matter_and_apostrophes_do():
    same = ["Café, don't!", "CAFE\u0301 — (don't)", "don't café café"]
    encoded = text.hashed_words(same, 64)
    assert (encoded == encoded[0]).all()
    assert text.words("don't a_b 3.5") == ["don't", "a", "b", "3", "5"]


def test_a_text_is_encoded_the_same_whatever_the_others_hold():
    notes = [f"word{i} and word{i * 7 % 50}" for i in range(50)]
    together = text.hashed_words(notes, 128)
    for at in (0, 17, 49):
        np.testing.assert_array_equal(text.hashed_words([notes[at]], 128)[0], together[at])


def test_the_norm_is_bounded_by_the_words_and_by_the_slots():
    long = " ".join(f"w{i}" for i in range(5000))
    (row,) = text.hashed_words([long], 16)
    assert row.max() == 1.0 and np.sum(row**2) <= 16
    (row,) = text.hashed_words(["one two three"], 1024)
    assert np.sum(row**2) <= 3


def test_a_table_of_texts_alone_is_one_and_new_texts_are_encoded_alike():
    known = SCHEMA | {"columns": {"age": "leave out", "note": {"text": 32}}}
    found = data.from_table(TABLE, known, public_size=4)
    encode = data.read_schema(known).encode
    np.testing.assert_array_equal(encode({"note": NOTES}), found.train.inputs)
    np.testing.assert_array_equal(encode({"note": NOTES[0]})[0], found.train.inputs[0])


def test_texts_without_words_are_shown_to_the_curator():
    known = SCHEMA | {"columns": {"age": "leave out", "note": {"text": 32}}}
    (fit,) = tables.check_schema(TABLE, known)
    assert fit.line == "note: 0.0% other, 0.0% below and 0.0% above the range, 50.0% missing"


def test_a_schema_to_fill_in_offers_text(tmp_path):
    import json

    data.write_schema({"note": []}, tmp_path / "new.json")
    written = json.loads((tmp_path / "new.json").read_text())
    assert "text" in written["columns"]["note"] and '"text": 1024' in written["about"]
    with pytest.raises(ValueError, match='"text": 1024'):
        data.read_schema(
            {"target": {"column": "a", "above": 1}, "columns": {"note": {"text": None}}}
        )
