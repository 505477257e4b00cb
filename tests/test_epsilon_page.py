"""Every number of docs/epsilon.md follows from the accounting, rounded up."""

import math
import pathlib
import re

import pytest

from dpjax import accounting

PAGE = (pathlib.Path(__file__).parents[1] / "docs" / "epsilon.md").read_text()
DELTA = 1e-5


def _table(first):
    """Returns the rows of the table whose head begins with `first`, by their first cells."""
    (body,) = re.findall(rf"\| {re.escape(first)} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()]
    return {float(row[0]): row[1:] for row in rows}


GUESSES = _table("epsilon, at delta 1e-5 | any release with this epsilon and delta")
FOUND = _table("epsilon, at delta 1e-5 | any release")
NOISE = _table("epsilon | noise multiplier of the one run")


def _run(noise):
    return accounting.dp_sgd(256 / 60_000, float(noise), 14_062)


def _up(number, shown):
    """Returns a number rounded up to as many digits as are shown."""
    digits = len(shown.rstrip("%").partition(".")[2])
    number *= 100 if shown.endswith("%") else 1
    return f"{math.ceil(number * 10**digits - 1e-7) / 10**digits:.{digits}f}" + "%" * (
        shown[-1] == "%"
    )


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 8.0])
def test_what_an_epsilon_allows(epsilon):
    alone, each = NOISE[epsilon]
    run = _run(alone)
    best = accounting.best_of(_run(each), accounting.Geometric(10))
    for priced in (run, best):
        assert 0.9995 * epsilon < priced.epsilon(DELTA) <= epsilon
    of_any = accounting.approximate(epsilon, DELTA)
    formula = (math.exp(epsilon) + DELTA) / (1 + math.exp(epsilon))
    assert (1 + of_any.delta(0.0)) / 2 == pytest.approx(formula, rel=1e-9)
    for priced, guess, found in zip((of_any, run, best), GUESSES[epsilon], FOUND[epsilon]):
        right = (1 + priced.delta(0.0)) / 2
        assert guess == _up(right, guess)
        assert found == _up(priced.attack_success(0.01), found)
        # The guess is the best threshold of the same curve, to the grid's step.
        at = [k / 500 for k in range(1, 500)]
        curve = max((1 + float(priced.attack_success(x)) - x) / 2 for x in at)
        assert right - 0.006 < curve <= right + 1e-9
    assert FOUND[epsilon][3] == _up(run.group_epsilon(2, DELTA), FOUND[epsilon][3])


def test_the_examples_comments():
    example, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    setup, lines = example.split("best.epsilon", 1)
    known = {}
    exec(setup, known)
    for line in ("best.epsilon" + lines).splitlines():
        code, _, comment = line.partition("#")
        value = comment.split(":")[0].strip()
        assert value == _up(eval(code, known), value), line


def test_what_delta_is_for():
    run = _run(1.1)
    for delta, (shown,) in _table("delta | epsilon").items():
        assert shown == _up(run.epsilon(delta), shown)
    chances = _table("delta | chance that at least one of 60,000 records is published")
    for delta, (shown,) in chances.items():
        assert shown == _up(1 - (1 - delta) ** 60_000, shown)
    assert "delta 1e-5 at epsilon 2.39" in PAGE and run.delta(2.39) <= 1e-5
    assert "8.8e-8 at epsilon 3" in PAGE and run.delta(3.0) == pytest.approx(8.8e-8, rel=0.01)
