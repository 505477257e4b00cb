"""Gradients of kernels kept as sums of outer products, and what clipping needs of them.

One example's gradient of a dense kernel is `sum_t left[t] (x) right[t]` over the positions t at
which the kernel was used (one for a plain layer, the tokens of a sequence, the pixels of an image,
the steps of a loop). Clipping needs two things, and for neither the gradient itself:

* its squared norm: `sum_{t,u} <left[t], left[u]> <right[t], right[u]>`, which for one position is
  `||left||^2 ||right||^2` (Goodfellow 2015, arXiv:1510.01799; the form over positions is the "ghost
  norm" of Li et al. 2022, arXiv:2110.05679);
* the sum over examples of weight times gradient: one contraction over examples and positions.

Shapes: an operand is brought to (stack, positions, features) for each example. `stack` counts
independent blocks (layers of a scanned network, groups of a grouped convolution), mostly 1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.training.clipping.jaxpr_graph import Atom, Value, graph_of

HIGHEST = jax.lax.Precision.HIGHEST

STACK, LEFT, RIGHT = "stack", "left", "right"


@dataclasses.dataclass(frozen=True)
class Layout:
    """Says which axes of a leaf belong to which of the two factors of its gradient."""

    # (factor, size) in the order in the leaf, which is the order of a factor's features too
    axes: tuple[tuple[str, int], ...]
    shape: tuple[int, ...]  # of the leaf: `axes` with neighbours merged or axes of size 1 put in

    def sizes(self, factor: str) -> tuple[int, ...]:
        return tuple(size for name, size in self.axes if name == factor)

    def split_to_shape(self) -> tuple[Layout, list[list[int]]] | None:
        """Splits elementary axes until each axis of the leaf consists of whole ones.

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
        """Returns the axes as (factor, size), neighbours of one factor merged."""
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
        """Returns the order of elementary axes with the stack's first, then left and right ones."""
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


def accumulator(*dtypes: jax.typing.DTypeLike) -> jax.typing.DTypeLike:
    """Returns the type of norms and sums: float32, or wider where an operand is."""
    return jnp.promote_types(jnp.result_type(*dtypes), jnp.float32)


def widened(array: jax.Array) -> jax.Array:
    """Converts to the accumulator's type, with the rounding to the narrow type enforced.

    A compiler may skip a rounding to bfloat16 that is widened again at once, in one place and not
    in another; the norm and the sum would then be of different gradients.
    """
    wide = accumulator(array.dtype)
    if wide == array.dtype:
        return array
    narrow = jnp.finfo(array.dtype)
    return jax.lax.reduce_precision(array.astype(wide), narrow.nexp, narrow.nmant)


_REARRANGING = frozenset(("reshape", "transpose", "squeeze", "broadcast_in_dim", "rev"))
"""Operations that keep every number if the result has as many as the input."""

_LARGE = 2.0**100
"""Its square is infinite in float32, even if a constant scale (`leaf_plans`) makes it smaller."""


def bounded(array: jax.Array) -> jax.Array:
    """Cuts float32 or bfloat16 numbers to `_LARGE`, NaN too; no other number changes.

    Made from bits, it is finite even if a compiler forms `array` twice and rounds it differently.
    """
    word = {2: jnp.uint16, 4: jnp.uint32}[array.dtype.itemsize]
    sign, top = (np.asarray(number, array.dtype).view(word) for number in (-0.0, _LARGE))
    bits = jax.lax.bitcast_convert_type(array, word)
    return jax.lax.bitcast_convert_type((bits & sign) | jnp.minimum(bits & ~sign, top), array.dtype)


@dataclasses.dataclass(frozen=True)
class Operand:
    """Says how one factor is read from a value that the computation holds for one example."""

    value: Value
    # Gives (stack, positions, features), or for `indices` (stack, positions) integers.
    read: Callable[[jax.Array], jax.Array]
    features: int  # an index outside [0, features) stands for a row of zeros
    indices: bool = False  # whether the rows are one-hot
    # (stack, positions, positions) products between an example's rows, cheaper than from the rows
    inner: Callable[[jax.Array], jax.Array] | None = None
    inner_cost: float = math.inf  # multiplications of `inner`

    def then(self, change: Callable, features: int | None = None) -> Operand:
        """Returns an operand that applies a change to every row which is read from this one."""
        first = self.read
        return Operand(
            self.value,
            lambda array: change(first(array)),
            self.features if features is None else features,
            self.indices,
        )

    @property
    def rearranges(self) -> bool:
        """Returns whether its rows have each number of its value exactly once."""
        graph = graph_of(jax.make_jaxpr(self.read)(self.value.aval))
        moved = all(operation.name in _REARRANGING for operation in graph.operations)
        return moved and graph.outputs[0].aval.size == self.value.aval.size

    def rows(self, array: jax.Array) -> jax.Array:
        """Reads one example's operand: (stack, positions, features), in the accumulator's type."""
        rows = self.read(array)
        return rows if self.indices else widened(rows)


@dataclasses.dataclass(frozen=True)
class Shared:
    """Holds a term that is the same for every example, like a penalty's gradient."""

    value: Value  # shaped like the leaf
    scale: float = 1.0

    def scaled(self, factor: float) -> Shared:
        return dataclasses.replace(self, scale=self.scale * factor)


class Direct(NamedTuple):
    """Forms a leaf from the operands as the computation holds them: cheaper than from rows."""

    gradient: Callable[[jax.Array, jax.Array], jax.Array]  # of one example
    # over a leading batch axis of both operands
    batch_sum: Callable[[jax.Array, jax.Array], jax.Array]

    def then(self, step: Callable[[jax.Array], jax.Array]) -> Direct:
        return Direct(*(lambda a, b, form=form: step(form(a, b)) for form in self))

    def swapped(self) -> Direct:
        return Direct(*(lambda a, b, form=form: form(b, a) for form in self))


@dataclasses.dataclass(frozen=True)
class OuterProducts:
    """Represents `scale * sum_t left[t] (x) right[t]`, laid out as one leaf."""

    rule: str  # that recognised it
    left: Operand  # only `left` may be one-hot
    right: Operand
    stack: int  # number of independent blocks
    positions: int  # number of outer products in each block
    layout: Layout  # how the leaf is made of the factors
    scale: float = 1.0
    direct: Direct | None = None
    # Numbers that inner products lay out for an example, where `direct` forms a gradient without.
    laid_out: int = 0
    # Multiplies the leaf entry by entry, the same for every example; left to the caller.
    weight: Atom | None = None
    is_bounded: bool = False  # whether `larger` is finite in every row

    @property
    def operands(self) -> tuple[Operand, Operand]:
        return (self.left, self.right)

    @property
    def larger(self) -> Operand:
        """Returns the factor that a sum does not multiply by weights."""
        return self.right if self.left.features < self.right.features else self.left

    def scaled(self, factor: float) -> OuterProducts:
        return dataclasses.replace(self, scale=self.scale * factor)

    def swapped(self) -> OuterProducts | None:
        """Returns the term with its two factors exchanged; None if the left one is one-hot."""
        if self.left.indices:
            return None
        names = {LEFT: RIGHT, RIGHT: LEFT, STACK: STACK}
        axes = tuple((names[name], size) for name, size in self.layout.axes)
        return dataclasses.replace(
            self,
            left=self.right,
            right=self.left,
            layout=Layout(axes, self.layout.shape),
            direct=None if self.direct is None else self.direct.swapped(),
        )

    def reshaped(self, shape: Sequence[int]) -> OuterProducts:
        return self._after(
            lambda leaf: leaf.reshape(shape), layout=Layout(self.layout.axes, tuple(shape))
        )

    def transposed(self, permutation: Sequence[int]) -> OuterProducts | None:
        """Permutes the axes of the leaf; None where this cannot be done factor by factor."""
        split = self.layout.split_to_shape()
        if split is None:
            return None
        finer, runs = split
        order = [index for axis in permutation for index in runs[axis]]
        layout = Layout(
            tuple(finer.axes[index] for index in order),
            tuple(self.layout.shape[axis] for axis in permutation),
        )
        changed = {"layout": layout}
        for factor, name in ((LEFT, "left"), (RIGHT, "right"), (STACK, None)):
            before = [index for index, (owner, _) in enumerate(finer.axes) if owner == factor]
            after = [before.index(index) for index in order if index in before]
            if after == sorted(after):
                continue
            if name is None or getattr(self, name).indices:
                return None
            sizes = tuple(finer.axes[index][1] for index in before)
            changed[name] = getattr(self, name).then(_permute_features(sizes, after))
        return self._after(lambda leaf: leaf.transpose(permutation), **changed)

    def along_axis(
        self, axis: int, new_size: int, change: Callable[[jax.Array, int], jax.Array]
    ) -> OuterProducts | None:
        """Slices, pads or reverses an axis of the leaf in the factor that owns it, if any."""
        # Not where the axis is shared by both factors, or belongs to the stack or to indices.
        split = self.layout.split_to_shape()
        if split is None or len(split[1][axis]) != 1:
            return None
        finer, runs = split
        index = runs[axis][0]
        factor, size = finer.axes[index]
        name = {LEFT: "left", RIGHT: "right"}.get(factor)
        if name is None or getattr(self, name).indices:
            return None
        owned = [i for i, (owner, _) in enumerate(finer.axes) if owner == factor]
        sizes, place = tuple(finer.axes[i][1] for i in owned), owned.index(index)
        operand = getattr(self, name)

        def part(rows: jax.Array) -> jax.Array:
            split_rows = rows.reshape(*rows.shape[:2], *sizes)
            return change(split_rows, 2 + place).reshape(*rows.shape[:2], -1)

        axes = list(finer.axes)
        axes[index] = (factor, new_size)
        shape = list(self.layout.shape)
        shape[axis] = new_size
        changed = operand.then(part, operand.features // size * new_size)
        return self._after(
            lambda leaf: change(leaf, axis),
            layout=Layout(tuple(axes), tuple(shape)),
            **{name: changed},
        )

    def _after(self, step: Callable[[jax.Array], jax.Array], **changes: Any) -> OuterProducts:
        """Returns the term with these changes, and `step` applied to leaves formed directly."""
        if self.direct is not None:
            changes["direct"] = self.direct.then(step)
        return dataclasses.replace(self, **changes)

    def gradient(self, left: jax.Array, right: jax.Array) -> jax.Array:
        """Forms the leaf of one example, from the operands as the computation holds them."""
        if self.direct is not None:
            return self.direct.gradient(left, right) * self.scale
        if self.left.indices:
            scatter = jax.vmap(lambda index, rows: _scatter_rows(index, rows, self.left.features))
            rows = self.right.rows(right) * self.scale
            return self.layout.assemble(scatter(self.left.rows(left), rows))
        return self.layout.assemble(
            self.scale * product("str,stc->src", self.left.read(left), self.right.read(right))
        )

    def weighted_sum(self, left: jax.Array, right: jax.Array, weights: jax.Array) -> jax.Array:
        """Sums weight times gradient over the operands' batch axis; returns the leaf.

        An example of weight 0 adds nothing, even if it holds NaN or infinity.
        """
        scales = weights * self.scale
        # Libraries for GPUs may convolve by transforms, which are no sums of products.
        if self.direct is not None and jax.default_backend() == "cpu":
            left, right = keep_live(widened(left), weights), widened(right)
            return self.direct.batch_sum(left, weighted(right, weights, scales))
        left, right = jax.vmap(self.left.read)(left), jax.vmap(self.right.read)(right)
        if self.left.indices:
            return self.layout.assemble(
                jax.vmap(self._sum_of_rows, in_axes=(1, 1))(
                    left, weighted(widened(right), weights, scales)
                )
            )
        left, right = widened(left), widened(right)
        # The smaller factor is multiplied by the weights; the other needs its dead rows cleared.
        live = (lambda rows, weights: rows) if self.is_bounded else keep_live
        if self.larger is self.right:
            left, right = weighted(left, weights, scales), live(right, weights)
        else:
            left, right = live(left, weights), weighted(right, weights, scales)
        if self.stack == 1:  # one plain matrix product: what every backend does fastest
            summed = _matrix_of_sums(
                left.reshape(-1, self.left.features), right.reshape(-1, self.right.features)
            )
        else:
            summed = jnp.einsum("bstr,bstc->src", left, right, precision=HIGHEST)
        return self.layout.assemble(summed)

    def _sum_of_rows(self, index: jax.Array, rows: jax.Array) -> jax.Array:
        """Adds up the rows of a batch, by index, to one block of a table's gradient."""
        return _scatter_rows(
            index.reshape(-1), rows.reshape(-1, rows.shape[-1]), self.left.features
        )


_NARROW = 64
"""Most columns of a product that count as few, see `_matrix_of_sums`."""


def _matrix_of_sums(left: jax.Array, right: jax.Array) -> jax.Array:
    """Sums outer products of rows, (rows, features) and (rows, columns): (features, columns)."""
    few = right.shape[1] < left.shape[1] and right.shape[1] <= _NARROW
    if few and jax.default_backend() == "cpu":
        # A product with few columns is formed transposed: 2.7 times faster on one CPU core for 784
        # x 10. Without the barrier XLA would put the transposition back into the product.
        transposed = jnp.einsum("pr,pc->cr", left, right, precision=HIGHEST)
        return jax.lax.optimization_barrier(transposed).T
    return jnp.einsum("pr,pc->rc", left, right, precision=HIGHEST)


def product(equation: str, left: jax.Array, right: jax.Array) -> jax.Array:
    """Multiplies operands at the backend's own precision, for gradients that are kept whole.

    Norm and sum are both taken from this one result, so rounding makes it a slightly different
    gradient and breaks no bound.
    """
    wide = accumulator(left.dtype, right.dtype)
    return jnp.einsum(equation, left, right, preferred_element_type=wide)


def keep_live(array: jax.Array, weights: jax.Array) -> jax.Array:
    """Puts zeros in rows (leading axis) of weight zero: zero times NaN or infinity is not zero."""
    return weighted(array, weights, None)


def weighted(array: jax.Array, weights: jax.Array, scales: jax.Array | None) -> jax.Array:
    """Multiplies rows (leading axis) by scales, and puts zeros in those of weight zero."""
    # In two dimensions: over more, XLA's CPU loops spend their time on index arithmetic.
    shape = array.shape
    if not array.size:  # A parameter without entries.
        return array
    flat = array.reshape(-1, shape[-1]) if array.ndim > 1 else array.reshape(-1, 1)
    repeats = flat.shape[0] // shape[0]
    live = jnp.repeat(weights != 0, repeats)[:, None]
    if scales is not None:
        flat = flat * jnp.repeat(scales.astype(flat.dtype), repeats)[:, None]
    return jnp.where(live, flat, jnp.zeros((), flat.dtype)).reshape(shape)


def _scatter_rows(index: jax.Array, rows: jax.Array, features: int) -> jax.Array:
    """Adds rows (positions, columns) into zeros (features, columns) at the given indices."""
    start = jnp.zeros((features, rows.shape[-1]), rows.dtype)
    return start.at[drop_outside(index, features)].add(rows, mode="drop")


def drop_outside(index: jax.Array, features: int) -> jax.Array:
    """Replaces indices outside [0, features) by `features`, which modes "drop" and "fill" ignore.

    A negative index, which would count from the end, is meant to be ignored too.
    """
    return jnp.where((index < 0) | (index >= features), features, index)


def _permute_features(sizes: tuple[int, ...], order: Sequence[int]) -> Callable:
    """Returns a function that permutes the axes, of these sizes, that the features of rows hold."""

    def permute(rows: jax.Array) -> jax.Array:
        split = rows.reshape(*rows.shape[:2], *sizes)
        return split.transpose(0, 1, *(2 + axis for axis in order)).reshape(rows.shape)

    return permute
