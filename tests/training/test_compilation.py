"""Private runs are compiled, on a GPU, without operations whose order of additions is open."""

import ast
import pathlib

import jax
import numpy as np
import pytest

import dpjax
from dpjax import training
from dpjax.training import compilation
from experiments.accelerator import device_checks

ROOT = pathlib.Path(dpjax.__file__).parent

NO_PRIVATE_RUN = {
    "federated/local_training.py": "a client's own training, which need not be private",
    "commands/predict.py": "predictions of a released model",
    "tuning/problem/task.py": "predictions, and scores that noise is added to",
    "tuning/problem/inspection.py": "whether a loss is finite",
    "training/compilation.py": "the one that runs are compiled by",
}


def test_options_by_device():
    for backend in ("cpu", "gpu"):
        assert compilation.options(backend) == {"xla_gpu_exclude_nondeterministic_ops": True}
    assert compilation.options("tpu") is None


def test_options_reach_the_compiler(monkeypatch):
    monkeypatch.setattr(compilation, "options", lambda backend: {"no_such_option": True})
    with pytest.raises(Exception, match="no_such_option"):
        training.jit(lambda x: 2 * x)(np.float32(1))
    # ... and the compiler knows the one that it gets.
    monkeypatch.undo()
    assert training.jit(lambda x: 2 * x)(np.float32(1)) == 2


def _compiles_by_jax(path):
    return any(
        isinstance(node, ast.Attribute) and node.attr in ("jit", "pmap")
        and isinstance(node.value, ast.Name) and node.value.id == "jax"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    )  # fmt: skip


def test_nothing_else_compiles_a_private_run():
    found = {
        path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py") if _compiles_by_jax(path)
    }
    assert found == set(NO_PRIVATE_RUN)


def test_a_sum_that_differs_between_executions_is_caught(monkeypatch):
    """As a GPU's scatter makes it."""
    original, generator = device_checks.clipped_grad, np.random.default_rng(0)

    def any_order(*given, **more):
        run = original(*given, **more)

        def summed(*arguments):
            tree, auxiliary = run(*arguments)
            moved = jax.pure_callback(
                lambda: np.float32(1e-6 * generator.random()),
                jax.ShapeDtypeStruct((), np.float32),
            )
            return jax.tree.map(lambda leaf: leaf + moved, tree), auxiliary

        return summed

    assert device_checks.repeated().passed
    monkeypatch.setattr(device_checks, "clipped_grad", any_order)
    assert not device_checks.repeated().passed
