"""The command `dpjax`: tune a model, price tuning that was done, verify a release."""

from __future__ import annotations

import importlib
import sys

from dpjax.commands import importing

USAGE = """usage: dpjax COMMAND [--flag=value ...]

  tune     privately tune a classifier and release one model with a proven (epsilon, delta)
  price    what tuning costs: the (epsilon, delta) of releasing the best of K private runs
  verify   PATH of a release's guarantee.json: does its claim hold?
  schema   TABLE.csv SCHEMA.json: write a schema to fill in, from the column names alone

dpjax COMMAND --help lists the flags of a command."""

_MODULES = {"tune": "tune", "price": "price", "verify": "price"}
_COMMANDS = (*_MODULES, "schema")


def _write_schema(paths: list[str]) -> int:
    """Writes a schema to fill in; returns the exit code."""
    if len(paths) != 2 or paths[0].startswith("--"):
        print("error: dpjax schema takes two paths, TABLE.csv SCHEMA.json", file=sys.stderr)
        return 2
    from dpjax.data import tables

    try:
        tables.write_schema(*paths)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{paths[1]}: fill in from public knowledge. The column names, taken to be public, were")
    print("read; no record was.")
    return 0


def main() -> None:
    """Runs a command; ends the process with its exit code."""
    command, *rest = sys.argv[1:] or [""]
    if command in ("-h", "--help", "help"):
        print(USAGE)
        sys.exit(0)
    if command not in _COMMANDS:
        problem = f"unknown command {command!r}" if command else "no command"
        print(f"error: {problem}: pass one of {', '.join(_COMMANDS)}", file=sys.stderr)
        sys.exit(2)
    if command == "verify":
        if len(rest) != 1:
            print("error: dpjax verify takes one path, of a guarantee.json", file=sys.stderr)
            sys.exit(2)
        rest = rest if rest[0].startswith("--help") else [f"--verify={rest[0]}"]
    if command == "schema":
        sys.exit(_write_schema(rest))
    # Each command has flags of its own: only its module is imported.
    with importing():
        module = importlib.import_module(f"dpjax.commands.{_MODULES[command]}")
        from absl import flags

        from dpjax.commands import command_line

    main_module = sys.modules["__main__"]
    main_module.__doc__ = module.__doc__
    sys.argv = [f"dpjax {command}", *rest]
    # --help shows the key flags of the program's own module.
    for flag in flags.FLAGS.get_key_flags_for_module(module):
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flag)
    command_line.run(module.main)
