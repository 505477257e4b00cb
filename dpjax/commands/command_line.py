"""Starts and ends every binary; a user's mistake ends it in one clear line and exit code 2."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import app, flags, logging
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from dpjax import checks
from dpjax.commands import config, help_page

_TRACEBACK = flags.DEFINE_bool(
    "traceback", False, "On an error, show Python's traceback instead of one line."
)


def parse(arguments: Sequence[str]) -> list[str]:
    """Parses flags; a bad one ends in one line and exit code 2."""
    help_page.show_if_asked(arguments)
    try:
        rest = flags.FLAGS(config.expanded(arguments))
        if len(rest) > 1:
            raise flags.Error(f"unexpected argument {rest[1]!r}: every option is a --flag=value")
        return rest
    except flags.UnrecognizedFlagError as error:
        hint = ""
        if error.flagname in _OF_THE_SPACE and "space" in flags.FLAGS:
            value = str(error.flagvalue).partition("=")[2] or "NUMBER"
            hint = f": the space names it, so pass --space={error.flagname}={value}"
        elif near := difflib.get_close_matches(error.flagname, list(flags.FLAGS), 1):
            hint = f": did you mean --{near[0]}?"
        sys.exit(_refusal(f"there is no flag --{error.flagname}{hint or ' (--help lists them)'}"))
    except flags.IllegalFlagValueError as error:
        found = re.match(
            r"flag --(\w+)=(.*?): (?:could not convert string to float|(invalid literal))",
            str(error),
        )
        if boolean := re.match(r"flag --(\w+)=.*Non-boolean", str(error)):
            sys.exit(
                _refusal(f"--{boolean[1]} takes no value: pass --{boolean[1]} or --no{boolean[1]}")
            )
        if found:
            kind = "whole number" if found[3] else "number"
            sys.exit(_refusal(f"--{found[1]}={found[2]}: pass a {kind}"))
        sys.exit(_refusal(" ".join(str(error).split())))
    except flags.CantOpenFlagFileError as error:
        name = str(error).rpartition(": ")[2].strip("'")
        words = "cannot be read: pass the path of a file with one --flag=value a line"
        sys.exit(_refusal(f"--flagfile={name} {words}"))
    except flags.Error as error:
        lines = str(error).splitlines() or ["bad flags"]
        sys.exit(_refusal(" ".join(line.strip() for line in lines)))
    except SystemExit:
        # absl raises it for --helpfull and the like, always with code 1: showing help is no error.
        sys.exit(0)


_OF_THE_SPACE = ("learning_rate", "momentum", "clip_norm", "weight_decay", "decay", "b1", "b2")
"""Hyperparameters that a newcomer takes for flags."""


def _refusal(message: str) -> int:
    """Prints one line to standard error; returns the exit code for bad input."""
    print(f"error: {message}", file=sys.stderr)
    return 2


def guarded(main: Callable[[], int | None]) -> int | None:
    """Runs a binary's `main()`, prints the user's mistakes in one line; returns the exit code.

    A ValueError or a file that cannot be read or written is a user's mistake: exit code 2. With
    --traceback it is raised. Anything else is a defect and shows its traceback.
    """
    # Libraries announce accelerators they do not find; a user need not read that.
    logging.set_verbosity(logging.WARNING)
    try:
        return main()
    except (ValueError, OSError) as error:
        if _TRACEBACK.value:
            raise
        more = " (--traceback shows more)" if hasattr(error, "__notes__") else ""
        return _refusal(" ".join(str(error).split()) + more)
    except MemoryError:
        if _TRACEBACK.value:
            raise
        return _refusal("this needs more memory than there is: pass smaller numbers")


def run(main: Callable[[], int | None]) -> None:
    """Runs a binary under absl: parses its flags, calls `main()`, exits with its code.

    Ctrl-C ends the program at once with exit code 130. A compiled training run does not return to
    Python for minutes, and only the main thread hears the signal, so the work is another thread's.
    """
    app.run(lambda _: _in_a_thread(lambda: guarded(main)), flags_parser=parse)


_ON_INTERRUPTION: list[Callable[[], None]] = []


@contextlib.contextmanager
def when_interrupted(clean_up: Callable[[], None]) -> Iterator[None]:
    """Calls `clean_up`, which must be quick, if Ctrl-C ends the program while the block runs."""
    _ON_INTERRUPTION.append(clean_up)
    try:
        yield
    finally:
        _ON_INTERRUPTION.remove(clean_up)


@contextlib.contextmanager
def shown_warnings(show: Callable[[str], None], names: Mapping[str, str]) -> Iterator[None]:
    """Passes warnings in the block to `show`, one line each; settings in `names` become flags."""

    def shown(message: Warning | str) -> None:
        if isinstance(message, checks.Words):
            message.name_flags(names)
        show(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *rest: shown(message)
        yield


class _Counted(MofNCompleteColumn):
    """Shows steps done of all steps, as in 3/10; nothing if the total is unknown."""

    def render(self, task: Any) -> Text:
        return Text() if task.total is None else super().render(task)


def progress_bar(console: Console) -> Progress:
    """Returns a progress bar that counts steps; use it in a `with` statement."""
    columns = (TextColumn("{task.description}"), BarColumn(), _Counted())
    return Progress(*columns, TimeElapsedColumn(), console=console)


def _in_a_thread(work: Callable[[], int | None]) -> int | None:
    """Calls `work()` in another thread; returns its result, or raises its error."""
    outcome: dict[str, Any] = {}

    def call() -> None:
        try:
            outcome["code"] = work()
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(timeout=0.2)
    except KeyboardInterrupt:
        print("interrupted: no complete run was written", file=sys.stderr, flush=True)
        for clean_up in _ON_INTERRUPTION:
            clean_up()
        # Not sys.exit, which would wait for what the device is computing.
        os._exit(130)
    if "error" in outcome:
        raise outcome["error"]
    return outcome["code"]
