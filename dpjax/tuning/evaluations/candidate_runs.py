"""One candidate's run, whatever procedure it is of: configured, trained from its key, judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import training
from dpjax.tuning.evaluations.procedure import Optimizer
from dpjax.tuning.problem.run_settings import RunSetting
from dpjax.tuning.problem.task import Task, number_correct

PyTree = Any


def train_config(
    task: Task,
    optimizer: Optimizer,
    lots: training.PoissonLots | training.FixedLots,
    steps: int,
    lot_size: float,
) -> training.TrainConfig:
    """What is static about training on a task.

    Args:
      task: whose loss is minimised, and which of its parameters are trained.
      optimizer: hyperparameters -> optax transformation.
      lots: how the records of a step are drawn; they also fix the neighbouring relation.
      steps: gradient steps.
      lot_size: what the noisy sum is divided by: the expected number of records of a lot.

    Raises:
      ValueError: for steps or a lot size that are not positive.
    """
    return training.TrainConfig(
        loss_fn=task.loss,
        lots=lots,
        steps=steps,
        expected_lot_size=lot_size,
        optimizer=optimizer,
        trainable=task.trainable,
        with_rng=task.with_rng,
    )


def config_of_setting(
    task: Task, optimizer: Optimizer, setting: RunSetting
) -> training.TrainConfig:
    """`train_config` of a run that is accounted for as `setting`."""
    return train_config(task, optimizer, setting.lots, setting.steps, setting.lot_size)


def hyperparameters_of_runs(
    drawn: Mapping[str, np.ndarray], settings: Sequence[RunSetting]
) -> dict[str, np.ndarray]:
    """What runs are told.

    Args:
      drawn: name -> (runs,) float64, what was drawn or chosen for each.
      settings: (runs,), what each is accounted for as.

    Returns:
      name -> (runs,) float64: what was drawn, a clip norm of 1 where none was, and
      `noise_multiplier`, `lot_size` and `steps` as the settings have them, whatever was drawn.
    """
    told = dict(drawn)
    for name in ("noise_multiplier", "lot_size", "steps"):
        told[name] = np.asarray([float(getattr(setting, name)) for setting in settings])
    told.setdefault("clip_norm", np.ones(len(settings)))
    return told


def run_of(
    task: Task, config: training.TrainConfig
) -> Callable[[jax.Array, Mapping[str, jax.Array], PyTree], PyTree]:
    """Returns run(key, hyperparameters, training records) -> parameters, initial ones included.

    The initial parameters come from a stream of the key of their own; all else is
    `training.make_train`'s, and so is the guarantee.
    """
    train = training.make_train(config)

    def run(key: jax.Array, hyperparameters: Mapping[str, jax.Array], records: PyTree) -> PyTree:
        initial = task.initial(training.stream(key, "initial"))
        return train(key, hyperparameters, initial, records)

    return run


def all_finite(params: PyTree) -> jax.Array:
    """Whether every number of a pytree of arrays is finite, a boolean scalar."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(params)]))


def judged(task: Task, params: PyTree, validation_arrays: PyTree) -> dict[str, PyTree]:
    """What is kept of a trained candidate.

    Returns:
      `params`; `correct`, int32, the validation records it gets right; `finite`, whether all of it
      is.
    """
    return {
        "params": params,
        "correct": number_correct(task, params, validation_arrays),
        "finite": all_finite(params),
    }


def untrained(task: Task) -> PyTree:
    """Parameters on the host that depend on no record: released where no trained ones can be."""
    return jax.device_get(task.initial(jax.random.key(0)))
