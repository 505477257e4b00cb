"""The user's own arrays: public numbers are asked for, bad values are refused in one line."""

import io
import tracemalloc
import zipfile

import numpy as np
import pytest

from dpjax import data
from dpjax.data import splitting, user_arrays

INPUTS = np.arange(24, dtype=np.float64).reshape(8, 3)
LABELS = np.arange(8) % 2


def load(inputs=INPUTS, labels=LABELS, **changes):
    return data.from_arrays(inputs, labels, **{"public_size": 8, "classes": 2, **changes})


def test_arrays_are_used_as_they_are():
    result = load(test=(INPUTS[:2], LABELS[:2]))
    np.testing.assert_array_equal(result.train.inputs, INPUTS.astype(np.float32))
    assert result.train.inputs.dtype == np.float32
    assert result.train.labels.dtype == np.int32
    assert result.train.public_size == result.train.size_bound == 8
    assert result.test.public_size == 2
    assert result.validation is None
    assert result.classes == 2


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float16, np.float32, bool])
def test_every_real_type_becomes_float32(dtype):
    assert load(inputs=np.ones((8, 2, 2), dtype)).train.inputs.dtype == np.float32


def test_labels_may_be_floats_with_integer_values():
    np.testing.assert_array_equal(load(labels=LABELS.astype(float)).train.labels, LABELS)


def with_value(value):
    inputs = INPUTS.copy()
    inputs[3, 1] = value
    return inputs


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"public_size": None}, "pass public_size="),
        ({"classes": None}, "pass classes="),
        ({"classes": 1}, "at least 2"),
        ({"inputs": with_value(np.nan)}, "NaN"),
        ({"inputs": with_value(np.inf)}, "infinite"),
        ({"inputs": with_value(1e39)}, "infinite"),  # Fits float64 only.
        ({"inputs": INPUTS.astype(complex)}, "real numbers"),
        ({"inputs": INPUTS.astype(object)}, "real numbers"),
        ({"inputs": INPUTS[:, 0]}, "one row per record"),
        ({"labels": LABELS[:-1]}, "one per record"),
        ({"labels": LABELS[:, None]}, "one per record"),
        ({"labels": LABELS * 2 - 1}, r"in 0\.\.1"),
        ({"labels": LABELS + 1}, r"in 0\.\.1"),
        ({"labels": LABELS + 0.5}, r"in 0\.\.1"),
        ({"labels": np.where(LABELS, np.nan, 0.0)}, r"in 0\.\.1"),
        ({"labels": LABELS.astype(str)}, "pass integers"),
        ({"public_size": 7}, "more records than size_bound"),
        ({"identified_by": "name"}, "identified_by='name'"),
        ({"identified_by": "identifiers"}, "needs identifiers"),
        ({"identifiers": LABELS}, "identifiers repeat"),
        ({"identifiers": np.arange(7)}, "one integer or string"),
        ({"identifiers": np.arange(8.0)}, "one integer or string"),
        ({"validation": (INPUTS, LABELS)}, "validation_public_size="),
        ({"test": (INPUTS[:, :2], LABELS)}, "pass equal shapes"),
        ({"test": (INPUTS, LABELS + 7)}, "test labels"),
    ],
)
def test_bad_arrays_are_refused_in_one_line(changes, message):
    with pytest.raises(ValueError, match=message) as raised:
        load(**changes)
    assert "\n" not in str(raised.value)


def test_the_count_may_differ_from_the_public_size():
    split = load(public_size=5, size_bound=20).train
    assert (split.public_size, split.size_bound, split.number_of_records) == (5, 20, 8)


def test_a_brought_validation_part_has_its_own_public_size():
    result = load(validation=(INPUTS[:4], LABELS[:4]), validation_public_size=4)
    assert result.parts(0.5, b"k").validation.public_size == 4


def test_what_identifies_a_record():
    content = splitting.content_identifiers(INPUTS.astype(np.float32), LABELS.astype(np.int32))
    np.testing.assert_array_equal(load().train.identifiers, content)
    np.testing.assert_array_equal(load(identified_by="slot").train.identifiers, np.arange(8))
    given = np.arange(8) * 10
    np.testing.assert_array_equal(load(identifiers=given).train.identifiers, given)
    by_content = load(identifiers=given, identified_by="content").train.identifiers
    np.testing.assert_array_equal(by_content, content)


def test_text_identifiers_do_not_depend_on_the_width_of_the_array():
    names = np.array([f"person {number}" for number in range(8)])
    narrow = load(identifiers=names).train.identifiers
    wide = load(identifiers=names.astype("U40")).train.identifiers
    encoded = load(identifiers=names.astype("S")).train.identifiers
    assert narrow.tobytes() == wide.tobytes() == encoded.tobytes()
    assert len(np.unique(narrow)) == 8


def save(tmp_path, **arrays):
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays)
    return path


def test_a_file_is_loaded_by_its_path(tmp_path):
    path = save(
        tmp_path,
        inputs=INPUTS,
        labels=LABELS,
        test_inputs=INPUTS[:3],
        test_labels=LABELS[:3],
        validation_inputs=INPUTS[:2],
        validation_labels=LABELS[:2],
        identifiers=np.arange(8)[::-1],
    )
    result = data.load(str(path), public_size=8, classes=2, validation_public_size=2)
    assert result.train.number_of_records == 8
    assert result.test.number_of_records == 3
    assert result.validation.number_of_records == 2
    np.testing.assert_array_equal(result.train.identifiers, np.arange(8)[::-1])


def test_a_file_without_its_public_size_is_refused(tmp_path):
    with pytest.raises(ValueError, match="pass public_size="):
        data.load(str(save(tmp_path, inputs=INPUTS, labels=LABELS)), classes=2)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"inputs": INPUTS}, "pass inputs and labels"),
        ({"inputs": INPUTS, "labels": LABELS, "extra": LABELS}, "pass inputs and labels"),
        ({"inputs": INPUTS, "labels": LABELS, "test_inputs": INPUTS}, "test_inputs alone"),
        ({"inputs": INPUTS.astype(object), "labels": LABELS}, "plain arrays"),
    ],
)
def test_a_file_with_other_keys_is_refused(tmp_path, arrays, message):
    with pytest.raises(ValueError, match=message):
        user_arrays.load_arrays(save(tmp_path, **arrays), public_size=8, classes=2)


def test_what_nothing_reads_is_not_unpacked(tmp_path):
    """A file of 260 kB that would become 256 MB under a name that is refused."""
    path = save(tmp_path, inputs=INPUTS, labels=LABELS)
    with (
        zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive,
        archive.open("more.npy", "w", force_zip64=True) as stream,
    ):
        header = {"descr": "|u1", "fortran_order": False, "shape": (1 << 28,)}
        np.lib.format.write_array_header_2_0(stream, header)
        for _ in range(256):
            stream.write(bytes(1 << 20))
    assert path.stat().st_size < 300_000
    tracemalloc.start()
    with pytest.raises(ValueError, match="holds .*'more'.*: pass inputs and labels"):
        user_arrays.load_arrays(path, public_size=8, classes=2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 22


def test_a_name_twice_is_refused(tmp_path):
    path = save(tmp_path, inputs=INPUTS, labels=LABELS)
    content = io.BytesIO()
    np.save(content, 1 - LABELS)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("labels.npy", content.getvalue())
    with pytest.raises(ValueError, match="each once"):
        user_arrays.load_arrays(path, public_size=8, classes=2)


def test_a_file_that_is_none_is_refused(tmp_path):
    text = tmp_path / "text.npz"
    text.write_text("hello")
    single = tmp_path / "single.npz"
    with single.open("wb") as stream:
        np.save(stream, INPUTS)
    for path in (text, single):
        with pytest.raises(ValueError, match="not an .npz file"):
            user_arrays.load_arrays(path, public_size=8, classes=2)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        data.load(str(tmp_path / "nowhere.npz"), public_size=8, classes=2)
