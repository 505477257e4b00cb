"""The floor plan: which package may import which, and that nothing imports itself in a circle.

Read from the sources, imports inside functions included: what a module reaches, not when.
"""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]


def _modules() -> dict[str, pathlib.Path]:
    found = {}
    for top in ("dpjax", "experiments"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = _modules()


def _imported(path: pathlib.Path) -> set[str]:
    """Modules of this project, and top-level names of others, that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                names.add(full if full in MODULES else node.module)
    return names


IMPORTS = {name: _imported(path) for name, path in MODULES.items()}


def _reached(name: str, target: str) -> bool:
    return any(one == target or one.startswith(f"{target}.") for one in IMPORTS[name])


def _inside(package: str) -> list[str]:
    return [name for name in MODULES if name == package or name.startswith(f"{package}.")]


FORBIDDEN = [
    # importer, what it must not reach, modules that may
    ("dpjax", "experiments", ()),
    ("dpjax", "flwr", ("dpjax.federated.flower",)),
    ("dpjax", "optuna", ("dpjax.bridges.optuna",)),
    (
        "dpjax",
        "jax_privacy",
        ("dpjax.bridges.jax_privacy",),
    ),
    ("dpjax", "opacus", ("dpjax.bridges.opacus",)),
    ("dpjax", "torch", ("dpjax.bridges.opacus",)),
    ("dpjax", "dpjax.bridges", ("dpjax.bridges", "dpjax.commands")),
    ("dpjax", "dpjax.auditing", ("dpjax.auditing",)),
    (
        "dpjax",
        "dpjax.pareto",
        ("dpjax.pareto", "dpjax.commands"),
    ),
    ("dpjax.accounting", "jax", ()),
    ("dpjax.accounting", "dpjax.training", ()),
    ("dpjax.accounting", "dpjax.releases", ()),
    ("dpjax.accounting", "dpjax.tuning", ()),
    ("dpjax.accounting", "dpjax.randomness", ()),
    ("dpjax.accounting", "dpjax.federated", ()),
    ("dpjax.accounting", "dpjax.data", ()),
    ("dpjax.accounting", "dpjax.models", ()),
    ("dpjax.accounting", "flax", ()),
    ("dpjax.randomness", "dpjax.training", ()),
    ("dpjax.randomness", "dpjax.releases", ()),
    ("dpjax.randomness", "dpjax.tuning", ()),
    ("dpjax.randomness", "dpjax.federated", ()),
    ("dpjax.releases", "dpjax.randomness", ()),
    ("dpjax.releases", "dpjax.training", ()),
    ("dpjax.releases", "dpjax.tuning", ()),
    ("dpjax.releases", "dpjax.federated", ()),
    ("dpjax.releases", "dpjax.data", ()),
    ("dpjax.releases", "dpjax.models", ()),
    ("dpjax.training", "dpjax.releases", ()),
    ("dpjax.training", "dpjax.tuning", ()),
    ("dpjax.training", "dpjax.federated", ()),
    ("dpjax.tuning", "dpjax.federated", ()),
    ("dpjax.federated", "dpjax.tuning", ()),
    ("dpjax.data", "dpjax.training", ()),
    ("dpjax.data", "dpjax.tuning", ()),
    ("dpjax.data", "dpjax.federated", ()),
    ("dpjax.models", "dpjax.tuning", ()),
]


@pytest.mark.parametrize(("importer", "target", "excepted"), FORBIDDEN)
def test_no_arrow_up(importer, target, excepted):
    allowed = {name for package in excepted for name in _inside(package)}
    offenders = [
        name for name in _inside(importer) if name not in allowed and _reached(name, target)
    ]
    assert not offenders


def test_no_module_imports_itself_in_a_circle():
    """A package's `__init__` is left out: it names what is public, and its modules import each
    other directly."""
    edges = {
        name: {one for one in imported if one in MODULES and MODULES[one].name != "__init__.py"}
        for name, imported in IMPORTS.items()
        if MODULES[name].name != "__init__.py"
    }
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name in done:
            return
        for one in sorted(edges.get(name, ())):
            visit(one, (*path, name))
        done.add(name)

    for name in sorted(edges):
        visit(name, ())


def test_the_test_sees_the_project():
    assert len(MODULES) > 200
    assert _reached("dpjax.accounting.selection.best_of", "dpjax.accounting.guarantee")
