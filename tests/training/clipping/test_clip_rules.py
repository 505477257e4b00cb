"""Clip rules: what every one of them promises, and what tells them apart.

A table of all rules; each is compared with clipping written in NumPy, from groups that the table
names itself.
"""

import dataclasses
import functools
import math

import held_back
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import training
from dpjax.training import clipped_grad
from dpjax.training.clipping import clip_rules

ROWS = 7
_compiled = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})

BIAS, BODY, HEAD = "bias", "body/kernel", "head/kernel"
ALL = (BIAS, BODY, HEAD)
_ONE, _THREE = [(ALL, 1.0)], [((name,), 1 / math.sqrt(3)) for name in ALL]
_TWO = [((BODY,), 0.6), ((BIAS, HEAD), 0.8)]

TABLE = {
    "global": (training.GlobalClipping(), _ONE, None),
    "per_leaf": (training.PerLeafClipping(), _THREE, None),
    "shares of leaves": (
        training.PerLeafClipping({BIAS: 2.0, BODY: 4.0, HEAD: 4.0}),
        [((BIAS,), 1 / 3), ((BODY,), 2 / 3), ((HEAD,), 2 / 3)],
        None,
    ),
    "grouped": (
        training.GroupedClipping(["body", ""]),
        [((BODY,), math.sqrt(0.5)), ((BIAS, HEAD), math.sqrt(0.5))],
        None,
    ),
    "shares of groups": (training.GroupedClipping(("body", ""), {"body": 3, "": 4}), _TWO, None),
    "groups by a function": (
        training.GroupedClipping(
            lambda name: "inner" if name.startswith("body") else "outer",
            {"inner": 0.3, "outer": 0.4},
        ),
        _TWO,
        None,
    ),
    "automatic": (training.AutomaticClipping(), _ONE, 0.01),
    "automatic without stability": (training.AutomaticClipping(stability=0), _ONE, 0.0),
}


def _loss(params, example):
    hidden = jnp.tanh(example["x"] @ params["body"]["kernel"] + params["bias"])
    return jnp.sum(jnp.square(hidden @ params["head"]["kernel"] - example["y"]))


def _problem():
    draws = np.random.default_rng(3)

    def normal(*shape):
        return jnp.asarray(draws.normal(size=shape), jnp.float32)

    params = {"bias": normal(5), "body": {"kernel": normal(4, 5)}, "head": {"kernel": normal(5, 2)}}
    return params, {"x": normal(ROWS, 4), "y": 2 * normal(ROWS, 2)}


def _named(tree):
    """Name -> float64 array."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf, np.float64)
        for path, leaf in leaves
    }


def _norm(leaves):
    return math.sqrt(sum(float(np.sum(np.square(leaf))) for leaf in leaves))


def _contributions(rule, params, batch, clip_norm, method="auto"):
    """Each row's, the others masked: name -> (rows, ...) float64."""

    def one(mask):
        return clipped_grad(_loss, method=method, clipping=rule)(params, batch, clip_norm, mask)[0]

    return _named(_compiled(jax.vmap(one))(jnp.eye(len(batch["x"]), dtype=bool)))


@functools.cache
def _gradients():
    params, batch = _problem()
    return _named(jax.vmap(jax.grad(_loss), (None, 0))(params, batch))


def _by_hand(groups, stability, clip_norm):
    """Clipping in NumPy: name -> (rows, ...)."""
    found = {name: np.zeros_like(leaf) for name, leaf in _gradients().items()}
    for row in range(ROWS):
        for members, share in groups:
            norm = _norm([_gradients()[name][row] for name in members])
            allowed = clip_norm * share
            factor = min(1, allowed / norm) if stability is None else allowed / (norm + stability)
            for name in members:
                found[name][row] = factor * _gradients()[name][row]
    return found


def test_the_table_has_every_rule():
    # Examples of the docs register rules of their own, in the same process.
    own = {name: cls for name, cls in training.CLIP_RULES.items() if cls.__module__[:6] == "dpjax."}
    assert {rule.name: type(rule) for rule, _, _ in TABLE.values()} == own


@pytest.mark.parametrize("name", TABLE)
def test_contributions_are_those_by_hand_and_at_most_the_clip_norm(name):
    rule, groups, stability = TABLE[name]
    params, batch = _problem()
    for clip_norm, method in ((0.5, "auto"), (8.0, "materialised")):
        found = _contributions(rule, params, batch, clip_norm, method)
        for leaf, want in _by_hand(groups, stability, clip_norm).items():
            np.testing.assert_allclose(found[leaf], want, rtol=3e-5, atol=1e-6)
        for row in range(ROWS):
            assert _norm([leaf[row] for leaf in found.values()]) <= clip_norm
            for members, share in groups:
                assert _norm([found[one][row] for one in members]) <= clip_norm * share


@pytest.mark.parametrize("name", TABLE)
def test_all_of_the_clip_norm_is_used_where_every_group_is_long(name):
    """Else shares would be sound and useless: their squares add up to 1."""
    rule, _, _ = TABLE[name]
    params, batch = _problem()
    batch = {"x": batch["x"], "y": 1e8 * batch["y"]}
    found = _contributions(rule, params, batch, 2.0)
    for row in range(ROWS):
        # A block of all rows, and one rounding of their sum: what is held back, nearly.
        used = _norm([leaf[row] for leaf in found.values()]) * (1 + held_back.share(ROWS)) / 2.0
        assert 1 - 2.0**-17 < used < 1


@pytest.mark.parametrize("name", TABLE)
def test_rows_that_are_masked_or_fail_contribute_exactly_nothing(name):
    rule, _, _ = TABLE[name]
    params, batch = _problem()
    keep = np.arange(ROWS) % 3 != 1
    grad_fn = _compiled(clipped_grad(_loss, clipping=rule))
    want = grad_fn(params, batch, 0.5, keep)[0]
    for poison in (np.nan, np.inf):
        poisoned = {"x": batch["x"], "y": batch["y"].at[1].set(poison).at[4, 0].set(poison)}
        for mask in (keep, np.ones(ROWS, bool)):
            got = grad_fn(params, poisoned, 0.5, mask)[0]
            jax.tree.map(np.testing.assert_array_equal, got, want)


@pytest.mark.parametrize("name", TABLE)
def test_one_group_that_fails_takes_the_whole_row_with_it(name):
    """What is finite of a row tells by itself that the rest is not."""
    rule, _, _ = TABLE[name]
    params = {"bias": jnp.ones(2), "body": {"kernel": jnp.ones(2)}, "head": {"kernel": jnp.ones(2)}}

    def loss(params, example):
        return sum(jnp.vdot(leaf, row) for leaf, row in zip(jax.tree.leaves(params), example))

    rows = np.ones((2, 3, 2), np.float32)
    rows[1, 2, 0] = np.nan
    summed = _compiled(clipped_grad(loss, clipping=rule))(params, jnp.asarray(rows), 0.5)[0]
    alone = _compiled(clipped_grad(loss, clipping=rule))(params, jnp.asarray(rows[:1]), 0.5)[0]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), summed, alone)


@pytest.mark.parametrize("name", TABLE)
def test_limits_of_the_clip_norm(name):
    rule, _, stability = TABLE[name]
    params, batch = _problem()
    grad_fn = _compiled(clipped_grad(_loss, clipping=rule))
    assert all(not leaf.any() for leaf in _named(grad_fn(params, batch, 0.0)[0]).values())
    if stability is None:
        plain = {leaf: rows.sum(axis=0) for leaf, rows in _gradients().items()}
        for leaf, summed in _named(grad_fn(params, batch, np.inf)[0]).items():
            np.testing.assert_allclose(summed, plain[leaf], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", TABLE)
def test_the_sensitivity_is_that_of_the_clip_norm(name):
    grad_fn = clipped_grad(_loss, clipping=TABLE[name][0])
    assert grad_fn.sensitivity("add_or_remove_one", 0.7) == 0.7
    assert grad_fn.sensitivity("replace_one", 0.7) == 1.4


@pytest.mark.parametrize("stability", [0.0, 1e-6, 0.01])
def test_automatic_clipping_is_strictly_below_the_clip_norm_at_any_length(stability):
    """From gradients whose squares underflow to those whose squares hardly fit."""
    lengths = np.array([0.0, 1e-30, 1e-12, 1e-3, 1.0, 1e6, 1e18], np.float32)
    grad_fn = clipped_grad(
        lambda params, row: jnp.vdot(params, row), clipping=training.AutomaticClipping(stability)
    )
    direction = np.random.default_rng(0).normal(size=50)
    rows = jnp.asarray(lengths[:, None] * direction / np.linalg.norm(direction), jnp.float32)
    for clip_norm in (1e-3, 1.0, 1e4):
        each = jax.vmap(lambda row: grad_fn(jnp.zeros(50), row[None], clip_norm)[0])(rows)  # noqa: B023
        norms = np.linalg.norm(np.asarray(each, np.float64), axis=1)
        assert np.isfinite(norms).all()
        assert (norms < clip_norm).all()
        assert norms[0] == 0.0
        want = clip_norm * lengths[3:] / (lengths[3:].astype(np.float64) + stability)
        np.testing.assert_allclose(norms[3:], want, rtol=1e-4)


def test_names_stand_for_the_rules_that_need_no_settings():
    for name, cls in training.CLIP_RULES.items():
        if name != "grouped":  # a rule of another test's example passes too
            assert clipped_grad(_loss, clipping=name).clipping == cls()


@pytest.mark.parametrize(
    "groups",
    [
        [((0,), 1.0), ((1,), 1.0)],
        [((0,), 0.5)],
        [((0, 1), 0.5), ((1,), 0.5)],
    ],
)
def test_a_rule_of_ones_own_keeps_the_bound_or_is_refused(groups):
    @dataclasses.dataclass(frozen=True)
    class Own(training.ClipRule):
        name = "own"

        def groups(self, names):
            return [clip_rules.Group(*group) for group in groups]

    grad_fn = clipped_grad(lambda params, row: params["a"] * row + params["b"], clipping=Own())
    with pytest.raises(ValueError, match="must hold each parameter once.*squares add up to 1"):
        grad_fn({"a": jnp.ones(()), "b": jnp.ones(())}, jnp.ones(3), 1.0)


DIVISORS = {
    "half of the norm": lambda norm: norm / 2,
    "negative": lambda norm: -norm,
    "nothing": jnp.zeros_like,
    "infinite": lambda norm: norm + jnp.inf,
    "none for some rows": lambda norm: jnp.sqrt(norm - 1.0),
}


@pytest.mark.parametrize("name", DIVISORS)
def test_whatever_a_rule_divides_by_a_contribution_is_bounded(name):
    @dataclasses.dataclass(frozen=True)
    class Own(training.ClipRule):
        name = "own"

        def divisor(self, norm):
            return DIVISORS[name](norm)

    grad_fn = clipped_grad(lambda params, row: jnp.vdot(params, row), clipping=Own())
    rows = jnp.asarray([[0.0, 0.0], [0.3, 0.4], [1e-20, 0.0], [3.0, 4.0]], jnp.float32)
    each = jax.vmap(lambda row: grad_fn(jnp.zeros(2), row[None], 2.0)[0])(rows)
    norms = np.linalg.norm(np.asarray(each, np.float64), axis=1)
    assert np.isfinite(norms).all() and (norms <= 2.0).all()
    assert (norms[3] > 0) == (name != "infinite")


def test_no_rule_can_read_other_rows():
    @dataclasses.dataclass(frozen=True)
    class Own(training.ClipRule):
        name = "own"

        def divisor(self, norm):
            return norm + jnp.max(norm)  # Of this row alone, whatever the rule had in mind.

    grad_fn = clipped_grad(lambda params, row: jnp.vdot(params, row), clipping=Own())
    rows = jnp.asarray([[1.0, 0.0], [0.0, 100.0]], jnp.float32)
    alone = grad_fn(jnp.zeros(2), rows[:1], 2.0)[0]
    np.testing.assert_allclose(grad_fn(jnp.zeros(2), rows, 2.0)[0][0], alone[0], rtol=1e-6)
    assert alone[0] == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("name", TABLE)
def test_a_rule_is_rebuilt_from_its_words(name):
    rule, _, _ = TABLE[name]
    if name == "groups by a function":
        with pytest.raises(ValueError, match="groups_of is a function, which a release cannot"):
            rule.describe()
        assert "0x" not in repr(rule)
        return
    assert clip_rules.rule_from_dict(rule.describe()) == rule
    assert hash(clip_rules.rule_from_dict(rule.describe())) == hash(rule)


def test_a_prefix_is_of_whole_names():
    names = ["body", "body_2/kernel", "body/kernel", "body/deep/kernel"]
    groups = training.GroupedClipping(["body", "", "body/deep"]).groups(names)
    assert [group.members for group in groups] == [(0, 2), (1,), (3,)]


# Whole runs --------------------------------------------------------------------------------------


def _config(rule, **changes):
    return training.TrainConfig(
        loss_fn=_loss, lots=training.PoissonLots(ROWS, 1.0, ROWS), steps=3, expected_lot_size=ROWS,
        optimizer=training.sgd(), clipping=rule, **changes,
    )  # fmt: skip


GIVEN = {"clip_norm": 1.5, "noise_multiplier": 0.4, "learning_rate": 0.2}


def _given(**changes):
    return {name: np.float32(value) for name, value in (GIVEN | changes).items()}


SOME = ("shares of groups", "automatic")


@pytest.mark.parametrize("name", SOME)
def test_micro_batches_and_neighbours_change_nothing(name):
    params, batch = _problem()
    keys = training.candidate_keys(2, seed=1)
    config = _config(TABLE[name][0], micro_batch_size=None)
    whole = _compiled(training.make_train(config))
    in_turns = training.make_train(dataclasses.replace(config, micro_batch_size=3))
    beside = _compiled(jax.vmap(in_turns, (0, None, None, None)))(keys, _given(), params, batch)
    for lane in range(2):
        alone = _named(whole(keys[lane], _given(), params, batch))
        for leaf, found in _named(beside).items():
            np.testing.assert_allclose(found[lane], alone[leaf], rtol=1e-5, atol=1e-6)
    moved = _named(beside)[BODY]
    assert np.abs(moved[0] - moved[1]).max() > 1e-3


@pytest.mark.parametrize("name", SOME)
def test_a_run_without_noise_is_descent_along_the_clipped_sums(name):
    rule, groups, stability = TABLE[name]
    params, batch = _problem()
    run = _compiled(training.make_train(dataclasses.replace(_config(rule), steps=1)))
    after = _named(run(jax.random.key(0), _given(noise_multiplier=0.0), params, batch))
    steps = _by_hand(groups, stability, GIVEN["clip_norm"])
    for leaf, before in _named(params).items():
        want = before - GIVEN["learning_rate"] * steps[leaf].sum(axis=0) / ROWS
        np.testing.assert_allclose(after[leaf], want, rtol=1e-4, atol=1e-5)


def test_frozen_leaves_have_no_group():
    """Shares are of what is trained."""
    params, batch = _problem()
    config = _config(training.GroupedClipping(["body", "head"]), trainable=lambda p, _: len(p) > 1)
    after = _compiled(training.make_train(config))(jax.random.key(0), _given(), params, batch)
    np.testing.assert_array_equal(after["bias"], params["bias"])
    with pytest.raises(ValueError, match="'bias', which holds no trained parameter"):
        config = dataclasses.replace(config, clipping=training.GroupedClipping(["", "bias"]))
        training.make_train(config)(jax.random.key(0), _given(), params, batch)
