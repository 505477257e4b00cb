"""Compiled programs: kept by the command line alone, for their owner, without data or settings."""

import os
import pathlib
import stat

import flat_call
import jax
import numpy as np
import pytest
import small_tasks
from jax.experimental.compilation_cache import compilation_cache
from processes import python

from dpjax import accounting, tuning


@pytest.fixture
def kept(tmp_path):
    """A folder that JAX keeps what it compiles in, until the test ends."""
    before = jax.config.jax_compilation_cache_dir
    compilation_cache.set_cache_dir(str(tmp_path))
    compilation_cache.reset_cache()
    yield tmp_path
    compilation_cache.set_cache_dir(before)
    compilation_cache.reset_cache()


def _tuned(kept, seed, records, rates, noise_multiplier, number=120):
    """Tunes from nothing compiled; returns the names of all programs that were kept so far."""
    jax.clear_caches()
    # The same division whatever the records hold: the numbers in the parts are of the programs.
    parts = small_tasks.parts(number, seed=records, size_bound=200, identifiers=np.arange(number))
    space = tuning.Space(learning_rate=tuning.LogUniform(*rates), momentum=0.9, clip_norm=rates[0])
    with pytest.warns(UserWarning, match="seed"):
        flat_call.tune(
            tuning.RandomRepetitions,
            small_tasks.linear(parts),
            space,
            repetitions=accounting.Fixed(3),
            noise_multiplier=noise_multiplier,
            delta=1e-5,
            lot_size=16,
            steps=3,
            seed=seed,
        )
    return {path.name for path in kept.glob("*-cache")}


def test_other_records_hyperparameters_and_keys_find_the_same_programs(kept):
    """A program is found by a hash of all of it: what were a constant in it would make another."""
    first = _tuned(kept, seed=1, records=1, rates=(0.1, 1.0), noise_multiplier=2.0)
    assert len(first) >= 3
    again = _tuned(kept, seed=2, records=2, rates=(0.2, 3.0), noise_multiplier=2.0)
    assert again == first
    fewer = _tuned(kept, 2, 2, (0.2, 3.0), 2.0, number=119)
    assert fewer > first  # How many records there are is in a program: the folder is the curator's.


_SWITCH = """
import sys
from absl import flags
from dpjax.commands import compile_cache
import jax
flags.FLAGS(["x", *sys.argv[1:]])
compile_cache.switch_on()
print(jax.config.jax_compilation_cache_dir)
"""


def _switched_on(cache, *arguments, **environment):
    usual = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    environment = usual | {"XDG_CACHE_HOME": str(cache)} | environment
    done = python("-c", _SWITCH, *arguments, env=environment, check=True)
    return done.stdout.strip(), done.stderr


def test_its_folder_is_the_users_alone_and_one_open_to_others_is_not_used(tmp_path):
    found, errors = _switched_on(tmp_path)
    folder = pathlib.Path(found)
    assert errors == "" and folder.parent == tmp_path / "dpjax"
    assert all(stat.S_IMODE(one.stat().st_mode) == 0o700 for one in (folder, folder.parent))
    # Whoever can write there can plant code.
    folder.chmod(0o777)
    found, errors = _switched_on(tmp_path)
    assert found == "None" and "compiled programs are not kept" in errors
    assert len(errors.splitlines()) == 1


def test_the_flag_and_jaxs_own_setting(tmp_path):
    assert _switched_on(tmp_path, "--nocompile_cache") == ("None", "")
    own = str(tmp_path / "own")
    assert _switched_on(tmp_path, JAX_COMPILATION_CACHE_DIR=own) == (own, "")
    assert not (tmp_path / "dpjax").exists()
