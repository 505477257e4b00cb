"""Refuses pages that became harder to read once: `make lint` runs it.

Counts on every page what makes sentences hard to read, and compares with `GOALS`. A page that does
not meet a goal yet has a row in `prose.csv` with its present number. Such a limit only falls: where
a page is better by `SLACK`, the row has to follow, and goes once the goal is met.

  python tests/prose.py               # what is refused; --table: every page's numbers
  python tests/prose.py --lower       # rows follow pages that became better; raises none

The numbers are a yardstick: whether a stranger has to read a sentence twice, only a stranger knows.
"""

from __future__ import annotations

import argparse
import csv
import pathlib
import re
import sys

PAGES = ("README.md", "CONTRIBUTING.md", "docs/**/*.md")
LEFT_OUT = ("docs/api/", "docs/benchmarks/", "docs/accelerators/")
"""Lists of names, and tables that programs write."""
GUIDES = ("docs/howto/", "docs/start.md", "docs/install.md", "docs/tables.md", "docs/bridges.md")
GUIDES += ("docs/troubleshooting.md", "docs/should_i_tune.md", "docs/federated.md")

GOALS = {"chains": 18.0, "long": 3.0, "decimals": 0.0, "you": 10.0}
"""chains: colons and semicolons per 1,000 words; long: sentences of more than 35 words, in percent;
decimals: those without a leading zero; you: "you" and "your" per 1,000 words, the least of a guide.
"""
SLACK = {"chains": 2.0, "long": 2.0, "decimals": 0.0, "you": 2.0}
MOST_WORDS = 35


def blocks(text: str) -> list[str]:
    """Returns paragraphs, items and cells; code, comments, pictures and links' targets left out."""
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->|^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]+`", "code", re.sub(r"!\[.*?\]\(.*?\)", "", text))
    text = re.sub(r"\]\([^)]*\)", "]", text)
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        if all(line.startswith("    ") for line in paragraph.splitlines()):
            continue  # Indented code.
        for block in re.split(r"\n(?=\s*(?:[-*|#]|\d+\. ))", paragraph):
            cells = block.split("|") if block.lstrip().startswith("|") else [block]
            found += [" ".join(cell.split()) for cell in cells if re.search(r"\w", cell)]
    return found


def measured(text: str) -> dict[str, float]:
    """Returns the numbers of a page, by the names in `GOALS`."""
    found = blocks(text)
    together = "\n".join(found)
    words = max(len(re.findall(r"[^\s]*[A-Za-z]{2,}[^\s]*", together)), 1)
    sentences = [
        sentence.split()
        for block in found
        for sentence in re.split(r"(?<=[.!?])[*_)\]\"']*\s+(?=[A-Z\d(*\"\[]|code\b)", block)
    ]
    sentences = [each for each in sentences if len(each) > 3]
    long = sum(len(each) > MOST_WORDS for each in sentences)
    return {
        "chains": 1000 * len(re.findall(r"[:;](?=\s|$)", together)) / words,
        "long": 100 * long / max(len(sentences), 1),
        "decimals": float(len(re.findall(r"(?<![\w.\d/])[+-]?\.\d", together))),
        "you": 1000 * len(re.findall(r"\byou(?:rs?)?\b", together, re.IGNORECASE)) / words,
    }


def read_limits(path: pathlib.Path) -> dict[tuple[str, str], float]:
    with open(path, encoding="utf-8", newline="") as file:
        return {(row["page"], row["measure"]): float(row["limit"]) for row in csv.DictReader(file)}


def counted(root: pathlib.Path) -> dict[tuple[str, str], float]:
    """Returns (page, measure) -> number, "you" for guides alone."""
    paths = {path.relative_to(root).as_posix(): path for each in PAGES for path in root.glob(each)}
    return {
        (name, measure): number
        for name in sorted(paths)
        if not name.startswith(LEFT_OUT)
        for measure, number in measured(paths[name].read_text(encoding="utf-8")).items()
        if measure != "you" or name.startswith(GUIDES)
    }


def refused(numbers: dict, limits: dict) -> list[str]:
    """Returns a line for each number beyond its limit, and for each limit that has to follow."""
    lines = [f"{page}: no such page, or measure {name}: drop its row"
             for page, name in limits.keys() - numbers.keys()]  # fmt: skip
    for (page, name), number in numbers.items():
        sign, goal = (-1 if name == "you" else 1), GOALS[name]
        limit = limits.get((page, name), goal)
        if sign * (number - limit) > 0.05:  # Limits are rounded.
            lines.append(f"{page}: {name} is {number:.1f}, the limit is {limit:g}")
        met = sign * (number - goal) <= 0
        if (page, name) in limits and (met or sign * (limit - number) > SLACK[name] + 0.05):
            lines.append(f"{page}: {name} is {number:.1f}, better than its row: run --lower")
    return lines


def lowered(numbers: dict, limits: dict) -> list[tuple[str, str, str]]:
    """Returns rows: each limit as it is, or the page's number where that is better."""
    rows = []
    for key in sorted(limits.keys() & numbers.keys()):
        better = max if key[1] == "you" else min
        limit = better(limits[key], round(numbers[key], 1))
        if better(limit, GOALS[key[1]]) != limit:
            rows.append((*key, f"{limit:g}"))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", nargs="?", default=pathlib.Path(__file__).parents[1])
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--lower", action="store_true")
    given = parser.parse_args()
    root = pathlib.Path(given.root)
    table = root / "tests" / "prose.csv"
    numbers, limits = counted(root), read_limits(table)
    if given.table:
        for page in dict.fromkeys(page for page, _ in numbers):
            own = (f"{name} {number:.1f}" for (of, name), number in numbers.items() if of == page)
            print(page, *own, sep="  ")
    if given.lower:
        rows = [("page", "measure", "limit"), *lowered(numbers, limits)]
        table.write_text("".join(",".join(row) + "\n" for row in rows), encoding="utf-8")
        limits = read_limits(table)
    lines = refused(numbers, limits)
    print("".join(f"{line}\n" for line in lines), end="")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
