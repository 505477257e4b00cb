"""Examples in docstrings of public names give what they say they give."""

import doctest
import importlib
import inspect
import logging
import re
import types

import pytest

PACKAGES = (
    "accounting",
    "auditing",
    "bridges",
    "data",
    "federated",
    "models",
    "training",
    "tuning",
    "pareto",
)
REGISTRIES = (
    "accounting.provenance._REBUILDERS",
    "data.source.SOURCES",
    "training.optimizers.OPTIMIZERS",
    "training.schedules.SCHEDULES",
    "releases.rules._REBUILDERS",
    "tuning.tuner._TUNERS",
)
"""What examples of registration add to; other tests go through all that is in them."""


@pytest.fixture(autouse=True)
def _registries_as_they_were():
    """Takes out again what an example registered; everything of dpjax is in before."""
    for package in PACKAGES:
        importlib.import_module(f"dpjax.{package}")
    places = [registry.rpartition(".") for registry in REGISTRIES]
    found = [getattr(importlib.import_module(f"dpjax.{place}"), name) for place, _, name in places]
    before = [dict(registry) for registry in found]
    yield
    for registry, entries in zip(found, before):
        registry.clear()
        registry.update(entries)


@pytest.fixture(autouse=True)
def _quiet_flower():
    """Flower logs every stage."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


def public(package):
    """Functions and classes that a package names in its `__all__`."""
    module = importlib.import_module(f"dpjax.{package}")
    things = {name: getattr(module, name) for name in module.__all__}
    return {
        name: thing
        for name, thing in things.items()
        if inspect.isclass(thing) or isinstance(thing, types.FunctionType)
    }


# Few runs, each of which may be stopped by a coin: a release may hold what was there before.
@pytest.mark.filterwarnings("ignore::dpjax.tuning.cautions.UntrainedReleaseWarning")
@pytest.mark.parametrize("package", PACKAGES)
def test_examples(package, capsys, tmp_path, monkeypatch):
    if package == "federated":
        pytest.importorskip("flwr", reason="needs the federated extra")
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner()
    not_run = set()
    for name, thing in public(package).items():
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        text = inspect.cleandoc(thing.__doc__ or "")
        blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
        if ">>>" in text:
            for test in finder.find(thing, name, globs={}):
                if any(doctest.SKIP in example.options for example in test.examples):
                    not_run.add(name)
                runner.run(test)
        elif blocks:
            exec(compile("".join(blocks), f"the example of {name}", "exec"), {})
    assert runner.summarize(verbose=False).failed == 0, capsys.readouterr().out
    assert not not_run
