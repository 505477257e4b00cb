"""What `clipped_grad` did for each parameter, in words."""

from __future__ import annotations

from typing import NamedTuple


class ParameterExplanation(NamedTuple):
    """Says what was done for one parameter, and why.

    The rule is "dense", "embedding" or "convolution" (recognised), "small" (a bias, scale or the
    like: its per-example gradient costs no more than the activations it is summed from), "shared"
    (the same for every example, like a penalty's), "unused", or "materialised" (no rule).

    The form of the norm is "outer" (one position: two norms multiplied), "gram" (inner products
    between positions), "rows" (the rows of a table that the example touches), "product" (the
    per-example product, small enough to be formed once and used for norm and sum), "per-example
    gradient", "one gradient for all" or "zero".
    """

    rule: str
    form: str
    reason: str  # with the sizes that decided
    shape: tuple[int, ...]
    held: int  # elements per example held for its gradient; 0 when it stayed factored


class Explanation(dict[str, ParameterExplanation]):
    """Maps a parameter's path to what was done for it; prints as a table."""

    def __str__(self) -> str:
        rows = [("parameter", "shape", "rule", "norm by", "held", "because")]
        rows += [
            (path, "x".join(map(str, each.shape)) or "()", each.rule, each.form, str(each.held),
             each.reason)
            for path, each in self.items()
        ]  # fmt: skip
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
        return "\n".join(
            "  ".join([cell.ljust(width) for cell, width in zip(row, widths)] + [row[-1]])
            for row in rows
        )
