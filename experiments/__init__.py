"""Command-line programs: the main job, the price of tuning, figures and benchmarks.

`python -m experiments.NAME` passes here before it imports anything slow. Until the program's own
handling of Ctrl-C begins (`command_line.run`), an interrupt would end seconds of imports in a page
of traceback; it ends in one line instead.
"""

import sys
from types import TracebackType


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Python's way to show what nobody caught, but for an interrupt."""
    if issubclass(kind, KeyboardInterrupt):
        print("interrupted: nothing was begun", file=sys.stderr, flush=True)
    else:
        sys.__excepthook__(kind, error, trace)


# "-m" stands there only while Python looks for the program to run: importing this package from
# elsewhere changes nothing.
if sys.argv[:1] == ["-m"]:
    sys.excepthook = _show
