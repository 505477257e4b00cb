"""Strictness for every test: warnings are errors (pyproject.toml), silent broadcasting too."""

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

jax.config.update("jax_numpy_rank_promotion", "raise")
# Tests compile hundreds of tiny programs and run each for milliseconds.
jax.config.update("jax_disable_most_optimizations", True)


def pytest_configure(config):
    """Hands files out in their order: by number of tests, the long ones with few would be last."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.fixture(scope="session", autouse=True)
def _compile_equal_programs_once(tmp_path_factory):
    """Most tests build their functions anew, and compile what another test has compiled.

    One folder for each process, since JAX writes its entries in place. What is compiled stays as
    it is; only tracing counts for tests that count compilations.
    """
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.set_cache_dir(str(tmp_path_factory.mktemp("compiled")))
    compilation_cache.reset_cache()  # What collecting compiled has settled that there is none.


@pytest.fixture(autouse=True)
def _no_global_double_precision():
    """No code may switch JAX to float64 for everyone; local contexts only."""
    yield
    assert not jax.config.jax_enable_x64, "a test left jax_enable_x64 on"
