"""Equality of `clipped_grad` with per-example gradients, on models of every shape that Flax makes.

Two oracles: jax_privacy's `clipped_grad` (an independent implementation by vmap), and the plain
vmap form in here. Each case also states what must not have been materialised.
"""

import dataclasses
import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
import pytest
from flax import nnx

from dpjax.training import clipped_grad

# Compiling is what these tests spend their time on, so it is done without optimisation.
_compiled = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@dataclasses.dataclass
class Case:
    """A loss of one example with parameters and a batch, and the rule expected for kernels."""

    loss: Callable[..., Any]
    params: Any
    batch: Any
    rules: dict[str, str]
    with_rng: bool = False
    tolerance: float = 2e-5


CASES: dict[str, Callable[[], Case]] = {}


def case(function):
    CASES[function.__name__] = function
    return function


def _perturbed(params):
    """Initial biases are zeros and scales ones: move everything, or errors there would hide."""
    draws = np.random.default_rng(11)
    return jax.tree.map(
        lambda leaf: leaf + np.float32(0.2) * draws.normal(size=leaf.shape).astype(leaf.dtype),
        params,
    )


def _linen(model, inputs, classes=3, **expected) -> Case:
    params = _perturbed(_compiled(model.init)(jax.random.key(0), inputs[0]))
    labels = jnp.arange(len(inputs)) % classes

    def loss(params, example):
        logits = model.apply(params, example[0]).reshape(-1, classes)
        return -jax.nn.log_softmax(logits.sum(axis=0))[example[1]]

    return Case(loss, params, (inputs, labels), expected)


def _nnx(model, inputs, classes=3, **expected) -> Case:
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    labels = jnp.arange(len(inputs)) % classes

    def loss(params, example):
        logits = nnx.merge(graph, params, rest)(example[0]).reshape(-1, classes)
        return -jax.nn.log_softmax(logits.sum(axis=0))[example[1]]

    return Case(loss, _perturbed(nnx.to_pure_dict(params)), (inputs, labels), expected)


def _inputs(*shape, seed=1):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def _tokens(*shape, vocabulary):
    return jnp.asarray(np.random.default_rng(2).integers(vocabulary, size=shape), jnp.int32)


@case
def mlp():
    model = nn.Sequential([nn.Dense(7), nn.relu, nn.Dense(5), nn.tanh, nn.Dense(3)])
    return _linen(model, _inputs(6, 4), kernel="dense", bias="small")


@case
def layer_norm_and_group_norm():
    model = nn.Sequential([nn.Dense(8), nn.LayerNorm(), nn.GroupNorm(2), nn.RMSNorm(), nn.Dense(3)])
    return _linen(model, _inputs(6, 5, 4), kernel="dense", bias="small", scale="small")


class _Transformer(nn.Module):
    tie: bool = False
    dtype: Any = None

    @nn.compact
    def __call__(self, tokens):
        embed = nn.Embed(13, 8, dtype=self.dtype)
        x = embed(tokens) + self.param("position", nn.initializers.normal(), (5, 8))
        h = nn.LayerNorm(dtype=self.dtype)(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=2, dtype=self.dtype)(h, h)
        h = nn.Dense(16, dtype=self.dtype)(nn.LayerNorm(dtype=self.dtype)(x))
        x = x + nn.Dense(8, dtype=self.dtype)(nn.gelu(h))
        return embed.attend(x).astype(jnp.float32) if self.tie else nn.Dense(3)(x)


@case
def tied_embedding():
    tokens = _tokens(6, 5, vocabulary=13)
    return _linen(_Transformer(tie=True), tokens, 13, kernel="dense", embedding="embedding")


@case
def mixed_precision():
    tokens = _tokens(6, 5, vocabulary=13)
    built = _linen(_Transformer(dtype=jnp.bfloat16), tokens, kernel="dense", embedding="embedding")
    # The oracles round each product to 8 bits; the factored forms do not.
    return dataclasses.replace(built, tolerance=2e-2)


class _DenseGeneral(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.DenseGeneral((2, 5), axis=(-2, -1))(x)
        x = nn.DenseGeneral(4, axis=(-2,))(x)
        return nn.Einsum((5, 4, 3), "...dk,dkc->...c")(x)


@case
def dense_general_and_einsum():
    return _linen(_DenseGeneral(), _inputs(6, 3, 4, 2), kernel="dense")


@case
def batched_kernels():
    """Experts: kernels with a stack axis shared by activation and cotangent."""
    params = {"experts": _inputs(3, 4, 5, seed=5), "heads": _inputs(5, 3, 2, seed=6)}

    def loss(params, example):
        hidden = jnp.tanh(jnp.einsum("ted,edh->teh", example[0], params["experts"]))
        return jnp.square(jnp.einsum("teh,heo->to", hidden, params["heads"]) - example[1]).sum()

    batch = (_inputs(6, 2, 3, 4), _inputs(6, 2, 2, seed=7))
    return Case(loss, params, batch, {"experts": "dense", "heads": "dense"})


def _conv(**arguments):
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.tanh(nn.Conv(4, (3, 3))(x))
            x = nn.tanh(nn.Conv(**{"features": 6, "kernel_size": (3, 2)} | arguments)(x))
            return nn.Dense(3)(x.mean(axis=(0, 1)))

    return _linen(Model(), _inputs(5, 7, 6, 2), kernel=("convolution", "dense"), bias="small")


CASES |= {
    "convolution_strided": lambda: _conv(strides=(2, 3), padding="SAME"),
    "convolution_dilated": lambda: _conv(kernel_dilation=(2, 1), padding=((-1, 2), (1, -1))),
    "convolution_input_dilated": lambda: _conv(input_dilation=(2, 3), padding=((1, 1), (0, 2))),
    "convolution_grouped": lambda: _conv(feature_group_count=2, strides=2),
    "convolution_depthwise": lambda: _conv(features=8, feature_group_count=4),
    "convolution_large_kernel": lambda: _conv(kernel_size=(9, 9)),
}


@case
def convolution_transposed_and_one_dimensional():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.tanh(nn.Conv(3, (3,), strides=2)(x))
            return nn.ConvTranspose(3, (4,), strides=2)(x)

    return _linen(Model(), _inputs(5, 9, 2), kernel="convolution", bias="small")


@case
def convolution_of_several_images_with_one_kernel():
    """Several images in one example, and the kernel used twice."""
    params = {"kernel": _inputs(3, 3, 2, 2, seed=5)}

    def loss(params, example):
        def apply(x):
            numbers = ("NHWC", "HWIO", "NHWC")
            return jax.lax.conv_general_dilated(
                x, params["kernel"], (1, 1), "SAME", dimension_numbers=numbers
            )

        return jnp.square(apply(jnp.tanh(apply(example)))).mean()

    return Case(loss, params, _inputs(4, 2, 5, 5, 2), {"kernel": "convolution"})


@case
def shared_weights():
    params = {"w": _inputs(4, 4, seed=5), "v": _inputs(4, 4, seed=6)}

    def loss(params, example):
        hidden = jnp.tanh(example @ params["w"])
        hidden = jnp.tanh(hidden @ params["w"].T + hidden @ params["v"])
        return jnp.square(hidden @ (3 * params["w"]) - params["v"][:3, ::-1]).sum()

    return Case(loss, params, _inputs(6, 3, 4), {"w": "dense"})


@case
def parts_of_one_kernel():
    """A kernel that is sliced, reversed, concatenated and reshaped before it is used."""
    params = {"joint": _inputs(4, 6, seed=5), "other": _inputs(2, 6, seed=6)}

    def loss(params, example):
        query, key, value = jnp.split(example @ params["joint"], 3, axis=-1)
        both = jnp.concatenate([params["joint"], params["other"][::-1]]).reshape(6, 2, 3)
        hidden = jnp.einsum("tf,fgh->tgh", jnp.concatenate([query, key, value], -1), both)
        return (
            jnp.square(jnp.tanh(hidden)).sum() + jnp.square(example @ params["joint"][:, 1:3]).sum()
        )

    return Case(loss, params, _inputs(6, 5, 4), {"joint": "dense", "other": "dense"})


@case
def scanned_layers():
    params = {"layers": _inputs(3, 4, 4, seed=5), "biases": _inputs(3, 4, seed=6)}

    def loss(params, example):
        def layer(hidden, weights):
            return jnp.tanh(hidden @ weights[0] + weights[1][None]), hidden.sum()

        hidden, sums = jax.lax.scan(layer, example, (params["layers"], params["biases"]))
        return jnp.square(hidden).sum() + sums.sum()

    return Case(loss, params, _inputs(6, 2, 4), {"layers": "dense"})


@case
def scanned_layers_of_flax_with_remat():
    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return x + nn.Dense(4)(nn.tanh(nn.Dense(6)(nn.LayerNorm()(x)))), None

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            block = nn.remat(Block, prevent_cse=False)
            blocks = nn.scan(
                block, variable_axes={"params": 0}, split_rngs={"params": True}, length=3
            )
            return nn.Dense(3)(blocks()(x, None)[0])

    return _linen(Model(), _inputs(6, 5, 4), kernel="dense")


@case
def remat():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            for _ in range(2):
                x = nn.remat(nn.Dense)(4)(nn.tanh(x))
            return nn.remat(nn.Dense)(3)(x)

    return _linen(Model(), _inputs(6, 4), kernel="dense")


@case
def recurrent():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.RNN(nn.OptimizedLSTMCell(4))(x)
            return nn.RNN(nn.GRUCell(3), reverse=True)(x)

    return _linen(Model(), _inputs(6, 5, 2), kernel="dense")


@case
def scan_in_scan_sharing_a_kernel():
    params = {"inner": _inputs(3, 3, seed=5), "outer": _inputs(2, 3, 3, seed=6)}

    def loss(params, example):
        def outer(hidden, weights):
            def inner(h, x):
                return jnp.tanh(h @ params["inner"] + x), None

            return jax.lax.scan(inner, hidden @ weights, example)[0], None

        return jnp.square(jax.lax.scan(outer, jnp.ones(3), params["outer"])[0]).sum()

    return Case(loss, params, _inputs(6, 4, 3), {"inner": "dense", "outer": "dense"})


@case
def nnx_mlp_with_convolution():
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.conv = nnx.Conv(2, 4, (3, 3), strides=2, rngs=rngs)
            self.norm = nnx.LayerNorm(4, rngs=rngs)
            self.out = nnx.Linear(4, 3, rngs=rngs)

        def __call__(self, x):
            return self.out(nnx.relu(self.norm(self.conv(x))).mean(axis=(0, 1)))

    return _nnx(Model(nnx.Rngs(0)), _inputs(5, 6, 6, 2), kernel=("convolution", "dense"))


@case
def nnx_attention():
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.embed = nnx.Embed(9, 8, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(
                num_heads=2, in_features=8, decode=False, rngs=rngs
            )
            self.out = nnx.Einsum("td,dc->tc", (8, 3), (3,), rngs=rngs)

        def __call__(self, tokens):
            x = self.embed(tokens)
            return self.out(x + self.attention(x))

    tokens = _tokens(6, 5, vocabulary=9)
    return _nnx(Model(nnx.Rngs(0)), tokens, kernel="dense", embedding="embedding")


@case
def dropout():
    params = {"first": _inputs(4, 6, seed=5), "second": _inputs(6, 2, seed=6)}

    def loss(params, example, key):
        hidden = jnp.tanh(example @ params["first"])
        kept = jax.random.bernoulli(key, 0.5, hidden.shape)
        return jnp.square((hidden * kept) @ params["second"]).sum()

    rules = {"first": "dense", "second": "dense"}
    return Case(loss, params, _inputs(6, 4), rules, with_rng=True)


@case
def what_no_rule_knows():
    """Control flow, penalties, scatters by two indices, weights through a nonlinearity, unused."""
    params = {
        "table": _inputs(3, 4, 2, seed=5),
        "scalar": jnp.float32(0.7),
        "normed": _inputs(4, 2, seed=6),
        "unused": _inputs(3, seed=7),
        "branch": _inputs(4, 4, seed=8),
        "penalised": _inputs(4, 2, seed=9),
    }

    def loss(params, example):
        inputs, index = example
        row = params["table"][index, index + 1]
        direction = params["normed"] / jnp.linalg.norm(params["normed"], axis=0, keepdims=True)
        hidden = jax.lax.cond(
            index > 0, lambda: inputs @ params["branch"], lambda: inputs * params["scalar"]
        )
        penalty = jnp.square(params["penalised"]).sum()
        return jnp.square(hidden @ direction + row + hidden @ params["penalised"]).sum() + penalty

    return Case(loss, params, (_inputs(6, 4), jnp.arange(6) % 3), {"unused": "unused"})


@case
def nested_calls_and_custom_derivatives():
    @jax.custom_vjp
    def straight_through(x):
        return jnp.sign(x)

    straight_through.defvjp(
        lambda x: (jnp.sign(x), None), lambda _, g: (jax.jit(jax.nn.relu)(g) - jax.nn.relu(-g),)
    )

    @jax.custom_jvp
    def double(x):
        return x * 2

    double.defjvps(lambda tangent, _, x: tangent * 2)
    params = {"first": _inputs(4, 5, seed=5), "second": _inputs(5, 3, seed=6)}

    def loss(params, example):
        hidden = jax.jit(lambda p, x: straight_through(jax.jit(double)(x @ p["first"])))
        return jax.nn.logsumexp(hidden(params, example) @ params["second"])

    return Case(loss, params, _inputs(6, 4), {"first": "dense", "second": "dense"})


@case
def tables_of_scanned_layers_and_a_long_sequence():
    """A stack of tables, and more positions than are compared in pairs."""
    params = {"tables": _inputs(2, 5, 3, seed=5), "long": _inputs(4, 3, seed=6)}

    def loss(params, example):
        hidden, _ = jax.lax.scan(
            lambda h, table: (jnp.tanh(h + table[example[0]]), None),
            jnp.zeros((4, 3)),
            params["tables"],
        )
        return jnp.square(hidden).sum() + jnp.square(params["long"][example[1]].sum(0)).mean()

    batch = (_tokens(4, 4, vocabulary=5), _tokens(4, 300, vocabulary=4))
    return Case(loss, params, batch, {"tables": "embedding", "long": "embedding"})


@case
def embedding_with_repeated_and_outside_indices():
    """Tokens outside the table: `mode="fill"` reads NaN-free zeros, "clip" the last row."""
    params = {"table": _inputs(5, 3, seed=5), "clipped": _inputs(5, 3, seed=6)}
    tokens = jnp.asarray([[0, 0, 0, 4], [1, 9, 9, 1], [4, 5, 2, 2], [-1, -9, 3, 3], [0, 1, 2, 3]])

    def loss(params, example):
        filled = params["table"].at[example].get(mode="fill", fill_value=0)
        clipped = params["clipped"].at[example].get(mode="clip")
        return jnp.square(jnp.cumsum(filled, 0) + jnp.sin(clipped)).sum()

    return Case(loss, params, tokens, {"table": "embedding", "clipped": "embedding"})


_CLIP_QUANTILE = 0.5  # some rows are clipped, some are not


@functools.cache
def results(name):
    """Computes everything for one case in one compilation."""
    built = CASES[name]()
    rows = len(jax.tree.leaves(built.batch)[0])
    mask = jnp.arange(rows) != 1
    key = jax.random.key(4) if built.with_rng else None

    @_compiled
    def compute(params, batch):
        keys = () if key is None else (jax.random.split(key, rows),)
        in_axes = (None, 0, *(0 for _ in keys))
        gradients = jax.vmap(jax.grad(built.loss), in_axes)(params, batch, *keys)
        gradients = jax.tree.map(lambda g: g.astype(jnp.float32), gradients)
        squares = [jnp.square(g).reshape(rows, -1).sum(1) for g in jax.tree.leaves(gradients)]
        clip_norm = jnp.quantile(jnp.sqrt(sum(squares)), _CLIP_QUANTILE)
        ours = {
            method: clipped_grad(built.loss, method=method, with_rng=built.with_rng)(
                params, batch, clip_norm, mask, key
            )
            for method in ("auto", "factored")
        }
        return gradients, clip_norm, ours

    gradients, clip_norm, ours = jax.tree.map(np.asarray, compute(built.params, built.batch))
    gradients = jax.tree.map(lambda g: g.astype(np.float64), gradients)
    squares = [np.square(g).reshape(rows, -1).sum(1) for g in jax.tree.leaves(gradients)]
    norms = np.sqrt(sum(squares))
    weights = np.minimum(1, clip_norm / norms) * np.asarray(mask)
    want = jax.tree.map(lambda g: np.tensordot(weights, g, 1), gradients)
    return built, want, norms, ours


def assert_trees_close(got, want, tolerance):
    scale = max(np.abs(leaf).max() for leaf in jax.tree.leaves(want))
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want)):
        assert a.dtype == jnp.float32
        np.testing.assert_allclose(
            a, b, rtol=tolerance, atol=tolerance * scale, err_msg=jax.tree_util.keystr(path)
        )


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("method", ["auto", "factored"])
def test_equals_clipped_per_example_gradients(name, method):
    built, want, norms, ours = results(name)
    summed, aux = ours[method]
    np.testing.assert_allclose(aux.norms, norms, rtol=built.tolerance)
    # Rows that are clipped are shorter by what is held back for rounding.
    assert_trees_close(summed, want, max(built.tolerance, 2.0**-8))


# jax_privacy 2.0.0 calls a name that optax has deprecated.
@pytest.mark.filterwarnings("ignore:optax.global_norm:DeprecationWarning")
@pytest.mark.parametrize(
    "name",
    ["mlp", "tied_embedding", "convolution_grouped", "shared_weights", "scanned_layers",
     "nnx_attention"],
)  # fmt: skip
def test_equals_jax_privacy(name):
    built = CASES[name]()
    theirs = jax_privacy.clipped_grad(
        built.loss, l2_clip_norm=0.5, keep_batch_dim=False, return_grad_norms=True
    )
    ours = partial(clipped_grad(built.loss), clip_norm=0.5)
    compute = _compiled(lambda *arguments: (theirs(*arguments), ours(*arguments)))
    (want, aux_want), (summed, aux) = compute(built.params, built.batch)
    np.testing.assert_allclose(aux.norms, aux_want.grad_norms, rtol=built.tolerance)
    assert_trees_close(summed, want, max(built.tolerance, 2.0**-8))


@pytest.mark.parametrize("name", list(CASES))
def test_no_kernel_is_materialised(name):
    built = results(name)[0]
    for method in ("auto", "factored"):
        grad_fn = clipped_grad(built.loss, with_rng=built.with_rng, method=method)
        explanation = grad_fn.explain(built.params, built.batch)
        checked = set()
        for path, each in explanation.items():
            last = path.split("/")[-1]
            if last in built.rules:
                assert each.rule in np.ravel(built.rules[last]), f"{path}\n{explanation}"
                checked.add(last)
            if method == "factored" and each.rule in ("dense", "embedding", "convolution"):
                assert each.held == 0
        assert checked == set(built.rules)
