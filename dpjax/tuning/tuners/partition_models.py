"""Models of partitions: every candidate on every part of the records, one choice, one training.

`PartitionModels` is the base of `Exponential` and `Doubling`: partition models are trained and
counted, one choice looks at the counts, and the winner alone is trained by DP-SGD on all training
records; only that, and what was public before, is released.
"""

from __future__ import annotations

import abc
import dataclasses
import json
import numbers
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import jax
import numpy as np

from dpjax import accounting, after_the_draw, checks, private_files, training
from dpjax.array_files import fingerprint
from dpjax.neighbouring import ADD_OR_REMOVE_ONE
from dpjax.randomness import keys as key_streams
from dpjax.randomness.exact_samplers import UniformBelow
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.training.sweep import hosts
from dpjax.tuning import curator, statements
from dpjax.tuning.job import Arrays, Job, bound, read_bound
from dpjax.tuning.private_runs import (
    by_kind,
    final_run,
    named,
    put,
    read_executed,
    train_finally,
    winners,
    within,
    written_executed,
)
from dpjax.tuning.problem.problem import Problem
from dpjax.tuning.problem.run_settings import (
    RunSetting,
    calibrated_beside,
    check_cost_is_fixed,
    the_one_setting,
    training_guarantee,
)
from dpjax.tuning.problem.space import Space
from dpjax.tuning.selection import read_hyperparameters, written_hyperparameters
from dpjax.tuning.tuner import Outcome, Plan, Progress, Tuner
from dpjax.tuning.tuners.partition_counts import (
    PartitionedRecords,
    check_partitions,
    partition_counts,
    partitioned,
)
from dpjax.tuning.tuners.partitions import (
    REHEARSAL,
    AveragedUtility,
    PartitionLots,
    SelectionNoiseWarning,
    partition_lots,
)

# Numbers of a seeded `HostRandomness`'s streams, apart from those of `private_runs`.
_STREAM_OF_CANDIDATES, _STREAM_OF_PARTITIONS, _STREAM_OF_SELECTION = 11, 12, 13
_STREAM_OF_KINDS = 14

CHOICE_FILE, _FINAL = "choice.npz", "final"

FINAL_TRAINING = "the chosen candidate, on all training records"
_NO_PROTECTION = "none of its own: a record influences one partition's models only"

_ASSUMPTIONS = (
    "the search space, the candidates and every setting were fixed before the data was seen",
    "utilities, the number of iterations, the console and the wall clock stay with the curator",
)


Candidates = int | Sequence[Mapping[str, float]]


class UtilityChoice(Protocol):
    """A private choice among candidates by integer utilities of bounded sensitivity."""

    @property
    def epsilon(self) -> float:
        """Returns epsilon_0, of the choice or of one of its iterations."""

    def guarantee(self, relation: str) -> accounting.Guarantee:
        """Returns the cost of the choice."""

    def select(
        self, scores: list[int], utility: AveragedUtility, below: UniformBelow
    ) -> tuple[int, dict[str, Any]]:
        """Returns the chosen index, and an account of the choice for JSON, for the curator."""

    def describe(self, utility: AveragedUtility, delta: float) -> dict[str, Any]:
        """Returns the public rule as data for JSON."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartitionPlan(Plan):
    """Models of partitions, one choice among their candidates, and its final training.

    `lots` are those of partitions' models and `setting` is of the final training. `listed` are the
    candidates: those that the caller gave, or of an outcome those that were drawn; else None.
    """

    number: int
    listed: Sequence[Mapping[str, float | None]] | None
    choice: UtilityChoice
    utility: AveragedUtility
    partition_training: str
    lots: PartitionLots
    setting: RunSetting


class PartitionModels(Tuner):
    """Base of tuners that choose by candidates' average accuracy over models of partitions.

    `candidates` are drawn once, from the space, or are a public list; there are `partitions`, k, at
    most as many as training records; the guarantee is the same for any `partition_training`.
    """

    candidates: Candidates = 16
    partitions: int = 24
    partition_training: str = REHEARSAL
    chunk_size: ClassVar[int] = 64

    @property
    @abc.abstractmethod
    def choice(self) -> UtilityChoice:
        """Returns the private choice among candidates."""

    def plan(self, problem: Problem) -> PartitionPlan:
        """Plans the models of partitions, the choice and the final training, with their cost."""
        choice = self.choice
        problem.check()
        number, listed = _candidates(self.candidates, problem.space)
        partition_number = check_partitions(problem.train, self.partitions)
        check_cost_is_fixed(problem.space)
        setting = the_one_setting(problem)
        selection = choice.guarantee(setting.relation)
        setting = calibrated_beside(
            selection,
            setting,
            problem,
            "the selection alone costs",
            "a smaller selection_epsilon, a cap on iterations or hits",
        )
        final = training_guarantee([setting])
        # Under add or remove one no record moves; under replace one the records have to say so.
        stay = setting.relation == ADD_OR_REMOVE_ONE or problem.train.stable_under_replacement
        return PartitionPlan(
            problem=problem,
            number=number,
            listed=listed,
            choice=choice,
            utility=AveragedUtility(
                partition_number,
                problem.validation.public_size,
                problem.validation_is_public,
                stay,
                problem.units,
            ),
            partition_training=self.partition_training,
            lots=partition_lots(
                setting, problem.train.public_size, partition_number, self.partition_training
            ),
            setting=setting,
            selection_guarantee=selection,
            run_guarantee=final,
            guarantee=accounting.compose(selection, final),
        )

    def run(
        self,
        plan: PartitionPlan,
        *,
        randomness: HostRandomness,
        executions: int = 1,
        chunk_size: int = 16,
        progress: Progress | None = None,
        job: Job = Job(),  # noqa: B008 (immutable)
    ) -> Outcome | None:
        warning = plan.utility.noise_warning(plan.number, plan.choice.epsilon)
        if warning is not None:
            after_the_draw.told(warning, SelectionNoiseWarning)  # The folder's draw may be spent.
        with job.once(_facts(plan, randomness) if job.is_bound else None) as once:
            if once.wants_a_draw:
                once.begin(_drawn(plan, randomness, executions))
            drawn = once.drawn()
            if drawn is not None:
                once.end(_count_choose_train(plan, drawn, randomness, chunk_size, progress, job))
        return None if once.outcome is None else _outcome(plan, once.outcome, executions, warning)

    @staticmethod
    def stated(claim: Mapping[str, Any]) -> dict[str, Any]:
        """Reads the candidates, partitions and partition training that a statement names."""
        selection = claim["selection"]
        return {
            "candidates": selection["candidates"],
            "partitions": selection["partitions"],
            "partition_training": selection["partition_training"]["mode"],
        }

    def may_release(self, plan: PartitionPlan, released: Mapping[str, Any]) -> bool:
        return plan.listed is not None and released in plan.listed

    def statement(
        self, plan: PartitionPlan, *, secret: bool, versions: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Returns the statement of a release, from the plan alone."""
        utility, setting = plan.utility, plan.setting
        claim = statements.written(
            **statements.of_problem(plan.problem),
            guarantee=plan.guarantee,
            selection=plan.choice.describe(utility, plan.problem.delta)
            | {
                "candidates": list(plan.listed or ()),  # None before they are drawn.
                "partitions": utility.partitions,
                "partition_training": {
                    "mode": plan.partition_training,
                    "lot_size": plan.lots.lot_size,
                    "steps": setting.steps,
                    "noise_over_clip_norm": plan.lots.noise_multiplier,
                    "protection": _NO_PROTECTION,
                },
            },
            score=statements.of_score(
                plan.problem,
                counted="correct validation predictions of the partitions' models, summed",
                summed="scores in [0, 1] of validation records with the partitions' models, summed",
            )
            | {
                "units_of_a_utility_of_1": utility.units,
                "sensitivity_in_units": utility.sensitivity,
            },
            settings=[statements.of_setting(final_setting(plan), FINAL_TRAINING)],
            randomness_is_secret=secret,
            assumptions=_ASSUMPTIONS,
            versions=versions,
        )
        parts = statements.of_parts(
            plan.selection_guarantee, plan.run_guarantee, plan.problem.delta
        )
        return claim | {"epsilon_of_parts": parts}


def _candidates(
    candidates: Candidates, space: Space
) -> tuple[int, Sequence[Mapping[str, float]] | None]:
    """Returns the number of candidates, and the list of them if one was given, checked."""
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
        # Checked here: if only the training refused it, the error would tell which candidate won.
        checks.positive("clip_norm of a listed candidate", candidate.get("clip_norm", 1.0))
        for name, value in candidate.items():
            if not statements.in_law(name, float(value), space.parameters[name]):
                raise ValueError(
                    f"{name}={value:g} of a listed candidate is not in the space: pass one that it "
                    f"draws, from {space.parameters[name]}"
                )
    return len(listed), listed


def _drawn(
    plan: PartitionPlan, randomness: HostRandomness, executions: int
) -> dict[str, np.ndarray]:
    """Draws every execution's candidates and key of the partitions, and every model's key."""
    names = plan.problem.space.parameters
    if plan.listed is None:
        hyperparameters = plan.problem.space.sample(
            executions * plan.number, randomness.generator(_STREAM_OF_CANDIDATES)
        )
    else:
        hyperparameters = {
            name: np.tile(np.asarray([one[name] for one in plan.listed], np.float64), executions)
            for name in names
        }
    models = executions * plan.number * plan.utility.partitions
    # The first key of a seed is the final training's.
    keys = training.candidate_keys(models + 1, seed=randomness.seed)[1:]
    return written_hyperparameters(hyperparameters) | {
        "partition_key": randomness.words(4 * executions, _STREAM_OF_PARTITIONS),
        "keys": np.asarray(jax.random.key_data(keys)),
    }


def _count_choose_train(
    plan: PartitionPlan,
    drawn: Arrays,
    randomness: HostRandomness,
    chunk_size: int,
    progress: Progress | None,
    job: Job,
) -> Arrays | None:
    """Counts, chooses and trains the winner, as drawn; returns arrays, None for a shard."""
    task, partitions = plan.task, plan.utility.partitions
    given = read_hyperparameters(drawn)
    words = drawn["partition_key"].reshape(-1, 4)
    executions, models = len(words), plan.number * partitions
    keys = drawn["keys"].reshape(executions, models, -1)
    parts = [partitioned(task.train, partitions, key.tobytes()) for key in words]
    winner = np.zeros(executions, np.int64)
    events: dict[int, dict[str, Any]] = {}
    scores: dict[int, list[int]] = {}
    arrays: Arrays = {}
    # Executions of an audit with the same partitions are trained together; a release has one.
    for kind, members in enumerate(_alike(parts)):
        places = (members[:, None] * plan.number + np.arange(plan.number)).ravel()
        counts = partition_counts(
            task,
            parts[members[0]],
            plan.lots,
            plan.setting.steps,
            {name: values[places] for name, values in given.items()},
            jax.random.wrap_key_data(
                keys[members].reshape(-1, keys.shape[-1]), impl=key_streams.IMPLEMENTATION
            ),
            optimizer=plan.problem.inspected.optimizer,
            clipping=plan.problem.clipping,
            chunk_size=chunk_size,
            job=job,
            drawn=drawn,
            progress=progress,
        )
        if counts is None:
            return None
        own = randomness if executions == 1 else randomness.fold_in(_STREAM_OF_KINDS, kind)
        below = own.uniform_integers(_STREAM_OF_SELECTION)
        for one, of_one in zip(members, counts.reshape(len(members), plan.number, partitions)):
            scores[one] = plan.utility.total(of_one)
            winner[one], events[one] = _chosen_once(plan, scores[one], below, job, drawn)
        winning = members * plan.number + winner[members]
        chosen = {name: values[winning] for name, values in given.items()}
        final = train_finally(
            final_run(plan, final_setting(plan), chosen),
            randomness=own,
            executions=len(members),
            chunk_size=chunk_size,
            job=job.inner(_FINAL),
        )
        arrays |= named(f"{_FINAL}{kind}", written_executed(final) | {"executions": members})
    if progress is not None:
        progress(models + 1, models + 1)
    found = json.dumps([winner.tolist(), events[0], scores[0], parts[0].sizes.tolist()])
    return (
        arrays | written_hyperparameters(given) | {"found": np.frombuffer(found.encode(), np.uint8)}
    )


def _alike(parts: Sequence[PartitionedRecords]) -> list[np.ndarray]:
    """Groups the executions whose partitions hold the same records, in the same order."""
    looks = [
        np.concatenate([one.sizes, *(np.ravel(leaf) for leaf in jax.tree.leaves(one.arrays))])
        for one in parts
    ]
    return [members for _, members in by_kind(np.stack(looks))]


def _outcome(plan: PartitionPlan, arrays: Arrays, executions: int, warning: str | None) -> Outcome:
    """Reads the arrays of `_count_choose_train`; each part is of executions that drew the same."""
    winner, events, scores, sizes = json.loads(arrays["found"].tobytes())
    task, given = plan.task, read_hyperparameters(arrays)
    found = np.zeros(executions, bool)
    params, units = None, 0
    for kind in range(executions):
        if not (part := within(arrays, f"{_FINAL}{kind}")):
            break
        members = part.pop("executions")
        final = read_executed(part, task)
        found[members] = winners(final)[0]
        params = put(params, members, final.best.outputs, executions)
        units = int(final.units[0]) if members[0] == 0 else units
    places = np.arange(executions) * plan.number + winner
    first = {name: values[: plan.number] for name, values in given.items()}
    listed = [
        statements.rounded({name: float(values[index]) for name, values in first.items()})
        for index in range(plan.number)
    ]
    utilities = np.asarray(scores, dtype=np.float64) / plan.utility.units
    return Outcome(
        dataclasses.replace(plan, listed=listed),
        params,
        found,
        {name: values[places] for name, values in given.items()},
        curator.CuratorRecord(
            number_of_candidates=plan.number,
            winner=winner[0],
            hyperparameters=first,
            scores=utilities,
            accuracies=utilities,
            seconds=0.0,
            details={
                "what_scores_are": "average accuracy of the partition models, without noise",
                "selection": events,
                "partition_sizes": sizes,
                "final_model_validation_accuracy": float(units)
                / (task.units * max(task.validation.number, 1)),
                "warning_about_noise": warning,
            },
        ),
    )


def _chosen_once(
    plan: PartitionPlan, scores: list[int], below: UniformBelow, job: Job, drawn: Arrays
) -> tuple[int, dict[str, Any]]:
    """Chooses once for all processes and for a resumed job, which never draws a second time.

    The choice is kept in the job's folder, with its account, until the draw is consumed.
    """
    payload = None
    if jax.process_index() == 0:
        path = None if job.folder is None else os.path.join(job.folder, CHOICE_FILE)
        if path is not None and os.path.lexists(path):
            kept = read_bound(path, drawn, f"remove {job.folder} and begin anew")
            payload = kept["choice"].tobytes()
        else:
            payload = json.dumps(plan.choice.select(scores, plan.utility, below)).encode()
            if path is not None:
                arrays = {"choice": np.frombuffer(payload, np.uint8)}
                private_files.write_once(path, bound(arrays, drawn))
    winner, events = json.loads(hosts.bytes_from_one(payload))
    return winner, events


def _facts(plan: PartitionPlan, randomness: HostRandomness) -> dict[str, Any]:
    """Returns all that a draw, and the training by it, depend on, by name, for JSON."""
    return {
        "method": "models of partitions",
        "settings": dataclasses.astuple(plan.setting),
        "clipping": plan.problem.clipping.describe(),
        "partitions": [dataclasses.astuple(plan.lots), dataclasses.astuple(plan.utility)],
        "candidates": [plan.number, plan.listed and [dict(candidate) for candidate in plan.listed]],
        "search space": plan.problem.space.describe(),
        "selection": [type(plan.choice).__name__, list(vars(plan.choice).values())],
        "seed": randomness.seed,
        "identifiers": fingerprint(plan.task.train.identifiers),
    } | plan.problem.inspected.facts()


def final_setting(plan: PartitionPlan) -> RunSetting:
    """Returns the accounted setting of the one private training of the winner."""
    return dataclasses.replace(plan.setting, probability=1.0)
