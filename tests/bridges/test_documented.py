"""What docstrings promise stands in them, and the page's examples run as written."""

import importlib
import inspect
import re

import pytest

from dpjax import accounting

PROMISES = {
    "tune": (
        "if what the caller declares is true",
        "fresh randomness",
        "a record moves the count by 1 at most",
        "drawn from the operating system's randomness before the first run",
        "counts, ranks worst and is not retried",
        "stay with the curator",
        "Theorems 2 and 6",
        "the draw is made once and decides one release",
        "failed or not, is not run again",
        "run again with the same seed: nothing of the first attempt was kept",
    ),
    "selection.Search": (
        "replaces the draw (`Job.once`)",
        "never run again",
        "no seeds and no noise",
    ),
    "optuna.price_study": ("adaptive composition", "pruned and failed", "fixed before the"),
    "optuna.tune": (
        "before the first trial",
        "noisy counts",
        "counts and ranks worst",
        "No study and no storage is made",
        "ends the tuning with a `ContradictionError`, and nothing is released",
    ),
    "jax_privacy.guarantee_of_plan": (
        "It is that of the plan's event",
        "drawn once, its noise added once to each with the state carried on",
        "with seeds of batches and noise that nobody can search",
        "is refused; that the noise, and under truncation the number of records, are the event's",
        "31 bits",
        "groups must be drawn independently",
    ),
    "opacus.guarantee_of_history": (
        "lots were Poisson-sampled at the sample rate",
        "without capacity or dropped records",
        "not several whose gradients were accumulated",
        '"gdp", whose own epsilon can be too small, is priced the same way',
    ),
    "opacus.make_private": (
        "hold all bits of the run's seed (SHAKE-256",
        "is not a cryptographic generator",
        "here in float64, at most the sample rate",
        "here by the loader's batch size",
        "ends the tuning, with nothing released",
        "several lots in one step",
    ),
    "dp_accounting.SelectionAccountant": (
        "are upper bounds for the adaptive composition of all composed events",
        "K of the stated law, fixed beforehand and never revealed",
        "is not supported and changes nothing",
        "anywhere in an event give epsilon inf and delta 1",
    ),
}
NEEDED = {"optuna": "optuna"}


@pytest.mark.parametrize("name", PROMISES)
def test_the_docstrings_keep_their_promises(name):
    module, _, what = name.rpartition(".")
    if module in NEEDED:
        pytest.importorskip(NEEDED[module])
    where = importlib.import_module(f"dpjax.bridges.{module}".rstrip("."))
    stated = inspect.getdoc(getattr(where, what)).split("Formal guarantees:")[1]
    section = " ".join(stated.split("Example:")[0].split())
    for promise in PROMISES[name]:
        assert promise in section, promise


def test_errors_and_callbacks_are_explained():
    bridges = importlib.import_module("dpjax.bridges")
    assert "nothing may be released" in inspect.getdoc(bridges.ContradictionError)
    assert "curator's ONLY" in inspect.getdoc(bridges.tune)


LAW = accounting.Geometric(10)


def _priced(run, law=LAW):
    return accounting.best_of(run, law).epsilon(1e-5)


def _study(printed):
    run = accounting.dp_sgd(sampling_probability=0.01, noise_multiplier=2.0, steps=500)
    assert float(printed[0]) == accounting.repeat(run, 20).epsilon(1e-5)


def _tunings(printed):
    assert len(printed) == 2 and all("rate" in line for line in printed)


def _prices(printed):
    by_event, by_plan, by_history = map(float, printed)
    assert by_event == _priced(accounting.gaussian(2.0))
    assert by_history == _priced(accounting.dp_sgd(0.01, 1.0, 500))
    assert by_plan > _priced(accounting.dp_sgd(0.1, 2.0, 50))


SECTIONS = {  # Page, first section, the one after the last, examples, what they need and print.
    "study": ("howto/price_a_study", "A finished", "Prices through", 1, "optuna", _study),
    "prices": ("howto/price_a_study", "Prices through", None, 3, "jax_privacy", _prices),
    "tunings": ("bridges", "Any function", "An Opacus", 2, "optuna", _tunings),
}


@pytest.mark.parametrize("name", SECTIONS)
# In jax-privacy and in Opacus themselves.
@pytest.mark.filterwarnings("ignore:optax.global_norm is deprecated")
def test_the_examples_of_the_page_run_as_written(name, tmp_path, monkeypatch, capsys, request):
    path, begins, ends, number, needed, check = SECTIONS[name]
    pytest.importorskip(needed)
    page = (request.config.rootpath / "docs" / f"{path}.md").read_text()
    if name == "prices":
        assert f"costs {accounting.dp_sgd(0.01, 1.0, 500).epsilon(1e-5):.3f} at 1e-5" in page
    page = page[page.index(f"\n## {begins}") :]
    examples = re.findall(
        r"```python\n(.*?)```", page[: ends and page.index(f"\n## {ends}")], flags=re.DOTALL
    )
    assert len(examples) == number
    monkeypatch.chdir(tmp_path)
    for example in examples:
        exec(compile(example, f"docs/{path}.md", "exec"), {})
    check(capsys.readouterr().out.splitlines())
