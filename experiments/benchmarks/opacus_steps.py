"""Opacus's step and the plain torch step, in a process without JAX.

Needs torch and opacus alone (`pip install torch opacus`, or the `bench` extra); started by
`experiments.benchmarks.engine` as `python opacus_steps.py MODEL BATCH`. Answers every line on
standard input with one JSON line: the seconds of one Opacus step (noise multiplier 1, clip norm 1)
and of one plain step, taken one after the other.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable

import torch
from opacus import GradSampleModule
from opacus.layers import DPMultiheadAttention
from opacus.optimizers import DPOptimizer
from torch import nn


class Transformer(nn.Module):
    """As `clipped_grad.Transformer`: blocks with LayerNorm before attention and dense layers."""

    def __init__(self, blocks: int = 2, width: int = 128, vocabulary: int = 1000) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * blocks))
        self.attentions = nn.ModuleList(
            DPMultiheadAttention(width, 4, batch_first=True) for _ in range(blocks)
        )
        self.dense = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(blocks)
        )
        self.out = nn.Linear(width, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for number, (attention, dense) in enumerate(zip(self.attentions, self.dense)):
            y = self.norms[2 * number](x)
            x = x + attention(y, y, y)[0]
            x = x + dense(self.norms[2 * number + 1](x))
        return self.out(x.mean(dim=-2))


def conv_net() -> nn.Module:
    """The all-convolutional net, 3 x 3, strides 1 and 2 in turn."""
    layers: list[nn.Module] = []
    before = 1
    for channels, stride in zip((32, 32, 64, 64, 64), (1, 2, 1, 2, 1)):
        layers += [nn.Conv2d(before, channels, 3, stride=stride, padding=1), nn.ReLU()]
        before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "logistic_regression": lambda: nn.Sequential(nn.Linear(784, 10)),
    "mlp_784_1000_10": lambda: nn.Sequential(nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 10)),
    "mlp_784_128_64_10": lambda: nn.Sequential(
        nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
    ),
    "transformer": Transformer,
    "all_conv_net": conv_net,
}


def steps(name: str, batch: int) -> dict[str, Callable[[], None]]:
    """The two steps: calls that change their model and return when the device is done."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "transformer":
        inputs = torch.randint(1000, (batch, 64))
    elif name == "all_conv_net":
        inputs = torch.randn(batch, 1, 28, 28)
    else:
        inputs = torch.randn(batch, 784)
    inputs, labels = inputs.to(device), (torch.arange(batch) % 10).to(device)
    found = {}
    for kind in ("opacus", "torch"):
        model = MODELS[name]().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if kind == "opacus":
            model = GradSampleModule(model)
            optimizer = DPOptimizer(
                optimizer, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=batch
            )

        def step(model: nn.Module = model, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            if device == "cuda":
                torch.cuda.synchronize()

        found[kind] = step
    return found


def main() -> None:
    warnings.simplefilter("ignore")
    found = steps(sys.argv[1], int(sys.argv[2]))
    for step in found.values():
        step()
    print("ready", flush=True)
    for _ in sys.stdin:
        taken = {}
        for name, step in found.items():
            step()  # The other process had the processor: wake this one's threads.
            start = time.perf_counter()
            step()
            taken[name] = time.perf_counter() - start
        print(json.dumps(taken), flush=True)


if __name__ == "__main__":
    main()
