"""What does my tuning cost? The true (epsilon, delta) of releasing the best of K private runs.

Nothing is trained and no data is read: give the base run (what ONE training costs) and the law of
K. Prints this project's bound, the papers' Renyi bound, naive composition at the mean of K, and the
cost of one run. Answers in a few seconds.

  # the DP-SGD run of Papernot & Steinke's MNIST experiment, Poisson lots
  python -m experiments.epsilon --sampling_probability=0.0042666667 --noise_multiplier=1.1 \\
      --steps=14062 --repetitions=geometric --mean=10 --cap=0
  # your own library's Renyi curve: a CSV with the columns order,epsilon
  python -m experiments.epsilon --rdp_csv=my_run.csv --repetitions=logarithmic --mean=50 --json
  # recompute what a release claims
  python -m experiments.epsilon --verify=runs/digits/release/guarantee.json
"""

from __future__ import annotations

import csv
import json
import math
import os

import numpy as np
from absl import flags
from rich.console import Console
from rich.table import Table

from dpjax import accounting
from dpjax.neighbouring import ADD_OR_REMOVE_ONE, RELATIONS
from experiments import command_line, law_flags

_SAMPLING_PROBABILITY = flags.DEFINE_float(
    "sampling_probability", None, "DP-SGD, Poisson lots: expected lot size over number of records."
)
_NOISE = flags.DEFINE_float(
    "noise_multiplier", None, "DP-SGD: noise standard deviation over sensitivity."
)
_STEPS = flags.DEFINE_integer("steps", None, "DP-SGD: number of gradient steps.")
_DATASET_SIZE = flags.DEFINE_integer(
    "dataset_size", None, "DP-SGD with lots of fixed size (replace one): number of records."
)
_LOT_SIZE = flags.DEFINE_integer("lot_size", None, "With --dataset_size: records in a lot.")
_RHO = flags.DEFINE_float("rho", None, "Base run that is rho-zCDP.")
_PURE = flags.DEFINE_float("pure_epsilon", None, "Base run that is (epsilon, 0)-DP.")
_RDP_CSV = flags.DEFINE_string(
    "rdp_csv", None, "Base run known by its Renyi curve: a CSV with the columns order,epsilon."
)
_RELATION = flags.DEFINE_enum(
    "neighbouring_relation",
    ADD_OR_REMOVE_ONE,
    RELATIONS,
    "What --rho, --pure_epsilon or --rdp_csv was computed for.",
)
_SCORE_NOISE = flags.DEFINE_float(
    "score_noise",
    None,
    "Charge a validation score: noise standard deviation on a count of correct predictions, on "
    "records disjoint from the training's. Not charged if unset (public validation data).",
)
_RETRAIN = flags.DEFINE_bool(
    "retrain", False, "After the selection, the base run is run once more and released too."
)
_DELTA = flags.DEFINE_float("delta", 1e-5, "Delta.")
_JSON = flags.DEFINE_bool("json", False, "Print one JSON object instead of the table.")
_PLOT = flags.DEFINE_string("plot", None, "Also draw epsilon against the mean of K, as PNG here.")
_VERIFY = flags.DEFINE_string("verify", None, "Path of a release's guarantee.json to recompute.")

LARGEST_STEPS = 10**8
LEAST_NOISE = 1e-3
"""Below it epsilons are in the millions, and the Renyi bounds take minutes to say so."""


def base_run() -> accounting.Guarantee:
    """Returns the guarantee of one run that the flags describe.

    Raises:
      ValueError: if they describe none, more than one, or more than is read.
    """
    kinds = {
        "--sampling_probability": _SAMPLING_PROBABILITY.value,
        "--dataset_size": _DATASET_SIZE.value,
        "--rho": _RHO.value,
        "--pure_epsilon": _PURE.value,
        "--rdp_csv": _RDP_CSV.value,
    }
    given = [name for name, value in kinds.items() if value is not None]
    if len(given) != 1:
        raise ValueError(
            f"the base run is given {len(given)} times ({', '.join(given) or 'not at all'}): pass "
            f"exactly one of {', '.join(kinds)}"
        )
    kind = given[0]
    for flag in ("noise_multiplier", "steps", "lot_size", "neighbouring_relation"):
        if flags.FLAGS[flag].present and kind not in _READ_WITH[flag]:
            whole = ", which describes the whole run" if kind in _WHOLE_RUNS else ""
            raise ValueError(f"--{flag} is not read with {kind}{whole}: drop it")
    if kind in ("--sampling_probability", "--dataset_size"):
        needed = {"--noise_multiplier": _NOISE.value, "--steps": _STEPS.value}
        if kind == "--dataset_size":
            needed["--lot_size"] = _LOT_SIZE.value
        missing = [name for name, value in needed.items() if value is None]
        if missing:
            raise ValueError(f"{kind} needs {' and '.join(missing)} beside it")
        if 0 < _NOISE.value < LEAST_NOISE:
            raise ValueError(
                f"--noise_multiplier={_NOISE.value:g} protects nothing: pass {LEAST_NOISE} or more"
            )
        if _STEPS.value > LARGEST_STEPS:
            raise ValueError(f"--steps={_STEPS.value}: pass at most {LARGEST_STEPS}")
        if kind == "--dataset_size":
            return accounting.dp_sgd_fixed_lots(
                dataset_size=_DATASET_SIZE.value,
                lot_size=_LOT_SIZE.value,
                noise_multiplier=_NOISE.value,
                steps=_STEPS.value,
            )
        return accounting.dp_sgd(
            sampling_probability=_SAMPLING_PROBABILITY.value,
            noise_multiplier=_NOISE.value,
            steps=_STEPS.value,
        )
    if kind == "--rho":
        return accounting.zcdp(rho=_RHO.value, relation=_RELATION.value)
    if kind == "--pure_epsilon":
        return accounting.pure(epsilon=_PURE.value, relation=_RELATION.value)
    orders, epsilons = read_rdp_csv(_RDP_CSV.value)
    try:
        return accounting.renyi_only(orders, epsilons, relation=_RELATION.value)
    except ValueError as error:
        raise ValueError(f"{_RDP_CSV.value}: {error}") from None


def read_rdp_csv(path: str) -> tuple[list[float], list[float]]:
    """Reads a Renyi curve.

    Args:
      path: of a CSV file with a header naming the columns order and epsilon.

    Returns:
      Orders, ascending, and epsilons.

    Raises:
      ValueError: if the file is not such a table.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file)
            header = [name.strip().lower() for name in next(rows, [])]
            order, epsilon = header.index("order"), header.index("epsilon")
            curve = sorted((float(row[order]), float(row[epsilon])) for row in rows if row)
    except OSError as error:
        raise ValueError(
            f"--rdp_csv={path} cannot be read ({error.strerror}): pass the path of a CSV file"
        ) from None
    except (IndexError, ValueError, csv.Error):
        curve = []
    if not curve:
        raise ValueError(
            f"{path} holds no Renyi curve: write a header line order,epsilon and one line of two "
            "numbers for each order above 1"
        )
    return [order for order, _ in curve], [epsilon for _, epsilon in curve]


def price(
    base: accounting.Guarantee, law: accounting.RepetitionLaw, delta: float
) -> dict[str, float | None]:
    """Returns epsilons at `delta` by name; None where a bound does not exist.

    Args:
      base: one run.
      law: of K.
      delta: in (0, 1).
    """
    run = base
    if _SCORE_NOISE.value is not None:
        count = accounting.discrete_gaussian(noise_std=_SCORE_NOISE.value, relation=base.relation)
        run = accounting.parallel(base, count)
    whole = accounting.best_of(run, law)
    papers = accounting.best_of(run, law, method="rdp")
    naive = [run] * max(1, math.ceil(law.mean - 1e-9))
    if _RETRAIN.value:
        whole = accounting.compose(whole, base)
        papers = accounting.compose(papers, base)
        naive = [*naive, base]
    return {
        "one_run": run.epsilon(delta),
        "whole_tuning": whole.epsilon(delta),
        "papers_bound": _renyi_epsilon(papers, delta),
        "naive_composition_at_mean": accounting.compose(*naive).epsilon(delta),
    }


def _renyi_epsilon(guarantee: accounting.Guarantee, delta: float) -> float | None:
    """The Renyi bound's epsilon, or None where the guarantee carries no Renyi curve."""
    try:
        return guarantee.epsilon(delta, method="rdp")
    except ValueError:
        return None


def verify(path: str) -> int:
    """Recomputes the claim of a release; returns the exit code, 1 if the claim is too small."""
    try:
        with open(path, encoding="utf-8") as file:
            claim = json.load(file)
    except OSError as error:
        raise ValueError(
            f"--verify={path} cannot be read ({error.strerror}): pass a release's guarantee.json"
        ) from None
    except ValueError as error:
        raise ValueError(f"{path} is no guarantee.json: {error}") from None
    if not isinstance(claim, dict) or "private" not in claim:
        raise ValueError(f"{path} is no guarantee.json: it does not say whether it is private")
    if not claim["private"]:
        print(f"{path}: makes no claim of privacy")
        return 1
    guarantee = accounting.from_provenance(claim["mechanism"])
    recomputed = guarantee.epsilon(claim["delta"])
    holds = (
        recomputed <= claim["epsilon"] * (1 + 1e-9)
        and guarantee.relation == claim["neighbouring_relation"]
    )
    secret = claim.get("randomness", {}).get("secret")
    if not _described_as_accounted(claim):
        print(f"{path}: what it says of training or selection is not what its mechanism accounts")
        return 1
    print(
        f"claimed epsilon {claim['epsilon']:.6f}, recomputed {recomputed:.6f} at delta "
        f"{claim['delta']:g} ({guarantee.relation.replace('_', ' ')}): "
        + ("the claim holds" if holds else "THE CLAIM IS TOO SMALL")
    )
    if not secret:
        print("but its randomness was seeded: it does not hold against whoever knows the seed")
    return 0 if holds else 1


def _described_as_accounted(claim: dict) -> bool:
    """Whether the words about training and K, where there are any, agree with the mechanism."""
    nodes, waiting = [], [claim["mechanism"]]
    while waiting:
        nodes.append(waiting.pop())
        waiting.extend(nodes[-1]["parts"])
    runs = {
        (node["parameters"]["noise_multiplier"], node["parameters"]["steps"])
        for node in nodes
        if node["mechanism"] in ("dp_sgd", "dp_sgd_fixed_lots")
    }
    said = {(run["noise_multiplier"], run["steps"]) for run in claim.get("training", [])}
    law = claim.get("selection", {}).get("law_of_K")
    laws = [node["parameters"]["law"] for node in nodes if node["mechanism"] == "best_of"]
    drawn_with = claim.get("selection", {}).get("epsilon_0")
    charged_with = [
        node["parameters"].get("epsilon_per_iteration", node["parameters"].get("epsilon"))
        for node in nodes
        if node["mechanism"] in ("doubling_loop", "exponential_mechanism")
    ]
    return (
        (not said or said == runs)
        and (law is None or law in laws)
        and (drawn_with is None or drawn_with in charged_with)
    )


def draw(base: accounting.Guarantee, path: str) -> None:
    """Draws epsilon against the mean of K under the flags' law, every other setting as given."""
    from dpjax import plotting

    means = np.unique(np.round(np.geomspace(2, 200, 9)))
    rows = [price(base, law_flags.law_of_repetitions(float(mean)), _DELTA.value) for mean in means]
    figure, axes = plotting.new_figure()
    for name, label in _LABELS.items():
        values = [math.nan if row[name] is None else row[name] for row in rows]
        axes.plot(means, values, marker="o", markersize=4, label=label)
    axes.set_xscale("log")
    axes.set_ylim(0, 3 * max(row["whole_tuning"] for row in rows))
    axes.set_xlabel("mean of K (before any cap)")
    axes.set_ylabel(f"epsilon at delta = {_DELTA.value:g}")
    axes.set_title("What tuning costs")
    figure.legend(loc="outside lower center", ncols=2, fontsize=10)
    folder, name = os.path.split(os.path.abspath(path))
    plotting.save_figure(figure, folder, os.path.splitext(name)[0], formats=("png",))


_READ_WITH = {
    "noise_multiplier": ("--sampling_probability", "--dataset_size"),
    "steps": ("--sampling_probability", "--dataset_size"),
    "lot_size": ("--dataset_size",),
    "neighbouring_relation": ("--rho", "--pure_epsilon", "--rdp_csv"),
}
_WHOLE_RUNS = _READ_WITH["neighbouring_relation"]

_LABELS = {
    "one_run": "one run",
    "whole_tuning": "the whole tuning (this bound)",
    "papers_bound": "the whole tuning (the papers' Renyi bound)",
    "naive_composition_at_mean": "naive composition at the mean of K",
}


def main() -> int:
    """Answers; returns the exit code."""
    if _VERIFY.value:
        return verify(_VERIFY.value)
    if not 0 < _DELTA.value < 1:
        raise ValueError(f"--delta={_DELTA.value}: pass a number between 0 and 1, such as 1e-5")
    base, law = base_run(), law_flags.law_of_repetitions()
    if _PLOT.value and not _PLOT.value.endswith(".png"):
        raise ValueError(f"--plot={_PLOT.value}: pass a path that ends in .png")
    if _PLOT.value and not os.path.isdir(os.path.dirname(os.path.abspath(_PLOT.value))):
        raise ValueError(f"--plot={_PLOT.value}: there is no such folder; pass one that exists")
    prices = price(base, law, _DELTA.value)
    if _JSON.value:
        print(
            json.dumps(
                {
                    "delta": _DELTA.value,
                    "neighbouring_relation": base.relation,
                    "repetitions": law.to_dict(),
                    "mean": law.mean,
                    "epsilon": prices,
                }
            )
        )
    else:
        caption = law_flags.description(law)
        if not isinstance(law, accounting.Fixed):
            caption += (
                ", drawn in secret. You ran a number that you chose? Pass --repetitions=fixed "
                "--mean=NUMBER"
            )
        relation = base.relation.replace("_", " ")
        table = Table(title=f"epsilon at delta = {_DELTA.value:g}, {relation}", caption=caption)
        table.add_column("what")
        table.add_column("epsilon", justify="right")
        for name, label in _LABELS.items():
            value = prices[name]
            table.add_row(label, "no such bound" if value is None else f"{value:.4f}")
        Console().print(table)
    if _PLOT.value:
        draw(base, _PLOT.value)
        if not _JSON.value:
            print(_PLOT.value)
    return 0


if __name__ == "__main__":
    command_line.run(main)
