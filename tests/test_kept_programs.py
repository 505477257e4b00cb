"""Programs that a session of tests keeps: one process's alone, and none that was cut short."""

import jax
import jax.numpy as jnp
import kept_programs
import pytest
from jax.experimental.compilation_cache import compilation_cache


def test_a_folder_belongs_to_one_process_and_is_found_again(tmp_path):
    other = tmp_path / "other"
    with kept_programs.own_folder(other, tmp_path) as first:
        (first / "entry").touch()
        with kept_programs.own_folder(other, tmp_path) as second:
            assert second == other
    with kept_programs.own_folder(other, tmp_path) as again:
        assert again == first and (again / "entry").exists()


def test_what_a_killed_session_left_is_thrown_away(tmp_path):
    """JAX warns of an entry that is cut short, which is an error here, and keeps it."""
    before = jax.config.jax_compilation_cache_dir
    killed = kept_programs.own_folder(tmp_path, tmp_path)
    folder = killed.__enter__()
    try:
        compilation_cache.set_cache_dir(str(folder))
        compilation_cache.reset_cache()
        # Whatever another test of this session left.
        jax.config.update("jax_enable_compilation_cache", True)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        jax.jit(lambda x: x * 3.0 + 2.0)(jnp.ones(7))
        entries = [path for path in folder.iterdir() if path.name.endswith("-cache")]
        assert entries
        for path in entries:
            path.write_bytes(path.read_bytes()[:50])
        jax.clear_caches()
        with pytest.warns(UserWarning, match="Error reading persistent compilation cache"):
            jax.jit(lambda x: x * 3.0 + 2.0)(jnp.ones(7))
    finally:
        compilation_cache.set_cache_dir(before)
        compilation_cache.reset_cache()
    # The system gives a killed process's lock back; its mark stays.
    killed.gen.close()
    assert (folder.parent / "unfinished").exists() and list(folder.iterdir())
    with kept_programs.own_folder(tmp_path, tmp_path) as again:
        assert again == folder and not list(again.iterdir())
