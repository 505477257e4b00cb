"""A run's folder: made whole or not at all, and never over another run."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator

NOTICE = "PARTIAL.txt"


def choose(out_dir: str | None, name: str) -> str:
    """Returns the absolute path of a run folder that does not exist yet.

    Args:
      out_dir: the user's wish; None: `runs/<name>-<time>` below the working folder.
      name: public name of the run, for the default.

    Raises:
      ValueError: if something is there already, or a partial run of it.
    """
    folder = os.path.abspath(
        out_dir or os.path.join("runs", f"{name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
    )
    for path in (folder, f"{folder}.partial"):
        if os.path.lexists(path):
            raise ValueError(
                f"{path} exists already and nothing is overwritten: pass another --out_dir, or "
                "remove it first"
            )
    try:
        # Found out now, not when everything is trained.
        os.makedirs(f"{folder}.partial")
        os.rmdir(f"{folder}.partial")
    except OSError as error:
        raise ValueError(
            f"cannot write {folder} ({error.strerror}): pass another --out_dir"
        ) from None
    return folder


@contextlib.contextmanager
def written_whole(folder: str) -> Iterator[str]:
    """Gives a folder to write in, which takes its final name only when everything is written.

    Until then it is `<folder>.partial` and holds a file that says so; an error removes it, an
    interruption that cannot be handled leaves it under that name.

    Args:
      folder: from `choose`.

    Yields:
      The path to write in.
    """
    partial = f"{folder}.partial"
    os.makedirs(partial)
    notice = os.path.join(partial, NOTICE)
    with open(notice, "w", encoding="utf-8") as file:
        file.write(
            "This run did not finish writing: nothing in this folder is a release. Remove it.\n"
        )
    try:
        yield partial
        os.remove(notice)
        os.rename(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
