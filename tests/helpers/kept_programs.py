"""What JAX compiled for the tests of a checkout, kept for its next sessions.

JAX writes an entry where it stays and never writes it again, and a test session makes an error of
its warning about an entry that is cut short. So a folder belongs to one process at a time, and what
a killed one left is thrown away.
"""

import contextlib
import os
import pathlib
import shutil
from collections.abc import Iterator

import filelock

ROOT = pathlib.Path(__file__).parents[2] / ".cache" / "compiled"
MOST_BYTES = 2**30
"""Programs of code that has changed are not asked for again: at some size all begins anew."""


@contextlib.contextmanager
def own_folder(otherwise: pathlib.Path, root: pathlib.Path = ROOT) -> Iterator[pathlib.Path]:
    """The folder of this worker; another one while a second session in the checkout uses it."""
    place = root / os.environ.get("PYTEST_XDIST_WORKER", "alone")
    place.mkdir(parents=True, exist_ok=True)
    programs, unfinished = place / "programs", place / "unfinished"
    lock = filelock.FileLock(place / "lock")  # The system gives it back when its holder dies.
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        yield otherwise
        return
    try:
        if unfinished.exists() or _size(programs) > MOST_BYTES:
            shutil.rmtree(programs, ignore_errors=True)
        programs.mkdir(exist_ok=True)
        unfinished.touch()
        yield programs
        unfinished.unlink()
    finally:
        lock.release()


def _size(folder: pathlib.Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
