"""A run's flags as one file: read with --config=run.json, written into the curator's folder.

The file is a JSON object of flags and values, as {"epsilon": 2.0, "space": ["learning_rate=1"]};
flags on the command line win. A run writes every flag, null where it was not set, for the curator
only: a path may reveal something. A value equal to its flag's default counts as not given, so that
the file a run has written can be read again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from absl import flags

CONFIG_FILE = "config.json"
_NOT_OF_A_RUN = (
    *("config", "out_dir", "resume", "shard", "traceback", "compile_cache"),
    *("coordinator", "coordinator_bind_address", "process_count", "process_id", "distributed"),
)
_OF_A_MACHINE = (
    *("placement", "checkpoint_seconds", "chunk_size", "side_by_side", "workers"),
    *("micro_batch_size", "check_contributions"),
    *("data_dir", "cache_dir"),
)
"""Flags that may differ when a finished run is resumed: they do not change its result."""

_CONFIG = flags.DEFINE_string(
    "config",
    None,
    "JSON file of flags and values, as a run leaves it in its curator's folder; flags given beside "
    "it win.",
)


def expanded(arguments: Sequence[str]) -> list[str]:
    """Returns the command line with the flags of --config inserted behind the program's name."""
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
            raise flags.Error(
                f"--config={path} names {name!r}, which is not a flag of this program: pass its "
                "flags only (--helpfull lists them)"
            )
        if name in beside or f"no{name}" in beside or value in (None, flags.FLAGS[name].default):
            continue
        repeats = isinstance(flags.FLAGS[name], flags.MultiFlag)
        values = value if isinstance(value, list) and repeats else [value]
        found += [f"--{name}={_as_flag_text(name, one, path)}" for one in values]
    return found + rest


def _as_flag_text(name: str, value: Any, path: str) -> str:
    """Returns a JSON value as a flag is written on the command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list) and all(isinstance(one, str | int | float) for one in value):
        return ",".join(map(str, value))
    if isinstance(value, int | float | str):
        return repr(value) if isinstance(value, float) else str(value)
    raise flags.Error(
        f"--config={path}: {name} must be a number, a text or a list of them: pass such a value"
    )


def _read(path: str) -> dict[str, Any]:
    """Reads the flags and values of a file; refuses one that holds no JSON object."""
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise flags.Error(
            f"--config={path} cannot be read ({why}): pass a JSON object of flags and values"
        ) from None
    if not isinstance(content, dict):
        raise flags.Error(
            f"--config={path} holds something else: pass a JSON object of flags and values"
        )
    return content


def _flags_of_this_run() -> dict[str, Any]:
    """Returns every flag of this program that a run depends on, by name."""
    modules = flags.FLAGS.flags_by_module_dict().items()
    own = {flag.name for module, some in modules if not module.startswith("absl") for flag in some}
    return {name: flags.FLAGS[name].value for name in sorted(own - set(_NOT_OF_A_RUN))}


def save(folder: str) -> None:
    """Writes the flags of this run into the curator's folder, for --config."""
    with open(os.path.join(folder, CONFIG_FILE), "x", encoding="utf-8") as file:
        file.write(json.dumps(_flags_of_this_run(), indent=2) + "\n")


def refuse_changes(folder: str) -> None:
    """Refuses flags that differ from those recorded in the folder of a finished run."""
    path = os.path.join(folder, "curator", CONFIG_FILE)
    if not os.path.exists(path):
        return
    recorded, asked = _read(path), _flags_of_this_run()
    changed = [
        f"--{name}"
        for name, value in asked.items()
        if name not in _OF_A_MACHINE and recorded.get(name) != value
    ]
    if changed:
        raise ValueError(
            f"{folder} is finished, with other values of {', '.join(changed)}: pass those of "
            f"{path}, or another --out_dir"
        )
