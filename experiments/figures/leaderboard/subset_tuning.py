"""Subset tuning: tune on a secret random part of the records, train on the rest.

Antti Koskela and Tejas Kulkarni, "Practical Differentially Private Hyperparameter Tuning with
Subsampling", NeurIPS 2023, https://arxiv.org/abs/2301.11989 (they bound Renyi divergences). Every
training record goes to the part with probability q. The best of K private runs on the part gives
the hyperparameters, one private run on the other records the model: their first variant. A record
is in one of the two, and nobody knows in which: both together can cost less than one run on all
records does (`accounting.split`). In their second variant (`final_on="all"`) the model is trained
on all records; that costs more than one such run, and less than the best of K of them. Validation
records are touched by the selection alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from dpjax import accounting, checks
from dpjax.accounting.selection.split import FINAL_ON
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.training.optimizers import Optimizer
from dpjax.tuning import statements
from dpjax.tuning.curator import CuratorRecord
from dpjax.tuning.job import Arrays, Job
from dpjax.tuning.private_runs import (
    RunsPlan,
    by_kind,
    execute,
    final_run,
    named,
    put,
    read_executed,
    train_finally,
    winners,
    within,
    written_executed,
)
from dpjax.tuning.problem.problem import FIXED, Problem
from dpjax.tuning.problem.run_settings import (
    RunSetting,
    check_cost_is_fixed,
    check_score_noise,
    count_guarantee,
    least_std,
    meet_target,
    the_one_setting,
    training_guarantee,
)
from dpjax.tuning.problem.task import Records, Task
from dpjax.tuning.selection import BestOf, RunChoice
from dpjax.tuning.tuner import (
    Outcome,
    Plan,
    Progress,
    Tuner,
    rebuilt_by,
    register_rule,
    register_tuner,
)
from dpjax.tuning.tuners.random_repetitions import (
    DEFAULT_REPETITIONS,
    record_of,
    stated_score_noise,
)

DEFAULT_PROBABILITY = 0.2

REST, ALL = FINAL_ON

SMALLEST_PROBABILITY = 2.0**-11
"""Least probability of a part: floats from here on are multiples of 2^-64, as the draw needs."""

RATE = "learning_rate"
"""The hyperparameter whose value is changed for a run on the part."""

LOT = "lot_size"
"""The expected lot: in a space that of a run on all records, in a release the final training's."""

# Numbers of a seeded `HostRandomness`'s streams, apart from those of `private_runs`.
_STREAM_OF_PART, _STREAM_OF_FINAL_SEED, _STREAM_OF_KINDS = 21, 22, 23

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
    """Returns the public factor on the learning rate of a run on the subset.

    It is the square root of the ratio of the two expected lot sizes. The subset's lots are smaller,
    so the same noise is larger in their average, and the best rate is lower. `SubsetTuning` says
    what this was chosen among. `probability` is that of a training record to be in the subset;
    `final_share` the expected share of the records in the final training, None: the rest.
    """
    return math.sqrt(probability / (1.0 - probability if final_share is None else final_share))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubsetPlan(Plan):
    """Plans runs on a secret subset of the records, and one on the rest or on all of them.

    `setting` is of a run, on either subset; `on_all` says that the final training is of all
    records, not of the rest. `score_noise` is 0 for public validation data. `run_guarantee` is the
    cost of one run to a record that it may see, `selection_guarantee` that of the selection alone
    to a record of the subset or a validation record.
    """

    probability: float
    on_all: bool
    choice: RunChoice
    setting: RunSetting
    score_noise: float

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

        Steps, noise and the probability of a record in a lot are the same; sums are divided by
        public expected lot sizes.
        """
        shares = self.probability, self.final_share
        on_the_part, final = (dataclasses.replace(self.setting, share=share) for share in shares)
        return on_the_part, final

    def search(self, in_part: np.ndarray) -> RunsPlan:
        """Returns the private runs on the subset; `in_part`, (n,) bool, stays with the curator."""
        # Only the records differ, so the task need not be inspected again.
        optimizer = _with_rate_times(self.problem.inspected.optimizer, self.rate_on_the_part)
        task = _task_of(self.task, in_part)
        return RunsPlan(
            problem=dataclasses.replace(self.problem, task=task, optimizer=optimizer),
            selection=self.choice,
            settings=self.settings[:1],
            score_noise=self.score_noise,
            run_guarantee=self.run_guarantee,
            guarantee=self.guarantee,
        )

    def final_training(self, in_part: np.ndarray, chosen: Mapping[str, np.ndarray]) -> RunsPlan:
        """Returns the runs that train each execution's choice, on the rest or on all records."""
        task = self.task if self.on_all else _task_of(self.task, ~in_part)
        final = dataclasses.replace(self, problem=dataclasses.replace(self.problem, task=task))
        return final_run(final, self.settings[1], chosen)


@register_tuner("subset_tuning", rule=RULE)
@dataclasses.dataclass(frozen=True)
class SubsetTuning(Tuner):
    """Tunes on a secret random part of the training records, and trains the winner on the rest.

    Formal guarantees:
      `result.release` is (`result.guarantee.epsilon(delta)`, delta)-differentially private under
      add or remove one record of the training or validation data, if the space and every argument
      were fixed without looking at the data, and the parts, their sizes, K, the candidates, the
      console and the wall clock stay with the curator. Enforced here: each training record is in
      the part with exactly this probability, by itself, by the operating system's randomness; the
      draw is stored where the job has a folder, serves one release, is removed with it decided and
      appears in nothing that is released; the final training sees the other records alone (or, with
      `final_on="all"`, all, and is priced for that), with keys of its own, and of the search
      nothing but the winner's hyperparameters; lots of both have capacities for the bound on all
      records, and are divided by public expected sizes; a validation record is touched by the
      search alone, whose scores have noise; no candidate, or none that is finite, releases
      parameters that do not depend on data. Source: `accounting.split` for the cost, after Koskela
      & Kulkarni (NeurIPS 2023).

    What is carried from the part to the rest:
      The space is that of the final training. A run on the part has the same steps, clip norm and
      noise multiplier, and the same probability of a record in a lot: its lots have q `lot_size`
      records in expectation, the final training's (1 - q) `lot_size` (with `final_on="all"` all),
      which is the `lot_size` that is released where the space has one.
      Its learning rate is the candidate's times sqrt(q / (1 - q)), the root of the ratio of these
      two (with `final_on="all"` sqrt(q)). Of three public rules (the root, the ratio itself, no
      change) it lost least over two data sets: a linear model with momentum, q .1, .2 and .3, noise
      of runs of epsilon 1, 2 and 4, 13 rates. The rate that is best on the part, carried over, gave
      a mean validation accuracy of .896 / .886 / .870 on digits, where the best rate gives .900 (6
      seeds), and of .841 / .843 / .839 on a9a, where it gives .843 (2 seeds).

    Example:
      >>> from experiments.figures.leaderboard.subset_tuning import SubsetTuning
      >>> SubsetTuning(probability=0.1).final_on
      'rest'

    Attributes:
      probability: chance of each training record to be in the part that is tuned on, in (0, 1).
      repetitions: public law of the number K of candidates.
      score_noise: standard deviation of the noise on the count of correct predictions, in records;
        the least one that adds nothing to the total if unset.
      final_on: what the final training sees: the rest of the training records, or all of them,
        which costs more.
    """

    probability: float = DEFAULT_PROBABILITY
    repetitions: accounting.RepetitionLaw = DEFAULT_REPETITIONS
    score_noise: float | None = None
    final_on: str = dataclasses.field(default=REST, metadata={"choices": FINAL_ON})

    without_a_model = (
        "no candidate could be chosen (none was drawn, or none was finite), or the final training "
        "is not finite"
    )

    def __post_init__(self) -> None:
        checks.one_of("final_on", self.final_on, FINAL_ON)
        found = checks.probability("probability", self.probability, hint=", for example 0.2")
        if not SMALLEST_PROBABILITY <= found <= 1.0 - SMALLEST_PROBABILITY:
            raise ValueError(
                f"probability={found:g} leaves one of the parts nearly empty: pass a number "
                "between 0.001 and 0.999, for example 0.2"
            )
        object.__setattr__(self, "probability", checks.kept(self.probability, found))

    @property
    def choice(self) -> BestOf:
        """Returns how many runs there are on the part, and which one is chosen."""
        return BestOf(self.repetitions)

    @classmethod
    def from_statement(cls, claim: Mapping[str, Any]) -> SubsetTuning:
        selection = claim["selection"]
        return cls(
            selection["part"]["probability_of_a_training_record"],
            accounting.law_from_dict(selection["law_of_K"]),
            stated_score_noise(claim),
            REST if selection["rule"] == RULE else ALL,
        )

    def plan(self, problem: Problem) -> SubsetPlan:
        if problem.run.sampling == FIXED:
            raise ValueError(
                "a secret part has no price under replace one, the relation of lots of fixed size: "
                "pass sampling='poisson'"
            )
        choice = self.choice
        problem.check()
        check_cost_is_fixed(problem.space)
        setting = dataclasses.replace(the_one_setting(problem), probability=1.0)
        check_score_noise(self.score_noise, problem.units)

        def of_records(train: accounting.Guarantee) -> accounting.Guarantee:
            # The part is secret, so this is less than a composition.
            return accounting.split(
                choice.guarantee(train), train, probability=self.probability, final_on=self.final_on
            )

        def price(settings: list[RunSetting]) -> tuple[accounting.Guarantee, tuple]:
            train = training_guarantee(settings)
            selection, total, noise = choice.guarantee(train), of_records(train), 0.0
            if not problem.validation_is_public:
                noise = self.score_noise or _least_noise(choice, total, problem)
                # A record is in one of the two: validation records are scored, not trained on.
                count = choice.guarantee(count_guarantee(noise, setting.relation, problem.units))
                selection = accounting.parallel(selection, count)
                total = accounting.parallel(total, count)
            return total, (train, selection, noise)

        (setting,), (total, (train, selection, noise)) = meet_target(
            [setting], problem, choice.guarantee, of_records, price, self.score_noise
        )
        return SubsetPlan(
            problem=problem,
            probability=self.probability,
            on_all=self.final_on == ALL,
            choice=choice,
            setting=setting,
            score_noise=noise,
            run_guarantee=train,
            selection_guarantee=selection,
            guarantee=total,
        )

    def run(
        self,
        plan: SubsetPlan,
        *,
        randomness: HostRandomness,
        executions: int = 1,
        chunk_size: int = 16,
        progress: Progress | None = None,
        job: Job = Job(),  # noqa: B008 (immutable)
    ) -> Outcome | None:
        """Draws the part, searches on it and trains on the rest; returns None for a shard.

        One draw of the part serves one release: a resumed process reads it from the job's folder,
        and it is removed when the release is decided.
        """
        with job.once(_facts(plan, randomness) if job.is_bound else None) as once:
            if once.wants_a_draw:
                number = executions * plan.task.train.number
                once.begin({"in_part": drawn_part(number, plan.probability, randomness)})
            drawn = once.drawn()
            if drawn is not None:
                parts = drawn["in_part"].reshape(executions, -1)
                once.end(_search_and_train(plan, parts, randomness, chunk_size, progress, job))
        return None if once.outcome is None else _outcome(plan, once.outcome, executions)

    def released(
        self, plan: SubsetPlan, chosen: Mapping[str, float | None]
    ) -> dict[str, float | None]:
        named = statements.rounded(chosen)
        if named.get(LOT) is not None:
            # The expected lot size, which need not be a whole number.
            named[LOT] = float(plan.settings[1].expected_lot_size)
        return named

    def may_release(self, plan: SubsetPlan, released: Mapping[str, Any]) -> bool:
        if released.get(LOT) is None:
            return statements.drawn_from(plan.problem.space, released)
        if released[LOT] != plan.settings[1].expected_lot_size:
            return False
        of_the_space = dict(released) | {LOT: plan.setting.lot_size}
        return statements.drawn_from(plan.problem.space, of_the_space)

    def statement(
        self, plan: SubsetPlan, *, secret: bool, versions: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        runs = zip(plan.settings, (ON_THE_PART, ON_ALL if plan.on_all else ON_THE_REST))
        claim = statements.written(
            **statements.of_problem(plan.problem),
            guarantee=plan.guarantee,
            selection=plan.choice.describe()
            | {
                "rule": RULE_ON_ALL if plan.on_all else RULE,
                "part": {
                    "probability_of_a_training_record": plan.probability,
                    "learning_rate_over_the_final_one": plan.rate_on_the_part,
                },
            },
            score=statements.of_noisy_scores(plan.problem)
            | {"noise_standard_deviation_in_records": plan.score_noise},
            settings=[statements.of_setting(setting, of) for setting, of in runs],
            randomness_is_secret=secret,
            assumptions=_ASSUMPTIONS,
            versions=versions,
        )
        parts = statements.of_parts(
            plan.selection_guarantee, plan.run_guarantee, plan.problem.delta
        )
        return claim | {"epsilon_of_parts": parts}


register_rule(RULE_ON_ALL, lambda claim: rebuilt_by(SubsetTuning.from_statement(claim), claim))


def _least_noise(choice: RunChoice, total: accounting.Guarantee, problem: Problem) -> float:
    """Returns the least std at which a choice by noisy scores alone costs no more than `total`."""
    allowed = total.epsilon(problem.delta)

    def suffices(std: float) -> bool:
        count = count_guarantee(std, total.relation, problem.units)
        return choice.guarantee(count).epsilon(problem.delta) <= allowed

    return least_std(suffices, problem.units)


def _task_of(task: Task, members: np.ndarray) -> Task:
    """Returns the task with some of its training records, and its public numbers."""
    return dataclasses.replace(task, train=_some_of(task.train, members))


class _Part(Records):
    """Some of the records, perhaps none: how many is secret, so an empty part is no error."""

    may_be_empty = True


def _some_of(records: Records, members: np.ndarray) -> Records:
    """Returns the records that `members` (n,) bool picks, with the same public numbers."""
    given = {field.name: getattr(records, field.name) for field in dataclasses.fields(records)}
    given["arrays"] = jax.tree.map(lambda leaf: np.asarray(leaf)[members], records.arrays)
    if records.identifiers is not None:
        given["identifiers"] = np.asarray(records.identifiers)[members]
    return _Part(**given)


def _with_rate_times(optimizer: Optimizer, factor: float) -> Optimizer:
    """Returns an optimiser that reads the learning rate times a factor."""

    def scaled(hyperparameters: Mapping[str, Any]) -> Any:
        given = dict(hyperparameters)
        if RATE in given:
            given[RATE] = factor * given[RATE]
        return optimizer(given)

    return scaled


def drawn_part(number: int, probability: float, randomness: HostRandomness) -> np.ndarray:
    """Draws which of `number` records are in the subset, (number,) bool; nobody may learn it.

    Each is in it independently, with exactly this probability: where a uniform 64-bit word is below
    probability * 2^64, which is a whole number.
    """
    threshold = int(probability * 2.0**64)
    return randomness.words(number, _STREAM_OF_PART) < np.uint64(threshold)


_SEARCHED, _FINAL = "part", "final"


def _search_and_train(
    plan: SubsetPlan,
    parts: np.ndarray,
    randomness: HostRandomness,
    chunk_size: int,
    progress: Progress | None,
    job: Job,
) -> Arrays | None:
    """Searches and trains once for each distinct part; returns arrays, or None for a shard."""
    arrays: Arrays = {}
    for kind, (in_part, members) in enumerate(by_kind(parts)):
        own = randomness if len(parts) == 1 else randomness.fold_in(_STREAM_OF_KINDS, kind)
        searched = execute(
            plan.search(in_part),
            randomness=own,
            executions=len(members),
            chunk_size=chunk_size,
            progress=progress,
            job=job.inner(_SEARCHED),
        )
        if searched is None:
            return None
        arrays |= named(f"{_SEARCHED}{kind}", written_executed(searched) | {"executions": members})
        found, chosen = winners(searched)
        if not found.any():
            continue
        final = train_finally(
            plan.final_training(in_part, {name: chosen[name][found] for name in chosen}),
            randomness=_of_final_training(own),
            executions=int(np.sum(found)),
            chunk_size=chunk_size,
            job=job.inner("rest"),
        )
        arrays |= named(f"{_FINAL}{kind}", written_executed(final))
    return arrays


def _of_final_training(randomness: HostRandomness) -> HostRandomness:
    """Returns randomness with another seed, or its keys would be those of the first candidate."""
    if randomness.secret:
        return randomness
    return HostRandomness(int(randomness.words(1, _STREAM_OF_FINAL_SEED)[0] >> np.uint64(32)))


def _outcome(plan: SubsetPlan, arrays: Arrays, executions: int) -> Outcome:
    """Reads the arrays of `_search_and_train`; each part is of executions that drew the same."""
    found = np.zeros(executions, bool)
    hyperparameters = {
        name: np.full(executions, np.nan) for name in sorted(plan.problem.space.parameters)
    }
    params: Any = None
    record: CuratorRecord | None = None
    for kind in range(executions):
        if not (part := within(arrays, f"{_SEARCHED}{kind}")):
            break
        members = part.pop("executions")
        searched, units = read_executed(part, plan.task), 0
        chosen_at_all, chosen = winners(searched)
        for name, values in chosen.items():
            hyperparameters[name][members] = values
        if final := within(arrays, f"{_FINAL}{kind}"):
            ran, own = read_executed(final, plan.task), members[chosen_at_all]
            found[own] = winners(ran)[0]
            params = put(params, own, ran.best.outputs, executions)
            units = int(ran.units[0]) if found[own[0]] else 0
        if members[0] == 0:
            record = record_of(
                plan,
                searched,
                what_scores_are="of models of the part of the records; the learning rates are the "
                "final training's",
                final_model_validation_accuracy=units
                / (plan.task.units * max(plan.task.validation.number, 1)),
            )
    assert record is not None
    # The record names the lots of the final training, not those of the subset's runs.
    if LOT in record.hyperparameters:
        lots = np.full(len(record.scores), plan.settings[1].expected_lot_size)
        own_lots = dict(record.hyperparameters) | {LOT: lots}
        record = dataclasses.replace(record, hyperparameters=own_lots)
    return Outcome(plan, params, found, hyperparameters, record)


def _facts(plan: SubsetPlan, randomness: HostRandomness) -> dict[str, Any]:
    """Returns all that the draw of the subset, and its trainings, depend on, by name, for JSON."""
    return {
        "method": "runs on a secret part",
        "settings": dataclasses.astuple(plan.setting),
        "part": [plan.probability, plan.rate_on_the_part] + ["all"] * plan.on_all,
        "clipping": plan.problem.clipping.describe(),
        "search space": plan.problem.space.describe(),
        "selection": [plan.choice.describe(), type(plan.choice).__name__],
        "score noise": plan.score_noise,
        "seed": randomness.seed,
    } | plan.problem.inspected.facts()
