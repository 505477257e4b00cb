"""Opacus: the history that its accountant keeps, as a guarantee, and `tune`, its training tuned.

Ashkan Yousefpour et al., "Opacus: User-Friendly Differential Privacy Library in PyTorch", 2021. An
accountant of Opacus 1.6 ("rdp", "prv", "gdp") notes of each step its noise multiplier and sample
rate, and prices them when asked. Here the same notes become a `Guarantee` that composes and can be
selected from; PyTorch is not needed for that. `tune` is in `opacus_tuning`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpjax import accounting, checks
from dpjax.bridges.opacus_tuning import tune

__all__ = ["MECHANISMS", "guarantee_of_history", "tune"]

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
                f"mechanism is {checks.shown(mechanism)}, and the accountant says "
                f"{checks.shown(named())}: leave mechanism out"
            )
        history, mechanism = history.history, named()
    checks.one_of("mechanism", mechanism, MECHANISMS)
    if poisson_sampling is None:
        raise ValueError(
            "pass poisson_sampling=, what make_private had: the history does not show it"
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
