"""Files that only their owner can read or have written, and locks between processes.

The files of a running job (secret keys, losing candidates, the draw) decide what is released, and
must stay with the curator. So they lie in folders of mode 0700 that belong to the user of the
process, are read only if they are plain files of that user, and are used by one process at a time.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Iterator

from dpjax import files

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def private_folder(path: str | os.PathLike) -> None:
    """Makes a folder that its owner alone may enter, or checks that an existing one is such.

    Refuses (ValueError) a link, a file, another user's folder, or one that is open to others, who
    could have planted keys in it.
    """
    path = os.fspath(path)
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise ValueError(f"{path} is not a folder: remove it, or pass another folder")
    _refuse_foreign(path, found, _OTHERS)


def read_private(path: str | os.PathLike) -> bytes:
    """Reads a plain file that belongs to this user and that nobody else may write.

    Any other file is a ValueError, a missing one a FileNotFoundError.
    """
    path = os.fspath(path)
    if os.path.islink(path):
        raise ValueError(f"{path} is a link: remove it, or pass another folder")
    # O_NONBLOCK: opening a pipe would otherwise wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0))
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{path} is not a plain file: remove it, or pass another folder")
        _refuse_foreign(path, found, stat.S_IWGRP | stat.S_IWOTH)
        return file.read()


def _refuse_foreign(path: str, found: os.stat_result, closed: int) -> None:
    """Refuses another user's file, or one with any of the permission bits `closed`."""
    if found.st_uid != os.geteuid() or found.st_mode & closed:
        raise ValueError(
            f"{path} is another user's or open to others (owner {found.st_uid}, mode "
            f"{stat.S_IMODE(found.st_mode):04o}), so that its keys may be known or planted: remove "
            "it, or pass another folder"
        )


def write_once(path: str | os.PathLike, payload: bytes) -> None:
    """Writes a file whole, readable by its owner only; an existing file stays as it is."""
    with _written_aside(path, payload) as partial, contextlib.suppress(FileExistsError):
        # A link, unlike a rename, never replaces a file that another job has just written.
        os.link(partial, path)


def write_anew(path: str | os.PathLike, payload: bytes) -> None:
    """Writes a file whole, readable by its owner only, replacing an existing one."""
    with _written_aside(path, payload) as partial:
        os.replace(partial, path)


@contextlib.contextmanager
def _written_aside(path: str | os.PathLike, payload: bytes) -> Iterator[str]:
    """Writes the payload to a file beside `path`, and yields its name; removes it afterwards."""
    with files.aside(path, 0o600) as partial:
        with open(partial, "wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        yield partial


class InUseError(ValueError):
    """Another process, or another thread of this one, holds a lock."""


_held: set[tuple[str, int]] = set()
"""(path, thread) of each lock that this process holds."""


@contextlib.contextmanager
def locked(path: str | os.PathLike, what: str, *, shared: bool = False) -> Iterator[None]:
    """Holds a lock on a file while the block runs; the thread that holds it may take it again.

    The operating system frees the lock however the process ends, so the file that a killed process
    leaves locks nothing. The file has mode 0600; its last holder removes it. If another process or
    thread holds the lock and they do not share it, an InUseError is raised at once and names
    `what`, the locked thing; a file system without locks is a ValueError.
    """
    path = os.path.abspath(os.fspath(path))
    own = (path, threading.get_ident())
    if own in _held:
        yield
        return
    descriptor = _lock_file(path, what, shared)
    _held.add(own)
    try:
        yield
    finally:
        _held.remove(own)
        if not shared or _lock(descriptor):
            release_file(path)
        os.close(descriptor)


def release_file(path: str | os.PathLike) -> None:
    """Removes a lock's file; called by its holder, also just before the process is ended."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)


def _lock_file(path: str, what: str, shared: bool) -> int:
    """Locks the file at `path`, made if needed, and returns its descriptor."""
    while True:
        flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0)
        descriptor = os.open(path, flags, 0o600)
        try:
            free = _lock(descriptor, shared)
        except OSError as error:
            os.close(descriptor)
            raise ValueError(
                f"{path} cannot be locked ({error.strerror}): pass an --out_dir on a file system "
                "with locks"
            ) from None
        if not free:
            os.close(descriptor)
            raise InUseError(
                f"another process works in {what}: wait for it, or pass another folder"
            )
        # The previous holder may have removed the file after it was opened here: check.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False)):
                return descriptor
        os.close(descriptor)


def _lock(descriptor: int, shared: bool = False) -> bool:
    """Locks an open file, or changes its lock; returns whether that was possible at once."""
    import fcntl  # Imported here since Windows lacks it: what needs a lock fails there.

    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True
