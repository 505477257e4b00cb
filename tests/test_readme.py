"""The README and the pages beside it: tables are what the code gives, examples run as written."""

import functools
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request

import numpy as np
import pytest
from processes import python

from dpjax import data, models, tuning

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
START = (ROOT / "docs" / "start.md").read_text()
COSTS = (ROOT / "docs" / "should_i_tune.md").read_text()
TABLE_OF_COSTS = r"\n\| law of K, its mean \| chance.*?\n\n"


def test_the_example_runs_as_written(tmp_path):
    (example,) = re.findall(r"```python\n(.*?)```", START, flags=re.DOTALL)
    # Only the speed is changed: fewer passes over the data, and no noise to be calibrated.
    example = example.replace("    epsilon=4.0,\n", "").replace("epochs=15", "epochs=2")
    example = example.replace("RunOptions(", "RunOptions(noise_multiplier=2.0, ")
    assert "noise_multiplier=2.0, lot_size=64, epochs=2" in example
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{example}"
    # Compiling takes most of the time.
    environment = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    done = python("-c", program, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "first" / "guarantee.json").exists()


def test_the_readmes_code_is_short_and_learns_as_written(tmp_path, monkeypatch, capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(example.splitlines()) <= 12
    # Only the speed is changed: no noise is calibrated, and there are fewer steps.
    short = "run=tuning.RunOptions(noise_multiplier=1.0, lot_size=200, steps=80)"
    quick = example.replace("epsilon=2.0", short)
    assert quick != example
    monkeypatch.chdir(tmp_path)
    exec(compile(quick, "README.md", "exec"), {})
    assert (tmp_path / "release" / "guarantee.json").exists()
    (shown,) = re.findall(r"```text\n(accuracy.*?)```", README, flags=re.DOTALL)
    printed = capsys.readouterr().out
    assert re.findall(r".*: +", printed) == re.findall(r".*: +", shown)
    accuracy, alone, whole = (float(line.split()[-1]) for line in printed.splitlines())
    assert accuracy > 0.6 and alone < whole  # Guessing is right once in ten.
    assert shown.split()[-1] == "2.00" and "epsilon=2.0" in example


def test_words_are_explained_where_they_are_first_used():
    for word, explained in (
        (
            "the best of K",
            "K, the number of runs, is drawn at random before the first run, and stays secret",
        ),
        ("public default", "is a rule that sets all hyperparameters from public numbers"),
        ("curator/", "The *curator* is whoever holds the records"),
    ):
        begin = README.index(word)
        assert explained in " ".join(README[begin : begin + 800].split()), word


def test_the_service_answers_a_request(tmp_path):
    """The page's service, with a release of a small table, over HTTP."""
    page = (ROOT / "docs" / "howto" / "publish.md").read_text()
    (program,) = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    schema = {
        "target": {"column": "sick", "classes": ["no", "yes"]},
        "columns": {"age": {"range": [0, 100]}, "sex": {"values": ["F", "M"]}},
    }
    (tmp_path / "service.py").write_text(program)
    rng = np.random.default_rng(0)
    age, sex = rng.integers(0, 100, 400), rng.choice(["F", "M"], 400)
    sick = np.where(age > 60, "yes", "no")
    table = {"age": age.tolist(), "sex": sex.tolist(), "sick": sick.tolist()}
    mine = data.from_table(table, schema, public_size=400).parts(0.2, key=b"public")
    task = tuning.classification(
        models.LogisticRegression(2),
        mine.train,
        mine.validation,
        class_priors=(0.7, 0.3),
        weights_in="decision",
    )
    run = tuning.RunOptions(noise_multiplier=0.2, lot_size=300, steps=100)
    space = tuning.Space(learning_rate=4.0, momentum=0.9, clip_norm=1.0)
    records = [{"age": 99, "sex": "F"}, {"age": 1, "sex": "M"}]
    release = tuning.tune(task, space, tuning.Untuned(), run=run, seed=1).release
    release.save(tmp_path / "release", certificate=False, schema=schema)
    call = [sys.executable, "service.py", "release", "0"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        call, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True
    ) as service:
        try:
            port = int(service.stdout.readline().split()[-1])
            answers = []
            for record in records:
                request = urllib.request.Request(
                    f"http://127.0.0.1:{port}", data=json.dumps(record).encode()
                )
                with urllib.request.urlopen(request, timeout=300) as reply:
                    answers.append(json.load(reply))
            request = urllib.request.Request(f"http://127.0.0.1:{port}", data=b'{"age": 9}')
            with pytest.raises(urllib.error.HTTPError, match="400") as refused:
                urllib.request.urlopen(request, timeout=300)
            assert "'sex'" in json.load(refused.value)["error"]
        finally:
            service.terminate()
    encoded = data.read_schema(schema).encode(records)
    predicted = task.classifier.predict(release.params, encoded)
    assert answers == [{"class": ("no", "yes")[one]} for one in predicted]
    assert len({*predicted.tolist()}) == 2


def rounded_up(epsilon):
    """Two decimals, none below the number: a bound rounded down is none."""
    return f"{math.ceil(100 * epsilon) / 100:.2f}"


def test_the_table_of_costs_is_what_the_code_gives():
    from dpjax import accounting
    from experiments.figures.papernot_steinke.profile_bound import profile_bound

    run = accounting.dp_sgd(256 / 60000, 1.1, 14062)
    (table,) = re.findall(TABLE_OF_COSTS, COSTS, flags=re.DOTALL)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.split("\n")[3:-2]]
    assert len(rows) == 8
    costs = {}
    negative_binomial = functools.partial(accounting.TruncatedNegativeBinomial, -0.5)
    for name, chance, ours, profile, renyi, naive in rows:
        family, mean = name.rsplit(", ", 1)
        laws = {
            "logarithmic": accounting.Logarithmic,
            "geometric": accounting.Geometric,
            "Poisson": accounting.Poisson,
            "truncated negative binomial, eta = -0.5": negative_binomial,
            "geometric given K <= 64": lambda _: accounting.AtMost(accounting.Geometric(10.0), 64),
        }
        law = laws[family](float(mean))
        best = accounting.best_of(run, law)
        assert chance == f"{float(law.success_probability(0.1)):.2f}"
        assert ours == f"**{rounded_up(best.epsilon(1e-5))}**"
        assert renyi == rounded_up(best.epsilon(1e-5, "rdp"))
        if profile != "-":
            published = profile_bound(run.pair, law).epsilon(1e-5)
            assert profile == rounded_up(published)
            assert best.epsilon(1e-5) < min(published, best.epsilon(1e-5, "rdp"))
        if float(mean) == round(float(mean)):
            assert naive == rounded_up(accounting.repeat(run, round(float(mean))).epsilon(1e-5))
        costs[name] = chance, best.epsilon(1e-5)
    # What docs/procedures.md says: of one chance, the logarithmic law of mean 4 is the cheaper.
    shape, logarithmic = (
        costs["truncated negative binomial, eta = -0.5, 10"],
        costs["logarithmic, 4"],
    )
    assert shape[0] == logarithmic[0] and logarithmic[1] < shape[1]


def test_the_short_table_is_a_row_of_the_whole_one():
    (row,) = re.findall(r"\n\| geometric, 10 (\|.*)\n", COSTS)
    _, ours, profile, renyi, naive = (cell.strip() for cell in row.split("|")[1:-1])
    table = README[README.index("| What you publish") :].split("\n\n")[0]
    shown = [line.split("|")[-2].strip() for line in table.splitlines()[2:]]
    (fixed,) = re.findall(r"\n\| 10 \| (.*) \|\n", COSTS)
    assert shown == [naive, fixed, renyi, profile, ours]
    assert "One run costs epsilon 2.39 at" in COSTS and "epsilon 2.39)" in table


def test_the_caveat_stands_beside_the_costs():
    """Whoever reads a table reads for which tunings it holds."""
    before = COSTS[: COSTS.index("| law of K, its mean")]
    below = README[README.index("| What you publish") : README.index("**For**")]
    for text in (before, below):
        for other in ("independently", "secret", "a grid", "Optuna", "pruning", "adaptive"):
            assert other in text, other


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 120
    assert "make tune " in README and "make test " in README


def test_what_is_counted():
    page = (ROOT / "docs" / "procedures.md").read_text()
    table = page[page.index("| procedure | paper") :].split("\n\n")[0]
    assert (
        len(table.splitlines()) - 2 == 14
        and "[all fourteen procedures](docs/procedures.md)" in README
    )


def test_tables_are_whole():
    """A row after a blank line is no row of the table above it."""
    lines = README.splitlines()
    for before, line in zip(lines, lines[1:]):
        if line.startswith("|") and not before.startswith("|"):
            assert lines[lines.index(line) + 1].startswith(("|---", "| ---")), line


def test_the_samples_of_the_first_runs_have_the_rows_that_are_printed():
    untuned, tuned = re.findall(r"\| What was released.*?\n\n", START, flags=re.DOTALL)
    both = {"neighbouring relation", "accuracy on test data (not in the release)"}
    for table, rows in (
        (untuned, {"the one run, nothing tuned"}),
        (tuned, {"one run", "the whole tuning", "naive composition of 41 runs, K's mean is 40.5"}),
    ):
        names = [line.split("|")[1].strip() for line in table.splitlines() if "|" in line]
        assert both | rows <= set(names)
    sources = [ROOT / "dpjax" / "commands" / name for name in ("tuner_flags.py", "tune.py")]
    cost, rest = (source.read_text() for source in sources)
    assert "runs, {whose}" in cost and '"accuracy on test data (not in the release)"' in rest
    assert "the one run, nothing tuned" in cost + rest


def test_what_the_start_shows_fits_a_phone():
    """A block that keeps its line breaks is at most 60 characters wide."""
    for block in re.findall(r"```text\n(.*?)```", START, flags=re.DOTALL):
        assert all(len(line) <= 60 for line in block.splitlines()), block


def test_every_extra_is_explained():
    page = (ROOT / "docs" / "install.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"^\| (`.*?) \|", page, flags=re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(named))) == set(project["optional-dependencies"])
    assert project["requires-python"] == ">=3.11,<3.14" and "3.11, 3.12 or 3.13" in page
    for extras in re.findall(r"'\.\[([\w,]+)\]'", page):
        assert set(extras.split(",")) <= set(project["optional-dependencies"])
