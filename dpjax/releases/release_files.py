"""Reads a release: its statement and the files that its hashes name, and nothing else.

Whatever reads a release reads it by `sealed_claim`, so that a file that was changed, a symbolic
link or a stray file is refused there, before it is put on a page, signed, added up or served.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Mapping
from typing import Any

from dpjax.releases.release import (
    GUARANTEE_FILE,
    HYPERPARAMETERS_FILE,
    SEAL,
    THIS_STATEMENT,
    json_bytes,
    sha256,
)

RELEASE_FOLDER = "release"
"""Where the commands put a release in a run's folder."""

LARGEST_STATEMENT = 1 << 24
"""Bytes of the largest file that is read as JSON; real ones hold a few thousand."""


class NotVerified(ValueError):
    """Says that a release is not as its statement says, or that this cannot be rebuilt."""


def claim_in(path: str) -> dict[str, Any]:
    """Reads a statement; refuses a file that is not one."""
    claim = read_json(path)
    if not isinstance(claim, dict) or not isinstance(claim.get("private"), bool):
        raise ValueError(f"{path} is not a guarantee.json: it does not say whether it is private")
    return claim


def sealed_claim(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the statement of a release whose files are those that its hashes name.

    `path` is as in `verify_release`, which computes the claim anew as well. Whatever reads a
    release reads it by this. Raises NotVerified, or a ValueError where there is no release.
    """
    path = statement_in(path)
    claim = claim_in(path)
    sealed_files(path, claim)
    return claim


def statement_in(path: str | os.PathLike[str]) -> str:
    """Returns the path of a release's statement: `path`, or that of the one in this folder."""
    path = os.fspath(path)
    if not os.path.isdir(path):
        return path
    for place in (GUARANTEE_FILE, os.path.join(RELEASE_FOLDER, GUARANTEE_FILE)):
        found = os.path.join(path, place)
        if os.path.lexists(found):
            return found
    raise ValueError(f"{path} holds no release: pass a run's folder, or its {GUARANTEE_FILE}")


def sealed_files(path: str, claim: Mapping[str, Any]) -> Any:
    """Checks the hashes of all files, and returns the released hyperparameters."""
    seal = claim.get(SEAL)
    if not isinstance(seal, dict) or THIS_STATEMENT not in seal:
        raise NotVerified(f"it lacks {SEAL}, the hashes that bind a release's files together")
    of_files = {name: digest for name, digest in seal.items() if name != THIS_STATEMENT}
    unsealed = dict(claim) | {SEAL: of_files}
    if sha256(json_bytes(unsealed)) != seal[THIS_STATEMENT]:
        raise NotVerified("it was changed after it was written: its own hash is another one")
    folder, own = os.path.split(os.path.abspath(path))
    if HYPERPARAMETERS_FILE not in of_files:
        raise NotVerified(f"{SEAL} lacks {HYPERPARAMETERS_FILE}")
    for name in sorted(of_files):
        if name != os.path.basename(name) or name in ("", ".", ".."):
            raise NotVerified(f"{SEAL} names {short(name)}, which is not a file of a release")
        try:
            with _regular(os.path.join(folder, name)) as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except (OSError, ValueError):
            link = os.path.islink(os.path.join(folder, name))
            why = "is a symbolic link" if link else "is not beside it, or cannot be read"
            raise NotVerified(f"{short(name)} {why}") from None
        if digest != of_files[name]:
            raise NotVerified(f"{short(name)} is not the file that was released: another hash")
    try:
        stray = sorted(set(os.listdir(folder)) - {own, *of_files})
    except OSError as error:
        raise NotVerified(f"{folder} cannot be listed ({error.strerror}): allow it") from None
    if stray:
        raise NotVerified(
            f"{short(stray[0])} lies beside it and is not part of the release: move it elsewhere"
        )
    return read_json(os.path.join(folder, HYPERPARAMETERS_FILE))


def read_json(path: str) -> Any:
    """Reads a regular file of strict JSON: no name twice, no number that no finite float holds."""
    try:
        with _regular(path) as file:
            content = file.read(LARGEST_STATEMENT + 1)
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read ({error.strerror}): pass a release's guarantee.json"
        ) from None
    if len(content) > LARGEST_STATEMENT:
        raise ValueError(f"{path} is not a guarantee.json: it has over {LARGEST_STATEMENT} bytes")
    try:
        return json.loads(
            content.decode(),
            object_pairs_hook=_no_name_twice,
            parse_float=_finite,
            parse_int=_whole,
            parse_constant=_finite,
        )
    except RecursionError:
        raise ValueError(f"{path} is not a guarantee.json: it is nested too deep") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise ValueError(
            f"{path} is not a guarantee.json: it is not JSON; pass that of a release"
        ) from None
    except ValueError as error:
        raise ValueError(f"{path} is not a guarantee.json: {short(error)}") from None


def _regular(path: str) -> Any:
    """Opens a regular file; a pipe would wait for its writer."""
    if os.path.islink(path):
        raise ValueError(f"{path} is a symbolic link, and no file of a release: put the file there")
    file = os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb", closefd=True)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError(f"{path} is not a file: pass a release's guarantee.json")
    return file


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuses a JSON object in which a name is repeated."""
    named = dict(pairs)
    if len(named) != len(pairs):
        raise ValueError("a name is in it twice")
    return named


def _finite(text: str) -> float:
    """Reads a number of JSON; refuses NaN and infinity."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is not a finite number")
    return number


def _whole(text: str) -> int:
    """Reads a whole number of JSON, which may have any number of digits."""
    _finite(text)
    return int(text)


LONGEST_WORDS = 300


def short(words: object) -> str:
    """Returns text of a file for a terminal: one line, no control characters, not too long."""
    text = " ".join(str(words).split())
    return ascii(text)[1:-1][:LONGEST_WORDS]
