"""Keeps a test process small: a whole session's compiled programs would fill a small machine."""

import gc
import sys


def resident(process="self"):
    """GiB of memory that a process holds; 0 where the system has no /proc."""
    try:
        with open(f"/proc/{process}/statm") as file:
            return int(file.read().split()[1]) * 4096 / 2**30
    except OSError:
        return 0.0


def give_back(above):
    """Drops what JAX compiled and traced, if this process holds more than so many GiB."""
    if resident() > above and "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
        gc.collect()
