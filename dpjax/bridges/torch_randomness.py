"""Generators of PyTorch that hold all bits of a run's seed.

On a CPU `torch.Generator.manual_seed` keeps 32 bits of a number, which anyone can search. Here the
generator's whole state, 624 words of 32 bits (Matsumoto and Nishimura, "Mersenne Twister", 1998),
is expanded from the seed (`seeds.expanded`).
"""

from __future__ import annotations

import numpy as np

try:
    import torch
except ImportError:
    raise ImportError(
        "dpjax.bridges.opacus.tune trains with PyTorch, which is not installed: pip install -e "
        "'.[opacus]' in dpjax's folder"
    ) from None

from dpjax.bridges.seeds import expanded

_WORDS, _OFFSET, _BYTES = 624, 24, 5056
"""Of a CPU generator's state: its words, each in 8 bytes, where they begin, and its length."""


def state(seed: int, purpose: str) -> torch.Tensor:
    """Returns the state of a CPU generator, made of all bits of a run's seed.

    Formal guarantees: states of two seeds, or of two purposes, show nothing of each other, as far
    as SHAKE-256 cannot be told from a random function. Numbers drawn are the
    Mersenne Twister's, which is no cryptographic generator: whoever saw its numbers as they are
    drawn could predict the next.
    """
    fresh = torch.Generator().manual_seed(5489).get_state().numpy().copy()
    words = fresh[_OFFSET : _OFFSET + 8 * _WORDS].view(np.uint64)
    known = np.random.RandomState(5489).get_state(legacy=False)["state"]["key"]
    if fresh.size != _BYTES or not np.array_equal(words, known):
        raise RuntimeError(
            f"PyTorch {torch.__version__} keeps the state of its generator in a way that is not "
            "known here: install the extra, '.[opacus]', with the constraints of constraints.txt"
        )
    # As seeded, all words are due to be mixed before the first number; so are these.
    fresh[:8] = 0  # The number that it was seeded with.
    words[:] = np.frombuffer(expanded(seed, purpose, 4 * _WORDS), dtype="<u4")
    return torch.from_numpy(fresh)


def generator(seed: int, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
    """Returns the generator for a purpose, made of a run's seed.

    On CUDA it is Philox, keyed with 64 bits; a device whose generator keeps fewer is refused.
    """
    device = torch.device(device)
    if device.type == "cpu":
        return torch.Generator().set_state(state(seed, purpose))
    if device.type == "cuda":
        word = int.from_bytes(expanded(seed, purpose, 8), "big")
        return torch.Generator(device).manual_seed(word)
    raise ValueError(f"device {device} has no generator of 64 bits: train on a CPU or on CUDA")
