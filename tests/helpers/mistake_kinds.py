"""Mistakes of four kinds that tests overlook, found in the source of the library by its syntax.

degenerate: an argument becomes another number of the same object or function (`lots` for `steps`).
second call: a function that is called in several places: at one of them an argument that has a
  default is not handed on, or a check is not made.
one of several: an element of a list of exceptions, types or words is left out; one part of an "and"
  (or of the "or" that refuses) is not asked for.
transitive: one branch, one step or one round of a recursion, a loop or a union is left out.

`places()` finds all of them, so new code has new places; `drawn` takes some at random by `SEED`.
tests/planted_mistakes.txt has those that were drawn, with the test that notices each.

  python tests/helpers/mistake_kinds.py        # how many places there are, by kind and folder
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import hashlib
import pathlib
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[2]

SEED = 23
"""Of the places that are drawn."""

KINDS = ("degenerate", "second call", "one of several", "transitive")

CRITICAL = (
    "accounting/",
    "training/",
    "tuning/",
    "releases/",
    "certificate.py",
    "federated/",
    "bridges/",
    "commands/",
)
"""Below dpjax: where a mistake may make a privacy number wrong; drawn first."""

LEFT_OUT = ("training/dp_sgd.py", "training/lots.py", "training/clipping/")
"""Not drawn from: tests/training/clipping and the audits plant what matters there."""

REDUNDANT = {
    "accounting/calibration.calibrate: made(start).rough_epsilon is passed epsilon for delta": (
        "says only where the search begins; what is returned was evaluated"
    ),
    "accounting/guarantee.pair_from_curve: largest / interval < 2000 is taken for True": (
        "chooses a finer grid, of which each holds: only slower"
    ),
    "accounting/mechanisms/vote.skellam_vote: _integer_vote is passed votes for variance": (
        "chooses the width of a grid, of which each holds"
    ),
    "accounting/numerics/composition._copies: pair.interval * excess > RESOLUTION * pair.spread()"
    " is taken for True": "chooses between two bounds, each of which holds",
    "bridges/any_run.code: while isinstance(function, functools.partial): one round": (
        "functools makes one of a partial of a partial"
    ),
    "certificate._family: for range(200): the last is left out": (
        "bisection has come to neighbouring floats after some sixty"
    ),
    "certificate.optimal_order_bound: for zip(np.repeat(p / parts, parts).tolist(), np.repea: "
    "the last is left out": ("the column of the smallest loss earns nothing at orders from 0 on"),
    "commands/price.draw: _selection is not handed mean": "a curve in a picture",
    "federated/local_training.train_clients: chunks is passed batch_size for chunk_size": (
        "how many are trained at once changes no result"
    ),
    "tuning/problem/run_settings._one_setting: math.isinf(noise) is taken for False": (
        "RunOptions and Choice refuse it before"
    ),
    "training/micro_batches.rows_by_rule: not expensive is taken for True (2)": (
        "how many rows are taken at once changes no result"
    ),
}
"""Places where the mistake changes nothing that is promised, and why; they are not drawn."""

FREE_EXCEPTIONS = {
    "after_the_draw.told": "of a terminal; tests/tuning/test_after_the_draw.py",
    "bridges/any_run.check_takes": "of built-in functions, which are taken as they are",
    "tuning/problem/inspection.refuse_unread": "of optimisers; tests/tuning/test_first_contact.py",
    "releases/release.Release.rehearse": "of models; tests/tuning/test_after_the_draw.py",
    "commands/compile_cache.switch_on": "of folders; tests/commands/test_compile_cache.py",
    "data/": "of files that hold no release; tests/data",
    "federated/flower/noisy_vectors._judged": "of records and judges; tests/federated",
    "pareto/": "of searches, which state nothing; tests/pareto",
    "private_files._lock: PermissionError": "of network file systems, for a held lock",
    "training/sweep/checkpoints.Checkpoints._read": "raised again as they are",
    "training/sweep/sweep._refuse_other_saves": "of damaged saves; tests/training/sweep",
    "releases/certificates.found: ArithmeticError": "of grids that overflow; test_certificate",
    "releases/certificates.found: AttributeError": "beside the others; no statement is known",
    "releases/certificates.found: MemoryError": "of grids that are too fine for a machine",
    "tuning/problem/ready_tasks._shapes": "of models; tests/tuning/problem/test_model_reads.py",
}
"""Beginnings of names without a case in tests/conformance/test_each_exception.py, and why."""

_NUMBERS = {"int", "float", "int | None", "float | None"}
_GROWS = ("append", "extend", "update", "add", "setdefault")
_RULES = ("refuse", "check", "require", "verify", "expect")


@dataclasses.dataclass(frozen=True)
class Place:
    """One mistake that can be planted.

    Attributes:
      kind: one of `KINDS`.
      name: file below `dpjax` and function, and what is wrong there.
      file: below the root.
      old: text that occurs once in the file.
      new: what takes its place.
    """

    kind: str
    name: str
    file: str
    old: str
    new: str

    @property
    def function(self) -> str:
        """File below the root, and the function's qualified name."""
        return self.name.partition(": ")[0]


@dataclasses.dataclass(frozen=True)
class _Library:
    """What is known of all files: their syntax, their functions and their records' numbers."""

    sources: dict[str, str]
    trees: dict[str, ast.Module]
    functions: dict[str, list[ast.FunctionDef]]
    fields: dict[str, dict[str, str]]
    calls: collections.Counter


def _read() -> _Library:
    paths = sorted((ROOT / "dpjax").rglob("*.py"))
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in paths}
    trees = {file: ast.parse(source) for file, source in sources.items()}
    functions: dict[str, list[ast.FunctionDef]] = collections.defaultdict(list)
    fields: dict[str, dict[str, str]] = {}
    calls: collections.Counter = collections.Counter()
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                functions[node.name].append(node)
            elif isinstance(node, ast.ClassDef):
                fields[node.name] = {
                    one.target.id: ast.unparse(one.annotation)
                    for one in node.body
                    if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
                }
            elif isinstance(node, ast.Call):
                calls[_called(node)] += 1
    return _Library(sources, trees, dict(functions), fields, calls)


def places(below: str = "") -> list[Place]:
    """All of them in files whose paths below `dpjax` begin so, in the order of the files."""
    library = _read()
    found: list[Place] = []
    for file, tree in library.trees.items():
        if not file.removeprefix("dpjax/").startswith(below):
            continue
        for scope, function in _functions(tree, ()):
            where = f"{file.removeprefix('dpjax/').removesuffix('.py')}.{scope}"
            for kind, what, spans in _of_function(library, function):
                old, new = _texts(library.sources[file], function, spans)
                found.append(Place(kind, f"{where}: {what}", file, old, new))
    unique = {(place.file, place.old, place.new): place for place in found}
    return _numbered(list(unique.values()))


def exceptions() -> list[Place]:
    """Of those that are one of several the kinds of exceptions, without those that are free.

    Found without the other places, and named "file.function: Exception".
    """
    found: list[Place] = []
    for path in sorted((ROOT / "dpjax").rglob("*.py")):
        source, file = path.read_text(), str(path.relative_to(ROOT))
        for scope, function in _functions(ast.parse(source), ()):
            where = f"{file.removeprefix('dpjax/').removesuffix('.py')}.{scope}"
            for node in _inside(function):
                if isinstance(node, ast.ExceptHandler) and isinstance(node.type, ast.Tuple):
                    for kind, what, spans in _elements(node.type, ""):
                        texts = _texts(source, function, spans)
                        found.append(Place(kind, f"{where}: {what.strip()}", file, *texts))
    return [place for place in found if not place.name.startswith(tuple(FREE_EXCEPTIONS))]


def drawn(number: int, seed: int = SEED, kinds: tuple[str, ...] = KINDS) -> list[Place]:
    """Some places of each kind, in files that privacy rests on.

    A place is drawn by its name, so that others which come or go do not change whether it is; a
    longer draw begins with these. None is `REDUNDANT`.

    Raises:
      ValueError: a name of `REDUNDANT` that is no place.
    """
    found = places()
    gone = sorted(REDUNDANT.keys() - {place.name for place in found})
    if gone:
        raise ValueError(f"REDUNDANT names what is no place: {gone}")

    def lot(place: Place) -> bytes:
        return hashlib.sha256(f"{seed} {place.name}".encode()).digest()

    asked = (one for one in found if critical(one) and one.name not in REDUNDANT)
    in_order = sorted(asked, key=lot)
    return [one for kind in kinds for one in [p for p in in_order if p.kind == kind][:number]]


def critical(place: Place) -> bool:
    """Whether its file is one of `CRITICAL` and not left out."""
    below = place.file.removeprefix("dpjax/")
    return below.startswith(CRITICAL) and not below.startswith(LEFT_OUT)


def _numbered(found: list[Place]) -> list[Place]:
    """The same, with a number behind names that are not the first of their kind."""
    seen: collections.Counter = collections.Counter()
    numbered = []
    for place in found:
        seen[place.name] += 1
        again = f" ({seen[place.name]})" if seen[place.name] > 1 else ""
        numbered.append(dataclasses.replace(place, name=place.name + again))
    return numbered


# ---- what can go wrong in a function


_Found = tuple[str, str, list[tuple[ast.AST, str]]]
"""Kind, what is wrong, and texts in the place of nodes."""


def _of_function(library: _Library, function: ast.FunctionDef) -> Iterator[_Found]:
    for node in _inside(function):
        if isinstance(node, ast.Call):
            yield from _wrong_arguments(library, function, node)
            yield from _defaults(library, node)
            yield from _types(node)
        elif isinstance(node, ast.ExceptHandler) and isinstance(node.type, ast.Tuple):
            yield from _elements(node.type, "is not caught")
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            if isinstance(node.comparators[0], ast.Tuple | ast.List | ast.Set):
                yield from _elements(node.comparators[0], "is not in the list")
        elif isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
            yield from _parts(node, "True")
        elif isinstance(node, ast.If) and any(map(_raises, node.body)):
            yield from _alternatives(node.test)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield from _checks(library, node)
    yield from _transitive(function)


def _wrong_arguments(
    library: _Library, function: ast.FunctionDef, call: ast.Call
) -> Iterator[_Found]:
    """Each number that is passed on, and another one of the same object or function instead."""
    own = {
        one.arg: ast.unparse(one.annotation)
        for one in [*function.args.args, *function.args.kwonlyargs]
        if one.annotation
    }
    for argument in [*call.args, *(one.value for one in call.keywords)]:
        if isinstance(argument, ast.Name):
            fields, made = own, "{}"
            name = argument.id
        elif isinstance(argument, ast.Attribute):
            fields = _fields_of(library, own, argument, function)
            name, made = argument.attr, ast.unparse(argument.value) + ".{}"
        else:
            continue
        if fields.get(name) in _NUMBERS:
            for other, annotation in fields.items():
                if other != name and annotation in _NUMBERS:
                    what = f"{ast.unparse(call.func)} is passed {other} for {name}"
                    yield "degenerate", what, [(argument, made.format(other))]


def _fields_of(
    library: _Library, own: dict[str, str], argument: ast.Attribute, function: ast.FunctionDef
) -> dict[str, str]:
    """The fields of an object, by its annotation, its class or the only class that has the name."""
    if isinstance(argument.value, ast.Name):
        word = argument.value.id
        if word == "self":
            return library.fields.get(getattr(function, "of_class", ""), {})
        annotated = own.get(word, "").rpartition(".")[2]
        if annotated in library.fields:
            return library.fields[annotated]
    having = [fields for fields in library.fields.values() if argument.attr in fields]
    return having[0] if len(having) == 1 else {}


def _defaults(library: _Library, call: ast.Call) -> Iterator[_Found]:
    """Each argument that is passed where the called function has a default for it."""
    name = _called(call)
    if hasattr(str, name) or hasattr(dict, name):  # Ours cannot be told from `str.join`.
        return
    called = library.functions.get(name, [])
    fields = library.fields.get(name)
    if library.calls[name] < 2 or not (len(called) == 1 or fields):
        return
    if any(isinstance(one, ast.Starred) for one in call.args):
        return
    optional = _optional(called[0]) if len(called) == 1 else None
    for keyword in call.keywords:
        constant = isinstance(keyword.value, ast.Constant)
        if keyword.arg and not constant and optional is not None and keyword.arg in optional:
            what = f"{name} is not handed {keyword.arg}"
            yield "second call", what, [(call, _without(call, keyword))]
    if optional and call.args and not call.keywords:
        parameters = [one.arg for one in called[0].args.args]
        shift = parameters[:1] in (["self"], ["cls"])
        place = len(call.args) - 1 + shift
        last = call.args[-1]
        known = place < len(parameters) and not isinstance(last, ast.Constant)
        if known and parameters[place] in optional:
            what = f"{name} is not handed {parameters[place]}"
            yield "second call", what, [(call, _without(call, last))]


def _checks(library: _Library, statement: ast.Expr) -> Iterator[_Found]:
    """A call whose value is not used, of a function that is called elsewhere too: a check."""
    assert isinstance(statement.value, ast.Call)
    name = _called(statement.value)
    named_so = library.calls[name] > 1 and name.lstrip("_").startswith(_RULES)
    if named_so or ast.unparse(statement.value.func).startswith("checks."):
        what = f"{ast.unparse(statement.value)[:60]} is not asked"
        yield "second call", what, [(statement, "pass")]


def _types(call: ast.Call) -> Iterator[_Found]:
    """The types of an `isinstance`."""
    if _called(call) != "isinstance" or len(call.args) != 2:
        return
    types = call.args[1]
    if isinstance(types, ast.Tuple):
        yield from _elements(types, "is no such instance")
    elif isinstance(types, ast.BinOp):
        parts = _joined(types)
        for place, part in enumerate(parts):
            rest = " | ".join(ast.unparse(one) for one in parts[:place] + parts[place + 1 :])
            yield (
                "one of several",
                f"{ast.unparse(part)} is no such instance",
                [(types, rest)],
            )


def _joined(types: ast.expr) -> list[ast.expr]:
    if isinstance(types, ast.BinOp):
        return [*_joined(types.left), *_joined(types.right)]
    return [types]


def _elements(display: ast.expr, what: str) -> Iterator[_Found]:
    elements = display.elts  # type: ignore[attr-defined]
    left, right = {ast.Tuple: "()", ast.List: "[]", ast.Set: "{}"}[type(display)]
    if len(elements) > 1:
        for place, element in enumerate(elements):
            rest = [ast.unparse(one) for one in elements[:place] + elements[place + 1 :]]
            comma = "," if len(rest) == 1 and left == "(" else ""
            text = left + ", ".join(rest) + comma + right
            yield "one of several", f"{ast.unparse(element)} {what}", [(display, text)]


def _parts(joined: ast.BoolOp, constant: str) -> Iterator[_Found]:
    for part in joined.values:
        what = f"{ast.unparse(part)[:60]} is taken for {constant}"
        yield "one of several", what, [(part, constant)]


def _alternatives(test: ast.expr) -> Iterator[_Found]:
    """The parts of each "or" of a condition, not of a value in it."""
    if isinstance(test, ast.UnaryOp):
        yield from _alternatives(test.operand)
    elif isinstance(test, ast.BoolOp):
        if isinstance(test.op, ast.Or):
            yield from _parts(test, "False")
        for part in test.values:
            yield from _alternatives(part)


def _transitive(function: ast.FunctionDef) -> Iterator[_Found]:
    """Loops of one round, recursions without a branch, unions without a part."""
    types = {
        part
        for node in _inside(function)
        if isinstance(node, ast.Call) and _called(node) in ("isinstance", "issubclass")
        for part in ast.walk(node)
    }
    for node in _inside(function):
        if isinstance(node, ast.While):
            once = f"for _ in [1] * bool({ast.unparse(node.test)}):"
            yield "transitive", f"while {ast.unparse(node.test)[:50]}: one round", [(node, once)]
        elif isinstance(node, ast.Call) and _called(node) == function.name and function.name:
            recursive = isinstance(node.func, ast.Name) or ast.unparse(node.func).startswith(
                ("self.", "cls.")
            )
            if recursive and node.args and not isinstance(node.args[0], ast.Starred):
                yield (
                    "transitive",
                    f"{ast.unparse(node)[:50]} is not followed",
                    [(node, f"({ast.unparse(node.args[0])})")],
                )
        elif isinstance(node, ast.YieldFrom):
            yield "transitive", f"{ast.unparse(node)[:50]} is left out", [(node, "yield from ()")]
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.BitOr):
            yield "transitive", f"{ast.unparse(node)[:50]} is left out", [(node, "pass")]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and node not in types:
            for part, other in ((node.left, node.right), (node.right, node.left)):
                what = f"{ast.unparse(part)[:50]} is left out of a union"
                yield "transitive", what, [(node, ast.unparse(other))]
        elif isinstance(node, ast.For) and _carries(node):
            iterated = ast.unparse(node.iter)
            for end, rest in (("last", "[:-1]"), ("first", "[1:]")):
                what = f"for {iterated[:50]}: the {end} is left out"
                yield "transitive", what, [(node.iter, f"list({iterated}){rest}")]


def _carries(loop: ast.For) -> bool:
    """Whether its rounds hand something on: a name read and changed, or a list that grows."""
    stored, read = set(), set()
    for node in (inner for statement in loop.body for inner in ast.walk(statement)):
        if isinstance(node, ast.AugAssign):
            return True
        if isinstance(node, ast.Call) and _called(node) in _GROWS:
            return True
        if isinstance(node, ast.Name):
            (stored if isinstance(node.ctx, ast.Store) else read).add(node.id)
    return any(_stored_before_read(loop, name) for name in stored & read)


def _stored_before_read(loop: ast.For, name: str) -> bool:
    """Whether a round reads what a round before it stored: its first mention is no assignment."""
    for statement in loop.body:
        mentions = [node for node in ast.walk(statement) if getattr(node, "id", None) == name]
        if mentions:
            return any(isinstance(node.ctx, ast.Load) for node in mentions)  # type: ignore[attr-defined]
    return False


# ---- syntax


def _functions(node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[str, ast.FunctionDef]]:
    """All functions, inner ones too, by qualified names."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            if isinstance(child, ast.FunctionDef):
                child.of_class = node.name if isinstance(node, ast.ClassDef) else ""  # type: ignore[attr-defined]
                yield ".".join((*names, child.name)), child
            yield from _functions(child, (*names, child.name))
        else:
            yield from _functions(child, names)


def _inside(function: ast.AST) -> Iterator[ast.AST]:
    """Its nodes, but not those of functions in it, of annotations or of messages' numbers."""
    for name, value in ast.iter_fields(function):
        if name in ("annotation", "returns", "decorator_list", "args") and isinstance(
            function, ast.FunctionDef | ast.AnnAssign
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(
                child, ast.FunctionDef | ast.ClassDef | ast.JoinedStr
            ):
                yield child
                yield from _inside(child)


def _called(call: ast.Call) -> str:
    """The last part of a called name."""
    return ast.unparse(call.func).rpartition(".")[2]


def _optional(function: ast.FunctionDef) -> set[str]:
    """Parameters that have a default."""
    given = function.args
    named = [one.arg for one in given.args]
    optional = set(named[len(named) - len(given.defaults) :]) if given.defaults else set()
    return optional | {
        one.arg for one, default in zip(given.kwonlyargs, given.kw_defaults) if default is not None
    }


def _without(call: ast.Call, left_out: ast.AST) -> str:
    """The call without one argument."""
    arguments = [ast.unparse(one) for one in call.args if one is not left_out]
    arguments += [
        f"{one.arg}={ast.unparse(one.value)}" if one.arg else f"**{ast.unparse(one.value)}"
        for one in call.keywords
        if one is not left_out
    ]
    return f"{ast.unparse(call.func)}({', '.join(arguments)})"


def _raises(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return "refuse" in ast.unparse(statement.value.func)
    return isinstance(statement, ast.Raise)


def _texts(
    source: str, function: ast.FunctionDef, spans: list[tuple[ast.AST, str]]
) -> tuple[str, str]:
    """Text around a node that occurs once, and the same with the mistake."""
    ((node, text),) = spans
    begin, end = _span(source, node)
    if isinstance(node, ast.While):  # Only its head.
        end = source.index(":", _span(source, node.test)[1]) + 1
    around = [one for one in ast.walk(function) if _holds(source, one, begin, end)]
    lengths = sorted({_span(source, one) for one in around}, key=lambda span: span[1] - span[0])
    for first, last in [(begin, end), *lengths]:
        if source.count(source[first:last]) == 1:
            break
    else:
        first, last = begin, end
    # A shorter text than a whole function: the node's lines, and lines before them.
    line_first, line_last = source.rfind("\n", 0, begin) + 1, source.find("\n", end)
    while source.count(source[line_first:line_last]) > 1 and line_first:
        line_first = source.rfind("\n", 0, line_first - 1) + 1
    if line_last - line_first < last - first or source.count(source[first:last]) != 1:
        first, last = line_first, line_last
        while source[first] == " ":  # What is indented is unique without it, or keeps it.
            if source.count(source[first + 1 : last]) > 1:
                break
            first += 1
    return source[first:last], source[first:begin] + text + source[end:last]


def _holds(source: str, node: ast.AST, begin: int, end: int) -> bool:
    if not hasattr(node, "lineno") or isinstance(node, ast.FunctionDef):
        return False
    first, last = _span(source, node)
    return first <= begin and end <= last


_STARTS: dict[str, list[int]] = {}


def _span(source: str, node: ast.AST) -> tuple[int, int]:
    """Where a node's text begins and ends."""
    if source not in _STARTS:
        starts = [0]
        for line in source.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        _STARTS[source] = starts
    starts = _STARTS[source]

    def place(line: int, column: int) -> int:
        text = source[starts[line - 1] : starts[line]]
        return starts[line - 1] + len(text.encode()[:column].decode())

    return (
        place(node.lineno, node.col_offset),  # type: ignore[attr-defined]
        place(node.end_lineno, node.end_col_offset),  # type: ignore[attr-defined]
    )


def main() -> None:
    """Prints how many there are."""
    counted: collections.Counter = collections.Counter()
    for place in places():
        below = place.file.removeprefix("dpjax/")
        counted[below.partition("/")[0], place.kind] += 1
    folders = sorted({folder for folder, _ in counted})
    print(f"{'':16s}" + "".join(f"{kind:>16s}" for kind in KINDS))
    for folder in folders:
        print(f"{folder:16s}" + "".join(f"{counted[folder, kind]:16d}" for kind in KINDS))
    totals = [sum(counted[folder, kind] for folder in folders) for kind in KINDS]
    print(f"{'all':16s}" + "".join(f"{total:16d}" for total in totals))


if __name__ == "__main__":
    main()
