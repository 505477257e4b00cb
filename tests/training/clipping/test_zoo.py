"""Every model of the benchmarks' zoo, tiny: sums and norms are those of per-example gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.training import clipped_grad
from dpjax.training.clipping.per_example_gradients import Loss, trace
from experiments.benchmarks.zoo import ZOO

ROWS = 6


@functools.cache
def _problem(name):
    return ZOO[name](True, ROWS)


@functools.cache
def _results(name):
    problem = _problem(name)

    def compute(params, records):
        gradients = jax.vmap(jax.grad(problem.loss), (None, 0))(params, records)
        gradients = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), gradients)
        leaves = jax.tree.leaves(gradients)
        norms = jnp.sqrt(sum(jnp.square(leaf).reshape(ROWS, -1).sum(1) for leaf in leaves))
        clip_norm = jnp.median(norms)
        ours = {
            method: clipped_grad(problem.loss, method=method)(params, records, clip_norm)
            for method in ("auto", "factored")
        }
        weights = jnp.minimum(1, clip_norm / norms)
        summed = [jnp.tensordot(weights, leaf, 1) for leaf in leaves]
        return (
            norms,
            summed,
            {method: (aux.norms, jax.tree.leaves(total)) for method, (total, aux) in ours.items()},
        )

    compiled = jax.jit(compute, compiler_options={"xla_backend_optimization_level": 0})
    return jax.tree.map(np.asarray, compiled(problem.params, problem.records))


@pytest.mark.parametrize("method", ["auto", "factored"])
@pytest.mark.parametrize("name", list(ZOO))
def test_equals_clipped_per_example_gradients(name, method):
    norms, summed, ours = _results(name)
    tolerance = 2e-2 if name.startswith("bfloat16") else 2e-5
    np.testing.assert_allclose(ours[method][0], norms, rtol=tolerance)
    scale = max(np.abs(leaf).max() for leaf in summed)
    for got, want in zip(ours[method][1], summed, strict=True):
        # Rows that are clipped are shorter by what is held back for rounding.
        near = max(tolerance, 2.0**-8)
        np.testing.assert_allclose(got, want, rtol=near, atol=near * scale)


@pytest.mark.parametrize("name", list(ZOO))
def test_no_kernel_is_formed_whole(name):
    problem = _problem(name)
    explanation = clipped_grad(problem.loss).explain(problem.params, problem.records)
    formed = [path for path, each in explanation.items() if each.rule == "materialised"]
    assert not formed, explanation


@pytest.mark.parametrize("size", [64, 128])
def test_rows_that_pick_a_large_kernel_are_evaluated_one_by_one(size):
    """The sum is the same, of masked rows too, and no row keeps a copy of its kernel."""
    draws = np.random.default_rng(0)
    kernels = draws.normal(size=(3, size, size)).astype(np.float32)
    inputs = draws.normal(size=(ROWS, size)).astype(np.float32)
    inputs[2] = np.nan
    records = jnp.asarray(inputs), jnp.arange(ROWS) % 3

    def loss(kernels, row):
        return jnp.sum(jnp.tanh(0.1 * row[0] @ kernels[row[1]]))

    mask, grad_fn = np.arange(ROWS) != 4, clipped_grad(loss)
    program = jax.jit(lambda *given: grad_fn(*given, 0.5, mask, stored=True)[0])
    lowered = program.lower(kernels, records)
    each = np.asarray(jax.vmap(jax.grad(loss), (None, 0))(kernels, records), np.float64)
    norms = np.sqrt(np.square(each).sum(axis=(1, 2, 3)))
    assert (norms[[0, 1, 3, 5]] > 0.5).all()
    wanted = sum(0.5 / norms[row] * each[row] for row in (0, 1, 3, 5))
    np.testing.assert_allclose(lowered.compile()(kernels, records), wanted, rtol=1e-3, atol=1e-6)
    cost = grad_fn.row_cost(kernels, records)
    one_by_one = "stablehlo.while" in lowered.as_text()
    assert one_by_one == (cost.bytes < 4 * size**2) == (size == 128)
    assert cost.multiplications == 4 * size**2  # Of the loss, its gradient, and no copy.


def test_memory_of_rows_that_pick_a_kernel_is_not_that_of_their_kernels():
    problem = ZOO["mixture_of_experts"](False, ROWS)
    shapes = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct((80, *a.shape[1:]), a.dtype), problem.records
    )
    summed = jax.jit(lambda *given: clipped_grad(problem.loss)(*given, 1.0, stored=True)[0])
    held = summed.lower(problem.params, shapes).compile().memory_analysis().temp_size_in_bytes
    assert held < 80 * 2**20 / 4  # 80 MB for a kernel of each row


@pytest.mark.parametrize("name", ["mlp_784_1000_10", "branches", "associative_scan"])
def test_other_rows_are_evaluated_together(name):
    problem = ZOO[name](False, ROWS)
    tracing = trace(Loss(problem.loss, False), problem.params, problem.records, None, False)
    assert not tracing.one_by_one
