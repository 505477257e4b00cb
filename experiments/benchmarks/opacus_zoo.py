"""The models of the zoo in torch, for Opacus: the same layers, the same sizes.

Needs torch and opacus alone; `opacus_steps` takes steps of them in a process without JAX. Opacus
can train all of them. What is not as it is in `zoo.py` stands in the docstring of its model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from opacus.layers import DPGRU, DPLSTM
from torch import Tensor, nn
from torch.nn import functional

WAYS = ("torch", "opacus-hooks", "opacus-ghost")
"""Of taking a step, see `opacus_steps`."""


class Twin(NamedTuple):
    """A model of the zoo.

    Attributes:
      build: way -> model, every trained parameter in a layer whose input is a batch: Opacus takes
        such a layer of its own kind by `torch.func`.
      inputs, targets: rows of the lot.
      losses: (outputs, targets) -> (rows,), the loss of each example.
      more: way -> parameters that the model has there and ours has not.
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


class _Scaled(nn.Module):
    """A dense layer whose kernel is times a trained scale, or first divided by its norm."""

    def __init__(self, inputs: int, width: int, normed: bool) -> None:
        super().__init__()
        self.normed = normed
        self.kernel = nn.Parameter(torch.randn(width, inputs) / inputs**0.5)
        self.scale = nn.Parameter(torch.ones(width, 1))
        if normed:
            self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        if not self.normed:
            return functional.linear(x, self.kernel * self.scale)
        unit = self.kernel / self.kernel.norm(dim=1, keepdim=True)
        return functional.linear(x, unit * self.scale, self.bias)


class _Masked(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.mask = torch.rand(width, width) < 0.5  # no buffer: Opacus refuses layers with them

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.kernel * self.mask)


@twin
def weight_norm(tiny: bool, rows: int) -> Twin:
    inputs, width = (6, 7) if tiny else (512, 512)
    return _classifier(
        lambda way: nn.Sequential(_Scaled(inputs, width, True), nn.ReLU(), nn.Linear(width, 10)),
        torch.randn(rows, inputs),
    )


@twin
def scaled_and_masked(tiny: bool, rows: int) -> Twin:
    inputs, width = (6, 7) if tiny else (784, 512)

    def build(way: str) -> nn.Module:
        first, second = _Scaled(inputs, width, False), _Masked(width)
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Linear(width, 10))

    return _classifier(build, torch.randn(rows, inputs))


class _Experts(nn.Module):
    def __init__(self, inputs: int, width: int, experts: int) -> None:
        super().__init__()
        self.gate = nn.Parameter(0.1 * torch.randn(inputs, experts))
        self.up = nn.Parameter(0.1 * torch.randn(experts, inputs, width))
        self.down = nn.Parameter(0.1 * torch.randn(experts, width, inputs))

    def forward(self, x: Tensor) -> Tensor:
        largest, chosen = torch.softmax(x @ self.gate, -1).max(-1, keepdim=True)
        hidden = torch.relu(x[:, None] @ self.up[chosen[:, 0]]) @ self.down[chosen[:, 0]]
        return x + largest * hidden[:, 0]


@twin
def mixture_of_experts(tiny: bool, rows: int) -> Twin:
    sizes = (6, 7, 3) if tiny else (256, 512, 8)
    return _classifier(
        lambda way: nn.Sequential(_Experts(*sizes), nn.Linear(sizes[0], 10, bias=False)),
        torch.randn(rows, sizes[0]),
    )


class _Branches(nn.Module):
    """Both branches, of which an example takes one: a layer must see the whole batch."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.left = nn.Linear(inputs, width, bias=False)
        self.right = nn.Linear(inputs, width, bias=False)
        self.out = nn.Linear(width, 10, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        left, right = torch.tanh(self.left(x)), torch.relu(self.right(x))
        return self.out(torch.where(x[:, :1] > 0, left, right))


@twin
def branches(tiny: bool, rows: int) -> Twin:
    inputs, width = (6, 7) if tiny else (784, 512)
    return _classifier(lambda way: _Branches(inputs, width), torch.randn(rows, inputs))


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


class _StandardisedConv(nn.Module):
    def __init__(self, before: int, features: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.kernel = nn.Parameter(torch.randn(features, before, 3, 3) / (9 * before) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(self.kernel, (1, 2, 3), correction=0, keepdim=True)
        fan_in = self.kernel[0].numel()
        kernel = (self.kernel - mean) * torch.rsqrt((variance * fan_in).clamp(min=1e-4))
        return functional.conv2d(x, kernel, self.bias, self.stride, padding=1)


def _conv(before: int, features: int, stride: int, standardised: bool) -> nn.Module:
    if standardised:
        return _StandardisedConv(before, features, stride)
    return nn.Conv2d(before, features, 3, stride, padding=1)


class _ResidualBlock(nn.Module):
    def __init__(
        self, before: int, features: int, stride: int, first: bool, groups: int, standardised: bool
    ) -> None:
        super().__init__()
        self.norms = nn.ModuleList(
            nn.GroupNorm(min(groups, channels), channels) for channels in (before, features)
        )
        self.convs = nn.ModuleList(
            (
                _conv(before, features, stride, standardised),
                _conv(features, features, 1, standardised),
            )
        )
        self.skip = nn.Conv2d(before, features, 1, stride) if first else None

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.norms[0](x))
        skip = x if self.skip is None else self.skip(hidden)
        hidden = self.convs[0](hidden)
        return skip + self.convs[1](torch.relu(self.norms[1](hidden)))


def _wide_resnet(tiny: bool, rows: int, standardised: bool) -> Twin:
    width, blocks, groups, first, side = (1, 1, 2, 4, 6) if tiny else (4, 2, 16, 16, 32)

    def build(way: str) -> nn.Module:
        layers, before = [_conv(3, first, 1, standardised)], first
        for stage in range(3):
            features = first * width * 2**stage
            for block in range(blocks):
                stride = 2 if stage and not block else 1
                layers.append(
                    _ResidualBlock(before, features, stride, not block, groups, standardised)
                )
                before = features
        norm = nn.GroupNorm(min(groups, before), before)
        return nn.Sequential(*layers, norm, nn.ReLU(), _Mean(2, 3), nn.Linear(before, 10))

    return _classifier(build, torch.randn(rows, 3, side, side))


@twin
def wrn_16_4(tiny: bool, rows: int) -> Twin:
    return _wide_resnet(tiny, rows, standardised=False)


@twin
def wrn_16_4_standardised(tiny: bool, rows: int) -> Twin:
    return _wide_resnet(tiny, rows, standardised=True)


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


class _UNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = (1, width, 2 * width, 4 * width)
        self.down = nn.ModuleList(
            nn.Conv2d(before, after, 3, padding=1) for before, after in zip(sizes, sizes[1:])
        )
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * size, size, 2, 2) for size in sizes[2:0:-1])
        self.joined = nn.ModuleList(
            nn.Conv2d(2 * size, size, 3, padding=1) for size in sizes[2:0:-1]
        )
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        seen = []
        for conv in self.down[:2]:
            seen.append(torch.relu(conv(x)))
            x = functional.avg_pool2d(seen[-1], 2)
        x = torch.relu(self.down[2](x))
        for up, conv in zip(self.up, self.joined):
            x = torch.relu(conv(torch.cat([up(x), seen.pop()], 1)))
        return self.out(x)


@twin
def u_net(tiny: bool, rows: int) -> Twin:
    side, width = (8, 2) if tiny else (32, 16)
    images = torch.randn(rows, 1, side, side)

    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().mean((1, 2, 3))

    return Twin(lambda way: _UNet(width), images, torch.tanh(images), losses)


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


class _Places(nn.Module):
    def __init__(self, positions: int, width: int) -> None:
        super().__init__()
        self.position = nn.Parameter(0.02 * torch.randn(1, positions, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.position


class _ViT(nn.Module):
    def __init__(self, depth: int, width: int, heads: int, patch: int, side: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.places = _Places((side // patch) ** 2, width)
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(depth)))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        return self.out(self.norm(self.blocks(self.places(x))).mean(1))


@twin
def vit_ti(tiny: bool, rows: int) -> Twin:
    sizes = (2, 8, 2, 4, 8) if tiny else (12, 192, 3, 4, 32)
    return _classifier(lambda way: _ViT(*sizes), torch.randn(rows, 3, sizes[-1], sizes[-1]))


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


def _small_sizes(tiny: bool) -> tuple[int, int]:
    return (8, 5) if tiny else (256, 64)


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
    width, length = _small_sizes(tiny)

    def build(way: str) -> nn.Module:
        model = _Encoder(50, width, dense=_Merged)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.endswith((".a", ".b")))
        return model

    return _classifier(build, torch.randint(50, (rows, length)))


class _Beside(nn.Module):
    """A frozen dense layer with two small ones beside it."""

    def __init__(self, inputs: int, features: int, rank: int = 4) -> None:
        super().__init__()
        self.kernel = torch.randn(features, inputs) / inputs**0.5
        self.a = nn.Linear(inputs, rank, bias=False)
        self.b = nn.Linear(rank, features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.kernel) + self.b(self.a(x))


class _LoraBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.joint = nn.ModuleList(_Beside(width, width) for _ in range(3))
        self.mix = _Beside(width, width)
        self.up, self.down = _Beside(width, 4 * width), _Beside(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.layer_norm(x, x.shape[-1:])
        heads = (layer(hidden).unflatten(-1, (2, -1)).transpose(1, 2) for layer in self.joint)
        x = x + self.mix(_mixed(*heads))
        return x + self.down(functional.gelu(self.up(x), approximate="tanh"))


class _LoraNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = torch.randn(50, width)
        self.blocks = nn.Sequential(*(_LoraBlock(width) for _ in range(2)))
        self.out = _Beside(width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.blocks(self.table[tokens]).mean(1))


@twin
def lora_beside(tiny: bool, rows: int) -> Twin:
    width, length = _small_sizes(tiny)
    return _classifier(lambda way: _LoraNet(width), torch.randint(50, (rows, length)))


@twin
def last_layer(tiny: bool, rows: int) -> Twin:
    width, length = _small_sizes(tiny)

    def build(way: str) -> nn.Module:
        model = _Encoder(50, width).requires_grad_(False)
        model.out.requires_grad_(True)
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
def gru(tiny: bool, rows: int) -> Twin:
    """torch has two biases for each of two gates of which Flax has one."""
    width, length = (5, 4) if tiny else (128, 64)
    return _classifier(
        lambda way: _Recurrent(nn.GRU if way == "torch" else DPGRU, width),
        torch.randint(100, (rows, length)),
        more=dict.fromkeys(WAYS, 2 * width),
    )


class _TextConvolution(nn.Module):
    def __init__(self, width: int, filters: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, width)
        self.convs = nn.ModuleList(
            nn.Conv1d(width, filters, size, padding="same") for size in (3, 4, 5)
        )
        self.out = nn.Linear(3 * filters, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens).transpose(1, 2)
        return self.out(torch.cat([torch.relu(conv(x)).amax(2) for conv in self.convs], 1))


@twin
def text_convolution(tiny: bool, rows: int) -> Twin:
    width, filters, length = (5, 4, 7) if tiny else (128, 100, 64)
    return _classifier(
        lambda way: _TextConvolution(width, filters), torch.randint(1000, (rows, length))
    )


class _Recurrence(nn.Module):
    """h[t] = decay h[t - 1] + x[t] by doubling: after k turns h[t] sums over 2^k positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        decay, reach = torch.sigmoid(self.decay), 1
        while reach < x.shape[1]:
            x = x + functional.pad(x[:, :-reach], (0, 0, reach, 0)) * decay
            decay, reach = decay * decay, 2 * reach
        return x


@twin
def associative_scan(tiny: bool, rows: int) -> Twin:
    inputs, width, length = (4, 6, 5) if tiny else (32, 256, 128)

    def build(way: str) -> nn.Module:
        driven, out = nn.Linear(inputs, width, bias=False), nn.Linear(width, 10, bias=False)
        return nn.Sequential(driven, _Recurrence(width), nn.Tanh(), _Mean(1), out)

    return _classifier(build, torch.randn(rows, length, inputs))


@twin
def bfloat16_transformer(tiny: bool, rows: int) -> Twin:
    """Opacus's norms, sums and noise are bfloat16 as the parameters are; ours are float32."""
    width, length = (8, 5) if tiny else (128, 64)
    return _classifier(
        lambda way: _Encoder(50, width).bfloat16(), torch.randint(50, (rows, length))
    )


@twin
def transformer(tiny: bool, rows: int) -> Twin:
    """`clipped_grad.Transformer`, of the engine benchmark."""
    vocabulary, width = (11, 8) if tiny else (1000, 128)
    return _classifier(
        lambda way: _Encoder(vocabulary, width, heads=4), torch.randint(vocabulary, (rows, 64))
    )
