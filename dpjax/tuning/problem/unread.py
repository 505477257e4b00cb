"""Refuses hyperparameters that nothing reads: a release would name them as if they had mattered.

What reads a candidate's hyperparameters is DP-SGD (`clip_norm`), the accounting of a run
(`candidates.ACCOUNTED`) and the optimiser. Whether an optimiser reads one is seen in its traced
step, from shapes alone: before any record is touched.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from dpjax.training.dp_sgd import partition
from dpjax.tuning.problem.space import ACCOUNTED
from dpjax.tuning.problem.task import Task

OF_EVERY_RUN = ("clip_norm", *ACCOUNTED)
"""Hyperparameters that every private run reads, whatever its optimiser."""


def refuse_unread(task: Task, optimizer: Any, names: Iterable[str]) -> None:
    """Refuses an optimiser that is no function, and hyperparameters that no step depends on.

    An optimiser is traced as training traces it, on the shapes of the trained parameters. Looking a
    hyperparameter up is not enough: an update, or what the optimiser keeps for later updates, must
    be computed from it.

    Args:
      task: its parameters' shapes are looked at.
      optimizer: hyperparameters -> optax transformation.
      names: of the hyperparameters that candidates have.

    Raises:
      ValueError: naming those that nothing reads; or for an optimiser that is no function.
    """
    if not callable(optimizer):
        raise ValueError(
            "optimizer is no function: pass one of the hyperparameters that makes an optax "
            "transformation, such as lambda h: optax.sgd(h['learning_rate'])"
        )
    own = set(names)
    values = {
        name: jax.ShapeDtypeStruct((), jnp.float32)
        for name in sorted(own | {"clip_norm", "noise_multiplier", "lot_size", "steps"})
    }
    trained = jax.eval_shape(
        lambda key: partition(task.initial(key), task.trainable)[0], jax.random.key(0)
    )

    def step(hyperparameters: dict[str, jax.Array], params: Any, gradient: Any) -> Any:
        transformation = optimizer(hyperparameters)
        return transformation.update(gradient, transformation.init(params), params)

    traced = jax.make_jaxpr(step)(values, trained, trained).jaxpr
    # Hyperparameters are the first inputs, sorted by name as a dictionary's leaves are.
    inputs = dict(zip(traced.invars, values))
    operands = [variable for equation in traced.eqns for variable in equation.invars]
    read = {
        inputs[variable]
        for variable in [*operands, *traced.outvars]
        if not isinstance(variable, core.Literal) and variable in inputs
    }
    unread = sorted(own - read - set(OF_EVERY_RUN))
    if unread:
        seen = ", ".join(sorted(read - {"steps", "lot_size"})) or "none"
        raise ValueError(
            f"candidates have {', '.join(unread)}, which nothing reads and a release would name: "
            f"drop it, or read it in the optimizer (what it reads: {seen})"
        )
