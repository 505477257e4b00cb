"""What figures 2 to 6 share: the base run, the laws of K, the bounds compared and their looks.

The base run is rho-zCDP with rho = 0.1. Three bounds on releasing the best of K runs:
  papernot_steinke  the paper's Renyi bounds (its Theorems 2 and 6) for any such run, turned into
                    epsilon by its Lemma 14 at the best order;
  tight_zcdp        ours for any such run: the smallest sound bound from the same knowledge;
  tight_gaussian    ours for the Gaussian mechanism of this rho, whose exact profile is known.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from dpjax import accounting
from experiments.figures.panels import LAW_COLOURS, delta_in_words

RHO = 0.1
DELTA = 1e-6

PAPER, TIGHT_ZCDP, TIGHT_GAUSSIAN = BOUNDS = ("papernot_steinke", "tight_zcdp", "tight_gaussian")
BOUND_TITLES = {
    PAPER: "Papernot & Steinke (Renyi)",
    TIGHT_ZCDP: "ours, any 0.1-zCDP run",
    TIGHT_GAUSSIAN: "ours, Gaussian run",
}
BOUND_LINES = {PAPER: "--", TIGHT_ZCDP: ":", TIGHT_GAUSSIAN: "-"}


@dataclasses.dataclass(frozen=True)
class Repetition:
    """A family of laws of K, one per mean, or the naive composition of a fixed number of runs.

    `shape` is eta of the truncated negative binomial. `law` is None for naive composition, whose
    mean must be a whole number. `line` is for where lines do not tell bounds apart.
    """

    name: str
    label: str
    shape: float | None
    law: Callable[[float], accounting.RepetitionLaw] | None
    colour: str
    line: str | tuple = "-"

    def number_of_runs(self, mean: float) -> accounting.RepetitionLaw:
        """Returns the law of K whose best run is used; naive composition makes exactly `mean`."""
        return self.law(mean) if self.law else accounting.Fixed(round(mean))


def _negative_binomial(shape: float, line: str | tuple) -> Repetition:
    names = {
        0.0: ("logarithmic", "$\\eta=0$ (logarithmic)"),
        1.0: ("geometric", "$\\eta=1$ (geometric)"),
    }
    name, label = names.get(shape, (f"eta={shape:g}", f"$\\eta={shape:g}$"))
    return Repetition(
        name,
        label,
        shape,
        lambda mean: accounting.TruncatedNegativeBinomial(shape, mean),
        LAW_COLOURS[name],
        line,
    )


ETA_LINES = {-0.5: "-.", 0.0: "-", 0.5: ":", 1.0: "-", 2.0: (0, (4, 1, 1, 1, 1, 1)), 5.0: "-"}
"""eta -> line style, for readers who cannot tell colours."""

REPETITIONS = (
    *(_negative_binomial(shape, line) for shape, line in ETA_LINES.items()),
    Repetition("poisson", "Poisson", None, accounting.Poisson, LAW_COLOURS["poisson"]),
    Repetition("naive", "naive composition", None, None, LAW_COLOURS["naive"], "--"),
)


# Exactly `mean` runs, of which the best is released: what a random K must beat.
FIXED = Repetition(
    "fixed", "K fixed", None, lambda mean: accounting.Fixed(round(mean)), LAW_COLOURS["fixed"]
)


@functools.cache
def base_run(bound: str) -> accounting.Guarantee:
    """Returns the guarantee of one run, as that bound knows it."""
    if bound == TIGHT_GAUSSIAN:
        return accounting.gaussian(noise_multiplier=(2 * RHO) ** -0.5)
    return accounting.zcdp(RHO)


@functools.cache
def guarantee(repetition: Repetition, mean: float, bound: str) -> accounting.Guarantee:
    """Returns the guarantee of the best of K runs, or of composing `mean` runs naively."""
    base = base_run(bound)
    if repetition.law is None:
        return accounting.repeat(base, round(mean))
    law = repetition.law(mean)
    return accounting.best_of(base, law, method="rdp" if bound == PAPER else "tight")


def epsilon(repetition: Repetition, mean: float, bound: str, delta: float = DELTA) -> float:
    """Returns that bound's epsilon of the best of K runs."""
    method = "rdp" if bound == PAPER else "tight"
    return guarantee(repetition, mean, bound).epsilon(delta, method=method)


def epsilons(repetition: Repetition, mean: float) -> dict[str, float]:
    """Returns the three bounds' epsilons at DELTA, as the columns `epsilon_<bound>` of a row."""
    return {f"epsilon_{bound}": epsilon(repetition, mean, bound) for bound in BOUNDS}


def epsilon_label(delta: float) -> str:
    """Returns the label of an axis of epsilon at a delta."""
    return rf"$\varepsilon$ at {delta_in_words(delta)} (nats)"


def means(repetition: Repetition, quick: bool, largest: float = 1e3) -> list[float]:
    """Returns means of K from 1 to `largest`, roughly evenly spaced in their logarithm.

    Poisson's and naive composition's end at 1,000, where they cost over 25 already; naive
    composition's are whole.
    """
    step = 0.1
    if repetition.shape is None:
        largest, step = min(largest, 1e3), 0.05
    exponents = () if quick else np.arange(0.0, 5.01, step)
    # Six digits, so that no power of ten appears twice.
    grid = {float(f"{10.0**exponent:.6g}") for exponent in exponents}
    values = sorted(v for v in grid | {1.0, 2.0, 10.0, 1e2, 1e3, 1e4, 1e5} if v <= largest)
    if repetition.law is None:
        values = sorted({float(round(value)) for value in values})
    return values
