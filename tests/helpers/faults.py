"""Raises an error where functions are entered, found by tracing calls: nothing is replaced."""

import contextlib
import os
import pathlib
import sys

LIBRARY = str(pathlib.Path(__file__).parents[2] / "dpjax") + os.sep


class Fault(Exception):
    """What the traced function raised."""


@contextlib.contextmanager
def _traced(function, seen):
    """Calls `seen(name)` for every function of the library that `function` itself calls."""
    of = function.__code__

    def entered(frame, event, _):
        by = frame.f_back
        if by and by.f_code is of and frame.f_code.co_filename.startswith(LIBRARY):
            seen(frame.f_code.co_qualname)

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        yield
    finally:
        sys.settrace(before)


def steps_after(call, function, first):
    """Returns the names of what `function` calls after it called `first`, while `call()` runs."""
    names = []
    with _traced(function, names.append):
        call()
    return set(names[names.index(first) + 1 :])


def failing(call, function, first, steps):
    """Returns what `call()` gives where each of these steps after `first` raises, and which did."""
    begun, raised = [], set()

    def seen(name):
        if begun and name in steps:
            raised.add(name)
            raise Fault(name)  # And Python ends the tracing: it raises once.
        begun.extend([name] if name == first else [])

    with _traced(function, seen):
        returned = call()
    return returned, raised
