"""Subset tuning: tune on a secret random part of the records, train on the rest.

Antti Koskela and Tejas Kulkarni, "Practical Differentially Private Hyperparameter Tuning with
Subsampling", NeurIPS 2023, https://arxiv.org/abs/2301.11989 (they bound Renyi divergences). Every
training record goes to the part with probability q. The best of K private runs on the part gives
the hyperparameters, one private run on the other records the model: their first variant. A record
is in one of the two, and nobody knows in which: both together can cost less than one run on all
records does (`accounting.split`). In their second variant (`final_on="all"`) the model is trained
on all records; that costs more than one such run, and less than the best of K of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dpjax import accounting
from dpjax.accounting.selection.split import FINAL_ON
from dpjax.tuning.choices import BestOf
from dpjax.tuning.evaluations.runs_on_a_part import ALL, REST, RULE, RULE_ON_ALL, RunsOnAPart
from dpjax.tuning.tuner import rebuilt_by, register_rule, register_tuner
from dpjax.tuning.tuners.random_repetitions import DEFAULT_REPETITIONS

DEFAULT_PROBABILITY = 0.2


@register_tuner("subset_tuning", rule=RULE)
@dataclasses.dataclass(frozen=True)
class SubsetTuning:
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
      >>> from dpjax import tuning
      >>> tuning.SubsetTuning(probability=0.1).final_on
      'rest'

    Attributes:
      probability: of each training record to be in the part that is tuned on, in (0, 1).
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

    @property
    def evaluation(self) -> RunsOnAPart:
        return RunsOnAPart(self.probability, self.score_noise, self.final_on)

    @property
    def choice(self) -> BestOf:
        return BestOf(self.repetitions)

    @classmethod
    def from_statement(cls, claim: Mapping[str, Any]) -> SubsetTuning:
        selection = claim["selection"]
        return cls(
            selection["part"]["probability_of_a_training_record"],
            accounting.law_from_dict(selection["law_of_K"]),
            final_on=REST if selection["rule"] == RULE else ALL,
        )


register_rule(RULE_ON_ALL, lambda claim: rebuilt_by(SubsetTuning.from_statement(claim), claim))
