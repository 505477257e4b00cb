"""One private run of public hyperparameters, of which one iterate or average is chosen afterwards.

`IteratesOfOneRun` is the evaluation of `chosen_iterate`. Every iterate of a run, and every average
of them, is computed from the noisy sums that the run's guarantee is of: training records have paid
for all of them. Choosing one looks at validation records alone, once.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar, Protocol

import jax
import numpy as np

from dpjax import accounting, checks, training
from dpjax.neighbouring import ADD_OR_REMOVE_ONE
from dpjax.randomness import keys as key_streams
from dpjax.randomness.exact_samplers import UniformBelow
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.training.averages import ALL, Average, Averages
from dpjax.training.sweep import hosts
from dpjax.tuning import cautions, curator, described, restating
from dpjax.tuning.evaluations import one_run
from dpjax.tuning.evaluations.candidate_runs import trained_runs, untrained
from dpjax.tuning.evaluations.private_runs import Procedure
from dpjax.tuning.job import Arrays, Job
from dpjax.tuning.problem.run_settings import RunOptions
from dpjax.tuning.problem.space import space_from
from dpjax.tuning.problem.task import Task
from dpjax.tuning.release import Release, statement
from dpjax.tuning.tuner import (
    Finish,
    Progress,
    Request,
    Restated,
    Result,
)

# Number of a seeded `HostRandomness`'s stream, apart from those of the other evaluations.
_STREAM_OF_CHOICE = 31

ITERATE = "iterate"
"""In the release, beside the hyperparameters: the place in the list of choices, from 0."""

LAST = "the last iterate"

_ASSUMPTIONS = (
    "the hyperparameters, the list of choices and every setting were fixed before the data was "
    "seen, and no record is in the training and in the validation part",
    "the scores of the choices, the console and the wall clock stay with the curator",
)


@dataclasses.dataclass(frozen=True)
class IterateScores:
    """What choices are scored by, in whole units, and how far one record moves that.

    Formal guarantees:
      For every pair of neighbours that differ in a validation record, and every two of the choices,
      which are the same for both, the difference of their scores moves by at most `sensitivity`: a
      record adds from 0 to `units_of_a_record` to each score (`task.total_units`), so one that
      comes or goes moves all scores the same way, and one that is replaced may move one up and
      another down.

    Attributes:
      units_of_a_record: `Task.units`.
      relation: the neighbouring relation.
    """

    units_of_a_record: int
    relation: str

    @property
    def sensitivity(self) -> int:
        """Units by which one record moves the difference of two scores, at most."""
        return self.units_of_a_record * (1 if self.relation == ADD_OR_REMOVE_ONE else 2)

    def rate(self, epsilon: float) -> Fraction:
        """Of a draw that costs epsilon: what its weights or coins lose with a unit."""
        return Fraction(epsilon) / self.sensitivity


class IterateChoice(Protocol):
    """A private choice among the iterates of one run, by their scores on validation records.

    Attributes:
      epsilon: epsilon_0, of the choice; None: the largest that adds nothing to what the run costs.
    """

    epsilon: float | None

    def guarantee(self, epsilon: float, relation: str) -> accounting.Guarantee:
        """The cost of the choice, to a validation record."""

    def select(
        self, units: Sequence[int], epsilon: float, scores: IterateScores, below: UniformBelow
    ) -> int:
        """Returns the chosen index."""

    def describe(self, epsilon: float | None, scores: IterateScores) -> dict[str, Any]:
        """The public rule as JSON-able data; epsilon is None where the exact best is chosen."""


@dataclasses.dataclass(frozen=True)
class IteratesOfOneRun:
    """The evaluation: one run of public hyperparameters, with averages kept beside it.

    Attributes:
      decays: of exponential averages of all iterates.
      tails: shares of the steps, of plain averages of the last iterates.
      moments: shares of the steps, after which an iterate is kept.
    """

    decays: Sequence[float] = ()
    tails: Sequence[float] = ()
    moments: Sequence[float] = ()
    chunk_size: ClassVar[int] = 1

    def __post_init__(self) -> None:
        for name in ("decays", "tails", "moments"):
            listed = checks.listed(name, getattr(self, name), "numbers, as in (0.9, 0.99)")
            # A decay of 1 would be no average; a share of 1 is all steps.
            checked = [
                checks.probability(f"each of {name}", one, one=name != "decays") for one in listed
            ]
            object.__setattr__(self, name, tuple(checked))
        if not self.kept:
            raise ValueError(
                "decays, tails and moments are all empty, and the last iterate is the only choice: "
                "pass one of them, or train by tuning.Untuned"
            )

    @property
    def kept(self) -> tuple[Average, ...]:
        """The choices beside the last iterate, in order."""
        return (
            *map(training.ExponentialAverage, self.decays),
            *map(training.TailAverage, self.tails),
            *map(training.IterateAt, self.moments),
        )

    def describe(self) -> dict[str, Any]:
        """The choices as JSON-able data: by number, and in words in the order of `iterate`."""
        numbers = {name: list(getattr(self, name)) for name in ("decays", "tails", "moments")}
        return numbers | {"choices": [LAST, *(one.words for one in self.kept)]}

    def carry_out(
        self,
        task: Task,
        request: Request,
        choice: IterateChoice,
        finish: Finish,
        *,
        randomness: HostRandomness,
        chunk_size: int,
        progress: Progress | None,
        job: Job,
    ) -> Result | None:
        """See `tuner.Evaluation`.

        Raises:
          ValueError: for another finish than `KeepTheWinner`, a space that draws anything, a task
            that has averages of its own, or shards.
        """
        if job.shard is not None:
            raise ValueError("there is one run: drop the shard, and pass one job")
        fixed = plan(task, request, self, choice, finish)
        started = time.time()
        ran = executed(
            fixed, randomness=randomness, chunk_size=chunk_size, progress=progress, job=job
        )
        number = 1 + len(self.kept)
        scores = ran.units[0] / task.units
        return Result(
            release=_release(fixed, ran, randomness.secret),
            guarantee=fixed.guarantee,
            run_guarantee=fixed.training_guarantee,
            selection_guarantee=fixed.selection_guarantee,
            curator=curator.CuratorRecord(
                number_of_candidates=number,
                winner=int(ran.winners[0]),
                hyperparameters={ITERATE: np.arange(number, dtype=np.float64)}
                | {
                    name: np.full(number, float(law.lowest))
                    for name, law in sorted(request.space.parameters.items())
                },
                scores=np.where(ran.finite[0], scores / task.validation.public_size, -np.inf),
                accuracies=scores / max(task.validation.number, 1),
                seconds=time.time() - started,
                details={
                    "what_candidates_are": "iterates and averages of the one run",
                    "choices": self.describe()["choices"],
                    "what_scores_are": "of the choices, without noise",
                },
            ),
        )

    def restate(self, claim: Mapping[str, Any], choice: IterateChoice, finish: Finish) -> Restated:
        """See `tuner.Evaluation`; the noise and epsilon_0 are read from the statement."""
        score, space = claim["score"], space_from(claim["candidates_drawn_from"])
        asked, options = restating.options(claim, space)
        request = Request(
            space,
            options,
            restating.reads_everything,
            delta=claim["delta"],
            validation_is_public=restating.flag(score["validation_is_public"]),
        )
        fixed = plan(restating.task(claim), request, self, choice, finish)
        claimed = public_claim(
            fixed,
            asked,
            score["public_size"],
            restating.training(claim),
            secret=restating.flag(claim["randomness"]["secret"]),
            versions=restating.versions(claim),
        )
        setting = one_run.hyperparameters(space)
        fitting = [setting | {ITERATE: place} for place in range(1 + len(self.kept))]
        nothing = dict.fromkeys(fitting[0])
        return Restated(claimed, lambda chosen: chosen in [*fitting, nothing])


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything that is fixed, and public, before the data is touched.

    Attributes:
      runs: what is kept of the run.
      choice: what chooses.
      epsilon: epsilon_0, of the choice; None: the exact best, by public validation records.
      run: the one run, as `untuned` would make it.
      selection_guarantee: the cost of the choice, to a validation record; None: they are public.
      guarantee: the cost of the release.
    """

    runs: IteratesOfOneRun
    choice: IterateChoice
    epsilon: float | None
    run: Procedure
    selection_guarantee: accounting.Guarantee | None
    guarantee: accounting.Guarantee

    @property
    def training_guarantee(self) -> accounting.Guarantee:
        """The cost of the run, of all its iterates at once, to a training record."""
        assert self.run.guarantee is not None  # It was planned as private.
        return self.run.guarantee

    @property
    def task(self) -> Task:
        """What is learned."""
        return self.run.task

    @property
    def scores(self) -> IterateScores:
        """Units and sensitivity of what the choices are scored by."""
        return IterateScores(self.task.units, self.run.settings[0].relation)

    @property
    def training(self) -> Procedure:
        """The run, of which all choices are returned and scored."""
        task = _all_iterates(self.task, self.runs.kept)
        inspected = dataclasses.replace(self.run.inspected, task=task)
        return dataclasses.replace(self.run, inspected=inspected)


class _TaskOfAllIterates(Task):
    """A task of which a run returns, and is scored by, every choice."""

    may_return_all = True


def _all_iterates(task: Task, kept: Sequence[Average]) -> Task:
    given = {field.name: getattr(task, field.name) for field in dataclasses.fields(task)}
    return _TaskOfAllIterates(**given | {"averages": Averages(tuple(kept), returned=ALL)})


def plan(
    task: Task, request: Request, runs: IteratesOfOneRun, choice: IterateChoice, finish: Finish
) -> Plan:
    """Fixes the procedure and its cost, from public numbers only.

    A record is in the training part, and has a say in the iterates, or in the validation part, and
    has a say in the choice among iterates that do not depend on it: run and choice compose in
    parallel.

    Raises:
      ValueError: with one line naming what to pass instead.
    """
    if task.averages is not None:
        raise ValueError(
            "the task has averages of its own, and the choices name them: drop averages from the "
            "task, or train it by tuning.Untuned"
        )
    if ITERATE in request.space.parameters:
        raise ValueError(
            f"{ITERATE} is what is chosen, and no hyperparameter: give it another name"
        )
    public, given = request.validation_is_public, choice.epsilon
    if public and given is not None:
        raise ValueError(
            "selection_epsilon is for private validation records, and these are public: drop it"
        )
    target, delta = request.epsilon, request.delta
    aim = target
    for _ in range(6):
        run = one_run.planned(task, dataclasses.replace(request, epsilon=aim), finish)
        assert run.guarantee is not None  # Every run of these is private.
        fixed = Plan(runs, choice, None, run, None, run.guarantee)
        if public:
            return fixed
        relation = run.settings[0].relation
        # Of a pure epsilon as large as the target rounding would leave nothing at a small delta.
        alone = run.guarantee.epsilon(delta) if aim is None else aim
        epsilon = alone if given is None else given
        selection = choice.guarantee(epsilon, relation)
        if target is not None and given is not None and selection.epsilon(delta) > target:
            raise ValueError(
                f"selection_epsilon={given:g} alone costs more than the target {target:g}: pass a "
                "smaller one, or a larger epsilon"
            )
        total = accounting.parallel(run.guarantee, selection)
        fixed = dataclasses.replace(
            fixed, epsilon=epsilon, selection_guarantee=selection, guarantee=total
        )
        if aim is None or target is None or total.meets(target, delta):
            return fixed
        aim *= 0.9995 * target / total.epsilon(delta)
    raise ValueError(
        f"no noise was found that meets epsilon {target}: pass noise_multiplier instead"
    )


@dataclasses.dataclass(frozen=True)
class Ran:
    """What `executed` did; the curator's.

    Attributes:
      winners: (executions,) int, the chosen place of each; -1 where no choice is finite.
      params: of the chosen ones, pytree of arrays (executions, ...); what stands where there is
        none is not to be released.
      units: (executions, choices) int, exact sums of validation scores in whole units.
      finite: (executions, choices) bool, whether each choice is finite.
    """

    winners: np.ndarray
    params: Any
    units: np.ndarray
    finite: np.ndarray


def executed(
    fixed: Plan,
    *,
    randomness: HostRandomness,
    executions: int = 1,
    chunk_size: int = 1,
    progress: Progress | None = None,
    job: Job = Job(),  # noqa: B008 (immutable)
) -> Ran:
    """Trains and chooses, once or many times independently over.

    A release comes from one execution. Many serve audits.

    Formal guarantees:
      The run is one private run from a key of its own, and its iterates are post-processing of its
      noisy sums. One choice is made among the finite ones of them, which ones being post-processing
      too; it reads the scores alone, and what is not chosen leaves nothing in the job's folder once
      the choice is made: whoever goes on with the folder finds that choice, and draws no other.

    Args:
      fixed: what was fixed beforehand.
      randomness: where the keys and the choice come from.
      executions: how many independent times.
      chunk_size: runs trained at once.
      progress: called with (runs done, runs in all).
      job: where the run is trained.
    """
    structure = jax.tree.structure(jax.eval_shape(fixed.task.initial, jax.random.key(0)))

    def work(drawn: Arrays) -> Arrays:
        trained = _trained(fixed, drawn, chunk_size, progress, job)
        winners = _chosen(fixed, trained["units"], trained["finite"], randomness)
        params = _of_winners(trained, winners, structure)
        kept = {"winners": winners} | {name: trained[name] for name in ("units", "finite")}
        return kept | {f"param_{i}": leaf for i, leaf in enumerate(jax.tree.leaves(params))}

    outcome = job.once(
        lambda: _drawn(executions, randomness), lambda: _facts(fixed, executions, randomness), work
    )
    assert outcome is not None  # There are no shards.
    return _read(outcome, structure)


_ARRAYS = ("winners", "units", "finite")


def _read(arrays: Arrays, structure: Any) -> Ran:
    """What is kept of a run."""
    leaves = [arrays[f"param_{i}"] for i in range(structure.num_leaves)]
    kept = {name: arrays[name] for name in _ARRAYS}
    return Ran(params=jax.tree.unflatten(structure, leaves), **kept)


def _drawn(executions: int, randomness: HostRandomness) -> Arrays:
    """A key for each run; under a seed the first is that of `untuned`'s run."""
    keys = training.candidate_keys(executions, seed=randomness.seed)
    return {"keys": np.asarray(jax.random.key_data(keys))}


def _facts(fixed: Plan, executions: int, randomness: HostRandomness) -> dict[str, Any]:
    """What the draw, and what is trained from it, depend on; JSON-able, by name."""
    return {
        "method": "iterates of one run",
        "number of executions": executions,
        "settings": [dataclasses.astuple(setting) for setting in fixed.run.settings],
        "clipping": fixed.run.clipping.describe(),
        "search space": fixed.run.space.describe(),
        "choices": fixed.runs.describe(),
        "selection": [
            fixed.choice.describe(fixed.epsilon, fixed.scores),
            type(fixed.choice).__name__,
        ],
        "seed": randomness.seed,
    } | fixed.run.inspected.facts()


def _trained(
    fixed: Plan, drawn: Arrays, chunk_size: int, progress: Progress | None, job: Job
) -> Arrays:
    """Every choice of every run: units, finite (executions, choices) and its leaves, by number."""
    keys = jax.random.wrap_key_data(drawn["keys"], impl=key_streams.IMPLEMENTATION)
    total = len(keys)
    given = fixed.run.space.sample(total, np.random.default_rng(0))  # Numbers: nothing is drawn.
    members, own = job.share(total), []
    for indices, outputs in trained_runs(fixed.training, given, keys, members, chunk_size, job):
        leaves = jax.tree.leaves(outputs.pop("params"))
        own.append(
            {"members": indices, **outputs}
            | {_name(place): leaf for place, leaf in enumerate(leaves)}
        )
        if progress is not None:
            progress(sum(len(one["members"]) for one in own), len(members))
    shares = job.collected(_joined(own), drawn)
    assert shares is not None  # There are no shards.
    found = _joined([share for share in shares if share])
    order = np.argsort(found.pop("members"))
    assert np.array_equal(np.sort(order), np.arange(total))
    return {name: values[order] for name, values in found.items()}


def _joined(parts: Sequence[Mapping[str, Any]]) -> Arrays:
    names = parts[0] if parts else ()
    return {name: np.concatenate([np.asarray(one[name]) for one in parts]) for name in names}


def _name(place: int) -> str:
    return f"leaf_{place}"


def _chosen(
    fixed: Plan, units: np.ndarray, finite: np.ndarray, randomness: HostRandomness
) -> np.ndarray:
    """One choice of each execution, (executions,), the same for all processes; -1 for none."""
    payload = None
    if jax.process_index() == 0:
        below = randomness.uniform_integers(_STREAM_OF_CHOICE)
        payload = json.dumps(
            [_one_chosen(fixed, *of_run, below) for of_run in zip(units, finite, strict=True)]
        ).encode()
    return np.asarray(json.loads(hosts.bytes_from_first(payload)), np.int64)


def _one_chosen(fixed: Plan, units: np.ndarray, finite: np.ndarray, below: UniformBelow) -> int:
    scored = np.flatnonzero(finite)
    if not len(scored):
        return -1
    if fixed.epsilon is None:
        return int(scored[np.argmax(units[scored])])
    listed = [int(count) for count in units[scored]]
    return int(scored[fixed.choice.select(listed, fixed.epsilon, fixed.scores, below)])


def _of_winners(trained: Arrays, winners: np.ndarray, structure: Any) -> Any:
    """The chosen parameters (executions, ...); the last iterate's where nothing was chosen."""
    number, places = structure.num_leaves, np.maximum(winners, 0)
    rows = np.arange(len(winners))
    leaves = [
        # Choice c's leaf i is the (c * number + i)-th of the tuple that a run returns.
        np.stack([trained[_name(place * number + i)][row] for row, place in zip(rows, places)])
        for i in range(number)
    ]
    return jax.tree.unflatten(structure, leaves)


def _release(fixed: Plan, ran: Ran, secret: bool) -> Release:
    """What may leave: the chosen parameters, which of the choices they are, and the claim."""
    hyperparameters = one_run.hyperparameters(fixed.run.space) | {ITERATE: int(ran.winners[0])}
    params = jax.tree.map(lambda leaf: leaf[0], ran.params)
    if ran.winners[0] < 0:
        # Not finite: what comes out must not depend on data.
        params = untrained(fixed.task)
        hyperparameters = dict.fromkeys(hyperparameters)
        cautions.of_untrained("no iterate of the run is finite")
    options = fixed.run.request.run
    words = fixed.run.inspected.words(options.sampling)
    size = fixed.task.validation.public_size
    claim = public_claim(fixed, options, size, words, secret=secret)
    return Release(params=params, hyperparameters=hyperparameters, statement=claim)


def public_claim(
    fixed: Plan,
    options: RunOptions,
    validation_size: int,
    training: Mapping[str, Any],
    *,
    secret: bool,
    versions: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """What the release of a plan states; a function of public words and numbers alone.

    Args:
      fixed: the plan.
      options: what was asked of the run beside the space.
      validation_size: the public number of validation records.
      training: as from `Inspection.words`.
      secret: whether no seed was given.
      versions: see `release.statement`.
    """
    delta, scores, public = fixed.run.request.delta, fixed.scores, fixed.epsilon is None
    claim = statement(
        guarantee=fixed.guarantee,
        delta=delta,
        selection=fixed.choice.describe(fixed.epsilon, scores) | fixed.runs.describe(),
        space=fixed.run.space.describe(),
        score=described.of_score(
            fixed.task.units,
            counted="number of correct validation predictions of each choice",
            summed="sum of validation records' scores in [0, 1] of each choice",
            users=fixed.task.users,
        )
        | {
            "sensitivity_of_a_difference_in_units": scores.sensitivity,
            "public_size": validation_size,
            "validation_is_public": public,
        },
        settings=described.of_settings(fixed.run.settings, options.sampling, of=one_run.THE_RUN),
        **training,
        options=described.of_options(options),
        randomness_is_secret=secret,
        assumptions=_ASSUMPTIONS,
        versions=versions,
    )
    paid = fixed.selection_guarantee
    return claim | {
        "epsilon_of_parts": {
            "selection_alone": None if paid is None else paid.epsilon(delta),
            "training_alone": fixed.training_guarantee.epsilon(delta),
            "a_private_validation_record_pays_for": "the selection alone",
        }
    }
