"""The reader's page on an accelerator, sweeps.md and a picture beside its rows, sweeps.csv.

Where the library has changed since, sums.csv has times before and after; the page names both.

python -m experiments.accelerator.page --out_dir=docs/accelerators/h100
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from absl import flags
from matplotlib.figure import Figure

from dpjax import plotting
from dpjax.commands import command_line
from experiments.accelerator.jobs import ALL_CONV, FIGURE_7, GPT, LOGISTIC, MLP
from experiments.benchmarks.least_bytes import LAYERS, least_bytes
from experiments.benchmarks.steps import met
from experiments.figures.rows import read_rows, select, table

Row = Mapping[str, Any]

NAMES = {
    LOGISTIC: "logistic regression",
    MLP: "MLP 784-128-64-10",
    ALL_CONV: "all-convolutional net",
    FIGURE_7: "figure 7's net",
    GPT: "small transformer",
}
"""As the page calls them."""
_USUAL = ("figure 7", "candidates", "micro-batches")
"""Sections of sweeps as dpjax compiles them."""
_PALLAS = "pallas"
_ONE_HOT = "sweep, labels one-hot"
"""A contestant of rows from before `models.cross_entropy` did so."""

AIMS = (
    ("figure 7's net, 64 candidates", FIGURE_7, 64, 220_000),
    ("logistic regression, 1,024 candidates", LOGISTIC, 1024, 60_000_000),
)
"""What, model, candidates, least records/s; fixed before anything was measured."""
AIM_OF_A_PRIVATE_STEP = 1.3
"""Most times the plain step, of the MLP."""


def undisturbed(rows: Iterable[Row]) -> list[Row]:
    """Leaves out rows that were timed while programs compiled, if they were timed again."""
    rows = list(rows)

    def named(row: Row) -> tuple:
        names = ("section", "contestant", "model", "width", "lot", "rows", "variant")
        return tuple(row[name] for name in names)

    again = {named(row) for row in rows if row["note"] == "again"}
    return [row for row in rows if not row["compiling"] or named(row) not in again]


def copied(rows: Iterable[Row]) -> float:
    """Returns the bytes that a large copy moves in a second."""
    first = next(row for row in rows if row["section"] == "ceiling" and row["variant"] == "copy")
    return 1e12 * float(first["note"].split()[0])


def sweeps(rows: Iterable[Row], model: str) -> dict[int, Row]:
    """Returns the fastest row of a model at every number of candidates, as sweeps train them."""
    found: dict[int, Row] = {}
    for row in select(rows, model=model):
        if row["section"] in _USUAL:
            best = found.get(row["width"])
            if best is None or row["milliseconds"] < best["milliseconds"]:
                found[row["width"]] = row
    return dict(sorted(found.items()))


def limit(rows: Iterable[Row], model: str, lot: int) -> float:
    """Returns the records/s at which the least bytes of a net are those of a copy."""
    return copied(rows) / least_bytes(model, lot)


def _share_of_limit(rows: Iterable[Row], row: Row) -> str:
    return f"{100 * row['records_a_second'] / limit(rows, row['model'], row['lot']):.2g}%"


# The picture -------------------------------------------------------------------------------------


def picture(rows: Sequence[Row]) -> Figure:
    """Draws records/s against candidates side by side, with the limit of memory."""
    figure, axes = plotting.new_figure(7.0, 5.2)
    for model, colour in zip((LOGISTIC, MLP, ALL_CONV, FIGURE_7), plotting.PALETTE):
        found = sweeps(rows, model)
        if not found:
            continue
        last = found[max(found)]
        height = limit(rows, model, last["lot"])
        rates = [row["records_a_second"] for row in found.values()]
        axes.plot(list(found), rates, "o-", color=colour, linewidth=2)
        axes.axhline(height, color=colour, linestyle=":", linewidth=1.8)
        # Clear of its neighbours' lines and limits.
        place = 16 if model == LOGISTIC and 16 in found else max(found)
        offset = {LOGISTIC: (-8, 8), ALL_CONV: (0, 8)}.get(model, (0, -23))
        axes.annotate(
            NAMES[model],
            (place, found[place]["records_a_second"]),
            xytext=offset,
            textcoords="offset points",
            ha="right",
            color=colour,
            fontsize=12,
        )
    axes.set_xscale("log", base=4)
    axes.set_yscale("log")
    axes.set_xticks([1, 4, 16, 64, 256, 1024], ["1", "4", "16", "64", "256", "1,024"])
    axes.set_xlim(0.85, 1200)
    axes.set_yticks([1e5, 1e6, 1e7, 1e8], ["100,000", "1 million", "10 million", "100 million"])
    axes.tick_params(labelsize=12)
    axes.set_xlabel("candidates side by side", fontsize=12)
    axes.set_ylabel("records per second, all candidates", fontsize=12)
    axes.set_title("Dotted: the limit of each net, by memory traffic", loc="left", fontsize=12)
    return figure


# The page ----------------------------------------------------------------------------------------


def page(rows: Iterable[Row], sums: Sequence[Row] = ()) -> str:
    """Returns the page; a section whose rows are missing is left out.

    `sums` are rows of sums.csv: steps before and after sums were taken in blocks.
    """
    rows = undisturbed(rows)
    parts: Sequence[Callable[[Sequence[Row]], str]] = (
        lambda rows: _opening(rows, sums), _limits, _choices, lambda rows: _since(rows, sums),
        _order, _peers, lambda rows: _aims(rows, sums), _trial, _options, _ceilings,
    )  # fmt: skip
    return "\n\n".join(text for text in (part(rows) for part in parts) if text) + "\n"


def _opening(rows: Sequence[Row], sums: Sequence[Row]) -> str:
    device = next(iter(rows))["device"]
    measured = (
        f"Measured on {device}. Times are medians of whole calls, undisturbed ([rows](sweeps.csv), "
        "`python -m experiments.accelerator.sweeps`). Lots have 64 records, those of figure 7's "
        "net 256, drawn from 60,000."
    )
    if sums:
        measured += (
            " **These rows are of sums without [blocks](../../proofs/sums.md).** With blocks, "
            f"which dpjax has, [a step takes {_span(sums)} times as long](#{_SINCE_ANCHOR})."
        )
    return "\n\n".join(
        [
            "# Sweeps on a GPU: what limits them, what to choose",
            "Memory traffic limits a sweep. So what moves fewer bytes is faster, and many "
            "candidates side by side keep the memory busy:",
            "- **Set `chunk_size` to as many candidates as you have**, up to some 64 large nets or "
            "1,024 small ones. [The default placement](../../performance.md#many-candidates) takes "
            "as many as fit. Small models gain most.\n"
            '- **Leave `micro_batch_size` at "auto".** Candidates on one device share what a '
            "micro-batch may take: each of 64 all-convolutional nets takes 16 rows at once.\n"
            "- **Leave the order of additions fixed**, as it is by default. It costs the least "
            "if you train many candidates.\n"
            "- **A single larger net trains faster with jax-privacy** "
            "([how much](#beside-other-libraries-one-candidate)).",
            "![Records per second against candidates side by side, with the limit of each net]"
            "(sweeps.png)",
            measured,
        ]
    )


_SINCE_ANCHOR = "since-these-rows"


def _span(sums: Sequence[Row]) -> str:
    """Returns the least and the largest ratio of times with and without blocks."""
    ratios = [row["milliseconds_now"] / row["milliseconds_before"] for row in sums]
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def _since(rows: Sequence[Row], sums: Sequence[Row]) -> str:
    """Returns what sums in blocks cost, and what that makes of the comparison with peers."""
    if not sums:
        return ""
    lines = []
    for row in sums:
        before, now = row["milliseconds_before"], row["milliseconds_now"]
        rate = 1e3 * row["candidates"] * row["lot"] / now
        cells = [NAMES[row["model"]], f"{row['candidates']:,}", str(row["lot"])]
        cells += [f"{before:.3g}", f"{now:.3g}", f"**{now / before:.2f}**", _number(rate)]
        lines.append(cells)
    head = ["model", "candidates", "lot", "ms per step without blocks", "with blocks", "ratio"]
    head += ["records/s with blocks"]
    said = []
    for model in (MLP, FIGURE_7, GPT):
        ours = select(sums, model=model, candidates=1)
        theirs = select(rows, section="peers", contestant="jax-privacy", model=model)
        if ours and theirs:
            best = min(row["milliseconds"] for row in theirs)
            said.append(f"{ours[0]['milliseconds_now'] / best:.2f} ({NAMES[model]})")
    text = (
        "## Since these rows\n\n"
        "dpjax takes [sums in blocks](../../proofs/sums.md), so that one record cannot change how "
        "others are rounded. A second session, on another card of the same kind, timed steps "
        "without and with blocks ([rows](sums.csv)). All other tables of this page are of the "
        "first session, without blocks.\n\n"
        f"{table(head, lines)}"
    )
    first = select(rows, contestant="sweep", section="candidates", model=LOGISTIC, width=1)
    second = select(sums, model=LOGISTIC, candidates=1)
    if first and second:
        text += (
            "\n\nSteps that take a fraction of a millisecond differ most between sessions: without "
            "blocks, one candidate of logistic regression took "
            f"{first[0]['milliseconds']:.3g} ms in the first and "
            f"{second[0]['milliseconds_before']:.3g} ms in the second."
        )
    if said:
        text += (
            "\n\n**With blocks, one candidate takes more time than jax-privacy took in the first "
            f"session, by these factors: {', '.join(said)}.**"
        )
    return text


def _limits(rows: Sequence[Row]) -> str:
    head = ["model", "candidates", "records/s", "of the limit", "kernels per step"]
    head += ["microseconds per kernel", "MB per record", "least", "of a copy's rate"]
    lines, alone = [], []
    for model in (LOGISTIC, MLP, ALL_CONV, FIGURE_7):
        found = sweeps(rows, model)
        for width in sorted({min(found), max(found)}) if found else ():
            row = found[width]
            takes = 1e3 * row["milliseconds"] / row["kernels"]
            cells = [NAMES[model], f"{width:,}", _rate(row), _share_of_limit(rows, row)]
            cells += [f"{row['kernels']:,}", f"{takes:.1f}"]
            if width == 1 and model in (LOGISTIC, MLP):
                alone.append(takes)
                cells += ["-", f"{least_bytes(model, row['lot']) / 1e6:.2g}", "-"]
            else:
                cells += [_megabytes(row), f"{least_bytes(model, row['lot']) / 1e6:.2g}"]
                cells += [f"{row['percent_of_copy']:.0f}%"]
            lines.append(cells)
    words = (
        "## What limits a sweep\n\n"
        f"**Memory traffic.** A copy moves {copied(rows) / 1e12:.2f} TB/s on this card. Many "
        "candidates side by side come near that rate. But they move several times "
        "[the least bytes](../../benchmarks/bytes.md#the-formula) that a step can do with, so they "
        "are far below the limit (dotted in the picture). The limit of a net is the copy's rate "
        "divided by its least bytes per record."
    )
    if alone:
        words += (
            "\n\n**One candidate of a small model is bound by launches**: "
            f"{min(alone):.1f} to {max(alone):.1f} microseconds for a kernel, whatever it "
            "computes. That is why many side by side cost little more."
        )
    words += (
        "\n\nBytes are those of the kernels' operands and results. Some stay in a cache, so a row "
        "can exceed 100% of a copy's rate. These counts include workspaces of libraries, 34 MB for "
        "a product, which nothing moves; where they are most of the count it is left out."
    )
    return "\n\n".join(text for text in (words, table(head, lines), _profiles(rows)) if text)


def _profiles(rows: Sequence[Row]) -> str:
    """Returns what the longest kernels of a step are, as a table."""
    lines = []
    found = select(rows, section="profile")
    for whole in (row for row in found if row["kernels"] is None):
        model, width = whole["model"], whole["width"]
        parts = [row for row in select(found, model=model, width=width) if row["kernels"]]
        products = sum(row["milliseconds"] for row in parts if "gemm" in row["note"])
        others = sum(row["milliseconds"] for row in parts) - products
        shares = (100 * part / whole["milliseconds"] for part in (products, others))
        cells = [NAMES[model], f"{width:,}", f"{whole['milliseconds']:.3g}"]
        lines.append(cells + [f"{share:.0f}%" for share in shares])
    if not lines:
        return ""
    head = ["profiled", "candidates", "ms per step", "products", "other kernels"]
    return f"Of the time of a step, the twelve longest kernels are:\n\n{table(head, lines)}"


def _choices(rows: Sequence[Row]) -> str:
    lines = []
    for model in NAMES:
        found = sweeps(rows, model)
        for width, row in found.items():
            first = found.get(1)
            gain = f"{row['records_a_second'] / first['records_a_second']:.3g}" if first else "-"
            share = "-"  # Of nets without a formula.
            if model in LAYERS:
                share = _share_of_limit(rows, row)
            cells = [NAMES[model], f"{width:,}", _rows(row), _rate(row), share, gain, _scratch(row)]
            lines.append(cells)
    head = ["model", "candidates", "rows at once", "records/s", "of the limit"]
    head += ["times one alone", "scratch, MB"]
    candidates = table(head, lines)
    lines = []
    for model in (ALL_CONV, FIGURE_7):
        same = select(rows, model=model, width=64)
        same = [row for row in same if row["section"] in _USUAL]
        for row in sorted(same, key=lambda row: row["rows"] or 10**9):
            lines.append([NAMES[model], _rows(row), f"{row['milliseconds']:.1f}", _scratch(row)])
    head = ["64 candidates", "rows at once", "ms per step", "scratch, MB"]
    return (
        "## How many candidates, how many rows\n\n"
        "If a number of candidates was timed with several micro-batches, this is the fastest:\n"
        f"\n{candidates}\n\n"
        "Fewer rows at once take a fraction of the memory and no more time. For 64 candidates, "
        '"auto" takes 16 rows of the all-convolutional net and 8 of figure 7\'s:\n\n'
        f"{table(head, lines)}"
    )


def _order(rows: Sequence[Row]) -> str:
    lines = []
    for row in select(rows, section="any order"):
        same = {"model": row["model"], "width": row["width"], "lot": row["lot"]}
        usual = select(rows, contestant="sweep", section="candidates", variant=None, **same)[0]
        hot = select(rows, contestant=_ONE_HOT, **same)
        lines.append(
            [
                NAMES[row["model"]],
                f"{row['width']:,}",
                f"{usual['milliseconds']:.3g}",
                f"{row['milliseconds']:.3g}",
                f"**{usual['milliseconds'] / row['milliseconds']:.2f}**",
                f"{hot[0]['milliseconds']:.3g}" if hot else "-",
            ]
        )
    if not lines:
        return ""
    head = ["model", "candidates", "ms per step, fixed order", "any order", "ratio"]
    head += ["fixed order, one-hot labels"]
    return (
        "## What a fixed order of additions costs\n\n"
        "dpjax compiles runs with `xla_gpu_exclude_nondeterministic_ops`: a record's contribution "
        "must not depend on the order in which threads arrive. Most of the cost is one scatter, "
        "the gradient of looking up the label's logit. A loss that multiplies by a one-hot label "
        "has none, as `models.cross_entropy` does. All but the last column are of a loss that "
        "looks the logit up:\n\n"
        f"{table(head, lines)}"
    )


def _peers(rows: Sequence[Row]) -> str:
    lines = []
    for model in (MLP, FIGURE_7, GPT):
        found = select(rows, section="peers", model=model)
        plain = select(found, contestant="plain")
        ours = select(found, contestant="dpjax")
        if not plain or not ours:
            continue
        lot = plain[0]["lot"]
        cells = [NAMES[model], str(lot), f"{plain[0]['milliseconds']:.3g}"]
        cells.append(f"{ours[0]['milliseconds'] / plain[0]['milliseconds']:.2f}")
        for name in ("jax-privacy", "vmap", "opacus-hooks", "opacus-ghost"):
            each = [row for row in select(found, contestant=name) if row["milliseconds"]]
            if not each:
                cells.append("-")
                continue
            best = min(each, key=lambda row: row["milliseconds"])
            cells.append(f"{best['milliseconds'] / ours[0]['milliseconds']:.2f}")
        lines.append(cells)
    if not lines:
        return ""
    head = ["model", "lot", "plain, ms", "dpjax / plain", "jax-privacy / dpjax", "vmap / dpjax"]
    head += ["opacus-hooks / dpjax", "opacus-ghost / dpjax"]
    return (
        "## Beside other libraries, one candidate\n\n"
        'All on the same card in the same call; ours with "auto", the others each at the faster '
        'of the micro-batches that were tried. "Plain" is a step without privacy, "-" was not '
        "measured. A ratio below 1 means that the other library is faster.\n\n"
        f"{table(head, lines)}\n\n{_verdict(rows)}"
    )


def _verdict(rows: Sequence[Row]) -> str:
    """Returns who is faster, in words."""
    said = []
    for model in (MLP, FIGURE_7, GPT):
        found = select(rows, section="peers", model=model)
        ours, theirs = select(found, contestant="dpjax"), select(found, contestant="jax-privacy")
        if not ours or not theirs:
            continue
        ratio = ours[0]["milliseconds"] / min(row["milliseconds"] for row in theirs)
        name = NAMES[model]
        if ratio > 1.05:
            said.append(f"**jax-privacy was {ratio:.2f} times as fast as dpjax on the {name}.**")
        elif ratio < 1 / 1.05:
            said.append(f"dpjax is {1 / ratio:.2f} times as fast as jax-privacy on the {name}.")
        else:
            both = "dpjax and jax-privacy were level"
            said.append(f"Without blocks, {both} on the {name}, within 5%.")
    torch, hooks = (
        select(rows, section="peers", model=MLP, contestant=name)
        for name in ("torch", "opacus-hooks")
    )
    if torch and hooks:
        over = hooks[0]["milliseconds"] / torch[0]["milliseconds"]
        said.append(
            f"Opacus takes {over:.1f} times the {torch[0]['milliseconds']:.2f} ms of PyTorch's "
            "plain step of the MLP."
        )
    return " ".join(said).replace("the figure", "figure")


def _aims(rows: Sequence[Row], sums: Sequence[Row]) -> str:
    lines = []
    for name, model, width, aim in AIMS:
        if best := sweeps(rows, model).get(width):
            found = best["records_a_second"]
            now = [
                1e3 * width * row["lot"] / row["milliseconds_now"]
                for row in select(sums, model=model, candidates=width)
            ]
            verdict = met((now or [found])[0] >= aim)
            later = _number(now[0]) if now else "-"
            lines.append([name, f"{_number(aim)} records/s", _number(found), later, verdict])
    peers = select(rows, section="peers", model=MLP)
    plain, ours = select(peers, contestant="plain"), select(peers, contestant="dpjax")
    if plain and ours:
        ratio = ours[0]["milliseconds"] / plain[0]["milliseconds"]
        again = select(sums, model=MLP, candidates=1, lot=ours[0]["lot"])
        now = [row["milliseconds_now"] / plain[0]["milliseconds"] for row in again]
        verdict = met((now or [ratio])[0] <= AIM_OF_A_PRIVATE_STEP)
        words_of_aim = f"at most {AIM_OF_A_PRIVATE_STEP} times plain"
        later = f"{now[0]:.2f}" if now else "-"
        lines.append(["private step of the MLP", words_of_aim, f"{ratio:.2f}", later, verdict])
    words = []
    for name, model, width, _ in AIMS:
        same = {"model": model, "width": width}
        pallas = {f"{model} {_PALLAS}": "the trial kernels below"}
        pallas[f"{model} {_PALLAS} bfloat16"] = "these in bfloat16"
        ways = [
            ("32 rows at once", select(rows, section="figure 7", **same)),
            ("any order of additions", select(rows, section="any order", **same)),
            ("a loss with one-hot labels", select(rows, contestant=_ONE_HOT, **same)),
        ]
        for net, way in pallas.items():
            tried = select(rows, section=_PALLAS, model=net, width=width)
            ways.append((way, sorted(tried, key=lambda row: row["milliseconds"])))
        said = [f"{_rate(found[0])} with {way}" for way, found in ways if found]
        if said:
            words.append(f"{name[0].upper()}{name[1:]}: {', '.join(said)}.")
    head = ["", "aim", "found", "with sums in blocks", ""]
    text = f"## Aims\n\nFixed before anything was measured.\n\n{table(head, lines)}"
    return "\n\n".join([text, *words])


def _trial(rows: Sequence[Row]) -> str:
    found = select(rows, section=_PALLAS)
    if not found:
        return ""
    lines = [
        [
            row["model"].replace("_", " "),
            f"{row['width']:,}",
            _rows(row),
            f"{row['milliseconds']:.3g}",
            _rate(row),
            _megabytes(row),
            f"{row['percent_of_copy']:.0f}%",
            _scratch(row),
        ]
        for row in sorted(found, key=lambda row: (row["model"].split()[0], -row["width"]))
    ]
    agreed = {
        row["model"]: row["note"].split(":")[1].split()[0] for row in select(rows, section="agree")
    }
    apart = " and ".join(f"{value} ({NAMES[model]})" for model, value in agreed.items())
    head = ["net", "candidates", "rows at once", "ms per step", "records/s", "MB per record"]
    head += ["of a copy's rate", "scratch, MB"]
    return (
        "## A trial of convolutions by implicit matrix products\n\n"
        "Kernels in Pallas convolve without storing patches. **dpjax has their successors, [off by "
        "default](../../accelerators.md#convolutions-without-patches).** Those of the trial move "
        "a third to a half of the bytes. In float32 they run at about half a copy's rate, so "
        "something else limits them. Their clipped sums differ from the default path's by these "
        f'shares of the norm, at the highest precision: {apart}. Rows without "pallas" are of the '
        "default path, in the same process.\n\n"
        f"{table(head, lines)}"
    )


def _options(rows: Sequence[Row]) -> str:
    lines = []
    for section in ("command buffers", "products"):
        for row in select(rows, section=section):
            same = {"model": row["model"], "width": row["width"], "lot": row["lot"]}
            usual = select(rows, section="candidates", **same)
            if usual:
                ratio = row["milliseconds"] / usual[0]["milliseconds"]
                option = f"`{row['variant'].replace(',', ', ')}`"
                lines.append([NAMES[row["model"]], str(row["width"]), option, f"{ratio:.2f}"])
    if not lines:
        return ""
    head = ["model", "candidates", "option", "time, over that without it"]
    words = "None is worth setting: what gains on one model loses on another."
    return f"## Options that were tried\n\n{words}\n\n{table(head, lines)}"


def _ceilings(rows: Sequence[Row]) -> str:
    found = {row["variant"]: row["note"] for row in reversed(select(rows, section="ceiling"))}
    lines = [[what, found[what]] for what in reversed(found)]
    return f"## What the card does at most\n\n{table(['', 'measured'], lines)}"


def _number(value: float) -> str:
    """Returns a number with three digits, four if the first is 1."""
    short = float(f"{value:.3g}" if f"{value:e}"[0] != "1" else f"{value:.4g}")
    return f"{short / 1e6:g} million" if short >= 1e6 else f"{short:,.0f}"


def _rate(row: Row) -> str:
    return _number(row["records_a_second"])


def _rows(row: Row) -> str:
    return str(row["rows"] or "whole lot")


def _megabytes(row: Row) -> str:
    """Returns the bytes for each record of the expected lots."""
    return f"{row['megabytes_a_step'] / row['width'] / row['lot']:.2g}"


def _scratch(row: Row) -> str:
    return f"{row['scratch_mb']:,.0f}"


def main() -> None:
    """Writes the page and the picture."""
    folder = flags.FLAGS.out_dir
    rows, sums = read_rows(os.path.join(folder, "sweeps.csv")), os.path.join(folder, "sums.csv")
    text = page(rows, read_rows(sums) if os.path.exists(sums) else ())
    pathlib.Path(folder, "sweeps.md").write_text(text, encoding="utf-8")
    plotting.save_figure(picture(undisturbed(rows)), folder, "sweeps", ("png",))


if __name__ == "__main__":
    # Here, since tests import this module beside others that have a flag of this name.
    flags.DEFINE_string("out_dir", "runs/accelerator", "Folder of sweeps.csv.")
    command_line.run(main)
