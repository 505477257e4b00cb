"""Noise of the stated scale, independent everywhere, identical for identical keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpjax.randomness.keys import candidate_keys
from dpjax.randomness.noise import add_gaussian_noise

SHAPES = {"a": (40, 50), "b": (700,), "c": (), "d": (3, 0)}


def zeros():
    return {name: jnp.zeros(shape) for name, shape in SHAPES.items()}


def variance_p_value(samples: np.ndarray, deviation: float) -> float:
    """Two-sided chi-square test of the variance of N(0, deviation^2)."""
    statistic = float(np.sum((samples / deviation) ** 2))
    law = scipy.stats.chi2(samples.size)
    return 2 * min(law.cdf(statistic), law.sf(statistic))


@pytest.mark.parametrize("deviation", [0.3, 1.0, 50.0])
def test_scale_is_accepted_at_one_and_rejected_at_two_thirds_and_three_halves(deviation):
    noisy = add_gaussian_noise(jax.random.key(1), zeros(), deviation)
    samples = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(noisy)])
    assert variance_p_value(samples, deviation) > 1e-4  # error rate 1e-4, seed fixed
    assert scipy.stats.kstest(samples / deviation, "norm").pvalue > 1e-4
    for factor in (2 / 3, 3 / 2):
        assert variance_p_value(samples, factor * deviation) < 1e-12


def test_noise_is_added_and_zero_adds_nothing():
    tree = {"a": jnp.arange(6.0).reshape(2, 3), "b": jnp.float32(0.1)}
    same = add_gaussian_noise(jax.random.key(0), tree, 0.0)
    jax.tree.map(np.testing.assert_array_equal, same, tree)
    shifted = add_gaussian_noise(jax.random.key(0), tree, 1.0)
    at_zero = add_gaussian_noise(jax.random.key(0), jax.tree.map(jnp.zeros_like, tree), 1.0)
    jax.tree.map(
        # To one cell of the grid, 2^-19.
        lambda left, right, base: np.testing.assert_allclose(left, right + base, atol=2e-6),
        shifted,
        at_zero,
        tree,
    )


def test_leaves_steps_and_candidates_are_independent():
    """Correlations of 2,000 samples stay below 5 standard errors: error rate 6e-7 each."""
    tree = {"a": jnp.zeros(2000), "b": jnp.zeros(2000)}
    keys = candidate_keys(2, seed=11)
    steps = [jax.vmap(lambda key, t=t: jax.random.fold_in(key, t))(keys) for t in range(2)]
    rows = [
        jax.vmap(lambda key: add_gaussian_noise(key, tree, 1.0))(step_keys) for step_keys in steps
    ]
    samples = np.concatenate([leaf for row in rows for leaf in (row["a"], row["b"])])
    assert samples.shape == (8, 2000)
    correlation = np.corrcoef(samples)
    assert np.abs(correlation[~np.eye(8, dtype=bool)]).max() < 5 / np.sqrt(2000)


def test_a_key_broadcast_over_candidates_is_the_defect_it_is_said_to_be():
    """Equal keys give identical noise; `sweep` refuses them (test_sweep.py)."""
    key = jax.random.key(0)
    noise = jax.vmap(lambda _: add_gaussian_noise(key, jnp.zeros(5), 1.0))(jnp.arange(2))
    np.testing.assert_array_equal(noise[0], noise[1])


def test_the_ends_of_the_range_are_reached():
    """JAX's own normals never exceed 5.42: in 2^26 numbers ideal ones do four times on average."""
    largest, beyond = 0.0, 0
    draw = jax.jit(lambda key: add_gaussian_noise(key, jnp.zeros(2**22), 1.0))
    for key in candidate_keys(16, seed=2):
        noise = np.abs(np.asarray(draw(key)))
        assert noise.dtype == np.float32
        largest, beyond = max(largest, float(noise.max())), beyond + int(np.sum(noise > 5.0))
    assert 5.42 < largest < 9.1
    # 38.5 expected; fixed seed, error rate 1e-6.
    assert scipy.stats.poisson(2**26 * 2 * scipy.stats.norm.sf(5.0)).interval(1 - 1e-6)[0] <= beyond
    assert beyond <= scipy.stats.poisson(38.5).ppf(1 - 1e-6)
