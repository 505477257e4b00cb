"""What can be learned of a task and an optimiser without a record: programs, names, what is read.

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
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from dpjax import after_the_draw, checks, models
from dpjax.models.functional import COMPUTE_DTYPES, ExampleLoss, computed_in
from dpjax.randomness import keys as key_streams
from dpjax.training import optimizers
from dpjax.training.clipping.clip_rules import ClipRule
from dpjax.training.clipping.implicit_convolution import ImplicitConvolutions, as_for
from dpjax.training.dp_sgd import merge, partition
from dpjax.tuning.problem.space import ACCOUNTED
from dpjax.tuning.problem.task import Task, all_finite, one_record, units_of

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
    """Returns the fingerprints of the programs that train and score a candidate, by name."""
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
    } | _program_of_average(task)


def _program_of_average(task: Task) -> dict[str, str]:
    """Returns the fingerprint of a task's rule of averaging: words may round its numbers."""
    step = jax.ShapeDtypeStruct((), np.uint32)
    rule = task.average
    return {} if rule is None else {"average": fingerprint(rule.share_of_newest, step, step)}


def clipping_facts(rule: ClipRule, task: Task) -> list[Any]:
    """Returns a clip rule's words, groups and divisor, for JSON: one of your own may be edited."""
    norm = jax.ShapeDtypeStruct((), np.float32)
    groups = rule.groups(trained_parameters(task))
    return [rule.describe(), groups, fingerprint(rule.divisor, norm)]


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
            "optimizer is not a function: pass one of the hyperparameters that makes an optax "
            "transformation, such as lambda h: optax.sgd(h['learning_rate'])"
        )
    own = set(names)
    # Those that every run is given are there to be read, and need not be drawn.
    values = {
        name: jax.ShapeDtypeStruct((), jnp.float32)
        for name in sorted(own.union(GIVEN_TO_EVERY_RUN))
    }
    trained = jax.eval_shape(
        lambda key: partition(task.initial(key), task.trainable)[0], jax.random.key(0)
    )

    step = functools.partial(_first_step, optimizer)
    try:
        read = _read_by(step, values, trained, trained)
    except KeyError as error:
        raise ValueError(
            f"the optimizer reads the hyperparameter {error}, and candidates have "
            f"{', '.join(sorted(values))}: add it to the space, or read one of these"
        ) from error
    except (AttributeError, TypeError) as error:
        raise ValueError(
            f"the optimizer is no function of hyperparameters ({checks.shown(error)}): pass such "
            "as lambda h: optax.adam(h['learning_rate']) in the place of optax.adam, and "
            "training.momentum() with its brackets"
        ) from error
    if _ignores_schedule(optimizer, values, trained):
        raise ValueError(
            f"the optimizer ignores the schedule {optimizer.schedule}, which a release would name: "
            "multiply its learning rate by schedule(step), or drop the schedule"
        )
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
    # The clip norm and what a run costs by are read by the training itself, not by the optimiser.
    unread = sorted(own - read - set(OF_EVERY_RUN))
    if unread:
        seen = ", ".join(sorted(read - {"steps", "lot_size"})) or "none"
        raise ValueError(
            f"candidates have {', '.join(unread)}, which nothing reads and a release would name: "
            f"drop it, or read it in the optimizer (what it reads: {seen}) or the loss (loss_reads)"
        )


def refuse_lowest(optimizer: Any, lowest: Mapping[str, float]) -> None:
    """Raises what an optimiser refuses if it gets the lowest numbers that candidates can have."""
    try:
        optimizer({**dict.fromkeys(GIVEN_TO_EVERY_RUN, 1000.0), **lowest})
    except checks.Refused:
        raise
    except Exception:  # It may need numbers that are traced, as those of training are.
        return


def _first_step(
    optimizer: Any, hyperparameters: dict[str, jax.Array], params: Any, gradient: Any
) -> Any:
    """Returns the first update, and the state after it."""
    transformation = optimizer(hyperparameters)
    state = transformation.init(params)
    return optimizers.updated(transformation, gradient, state, params, 1.0)


def _ignores_schedule(optimizer: Any, values: Mapping[str, Any], trained: PyTree) -> bool:
    """Returns whether an optimiser with a named schedule is traced as without one."""
    if getattr(optimizer, "schedule", "constant") == "constant":
        return False
    settings = "schedule_settings" if hasattr(optimizer, "schedule_settings") else "settings"
    constant = dataclasses.replace(optimizer, **{"schedule": "constant", settings: {}})
    with_it, without = (
        str(jax.make_jaxpr(functools.partial(_first_step, one))(values, trained, trained))
        for one in (optimizer, constant)
    )
    return with_it == without


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

    The name is that of the optimiser's function, or of the function that made it. An optimiser may
    say both itself, by an attribute `description`, a mapping of strings.
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
    """Returns a function's module and name; never values it holds, nor an address in memory."""
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


# Is the loss one number for one example, and ever finite?
#
# The loss of a ready task, whose model may be large, is tried on made-up scores where it is made. A
# gradient that is not finite counts as 0 in training, because anything else would reveal a record.
# So a loss that is never finite trains on noise alone, and nothing that may be published shows it.
# A loss that is finite on made-up examples and not on real ones is not detected.

MADE_UP = ("zeros", "ones", "uniform numbers in [0, 1]", "standard normal numbers")
"""Examples that a loss is tried on; whole numbers in them are 0 and 1 by turns."""


class UselessLossWarning(UserWarning):
    """Training by this loss would learn nothing, or not what was asked for."""


def check_loss(task: Task) -> None:
    """Refuses a loss that takes the wrong arguments or does not return one floating scalar.

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


def with_compute_dtype(task: Task, dtype: str) -> Task:
    """Returns the task whose loss is computed with activations of this type; see `computed_in`.

    Norms and sums of gradients have the type of the trained parameters, or float32 if that is
    narrower. So trained parameters that are not float32 are refused. So is a loss that cannot be
    differentiated with such activations.
    """
    if dtype == COMPUTE_DTYPES[0]:
        return task
    check_loss(task)
    key = jax.random.key(0, impl=key_streams.IMPLEMENTATION)
    trained, frozen = jax.eval_shape(lambda key: partition(task.initial(key), task.trainable), key)
    for path, leaf in jax.tree_util.tree_leaves_with_path(trained):
        if leaf.dtype != jnp.float32:
            name = jax.tree_util.keystr(path, simple=True, separator="/") or "the parameter"
            words = f" needs trained parameters, norms and sums in float32, and {name} is "
            raise checks.Refused(
                ("compute_dtype", dtype),
                f"{words}{leaf.dtype}: pass float32 parameters, or drop it",
            )
    # The wish for kernels stands around the loss, which knows how it is computed in another type.
    written = task.loss.loss_fn if isinstance(task.loss, ImplicitConvolutions) else task.loss
    loss = as_for(task.loss, computed_in(written, dtype))

    def of_trained(trained: PyTree, frozen: PyTree, *rest: Any) -> jax.Array:
        return loss(merge(trained, frozen), *rest)

    try:
        jax.eval_shape(jax.grad(of_trained), trained, frozen, *_shapes(task)[1:])
    except Exception as error:  # It was traced in float32, so the type is the reason.
        raise checks.Refused(
            ("compute_dtype", dtype),
            f": the loss cannot be computed in it ({checks.shown(error)}): drop it",
        ) from error
    return dataclasses.replace(task, loss=loss)


def _check_arguments(task: Task) -> None:
    """Refuses a loss that cannot be called with the arguments that it will be given."""
    names = ["parameters", "example"]
    names += ["key"] * task.with_rng + ["the mapping of loss_reads"] * bool(task.loss_reads)
    try:
        signature = inspect.signature(task.loss)
    except (TypeError, ValueError):
        return  # A built-in function, say, does not tell what it takes.

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
        more = "" if task.loss_reads else ", or loss_reads=(...) if it is hyperparameters"
        hint = f"pass with_rng=True if its next argument is a key{more}"
    elif takes(len(names) - 1) and task.with_rng:
        hint = "pass with_rng=False if it takes no key"
    raise ValueError(f"the task's loss takes {signature}, and is given {', '.join(names)}: {hint}")


def warn_of_loss(task: Task) -> AnyFinite | None:
    """Warns of a loss that is finite on no made-up example, or that ignores the key it is given.

    Its gradient must be finite too. It is tried at the initial parameters of a fixed key, with
    hyperparameters of 0.5 each. No record is read. Returns what tried it, if anything did.
    """
    if not _reads_parameters(task):
        warnings.warn(
            "the loss reads no trained parameter, so that training would follow noise alone: pass "
            "one that is computed from its first argument",
            UselessLossWarning,
            stacklevel=after_the_draw.users_level(),
        )
    if task.with_rng and not _draws(task):
        warnings.warn(
            "with_rng=True gives the loss a key, and it draws nothing with it: drop with_rng, or "
            "check that the model has dropout, with a rate above 0",
            UselessLossWarning,
            stacklevel=after_the_draw.users_level(),
        )
    written = task.loss.function if isinstance(task.loss, ExampleLoss) else task.loss
    if getattr(written, "__module__", None) == models.functional.__module__:
        return None  # Of `models.functional`: `_try_out` has tried a user's part of it.
    key = jax.random.key(0, impl=key_streams.IMPLEMENTATION)
    drawn, read = (key,) if task.with_rng else (), made_up_hyperparameters(task)

    def loss(trained: PyTree, example: PyTree, frozen: PyTree) -> jax.Array:
        return task.loss(merge(trained, frozen), example, *drawn, *read)

    def tried(example: PyTree) -> PyTree:
        trained, frozen = partition(task.initial(jax.random.key(0)), task.trainable)
        return jax.value_and_grad(loss)(trained, example, frozen)

    return warn_unless_finite(tried, one_record(task.train.single))


def made_up_hyperparameters(task: Task) -> tuple[dict[str, jax.Array], ...]:
    """Returns the loss's last argument, if it reads hyperparameters, with 0.5 for each of them."""
    return ({name: jnp.float32(0.5) for name in task.loss_reads},) if task.loss_reads else ()


AnyFinite = Callable[[PyTree], jax.Array]
"""Whether a function is finite on any of as many examples as `MADE_UP`, arrays (4, ...)."""


def warn_unless_finite(function: Callable[[PyTree], PyTree], example: PyTree) -> AnyFinite:
    """Warns if a function, a loss with its gradient, is finite on none of the made-up examples."""
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

    any_finite = _any_finite(function)
    if not any_finite(examples):
        warnings.warn(
            "the loss or its gradient is not finite on any made-up example tried "
            f"({', '.join(MADE_UP)}), and a gradient that is not finite counts as 0, so training "
            "would follow noise alone: pass a loss that is finite, for example one that takes "
            "logits rather than logarithms of probabilities",
            UselessLossWarning,
            stacklevel=after_the_draw.users_level(),
        )
    return any_finite


_MOST_LOOKED_AT = 256


def warn_of_records(task: Task, any_finite: AnyFinite | None = None) -> None:
    """Warns the curator where most training records hold numbers that are not finite.

    Or where `any_finite` finds no finite loss and gradient on some of them. Such a gradient counts
    as 0. The records looked at are equally far apart.
    """
    arrays = task.train.single
    rows = len(jax.tree.leaves(arrays)[0])
    looked_at = np.unique(np.linspace(0, rows - 1, min(rows, _MOST_LOOKED_AT)).astype(int))
    finite = np.ones(len(looked_at), bool)
    for leaf in jax.tree.leaves(arrays):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            some = np.asarray(leaf[looked_at], np.float32)
            finite &= np.isfinite(some.reshape(len(some), -1)).all(axis=1)
    some = looked_at[np.linspace(0, len(looked_at) - 1, len(MADE_UP)).astype(int)]
    if finite.mean() < 0.5:
        warnings.warn(
            f"for the curator alone: {1 - finite.mean():.0%} of {len(finite)} training records "
            "hold numbers that are not finite, and train nothing: fill them in, or leave these out",
            UselessLossWarning,
            stacklevel=after_the_draw.users_level(),
        )
    elif any_finite is not None and not any_finite(jax.tree.map(lambda leaf: leaf[some], arrays)):
        warnings.warn(
            f"for the curator alone: the loss or its gradient is not finite on any of "
            f"{len(some)} training records, and such a gradient counts as 0: look for NaN in "
            "the records, and for logarithms and roots of 0 in the loss",
            UselessLossWarning,
            stacklevel=after_the_draw.users_level(),
        )


def gradients_are_finite(task: Task, params: PyTree) -> bool:
    """Returns whether any of 16 training records has a finite gradient; for the curator alone."""
    rows = np.unique(np.linspace(0, task.train.number - 1, 16).astype(int))
    some = jax.tree.map(lambda leaf: leaf[rows], task.train.arrays)
    drawn = (jax.random.key(0),) if task.with_rng else ()
    rest = (*drawn, *made_up_hyperparameters(task))

    def gradient(example: PyTree) -> PyTree:
        return jax.grad(lambda given: task.example_loss(given, example, *rest))(params)

    return bool(_any_finite(gradient)(some))


def _any_finite(function: Callable[[PyTree], PyTree]) -> AnyFinite:
    """Returns whether a function is finite on any of some examples, arrays (n, ...)."""
    # One example at a time, as in training, where no example shares statistics with a batch.
    return jax.jit(
        lambda examples: jnp.any(jax.lax.map(lambda one: all_finite(function(one)), examples))
    )


def _reads_parameters(task: Task) -> bool:
    """Returns whether the loss depends on a trained parameter."""
    params, *rest = _shapes(task)
    traced = jax.make_jaxpr(task.loss)(params, *rest).jaxpr
    number = len(jax.tree.leaves(params))
    trained = jax.eval_shape(
        lambda key: partition(task.initial(key), task.trainable)[0], jax.random.key(0)
    )
    names = {path for path, _ in jax.tree_util.tree_leaves_with_path(trained)}
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    inputs = zip(paths, traced.invars[:number], strict=True)
    return any(path in names and reached(traced, variable) for path, variable in inputs)


def _shapes(task: Task) -> tuple[PyTree, ...]:
    """Returns the shapes of the loss's arguments for one record."""
    key = jax.eval_shape(lambda: jax.random.key(0, impl=key_streams.IMPLEMENTATION))
    given = {name: jax.ShapeDtypeStruct((), np.float32) for name in task.loss_reads}
    return (
        jax.eval_shape(task.initial, jax.random.key(0)),
        one_record(task.train.single),
        *((key,) if task.with_rng else ()),
        *((given,) if task.loss_reads else ()),
    )


def _draws(task: Task) -> bool:
    """Returns whether the loss depends on the key that it is given."""
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
