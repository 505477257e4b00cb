"""Models of the zoo in torch, for Opacus, one a kind of layer: the same layers, the same sizes.

Needs torch and opacus alone; `opacus_steps` takes steps of them in a process without JAX. What is
not as it is in `zoo.py` stands in the docstring of its model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from opacus.layers import DPLSTM
from torch import Tensor, nn
from torch.nn import functional

WAYS = ("torch", "opacus-hooks", "opacus-ghost")
"""Of taking a step, see `opacus_steps`."""


class Twin(NamedTuple):
    """A model of the zoo, with the inputs and targets of a lot.

    `build` makes it for a way, every trained parameter in a layer whose input is a batch: Opacus
    takes such a layer of its own kind by `torch.func`. `losses` are those of the examples, (rows,).
    `more` counts, by way, the parameters that the model has there and ours has not.
    """

    build: Callable[[str], nn.Module]
    inputs: Tensor
    targets: Tensor
    losses: Callable[[Tensor, Tensor], Tensor]
    more: dict[str, int] = {}


TWINS: dict[str, Callable[[bool, int], Twin]] = {}
"""name -> (tiny, rows) -> twin, named and sized as in `zoo.py`."""


def twin(build: Callable[[bool, int], Twin]) -> Callable[[bool, int], Twin]:
    """Puts a twin among the others by its function's name."""
    TWINS[build.__name__] = build
    return build


def _cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits.float(), labels, reduction="none")


def _classifier(build: Callable[[str], nn.Module], inputs: Tensor, **more: dict) -> Twin:
    return Twin(build, inputs, torch.arange(len(inputs)) % 10, _cross_entropies, **more)


# Dense -------------------------------------------------------------------------------------------


def _mlp(*widths: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in zip(widths, widths[1:]):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@twin
def logistic_regression(tiny: bool, rows: int) -> Twin:
    inputs = 20 if tiny else 784
    return _classifier(lambda way: _mlp(inputs, 10), torch.randn(rows, inputs))


@twin
def mlp_784_128_64_10(tiny: bool, rows: int) -> Twin:
    widths = (20, 8, 6, 10) if tiny else (784, 128, 64, 10)
    return _classifier(lambda way: _mlp(*widths), torch.randn(rows, widths[0]))


@twin
def mlp_784_1000_10(tiny: bool, rows: int) -> Twin:
    widths = (20, 12, 10) if tiny else (784, 1000, 10)
    return _classifier(lambda way: _mlp(*widths), torch.randn(rows, widths[0]))


# Images ------------------------------------------------------------------------------------------


class _Mean(nn.Module):
    def __init__(self, *axes: int) -> None:
        super().__init__()
        self.axes = axes

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(self.axes)


@twin
def all_conv_net(tiny: bool, rows: int) -> Twin:
    side = 8 if tiny else 28

    def build(way: str) -> nn.Module:
        layers: list[nn.Module] = []
        before = 1
        for channels, stride in zip((32, 32, 64, 64, 64), (1, 2, 1, 2, 1)):
            layers += [nn.Conv2d(before, channels, 3, stride, padding=1), nn.ReLU()]
            before = channels
        return nn.Sequential(*layers, _Mean(2, 3), nn.Linear(before, 10))

    return _classifier(build, torch.randn(rows, 1, side, side))


class _Scaled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x - 1


@twin
def figure_7_net(tiny: bool, rows: int) -> Twin:
    """The net of `experiments.accelerator.problems`."""
    side = 8 if tiny else 28

    def build(way: str) -> nn.Module:
        layers: list[nn.Module] = [_Scaled()]
        before = 1
        for number, channels in enumerate((32, 32, 64, 64, 64), 1):
            layers += [nn.Conv2d(before, channels, 3, padding=1), nn.Tanh()]
            layers += [nn.AvgPool2d(2)] if number in (3, 5) else []
            before = channels
        return nn.Sequential(*layers, nn.Conv2d(before, 10, 3, padding=1), _Mean(2, 3))

    return _classifier(build, torch.rand(rows, 1, side, side))


class _ResidualBlock(nn.Module):
    def __init__(self, before: int, features: int, stride: int, first: bool, groups: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(
            nn.GroupNorm(min(groups, channels), channels) for channels in (before, features)
        )
        self.convs = nn.ModuleList(
            (
                nn.Conv2d(before, features, 3, stride, padding=1),
                nn.Conv2d(features, features, 3, 1, padding=1),
            )
        )
        self.skip = nn.Conv2d(before, features, 1, stride) if first else None

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.norms[0](x))
        skip = x if self.skip is None else self.skip(hidden)
        hidden = self.convs[0](hidden)
        return skip + self.convs[1](torch.relu(self.norms[1](hidden)))


@twin
def wrn_16_4(tiny: bool, rows: int) -> Twin:
    width, blocks, groups, first, side = (1, 1, 2, 4, 6) if tiny else (4, 2, 16, 16, 32)

    def build(way: str) -> nn.Module:
        layers: list[nn.Module] = [nn.Conv2d(3, first, 3, 1, padding=1)]
        before = first
        for stage in range(3):
            features = first * width * 2**stage
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                layers.append(_ResidualBlock(before, features, stride, not block, groups))
                before = features
        norm = nn.GroupNorm(min(groups, before), before)
        return nn.Sequential(*layers, norm, nn.ReLU(), _Mean(2, 3), nn.Linear(before, 10))

    return _classifier(build, torch.randn(rows, 3, side, side))


@twin
def depthwise(tiny: bool, rows: int) -> Twin:
    side, width = (8, 4) if tiny else (32, 32)

    def build(way: str) -> nn.Module:
        layers, channels = [nn.Conv2d(3, width, 3, 2, padding=1), nn.ReLU()], width
        for stride in (1, 2, 1):
            after = 2 * channels if stride == 2 else channels
            layers += [nn.Conv2d(channels, channels, 3, stride, 1, groups=channels), nn.ReLU()]
            layers += [nn.Conv2d(channels, after, 1), nn.ReLU()]
            channels = after
        return nn.Sequential(*layers, _Mean(2, 3), nn.Linear(channels, 10))

    return _classifier(build, torch.randn(rows, 3, side, side))


# Sequences ---------------------------------------------------------------------------------------


class _Attention(nn.Module):
    """Attention between two dense layers that have the parameters."""

    def __init__(
        self,
        width: int,
        heads: int,
        dense: Callable[[int, int], nn.Module] = nn.Linear,
        causal: bool = False,
        rotary: bool = False,
    ) -> None:
        super().__init__()
        self.heads, self.causal, self.rotary = heads, causal, rotary
        self.joint, self.out = dense(width, 3 * width), dense(width, width)

    def forward(self, x: Tensor) -> Tensor:
        joint = self.joint(x).unflatten(-1, (3, self.heads, -1))
        query, key, value = joint.permute(2, 0, 3, 1, 4)  # each (rows, heads, positions, features)
        if self.rotary:
            query, key = _rotated(query), _rotated(key)
        return self.out(_mixed(query, key, value, self.causal))


def _mixed(query: Tensor, key: Tensor, value: Tensor, causal: bool = False) -> Tensor:
    mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
    return mixed.transpose(1, 2).flatten(-2)


def _rotated(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    angles = torch.outer(torch.arange(x.shape[-2]), 100.0 ** -(torch.arange(half) / half))
    cosine, sine = angles.cos(), angles.sin()
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], -1)


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, **attention: object) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = _Attention(width, heads, **attention)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.down(functional.gelu(self.up(self.norms[1](x)), approximate="tanh"))


class _GPT(nn.Module):
    def __init__(self, vocabulary: int, depth: int, width: int, heads: int, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(
            *(_Block(width, heads, causal=True, rotary=True) for _ in range(depth))
        )
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.out.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.norm(self.blocks(self.embedding(tokens))))


@twin
def gpt(tiny: bool, rows: int) -> Twin:
    """No layer is recomputed going back, which takes less time and more memory. Ghost clipping
    refuses tied parameters and has an output layer of its own."""
    vocabulary, depth, width, heads, length = (11, 2, 8, 2, 6) if tiny else (1024, 4, 256, 4, 128)
    tokens = torch.randint(vocabulary, (rows, length + 1))

    def losses(logits: Tensor, targets: Tensor) -> Tensor:
        each = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        return each.view(targets.shape).mean(1)

    return Twin(
        lambda way: _GPT(vocabulary, depth, width, heads, tied=way != "opacus-ghost"),
        tokens[:, :-1].contiguous(),  # the ghost form views them as one axis
        tokens[:, 1:],
        losses,
        {"opacus-ghost": vocabulary * width},
    )


class _Encoder(nn.Module):
    """Encoder blocks without a norm at the end."""

    def __init__(
        self, vocabulary: int, width: int, heads: int = 2, depth: int = 2, **attention: object
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(_Block(width, heads, **attention) for _ in range(depth)))
        self.out = nn.Linear(width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.blocks(self.embedding(tokens)).mean(1))


class _Merged(nn.Module):
    """A frozen dense layer with low-rank terms on its kernel. Tensors that are no parameters, else
    Opacus forms their per-example gradients too."""

    def __init__(self, inputs: int, features: int, rank: int = 4) -> None:
        super().__init__()
        self.kernel = torch.randn(features, inputs) / inputs**0.5
        self.bias = torch.zeros(features)
        self.a = nn.Parameter(torch.randn(rank, inputs) / inputs**0.5)
        self.b = nn.Parameter(0.01 * torch.randn(features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.kernel + self.b @ self.a, self.bias)


@twin
def lora_merged(tiny: bool, rows: int) -> Twin:
    width, length = (8, 5) if tiny else (256, 64)

    def build(way: str) -> nn.Module:
        model = _Encoder(50, width, dense=_Merged)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.endswith((".a", ".b")))
        return model

    return _classifier(build, torch.randint(50, (rows, length)))


class _Recurrent(nn.Module):
    """Embedding, recurrent layer, dense layer on the last state."""

    def __init__(self, layer: type[nn.Module], width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, width)
        self.recurrent = layer(width, width, batch_first=True)
        self.out = nn.Linear(width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.recurrent(self.embedding(tokens))[0][:, -1])


@twin
def lstm(tiny: bool, rows: int) -> Twin:
    """Flax has one bias where torch has two: the inputs' is frozen."""
    width, length = (5, 4) if tiny else (128, 64)

    def build(way: str) -> nn.Module:
        model = _Recurrent(nn.LSTM if way == "torch" else DPLSTM, width)
        for name, parameter in model.recurrent.named_parameters():
            if name.endswith(("bias_ih_l0", "ih.bias")):
                nn.init.zeros_(parameter.requires_grad_(False))
        return model

    return _classifier(build, torch.randint(100, (rows, length)))


@twin
def bfloat16_transformer(tiny: bool, rows: int) -> Twin:
    """Opacus's norms, sums and noise are bfloat16 as the parameters are; ours are float32."""
    width, length = (8, 5) if tiny else (128, 64)
    return _classifier(
        lambda way: _Encoder(50, width).bfloat16(), torch.randint(50, (rows, length))
    )
