"""No row moves a clipped sum by more than the clip norm, compiled as users compile it.

Most cases here did, by factors of 1.1 to 1e19. Rounding, and what a compiler computes twice, show
with its optimisations alone, which other tests are compiled without.
"""

import itertools
import math
import re

import fuzz_clipping
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import training
from dpjax.training.clipping import clipped_grad, factored_norms
from dpjax.training.clipping.block_sums import Influence
from dpjax.training.clipping.per_example_gradients import Loss, trace
from experiments.benchmarks.zoo import ZOO

OPTIMISED = fuzz_clipping.OPTIMISED


def moved(grad_fn, params, batch, clip_norm, removed=None):
    """The norm over C, in float64, of each row's contribution, or of the change without a row."""
    rows = len(jax.tree.leaves(batch)[0])
    compiled = jax.jit(lambda p, b, c, m: grad_fn(p, b, c, m)[0], compiler_options=OPTIMISED)

    def summed(mask):
        leaves = jax.tree.leaves(compiled(params, batch, jnp.float32(clip_norm), mask))
        return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in leaves])

    own = np.eye(rows, dtype=bool)
    if removed is None:
        changes = [summed(mask) for mask in own]
    else:
        whole = summed(np.ones(rows, bool))
        changes = [whole - summed(~own[row]) for row in removed]
    return np.asarray([np.linalg.norm(change) for change in changes]) / clip_norm


# Norms ------------------------------------------------------------------------------------------


def _convolved(params, example, stride=2):
    numbers = ("NHWC", "HWIO", "NHWC")
    out = jax.lax.conv_general_dilated(
        example[0][None], params, (stride, stride), "VALID", dimension_numbers=numbers
    )
    return jnp.sum(out[0] * example[1])


FORMS = {
    "outer": (lambda p, e: (e[0][0] @ p) @ e[1][0], (6, 6), (6,), (6,)),
    "gram": (lambda p, e: jnp.sum((e[0] @ p) * e[1]), (64, 64), (64,), (64,)),
    "product": (lambda p, e: jnp.sum((e[0] @ p) * e[1]), (3, 3), (3,), (3,)),
    "whole": (lambda p, e: jnp.vdot(p, jnp.sum(e[0] * e[1], 0)), (6,), (6,), (6,)),
    "two terms": (
        lambda p, e: jnp.sum((e[0] @ p) * e[1]) - (e[1][0] @ p.T) @ e[0][0], (9, 9), (9,), (9,),
    ),
    "shared": (
        lambda p, e: jnp.sum((e[0] @ p) * e[1]) - jnp.sum(p * p), (30, 30), (30,), (30,),
    ),
    "entrywise": (
        lambda p, e: (e[0][0] @ (p * jnp.sin(1.0 + jnp.arange(36.0)).reshape(6, 6))) @ e[1][0],
        (6, 6), (6,), (6,),
    ),
    "scaled by a number": (lambda p, e: 3e-30 * ((e[0][0] @ p) @ e[1][0]), (6, 6), (6,), (6,)),
    "rows": (
        lambda p, e: jnp.sum(p[jnp.arange(8) // 2] * e[0] * e[1]), (5, 6), (6,), (6,),
    ),
    "convolution": (_convolved, (3, 3, 20, 20), (9, 20), (4, 20)),
}  # fmt: skip
SCALES = (1e-38, 1e-30, 1.05e-19, 1e-12, 1.0, 1e12, 1.8e18, 1e30, 1e38)


AUTOMATIC = training.AutomaticClipping(0.0)
# Every form of a norm under both rules, by the method that keeps it; the whole gradient once.
CORNERS = [
    *((form, rule, "factored") for form in FORMS for rule in ("global", AUTOMATIC)),
    *(("product", rule, "auto") for rule in ("global", AUTOMATIC)),
    ("gram", AUTOMATIC, "materialised"),
]


@pytest.mark.parametrize(("form", "rule", "method"), CORNERS)
def test_no_scale_of_the_factors_makes_a_contribution_exceed_the_clip_norm(form, rule, method):
    loss, shape, left, right = FORMS[form]
    draws = np.random.default_rng(0)
    first = (9, *left) if form == "convolution" else (8, *left)
    second = (4, *right) if form == "convolution" else (8, *right)
    pairs = [(a, b) for a in SCALES for b in SCALES]
    x, y = (
        np.stack([np.clip(scale * draws.normal(size=size), -3e38, 3e38) for scale in scales])
        for scales, size in zip(zip(*pairs, strict=True), (first, second), strict=True)
    )
    grad_fn = training.clipped_grad(loss, method=method, clipping=rule)
    params = jnp.asarray(draws.normal(size=shape), jnp.float32)
    batch = (jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32))
    each = jax.jit(
        jax.vmap(lambda p, row, c: grad_fn(p, jax.tree.map(lambda a: a[None], row), c)[0],
                 (None, 0, None)),
        compiler_options=OPTIMISED,
    )  # fmt: skip
    for clip_norm in (1e-6, 1e-2, 1.0, 1e6):
        found = np.asarray(each(params, batch, jnp.float32(clip_norm)), np.float64)
        norms = np.linalg.norm(found.reshape(len(pairs), -1), axis=1)
        assert (norms <= clip_norm).all(), (norms.max() / clip_norm, pairs[norms.argmax()])
        # A row of ordinary size keeps nearly all of it, one whose product alone is ordinary some.
        if form in ("gram", "outer", "whole") and clip_norm == 1e-2:
            assert norms[pairs.index((1.0, 1.0))] > 0.98e-2
            assert norms[pairs.index((1.05e-19, 1.8e18))] > 0.001e-2


def test_a_norm_that_rounding_left_nothing_of_is_bounded_by_what_was_added():
    for error in (0.0, 2.0**-10, 0.5):
        norm = factored_norms._of_parts(jnp.zeros(()), jnp.ones(()), 1.0, error)
        assert norm.value == 0 and norm.slack >= 2.0**-21 + error and norm.added == 1
        # The closer of two bounds counts.
        for off in (2.0**-12, 2.0**-2):
            closer = factored_norms._of_parts(jnp.zeros(()), jnp.ones(()), 1.0, error, off)
            assert closer.slack >= 2.0**-21 + min(error, off)


def test_what_underflow_takes_is_a_fourth_of_what_is_granted_for_rounding():
    """An inner product of n entries loses n of the smallest normal numbers, at most."""
    tiny = float(jnp.finfo(jnp.float32).tiny)
    for features in (1, 64, 4096):
        least = float(factored_norms.sizes(jnp.zeros(()), features))
        assert features * tiny <= factored_norms._FEW_ROUNDINGS * least**2 / 4


def test_a_clip_norm_beyond_float32_is_zero():
    """Weights would be lost in subnormal numbers; the smallest that counts is told by sizes."""
    grad_fn = training.clipped_grad(lambda p, e: e @ p @ e, method="factored")
    least = 2.0**-42 * 8
    for clip_norm, zero in ((0.9 * least, True), (1.1 * least, False)):
        summed, _ = grad_fn(jnp.ones((8, 8)), jnp.ones((2, 8)), clip_norm)
        assert bool((summed == 0).all()) == zero
        assert np.linalg.norm(np.asarray(summed, np.float64)) <= 2 * clip_norm


def test_a_constant_factor_far_from_one_leaves_no_factors():
    for scale in (1e-12, 1e12, -1e-12):
        grad_fn = training.clipped_grad(lambda p, e: e @ (scale * p) @ e, method="factored")  # noqa: B023
        (leaf,) = grad_fn.explain(jnp.ones((8, 8)), jnp.ones((2, 8))).values()
        assert leaf.form == "product" and "move its factors" in leaf.reason


# What a compiler computes twice -----------------------------------------------------------------

HANDED_ON = {
    "times one": lambda h: h * 1.0,
    "where": lambda h: jnp.where(True, h, 0),
    "max": lambda h: jnp.maximum(h, h),
}


def _centred(table):
    for axis in (1, 0):
        table = table - jnp.mean(table, axis, keepdims=True)
    return table


def _nothing_but_rounding():
    draws = np.random.default_rng(0)
    first, second = (
        jnp.asarray(scale * draws.normal(size=(16, 5, 5)), jnp.float32) for scale in (1e9, 1.0)
    )
    compiled = jax.jit(jax.vmap(lambda a, b: _centred(a * b)), compiler_options=OPTIMISED)
    return first, second, compiled(first, second)


READ = {
    "whole": lambda params, value, row: jnp.sum(params * value),
    "inner products": lambda params, value, row: jnp.sum((value @ params) * row[1]),
}


def _shares(loss, read):
    grad_fn = training.clipped_grad(
        lambda params, row: READ[read](params, loss(row), row), method="factored"
    )
    return moved(grad_fn, jnp.zeros((5, 5)), _nothing_but_rounding(), 1e-3)


@pytest.mark.parametrize(
    ("turns", "read"),
    [((1, 1), "whole"), ((3, 2), "inner products"), ((4, 3), "whole"), ((5, 3), "inner products")],
)
def test_what_a_loop_of_few_turns_forms_is_formed_once(turns, read):
    length, unroll = turns

    def last(row):
        def step(carry, _):
            return carry, _centred(row[0] * row[1]) - row[2]

        return jax.lax.scan(step, 0.0, None, length=length, unroll=unroll)[1][-1]

    shares = _shares(last, read)
    assert (shares <= 1).all(), shares


@pytest.mark.parametrize(
    ("hand", "read"),
    [("times one", "whole"), ("where", "inner products"), ("max", "inner products")],
)
def test_what_a_loop_only_hands_on_is_formed_once(hand, read):
    def last(row):
        start = _centred(row[0] * row[1]) - row[2]
        return jax.lax.scan(lambda h, _: (HANDED_ON[hand](h), None), start, None, length=3)[0]

    shares = _shares(last, read)
    assert (shares <= 1).all(), shares


@pytest.mark.parametrize("name", list(ZOO))
def test_each_wanted_value_has_one_producer_in_the_compiled_program(name):
    """A value that is formed once is what a conditional of its own returns: none that the plans
    read is left out, and the compiler drops and doubles none."""
    problem = ZOO[name](True, 3)
    grad_fn = training.clipped_grad(problem.loss)
    loss = Loss(problem.loss, False)
    traced = trace(loss, problem.params, problem.records, None, force=False)
    wanted = {atom for plan in traced.plans for atom in (*plan.needs, *plan.shared_needs)}
    contractions = ("dot_general", "conv_general_dilated")
    computed = [
        atom
        for atom in wanted - set(traced.graph.inputs)
        if atom.aval.dtype.itemsize < 4 or atom.producer.name not in contractions
    ]
    products = sum(plan.form == "product" for plan in traced.plans)
    commons = sum(len(plan.shared_needs) > 0 for plan in traced.plans)
    lowered = jax.jit(lambda p, b: grad_fn(p, b, 1.0, stored=True)[0]).lower(
        problem.params, problem.records
    )
    compiled = lowered.compile(compiler_options=OPTIMISED).as_text()
    found = len(re.findall(r" conditional\(", compiled))
    own = str(jax.make_jaxpr(jax.grad(lambda p: jax.vmap(problem.loss, (None, 0))(
        p, problem.records).sum()))(problem.params)).count("cond[")  # fmt: skip
    assert len(computed) <= found <= len(computed) + products + commons + own, found


# What cancels in the sum ------------------------------------------------------------------------


def test_a_penalty_that_cancels_the_data_moves_no_sum_by_more_than_the_clip_norm():
    """32,768 rows: without what is held back of what is added, 1.63 clip norms."""
    rows, size, left = 32768, 64, 2e-3
    draws = np.random.default_rng(0)
    first, second = (draws.normal(size=size).astype(np.float32) for _ in range(2))
    kernel = np.outer(first, second)

    def loss(params, row):
        return (row[0] @ params) @ row[1] - 0.5 * jnp.sum(params * params)

    batch = tuple(
        jnp.asarray(np.broadcast_to(each, (rows, size)))
        for each in (first * np.float32(1 + left), second)
    )
    grad_fn = training.clipped_grad(loss, method="factored")
    clip_norm = float(np.linalg.norm(kernel)) * left * 0.9
    shares = moved(grad_fn, jnp.asarray(kernel), batch, clip_norm, (0, 7, rows // 2, rows - 1))
    assert (shares <= 1).all(), shares


@pytest.mark.parametrize("clipping", ["global", "automatic"])
def test_weights_go_by_norms_with_their_slack_and_by_what_is_added(clipping):
    """Whatever order a compiler adds up in: the bound itself, not what rounding takes here."""
    clip_norm = 0.5
    grad_fn = training.clipped_grad(lambda p, e: p * e, clipping=clipping)
    for influence, value, slack, times in itertools.product(
        (Influence(2e-3, 0.0), Influence(0.0, 3e-4), Influence(2e-3, 2e-2), Influence(0.0, 1e-9)),
        (1e-4, 1.0, 1e6),
        (0.0, 3.0, 1e3),
        (1.0, 2.0, 63.5, 1e9),  # Below and above 64 what may cancel is longest.
    ):
        held = clipped_grad._held_back(influence, 4.0)
        norm = factored_norms.SquaredNorm(
            *(jnp.asarray([each]) for each in (value, slack, times * (value + slack)))
        )
        (weight,) = grad_fn._weights([norm], ["w"], clip_norm, jnp.ones(1, bool), held)
        longest = float(weight[0]) * math.sqrt(value + slack)
        rounded = influence.plain * longest
        rounded += influence.cancelling * float(weight[0]) * math.sqrt(norm.added[0])
        assert 0 < longest + rounded <= clip_norm, (influence, value, slack, times)


# Rows at the end of float32 ---------------------------------------------------------------------


def test_a_row_whose_bound_overflows_counts_as_infinite():
    """Its norm is finite, the bound on its rounding is not: the sum was NaN."""
    grad_fn = training.clipped_grad(lambda p, e: p * e)
    held = clipped_grad._held_back(Influence(1e-3, 0.0), 4.0)
    for place, field in itertools.product((jnp.inf, jnp.nan), ("value", "slack")):
        norm = factored_norms.SquaredNorm(jnp.ones(1), jnp.zeros(1), jnp.ones(1))
        norm = norm._replace(**{field: jnp.asarray([place])})
        (weight,) = grad_fn._weights([norm], ["w"], 1.0, jnp.ones(1, bool), held)
        assert weight[0] == 0


@pytest.mark.parametrize("method", ["auto", "factored"])
def test_rows_at_the_overflow_boundary_give_no_nan(method):
    draws = np.random.default_rng(0)
    x = draws.normal(size=(256, 8, 16)) * np.sqrt(np.geomspace(1e37, 1e40, 256))[:, None, None]
    x[:, 4:, ::2] = 0
    batch = (jnp.asarray(x, jnp.float32), jnp.asarray(x[:, ::-1], jnp.float32))
    grad_fn = training.clipped_grad(lambda p, e: jnp.sum((e[0] @ p) * e[1]), method=method)
    each = jax.jit(
        jax.vmap(lambda a, b: grad_fn(jnp.zeros((16, 16)), (a[None], b[None]), 1.0)[0]),
        compiler_options=OPTIMISED,
    )
    assert np.isfinite(np.asarray(each(*batch))).all()


@pytest.mark.parametrize("method", ["auto", "factored", "materialised"])
def test_parameters_and_rows_that_are_constants_of_the_program_are_clipped_as_well(method):
    params = {"used": jnp.full(3, 0.1), "unused": jnp.ones(2)}
    grad_fn = training.clipped_grad(lambda p, e: jnp.sum(p["used"] * e), method=method)
    for size in (1e-12, 1.0, 1e12):
        rows = jnp.full((1, 3), size)
        summed, aux = jax.jit(lambda: grad_fn(params, rows, 1e-2), compiler_options=OPTIMISED)()  # noqa: B023
        np.testing.assert_allclose(aux.norms, [np.sqrt(3) * size], rtol=1e-5)
        length = np.linalg.norm(np.asarray(summed["used"], np.float64))
        assert min(np.sqrt(3) * size, 1e-2) * 0.999 <= length <= 1e-2


def test_random_programs():
    """A short run of `make fuzz_clipping`."""
    assert fuzz_clipping.main(["--seconds", "60", "--most", "6", "--seed", "1"]) == 0
