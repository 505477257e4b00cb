"""A node reads its own folder."""

import os
import types

import numpy as np
import pytest
from flower_messages import context

from dpjax.federated.flower import storage


def _save(folder, name, count=4, **changed):
    arrays = {"inputs": np.full((count, 2), count), "labels": np.arange(count) % 2}
    np.savez(folder / name, **(arrays | changed))


def test_folder_is_read_whole_and_in_order(tmp_path):
    _save(tmp_path, "b.npz", 3)
    _save(tmp_path, "a.npz", 2)
    inputs, labels = storage.records_in_folder(context(node_config={"data": str(tmp_path)}))
    np.testing.assert_array_equal(inputs[:, 0], [2, 2, 3, 3, 3])
    np.testing.assert_array_equal(labels, [0, 1, 0, 1, 0])
    assert inputs.dtype == np.float32 and labels.dtype == np.int64


def test_only_the_nodes_own_configuration_names_the_folder(tmp_path):
    _save(tmp_path, "a.npz")
    with pytest.raises(ValueError, match="--node-config"):
        storage.records_in_folder(context(run_config={"data": str(tmp_path)}))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"labels": np.arange(5)}, "as many whole-numbered labels"),
        ({"labels": np.linspace(0, 1, 4)}, "whole-numbered"),
        ({"inputs": np.full((4, 2), np.nan)}, "NaN"),
        ({"inputs": np.zeros((4, 3))}, "other files have"),
    ],
)
def test_bad_files_are_refused(tmp_path, changed, message):
    _save(tmp_path, "a.npz")
    _save(tmp_path, "b.npz", **changed)
    with pytest.raises(ValueError, match=message) as caught:
        storage.read_folder(str(tmp_path))
    assert "b.npz" in str(caught.value)


def test_missing_things_are_named(tmp_path):
    with pytest.raises(ValueError, match="is not a folder"):
        storage.read_folder(str(tmp_path / "absent"))
    with pytest.raises(ValueError, match="holds no .npz file"):
        storage.read_folder(str(tmp_path))
    np.savez(tmp_path / "a.npz", inputs=np.zeros((3, 2)))
    with pytest.raises(ValueError, match="has no labels"):
        storage.read_folder(str(tmp_path))


def test_links_out_of_the_folder_are_refused(tmp_path):
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    other.mkdir()
    _save(other, "a.npz")
    os.symlink(other / "a.npz", own / "a.npz")
    with pytest.raises(ValueError, match="leads out of its folder"):
        storage.read_folder(str(own))


@pytest.mark.parametrize("config", [{}, {"data": ""}, {"data": 3}, {"data": True}, {"data": b"a"}])
def test_a_node_without_the_name_of_a_folder_is_told_how_to_start(config):
    context = types.SimpleNamespace(node_config=config)
    with pytest.raises(storage.SetupError, match="no folder of records: start the node with"):
        storage.records_in_folder(context)
