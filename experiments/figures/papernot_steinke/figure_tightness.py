"""Appendices D.3 and D.4, which have no picture: how near examples come to the price of best of K.

Left (D.3): the generic bound, Lemma 7 as the theorems use it, is said to be tight up to low-order
terms, by three outcomes and first-order approximations. Here the three outcomes are real: a pair
of laws that is 0.1-zCDP at every order and in both directions, found by a search, whose winners
are exact. Drawn is the published bound over the winners' divergence, at E[K] = 10.

Right (D.4): selecting the best of m options, one of them better than all others by a gap. A run
draws an option at random and adds Laplace noise to its utility; the best of K (logarithmic) is
released, at twice a run's epsilon (Corollary 3). Drawn is the gap from which on the best option is
found with probability 0.5, and that of the exponential mechanism at the same total epsilon, by
their exact laws. The paper says: the same up to (large) constants, at gamma = m^-10. Here gamma =
m^-a for several a. The constant falls to 1 as a grows; but K is m^a / (a log m) runs in the mean.

  python -m experiments.figures.papernot_steinke.figure_tightness \\
      --out_dir=docs/figures/papernot_steinke

Takes a minute on one core; with --quick (one law, two orders, two numbers of options) 3 seconds.
Nothing here is data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from scipy import integrate, optimize

from dpjax import accounting
from experiments.figures.figure import FULL, QUICK, FigureSpec
from experiments.figures.panels import LAW_COLOURS, new_panels
from experiments.figures.rows import distinct, select

RHO, MEAN = 0.1, 10.0
LAWS = {
    "eta = -0.5": accounting.TruncatedNegativeBinomial(-0.5, MEAN),
    "logarithmic": accounting.Logarithmic(MEAN),
    "geometric": accounting.Geometric(MEAN),
    "Poisson": accounting.Poisson(MEAN),
}
ORDERS = (2.0, 4.0, 8.0, 16.0, 32.0)
OPTIONS = (10, 100, 1000, 10_000, 100_000)
EPSILON, FOUND = 1.0, 0.5
EXPONENTS = (2.5, 4.0, 10.0, 40.0)
COLUMNS = {
    "appendix": "name", "law": "name", "order": "1", "upper": "nats", "lower": "nats",
    "a": "1", "b": "1", "c": "1", "a_prime": "1", "b_prime": "1", "c_prime": "1",
    "options": "options", "exponent": "1", "mean": "runs",
    "gap": "utility", "gap_exponential": "utility",
}  # fmt: skip
EMPTY = dict.fromkeys(COLUMNS)
MASSES = ("a", "b", "c", "a_prime", "b_prime", "c_prime")
"""Of the three outcomes, the best first, under both laws."""

CHECKED = 1.0 + np.geomspace(1e-3, 1e4, 60)
"""Orders at which a pair's zCDP is checked by the search."""


def divergence(orders: np.ndarray, p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Returns D_order(P||Q), (n,), of laws given by log masses, (k,)."""
    orders = np.asarray(orders, float)
    logs = orders[:, None] * p + (1.0 - orders[:, None]) * q
    return np.logaddexp.reduce(logs, axis=1) / (orders - 1.0)


def winner(law: accounting.RepetitionLaw, p: np.ndarray) -> np.ndarray:
    """Returns log masses of the best of K, (k + 1,), K = 0 in front; the first outcome is best."""
    below = np.append(np.logaddexp.accumulate(p[::-1])[::-1], -np.inf)
    ends = np.minimum(np.exp(below), 1.0)
    # A difference of nearly equal numbers has no digits left: the derivative, at the middle, has.
    slopes = np.log(law.derivative(1.0 - 0.5 * (ends[1:] + ends[:-1]))) + p
    masses = np.maximum(-np.diff(law.generating_function(ends)), 1e-300)
    logs = np.where(p < math.log(1e-6), slopes, np.log(masses))
    return np.append(np.log(max(float(law.pmf(0)), 1e-300)), logs)


def pair(parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns log masses of three outcomes, twice: a law, and itself tilted as far as zCDP allows.

    Parameters are two logits of the first law, and the angle of the tilt.
    """
    logits = np.append(np.clip(parameters[:2], -60.0, 60.0), 0.0)
    p = logits - np.logaddexp.reduce(logits)
    angle = parameters[2]
    direction = np.array([math.cos(angle), math.sin(angle), 0.0])

    def tilted(size: float) -> np.ndarray:
        q = p + size * direction
        return q - np.logaddexp.reduce(q)

    low, high = 0.0, 64.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        q = tilted(middle)
        both = np.maximum(divergence(CHECKED, p, q), divergence(CHECKED, q, p))
        low, high = (middle, high) if np.all(both <= RHO * CHECKED) else (low, middle)
    return p, tilted(low)


def lower_bound(law: accounting.RepetitionLaw, order: float, p: np.ndarray, q: np.ndarray) -> float:
    """Returns the larger of the winners' two divergences."""
    a, b = winner(law, p), winner(law, q)
    return max(float(divergence([order], x, y)[0]) for x, y in ((a, b), (b, a)))


def worst_pair(
    law: accounting.RepetitionLaw, order: float, tries: int, known: Sequence[np.ndarray]
) -> np.ndarray:
    """Returns parameters, (3,), of the largest divergence found by searches from starts.

    Starts are the best `tries` of 80 at random, and the `known` parameters.
    """
    source = np.random.default_rng(0)

    def objective(parameters: np.ndarray) -> float:
        return -lower_bound(law, order, *pair(parameters))

    starts = source.uniform([-25.0, -25.0, 0.0], [10.0, 10.0, 2 * math.pi], (80, 3))
    starts = [*sorted(starts, key=objective)[:tries], *known]
    found = [
        optimize.minimize(objective, start, method="Nelder-Mead", options={"maxfev": 250})
        for start in starts
    ]
    return min(found, key=lambda result: result.fun).x


def chance(a: float, options: int, gap: float) -> float:
    """Returns the probability that the best of K runs has the option that is better by `gap`.

    K is logarithmic with gamma = options^-a, a run's noise Laplace of scale 2 / EPSILON. Of the
    best option's score at x scales above its utility, the others lie above a share S of all runs,
    and K has generating function f with f'(1 - S) = (1-g) / ((g + (1-g) S) log(1/g)).
    """
    gamma, shift = float(options) ** -a, gap * EPSILON / 2.0
    x = np.linspace(-shift - 40.0, a * math.log(options) + 40.0, 40_001)
    kept = 1.0 - gamma

    def above(score: np.ndarray) -> np.ndarray:
        return np.where(score > 0, 0.5 * np.exp(-np.abs(score)), 1 - 0.5 * np.exp(-np.abs(score)))

    seen = above(x + shift) * (1 - 1 / options) + above(x) / options
    slope = kept / ((gamma + kept * seen) * a * math.log(options))
    return float(integrate.trapezoid(slope * 0.5 * np.exp(-np.abs(x)) / options, x))


def least_gap(a: float, options: int) -> float:
    """Returns the gap from which on the best option is found with probability FOUND."""

    def excess(gap: float) -> float:
        return chance(a, options, gap) - FOUND

    most = 4.0 / EPSILON * (a * math.log(options) + 20.0)
    return optimize.brentq(excess, 0.0, most, xtol=1e-6)


def compute(size: str) -> list[dict]:
    """Returns one row per law and order, then one per number of options."""
    quick, rows = size == QUICK, []
    known: list[np.ndarray] = []
    for name in ("geometric",) if quick else LAWS:
        priced = accounting.best_of(accounting.zcdp(RHO), LAWS[name], method="rdp")
        for order in ORDERS[1:3] if quick else ORDERS[::-1]:
            known.append(worst_pair(LAWS[name], order, 1 if quick else 6, known[-3:]))
            p, q = pair(known[-1])
            rows.append(EMPTY | {
                "appendix": "D.3", "law": name, "order": order,
                "upper": float(priced.rdp(order)), "lower": lower_bound(LAWS[name], order, p, q),
                **dict(zip(MASSES, np.exp([*p, *q]).tolist())),
            })  # fmt: skip
    for a in EXPONENTS:
        for options in OPTIONS[:2] if quick else OPTIONS:
            gap = least_gap(a, options)
            rows.append(EMPTY | {
                "appendix": "D.4", "law": "logarithmic", "exponent": a, "options": options,
                "mean": (options**a - 1.0) / (a * math.log(options)), "gap": gap,
                "gap_exponential": 2.0 / EPSILON * math.log(FOUND / (1 - FOUND) * (options - 1)),
            })  # fmt: skip
    return rows


def draw(rows: Sequence[Mapping]) -> Figure:
    """Draws both ratios."""
    figure, (generic, selection) = new_panels(2, height=3.9)
    bounds = select(rows, appendix="D.3")
    for name in distinct(bounds, "law"):
        members = sorted(select(bounds, law=name), key=lambda row: row["order"])
        generic.plot(
            [row["order"] for row in members],
            [row["upper"] / row["lower"] for row in members],
            "o-", color=LAW_COLOURS[name.lower().replace(" ", "")], label=name,
        )  # fmt: skip
    generic.axhline(1.0, color="#777777", linestyle=":")
    generic.set_xscale("log", base=2)
    orders = sorted(distinct(bounds, "order"))
    generic.set_xticks(orders, [f"{x:g}" for x in orders])
    generic.set_xlabel("Renyi order")
    generic.set_ylabel("published bound over the example")
    generic.set_title(f"D.3: runs of three outcomes, E[K] = {MEAN:g}")
    generic.legend()
    found = select(rows, appendix="D.4")
    exponents = distinct(found, "exponent")
    shades = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.9, len(exponents)))
    for a, colour in zip(exponents, shades):
        members = select(found, exponent=a)
        options = [row["options"] for row in members]
        selection.plot(
            options, [row["gap"] for row in members], "o-", color=colour,
            label=f"best of K, $\\gamma = m^{{-{a:g}}}$",
        )  # fmt: skip
    values = [row["gap_exponential"] for row in members]
    selection.plot(options, values, "k--", label="exponential mechanism")
    selection.set_xscale("log")
    selection.set_ylim(0, 1.35 * max(row["gap"] for row in found))
    selection.set_xlabel("options m")
    selection.set_ylabel("gap from which the best is found")
    selection.set_title(f"D.4: selection at a total epsilon of {EPSILON:g}")
    selection.legend(loc="upper left")
    return figure


FIGURE = FigureSpec(
    "papernot_steinke",
    "figure_tightness",
    COLUMNS,
    {FULL: "1 min", QUICK: "3 s"},
    draw,
    rows=compute,
)

if __name__ == "__main__":
    FIGURE.run()
