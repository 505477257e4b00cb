"""Command lines: what `dpjax tune`, `dpjax price` and `dpjax verify` run."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Switches the garbage collector off while the block imports, to save time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
