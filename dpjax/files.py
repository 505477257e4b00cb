"""Files that are written whole or not at all: written aside, then renamed."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator


@contextlib.contextmanager
def aside(path: str | os.PathLike, mode: int = 0o666) -> Iterator[str]:
    """Makes an empty file beside `path` to write to; it is removed after the block.

    Its name is unique and has the ending of `path`, by which some writers choose a format. `mode`
    is reduced by the process's umask.
    """
    folder, name = os.path.split(os.path.abspath(os.fspath(path)))
    partial = os.path.join(folder, f".partial.{secrets.token_hex(8)}.{name}")
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"there is no folder {folder}: make it, or pass another path")
    os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    try:
        yield partial
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(partial)


@contextlib.contextmanager
def replacing(path: str | os.PathLike, mode: int = 0o666) -> Iterator[str]:
    """Makes a file beside `path` to write to; if the block succeeds, it takes the place of `path`.

    Whoever opens `path` finds what was there before or all that was written, whatever fails.

    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "rows.csv")
    >>> with replacing(path) as partial, open(partial, "w") as file:
    ...     _ = file.write("epsilon")
    >>> open(path).read()
    'epsilon'
    """
    with aside(path, mode) as partial:
        yield partial
        os.replace(partial, path)
