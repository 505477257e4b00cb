"""Privately tunes a model and releases one model with a proven (epsilon, delta).

Draws a secret random number of candidates from a public search space, trains each by DP-SGD,
scores each privately on validation data, and releases the best alone (Papernot & Steinke, ICLR
2022). Or, with --method=exponential or doubling, trains public candidates on partitions of the
records, selects one by the average accuracy, and trains that one by DP-SGD (Ding & Wu 2022); with
--method=untuned, trains once with a public default and chooses nothing.
The noise is calibrated so that the WHOLE procedure meets the target. Writes

  <out_dir>/release/   model.msgpack, hyperparameters.json, guarantee.json: may be published;
                       of a .csv table also schema.json, which `dpjax predict` encodes rows by
  <out_dir>/statement.html, .md: the same claim on one page, for a data-protection officer
  <out_dir>/curator/   every candidate, K, timings, ledger, report.html: not private, never publish

What this program prints, and how long it takes, may depend on K or the data: it is for the
curator's eyes too.

  python -m experiments.tune                                  # real handwritten digits, no download
  python -m experiments.tune --dataset=mnist --model=mlp --widths=128,64 --epsilon=2
  python -m experiments.tune --optimizer=sgd --space='learning_rate=loguniform(0.1,10)'
  python -m experiments.tune --method=exponential --candidates=32 --partitions=40

--helpfull lists the flags of the methods and of devices, shards and hosts too. Your own .npz holds
inputs, labels and, if you have them, validation_inputs, validation_labels, test_inputs,
test_labels, identifiers; your own .csv table comes with a public --schema (docs/tables.md).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
from typing import Any

import jax
import numpy as np
from absl import flags
from rich.console import Console
from rich.table import Table

from dpjax import data, files, private_files, training, tuning
from dpjax.accounting.calibration import check_worth_pricing
from dpjax.after_the_draw import beside_the_release
from dpjax.commands import (
    command_line,
    compile_cache,
    config,
    data_flags,
    derived_flags,
    job_flags,
    run_folder,
    tuner_flags,
    user_tables,
)
from dpjax.neighbouring import ADD_OR_REMOVE_ONE, REPLACE_ONE
from dpjax.releases import curator_page, ledger, statement_page
from dpjax.releases.unit_of_privacy import in_words, unit_of
from dpjax.training import schedules
from dpjax.tuning import cautions
from dpjax.tuning.job import SPARE_BYTES
from dpjax.tuning.problem import class_weights
from dpjax.tuning.problem.problem import FIXED
from dpjax.tuning.problem.public_defaults import (
    OPTIMIZER,
    defaults_of,
    numbers_of,
    usual_lot_size,
)

_DATA = data_flags.DataFlags(
    dataset_help="One of {names}, the path of your own .npz file or .csv table, folder:PATH (of "
    "images, a subfolder a class), or tfds:NAME (what TFDS prepared in --data_dir).",
    widths=["64"],
    optimizer="momentum",
    model=None,
)
_TUNE = derived_flags.Group(
    tuning.tune,
    epsilon={"words": "Target of the whole procedure; 4 if no noise_multiplier is given."},
)
_RUN = derived_flags.Group(tuning.RunOptions)
_STAGES = derived_flags.Group(training.Stages)
_VALIDATION_FRACTION = flags.DEFINE_float(
    "validation_fraction", 0.2, "Expected share of training records kept for scoring candidates."
)
_SPLIT_KEY = flags.DEFINE_string(
    "split_key", "dpjax", "Public key of the hash that assigns records to training or validation."
)
_SCHEDULE = derived_flags.OneOf(
    "schedule",
    {name: derived_flags.options_of(make) for name, make in training.SCHEDULES.items()},
    schedules.CONSTANT,
    "Learning-rate schedule over a run's steps.",
)
_SPACE = flags.DEFINE_multi_string(
    "space",
    None,
    "NAME=LAW, repeated: learning_rate, clip_norm, momentum, lot_size, steps, epochs, "
    "noise_multiplier; LAW is loguniform(a,b), uniform(a,b), lognormal(median,factor), "
    "choice(a,b,...) or a number. Replaces the default: for momentum the public default's, with "
    "learning_rate=lognormal(its rate,2.5), a sixteenth of the records a lot and 320 steps; for "
    "adam the same around `tuning.adam_rate`, and clip_norm=1; for sgd "
    "learning_rate=loguniform(0.03,30), and clip_norm=1.",
)
_PAPER_PROTOCOL = flags.DEFINE_bool(
    "paper_protocol",
    False,
    "Score on the TEST data without noise, as papers do: NOT PRIVATE there.",
)
_JUDGED = derived_flags.Group(
    tuning.classification,
    *("model", "train", "validation", "loss", "trainable", "initial", "with_rng", "model_reads"),
    "description",
    score={"choices": class_weights.SCORES},
    weights_in={"choices": class_weights.PLACES},
)
_ERROR_SCALE = flags.DEFINE_float(
    "error_scale",
    None,
    "Of a regression: the public absolute error, in the target's units, from which a record scores "
    "0; a quarter of the target's range if unset.",
)
_BUDGET = flags.DEFINE_float(
    "budget", None, "Warn if all releases on these records pass this epsilon, fixed beforehand."
)
_CONTEXT = derived_flags.Group(tuning.Release.with_context, "self", "decision_weights")
_USER_COLUMN = flags.DEFINE_string(
    "user_column",
    None,
    "--dataset=your own .csv: a column that says whose record each is. The unit of privacy is then "
    "a user with all of its records; --public_size, --size_bound and --lot_size count users.",
)
_MOST_RECORDS = flags.DEFINE_integer(
    "most_records",
    None,
    "--user_column=: the largest number of records that count per user, public. Of a user with "
    "more, this many are drawn.",
)
_OUT_DIR = flags.DEFINE_string("out_dir", None, "Folder to make; runs/<data set>-<time> if unset.")

PRIOR_FACTOR = 2.5
"""The factor of the lognormal law of learning rates around the public default's."""

_PRIORS = (OPTIMIZER, "adam")
"""The optimizers that have a prior."""

LARGEST_EPSILON = 1e4
DEFAULT_EPSILON = 4.0
_KNOWN = ("clip_norm", "lot_size", "steps", "epochs", "noise_multiplier")


def search_space(chosen: tuning.tuner.Tuner) -> tuning.Space | None:
    """Returns the search space that the flags ask for; None for the public default's."""
    if not tuner_flags.keeps_validation_records(chosen):
        derived_flags.refuse(
            ["validation_fraction", "split_key", "paper_protocol"],
            "belongs to methods that keep records to score by: --method=untuned and "
            "--score_on_training train on every training record",
        )
    if not _SPACE.value:
        # Adam's prior is for the public default's lots and steps, which depend on epsilon.
        goes_by_epsilon = _RUN.noise_multiplier is None and not getattr(
            chosen, "not_private", False
        )
        if tuner_flags.trains_once(chosen):
            if _DATA.optimizer.value == OPTIMIZER:
                return None
            raise ValueError(
                f"--optimizer={_DATA.optimizer.value} has no public default: pass --space, a "
                f"number for each hyperparameter, or --optimizer={OPTIMIZER}"
            )
        if _DATA.optimizer.value in _PRIORS and goes_by_epsilon:
            return None
    optimizer = training.OPTIMIZERS[_DATA.optimizer.value]
    if _SPACE.value:
        space = tuning.parse_space(_SPACE.value)
    else:
        space = tuning.Space(
            {
                name: tuning.LogUniform(*one) if isinstance(one, tuple) else one
                for name, one in optimizer.usual.items()
            },
            clip_norm=1.0,
        )
    known = (*optimizer.reads, *_KNOWN)
    unknown = sorted(set(space.parameters) - set(known))
    if unknown:
        raise ValueError(
            f"the space names {', '.join(unknown)}, which --optimizer={_DATA.optimizer.value} does "
            f"not read: pass only {', '.join(map(repr, known))}"
        )
    for name in sorted(set(optimizer.usual) - set(space.parameters)):
        of = f"--optimizer={_DATA.optimizer.value} needs {name}"
        raise ValueError(f"{of}: pass --space={name}=NUMBER as well")
    return space


def schedule_settings() -> dict[str, float]:
    """Returns the settings of --schedule that were given."""
    given = _SCHEDULE.given()
    schedules.shape_of(_SCHEDULE.value, given)
    return given


def checked_run() -> tuning.RunOptions:
    """Returns the options of a private run; refuses useless numbers before anything is loaded."""
    epsilon, chunk_size = _TUNE.epsilon, _TUNE.chunk_size
    if epsilon is not None and not 0 < epsilon <= LARGEST_EPSILON:
        raise ValueError(
            f"--epsilon={epsilon:g}: pass a finite number above 0, at most {LARGEST_EPSILON:g}"
        )
    if epsilon is not None and _RUN.noise_multiplier is not None:
        raise ValueError("--epsilon and --noise_multiplier are both given: pass one of them")
    if not 0 < _TUNE.delta < 1:
        raise ValueError(f"--delta={_TUNE.delta:g}: pass a number between 0 and 1, such as 1e-5")
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"--chunk_size={chunk_size}: pass a whole number of 1 or more")
    stages = _STAGES.made(training.Stages) if flags.FLAGS.stage_shares else None
    if stages is None:
        derived_flags.refuse(_STAGES.names.values(), "needs --stage_shares beside it")
    run = _RUN.made(tuning.RunOptions, clipping=tuner_flags.clip_rule(), stages=stages)
    # Steps and noise that are set in another way are checked where runs are planned.
    check_worth_pricing(run.steps or 1, run.noise_multiplier or 0.0, 0.0)
    _DATA.refuse_unread(_DATA.dataset.value)
    schedule_settings()
    _CONTEXT.made(tuning.Release({}, {}, {}).with_context)
    if _BUDGET.value is not None and not 0 < _BUDGET.value < math.inf:
        raise ValueError(f"--budget={_BUDGET.value:g}: pass a finite number above 0")
    return run


def load_data(
    chosen: tuning.tuner.Tuner,
) -> tuple[data.Dataset, data.Parts | user_tables.UserParts]:
    """Returns the data set and its training, validation and test parts."""
    keeps = tuner_flags.keeps_validation_records(chosen)
    if _USER_COLUMN.value is not None:
        if _PAPER_PROTOCOL.value:
            raise ValueError("--paper_protocol scores single records: drop --user_column")
        return user_tables.load(
            _DATA.dataset.value,
            _DATA.of_own_table(),
            user_column=_USER_COLUMN.value,
            most_records=_MOST_RECORDS.value,
            fraction=_VALIDATION_FRACTION.value if keeps else None,
            key=_SPLIT_KEY.value.encode(),
        )
    derived_flags.refuse(["most_records"], "belongs to --user_column: drop it")
    loaded = _DATA.load(_DATA.dataset.value, _RUN.sampling)
    if not keeps:
        return loaded, loaded.without_validation()
    if _PAPER_PROTOCOL.value:
        return loaded, loaded.validation_is_test()
    with derived_flags.named_as_flags({"fraction": "validation_fraction", "key": "split_key"}):
        return loaded, loaded.parts(_VALIDATION_FRACTION.value, _SPLIT_KEY.value.encode())


def judged(loaded: data.Dataset) -> dict[str, Any]:
    """Returns how predictions are judged, by the flags; refuses those of the other kind."""
    if loaded.target_range is None:
        derived_flags.refuse(["error_scale"], "belongs to a regression: drop it")
        return _JUDGED.values()
    derived_flags.refuse(_JUDGED.names.values(), "belongs to a classification: drop it")
    low, high = loaded.target_range
    scale = (high - low) / 4 if _ERROR_SCALE.value is None else _ERROR_SCALE.value
    return {"error_scale": scale, "target_range": loaded.target_range}


def public_default(
    task: tuning.Task, chosen: tuning.tuner.Tuner, run: tuning.RunOptions, epsilon: float | None
) -> tuple[tuning.Task, tuning.Space, tuning.RunOptions]:
    """Returns task, space and options of the run as the public default sets them.

    The space holds the default alone where one run is made, else a prior around it. Adam has the
    default's lots and steps, and a prior of its own.
    """
    if run.noise_multiplier is not None:
        raise ValueError(
            "--noise_multiplier needs a --space of numbers: the public default needs --epsilon"
        )
    if run.bands is not None:
        raise ValueError("--bands needs a --space: the public default is for independent noise")
    if run.stages is not None:
        raise ValueError("--stage_shares needs a --space: the public default's steps are all alike")
    assert epsilon is not None  # It has a default where no noise is given.
    steps, records = run.steps, task.train.public_size
    if run.epochs is not None:
        if steps is not None:
            raise ValueError("both --steps and --epochs are given: pass one of them")
        steps = max(1, round(run.epochs * records / (run.lot_size or usual_lot_size(records))))
    default = defaults_of(task, epsilon, _TUNE.delta, lot_size=run.lot_size, steps=steps)
    if _DATA.optimizer.value != OPTIMIZER:
        middle = tuning.adam_rate(numbers_of(task)[0], default.steps)
        run = dataclasses.replace(run, lot_size=default.lot_size, steps=default.steps, epochs=None)
        prior = tuning.LogNormal(middle, PRIOR_FACTOR)
        return task, tuning.Space(learning_rate=prior, clip_norm=1.0), run
    run = dataclasses.replace(
        default.run,
        sampling=run.sampling,
        clipping=run.clipping or default.run.clipping,
        compute_dtype=run.compute_dtype,
    )
    space = default.space(None if tuner_flags.trains_once(chosen) else PRIOR_FACTOR)
    return default.averaged(task), space, run


_ON_TEST = {
    "test_accuracy": "accuracy on test data (not in the release)",
    "test_accuracy_of_classes": "  mean accuracy of the classes",
    "test_error": "mean absolute error on test data, in the target's units (not in the release)",
    "test_error_of_one_value": "  of their median, the same for every record",
}
"""What is measured on test data by name, in words."""


def on_test_data(
    loaded: data.Dataset, task: tuning.Task, params: Any, test: data.Split
) -> dict[str, float]:
    """Returns how well a released model predicts test data, by the names of `_ON_TEST`."""
    if task.classifier is not None and loaded.classes is not None:
        predicted = task.classifier.predict(params, test.inputs)
        accuracy, of_classes = cautions.accuracies(predicted, test.labels, loaded.classes)
        return {"test_accuracy": accuracy, "test_accuracy_of_classes": of_classes}
    assert task.targets is not None  # It is a regression.
    apply = _DATA.module(None, task.train.public_size).apply
    rows = [test.inputs[at : at + 1024] for at in range(0, len(test.inputs), 1024)]
    outputs = np.concatenate([apply({"params": params}, some)[:, 0] for some in rows])
    errors = np.abs(np.asarray(task.targets.predicted(outputs)) - test.labels)
    constant = np.abs(test.labels - np.median(test.labels))
    return {"test_error": float(errors.mean()), "test_error_of_one_value": float(constant.mean())}


def report(
    result: tuning.Result,
    chosen: tuning.tuner.Tuner,
    space: tuning.Space,
    delta: float,
    on_test: dict[str, float] | None,
) -> tuple[Table, dict[str, float | None]]:
    """Returns the closing table, and the numbers in it that are not in the release.

    `on_test` has what was measured on test data, by its words; None: there is none.
    """
    table = Table(show_header=False, title="What was released, and what it cost")
    for name, value in result.release.hyperparameters.items():
        shown = "default" if value is None else value
        table.add_row(name, shown if isinstance(shown, str) else f"{shown:.5g}")
    facts: dict[str, float | None] = {"test_accuracy": None, "test_accuracy_of_classes": None}
    if on_test is None:
        table.add_row("on test data (not in the release)", "no test data")
    for name, value in (on_test or {}).items():
        table.add_row(_ON_TEST[name], f"{value:.4f}" if value < 100 else f"{value:.6g}")
    facts |= on_test or {}
    if result.guarantee is None:
        table.add_row("privacy", "NONE: trained without noise")
    else:
        where = f" at delta {delta:g}"
        for name, epsilon, words in tuner_flags.cost_rows(result, chosen, space, delta):
            facts[name] = epsilon
            table.add_row(words, f"epsilon {epsilon:.4f}{where}")
            where = ""  # The first row alone says at which delta.
        table.add_row("neighbouring relation", result.guarantee.relation.replace("_", " "))
    return table, facts


def main() -> int:
    """Runs the job; returns the exit code."""
    with contextlib.ExitStack() as held:
        names = tuner_flags.settings() | _RUN.names | _TUNE.names | _JUDGED.names | _SCHEDULE.names
        names |= {"error_scale": "error_scale", "stages": "stage_shares"}
        held.enter_context(derived_flags.named_as_flags(names))
        run = checked_run()
        compile_cache.switch_on()
        writes = job_flags.join_processes()
        console = Console(highlight=False, soft_wrap=True, quiet=not writes)
        chosen = tuner_flags.tuner()
        space = search_space(chosen)
        lasting, claims = job_flags.lasting(), not job_flags.writes_nothing()
        folder = os.path.abspath(_OUT_DIR.value or os.path.join("runs", _DATA.name))
        if claims:
            claim = run_folder.claimed(_OUT_DIR.value, _DATA.name, resumed=lasting)
            folder = held.enter_context(claim)
        job = job_flags.job(folder, f"{_DATA.optimizer.value} {_SCHEDULE.value} {_TUNE.seed}")
        if lasting and run_folder.is_finished(folder):
            config.refuse_changes(folder)
            if claims:
                job_flags.remove_working_folder(job)
            console.print(f"{folder} is finished: there is nothing left to do")
            return 0
        run_folder.refuse_existing(folder)
        held.enter_context(job.held())
        job.refuse_early_merge()
        return tune(folder, job, chosen, space, run, console)


def tune(
    folder: str,
    job: tuning.Job,
    chosen: tuning.tuner.Tuner,
    space: tuning.Space | None,
    run: tuning.RunOptions,
    console: Console,
) -> int:
    """Loads, trains, selects and writes; returns the exit code.

    `folder` is this run's; the process that writes it has claimed it. If `space` is None, the
    space of the public default is searched.
    """
    name, schema = _DATA.name, _DATA.schema()
    with command_line.shown_warnings(console.print, {}):
        loaded, parts = load_data(chosen)
    warnings = [parts.non_private, loaded.caveat]
    seen = ledger.SeenData.of(_DATA.dataset.value, (parts.train.inputs, parts.train.labels))
    train, validation = parts.train, parts.validation
    earlier = ledger.earlier_runs(os.path.dirname(folder), seen)
    warnings += earlier.warnings(name)
    for warning in filter(None, warnings):
        console.print(f"warning: {warning}")
    learned, held_out = (
        part.records if isinstance(part, user_tables.UserPart) else part
        for part in (train, validation)
    )
    task = _DATA.task(loaded.classes, learned, held_out, **judged(loaded))
    if task.targets is not None:
        console.print(f"a regression: {task.description}")
    partitioned = tuner_flags.is_partitioned(chosen)
    not_private = getattr(chosen, "not_private", False)
    training_words = "models of partitions" if partitioned else "candidates (K is the curator's)"
    if tuner_flags.trains_once(chosen):
        training_words = "the one run"
    options = _TUNE.values()
    options["validation_is_public"] |= _PAPER_PROTOCOL.value
    unit = unit_of(
        REPLACE_ONE if run.sampling == FIXED else ADD_OR_REMOVE_ONE,
        in_words(task.users, options["validation_is_public"]),
    )

    def warn_of_budget(epsilon: float | None) -> None:
        this = {"run": "", "epsilon": epsilon, "delta": _TUNE.delta, "unit": unit}
        words = ledger.over_budget([*earlier.entries, this], _BUDGET.value)
        if words is not None:
            console.print(f"warning: {words}")

    if not_private:
        run = dataclasses.replace(run, noise_multiplier=run.noise_multiplier or 0.0)
    elif run.noise_multiplier is None and (
        space is None or "noise_multiplier" not in space.parameters
    ):
        options["epsilon"] = options["epsilon"] or DEFAULT_EPSILON
    if options["epsilon"] is not None:
        warn_of_budget(options["epsilon"])
    optimizer = _DATA.named_optimizer(_SCHEDULE.value, schedule_settings())
    if space is None:
        task, space, run = public_default(task, chosen, run, options["epsilon"])
    law = tuner_flags.law_in_words(chosen, space)
    if law is not None:
        console.print(law)
    with contextlib.ExitStack() as held:
        if not job_flags.writes_nothing():
            room = f"{folder}.room"
            held.enter_context(
                command_line.when_interrupted(lambda: private_files.release_file(room))
            )
            held.enter_context(files.reserved(room, SPARE_BYTES + model_bytes(task)))
        held.enter_context(command_line.shown_warnings(console.print, _JUDGED.names))
        bar = held.enter_context(command_line.progress_bar(console))
        line = bar.add_task("calibrating the noise", total=None)
        result = tuning.tune(
            task,
            space,
            chosen,
            **options,
            run=run,
            optimizer=optimizer,
            progress=lambda done, total: bar.update(
                line, description=training_words, completed=done, total=total
            ),
            job=job,
        )
    if result is None:
        console.print("this shard has finished; when all have, run --shard=merge/N")
        return 0
    if job_flags.writes_nothing():
        return 0
    with command_line.shown_warnings(console.print, _JUDGED.names):
        # The draw is spent: only what the release consists of may end the program from here on.
        release = _CONTEXT.made(result.release.with_context)
        with run_folder.written_whole(
            folder, functools.partial(release.save, schema=schema)
        ) as partial:
            private_folder = os.path.join(partial, "curator")
            facts: dict[str, float | None] = {}
            table = None
            with beside_the_release("writing the statement's page"):
                statement_page.write(partial)
            with beside_the_release("noting this cost in the ledger"):
                os.makedirs(private_folder, mode=0o700)
                ledger.write_ledger(
                    private_folder,
                    earlier.entries,
                    run=folder,
                    seen=seen,
                    epsilon=result.guarantee.epsilon(_TUNE.delta) if result.guarantee else None,
                    delta=_TUNE.delta,
                    unit=unit,
                )
            with beside_the_release("predicting the test data"):
                on_test = None
                if parts.test is not None:
                    # The test data is touched here, once, after the selection.
                    on_test = on_test_data(loaded, task, release.params, parts.test)
                table, facts = report(result, chosen, space, _TUNE.delta, on_test)
            with beside_the_release("writing the curator's record"):
                trained = _DATA.model.value or "the default model"
                shown = "average over partitions" if partitioned else "every candidate"
                show = functools.partial(
                    curator_page.beside,
                    statement=release.statement,
                    files_released=os.listdir(os.path.join(partial, "release")),
                    title=f"{name}, {trained}: {shown} (curator only)",
                    against="learning_rate",
                    chance=loaded.classes and max(_JUDGED.class_priors or [1 / loaded.classes]),
                )
                dataclasses.replace(result.curator, beside=show).save(private_folder, **facts)
            with beside_the_release("writing the flags of this run"):
                config.save(private_folder)
        with beside_the_release("comparing this cost with the budget"):
            if options["epsilon"] is None and result.guarantee is not None:
                warn_of_budget(result.guarantee.epsilon(_TUNE.delta))
        if table is not None:
            console.print(table)
        with beside_the_release(
            f"removing {job.folder}, which holds secrets (remove it yourself),"
        ):
            job_flags.remove_working_folder(job)
    may = "NOT private, no guarantee" if result.guarantee is None else "may be published"
    console.print(f"release ({may}):  {os.path.join(folder, 'release')}")
    console.print(f"curator (never publish):     {os.path.join(folder, 'curator')}")
    return 0


def model_bytes(task: tuning.Task) -> int:
    """Returns how many bytes the parameters of a task's model take."""
    shapes = jax.eval_shape(task.initial, jax.random.key(0))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


if __name__ == "__main__":
    command_line.run(main)
