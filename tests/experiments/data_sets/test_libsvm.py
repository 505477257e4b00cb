"""LIBSVM's files, and which rows of a9a make up a1a."""

import numpy as np
import pytest

from dpjax import data
from experiments.data_sets import adult


def test_a_file_is_read(tmp_path):
    path = tmp_path / "a9a"
    path.write_text("-1 1:1 123:0 \n+1 2:1 123:1 \n-1 \n")
    inputs, labels = adult.read_libsvm(path)
    assert inputs.shape == (3, 123)
    assert np.argwhere(inputs).tolist() == [[0, 0], [1, 1], [1, 122]]
    assert labels.tolist() == [0, 1, 0]


@pytest.mark.parametrize("line", ["0 1:1", "-1 1:2", "-1 0:1", "-1 124:1", "+1 1", "1 1:1"])
def test_a_line_that_cannot_be_is_refused(tmp_path, line):
    path = tmp_path / "a9a"
    path.write_text(f"-1 1:1\n{line}\n")
    with pytest.raises(ValueError, match="line 2"):
        adult.read_libsvm(path)


def test_files_of_another_length_are_refused(publish):
    data_dir = publish("a9a", {"a9a": b"-1 1:1\n", "a9a.t": b"-1 1:1\n"})
    with pytest.raises(ValueError, match=r"a9a: train inputs of shape \(1, 123\).*32561"):
        data.load("a9a", data_dir)


@pytest.mark.parametrize(
    ("share", "published_size"),
    [
        (0.05, 1605),
        (0.07, 2265),
        (0.10, 3185),
        (0.15, 4781),
        (0.20, 6414),
        (0.35, 11_220),
        (0.50, 16_100),
        (0.70, 22_696),
    ],
)
def test_the_rule_gives_the_published_sizes_of_a1a_to_a8a(share, published_size):
    assert adult.in_a1a(share=share).sum() == published_size


def test_the_first_rows_of_a1a():
    # Where the first rows of public copies of a1a stand in a9a.
    assert np.flatnonzero(adult.in_a1a())[:6].tolist() == [0, 15, 23, 24, 59, 64]


def test_a1a_divides_a9a():
    # Rows that say where they are: the label alternates.
    count = adult.A9A_COUNT
    labels = (np.arange(count) % 2).astype(np.uint8)
    arrays = adult.divided(np.zeros((count, 123), np.uint8), labels)
    assert (len(arrays["train_inputs"]), len(arrays["test_inputs"])) == (30_956, 1605)
    together = np.concatenate([arrays["train_identifiers"], arrays["test_identifiers"]])
    assert sorted(together) == list(range(count))
    for role in ("train", "test"):
        np.testing.assert_array_equal(arrays[f"{role}_labels"], arrays[f"{role}_identifiers"] % 2)
