"""No tuning: one private run with a public default, what every tuner has to beat.

The whole epsilon goes into one training, and every record may train. Where the default is good,
that is hard to beat: choosing costs epsilon, and records to score by. `public_defaults` is the rule
that the default comes from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dpjax.tuning.evaluations.one_run import RULE, NothingToChoose, OneRun
from dpjax.tuning.problem.public_defaults import default_space_and_run
from dpjax.tuning.tuner import register_tuner


@register_tuner("untuned", rule=RULE)
@dataclasses.dataclass(frozen=True)
class Untuned:
    """Trains one model privately with public hyperparameters; nothing is tuned.

    Formal guarantees:
      `result.release` is (`result.guarantee.epsilon(delta)`, delta)-differentially private under
      `result.guarantee.relation` for one record of the training data, if every argument was fixed
      without looking at the data and the randomness stays secret; it does not depend on the
      validation records at all. Enforced here: one run, whose cost is the whole cost; every
      hyperparameter is a number that was there before; a run that is not finite releases parameters
      that do not depend on data. Source: `accounting.dp_sgd` for the cost.

    Example:
      >>> from dpjax import tuning
      >>> tuning.Untuned()
      Untuned()
    """

    evaluation = OneRun()
    choice = NothingToChoose()

    default = staticmethod(default_space_and_run)

    @classmethod
    def from_statement(cls, claim: Mapping[str, Any]) -> Untuned:
        return cls()
