"""Opacus: its accountant's history as a guarantee, and its trainings as runs of `bridges.tune`.

Ashkan Yousefpour et al., "Opacus: User-Friendly Differential Privacy Library in PyTorch", 2021. An
accountant of Opacus 1.6 ("rdp", "prv", "gdp") records each step's noise multiplier and sample rate,
and prices them when asked. Here the same history becomes a `Guarantee`, which can be composed and
selected from. Only `make_private` needs PyTorch, which it imports when it runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from dpjax import accounting, checks
from dpjax.bridges.runs import ContradictionError, expanded

MECHANISMS = ("rdp", "prv", "gdp")
"""Opacus' accountants whose history is one of Poisson-sampled Gaussian steps."""


def guarantee_of_history(
    history: Sequence[Sequence[float]] | Any,
    mechanism: str | None = None,
    *,
    poisson_sampling: bool | None = None,
) -> accounting.Guarantee:
    """Returns the guarantee of a training that Opacus accounted for, add-or-remove one.

    Formal guarantees:
      Every step is a Gaussian mechanism on a Poisson-sampled lot (`accounting.dp_sgd`), and the
      steps are composed, whichever of Opacus' accountants counted them; "gdp", whose own epsilon
      can be too small, is priced the same way. It holds if the training was what its history says,
      which nothing here can check: lots were Poisson-sampled at the sample rate, which `history`
      does not show (`make_private` with poisson_sampling=False leaves the same one); lots were
      whole, without capacity or dropped records; one lot per step, not several whose gradients were
      accumulated, in which a record can be twice (BatchMemoryManager splits one lot, and may be
      used); sample rate, noise, number of steps and expected lot were public; noise came from a
      generator whose seed nobody can search (`make_private` here, or secure_mode=True).

    Example: `guarantee_of_history(engine.accountant, poisson_sampling=True).epsilon(1e-5)`.

    Args:
      history: Opacus' accountant; or its `history`, entries (noise multiplier = noise / clip norm,
        sample rate in (0, 1], number of steps).
      mechanism: the accountant's name, "rdp", "prv" or "gdp"; None if `history` is the
        accountant, which says it.
      poisson_sampling: needed; states that `make_private` had poisson_sampling=True. Shuffled lots,
        False, have no price here.
    """
    named = getattr(history, "mechanism", None)
    if callable(named) and hasattr(history, "history"):
        if mechanism is not None and mechanism != named():
            raise ValueError(
                f"mechanism is {checks.shown(mechanism)}, but the accountant says "
                f"{checks.shown(named())}: leave mechanism out"
            )
        history, mechanism = history.history, named()
    checks.one_of("mechanism", mechanism, MECHANISMS)
    if poisson_sampling is None:
        raise ValueError(
            "pass poisson_sampling= as make_private was given it: the history does not show it"
        )
    if not checks.flag("poisson_sampling", poisson_sampling):
        raise ValueError(
            "lots that were not Poisson-sampled have no price here: train with "
            "make_private(..., poisson_sampling=True)"
        )
    wanted = "(noise multiplier, sample rate, number of steps)"
    steps: dict[tuple[float, float], int] = {}
    for entry in checks.listed("history", history, wanted):
        if not isinstance(entry, Sequence) or len(entry) != 3:
            raise checks.refused("an entry of history", entry, wanted)
        noise_multiplier = checks.positive("the noise multiplier of an entry", entry[0])
        sample_rate = checks.probability("the sample rate of an entry", entry[1], one=True)
        number = checks.whole("the number of steps of an entry", entry[2])
        known = (noise_multiplier, sample_rate)
        steps[known] = steps.get(known, 0) + number
    if not steps:
        raise ValueError("history is empty: pass the history of a finished run")
    return accounting.compose(
        *(accounting.dp_sgd(rate, noise, number) for (noise, rate), number in steps.items())
    )


_COVERED = {"loss_reduction": ("mean", "sum"), "grad_sample_mode": ("hooks", "functorch")}
"""Values that are covered; not "ghost", which clips only if the loss is the one of Opacus."""


def make_private(
    engine: Any,
    seed: int,
    *,
    module: Any,
    optimizer: Any,
    data_loader: Any,
    noise_multiplier: float,
    max_grad_norm: float,
    batch_first: bool = True,
    loss_reduction: str = "mean",
    grad_sample_mode: str = "hooks",
) -> tuple[Any, Any, Any]:
    """Makes a run of `bridges.tune` private by Opacus, with noise and lots from the run's seed.

    Formal guarantees:
      A step that is taken for each lot is a step of `accounting.dp_sgd`, at the sample rate that
      `engine.accountant` notes. Opacus' own `make_private` falls short of that in three ways. Its
      generators keep 32 bits of a seed on a CPU, which anyone can search: here noise and lots have
      two, which hold all bits of the run's seed (SHAKE-256; numbers are the Mersenne Twister's,
      which is not a cryptographic generator, or on CUDA Philox's). It draws lots in float32, with a
      probability up to 6e-8 above the sample rate: here in float64, at most the sample rate. It
      divides gradients by a number that follows from the number of records: here by the loader's
      batch size. What is refused ends the tuning, with nothing released. Not seen: steps that are
      no private optimizer's, several lots in one step, a max_grad_norm that moves within a lot,
      buffers that training changes, gradients of a record that depend on other records.

    Example: `docs/bridges.md`.

    Args:
      engine: an `opacus.PrivacyEngine()` of this run alone, without secure_mode.
      seed: the seed that the run is given.
      module, optimizer, data_loader, max_grad_norm, batch_first, loss_reduction, grad_sample_mode:
        as Opacus takes them. Clipping is flat; the loader has a batch_size, the module is on one
        device, a CPU or a CUDA GPU.
      noise_multiplier: noise / clip norm, of every step.

    Returns:
      (module, optimizer, loader of Poisson-sampled lots), as Opacus does.

    Raises:
      bridges.ContradictionError: if Opacus refuses the module, or the run is none of those above.
    """
    from opacus.utils.uniform_sampler import UniformWithReplacementSampler

    for name, given in (("loss_reduction", loss_reduction), ("grad_sample_mode", grad_sample_mode)):
        if given not in _COVERED[name]:
            _refuse(f"{name}={given!r} is not covered: pass one of {_COVERED[name]}")
    if engine.accountant.history:
        _refuse("the engine has accounted for steps: make a PrivacyEngine() in each run")
    if getattr(data_loader, "batch_size", None) is None:
        _refuse("data_loader has no batch size: pass a DataLoader with batch_size=")
    devices = {parameter.device for parameter in module.parameters()}
    if len(devices) != 1 or next(iter(devices)).type not in ("cpu", "cuda"):
        _refuse("the module is not on one device: put all of it on a CPU or one CUDA GPU")
    try:
        private, noisy, loader = engine.make_private(
            module=module,
            optimizer=optimizer,
            data_loader=data_loader,
            noise_multiplier=checks.positive("noise_multiplier", noise_multiplier),
            max_grad_norm=checks.positive("max_grad_norm", max_grad_norm),
            batch_first=batch_first,
            loss_reduction=loss_reduction,
            grad_sample_mode=grad_sample_mode,
            poisson_sampling=True,
            noise_generator=_generator(seed, "noise", *devices),
        )
    except Exception as error:  # What is public (layers, say BatchNorm) would fail in all runs.
        words = " ".join(str(error).split())[:300]
        _refuse(f"Opacus' make_private refuses this training ({words})")
    own = loader.batch_sampler
    if type(own) is not UniformWithReplacementSampler:
        _refuse("a module that is trained in several processes is not covered: unwrap it")
    # Opacus accounts for 1 / len(loader), which rounding may leave below its sampler's own rate.
    rate, drawn = min(own.sample_rate, 1 / len(loader)), _generator(seed, "lots")
    loader.generator = drawn
    # A loader's sampler is made by Opacus, and PyTorch refuses to have it replaced.
    object.__setattr__(loader, "batch_sampler", _Lots(own.num_samples, rate, own.steps, drawn))
    noisy.expected_batch_size = data_loader.batch_size
    return private, noisy, loader


@dataclasses.dataclass(frozen=True)
class _Lots:
    """Numbers of the records in Poisson-sampled lots, drawn in float64."""

    records: int
    sample_rate: float
    lots: int
    generator: Any

    def __len__(self) -> int:
        return self.lots

    def __iter__(self) -> Iterator[list[int]]:
        import torch

        # At most sample_rate * 2^53 of the 2^53 possible numbers are below this one.
        threshold = self.sample_rate - 2.0**-53
        for _ in range(self.lots):
            uniform = torch.rand(
                self.records, generator=self.generator, dtype=torch.float64, device="cpu"
            )
            yield (uniform < threshold).nonzero(as_tuple=False).reshape(-1).tolist()


def _refuse(why: str) -> NoReturn:
    """Ends the tuning: what is refused here would be refused in every run."""
    raise ContradictionError(f"{why}; nothing is released") from None


_WORDS, _OFFSET, _BYTES = 624, 24, 5056
"""A CPU generator's state: number of 8-byte words, where they begin, length in bytes."""


def _generator(seed: int, purpose: str, device: Any = "cpu") -> Any:
    """Returns PyTorch's generator for a purpose, made of all bits of a run's seed.

    On CUDA it is Philox, keyed with 64 bits. On a CPU `manual_seed` keeps 32 bits, so the whole
    state, 624 words (Matsumoto and Nishimura, "Mersenne Twister", 1998), is expanded here.
    """
    import torch

    if torch.device(device).type == "cuda":
        word = int.from_bytes(expanded(seed, purpose, 8), "big")
        return torch.Generator(device).manual_seed(word)
    made = torch.Generator().manual_seed(5489)
    state = made.get_state().numpy().copy()
    words = state[_OFFSET : _OFFSET + 8 * _WORDS].view(np.uint64)
    known = np.random.RandomState(5489).get_state(legacy=False)["state"]["key"]
    if state.size != _BYTES or not np.array_equal(words, known):
        _refuse(
            f"PyTorch {torch.__version__} keeps its generator's state in an unknown format: "
            "install the extra, '.[opacus]', with the constraints of constraints.txt"
        )
    # The first 8 bytes, the seed, are cleared. As after `manual_seed`, the generator mixes its
    # whole state before it gives the first number.
    state[:8] = 0
    words[:] = np.frombuffer(expanded(seed, purpose, 4 * _WORDS), dtype="<u4")
    return made.set_state(torch.from_numpy(state))
