"""Plants wiring mistakes, one at a time, and sees that the tests named beside each notice.

Not part of the suite: all of them take an hour or two.

  python tests/planted_mistakes.py                 # all of them
  python tests/planted_mistakes.py noise K=0       # those with one of these in their names
  python tests/planted_mistakes.py --list
  python tests/planted_mistakes.py --planted-only  # not first the tests of the tree as it is

A copy of the tree is made in a temporary folder; there each mistake replaces one text, which must
occur exactly once. Exit code 0: every mistake was noticed; 1: some were not, or could not be
planted because the code has changed (plant those anew, do not drop them).

The mistakes stand in planted_mistakes.txt:

  === file that they are planted in
  ::: a test file, or file::test, of which one must fail; "needs LIBRARY" behind it, if it does
  # what is wrong
  -text, line by line as in the file, that
  +takes the place of it

A line of a lone "-" or "+" stands for the end of the line before it. Tests hold for all mistakes
below them until others are named.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import pathlib
import shutil
import sys
import tempfile
import traceback
from collections.abc import Sequence

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
COPIED = ("dpjax", "experiments", "tests", "docs", "pyproject.toml", "README.md")


@dataclasses.dataclass(frozen=True)
class Mistake:
    """One planted mistake.

    Attributes:
      name: what is wrong.
      file: where.
      old, new: the text and what replaces it.
      tests: files, or tests, of which one must fail.
      needs: a library that they need, beside the extras of `make test`.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    needs: str = ""


def _of_several() -> list[Mistake]:
    """In refusals of one of several `any` for `all` or the reverse; see `helpers/any_of.py`."""
    sys.path.insert(0, str(ROOT / "tests" / "helpers"))
    import any_of

    test = (
        "tests/conformance/test_one_of_several.py::test_one_of_several_is_refused_whichever_it_is"
    )
    return [
        Mistake(
            f"any <-> all: {place.name}",
            place.file,
            place.text,
            place.mistaken,
            (f"{test}[{place.name}]",),
        )
        for place in any_of.places()
        if place.name not in any_of.FREE
    ]


def read(text: str) -> list[Mistake]:
    """The mistakes of a text as described above."""
    file, tests, needs, before = "", [], "", ""
    found: list[tuple] = []
    for line in text.splitlines():
        sign = line[0]
        if sign == "=":
            file = line[4:]
        elif sign == ":":
            test, _, needs = line[4:].partition(" needs ")
            tests = [*tests, test] if before == ":" else [test]
        elif sign == "#":
            found.append((line[2:], file, tuple(tests), needs, {"-": [], "+": []}))
        else:
            found[-1][-1][sign].append(line[1:])
        before = sign
    return [
        Mistake(name, file, "\n".join(texts["-"]), "\n".join(texts["+"]), tests, needs)
        for name, file, tests, needs, texts in found
    ]


FOLLOWS = {"=": ":", ":": ":#", "#": "-", "-": "-+#:=", "+": "+#:="}
"""Sign of a line -> signs of lines that may stand below it."""


def out_of_order(text: str) -> list[str]:
    """Lines that lack what belongs below them, such as a header without a mistake."""
    lines = text.splitlines()
    pairs = zip(lines, [*lines[1:], "="])
    return [line for line, below in pairs if below[:1] not in FOLLOWS.get(line[:1], "")]


def _of_exceptions() -> list[Mistake]:
    """Each kind of exception that is caught in a list, left out of it; see `mistake_kinds.py`."""
    sys.path.insert(0, str(ROOT / "tests" / "helpers"))
    import mistake_kinds

    test = "tests/conformance/test_each_exception.py::test_each_kind_is_caught"
    return [
        Mistake(
            f"not caught: {place.name}",
            place.file,
            place.old,
            place.new,
            (f"{test}[{place.name}]",),
        )
        for place in mistake_kinds.exceptions()
    ]


MISTAKES = [
    *read((ROOT / "tests" / "planted_mistakes.txt").read_text()),
    *_of_several(),
    *_of_exceptions(),
]


def copied(into: pathlib.Path) -> None:
    """Copies what tests need."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", ".pytest_cache")
            shutil.copytree(source, into / name, ignore=ignored)
        elif source.exists():
            shutil.copy(source, into / name)


def run(mistake: Mistake, tree: pathlib.Path) -> str:
    """Plants, runs the tests, takes back; returns "noticed", "MISSED" or why not planted."""
    path = tree / mistake.file
    text = path.read_text()
    if text.count(mistake.old) != 1:
        return f"NOT PLANTED: its text occurs {text.count(mistake.old)} times in {mistake.file}"
    path.write_text(text.replace(mistake.old, mistake.new))
    try:
        code = _tested(mistake.tests, tree)
    finally:
        path.write_text(text)
    return {0: "MISSED", 1: "noticed"}.get(code, f"NOT RUN: pytest ended with {code}")


def _tested(tests: Sequence[str], tree: pathlib.Path) -> int:
    """Exit code of pytest on the tests of a tree.

    In a child of this process, which has imported what is slow to import and nothing of the tree.
    """
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 70
    try:
        os.chdir(tree)
        sys.path[0] = str(tree)
        # Also for programs that a test runs in another folder: else they import what is installed.
        others = [path for path in [os.environ.get("PYTHONPATH")] if path]
        os.environ["PYTHONPATH"] = os.pathsep.join([str(tree), *others])
        silent = os.open(os.path.join(tree, "log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main(arguments: list[str]) -> int:
    """Plants the mistakes that are asked for; returns the exit code."""
    options = {word for word in arguments if word.startswith("-")}
    if not options <= {"--list", "--planted-only"}:
        print(__doc__)
        return 2
    chosen = [
        mistake
        for mistake in MISTAKES
        if not [word for word in arguments if not word.startswith("-")]
        or any(word in mistake.name for word in arguments)
    ]
    if "--list" in arguments:
        print("\n".join(f"{mistake.file}: {mistake.name}" for mistake in chosen))
        return 0
    sys.dont_write_bytecode = True
    import flax.linen  # noqa: F401
    import jax  # noqa: F401
    import optax  # noqa: F401
    import scipy.stats  # noqa: F401

    failures = 0
    without = [one for one in chosen if one.needs and not importlib.util.find_spec(one.needs)]
    chosen = [mistake for mistake in chosen if mistake not in without]
    for mistake in without:
        print(f"left out, since it needs {mistake.needs}: {mistake.name}")
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder)
        copied(tree)
        tests = {test for mistake in chosen for test in mistake.tests}
        once = [test for test in tests if "::" not in test or test.split("::")[0] not in tests]
        if "--planted-only" not in arguments and _tested(sorted(once), tree) != 0:
            print((tree / "log").read_text())
            print("the tests fail without any mistake: nothing was planted")
            return 1
        for mistake in chosen:
            found = run(mistake, tree)
            failures += found != "noticed"
            print(f"{found}: {mistake.name}", flush=True)
    print(f"{len(chosen) - failures} of {len(chosen)} mistakes were noticed")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
