"""The gallery of figures shows every committed picture, and names binaries that there are."""

import pathlib
import re

from experiments.figures import registry

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "docs" / "figures.md"


def test_every_committed_picture_is_shown_and_every_link_leads_somewhere():
    links = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", PAGE.read_text())
    shown = {(PAGE.parent / link).relative_to(ROOT) for link in links}
    committed = {path.relative_to(ROOT) for path in (ROOT / "docs/figures").rglob("*.png")}
    assert shown == committed
    assert len(links) == 2 * len(committed)  # Small in its row, and whole where it is unfolded.
    for link in re.findall(r"\]\(([^)#]+)", PAGE.read_text()):
        assert (PAGE.parent / link).exists(), link


def test_every_row_says_what_came_out_and_folds_the_rest():
    rows = PAGE.read_text().split("<tr><td>\n")[1:]
    assert len(rows) == len(registry.names())
    for row in rows:
        shown, _, folded = row.partition("<details><summary>")
        verdict = re.search(r"^\*\*[^*]+\*\*( \*\*[^*]+\*\*| Ours\.)$", shown, re.MULTILINE)
        assert verdict, shown
        assert ("*Paper.*" in shown and "*Here.*" in shown) != verdict[0].endswith("Ours.")
        assert len(shown.split()) < 130 and shown.count("|") == 0
        assert "`python -m experiments.figures." in folded and ".svg)" in folded


def test_every_binary_is_named_with_its_command():
    commands = re.findall(r"`python -m experiments\.figures\.([\w.]+)[^`]*`", PAGE.read_text())
    assert sorted(commands) == sorted(registry.names())
