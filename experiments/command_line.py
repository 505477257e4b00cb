"""How every binary starts, and how it ends when something is wrong: one clear line, exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from absl import app, flags, logging

_TRACEBACK = flags.DEFINE_bool(
    "traceback", False, "On an error, show Python's traceback instead of one line."
)


def _parse(arguments: Sequence[str]) -> list[str]:
    """Parses flags; a bad one ends in one line and exit code 2."""
    try:
        rest = flags.FLAGS(list(arguments))
        if len(rest) > 1:
            raise flags.Error(f"unexpected argument {rest[1]!r}: every option is a --flag=value")
        return rest
    except flags.Error as error:
        lines = str(error).splitlines() or ["bad flags"]
        sys.exit(_refusal(" ".join(line.strip() for line in lines)))


def _refusal(message: str) -> int:
    """Prints one line to standard error; returns the exit code for bad input."""
    print(f"error: {message}", file=sys.stderr)
    return 2


def run(main: Callable[[], int | None]) -> None:
    """Runs a binary's `main()` under absl.

    A ValueError or a missing file is the user's to mend and ends in one line and exit code 2; with
    --traceback it is raised. Ctrl-C ends in one line and exit code 130. Anything else is a defect
    and shows its traceback.
    """

    def start(_: Sequence[str]) -> int | None:
        # Libraries announce accelerators they do not find; a user need not read that.
        logging.set_verbosity(logging.WARNING)
        try:
            return main()
        except (ValueError, FileNotFoundError) as error:
            if _TRACEBACK.value:
                raise
            return _refusal(" ".join(str(error).split()))
        except KeyboardInterrupt:
            print("interrupted: no complete run was written", file=sys.stderr)
            return 130

    app.run(start, flags_parser=_parse)
