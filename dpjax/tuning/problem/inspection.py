"""What a task and an optimiser show without a record: programs, names, what is read.

Everything here is traced on shapes, before any record is touched. A job that goes on after a stop
must train what it was begun with; names of functions do not tell (two lambdas have one name), so
the programs that JAX traces of them are compared, with every number they closed over. A release
names the optimiser and the trained parameters, and no hyperparameter that nothing reads.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from dpjax.randomness import keys as key_streams
from dpjax.training import optimizers
from dpjax.training.dp_sgd import merge, partition
from dpjax.tuning.curator import fingerprint as fingerprint_of_records
from dpjax.tuning.problem.loss_checks import check_loss, warn_of_loss
from dpjax.tuning.problem.space import ACCOUNTED
from dpjax.tuning.problem.task import Task, check_score, one_record, units_of

PyTree = Any

_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


def fingerprint(function: Callable[..., PyTree], *arguments: PyTree) -> str:
    """Returns a hash of the program that JAX traces of a function, equal in every process.

    It covers every operation in its order, shapes, dtypes and the values of all constants. What the
    code of a host callback does is not seen.
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
    """Yields every array that a jaxpr, or a parameter of one of its equations, holds; in order."""
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


def programs(task: Task, optimizer: Any, hyperparameters: Iterable[str]) -> dict[str, str]:
    """Returns fingerprints of all that, with its key and the records, decides a candidate."""
    key = jax.random.key(0, impl=key_streams.IMPLEMENTATION)
    params = jax.eval_shape(task.initial, key)
    trained, frozen = jax.eval_shape(
        lambda key: partition(task.initial(key), task.trainable), jax.random.key(0)
    )

    def loss(trained: PyTree, frozen: PyTree, *rest: Any) -> jax.Array:
        return task.example_loss(merge(trained, frozen), *rest)

    def update(values: dict[str, jax.Array], gradient: PyTree, trained: PyTree) -> PyTree:
        transformation = optimizer(values)
        state = transformation.init(trained)
        return state, optimizers.updated(transformation, gradient, state, trained, 1.0)

    example, scored = (one_record(part.arrays) for part in (task.train, task.validation))
    values = {name: jax.ShapeDtypeStruct((), np.float32) for name in sorted(hyperparameters)}
    drawn: tuple[Any, ...] = (key,) if task.with_rng else ()
    if task.loss_reads:
        drawn += ({name: values[name] for name in task.loss_reads},)
    return {
        "loss": fingerprint(jax.value_and_grad(loss), trained, frozen, example, *drawn),
        "score": fingerprint(lambda *given: units_of(task, *given), params, scored),
        "initial values": fingerprint(task.initial, key),
        "optimizer": fingerprint(update, values, trained, trained),
    }


@dataclasses.dataclass(frozen=True)
class Inspection:
    """Looks at a task, an optimiser and the names of hyperparameters, without a record."""

    task: Task
    optimizer: Any
    names: Iterable[str]

    def check(self) -> None:
        """Refuses, or warns of, what candidates cannot be trained and scored with."""
        check_score(self.task)
        check_loss(self.task)
        refuse_unread(self.task, self.optimizer, self.names)
        warn_of_loss(self.task)

    def words(self, sampling: str) -> dict[str, Any]:
        """Returns the arguments of `statements.written` that say what was trained.

        No record is read, nor the value of a parameter.
        """
        records = self.task.train
        return {
            "model": self.task.description,
            "optimizer": of_optimizer(self.optimizer) | self._released,
            "trained_parameters": trained_parameters(self.task),
            "training_records": {
                "public_size": records.public_size,
                "size_bound": records.size_bound,
                # Under replace-one the number is public: no neighbour has another.
                "number": records.number if sampling == "fixed" else None,
                **(self.task.users.numbers if self.task.users else {}),
            },
        }

    @property
    def _released(self) -> dict[str, str]:
        """Returns what of the iterates is released, where it is not the last of them."""
        average = self.task.average
        return {} if average is None else {"released": average.words}

    def facts(self) -> dict[str, Any]:
        """Returns what training and score depend on beside the settings; for `Job`."""
        parts = (self.task.train, self.task.validation)
        return programs(self.task, self.optimizer, {*self.names, *GIVEN_TO_EVERY_RUN}) | {
            "model": self.task.description,
            "optimizer's name": of_optimizer(self.optimizer) | self._released,
            "trained parameters": trained_parameters(self.task),
            "records": fingerprint_of_records([part.arrays for part in parts]),
            "numbers of records": [[part.public_size, part.size_bound] for part in parts],
        }


GIVEN_TO_EVERY_RUN = ("clip_norm", "noise_multiplier", "lot_size", "steps")
"""Hyperparameters that every private run is given, drawn or not."""

OF_EVERY_RUN = ("clip_norm", *ACCOUNTED)
"""Hyperparameters that every private run reads, whatever its optimiser."""


def refuse_unread(task: Task, optimizer: Any, names: Iterable[str]) -> None:
    """Refuses an optimiser that is no function, and hyperparameters that no step depends on.

    An optimiser is traced as training traces it, on the shapes of the trained parameters. Looking a
    hyperparameter up is not enough: an update, or what the optimiser keeps for later updates, must
    be computed from it.
    """
    if not callable(optimizer):
        raise ValueError(
            "optimizer is no function: pass one of the hyperparameters that makes an optax "
            "transformation, such as lambda h: optax.sgd(h['learning_rate'])"
        )
    own = set(names)
    values = {
        name: jax.ShapeDtypeStruct((), jnp.float32)
        for name in sorted(own.union(GIVEN_TO_EVERY_RUN))
    }
    trained = jax.eval_shape(
        lambda key: partition(task.initial(key), task.trainable)[0], jax.random.key(0)
    )

    def step(hyperparameters: dict[str, jax.Array], params: Any, gradient: Any) -> Any:
        transformation = optimizer(hyperparameters)
        state = transformation.init(params)
        return optimizers.updated(transformation, gradient, state, params, 1.0)

    read = _read_by(step, values, trained, trained)
    if task.loss_reads:
        missing = sorted(set(task.loss_reads) - own)
        if missing:
            raise ValueError(
                f"the loss or the model reads {', '.join(missing)}, which the space does not have: "
                f"add it to the space ({', '.join(sorted(own)) or 'it is empty'}), or drop it from "
                "loss_reads or model_reads"
            )
        read |= _read_by(
            lambda given, *rest: task.example_loss(*rest, given),
            {name: values[name] for name in sorted(task.loss_reads)},
            jax.eval_shape(task.initial, jax.random.key(0)),
            one_record(task.train.arrays),
            *((jax.random.key(0),) if task.with_rng else ()),
        )
    unread = sorted(own - read - set(OF_EVERY_RUN))
    if unread:
        seen = ", ".join(sorted(read - {"steps", "lot_size"})) or "none"
        raise ValueError(
            f"candidates have {', '.join(unread)}, which nothing reads and a release would name: "
            f"drop it, or read it in the optimizer (what it reads: {seen}) or the loss (loss_reads)"
        )


def _read_by(
    function: Callable[..., Any], values: Mapping[str, Any], *arguments: PyTree
) -> set[str]:
    """Returns the names of the values (sorted by name) that an output is computed from."""
    traced = jax.make_jaxpr(function)(values, *arguments).jaxpr
    # They are the first inputs, sorted by name as a dictionary's leaves are.
    inputs = dict(zip(traced.invars, values))
    operands = [variable for equation in traced.eqns for variable in equation.invars]
    return {
        inputs[variable]
        for variable in [*operands, *traced.outvars]
        if not isinstance(variable, core.Literal) and variable in inputs
    }


def of_optimizer(optimizer: Any) -> dict[str, str]:
    """Returns an optimiser's public `name`, and its `learning_rate_schedule` where that is known.

    The name is that of the function that made it, or of it. An optimiser with an attribute
    `description`, a mapping of strings, says both itself.
    """
    own = getattr(optimizer, "description", None)
    if isinstance(own, Mapping):
        return {str(name): str(words) for name, words in own.items()}
    described = {"name": qualified_name(optimizer)}
    if getattr(optimizer, "__module__", None) == optimizers.__name__:
        # The functions of that module keep their schedule in this variable.
        schedule = inspect.getclosurevars(optimizer).nonlocals.get("schedule")
        described["learning_rate_schedule"] = (
            "constant" if schedule is None else qualified_name(schedule)
        )
    return described


def qualified_name(function: Callable[..., Any]) -> str:
    """Returns where a function's code stands; never its values, nor an address in memory."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__.split('.<locals>')[0]}"


def trained_parameters(task: Task) -> list[str]:
    """Returns the names of trained parameters, such as "params/Dense_0/kernel"."""
    trained = jax.eval_shape(
        lambda key: partition(task.initial(key), task.trainable)[0], jax.random.key(0)
    )
    return [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, _ in jax.tree_util.tree_leaves_with_path(trained)
    ]
