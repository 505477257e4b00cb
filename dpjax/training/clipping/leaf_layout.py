"""How the axes of a parameter are shared out between the two factors of its gradient."""

from __future__ import annotations

import dataclasses
import math

import jax
import numpy as np

STACK, LEFT, RIGHT = "stack", "left", "right"


@dataclasses.dataclass(frozen=True)
class Layout:
    """Says how a leaf is made of the axes of its factors."""

    # (factor, size) in the order in the leaf, which is the order of a factor's features too
    axes: tuple[tuple[str, int], ...]
    shape: tuple[int, ...]  # of the leaf: `axes` with neighbours merged or axes of size 1 put in

    def sizes(self, factor: str) -> tuple[int, ...]:
        return tuple(size for name, size in self.axes if name == factor)

    def split_to_shape(self) -> tuple[Layout, list[list[int]]] | None:
        """Splits elementary axes until each axis of the leaf is a run of them.

        Returns the finer layout and each axis's elementary axes; None where one straddles two axes.
        """
        left = list(self.axes[::-1])
        axes: list[tuple[str, int]] = []
        runs: list[list[int]] = []
        for wanted in self.shape:
            run: list[int] = []
            if wanted == 1:  # an elementary axis of its own, where the leaf has such an axis too
                owner = left.pop()[0] if left and left[-1][1] == 1 else RIGHT
                run.append(len(axes))
                axes.append((owner, 1))
            while wanted > 1:
                name, size = left.pop()
                if size == 1:
                    continue
                part = math.gcd(size, wanted) if size > wanted else size
                if part not in (size, wanted) or wanted % part:
                    return None
                if part < size:
                    left.append((name, size // part))
                run.append(len(axes))
                axes.append((name, part))
                wanted //= part
            runs.append(run)
        return Layout(tuple(axes), self.shape), runs

    def blocks(self) -> tuple[tuple[str, int], ...]:
        """Merges neighbouring elementary axes of one factor."""
        merged: list[tuple[str, int]] = []
        for name, size in self.axes:
            if size == 1:
                continue
            if merged and merged[-1][0] == name:
                merged[-1] = (name, merged[-1][1] * size)
            else:
                merged.append((name, size))
        return tuple(merged)

    def _order(self) -> list[int]:
        """Orders the elementary axes: the stack's first, then the left and right factors'."""
        factors = (STACK, LEFT, RIGHT)
        return sorted(range(len(self.axes)), key=lambda axis: factors.index(self.axes[axis][0]))

    def assemble(self, blocks: jax.Array) -> jax.Array:
        """Turns an array (stack, left features, right features) into the leaf."""
        order = self._order()
        split = blocks.reshape([self.axes[axis][1] for axis in order])
        return split.transpose(np.argsort(order)).reshape(self.shape)

    def disassemble(self, leaf: jax.Array) -> jax.Array:
        """Turns the leaf into an array (stack, left features, right features)."""
        split = leaf.reshape([size for _, size in self.axes]).transpose(self._order())
        blocks = [math.prod(self.sizes(factor)) for factor in (STACK, LEFT, RIGHT)]
        return split.reshape(blocks)
