"""A run's folder: claimed before anything is trained, made whole or not at all, never over another.

While a program works on `<folder>` it holds a lock on `<folder>.lock`. The operating system frees
the lock however the program ends, so a killed program keeps nobody out.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator

from dpjax import files, private_files
from dpjax.commands import command_line
from dpjax.releases.release_files import RELEASE_FOLDER

NOTICE = "PARTIAL.txt"


@contextlib.contextmanager
def claimed(out_dir: str | None, name: str, *, resumed: bool = False) -> Iterator[str]:
    """Yields the absolute path of a run folder that no other process uses while the block runs.

    Without `out_dir` it is `runs/<name>-<time>`, with a number where that is taken. A `resumed` run
    may find its folder finished (see `is_finished`); what it had half written is removed. Any other
    run is refused if either exists, or `<folder>.curator`, which holds an earlier run's keys.
    """
    with contextlib.ExitStack() as stack:
        usual = f"runs/{name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
        folder = os.path.abspath(out_dir or usual)
        with _refusing_unwritable(folder):
            os.makedirs(os.path.dirname(folder), exist_ok=True)
            if out_dir is not None:
                stack.enter_context(_held(folder))
            else:
                folder = _free(folder, stack)
        partial = f"{folder}.partial"
        if resumed:
            _clear(partial, folder)
            if not is_finished(folder):
                refuse_existing(folder)
        else:
            refuse_existing(folder, partial)
            refuse_working(folder)
        with _refusing_unwritable(folder):
            # Only a trial: hours of training must not end in a folder that cannot be written.
            os.makedirs(partial)
            os.rmdir(partial)
        yield folder


@contextlib.contextmanager
def _held(folder: str) -> Iterator[None]:
    """Holds the folder's lock while the block runs."""
    lock = f"{folder}.lock"
    # Ctrl-C ends the program at once, without leaving this block.
    release = command_line.when_interrupted(lambda: private_files.release_file(lock))
    with private_files.locked(lock, folder), release:
        yield


def _free(usual: str, stack: contextlib.ExitStack) -> str:
    """Returns the first free name of `usual`, `usual`-2, ...; the stack holds its lock."""
    folder, number = usual, 1
    while True:
        with contextlib.suppress(private_files.InUseError), contextlib.ExitStack() as attempt:
            attempt.enter_context(_held(folder))
            if not any(os.path.lexists(folder + end) for end in ("", ".partial", ".curator")):
                stack.push(attempt.pop_all())
                return folder
        number += 1
        folder = f"{usual}-{number}"


def _clear(partial: str, folder: str) -> None:
    """Renames a folder that an interrupted run had written whole, or removes it."""
    if not os.path.isdir(partial) or os.path.islink(partial):
        refuse_existing(partial)
    elif os.path.exists(os.path.join(partial, NOTICE)) or not os.listdir(partial):
        shutil.rmtree(partial)
    elif is_finished(partial) and not os.path.lexists(folder):
        os.rename(partial, folder)
    else:
        refuse_existing(partial)


@contextlib.contextmanager
def _refusing_unwritable(folder: str) -> Iterator[None]:
    """Turns the operating system's errors in the block into a refusal of --out_dir."""
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"cannot write {folder} ({error.strerror}): pass another --out_dir"
        ) from None


def refuse_existing(*paths: str) -> None:
    """Raises an error that names the first of these paths that exists, if any does."""
    for path in paths:
        if os.path.lexists(path):
            raise ValueError(
                f"{path} exists already, and nothing is overwritten, its ledger of what these "
                "records have paid included: pass another --out_dir"
            )


def refuse_working(folder: str) -> None:
    """Refuses to begin anew beside the working folder, with its keys, of an interrupted run."""
    working = f"{folder}.curator"
    if os.path.lexists(working) and not (os.path.isdir(working) and not os.listdir(working)):
        raise ValueError(
            f"{working} belongs to an interrupted run and holds its secrets: pass --resume to go "
            "on with it (a shard: its --shard), or remove it first"
        )


def is_finished(folder: str) -> bool:
    """Returns whether the folder is a complete run: it gets this name once all is written."""
    return os.path.isdir(os.path.join(folder, "curator"))


@contextlib.contextmanager
def written_whole(
    folder: str, save_release: Callable[[str], object] | None = None
) -> Iterator[str]:
    """Saves a release, if any, and yields the folder around it to write the rest of a run in.

    It takes its final name only when everything is written. Until then it is `<folder>.partial` and
    holds a file that says so; an error removes it, a killed process leaves it under that name. If
    the final name is taken meanwhile, the complete run is kept beside it, and the error says where.
    A release that cannot be written there is paid for all the same: it goes to a temporary folder.
    """
    partial = f"{folder}.partial"
    notice = os.path.join(partial, NOTICE)
    try:
        with files.naming(folder):
            os.makedirs(partial)
            with open(notice, "w", encoding="utf-8") as file:
                file.write(
                    "This run did not finish writing: nothing in this folder is a release. "
                    "Remove it.\n"
                )
            if save_release is not None:
                save_release(os.path.join(partial, RELEASE_FOLDER))
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        if save_release is None:
            raise
        elsewhere = os.path.join(tempfile.mkdtemp(), RELEASE_FOLDER)
        save_release(elsewhere)
        raise ValueError(
            f"{error}; the release is whole, in {elsewhere}: move it. The curator's half was not "
            "written (note the cost in your ledger)"
        ) from error
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    os.makedirs(os.path.join(partial, "curator"), mode=0o700, exist_ok=True)  # See `is_finished`.
    os.remove(notice)
    with contextlib.suppress(OSError):
        # A rename would silently replace an empty folder, and fails on any other.
        if not os.path.lexists(folder):
            os.rename(partial, folder)
            return
    kept, number = f"{folder}.complete", 1
    while os.path.lexists(kept):
        number += 1
        kept = f"{folder}.complete-{number}"
    os.rename(partial, kept)
    raise ValueError(
        f"something else took the name {folder} meanwhile: this run, complete, is in {kept}"
    )
