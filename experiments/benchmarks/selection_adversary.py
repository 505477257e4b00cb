"""How far the claimed epsilon of a selection is from an order of outcomes that really costs it.

The base run is a Gaussian release. For each law of K the table gives the envelope bound, the bound
that `best_of` states, and what two explicit adversaries reach: orders of the outcomes, whose
divergence is a plain integral (docs/envelope_bound.md), here rounded downwards. No sound bound is
below them.

    python -m experiments.benchmarks.selection_adversary

Takes about half a minute.
"""

from __future__ import annotations

import numpy as np
from absl import flags
from rich.console import Console
from rich.table import Table
from scipy import optimize, special

from dpjax import accounting
from dpjax.commands import command_line

_RHO = flags.DEFINE_float("rho", 0.1, "The base run is a Gaussian release of this zCDP.")
_DELTA = flags.DEFINE_float("delta", 1e-6, "Delta of every epsilon.")

LAWS = (
    accounting.TruncatedNegativeBinomial(-0.5, 10.0),
    accounting.Logarithmic(10.0),
    accounting.Geometric(10.0),
    accounting.Geometric(1000.0),
    accounting.TruncatedNegativeBinomial(5.0, 500.0),
    accounting.Poisson(10.0),
    accounting.Poisson(100.0),
    accounting.Poisson(1000.0),
    accounting.Binomial(200, 0.1),
    accounting.Fixed(20),
)


def worst_order(law, epsilon: float, shift: float, points: int, turns: bool) -> float:
    """Divergence of order e^epsilon, from below, of the worst order found, best of K.

    N(shift, 1) against N(0, 1). Outcomes are ranked from both ends: next comes either the largest
    output of those left, or the smallest. The event earns where the largest come. With `turns` they
    alternate as often as it pays, at one of so many `points` at each end; without, the smallest
    come first, then the largest.
    """
    rate, t = law.derivative, np.exp(epsilon)
    m = np.append(0.0, special.ndtr(np.linspace(-7.0, 7.0, points)))
    n = np.concatenate(
        [[0.0], np.geomspace(1e-6, 0.5, points), 1.0 - np.geomspace(0.5, 1e-9, points)]
    )
    # The neighbour's probabilities of the m most and of the n least revealing outcomes.
    g, h = special.ndtr(special.ndtri(m) - shift), special.ndtr(special.ndtri(n) + shift)
    value, best = np.zeros(n.size), 0.0
    for k in range(points):
        room = n + m[k + 1] <= 1.0
        x, y = n[room], h[room]
        # f' is convex: integrals are above its value in the middle, below the mean of the ends.
        earned = (m[k + 1] - m[k]) * rate(x + 0.5 * (m[k] + m[k + 1]))
        lost = 0.5 * (rate(np.minimum(y + g[k], 1.0)) + rate(np.minimum(y + g[k + 1], 1.0)))
        earned -= t * (g[k + 1] - g[k]) * lost
        value = (np.maximum.accumulate(value) if turns else value)[room] + earned
        n, h = n[room], h[room]
        best = max(best, float(value.max(initial=0.0)))
    return best


def reached(law, delta: float, shift: float, points: int = 600, turns: bool = True) -> float:
    """The epsilon at which the worst order's divergence is `delta`: no sound claim is smaller."""

    def excess(epsilon: float) -> float:
        return np.log(max(worst_order(law, epsilon, shift, points, turns), 1e-300) / delta)

    return optimize.brentq(excess, 0.0, 60.0, xtol=1e-4)


def main() -> int:
    """Prints the table; returns the exit code."""
    if not (_RHO.value > 0.0 and 0.0 < _DELTA.value < 1.0):
        raise ValueError(
            f"--rho={_RHO.value} --delta={_DELTA.value}: pass a rho > 0 and a delta in (0, 1)"
        )
    shift = float(np.sqrt(2.0 * _RHO.value))
    base = accounting.gaussian(1.0 / shift)
    title = f"epsilon at delta {_DELTA.value:g}, the best of K runs of {_RHO.value:g}-zCDP"
    table = Table(title=title)
    for column in ("K", "envelope", "stated", "worst order", "one turn", "stated above it"):
        table.add_column(column, justify="left" if column == "K" else "right")
    for law in LAWS:
        envelope = accounting.best_of(base, law, method="envelope").epsilon(_DELTA.value)
        stated = accounting.best_of(base, law).epsilon(_DELTA.value)
        order = reached(law, _DELTA.value, shift)
        simple = reached(law, _DELTA.value, shift, turns=False)
        numbers = (f"{number:.4f}" for number in (envelope, stated, order, simple))
        table.add_row(repr(law), *numbers, f"{100.0 * (stated / order - 1.0):.2f}%")
    Console().print(table)
    return 0


if __name__ == "__main__":
    command_line.run(main)
