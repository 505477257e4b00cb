"""What does my tuning cost? The (epsilon, delta) of releasing the best of K private runs.

Nothing is trained and no data is read: give the base run (what ONE training costs) and the law of
K, whose runs are independent draws from one law of hyperparameters. Runs chosen in any other way (a
grid, Optuna's samplers, pruning, stopping when one is good) are --repetitions=adaptive with the
largest number there could have been as --mean: the composition of them all. Prints this project's
bound, the papers' Renyi bound, naive composition at the mean of K, and the cost of one run; then
what the whole allows in terms of attacks, of groups and of a replaced record. Answers in a few
seconds.

  # the DP-SGD run of Papernot & Steinke's MNIST experiment, Poisson lots
  python -m experiments.epsilon --sampling_probability=0.0042666667 --noise_multiplier=1.1 \\
      --steps=14062 --repetitions=geometric --mean=10 --cap=0
  # your own library's Renyi curve: a CSV with the columns order,epsilon
  python -m experiments.epsilon --rdp_csv=my_run.csv --repetitions=logarithmic --mean=50 --json
  # the best of K runs on a secret tenth of the records, then one run on the rest
  python -m experiments.epsilon --sampling_probability=0.0042666667 --noise_multiplier=1.1 \\
      --steps=14062 --repetitions=geometric --mean=10 --cap=0 --probability=0.1
  # all that is known of one run is its (epsilon, delta); prices are at a larger delta then
  python -m experiments.epsilon --epsilon=1 --delta=1e-7 --repetitions=geometric --mean=10
  # fifty trials of Optuna
  python -m experiments.epsilon --rho=0.01 --repetitions=adaptive --mean=50
  # verify a release: its statement rebuilt from its own words, and its files
  python -m experiments.epsilon --verify=runs/digits/release/guarantee.json
"""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from absl import flags
from rich.console import Console
from rich.table import Table

from dpjax import accounting
from dpjax.accounting.calibration import check_worth_pricing
from dpjax.accounting.selection.split import FINAL_ON
from dpjax.accounting.stated_epsilon import large_delta
from dpjax.commands import command_line, derived_flags, law_flags
from dpjax.neighbouring import ADD_OR_REMOVE_ONE, RELATIONS

_BASE_RUNS: dict[str, Callable[..., accounting.Guarantee]] = {
    "sampling_probability": accounting.dp_sgd,
    "steps_per_epoch": accounting.dp_sgd_balls_in_bins,
    "dataset_size": accounting.dp_sgd_fixed_lots,
    "rho": accounting.zcdp,
    "pure_epsilon": accounting.pure,
    "epsilon": accounting.approximate,
    "rdp_csv": accounting.renyi_only,
}
"""The flag that names a kind of base run -> the function that makes its guarantee."""

_OPTIONS = {
    kind: derived_flags.options_of(
        make,
        *("failure_probability", "delta"),
        epsilon={"flag": "pure_epsilon"} if kind == "pure_epsilon" else {},
    )
    for kind, make in _BASE_RUNS.items()
}
_RELATION = derived_flags.Option(
    *("relation", "neighbouring_relation", str, "what it was computed for", ADD_OR_REMOVE_ONE),
    choices=RELATIONS,
)
_CURVE = "known by its Renyi curve: a CSV with the columns order,epsilon"
_OPTIONS["rdp_csv"].append(derived_flags.Option("rdp_csv", "rdp_csv", str, _CURVE, None))
for _whole_run in ("rho", "pure_epsilon", "epsilon", "rdp_csv"):
    _OPTIONS[_whole_run].append(_RELATION)
derived_flags.define(_OPTIONS, "Base run by --")
_SCORE_NOISE = flags.DEFINE_float(
    "score_noise",
    None,
    "Charge a validation score: noise standard deviation on a count of correct predictions, on "
    "records disjoint from the training's. Not charged if unset (public validation data).",
)
_RETRAIN = flags.DEFINE_bool(
    "retrain", False, "After the selection, the base run is run once more and released too."
)
_PROBABILITY = flags.DEFINE_float(
    "probability",
    None,
    "The runs see a secret random part of the records, each of which is in it with this "
    "probability; after the selection the base run is run once more, on --final_on, and released.",
)
_FINAL_ON = flags.DEFINE_enum(
    "final_on",
    None,
    list(FINAL_ON),
    "What the final run sees, with --probability: the rest of the records (if unset), or all.",
)
_DELTA = flags.DEFINE_float("delta", 1e-5, "Delta; with --epsilon, that of one run.")
_TOTAL_DELTA = flags.DEFINE_float(
    "total_delta",
    None,
    "With --epsilon, the delta that prices are at: above that of all runs together. Twice the "
    "sum of the deltas of the mean number of runs and one more if unset.",
)
_JSON = flags.DEFINE_bool("json", False, "Print one JSON object instead of the table.")
_PLOT = flags.DEFINE_string(
    "plot",
    None,
    "Also draw epsilon against the mean of K, the best attacks and the profiles, as PNG here.",
)
_VERIFY = flags.DEFINE_string(
    "verify", None, "A release to recompute: its guarantee.json, its folder or the run's."
)


def base_run() -> accounting.Guarantee:
    """Returns the guarantee of one run that the flags describe."""
    kinds = [f"--{kind}" for kind in _BASE_RUNS]
    given = [kind for kind in _BASE_RUNS if flags.FLAGS[kind].present]
    if len(given) != 1:
        twice = f"given by {' and '.join(f'--{kind}' for kind in given)}"
        raise ValueError(
            f"the base run is {twice if given else 'not given'}: pass exactly one of "
            f"{', '.join(kinds)}"
        )
    kind, options = given[0], _OPTIONS[given[0]]
    for flag, owners in derived_flags.owners_of(_OPTIONS).items():
        if kind not in owners:
            whole = ", which describes the whole run" if _RELATION in options else ""
            derived_flags.refuse([flag], f"is not read with --{kind}{whole}: drop it")
    values = derived_flags.given(options, f"--{kind}")
    rate = values.get("sampling_probability")
    if rate is not None and not 0.0 < rate <= 1.0:
        raise ValueError(
            f"--sampling_probability={rate:g}: pass a number in (0, 1], the share of the records "
            "in a lot, such as 256/60000 = 0.00427 for lots of 256"
        )
    if rate is None and "steps" in values:
        rate = values["lot_size"] / max(values["dataset_size"], 1)
    if "rdp_csv" in values:
        values["orders"], values["divergences"] = read_rdp_csv(values.pop("rdp_csv"))
    if kind == "epsilon":
        values["delta"] = _DELTA.value
    names = {option.name: option.flag for option in options}
    with derived_flags.named_as_flags(
        names | {one: f"{kind}: {one}" for one in ("orders", "divergences")}
    ):
        if rate is not None:
            check_worth_pricing(values["steps"], values["noise_multiplier"], rate)
        return _BASE_RUNS[kind](**values)


def read_rdp_csv(path: str) -> tuple[list[float], list[float]]:
    """Reads a Renyi curve from a CSV file; returns orders, ascending, and epsilons."""
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


def _epsilons(
    found: Mapping[str, accounting.Guarantee | None], delta: float
) -> dict[str, float | None]:
    """Returns the epsilon of each guarantee at `delta`; None where there is no such bound."""
    return {
        name: None if one is None else one.epsilon(delta, _method(name))
        for name, one in found.items()
    }


def _method(name: str) -> str:
    """Returns how the epsilon of a guarantee of this name is computed."""
    return "rdp" if name == "papers_bound" else "tight"


def guarantees(
    base: accounting.Guarantee, law: accounting.RepetitionLaw | int
) -> dict[str, accounting.Guarantee | None]:
    """Returns the guarantees to show, by name; None where there is no such bound.

    An int as `law` is the number of runs that were chosen in any way.
    """
    run, count = base, None
    if _SCORE_NOISE.value is not None:
        with derived_flags.named_as_flags({"noise_std": "score_noise"}):
            count = accounting.discrete_gaussian(_SCORE_NOISE.value, relation=base.relation)
        run = accounting.parallel(base, count)

    def charged(
        select: Callable[[accounting.Guarantee], accounting.Guarantee],
    ) -> accounting.Guarantee:
        """Returns the cost of the whole procedure, where `select` charges for choosing a run."""
        if _PROBABILITY.value is None:
            selected = select(run)
            return accounting.compose(selected, base) if _RETRAIN.value else selected
        whole = _on_a_part(select(base), base)
        # A record that is scored is in neither part, and pays for the selection alone.
        return whole if count is None else accounting.parallel(whole, select(count))

    def composed(one: accounting.Guarantee) -> accounting.Guarantee:
        return accounting.repeat(one, law if isinstance(law, int) else _runs_at_mean(law))

    papers = None
    if isinstance(law, int):
        whole = charged(composed)
    else:
        whole = charged(lambda one: accounting.best_of(one, law))
        if run.renyi is not None:
            papers = charged(lambda one: accounting.best_of(one, law, method="rdp"))
    naive = composed(run)
    if _RETRAIN.value or _PROBABILITY.value is not None:
        # For a record that all runs see.
        naive = accounting.compose(naive, base)
    return {
        "one_run": run,
        "whole_tuning": whole,
        "papers_bound": papers,
        "naive_composition_at_mean": naive,
    }


def _runs_at_mean(law: accounting.RepetitionLaw) -> int:
    """Returns the mean of K as a number of runs: rounded up, floating-point errors ignored."""
    return max(1, math.ceil(law.mean - 1e-9))


def _on_a_part(tuned: accounting.Guarantee, final: accounting.Guarantee) -> accounting.Guarantee:
    """Returns the cost of `tuned`, on a secret part of the records, and `final` together."""
    assert _PROBABILITY.value is not None
    with derived_flags.named_as_flags({"probability": "probability"}):
        return accounting.split(
            tuned, final, probability=_PROBABILITY.value, final_on=_FINAL_ON.value or FINAL_ON[0]
        )


def _part() -> dict[str, float | str]:
    """Returns the settings of a secret part of the records, for --json; empty without one."""
    if _PROBABILITY.value is None:
        return {}
    return {"probability": _PROBABILITY.value, "final_on": _FINAL_ON.value or FINAL_ON[0]}


def _check_part(base: accounting.Guarantee) -> None:
    """Refuses flags that contradict each other on the final run, or have no price with a subset."""
    if _PROBABILITY.value is None:
        derived_flags.refuse(["final_on"], "says what a final run sees: pass --probability beside")
        return
    if _RETRAIN.value:
        raise ValueError("--probability charges a final run, as --retrain does: drop --retrain")
    if base.relation != ADD_OR_REMOVE_ONE:
        raise ValueError(
            f"--probability has no price under {base.relation}, where a record may change parts: "
            "describe the base run by --sampling_probability, or for add_or_remove_one"
        )


def _selection(mean: float | None = None) -> accounting.RepetitionLaw | int:
    """Returns the distribution of K, or the number of runs with --repetitions=adaptive."""
    return law_flags.adaptive_runs(mean) or law_flags.law_of_repetitions(mean)


def verify(path: str) -> int:
    """Verifies a release; returns the exit code, 1 if it is not what its statement says."""
    from dpjax.releases import rules, verification  # Import JAX, which prices do not need.

    def rebuild(claim: dict) -> rules.Rebuilt:
        if "fingerprint" not in claim:
            return rules.rebuilt(claim)
        try:
            from dpjax.federated.flower import vote_release
        except ImportError:
            raise verification.NotVerified(
                "it is of a federation: pip install -e '.[federated]' to verify it"
            ) from None
        return vote_release.rebuilt(claim)

    try:
        found = verification.verify_release(path, rebuild)
    except verification.NotVerified as problem:
        print(f"{path}: NOT VERIFIED: {problem}")
        return 1
    print(
        f"claimed epsilon {found.epsilon:.6f}, recomputed {found.recomputed:.6f} at delta "
        f"{found.delta:g} ({found.relation.replace('_', ' ')}): the claim holds"
    )
    if not found.secret:
        print("but its randomness was seeded: it does not hold against anyone who knows the seed")
    return 0


def _described(law: accounting.RepetitionLaw | int) -> dict:
    """Describes the distribution of K, or the adaptive runs, for --json."""
    return {"law": law_flags.ADAPTIVE, "runs": law} if isinstance(law, int) else law.to_dict()


def _caption(law: accounting.RepetitionLaw | int) -> str:
    """Says what the prices are for, and which flags ask for other prices."""
    if isinstance(law, int):
        return f"at most {law} runs, each chosen in any way; all of them may be shown"
    drawn = "" if law.minimum == law.maximum else ", drawn in secret before the first run"
    q = _PROBABILITY.value
    where = "" if q is None else f"; on a secret part of the records, each in it by {q:g}"
    return (
        f"{law_flags.description(law)}{drawn}{where}; candidates drawn independently from one law. "
        "A grid, Optuna, pruning, or stopping when one is good? Pass --repetitions=adaptive "
        "--mean=LARGEST_NUMBER"
    )


def allows(whole: accounting.Guarantee, delta: float) -> dict[str, object]:
    """Returns a guarantee's bounds for attacks, groups and a replaced record; None if unknown."""

    def known(epsilon: float) -> float | None:
        return epsilon if math.isfinite(epsilon) else None

    replaced = {}
    if whole.relation == ADD_OR_REMOVE_ONE:
        replaced["replace_one_epsilon"] = known(accounting.replace_one(whole).epsilon(delta))
    return {
        "attack_success": {f"{rate:g}": float(whole.attack_success(rate)) for rate in FALSE_ALARMS},
        "group_epsilon": {str(size): known(whole.group_epsilon(size, delta)) for size in GROUPS},
        **replaced,
    }


FALSE_ALARMS = (0.001, 0.01, 0.1)
"""False positive rates at which the success of membership attacks is stated."""

GROUPS = (2, 5)
"""Numbers of records whose joint epsilon is stated."""


def _in_words(found: Mapping[str, Any]) -> str:
    """Writes the bounds of `allows` in two lines."""

    def shown(epsilon: float | None) -> str:
        return "no bound" if epsilon is None else f"{epsilon:.2f}"

    attacks = ", ".join(
        f"{success:.3g} at {rate}" for rate, success in found["attack_success"].items()
    )
    groups = [f"{size} records: {shown(one)}" for size, one in found["group_epsilon"].items()]
    if "replace_one_epsilon" in found:
        groups.append(f"one replaced record: {shown(found['replace_one_epsilon'])}")
    return (
        f"  any membership attack's true positive rate, by its false positive rate: {attacks}\n"
        f"  epsilon at that delta of {', of '.join(groups)}"
    )


def _public_size() -> int | None:
    """Returns the number of records, where the flags state it."""
    return flags.FLAGS["dataset_size"].value if flags.FLAGS["dataset_size"].present else None


def draw(base: accounting.Guarantee, path: str, delta: float) -> None:
    """Draws what the flags price as a PNG: cost by mean of K, attacks, privacy profiles."""
    from dpjax import plotting

    law = _selection()
    figure, (costs, attacks, profiles) = plotting.new_row(3)
    means = np.unique(np.round(np.geomspace(2, 200, 9)))
    rows = [_epsilons(guarantees(base, _selection(float(mean))), delta) for mean in means]
    labels, found = _labels(law), guarantees(base, law)
    rates, deltas = np.geomspace(1e-5, 1.0, 120), np.geomspace(1e-9, 0.3, 60)
    # A name has one colour in all three; the papers' bound gives no curve of attacks.
    for colour, (name, label) in zip(plotting.PALETTE, labels.items()):
        guarantee = found[name]
        if guarantee is None:
            continue
        values = [math.nan if (value := row[name]) is None else value for row in rows]
        costs.plot(means, values, marker="o", markersize=4, label=label, color=colour)
        if name != "papers_bound":
            attacks.plot(rates, guarantee.attack_success(rates), color=colour)
        curve = [guarantee.epsilon(one, _method(name)) for one in deltas]
        finite = np.where(np.isfinite(curve), curve, math.nan)
        profiles.plot(deltas, finite, color=colour)
    costs.set_xscale("log")
    # An epsilon may be infinite; the axis goes by the finite ones.
    tops = [one for row in rows if math.isfinite(one := row["whole_tuning"] or 0.0)]
    costs.set_ylim(0, 3 * max(tops, default=1.0) or 1.0)
    costs.set_xlabel("mean of K (before any cap)")
    costs.set_ylabel(f"epsilon at delta = {delta:g}")
    costs.set_title("What tuning costs", fontsize=plotting.POINTS + 1)
    attacks.plot([1e-5, 1], [1e-5, 1], color="#888888", linestyle="--", linewidth=1)
    attacks.set_xscale("log")
    attacks.set_yscale("log")
    attacks.set_xlim(1e-5, 1)
    attacks.set_ylim(1e-5, 1)
    attacks.set_xlabel("an attack's false positive rate")
    attacks.set_ylabel("its largest true positive rate")
    attacks.set_title("Attacks (dashed: guessing)", fontsize=plotting.POINTS + 1)
    profiles.set_xscale("log")
    profiles.set_ylim(bottom=0)
    profiles.set_xlabel("delta")
    profiles.set_ylabel("epsilon")
    profiles.set_title("Privacy profile", fontsize=plotting.POINTS + 1)
    handles, names = costs.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=2, fontsize=plotting.POINTS)
    folder, name = os.path.split(os.path.abspath(path))
    plotting.save_figure(figure, folder, os.path.splitext(name)[0], formats=("png",))


_LABELS = {
    "one_run": "one run",
    "whole_tuning": "the whole tuning (this bound)",
    "papers_bound": "the whole tuning (the papers' Renyi bound)",
    "naive_composition_at_mean": "naive composition at the mean of K",
}


def _labels(law: accounting.RepetitionLaw | int) -> dict[str, str]:
    """Returns the rows to show: of adaptive runs two, as the others need a distribution of K."""
    adaptive = {"one_run": _LABELS["one_run"], "whole_tuning": "all of them, composed"}
    return adaptive if isinstance(law, int) else _LABELS


def _priced_delta(law: accounting.RepetitionLaw | int) -> float:
    """Returns the delta at which prices are stated."""
    if not flags.FLAGS["epsilon"].present:
        derived_flags.refuse(["total_delta"], "belongs to --epsilon: pass --delta")
        return _DELTA.value
    runs = law if isinstance(law, int) else _runs_at_mean(law)
    delta = _TOTAL_DELTA.value
    if delta is None:
        # Each run, the final one too, may fail with probability delta; twice that leaves room.
        delta = 2.0 * (runs + 1) * _DELTA.value
        if not delta < 1.0:
            raise ValueError(
                f"--delta={_DELTA.value:g} of each of {runs} runs leaves nothing to state: pass a "
                "smaller one"
            )
    if not _DELTA.value < delta < 1.0:
        raise ValueError(
            f"--total_delta={delta:g}: pass a number above --delta={_DELTA.value:g}, below 1"
        )
    return delta


def _moved(delta: float) -> str | None:
    """Says why prices are at another delta than the runs' own, and what would cost less."""
    if not flags.FLAGS["epsilon"].present:
        return None
    return (
        f"delta is {delta:g} and not {_DELTA.value:g}, since each run may reveal everything with "
        f"probability {_DELTA.value:g} and the chances add up; the noise, rate and steps of a run "
        "have a price at --delta itself, which is far less: pass --sampling_probability, "
        "--noise_multiplier and --steps in the place of --epsilon (of Opacus' history: "
        "dpjax.bridges.opacus)"
    )


def main() -> int:
    """Prints the prices; returns the exit code."""
    if _VERIFY.value:
        return verify(_VERIFY.value)
    if not 0 < _DELTA.value < 1:
        raise ValueError(f"--delta={_DELTA.value}: pass a number between 0 and 1, such as 1e-5")
    base, law = base_run(), _selection()
    _check_part(base)
    if _PLOT.value and not _PLOT.value.endswith(".png"):
        raise ValueError(f"--plot={_PLOT.value}: pass a path that ends in .png")
    if _PLOT.value and not os.path.isdir(os.path.dirname(os.path.abspath(_PLOT.value))):
        raise ValueError(f"--plot={_PLOT.value}: there is no such folder; pass one that exists")
    delta = _priced_delta(law)
    priced = guarantees(base, law)
    prices, whole = _epsilons(priced, delta), priced["whole_tuning"]
    assert whole is not None  # Only the papers' bound may be missing.
    found = allows(whole, delta)
    large = large_delta(delta, _public_size())
    said = [
        large and f"{large}; pass a smaller --delta",
        law_flags.caution(law),
        _moved(delta),
    ]
    words = "; ".join(filter(None, said))
    if _JSON.value:
        print(
            json.dumps(
                {
                    "delta": delta,
                    "neighbouring_relation": base.relation,
                    "repetitions": _described(law),
                    "mean": law if isinstance(law, int) else law.mean,
                    "epsilon": prices,
                    "whole_tuning_allows": found,
                }
                | ({"caution": words} if words else {})
                | _part()
            )
        )
    else:
        relation = base.relation.replace("_", " ")
        title = f"epsilon at delta = {delta:g}, {relation}"
        table = Table(title=title, caption=_caption(law))
        table.add_column("what")
        table.add_column("epsilon", justify="right")
        for name, label in _labels(law).items():
            value = prices[name]
            table.add_row(label, "no such bound" if value is None else f"{value:.4f}")
        console = Console()
        console.print(table)
        lines = ["The whole allows at most:", _in_words(found)]
        lines += [f"CAUTION: {words}"] if words else []
        console.print("\n".join(lines), highlight=False, soft_wrap=True)
    if _PLOT.value:
        draw(base, _PLOT.value, delta)
        if not _JSON.value:
            print(_PLOT.value)
    return 0


if __name__ == "__main__":
    command_line.run(main)
