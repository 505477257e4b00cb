"""The site's pages: their examples run as written, and what they point to is there.

`make docs` builds the site, executes its notebooks and follows its links; none of it is done twice.
"""

import ast
import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from dpjax import tuning

ROOT = pathlib.Path(__file__).parents[1]
sys.path.append(str(ROOT / "docs"))

import redirects  # noqa: E402  docs/redirects.py and reference.py, which conf.py imports.
import reference  # noqa: E402

PAGES = sorted(
    path
    for path in (ROOT / "docs").rglob("*.md")
    if path.parent.name not in ("notebooks", "benchmarks")
)
WITH_EXAMPLES = ["concepts", "howto/own_model", "howto/fine_tuning", "howto/publish", "epsilon"]
WITH_EXAMPLES += ["pareto_fronts", "public_defaults", "procedures", "training", "howto/models"]
WITH_EXAMPLES += ["howto/correlated_noise", "howto/long_sweeps", "howto/stages"]
NEEDS_FILES = ["tables", "howto/imbalanced"]
TESTED_ELSEWHERE = ["auditing", "bridges", "start", "howto/state_the_result"]
TESTED_ELSEWHERE += ["howto/own_data", "howto/price_a_study", "federated"]


def examples(path):
    return re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.DOTALL)


def test_every_page_with_an_example_is_listed():
    found = {
        str(path.relative_to(ROOT / "docs"))[: -len(".md")] for path in PAGES if examples(path)
    }
    assert found == {*WITH_EXAMPLES, *TESTED_ELSEWHERE, *NEEDS_FILES}


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_run_as_written(name, tmp_path, monkeypatch):
    page = ROOT / "docs" / f"{name}.md"
    if "import optuna" in page.read_text():
        pytest.importorskip("optuna", reason="needs the bridges extra").logging.set_verbosity(40)
    monkeypatch.chdir(tmp_path)
    known = {}  # An example goes on where the one before it on the page ended.
    for example in examples(page):
        if "app.run(" in example:
            continue  # A program, which is run as one below.
        # Only the speed is changed: fewer steps, and no noise to be calibrated.
        example = example.replace("epochs=3", "epochs=1").replace("steps=40", "steps=5")
        example = re.sub(
            r"epsilon=4.0, delta=1e-5,\s+lot_size", "noise_multiplier=2.0, lot_size", example
        )
        if "    epsilon=4.0,\n" in example:
            example = example.replace("    epsilon=4.0,\n", "")
            example = example.replace("RunOptions(", "RunOptions(noise_multiplier=2.0, ")
        exec(compile(example, f"docs/{name}.md", "exec"), known)


def test_links_and_modules_exist():
    for page in [ROOT / "README.md", *PAGES]:
        text = page.read_text()
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
            if "://" not in target:
                assert (page.parent / target).exists(), (page.name, target)
        for module in re.findall(r"python -m ((?:experiments|dpjax)[\w.]*)", text):
            path = ROOT / module.replace(".", "/")
            assert path.with_suffix(".py").exists() or path.is_dir(), (page.name, module)


def listed(page):
    """The pages in a page's menu, and in theirs."""
    path = ROOT / "docs" / f"{page}.md"
    found = []
    for block in re.findall(r"```\{toctree\}\n(.*?)```", path.read_text(), flags=re.DOTALL):
        for line in filter(None, block.splitlines()):
            if not line.startswith(":"):
                name = os.path.relpath(path.parent / line, ROOT / "docs")
                found += [name, *(listed(name) if not name.startswith("..") else [])]
    return found


NAMES = {
    str(page.relative_to(ROOT / "docs"))[: -len(".md")] for page in (ROOT / "docs").rglob("*.md")
}


def test_every_page_is_once_in_the_menu_or_in_the_archive():
    found = [name for name in listed("index") + listed("archive") if not name.startswith("..")]
    assert sorted([*found, "index", "archive"]) == sorted(NAMES)


def test_an_address_that_a_page_once_had_leads_to_a_page(tmp_path):
    """Enter a new page in addresses.txt; enter one that goes in docs/redirects.py."""
    once = {*(ROOT / "tests" / "addresses.txt").read_text().split()}
    moved = {old.partition("#")[0] for old in redirects.MOVED}
    assert once >= NAMES and once - NAMES == moved
    redirects.write(tmp_path)
    for old, new in redirects.MOVED.items():
        (page, _, heading), (name, _, anchor) = old.partition("#"), new.partition("#")
        titles = re.findall(r"^#+ (.*)$", (ROOT / "docs" / f"{name}.md").read_text(), re.MULTILINE)
        slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
        assert anchor in {"", *slugs}, new
        text = (tmp_path / f"{page}.html").read_text()
        (table,) = re.findall(r"moved = (.*?);", text)
        url, _, at = json.loads(table)[heading and f"#{heading}"].partition("#")
        assert (tmp_path / page).parent.joinpath(url).resolve() == tmp_path / f"{name}.html"
        assert at == anchor and f'href="{url}' in text
    assert page in moved and "" in json.loads(table)


REFERENCE = sorted((ROOT / "docs" / "api").glob("*.md"))


def test_the_reference_has_every_public_package():
    """A package with `__all__` that users import has a page in the reference, of its own."""
    named = [reference.BLOCK.search(path.read_text())[1] for path in REFERENCE]
    packages = {"accounting", "auditing", "bridges", "data", "federated", "models", "training"}
    packages |= {"tuning", "pareto", "certificate", "bridges.optuna", "bridges.opacus"}
    packages |= {"bridges.jax_privacy", "bridges.dp_accounting", "tuning.steps"}
    assert sorted(named) == sorted(f"dpjax.{name}" for name in packages)


def test_a_program_of_ones_own_runs_as_written(tmp_path):
    page = ROOT / "docs" / "howto" / "own_model.md"
    (program,) = (example for example in examples(page) if "app.run(" in example)
    assert len(program.splitlines()) <= 40
    (tmp_path / "mine.py").write_text(program)
    inputs = np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    np.savez(tmp_path / "mine.npz", inputs=inputs, labels=(inputs[:, 0] > 0).astype(np.int32))
    command = [sys.executable, "mine.py", "--data=mine.npz", "--public_size=300", "--epsilon=3"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    assert tuning.verify_release(tmp_path / "mine" / "release").epsilon <= 3.0
    assert b"epsilon 2.9" in done.stdout
    left = {path.name for path in (tmp_path / "mine" / "curator").iterdir()}
    assert left == {"candidates.csv", "candidates.png", "report.html", "run.json"}


@pytest.mark.parametrize("path", REFERENCE, ids=lambda path: path.stem)
def test_a_page_of_the_reference_summarises_every_public_name(path):
    """A name that is added or removed is added to, or removed from, the block in docs/api."""
    text = path.read_text()
    module, block = reference.BLOCK.search(text).groups()
    written = reference.page(text, lambda line: line)
    names = [name for group in reference.groups(block).values() for name in group]
    assert len(names) == len({*names})
    for name in names:
        row, entry = written.index(f"<{module}.{name}>`\n     - "), f":: {module}.{name}\n"
        assert row < written.index("\n## ") < written.index(entry), name
        line = written[row:].split("\n")[1].removeprefix("     - ")
        assert len(line.split()) >= 2 and ":: " not in line, name


def test_a_page_of_the_reference_that_lacks_a_name_ends_the_build():
    text = (ROOT / "docs" / "api" / "models.md").read_text()
    for changed in (text.replace(" MLP", ""), text.replace("MLP", "MLP MLP")):
        with pytest.raises(ValueError, match=r"every public name: \['.*MLP"):
            reference.page(changed, str)


def test_what_a_user_calls_first_stands_first():
    for name, first in (("tuning", "tune"), ("bridges", "tune"), ("training", "make_train")):
        _, block = reference.BLOCK.search(
            (ROOT / "docs" / "api" / f"{name}.md").read_text()
        ).groups()
        assert next(iter(reference.groups(block).values()))[0] == first


def test_signatures_in_the_reference_have_no_private_names():
    nested = "_NestedSequence[_SupportsArray[dtype[Any]]] | complex | bytes | str"
    alias = (
        f"_Buffer | _SupportsArray[dtype[Any]] | {nested} | _NestedSequence[complex | bytes | str]"
    )
    assert reference.signature(None, f"(points: {alias}) -> int") == "(points: ArrayLike) -> int"
    shown = reference.signature(tuning.classification, "(score: str = class_weights_.ACCURACY)")
    assert shown == "(score: str = 'accuracy')"


def test_the_ready_files_name_flags_that_there_are():
    folder = ROOT / "docs" / "howto" / "files"
    own = "--dataset --public_size --classes --epsilon --clipping --score_on_training --out_dir"
    jobs = "--resume --shard --distributed --placement"
    sources = "".join(path.read_text() for path in (ROOT / "dpjax").rglob("*.py"))
    for flag in (own + " " + jobs).split():
        assert re.search(rf"\b{flag.removeprefix('--')}\b", sources), flag
    for path in folder.iterdir():
        text = path.read_text()
        command = text[text.index("FLAGS=(") if "FLAGS=(" in text else text.index("python -m") :]
        used = set(re.findall(r"(?<![\w-])--[a-z_]+(?=[= \n)\"])", command))
        used -= {"--dependency", "--array"}  # Of sbatch.
        assert used <= set((own + " " + jobs).split()), (path.name, used)


def test_notebooks_are_text_and_say_what_they_need():
    for path in (ROOT / "docs" / "notebooks").glob("*.md"):
        text = path.read_text()
        assert text.startswith("---\nfile_format: mystnb\n")
        cells = re.findall(r"```\{code-cell\}\n(.*?)```", text, flags=re.DOTALL)
        assert cells
        for cell in cells:
            lines = cell.splitlines()
            code = "\n".join(line for line in lines if not line.startswith(":tags:"))
            ast.parse(code)
            assert all(len(line) <= 88 for line in code.splitlines()), path.name


def test_a_notebook_that_fails_is_named_with_the_remedy_and_stops_no_other_page():
    program = (
        "import runpy, types; conf = runpy.run_path('docs/conf.py');"
        "assert conf['nb_execution_raise_on_error'] is False;"
        "ran = {'docs/notebooks/vote': {'exec_data': {'succeeded': False}},"
        " 'docs/notebooks/price': {'exec_data': {'succeeded': True}}, 'docs/start': {}};"
        "app = types.SimpleNamespace(env=types.SimpleNamespace(nb_metadata=ran), outdir='site');"
        "conf['_name_failed_notebooks'](app, None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "not executed: docs/notebooks/vote.md (" in done.stderr
    assert "price" not in done.stderr and "DPJAX_DOCS_CELL_SECONDS=600 make docs" in done.stderr


def test_padded_records_are_trained_on_with_their_number():
    """Else rows that pad them count as records, and one record moves a sum by two clip norms."""
    for path in (ROOT / "docs").rglob("*.md"):
        for block in re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL):
            assert "training.padded(" not in block or "number_of_records=" in block, path.name
