"""Every public name of tuning refuses what is no such argument: one line that names it.

Nothing is trained: what is refused is refused before, and the procedures stop where they would
begin.
"""

import contextlib
import functools
import inspect
import math
import types

import flat_call
import jax
import numpy as np
import pytest
from bad_arguments import BAD as SHARED
from bad_arguments import NOT_NUMBERS, NOT_TEXTS, check_refusals

from dpjax import accounting, federated, models, pareto, training, tuning
from dpjax.federated import averaging, voting
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.releases import rules
from dpjax.tuning import Records, Task

NOT_ARRAYS = ["12", b"1", {"a": 1}, 1j, object(), None, ["a", "b"], [[1.0], [1.0, 2.0]], True]
NOT_FUNCTIONS = [3, "print", None, math.nan, (print,), True]
BAD = SHARED | {
    "probability": [*NOT_NUMBERS, math.inf, -0.5, 1.5],
    "target": [*NOT_NUMBERS, 0.0, -1],  # Infinity has a meaning.
    "numbers": [*NOT_ARRAYS, math.nan, [], [[1.0]], [math.nan], [math.inf], [None]],
    "array": NOT_ARRAYS,  # What NaN means, where there may be any, is the function's to say.
    "whole array": [*NOT_ARRAYS, math.nan, [0.5, 0.5], [math.nan]],
    "word": [*NOT_TEXTS, "nonsense", ["ehvi"]],
    "texts": [3, None, "rate=1", b"rate=1", math.nan, [3], [None], ["rate"], {"rate": 1}],
    "function": NOT_FUNCTIONS,
    "generator": [3, None, "default", math.nan],
    "source": [3, None, "secret", np.random.default_rng(0)],
    "shard": [3, "0/2", True, (0,), (0, 0), (2, 2), (0.5, 2), ("0", 2), (True, 2), (math.nan, 2)],
    "mapping": [3, "rate", math.nan, True, (1.0,), ["rate"], {"rate": "1"}, {"rate": None}],
    "schema": [3, "people.json", math.nan, True, ["age"]],
    "task": [3, None, "task", {}, math.nan],
    "candidates": [None, "1", b"1", 0, -1, 2.5, math.nan, True, [], [3], ["a"], {"a": 1}, object()],
    "listed": [None, "1", 3, math.nan, True, [3], ["a"], [{"rate": "1"}], [{"rate": math.nan}]],
    "object": [3, None, "plan", {}, math.nan, (1.0,), True],
}
"""What each kind of argument must refuse."""

SPACE = tuning.Space(quality=0.5, clip_norm=1.0)
VOTE_SETTINGS = federated.VoteSettings(clients=10, candidates=4, votes=2, epsilon=20.0)
VOTE = federated.VotePlan(VOTE_SETTINGS, 2.0)
AVERAGING_SETTINGS = federated.AveragingSettings(
    clients=10, dimension=3, rounds=1, epsilon=math.inf
)
AVERAGING = federated.AveragingPlan(AVERAGING_SETTINGS, 8, 0.0)
DOMAIN = pareto.Domain(rate=pareto.Log(0.001, 1.0))
SHAPES = pareto.RunShapes(40)
RECORD = pareto.SearchRecord(DOMAIN, (10.0, 1.0))
TOKENS = models.FunctionalModel(
    lambda key: np.zeros(2, np.float32), lambda params, inputs, rng=None: jax.nn.one_hot(inputs, 5)
)
MODEL = models.FunctionalModel(
    lambda key: np.zeros(2, np.float32), lambda params, inputs, rng=None: inputs
)


class Reached(Exception):
    """Everything was accepted: training would begin here."""


class Stops(tuning.Job):
    """A job that ends where it would draw."""

    def once(self, *given):
        raise Reached


def stops(key):
    """Initial parameters of a model that nobody comes to train."""
    raise Reached


def generator():
    return np.random.default_rng(0)


def split(**changed):
    fields = dict(
        inputs=np.ones((4, 2), np.float32),
        labels=np.zeros(4, np.int32),
        public_size=4,
        size_bound=4,
    )
    return types.SimpleNamespace(**(fields | changed))


def records(number=4):
    return Records(np.zeros(number, np.float32), number, number)


def spec(call, **arguments):
    """(function, {name: (good value, kind)}); a kind ending in "?" may be None, "" is not asked.

    Arguments of the kind "" may be any object (a pytree, a model), or are asked elsewhere.
    """
    return call, arguments


DRAWN = dict(number=(3, "count"), generator=(generator(), "generator"))
OF_RUNS = dict(
    epsilon=(None, "positive?"),
    delta=(1e-6, "probability"),
    noise_multiplier=(3.0, "not negative?"),
    lot_size=(8, "whole?"),
    steps=(2, "whole?"),
    epochs=(None, "positive?"),
    bands=(None, "whole?"),
    stages=(None, "object?"),
    compute_dtype=("float32", "word"),
    sampling=("poisson", "word"),
    optimizer=(None, "function?"),
    clipping=("automatic", "word?"),
    validation_is_public=(False, "flag"),
    seed=(None, "count?"),
    chunk_size=(2, "whole?"),
    progress=(print, "function?"),
    job=(Stops(), "object?"),
)
OF_SELECTED_RUNS = OF_RUNS | dict(
    score_noise=(2.0, "positive?"),
    not_private=(False, "flag"),
)
OF_PARTITIONS = OF_RUNS | dict(
    candidates=(2, "candidates"),
    partitions=(3, "whole"),
    partition_training=("rehearsal", "word"),
)
STARTED = dict(task=(None, "task"), space=(SPACE, "object"))
"""Task and optimiser are the toy's, put in when it is there."""

OF_A_MODEL = dict(
    trainable=(None, ""),
    initial=(None, ""),
    with_rng=(False, "flag"),
    model_reads=((), ""),  # See problem/test_model_reads.py.
    description=("a model", "text?"),
)
PUBLIC = {
    "AveragingSettings": spec(
        federated.AveragingSettings,
        clients=(10, "whole"),
        dimension=(3, "whole"),
        rounds=(2, "whole"),
        epsilon=(8.0, "target"),
        delta=(1e-5, "probability"),
        clip_norm=(1.0, "positive"),
        missing_fraction=(0.1, "probability"),
        server_rate=(1.0, "positive"),
    ),
    "AveragingSettings.plan": spec(
        AVERAGING_SETTINGS.plan,
        before=(accounting.gaussian(9.0, relation="replace_one"), "object?"),
    ),
    "AveragingPlan.local_noise": spec(
        federated.AveragingPlan(
            federated.AveragingSettings(clients=10, dimension=3), 8, 20.0
        ).local_noise,
        source=(HostRandomness(0), "source"),
        stream=(0, "count"),
    ),
    "Choice": spec(
        tuning.Choice, values=([1.0, 2.0], "numbers"), probabilities=([0.5, 0.5], "numbers?")
    ),
    "Choice.sample": spec(tuning.Choice([1.0]).sample, **DRAWN),
    "Job": spec(
        tuning.Job,
        placement=("rule", "word"),
        folder=("work", "path?"),
        shard=((0, 2), "shard?"),
        label=("", "text"),
        checkpoint_seconds=(0.0, "not negative"),
        micro_batch_size=("auto", "whole?"),
        stream_bytes=(None, "whole?"),
        check_contributions=(0, "count"),
    ),
    "LogNormal": spec(tuning.LogNormal, median=(0.1, "positive"), factor=(2.0, "positive")),
    "LogNormal.sample": spec(tuning.LogNormal(0.1, 2.0).sample, **DRAWN),
    "LogUniform": spec(tuning.LogUniform, low=(0.1, "number"), high=(1.0, "number")),
    "LogUniform.sample": spec(tuning.LogUniform(0.1, 1.0).sample, **DRAWN),
    "Records": spec(
        Records,
        arrays=(np.zeros(4), ""),
        public_size=(4, "whole"),
        size_bound=(4, "whole"),
        stable_under_replacement=(False, "flag"),
        identifiers=(np.arange(4), "whole array?"),
        stable_under_removal=(True, "flag?"),
    ),
    "Space": spec(tuning.Space, parameters=({"rate": 1.0}, "mapping")),
    "Space.sample": spec(SPACE.sample, **DRAWN),
    "Task": spec(
        Task,
        initial=(print, "function"),
        loss=(print, "function"),
        correct=(print, "function"),
        score=(None, ""),  # In place of correct; see problem/test_any_score.py.
        train=(records(), "object"),
        validation=(records(), "object"),
        trainable=(None, ""),
        with_rng=(False, "flag"),
        average=(None, ""),  # See training/test_averages.py.
        loss_reads=((), ""),  # See problem/test_loss_reads.py.
        description=("", "text"),
        classifier=(None, ""),  # Made by `classification`.
        constant_score=(None, ""),  # Made by `regression`; see test_nothing_learned.py.
        fits=(None, ""),  # Made by a ready task; see problem/test_labels.py.
        targets=(None, ""),  # As it; see problem/test_target_range.py.
    ),
    "Uniform": spec(tuning.Uniform, low=(0.1, "number"), high=(1.0, "number")),
    "Uniform.sample": spec(tuning.Uniform(0.1, 1.0).sample, **DRAWN),
    "VotePlan.fingerprint": spec(VOTE.fingerprint, candidates=([{"rate": 1.0}] * 4, "listed")),
    "VotePlan.local_noise": spec(
        VOTE.local_noise, source=(HostRandomness(0), "source"), stream=(0, "count")
    ),
    "VotePlan.statement": spec(VOTE.statement, secret=(True, "flag")),
    "VoteSettings": spec(
        federated.VoteSettings,
        clients=(10, "whole"),
        candidates=(4, "whole"),
        votes=(2, "whole"),
        epsilon=(1.0, "positive"),
        delta=(1e-5, "probability"),
        missing_fraction=(0.1, "probability"),
        noise=("skellam", "word"),
        scale=(1, "whole"),
    ),
    "regression": spec(
        tuning.regression,
        model=(MODEL, ""),
        train=(split(labels=np.zeros((4, 2))), "object"),
        validation=(split(labels=np.zeros((4, 2))), "object"),
        error_scale=(0.5, "positive"),
        target_range=(None, ""),  # See problem/test_target_range.py.
        loss=(None, "function?"),
        **OF_A_MODEL,
    ),
    "multi_label": spec(
        tuning.multi_label,
        model=(MODEL, ""),
        train=(split(labels=np.zeros((4, 2))), "object"),
        validation=(split(labels=np.zeros((4, 2))), "object"),
        loss=(None, "function?"),
        **OF_A_MODEL,
    ),
    "next_token": spec(
        tuning.next_token,
        model=(TOKENS, ""),
        train=(Records(np.zeros((4, 3), np.int32), 4, 4), "object"),
        validation=(Records(np.zeros((4, 3), np.int32), 4, 4), "object"),
        padding=(0, "count?"),
        **OF_A_MODEL,
    ),
    "classification": spec(
        tuning.classification,
        model=(MODEL, ""),
        train=(split(), "object"),
        validation=(split(), "object"),
        loss=(models.cross_entropy, "function"),
        **OF_A_MODEL,
        # See problem/test_class_weights.py.
        score=("accuracy", ""),
        class_weights=(None, ""),
        class_priors=(None, ""),
        weights_in=("loss", ""),
    ),
    "Doubling": spec(
        functools.partial(flat_call.tune, tuning.Doubling),
        **STARTED,
        **OF_PARTITIONS,
        selection_epsilon=(100.0, "positive"),
        granularity=(0.1, "number"),
        lower_bound=(0.2, "number"),
        variant=("segments", "word"),
        iterations=(None, "whole?"),
        hits=(3, "whole?"),
    ),
    "Exponential": spec(
        functools.partial(flat_call.tune, tuning.Exponential),
        **STARTED,
        **OF_PARTITIONS,
        selection_epsilon=(100.0, "positive"),
        mechanism=("exponential", "word"),
    ),
    "verify_release": spec(
        tuning.verify_release,
        path=("guarantee.json", "path"),
        rebuild=(rules.rebuilt, "function"),
    ),
    "parse_space": spec(tuning.parse_space, entries=(["rate=1"], "texts")),
    "RandomRepetitions": spec(
        functools.partial(flat_call.tune, tuning.RandomRepetitions),
        **STARTED,
        **OF_SELECTED_RUNS,
        repetitions=(accounting.Geometric(3.0), "object?"),
        score_on_training=(False, "flag"),
    ),
    "RunOptions": spec(
        tuning.RunOptions,
        lot_size=(8, "whole?"),
        steps=(2, "whole?"),
        epochs=(None, "positive?"),
        noise_multiplier=(3.0, "not negative?"),
        sampling=("poisson", "word"),
        clipping=("automatic", "word?"),
        compute_dtype=("float32", "word"),
        bands=(1, "whole?"),
        stages=(training.Stages((0.5, 0.5)), "object?"),
    ),
    "ThresholdStopping": spec(
        functools.partial(flat_call.tune, tuning.ThresholdStopping),
        **STARTED,
        **OF_SELECTED_RUNS,
        threshold=(0.5, "probability"),
        halting_probability=(0.5, "probability"),
    ),
    "public_defaults": spec(
        tuning.public_defaults,
        records=(100, "whole"),
        inputs=(3, "whole"),
        epsilon=(1.0, "positive"),
        delta=(1e-6, "probability"),
        outputs=(1, "whole?"),
        lot_size=(8, "whole?"),
        steps=(2, "whole?"),
    ),
    "adam_rate": spec(tuning.adam_rate, inputs=(30, "whole"), steps=(20, "whole")),
    "fitting_law": spec(
        tuning.fitting_law, space=(tuning.Space(learning_rate=tuning.LogUniform(0.1, 1)), "object")
    ),
    "public_model": spec(tuning.public_model, records=(100, "whole"), classes=(2, "whole")),
    "Untuned": spec(
        functools.partial(flat_call.tune, tuning.Untuned),
        **STARTED,
        **OF_RUNS,
    ),
    "tune": spec(
        tuning.tune,
        **STARTED,
        tuner=(tuning.RandomRepetitions(), "object"),
        run=(tuning.RunOptions(lot_size=8, steps=2, noise_multiplier=3.0), "object"),
        epsilon=(None, "positive?"),
        delta=(1e-6, "probability"),
        optimizer=(None, "function?"),
        validation_is_public=(False, "flag"),
        seed=(None, "count?"),
        chunk_size=(2, "whole?"),
        progress=(print, "function?"),
        job=(Stops(), "object?"),
    ),
    "Release.save": spec(
        tuning.Release({}, {}, {}).save,
        folder=("release", "path"),
        certificate=(False, "flag"),
        schema=(None, "schema?"),
    ),
    "train_clients": spec(
        federated.train_clients,
        model=(models.FunctionalModel(stops, MODEL.apply), ""),
        partitions=([(np.ones((4, 2)), np.zeros(4, int))], "object"),
        candidates=([{"learning_rate": 0.1, "decay": 1.0, "momentum": 0.0}], "listed"),
        epochs=(1, "whole"),
        batch_size=(2, "whole"),
        test_fraction=(0.5, "probability"),
        seed=(0, "count"),
        client_ids=([0], "whole array?"),
        loss=(models.cross_entropy, "function"),
        chunk_size=(None, "whole?"),
        progress=(None, "function?"),
    ),
    "averaging.averaged": spec(
        averaging.averaged,
        total=(np.zeros(3, int), "whole array"),
        plan=(AVERAGING, "object"),
        survivors=(10, "count"),
    ),
    "averaging.noisy_update": spec(
        averaging.noisy_update,
        update=(np.zeros(3), "array"),
        plan=(AVERAGING, "object"),
        source=(HostRandomness(0), ""),  # Not read without noise; see AveragingPlan.local_noise.
        stream=(0, ""),
    ),
    "averaging.quantised": spec(
        averaging.quantised, update=(np.zeros(3), "array"), plan=(AVERAGING, "object")
    ),
    "voting.ballots": spec(
        voting.ballots,
        losses=([0.1, 0.2, 0.3], "array"),
        accuracies=([0.1, 0.2, 0.3], "array"),
        votes=(1, "whole"),
    ),
    "voting.candidate_grid": spec(
        voting.candidate_grid,
        rates=([0.1], "numbers"),
        decays=([1.0], "numbers"),
        momenta=([0.0], "numbers"),
    ),
    "voting.noisy_ballot": spec(
        voting.noisy_ballot,
        ballot=([1, 1, 0, 0], "whole array"),
        plan=(VOTE, "object"),
        source=(HostRandomness(0), "source"),
        stream=(0, "count"),
    ),
    "voting.random_ballot": spec(
        voting.random_ballot,
        candidates=(4, "whole"),
        votes=(2, "whole"),
        source=(HostRandomness(0), "source"),
        stream=(0, "count"),
    ),
    "voting.tally": spec(
        voting.tally,
        total=([3, 2, 1, 0], "whole array"),
        plan=(VOTE, "object"),
        survivors=(10, "count"),
    ),
    "voting.whole_ballot": spec(
        voting.whole_ballot,
        losses=([0.1, np.nan, np.nan], "array"),
        accuracies=([0.1, 0.2, 0.3], "array"),
        votes=(2, "whole"),
        source=(HostRandomness(0), "source"),
    ),
    "pareto.Category": spec(pareto.Category, values=((1.0, 2.0), "numbers")),
    "pareto.Domain": spec(
        pareto.Domain,
        parameters=({"rate": 1.0, "other": pareto.Real(0.0, 1.0)}, "mapping"),
        feasible=(None, "function?"),
    ),
    "pareto.Domain.sample": spec(DOMAIN.sample, **DRAWN),
    "pareto.Integer": spec(pareto.Integer, low=(1, "number"), high=(3, "number")),
    "pareto.Log": spec(pareto.Log, low=(0.1, "number"), high=(1.0, "number")),
    "pareto.LogInteger": spec(pareto.LogInteger, low=(1, "number"), high=(3, "number")),
    "pareto.Real": spec(pareto.Real, low=(0.1, "number"), high=(1.0, "number")),
    "pareto.RunShapes": spec(
        pareto.RunShapes,
        dataset_size=(40, "whole"),
        sampling=("poisson", "word"),
        size_bound=(50, "whole?"),
    ),
    "pareto.SearchRecord": spec(
        pareto.SearchRecord,
        domain=(DOMAIN, "object"),
        anti_ideal=((10.0, 1.0), "numbers"),
        failed_as=(0.1, "number?"),
        identity=(None, ""),
        evaluations=((), ""),
    ),
    "pareto.SearchRecord.save": spec(RECORD.save, path=("record", "path")),
    "pareto.TrainedAccuracy": spec(
        pareto.TrainedAccuracy,
        task=(None, "task"),
        shapes=(SHAPES, "object"),
        optimizer=(print, "function"),
        classes=(2, "whole"),
        repetitions=(2, "whole"),
        side_by_side=(None, "whole?"),
        workers=(1, "whole?"),
    ),
    "pareto.TrainingCost": spec(
        pareto.TrainingCost,
        shapes=(SHAPES, "object"),
        delta=(1e-5, "probability"),
        method=("rdp", "word"),
    ),
    "pareto.ask": spec(
        pareto.ask,
        record=(RECORD, "object"),
        number=(1, "whole"),
        method=("random", "word"),
        initial=(1, "whole"),
        law=(None, "object?"),
        seed=(0, "count"),
    ),
    "pareto.check_anti_ideal": spec(
        pareto.check_anti_ideal,
        anti_ideal=((10.0, 1.0), "numbers"),
        points=([[1.0, 0.5]], "array?"),
    ),
    "pareto.fitted": spec(
        pareto.fitted,
        record=(RECORD, "object"),
        generator=(generator(), "generator"),
    ),
    "pareto.front": spec(pareto.front, points=([[1.0, 0.5]], "array")),
    "pareto.grid": spec(pareto.grid, domain=(DOMAIN, "object"), points_per_parameter=(2, "whole")),
    "pareto.hypervolume": spec(
        pareto.hypervolume,
        points=([[1.0, 0.5]], "array"),
        anti_ideal=((10.0, 1.0), "numbers"),
    ),
    "pareto.non_dominated": spec(pareto.non_dominated, points=([[1.0, 0.5]], "array")),
    "pareto.parse_domain": spec(pareto.parse_domain, entries=(["rate=log(0.1,1)"], "texts")),
    "pareto.reevaluate": spec(
        pareto.reevaluate,
        record=(RECORD, "object"),
        utility=(print, "function"),
        rounds=(1, "whole"),
        by_means=(False, "flag"),
        progress=(None, "function?"),
    ),
    "pareto.search": spec(
        pareto.search,
        domain=(DOMAIN, "object"),
        privacy=(lambda settings: 1.0 / settings["rate"], "function"),
        utility=(lambda settings: settings["rate"][:, None], "function"),
        method=("random", "word"),
        evaluations=(2, "whole"),
        initial=(1, "whole"),
        batch_size=(2, "whole"),
        anti_ideal=((10.0, 1.0), "numbers"),
        law=(None, "object?"),
        grid=(None, ""),  # Goes with one method alone: below.
        seed=(0, "count?"),
        path=(None, "path?"),
        label=("", ""),
        progress=(None, "function?"),
    ),
    "pareto.suggest": spec(
        pareto.suggest,
        record=(RECORD, "object"),
        privacy=(print, "function"),
        epsilon=(1.0, "positive"),
    ),
}

NOT_CALLED = {
    "PublicDefaults": "made by public_defaults",
    "register_tuner": "a decorator; its errors are in conformance/test_own_tuner.py",
    "registered_tuners": "without arguments",
    "AveragingPlan": "made by AveragingSettings.plan",
    "Release": "made by the procedures",
    "NotVerified": "an error",
    "PrivateRuns": "a base of tuners",
    "Result": "made by the procedures",
    "Tuner": "a base of tuners",
    "VoteAborted": "an error",
    "VotePlan": "made by VoteSettings.plan",
    "pareto.METHODS": "a constant",
    "pareto.Evaluation": "made by search",
    "pareto.FreshFront": "made by reevaluate",
    "pareto.Suggestion": "made by suggest",
}
"""Public names that are in no row, and why."""

ENDS_WITHOUT_RECORDS = {
    "pareto.fitted",
    "pareto.reevaluate",
    "pareto.suggest",
    "verify_release",
}
"""Where good arguments alone are refused too, for want of evaluations or of a file."""

ALSO = {
    "kind": {"unknown kind"},
    "parameters": {"rate"},
    "laws": {"rate"},
    "entries": {"cannot read"},
    "shard": {"shard"},
    "partitions": {"client 0"},
    "ballot": {"not a ballot"},
    "low": {"integer(", "log_integer("},
    "high": {"integer(", "log_integer("},
}
"""Other words that say which argument is meant."""


OF_FEDERATIONS = {
    "AveragingPlan",
    "AveragingSettings",
    "VoteAborted",
    "VotePlan",
    "VoteSettings",
    "train_clients",
}
"""Of `dpjax.federated`, the names that need no Flower."""


def good(arguments: dict, toy) -> dict:
    values = {name: value for name, (value, _) in arguments.items()}
    of_toy = {"task": toy.task(), "optimizer": toy.settings["optimizer"]}
    return values | {name: value for name, value in of_toy.items() if name in values}


def called(name, values):
    """Calls it as the table names its arguments; the first of Space and Domain has no name."""
    call, values = PUBLIC[name][0], dict(values)
    first = [values.pop("parameters")] if name in ("Space", "pareto.Domain") else []
    return call(*first, **values)


def names_of(call):
    if isinstance(call, functools.partial):
        return flat_call.arguments(*call.args)
    kinds = inspect.Parameter
    parameters = inspect.signature(call).parameters.values()
    return {one.name for one in parameters if one.kind not in (kinds.VAR_KEYWORD,)}


def test_the_table_names_everything_public_and_every_argument():
    of_modules = {f"pareto.{name}" for name in pareto.__all__}
    of_modules |= {
        f"{module.__name__.rpartition('.')[2]}.{name}"
        for module in (averaging, voting)
        for name, one in vars(module).items()
        if inspect.isfunction(one) and one.__module__ == module.__name__ and name[0] != "_"
    }
    others = {f"pareto.{name}" for name in dir(pareto)}
    public = set(tuning.__all__) | OF_FEDERATIONS | of_modules
    known = public | set(dir(tuning)) | others
    methods = {name for name in PUBLIC if name not in known}
    assert {name.rpartition(".")[0] for name in methods} <= known
    assert not set(PUBLIC) & set(NOT_CALLED)
    assert public <= (set(PUBLIC) - methods) | set(NOT_CALLED)
    for name, (call, arguments) in PUBLIC.items():
        assert set(arguments) == names_of(call), name


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", PUBLIC)
def test_what_is_no_such_argument_is_refused_in_one_line_that_names_it(
    name, toy, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    _, arguments = PUBLIC[name]
    usual = good(arguments, toy)
    if name in ENDS_WITHOUT_RECORDS:
        with pytest.raises(ValueError, match="evaluation|no such|anti_ideal|No such"):
            called(name, usual)
    else:
        with contextlib.suppress(Reached):
            called(name, usual)
    kinds = {argument: kind for argument, (_, kind) in arguments.items()}

    def call(**values):
        return called(name, values)

    for _ in check_refusals(name, call, usual, kinds, BAD, also=ALSO):
        pass


@pytest.mark.parametrize("bad", [3, "rate", math.nan, ["rate"], {}, {"other": [1.0]}])
def test_what_is_no_grid_is_refused(bad):
    with pytest.raises(ValueError, match="grid"):
        pareto.search(DOMAIN, print, print, method="grid", grid=bad)


def test_numpy_scalars_are_numbers():
    vote = federated.VoteSettings(
        np.int64(10), 4.0, np.int32(2), np.float32(20.0), missing_fraction=np.float64(0.1)
    )
    assert vote.candidates == 4 and {type(vote.epsilon), type(vote.missing_fraction)} == {float}
    assert tuning.Uniform(np.float32(0.0), 1).describe() == {"law": "uniform", "low": 0, "high": 1}
    job = tuning.Job(folder="work", shard=(np.int64(0), 2.0))
    assert job.shard == (0, 2) and {type(one) for one in job.shard} == {int}


def test_a_setting_is_written_as_it_was_passed():
    """The fingerprint of a vote, and the words of a release, stay what they were."""
    assert repr(federated.VoteSettings(10, 4, 2, epsilon=1).epsilon) == "1"
    assert repr(tuning.Uniform(0, 1.0).low) == "0"
