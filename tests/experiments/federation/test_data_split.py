"""One data set over simulated nodes: every record once, and what is refused."""

import types

import numpy as np
import pytest

from experiments.federation import data_split


def _context(number):
    return types.SimpleNamespace(run_config={}, node_config={"partition-id": number})


@pytest.mark.parametrize("concentration", [0.0, 0.5])
def test_parts_of_a_data_set_are_disjoint_and_complete(concentration):
    settings = {"dataset": "digits", "clients": 4, "concentration": concentration}
    load = data_split.parts_of_data_set(settings)
    parts = [load(_context(number)) for number in range(4)]
    sizes = [len(labels) for _, labels in parts]
    everything = np.concatenate([inputs.reshape(len(inputs), -1) for inputs, _ in parts])
    whole = data_split.divided_as({"dataset": "digits", "clients": 1})[0][0]
    assert len(everything) == len(whole)
    np.testing.assert_array_equal(
        np.sort(everything.sum(axis=1)), np.sort(whole.reshape(len(whole), -1).sum(axis=1))
    )
    assert (max(sizes) - min(sizes) > 1) == (concentration > 0)
