"""`dpjax tune --recipes=`: what is refused, when the default is taken, and a whole run."""

import json

import numpy as np
import pytest
from processes import python

from dpjax import tuning

PROGRAM = (
    "from dpjax.commands import command_line, tune; tune.RECIPES_FROM = {}; "
    "command_line.run(tune.main)"
)
SCHEMA = {
    "target": {"column": "sick", "classes": ["no", "yes"]},
    "columns": {"age": {"range": [0, 100]}, "region": {"values": ["north", "south"]}},
}


def _tune(folder, *flags, records_from=100):
    return python("-c", PROGRAM.format(records_from), *flags, cwd=folder, timeout=1200)


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    rows = ["age,region,sick"]
    for age in rng.integers(0, 100, 300):
        rows.append(f"{age},{rng.choice(['north', 'south'])},{'yes' if age > 50 else 'no'}")
    (tmp_path / "people.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "people.json").write_text(json.dumps(SCHEMA))
    return tmp_path


OF_A_TABLE = ("--dataset=people.csv", "--schema=people.json", "--public_size=300", "--epsilon=8")
OF_A_TABLE += ("--size_bound=400", "--steps=2", "--out_dir=run", "--seed=3")


def test_a_run_ends_in_a_release_that_names_its_recipe_and_verifies(table):
    short = ("--repetitions=geometric", "--mean=2", "--score_on_training")
    ran = _tune(table, *OF_A_TABLE, *short, "--recipes=table")
    assert ran.returncode == 0, ran.stderr
    assert tuning.verify_release(table / "run").epsilon <= 8.0
    claim = json.loads((table / "run" / "release" / "guarantee.json").read_text())
    chosen = json.loads((table / "run" / "release" / "hyperparameters.json").read_text())
    # The numbers of the schema have bins: of its inputs the age alone.
    (*_, bins) = claim["candidates_drawn_from"]["recipe"]["recipes"]
    assert bins["features"] == {"name": "bins", "columns": [0], "number": 16}
    lists = tuning.Recipes.for_tables(2, (0,))
    assert chosen["recipe"] in [one.name for one in lists.recipes]
    assert lists.served(table / "run" / "release")(np.zeros((4, 6), np.float32)).shape == (4, 2)
    assert (table / "run" / "curator" / "candidates.png").exists()


def test_of_few_records_the_default_is_trained_once_and_that_is_said(table):
    ran = _tune(table, *OF_A_TABLE, "--recipes=table", records_from=1000)
    assert ran.returncode == 0, ran.stderr
    assert "240 training records: below 1,000 a choice among recipes costs more" in ran.stdout
    claim = json.loads((table / "run" / "release" / "guarantee.json").read_text())
    assert claim["selection"]["rule"].startswith("none")


@pytest.mark.parametrize(
    "flags, words",
    [
        (("--model=mlp",), "--model is not read where candidates are recipes"),
        (("--epochs=2",), "--epochs is not read where candidates are recipes"),
        (("--method=untuned",), "--method=untuned trains the public default"),
        (("--method=subset_tuning",), "are for --method=random_repetitions or threshold"),
    ],
)
def test_what_recipes_do_not_read_is_refused(flags, words, tmp_path):
    ran = _tune(tmp_path, "--recipes=table", *flags)
    assert ran.returncode and words in ran.stderr
