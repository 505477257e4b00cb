"""Claims of whole tunings, upper bounds, beside what was seen of one record, lower bounds.

Every case is a tuner with its settings, run thousands of times with a canary (a record made to be
seen) and without it, from the operating system's randomness, as a user runs it. The claim is its
epsilon at delta 0.02; what was seen is a lower bound on that epsilon at 99.9% confidence
(`dpjax.auditing`). One above its claim would be a defect; one below proves nothing, but says how
much a claim may be above the truth. "Worst order" is the selection alone: the best of K Gaussian
releases by the score that gives a record away best, where the claims are tight.

  python -m experiments.audit --quick
  python -m experiments.audit --method="subset tuning" --out_dir=runs/audit
  python -m experiments.audit --out_dir=docs/figures/auditing

Cases that the folder's rows hold already are not run again.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from dpjax import accounting, auditing, plotting
from dpjax.auditing import Audit
from dpjax.auditing.audits import FAILURE
from experiments.figures.auditing import cases_of_sums, worst_order
from experiments.figures.auditing.cases import CASES as OF_TUNERS
from experiments.figures.auditing.cases import DELTA, GRADIENT, MEAN
from experiments.figures.figure import FULL, QUICK, FigureSpec, option
from experiments.figures.panels import WIDTH, legend_below
from experiments.figures.rows import RowFolder, distinct, select

COLUMNS = {
    "method": "name", "law": "name", "canary": "name", "delta": "probability",
    "sampling_probability": "probability", "steps": "1", "noise_multiplier": "1",
    "claimed": "nats", "seen": "nats", "refuted": "name", "executions": "1", "cpu": "seconds",
}  # fmt: skip
CASES = OF_TUNERS | cases_of_sums.CASES
ORDER = "worst order"
ORDERS = {
    "geometric, mean 10": accounting.Geometric(MEAN),
    "logarithmic, mean 10": accounting.Logarithmic(MEAN),
    "Poisson, mean 10": accounting.Poisson(MEAN),
}
_ORDER_NOISE = 1.5
NUMBERS = {QUICK: (5_000, 500, 200_000), FULL: (100_000, 10_000, 4_000_000)}
"""Executions with and without the canary each: of a case, an expensive one, a worst order."""
_METHODS = (*CASES, *(f"{ORDER}, {law}" for law in ORDERS))
_QUICK = (
    "untuned",
    "random repetitions, geometric",
    *(f"{ORDER}, {law}" for law in ORDERS),
)


@dataclasses.dataclass(frozen=True)
class Options:
    """What is audited."""

    method: tuple[str, ...] = option(_METHODS, "Tunings to audit; repeatable.", choices=_METHODS)


def cases(size: str, options: Options) -> Iterator[tuple[dict, Callable[[], Audit]]]:
    """What is run: the words of a row, and what fills in its numbers."""
    often, seldom, orders = NUMBERS[size]
    everything = options.method == _METHODS
    for name in options.method:
        if size == QUICK and everything and name not in _QUICK:
            continue
        if name in CASES:
            case = CASES[name]
            number = seldom if case.expensive else often
            run = case.sampling_probability, case.steps, case.noise_multiplier
            for canary in case.canaries:
                cells = _cells(name, case.law, canary, *run)
                yield cells, lambda case=case, canary=canary, n=number: case.audited(canary, n)
        else:
            law = name.removeprefix(f"{ORDER}, ")
            audited = functools.partial(worst_order.audited, failure_probability=FAILURE)
            cells = _cells(name, law, GRADIENT, 1.0, 1, _ORDER_NOISE)
            yield cells, functools.partial(audited, ORDERS[law], _ORDER_NOISE, DELTA, orders)


def _cells(*values: object) -> dict:
    names = ("method", "law", "canary", "sampling_probability", "steps", "noise_multiplier")
    return dict(zip(names, values, strict=True))


def train(folder: RowFolder, options: Options) -> None:
    """Audits what the folder's rows do not hold yet."""
    rows = folder.read(FIGURE.name)
    done = {(row["method"], row["canary"]) for row in rows}
    for words, run in cases(folder.size, options):
        if (words["method"], words["canary"]) in done:
            continue
        found = run()
        rows.append(
            words
            | {
                "delta": DELTA,
                "claimed": found.claimed,
                "seen": found.seen.value,
                "refuted": "no" if found.stands else "YES",
                "executions": found.executions,
                "cpu": round(found.cpu_seconds, 1),
            }
        )
        rows.sort(key=lambda row: _METHODS.index(row["method"]))
        folder.write(FIGURE.name, COLUMNS, rows)
        folder.report(f"{words['method']}: {words['canary']}")


_CLAIMED, _MARKERS = (
    "#444444",
    dict(zip((*auditing.CANARIES, cases_of_sums.CLIENT), "osD^v", strict=True)),
)


_APART = 0.24
"""Of marks of one line, in lines."""


def draw(rows: Sequence[Mapping]) -> Figure:
    """A line for each tuning: its claim, and what every canary showed."""
    names = sorted(distinct(rows, "method"), key=_METHODS.index)
    figure = Figure(figsize=(WIDTH, 1.2 + 0.3 * len(names)), layout="constrained")
    axes = figure.subplots()
    plotting.style_axes(axes)
    largest = max(row["claimed"] for row in rows)
    for place, name in enumerate(names):
        own = select(rows, method=name)
        claimed = own[0]["claimed"]
        axes.plot([0.0, claimed], [place, place], color="#cccccc", linewidth=5, zorder=1)
        axes.plot(
            [claimed], [place], marker="|", markersize=12, markeredgewidth=2.5, color=_CLAIMED,
            linestyle="none", label="claimed" if place == 0 else None, zorder=3,
        )  # fmt: skip
        # One above the other: what canaries show is often nearly the same.
        aside = _APART * (np.arange(len(own)) - (len(own) - 1) / 2)
        for row, above in zip(own, aside):
            canary = row["canary"]
            axes.plot(
                [row["seen"]], [place + above], marker=_MARKERS[canary], markersize=5,
                linestyle="none", color=f"C{list(_MARKERS).index(canary)}",
                label=f"seen: {canary}", zorder=4,
            )  # fmt: skip
    axes.set_yticks(range(len(names)), [name.replace(" .", " 0.") for name in names])
    axes.invert_yaxis()
    axes.set_xlim(-0.03 * largest, 1.05 * largest)  # Room for a mark at 0.
    numbers = [row["executions"] for row in rows]
    axes.set_xlabel(f"epsilon at delta {rows[0]['delta']:g} (nats)")
    figure.suptitle(f"{min(numbers):,} to {max(numbers):,} executions each, 99.9% confidence")
    legend_below(figure, axes, columns=3)
    return figure


def summary(rows: Sequence[Mapping]) -> list[str]:
    """One line for each row."""
    width = max(len(row["method"]) for row in rows)
    lines = [
        f"{row['method']:{width}}  {row['canary']:18}  claimed {row['claimed']:6.3f}  "
        f"seen {row['seen']:6.3f}  refuted: {row['refuted']}"
        for row in rows
    ]
    spent = float(np.sum([row["cpu"] for row in rows]))
    return [*lines, f"{sum(row['executions'] for row in rows):,} executions, {spent:.0f} s of CPU"]


FIGURE = FigureSpec(
    paper="auditing",
    name="audit",
    columns=COLUMNS,
    takes={QUICK: "a minute", FULL: "a quarter of an hour"},
    draw=draw,
    train=train,
    options=Options(),
    summary=summary,
)


if __name__ == "__main__":
    FIGURE.run()
