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
from dpjax.releases.curator import CuratorRecord
from dpjax.releases.rules import register_rule
from dpjax.training.optimizers import Optimizer
from dpjax.tuning import statements
from dpjax.tuning.private_runs import Plan, RunsPlan
from dpjax.tuning.problem.problem import FIXED, Material, Problem
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
from dpjax.tuning.steps import Chosen, Draw, Ran, Select, Steps, Train, record
from dpjax.tuning.tuner import Tuner, rebuilt_by, register_tuner
from dpjax.tuning.tuners.random_repetitions import stated_score_noise

DEFAULT_PROBABILITY = 0.2
DEFAULT_REPETITIONS = accounting.AtMost(accounting.Geometric(10), cap=64)

REST, ALL = FINAL_ON

SMALLEST_PROBABILITY = 2.0**-11
"""Least probability of a part: floats from here on are multiples of 2^-64, as the draw needs."""

RATE = "learning_rate"
"""The hyperparameter whose value is changed for a run on the part."""

LOT = "lot_size"
"""The expected lot: in a space that of a run on all records, in a release the final training's."""

# Number of a seeded `HostRandomness`'s stream, apart from those of `private_runs`.
_STREAM_OF_PART = 21

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

    @property
    def search(self) -> RunsPlan:
        """Returns the private runs on the subset."""
        return RunsPlan(
            problem=self.problem,
            selection=self.choice,
            settings=self.settings[:1],
            score_noise=self.score_noise,
            run_guarantee=self.run_guarantee,
            guarantee=self.guarantee,
        )

    def searched(self, material: Material, in_part: np.ndarray) -> Material:
        """Returns what is searched on; `in_part`, (n,) bool, stays with the curator."""
        return dataclasses.replace(
            material,
            task=_task_of(material.task, in_part),
            optimizer=_with_rate_times(material.optimizer, self.rate_on_the_part),
        )

    def finally_trained(self, material: Material, in_part: np.ndarray) -> Material:
        """Returns what the final training sees: the rest of the records, or all of them."""
        if self.on_all:
            return material
        return dataclasses.replace(material, task=_task_of(material.task, ~in_part))


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
            words = "a secret part has no price under replace one, the relation of lots of fixed "
            raise checks.Refused(words, "size: pass ", ("sampling", "poisson"))
        choice = self.choice
        check_cost_is_fixed(problem.space)
        setting = the_one_setting(problem)
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

    def steps(self, plan: SubsetPlan, material: Material) -> Steps:
        """Draws the part, searches on it and trains on the rest."""
        number = material.task.train.number
        in_part = yield Draw("in_part", lambda own: drawn_part(number, plan.probability, own))
        searched = yield Select("part", plan.search, lambda: plan.searched(material, in_part))
        if searched.hyperparameters is None:
            return Chosen(None, None, _record(plan, material, searched, None))
        final = yield Train(
            "rest",
            plan,
            lambda: plan.finally_trained(material, in_part),
            plan.settings[1],
            searched.hyperparameters,
        )
        record = _record(plan, material, searched, final)
        return Chosen(final.params, searched.hyperparameters, record)

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

    def __post_init__(self) -> None:
        """Checks nothing: all of the records were checked."""


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


def _record(
    plan: SubsetPlan, material: Material, searched: Ran, final: Ran | None
) -> CuratorRecord:
    """Returns what stays with the curator."""
    trained = final is not None and final.params is not None
    units = int(final.executed.units[0]) if final is not None and trained else 0
    known = record(
        material,
        [searched],
        what_scores_are="of models of the part of the records; the learning rates are the final "
        "training's",
        final_model_validation_accuracy=units
        / (plan.problem.units * max(material.task.validation.number, 1)),
    )
    # The record names the lots of the final training, not those of the subset's runs.
    if LOT not in known.hyperparameters:
        return known
    lots = np.full(len(known.scores), plan.settings[1].expected_lot_size)
    return dataclasses.replace(known, hyperparameters=dict(known.hyperparameters) | {LOT: lots})
