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
    for link in re.findall(r"\]\(([^)#]+)", PAGE.read_text()):
        assert (PAGE.parent / link).exists(), link


def test_every_binary_is_named_with_its_command():
    commands = re.findall(r"`python -m experiments\.figures\.([\w.]+)[^`]*`", PAGE.read_text())
    assert sorted(commands) == sorted(registry.names())
