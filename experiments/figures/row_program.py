"""A program that makes the rows of one .csv file, but for those that the file holds."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from experiments.figures.rows import read_rows, write_rows

DATA_DIR = {"data_dir": "folder of prepared or downloaded data sets"}
EBM_PYTHON = {"ebm_python": "Python of an environment with interpret-core, else no DP-EBM"}


def run(
    columns: Sequence[str],
    settings: Callable[..., Iterable[Mapping[str, Any]]],
    row_of: Callable[..., Mapping[str, Any] | None],
    arguments: Sequence[str] | None = None,
    **options: str,
) -> tuple[str, list[dict[str, Any]]]:
    """Runs the program: `--out=` and flags named by `options`, with their help.

    `settings(**flags)` are the rows' first columns, in the order in which they are made;
    `row_of(setting, **flags)` a whole row, or None for one that cannot be made here. Every new row
    is in the file before the next one is begun. Returns the file's name and all its rows.
    `arguments` are the command line's by default.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True, help="the .csv file of rows")
    for name, words in options.items():
        parser.add_argument(f"--{name}", help=words)
    given = vars(parser.parse_args(arguments))
    out = given.pop("out")
    rows = read_rows(out) if os.path.exists(out) else []
    for setting in settings(**given):
        if not any(_same(setting, row) for row in rows):
            row = row_of(setting, **given)
            if row is not None:
                rows.append(dict(row))
                write_rows(out, columns, rows)
                print(*row.values(), sep=", ", flush=True)
    return out, rows


def _same(setting: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Returns whether a row is a setting's; as text, since the word "64" is read as a number."""
    return all(str(row[name] or "") == str(value or "") for name, value in setting.items())
