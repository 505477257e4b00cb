"""Reads the text of a compiled program: which kernels it launches and how many bytes they touch.

A program compiled for a GPU launches one kernel for each instruction that stands in its entry, in
the body or the condition of a loop, or in a branch. Bytes are those of operands and results. Of an
operand that a kernel only slices or gathers from, the slices count; of a result that is an update
in place, the update counts. A library's workspace does not count. An operand that stays in a cache
is counted all the same, so the sum is an upper bound of the traffic to memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

_BITS = {"pred": 8}
"""Of types whose name does not say."""
_SHAPE = re.compile(r"\b(pred|bf16|[suf]\d+|f8\w+|c\d+)\[([\d,]*)\]")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-<>]+) \(.*\) -> .* \{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_OPERATION = re.compile(r"([\w\-]+)\(")
_CALLED = re.compile(
    r"(?:calls|to_apply|body|condition|branch_computations|true_computation|false_computation"
    r"|called_computations)=(\{[^}]*\}|%[\w.\-]+)"
)
_WORKSPACE = re.compile(r", [su]8\[\d*\](\{0[^}]*\})?\)$")
"""The last of a library call's results."""
_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')

_NO_KERNEL = frozenset(
    (
        "parameter",
        "get-tuple-element",
        "tuple",
        "bitcast",
        "constant",
        "after-all",
        "optimization-barrier",
        "opt-barrier",
        "partition-id",
        "replica-id",
        "call-start",
        "call-done",
    )
)
_CONTROL = frozenset(("call", "conditional", "async-start"))
_SLICING = frozenset(("gather", "dynamic-slice", "slice"))


class Instruction(NamedTuple):
    """One line of a computation; `shape` and `attributes` are text."""

    name: str
    shape: str
    operation: str
    operands: Sequence[str]
    attributes: str
    is_root: bool


class Kernel(NamedTuple):
    """One launch. `loops`: the trips of the loops around it, outermost first, None if unknown."""

    name: str
    kind: str
    bytes: int
    loops: tuple[int | None, ...]


def kernels(text: str) -> list[Kernel]:
    """Returns the kernels of an optimised program, `jax.stages.Compiled.as_text()`, in order."""
    computations, entry = _computations(text)
    return list(_launched(computations, entry, ()))


def shape_bytes(text: str) -> int:
    """Returns the bytes of all arrays whose shapes a text names."""
    return sum(
        math.prod(int(length) for length in lengths.split(",") if length) * _bits(kind) // 8
        for kind, lengths in _SHAPE.findall(text)
    )


def _bits(kind: str) -> int:
    return _BITS.get(kind) or int(re.findall(r"\d+", kind)[0])


def _computations(text: str) -> tuple[dict[str, list[Instruction]], str]:
    """Returns the instructions of every computation by its name, and the name of the entry."""
    found: dict[str, list[Instruction]] = {}
    entry, inside = "", None
    for line in text.splitlines():
        if head := _HEAD.match(line):
            inside = found.setdefault(head[2], [])
            entry = head[2] if head[1] else entry
        elif line.startswith("}"):
            inside = None
        elif inside is not None and (instruction := _instruction(line)):
            inside.append(instruction)
    return found, entry


def _instruction(line: str) -> Instruction | None:
    found = _INSTRUCTION.match(line)
    if not found:
        return None
    rest = found[3]
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.index(" ")
    shape, rest = rest[:end], rest[end:].strip()
    operation = _OPERATION.match(rest)
    if not operation:
        return None
    close = _closing(rest, operation.end() - 1)
    operands = re.findall(r"%([\w.\-]+)", rest[operation.end() : close])
    return Instruction(found[2], shape, operation[1], operands, rest[close + 1 :], bool(found[1]))


def _closing(text: str, start: int) -> int:
    """Returns where the bracket that opens at `start` closes."""
    depth = 0
    for place in range(start, len(text)):
        depth += text[place] in "({"
        depth -= text[place] in ")}"
        if not depth:
            return place
    return len(text)


def _called(instruction: Instruction) -> list[str]:
    groups = _CALLED.findall(instruction.attributes)
    return [name for group in groups for name in re.findall(r"%([\w.\-]+)", group)]


def _launched(
    computations: Mapping[str, list[Instruction]], name: str, loops: tuple[int | None, ...]
) -> Iterator[Kernel]:
    shapes = {each.name: each.shape for each in computations[name]}
    for each in computations[name]:
        if each.operation in _NO_KERNEL or each.operation.endswith("-done"):
            continue
        if each.operation == "while":
            trips = _TRIPS.search(each.attributes)
            for inner in _called(each):
                yield from _launched(
                    computations, inner, (*loops, int(trips[1]) if trips else None)
                )
        elif each.operation in _CONTROL:
            for inner in _called(each):
                yield from _launched(computations, inner, loops)
        else:
            yield Kernel(each.name, _kind(each), _bytes(computations, each, shapes), loops)


def _kind(instruction: Instruction) -> str:
    """Returns the operation; of a fusion and of a library's call with what they are."""
    for pattern in (r'custom_call_target="([^"]+)"', r'"kind":"([\w$]+)"', r"kind=(\w+)"):
        if found := re.search(pattern, instruction.attributes):
            return f"{instruction.operation}:{found[1]}"
    return instruction.operation


def _bytes(
    computations: Mapping[str, list[Instruction]],
    instruction: Instruction,
    shapes: Mapping[str, str],
) -> int:
    whole = [shape_bytes(shapes.get(operand, "")) for operand in instruction.operands]
    if instruction.operation in _SLICING:
        return 2 * shape_bytes(instruction.shape) + sum(whole[1:])
    if instruction.operation == "custom-call":
        return shape_bytes(_WORKSPACE.sub(")", instruction.shape)) + sum(whole)
    if instruction.operation != "fusion":
        return shape_bytes(instruction.shape) + sum(whole)
    (body,) = (computations[name] for name in _called(instruction)[:1])
    inner = {each.name: each for each in body}
    total = shape_bytes(instruction.shape)
    for each in body:
        if each.operation == "parameter":
            total += _read(body, each, inner)
    root = next(each for each in body if each.is_root)
    if root.operation == "dynamic-update-slice":
        total -= shape_bytes(root.shape) - shape_bytes(inner[root.operands[1]].shape)
    return total


def _read(body: Sequence[Instruction], value: Instruction, inner: Mapping[str, Instruction]) -> int:
    """Returns how many bytes of a value a fused computation reads, at most all."""
    read = 0
    for user in body:
        if value.name not in user.operands:
            continue
        if user.operation in _SLICING and user.operands[0] == value.name:
            read += shape_bytes(user.shape)
        elif user.operation == "bitcast":
            read += _read(body, user, inner)
        elif user.operation == "dynamic-update-slice" and user.operands[0] == value.name:
            continue
        else:
            return shape_bytes(value.shape)
    return min(read, shape_bytes(value.shape))
