"""A public default for a private run: what to use where nothing was tuned, from public numbers.

The rule knows the number of records, how many inputs an output has, whether the model is linear and
the privacy target, and nothing of the data. Its constants were chosen on development data sets
alone, then frozen, and judged on others (`docs/leaderboard.md`); `docs/public_defaults.md` has the
measurements, and the commands that make them.

**Model** of a table (`public_model`): linear below `NET_FROM` records, else a net with two hidden
layers.

**Lots and steps.** A sixteenth of the records a lot, 320 steps: twenty passes. Under differential
privacy a few steps on large lots lose little against many on small ones, and they are fast.

**Clipping.** Automatic (Bu et al. 2023): every gradient is scaled to the clip norm, so records pull
with nearly the same force, and the product of clip norm and learning rate is all that matters.

**Average.** What is released is the mean of the second half of the iterates. It takes away much of
the noise, and so goes with another rate than the last iterate does. A linear model that has fewer
than `RECORDS_A_PARAMETER` gets less far in a run, and its last iterate is released.

**Learning rate.** Noise of standard deviation `noise multiplier * clip norm / lot size` enters each
parameter in each step, and momentum b carries it on 1 / (1 - b) times. After T steps an output that
is a sum over d inputs of size 1 has noise of standard deviation

    learning rate / (1 - b) * clip norm * noise multiplier / lot size * sqrt(T * d).

The rule makes that a constant, `OUTPUT_NOISE` of a linear model and `OUTPUT_NOISE_OF_NETS` of any
other (in its widest layer) and of a regression, whose targets are mapped by their public range:
larger rates drown the model, smaller ones waste steps, and where that begins hardly depends on the
privacy target, the lots or the number of steps.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings

import jax
from flax import linen as nn

from dpjax import accounting, checks, models
from dpjax.after_the_draw import users_level
from dpjax.training import optimizers
from dpjax.training.averages import Average, TailAverage
from dpjax.training.clipping.checks import path_name
from dpjax.training.clipping.clip_rules import AutomaticClipping
from dpjax.training.clipping.clipped_grad import clipped_grad
from dpjax.training.dp_sgd import partition
from dpjax.training.optimizers import Optimizer
from dpjax.tuning.problem.inspection import made_up_hyperparameters, of_optimizer
from dpjax.tuning.problem.log_normal import LogNormal
from dpjax.tuning.problem.problem import POISSON, RunOptions
from dpjax.tuning.problem.run_settings import RunShape
from dpjax.tuning.problem.space import Space
from dpjax.tuning.problem.task import Task

OUTPUT_NOISE, OUTPUT_NOISE_OF_NETS = 15.0, 2.5
"""Std of the noise that the last iterate has in an output whose inputs have size 1."""

OUTPUT_NOISE_WITHOUT_AVERAGE = 5.0
"""Of a linear model that has fewer records than `RECORDS_A_PARAMETER` times its parameters."""

ADAM_MOVES = 4.0
"""How far noise alone moves an output under Adam in a whole run, in standard deviations."""

OPTIMIZER = "momentum"
"""The name of the optimiser that the default is for."""

LOTS_IN_THE_DATA, STEPS = 16, 320
CLIP_NORM, MOMENTUM = 0.1, 0.9
CLIPPING, AVERAGE, RECORDS_A_PARAMETER = AutomaticClipping(), TailAverage(0.5), 40

NET_FROM, WIDTHS = 10_000, (128, 64)
"""From how many records on a table's model is a net, and of which hidden layers."""


@dataclasses.dataclass(frozen=True)
class PublicDefaults:
    """What a private run is given where nothing was tuned, for `training.momentum()`.

    Attributes:
      learning_rate: of heavy-ball momentum.
      lot_size: expected records of a step.
      steps: gradient steps.
      clip_norm: of each record's gradient.
      momentum: decay of the trace of gradients.
      average: of the iterates, which the rate is for; None: the last one.
    """

    learning_rate: float
    lot_size: int
    steps: int = STEPS
    clip_norm: float = CLIP_NORM
    momentum: float = MOMENTUM
    average: Average | None = AVERAGE

    def space(self, factor: float | None = None) -> Space:
        """Returns the space of the defaults alone or, with `factor`, a prior around them to tune.

        `factor` says how far off the learning rate is expected to be; see `LogNormal`.
        """
        rate = self.learning_rate
        return Space(
            learning_rate=rate if factor is None else LogNormal(rate, factor),
            momentum=self.momentum,
            clip_norm=self.clip_norm,
        )

    @property
    def run(self) -> RunOptions:
        """Returns lots, steps and clipping, as tuners take them."""
        return RunOptions(lot_size=self.lot_size, steps=self.steps, clipping=CLIPPING)

    def averaged(self, task: Task) -> Task:
        """Returns the task with the average that the learning rate is for, unless it has one."""
        return dataclasses.replace(task, average=task.average or self.average)


def public_defaults(
    records: int,
    inputs: int,
    epsilon: float,
    delta: float = 1e-5,
    *,
    outputs: int | None = 1,
    lot_size: int | None = None,
    steps: int | None = None,
) -> PublicDefaults:
    """Returns the default for a private run, from its numbers of records and of inputs.

    Its rate is for its clipping and its average: `PublicDefaults.run` and `averaged` take them.

    Example:
      >>> from dpjax import tuning
      >>> default = tuning.public_defaults(60_000, 785, epsilon=2.0)
      >>> print(f"{default.learning_rate:.1f} at lots of {default.lot_size}, {default.steps} steps")
      46.4 at lots of 3750, 320 steps

    Args:
      records: public number of training records.
      inputs: parameters that enter one output of the widest layer, its bias included: 785 for a
        dense layer on 28 x 28 pixels.
      epsilon: of the one run; for a tuner's prior the total does.
      delta: of the run, in (0, 1).
      outputs: of a linear model, such as its classes, or 1 for two; None: it is not linear.
      lot_size, steps: the rate is for these instead of the rule's own.
    """
    records, inputs = checks.whole("records", records), checks.whole("inputs", inputs)
    checks.positive("epsilon", epsilon)
    checks.probability("delta", delta, hint=", for example 1e-5")
    lot_size = checks.whole("lot_size", usual_lot_size(records) if lot_size is None else lot_size)
    steps = checks.whole("steps", STEPS if steps is None else steps)
    noise = _noise(RunShape(lot_size, steps, POISSON, records, records), epsilon, delta)
    # The noise in one output after all steps, at a rate of 1; the rate brings it to `wanted`.
    spread = noise * CLIP_NORM / lot_size * math.sqrt(steps * inputs) / (1.0 - MOMENTUM)
    average: Average | None = AVERAGE
    wanted = OUTPUT_NOISE_OF_NETS
    if outputs is not None:
        wanted = OUTPUT_NOISE
        if records < RECORDS_A_PARAMETER * inputs * checks.whole("outputs", outputs):
            wanted, average = OUTPUT_NOISE_WITHOUT_AVERAGE, None
    return PublicDefaults(wanted / spread, lot_size, steps, average=average)


def adam_rate(inputs: int, steps: int) -> float:
    """Returns the middle of a prior for Adam's learning rate, from public numbers.

    Adam divides by the size of what it adds up. Where that is mostly noise, a parameter moves by
    the learning rate in each step whatever the noise, and an output with d inputs of size 1 by rate
    times sqrt(T * d) in T steps. On development tables the best rates made that 2 to 6 at any
    epsilon (`docs/public_defaults.md`); the rule makes it `ADAM_MOVES`.

    Example:
      >>> from dpjax import tuning
      >>> prior = tuning.LogNormal(tuning.adam_rate(785, steps=320), factor=2.5)

    Args:
      inputs: parameters that enter one output of the widest layer, as in `public_defaults`.
      steps: of a run.
    """
    return ADAM_MOVES / math.sqrt(checks.whole("inputs", inputs) * checks.whole("steps", steps))


def public_model(records: int, classes: int) -> nn.Module:
    """Returns the default model of a table with this public number of training records.

    Example:
      >>> from dpjax import tuning
      >>> tuning.public_model(5_000, classes=2).__class__.__name__
      'LogisticRegression'
    """
    kind = "mlp" if checks.whole("records", records) >= NET_FROM else "logistic_regression"
    return models.build_module(kind, checks.whole("classes", classes), widths=WIDTHS)


def usual_lot_size(records: int) -> int:
    """Returns the rules' expected records of a step, by the public number of training records."""
    return max(1, round(records / LOTS_IN_THE_DATA))


@functools.lru_cache(maxsize=16)
def _noise(shape: RunShape, epsilon: float, delta: float) -> float:
    """Returns the noise multiplier that meets the target."""
    return accounting.calibrate(shape.price, epsilon=epsilon, delta=delta)


def defaults_of(
    task: Task,
    epsilon: float,
    delta: float = 1e-5,
    *,
    lot_size: int | None = None,
    steps: int | None = None,
) -> PublicDefaults:
    """Returns `public_defaults` of a task's public number of records and of its widest layer.

    A layer's outputs are the last axis of its kernel, as in Flax; one more input is its bias. A
    model that trains at most one kernel is linear. A regression with a public range has the noise
    of a net whatever its model: its outputs are of the size of `targets.LEARNED`.
    """
    inputs, outputs = numbers_of(task)
    if task.targets is not None and task.targets.range is not None:
        outputs = None
    size = task.train.public_size
    return public_defaults(
        size, inputs, epsilon, delta, outputs=outputs, lot_size=lot_size, steps=steps
    )


def numbers_of(task: Task) -> tuple[int, int | None]:
    """Returns what the rule reads of a model: `inputs` and `outputs` of `public_defaults`.

    A table that is looked up by index adds only one of its rows to an output, so it does not count
    as a layer with as many inputs as it has rows.
    """
    kernels, looked_up = _kernels_of(task), _looked_up(task)
    outputs = [kernel.shape[-1] for kernel in kernels.values()] or [1]
    entering = [
        kernel.size // kernel.shape[-1] for name, kernel in kernels.items() if name not in looked_up
    ]
    return 1 + max(entering, default=0), outputs[0] if len(outputs) == 1 else None


def _kernels_of(task: Task) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes of the trained parameters that have two axes or more, by their paths."""
    trained = jax.eval_shape(
        lambda key: partition(task.initial(key), task.trainable)[0], jax.random.key(0)
    )
    leaves = jax.tree_util.tree_leaves_with_path(trained)
    return {path_name(path): leaf for path, leaf in leaves if leaf.ndim > 1}


def _looked_up(task: Task) -> set[str]:
    """Returns the paths of the parameters that the loss reads by an example's numbers alone."""
    read = made_up_hyperparameters(task)
    clipped = clipped_grad(lambda *given: task.loss(*given, *read), with_rng=task.with_rng)
    params = jax.eval_shape(task.initial, jax.random.key(0))
    example = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype), task.train.single
    )
    found = clipped.explain(params, example)
    return {path for path, parameter in found.items() if parameter.rule == "embedding"}


def is_for(optimizer: Optimizer | None) -> bool:
    """Returns whether the default is for an optimiser; None is momentum."""
    made_by = f"{optimizers.__name__}.{OPTIMIZER}"
    wanted = {"name": made_by, "learning_rate_schedule": "constant"}
    return optimizer is None or of_optimizer(optimizer) == wanted


def default_space_and_run(
    task: Task,
    run: RunOptions,
    epsilon: float | None,
    delta: float,
    optimizer: Optimizer | None,
) -> tuple[Task, Space, RunOptions]:
    """Returns the task with the public default's average, its space, and the options filled in.

    What the task or the options set themselves stays.
    """
    if epsilon is None:
        raise ValueError("the default depends on epsilon: pass epsilon, or a space of numbers")
    if not is_for(optimizer):
        raise ValueError(
            "the default is for training.momentum() with a constant rate, and another optimizer "
            "was given: pass space=, a number for each of its hyperparameters"
        )
    if run.epochs is not None:
        raise ValueError("the default is for steps, not epochs: pass steps, or a space")
    if run.bands is not None:
        words = "the default's rate is for independent noise: pass a space, or no "
        raise checks.Refused(words, ("bands",))
    if run.stages is not None:
        words = "the default's rate is for steps that are all alike: pass a space, or no "
        raise checks.Refused(words, ("stages",))
    if task.targets is not None and task.targets.range is None:
        warnings.warn(
            "the default's rate is for targets of a known size, and this regression names none: "
            "pass target_range=(lowest, highest), public, to tuning.regression",
            stacklevel=users_level(),
        )
    default = defaults_of(task, epsilon, delta, lot_size=run.lot_size, steps=run.steps)
    own = {name: value for name, value in vars(run).items() if value is not None}
    return default.averaged(task), default.space(), dataclasses.replace(default.run, **own)
