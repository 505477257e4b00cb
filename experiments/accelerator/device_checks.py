"""Checks, on the device that this process uses, of what privacy rests on beside the proofs.

The proofs are of a program; what runs is what a compiler and a device make of it. Each check
measures one thing that they could break, on the host in float64, and returns the number found with
the most (or least) that is allowed. None of them proves that there is no other defect.
"""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from dpjax.randomness import keys, threefry
from dpjax.randomness.noise import add_gaussian_noise
from dpjax.training import compilation, optimizers
from dpjax.training.clipping.clipped_grad import clipped_grad
from dpjax.training.dp_sgd import TrainConfig, make_train
from dpjax.training.lots import FixedLots, PoissonLots
from dpjax.training.micro_batches import sum_of_lot
from experiments.accelerator import drawn_losses

Tree = Any

PRECISIONS = ("default", "bfloat16", "tensorfloat32", "highest")
"""Values of `jax.default_matmul_precision` that a user may have set."""

_RIGHT_TO = 2.0**-13
"""Clip norms that a contribution may be off float64's direction where nothing but a sum of products
was computed. Operands of 10 bits, rounded, are off by three times as much, cut off by five."""

_HELD_BACK = 2.0**-7
"""Clip norms that a record of hardly any gradient may move a sum by: more than what is held back
for rounding, 1/512 and what cancels, and far less than the others weigh."""

_UNLIKELY = 1e-7
"""A distribution test fails below this probability."""


class Found(NamedTuple):
    """What one check measured."""

    value: float
    allowed: float
    unit: str

    @property
    def passed(self) -> bool:
        return bool(self.value <= self.allowed)


# Contributions -----------------------------------------------------------------------------------


def random_losses(
    seconds: float, most: int = 10**9, options: Mapping[str, Any] | None = None
) -> Found:
    """Measures what a row moves a clipped sum by, over random losses of all scales."""
    generator, start, largest = np.random.default_rng(0), time.monotonic(), 0.0
    options = options or compilation.options(jax.default_backend())
    for _ in range(most):
        largest = max(largest, drawn_losses.excess(drawn_losses.drawn(generator), 3, options))
        if time.monotonic() - start > seconds:
            break
    return Found(largest, 1.0, "clip norms a row adds")


_SAME_GRADIENT = 0.1
"""Clip norms that a contribution may be off float64's: a loss at a default precision of 8 bits is
off by some hundredths. More is a wrong gradient, whatever its length."""


def contributions(loss: Callable, params: Tree, records: Tree) -> Found:
    """Measures the longest contribution of each of the records, alone in its batch of all.

    Infinite where one is another than the clipped gradient that the host computes in float64.
    """
    summed = compilation.jit(lambda *given: clipped_grad(loss)(*given)[0])
    # Half of the gradients are longer than this: both sides of the clip norm are seen.
    norms = compilation.jit(lambda p, r: clipped_grad(loss)(p, r, 1.0)[1].norms)(params, records)
    clip_norm = np.float32(np.median(np.asarray(norms)))
    exact, rows, longest = _gradients_on_the_host(loss, params, records), len(norms), 0.0
    for row in range(rows):
        found = _flat(summed(params, records, clip_norm, np.arange(rows) == row))
        wanted = exact[row] * min(1.0, clip_norm / np.linalg.norm(exact[row]))
        longest = max(longest, _or_infinity(np.linalg.norm(found) / clip_norm))
        if not np.linalg.norm(found - wanted) <= _SAME_GRADIENT * clip_norm:
            longest = math.inf
    return Found(longest, 1.0, "clip norms a row adds")


def _gradients_on_the_host(loss: Callable, params: Tree, records: Tree) -> np.ndarray:
    """Returns per-example gradients, (rows, parameters), of the loss in float64."""

    def wide(leaf: Any) -> np.ndarray:
        floats = jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
        return np.asarray(leaf).astype(np.float64) if floats else np.asarray(leaf)

    params, records = jax.tree.map(wide, (params, records))
    with jax.enable_x64(True), jax.default_device(_host()):
        each = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(params, records)
        leaves = [np.asarray(leaf).astype(np.float64) for leaf in jax.tree.leaves(each)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


_EXACT = frozenset(
    [
        *("parameter", "get-tuple-element", "tuple", "bitcast", "bitcast-convert", "copy"),
        *("fusion", "call", "conditional", "while", "broadcast", "constant", "reshape"),
        *("transpose", "slice", "dynamic-slice", "gather", "concatenate", "pad", "select"),
        "reverse",
    ]
)
"""Operations that round nothing: where they are repeated, the numbers are the same."""


def one_producer(
    loss: Callable, params: Tree, records: Tree, options: Mapping[str, Any] | None = None
) -> Found:
    """Counts, in the compiled program, the computations that form a value which norm and sum read.

    Of each operation of such a value, by the name that `jaxpr_graph.evaluate` gives it.
    """
    run = compilation.jit(lambda p, r: clipped_grad(loss)(p, r, 1.0, stored=True)[0])
    places: dict[tuple[str, str], set[str]] = {}
    computation = ""
    for line in run.lower(params, records).compile(options).as_text().splitlines():
        if line.endswith("{") and "->" in line:
            computation = line
        found = re.match(r"\s*(?:ROOT )?\S+ = (\(.*?\)|\S+) ([\w-]+)\(", line)
        name = re.search(r'op_name="([^"]*\bonce\d+\b[^"]*)"', line)
        if not found or not name or found[2] in _EXACT:
            continue
        # Floats, or several results; the addition of a reduction is scalar, and stands apart.
        if re.match(r"\(?b?f\d+\[\d", found[1]):
            places.setdefault((name[1], f"{found[2]} {found[1]}"), set()).add(computation)
    most = max(map(len, places.values()), default=0)
    return Found(float(most), 1.0, "places where a value is formed")


def _flat(tree: Tree) -> np.ndarray:
    leaves = [np.asarray(leaf).astype(np.float64).ravel() for leaf in jax.tree.leaves(tree)]
    return np.concatenate(leaves)


def _or_infinity(value: float | np.floating) -> float:
    return float(value) if np.isfinite(value) else math.inf


def products(precision: str) -> Found:
    """Compares contributions, and sums of them, with float64's.

    The operands are the example's own numbers, so that no product of the loss stands between them
    and the sum: at every default precision norm and sum must be float32's. ("factored": what is
    formed and kept is a product at the default precision, of which norm and sum are both taken. It
    may be coarse, and is no longer than the clip norm all the same.)
    """
    generator, worst = np.random.default_rng(1), 0.0
    for loss, positions, left, right, gradient in _losses_of_products():
        x = generator.normal(size=(4, positions, left)).astype(np.float32)
        y = generator.normal(size=(4, positions, right)).astype(np.float32)
        exact = np.stack([gradient(*row) for row in zip(x.astype(float), y.astype(float))])
        norms = np.linalg.norm(exact.reshape(4, -1), axis=1)
        clip_norm = float(np.float32(np.median(norms)))
        clipped = exact * np.minimum(1, clip_norm / norms).reshape(4, *[1] * (exact.ndim - 1))
        params = jnp.zeros(exact.shape[1:], jnp.float32)
        for method in ("factored", "auto"):
            with jax.default_matmul_precision(precision):
                summed = compilation.jit(
                    lambda p, b, c, m: clipped_grad(loss, method=method)(p, b, c, m)[0]  # noqa: B023
                )
                expected = clipped.copy()
                for mask in (*np.eye(4, dtype=bool), np.ones(4, bool)):
                    found = np.asarray(summed(params, (x, y), clip_norm, mask), np.float64)
                    allowed = mask.sum() * clip_norm
                    length = _or_infinity(np.linalg.norm(found) / allowed)
                    if mask.sum() == 1:
                        # Shorter by what is held back for rounding, and by no more.
                        exact = clipped[mask][0]
                        share = np.vdot(found, exact) / np.vdot(exact, exact)
                        expected[mask] *= np.clip(share, 1 - _HELD_BACK, 1)
                    error = np.linalg.norm(found - expected[mask].sum(axis=0)) / allowed
                    worst = max(worst, length if length > 1 else 0.0)
                    worst = max(worst, _or_infinity(error) if method == "factored" else 0.0)
    return Found(worst, _RIGHT_TO, "clip norms a row is off float64's")


def _losses_of_products() -> list[tuple[Callable, int, int, int, Callable]]:
    """Lists losses, their positions and features, and the gradient as a NumPy function."""

    def dense(params: jax.Array, example: Any) -> jax.Array:
        return jnp.sum((example[0] @ params) * example[1])

    def convolved(params: jax.Array, example: Any) -> jax.Array:
        out = jax.lax.conv_general_dilated(
            example[0][None], params, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")
        )
        return jnp.sum(out[0] * example[1][: out.shape[1]])

    def of_pairs(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x.T @ y

    def of_taps(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        length = len(x) - 2
        return np.stack([of_pairs(x[tap : tap + length], y[:length]) for tap in range(3)])

    cases: list[tuple[Callable, int, int, int, Callable]] = [
        (dense, *sizes, of_pairs) for sizes in ((1, 40, 40), (6, 40, 30), (40, 6, 5))
    ]
    return [*cases, (convolved, 12, 8, 6, of_taps)]


def sliding_rows(rows: int = 16_384) -> Found:
    """Measures what one row moves a sum by that stands where float32 rounds all others alike.

    Half of the rows take a float32 sum to a power of two, one adds a unit in its last place, and
    the others are less than half a unit: they count, or not, by that one row.
    """
    half = np.float32(0.5)
    first = int(2 ** np.floor(np.log2(rows // 2 * half)) / half)
    unit = np.float32(first * half * 2.0**-23)
    values = np.concatenate([np.full(first, half), [unit], np.full(rows - first - 1, -0.4 * unit)])
    values = values.astype(np.float32)[:, None]
    at, longest = np.zeros((rows, 1), np.int32), 0.0
    losses: list[tuple[Callable, Tree, Tree]] = [
        (lambda w, x: jnp.vdot(w, x), jnp.zeros(1), values),
        (lambda w, x: jnp.sum(x[None] @ w), jnp.zeros((1, 8)), values),
        (lambda w, x: jnp.sum(w[x[0]] @ x[1]), jnp.zeros((4, 1)), (at, values)),
    ]
    for loss, params, records in losses:
        for method in ("factored", "materialised"):
            run = clipped_grad(loss, method=method)
            summed = compilation.jit(lambda *given, run=run: run(*given, stored=True)[0])
            with_it, without = (
                _flat(summed(params, records, np.float32(1), np.arange(rows) != row))
                for row in (rows, first)
            )
            longest = max(longest, _or_infinity(np.linalg.norm(with_it - without)))
    return Found(longest, _HELD_BACK, "clip norms a row moves the sum by")


def moved_rows(rows: int = 2000) -> Found:
    """Measures what a record of zeros, which comes or goes, moves a lot's sum by, in turns.

    The others' gradients hang on the last bits of a product, which may be others at another place.
    """
    generator, longest = np.random.default_rng(7), 0.0
    weights = generator.normal(size=784).astype(np.float32)
    inputs = np.tile(np.round(generator.uniform(0, 255, 784)).astype(np.float32), (rows, 1))
    inputs[1] = 0.0
    targets = jnp.asarray(inputs) @ weights
    loss = lambda w, example: 0.5 * (example[0] @ w - example[1]) ** 2  # noqa: E731
    grad_fn = clipped_grad(loss)
    for size in (100, 12):

        def summed(mask: jax.Array, size: int = size) -> Tree:
            lot, data = (jnp.arange(rows), mask), (jnp.asarray(inputs), targets)
            return sum_of_lot(grad_fn, weights, data, lot, np.float32(1), None, size)

        compiled = compilation.jit(summed)
        with_it, without = (
            sum(_flat(part) for part in compiled(np.arange(rows) != row)) for row in (rows, 1)
        )
        longest = max(longest, _or_infinity(np.linalg.norm(with_it - without)))
    return Found(longest, _HELD_BACK, "clip norms a record of zeros moves the sum by")


def repeated(times: int = 8) -> Found:
    """Counts entries of a clipped sum that an execution gives otherwise than the first did.

    Of a table of few rows that all positions read: its gradient adds thousands of terms to each.
    """
    generator = np.random.default_rng(6)
    tokens = generator.integers(3, size=(64, 40))
    values = generator.normal(size=(64, 40, 8)).astype(np.float32)

    def loss(table: jax.Array, example: Any) -> jax.Array:
        read = jnp.tanh(table)[example[0]]
        return jnp.sum(jnp.square(read @ table.T)) + jnp.sum(read * example[1])

    table, most = generator.normal(size=(3, 8)).astype(np.float32), 0
    for method in ("auto", "factored", "materialised"):
        run = clipped_grad(loss, method=method, clipping="automatic")
        summed = compilation.jit(lambda *given, run=run: run(*given)[0])
        first, *others = [_flat(summed(table, (tokens, values), 1.0)) for _ in range(times)]
        most = max(most, *(int(np.sum(other != first)) for other in others))
    return Found(float(most), 0.0, "numbers that differ from the first execution's")


# Randomness --------------------------------------------------------------------------------------


def noise_distribution(number: int = 2**18) -> Found:
    """Tests the noise of a sum of zeros against a normal distribution of its standard deviation."""
    std = 0.3
    noise = compilation.jit(lambda key: add_gaussian_noise(key, jnp.zeros(number), std))(_key(3))
    noise = np.asarray(noise, np.float64) / std
    fits = stats.kstest(noise, "norm").pvalue
    # Two-sided, of the mean and of the mean square.
    mean = 2 * stats.norm.sf(abs(noise.mean()) * math.sqrt(number))
    square = 2 * stats.norm.sf(abs(np.mean(noise**2) - 1) * math.sqrt(number / 2))
    return _improbable(min(fits, mean, square))


def noise_of_candidates(candidates: int = 4, steps: int = 2, entries: int = 4096) -> Found:
    """Tests that candidates, steps and parameters have noise of their own.

    Gradients are zero, so what two runs release differs by noise alone: correlations between
    candidates, between parameters of equal shape, and of a run with its own first step.
    """
    released = []
    for taken in range(1, steps + 1):
        train = make_train(
            TrainConfig(
                loss_fn=lambda params, example: 0.0 * example * params["a"][0],
                lots=PoissonLots(8, 0.5, 8),
                steps=taken,
                expected_lot_size=1,
                optimizer=optimizers.sgd(),
            )
        )
        given = {"clip_norm": 1.0, "noise_multiplier": 1.0, "learning_rate": 1.0}
        start = {name: jnp.zeros(entries) for name in "ab"}
        data, several = jnp.zeros(8), keys.candidate_keys(candidates, seed=11)
        runs = compilation.jit(jax.vmap(train, (0, None, None, None)))(several, given, start, data)
        released += [np.asarray(runs[name], np.float64) for name in "ab"]
    # Rows: (candidate, parameter, step), a step's noise being what it adds to the step before.
    increments = [released[0], released[1]]
    increments += [new - old for new, old in zip(released[2:], released)]
    rows = np.concatenate(increments)
    correlation = np.corrcoef(rows)
    largest = float(np.max(np.abs(correlation - np.eye(len(rows)))))
    pairs = len(rows) * (len(rows) - 1) / 2
    return _improbable(pairs * 2 * stats.norm.sf(_or_infinity(largest) * math.sqrt(entries)))


def _improbable(probability: float) -> Found:
    """Returns the -log10 of a probability, against that of `_UNLIKELY`."""
    value = -math.log10(max(float(probability), 1e-300)) if probability == probability else math.inf
    return Found(max(value, 0.0), -math.log10(_UNLIKELY), "-log10 of the probability")


def _key(seed: int) -> jax.Array:
    return keys.candidate_keys(1, seed=seed)[0]


def same_draws() -> Found:
    """Counts bits and lots that differ from those of the CPU backend."""
    poisson, fixed = PoissonLots(60_000, 0.004, 400), FixedLots(60_000, 256)

    def draws() -> Tree:
        # A function of its own for each device: nothing is taken from the other's compilation.
        def drawn(key: jax.Array) -> Tree:
            lots = [lots.draw(key, 60_000) for lots in (poisson, fixed)]
            return threefry.random_bits(key, (4096,)), jax.random.bits(key, (4096,)), lots

        return jax.tree.map(
            np.asarray, compilation.jit(jax.vmap(drawn))(keys.candidate_keys(4, seed=5))
        )

    here = draws()
    with jax.default_device(_host()):
        there = draws()
    pairs = zip(jax.tree.leaves(here), jax.tree.leaves(there), strict=True)
    different = sum(int(np.sum(one != other)) for one, other in pairs)
    different += int(np.sum(here[0] != here[1]))  # Bits are those of `jax.random`.
    return Found(float(different), 0.0, "numbers that differ from the CPU's")


def same_noise(number: int = 2**16) -> Found:
    """Measures how far noise is from that of the CPU backend by the same key."""

    def noise() -> np.ndarray:
        made = compilation.jit(lambda key: add_gaussian_noise(key, jnp.zeros(number), 1.0))(_key(4))
        return np.asarray(made, np.float64)

    here = noise()
    with jax.default_device(_host()):
        there = noise()
    furthest = _or_infinity(np.max(np.abs(here - there)))
    return Found(furthest, 2.0**-10, "standard deviations off the CPU's")


def _host() -> jax.Device:
    return jax.devices("cpu")[0]


# All ---------------------------------------------------------------------------------------------


RANDOM_LOSSES = "contributions: random losses of all scales"


def checks(seconds: float, most: int = 10**9) -> dict[str, Callable[[], Found]]:
    """Returns all of them by name; `seconds` and `most` limit the random losses."""
    found: dict[str, Callable[[], Found]] = {
        "draws: same bits and lots as on the CPU": same_draws,
        "noise: same numbers as on the CPU": same_noise,
        "noise: normal": noise_distribution,
        "noise: of each candidate, parameter and step its own": noise_of_candidates,
        "sum: rows that a float32 sum rounds alike": sliding_rows,
        "sum: a record that comes or goes moves no other": moved_rows,
        "sum: the same in every execution": repeated,
    }
    for precision in PRECISIONS:
        name = f"products: float32 where the default precision is {precision}"
        found[name] = functools.partial(products, precision)
    found[RANDOM_LOSSES] = functools.partial(random_losses, seconds, most)
    return found
