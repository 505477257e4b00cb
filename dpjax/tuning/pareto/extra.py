"""The packages of the extra `pareto`, imported when they are first used and only through here.

Domains, records and prices of a search need none of them, nor does any other tuning procedure.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

PACKAGES = ("moocore",)


def check(*names: str) -> None:
    """Refuses to begin what the extra is needed for later.

    Args:
      *names: of the packages; all of `PACKAGES` unless given.

    Raises:
      ImportError: one line on what to install, where a package is missing.
    """
    for name in names or PACKAGES:
        if importlib.util.find_spec(name) is None:
            raise ImportError(
                f"dpjax.tuning.pareto runs on {name}, which is not installed: pip install -e "
                "'.[pareto]' in dpjax's folder"
            )


def package(name: str) -> ModuleType:
    """Returns one of `PACKAGES`.

    Raises:
      ImportError: as from `check`.
    """
    check(name)
    return importlib.import_module(name)
