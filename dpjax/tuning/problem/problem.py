"""What planning sees of a problem, `Problem`, and what only training sees, `Material`.

A plan fixes every cost before a record is touched, and verification makes the same plan again from
what a release states. Both start from a `Problem`, `of` a task or `from_statement`, and planning
cannot tell which: it holds public numbers and words, and nothing that is not stated.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from dpjax import checks, training
from dpjax.array_files import fingerprint
from dpjax.models.functional import COMPUTE_DTYPES, check_compute_dtype
from dpjax.releases.claims import flag, is_number, text, whole
from dpjax.releases.unit_of_privacy import Users, users_of
from dpjax.training.clipping.clip_rules import rule_from_dict
from dpjax.training.optimizers import Optimizer
from dpjax.training.stages import ONE_STAGE
from dpjax.tuning.problem import inspection
from dpjax.tuning.problem.space import Space, space_from
from dpjax.tuning.problem.targets import Targets
from dpjax.tuning.problem.task import (
    SCORE_UNITS,
    Records,
    Task,
    check_score,
    check_sizes,
    check_total,
)

FIXED, POISSON = "fixed", "poisson"
LARGEST_TRAINED = 3.4e38
"""Largest hyperparameter and noise multiplier: training takes them as float32.

An infinite number makes every run worthless, and its epsilon would be spent on nothing.
"""

BETWEEN = ": pass between 1 and the public number of training records, {}"


def check_sampling(sampling: str) -> None:
    """Refuses a sampling that is neither fixed nor Poisson."""
    if sampling not in (FIXED, POISSON):
        raise checks.Refused(("sampling", sampling), ": pass 'fixed' or 'poisson'")


def check_bands(bands: int, sampling: str) -> None:
    """Refuses correlated noise without Poisson lots: its cost is proven with these alone."""
    if bands > 1 and sampling != POISSON:
        words = " has a proven cost with poisson lots alone: drop it, or pass "
        raise checks.Refused(("bands", bands), words, ("sampling", POISSON))


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """The caller's choices for hyperparameters the space does not draw.

    Attributes:
      lot_size: expected number of records per step; a sixteenth of the public size if unset.
      steps: number of gradient steps; pass it instead of epochs.
      epochs: expected passes over the public number of records; 20 if steps are unset, too.
      noise_multiplier: noise standard deviation over sensitivity; pass it instead of a target
        epsilon. If unset, it is calibrated to the target, which takes seconds: give one for a
        smoke test.
      sampling: "poisson" (add-or-remove one) or "fixed" (replace one).
      clipping: how gradients are clipped, a rule of `training.CLIP_RULES` (or its name) that can
        be stated in a release; it changes what is learned, never what it costs. None: that of the
        public default where that is taken, else global clipping.
      bands: over how many steps in a row noise is correlated (banded matrix factorisation), so that
        sums over steps carry less of it; Poisson lots only, of at most the records over `bands`. 8
        is often good. None: independent noise.
      stages: factors on noise, clip norm and lot size in parts of the run, such as
        `training.Stages((0.75, 0.25), noise=(1.1, 0.8))`. None: every step is alike.
      compute_dtype: type of activations and of their gradients, "float32" or "bfloat16", which
        takes half the bytes. Parameters, norms, sums and noise are float32 with either. It changes
        what is learned, and no epsilon.
    """

    lot_size: int | None = None
    steps: int | None = None
    epochs: float | None = None
    noise_multiplier: float | None = None
    sampling: str = dataclasses.field(default=POISSON, metadata={"choices": (POISSON, FIXED)})
    clipping: training.ClipRule | None = None
    bands: int | None = None
    stages: training.Stages | None = None
    compute_dtype: str = dataclasses.field(
        default=COMPUTE_DTYPES[0], metadata={"choices": COMPUTE_DTYPES}
    )

    def __post_init__(self) -> None:
        check_sampling(self.sampling)
        check_compute_dtype("compute_dtype", self.compute_dtype)
        if self.clipping is not None:
            rule = training.checked_clip_rule("clipping", self.clipping)
            rule.describe()  # Refuses what a release cannot state.
            object.__setattr__(self, "clipping", rule)
        for name, check in _OPTION_CHECKS.items():
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, checks.kept(value, check(name, value)))
        check_bands(self.bands or 1, self.sampling)
        if self.stages is not None:
            example = "training.Stages((0.75, 0.25), noise=(1.1, 0.8))"
            checks.instance("stages", self.stages, training.Stages, example)
        if self.stages == ONE_STAGE:  # As without: a certificate knows none beside bands.
            object.__setattr__(self, "stages", None)


_OPTION_CHECKS = {
    "lot_size": checks.whole,
    "steps": checks.whole,
    "epochs": checks.positive,
    "noise_multiplier": checks.not_negative,
    "bands": checks.whole,
}


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Holds what is public about one part of the records; fields as in `Records`.

    `number` is the real one under lots of fixed size, where all neighbours have it; else None.
    """

    public_size: int
    size_bound: int
    number: int | None = None
    stable_under_replacement: bool = True
    stable_under_removal: bool = True
    identified: bool = True

    def __post_init__(self) -> None:
        check_sizes(self.public_size, self.size_bound, self.number)

    @classmethod
    def of(cls, records: Records, sampling: str) -> Sizes:
        """Returns the public facts about records."""
        return cls(
            records.public_size,
            records.size_bound,
            records.number if sampling == FIXED else None,
            records.stable_under_replacement,
            bool(records.stable_under_removal),
            records.identified,
        )

    @classmethod
    def from_statement(cls, records: Mapping[str, Any]) -> Sizes:
        """Returns the sizes that a statement names of its training records."""
        number = records["number"]
        return cls(
            whole(records["public_size"]),
            whole(records["size_bound"]),
            None if number is None else whole(number),
        )


@dataclasses.dataclass(frozen=True)
class Material:
    """Holds records and code: a task, and what trains on it. `Problem` has its public numbers.

    Attributes:
      task: the model, its loss and score, and the records.
      optimizer: hyperparameters -> optax transformation.
      names: of the hyperparameters that candidates have.
      lowest: the smallest number that the space can draw for each of them, if it is known.
    """

    task: Task
    optimizer: Optimizer
    names: tuple[str, ...]
    lowest: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls,
        task: Task,
        space: Space,
        optimizer: Optimizer | None = None,
        compute_dtype: str = COMPUTE_DTYPES[0],
    ) -> Material:
        """Returns the material of `tuning.tune`'s arguments; `check` is what inspects it."""
        used = training.momentum() if optimizer is None else optimizer
        task = inspection.with_compute_dtype(task, compute_dtype)
        lowest = {name: law.lowest for name, law in space.parameters.items()}
        return cls(task, used, tuple(sorted(lowest)), lowest)

    def check(self) -> None:
        """Refuses, or warns of, a task or optimiser that candidates cannot be trained with."""
        check_score(self.task)
        inspection.check_loss(self.task)
        inspection.refuse_unread(self.task, self.optimizer, self.names)
        inspection.refuse_lowest(self.optimizer, self.lowest)
        inspection.warn_of_records(self.task, inspection.warn_of_loss(self.task))

    def scored_on_training(self) -> Material:
        """Returns it with the training records in the place of the validation records."""
        # Not made anew: a task refuses parts that share records, as these do on purpose. If one is
        # made of it later, identifiers must not be compared: a user is in both parts.
        task = copy.copy(self.task)
        validation = dataclasses.replace(task.train, identifiers=None)
        object.__setattr__(task, "validation", validation)
        return dataclasses.replace(self, task=task)

    def words(self, sampling: str) -> dict[str, Any]:
        """Returns what is trained, for `statements.written`, without reading any record."""
        records = self.task.train
        return {
            "model": self.task.description,
            "optimizer": inspection.of_optimizer(self.optimizer) | self._released,
            "trained_parameters": inspection.trained_parameters(self.task),
            "training_records": {
                "public_size": records.public_size,
                "size_bound": records.size_bound,
                # Under replace-one the number is public: no neighbour has another.
                "number": records.number if sampling == "fixed" else None,
                **(self.task.users.numbers if self.task.users else {}),
            },
            "targets": self.task.targets.stated if self.task.targets else {},
        }

    @property
    def _released(self) -> dict[str, str]:
        """Returns which average of the iterates is released; nothing where it is the last one."""
        average = self.task.average
        return {} if average is None else {"released": average.words}

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """Returns all that training and scores depend on beside the settings, for `Job.once`.

        Computed once: it reads every record, and a tuner's folder and its runs' are bound to it.
        """
        parts = (self.task.train, self.task.validation)
        given = {*self.names, *inspection.GIVEN_TO_EVERY_RUN}
        return inspection.programs(self.task, self.optimizer, given) | {
            "model": self.task.description,
            "optimizer's name": inspection.of_optimizer(self.optimizer) | self._released,
            "trained parameters": inspection.trained_parameters(self.task),
            "records": fingerprint([part.arrays for part in parts]),
            "identifiers": fingerprint(self.task.train.identifiers),
            "numbers of records": [[part.public_size, part.size_bound] for part in parts],
        }


@dataclasses.dataclass(frozen=True)
class Problem:
    """Holds what is to be tuned and under which target; public, fixed before data is touched.

    `units` and `users` are as in `Task`. `epsilon` is the target of the whole procedure, None where
    noise multipliers are given; `validation_is_public` means that scores cost nothing. `stated_run`
    is `run` as a release states it: without the noise multiplier, if that was calibrated and is
    read from a statement. `words` say what is trained, as a statement has them.
    """

    train: Sizes
    validation: Sizes
    units: int
    users: Users | None
    space: Space
    run: RunOptions
    stated_run: RunOptions
    epsilon: float | None
    delta: float
    validation_is_public: bool
    words: Mapping[str, Any]
    clipping: training.ClipRule = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "clipping", self.run.clipping or training.GlobalClipping())
        checks.probability("delta", self.delta, hint=", for example 1e-5")
        if self.epsilon is not None:
            checks.positive("epsilon", self.epsilon)
        checks.flag("validation_is_public", self.validation_is_public)
        law = self.space.parameters.get("learning_rate")
        if law is not None and law.lowest < 0:
            raise ValueError("learning_rate must not be negative: pass a law of numbers from 0 on")
        law = self.space.parameters.get("clip_norm")
        if law is not None and not law.lowest > 0:
            raise ValueError("clip_norm must be above 0: pass a law of positive numbers")
        reached = {
            name: max(abs(law.lowest), abs(law.highest))
            for name, law in self.space.parameters.items()
        }
        if (noise := self.stated_run.noise_multiplier) is not None:
            reached["noise_multiplier"] = noise
        for name, largest in reached.items():
            if not largest <= LARGEST_TRAINED:
                raise checks.Refused((name, largest), f": pass at most {LARGEST_TRAINED:g}")

    @classmethod
    def of(
        cls,
        task: Task,
        space: Space,
        run: RunOptions = RunOptions(),
        optimizer: Optimizer | None = None,
        epsilon: float | None = None,
        delta: float = 1e-5,
        validation_is_public: bool = False,
    ) -> Problem:
        """Returns what is public of a task and the other arguments of `tuning.tune`."""
        checks.instance("run", run, RunOptions, "tuning.RunOptions(lot_size=64, epochs=10)")
        checks.instance("space", space, Space, "tuning.Space(learning_rate=0.1)")
        if type(space) is not Space:
            # It may draw otherwise than its laws say, by which it is priced and stated.
            raise ValueError(
                f"space must be a Space itself, not a {type(space).__name__}: pass a tuning.Space "
                "of laws, such as one of your own"
            )
        return cls(
            Sizes.of(task.train, run.sampling),
            Sizes.of(task.validation, run.sampling),
            task.units,
            task.users,
            space,
            run,  # as stated, and, until the noise is calibrated, as run
            run,
            epsilon,
            delta,
            validation_is_public,
            Material.of(task, space, optimizer).words(run.sampling),
        )

    @classmethod
    def from_statement(cls, claim: Mapping[str, Any]) -> Problem:
        """Returns the problem that a statement names; a calibrated noise is read from it.

        Raises a ValueError, KeyError or TypeError for malformed fields.
        """
        records, score = claim["training_records"], claim["score"]
        scored = whole(score.get("public_size", 1))
        users = users_of(records)
        units = 1 if score.get("units_of_a_score_of_1", 1) == 1 and users is None else SCORE_UNITS
        check_total(scored, units)
        space = space_from(claim["candidates_drawn_from"])
        stated_run = _stated_run(claim)
        run = stated_run
        if stated_run.noise_multiplier is None and "noise_multiplier" not in space.parameters:
            noise = claim["training"][-1]["noise_multiplier"]
            run = dataclasses.replace(stated_run, noise_multiplier=noise)
        return cls(
            Sizes.from_statement(records),
            Sizes(scored, scored),
            units,
            users and Users(whole(users.most_records)),
            space,
            run,
            stated_run,
            None,
            claim["delta"],
            flag(score.get("validation_is_public", False)),
            stated_words(claim),
        )

    def scored_on_training(self) -> Problem:
        """Returns this problem with the training records in the place of the validation records.

        `Material.scored_on_training` does the same to the records.
        """
        if self.validation_is_public:
            words = " scores on training records, which are private: drop it, or "
            raise checks.Refused(("score_on_training",), words, ("validation_is_public",))
        return dataclasses.replace(self, validation=self.train)


def _stated_run(claim: Mapping[str, Any]) -> RunOptions:
    """Returns the run options that a statement names; refuses malformed ones."""
    stated = dict(claim["run_options"])
    rule = rule_from_dict(stated.pop("clipping", {"rule": "global"}))
    stages = stated.pop("stages", None)
    stages = None if stages is None else training.Stages(**stages)
    stated_run = RunOptions(**stated, clipping=rule, stages=stages)
    for name, value in stated.items():
        if not (value is None or is_number(value) or name in ("sampling", "compute_dtype")):
            raise TypeError(f"run_options.{name} is not a number")
    return stated_run


def stated_words(claim: Mapping[str, Any]) -> dict[str, Any]:
    """Rebuilds `Material.words` from a statement, whose texts are taken as they are."""
    optimizer, records = claim["optimizer"], claim["training_records"]
    fixed = claim["run_options"]["sampling"] == FIXED
    users = users_of(records)
    return {
        "model": text(claim["model"]),
        "optimizer": {name: text(optimizer[name]) for name in optimizer},
        "trained_parameters": [text(name) for name in claim["trained_parameters"]],
        "training_records": {
            "public_size": records["public_size"],
            "size_bound": records["size_bound"],
            "number": records["number"] if fixed else None,
            **({} if users is None else users.numbers),
        },
        "targets": Targets.from_statement(claim["targets"]).stated if "targets" in claim else {},
    }
