"""After the draw nothing may raise: each thing that runs then is made to, found by tracing."""

import ast
import pathlib
import warnings

import faults
import jax
import numpy as np
import pytest
import small_tasks
import tiny_tuners

import dpjax
from dpjax import tuning
from dpjax.tuning import tuner

NEEDED = {"_release", "Result.__init__", "HostRandomness.secret"}
"""What `tuning.tune` makes a release of; all else that it does after the draw may fail."""


def _run(folder, **more):
    return tiny_tuners.run("random_repetitions", **more, job=tuning.Job(folder=str(folder)), seed=1)


def _same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one.release.params, other.release.params)
    return one.release.statement == other.release.statement


@pytest.mark.parametrize("name", ["random_repetitions", "exponential"])
def test_whatever_fails_after_the_draw_a_spent_folder_gives_its_release(tmp_path, name):
    def call():
        return tiny_tuners.run(name, job=tuning.Job(folder=str(tmp_path / "work")), seed=1)

    first, of = call(), (tuner.tune, "drive")
    steps = faults.steps_after(call, *of)
    assert {"of_model", "_release"} <= set(steps)
    for step in sorted(steps):
        given = None
        try:
            given, raised = faults.failing(call, *of, {step})
            assert raised == {step}
        except faults.Fault:
            assert step in NEEDED, f"{step} raises after the draw"
        # Whatever failed, the same call gives the release once nothing does.
        assert _same(given or call(), first)


def test_progress_that_raises_costs_nothing(tmp_path):
    def progress(done, total):
        raise ZeroDivisionError

    assert _same(_run(tmp_path / "one", progress=progress), _run(tmp_path / "other"))


def test_warnings_that_are_errors_cost_nothing(tmp_path, capsys):
    of = small_tasks.linear(small_tasks.parts(40, apart=0.0))
    given = tiny_tuners.USUAL | dict(seed=1, job=tuning.Job(folder=str(tmp_path / "work")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "a seed")
        result = tuning.tune(
            of, tiny_tuners.FIXED, tiny_tuners.tuner("random_repetitions"), **given
        )
    assert result.release.statement["epsilon"] > 0
    assert "for the curator alone" in capsys.readouterr().err


SURE = {
    # What is paid for: the release and its folder.
    "made", "with_context", "written_whole", "_release", "Result", "replace",
    # Text and clocks; and what only prints, once the folder has its name.
    "join", "print", "time", "shown_warnings", "writes_nothing",
    # Looks at nothing yet; it is for `CuratorRecord.save`.
    "partial", "isinstance",
}  # fmt: skip
"""What runs after the draw without a guard, in Python and on the command line."""


@pytest.mark.parametrize("module", ["tuning/tuner.py", "commands/tune.py"])
def test_what_follows_the_draw_is_guarded_or_is_the_release(module):
    """Of `tune` in Python and of the command, which is read, since importing it defines flags."""
    called = lambda node: getattr(node.func, "attr", getattr(node.func, "id", ""))  # noqa: E731
    source = (pathlib.Path(dpjax.__file__).parent / module).read_text()
    tree = next(
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == "tune"
    )
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    draws = next(
        node
        for node in calls
        if called(node) in ("drive", "tune")
        and getattr(node.func.value, "id", "") in ("driver", "tuning")
    )
    guarded = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.With) and any(
            called(one.context_expr) == "beside_the_release" for one in node.items
        ):
            guarded |= {id(one) for one in ast.walk(node)}
    after = [one for one in calls if one.lineno > draws.end_lineno and id(one) not in guarded]
    assert after and guarded
    assert {called(one) for one in after} <= SURE
