"""One page of a run for the curator: `curator/report.html`, complete in itself and without network.

A pure function of what the folder holds and of the statement; no script, no address. As everything
in the curator's half it is not private: it shows K and every candidate's score.
"""

from __future__ import annotations

import base64
import csv
import html
import json
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from dpjax import files
from dpjax.after_the_draw import beside_the_release
from dpjax.releases import ledger
from dpjax.releases.curator import CANDIDATES_FILE, RECORD_FILE, WARNING
from dpjax.releases.rules import NO_CHOICE

REPORT_FILE = "report.html"
MOST_ROWS = 200
"""Candidates shown, the best first; the file beside has all."""

COSTS = {
    "epsilon_of_one_run": "one run",
    "epsilon_of_the_selection": "the selection alone",
    "epsilon_of_the_final_training": "the final training alone",
    "epsilon": "the whole, as stated in the release",
    "epsilon_of_naive_composition": "naive composition of the mean number",
}
"""The numbers of `run.json` that are drawn as bars, in order, each with its label."""

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 60rem; margin: 0 auto;
  padding: 0 1rem 3rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
.warning { background: #8c1d18; color: #fff; padding: .6rem 1rem; font-weight: 600; }
.publish { border-left: 6px solid #009e73; padding-left: 1rem; }
.keep { border-left: 6px solid #d55e00; padding-left: 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .15rem .8rem; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, td:first-child { text-align: left; }
tr.winner { background: #e2f3ec; font-weight: 600; }
.scroll { overflow-x: auto; } img, svg { max-width: 100%; height: auto; }
"""


def beside(
    folder: str | os.PathLike[str],
    rows: Sequence[Mapping[str, float]],
    statement: Mapping[str, Any],
    *,
    files_released: Sequence[str] = (),
    title: str = "every candidate (curator only)",
    against: str = "learning_rate",
    chance: float | None = None,
) -> None:
    """Draws the candidates of a curator's folder, if anything was scored, and writes its page.

    Args:
      folder: with `CANDIDATES_FILE` and `RECORD_FILE`.
      rows: of the record, as `CuratorRecord.rows` gives them.
      statement: of the release.
      files_released: names that the page lists as publishable.
      title, against, chance: as in `plotting.candidate_scores`; nothing is drawn where the
        candidates have no hyperparameter `against`.
    """
    if rows and against in rows[0] and not _scored_nothing(statement):
        with beside_the_release("drawing the candidates"):
            from dpjax import plotting  # Imports matplotlib.

            figure = plotting.candidate_scores(rows, against, chance, title)
            plotting.save_figure(figure, folder, "candidates", formats=("png",))
    with beside_the_release("writing the curator's page"):
        path = os.path.join(os.fspath(folder), REPORT_FILE)
        text = page(folder, statement, files_released)
        with files.replacing(path, 0o600) as partial, open(partial, "w", encoding="utf-8") as file:
            file.write(text)


def page(
    folder: str | os.PathLike[str], stated: Mapping[str, Any], files_released: Sequence[str] = ()
) -> str:
    """Returns the page of a curator's folder and the statement of its release, as HTML."""
    root = pathlib.Path(folder)
    facts = json.loads((root / RECORD_FILE).read_text(encoding="utf-8"))
    with open(root / CANDIDATES_FILE, encoding="utf-8", newline="") as file:
        # Earlier versions began with a line of warning; it is a column without values now.
        read = csv.DictReader(line for line in file if not line.startswith("#"))
        rows = [{name: one for name, one in row.items() if name != WARNING} for row in read]
    title = "One private run, untuned" if _scored_nothing(stated) else "A private tuning"
    picture = root / "candidates.png"
    sections = [
        f'<p class="warning">{_text(WARNING)}</p>',
        f"<h1>{title}</h1>\n<p>{_text(_one_line(stated.get('model', '')))}</p>",
        _publishable(files_released, stated),
        _costs(facts, stated),
        _place_in_ledger(root),
        _untuned(rows) if _scored_nothing(stated) else _candidates(rows, facts),
    ]
    if picture.exists():
        encoded = base64.b64encode(picture.read_bytes()).decode()
        sections.append(
            f'<p><img width="640" alt="validation score of every candidate" '
            f'src="data:image/png;base64,{encoded}"></p>'
        )
    sections.append(_others(facts))
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Curator's report (never publish)</title>\n<style>{_STYLE}</style>\n</head>\n"
        "<body>\n" + "\n".join(filter(None, sections)) + "\n</body>\n</html>\n"
    )


def _text(value: object) -> str:
    """Returns a value as text that is safe in HTML."""
    return html.escape(str(value), quote=True)


def _one_line(model: str) -> str:
    """Returns the description of a Flax Linen model in one line, without Linen's own comment."""
    words = " ".join(model.replace("# attributes", "").split())
    return words.replace("( ", "(").replace(" )", ")")


def _number(value: object) -> str:
    """Writes a number in five digits, "-" where it is not finite, and any other text as it is."""
    try:
        found = float(str(value))
    except ValueError:
        return _text(value)
    return f"{found:.5g}" if math.isfinite(found) else "-"


def _publishable(names: Sequence[str], stated: Mapping[str, Any]) -> str:
    """Writes the section that says which files may be published, and at what price."""
    listed = "".join(f"<li>release/{_text(name)}</li>" for name in sorted(names))
    listed = listed or "<li>the release, and no other file</li>"
    if stated.get("private") and stated.get("epsilon") is not None:
        relation = _text(stated.get("neighbouring_relation", "")).replace("_", " ")
        claim = (
            f"epsilon {_number(stated['epsilon'])} at delta {_text(stated.get('delta'))}, "
            f"{relation}"
        )
        kind, may = "publish", f"May be published, at the price of {claim}"
    else:
        kind, may = "keep", "NOT private, no guarantee: may not be published"
    if (stated.get("randomness") or {}).get("secret") is False:
        kind, may = "keep", "Seeded, so that the guarantee holds against nobody who knows the seed"
    return (
        f'<h2>What may be published</h2>\n<div class="{kind}"><p>{may}:</p><ul>{listed}</ul>'
        "</div>\n"
        '<div class="keep"><p>Never: this page, the folder curator/, what the program printed, and '
        "how long it took.</p></div>"
    )


def _costs(facts: Mapping[str, Any], stated: Mapping[str, Any]) -> str:
    """Draws the epsilons as bars; returns nothing where none is finite."""
    bars = [(words, facts[name]) for name, words in COSTS.items() if facts.get(name) is not None]
    bars = [(words, float(value)) for words, value in bars if math.isfinite(float(value))]
    if not bars:
        return ""
    largest = max(value for _, value in bars) or 1.0
    parts = []
    for place, (words, value) in enumerate(bars):
        top, width = 44 * place, 350 * value / largest
        colour = "#d55e00" if words == COSTS["epsilon"] else "#0072b2"
        parts.append(
            f'<text x="0" y="{top + 14}">{_text(words)}</text>'
            f'<rect x="0" y="{top + 19}" width="{width:.1f}" height="18" fill="{colour}"/>'
            f'<text x="{width + 6:.1f}" y="{top + 33}">{value:.4f}</text>'
        )
    return (
        f"<h2>Cost: epsilon at delta {_text(stated.get('delta', ''))}</h2>\n"
        f'<svg viewBox="0 0 420 {44 * len(bars)}" width="420" role="img" font-size="14" '
        f'aria-label="cost of each part">{"".join(parts)}</svg>\n'
        "<p>The total is not the sum of the parts: the statement says how they were combined.</p>"
    )


def _place_in_ledger(root: pathlib.Path) -> str:
    """Says how many releases these records have paid for, and what all of them cost together."""
    path = root / ledger.LEDGER_FILE
    if not path.exists():
        return ""
    entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    if len(entries) < 2:
        return "<p>This is release 1 on these records, of those that stand beside it.</p>"
    epsilon, delta = ledger.together(entries)
    return (
        f"<p>This is release {len(entries)} on these records, of those that stand beside it. "
        f"Together they cost epsilon {_number(epsilon)} at delta {_number(delta)}; "
        "<code>dpjax ledger</code> lists them.</p>"
    )


def _scored_nothing(stated: Mapping[str, Any]) -> bool:
    """Returns whether one run was made and released, so that nothing was scored."""
    return (stated.get("selection") or {}).get("rule") == NO_CHOICE


def _untuned(rows: Sequence[Mapping[str, str]]) -> str:
    """Shows the hyperparameters of a run that nothing was compared with."""
    unmeasured = ("candidate", "winner", "score", "validation_accuracy")
    body = "".join(
        f"<tr><td>{_text(name.replace('_', ' '))}</td><td>{_number(value)}</td></tr>"
        for row in rows
        for name, value in row.items()
        if name not in unmeasured
    )
    return (
        "<h2>Untuned</h2>\n<p>One run with hyperparameters that were public beforehand. Nothing "
        "was scored on the records or compared, so there is no validation score.</p>\n"
        f"<table>{body}</table>"
    )


def _candidates(rows: Sequence[Mapping[str, str]], facts: Mapping[str, Any]) -> str:
    """Writes the table of candidates: the winner first, then by falling score."""
    count = facts.get("number_of_candidates", len(rows))
    title = f"<h2>Candidates: {_text(count)}</h2>"
    if not rows:
        return f"{title}\n<p>None: the model is an untrained default.</p>"

    def rank(row: Mapping[str, str]) -> float:
        try:
            score = float(row["score"])
        except (KeyError, ValueError):
            return math.inf
        return -score if not math.isnan(score) else math.inf

    ordered = sorted(rows, key=lambda row: (row.get("winner") != "1", rank(row)))
    shown = ordered[:MOST_ROWS]
    names = [name for name in rows[0] if name != "winner"]
    head = "".join(f"<th>{_text(name.replace('_', ' '))}</th>" for name in names)
    body = "\n".join(
        f"<tr{' class=' + chr(34) + 'winner' + chr(34) if row.get('winner') == '1' else ''}>"
        + "".join(f"<td>{_number(row[name])}</td>" for name in names)
        + "</tr>"
        for row in shown
    )
    more = (
        "" if len(rows) <= MOST_ROWS else f"<p>The best {MOST_ROWS}; {CANDIDATES_FILE} has all.</p>"
    )
    return (
        f"{title}\n<p>The selected one first, then by score. A score is noisy, an accuracy exact; "
        "neither may be published.</p>\n"
        f'<div class="scroll"><table><tr>{head}</tr>\n{body}</table></div>'
        f"{more}"
    )


def _others(facts: Mapping[str, Any]) -> str:
    """Shows the other entries of the run's record, those that fit in one line."""
    rows = [
        (name, value)
        for name, value in facts.items()
        if name not in ("warning", "winner", *COSTS) and isinstance(value, int | float | str)
    ]
    body = "".join(
        f"<tr><td>{_text(name.replace('_', ' '))}</td><td>{_number(value)}</td></tr>"
        for name, value in rows
    )
    return f"<h2>The run</h2>\n<table>{body}</table>"
