"""A batch without rows sums to zero, as an empty lot does: Opacus' cases of empty batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import training
from dpjax.training.clipping.clip_rules import CLIP_RULES

PARAMS = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2), "none": jnp.zeros((0, 4))}


def _loss(params, row, *key):
    drawn = jax.random.normal(key[0]) if key else 1.0
    return jnp.sum((row["x"] @ params["w"] + params["b"]) ** 2) * drawn / row["y"]


def _rows(number):
    return {"x": jnp.ones((number, 3)), "y": jnp.ones(number, jnp.bfloat16)}


def _call(rows, with_rng=False, mask=None, **options):
    gradient = training.clipped_grad(_loss, with_rng=with_rng, **options)
    return gradient(PARAMS, _rows(rows), 1.0, mask, jax.random.key(1) if with_rng else None)


@pytest.mark.parametrize("method", ["auto", "factored", "materialised"])
@pytest.mark.parametrize("clipping", ["global", "per_leaf", "automatic"])
@pytest.mark.parametrize("with_rng", [False, True])
def test_no_rows_sum_to_zero_in_every_way(method, clipping, with_rng):
    summed, found = _call(0, with_rng, method=method, clipping=clipping)
    like, of_two = _call(2, with_rng, method=method, clipping=clipping)
    assert jax.tree.map(jnp.shape, summed) == jax.tree.map(jnp.shape, like)
    assert jax.tree.map(lambda leaf: leaf.dtype, summed) == jax.tree.map(lambda x: x.dtype, like)
    assert all(float(jnp.abs(leaf).sum()) == 0.0 for leaf in jax.tree.leaves(summed))
    assert jax.tree.map(lambda leaf: (0, *leaf.shape[1:]), of_two) == jax.tree.map(jnp.shape, found)


def test_rules_are_all_tried():
    assert {"global", "per_leaf", "automatic"} <= set(CLIP_RULES)


def test_no_rows_in_a_program_and_with_what_the_loss_gives():
    def loss(params, row):
        return jnp.sum(params["w"] * row["x"][:, None]), {"seen": row["x"]}

    gradient = training.clipped_grad(loss, has_aux=True)
    summed, found = jax.jit(lambda rows: gradient(PARAMS, rows, 1.0))(_rows(0))
    assert found.aux["seen"].shape == (0, 3) and not jnp.any(summed["w"])


@pytest.mark.parametrize("method", ["auto", "factored", "materialised"])
def test_parameters_without_entries_change_nothing(method):
    less = {name: leaf for name, leaf in PARAMS.items() if name != "none"}
    gradient = training.clipped_grad(_loss, method=method)
    with_them, without = gradient(PARAMS, _rows(4), 1.0)[0], gradient(less, _rows(4), 1.0)[0]
    for name in less:
        # One parameter more whose square is added to the norm's: a unit of rounding more.
        np.testing.assert_allclose(with_them[name], without[name], rtol=1e-6)
    assert with_them["none"].shape == (0, 4)


def test_masked_rows_are_refused():
    rows = {"x": np.ma.masked_array(np.ones((4, 3)), False), "y": np.ones(4)}
    with pytest.raises(ValueError, match="masked.*pass filled"):
        training.clipped_grad(_loss)(PARAMS, rows, 1.0)


def test_what_a_sum_over_no_rows_lacks_has_the_shape_of_the_sum():
    """A table's sum is a pair; the second half is no array of rows."""
    gradient = training.clipped_grad(lambda table, row: jnp.sum(table[row]))
    summed, found = gradient(jnp.ones((3, 2)), jnp.zeros((0, 4), jnp.int32), 1.0)
    assert found.lost.shape == summed.shape == (3, 2) and found.norms.shape == (0,)
