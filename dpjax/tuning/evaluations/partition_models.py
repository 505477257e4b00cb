"""Models of partitions: every candidate on every part of the records, one choice, one training.

`PartitionModels` is the evaluation of `exponential` and `doubling`: partition
models are trained and counted, one choice looks at the counts, and the winner alone is trained by
DP-SGD on all training records; only that, and what was public before, is released.
"""

from __future__ import annotations

import dataclasses
import json
import numbers
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import jax
import numpy as np

from dpjax import accounting, checks, private_files, training
from dpjax.neighbouring import ADD_OR_REMOVE_ONE
from dpjax.randomness import keys as key_streams
from dpjax.randomness.exact_samplers import UniformBelow
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.training.sweep import hosts
from dpjax.tuning import cautions, curator, statements
from dpjax.tuning.evaluations.candidate_runs import untrained
from dpjax.tuning.evaluations.partition_counts import (
    check_partitions,
    partition_counts,
    partitioned,
)
from dpjax.tuning.evaluations.partitions import (
    REHEARSAL,
    AveragedUtility,
    PartitionLots,
    SelectionNoiseWarning,
    partition_lots,
)
from dpjax.tuning.evaluations.private_runs import (
    Procedure,
    execute,
    final_run,
    named,
    read_executed,
    within,
)
from dpjax.tuning.job import Arrays, Job, bound, read_bound
from dpjax.tuning.problem.problem import Problem
from dpjax.tuning.problem.run_settings import (
    RunSetting,
    calibrated,
    check_cost_is_fixed,
    the_one_setting,
    training_guarantee,
)
from dpjax.tuning.problem.space import ACCOUNTED, Space
from dpjax.tuning.problem.task import Task
from dpjax.tuning.release import Release
from dpjax.tuning.scored_runs import (
    Executed,
    read_hyperparameters,
    written_executed,
    written_hyperparameters,
)
from dpjax.tuning.tuner import Progress, Rebuilt, Result

# Numbers of a seeded `HostRandomness`'s streams, apart from those of `execution`.
_STREAM_OF_CANDIDATES, _STREAM_OF_PARTITIONS, _STREAM_OF_SELECTION = 11, 12, 13

CHOICE_FILE, _FINAL = "choice.npz", "final"

FINAL_TRAINING = "the chosen candidate, on all training records"

_ASSUMPTIONS = (
    "the search space, the candidates and every setting were fixed before the data was seen",
    "utilities, the number of iterations, the console and the wall clock stay with the curator",
)


Candidates = int | Sequence[Mapping[str, float]]


class UtilityChoice(Protocol):
    """A private choice among candidates by integer utilities of one record's bounded influence.

    `epsilon` is epsilon_0, of the choice or of one of its iterations.
    """

    epsilon: float

    def guarantee(self, relation: str) -> accounting.Guarantee:
        """Returns the cost of the choice."""

    def select(
        self, scores: list[int], utility: AveragedUtility, below: UniformBelow
    ) -> tuple[int, dict[str, Any]]:
        """Returns the chosen index, and what happened, JSON-able, for the curator."""

    def describe(self, utility: AveragedUtility, delta: float) -> dict[str, Any]:
        """Returns the public rule as JSON-able data."""


@dataclasses.dataclass(frozen=True)
class PartitionModels:
    """The evaluation: candidates' average accuracy over models of disjoint subsets of the records.

    `candidates` are drawn once, from the space, or are a public list; there are `partitions`, k, at
    most as many as training records; the guarantee is the same for any `partition_training`.
    """

    candidates: Candidates = 16
    partitions: int = 24
    partition_training: str = REHEARSAL
    chunk_size: ClassVar[int] = 64

    @classmethod
    def from_statement(cls, claim: Mapping[str, Any]) -> PartitionModels:
        """Returns the evaluation that a statement names."""
        selection = claim["selection"]
        return cls(
            selection["candidates"],
            selection["partitions"],
            selection["partition_training"]["mode"],
        )

    def run(
        self,
        problem: Problem,
        choice: UtilityChoice,
        *,
        randomness: HostRandomness,
        chunk_size: int,
        progress: Progress | None,
        job: Job,
    ) -> Result | None:
        """See `tuner.Evaluation`."""
        fixed = plan(problem, self, choice)
        warning = fixed.utility.noise_warning(fixed.number, choice.epsilon)
        if warning is not None:
            warnings.warn(warning, SelectionNoiseWarning, stacklevel=cautions.users_level())
        return _selected_and_trained(fixed, randomness, chunk_size, progress, job, warning)

    def rebuild(self, claim: Mapping[str, Any], problem: Problem, choice: UtilityChoice) -> Rebuilt:
        """See `tuner.Evaluation`."""
        listed = claim["selection"]["candidates"]
        models = dataclasses.replace(self, candidates=len(listed))
        fixed = plan(problem, models, choice)
        statement = public_claim(fixed, listed, **statements.common(claim))
        if not all(statements.is_public(candidate, problem.space) for candidate in listed):
            raise ValueError("selection.candidates are not of the space")
        return Rebuilt(statement, lambda chosen: chosen in listed)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything that is fixed, and public, before the data is touched.

    `lots` are those of partitions' models and `setting` is of the final training; `guarantee` is
    the cost of both, and `listed` are the candidates, where the caller gave them.
    """

    problem: Problem
    models: PartitionModels
    number: int
    listed: Sequence[Mapping[str, float]] | None
    choice: UtilityChoice
    utility: AveragedUtility
    lots: PartitionLots
    setting: RunSetting
    selection_guarantee: accounting.Guarantee
    training_guarantee: accounting.Guarantee
    guarantee: accounting.Guarantee

    @property
    def task(self) -> Task:
        """Returns what is learned."""
        assert self.problem.task is not None  # It is no statement's.
        return self.problem.task

    @property
    def space(self) -> Space:
        """Returns the distribution that candidates are drawn from."""
        return self.problem.space


def plan(problem: Problem, models: PartitionModels, choice: UtilityChoice) -> Plan:
    """Fixes the procedure and its cost, from public numbers only."""
    space, epsilon, delta = problem.space, problem.epsilon, problem.delta
    problem.check()
    number, listed = _candidates(models.candidates, space)
    partition_number = check_partitions(problem.train, models.partitions)
    check_cost_is_fixed(space)
    setting = the_one_setting(problem)
    selection = choice.guarantee(setting.relation)
    if epsilon is not None:
        alone = selection.epsilon(delta)
        if alone >= epsilon:
            raise ValueError(
                f"the selection alone costs epsilon {alone:.4g} of {epsilon:g}: pass a smaller "
                "selection_epsilon, a cap on iterations or hits, or a larger epsilon"
            )
        (setting,) = calibrated(
            [setting], lambda run: accounting.compose(selection, run), epsilon, delta
        )
    final = training_guarantee([setting])
    # Under replace one, run_settings has refused records that a replacement could move.
    stay = setting.relation == ADD_OR_REMOVE_ONE or problem.train.stable_under_replacement
    utility = AveragedUtility(
        partition_number,
        problem.validation.public_size,
        problem.validation_is_public,
        stay,
        problem.units,
    )
    lots = partition_lots(
        setting, problem.train.public_size, partition_number, models.partition_training
    )
    return Plan(
        problem=problem,
        models=models,
        number=number,
        listed=listed,
        choice=choice,
        utility=utility,
        lots=lots,
        setting=setting,
        selection_guarantee=selection,
        training_guarantee=final,
        guarantee=accounting.compose(selection, final),
    )


def _candidates(
    candidates: Candidates, space: Space
) -> tuple[int, Sequence[Mapping[str, float]] | None]:
    if isinstance(candidates, numbers.Real):
        return checks.whole("candidates", candidates), None
    listed = checks.listed("candidates", candidates, "mappings, or their number")
    if not listed:
        raise ValueError("the list of candidates is empty: pass at least one")
    for candidate in listed:
        checks.mapping("each of the candidates", candidate, "from the space's names to numbers")
        if set(candidate) != set(space.parameters):
            raise ValueError(
                f"a listed candidate has {', '.join(sorted(candidate))}: give each the names of "
                f"the space, {', '.join(sorted(space.parameters))}"
            )
        for name, value in candidate.items():
            checks.number(f"{name} of a listed candidate", value)
        # Refused by whom trains it, it would tell who won.
        checks.positive("clip_norm of a listed candidate", candidate.get("clip_norm", 1.0))
        for name in ACCOUNTED:
            if name in candidate and candidate[name] not in (space.parameters[name].values or ()):
                raise ValueError(f"{name} of a listed candidate is not the space's: pass the same")
    return len(listed), listed


def _selected_and_trained(
    fixed: Plan,
    randomness: HostRandomness,
    chunk_size: int,
    progress: Callable[[int, int], None] | None,
    job: Job,
    warning: str | None,
) -> Result | None:
    """Trains, chooses and finishes."""
    started = time.time()

    def work(drawn: Arrays) -> Arrays | None:
        return _worked_out(fixed, randomness, chunk_size, progress, job, drawn)

    outcome = job.once(lambda: _drawn(fixed, randomness), lambda: _facts(fixed, randomness), work)
    if outcome is None:
        return None
    winner, events, scores, sizes = json.loads(outcome["found"].tobytes())
    hyperparameters = read_hyperparameters(outcome)
    chosen = {name: float(values[winner]) for name, values in hyperparameters.items()}
    final = read_executed(within(outcome, _FINAL), fixed.task)
    utilities = np.asarray(scores, dtype=np.float64) / fixed.utility.units
    return Result(
        release=_release(fixed, randomness, hyperparameters, chosen, final),
        guarantee=fixed.guarantee,
        run_guarantee=fixed.training_guarantee,
        selection_guarantee=fixed.selection_guarantee,
        curator=curator.CuratorRecord(
            number_of_candidates=fixed.number,
            winner=winner,
            hyperparameters=hyperparameters,
            scores=utilities,
            accuracies=utilities,
            seconds=time.time() - started,
            details={
                "what_scores_are": "average accuracy of the partition models, without noise",
                "selection": events,
                "partition_sizes": sizes,
                "final_model_validation_accuracy": float(final.units[0])
                / (fixed.task.units * max(fixed.task.validation.number, 1)),
                "warning_about_noise": warning,
            },
        ),
    )


def _worked_out(
    fixed: Plan,
    randomness: HostRandomness,
    chunk_size: int,
    progress: Callable[[int, int], None] | None,
    job: Job,
    drawn: Arrays,
) -> Arrays | None:
    """Counts, chooses and trains finally, from a draw; returns arrays, None for a shard."""
    task, partitions = fixed.task, fixed.utility.partitions
    hyperparameters = read_hyperparameters(drawn)
    records = partitioned(task.train, partitions, drawn["partition_key"].tobytes())
    models = fixed.number * partitions
    counts = partition_counts(
        task,
        records,
        fixed.lots,
        fixed.setting.steps,
        hyperparameters,
        jax.random.wrap_key_data(drawn["keys"], impl=key_streams.IMPLEMENTATION),
        optimizer=fixed.problem.inspected.optimizer,
        clipping=fixed.problem.run.clipping,
        chunk_size=chunk_size,
        job=job,
        drawn=drawn,
        progress=lambda done: progress and progress(done, models + 1),
    )
    if counts is None:
        return None
    scores = fixed.utility.total(counts)
    winner, events = _chosen_once(
        job,
        drawn,
        lambda: fixed.choice.select(
            scores, fixed.utility, randomness.uniform_integers(_STREAM_OF_SELECTION)
        ),
    )
    chosen = {name: float(values[winner]) for name, values in hyperparameters.items()}
    final = execute(
        final_procedure(fixed, chosen),
        randomness=randomness,
        chunk_size=1,
        # Of one run there are no shards: whoever merges trains it.
        job=job.inner("final", shard=None, placement="one_by_one"),
    )
    assert final is not None  # It is no shard's.
    if progress is not None:
        progress(models + 1, models + 1)
    found = json.dumps([winner, events, scores, records.sizes.tolist()])
    return (
        named(_FINAL, written_executed(final))
        | written_hyperparameters(hyperparameters)
        | {"found": np.frombuffer(found.encode(), np.uint8)}
    )


def _drawn(fixed: Plan, randomness: HostRandomness) -> dict[str, np.ndarray]:
    """Draws the candidates, the key of the partitions and every model's key."""
    if fixed.listed is None:
        hyperparameters = fixed.space.sample(
            fixed.number, randomness.generator(_STREAM_OF_CANDIDATES)
        )
    else:
        hyperparameters = {
            name: np.asarray([float(candidate[name]) for candidate in fixed.listed])
            for name in fixed.space.parameters
        }
    models = fixed.number * fixed.utility.partitions
    # The first key of a seed is the final training's.
    keys = training.candidate_keys(models + 1, seed=randomness.seed)[1:]
    return written_hyperparameters(hyperparameters) | {
        "partition_key": randomness.words(4, _STREAM_OF_PARTITIONS),
        "keys": np.asarray(jax.random.key_data(keys)),
    }


def _chosen_once(
    job: Job, drawn: Arrays, choose: Callable[[], tuple[int, dict]]
) -> tuple[int, dict[str, Any]]:
    """Chooses once for all processes, and for a job that goes on after a stop: never a second draw.

    The choice is kept in the job's folder, with what happened, until the draw is consumed.
    """
    payload = None
    if jax.process_index() == 0:
        path = None if job.folder is None else os.path.join(job.folder, CHOICE_FILE)
        if path is not None and os.path.lexists(path):
            kept = read_bound(path, drawn, f"remove {job.folder} and begin anew")
            payload = kept["choice"].tobytes()
        else:
            payload = json.dumps(choose()).encode()
            if path is not None:
                arrays = {"choice": np.frombuffer(payload, np.uint8)}
                private_files.write_once(path, bound(arrays, drawn))
    winner, events = json.loads(hosts.bytes_from_first(payload))
    return winner, events


def _facts(fixed: Plan, randomness: HostRandomness) -> dict[str, Any]:
    """Returns what a draw, and what is trained from it, depend on; JSON-able, by name."""
    return {
        "method": "models of partitions",
        "settings": dataclasses.astuple(fixed.setting),
        "clipping": fixed.problem.run.clipping.describe(),
        "partitions": [dataclasses.astuple(fixed.lots), dataclasses.astuple(fixed.utility)],
        "candidates": [
            fixed.number,
            fixed.listed and [dict(candidate) for candidate in fixed.listed],
        ],
        "search space": fixed.space.describe(),
        "selection": [type(fixed.choice).__name__, list(vars(fixed.choice).values())],
        "seed": randomness.seed,
        "identifiers": curator.fingerprint(fixed.task.train.identifiers),
    } | fixed.problem.inspected.facts()


def final_procedure(fixed: Plan, chosen: Mapping[str, float]) -> Procedure:
    """Returns one private run of the chosen candidate, on all training records."""
    return final_run(
        dataclasses.replace(fixed.problem, space=Space(dict(chosen))),
        final_setting(fixed),
        fixed.training_guarantee,
        fixed.guarantee,
    )


def _release(
    fixed: Plan,
    randomness: HostRandomness,
    hyperparameters: Mapping[str, np.ndarray],
    chosen: Mapping[str, float],
    final: Executed,
) -> Release:
    """Returns what may leave: the final training's parameters, the choice, and the claim."""
    params = final.best.output(0)
    if not np.isfinite(final.best.score[0]):
        params = untrained(fixed.task)
        cautions.of_untrained("the final training is not finite")
    listed = [
        statements.rounded({name: float(values[index]) for name, values in hyperparameters.items()})
        for index in range(fixed.number)
    ]
    claim = public_claim(fixed, listed, secret=randomness.secret)
    return Release(params=params, hyperparameters=statements.rounded(chosen), statement=claim)


def final_setting(fixed: Plan) -> RunSetting:
    """Returns the accounted setting of the one private training of the winner."""
    return dataclasses.replace(fixed.setting, probability=1.0)


def public_claim(
    fixed: Plan,
    listed: Sequence[Mapping[str, float | None]],
    *,
    secret: bool,
    versions: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Returns what the release of a plan states, from public text and numbers alone."""
    utility, setting, delta = fixed.utility, fixed.setting, fixed.problem.delta
    claim = statements.written(
        **statements.of_problem(fixed.problem),
        guarantee=fixed.guarantee,
        selection=fixed.choice.describe(utility, delta)
        | {
            "candidates": list(listed),
            "partitions": utility.partitions,
            "partition_training": {
                "mode": fixed.models.partition_training,
                "lot_size": fixed.lots.lot_size,
                "steps": setting.steps,
                "noise_over_clip_norm": fixed.lots.noise_multiplier,
                "protection": "none of its own: a record influences one partition's models only",
            },
        },
        score=statements.of_score(
            fixed.problem,
            counted="correct validation predictions of the partitions' models, summed",
            summed="scores in [0, 1] of validation records with the partitions' models, summed",
        )
        | {
            "units_of_a_utility_of_1": utility.units,
            "sensitivity_in_units": utility.sensitivity,
        },
        settings=[statements.of_setting(final_setting(fixed), FINAL_TRAINING)],
        randomness_is_secret=secret,
        assumptions=_ASSUMPTIONS,
        versions=versions,
    )
    return claim | {
        "epsilon_of_parts": {
            "selection_alone": fixed.selection_guarantee.epsilon(delta),
            "final_training_alone": fixed.training_guarantee.epsilon(delta),
            "a_private_validation_record_pays_for": "the selection alone",
        }
    }
