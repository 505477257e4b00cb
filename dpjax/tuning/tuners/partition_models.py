"""Models of partitions: every candidate on every part of the records, one choice, one training.

`PartitionModels` is the base of `Exponential` and `Doubling`: partition models are trained and
counted, one choice looks at the counts, and the winner alone is trained by DP-SGD on all training
records; only that, and what was public before, is released.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import numbers
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import numpy as np

from dpjax import accounting, checks, training
from dpjax.array_files import Arrays, fingerprint
from dpjax.neighbouring import ADD_OR_REMOVE_ONE
from dpjax.randomness import keys as key_streams
from dpjax.randomness.exact_samplers import UniformBelow
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.releases import curator
from dpjax.tuning import statements
from dpjax.tuning.private_runs import Plan
from dpjax.tuning.problem.problem import Material, Problem
from dpjax.tuning.problem.run_settings import (
    RunSetting,
    calibrated_beside,
    check_cost_is_fixed,
    the_one_setting,
)
from dpjax.tuning.problem.space import Space
from dpjax.tuning.steps import Choose, Chosen, Draw, How, Ran, Request, Steps, Train
from dpjax.tuning.tuner import Tuner
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
    streams: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def choice(self) -> UtilityChoice:
        """Returns the private choice among candidates."""

    def plan(self, problem: Problem) -> PartitionPlan:
        """Plans the models of partitions, the choice and the final training, with their cost."""
        choice = self.choice
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
            *("a smaller ", ("selection_epsilon",), ", a cap on iterations or hits"),
        )
        final = setting.guarantee()
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

    def advice(self, plan: PartitionPlan) -> SelectionNoiseWarning | None:
        warning = _warning(plan)
        return None if warning is None else SelectionNoiseWarning(warning)

    def steps(self, plan: PartitionPlan, material: Material) -> Steps:
        values = _listed(plan)
        if values is None:
            values = yield Draw("candidates", lambda own: _sampled(plan, own), public=True)
        key = yield Draw("partition_key", lambda own: own.words(4, _STREAM_OF_PARTITIONS))
        keys = yield Draw("keys", lambda own: _keys_of_models(plan, own))
        candidates = dict(zip(sorted(plan.problem.space.parameters), values.T, strict=True))
        # Called more than once, and a warning of an empty partition is said once.
        parts = functools.cache(
            lambda: partitioned(material.task.train, plan.utility.partitions, key.tobytes())
        )
        counted = yield Count("models", plan, material, parts, candidates, keys)
        scores = plan.utility.total(counted.counts)
        winner, events = yield Choose(
            "winner",
            lambda own: plan.choice.select(
                scores, plan.utility, own.uniform_integers(_STREAM_OF_SELECTION)
            ),
        )
        chosen = {name: float(column[winner]) for name, column in candidates.items()}
        final = yield Train("final", plan, lambda: material, plan.setting, chosen)
        listed = [
            statements.rounded({name: float(column[index]) for name, column in candidates.items()})
            for index in range(plan.number)
        ]
        record = _record(plan, material, candidates, scores, winner, events, counted.sizes, final)
        return Chosen(final.params, chosen, record, dataclasses.replace(plan, listed=listed))

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
            settings=[statements.of_setting(setting, FINAL_TRAINING)],
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
    """Checks `candidates`; returns their number, and the list if one was passed."""
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


def _listed(plan: PartitionPlan) -> np.ndarray | None:
    """Returns the caller's candidates, (candidates, names in order) float64, if there is a list."""
    if plan.listed is None:
        return None
    names = sorted(plan.problem.space.parameters)
    return np.array([[one[name] for name in names] for one in plan.listed], np.float64)


def _sampled(plan: PartitionPlan, randomness: HostRandomness) -> np.ndarray:
    """Draws candidates from the space, (candidates, names in order) float64."""
    source = randomness.generator(_STREAM_OF_CANDIDATES)
    columns = plan.problem.space.sample(plan.number, source)
    return np.stack([columns[name] for name in sorted(columns)], axis=1)


def _keys_of_models(plan: PartitionPlan, randomness: HostRandomness) -> np.ndarray:
    """Draws a key for each model of each partition, uint32."""
    models = plan.number * plan.utility.partitions
    # The first key of a seed is the final training's.
    keys = training.candidate_keys(models + 1, seed=randomness.seed)[1:]
    return np.asarray(jax.random.key_data(keys))


class PartitionCounts(NamedTuple):
    """What the models of partitions get right, (candidates, k), and the partitions' sizes (k,)."""

    counts: np.ndarray
    sizes: np.ndarray


@dataclasses.dataclass(frozen=True)
class Count(Request):
    """Asks for the counts of every candidate's model of every partition.

    Answered by a `PartitionCounts`.
    `candidates`, name -> (candidates,), and `keys` of the models are one execution's.
    """

    name: str
    plan: PartitionPlan
    material: Material
    parts: Callable[[], PartitionedRecords]
    candidates: Mapping[str, np.ndarray]
    keys: np.ndarray

    def alike(self) -> Hashable:
        """See `Request`: their partitions hold the same records, in the same order."""
        parts = self.parts()
        return fingerprint((parts.sizes, parts.arrays))

    def answer(self, asked: Sequence[Count], how: How) -> Arrays | None:
        plan = self.plan
        counts = partition_counts(
            self.material,
            self.parts(),
            plan.lots,
            plan.setting.steps,
            {
                name: np.concatenate([one.candidates[name] for one in asked])
                for name in self.candidates
            },
            jax.random.wrap_key_data(
                np.concatenate([one.keys for one in asked]), impl=key_streams.IMPLEMENTATION
            ),
            clipping=plan.problem.clipping,
            chunk_size=how.chunk_size,
            job=how.job,
            drawn=how.drawn,
            progress=how.progress,
        )
        if counts is None:
            return None
        return {"counts": counts.reshape(len(asked), plan.number, -1), "sizes": self.parts().sizes}

    def read(self, arrays: Arrays, material: Material) -> list[PartitionCounts]:
        return [PartitionCounts(counts, arrays["sizes"]) for counts in arrays["counts"]]


def _warning(plan: PartitionPlan) -> str | None:
    """Returns a line of advice if noise drowns the utilities, else None."""
    return plan.utility.noise_warning(plan.number, plan.choice.epsilon)


def _record(
    plan: PartitionPlan,
    material: Material,
    candidates: Mapping[str, np.ndarray],
    scores: Sequence[int],
    winner: int,
    events: Mapping[str, Any],
    sizes: np.ndarray,
    final: Ran,
) -> curator.CuratorRecord:
    """Returns what stays with the curator."""
    utilities = np.asarray(scores, dtype=np.float64) / plan.utility.units
    units_of_all = plan.problem.units * max(material.task.validation.number, 1)
    return curator.CuratorRecord(
        number_of_candidates=plan.number,
        winner=winner,
        hyperparameters=dict(candidates),
        scores=utilities,
        accuracies=utilities,
        seconds=0.0,
        details={
            "what_scores_are": "average accuracy of the partition models, without noise",
            "selection": events,
            "partition_sizes": sizes.tolist(),
            "final_model_validation_accuracy": float(final.executed.units[0]) / units_of_all,
            "warning_about_noise": _warning(plan),
        },
    )
