"""Where one of several is marked it is refused, whichever one it is; where none is, it is not.

The refusals are found in the source (`helpers/any_of.py`): a new one fails here until it has a
case.
"""

import dataclasses
import functools
import inspect
import itertools
import json
import types

import any_of
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_tuners
from flax import linen as nn

from dpjax import (
    accounting,
    certificate,
    checks,
    data,
    federated,
    models,
    pareto,
    training,
    tuning,
)
from dpjax.accounting import guarantee
from dpjax.bridges.selection import ModelFile
from dpjax.data import tabular, user_arrays
from dpjax.federated import local_training, voting
from dpjax.pareto import acquisition, fronts, gaussian_process
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.releases import ledger
from dpjax.training import dp_sgd
from dpjax.training.clipping.checks import batch_size
from dpjax.training.stages import Stages
from dpjax.training.sweep import hosts
from dpjax.tuning import Job, Records
from dpjax.tuning.problem.class_weights import Weighing
from dpjax.tuning.problem.task import check_disjoint, check_neighbours
from dpjax.tuning.selection import BestOf, BestOfRuns, Selection, counts_of, ranks_of

PLACES = {place.name: place for place in any_of.places()}


def _with(marks, good, bad):
    """One of each, by the marks."""
    return [bad if mark else good for mark in marks]


def _two(marks, good, bad):
    """Two, of which the second stands for two marks."""
    return _with([marks[0], any(marks[1:])], good, bad)


# ---- the accounting


def _grids(marks):
    """Of the two laws of a pair, which are all there are."""
    one = accounting.gaussian(4.0).pair.forward
    other = dataclasses.replace(one, interval=2 * one.interval)
    guarantee._pair_of([one, other if any(marks) else one])


def _tabulated(marks):
    k = np.cumsum([1, *_with(marks, 2, -1)]) + 5
    accounting.Tabulated(k, np.full(4, 0.25))


def _mixed(marks):
    bad = np.array(marks)
    weights = np.where(bad, -0.1, (1.0 + 0.1 * bad.sum()) / max(1, (~bad).sum()))
    accounting.mixture([accounting.gaussian(4.0)] * 3, weights)


def _losses(marks):
    """A distribution of losses in two directions, of which some are bounds from below."""
    from dp_accounting.pld import privacy_loss_distribution as losses

    two = [marks[0], any(marks[1:])]
    made = [
        losses.from_gaussian_mechanism(4.0, pessimistic_estimate=not mark, sampling_prob=0.1)
        for mark in two
    ]
    pld = losses.PrivacyLossDistribution(made[0]._pmf_remove, made[1]._pmf_add)
    accounting.Guarantee.from_pld(pld)


def _order(marks, *, divergence=0.5):
    orders = np.cumsum([5.0, *_with(marks, 1.0, -1.0)])
    accounting.renyi_only(orders, np.full(4, divergence))


def _hints(marks):
    words = accounting.gaussian(4.0).provenance
    good = {"step": 8, "fine": 8, "exact": 0}
    hints = {name: str(one) if mark else one for (name, one), mark in zip(good.items(), marks)}
    certificate.bounds(words, 0, 1.0, 0.0, hints)


# ---- records and models


def _targets(marks):
    table = {"x": [0.5] * len(marks), "y": _with(marks, "a", None)}
    data.from_table(table, SCHEMA, public_size=3, identified_by="slot")


def _leaves(marks):
    Records(_with(marks, np.zeros(4), np.float32(0.0)), 4, 4)


def _stable(sampling, **named):
    def call(marks):
        (name,) = named
        records = [Records(np.zeros(4), 4, 4, **{name: not mark}) for mark in marks]
        check_neighbours(sampling, *records)

    return call


def _entry(marks, tmp_path, *, words=False):
    line = dict(run="r", time="t", data_set="d", data="x", smallest_hashes=["a", "b", "c"])
    line |= dict(epsilon=1.0, delta=1e-5)
    if words:
        line |= {name: 7 for name, mark in zip(("run", "time", "data"), marks) if mark}
    else:
        line["smallest_hashes"] = _with(marks, "a", 7)
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
    path.write_text("head\n" + json.dumps(line) + "\n")
    list(ledger._entries(path))


def _disjoint(marks):
    shared = np.zeros((4, 2))
    train = [shared if mark else np.zeros((4, 2)) for mark in marks]
    check_disjoint(Records(train, 4, 4), Records([np.ones((4, 3)), shared], 4, 4))


SCHEMA = data.read_schema(
    {"target": {"column": "y", "classes": ["a", "b"]}, "columns": {"x": {"range": [0, 1]}}}
)


def _labels(marks):
    table = {"x": [0.5] * len(marks), "y": _with(marks, "a", "c")}
    data.from_table(table, SCHEMA, public_size=len(marks))


def _csv(tmp_path, header):
    path = tmp_path / "table.csv"
    path.write_text(f"{header}\n" + ",".join(["1"] * (1 + header.count(","))) + "\n")
    data.write_schema(path, tmp_path / f"schema_{len(list(tmp_path.iterdir()))}.json")


def _names(marks, tmp_path):
    _csv(tmp_path, ",".join("7" if mark else f"name{place}" for place, mark in enumerate(marks)))


def _separators(marks, tmp_path):
    _csv(tmp_path, "name" + "".join(sign * mark for sign, mark in zip(";\t|", marks)) + "other")


def _counts(marks):
    """A merge of shares of which some lack models that they were to hold."""

    class Lacking(Job):
        def share(self, total):
            return super().share(total) if total == 1 else np.arange(0)  # Others train them.

        def collected(self, own, drawn):
            if "counts" not in own:  # Of the final training.
                return super().collected(own, drawn)
            return [{"members": np.arange(4), "counts": np.array([3, *_with(marks, 3, -1)])}]

    tiny_tuners.run("exponential", job=Lacking(), seed=1)


# ---- searches


DOMAIN = pareto.Domain(rate=pareto.Log(0.1, 10.0), noise=pareto.Log(0.1, 10.0))


def _told(marks, *, epsilon=(1.0, 1.0), utility=(0.5, 0.5), shape=False):
    number = len(marks)
    given = {"rate": np.ones(number), "noise": np.ones(number)}
    cost, measured = np.array(_with(marks, *epsilon)), np.array(_with(marks, *utility))
    if shape:
        shapes = [number - 1 if mark else number for mark in marks]
        given = {name: np.ones(size) for name, size in zip(given, [number, shapes[0]])}
        cost, measured = np.ones(shapes[1]), np.full(shapes[2], 0.5)
    pareto.SearchRecord(DOMAIN, (10.0, 1.0)).tell(given, cost, measured)


# ---- studies of Optuna


@functools.cache
def _optuna():
    return pytest.importorskip("optuna", reason="the extra bridges is not installed")


def _trial(**changed):
    optuna = _optuna()
    law = optuna.distributions.FloatDistribution(0.0, 1.0)
    given = dict(value=0.5, params={"rate": 0.5}, distributions={"rate": law})
    return optuna.trial.create_trial(**(given | changed))


def _study(marks, storage=None, number=None, **changed):
    """A finished study, of which some trials are marked."""
    optuna = _optuna()
    from dpjax.bridges import optuna as bridge

    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(), storage=storage)
    study.add_trials([_trial(**(changed if mark else {})) for mark in marks])
    return bridge, study


def _priced(marks, tmp_path, *, kept=False, independent=True, **changed):
    """Its price: of the study in memory, or of the storage that it is in."""
    storage = f"sqlite:///{tmp_path}/{len(list(tmp_path.iterdir()))}.db" if kept else None
    bridge, study = _study(marks, storage, **changed)
    where = study if storage is None else storage
    bridge.price_study(
        where, base=accounting.gaussian(4.0), most_trials=len(marks), independent=independent
    )


def _in_both_places(**changed):
    def call(marks, tmp_path):
        for kept in (False, True):
            expected, found = any(marks), None
            try:
                _priced(marks, tmp_path, kept=kept, **changed)
            except ValueError as error:
                found = error
            if expected != (found is not None):
                return
        if found is not None:
            raise found

    return call


def _state(name):
    state = _optuna().trial.TrialState[name]
    return dict(state=state, value=None)


def _stopped(marks, tmp_path):
    for name in ("PRUNED", "RUNNING"):
        _in_both_places(**_state(name))((*marks, False), tmp_path)


def _with_a_value(marks, tmp_path):
    """A trial with a value is enough; `marks` has it."""
    failed = _state("FAIL")
    _in_both_places(independent=False, **failed)([not mark for mark in marks], tmp_path)


def _ranges(marks):
    optuna = _optuna()
    from dpjax.bridges import optuna as bridge

    laws = [optuna.distributions.IntDistribution(1, most) for most in (3, 4)]
    trials = [
        _trial(params={"rate": 1}, distributions={"rate": law})
        for law in [laws[0], *_with(marks, *laws)]
    ]
    bridge._all_values("rate", trials)


def _spent(marks, tmp_path):
    pytest.importorskip("flwr", reason="the extra federated is not installed")
    from dpjax.federated.flower import storage

    line = dict(run="1", fingerprint="f", what="vote", phase=1, epsilon=1.0, delta=0.0)
    line |= {name: 7 for name, mark in zip(("run", "fingerprint", "what"), marks) if mark}
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
    path.write_text(json.dumps(line) + "\n")
    with open(path, "rb") as file:
        storage._read(file.fileno(), path)


def _global_model(marks):
    pytest.importorskip("flwr", reason="the extra federated is not installed")
    from dpjax.federated.flower import noisy_vectors

    values = np.where(marks, np.nan, 1.0).astype(np.float32)
    record = types.SimpleNamespace(to_numpy_ndarrays=lambda: [values])
    noisy_vectors._parameters(
        types.SimpleNamespace(array_records={noisy_vectors.PARAMETERS_RECORD: record}),
        types.SimpleNamespace(model=types.SimpleNamespace(dimension=3)),
    )


def _node(marks, tmp_path):
    pytest.importorskip("flwr", reason="the extra federated is not installed")
    from dpjax.federated.flower import storage

    inputs = np.where(marks, np.nan, 1.0)[:, None]
    np.savez(tmp_path / "records.npz", inputs=inputs, labels=np.arange(3))
    storage.read_folder(str(tmp_path))


def _candidate(marks):
    named = zip(local_training.HYPERPARAMETERS, marks)
    local_training.stacked_candidates([{name: 0.5 for name, mark in named if not mark}])


def _ballot(marks):
    plan = federated.VoteSettings(100, 3, votes=1).plan()
    marked = np.array(_with(marks, 0, 2))
    ones = 1 - marked.sum()  # The votes add up, whatever is marked.
    ballot = np.array([ones, 0, 0]) if not any(marks) else marked
    if any(marks):
        free = np.flatnonzero(~np.array(marks))
        ballot[free[:1]] = ones
    voting.noisy_ballot(ballot, plan, HostRandomness(7))


def _answered(marks):
    pytest.importorskip("flwr", reason="the extra federated is not installed")
    from dpjax.federated.flower import storage

    lines = [{"run": "1", "fingerprint": "f", "phase": phase} for phase in _with(marks, 1, 3)]
    storage._check_open(lines, 1, 2, types.SimpleNamespace(fingerprint="f"))


def _reported(marks):
    """Of four candidates one was reported; it is reported again."""
    selection = Selection(
        BestOf(accounting.Fixed(4)), {"counts": np.array([4]), "noise": np.zeros(4)}, 10
    )
    selection.report([3], [1], [True], ())
    again = np.where(marks, 3, np.arange(3))
    selection.report(again, np.ones(3, int), np.ones(3, bool), ())


def _several_labels(marks):
    """Of three records with one label each, one that is neither 0 nor 1 where there is a mark."""
    inputs, labels = np.ones((3, 2), np.float32), np.where(marks, 2, 1)[:, None]
    train = Records((inputs, labels), 3, 3)
    tuning.multi_label(nn.Dense(1), train, Records((inputs + 1, labels % 2), 3, 3))


def _stages(marks):
    shares = [0.001 if mark else 0.2 for mark in marks]
    Stages((*shares, 1.0 - sum(shares))).ends(30)


CASES = {
    "accounting/guarantee._pair_of": (_grids, "on different grids"),
    "accounting/mechanisms/elementary.renyi_only": (
        lambda marks: accounting.renyi_only(
            np.where(marks, np.inf, [2.0, 3.0, 4.0]), np.array([1.0, 1.5, 2.0])
        ),
        "orders must be finite",
    ),
    "training/clipping/checks.batch_size": (
        lambda marks: batch_size(
            [np.ma.masked_array(np.ones(2), False) if mark else np.ones(2) for mark in marks]
        ),
        "the batch is masked",
    ),
    "tuning/problem/ready_tasks.multi_label.fits": (_several_labels, "not all 0 or 1"),
    "accounting/numerics/rdp_grid.epsilon_grid": (
        lambda marks: accounting.epsilon_grid(
            np.ones((3, 2)), [2.0, 3.0], np.where(marks, 1.0, 1e-5)
        ),
        "strictly between 0 and 1",
    ),
    "accounting/numerics/rdp_grid._settings": (
        lambda marks: accounting.rdp_grid(np.where(marks, 1.5, 0.5), 1.0, 1, [2.0]),
        "must lie in .0, 1. everywhere",
    ),
    "accounting/numerics/rdp_grid._settings 2": (
        lambda marks: accounting.rdp_grid(0.5, np.where(marks, 0.0, 1.0), 1, [2.0]),
        "positive and finite everywhere",
    ),
    "accounting/numerics/rdp_grid._settings 3": (
        lambda marks: accounting.rdp_grid(0.5, 1.0, np.where(marks, 1.5, 1.0), [2.0]),
        "whole numbers",
    ),
    "accounting/numerics/rdp_grid._orders": (
        lambda marks: accounting.rdp_grid(0.5, 1.0, 1, np.where(marks, 1.0, 2.0)),
        "orders",
    ),
    "accounting/selection/laws.Tabulated.__init__": (_tabulated, "needs ascending k"),
    "bridges/selection.ModelFile.files": (
        lambda marks: ModelFile().files(_with(marks, np.zeros(2), "text")),
        "not a pytree of arrays",
    ),
    "bridges/optuna.price_study": (_with_a_value, "no trial with a value"),
    "bridges/optuna.price_study 2": (
        _in_both_places(independent=False, user_attrs={"correct_without_noise": 3}),
        "holds exact counts",
    ),
    "bridges/optuna._check_independent": (_stopped, "pruned, or has not ended"),
    "bridges/optuna._check_independent 2": (
        _in_both_places(system_attrs={"fixed_params": {"rate": 0.5}}),
        "enqueued, retried or constrained",
    ),
    "bridges/optuna._check_independent 3": (
        _in_both_places(intermediate_values={1: 0.5}),
        "reported intermediate values",
    ),
    "bridges/optuna._all_values": (_ranges, "missing in some trials, or had different ranges"),
    "checks.array": (
        lambda marks: checks.array("numbers", np.where(marks, np.nan, 1.0)),
        "numbers must be",
    ),
    "data/tables._labels": (_labels, "outside its classes"),
    "data/tabular._header": (_names, "a number among its column names"),
    "data/tabular._header 2": (_separators, "not separated by commas"),
    "federated/flower/storage._check_open": (_answered, "a second answer costs again"),
    "models/nets.build_module": (
        lambda marks: models.build_module("mlp", 2, widths=_with(marks, 4, 0)),
        "pass positive hidden widths",
    ),
    "training/dp_sgd.partition": (
        lambda marks: dp_sgd.partition([jnp.zeros(1)] * 3, list(marks)),
        "selects no leaf",
    ),
    "training/gradient_scales.public_scale": (
        lambda marks: training.public_scale(
            {"a": np.where(marks[:2], np.inf, 0.5), "b": 0.0 if marks[2] else 1.0}
        ),
        "of positive numbers",
    ),
    "training/gradient_scales.public_scale 2": (
        lambda marks: training.public_scale({"a": np.where(marks, 1e-9, 0.5), "b": 1.0}),
        "within a factor of 1e.06",
    ),
    "training/stages.Stages.ends": (_stages, "leave a stage without a step"),
    "training/sweep/hosts.join": (
        lambda marks: hosts.join(
            *(given if mark else None for given, mark in zip(("a:1", 2, 0), marks))
        ),
        "go together",
    ),
    "tuning/selection.BestOfRuns.update": (
        lambda marks: BestOfRuns(1).update(
            np.zeros(3, int), np.arange(3), np.where(marks, np.nan, 1.0), np.zeros(3)
        ),
        "a score is NaN",
    ),
    "tuning/selection.counts_of": (
        lambda marks: counts_of(
            types.SimpleNamespace(draw=lambda number, source: np.where(marks, -1, 1)), 3, None
        ),
        "must return whole numbers >= 0",
    ),
    "tuning/selection._ranks_together": (
        lambda marks: ranks_of(
            types.SimpleNamespace(
                in_order=False,
                rank=lambda scores: np.where(np.array(marks)[scores.astype(int)], np.nan, 1.0),
            ),
            np.arange(3.0),
        ),
        "must return a number for each score",
    ),
    "tuning/tuners/partition_counts.partition_counts": (_counts, "do not hold every model"),
    "pareto/fronts._points": (
        lambda marks: pareto.hypervolume(
            [_with([mark] * 2, 0.5, np.nan) for mark in marks], (10.0, 1.0)
        ),
        "hold a NaN",
    ),
    "pareto/fronts.check_anti_ideal": (
        lambda marks: pareto.check_anti_ideal(_two(marks, 1.0, np.inf)),
        "two finite positive numbers",
    ),
    "pareto/fronts.check_anti_ideal 2": (
        lambda marks: pareto.check_anti_ideal(_two(marks, 1.0, 0.0)),
        "two finite positive numbers",
    ),
    "pareto/fronts.check_anti_ideal 3": (
        lambda marks: pareto.check_anti_ideal(
            (2.0, 0.5), [_with([mark] * 2, 3.0, 0.1) for mark in marks]
        ),
        "dominate",
    ),
    "pareto/record.SearchRecord.tell": (
        functools.partial(_told, shape=True),
        "as many of each",
    ),
    "pareto/record.SearchRecord.tell 2": (
        functools.partial(_told, epsilon=(1.0, -1.0)),
        "pass epsilon >= 0",
    ),
    "pareto/record.SearchRecord.tell 3": (
        functools.partial(_told, epsilon=(1.0, np.inf)),
        "pass epsilon >= 0",
    ),
    "pareto/record.SearchRecord.tell 4": (
        functools.partial(_told, utility=(0.5, -0.1)),
        "utilities in .0, 1.",
    ),
    "pareto/record.SearchRecord.tell 5": (
        functools.partial(_told, utility=(0.5, 1.1)),
        "utilities in .0, 1.",
    ),
    "accounting/calibration.calibrate_largest": (
        lambda marks: accounting.calibrate_largest(
            lambda n: accounting.repeat(accounting.gaussian(9.0), int(n)),
            epsilon=1.0,
            delta=1e-5,
            bracket=np.array([1, 9]) + np.where([marks[0], any(marks[1:])], 0.5, 0.0),
        ),
        "two whole numbers",
    ),
    "accounting/combine.mixture": (_mixed, "3 probabilities that sum to 1"),
    "accounting/guarantee.Guarantee.from_pld": (_losses, "an optimistic distribution"),
    "accounting/guarantee.Guarantee.rdp": (
        lambda marks: accounting.gaussian(4.0).rdp(np.where(marks, 1.0, 2.0)),
        "orders must be > 1",
    ),
    "accounting/guarantee.Guarantee.tradeoff": (
        lambda marks: accounting.gaussian(4.0).tradeoff(np.where(marks, 1.5, 0.5)),
        "must be in .0, 1.: pass",
    ),
    "accounting/mechanisms/elementary.renyi_only 2": (
        lambda marks: accounting.renyi_only(
            np.where(marks, [0.3, 0.4, 0.5], [2.0, 3.0, 4.0]), np.ones(3)
        ),
        "ascend, each above 1",
    ),
    "accounting/mechanisms/elementary.renyi_only 3": (_order, "ascend, each above 1"),
    "accounting/mechanisms/elementary.renyi_only 4": (
        lambda marks: accounting.renyi_only([2.0, 3.0, 4.0], np.where(marks, -1.0, 1.0)),
        "divergences be >= 0",
    ),
    "certificate.bounds": (_hints, "hints are not ones that this program takes"),
    "certificate.whole_law": (
        lambda marks: certificate.whole_law(
            certificate.Measure(1.0, 0, np.where(marks, -0.1, 1.0), 0.9)
        ),
        "has lost mass",
    ),
    "checks.vector": (
        lambda marks: checks.vector("numbers", np.where(marks, np.inf, 1.0)),
        "numbers must be",
    ),
    "data/tabular._checked": (
        lambda marks: tabular.column_names(
            {"" if mark else "abc"[i]: [1] for i, mark in enumerate(marks)}
        ),
        "columns without a name",
    ),
    "data/tables.encoded": (_targets, "is missing from some records"),
    "tuning/problem/class_weights.Weighing.of": (
        lambda marks: Weighing.of("accuracy", np.where(marks, -1.0, 1.0), None, "decision"),
        "pass positive numbers",
    ),
    "data/user_arrays._inputs": (
        lambda marks: user_arrays._inputs(np.where(marks, np.nan, 1.0)[:, None], "inputs"),
        "hold NaN or infinite numbers",
    ),
    "data/user_arrays._labels": (
        lambda marks: user_arrays._labels(np.where(marks, np.inf, 1.0), 3, (0.0, 2.0), "labels"),
        "are not all finite",
    ),
    "data/user_arrays._labels 2": (
        lambda marks: user_arrays._labels(np.where(marks, 3, 2), 3, 3, "labels"),
        "are not all in 0..2",
    ),
    "federated/flower/storage._read": (_spent, "is not a ledger"),
    "federated/flower/noisy_vectors._parameters": (_global_model, "the parameters are not finite"),
    "federated/flower/storage.read_folder": (_node, "inputs hold NaN or infinity"),
    "federated/local_training.stacked_candidates": (_candidate, "pass learning_rate and decay"),
    "federated/voting.noisy_ballot": (_ballot, "not a ballot"),
    "training/sweep/hosts.join 2": (
        lambda marks: hosts.join(
            *(None if mark else given for given, mark in zip(("a:1", 2, 0), marks))
        ),
        "go together",
    ),
    "releases/ledger._entries": (_entry, "a line is not an entry"),
    "releases/ledger._entries 2": (functools.partial(_entry, words=True), "a line is not an entry"),
    "pareto/acquisition._checked": (
        lambda marks: acquisition._checked(
            np.zeros((1, 2)), np.ones((1, 2)), np.zeros((0, 2)), _two(marks, 1.0, np.nan)
        ),
        "two finite numbers",
    ),
    "pareto/acquisition._checked 2": (
        lambda marks: acquisition._checked(
            np.zeros((3, 2)),
            np.where(np.array(marks)[:, None], -1.0, np.ones((3, 2))),
            np.zeros((0, 2)),
            (1.0, 1.0),
        ),
        "variance must be >= 0",
    ),
    "pareto/fronts.hypervolume": (
        lambda marks: pareto.hypervolume([(0.5, 0.5)], _two(marks, 1.0, np.inf)),
        "two finite numbers",
    ),
    "pareto/fronts.to_model_units": (
        lambda marks: fronts.to_model_units([(0.5, 2.0 if mark else 0.5) for mark in marks]),
        "leave failures out",
    ),
    "pareto/gaussian_process._checked": (
        lambda marks: gaussian_process._checked(np.full((3, 1), 0.5), np.where(marks, np.nan, 1.0)),
        "drop failures",
    ),
    "pareto/gaussian_process._checked 2": (
        lambda marks: gaussian_process._checked(np.where(marks, 1.5, 0.5)[:, None], np.ones(3)),
        "drop failures",
    ),
    "pareto/oracles.TrainingCost.__call__": (
        lambda marks: pareto.TrainingCost(pareto.RunShapes(1000))(
            {
                "epochs": np.ones(3),
                "lot_size": np.full(3, 100.0),
                "noise_multiplier": np.where(marks, 0.0, 2.0),
            }
        ),
        "pass numbers above 0",
    ),
    "pareto/record.SearchRecord.tell 6": (
        lambda marks: pareto.SearchRecord(DOMAIN, (10.0, 1.0)).tell(
            {"rate": np.where(marks, np.nan, 1.0), "noise": np.ones(3)}, np.ones(3), np.ones(3)
        ),
        "a setting is not finite",
    ),
    "pareto/oracles.RunShapes.accounted": (
        lambda marks: pareto.RunShapes(1000).accounted(
            {
                "epochs": np.ones(3),
                "lot_size": np.full(3, 100.0),
                "noise_multiplier": np.full(3, 2.0),
                "clip_norm": np.where(marks, 0.0, 1.0),
            }
        ),
        "clip_norm",
    ),
    "tuning/selection.Selection._check_left": (_reported, "already, or is not of this"),
    "tuning/problem/task.Records.__post_init__": (_leaves, "a leaf without an axis"),
    "tuning/problem/task.check_neighbours": (
        _stable("fixed", stable_under_replacement=True),
        "replacing a record",
    ),
    "tuning/problem/task.check_neighbours 2": (
        _stable("poisson", stable_under_removal=True),
        "a record that comes or goes",
    ),
    "tuning/problem/task.check_disjoint": (_disjoint, "records are the same"),
}
"""Place -> call of three marks (and tmp_path, if it takes it), and what its refusal says."""

ALL_OF_THEM = {"training/sweep/hosts.join", "training/sweep/hosts.join 2"}
"""Where marks on all are as good as on none."""


def test_every_refusal_of_one_of_several_has_a_case_or_is_free():
    assert PLACES.keys() == CASES.keys() | any_of.FREE.keys()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_one_of_several_is_refused_whichever_it_is(name, tmp_path):
    call, message = CASES[name]
    more = {"tmp_path": tmp_path} if "tmp_path" in inspect.signature(call).parameters else {}
    for marks in itertools.product([False, True], repeat=3):
        wanted = any(marks) != PLACES[name].one_suffices
        if all(marks) and name in ALL_OF_THEM:
            continue
        if wanted:
            with pytest.raises(Exception, match=message) as caught:
                call(marks, **more)
                pytest.fail(f"accepted with {marks}")
            assert "\n" not in str(caught.value)
        elif name not in ALL_OF_THEM:
            call(marks, **more)
