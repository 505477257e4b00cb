"""Is the loss one number for one example, does it use the key it is given, is it ever finite?

The loss of a ready task, whose model may be large, is tried on made-up scores where it is made.

All of it is looked at before a record is read, on shapes and on made-up examples, so that a
warning depends on no record. A gradient that is not finite counts as 0 in training, because
anything else would reveal a record. So a loss that is never finite trains on noise alone, and
nothing that may be published shows it. A loss that is finite on made-up examples and not on real
ones is not detected.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from dpjax import models
from dpjax.randomness import keys as key_streams
from dpjax.training.dp_sgd import merge, partition
from dpjax.tuning import cautions
from dpjax.tuning.problem.task import Task, one_record

PyTree = Any

MADE_UP = ("zeros", "ones", "uniform numbers in [0, 1]", "standard normal numbers")
"""Examples that a loss is tried on; whole numbers in them are 0 and 1 by turns."""


class UselessLossWarning(UserWarning):
    """Training by this loss would learn nothing, or not what was asked for."""


def check_loss(task: Task) -> None:
    """Refuses a loss that takes other arguments than it is given, or returns no floating scalar.

    It is traced on the shapes of one record.
    """
    _check_arguments(task)
    value = jax.eval_shape(task.loss, *_shapes(task))
    if value is None or not jax.tree_util.all_leaves([value]):
        found = f"a {type(value).__name__}"
    elif value.shape == () and jnp.issubdtype(value.dtype, jnp.floating):
        return
    else:
        found = f"{value.dtype} of shape {value.shape}"
    raise ValueError(
        f"the task's loss returns {found}: pass a function of (parameters, ONE example without "
        "batch axis) that returns one floating scalar"
    )


def _check_arguments(task: Task) -> None:
    names = ["parameters", "example"]
    names += ["key"] * task.with_rng + ["the mapping of loss_reads"] * bool(task.loss_reads)
    try:
        signature = inspect.signature(task.loss)
    except (TypeError, ValueError):
        return  # Nobody knows what it takes.

    def takes(number: int) -> bool:
        try:
            signature.bind(*range(number))
        except TypeError:
            return False
        return True

    if takes(len(names)):
        return
    hint = f"pass a function of ({', '.join(names)})"
    if takes(len(names) + 1) and not task.with_rng:
        more = "" if task.loss_reads else ", or loss_reads=(...) where it is hyperparameters"
        hint = f"pass with_rng=True where the next one is a key{more}"
    elif takes(len(names) - 1) and task.with_rng:
        hint = "pass with_rng=False where it takes no key"
    raise ValueError(f"the task's loss takes {signature}, and is given {', '.join(names)}: {hint}")


def warn_of_loss(task: Task) -> None:
    """Warns of a loss that is not finite on any made-up example, or that draws nothing `with_rng`.

    Its gradient by the trained parameters counts as well, at the initial parameters of a fixed key;
    hyperparameters that it reads are 0.5 each. No record is read.
    """
    if task.with_rng and not _draws(task):
        warnings.warn(
            "with_rng=True gives the loss a key, and it draws nothing with it: drop with_rng, or "
            "check that the model has dropout, with a rate above 0",
            UselessLossWarning,
            stacklevel=cautions.users_level(),
        )
    if getattr(task.loss, "__module__", None) == models.functional.__module__:
        return  # Its part that is not a Flax model was tried by `warn_unless_finite`.
    key = jax.random.key(0, impl=key_streams.IMPLEMENTATION)
    drawn = (key,) if task.with_rng else ()
    given = {name: jnp.float32(0.5) for name in task.loss_reads}
    read = (given,) if task.loss_reads else ()

    def loss(trained: PyTree, example: PyTree, frozen: PyTree) -> jax.Array:
        return task.loss(merge(trained, frozen), example, *drawn, *read)

    def tried(example: PyTree) -> PyTree:
        trained, frozen = partition(task.initial(jax.random.key(0)), task.trainable)
        return jax.value_and_grad(loss)(trained, example, frozen)

    warn_unless_finite(tried, one_record(task.train.single))


def warn_unless_finite(function: Callable[[PyTree], PyTree], example: PyTree) -> None:
    """Warns of a loss and its gradient that are finite on none of the made-up examples."""
    places, structure = jax.tree.flatten(example)
    source = np.random.default_rng(0)
    draws = (np.zeros, np.ones, source.random, source.standard_normal)

    def made_up(number: int, place: jax.ShapeDtypeStruct) -> np.ndarray:
        if jnp.issubdtype(place.dtype, jnp.floating):
            return np.asarray(draws[number](place.shape)).astype(place.dtype)
        return np.full(place.shape, number % 2).astype(place.dtype)

    examples = jax.tree.unflatten(
        structure,
        [np.stack([made_up(number, place) for number in range(len(MADE_UP))]) for place in places],
    )

    def finite(example: PyTree) -> jax.Array:
        leaves = jax.tree.leaves(function(example))
        return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))

    # An example at a time, as in training: what is shared by a batch is one example's own there.
    if not jax.jit(lambda examples: jnp.any(jax.lax.map(finite, examples)))(examples):
        warnings.warn(
            "the loss or its gradient is not finite on any made-up example tried "
            f"({', '.join(MADE_UP)}), and a gradient that is not finite counts as 0, so training "
            "would follow noise alone: pass a loss that is finite, for example one that takes "
            "logits rather than logarithms of probabilities",
            UselessLossWarning,
            stacklevel=cautions.users_level(),
        )


def _shapes(task: Task) -> tuple[PyTree, ...]:
    """Returns shapes of what the loss of one record is given."""
    key = jax.eval_shape(lambda: jax.random.key(0, impl=key_streams.IMPLEMENTATION))
    given = {name: jax.ShapeDtypeStruct((), np.float32) for name in task.loss_reads}
    return (
        jax.eval_shape(task.initial, jax.random.key(0)),
        one_record(task.train.single),
        *((key,) if task.with_rng else ()),
        *((given,) if task.loss_reads else ()),
    )


def _draws(task: Task) -> bool:
    params, example, key, *rest = _shapes(task)
    traced = jax.make_jaxpr(lambda key, *others: task.loss(*others[:2], key, *others[2:]))(
        key, params, example, *rest
    )
    return reached(traced.jaxpr, traced.jaxpr.invars[0])


def reached(program: Any, variable: Any) -> bool:
    """Returns whether a result of a jaxpr is computed from one of its inputs."""
    found = {variable}
    for equation in program.eqns:
        operands = {one for one in equation.invars if not isinstance(one, core.Literal)}
        if operands & found:
            found.update(equation.outvars)
    return any(one in found for one in program.outvars if not isinstance(one, core.Literal))
