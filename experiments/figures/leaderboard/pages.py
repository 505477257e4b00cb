"""The tables and sentences of README and of docs/ that follow from committed rows.

`python -m experiments.figures.leaderboard.pages` writes them anew, each between two marks; a test
fails when a page holds something else. What is claimed there goes by `registration`: only what an
interval over tables bears out.
"""

from __future__ import annotations

import math
import pathlib
import re
from collections.abc import Mapping, Sequence

import numpy as np

from experiments.figures.leaderboard import board, by_record, mnist, registration, worth
from experiments.figures.leaderboard.registration import LARGER, RULE, SMALLER, TABLES
from experiments.figures.leaderboard.worth_registration import EPSILONS, EXAMPLES, PRIMARY, TASKS
from experiments.figures.rows import distinct, interval, read_rows, select, table

ROOT = pathlib.Path(__file__).parents[3]
ROWS = ROOT / "docs" / "figures" / "leaderboard"
PAGES = ("README.md", "docs/leaderboard.md", "docs/should_i_tune.md")
SHOWN = [name for name in registration.METHODS if name not in ("linear", "net")]
"""The columns of the board; the better of the two others stands in its last one."""


def points(found: tuple[float, float]) -> str:
    """Returns a difference in points with its interval, bold where that excludes 0."""
    middle, half = found
    words = f"{middle:+.2f} ({middle - half:+.2f} to {middle + half:+.2f})"
    return f"**{words}**" if abs(middle) > half else words


# The parts ---------------------------------------------------------------------------------------


def accuracies(rows: Sequence[Mapping]) -> str:
    """Mean test accuracy in percent, the best of a table bold; below, methods minus the default."""
    lines = []
    for name in TABLES:
        found = {method: board.mean(rows, name, method) for method in SHOWN}
        best = max(found.values())
        cells = [f"**{one:.1f}**" if one == best else f"{one:.1f}" for one in found.values()]
        records = select(rows, table=name)[0]["train"]
        ahead = points(board.difference(rows, name, "default", "DP-EBM"))
        lines.append([f"{name} ({records:,})", *cells, ahead])
    for group, kind in ((LARGER, "larger"), (SMALLER, "smaller")):
        less = {name: board.of_group(rows, group, name, "default") for name in SHOWN}
        cells = ["" if name == "default" else points(found) for name, found in less.items()]
        ahead = points(board.of_group(rows, group, "default", "DP-EBM"))
        lines.append([f"minus the default, {len(group)} {kind} tables", *cells, ahead])
    return table(["table (training records)", *SHOWN, "default minus DP-EBM"], lines)


def aims(rows: Sequence[Mapping]) -> str:
    """The aims that were fixed beforehand, and what became of them."""
    lines = _aims(board.aims(rows))
    better = sum(
        board.mean(rows, name, "default")
        == max(board.mean(rows, name, one) for one in ("linear", "net"))
        for name in TABLES
    )
    lines.append(
        f"- The default took the better of its two recipes, linear and net, on {better} of "
        f"{len(TABLES)} tables."
    )
    return "\n".join(lines)


def claim(rows: Sequence[Mapping]) -> str:
    """What README says of the default and of tuning, as sentences."""
    old, ebm, (middle, half) = (board.of_group(rows, LARGER, *pair) for pair in board.PRIMARY)
    ahead = [
        _ahead(ebm, "InterpretML's DP-EBM"),
        _ahead(old, "our previous default, a linear model,"),
    ]
    changed = "changes it" if abs(middle) > half else "makes no measurable difference"
    return (
        f"On {len(LARGER)} held-out tables ({registration.TRAINING_RECORDS:,} training records, "
        f"total epsilon {registration.EPSILON:g}), one untuned run with the public default "
        f"{ahead[0]}. It {ahead[1]}. Tuning its learning rate at the same total epsilon {changed} "
        f"({middle:+.2f} points, 95% CI {middle - half:+.2f} to {middle + half:+.2f})."
    )


def _ahead(found: tuple[float, float], other: str) -> str:
    middle, half = found
    if abs(middle) <= half:
        return f"is level with {other} ({middle:+.2f} accuracy points, plus or minus {half:.2f})"
    verb, away = ("beats", middle) if middle > 0 else ("loses to", -middle)
    return (
        f"{verb} {other} by {away:.2f} accuracy points "
        f"(95% CI {away - half:.2f} to {away + half:.2f})"
    )


def situations(rows: Sequence[Mapping]) -> str:
    """Which procedure for whom: the first line goes by whether tuning pays on the board."""
    middle, half = board.of_group(rows, LARGER, "tuned", "default")
    untuned = ["train once with the public default: `dpjax tune --method=untuned`"]
    untuned += ["[Public defaults](public_defaults.md)"]
    tuned = ["the best of a secret number of runs, scored on the training records: "
             "`dpjax tune --score_on_training`, `tuning.RandomRepetitions`"]  # fmt: skip
    tuned += ["[Start](start.md#2-tune)"]
    records = f"{RULE['net from records']:,}"
    if middle > half:
        first = [[f"a table of fewer than {records} records", *untuned]]
        first += [[f"a table of {records} records or more", *tuned]]
    else:
        first = [["a table, and nothing to choose among", *untuned]]
        first += [["hyperparameters or a model without a good default",
                   *tuned]]  # fmt: skip
    return table(["Your situation", "Take", "Read"], [*first, *OTHERS])


OTHERS = [
    ["several models or feature maps of different shapes, and no good default",
     "train each in a function of yours: `bridges.tune`", "[Models](howto/models.md)"],
    ["you train with Opacus, jax-privacy or anything else",
     "`bridges.tune`, `bridges.optuna.tune`", "[Other libraries](bridges.md)"],
    ["the tuning is over, and was not private",
     "price it: `dpjax price`, `accounting.repeat`, `bridges.optuna.price_study`",
     "[Price what you did](howto/price_a_study.md)"],
    ["you have public data like your own",
     "a Pareto front on it, then one private run: `dpjax pareto`",
     "[A Pareto front](notebooks/pareto.md)"],
    ["nobody may hold all the records",
     "a federation's vote: `dpjax vote`", "[Federation](federated.md)"],
]  # fmt: skip


def negative(rows: Sequence[Mapping]) -> str:
    """What version 0.2 tried at a total of 2 on nassCDS and that no interval says helped."""
    rule, own = "untuned rule", select(rows, contest="nassCDS", epsilon=2.0)
    by: dict[str, dict[int, float]] = {}
    for row in own:
        by.setdefault(row["method"], {})[row["seed"]] = row["accuracy"]
    lines = []
    for name in by:
        seeds = sorted({*by[name]} & {*by[rule]})
        found = interval([100 * (by[name][seed] - by[rule][seed]) for seed in seeds])
        if name != rule and found[0] <= found[1]:
            lines.append([name, points(found), str(len(seeds))])
    return table(["method minus the untuned rule of 0.2", "points", "seeds"], lines)


def records(rows: Sequence[Mapping]) -> str:
    """Contestants minus the default, test record by test record."""
    lines = []
    for method in distinct(rows, "method"):
        own = select(rows, method=method)
        made = distinct(own, "table")
        found = {name: by_record.difference(own, name, method) for name in made}
        groups = [[found[name][0] for name in of if name in made] for of in (LARGER, SMALLER)]
        cells = [f"{np.mean(one):+.2f} ({len(one)})" if one else "" for one in groups]
        better = sum(middle > half for middle, half in found.values())
        worse = sum(-middle > half for middle, half in found.values())
        apart = sum(row["only_method"] + row["only_default"] for row in own)
        share = 100 * apart / sum(row["test"] for row in own)
        most, least = (of(made, key=lambda name: found[name][0]) for of in (max, min))
        later = " (added later)" if own[0]["entry"] == "later" else ""
        lines.append(
            [method + later, *cells, f"{better} of {len(made)}", f"{worse} of {len(made)}"]
            + [f"{found[name][0]:+.2f}, {name}" for name in (most, least)]
            + [f"{share:.1f}%"]
        )
    head = [
        "method minus the default",
        "larger tables (how many)",
        "smaller (how many)",
        "better by record",
    ]
    head += ["worse by record", "best table", "worst table", "records that only one gets right"]
    return table(head, lines)


def scattering(rows: Sequence[Mapping]) -> str:
    """MNIST, and what was chosen on training records."""
    lines = []
    for judged, total in (
        (mnist.TRAINING, mnist.ONE_OF_THEM),
        *((mnist.TEST, one) for one in mnist.TOTALS),
    ):
        for method in ("untuned", "tuned"):
            for setting in mnist.LOOKED_AT:
                own = select(rows, judged_on=judged, method=method, total=total, **setting)
                if own:
                    found = [100 * row["accuracy"] for row in own]
                    lines.append(
                        [judged, "upright" if setting["upright"] else "as they are"]
                        + [str(setting["steps"]), method, f"{own[0]['epsilon']:.2g}"]
                        + [f"{np.mean(found):.2f}", str(len(found))]
                    )
    head = ["judged on", "images", "steps", "", "total epsilon", "accuracy, %", "runs"]
    tuned = select(rows, judged_on=mnist.TEST, method="tuned", total=mnist.EPSILON)
    found = np.mean([row["accuracy"] for row in tuned])
    said = (
        f"**Tuned, at a total epsilon of {tuned[0]['epsilon']:.3g}, {100 * found:.2f}%** of the "
        f"test images are right ({'the mean of ' * (len(tuned) > 1)}{len(tuned)} "
        f"run{'s' * (len(tuned) > 1)}; aim: {100 * mnist.AIM:.1f}%)."
    )
    return table(head, lines) + "\n\n" + said


def newcomer(rows: Sequence[Mapping]) -> str:
    """What `dpjax tune` and a DP-EBM make of a table that the project never used."""
    said = ["the larger class", *distinct(rows, "method")]
    known = {name: [row["accuracy"] for row in select(rows, method=name)] for name in said[1:]}
    known |= {said[0]: [row["majority"] for row in select(rows, method=said[1])]}
    lines = [
        [f"`{name}`" if name.startswith("dpjax") else name, f"{100 * np.mean(of):.2f}"]
        for name, of in known.items()
    ]
    return table(["", f"test accuracy, %, {len(known[said[0]])} splits"], lines)


def worths(rows: Sequence[Mapping]) -> str:
    """Contestants of the study by task, in points; the best that one may have is bold."""
    shown = [*EXAMPLES, worth.FREE_RATE, worth.DEFAULT, worth.BEST_OF_K]
    lines = []
    for task in TASKS:
        found = {one: worth.mean(rows, task, one) for one in shown}
        best = max(round(value, 1) for one, value in found.items() if one != worth.FREE_RATE)
        cells = [
            f"**{value:.1f}**" if round(value, 1) == best else f"{value:.1f}"
            for value in found.values()
        ]
        low, high = (
            worth.mean(rows, task, worth.BEST_OF_K, column=f"{end}_tenth")
            for end in ("lowest", "highest")
        )
        ceiling = f"{worth.mean(rows, task, worth.CEILING):.1f}"
        against = points(worth.difference(rows, task, worth.BEST_OF_K, worth.DEFAULT))
        lines.append([task, *cells, f"{low:.1f} to {high:.1f}", ceiling, against])
    head = ["task", *EXAMPLES, "the rate that is best without privacy", "default", "best of K"]
    head += ["its tenths", "best candidate", "best of K minus the default"]
    return table(head, lines)


def worths_in_short(rows: Sequence[Mapping]) -> str:
    """Library examples, the default and tuning by task, in points."""
    lines = []
    for task in TASKS:
        found = [worth.mean(rows, task, one) for one in EXAMPLES]
        default, tuned = (worth.mean(rows, task, one) for one in (worth.DEFAULT, worth.BEST_OF_K))
        against = points(worth.difference(rows, task, worth.BEST_OF_K, worth.DEFAULT))
        ends = dict.fromkeys(f"{one:.1f}" for one in (min(found), max(found)))
        lines.append([task, " to ".join(ends), f"{default:.1f}", f"{tuned:.1f}", against])
    head = ["task", "library examples", "default", "best of K", "best of K minus the default"]
    return table(head, lines)


def worth_means(rows: Sequence[Mapping]) -> str:
    """What tuning is worth on average over tasks, against each contestant."""
    others = {f"{library}'s example": library for library in EXAMPLES}
    others |= {"one run with the public default": worth.DEFAULT}
    others |= {"the best candidate in hindsight": worth.CEILING}
    lines = [
        [words, points(interval(_over_tasks(rows, worth.BEST_OF_K, other)))]
        for words, other in others.items()
    ]
    return table(["best of K minus", "points, mean over tasks (95% interval)"], lines)


def worth_aims(rows: Sequence[Mapping]) -> str:
    """The aims of the study, and what became of them."""
    return "\n".join(_aims(worth.aims(rows)))


def _aims(found: Sequence[tuple[str, bool]]) -> list[str]:
    return [f"- {'Met' if met else '**Missed**'}: {words}." for words, met in found]


def worth_costs(rows: Sequence[Mapping]) -> str:
    """What a private choice loses, by what loses it, on average over tasks."""
    steps = {
        "the price, as noise in every candidate": (worth.CHEAP_CEILING, worth.CEILING),
        "an unlucky K, and choosing by training records": (worth.CEILING, worth.EXACT),
        "the noise in the scores": (worth.EXACT, worth.BEST_OF_K),
    }
    lines = [
        [words, *(points(interval(_over_tasks(rows, *pair, at))) for at in EPSILONS)]
        for words, pair in steps.items()
    ]
    return table(["what is lost to", *(f"epsilon {at:g}" for at in EPSILONS)], lines)


def _over_tasks(
    rows: Sequence[Mapping], one: str, other: str, epsilon: float = PRIMARY
) -> list[float]:
    """Returns each task's difference of two contestants, in points."""
    return [worth.difference(rows, task, one, other, epsilon)[0] for task in TASKS]


def worth_claim(rows: Sequence[Mapping]) -> str:
    """What README says of what tuning is worth."""
    ahead = {library: _over_tasks(rows, worth.BEST_OF_K, library) for library in EXAMPLES}
    every = [one for found in ahead.values() for one in found]
    apart = any(abs(middle) > half for middle, half in map(interval, ahead.values()))
    shown = "" if apart else " These three intervals contain 0."
    said = []
    for library, found in ahead.items():
        middle, half = interval(found)
        ends = f"95% CI {middle - half:+.1f} to {middle + half:+.1f}"
        said.append(f"{middle:+.1f} points against {library} ({ends})")
    behind = _over_tasks(rows, worth.CEILING, worth.BEST_OF_K)
    middle, half = interval(_over_tasks(rows, worth.DEFAULT, worth.BEST_OF_K))
    level = (
        f"is level with tuning ({middle:+.1f} points, 95% CI {middle - half:+.1f} to "
        f"{middle + half:+.1f})"
    )
    if abs(middle) > half:
        level = f"{'beats' if middle > 0 else 'loses to'} tuning by {_size(middle, half)}"
    return (
        f"On {len(TASKS)} held-out tasks, at total epsilon {PRIMARY:g}, we tuned "
        f"privately over three decades of learning rates. One run with the public default {level}. "
        "The default makes 20 passes over the records, and a candidate makes five. On a single "
        f"task, tuning is at most {_up(-min(every)):.1f} points behind a library's example, "
        f"and up to {max(every):.1f} ahead. On average tuning gains {', '.join(said[:-1])} and "
        f"{said[-1]}.{shown} The best candidate in hindsight is {np.mean(behind):.1f} points "
        "better than tuning on average."
    )


def _up(points: float) -> float:
    """Returns tenths of points, rounded up."""
    return math.ceil(10.0 * points) / 10.0


def _size(middle: float, half: float) -> str:
    away = abs(middle)
    return f"{away:.1f} points (95% CI {away - half:.1f} to {away + half:.1f})"


def parts() -> dict[str, str]:
    """Returns what stands between the marks, by their name."""
    rows = read_rows(ROWS / "board.csv")
    found = {one.__name__: one(rows) for one in (accuracies, aims, claim, situations)}
    others = {negative: "leaderboard", records: "by_record",
              scattering: "mnist", newcomer: "new_user", worths: "worth", worths_in_short: "worth",
              worth_aims: "worth", worth_costs: "worth", worth_claim: "worth",
              worth_means: "worth"}  # fmt: skip
    return found | {one.__name__: one(read_rows(ROWS / f"{of}.csv")) for one, of in others.items()}


def written(text: str, found: Mapping[str, str]) -> str:
    """Returns a page with its parts."""

    def part(match: re.Match) -> str:
        return f"<!-- board: {match[1]} -->\n{found[match[1]]}\n<!-- end -->"

    return re.sub(r"<!-- board: (\w+) -->\n.*?<!-- end -->", part, text, flags=re.DOTALL)


def main() -> None:
    """Writes every page anew."""
    found = parts()
    for name in PAGES:
        path = ROOT / name
        path.write_text(written(path.read_text(encoding="utf-8"), found), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
