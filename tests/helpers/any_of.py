"""Where the library refuses because of one of several: an `if` over `any` or `all` that raises.

Found in the source, so that a new one is found too; `tests/conformance/test_one_of_several.py` has
a case for each, and `tests/planted_mistakes.py` writes the other in the place of each.
"""

from __future__ import annotations

import ast
import dataclasses
import pathlib
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[2]

FREE = {
    "certificate.hull": "of a fine grid; test_certificate_mends.py",
    "certificate.law_of": "no statement reaches it; what it reads is refused before",
    "data/loading._fetched": "of files to download; tests/data",
    "federated/flower/client.make_client_app.answer": "of messages; tests/federated",
    "federated/flower/noisy_vectors._judged": "of losses; tests/federated",
    "federated/flower/server._Workflow.run": "of messages; tests/federated",
    "commands/data_flags.DataFlags.of_own_table": "of flags; tests/commands/test_user_tables.py",
    "pareto/domain.grid": "of whole searches; tests/pareto",
    "pareto/suggestion.suggest": "of whole searches; tests/pareto",
    "tuning/asked.checked_material": "of own tuners; tests/conformance/test_own_payments.py",
}
"""Places without a case, and why."""


@dataclasses.dataclass(frozen=True)
class Place:
    """One `any` or `all` in the test of an `if` that refuses.

    Attributes:
      name: file below `dpjax` and function, and a number from the second in it on.
      file: below the root.
      text: of the `if`, as it is in the source.
      mistaken: the text with `all` in the place of this `any`, or the other way round.
      one_suffices: whether one that is as wanted is enough: `not any`, or `all` not negated.
    """

    name: str
    file: str
    text: str
    mistaken: str
    one_suffices: bool


SWAPPED = {"any": "all", "all": "any"}


def places() -> list[Place]:
    """All of them, in order."""
    found: list[Place] = []
    for path in sorted((ROOT / "dpjax").rglob("*.py")):
        source = path.read_text()
        file = str(path.relative_to(ROOT))
        for function, refusal in _refusing(ast.parse(source), ()):
            for call, one_suffices in _calls(refusal.test, negated=False):
                name = f"{file.removeprefix('dpjax/').removesuffix('.py')}.{function}"
                number = 1 + sum(one.name.partition(" ")[0] == name for one in found)
                name = name if number == 1 else f"{name} {number}"
                text, mistaken = _texts(source, refusal, call)
                found.append(Place(name, file, text, mistaken, one_suffices))
    return found


def _texts(source: str, refusal: ast.If, call: ast.Call) -> tuple[str, str]:
    """The source of the `if`, as it is and with the other function called there."""
    nodes = (refusal, call, call.func)
    text, called, function = (ast.get_source_segment(source, node) or "" for node in nodes)
    assert text.count(called) == 1
    swapped = function[:-3] + SWAPPED[function[-3:]] + called.removeprefix(function)
    return text, text.replace(called, swapped)


def _refusing(node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[str, ast.If]]:
    """(function, `if`) of each whose body raises."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and any(map(_raises, child.body)):
            yield ".".join(names), child
        inner = isinstance(child, ast.FunctionDef | ast.ClassDef)
        yield from _refusing(child, (*names, child.name) if inner else names)


def _raises(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return "refuse" in ast.unparse(statement.value.func)
    return isinstance(statement, ast.Raise)


def _calls(node: ast.AST, *, negated: bool) -> Iterator[tuple[ast.Call, bool]]:
    called = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
    if isinstance(node, ast.Call) and called in SWAPPED:
        yield node, negated ^ (called == "all")
        return
    negated ^= isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, negated=negated)
