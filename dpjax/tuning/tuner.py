"""The interface of a tuner, the registry of tuners, and `tune`, which runs any of them.

A tuner is a frozen dataclass in one file, beside its paper. `plan` prices it and makes all
refusals, from public numbers alone; `steps` is the algorithm; `statement` says what was released.
The rest follows from it: its name and rule here, its flags on the command line, how `driver` runs
it once for a release or many times for an audit, and how `verification` rebuilds its statement.

| tuner | what is trained and scored | what is chosen | what is released |
|---|---|---|---|
| `RandomRepetitions` | private runs, K of them, secret | the best | its parameters |
| `ThresholdStopping` | private runs in order | the first above | its parameters |
| `Exponential` | models of partitions | one exact draw | the winner trained privately |
| `Doubling` | models of partitions | the noisy loop | the winner trained privately |
| `Untuned` | nothing | a public default | its parameters |
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import jax

from dpjax import accounting, after_the_draw, checks
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.releases import claims, curator_page, rules, verification
from dpjax.releases.curator import CuratorRecord
from dpjax.releases.release import Release
from dpjax.releases.release_files import NotVerified, short
from dpjax.releases.rules import Rebuilt, register_rule
from dpjax.training.optimizers import Optimizer
from dpjax.tuning import asked, cautions, driver, statements
from dpjax.tuning.job import Job, checked_job
from dpjax.tuning.private_runs import Plan
from dpjax.tuning.problem.inspection import trained_parameters
from dpjax.tuning.problem.problem import Material, Problem, RunOptions
from dpjax.tuning.problem.space import Space
from dpjax.tuning.problem.task import Task
from dpjax.tuning.runner import untrained
from dpjax.tuning.steps import Chosen, Progress, Steps

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Result:
    """What a tuning returns: the release, its cost, and the record that stays with the curator.

    Example:
      >>> from dpjax import data, models, tuning
      >>> parts = data.load("digits").without_validation()
      >>> task = tuning.classification(models.LogisticRegression(10), parts.train, parts.validation)
      >>> run = tuning.RunOptions(steps=10)
      >>> result = tuning.tune(task, None, tuning.Untuned(), epsilon=2.0, run=run)
      >>> print(f"{result.guarantee.epsilon(1e-5):.2f}")
      2.00
      >>> result.release.statement["epsilon"] <= 2.0
      True
      >>> result.release.save("release")  # May be published.
      >>> result.curator.save("curator")  # Never.

    Attributes:
      release: the only part that may leave the curator's hands.
      guarantee: the cost of the release; None if the run is not private.
      run_guarantee: the cost of one candidate alone; None if the run is not private.
      curator: everything else; not private, never to be published.
      selection_guarantee: the cost of the selection alone, where a private training follows it.
    """

    release: Release
    guarantee: accounting.Guarantee | None
    run_guarantee: accounting.Guarantee | None
    curator: CuratorRecord
    selection_guarantee: accounting.Guarantee | None = None

    def __repr__(self) -> str:
        """Shows the release and the guarantee, and nothing that is for the curator only."""
        return f"Result(release={self.release!r}, guarantee={self.guarantee!r}, curator=...)"


class Tuner(abc.ABC):
    """A tuner: a frozen dataclass, registered by `register_tuner`; its fields are its settings.

    By default at most `chunk_size` models are trained at once. `without_a_model` says why one may
    not be released. A space of None means `default`, where there is one.
    """

    chunk_size: ClassVar[int] = 16
    streams: ClassVar[bool] = True
    without_a_model: ClassVar[str] = "the final training is not finite"
    default: ClassVar[Callable[..., tuple[Task, Space, RunOptions]] | None] = None

    @abc.abstractmethod
    def plan(self, problem: Problem) -> Plan:
        """Plans the procedure and prices it, or refuses; no record is touched."""

    @abc.abstractmethod
    def steps(self, plan: Any, material: Material) -> Steps:
        """Returns what the tuner asks for, one after the other: a generator; see `steps.Request`.

        `material` is what it is all trained on; nothing that `plan` priced depends on it.
        It is run once as the answers are worked out and once more to say what came of them.
        """

    @abc.abstractmethod
    def statement(
        self, plan: Any, *, secret: bool, versions: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Returns the statement of a plan's release, made from public text and numbers alone."""

    @classmethod
    @abc.abstractmethod
    def from_statement(cls, claim: Mapping[str, Any]) -> Tuner:
        """Returns the tuner that wrote a statement, as far as its cost depends on it.

        Raises a ValueError, KeyError or TypeError for another tuner's statement.
        """

    def advice(self, plan: Any) -> Warning | None:
        """Returns a warning of settings that cost utility, or None; said before anything is drawn.

        A folder's draw may be spent by then, so it is said and not raised.
        """
        return None

    def released(self, plan: Any, chosen: Mapping[str, float | None]) -> dict[str, Any]:
        """Returns chosen hyperparameters as a release names them."""
        return statements.released(plan.problem.space, chosen)

    def may_release(self, plan: Any, released: Mapping[str, Any]) -> bool:
        """Returns whether a release of the plan can name these hyperparameters."""
        return statements.drawn_from(plan.problem.space, released)


_TUNERS: dict[str, type[Tuner]] = {}
_Tuner = TypeVar("_Tuner", bound=Tuner)


def register_tuner(name: str, *, rule: str) -> Callable[[type[_Tuner]], type[_Tuner]]:
    """Returns a class decorator that registers a tuner by name and makes its releases verifiable.

    Example:
      >>> import dataclasses
      >>> from dpjax import accounting, tuning
      >>> @tuning.register_tuner("best_of_eight", rule="the best of eight runs")
      ... @dataclasses.dataclass(frozen=True)
      ... class BestOfEight(tuning.RandomRepetitions):
      ...     repetitions: accounting.RepetitionLaw = accounting.Fixed(8)
      >>> "best_of_eight" in tuning.registered_tuners()
      True

    Args:
      name: as on the command line; unique.
      rule: `selection.rule` of its statements; unique.
    """

    def register(cls: type[_Tuner]) -> type[_Tuner]:
        if name in _TUNERS:
            raise ValueError(f"a tuner {name!r} is registered already: choose another name")
        register_rule(rule, lambda claim: rebuilt_by(cls.from_statement(claim), claim))
        _TUNERS[name] = cls
        return cls

    return register


def rebuilt_by(tuner: Tuner, claim: Mapping[str, Any]) -> Rebuilt:
    """Rebuilds the statement of a release of this tuner."""
    problem = Problem.from_statement(claim)
    plan = tuner.plan(problem)
    return Rebuilt(
        asked.stated(tuner, plan, problem.delta, **claims.common(claim)),
        lambda released: tuner.may_release(plan, released),
    )


def registered_tuners() -> dict[str, type[Tuner]]:
    """Returns all registered tuners by name."""
    return dict(_TUNERS)


def tune(
    task: Task,
    space: Space | None,
    tuner: Tuner,
    *,
    epsilon: float | None = None,
    delta: float = 1e-5,
    run: RunOptions = RunOptions(),  # noqa: B008 (immutable)
    optimizer: Optimizer | None = None,
    validation_is_public: bool = False,
    seed: int | None = None,
    chunk_size: int | None = None,
    progress: Progress | None = None,
    job: Job | None = None,
) -> Result | None:
    """Tunes with any tuner and releases one model with a proven (epsilon, delta).

    Formal guarantees:
      `result.release` is (`result.guarantee.epsilon(delta)`, delta)-differentially private under
      `result.guarantee.relation`, under the conditions that the tuner's class states.

    Example:
      >>> from dpjax import accounting, data, models, tuning
      >>> parts = data.load("digits").parts(0.2, key=b"public")
      >>> task = tuning.classification(models.LogisticRegression(10), parts.train, parts.validation)
      >>> space = tuning.Space(learning_rate=tuning.LogUniform(0.1, 10), momentum=0.9, clip_norm=1)
      >>> result = tuning.tune(
      ...     task,
      ...     space,
      ...     tuning.RandomRepetitions(accounting.AtMost(accounting.Geometric(3), 8)),
      ...     run=tuning.RunOptions(lot_size=64, steps=5, noise_multiplier=2.0),
      ... )
      >>> result.guarantee.epsilon(1e-5) > result.run_guarantee.epsilon(1e-5)
      True

    Args:
      task: what to learn, with its training and validation records.
      space: public law of the hyperparameters; each must be read by the optimiser or the loss, or
        be `clip_norm`, `lot_size`, `steps`, `epochs` or `noise_multiplier`. None, for `Untuned`:
        the public default of the task, with its clipping and its average of the iterates.
      tuner: such as `RandomRepetitions(accounting.Geometric(20))`.
      epsilon: target of the whole procedure; the noise is calibrated to it. Or
        `run.noise_multiplier`.
      delta: of the whole procedure, in (0, 1).
      run: lot size, steps or epochs, noise multiplier and sampling of a private run, where the
        space does not draw them.
      optimizer: hyperparameters -> optax transformation; `training.momentum()` by default. Beside
        what the space draws, the hyperparameters hold `noise_multiplier`, `lot_size` and `steps`,
        for schedules.
      validation_is_public: only training records are protected.
      seed: for reproduction; the randomness is then not secret and the release says so.
      chunk_size: the most models trained at once, to limit memory; the tuner's own by default.
      progress: called with (models done, models in all), for the curator only; where it raises an
        `Exception`, that is a warning, and the tuning goes on.
      job: placement over devices, checkpoints, shards; None for one plain job.

    Returns:
      A `Result`; None for a shard, whose results only a merge turns into one.

    Warns:
      cautions.LargeDeltaWarning, cautions.KnownRandomnessWarning: before anything is drawn.
      cautions.UntrainedReleaseWarning: if no trained model is released.
      after_the_draw.AfterTheDrawWarning: if `progress`, or a caution about the model, fails.
    """
    check_tuner(tuner)
    if chunk_size is None:
        chunk_size = tuner.chunk_size
    chunk_size, job = checked_job(chunk_size, progress, job)
    if space is None:
        if tuner.default is None:
            raise ValueError(
                "space must be a Space, such as tuning.Space(learning_rate=0.1): only Untuned "
                "has a default"
            )
        task, space, run = tuner.default(task, run, epsilon, delta, optimizer)
    randomness = HostRandomness(seed)
    checks.instance("task", task, Task, "tuning.classification(model, train, validation)")
    job.refuse_early_merge()
    problem = Problem.of(task, space, run, optimizer, epsilon, delta, validation_is_public)
    job.check_noise(run.bands, run.stages)
    job.check_stream(tuner.streams, (task.train.arrays, task.validation.arrays))
    material = Material.of(task, space, optimizer, run.compute_dtype)
    # Refuses clip groups that do not fit this task's parameters.
    problem.clipping.groups(trained_parameters(task))
    cautions.of_arguments(delta, task.train.public_size, seed)
    material.check()
    plan = tuner.plan(problem)
    asked.check_plan(tuner, plan, problem)
    # What could not be written after the draw is refused before it.
    shapes = jax.eval_shape(task.initial, jax.random.key(0))
    secret = randomness.secret
    statement = asked.stated(tuner, plan, delta, secret=secret)
    size = Release(shapes, {}, statement).rehearse()
    job.try_room(size)
    scored = not asked.are_unscored(plan, problem)
    for chosen in asked.rehearse(tuner, plan, material, shapes, scored):
        own, claim = plan, statement
        if chosen.plan is not None and chosen.plan is not plan:
            own = chosen.plan
            claim = asked.stated(tuner, own, delta, secret=secret)
        released = tuner.released(own, _named(own, chosen))
        if not tuner.may_release(own, released):
            raise ValueError(
                f"{type(tuner).__name__}.steps returns hyperparameters that its space cannot draw, "
                "so that no release would be verified: give the plan's problem a space that can, "
                "or write may_release"
            )
        if _is_from_elsewhere(tuner) and claim["private"]:
            _try_verification(tuner, claim, released)
    if progress is not None:
        progress = after_the_draw.harmless("progress", progress)
    started = time.time()
    if advice := tuner.advice(plan):
        after_the_draw.told(str(advice), type(advice))
    ended = driver.drive(
        tuner,
        plan,
        material,
        randomness=randomness,
        chunk_size=chunk_size,
        progress=progress,
        job=job,
    )
    if ended is None:
        return None
    # The draw is spent: from here on, what is no part of the release only warns.
    (chosen,) = ended
    release = _release(tuner, task, chosen.plan or plan, chosen, secret, delta)
    if chosen.params is not None:
        with after_the_draw.beside_the_release("looking at the released model"):
            cautions.of_model(task, release.params, chosen.record.accuracies)
    return Result(
        release=release,
        guarantee=plan.guarantee,
        run_guarantee=plan.run_guarantee,
        selection_guarantee=plan.selection_guarantee,
        curator=dataclasses.replace(
            chosen.record,
            seconds=time.time() - started,
            beside=functools.partial(curator_page.beside, statement=release.statement),
        ),
    )


def check_tuner(tuner: Any) -> None:
    """Refuses anything but an instance of a tuner."""
    if not isinstance(tuner, Tuner):
        shown = f"the class {tuner.__name__}" if isinstance(tuner, type) else checks.shown(tuner)
        raise ValueError(f"tuner must be a tuner, such as RandomRepetitions(), not {shown}")


def _is_from_elsewhere(tuner: Tuner) -> bool:
    """Returns whether a tuner is registered, and none of dpjax's, which tests verify."""
    own = type(tuner)
    return own in _TUNERS.values() and own.__module__.partition(".")[0] != "dpjax"


def _try_verification(
    tuner: Tuner, claim: Mapping[str, Any], released: Mapping[str, float | None]
) -> None:
    """Refuses a statement that `verify_release` would refuse, once its release has a file."""
    words = json.loads(json.dumps(claim))
    try:
        wanted = rules.rebuilt(words)
        verification.check_words(words, wanted.statement)
        if not wanted.may_release(json.loads(json.dumps(released))):
            raise NotVerified("its tuner cannot have released these hyperparameters")
    except Exception as error:  # Whatever a tuner raises there, its releases cannot be verified.
        raise ValueError(
            f"{type(tuner).__name__}: no release of it could be verified ({short(error)}): from a "
            "statement and a problem with a noise multiplier and no epsilon, from_statement and "
            "plan have to return what they stated"
        ) from error


def _named(plan: Plan, chosen: Chosen) -> dict[str, float | None]:
    """Returns the chosen hyperparameters by name, None where nothing was chosen."""
    given = chosen.hyperparameters or {}
    return {name: given.get(name) for name in sorted(plan.problem.space.parameters)}


def _release(
    tuner: Tuner, task: Task, plan: Plan, chosen: Chosen, secret: bool, delta: float
) -> Release:
    """Makes the release of one execution: its model, or an untrained one, and the statement."""
    params = chosen.params
    if params is None:
        # A release is always made, and this one may not depend on data.
        params = untrained(task)
        cautions.of_untrained(tuner.without_a_model)
    release = Release(
        params=params,
        hyperparameters=tuner.released(plan, _named(plan, chosen)),
        statement=asked.stated(tuner, plan, delta, secret=secret),
    )
    if task.classifier is None:
        return release
    return release.with_context(decision_weights=task.classifier.weighing.decision_weights)
