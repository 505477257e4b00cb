"""Models of types that NumPy's files do not know."""

import dataclasses

import flat_call
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_tasks

from dpjax import training, tuning
from dpjax.tuning import job


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float8_e4m3fn", "int8", "bool"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_arrays_of_any_type_are_read_as_they_were_written(kind, shape):
    arrays = {"a b": np.asarray(jnp.ones(shape, kind)), "other": np.arange(3)}
    found = job.unpacked(job.packed(arrays))
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


def test_a_model_of_bfloat16_comes_out_of_its_folder(tmp_path):
    task = small_tasks.linear(small_tasks.parts())
    narrow = dataclasses.replace(
        task,
        initial=lambda key: jax.tree.map(lambda leaf: leaf.astype("bfloat16"), task.initial(key)),
    )

    def released(folder):
        return flat_call.tune(
            tuning.Untuned,
            narrow,
            tuning.Space(learning_rate=0.1, clip_norm=1.0),
            delta=1e-6,
            optimizer=training.sgd(),
            noise_multiplier=2.0,
            lot_size=10,
            steps=2,
            seed=3,
            job=tuning.Job(folder=folder),
        ).release.params

    first, again = (released(str(tmp_path / "work")) for _ in range(2))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(first)} == {"bfloat16"}
    jax.tree.map(np.testing.assert_array_equal, first, again)
