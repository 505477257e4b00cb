"""The yardstick of the pages' prose, `prose.py`, on pages of a temporary folder."""

import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).with_name("prose.py")
PLAIN = "You pass one number per record. The table has your epsilon.\n\n"
IMPERSONAL = "One passes a number per record.\n\n"
CHAIN = "You pass one number: it is yours; the table has it.\n\n"
LONG = "You see " + "one more word and " * 10 + "then it ends.\n\n"
"""A sentence of 45 words."""


def run(tmp_path, pages, rows=(), *flags):
    """Returns the exit code and the lines that are printed for these pages and limits."""
    for name, text in pages.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "tests").mkdir(exist_ok=True)
    table = "".join(f"{row}\n" for row in ("page,measure,limit", *rows))
    (tmp_path / "tests" / "prose.csv").write_text(table)
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path, *flags], capture_output=True, text=True
    )
    assert not done.stderr
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize(
    "page,text,measure",
    [
        ("README.md", PLAIN + CHAIN, "chains"),
        ("docs/faq.md", 20 * PLAIN + 2 * LONG, "long"),
        ("docs/deep/faq.md", 20 * PLAIN + f"| cell | {LONG.strip()} |\n" * 2, "long"),
        ("docs/faq.md", 20 * PLAIN + "It gains .5 points.", "decimals"),
        ("docs/howto/a.md", 20 * IMPERSONAL, "you"),
    ],
)
def test_a_page_beyond_a_goal_is_refused(tmp_path, page, text, measure):
    code, lines = run(tmp_path, {page: text})
    assert code == 1 and len(lines) == 1
    assert lines[0].startswith(f"{page}: {measure} is ")


def test_plain_pages_pass_and_code_is_no_prose(tmp_path):
    code = "```\na: b; c: d\n```\n\n    --rate=.5: x\n\n[text](https://a.b/.5) and `x: .5; y`.\n"
    assert run(tmp_path, {"README.md": 5 * PLAIN + code, "docs/howto/a.md": PLAIN}) == (0, [])


def test_a_row_is_a_ceiling(tmp_path):
    pages = {"docs/faq.md": 9 * PLAIN + CHAIN}
    (line,) = run(tmp_path, pages)[1]
    number = float(line.split(" is ")[1].split(",")[0])
    assert run(tmp_path, pages, [f"docs/faq.md,chains,{number}"]) == (0, [])
    code, lines = run(tmp_path, pages, [f"docs/faq.md,chains,{number - 0.2:g}"])
    assert code == 1 and f"the limit is {number - 0.2:g}" in lines[0]


@pytest.mark.parametrize(
    "page,text,row",
    [
        ("docs/faq.md", 9 * PLAIN + CHAIN, "docs/faq.md,chains,60"),
        ("docs/howto/a.md", PLAIN, "docs/howto/a.md,you,0"),
        ("docs/howto/a.md", PLAIN + 60 * IMPERSONAL, "docs/howto/a.md,you,1"),
        ("docs/faq.md", PLAIN, "docs/faq.md,chains,18"),
    ],
)
def test_a_ceiling_that_is_too_high_is_refused_and_follows(tmp_path, page, text, row):
    code, lines = run(tmp_path, {page: text}, [row])
    assert code == 1 and "better than its row" in " ".join(lines)
    code, lines = run(tmp_path, {page: text}, [row], "--lower")
    assert not any("better than its row" in line for line in lines)
    assert code == 0 and row not in (tmp_path / "tests" / "prose.csv").read_text()


def test_lowering_raises_nothing(tmp_path):
    row = "docs/faq.md,chains,20"
    code, _ = run(tmp_path, {"docs/faq.md": CHAIN}, [row], "--lower")
    assert code == 1 and row in (tmp_path / "tests" / "prose.csv").read_text()


def test_a_row_of_no_page_is_refused(tmp_path):
    code, lines = run(tmp_path, {"README.md": PLAIN}, ["docs/gone.md,chains,20"])
    assert code == 1 and lines == ["docs/gone.md: no such page, or measure chains: drop its row"]
