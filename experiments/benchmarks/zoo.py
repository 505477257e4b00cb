"""Models of every kind that people train, each as the loss of one example: the zoo.

The tests take them tiny (equality with per-example gradients), the benchmark at the sizes of their
papers or near them. One entry is one function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from dpjax import models
from experiments.figures.papernot_steinke.all_conv_nets import AllConvNet

PyTree = Any


class Problem(NamedTuple):
    """A model to be trained: its loss of (params, example), parameters, and records (rows, ...)."""

    loss: Callable[[PyTree, PyTree], jax.Array]
    params: PyTree
    records: PyTree


ZOO: dict[str, Callable[[bool, int], Problem]] = {}
"""name -> (tiny, rows) -> problem. `tiny`: the same layers at sizes for tests."""


def entry(
    build: Callable[[bool, int], Problem],
) -> Callable[[bool, int], Problem]:
    """Puts a problem into the zoo by its function's name."""
    ZOO[build.__name__] = build
    return build


def _floats(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def draw_tokens(vocabulary: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).integers(vocabulary, size=shape), jnp.int32)


def _initial(model: nn.Module, inputs: jax.Array, *more: Any) -> PyTree:
    return jax.jit(model.init)(jax.random.key(0), inputs[:1], *more)


def classifier(model: nn.Module, inputs: jax.Array, classes: int = 10) -> Problem:
    """A model that takes a batch of inputs and gives logits."""

    def loss(params: PyTree, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        return models.cross_entropy(model.apply(params, example[0][None])[0], example[1])

    labels = jnp.arange(len(inputs)) % classes
    return Problem(loss, _initial(model, inputs), (inputs, labels))


# Dense -------------------------------------------------------------------------------------------


@entry
def logistic_regression(tiny: bool, rows: int) -> Problem:
    return classifier(models.LogisticRegression(10), _floats(rows, 20 if tiny else 784))


@entry
def mlp_784_128_64_10(tiny: bool, rows: int) -> Problem:
    widths, inputs = ((8, 6), 20) if tiny else ((128, 64), 784)
    return classifier(models.MLP(widths, 10), _floats(rows, inputs))


@entry
def mlp_784_1000_10(tiny: bool, rows: int) -> Problem:
    widths, inputs = ((12,), 20) if tiny else ((1000,), 784)
    return classifier(models.MLP(widths, 10), _floats(rows, inputs))


class _WeightNormed(nn.Module):
    features: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.relu(nn.WeightNorm(nn.Dense(self.features))(x))
        return nn.Dense(10)(x)


@entry
def weight_norm(tiny: bool, rows: int) -> Problem:
    """`flax.linen.WeightNorm` around a dense layer."""
    width = 7 if tiny else 512
    return classifier(_WeightNormed(width), _floats(rows, 6 if tiny else 512))


class _Adapted(nn.Module):
    """A dense net as a function of masks, scales and experts chosen by the example."""

    width: int
    experts: int = 4

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        init, width = nn.initializers.lecun_normal(), self.width
        kernel = self.param("scaled", init, (x.shape[-1], width))
        scale = self.param("scale", nn.initializers.ones, (width,))
        x = nn.relu(x @ (kernel * scale[None]))
        mask = np.random.default_rng(3).random((width, width)) < 0.5
        x = nn.relu(x @ (self.param("masked", init, (width, width)) * mask))
        return nn.Dense(10)(x)


@entry
def scaled_and_masked(tiny: bool, rows: int) -> Problem:
    """Kernels times a trained scale, and times a fixed mask."""
    width = 7 if tiny else 512
    return classifier(_Adapted(width), _floats(rows, 6 if tiny else 784))


@entry
def mixture_of_experts(tiny: bool, rows: int) -> Problem:
    """Each example goes through the one expert that its gate likes best: `w[expert]`."""
    inputs, width, experts = (6, 7, 3) if tiny else (256, 512, 8)
    params = {
        "gate": 0.1 * _floats(inputs, experts, seed=1),
        "up": 0.1 * _floats(experts, inputs, width, seed=2),
        "down": 0.1 * _floats(experts, width, inputs, seed=3),
        "out": 0.1 * _floats(inputs, 10, seed=4),
    }

    def loss(params: PyTree, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        x, label = example
        gates = nn.softmax(x @ params["gate"])
        chosen = jnp.argmax(gates)
        hidden = nn.relu(x @ params["up"][chosen]) @ params["down"][chosen]
        return models.cross_entropy((x + gates[chosen] * hidden) @ params["out"], label)

    return Problem(loss, params, (_floats(rows, inputs), jnp.arange(rows) % 10))


@entry
def branches(tiny: bool, rows: int) -> Problem:
    """`lax.cond` on what the example holds."""
    inputs, width = (6, 7) if tiny else (784, 512)
    params = {
        "left": 0.1 * _floats(inputs, width, seed=1),
        "right": 0.1 * _floats(inputs, width, seed=2),
        "out": 0.1 * _floats(width, 10, seed=4),
    }

    def loss(params: PyTree, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        x, label = example
        hidden = jax.lax.cond(
            x[0] > 0, lambda: jnp.tanh(x @ params["left"]), lambda: nn.relu(x @ params["right"])
        )
        return models.cross_entropy(hidden @ params["out"], label)

    return Problem(loss, params, (_floats(rows, inputs), jnp.arange(rows) % 10))


# Images ------------------------------------------------------------------------------------------


@entry
def all_conv_net(tiny: bool, rows: int) -> Problem:
    """The net of Papernot & Steinke's figure 7, by patches."""
    side = 8 if tiny else 28
    return classifier(AllConvNet(10), _floats(rows, side, side, 1))


class _StandardisedConv(nn.Module):
    """A 3 x 3 convolution whose kernel is standardised for each output (Qiao et al. 2019)."""

    features: int
    strides: int = 1

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (3, 3, x.shape[-1], self.features)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
        mean = kernel.mean(axis=(0, 1, 2), keepdims=True)
        variance = kernel.var(axis=(0, 1, 2), keepdims=True)
        fan_in = shape[0] * shape[1] * shape[2]
        kernel = (kernel - mean) * jax.lax.rsqrt(jnp.maximum(variance * fan_in, 1e-4))
        out = jax.lax.conv_general_dilated(
            x, kernel, (self.strides,) * 2, "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        return out + bias.reshape(1, 1, 1, -1)


class WideResNet(nn.Module):
    """Zagoruyko & Komodakis 2016 with group norm; 16 layers are 2 blocks a stage, k is `width`.

    Kernels may be standardised, as De et al. 2022 have them.
    """

    width: int = 4
    blocks: int = 2
    groups: int = 16
    first: int = 16
    standardised: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        def conv(features: int, strides: int = 1) -> nn.Module:
            if self.standardised:
                return _StandardisedConv(features, strides)
            return nn.Conv(features, (3, 3), strides)

        def normed(x: jax.Array) -> jax.Array:
            return nn.GroupNorm(min(self.groups, x.shape[-1]))(x)

        x = conv(self.first)(x)
        for stage in range(3):
            features = self.first * self.width * 2**stage
            for block in range(self.blocks):
                strides = 2 if stage and not block else 1
                hidden = nn.relu(normed(x))
                skip = x if block else nn.Conv(features, (1, 1), strides)(hidden)
                hidden = conv(features, strides)(hidden)
                x = skip + conv(features)(nn.relu(normed(hidden)))
        return nn.Dense(10)(nn.relu(normed(x)).mean(axis=(1, 2)))


def _wide_resnet(tiny: bool, rows: int, standardised: bool) -> Problem:
    if tiny:
        model = WideResNet(1, 1, 2, 4, standardised)
        return classifier(model, _floats(rows, 6, 6, 3))
    return classifier(WideResNet(standardised=standardised), _floats(rows, 32, 32, 3))


@entry
def wrn_16_4(tiny: bool, rows: int) -> Problem:
    return _wide_resnet(tiny, rows, standardised=False)


@entry
def wrn_16_4_standardised(tiny: bool, rows: int) -> Problem:
    return _wide_resnet(tiny, rows, standardised=True)


class _Depthwise(nn.Module):
    width: int
    classes: int = 10

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.relu(nn.Conv(self.width, (3, 3), 2)(x))
        for strides in (1, 2, 1):
            channels = x.shape[-1]
            x = nn.relu(nn.Conv(channels, (3, 3), strides, feature_group_count=channels)(x))
            x = nn.relu(nn.Conv(2 * channels if strides == 2 else channels, (1, 1))(x))
        return nn.Dense(self.classes)(x.mean(axis=(1, 2)))


@entry
def depthwise(tiny: bool, rows: int) -> Problem:
    """Depthwise separable convolutions (Howard et al. 2017)."""
    side = 8 if tiny else 32
    return classifier(_Depthwise(4 if tiny else 32), _floats(rows, side, side, 3))


class _UNet(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        down, width = [], self.width
        for level in range(2):
            x = nn.relu(nn.Conv(width * 2**level, (3, 3))(x))
            down.append(x)
            x = nn.avg_pool(x, (2, 2), (2, 2))
        x = nn.relu(nn.Conv(4 * width, (3, 3))(x))
        for level in (1, 0):
            x = nn.ConvTranspose(width * 2**level, (2, 2), (2, 2))(x)
            x = nn.relu(nn.Conv(width * 2**level, (3, 3))(jnp.concatenate([x, down[level]], -1)))
        return nn.Conv(1, (1, 1))(x)


@entry
def u_net(tiny: bool, rows: int) -> Problem:
    """Ronneberger et al. 2015, two levels; the loss is that of every pixel."""
    side, width = (8, 2) if tiny else (32, 16)
    model, images = _UNet(width), _floats(rows, side, side, 1)

    def loss(params: PyTree, example: jax.Array) -> jax.Array:
        return jnp.square(model.apply(params, example[None])[0] - jnp.tanh(example)).mean()

    return Problem(loss, _initial(model, images), images)


# Sequences ---------------------------------------------------------------------------------------


class _Attention(nn.Module):
    """Causal or full attention with heads; keys and queries rotated by place, if asked for."""

    heads: int
    causal: bool = False
    rotary: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        width = x.shape[-1]
        joint = nn.Dense(3 * width)(x).reshape(*x.shape[:-1], 3, self.heads, width // self.heads)
        query, key, value = jnp.moveaxis(joint, -3, 0)
        if self.rotary:
            query, key = _rotated(query), _rotated(key)
        mask = nn.make_causal_mask(jnp.ones(x.shape[:-1])) if self.causal else None
        out = nn.dot_product_attention(query, key, value, mask=mask)
        return nn.Dense(width)(out.reshape(x.shape))


def _rotated(x: jax.Array) -> jax.Array:
    """Rotary embedding (Su et al. 2021): x is (..., positions, heads, features)."""
    half = x.shape[-1] // 2
    angles = jnp.outer(jnp.arange(x.shape[-3]), 100.0 ** -(jnp.arange(half) / half))
    angles = angles.reshape(*(1,) * (x.ndim - 3), x.shape[-3], 1, half)
    cosine, sine = jnp.cos(angles), jnp.sin(angles)
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate(
        [first * cosine - second * sine, first * sine + second * cosine], axis=-1
    )


class _Block(nn.Module):
    heads: int
    causal: bool = False
    rotary: bool = False

    @nn.compact
    def __call__(self, x: jax.Array, _: None = None) -> tuple[jax.Array, None]:
        width = x.shape[-1]
        x = x + _Attention(self.heads, self.causal, self.rotary)(nn.LayerNorm()(x))
        return x + nn.Dense(width)(nn.gelu(nn.Dense(4 * width)(nn.LayerNorm()(x)))), None


class _ViT(nn.Module):
    depth: int
    width: int
    heads: int
    patch: int

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        x = nn.Conv(self.width, (self.patch,) * 2, self.patch)(images)
        x = x.reshape(x.shape[0], -1, self.width)
        x = x + self.param("position", nn.initializers.normal(0.02), (1, *x.shape[1:]))
        for _ in range(self.depth):
            x, _ = _Block(self.heads)(x)
        return nn.Dense(10)(nn.LayerNorm()(x).mean(axis=1))


@entry
def vit_ti(tiny: bool, rows: int) -> Problem:
    """ViT-Ti (width 192, 3 heads, 12 blocks) on 32 x 32 images in patches of 4."""
    if tiny:
        return classifier(_ViT(2, 8, 2, 4), _floats(rows, 8, 8, 3))
    return classifier(_ViT(12, 192, 3, 4), _floats(rows, 32, 32, 3))


class _GPT(nn.Module):
    """Causal, rotary, tied embedding; layers scanned, each recomputed going back."""

    vocabulary: int
    depth: int
    width: int
    heads: int

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        embed = nn.Embed(self.vocabulary, self.width)
        blocks = nn.scan(
            nn.remat(_Block, prevent_cse=False),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=self.depth,
        )
        x, _ = blocks(self.heads, causal=True, rotary=True)(embed(tokens), None)
        return embed.attend(nn.LayerNorm()(x))


@entry
def gpt(tiny: bool, rows: int) -> Problem:
    """Four layers of width 256 on 128 tokens of a vocabulary of 1,024."""
    vocabulary, depth, width, heads, length = (11, 2, 8, 2, 6) if tiny else (1024, 4, 256, 4, 128)
    model, tokens = _GPT(vocabulary, depth, width, heads), draw_tokens(vocabulary, rows, length + 1)

    def loss(params: PyTree, example: jax.Array) -> jax.Array:
        logits = model.apply(params, example[None, :-1])[0]
        return models.cross_entropy(logits, example[1:]).mean()

    return Problem(loss, _initial(model, tokens[:, :-1]), tokens)


class _Base(nn.Module):
    """Two encoder blocks, to be fine-tuned."""

    width: int
    depth: int = 2

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.Embed(50, self.width)(tokens)
        for _ in range(self.depth):
            x, _ = _Block(2)(x)
        return nn.Dense(10)(x.mean(axis=1))


def _fine_tuned(
    tiny: bool,
    rows: int,
    chosen: Callable[[str], bool],
    applied: Callable[[jax.Array, PyTree], jax.Array] | None,
    rank: int = 4,
) -> Problem:
    """A frozen model, of which the kernels whose path is `chosen` get something to train.

    `applied` makes the kernel that is used of the frozen one and {"a", "b"}, of this rank; None:
    the leaf itself is trained.
    """
    width, length = (8, 5) if tiny else (256, 64)
    model, tokens = _Base(width), draw_tokens(50, rows, length)
    frozen = _initial(model, tokens)
    leaves = jax.tree_util.tree_leaves_with_path(frozen)
    names = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
    tree = jax.tree.structure(frozen)
    trained: dict[str, Any] = {}
    for name, (_, leaf) in zip(names, leaves, strict=True):
        if chosen(name):
            trained[name] = leaf
            if applied is not None:
                a, b = _floats(leaf.shape[0], rank), 0.01 * _floats(rank, leaf.shape[1], seed=1)
                trained[name] = {"a": a / leaf.shape[0] ** 0.5, "b": b}

    def loss(params: PyTree, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        used = [
            leaf
            if name not in params
            else (params[name] if applied is None else applied(leaf, params[name]))
            for name, (_, leaf) in zip(names, leaves, strict=True)
        ]
        logits = model.apply(jax.tree.unflatten(tree, used), example[0][None])[0]
        return models.cross_entropy(logits, example[1])

    return Problem(loss, trained, (tokens, jnp.arange(rows) % 10))


@entry
def lora_merged(tiny: bool, rows: int) -> Problem:
    """LoRA (Hu et al. 2021) as `x @ (kernel + a @ b)`."""
    return _fine_tuned(
        tiny,
        rows,
        lambda name: name.endswith("kernel") and "Attention" in name,
        lambda kernel, low: kernel + low["a"] @ low["b"],
    )


class _LoraDense(nn.Module):
    features: int
    rank: int = 4

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (x.shape[-1], self.features)
        kernel = self.variable("frozen", "kernel", _frozen_kernel, shape).value
        a = self.param("a", nn.initializers.lecun_normal(), (shape[0], self.rank))
        b = self.param("b", nn.initializers.normal(0.01), (self.rank, self.features))
        return x @ kernel + (x @ a) @ b


def _frozen_kernel(shape: tuple[int, int]) -> jax.Array:
    return _floats(*shape, seed=shape[1]) / shape[0] ** 0.5


class _LoraNet(nn.Module):
    width: int

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.variable("frozen", "table", _frozen_kernel, (50, self.width)).value[tokens]
        for _ in range(2):
            h = nn.LayerNorm(use_scale=False, use_bias=False)(x)
            heads = (*h.shape[:-1], 2, self.width // 2)
            query, key, value = (_LoraDense(self.width)(h).reshape(heads) for _ in range(3))
            mixed = nn.dot_product_attention(query, key, value).reshape(h.shape)
            x = x + _LoraDense(self.width)(mixed)
            x = x + _LoraDense(self.width)(nn.gelu(_LoraDense(4 * self.width)(x)))
        return _LoraDense(10)(x.mean(axis=1))


@entry
def lora_beside(tiny: bool, rows: int) -> Problem:
    """LoRA as `x @ kernel + (x @ a) @ b`."""
    width, length = (8, 5) if tiny else (256, 64)
    model, tokens = _LoraNet(width), draw_tokens(50, rows, length)
    variables = _initial(model, tokens)
    frozen = variables["frozen"]

    def loss(params: PyTree, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        logits = model.apply({"params": params, "frozen": frozen}, example[0][None])[0]
        return models.cross_entropy(logits, example[1])

    return Problem(loss, variables["params"], (tokens, jnp.arange(rows) % 10))


@entry
def last_layer(tiny: bool, rows: int) -> Problem:
    """Only the last layer is trained."""
    return _fine_tuned(tiny, rows, lambda name: name.startswith("params/Dense"), None)


class _Recurrent(nn.Module):
    cell: type[nn.Module]
    width: int

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.Embed(100, self.width)(tokens)
        cell = self.cell(self.width)
        # Flax has it in float32, whatever the parameters: the device checks take those in float64.
        carry = cell.initialize_carry(jax.random.key(0), x[:, 0].shape)
        carry = jax.tree.map(lambda leaf: leaf.astype(x.dtype), carry)
        return nn.Dense(10)(nn.RNN(cell)(x, initial_carry=carry)[:, -1])


def _recurrent(tiny: bool, rows: int, cell: type[nn.Module]) -> Problem:
    width, length = (5, 4) if tiny else (128, 64)
    return classifier(_Recurrent(cell, width), draw_tokens(100, rows, length))


@entry
def lstm(tiny: bool, rows: int) -> Problem:
    return _recurrent(tiny, rows, nn.OptimizedLSTMCell)


@entry
def gru(tiny: bool, rows: int) -> Problem:
    return _recurrent(tiny, rows, nn.GRUCell)


class _TextConvolution(nn.Module):
    width: int
    filters: int

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.Embed(1000, self.width)(tokens)
        found = [nn.relu(nn.Conv(self.filters, (size,))(x)).max(axis=1) for size in (3, 4, 5)]
        return nn.Dense(10)(jnp.concatenate(found, axis=-1))


@entry
def text_convolution(tiny: bool, rows: int) -> Problem:
    """Kim 2014: widths 3, 4 and 5 over 64 tokens, the largest of each filter."""
    width, filters, length = (5, 4, 7) if tiny else (128, 100, 64)
    return classifier(_TextConvolution(width, filters), draw_tokens(1000, rows, length))


@entry
def associative_scan(tiny: bool, rows: int) -> Problem:
    """A diagonal linear recurrence (as state space models have it) by `lax.associative_scan`."""
    inputs, width, length = (4, 6, 5) if tiny else (32, 256, 128)
    params = {
        "in": 0.2 * _floats(inputs, width, seed=1),
        "decay": _floats(width, seed=2),
        "out": 0.1 * _floats(width, 10, seed=3),
    }

    def loss(params: PyTree, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        driven = example[0] @ params["in"]
        decays = jnp.broadcast_to(nn.sigmoid(params["decay"]), driven.shape)

        def joined(left: Any, right: Any) -> Any:
            return left[0] * right[0], right[0] * left[1] + right[1]

        _, states = jax.lax.associative_scan(joined, (decays, driven))
        return models.cross_entropy(jnp.tanh(states).mean(axis=0) @ params["out"], example[1])

    return Problem(loss, params, (_floats(rows, length, inputs), jnp.arange(rows) % 10))


@entry
def bfloat16_transformer(tiny: bool, rows: int) -> Problem:
    """Two encoder blocks whose parameters and activations are bfloat16."""
    width, length = (8, 5) if tiny else (128, 64)
    model, tokens = _Base(width), draw_tokens(50, rows, length)
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), _initial(model, tokens))

    def loss(params: PyTree, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        logits = model.apply(params, example[0][None])[0]
        return models.cross_entropy(logits.astype(jnp.float32), example[1])

    return Problem(loss, params, (tokens, jnp.arange(rows) % 10))
