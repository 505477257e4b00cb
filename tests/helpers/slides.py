"""An adversary who makes a float32 sum stick or slide: chooses rows, their places, who is removed.

A sum that stands at a power of two swallows small addends on one side of it and rounds them up on
the other. So many rows build the power up, the one that is removed adds a unit in the last place,
and the others then count or do not. Where sums are taken in lanes or pieces, rows are laid out for
these. A few random steps improve on the best of these constructions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

LONGEST = 127 / 128
"""Of a clip norm: sums of these are exact, and what is held back leaves room for them."""


class Attack(NamedTuple):
    """Rows that are multiples of one gradient of length 1, and which one is removed."""

    values: np.ndarray  # float32 (rows,)
    removed: int
    excess: float  # by how much the sum moves beyond the removed row's own contribution


def laid_out(rows: int, span: int, lanes: int, piece: int, up: float, slide: float):
    """Returns values (rows,) and the removed one, in the first `span` rows, or None.

    Every `lanes`-th place is used; of every `piece` of these one row slides.
    """
    used = span // lanes
    if used * up < 4:
        return None
    power = int(np.floor(np.log2(used / 2 * up) + 1e-9))
    built = int(2.0**power / up)
    removed = -(-(built + 1) // piece) * piece
    sliding = np.arange(removed + piece, used, piece)
    if not len(sliding):
        return None
    own = np.zeros(used, np.float32)
    own[:built], own[built] = up, 2.0**power - built * up
    own[removed], own[sliding] = 2.0 ** (power - 23), slide * 2.0 ** (power - 23)
    values = np.zeros(rows, np.float32)
    values[: used * lanes : lanes] = own
    return values, removed * lanes


def strongest(
    moved: Callable[[np.ndarray, int], float],
    rows: int,
    spans: Iterable[int],
    generator: np.random.Generator,
    steps: int = 20,
    lanes: Iterable[int] = (1, 8),
    pieces: Iterable[int] = (1,),
) -> Attack:
    """Returns the strongest attack found on `moved(values, removed)`, in clip norms."""
    best = Attack(np.zeros(rows, np.float32), 0, 0.0)

    def tried(values: np.ndarray, removed: int) -> None:
        nonlocal best
        excess = moved(values, removed) - abs(float(values[removed]))
        if excess > best.excess:
            best = Attack(values.copy(), removed, excess)

    for shape in itertools.product(spans, lanes, pieces, (0.5, LONGEST), (-0.4, 0.6)):
        found = laid_out(rows, *shape)
        if found is not None:
            tried(*found)
    for step in range(steps):
        values, removed = best.values.copy(), best.removed
        set_rows = np.flatnonzero(values)
        if not len(set_rows):
            break
        if step % 3 == 0:  # another size of what slides, or of the record
            small = np.abs(values) < 2.0**-6
            values[small] *= np.float32(generator.choice([0.625, 0.75, 1.2, 1.5, -1]))
        elif step % 3 == 1:  # other places for some
            some = generator.choice(set_rows, min(8, len(set_rows)), replace=False)
            values[some] = values[generator.permutation(some)]
        else:  # another one is removed, or some rows are longer
            removed = int(generator.choice(set_rows))
            tried(values, removed)
            some = generator.choice(set_rows, min(8, len(set_rows)), replace=False)
            values[some] *= np.float32(generator.choice([0.5, 2]))
            values, removed = np.clip(values, -LONGEST, LONGEST), best.removed
        tried(values, removed)
    return best
