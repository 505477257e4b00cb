"""`clipped_grad`: its formal guarantees, limits and arguments.

Equality with per-example gradients on models of all kinds is in test_clipped_grad_models.py.
"""

import functools
from functools import partial

import held_back
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from clipped_problem import METHODS, ROWS
from clipped_problem import compiled as _compiled
from clipped_problem import grad_fn as _grad_fn
from clipped_problem import loss as _loss
from clipped_problem import norm as _norm
from clipped_problem import problem as _problem
from clipped_problem import row as _row

from dpjax import neighbouring
from dpjax.training import clipped_grad
from dpjax.training.clipping import clipped_grad as clipping_module
from dpjax.training.clipping import factored_norms


@functools.cache
def _alone(grad_fn):
    """Each row's contribution: the sum with all other rows masked; leading axis rows."""

    @_compiled
    def contributions(params, batch, clip_norm):
        masks = jnp.eye(len(jax.tree.leaves(batch)[0]), dtype=bool)
        return jax.vmap(lambda mask: grad_fn(params, batch, clip_norm, mask)[0])(masks)

    return contributions


# Formal guarantees: a contribution's norm --------------------------------------------------------


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("method", METHODS)
def test_no_contribution_exceeds_the_clip_norm(method, dtype):
    for scale, clip_norm in ((1.0, 0.1), (3.0, 1.0), (1.0, 1e-6), (30.0, 1e4)):
        params, batch = _problem(dtype, scale)
        contributions = _alone(clipped_grad(_loss, method=method))(params, batch, clip_norm)
        norms = np.asarray([_norm(_row(contributions, i)) for i in range(ROWS)])
        assert (norms <= clip_norm).all(), (norms / clip_norm, scale)
        clipped = _grad_fn(method)(params, batch, clip_norm)[1].norms > clip_norm
        # ... and those that are clipped keep nearly all of it.
        assert (norms[np.asarray(clipped)] > 0.999 * clip_norm).all()


def _cancelling_problem(dtype):
    """Positions whose gradients cancel to one part in 10^4 of what they are made of."""
    draws = np.random.default_rng(5)
    inputs = draws.normal(size=(ROWS, 1, 8)) + 1e-4 * draws.normal(size=(ROWS, 16, 8))
    signs = np.tile([1.0, -1.0], 8)[None, :, None] * np.ones((ROWS, 1, 4))
    batch = (jnp.asarray(1e2 * inputs, dtype), jnp.asarray(signs, dtype))

    def loss(params, example):
        return jnp.sum((example[0] @ params["kernel"] + params["bias"][None]) * example[1])

    return loss, {"kernel": jnp.zeros((8, 4), dtype), "bias": jnp.zeros(4, dtype)}, batch


@pytest.mark.parametrize("method", METHODS)
def test_no_contribution_exceeds_the_clip_norm_where_positions_cancel(method):
    loss, params, batch = _cancelling_problem(jnp.float32)
    contributions = _alone(clipped_grad(loss, method=method))(params, batch, 1e-2)
    norms = np.asarray([_norm(_row(contributions, i)) for i in range(ROWS)])
    assert (norms <= 1e-2).all(), norms


def test_the_bound_on_rounding_is_what_keeps_it_so(monkeypatch):
    monkeypatch.setattr(factored_norms, "_FEW_ROUNDINGS", 0.0)
    monkeypatch.setattr(factored_norms, "rounding", lambda *given: 0.0)
    # What is held back for the rounding of the sum would hide it.
    held_back = clipping_module.HeldBack(0.0, 0.0, 0.0)
    monkeypatch.setattr(clipping_module, "_held_back", lambda *given: held_back)
    loss, params, batch = _cancelling_problem(jnp.float32)
    contributions = _alone(clipped_grad(loss, method="factored"))(params, batch, 1e-2)
    assert max(_norm(_row(contributions, i)) for i in range(ROWS)) > 1.001e-2


def _centred_twice(table):
    for axis in (1, 0):
        table = table - jnp.mean(table, axis, keepdims=True)
    return table


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("method", METHODS)
def test_no_contribution_exceeds_the_clip_norm_where_rounding_is_all_that_is_left(method, dtype):
    """Computed again where it is added up, a gradient was 200 clip norms long: its norm had been
    taken of one that rounding had left nothing of."""
    # As outside of tests: without optimisation every place rounds alike.
    optimised = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
    compiled = partial(jax.jit, compiler_options=optimised)
    draws = np.random.default_rng(0)
    first, second = (
        jnp.asarray(scale * draws.normal(size=(16, 5, 5)), dtype) for scale in (1e9, 1.0)
    )
    centred = compiled(jax.vmap(lambda a, b: _centred_twice(a * b)))(first, second)

    def left(row):
        return _centred_twice(row[0] * row[1]) - row[2]

    inside = clipped_grad(lambda params, row: jnp.sum(params * left(row)), method=method)
    outside = clipped_grad(lambda params, row: jnp.sum(params * row), method=method)

    def of_computed_rows(params, batch, clip_norm, mask):
        return outside(params, jax.vmap(left)(batch), clip_norm, mask)

    for grad_fn in map(compiled, (inside, of_computed_rows)):
        for mask in np.eye(16, dtype=bool):
            batch = (first, second, centred)
            summed = grad_fn(jnp.ones((5, 5), dtype), batch, 1.0, mask)[0]
            assert np.linalg.norm(np.asarray(summed, np.float64)) <= 1.0


@pytest.mark.parametrize("method", METHODS)
def test_rounding_of_a_long_sum_moves_it_no_further_than_the_clip_norm(method):
    """4,096 nearly equal rows: with nothing held back one of them moved the sum by 1 + 1e-5, and by
    1 + 7e-5 through a convolution. Rows that are chosen move it more: test_slides.py."""
    draws = np.random.default_rng(0)
    rows = draws.normal(size=512) + 1e-3 * draws.normal(size=(4096, 512))
    grad_fn = clipped_grad(lambda params, row: jnp.vdot(params["w"], row), method=method)

    @jax.jit
    def summed(batch, mask):
        return grad_fn({"w": jnp.zeros(512)}, batch, 1.0, mask)[0]["w"]

    batch, masks = jnp.asarray(rows, jnp.float32), np.ones((9, 4096), bool)
    masks[np.arange(8), draws.integers(0, 4096, 8)] = False
    *without, whole = (np.asarray(summed(batch, mask), np.float64) for mask in masks)
    assert max(np.linalg.norm(whole - less) for less in without) <= 1.0
    # A row by itself is not rounded in a sum, and shows how much is held back for it: for blocks of
    # 128 rows, their addition, and one rounding of the whole sum.
    alone = np.linalg.norm(np.asarray(summed(batch, np.arange(4096) == 7), np.float64))
    of_norm = 512 * held_back.UNIT  # a norm has an allowance for its entries
    assert 1 - 2.0**-17 - of_norm < alone * (1 + held_back.share(4096)) <= 1


@pytest.mark.parametrize("method", METHODS)
def test_a_factor_whose_squares_underflow_is_still_clipped(method):
    params = {"kernel": jnp.ones((3, 3))}
    batch = (jnp.full((2, 3), 1e-25), jnp.full((2, 3), 1e25))
    grad_fn = clipped_grad(lambda p, e: jnp.sum((e[0] @ p["kernel"]) * e[1]), method=method)
    assert _norm(grad_fn(params, batch, 0.1)[0]) <= 0.2


@pytest.mark.parametrize("method", METHODS)
def test_per_leaf_contributions_stay_within_each_clip_norm(method):
    params, batch = _problem()
    clip_norms = {"first": 0.1, "bias": 0.2, "second": jnp.inf, "table": 0.0}
    grad_fn = clipped_grad(_loss, method=method, clipping="per_leaf")
    contributions = _alone(grad_fn)(params, batch, clip_norms)
    unclipped = _alone(clipped_grad(_loss, method=method))(params, batch, jnp.inf)
    # At most eight times the rounding of a block of rows with three positions each.
    shortened = 8 * held_back.influence(ROWS, terms=3)
    for name, clip_norm in clip_norms.items():
        for i in range(ROWS):
            whole = np.asarray(unclipped[name][i], np.float64)
            factor = min(1.0, clip_norm / np.linalg.norm(whole))
            assert _norm(contributions[name][i]) <= clip_norm
            np.testing.assert_allclose(
                contributions[name][i], factor * whole, rtol=2e-5 + shortened, atol=1e-6
            )
    leaf_norms = _compiled(grad_fn)(params, batch, clip_norms)[1].leaf_norms
    for name in params:
        want = [np.linalg.norm(np.asarray(unclipped[name][i])) for i in range(ROWS)]
        np.testing.assert_allclose(leaf_norms[name], want, rtol=1e-5)


def test_per_leaf_shares_a_scalar_clip_norm_out():
    params, batch = _problem()
    grad_fn = clipped_grad(_loss, clipping="per_leaf")
    summed = _compiled(grad_fn)(params, batch, 0.2)[0]
    each = _compiled(grad_fn)(params, batch, dict.fromkeys(params, 0.1))[0]
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), summed, each)
    assert _norm(_row(_alone(grad_fn)(params, batch, 0.2), 0)) <= 0.2


# Formal guarantees: masks, failures, independence ------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e30])
def test_masked_and_failed_rows_contribute_exactly_nothing(method, poison):
    params, batch = _problem()
    tokens, inputs, label = batch
    poisoned = (tokens, inputs.at[1, 0, 2].set(poison).at[4].set(poison), label)
    grad_fn = _grad_fn(method)
    keep = jnp.arange(ROWS) % 3 != 1
    want, _ = grad_fn(params, batch, 0.5, keep)
    got, _ = grad_fn(params, poisoned, 0.5, keep)
    jax.tree.map(np.testing.assert_array_equal, got, want)
    if not np.isfinite(poison):
        got, aux = grad_fn(params, poisoned, 0.5, jnp.ones(ROWS, bool))
        finite = np.isfinite(np.asarray(aux.norms))
        # tanh(inf) is 1, with slope 0 times inf: NaN.
        np.testing.assert_array_equal(finite, keep)
        jax.tree.map(np.testing.assert_array_equal, got, want)
        assert np.isfinite(_norm(got))


@pytest.mark.parametrize("method", METHODS)
def test_a_gradient_too_large_to_square_counts_as_infinite(method):
    params, batch = {"kernel": jnp.ones((3, 3))}, jnp.asarray([[1.0] * 3, [1e20] * 3])
    grad_fn = clipped_grad(lambda p, e: jnp.sum(e @ p["kernel"]), method=method)
    summed, aux = grad_fn(params, batch, 1.0)
    assert np.isinf(aux.norms[1])
    masked = grad_fn(params, batch, 1.0, jnp.asarray([True, False]))[0]
    np.testing.assert_allclose(summed["kernel"], masked["kernel"])


@pytest.mark.parametrize("method", METHODS)
def test_the_sum_is_of_contributions_that_know_nothing_of_each_other(method):
    params, batch = _problem()
    grad_fn = _grad_fn(method)
    contributions = _alone(clipped_grad(_loss, method=method))(params, batch, 0.5)
    summed = grad_fn(params, batch, 0.5)[0]
    total = jax.tree.map(lambda leaf: leaf.sum(axis=0), contributions)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), summed, total)
    changed = jax.tree.map(lambda leaf: leaf.at[0].set(leaf[1] * 2), batch)
    other = _alone(clipped_grad(_loss, method=method))(params, changed, 0.5)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[1:], b[1:]), contributions, other)


def test_sensitivity():
    params, batch = _problem()
    grad_fn = clipped_grad(_loss)
    assert grad_fn.sensitivity(neighbouring.ADD_OR_REMOVE_ONE, 0.7) == 0.7
    assert grad_fn.sensitivity("replace-one", 0.7) == 1.4
    assert jax.jit(partial(grad_fn.sensitivity, "replace_one"))(0.5) == 1.0
    with pytest.raises(ValueError, match="unknown neighbouring relation"):
        grad_fn.sensitivity("zero_out", 1.0)
    per_leaf = clipped_grad(_loss, clipping="per_leaf")
    assert per_leaf.sensitivity("add_or_remove_one", {"a": 3.0, "b": 4.0}) == 5.0
    assert jax.jit(partial(per_leaf.sensitivity, "replace_one"))({"a": 3.0, "b": 4.0}) == 10.0
    assert per_leaf.sensitivity("add_or_remove_one", 0.7) == 0.7
    # Opposite gradients reach it: replacing one row moves the sum by nearly twice the clip norm.
    opposite = clipped_grad(lambda p, e: e * p["w"])
    one, other = (opposite({"w": 1.0}, jnp.asarray([x]), 0.5)[0] for x in (9.0, -9.0))
    assert 0.9999 < _norm(one["w"] - other["w"]) <= 1.0


# Limits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_limits_of_the_clip_norm(method):
    params, batch = _problem()
    grad_fn = _grad_fn(method)
    plain = _compiled(jax.grad(lambda p: jax.vmap(_loss, (None, 0))(p, batch).sum()))(params)
    for large in (jnp.inf, 1e30):
        summed = grad_fn(params, batch, large)[0]
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), summed, plain)
    assert _norm(grad_fn(params, batch, 0.0)[0]) == 0
    for negative in (-1e-30, -1.0, -jnp.inf):
        assert np.isnan(_norm(grad_fn(params, batch, negative)[0]))
    assert 0 < _norm(grad_fn(params, batch, 1e-10)[0]) <= ROWS * 1e-10
    # No gradient at all: neither a division by zero nor a NaN.
    still = jax.tree.map(jnp.zeros_like, batch)
    summed, aux = grad_fn(jax.tree.map(jnp.zeros_like, params), still, 1.0)
    assert _norm(summed) == 0
    np.testing.assert_array_equal(aux.norms, 0)


def test_sums_are_wide_and_parameters_may_be_narrow():
    params, batch = _problem(jnp.bfloat16)
    summed, aux = _grad_fn("auto")(params, batch, 1.0)
    assert {leaf.dtype for leaf in jax.tree.leaves(summed)} == {jnp.dtype("float32")}
    assert aux.norms.dtype == jnp.float32
    with jax.enable_x64(True):
        params, batch = _problem(jnp.float64)
        summed, _ = _grad_fn("auto")(params, batch, 1.0)
        assert {leaf.dtype for leaf in jax.tree.leaves(summed)} == {jnp.dtype("float64")}


@pytest.mark.parametrize(
    ("kind", "rows"),
    [("uint8", 256), ("uint8", 300), ("int8", 200), ("int16", 40_000), ("uint16", 70_000)],
)
def test_a_table_of_more_rows_than_a_narrow_index_counts_is_looked_up_as_any_other(kind, rows):
    """The number 256 is 0 in uint8: contributions of bytes were of up to 4 clip norms."""
    generator = np.random.default_rng(0)
    tokens = generator.integers(0, min(rows, np.iinfo(kind).max + 1), (5, 7)).astype(kind)
    weights = generator.normal(size=(5, 7, 4)).astype(np.float32)
    table = jnp.asarray(generator.normal(size=(rows, 4)), jnp.float32)

    def loss(table, example):
        return jnp.sum(jnp.sin(jnp.take(table, example[0], axis=0)) * example[1])

    gradient = clipped_grad(loss)
    assert gradient.explain(table, (tokens, weights))[""].rule == "embedding"
    for row in range(5):
        given = table, (tokens, weights), 0.5, np.arange(5) == row
        found, wanted = gradient(*given)[0], clipped_grad(loss, method="materialised")(*given)[0]
        assert np.linalg.norm(np.asarray(found, np.float64)) <= 0.5
        np.testing.assert_allclose(found, wanted, atol=1e-4)
