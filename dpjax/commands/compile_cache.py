"""Compiled programs kept in the user's cache folder, so that the next run need not compile them.

For command lines only: importing the library sets nothing. What is kept is machine code of the
training step and the like, found again by a hash of the program. Records, hyperparameters, noise
and keys are arguments of these programs and no part of them: a run with others finds the same
programs, which `tests/commands/test_compile_cache.py` demands. Their SHAPES are part of them: how
many records there are, which is private under add-or-remove one, and how many candidates were
trained side by side. So the folder is the curator's, readable by its owner only; never publish it,
nor put it into an image. A folder open to others, who could plant code in it, is not used.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import platform
import sys

from absl import flags

from dpjax import private_files

flags.disclaim_key_flags()

_COMPILE_CACHE = flags.DEFINE_bool(
    "compile_cache",
    True,
    "Keep compiled programs in the user's cache folder (XDG_CACHE_HOME, or ~/.cache; at most 1 "
    "GB), readable by its owner only; --nocompile_cache to compile anew. "
    "JAX_COMPILATION_CACHE_DIR, where it is set, is used as it is.",
)

LARGEST = 10**9
"""Most bytes in the folder; the programs unused for longest are deleted first."""


def folder() -> pathlib.Path:
    """Returns the folder of programs compiled for this kind of processor."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(base) / "dpjax" / f"compiled-{_processor()}"


def _processor() -> str:
    """Names this kind of processor: machines that share a home folder may differ in theirs."""
    kind = platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            kind += next((line for line in file if line.startswith(("flags", "Features"))), "")
    except OSError:
        kind += platform.processor()
    return hashlib.sha256(kind.encode()).hexdigest()[:12]


def switch_on() -> None:
    """Makes JAX keep what it compiles, if the flag asks for it; before anything is compiled.

    A folder that cannot be made, or is open to others, is not used; standard error says so.
    """
    import jax

    if not _COMPILE_CACHE.value or jax.config.jax_compilation_cache_dir is not None:
        return
    path = folder()
    try:
        private_files.private_folder(path.parent)
        private_files.private_folder(path)
    except (OSError, ValueError) as error:
        words = " ".join(str(error).split())
        print(f"warning: compiled programs are not kept: {words} (XDG_CACHE_HOME)", file=sys.stderr)
        return
    jax.config.update("jax_compilation_cache_max_size", LARGEST)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_compilation_cache_dir", str(path))
