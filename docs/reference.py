"""The pages of the reference: a summary table, then every public name in groups, most wanted first.

A page in docs/api/ lists a module's public names in a block of its own:

    ```{reference} dpjax.models
    Models: LogisticRegression MLP
    Losses: cross_entropy
    ```

`page` writes markdown and reStructuredText in its place. A name that the block forgets, or that is
not public, ends the build.
"""

import enum
import importlib
import inspect
import re

BLOCK = re.compile(r"```\{reference\} (\S+)\n(.*?)```", re.DOTALL)


def page(text: str, escaped) -> str:
    """Returns a page with its block written out; `escaped` makes a docstring's line reST."""
    return BLOCK.sub(lambda match: _written(match[1], groups(match[2]), escaped), text)


def groups(block: str) -> dict[str, list[str]]:
    """Returns heading -> names."""
    return {
        heading.strip(): names.split()
        for heading, names in (line.split(":") for line in block.splitlines() if line.strip())
    }


def public(module) -> set[str]:
    """Returns the module's `__all__`, or the classes and functions that a listless one defines."""
    own = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    }
    return set(getattr(module, "__all__", own))


def _written(name: str, found: dict[str, list[str]], escaped) -> str:
    module = importlib.import_module(name)
    listed = [one for names in found.values() for one in names]
    known = public(module)
    if name == "dpjax.certificate":  # A program, of whose parts two are called from outside.
        known = {"prove", "main"}
    if sorted(listed) != sorted(known):
        different = sorted({*listed} ^ known) or listed
        raise ValueError(f"docs/api: the page of {name} must list every public name: {different}")
    blocks = [_rest(escaped(_first_paragraph(module)))]
    for heading, names in found.items():
        rows = [f"**{heading}**", ""]
        rows += [".. list-table::", "   :class: summary", "   :widths: 38 62", ""]
        for one in names:
            rows.append(f"   * - :py:obj:`{one} <{name}.{one}>`")
            rows.append(f"     - {escaped(summary(getattr(module, one)))}")
        blocks.append(_rest(*rows))
    blocks.append(_rest(f".. automodule:: {name}", "   :no-members:"))
    for heading, names in found.items():
        blocks.append(f"## {heading}")
        blocks += [_rest(*_entry(f"{name}.{one}", getattr(module, one))) for one in names]
    return "\n\n".join(blocks)


def _rest(*lines: str) -> str:
    return "\n".join(["````{eval-rst}", *lines, "````"])


def _entry(name: str, value) -> list[str]:
    if inspect.isclass(value):
        return [f".. auto{'exception' if issubclass(value, Exception) else 'class'}:: {name}"]
    if inspect.isfunction(value):
        return [f".. autofunction:: {name}"]
    return [f".. autodata:: {name}", "   :no-value:"]


def _first_paragraph(value) -> str:
    return " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())


def summary(value) -> str:
    """Returns the first sentence of a docstring."""
    return re.match(r"(.*?\.(?=\s|$)|.*)", _first_paragraph(value))[0]


def rest_of_module(lines: list[str]) -> list[str]:
    """Returns a module's docstring without its first paragraph, which stands above the summary."""
    return lines[lines.index("") :] if "" in lines else []


def signature(value, text: str | None) -> str | None:
    """Returns a signature without private names: aliases by their name, constants by value."""
    if text is None:
        return None
    for found, shown in PRIVATE.items():
        text = re.sub(found, shown, text)
    known = getattr(inspect.unwrap(value), "__globals__", None)
    known = known or getattr(getattr(value, "__init__", None), "__globals__", {})

    def constant(match: re.Match) -> str:
        found = getattr(known.get(match[1]), match[2], None)
        if isinstance(found, enum.Enum):
            return str(found)
        return repr(found) if isinstance(found, str | int | float) else match[0]

    return re.sub(r"\b(\w+)\.([A-Z_]+)\b", constant, text)


_NESTED = r"_NestedSequence\[[^\[\]]*(?:\[[^\[\]]*(?:\[[^\[\]]*\])?[^\[\]]*\])?[^\[\]]*\]"
PRIVATE = {
    rf"_Buffer \| _SupportsArray\[dtype\[Any\]\] \| {_NESTED} \| "
    rf"complex \| bytes \| str \| {_NESTED}": "ArrayLike",
    r"jax\.jaxlib\._jax\.": "jax.",
    r"jaxlib\._jax\.": "jax.",
    r"optax\._src\.base\.": "optax.",
    r"\b_Tuner\b": "Tuner",
    r"privacy_loss_distribution\.": "",
    r", parent: .*<flax\.linen\.module\._Sentinel object>, name: str \| None = None": "",  # Flax's.
}
"""What autodoc writes of a type -> the name that a user imports it by."""
