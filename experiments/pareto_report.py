"""What `experiments.pareto` prints and writes of a search."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from dpjax import pareto, plotting, tuning
from dpjax.releases import curator, ledger, statement_page
from experiments import pareto_picture as picture

RECORD_FILE, TABLE_FILE, FRONT_FILE = "evaluations.jsonl", "evaluations.csv", "front.csv"
SUGGESTION_FILE, PICTURE = "suggestion.json", "front"


def report(
    record: pareto.SearchRecord,
    front: pareto.FreshFront,
    suggestion: pareto.Suggestion | None,
    delta: float,
    console: Console,
) -> None:
    """Prints the front and the suggestion."""
    table = Table(title=f"Front, measured afresh ({front.utilities.shape[1]} repetitions)")
    names = [picture.SHORT_NAMES.get(name, name) for name in record.domain.names]
    for head in ("epsilon", "accuracy", "worst", "best", *names):
        table.add_column(head.replace("_", " "), justify="right", no_wrap=True)
    for row in front.rows():
        cells = [f"{row['epsilon']:.3g}"]
        cells += [f"{row[name]:.3f}" for name in ("utility", "worst", "best")]
        cells += [picture.short(row[name]) for name in record.domain.names]
        table.add_row(*cells, style=None if row["still_on_front"] else "dim")
    console.print(table)
    console.print(
        f"hypervolume {front.hypervolume:.4f} measured afresh "
        f"({front.hypervolume_as_first_seen:.4f} as first seen, where luck counts), "
        f"anti-ideal ({record.anti_ideal[0]:g}, {record.anti_ideal[1]:g})"
    )
    failed = record.evaluations[int(record.failed.argmax())] if record.failed.any() else None
    if failed is not None:
        console.print(f"{record.failed.sum()} evaluations failed; the first: {failed.failure}")
    if suggestion is not None:
        setting = ", ".join(f"{name} {value:.4g}" for name, value in suggestion.setting.items())
        console.print(
            f"[bold]for epsilon {suggestion.wanted_epsilon:g}[/bold] (delta {delta:g}): {setting}; "
            f"epsilon {suggestion.epsilon:.4f} for one run, accuracy {suggestion.utility:.4f} "
            f"predicted, {suggestion.low:.4f} to {suggestion.high:.4f} (95%)"
        )


def save_search(
    folder: str,
    record: pareto.SearchRecord,
    front: pareto.FreshFront,
    suggestion: pareto.Suggestion | None,
    *,
    title: str,
    public: str | None,
) -> None:
    """Writes record, tables and picture; every file says whether it may be published.

    Args:
      folder: to make.
      record, front, suggestion: what was found.
      title: of the picture.
      public: the public data that the search ran on; None where it ran on private data.
    """
    os.makedirs(folder, mode=0o755 if public else 0o700)
    note = f"computed from {public}, declared public" if public else curator.WARNING
    record.save(os.path.join(folder, RECORD_FILE))
    _write_csv(os.path.join(folder, TABLE_FILE), record.rows(), note)
    _write_csv(os.path.join(folder, FRONT_FILE), front.rows(), note)
    drawn = None
    if suggestion is not None:
        drawn = {
            "epsilon": suggestion.epsilon,
            "utility": suggestion.utility,
            "low": suggestion.low,
            "high": suggestion.high,
        }
        facts = {"note": note, **drawn, "wanted_epsilon": suggestion.wanted_epsilon}
        facts["setting"] = dict(suggestion.setting)
        with open(os.path.join(folder, SUGGESTION_FILE), "w", encoding="utf-8") as file:
            json.dump(facts, file, indent=2)
            file.write("\n")
    figure = picture.front_figure(
        front.rows(),
        record.rows(),
        title=title + (" (public proxy)" if public else " (NOT PRIVATE: curator only)"),
        anti_ideal=record.anti_ideal,
        suggestion=drawn,
    )
    plotting.save_figure(figure, folder, PICTURE, formats=("png",))


def save_release(
    folder: str,
    run: str,
    release: tuning.Release,
    *,
    epsilon: float,
    delta: float,
    seen: ledger.SeenData,
    earlier: list[dict],
) -> None:
    """Writes the release of the one private run, and the curator's ledger.

    Args:
      folder: to write in.
      run: the folder's final path, the run's name in the ledger.
      release: what may be published.
      epsilon, delta: its cost.
      seen: the private data, as the ledger knows it.
      earlier: runs on it that the ledger found.
    """
    release.save(os.path.join(folder, "release"))
    statement_page.write(folder)
    private_folder = os.path.join(folder, "curator")
    os.makedirs(private_folder, mode=0o700)
    ledger.write_ledger(private_folder, earlier, run=run, seen=seen, epsilon=epsilon, delta=delta)


def _write_csv(path: str, rows: Sequence[Mapping], note: str) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(f"# {note}\n")
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
