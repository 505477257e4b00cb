"""Strictness for every test: warnings are errors (pyproject.toml), silent broadcasting too."""

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
# Tests compile hundreds of tiny programs and run each for milliseconds.
jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(autouse=True)
def _no_global_double_precision():
    """No code may switch JAX to float64 for everyone; local contexts only."""
    yield
    assert not jax.config.jax_enable_x64, "a test left jax_enable_x64 on"
