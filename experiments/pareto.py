"""Finds the privacy-utility Pareto front of training a classifier, and suggests hyperparameters.

DPareto (Avent et al., PoPETs 2020): settings are trained privately, several times each, and two
Gaussian processes propose the next batch of them. Prints the front measured afresh, and for
--epsilon the hyperparameters predicted best. Writes

  <out_dir>/curator/   every evaluation, the front, its picture: NOT PRIVATE, never publish

The front is computed from the data without protection, so neither it nor a setting read off it is
private output. With --public_proxy=NAME the search runs on that public data set instead, and one
private run on --dataset with the suggested setting follows, charged alone:

  <out_dir>/search/    the search on public data
  <out_dir>/release/   model.msgpack, hyperparameters.json, guarantee.json: may be published
  <out_dir>/curator/   the ledger

  python -m experiments.pareto                                  # handwritten digits, no download
  python -m experiments.pareto --epsilon=2 --optimizer=adam
  python -m experiments.pareto --dataset=a1a --optimizer=adam --proposals=128 --repetitions=10
  python -m experiments.pareto --out_dir=runs/front --resume    # again after a kill: goes on

The default run takes about a minute on 4 CPU cores. --method=hvpoi, random and grid are the paper's
criterion and its baselines.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import flags
from rich.console import Console

import experiments.data_sets  # noqa: F401 - before the flags, which list what is registered.
from dpjax import data, pareto, private_files, training, tuning
from dpjax.commands import command_line, config, data_flags, derived_flags, run_folder
from dpjax.releases import ledger
from dpjax.training.optimizers import Optimizer
from dpjax.tuning.cautions import KnownRandomnessWarning
from dpjax.tuning.problem.task import accuracy_of
from experiments.figures.dpareto import problems
from experiments.figures.dpareto.sampling_laws import Laws
from experiments.pareto_report import RECORD_FILE, report, save_release, save_search

_DATA = data_flags.DataFlags(
    dataset_help="One of {names} (a1a is DPareto's division of Adult), or your own .npz.",
    widths=["128", "64"],
    optimizer="adam",
)
_SHAPES = derived_flags.Group(pareto.RunShapes, "dataset_size", "size_bound")
_COST = derived_flags.Group(pareto.TrainingCost)
_TRAINED = derived_flags.Group(pareto.TrainedAccuracy.__init__, "classes", repetitions=5)
_SEARCH = derived_flags.Group(
    pareto.search,
    *("evaluations", "path"),
    method={"choices": pareto.METHODS},
    seed={"words": "Reproducible; a released run is then NOT secret."},
)
_FRESH = derived_flags.Group(pareto.reevaluate, "by_means", rounds={"flag": "fresh_rounds"})
_GRID = derived_flags.Group(pareto.grid, points_per_parameter={"flag": "grid_points", "default": 2})
_PROPOSALS = flags.DEFINE_integer(
    "proposals", 48, "Settings after the --initial ones; the paper has 256."
)
_PROXY = flags.DEFINE_string(
    "public_proxy",
    None,
    "A PUBLIC data set (name or .npz) to search on instead; --dataset is then touched by the one "
    "released run only. Needs --epsilon.",
)
_PROXY_SIZE = flags.DEFINE_integer(
    "proxy_size", None, "A .npz proxy: its number of training records."
)
_VALIDATION_FRACTION = flags.DEFINE_float(
    "validation_fraction",
    0.0,
    "Share of the searched data's training records to score on; 0: score on its test data, as the "
    "paper does.",
)
_DOMAIN = flags.DEFINE_multi_string(
    "domain",
    None,
    "NAME=RANGE, repeated: epochs, lot_size, noise_multiplier, clip_norm, learning_rate, and what "
    "the optimiser reads; RANGE is log(a,b), real(a,b), integer(a,b), log_integer(a,b), "
    "choice(a,b,...) or a number. Replaces single entries of the usual domain.",
)
_PAPERS_LAWS = flags.DEFINE_bool(
    "papers_laws", False, "Draw random settings from the paper's laws (a1a, mnist)."
)
_EPSILON = flags.DEFINE_float("epsilon", None, "Suggest hyperparameters for this epsilon.")
_QUICK = flags.DEFINE_bool("quick", False, "A small search, in seconds.")
_RESUME = flags.DEFINE_bool(
    "resume",
    False,
    "Go on from where an interrupted run with the same flags and --out_dir stopped.",
)
_OUT_DIR = flags.DEFINE_string("out_dir", None, "Folder to make; runs/pareto-<time> if unset.")

_PROXY_IS_PRIVATE = "--public_proxy is the private --dataset itself: pass other, public data"
_QUICK_EPOCHS = pareto.LogInteger(1, 8)


def task_of(loaded: data.Dataset) -> tuning.Task:
    """What is learned on a data set, and scored on its test data or on a part of the training data.

    Raises:
      ValueError: a data set without test data, where no part is set aside either.
    """
    if _VALIDATION_FRACTION.value:
        parts = loaded.parts(_VALIDATION_FRACTION.value, b"dpjax")
        train, scored = parts.train, parts.validation
    elif loaded.test is None:
        raise ValueError(
            f"{loaded.name} has no test data (arrays test_inputs and test_labels): pass "
            "--validation_fraction=0.2"
        )
    else:
        train, scored = loaded.train, loaded.test
    return _DATA.task(loaded.classes, train, scored)


def size(name: str, quick: int) -> int:
    """A number of evaluations or repetitions; --quick lowers what was not given."""
    flag = flags.FLAGS[name]
    return quick if _QUICK.value and not flag.present else flag.value


def domain_of(dataset: str, training_records: int) -> pareto.Domain:
    """The domain that the flags ask for.

    Raises:
      ValueError: an unreadable entry, or a name that nothing reads.
    """
    usual = problems.usual_domain(
        dataset, _DATA.model.value, _DATA.optimizer.value, training_records
    )
    entries = {**usual.parameters, **usual.constants}
    if _QUICK.value:
        entries["epochs"] = _QUICK_EPOCHS
    if _DOMAIN.value:
        given = pareto.parse_domain(_DOMAIN.value)
        known = {*entries, *training.OPTIMIZERS[_DATA.optimizer.value].reads}
        unknown = sorted(set(given.names) - known)
        if unknown:
            raise ValueError(
                f"--domain names {', '.join(unknown)}, which nothing reads: pass only "
                f"{', '.join(sorted(known))}"
            )
        entries |= {**given.parameters, **given.constants}
    return pareto.Domain(entries)


def laws_of(dataset: str) -> Laws | None:
    """The paper's laws for random settings, if the flags ask for them."""
    if not _PAPERS_LAWS.value:
        return None
    for problem in problems.PROBLEMS.values():
        if problem.dataset == dataset:
            return problem.laws
    raise ValueError(f"the paper has no laws for {dataset}: drop --papers_laws")


def check_flags() -> None:
    """Refuses flags that do not go together, before anything is loaded."""
    _DATA.refuse_unread(_DATA.dataset.value, _PROXY.value or "")
    if _SEARCH.method != "grid":
        derived_flags.refuse(_GRID.names.values(), "belongs to --method=grid: drop it")
    if not _PROXY.value or not _PROXY.value.endswith(".npz"):
        derived_flags.refuse(["proxy_size"], "belongs to a --public_proxy that is a file: drop it")
    if _PROXY.value and _EPSILON.value is None:
        raise ValueError("--public_proxy ends in a private run: pass its --epsilon too")
    if _PROXY.value and os.path.realpath(_PROXY.value) == os.path.realpath(_DATA.dataset.value):
        raise ValueError(_PROXY_IS_PRIVATE)
    if _RESUME.value and _OUT_DIR.value is None:
        raise ValueError("--resume needs the folder to come back to: pass --out_dir too")
    if _EPSILON.value is not None and not 0 < _EPSILON.value < float("inf"):
        raise ValueError(f"--epsilon={_EPSILON.value}: pass a finite number above 0")
    if not 0 <= _VALIDATION_FRACTION.value < 1:
        raise ValueError(f"--validation_fraction={_VALIDATION_FRACTION.value}: pass 0 to below 1")


def run_search(
    domain: pareto.Domain,
    cost: pareto.TrainingCost,
    accuracy: pareto.TrainedAccuracy,
    path: str,
    label: Any,
    console: Console,
) -> tuple[pareto.SearchRecord, pareto.FreshFront]:
    """Searches, with a bar that shows the hypervolume, and measures the front afresh."""
    asked = _SEARCH.values() | {
        name: size(name, 8) for name in ("initial", "proposals", "batch_size")
    }
    asked["evaluations"] = asked["initial"] + asked.pop("proposals")
    with command_line.progress_bar(console) as bar:
        line = bar.add_task("training the first settings", total=None)

        def show(done: int, total: int, hypervolume: float) -> None:
            progress = f"hypervolume {hypervolume:.4f}" if done else "training the first settings"
            bar.update(line, description=progress, completed=done, total=total)

        record = pareto.search(
            domain,
            cost,
            accuracy,
            **asked,
            law=laws_of(_PROXY.value or _DATA.dataset.value),
            grid=_GRID.made(pareto.grid, domain) if _SEARCH.method == "grid" else None,
            path=path,
            label=label,
            progress=show,
        )
        again = bar.add_task("the front again, on fresh keys", total=_FRESH.rounds)
        front = pareto.reevaluate(
            record,
            accuracy,
            rounds=_FRESH.rounds,
            by_means=_SEARCH.method not in ("random", "grid"),
            progress=lambda done, total: bar.update(again, completed=done, total=total),
        )
    return record, front


def one_run(
    task: tuning.Task,
    cost: pareto.TrainingCost,
    setting: Mapping[str, float],
    optimizer: Optimizer,
) -> tuning.Result:
    """Trains one model privately with a setting that was chosen on public data."""
    (run,) = cost.shapes.accounted({name: np.array([value]) for name, value in setting.items()})
    # The steps that were priced: those of `epochs` are rounded in another way.
    own = {name: value for name, value in setting.items() if name != "epochs"}
    space = tuning.Space(own | {"lot_size": run.lot_size, "steps": run.steps})
    with warnings.catch_warnings():
        # The command warns of --seed before the search.
        warnings.simplefilter("ignore", KnownRandomnessWarning)
        return tuning.tune(
            task,
            space,
            tuning.Untuned(),
            delta=cost.delta,
            run=tuning.RunOptions(sampling=cost.shapes.sampling),
            optimizer=optimizer,
            seed=_SEARCH.seed,
        )


def main() -> int:
    """Runs the job; returns the exit code."""
    check_flags()
    console = Console(highlight=False, soft_wrap=True)
    wish = _OUT_DIR.value, f"pareto-{_DATA.name}"
    with run_folder.claimed(*wish, resumed=_RESUME.value) as folder:
        if run_folder.is_finished(folder):
            config.refuse_changes(folder)
            remove_working_folder(f"{folder}.curator")
            console.print(f"{folder} is finished: there is nothing left to do")
            return 0
        return search(folder, console)


def remove_working_folder(working: str) -> None:
    """Deletes the record of a search that is written."""
    if os.path.lexists(working):
        private_files.private_folder(working)
        shutil.rmtree(working)


def _seen(name: str, looked_at: data.Dataset) -> ledger.SeenData:
    return ledger.SeenData.of(name, (looked_at.train.inputs, looked_at.train.labels))


def search(folder: str, console: Console) -> int:
    """Loads, searches, trains the released run and writes.

    Args:
      folder: of the run, claimed.
      console: where to say what was found.

    Returns:
      The exit code.
    """
    name, working = _DATA.name, f"{folder}.curator"
    path = os.path.join(working, RECORD_FILE)
    loaded = searched = _DATA.load(_DATA.dataset.value, _SHAPES.sampling)
    # What the search's record, public with a proxy, is known by: of the data that it looked at.
    seen = seen_by_search = _seen(_DATA.dataset.value, loaded)
    if _PROXY.value:
        searched = _DATA.load(_PROXY.value, _SHAPES.sampling, public_size=_PROXY_SIZE.value)
        seen_by_search = _seen(_PROXY.value, searched)
        # A copy under another name, a link: what counts is what the file holds.
        if seen_by_search.fingerprint == seen.fingerprint:
            raise ValueError(_PROXY_IS_PRIVATE)
    if (searched.train.input_shape, searched.classes) != (loaded.train.input_shape, loaded.classes):
        raise ValueError(
            f"the proxy has inputs {searched.train.input_shape} and {searched.classes} classes, "
            f"{loaded.name} {loaded.train.input_shape} and {loaded.classes}: pass alike data"
        )
    task = task_of(searched)
    # The released run uses every private training record; nothing is chosen by its accuracy.
    # (A task needs records to judge by; without test data the proxy's stand in, and are not read.)
    judged_on = loaded.test or searched.train
    priced = _DATA.task(loaded.classes, loaded.train, judged_on) if _PROXY.value else task
    fixed = _SHAPES.sampling == "fixed"
    if fixed and not priced.train.stable_under_replacement:
        raise ValueError("fixed lots need records that keep their place: pass --sampling=poisson")
    records = priced.train.number if fixed else priced.train.public_size
    bound = None if fixed else priced.train.size_bound
    shapes = _SHAPES.made(pareto.RunShapes, records, size_bound=bound)
    cost = _COST.made(pareto.TrainingCost, shapes)
    optimizer = _DATA.named_optimizer()
    domain = domain_of(_DATA.dataset.value, min(records, task.train.number))
    pareto.RunShapes(min(records, task.train.number)).check(domain)
    repetitions = size("repetitions", 2)
    accuracy = _TRAINED.made(
        pareto.TrainedAccuracy,
        task,
        shapes,
        optimizer,
        classes=searched.classes,
        repetitions=repetitions,
    )
    cautions, earlier = [loaded.caveat], ledger.earlier_runs(os.path.dirname(folder), seen)
    if not _PROXY.value:
        cautions.append("the front is NOT a private output: it and its settings are the curator's")
    else:
        cautions += earlier.warnings(name)
        if _SEARCH.seed is not None:
            cautions.append("--seed makes the released run's noise known: no secret, no guarantee")
        if not set(seen.smallest_hashes).isdisjoint(seen_by_search.smallest_hashes):
            cautions.append("the proxy holds records of the private data: is it public?")
    for caution in filter(None, cautions):
        console.print(f"warning: {caution}")
    label = [seen_by_search.fingerprint, _DATA.model.value, list(_DATA.widths.value)]
    label += [_DATA.optimizer.value, str(cost), os.path.basename(_PROXY.value or "")]
    label += [repetitions, _VALIDATION_FRACTION.value]
    pareto.check_anti_ideal(_SEARCH.anti_ideal)
    private_files.private_folder(working)
    record, front = run_search(domain, cost, accuracy, path, label, console)
    suggestion = None
    if _EPSILON.value is not None:
        suggestion = pareto.suggest(record, cost, _EPSILON.value)
    report(record, front, suggestion, cost.delta, console)
    with run_folder.written_whole(folder) as partial:
        public = _PROXY.value
        title = f"{public or name}, {_DATA.model.value}, {_DATA.optimizer.value}"
        where = os.path.join(partial, "search" if public else "curator")
        save_search(where, record, front, suggestion, title=title, public=public)
        if public:
            with command_line.shown_warnings(console.print, {}):
                result = one_run(priced, cost, suggestion.setting, optimizer)
            chosen_on = f"hyperparameters chosen on {os.path.basename(public)}, which is public"
            release = result.release.with_context(data_description=chosen_on)
            guarantee = result.guarantee
            epsilon = guarantee.epsilon(cost.delta)
            save_release(
                partial, folder, release,
                epsilon=epsilon, delta=cost.delta, seen=seen, earlier=earlier.entries,
            )  # fmt: skip
            tested = "no test data to judge it by"
            if loaded.test is not None:
                accuracy_there = accuracy_of(priced, release.params, priced.validation.arrays)
                tested = f"accuracy on test data, not in the release: {accuracy_there:.4f}"
            console.print(
                f"[bold]released: one run on {_DATA.dataset.value}, epsilon {epsilon:.4f}[/bold] "
                f"at delta {cost.delta:g} ({guarantee.relation.replace('_', ' ')}); {tested}"
            )
        config.save(os.path.join(partial, "curator"))
    remove_working_folder(working)
    if _PROXY.value:
        console.print(f"release (may be published):  {os.path.join(folder, 'release')}")
    else:
        console.print(f"curator (never publish):     {os.path.join(folder, 'curator')}")
    return 0


if __name__ == "__main__":
    command_line.run(main)
