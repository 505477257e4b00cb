"""What a tuner asks for and returns is looked at as it comes; `rehearse` does so before any draw.

A mistake in somebody's own tuner is found here: something that is no request, a request that is
not paid for, steps that return nothing. Nothing here knows whether a price is right. It only
compares the runs that are asked for with those that the plan's guarantee was made from.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Generator, Mapping
from typing import Any

import jax
import numpy as np

from dpjax import accounting, checks
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.releases import claims
from dpjax.releases.curator import CuratorRecord
from dpjax.tuning import payments
from dpjax.tuning.payments import NO_CHARGE, Charge, Item
from dpjax.tuning.private_runs import Plan, RunsPlan
from dpjax.tuning.problem.problem import Material, Problem
from dpjax.tuning.problem.run_settings import RunSetting, count_guarantee
from dpjax.tuning.selection import BestOf, BestOfRuns, Executed, check_ranks, counts_of
from dpjax.tuning.steps import Chosen, Draw, Ran, Request, Select, Steps, Train

_NAME = re.compile(r"[A-Za-z0-9_-]+")

_KNOWN = HostRandomness(0)
"""For made-up answers: a rehearsal, like a finished job, asks the operating system for nothing."""

_CHARGE = (
    "Make it of the runs' guarantees, by accounting.compose, repeat, best_of or a mechanism of "
    "your own that takes them, for all that steps can ask for"
)


def check_plan(tuner: Any, plan: Any, problem: Problem) -> None:
    """Refuses what is no plan of a problem, or has no price though its runs have one."""
    who = f"{_name(tuner)}.plan"
    if not isinstance(plan, Plan):
        raise ValueError(
            f"{who} returns {_kind(plan)}: return a steps.Plan or a subclass, as steps.plan_runs "
            "does"
        )
    total, run = plan.guarantee, plan.run_guarantee
    for name, found in (("guarantee", total), ("run_guarantee", run)):
        if found is not None:
            example = "accounting.repeat(run, 2)"
            checks.instance(
                f"{name} of {_name(tuner)}'s plan", found, accounting.Guarantee, example
            )
    if (total is None) != (run is None):
        raise ValueError(f"{who}: pass guarantee and run_guarantee, or neither for not_private")
    if total is not None and run is not None and total.relation != run.relation:
        raise ValueError(
            f"{who}: its guarantee is under {total.relation}, that of a run under {run.relation}: "
            "make the first of the second"
        )
    if are_unscored(plan, problem) and not (
        isinstance(plan, RunsPlan)
        and plan.selection == BestOf(accounting.Fixed(1))
        and plan.guarantee is plan.run_guarantee
    ):
        raise ValueError(
            f"{who} takes private validation records for public ones: keep validation_is_public"
        )
    epsilon, delta = problem.epsilon, problem.delta
    if epsilon is not None and (total is None or not total.meets(epsilon, delta)):
        has = "no epsilon" if total is None else f"epsilon {total.epsilon(delta):.6g}"
        raise ValueError(
            f"{who}: its guarantee has {has} at delta {delta:g}, and the target is {epsilon:g}: "
            "calibrate all that steps can ask for together, or refuse a target"
        )


def are_unscored(plan: Plan, problem: Problem) -> bool:
    """Returns whether a plan has no price for scores, though the validation records are private."""
    return plan.problem.validation_is_public and not problem.validation_is_public


def stated(
    tuner: Any,
    plan: Plan,
    delta: float,
    *,
    secret: bool,
    versions: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Returns a tuner's statement of its plan; refuses one that claims what the plan does not."""
    claim, total = tuner.statement(plan, secret=secret, versions=versions), plan.guarantee
    wanted: dict[str, Any] = {"private": total is not None}
    if total is not None:
        wanted |= claims.of_guarantee(total, delta)
    for name, value in wanted.items():
        if claim.get(name) != value:
            raise ValueError(
                f"{_name(tuner)}.statement claims another {name} than its plan has: write it by "
                "statements.written, with guarantee=plan.guarantee and **of_problem(plan.problem)"
            )
    return claim


def begun(tuner: Any, plan: Any, material: Material) -> Steps:
    """Returns a tuner's steps; refuses what is no generator."""
    steps = tuner.steps(plan, material)
    if not isinstance(steps, Generator):
        raise ValueError(
            f"{_name(tuner)}.steps returns {_kind(steps)}: write it as a generator, which yields "
            "requests and returns a steps.Chosen"
        )
    return steps


class Asked:
    """The requests of one execution, each of which is looked at before it is answered."""

    def __init__(self, tuner: Any, plan: Any):
        self._tuner, self._plan = tuner, plan
        self._names: list[str] = []
        self._draws = True
        self._used: dict[Item, Charge] = {}

    def next(self, steps: Steps, answer: Any = None) -> Draw | Request | Chosen:
        """Tells the steps an answer; returns what they ask for next, or what they return."""
        try:
            request = steps.send(answer)
        except StopIteration as end:
            return self._returned(end.value)
        who = _name(self._tuner)
        if not isinstance(request, Draw | Request):
            raise ValueError(
                f"{who}.steps yields {_kind(request)}: yield one request at a time, a steps.Draw, "
                "Select, Train or Choose"
            )
        name = request.name
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise ValueError(
                f"{who}.steps names a request {name!r}: pass letters, digits, _ and - alone"
            )
        if name in self._names:
            raise ValueError(
                f"{who}.steps asks for {name!r} twice: give each request a name of its own"
            )
        self._names.append(name)
        if isinstance(request, Draw):
            if not self._draws:
                raise ValueError(
                    f"{who}.steps asks for the draw {name!r} late: yield all draws before the "
                    "other requests"
                )
            return request
        self._draws = False
        if isinstance(request, Select | Train):
            self._check_run(request)
        return request

    def pay(self, request: Any, answer: Any) -> None:
        """Refuses the answer to a request whose runs the plan has not paid for."""
        if not isinstance(request, Select | Train) or self._plan.guarantee is None:
            return
        total, runs = self._plan.guarantee, len(answer.executed.units)
        for item in self._items(request):
            requests, before = self._used.get(item, NO_CHARGE)
            self._used[item] = requests + 1, before + runs
        # Of all that is taken, together: what pays for one run does not pay for a part of it too.
        taken = frozenset(self._used)
        for own_rules, hows in ((False, (payments.ALONE,)), (True, payments.HOWS)):
            charged = payments.charges(total, taken, own_rules)
            for node in {item.node: None for item in self._used}:
                own = [self._used[one] for one in taken if one.node == node and one.how in hows]
                for place, what in enumerate(("requests", "runs")):
                    asked, paid = sum(one[place] for one in own), charged[node][place]
                    if asked > paid:
                        raise ValueError(
                            f"{_name(self._tuner)}.steps trains more than the guarantee of its "
                            f"plan charges: with {request.name!r} it makes {asked:g} {what}, and "
                            f"{paid:g} are charged. {_CHARGE}"
                        )

    def _items(self, request: Select | Train) -> list[Item]:
        """Returns what a request takes of the plan's guarantee."""
        plan, total = request.plan, self._plan.guarantee
        assert plan.run_guarantee is not None and total is not None  # They were checked.
        if isinstance(request, Train):
            return payments.items_of(plan.run_guarantee, total)
        score = None
        if self._is_charged_for_scores(request):
            score = count_guarantee(request.plan.score_noise, total.relation, plan.problem.units)
        return payments.items_of(plan.run_guarantee, total, request.plan.selection, score)

    def selects(self, request: Select) -> bool:
        """Returns whether a selection pays for a request, and so for its winner alone."""
        total = self._plan.guarantee
        assert total is not None  # There is something to pay.
        for item in self._items(request):
            one = frozenset([item])
            paid = [
                payments.charges(total, one, own_rules)[item.node] for own_rules in (True, False)
            ]
            if item.how == payments.SELECTED or paid[0] != paid[1]:
                return True
        return False

    def _is_charged_for_scores(self, request: Select) -> bool:
        """Returns whether the scores of a request are of private records."""
        return request.plan.score_on_training or not self._plan.problem.validation_is_public

    def _check_run(self, request: Select | Train) -> None:
        """Refuses a request that cannot be answered, or whose run costs more than was charged."""
        who, plan = f"{_name(self._tuner)}.steps, {request.name!r}: ", request.plan
        kind = RunsPlan if isinstance(request, Select) else Plan
        if not isinstance(plan, kind):
            raise ValueError(f"{who}plan must be a {kind.__name__}, not {_kind(plan)}")
        if not callable(request.material):
            raise ValueError(f"{who}pass material as a function, lambda: material")
        if isinstance(request, Train):
            if not isinstance(request.setting, RunSetting):
                raise ValueError(f"{who}setting must be one of a plan's settings")
            _check_names(f"{who}hyperparameters", request.hyperparameters, self._plan)
        else:
            _check_drawn(who, request.plan)
        if self._plan.guarantee is None:
            return
        if plan.run_guarantee is None:
            raise ValueError(f"{who}its plan has no run_guarantee, so nothing says what it costs")
        score, units = None, plan.problem.units
        if isinstance(request, Train):
            settings: tuple[RunSetting, ...] = (request.setting,)
        else:
            settings, noise = tuple(request.plan.settings), request.plan.score_noise
            charged = self._is_charged_for_scores(request)
            if charged and not self._charges_scores(request):
                raise ValueError(
                    f"{who}the guarantee charges no score with noise {noise:g}: leave a plan's "
                    "score_noise as it was priced"
                )
            if request.plan.score_on_training:
                score = noise
        if not payments.costs_at_most(settings, plan.run_guarantee, score, units):
            if score is not None and payments.costs_at_most(
                settings, plan.run_guarantee, None, units
            ):
                raise ValueError(
                    f"{who}it scores on the training records, and its plan's run_guarantee does "
                    "not compose the two: plan it by steps.plan_runs with score_on_training=True"
                )
            raise ValueError(
                f"{who}a run of its settings costs more than the plan's run_guarantee: plan the "
                "most expensive run, or make a plan of each by steps.plan_runs"
            )
        for item in self._items(request):
            own_rules = item.how != payments.ALONE
            found = payments.charges(self._plan.guarantee, frozenset([item]), own_rules)
            if not found[item.node][0]:
                what = "selection" if item.how == payments.SELECTED else "run"
                raise ValueError(
                    f"{who}the guarantee of the tuner's plan charges no such {what}. {_CHARGE}"
                )

    def _charges_scores(self, request: Select) -> bool:
        """Returns whether a run's own guarantee, or else the total, charges a request's scores.

        The total is asked only if the run charges no score, as in subset tuning: elsewhere a score
        of its noise may be another plan's.
        """
        plan, total = request.plan, self._plan.guarantee
        assert plan.run_guarantee is not None and total is not None  # They were checked.
        if not plan.score_noise > 0:
            return False
        score = count_guarantee(plan.score_noise, total.relation, plan.problem.units)
        if payments.scored(plan.run_guarantee, score):
            return payments.includes(plan.run_guarantee.provenance, score.provenance)
        return True  # Its items are compared with the total.

    def _returned(self, chosen: Any) -> Chosen:
        """Checks what the steps return."""
        who = _name(self._tuner)
        if not isinstance(chosen, Chosen):
            raise ValueError(f"{who}.steps returns {_kind(chosen)}: return a steps.Chosen")
        if self._plan is None:
            return chosen
        if chosen.hyperparameters is not None:
            _check_names(f"{who}.steps: Chosen.hyperparameters", chosen.hyperparameters, self._plan)
        if not isinstance(chosen.record, CuratorRecord):
            raise ValueError(f"{who}.steps: Chosen.record must be what steps.record returns")
        if chosen.plan is not None and chosen.plan.guarantee is not self._plan.guarantee:
            raise ValueError(
                f"{who}.steps: Chosen.plan must keep the guarantee of the tuner's plan"
            )
        return chosen


def checked_material(request: Any, own: Material) -> None:
    """Refuses a request whose material is no `Material`, or is scored otherwise than is priced.

    It is `own` or made of it, and then no record may count more often: one that is trained on
    twice, or trained on and scored, pays as if it were once in one of the parts.
    """
    if not isinstance(request, Select | Train):
        return
    found, who = request.material(), repr(request.name)
    if not isinstance(found, Material):
        raise ValueError(f"{who}: material returns {_kind(found)}, not a Material")
    task, of = found.task, request.plan.problem
    if (task.units, task.users) != (of.units, of.users):
        raise ValueError(
            f"{who}: a record of its material is scored in {task.units} units or is another unit "
            "of privacy than its plan says: keep the task's score and the kind of its records"
        )
    both = task.validation.arrays is task.train.arrays
    if isinstance(request, Select) and both and not request.plan.score_on_training:
        raise ValueError(
            f"{who} scores on the training records, and its plan charges scores on "
            "others: plan with score_on_training=True"
        )
    if isinstance(request, Select) and request.plan.score_on_training and not both:
        raise ValueError(
            f"{who}: its plan states scores on the training records, and its material has others "
            "to score: pass material.scored_on_training()"
        )
    parts = (task.train,) if both else (task.train, task.validation)
    known = own.task.train.arrays, own.task.validation.arrays
    if all(any(part.arrays is one for one in known) for part in parts):
        return
    counts = sum((part.occurrences for part in parts), collections.Counter())
    allowed = own.task.train.occurrences + own.task.validation.occurrences
    if any(counts[row] > times for row, times in allowed.items()):
        raise ValueError(
            f"{who}: a record is in its material more often than in the tuner's, so that it counts "
            "more than once: train and score on different parts, each record once (this message "
            "is for the curator only)"
        )


def rehearse(
    tuner: Any, plan: Plan, material: Material, shapes: Any, scored: bool = True
) -> list[Chosen]:
    """Asks a tuner with made-up answers, so that its mistakes are found before anything is drawn.

    As if every run may be released, and as if none may; and twice more with other answers to all
    that nothing pays for, which may change nothing. It ends at a request whose answer cannot be
    made up. No record is read, and draws are thrown away. `shapes` are those of the task's
    parameters; `scored` says whether noisy scores are paid for, where there are any. Returns what
    it would release.
    """
    (every, shown), (none, _) = (
        _rehearsed(tuner, plan, material, shapes, scored, finite) for finite in (True, False)
    )
    for unpaid in (1, -1):
        if _rehearsed(tuner, plan, material, shapes, scored, True, unpaid)[1] != shown:
            raise ValueError(
                f"{_name(tuner)}.steps decides by what no guarantee pays for: exact units, how "
                "many runs a selection had, or scores of runs that lost it. Decide by "
                "executed.best.score[0], and ask the same whenever answers are the same"
            )
    return every + none


def _rehearsed(
    tuner: Any,
    plan: Plan,
    material: Material,
    shapes: Any,
    scored: bool,
    finite: bool,
    unpaid: int = 0,
) -> tuple[list[Chosen], list[Any]]:
    """Returns what a tuner returns, if it gets that far, and all that it asks for and releases."""
    asked, steps = Asked(tuner, plan), begun(tuner, plan, material)
    answer: Any = None
    shown: list[Any] = []
    while True:
        request = asked.next(steps, answer)
        if isinstance(request, Chosen):
            _check_model(tuner, shapes, request.params)
            leaves = [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(request.params)]
            return [request], [*shown, leaves, _sorted(request.hyperparameters)]
        shown.append((type(request), request.name))
        if isinstance(request, Draw):
            answer = request.draw(_KNOWN)
        elif isinstance(request, Select):
            own = request.plan
            check_ranks(own.selection)
            if not scored and type(own.selection) is not BestOf:
                raise ValueError(f"{_name(tuner)}.steps ranks by scores that are not charged")
            shown.append((own.settings, own.score_noise, own.problem.space.describe()))
            secret = plan.guarantee is not None and asked.selects(request)
            answer = _made_up(own, shapes, _runs(own), finite, len(shown), unpaid, secret, scored)
        elif isinstance(request, Train):
            shown.append((request.setting, _sorted(request.hyperparameters)))
            given = request.hyperparameters
            answer = _made_up(request.plan, shapes, 1, finite, len(shown), unpaid, given=given)
        else:
            return [], shown
        asked.pay(request, answer)


def _sorted(hyperparameters: Mapping[str, float] | None) -> list[tuple[str, str]]:
    """Returns hyperparameters to be compared: as text, in which NaN is itself."""
    return sorted((name, repr(value)) for name, value in (hyperparameters or {}).items())


def _check_model(tuner: Any, shapes: Any, params: Any) -> None:
    """Refuses parameters that are not of the task's model."""
    if params is not None and _shapes(params) != _shapes(shapes):
        raise ValueError(
            f"{_name(tuner)}.steps: Chosen.params is no model of the task: pass a Ran's params"
        )


def _shapes(tree: Any) -> tuple[Any, list[Any]]:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [np.shape(leaf) for leaf in leaves]


def _runs(plan: RunsPlan) -> int:
    """Returns how many runs a request might have, by a draw that is thrown away."""
    return max(1, int(counts_of(plan.selection, 1, _KNOWN.generator(0))[0]))


_MORE = 7
"""Runs that a made-up answer may have more than another."""


def _made_up(
    plan: Plan,
    shapes: Any,
    number: int,
    finite: bool,
    order: int,
    unpaid: int,
    secret: bool = False,
    scored: bool = True,
    given: Mapping[str, float] | None = None,
) -> Ran:
    """Returns an answer of as many runs, of which the first wins, or none.

    `order` tells answers apart, and `unpaid` chooses what nothing pays for: exact units, with
    `secret` the number of runs and losing scores, and if not `scored` every score.
    """
    total = number + (_MORE if secret and unpaid > 0 else 0)
    # By the laws, which the release is held against.
    drawn = plan.problem.space.sample(number + _MORE, _KNOWN.generator(1))
    drawn = {name: values[:total] for name, values in drawn.items()}
    if given is not None:
        drawn = {name: np.array([value]) for name, value in given.items()}
    best, scores = BestOfRuns(1), np.full(total, -np.inf)
    if finite:
        scores[:] = np.nan if given is not None else 0.0 if scored else 1e3 * unpaid * order
        best.score[0], best.candidate[0] = scores[0], 0
        if secret:
            scores[1:] -= abs(unpaid)
    units = np.full(total, 1000 * unpaid * order, np.int64)
    every = Executed(best, np.array([total]), drawn, units, scores)
    if not finite:
        return Ran(None, None, every)
    params = jax.tree.map(lambda leaf: np.full(leaf.shape, order, leaf.dtype), shapes)
    return Ran(params, {name: float(drawn[name][0]) for name in sorted(drawn)}, every)


def _check_drawn(who: str, plan: RunsPlan) -> None:
    """Refuses runs whose settings are drawn otherwise than they are priced."""
    if plan.chosen is not None:
        raise ValueError(
            f"{who}leave its plan's chosen as None: a space of numbers alone, or Train, trains "
            "with given hyperparameters"
        )
    drawn = [probability for _, probability in plan.problem.space.accounted_settings()]
    if len(plan.settings) > 1 and [one.probability for one in plan.settings] != drawn:
        raise ValueError(
            f"{who}its plan's settings are not those that its problem's space draws, each with its "
            "probability: make a plan of each space by steps.plan_runs"
        )


def _check_names(what: str, given: Any, plan: Plan) -> None:
    """Refuses hyperparameters that do not have each name of the space, with a number."""
    names = sorted(plan.problem.space.parameters)
    if not isinstance(given, Mapping) or sorted(given) != names:
        raise ValueError(f"{what} must have a number for each of {', '.join(names)}, and no more")


def _name(tuner: Any) -> str:
    return type(tuner).__name__


def _kind(value: Any) -> str:
    """Names a value's type: the value itself may be of records."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
