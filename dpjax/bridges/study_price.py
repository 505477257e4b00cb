"""The price of a finished search, whichever library ran its trials."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dpjax import accounting, checks
from dpjax.accounting import stated_epsilon
from dpjax.accounting.guarantee import check_guarantee

MOST_SETTINGS = 1000
"""Most combinations of the hyperparameters that a trial's cost depends on; each is priced."""

_DECLARED = (
    "one trial, with every value it reported, has the guarantee declared for it, whatever "
    "hyperparameters it had: steps, lots and noise that differed among trials are in it",
    "the search space, the number of trials and every setting were fixed before the data was seen",
    "no other computation on the same records is released, or it is composed with this",
)
_ANY_WAY = (
    "composition of all trials, each chosen in any way",
    "everything that the trials gave: models, hyperparameters and reported values of all of them",
    (),
)
_INDEPENDENT = (
    "best of a number of independent trials that was fixed beforehand",
    "the best trial alone: its model and hyperparameters; not its value beside others', not the "
    "study, not a plot of it",
    (
        "STATED BY THE CALLER: every trial's hyperparameters were drawn independently, by one "
        "public law, whatever earlier trials gave, by a sampler whose seed nobody knows",
        "STATED BY THE CALLER: nothing pruned a trial, retried it or ended the search early",
        "the other trials, their values and the study's storage stay with the curator",
    ),
)


@dataclasses.dataclass(frozen=True)
class StudyPrice:
    """The cost of a finished search, as `guarantee` and as a `statement` for JSON.

    The statement holds epsilon, delta, the rule, what the caller stated and what is covered, but
    not how many trials really ran.
    """

    guarantee: accounting.Guarantee
    delta: float
    statement: Mapping[str, Any]

    @property
    def epsilon(self) -> float:
        """Returns epsilon at `delta`."""
        return self.guarantee.epsilon(self.delta)


def price_of_trials(
    trial: accounting.Guarantee,
    *,
    most_trials: int,
    independent: bool,
    delta: float,
    monotone_in: Sequence[str] = (),
) -> StudyPrice:
    """Returns the cost of a search of at most `most_trials` trials.

    Formal guarantees:
      Without `independent` it is the composition of `most_trials` trials, adaptive: each may have
      been chosen, pruned or left out by all that earlier ones gave. With it the best of exactly so
      many (`accounting.best_of` of `accounting.Fixed`), under what the caller states, which stands
      in the statement.
    """
    delta = checks.probability("delta", delta, hint=", for example 1e-5")
    if independent:
        guarantee = accounting.best_of(trial, accounting.Fixed(most_trials))
    else:
        guarantee = accounting.repeat(trial, most_trials)
    if not math.isfinite(guarantee.epsilon(delta)):
        raise ValueError(stated_epsilon.no_epsilon(guarantee.least_delta, delta))
    rule, covers, conditions = _INDEPENDENT if independent else _ANY_WAY
    statement: dict[str, Any] = {
        "rule": rule,
        "covers": covers,
        "most_trials": most_trials,
        "independent": independent,
        "assumptions": [
            *_DECLARED,
            *conditions,
            *(f"STATED BY THE CALLER: the cost is monotone in {name}" for name in monotone_in),
        ],
        "epsilon": guarantee.stated_epsilon(delta),
        stated_epsilon.FIELD: stated_epsilon.EPSILON_IS,
        "delta": delta,
        "neighbouring_relation": guarantee.relation,
        "mechanism": guarantee.provenance,
    }
    words = stated_epsilon.large_delta(delta)
    if words is not None:
        statement["caution"] = words
    return StudyPrice(guarantee, delta, statement)


Base = accounting.Guarantee | Callable[[dict[str, Any]], accounting.Guarantee]


def most_expensive(
    base: Base,
    values: Callable[[str], Sequence[Any]],
    cost_depends_on: Sequence[str],
    monotone_in: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> accounting.Guarantee:
    """Returns a guarantee that holds for every trial, whatever its hyperparameters cost.

    The sum of the trials' actual costs would not do: a sampler that looks at results chooses these
    costs by the data as well. The pointwise largest profile over all settings holds for each.
    """
    names = checks.listed("cost_depends_on", cost_depends_on, "names of hyperparameters")
    monotone = checks.listed("monotone_in", monotone_in, "names of hyperparameters")
    if not set(monotone) <= set(names):
        raise ValueError("monotone_in has a name that cost_depends_on lacks: name it in both")
    if not callable(base):
        if names:
            raise ValueError("cost_depends_on is for a base that is a function: drop it")
        check_guarantee("base", base)
        return base
    if not names:
        raise ValueError(
            "base is a function: pass cost_depends_on, the names that it reads, or one Guarantee "
            "that holds for every trial"
        )
    choices = [list(dict.fromkeys(values(name))) for name in names]
    for place, name in enumerate(names):
        if name in monotone:
            ordered = sorted(
                checks.number(f"{name}, which is monotone,", one) for one in choices[place]
            )
            choices[place] = [one for one in choices[place] if one in (ordered[0], ordered[-1])]
    if math.prod(map(len, choices)) > MOST_SETTINGS:
        raise ValueError(
            f"cost_depends_on has more than {MOST_SETTINGS} settings: name those in which the cost "
            "is monotone in monotone_in too, or pass one Guarantee that holds for every trial"
        )
    costs: list[accounting.Guarantee] = []
    total = math.prod(map(len, choices))
    for done, setting in enumerate(itertools.product(*choices), 1):
        try:
            cost = base(dict(zip(names, setting)))
        except KeyError as missing:
            raise ValueError(f"base reads {missing}: name it in cost_depends_on too") from None
        check_guarantee("what base returns", cost)
        if all(cost.provenance != known.provenance for known in costs):
            costs.append(cost)
        if progress is not None:
            progress(done, total)
    return accounting.parallel(*costs)
