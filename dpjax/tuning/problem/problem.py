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

from dpjax import accounting, checks, training
from dpjax.array_files import fingerprint
from dpjax.models.functional import COMPUTE_DTYPES, check_compute_dtype
from dpjax.neighbouring import ADD_OR_REMOVE_ONE, REPLACE_ONE
from dpjax.training.clipping.clip_rules import rule_from_dict
from dpjax.training.lots import NumberedLots
from dpjax.training.optimizers import Optimizer
from dpjax.training.stages import ONE_STAGE, Stage
from dpjax.tuning.problem import inspection
from dpjax.tuning.problem import task as tasks
from dpjax.tuning.problem.json_fields import flag, is_number, text, whole
from dpjax.tuning.problem.space import Space, space_from
from dpjax.tuning.problem.targets import Targets
from dpjax.tuning.problem.task import (
    SCORE_UNITS,
    Records,
    Task,
    Users,
    check_score,
    check_sizes,
    check_total,
)

FIXED, POISSON = "fixed", "poisson"
BETWEEN = ": pass between 1 and the public number of training records, {}"

TRUNCATION_PROBABILITY = 1e-9
"""Wanted probability that any lot of one run overflows its capacity; it is charged in delta."""


def check_sampling(sampling: str) -> None:
    """Refuses a sampling that is neither fixed nor Poisson."""
    if sampling not in (FIXED, POISSON):
        raise checks.Refused(("sampling", sampling), ": pass 'fixed' or 'poisson'")


def whole_lot_size(lot_size: float, records: int) -> int:
    """Returns a lot size as it is used: rounded, from 1 to the public number of records."""
    rounded = int(round(lot_size))
    if not 1 <= rounded <= records:
        raise checks.Refused(("lot_size", rounded), BETWEEN.format(records))
    return rounded


@dataclasses.dataclass(frozen=True)
class RunShape:
    """Lots and steps of one run, and all that follows from them.

    `lot_size` is the expected number under Poisson sampling. `sampling` is "fixed", lots of one
    size drawn without replacement, replace one; or "poisson", add or remove one. `records` is the
    public number of training records, under fixed sampling exactly theirs; `size_bound`, public, is
    never exceeded, for Poisson lots. Noise is correlated over `bands` steps in a row, which takes
    lots of one of as many parts of the records in turn. `stages` have factors on lots and noise.
    """

    lot_size: int
    steps: int
    sampling: str
    records: int
    size_bound: int
    bands: int = dataclasses.field(default=1, kw_only=True)
    stages: training.Stages | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        whole_lot_size(self.lot_size, self.records)
        _check_bands(self.bands, self.sampling)
        if self.bands > self.records:
            raise checks.Refused(
                ("bands", self.bands), f": pass at most {self.records}, the records"
            )
        if self.lot_size * self.bands > self.records:
            words = (
                f", and a lot is drawn of one of {self.bands} parts of the records: pass at most"
            )
            raise checks.Refused(
                ("lot_size", self.lot_size),
                f"{words} {self.records // self.bands}, or fewer ",
                ("bands",),
            )
        if self.steps < 1:
            words = ": pass 1 or more, or more "
            raise checks.Refused(("steps", self.steps), words, ("epochs",))
        if self.stages is not None:
            assert self.of_stages  # Its refusals.

    @property
    def relation(self) -> str:
        """Returns the neighbouring relation that the sampling of lots goes with."""
        return REPLACE_ONE if self.sampling == FIXED else ADD_OR_REMOVE_ONE

    @functools.cached_property
    def lots(self) -> training.PoissonLots | training.CyclicPoissonLots | training.FixedLots:
        """Returns how the records of a step are drawn; of a stage whose lots have factor 1."""
        if self.sampling == FIXED:
            return training.FixedLots(dataset_size=self.records, lot_size=self.lot_size)
        bound, rate = self.size_bound, self.bands * self.lot_size / self.records
        capacity = accounting.lot_capacity(
            dataset_size=self._drawn_from,
            sampling_probability=min(1.0, rate * max((self.stages or ONE_STAGE).lot_size)),
            steps=self.steps,
            failure_probability=TRUNCATION_PROBABILITY,
        )
        if self.bands > 1:
            return training.CyclicPoissonLots(bound, rate, capacity, cycle=self.bands)
        return training.PoissonLots(
            dataset_size_bound=bound, sampling_probability=rate, capacity=capacity
        )

    @property
    def noise(self) -> training.BandedNoise | None:
        """Returns how the noise of steps is correlated; None: it is not."""
        return training.BandedNoise(self.bands) if self.bands > 1 else None

    @property
    def _drawn_from(self) -> int:
        """Returns the most records that a Poisson lot is drawn of."""
        return -(-self.size_bound // self.bands)

    @functools.cached_property
    def of_stages(self) -> list[Stage]:
        """Returns the stages of the run, one where it has none."""
        return (self.stages or ONE_STAGE).of_run(self.steps, self.lots)

    @functools.cached_property
    def failure_probability(self) -> float:
        """Returns the probability that any lot of the run is drawn otherwise than accounted for."""
        return sum(map(self._failure_of, self.of_stages))

    def _failure_of(self, stage: Stage) -> float:
        """Returns `failure_probability` of the lots of one stage."""
        steps, lots, _ = stage
        assert not isinstance(lots, NumberedLots)  # No option of a run draws them.
        failure = steps * lots.failure_probability_per_draw
        if isinstance(lots, training.FixedLots):
            return failure
        return failure + accounting.truncation_probability(
            dataset_size=self._drawn_from,
            sampling_probability=lots.sampling_probability,
            capacity=lots.capacity,
            steps=steps,
        )

    def price(self, noise_multiplier: float) -> accounting.Guarantee:
        """Returns the cost of one run; the noise multiplier is noise / clip norm."""
        costs = (self._price_of(stage, noise_multiplier) for stage in self.of_stages)
        return accounting.compose(*costs)

    def _price_of(self, stage: Stage, noise_multiplier: float) -> accounting.Guarantee:
        """Returns the cost of one stage of a run with this noise multiplier."""
        lots, noise = stage.lots, stage.noise * noise_multiplier
        assert not isinstance(lots, NumberedLots)
        if isinstance(lots, training.FixedLots):
            return accounting.dp_sgd_fixed_lots(
                dataset_size=self.records,
                lot_size=self.lot_size,
                noise_multiplier=noise,
                steps=stage.steps,
                failure_probability=self._failure_of(stage),
            )
        return accounting.dp_sgd(
            sampling_probability=lots.sampling_probability,
            noise_multiplier=noise,
            # A record is in one part, whose turn comes so often at most.
            steps=-(-stage.steps // self.bands),
            failure_probability=self._failure_of(stage),
        )


def _check_bands(bands: int, sampling: str) -> None:
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
      compute_dtype: type of activations and of their gradients, "float32" or "bfloat16", of half
        the bytes. Parameters, norms, sums and noise are float32 with either; it changes what is
        learned, never what it costs.
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
        _check_bands(self.bands or 1, self.sampling)
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
    """

    task: Task
    optimizer: Optimizer
    names: tuple[str, ...]

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
        return cls(task, used, tuple(sorted(space.parameters)))

    def check(self) -> None:
        """Refuses, or warns of, a task or optimiser that candidates cannot be trained with."""
        check_score(self.task)
        inspection.check_loss(self.task)
        inspection.refuse_unread(self.task, self.optimizer, self.names)
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

        Once: a tuner's folder and that of its runs are bound to it, and it reads every record.
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
    is what a release says was asked of a run: `run`, but for a noise multiplier that was calibrated
    and is read from a statement. `words` say what is trained, as a statement has them.
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
        users = tasks.users_of(records)
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
    users = tasks.users_of(records)
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
