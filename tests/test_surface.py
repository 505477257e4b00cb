"""How much there is to know: public names, and the files that a call of a tuner passes through."""

import importlib
import os
import pathlib
import re
import sys
import warnings

import pytest
import tiny_tuners

import dpjax

ROOT = pathlib.Path(dpjax.__file__).parent
PACKAGES = [
    "accounting",
    "auditing",
    "bridges",
    "data",
    "federated",
    "models",
    "pareto",
    "training",
    "tuning",
]
MOST_NAMES = 151
"""The last ones: balls in bins, lots and price; scaled gradients, three; a run's `Stages`."""
MOST_FILES, MOST_ARROWS = 19, 50
"""Of `dpjax.tuning`, and from file to file. Measured; a change that raises them says why."""
MORE_FILES = {"untuned": 1, "exponential": 3, "doubling": 3}
"""Of tuners that stand on another one's file, or count on partitions; they have 3 arrows more."""


def test_there_are_few_public_names():
    found = {name: importlib.import_module(f"dpjax.{name}").__all__ for name in PACKAGES}
    assert sum(map(len, found.values())) <= MOST_NAMES
    for package, names in found.items():
        assert len(set(names)) == len(names), package
        assert set(names) <= set(dir(importlib.import_module(f"dpjax.{package}"))), package


def passed(name):
    """The files of `dpjax.tuning` that a tuning passes, and the arrows between them, by name.

    A closure that was handed over (a loss, a price) is called where it is needed, and is no arrow.
    """
    folder = str(ROOT / "tuning") + os.sep
    files, arrows = set(), set()

    def of(frame):
        place = "" if frame is None else frame.f_code.co_filename
        return place.removeprefix(folder) if place.startswith(folder) else None

    def hook(frame, event, _):
        called = of(frame) if event == "call" else None
        if called is None:
            return
        files.add(called)
        if re.search(r"<locals>|<lambda>", frame.f_code.co_qualname):
            return
        caller = frame.f_back
        # What a comprehension calls is called by the function around it, what a lambda calls by it.
        while of(caller) and re.fullmatch("<(?!lambda).*>", caller.f_code.co_name):
            caller = caller.f_back
        if of(caller) not in (None, called):
            arrows.add((of(caller), called))

    task, space = tiny_tuners.task(), tiny_tuners.space_of(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sys.setprofile(hook)
        try:
            tiny_tuners.run(name, task=task, space=space)
        finally:
            sys.setprofile(None)
    return files, arrows


@pytest.mark.parametrize("name", tiny_tuners.NAMES)
def test_a_call_passes_few_files_and_none_of_them_in_both_directions(name):
    files, arrows = passed(name)
    more = MORE_FILES.get(name, 0)
    assert len(files) <= MOST_FILES + more
    assert len(arrows) <= MOST_ARROWS + (3 if more else 0)
    assert not {(one, other) for one, other in arrows if (other, one) in arrows}
