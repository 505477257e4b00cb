"""The default's rate on ten architectures: the page has the rows' numbers."""

import pathlib

import jax
import pytest

from experiments.figures.leaderboard import architectures
from experiments.figures.rows import read_rows

ROOT = pathlib.Path(__file__).parents[2]
ROWS = read_rows(ROOT / "docs" / "figures" / "leaderboard" / "architectures.csv")


def test_rows_are_the_settings_and_rates_the_librarys():
    shown = [{name: row[name] for name in architectures.COLUMNS[:-1]} for row in ROWS]
    made = [*architectures.settings()]
    assert len(made) >= 8 * len(architectures.FACTORS)
    for one, other in zip(shown, made, strict=True):
        assert {**one, "learning_rate": None} == {**other, "learning_rate": None}
        assert one["learning_rate"] == pytest.approx(other["learning_rate"], rel=1e-3)


def test_the_page_has_the_rows_numbers():
    page = (ROOT / "docs" / "public_defaults.md").read_text()
    holds = 0
    for name, (accuracy, points, factor) in architectures.lost(ROWS).items():
        behind = f"{points:.1f}" if points <= architectures.HOLDS else f"**{points:.1f}**"
        assert f"| {name} | {accuracy:.1f} | {behind} | {factor:g} |" in page, name
        holds += points <= architectures.HOLDS
    assert holds == 7 and "within 2 points on seven of them" in page


@pytest.mark.parametrize("name", architectures.ARCHITECTURES)
def test_models_give_ten_numbers(name):
    task, _ = architectures._default(name)
    params = jax.eval_shape(task.initial, jax.random.key(0))
    assert jax.tree.leaves(params)
    inputs = jax.ShapeDtypeStruct((3, 8, 8), "float32")
    module = architectures.ARCHITECTURES[name]
    variables = params if "params" in params else {"params": params}
    assert jax.eval_shape(module.apply, variables, inputs).shape == (3, 10)
