"""Every model of the benchmarks' zoo, tiny: sums and norms are those of per-example gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.training.clipping.clipped_grad import clipped_grad
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
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("name", list(ZOO))
def test_no_kernel_is_formed_whole(name):
    problem = _problem(name)
    explanation = clipped_grad(problem.loss).explain(problem.params, problem.records)
    formed = [path for path, each in explanation.items() if each.rule == "materialised"]
    assert not formed, explanation
