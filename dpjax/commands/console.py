"""The command `dpjax`: everything that a release needs, from tuning to its defence."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import math
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import dpjax
from dpjax.commands import importing

USAGE = """usage: dpjax COMMAND [PATH ...] [--flag=value ...]

  tune         privately tune a model and release one model with a proven (epsilon, delta)
  price        what tuning costs: the (epsilon, delta) of releasing the best of K private runs
  predict      RELEASE TABLE.csv OUT.csv: what the released model says of new rows
  verify       RELEASE: does its claim hold?
  certificate  RELEASE: prove its epsilon, by separate code
  report       RELEASE: write its claim on one page, statement.html, for a data-protection officer
  ledger       FOLDER of runs: what all releases on the same records cost together
  schema       TABLE.csv SCHEMA.json: write a schema to fill in, from the column names alone
  devices      what is installed, and which devices JAX finds
  accelerator  check a device before training privately on it (in a checkout)
  pareto       privacy-utility fronts, for public data (in a checkout)
  vote         a federation chooses hyperparameters by a private vote (in a checkout)
  audit        attack whole tunings and compare with their claims (in a checkout)

dpjax COMMAND --help lists the flags of a command."""

_PROGRAMS = {
    "tune": "dpjax.commands.tune",
    "price": "dpjax.commands.price",
}
_OF_A_CHECKOUT = {
    "accelerator": "experiments.accelerator.checks",
    "pareto": "experiments.pareto",
    "vote": "experiments.federated_vote",
    "audit": "experiments.audit",
}


class _Parser(argparse.ArgumentParser):
    """Refuses bad arguments in one line, as every other program here does."""

    def error(self, message: str) -> NoReturn:
        print(f"error: {self.prog}: {message}", file=sys.stderr)
        sys.exit(2)


def _verify(found: argparse.Namespace) -> int:
    """Verifies a release; returns the exit code."""
    from dpjax.commands import price

    return price.verify(found.release)


def _predict(found: argparse.Namespace) -> int:
    """Writes a released model's predictions of a table; returns the exit code."""
    from dpjax.commands import predict

    predict.write(found.release, found.table, found.out)
    print(found.out)
    return 0


def _certificate(found: argparse.Namespace) -> int:
    """Proves a release's epsilon by separate code; returns the exit code."""
    from dpjax import certificate

    # `verification.statement_in` would import JAX, which proofs do not need.
    path, inner = found.release, os.path.join(found.release, "release")
    if os.path.basename(path) == certificate.STATEMENT:
        path = os.path.dirname(path) or "."
    return certificate.main([inner if os.path.isdir(inner) else path])


def _report(found: argparse.Namespace) -> int:
    """Writes a release's claim as a page; returns the exit code."""
    from dpjax.releases import statement_page

    print("\n".join(statement_page.write(found.release)))
    return 0


def _ledger(found: argparse.Namespace) -> int:
    """Prints what all releases on the same records cost together; returns the exit code."""
    from dpjax.accounting.stated_epsilon import six_digits_up as up
    from dpjax.releases import ledger

    passed = False
    for entries in ledger.runs_on_the_same_data(found.folder):
        print(f"{entries[-1]['data_set']}: {len(entries)} release(s) on the same records")
        for number, entry in enumerate(entries, 1):
            cost = (
                "NOT private" if entry["epsilon"] is None else f"epsilon {up(entry['epsilon']):g}"
            )
            print(
                f"  {number}  {entry['time']}  {cost} at delta {entry['delta']:g}  {entry['run']}"
            )
        units = ledger.by_unit(entries)
        for unit, own in units.items():
            epsilon, delta = ledger.together(own)
            share = f"{len(own)} of them, " if len(units) > 1 else ""
            print(f"  together: {share}epsilon {up(epsilon):g} at delta {delta:.3g} for {unit}")
            if (fixed := ledger.together_if_fixed(own)) < epsilon:
                when = "if all settings were fixed before the first release"
                print(f"  epsilon {up(fixed):g} at delta {delta:.3g} {when}")
            elif len(own) > 1 and (gone := ", ".join(ledger.unread(own))):
                print(f"  note: not composed, since these say no mechanism: {gone}")
        if len(units) > 1:
            print("  these protect different units: their epsilons do not add up")
        words = ledger.over_budget(entries, found.budget)
        if words is None and found.budget is not None:
            print(
                f"  the budget of {found.budget:g} is kept, at delta "
                f"{ledger.kept_delta(entries):.3g}, if it and the sum of deltas were fixed before "
                "the first release"
            )
        if words is not None:
            passed = True
            print(f"warning: {words}")
    if others := ledger.without_a_ledger(found.folder):
        print(f"note: not counted, for want of a ledger: {', '.join(others)}")
    return int(passed)


def _budget(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0.0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text}: pass a finite number above 0")


def _schema(found: argparse.Namespace) -> int:
    """Writes a table's schema to fill in, or checks one that is; returns the exit code."""
    from dpjax.data import tables

    if found.check:
        fits = tables.check_schema(found.table, found.schema)
        print("NOT PRIVATE: shares of the records, for the curator only, never publish")
        for one in fits:
            print(one.line + (f"\n  warning: {one.doubt}" if one.doubt else ""))
        return int(any(one.doubt for one in fits))
    tables.write_schema(found.table, found.schema)
    print(f"{found.schema}: fill in from public knowledge. The column names, taken to be public,")
    print("were read; no record was.")
    return 0


def _devices(found: argparse.Namespace) -> int:
    """Prints what is installed, and JAX's devices; returns the exit code."""
    from dpjax.commands.installed import lines

    print("\n".join(lines(devices=True)))
    return 0


_RELEASE = ("release", {"help": "the release's folder, its guarantee.json, or the run's folder"})
_SMALL: dict[str, tuple[Callable[[argparse.Namespace], int], list[tuple[str, dict[str, Any]]]]] = {
    "predict": (
        _predict,
        [
            _RELEASE,
            ("table", {"help": "the .csv table of new rows; it needs no target"}),
            ("out", {"help": "the .csv file to write, a prediction a row"}),
        ],
    ),
    "verify": (_verify, [_RELEASE]),
    "certificate": (_certificate, [_RELEASE]),
    "report": (_report, [_RELEASE]),
    "ledger": (
        _ledger,
        [
            ("folder", {"help": "a folder of runs, such as runs"}),
            ("--budget", {"type": _budget, "help": "epsilon; end with code 1 if it is exceeded"}),
        ],
    ),
    "schema": (
        _schema,
        [
            ("table", {"help": "the .csv table"}),
            ("schema", {"help": "the .json file to write, or to check"}),
            (
                "--check",
                {
                    "action": "store_true",
                    "help": "print how the schema fits the records; end with code 1 if it does not",
                },
            ),
        ],
    ),
    "devices": (_devices, []),
}
"""Command -> the function that runs it, and its arguments as argparse takes them."""

_COMMANDS = (*_PROGRAMS, *_SMALL, *_OF_A_CHECKOUT)


def _run_small(command: str, rest: list[str]) -> int:
    """Runs a command whose arguments argparse reads; returns the exit code."""
    act, arguments = _SMALL[command]
    parser = _Parser(prog=f"dpjax {command}", allow_abbrev=False)
    for name, settings in arguments:
        parser.add_argument(name, **settings)
    known = {"-h", "--help", *(name for name, _ in arguments)}
    for one in rest:
        if one.startswith("-") and one.partition("=")[0] not in known:
            parser.error(f"there is no flag {one.partition('=')[0]} (--help lists them)")
    found = parser.parse_args(rest)
    try:
        return act(found)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _module(command: str) -> str:
    """Returns the module of a program; refuses one of `experiments` outside a checkout."""
    if command in _PROGRAMS:
        return _PROGRAMS[command]
    root = os.path.dirname(os.path.dirname(os.path.abspath(dpjax.__file__)))
    if not os.path.isdir(os.path.join(root, "experiments", "figures")):
        print(
            f"error: dpjax {command} is part of a checkout: clone the repository, and run "
            f"`pip install -e .` and `dpjax {command}` there",
            file=sys.stderr,
        )
        sys.exit(2)
    sys.path.insert(0, root)
    return _OF_A_CHECKOUT[command]


def main() -> None:
    """Runs a command; ends the process with its exit code."""
    command, *rest = sys.argv[1:] or [""]
    if command in ("-h", "--help", "help"):
        print(USAGE)
        sys.exit(0)
    if command in ("", "--devices"):
        from dpjax.commands.installed import lines

        print("\n".join([*lines(devices=bool(command)), "", USAGE]))
        sys.exit(0)
    if command not in _COMMANDS:
        print(
            f"error: unknown command {command!r}: pass one of {', '.join(_COMMANDS)}",
            file=sys.stderr,
        )
        sys.exit(2)
    if command in _SMALL:
        sys.exit(_run_small(command, rest))
    # Each command has flags of its own: only its module is imported.
    name = _module(command)
    with importing():
        module = importlib.import_module(name)
        from absl import flags

        from dpjax.commands import command_line

    # --help shows the text of `__main__` and its key flags: make these the command's own.
    main_module = sys.modules["__main__"]
    words = module.__doc__ or ""
    for own, whole in {**_PROGRAMS, **_OF_A_CHECKOUT, "price": "experiments.epsilon"}.items():
        words = words.replace(f"python -m {whole}", f"dpjax {own}")
    main_module.__doc__ = words.replace("python -m experiments.tune", "dpjax tune")
    sys.argv = [f"dpjax {command}", *rest]
    if command == "audit":  # An audit is run as a figure, with the flags of figures.
        module.FIGURE.run()
        return
    for flag in flags.FLAGS.get_key_flags_for_module(module):
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flag)
    command_line.run(module.main)
