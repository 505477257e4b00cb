"""The README and the pages beside it: tables are what the code gives, examples run as written."""

import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import urllib.error
import urllib.request

import numpy as np
import pytest
from processes import python

from dpjax import data, models, tuning

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
START = (ROOT / "docs" / "start.md").read_text()
COSTS = (ROOT / "docs" / "costs.md").read_text()
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


def test_the_readmes_code_is_short_and_runs_as_written(tmp_path, monkeypatch):
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(example.splitlines()) <= 20 and README.index("```python") < 1000
    # Only the speed is changed: no noise is calibrated, and there are fewer steps.
    short = "run=tuning.RunOptions(noise_multiplier=2.0, lot_size=64, steps=3)"
    quick = example.replace("epsilon=2.0", short)
    assert quick != example
    monkeypatch.chdir(tmp_path)
    exec(compile(quick, "README.md", "exec"), {})
    assert (tmp_path / "runs" / "mine" / "release" / "guarantee.json").exists()


def test_words_are_explained_before_they_are_used():
    explained = README.index("**Words.**")
    before = README[:explained]
    for word in ("curator,", " K ", "law of", "public default"):
        assert word not in before and word.strip(" ,") in README[explained : explained + 900], word


def test_the_service_answers_a_request(tmp_path):
    """The page's service, with a release of a small table, over HTTP."""
    page = (ROOT / "docs" / "howto" / "serve.md").read_text()
    (program,) = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    schema = {
        "target": {"column": "sick", "classes": ["no", "yes"]},
        "columns": {"age": {"range": [0, 100]}, "sex": {"values": ["F", "M"]}},
    }
    (tmp_path / "people.json").write_text(json.dumps(schema))
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
    release.save(tmp_path / "release", certificate=False)
    call = [sys.executable, "service.py", "release", "people.json", "0"]
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
                with urllib.request.urlopen(request, timeout=60) as reply:
                    answers.append(json.load(reply))
            request = urllib.request.Request(f"http://127.0.0.1:{port}", data=b'{"age": 9}')
            with pytest.raises(urllib.error.HTTPError, match="400") as refused:
                urllib.request.urlopen(request, timeout=60)
            assert "'sex'" in json.load(refused.value)["error"]
        finally:
            service.terminate()
    encoded = data.read_schema(schema).encode(records)
    predicted = task.classifier.predict(release.params, encoded)
    assert answers == [{"class": ("no", "yes")[one]} for one in predicted]
    assert len({*predicted.tolist()}) == 2


def test_the_table_of_costs_is_what_the_code_gives():
    from dpjax import accounting
    from experiments.figures.papernot_steinke.profile_bound import profile_bound

    run = accounting.dp_sgd(256 / 60000, 1.1, 14062)
    (table,) = re.findall(TABLE_OF_COSTS, COSTS, flags=re.DOTALL)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.split("\n")[3:-2]]
    assert len(rows) == 8
    costs = {}
    negative_binomial = functools.partial(accounting.TruncatedNegativeBinomial, -0.5)
    for name, chance, ours, profile, renyi, _ in rows:
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
        assert chance == f"{float(law.success_probability(0.1)):.2f}"[1:]
        assert ours == f"**{best.epsilon(1e-5):.2f}**"
        assert renyi == f"{best.epsilon(1e-5, 'rdp'):.2f}"
        if profile != "-":
            published = profile_bound(run.pair, law).epsilon(1e-5)
            assert profile == f"{published:.2f}"
            assert best.epsilon(1e-5) < min(published, best.epsilon(1e-5, "rdp"))
        costs[name] = chance, best.epsilon(1e-5)
    # What the text says: of one chance, the logarithmic law of mean 4 is the cheaper.
    shape, logarithmic = (
        costs["truncated negative binomial, eta = -0.5, 10"],
        costs["logarithmic, 4"],
    )
    assert shape[0] == logarithmic[0] and logarithmic[1] < shape[1]


def test_the_short_table_is_a_part_of_the_whole_one():
    (short,) = re.findall(TABLE_OF_COSTS, README, flags=re.DOTALL)
    (whole,) = re.findall(TABLE_OF_COSTS, COSTS, flags=re.DOTALL)
    assert len(short.split("\n")) > 7 and set(short.split("\n")) <= set(whole.split("\n"))


def test_the_caveat_stands_before_the_costs():
    """Whoever reads the table has read for which tunings it holds."""
    for text in (README, COSTS):
        words = text[: text.index("| law of K, its mean")]
        for other in ("independently", "secret", "a grid", "Optuna", "pruning", "adaptive"):
            assert other in words, other


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 155


def test_what_is_counted():
    page = (ROOT / "docs" / "procedures.md").read_text()
    table = page[page.index("| procedure | paper") :].split("\n\n")[0]
    assert len(table.splitlines()) - 2 == 15 and "All fifteen procedures" in README


def test_tables_are_whole():
    """A row after a blank line is no row of the table above it."""
    lines = README.splitlines()
    for before, line in zip(lines, lines[1:]):
        if line.startswith("|") and not before.startswith("|"):
            assert lines[lines.index(line) + 1].startswith(("|---", "| ---")), line


def test_the_sample_of_the_first_run_has_the_rows_that_are_printed():
    (sample,) = re.findall(r"```text\n(What was released.*?)```", START, flags=re.DOTALL)
    names = [line.split("│")[1].strip() for line in sample.splitlines() if "│" in line]
    printed = {"one run", "the whole tuning", "neighbouring relation"}
    printed |= {"naive composition of 10 runs, K's mean is", "9.92"}
    assert printed | {"accuracy on test data (not in the release)"} <= set(names)
    sources = (ROOT / "dpjax" / "commands" / name for name in ("tuner_flags.py", "tune.py"))
    assert "runs, {whose}" in next(sources).read_text()
    assert '"accuracy on test data (not in the release)"' in next(sources).read_text()
