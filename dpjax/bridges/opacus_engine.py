"""Opacus' privacy engine for one candidate: it draws noise and lots, and watches the training.

Ashkan Yousefpour et al., "Opacus: User-Friendly Differential Privacy Library in PyTorch", 2021.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

from dpjax import checks
from dpjax.bridges.runs import ContradictionError, expanded

try:
    import opacus
    import torch
    from opacus.utils.uniform_sampler import UniformWithReplacementSampler
    from torch.optim.optimizer import register_optimizer_step_pre_hook
    from torch.utils.data import DataLoader
except ImportError:
    raise ImportError(
        "dpjax.bridges.opacus.tune trains with Opacus, which is not installed: pip install -e "
        "'.[opacus]' in dpjax's folder"
    ) from None

_PASSED_ON = {
    "batch_first": (True, False),
    "loss_reduction": ("mean", "sum"),
    # Not "adaptive", which divides by the number of records drawn; not "ghost", which does not clip
    # where the loss is not the one that Opacus returns. Neither could be seen here.
    "clipping": ("flat", "per_layer"),
    "grad_sample_mode": ("hooks", "functorch"),
}
"""Further arguments of `make_private` that are passed on to Opacus, with the allowed values."""


@dataclasses.dataclass(frozen=True)
class DeclaredSteps:
    """The public numbers of a training: noise / clip norm, probability in a lot, most steps."""

    noise_multiplier: float
    sample_rate: float
    steps: int


_TRAINING: set[CandidateEngine] = set()
"""The engines of the candidates that are training in this process."""


def _before_any_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Lets every engine look at a step that an optimizer is about to take."""
    for engine in list(_TRAINING):
        engine.before_a_step(optimizer)


# Registered once, not by each candidate, which would change PyTorch's hooks while others read them.
register_optimizer_step_pre_hook(_before_any_step)


class _Lots(UniformWithReplacementSampler):
    """Opacus' Poisson sampler, which counts lots and draws in float64.

    A float32 in [0, 1) is one of 2^24 numbers: with it a record would be drawn with a probability
    up to 6e-8 above the sample rate.
    """

    drawn = 0

    def __iter__(self) -> Iterator[list[int]]:
        # At most sample_rate * 2^53 of the 2^53 possible numbers are below this one.
        threshold = self.sample_rate - 2.0**-53
        for _ in range(self.steps):
            uniform = torch.rand(
                self.num_samples, generator=self.generator, dtype=torch.float64, device="cpu"
            )
            self.drawn += 1
            yield (uniform < threshold).nonzero(as_tuple=False).reshape(-1).tolist()


class CandidateEngine:
    """Takes the place of `opacus.PrivacyEngine` in a training function; one for each candidate.

    Formal guarantees:
      `make_private` is Opacus' with the declared noise multiplier, Poisson-sampled lots, and
      generators of noise and of lots that are independent, and hold all bits of the candidate's
      secret seed (`state`). A record is in a lot with at most the declared probability, and
      gradients are divided by the loader's batch size, a public number, where Opacus divides by one
      that follows from the number of records. Seen, and refused with a `ContradictionError`
      even if the training catches it: no call of `make_private`, or two; another noise multiplier
      or sample rate than declared, more steps, or more than lots were drawn for; several lots in
      one step, where the loader has no workers; noise by another norm than gradients were clipped
      to (a schedule of max_grad_norm with per-layer clipping, which leaves max_grad_norms, or one
      that moves within a lot); a step of an optimizer that adds no noise, on
      parameters of the private module; another module in the place of the private one; a buffer of
      it that training has changed. Not seen: what the training does with its data beside this,
      gradients of a record that depend on other records, weights set by hand.
    """

    def __init__(self, declared: DeclaredSteps, seed: int):
        self._declared, self._seed = declared, seed
        self._contradiction: str | None = None
        self._module: torch.nn.Module | None = None
        self._taken, self._noisy = 0, False
        self._lot: int | None = None
        self._clip_norm: float | None = None
        # For the training to read; changing them does not change what was declared.
        self.noise_multiplier, self.sample_rate = declared.noise_multiplier, declared.sample_rate
        self.steps = declared.steps
        self.accountant: Any = None

    def make_private(
        self,
        *,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        data_loader: DataLoader,
        max_grad_norm: float | list[float],
        **more: Any,
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer, DataLoader]:
        """Makes module, optimizer and loader private as `opacus.PrivacyEngine.make_private` does.

        Of its further arguments, `more`, the training may choose those of `_PASSED_ON`. The
        returned loader gives Poisson-sampled lots, as many as there are records over the batch size
        of `data_loader`.
        """
        if self._module is not None:
            self._refuse("make_private was called twice in a run: call it once")
        for name, value in more.items():
            if name not in _PASSED_ON:
                self._refuse(f"{name} of make_private cannot be chosen here: leave it out")
            if value not in _PASSED_ON[name]:
                self._refuse(f"{name}={value!r} is not covered: pass one of {_PASSED_ON[name]}")
        if getattr(data_loader, "batch_size", None) is None:
            self._refuse("data_loader has no batch size: pass a DataLoader with batch_size=")
        devices = {parameter.device for parameter in module.parameters()}
        if len(devices) != 1 or next(iter(devices)).type not in ("cpu", "cuda"):
            self._refuse("the module is not on one device: put all of it on a CPU or one CUDA GPU")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Opacus warns that the noise is not cryptographic.
            engine = opacus.PrivacyEngine()
        try:
            private, noisy, loader = engine.make_private(
                module=module,
                optimizer=optimizer,
                data_loader=data_loader,
                noise_multiplier=self._declared.noise_multiplier,
                max_grad_norm=max_grad_norm,
                poisson_sampling=True,
                noise_generator=generator(self._seed, "noise", *devices),
                **more,
            )
        except Exception as error:  # What is public (layers, say BatchNorm) would fail in all runs.
            words = " ".join(str(error).split())[:300]
            self._refuse(f"Opacus' make_private refuses this training ({words})")
        lots, rate = loader.batch_sampler, 1 / len(loader)
        if type(lots) is not UniformWithReplacementSampler:
            self._refuse("a module that is trained in several processes is not covered: unwrap it")
        if rate != self._declared.sample_rate:
            self._refuse(
                f"the sample rate of the loader is {rate!r}, declared was "
                f"{self._declared.sample_rate!r}: pass sample_rate={rate!r}, or another batch_size"
            )
        lots.__class__ = _Lots  # A loader's sampler cannot be replaced, and Opacus makes it itself.
        lots.sample_rate = min(lots.sample_rate, rate)
        lots.generator = loader.generator = generator(self._seed, "lots")
        noisy.expected_batch_size = data_loader.batch_size
        self.accountant, self._module, self._lots = engine.accountant, private, lots
        self._parameters = {id(one) for one in private.parameters()}
        self._buffers = {name: one.clone() for name, one in self._saved_buffers()}
        count, accumulate = noisy.step_hook, noisy.clip_and_accumulate

        def counted(stepped: Any) -> None:
            count(stepped)
            self._stepped()

        def accumulated() -> None:
            # Workers draw lots ahead, so the lot drawn last is not the one being summed.
            if loader.num_workers == 0:
                self._summed(lots.drawn)
            self._clipped(noisy)
            accumulate()

        noisy.attach_step_hook(counted)
        noisy.clip_and_accumulate = accumulated
        return private, noisy, loader

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watches while a candidate trains; raises a contradiction even if the training caught it.

        Meanwhile PyTorch's CPU generator, for initial weights and dropout, holds the candidate's
        seed. Threads share it, so of candidates trained in threads only noise and lots are
        reproducible.
        """
        _TRAINING.add(self)
        try:
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(state(self._seed, "everything else"))
                yield
        finally:
            _TRAINING.discard(self)
            if self._contradiction is not None:
                raise ContradictionError(self._contradiction) from None

    def weights(self, module: Any) -> dict[str, np.ndarray]:
        """Returns the arrays to release, by name; refuses a module that is not the private one."""
        if self._module is None:
            self._refuse(
                "a run did not call make_private: train with what engine.make_private returns"
            )
        inner = self._module._module
        if module is not self._module and module is not inner:
            self._refuse("a run returned a module that is not the private one: return that one")
        if not self._taken:
            self._refuse(
                "a run took no private step: call step of the optimizer that make_private returns"
            )
        self._check_history()
        for name, buffer in self._saved_buffers():
            if not _same(buffer, self._buffers.get(name)):
                self._refuse(
                    f"training changed the buffer {name}, and adds no noise to it: freeze it, or "
                    "register it with persistent=False"
                )
        return arrays(inner)

    def _stepped(self) -> None:
        """Checks a step after its noise was added, before the weights are changed."""
        self._taken += 1
        self._check_history()
        if self._taken > self._declared.steps:
            self._refuse(
                f"a run took more than steps={self._declared.steps} steps: pass the most that any "
                "candidate takes, or train less"
            )
        if self._taken > self._lots.drawn:
            self._refuse(
                "a run took more steps than lots were drawn: take one step for each lot of the "
                "loader that make_private returns"
            )
        self._noisy, self._lot, self._clip_norm = True, None, None

    def _summed(self, lot: int) -> None:
        """Checks that clipped gradients come from one lot, before they join the sum of a step."""
        if self._lot not in (None, lot):
            self._refuse(
                "gradients of several lots were summed in one step: call step after each lot, and "
                "let BatchMemoryManager end the lots that it splits"
            )
        self._lot = lot

    def _clipped(self, noisy: Any) -> None:
        """Checks the clip norm, before gradients of a lot or of a part of it are clipped."""
        norms = getattr(noisy, "max_grad_norms", [noisy.max_grad_norm])  # Of layers, if any.
        norm = math.hypot(*norms)
        # Gradients clipped before and the noise to come must have the same norm; Opacus sums norms
        # in float32.
        for other in (noisy.max_grad_norm, norm if self._clip_norm is None else self._clip_norm):
            if not math.isclose(norm, other, rel_tol=1e-6):
                self._refuse(
                    f"clip norms add up to {norm:g}, but noise is scaled to {other:g}: pass a "
                    "max_grad_norm that stays within a lot, and with per-layer clipping throughout"
                )
        self._clip_norm = norm

    def _check_history(self) -> None:
        """Refuses a history that is not the declared noise and rate for each step taken."""
        rate, noise = self._declared.sample_rate, self._declared.noise_multiplier
        if list(map(tuple, self.accountant.history)) != [(noise, rate, self._taken)]:
            self._refuse(
                "the accountant's history is not that of the declared steps: leave the optimizer's "
                f"noise_multiplier at {noise!r} and its step hook as it is, and step once a lot"
            )

    def before_a_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuses a step without noise, before any optimizer of this process changes weights."""
        if self._module is None:
            return
        parameters = (one for group in optimizer.param_groups for one in group["params"])
        if not any(id(one) in self._parameters for one in parameters):
            return
        if not self._noisy:
            self._refuse(
                "an optimizer stepped without noise: call step of the one that make_private "
                "returns, no other, once a lot"
            )
        self._noisy = False

    def _saved_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Returns the buffers that would be released, with their names."""
        assert self._module is not None
        inner = self._module._module
        saved = inner.state_dict()
        return ((name, one) for name, one in inner.named_buffers() if name in saved)

    def _refuse(self, why: str) -> NoReturn:
        """Raises a `ContradictionError`, the first of them again."""
        if self._contradiction is None:
            self._contradiction = f"{why}; nothing is released"
        raise ContradictionError(self._contradiction)


# Generators of PyTorch that hold all bits of a run's seed. On a CPU `torch.Generator.manual_seed`
# keeps 32 bits of a number, which anyone can search; here the whole state, 624 words of 32 bits
# (Matsumoto and Nishimura, "Mersenne Twister", 1998), is expanded from the seed.

_WORDS, _OFFSET, _BYTES = 624, 24, 5056
"""A CPU generator's state: its number of words of 8 bytes, where they begin, and its length."""


def state(seed: int, purpose: str) -> torch.Tensor:
    """Returns the state of a CPU generator, made of all bits of a run's seed.

    Formal guarantees: states of two seeds, or of two purposes, show nothing of each other, as far
    as SHAKE-256 cannot be told from a random function. Numbers drawn are the Mersenne Twister's,
    which is not a cryptographic generator: anyone who saw its numbers as they are drawn could
    predict the next.
    """
    fresh = torch.Generator().manual_seed(5489).get_state().numpy().copy()
    words = fresh[_OFFSET : _OFFSET + 8 * _WORDS].view(np.uint64)
    known = np.random.RandomState(5489).get_state(legacy=False)["state"]["key"]
    if fresh.size != _BYTES or not np.array_equal(words, known):
        raise RuntimeError(
            f"PyTorch {torch.__version__} keeps its generator's state in an unknown format: "
            "install the extra, '.[opacus]', with the constraints of constraints.txt"
        )
    # The first 8 bytes, the seed, are cleared. As after `manual_seed`, the generator mixes its
    # whole state before it gives the first number.
    fresh[:8] = 0
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


def arrays(model: torch.nn.Module | Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns a module's state, or a state_dict, as copies in NumPy, by name."""
    if not isinstance(model, torch.nn.Module):
        checks.mapping("default", model, "a module's state_dict, or the module")
    saved = model.state_dict() if isinstance(model, torch.nn.Module) else model
    return {str(name): _array(name, value) for name, value in saved.items()}


def _array(name: str, value: Any) -> np.ndarray:
    """Copies a tensor, or an array, into a NumPy array of the same bits."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        raise ValueError(
            f"{name} of the module's state is not a dense tensor: keep it out of the state"
        )
    value = value.detach().cpu().contiguous()
    if value.dtype == torch.bfloat16:  # NumPy itself has no such type.
        return value.view(torch.int16).numpy().copy().view(ml_dtypes.bfloat16)
    return value.numpy().copy()


def _same(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    """Returns whether two tensors are equal to the bit."""
    if other is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    return _array("", one).tobytes() == _array("", other).tobytes()
