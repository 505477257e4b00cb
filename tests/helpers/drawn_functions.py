"""Prints functions of dpjax/ drawn at random, for a reading out of context.

    python tests/helpers/drawn_functions.py --seed=17 --n=40

A reader who has not seen the project judges each one: plain at once, or what stopped the reading.
"""

import argparse
import ast
import pathlib
import random

LIBRARY = pathlib.Path(__file__).resolve().parents[2] / "dpjax"
LEAST_LINES = 5


def functions():
    """Returns (file, line, source) of every function and method of at least five lines."""
    found = []
    for path in sorted(LIBRARY.rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                if node.end_lineno - first + 1 >= LEAST_LINES:
                    source = "\n".join(text.splitlines()[first - 1 : node.end_lineno])
                    found.append((path.relative_to(LIBRARY.parent), first, source))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--n", type=int, default=40)
    flags = parser.parse_args()
    drawn = random.Random(flags.seed).sample(functions(), flags.n)
    for number, (path, line, source) in enumerate(drawn, start=1):
        print(f"--- {number}. {path}:{line}\n{source}\n")


if __name__ == "__main__":
    main()
