"""Plain `.npy` copies of prepared data, so that a second load takes a tenth of a second.

A cache is a folder holding one file per array and `key.json`. It is written under another name and
renamed into place, so it is either absent or whole; it is used only if its key (format, source
checksums, shapes, types) is the expected one and every file has the shape, the type and the SHA-256
that the key names. Anything else counts as absent, and the arrays are made again.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import pathlib
import re
import shutil
import stat
import tempfile
from collections.abc import Mapping

import numpy as np

_FORMAT = 2
_LARGEST_KEY = 1 << 16
_LARGEST_HEADER = 1 << 12
_NAME = re.compile(r"[a-z0-9_]+")
_FOLDER = "dpjax_cache"


def read(beside: pathlib.Path, source: str) -> dict[str, np.ndarray] | None:
    """Returns the cached arrays, or None if there are none that can be trusted.

    Args:
      beside: the folder of the prepared data.
      source: what the arrays were made from (`published_files.fingerprint`).
    """
    folder = beside / _FOLDER
    try:
        key = json.loads(_content(folder / "key.json", _LARGEST_KEY).decode())
        if key["format"] != _FORMAT or key["source"] != source:
            return None
        arrays = {}
        for name, (shape, dtype, digest) in key["arrays"].items():
            # Names are files of this folder, never a way out of it.
            if not _NAME.fullmatch(name):
                return None
            size = math.prod(shape) * np.dtype(dtype).itemsize
            content = _content(folder / f"{name}.npy", size + _LARGEST_HEADER)
            if hashlib.sha256(content).hexdigest() != digest:
                return None
            arrays[name] = np.load(io.BytesIO(content), allow_pickle=False)
            if [list(arrays[name].shape), arrays[name].dtype.str] != [shape, dtype]:
                return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, RecursionError):
        return None
    return arrays


def _content(path: pathlib.Path, limit: int) -> bytes:
    """A regular file's bytes.

    Raises:
      ValueError: if it is larger, or no regular file (a pipe would never end).
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
        raise ValueError(f"{path} is not a file of at most {limit} bytes")
    return path.read_bytes()


def write(beside: pathlib.Path, source: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes the arrays beside the prepared data, whole or not at all.

    A cache only saves time: where it cannot be written (read-only or full disk) nothing happens.
    """
    folder = beside / _FOLDER
    temporary = None
    try:
        beside.mkdir(parents=True, exist_ok=True)
        temporary = pathlib.Path(tempfile.mkdtemp(prefix=f"{_FOLDER}.", dir=beside))
        described = {}
        for name, array in arrays.items():
            path = temporary / f"{name}.npy"
            np.save(path, array, allow_pickle=False)
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            described[name] = [list(array.shape), array.dtype.str, digest]
        key = {"format": _FORMAT, "source": source, "arrays": described}
        (temporary / "key.json").write_text(json.dumps(key), encoding="utf-8")
        os.chmod(temporary, 0o755)
        if folder.exists():  # Stale, or written by a process that ran beside this one.
            shutil.rmtree(folder, ignore_errors=True)
        os.rename(temporary, folder)
    except OSError:
        pass
    finally:
        if temporary is not None and temporary.exists():
            shutil.rmtree(temporary, ignore_errors=True)
