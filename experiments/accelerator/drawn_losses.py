"""Random losses of all shapes and scales: what a row may move a clipped sum by, measured.

They are compiled and run as a user's loss is; what they hold is made to show what rounding, and
compilers that compute a value twice, can do. `device_checks` takes a few, `make fuzz_clipping`
thousands.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.models.functional import computed_in
from dpjax.training.clipping.clip_rules import AutomaticClipping, GroupedClipping
from dpjax.training.clipping.clipped_grad import ClippedGrad, clipped_grad

Loss = Callable[[Any, Any], jax.Array]


@dataclasses.dataclass(frozen=True)
class Program:
    """One program, by public choices alone; the first value of each choice is the simplest."""

    loss: str
    rule: str = "global"
    method: str = "auto"
    dtype: str = "float32"
    rows: int = 2
    positions: int = 1
    features: int = 3
    length: int = 1
    unroll: int = 1
    hand: str = "same"
    candidates: int = 0
    remat: bool = False
    rows_in_sum: int = 0
    seed: int = 0
    compute_dtype: str = "float32"


CHOICES: dict[str, list[Any]] = {
    "rule": ["global", "per_leaf", "automatic", "grouped"],
    "method": ["auto", "factored", "factored", "materialised"],
    "dtype": ["float32", "bfloat16"],
    "rows": [2, 7, 64],
    "positions": [1, 2, 8, 40],
    "features": [3, 16, 40],
    "length": [1, 2, 3, 5],
    "unroll": [1, 2, 3, 5],
    "hand": ["same", "times one", "where", "max", "residue"],
    "candidates": [0, 2],
    "remat": [False, True],
    "rows_in_sum": [0, 1000],
}

HANDS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "same": lambda h: h,
    "times one": lambda h: h * jnp.ones((), h.dtype),
    "where": lambda h: jnp.where(True, h, jnp.zeros((), h.dtype)),
    "max": lambda h: jnp.maximum(h, h),
    "residue": lambda h: h * 0 + jnp.mean(h * h - jnp.mean(h * h)),  # Nothing but rounding.
}


def losses(one: Program) -> dict[str, Loss]:
    """The losses by name; `e` holds x (positions, features), y alike, z alike, t (positions,)."""
    hand = HANDS[one.hand]

    def conv(w: jax.Array, x: jax.Array, groups: int) -> jax.Array:
        image = x.reshape(1, x.shape[0], x.shape[1])
        kernel = jnp.stack([w, w, w])[:, : w.shape[0] // groups]
        numbers = ("NWC", "WIO", "NWC")
        return jax.lax.conv_general_dilated(
            image, kernel, (1,), "SAME", dimension_numbers=numbers, feature_group_count=groups
        )[0]

    def scanned(step: Callable, start: Any, over: Any = None) -> Any:
        return jax.lax.scan(step, start, over, length=one.length, unroll=one.unroll)

    def attention(p: Any, e: Any) -> jax.Array:
        scores = (e["x"] @ p["a"]) @ (e["x"] @ p["b"]).T
        return jnp.sum(jax.nn.softmax(scores) @ (e["x"] @ p["a"]) * e["y"])

    def loop(p: Any, e: Any) -> jax.Array:
        def step(h: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            return hand(h), jnp.sum((hand(e["x"] * e["z"]) @ p["a"]) * e["y"])

        h, out = scanned(step, e["x"] * e["z"] - e["z"])
        return jnp.sum(out) + jnp.sum((h @ p["b"]) * e["y"])

    def recurrent(p: Any, e: Any) -> jax.Array:
        def step(c: tuple, x: jax.Array) -> tuple[tuple, jax.Array]:
            h, cell = c
            gate = jax.nn.sigmoid(x @ p["a"] + h @ p["b"])
            cell = gate * cell + (1 - gate) * jnp.tanh(x @ p["b"])
            return (jnp.tanh(cell) * gate, cell), cell

        zero = jnp.zeros(one.features, e["x"].dtype)
        _, out = jax.lax.scan(step, (zero, zero), e["x"], unroll=one.unroll)
        return jnp.sum(out * e["y"])

    def mixture(p: Any, e: Any) -> jax.Array:
        chosen = jax.lax.cond(
            jnp.sum(e["x"]) > 0, lambda: e["x"] @ p["a"], lambda: hand(e["x"]) @ p["b"]
        )
        return jnp.sum(chosen * e["y"])

    def penalty(p: Any, e: Any) -> jax.Array:
        return jnp.sum((e["x"] @ p["a"]) * e["y"]) - 0.5 * jnp.sum(p["a"] * p["a"])

    def scaled(p: Any, e: Any) -> jax.Array:
        return jnp.sum((e["x"] @ (p["a"] * jnp.exp(p["b"]))) * e["y"])

    return {
        "dense": lambda p, e: jnp.sum((e["x"] @ p["a"]) * e["y"]),
        "net": lambda p, e: jnp.sum((jnp.tanh(hand(e["x"]) @ p["a"]) @ p["b"] - e["y"]) ** 2),
        "computed": lambda p, e: jnp.sum((hand(e["x"] * e["z"]) @ p["a"]) * hand(e["y"])),
        "cancelling": lambda p, e: jnp.sum(
            (e["x"] @ p["a"]) * e["y"] - (e["x"] @ p["a"]) * (e["y"] * (1 + 1e-3 * e["z"]))
        ),
        "convolution": lambda p, e: jnp.sum(conv(p["a"], e["x"], 1) * e["y"]),
        "depthwise": lambda p, e: jnp.sum(
            conv(p["b"], hand(conv(p["a"], e["x"], one.features)), one.features) * e["y"]
        ),
        "vector": lambda p, e: jnp.sum(hand(e["x"] * e["z"]) * p["a"][:1] * e["y"]),
        "embedding": lambda p, e: jnp.sum(p["a"][e["t"]] * e["y"]),
        "tied": lambda p, e: jnp.sum(((p["a"][e["t"]] + e["x"]) @ p["a"].T) * e["y"]),
        "attention": attention,
        "loop": loop,
        "recurrent": recurrent,
        "mixture": mixture,
        "penalty": penalty,
        "scaled": scaled,
    }


def drawn(generator: np.random.Generator) -> Program:
    """A random program."""
    names = list(losses(Program("dense")))
    choice = {name: values[generator.integers(len(values))] for name, values in CHOICES.items()}
    return Program(str(generator.choice(names)), seed=int(generator.integers(2**31)), **choice)


def grad_fn_of(one: Program) -> ClippedGrad:
    """Returns the clipped gradient of a program's loss, by its rule and method."""
    rule: Any = {
        "grouped": GroupedClipping(("a", "")),
        "automatic": AutomaticClipping(0.0 if one.seed % 2 else 0.01),
    }.get(one.rule, one.rule)
    loss = losses(one)[one.loss]
    if one.compute_dtype != "float32":
        loss = computed_in(loss, one.compute_dtype)

    def used(p: Any, e: Any) -> jax.Array:
        out = jax.checkpoint(loss)(p, e) if one.remat else loss(p, e)
        return out + 0.0 * jnp.sum(p["b"])

    return clipped_grad(used, method=one.method, clipping=rule)


def batches(one: Program, number: int) -> Iterator[tuple[Any, Any, float]]:
    """Parameters, batches and clip norms, of scales from 1e-38 to 1e38, alike or each its own."""
    generator = np.random.default_rng(one.seed)
    size, shape = one.features, (one.rows, one.positions, one.features)
    for _ in range(number):
        widest = generator.choice([0.0, 3.0, 15.0, 38.0])
        first, second, third = generator.uniform(-widest, widest, 3)
        if generator.random() < 0.3:  # Their product is of ordinary size.
            second = -first

        def normal(exponent: float, *shape: int) -> np.ndarray:
            values = generator.normal(size=shape)
            kind = generator.integers(4)
            if kind == 1:  # Rows that cancel to one part in a thousand.
                values = np.sign(values) * np.sign(values[..., :1]) + 1e-3 * values
            elif kind == 2:  # Entries of very different sizes.
                values = values * 10.0 ** generator.uniform(-20, 0, shape)
            elif kind == 3:
                values = np.round(values)
            values = values * 10.0**exponent
            return np.clip(values, -3e38, 3e38)

        x, y = normal(first, *shape), normal(second, *shape)
        if one.positions > 1 and generator.random() < 0.3:
            half = one.positions // 2
            x[:, half : 2 * half] = x[:, :half]
            y[:, half : 2 * half] = -y[:, :half] * (1 + 1e-4 * generator.normal())
        dtype = jnp.dtype(one.dtype)
        batch = {"x": x, "y": y, "z": normal(0.1 * third, *shape)}
        batch = {name: jnp.asarray(each, dtype) for name, each in batch.items()}
        batch["t"] = jnp.asarray(generator.integers(size, size=shape[:2]), jnp.int32)
        params = {name: jnp.asarray(normal(0.0, size, size), dtype) for name in "ab"}
        yield params, batch, float(np.float32(10.0 ** generator.choice([-10, -3, -1, 0, 0, 3, 8])))


def excess(one: Program, number: int = 6, options: Mapping[str, Any] | None = None) -> float:
    """Returns the largest share of the clip norm that a row moves a sum by; infinity for NaN.

    Measured in float64 on the host: the norm of one row's contribution (all others masked), and the
    change of the whole sum when the row is removed. `options` are the compiler's.
    """
    grad_fn, in_sum = grad_fn_of(one), max(one.rows_in_sum, one.rows) if one.rows_in_sum else None
    summed = lambda p, b, c, m: grad_fn(p, b, c, m, rows_in_sum=in_sum)[0]  # noqa: E731
    if one.candidates:
        several = one.candidates
        over = jax.vmap(summed, (0, None, 0, None))

        def call(p: Any, b: Any, c: jax.Array, m: jax.Array) -> Any:
            repeated = jax.tree.map(lambda leaf: jnp.stack([leaf] * several), (p, c))
            return jax.tree.map(lambda leaf: leaf[-1], over(repeated[0], b, repeated[1], m))
    else:
        call = summed
    compiled, worst = jax.jit(call, compiler_options=options), 0.0
    for params, batch, clip_norm in batches(one, number):
        every = np.ones(one.rows, bool)

        def sums(mask: np.ndarray) -> np.ndarray:
            tree = compiled(params, batch, jnp.float32(clip_norm), mask)  # noqa: B023
            leaves = [np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)]
            return np.concatenate(leaves)

        whole = sums(every)
        for row in range(min(one.rows, 3)):
            alone = np.arange(one.rows) == row
            for moved in (sums(alone), whole - sums(~alone)):
                share = float(np.linalg.norm(moved)) / clip_norm
                worst = max(worst, share if np.isfinite(share) else np.inf)
    return worst
