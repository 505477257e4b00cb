"""A run's flags as one file: read with --config=run.json, written into the curator's folder.

The file is a JSON object of flags and values, as {"epsilon": 2.0, "space": ["learning_rate=1"]};
flags on the command line win. What a run writes holds every flag that was not at its default, and
is the curator's: a path may say more than it should.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from absl import flags

CONFIG_FILE = "config.json"
_NOT_OF_A_RUN = ("config", "out_dir", "resume", "shard", "traceback")

_CONFIG = flags.DEFINE_string(
    "config",
    None,
    "JSON file of flags and values, as a run leaves it in its curator's folder; flags given beside "
    "it win.",
)


def expanded(arguments: Sequence[str]) -> list[str]:
    """Command-line arguments with those of --config before them.

    Args:
      arguments: the program's name, then flags.

    Raises:
      flags.Error: for a file that is no JSON object of this program's flags.
    """
    program, *rest = arguments
    path = None
    for place, argument in enumerate(rest):
        name, equals, value = argument.lstrip("-").partition("=")
        if argument.startswith("-") and name == _CONFIG.name:
            path = value if equals else "".join(rest[place + 1 : place + 2])
    if path is None:
        return list(arguments)
    beside = {argument.lstrip("-").partition("=")[0] for argument in rest}
    found = [program]
    for name, value in _read(path).items():
        if name not in flags.FLAGS or name == _CONFIG.name:
            raise flags.Error(f"--config={path} names {name!r}, which is no flag of this program")
        if name not in beside and f"no{name}" not in beside:
            values = value if isinstance(value, list) and _repeats(name) else [value]
            found += [f"--{name}={_written(name, one, path)}" for one in values]
    return found + rest


def _repeats(name: str) -> bool:
    return isinstance(flags.FLAGS[name], flags.MultiFlag)


def _written(name: str, value: Any, path: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list) and all(isinstance(one, str | int | float) for one in value):
        return ",".join(map(str, value))
    if isinstance(value, int | float | str):
        return repr(value) if isinstance(value, float) else str(value)
    raise flags.Error(f"--config={path}: {name} must be a number, a text or a list of them")


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no JSON"
        raise flags.Error(
            f"--config={path} cannot be read ({why}): pass a JSON object of flags and values"
        ) from None
    if not isinstance(content, dict):
        raise flags.Error(f"--config={path} must hold a JSON object of flags and values")
    return content


def save(folder: str) -> None:
    """Writes the flags of this run that are not at their defaults, for --config.

    Args:
      folder: the curator's.
    """
    values = {}
    for name in sorted(flags.FLAGS):
        holder = flags.FLAGS[name]
        module = flags.FLAGS.find_module_defining_flag(name) or ""
        of_program = not module.startswith("absl")
        if of_program and name not in _NOT_OF_A_RUN and holder.value != holder.default:
            values[name] = holder.value
    with open(os.path.join(folder, CONFIG_FILE), "x", encoding="utf-8") as file:
        file.write(json.dumps(values, indent=2) + "\n")
