"""A child process that cannot outlive its parent, however that ends: Ctrl-C, SIGTERM or SIGKILL.

The parent holds a pipe to the child's standard input and never writes to it; the system closes the
pipe with the parent, and the child, which waits for that in a thread, ends at once.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Mapping, Sequence

_STANDARD_INPUT = 0


def output_of(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Runs a program that calls `end_with_parent` and returns what it printed.

    Raises RuntimeError: it failed; the message is the end of its errors.
    """
    child = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # Not `communicate`, which would close the pipe at once.
    errors: list[str] = []
    reader = threading.Thread(target=lambda: errors.append(child.stderr.read()))
    reader.start()
    try:
        output = child.stdout.read()
    finally:
        # Also where reading was interrupted: the child then sees the end of its input.
        child.stdin.close()
        code = child.wait()
        reader.join()
        child.stdout.close()
        child.stderr.close()
    if code:
        raise RuntimeError(errors[0].strip()[-500:])
    return output


def end_with_parent() -> None:
    """Ends this process when its standard input ends; to be called by the child, early."""

    def wait() -> None:
        while os.read(_STANDARD_INPUT, 1):
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
