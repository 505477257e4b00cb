"""Where the library refuses because one of several is marked: every `if` over an `any` that raises.

Found in the source, so that a new one is found too; `tests/conformance/test_one_of_several.py` has
a case for each, and `tests/planted_mistakes.py` writes `all` in the place of each `any`.
"""

from __future__ import annotations

import ast
import dataclasses
import pathlib
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[2]

FREE = {
    "accounting/selection/laws/check._compare_slopes": "of a fine grid; test_own_law.py",
    "accounting/selection/laws/check._compare_slopes 2": "of a fine grid; test_own_law.py",
    "federated/flower/client.make_client_app.answer": "of messages; tests/federated",
    "federated/flower/secure_sum._Workflow.run": "of messages; tests/federated",
    "tuning/pareto/sampling_laws.grid": "of whole searches; tests/tuning/pareto",
    "tuning/pareto/suggestion.suggest": "of whole searches; tests/tuning/pareto",
}
"""Places without a case, and why."""


@dataclasses.dataclass(frozen=True)
class Place:
    """One `any` in the test of an `if` that refuses.

    Attributes:
      name: file below `dpjax` and function, and a number from the second in it on.
      file: below the root.
      text: of the call, as it is in the source.
      one_suffices: whether the `any` is negated: refused where none is as wanted.
    """

    name: str
    file: str
    text: str
    one_suffices: bool

    @property
    def mistaken(self) -> str:
        """The text with `all` in the place of `any`."""
        for before, after in (("any(", "all("), ("np.any(", "np.all(")):
            if self.text.startswith(before):
                return after + self.text.removeprefix(before)
        return f"{self.text.removesuffix('.any()')}.all()"


def places() -> list[Place]:
    """All of them, in order."""
    found: list[Place] = []
    for path in sorted((ROOT / "dpjax").rglob("*.py")):
        source = path.read_text()
        file = str(path.relative_to(ROOT))
        for function, test in _refusing(ast.parse(source), ()):
            for call, negated in _anys(test, negated=False):
                name = f"{file.removeprefix('dpjax/').removesuffix('.py')}.{function}"
                number = 1 + sum(one.name.partition(" ")[0] == name for one in found)
                text = ast.get_source_segment(source, call)
                assert text is not None
                found.append(
                    Place(name if number == 1 else f"{name} {number}", file, text, negated)
                )
    return found


def _refusing(node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[str, ast.expr]]:
    """(function, test) of each `if` whose body raises."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and any(map(_raises, child.body)):
            yield ".".join(names), child.test
        inner = isinstance(child, ast.FunctionDef | ast.ClassDef)
        yield from _refusing(child, (*names, child.name) if inner else names)


def _raises(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return "refuse" in ast.unparse(statement.value.func)
    return isinstance(statement, ast.Raise)


def _anys(node: ast.AST, *, negated: bool) -> Iterator[tuple[ast.Call, bool]]:
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "any":
        yield node, negated
        return
    negated ^= isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    for child in ast.iter_child_nodes(node):
        yield from _anys(child, negated=negated)
