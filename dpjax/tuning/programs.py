"""Fingerprints of traced programs: what a function computes, whatever it is called.

A job that goes on after a stop must train what it was begun with. Names of functions do not tell
(two lambdas have one name), so the programs that JAX traces of them are compared, with every number
they closed over.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.randomness import keys as key_streams
from dpjax.training.dp_sgd import merge, partition
from dpjax.tuning.evaluations.procedure import Optimizer
from dpjax.tuning.problem.task import Task

PyTree = Any

_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


def fingerprint(function: Callable[..., PyTree], *arguments: PyTree) -> str:
    """A hash of the program that JAX traces of a function, equal in every process.

    It covers every operation in its order, shapes, dtypes and the values of all constants. What the
    code of a host callback does is not seen.

    Args:
      function: traceable.
      *arguments: pytrees of arrays or of their shapes.

    >>> fingerprint(lambda x: 2.0 * x, 1.0) == fingerprint(lambda y: 2.0 * y, 5.0)
    True
    >>> fingerprint(lambda x: 2.0 * x, 1.0) == fingerprint(lambda x: 3.0 * x, 1.0)
    False
    """
    traced, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    # Addresses in memory, of functions that printed parameters name, differ in every process.
    text = _ADDRESS.sub("", f"{jax.tree.structure(shapes)}\n{traced.jaxpr}")
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for constant in _constants(traced):
        if jnp.issubdtype(jnp.result_type(constant), jax.dtypes.extended):
            constant = jax.random.key_data(constant)
        array = np.ascontiguousarray(constant)
        digest.update(f"\n{array.shape}{array.dtype}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _constants(part: Any) -> Iterable[Any]:
    """Every array that a jaxpr, or a parameter of one of its equations, holds; in order."""
    if isinstance(part, np.ndarray | jax.Array):
        yield part
    elif isinstance(part, tuple | list):
        for one in part:
            yield from _constants(one)
    elif isinstance(part, dict):
        for one in part.values():
            yield from _constants(one)
    elif hasattr(part, "consts") and hasattr(part, "jaxpr"):
        yield from _constants(list(part.consts))
        yield from _constants(part.jaxpr)
    elif hasattr(part, "eqns"):
        for equation in part.eqns:
            yield from _literals(equation.invars)
            yield from _constants(equation.params)
        yield from _literals(part.outvars)


def _literals(atoms: Iterable[Any]) -> Iterable[Any]:
    return (np.asarray(atom.val) for atom in atoms if hasattr(atom, "val"))


def of_task(task: Task, optimizer: Optimizer, hyperparameters: Iterable[str]) -> dict[str, str]:
    """Fingerprints of all that decides what a candidate becomes, from its key and the records.

    Args:
      task: its loss (with the gradient), how it judges a prediction, its initial parameters.
      optimizer: hyperparameters -> optax transformation.
      hyperparameters: names that a candidate is given.
    """
    key = jax.random.key(0, impl=key_streams.IMPLEMENTATION)
    params = jax.eval_shape(task.initial, key)
    trained, frozen = jax.eval_shape(
        lambda key: partition(task.initial(key), task.trainable), jax.random.key(0)
    )

    def loss(trained: PyTree, frozen: PyTree, *rest: Any) -> jax.Array:
        return task.loss(merge(trained, frozen), *rest)

    def update(values: dict[str, jax.Array], gradient: PyTree, trained: PyTree) -> PyTree:
        transformation = optimizer(values)
        state = transformation.init(trained)
        return state, transformation.update(gradient, state, trained)

    example, scored = (_one_record(part.arrays) for part in (task.train, task.validation))
    values = {name: jax.ShapeDtypeStruct((), np.float32) for name in sorted(hyperparameters)}
    drawn = (key,) if task.with_rng else ()
    return {
        "loss": fingerprint(jax.value_and_grad(loss), trained, frozen, example, *drawn),
        "score": fingerprint(task.correct, params, scored),
        "initial values": fingerprint(task.initial, key),
        "optimizer": fingerprint(update, values, trained, trained),
    }


def _one_record(arrays: PyTree) -> PyTree:
    """Shapes of one record, with the dtypes that JAX makes of the host's."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            np.shape(leaf)[1:], jax.dtypes.canonicalize_dtype(np.asarray(leaf).dtype)
        ),
        arrays,
    )
