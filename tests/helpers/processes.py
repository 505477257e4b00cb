"""Programs that a test runs in a process of their own."""

import subprocess
import sys


def python(*arguments, timeout=900, **options):
    """What this Python ends in with these arguments; its output is text. Options of `run`."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **options)
