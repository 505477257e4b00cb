"""Plain `.npy` copies of prepared data, so that a second load takes a tenth of a second.

A cache is a folder holding one file per array and `key.json`. It is written under another name and
renamed into place, so it is either absent or whole; it is used only if its key (format, source
checksums, shapes, types) is the expected one and every file agrees with it. Anything else counts as
absent, and the arrays are made again.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Mapping

import numpy as np

_FORMAT = 1
_FOLDER = "dpjax_cache"


def read(beside: pathlib.Path, source: str) -> dict[str, np.ndarray] | None:
    """Returns the cached arrays, or None if there are none that can be trusted.

    Args:
      beside: the folder of the prepared data.
      source: what the arrays were made from (`published_files.fingerprint`).
    """
    folder = beside / _FOLDER
    try:
        key = json.loads((folder / "key.json").read_text(encoding="utf-8"))
        if key["format"] != _FORMAT or key["source"] != source:
            return None
        arrays = {
            name: np.load(folder / f"{name}.npy", allow_pickle=False) for name in key["arrays"]
        }
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None
    if _describe(arrays) != key["arrays"]:
        return None
    return arrays


def write(beside: pathlib.Path, source: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes the arrays beside the prepared data, whole or not at all.

    A cache only saves time: where it cannot be written (read-only or full disk) nothing happens.
    """
    folder = beside / _FOLDER
    temporary = None
    try:
        beside.mkdir(parents=True, exist_ok=True)
        temporary = pathlib.Path(tempfile.mkdtemp(prefix=f"{_FOLDER}.", dir=beside))
        for name, array in arrays.items():
            np.save(temporary / f"{name}.npy", array, allow_pickle=False)
        key = {"format": _FORMAT, "source": source, "arrays": _describe(arrays)}
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


def _describe(arrays: Mapping[str, np.ndarray]) -> dict[str, list]:
    return {name: [list(array.shape), array.dtype.str] for name, array in arrays.items()}
