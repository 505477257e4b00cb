"""Opacus: its accountant's history as a guarantee, and `tune`, which tunes a training with it.

Ashkan Yousefpour et al., "Opacus: User-Friendly Differential Privacy Library in PyTorch", 2021. An
accountant of Opacus 1.6 ("rdp", "prv", "gdp") records each step's noise multiplier and sample rate,
and prices them when asked. Here the same history becomes a `Guarantee`, which can be composed and
selected from. Only `tune` needs PyTorch, which it imports when it runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dpjax import accounting, checks
from dpjax.bridges import any_run
from dpjax.bridges.runs import Candidates, Label
from dpjax.tuning.problem.space import Space
from dpjax.tuning.tuner import Result

if TYPE_CHECKING:
    from dpjax.bridges.opacus_engine import DeclaredSteps

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
      whole, without capacity or dropped records; one lot a step, not several whose gradients were
      accumulated, in which a record can be twice (BatchMemoryManager splits one lot, and may be
      used); sample rate, noise, number of steps and expected lot were public; noise came from a
      generator whose seed nobody can search (secure_mode=True).

    Example: `guarantee_of_history(engine.accountant, poisson_sampling=True).epsilon(1e-5)`.

    Args:
      history: Opacus' accountant; or its `history`, entries (noise multiplier = noise / clip norm,
        sample rate in (0, 1], number of steps).
      mechanism: the accountant's name, "rdp", "prv" or "gdp"; None where `history` is the
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
            raise ValueError(f"an entry of history must be {wanted}, not {checks.shown(entry)}")
        noise_multiplier = checks.positive("the noise multiplier of an entry", entry[0])
        sample_rate = checks.probability("the sample rate of an entry", entry[1], one=True)
        number = checks.whole("the number of steps of an entry", entry[2])
        known = (noise_multiplier, sample_rate)
        steps[known] = steps.get(known, 0) + number
    if not steps:
        raise ValueError("history is empty, no step was accounted: pass that of a finished run")
    return accounting.compose(
        *(accounting.dp_sgd(rate, noise, number) for (noise, rate), number in steps.items())
    )


Train = Callable[[Any, dict[str, Label]], tuple[Any, Any]]
"""(engine, hyperparameters) -> (private module, number of correct predictions)."""


def tune(
    train: Train,
    space: Space | Candidates,
    *,
    noise_multiplier: float,
    sample_rate: float,
    steps: int,
    default: Any = None,
    **more: Any,
) -> Result:
    """Trains a secret random number of candidates with Opacus and releases the best one.

    Formal guarantees:
      `result.release` is (`result.guarantee.epsilon(delta)`, delta)-differentially private under
      add-or-remove one, as `bridges.tune` has it with `accounting.dp_sgd(sample_rate,
      noise_multiplier, steps)` as the guarantee of one run, if the training is what it declares.
      Declared are three public numbers. Enforced for each candidate (`CandidateEngine`): its noise
      multiplier, Poisson-sampled lots at the sample rate, at most as many steps, a step a lot, no
      step without noise, the private module returned; noise and lots from two generators that hold
      all bits of the candidate's secret seed. A run that contradicts its declaration is not ranked
      worst: it ends the tuning with a RuntimeError, and nothing is released. Not seen from here: a
      training that reads private records beside its loader (to stop early, to choose weights), or
      the number of records, but for the number of lots, which is taken to be public; a record whose
      gradient depends on others (a loss that is not the mean or the sum over the lot, as
      loss_reduction says; layers that mix records); a weight set by hand. Noise is PyTorch's, in
      floating point, of the Mersenne Twister on a CPU and of Philox on CUDA, which are assumed to
      be indistinguishable from true randomness to whoever sees the released model. The rest is as
      `bridges.tune` says.

    Example: `docs/bridges.md`, "Tuning an Opacus training".

    Args:
      train: (engine, hyperparameters) -> (module, number of correct predictions). `make_private` of
        the engine, a `CandidateEngine`, is Opacus' without noise_multiplier, poisson_sampling and
        noise_generator, which are set here.
      noise_multiplier: noise / clip norm, of every step of every candidate.
      sample_rate: 1 / number of lots of an epoch, as Opacus counts it, 1 / len(loader).
      steps: the most that any candidate takes.
      default: the module (or its state_dict) released where there is no winner; it must not depend
        on data.
      more: as in `bridges.tune`: score, which is needed, repetitions, delta, model, executor,
        on_outcome, job, ledger, and seed, which reproduces on a CPU alone.

    Returns:
      A `tuning` `Result`. `release.params` has the state_dict of the winner's module as NumPy
      arrays: `module.load_state_dict({name: torch.as_tensor(value) ...})`.

    Raises:
      RuntimeError: if a run contradicts its declaration (`bridges.ContradictionError`), with one
        line naming what to pass instead, or a process of the pool died; nothing is released.
    """
    from dpjax.bridges import opacus_engine  # PyTorch, which nothing else here needs.

    checks.function("train", train, "(engine, hyperparameters) -> (module, count)")
    any_run.check_takes("train", train, "engine", "hyperparameters")
    declared = opacus_engine.DeclaredSteps(
        checks.positive("noise_multiplier", noise_multiplier),
        checks.probability("sample_rate", sample_rate, one=True),
        checks.whole("steps", steps),
    )
    return any_run.tune(
        _Run(train, declared),
        space,
        base=accounting.dp_sgd(declared.sample_rate, declared.noise_multiplier, declared.steps),
        default=None if default is None else opacus_engine.arrays(default),
        **more,
    )


@dataclasses.dataclass(frozen=True)
class _Run:
    """Trains one candidate for `bridges.tune`; it can be sent to another process."""

    train: Train
    declared: DeclaredSteps

    def facts(self) -> list[Any]:
        """Returns what a job's folder is bound to beside the guarantee of one run: the training."""
        return any_run.code(self.train)

    def __call__(self, seed: int, hyperparameters: dict[str, Label]) -> Any:
        from dpjax.bridges import opacus_engine

        engine = opacus_engine.CandidateEngine(self.declared, seed)
        with engine.watching():
            returned = self.train(engine, hyperparameters)
            if not (isinstance(returned, tuple) and len(returned) == 2):
                return returned  # Ranked worst.
            module, count = returned
            # As a tensor, it would be sent to the main process as shared memory.
            count = count.item() if getattr(count, "ndim", None) == 0 else count
            return engine.weights(module), count
