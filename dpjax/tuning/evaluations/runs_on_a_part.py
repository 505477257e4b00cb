"""Private runs on a secret random part of the training records, then one training on the rest.

`RunsOnAPart` is the evaluation of `subset_tuning`: every training record goes to the part with one
probability, by randomness that nobody learns; candidates are trained and chosen there, as private
runs on all records would be; and the winner's hyperparameters are trained with anew, on the records
that no candidate saw (or on all of them). Validation records are touched by the choice alone.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from dpjax import accounting, checks
from dpjax.accounting.selection.split import FINAL_ON
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.training.optimizers import Optimizer
from dpjax.tuning import cautions, curator, statements
from dpjax.tuning.choices import RunChoice
from dpjax.tuning.evaluations.candidate_runs import untrained
from dpjax.tuning.evaluations.private_runs import (
    Procedure,
    execute,
    final_run,
    named,
    read_executed,
    within,
)
from dpjax.tuning.job import Arrays, Job
from dpjax.tuning.problem.problem import Problem
from dpjax.tuning.problem.run_settings import (
    LARGEST_DEVIATION,
    RunSetting,
    check_cost_is_fixed,
    check_score_noise,
    count_guarantee,
    meet_target,
    the_one_setting,
    training_guarantee,
)
from dpjax.tuning.problem.run_shape import FIXED
from dpjax.tuning.problem.space import Space
from dpjax.tuning.problem.task import Records, Task
from dpjax.tuning.release import Release
from dpjax.tuning.scored_runs import Executed, written_executed
from dpjax.tuning.tuner import Progress, Rebuilt, Result

REST, ALL = FINAL_ON

SMALLEST_PROBABILITY = 2.0**-11
"""Of a part: a float from here on is a whole number of 2^-64, the resolution of the draw."""

RATE = "learning_rate"
"""The hyperparameter that a run on the part is given another value of."""

# Numbers of a seeded `HostRandomness`'s streams, apart from those of `private_runs`.
_STREAM_OF_PART, _STREAM_OF_FINAL_SEED = 21, 22

_FOUND = "best of K runs on a secret part of the records, then private training on"
RULE, RULE_ON_ALL = f"{_FOUND} the rest", f"{_FOUND} all of them"

ON_THE_PART = "a candidate, on the secret part of the training records"
ON_THE_REST = "the chosen candidate, on the training records outside the part"
ON_ALL = "the chosen candidate, on all training records"

_ASSUMPTIONS = (
    "the search space, the law of K, the part's probability and every setting were fixed before "
    "the data was seen",
    "which training records are in the part, both parts' sizes, K, the losing candidates, the "
    "console and the wall clock stay with the curator",
)


def rate_on_the_part(probability: float, final_share: float | None = None) -> float:
    """Returns what the learning rate is multiplied by for a run on the subset; public.

    The square root of the ratio of the two expected lot sizes. Lots of the subset are smaller, the
    same noise is louder in what is averaged of them, and the best rate is lower. `subset_tuning`
    says what this was chosen among. `probability` is of a training record to be in the subset;
    `final_share` is what the final training sees of the records in expectation, None: the rest.
    """
    return math.sqrt(probability / (1.0 - probability if final_share is None else final_share))


@dataclasses.dataclass(frozen=True)
class RunsOnAPart:
    """The evaluation: runs of candidates on a secret subset of the records, with private scores.

    Each training record is in the subset by itself, with `probability`. `score_noise` is the std of
    the discrete Gaussian on the sum of validation scores (the count of correct predictions), in
    records; None: the least one that adds nothing to the total. `final_on` is what the final
    training sees: the rest of the training records, or all of them.
    """

    probability: float
    score_noise: float | None = None
    final_on: str = REST
    chunk_size: ClassVar[int] = 16

    def __post_init__(self) -> None:
        checks.one_of("final_on", self.final_on, FINAL_ON)
        found = checks.probability("probability", self.probability, hint=", for example 0.2")
        if not SMALLEST_PROBABILITY <= found <= 1.0 - SMALLEST_PROBABILITY:
            raise ValueError(
                f"probability={found:g} leaves one of the parts nearly empty: pass a number "
                "between 0.001 and 0.999, for example 0.2"
            )
        object.__setattr__(self, "probability", checks.kept(self.probability, found))

    def run(
        self,
        problem: Problem,
        choice: RunChoice,
        *,
        randomness: HostRandomness,
        chunk_size: int,
        progress: Progress | None,
        job: Job,
    ) -> Result | None:
        """See `tuner.Evaluation`; `choice` is a `choices.RunChoice`."""
        fixed = plan(problem, self, choice)
        task = fixed.task
        started = time.time()
        ran = _tuned_and_trained(fixed, randomness, chunk_size, progress, job)
        if ran is None:
            return None
        searched, trained = ran.searched, ran.trained
        units = 0 if trained is None else int(trained.units[0])
        chosen = chosen_hyperparameters(searched)
        return Result(
            release=_release(fixed, ran, randomness.secret),
            guarantee=fixed.guarantee,
            run_guarantee=fixed.training_guarantee,
            selection_guarantee=fixed.selection_guarantee,
            curator=curator.CuratorRecord(
                number_of_candidates=len(searched.scores),
                winner=-1 if chosen is None else int(searched.best.candidate[0]),
                hyperparameters=_as_trained(fixed, searched.hyperparameters),
                scores=searched.scores / task.validation.public_size,
                accuracies=searched.units / (task.units * max(task.validation.number, 1)),
                seconds=time.time() - started,
                details={
                    "what_scores_are": "of models of the part of the records; the learning rates "
                    "are the final training's",
                    "final_model_validation_accuracy": units
                    / (task.units * max(task.validation.number, 1)),
                },
            ),
        )

    def rebuild(self, claim: Mapping[str, Any], problem: Problem, choice: RunChoice) -> Rebuilt:
        """See `tuner.Evaluation`; the noise of scores is read from the statement."""
        noise = claim["score"]["noise_standard_deviation_in_records"]
        runs = dataclasses.replace(
            self, score_noise=None if problem.validation_is_public else float(noise)
        )
        fixed = plan(problem, runs, choice)
        return Rebuilt(
            public_claim(fixed, **statements.common(claim)),
            lambda chosen: _may_release(fixed, chosen),
        )


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything that is fixed, and public, before the data is touched.

    `setting` is of a run, on either subset; `on_all` says that the final training is of all
    records, not of the rest. `score_noise` is 0 for public validation data. `training_guarantee` is
    the cost of one run to a record that it may see, `selection_guarantee` that of the selection
    alone to a record of the subset or a validation record, `guarantee` that of the release.
    """

    problem: Problem
    probability: float
    on_all: bool
    choice: RunChoice
    setting: RunSetting
    score_noise: float
    training_guarantee: accounting.Guarantee
    selection_guarantee: accounting.Guarantee
    guarantee: accounting.Guarantee

    @property
    def task(self) -> Task:
        """Returns what is learned."""
        assert self.problem.task is not None  # It is no statement's.
        return self.problem.task

    @property
    def space(self) -> Space:
        """Returns the distribution of the final training's hyperparameters."""
        return self.problem.space

    @property
    def final_share(self) -> float:
        """Returns the public share of the records that the final training is expected to see."""
        return 1.0 if self.on_all else 1.0 - self.probability

    @property
    def rate_on_the_part(self) -> float:
        """Returns the multiple of the final training's learning rate for a run on the subset."""
        return rate_on_the_part(self.probability, self.final_share)

    @property
    def settings(self) -> tuple[RunSetting, RunSetting]:
        """Returns the accounted settings of a run on the subset, and of the final one.

        Steps, noise and the probability of a record in a lot are the same; what lots are divided by
        are public expectations.
        """
        shares = self.probability, self.final_share
        on_the_part, final = (dataclasses.replace(self.setting, share=share) for share in shares)
        return on_the_part, final

    def search(self, in_part: np.ndarray) -> Procedure:
        """Returns the private runs on the subset; `in_part`, (n,) bool, stays with the curator."""
        task = _task_of(self.task, in_part)
        # Only the records are others: what was looked at of the task is the same.
        optimizer = _with_rate_times(self.problem.inspected.optimizer, self.rate_on_the_part)
        return Procedure(
            problem=dataclasses.replace(self.problem, task=task, optimizer=optimizer),
            selection=self.choice,
            settings=self.settings[:1],
            score_noise=self.score_noise,
            run_guarantee=self.training_guarantee,
            guarantee=self.guarantee,
        )

    def final_training(self, in_part: np.ndarray, chosen: Mapping[str, float]) -> Procedure:
        """Returns the one run of `chosen`, on the rest of the records or, if `on_all`, on all."""
        task = self.task if self.on_all else _task_of(self.task, ~in_part)
        return final_run(
            dataclasses.replace(self.problem, task=task, space=Space(dict(chosen))),
            self.settings[1],
            self.training_guarantee,
            self.guarantee,
        )


def plan(problem: Problem, runs: RunsOnAPart, choice: RunChoice) -> Plan:
    """Fixes the procedure and its cost, from public numbers only."""
    if problem.run.sampling == FIXED:
        raise ValueError(
            "a secret part has no price under replace one, which lots of fixed size speak of: "
            "pass sampling='poisson'"
        )
    problem.check()
    check_cost_is_fixed(problem.space)
    setting = dataclasses.replace(the_one_setting(problem), probability=1.0)
    check_score_noise(runs.score_noise, problem.units)

    def of_records(train: accounting.Guarantee) -> accounting.Guarantee:
        # The part is secret, so this is less than a composition.
        return accounting.split(
            choice.guarantee(train), train, probability=runs.probability, final_on=runs.final_on
        )

    def price(settings: list[RunSetting]) -> tuple[accounting.Guarantee, tuple]:
        (setting,) = settings
        train = training_guarantee(settings)
        selection, total, noise = choice.guarantee(train), of_records(train), 0.0
        if not problem.validation_is_public:
            noise = (
                _quiet_noise(choice, total, setting.relation, problem.units, problem.delta)
                if runs.score_noise is None
                else runs.score_noise
            )
            # A record is in one of the two: validation records are scored, and not trained on.
            count = choice.guarantee(count_guarantee(noise, setting.relation, problem.units))
            selection = accounting.parallel(selection, count)
            total = accounting.parallel(total, count)
        return total, (train, selection, noise)

    (setting,), (total, (train, selection, noise)) = meet_target(
        [setting], problem, choice.guarantee, of_records, price, runs.score_noise
    )
    return Plan(
        problem=problem,
        probability=runs.probability,
        on_all=runs.final_on == ALL,
        choice=choice,
        setting=setting,
        score_noise=noise,
        training_guarantee=train,
        selection_guarantee=selection,
        guarantee=total,
    )


def _quiet_noise(
    choice: RunChoice, total: accounting.Guarantee, relation: str, units: int, delta: float
) -> float:
    """Returns the least std with which a choice by scores alone costs no more than `total`.

    Searched over powers of 1.05, from 0.5 records on; the cost is computed of the one found.
    """
    allowed = total.epsilon(delta)

    def fits(power: int) -> bool:
        count = count_guarantee(0.5 * 1.05**power, relation, units)
        return choice.guarantee(count).epsilon(delta) <= allowed

    low, high = 0, math.floor(math.log(min(1e4, LARGEST_DEVIATION / units) / 0.5) / math.log(1.05))
    while low < high:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle + 1
    return 0.5 * 1.05**high


def _task_of(task: Task, members: np.ndarray) -> Task:
    """Returns the task with some of its training records, and its public numbers."""
    return dataclasses.replace(task, train=_some_of(task.train, members))


class _Part(Records):
    """Some of the records, or none: how many is secret, and no reason to stop."""

    may_be_empty = True


def _some_of(records: Records, members: np.ndarray) -> Records:
    given = {field.name: getattr(records, field.name) for field in dataclasses.fields(records)}
    given["arrays"] = jax.tree.map(lambda leaf: np.asarray(leaf)[members], records.arrays)
    if records.identifiers is not None:
        given["identifiers"] = np.asarray(records.identifiers)[members]
    return _Part(**given)


def _with_rate_times(optimizer: Optimizer, factor: float) -> Optimizer:
    """Returns the optimiser, given a multiple of the learning rate."""

    def scaled(hyperparameters: Mapping[str, Any]) -> Any:
        given = dict(hyperparameters)
        if RATE in given:
            given[RATE] = factor * given[RATE]
        return optimizer(given)

    return scaled


def drawn_part(number: int, probability: float, randomness: HostRandomness) -> np.ndarray:
    """Draws which of `number` records are in the subset, (number,) bool; nobody may learn it.

    Each is by itself with exactly this probability: a uniform 64-bit word lies below its multiple
    of 2^64, which is whole.
    """
    threshold = int(probability * 2.0**64)
    return randomness.words(number, _STREAM_OF_PART) < np.uint64(threshold)


class _Ran(NamedTuple):
    """What was executed on either subset, for the curator only; None: no final training."""

    searched: Executed
    final: Executed | None

    @property
    def trained(self) -> Executed | None:
        """Returns the final training, if there is one and its model is finite."""
        finite = self.final is not None and np.isfinite(self.final.best.score[0])
        return self.final if finite else None


def _tuned_and_trained(
    fixed: Plan,
    randomness: HostRandomness,
    chunk_size: int,
    progress: Progress | None,
    job: Job,
) -> _Ran | None:
    """Draws the subset, searches on it and trains on the rest; None for a shard.

    One draw of the subset serves one release: a process that goes on with the job's folder reads
    it, and it is removed with the release decided.
    """

    def draw() -> Arrays:
        return {"in_part": drawn_part(fixed.task.train.number, fixed.probability, randomness)}

    def work(drawn: Arrays) -> Arrays | None:
        return _worked_out(fixed, randomness, chunk_size, progress, job, drawn["in_part"])

    outcome = job.once(draw, lambda: _facts(fixed, randomness), work)
    if outcome is None:
        return None
    final = within(outcome, _FINAL)
    return _Ran(
        read_executed(within(outcome, _SEARCHED), fixed.task),
        read_executed(final, fixed.task) if final else None,
    )


_SEARCHED, _FINAL = "part", "final"


def _worked_out(
    fixed: Plan,
    randomness: HostRandomness,
    chunk_size: int,
    progress: Progress | None,
    job: Job,
    in_part: np.ndarray,
) -> Arrays | None:
    """Searches on a subset and trains finally; returns arrays, None for a shard."""
    searched = execute(
        fixed.search(in_part),
        randomness=randomness,
        chunk_size=chunk_size,
        progress=progress,
        job=job.inner("part"),
    )
    if searched is None:
        return None
    arrays = named(_SEARCHED, written_executed(searched))
    chosen = chosen_hyperparameters(searched)
    if chosen is None:
        return arrays
    final = execute(
        fixed.final_training(in_part, chosen),
        randomness=_of_final_training(randomness),
        chunk_size=1,
        job=job.inner("rest", shard=None, placement="one_by_one"),
    )
    assert final is not None  # It is no shard's.
    return arrays | named(_FINAL, written_executed(final))


def chosen_hyperparameters(searched: Executed, execution: int = 0) -> dict[str, float] | None:
    """Returns those of the winner for the final training; None where none is finite."""
    winner = int(searched.best.candidate[execution])
    if winner < 0 or not np.isfinite(searched.best.score[execution]):
        return None
    return {name: float(values[winner]) for name, values in searched.hyperparameters.items()}


def _of_final_training(randomness: HostRandomness) -> HostRandomness:
    """Returns other randomness: with the same seed the keys would be the first candidate's."""
    if randomness.secret:
        return randomness
    return HostRandomness(int(randomness.words(1, _STREAM_OF_FINAL_SEED)[0] >> np.uint64(32)))


def _facts(fixed: Plan, randomness: HostRandomness) -> dict[str, Any]:
    """Returns what the draw of the subset, and its trainings, depend on; JSON-able, by name."""
    return {
        "method": "runs on a secret part",
        "settings": dataclasses.astuple(fixed.setting),
        "part": [fixed.probability, fixed.rate_on_the_part] + ["all"] * fixed.on_all,
        "clipping": fixed.problem.run.clipping.describe(),
        "search space": fixed.space.describe(),
        "selection": [fixed.choice.describe(), type(fixed.choice).__name__],
        "score noise": fixed.score_noise,
        "seed": randomness.seed,
    } | fixed.problem.inspected.facts()


LOT = "lot_size"
"""In a space the expected lot of a run on all records; in a release the final training's own."""


def _as_trained(fixed: Plan, drawn: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns hyperparameters (candidates,) with the final training's expected lot."""
    given = dict(drawn)
    if LOT in given:
        given[LOT] = np.full_like(given[LOT], fixed.settings[1].expected_lot_size)
    return given


def _may_release(fixed: Plan, chosen: Mapping[str, Any]) -> bool:
    """Returns whether the procedure can release these hyperparameters."""
    if chosen.get(LOT) is None:
        return statements.drawn_from(fixed.space, chosen)
    if chosen[LOT] != fixed.settings[1].expected_lot_size:
        return False
    return statements.drawn_from(fixed.space, dict(chosen) | {LOT: fixed.setting.lot_size})


def _release(fixed: Plan, ran: _Ran, secret: bool) -> Release:
    """Returns what may leave: the final training's parameters, what it was of, and the claim."""
    trained = ran.trained
    if trained is not None:
        params = trained.best.output(0)
    else:
        params = untrained(fixed.task)
        cautions.of_untrained(
            "no candidate could be chosen (none was drawn, or none was finite), or the final "
            "training is not finite"
        )
    chosen = chosen_hyperparameters(ran.searched)
    released: dict[str, float | None] = dict.fromkeys(sorted(ran.searched.hyperparameters))
    if chosen is not None:
        released = statements.rounded({name: chosen[name] for name in released})
        if LOT in released:
            # An expectation, and no whole number.
            released[LOT] = float(fixed.settings[1].expected_lot_size)
    claim = public_claim(fixed, secret)
    return Release(params=params, hyperparameters=released, statement=claim)


def public_claim(
    fixed: Plan, secret: bool, versions: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Returns what the release of a plan states, from public text and numbers alone."""
    delta = fixed.problem.delta
    runs = zip(fixed.settings, (ON_THE_PART, ON_ALL if fixed.on_all else ON_THE_REST))
    claim = statements.written(
        **statements.of_problem(fixed.problem),
        guarantee=fixed.guarantee,
        selection=fixed.choice.describe()
        | {
            "rule": RULE_ON_ALL if fixed.on_all else RULE,
            "part": {
                "probability_of_a_training_record": fixed.probability,
                "learning_rate_over_the_final_one": fixed.rate_on_the_part,
            },
        },
        score=statements.of_noisy_scores(fixed.problem)
        | {"noise_standard_deviation_in_records": fixed.score_noise},
        settings=[statements.of_setting(setting, of) for setting, of in runs],
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
