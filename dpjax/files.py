"""Files that are written whole or not at all: written aside, then renamed."""

from __future__ import annotations

import contextlib
import errno
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
    try:
        with naming(path):
            os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
            yield partial
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(partial)


_NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
_REMEDY = "make room there, or raise the limit of files, and run the same again"


@contextlib.contextmanager
def naming(path: str | os.PathLike) -> Iterator[None]:
    """Adds the path to an operating system's error, and the remedy if the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno is None or (error.filename is not None and error.errno not in _NO_ROOM):
            raise
        words = error.strerror or ""
        if error.errno in _NO_ROOM and _REMEDY not in words:
            words = f"{words}: {_REMEDY}"
        raise type(error)(error.errno, words, os.fspath(path)) from error


@contextlib.contextmanager
def reserved(path: str | os.PathLike, size: int) -> Iterator[None]:
    """Reserves `size` bytes on the disk while the block runs, by a file of filler.

    If they do not fit, an OSError is raised: before hours of training, not after them. A killed
    process leaves the file, and the next one writes over it.
    """
    path = os.fspath(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
    with naming(path):
        descriptor = os.open(path, flags, 0o600)
    try:
        with naming(path), open(descriptor, "wb") as file:
            for at in range(0, size, 1 << 20):  # Written, since a file with holes takes no room.
                file.write(b"\1" * min(1 << 20, size - at))
            file.flush()
            os.fsync(file.fileno())
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


@contextlib.contextmanager
def replacing(path: str | os.PathLike, mode: int = 0o666) -> Iterator[str]:
    """Makes a file beside `path` to write to; if the block succeeds, it takes the place of `path`.

    Whatever fails, a reader of `path` finds the old content or all of the new one.

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
