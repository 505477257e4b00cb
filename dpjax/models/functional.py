"""Any Flax model as a pair of pure functions: `init(key)` and `apply(params, inputs)`.

Private training differentiates the loss of one example at a time, so a model must be a function of
parameters and inputs alone. A model that keeps statistics of the batch is refused.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from dpjax import checks

if TYPE_CHECKING:
    from flax import nnx  # Takes a quarter of a second, so it is imported for NNX models alone.

Tree = Any

COMPUTE_DTYPES = ("float32", "bfloat16")
"""Types that losses may be computed in."""


def check_compute_dtype(name: str, dtype: str) -> None:
    """Refuses a `dtype` that is none of `COMPUTE_DTYPES`; `name` is that of the argument."""
    if dtype not in COMPUTE_DTYPES:
        raise checks.Refused((name, dtype), f": pass {' or '.join(map(repr, COMPUTE_DTYPES))}")


def computed_in(loss: Callable[..., jax.Array], dtype: str) -> Callable[..., jax.Array]:
    """Returns a loss of one example with activations of type `dtype`, from parameters of any type.

    If `FunctionalModel.example_loss` made the loss, only the model inside it has that type. Any
    other loss gets its parameters, and all floating-point arrays of the example, in that type. The
    value is float32, and the gradient has the type of the parameters.
    """
    return loss.in_dtype(dtype) if isinstance(loss, ExampleLoss) else _narrowed(loss, dtype)


def _narrowed(function: Callable[..., Tree], dtype: str) -> Callable[..., Tree]:
    """Returns `function` with its first two arguments cast to `dtype`, its result to float32."""

    def cast(tree: Tree, kind: Any) -> Tree:
        return jax.tree.map(
            lambda leaf: leaf.astype(kind) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf,
            jax.tree.map(jnp.asarray, tree),
        )

    @functools.wraps(function)
    def narrow(params: Tree, example: Tree, *rest: Any, **read: Any) -> Tree:
        found = function(cast(params, dtype), cast(example, dtype), *rest, **read)
        return cast(found, jnp.float32)

    return narrow


@dataclasses.dataclass(frozen=True)
class ExampleLoss:
    """A loss of one example that knows how it is computed with activations of another type.

    Attributes:
      function: (parameters, example, ...) -> scalar.
      in_dtype: maps the name of a type to the loss with activations of that type.
    """

    function: Callable[..., jax.Array]
    in_dtype: Callable[[str], Callable[..., jax.Array]]

    def __call__(self, *arguments: Any) -> jax.Array:
        return self.function(*arguments)


@dataclasses.dataclass(frozen=True)
class FunctionalModel:
    """A model as pure functions.

    Example:
      >>> import jax.numpy as jnp
      >>> from dpjax import models
      >>> line = models.FunctionalModel(lambda key: jnp.zeros((3, 2)), lambda w, x, rng=None: x @ w)
      >>> line.apply(line.init(None), jnp.ones((5, 3))).shape
      (5, 2)

    Attributes:
      init: `init(key) -> params`, a nested dict of arrays that msgpack and safetensors can hold.
      apply: `apply(params, inputs, rng=None, **read) -> scores`; inputs (batch, ...). Without `rng`
        the model is deterministic (no dropout); with a typed key it is in training mode. `read` are
        the hyperparameters of `example_loss(model_reads=...)`, if any.
      keywords: names that `read` may have; None if they are unknown.
    """

    init: Callable[[jax.Array], Tree]
    apply: Callable[..., jax.Array]
    keywords: tuple[str, ...] | None = None

    def computed_in(self, dtype: str) -> FunctionalModel:
        """Returns the model with activations of type `dtype`, "float32" or "bfloat16".

        It casts parameters and inputs, and returns float32 scores. In private training the
        parameters, and all norms and sums of gradients, keep the types that they have without it.
        """
        check_compute_dtype("dtype", dtype)
        return dataclasses.replace(self, apply=_narrowed(self.apply, dtype))

    def example_loss(
        self,
        loss: Callable[[jax.Array, jax.Array], jax.Array],
        *,
        with_rng: bool = False,
        model_reads: Sequence[str] = (),
    ) -> Callable[..., jax.Array]:
        """Returns the loss of one example, as `training.clipped_grad` and `TrainConfig` take it.

        Args:
          loss: `loss(scores (batch, classes), labels (batch,)) -> (batch,)`.
          with_rng: whether the result takes a key and runs the model in training mode.
          model_reads: names of hyperparameters that the model is given by keyword; the result then
            takes a mapping of them, as its last argument.

        Returns:
          `loss_fn(params, (inputs, label)[, rng][, given]) -> scalar`, one example without batch
          axis.
        """

        def of_example(params: Tree, example: tuple[Tree, jax.Array], *rest: Any) -> jax.Array:
            inputs, label = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], example)
            rng = rest[0] if with_rng else None
            given = {name: rest[-1][name] for name in model_reads}
            losses = loss(self.apply(params, inputs, rng, **given), label)
            if jnp.shape(losses) != (1,):
                raise ValueError(
                    f"loss returns an array of shape {jnp.shape(losses)} for a batch of one: pass "
                    "a loss with one number for each example, and no mean over the batch"
                )
            return losses[0]

        def in_dtype(dtype: str) -> Callable[..., jax.Array]:
            model = self.computed_in(dtype)
            return model.example_loss(loss, with_rng=with_rng, model_reads=model_reads)

        return ExampleLoss(of_example, in_dtype)


def functional(model: Any, example_input: Tree, fixed: Any = None) -> FunctionalModel:
    """Turns a Flax model into a pair of pure functions.

    A Linen module learns whether it trains from the argument `deterministic`, `train` or `training`
    of its `__call__`, if it has one; an NNX module from `train()` and `eval()`. Every other
    argument but the inputs needs a default, which predictions use.

    Example:
      >>> import flax.linen as nn
      >>> import jax
      >>> import numpy as np
      >>> from dpjax import models
      >>> model = models.functional(nn.Dense(2), np.zeros(3, np.float32))
      >>> model.apply(model.init(jax.random.key(0)), np.zeros((5, 3), np.float32)).shape
      (5, 2)

    Args:
      model: a Linen module; or an NNX class that is made from `rngs` alone; or an NNX factory
        `lambda rngs: Model(..., rngs=rngs)`; or an NNX instance: `init` then returns its present
        parameters, whatever the key (they must be public, as a pretrained model's are).
      example_input: one input WITHOUT batch axis, array or pytree; only shapes and dtypes are used.
      fixed: public state beside the parameters that is never updated, such as a pretrained model's
        statistics of BatchNorm: Linen's variables or NNX's state (see `fixed_state`). The model
        then trains in prediction mode too, so that no example affects another one's scores.
    """
    inputs = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((1, *jnp.shape(leaf)), jnp.result_type(leaf)),
        example_input,
    )
    if isinstance(model, nn.Module):
        return _from_linen(model, inputs, fixed)
    if is_nnx(model):
        params = _parameters(model)
        return _from_nnx(lambda: model, lambda key: params, fixed)
    make = _of_class(model) if inspect.isclass(model) else model
    if callable(make):
        from flax import nnx

        return _from_nnx(
            lambda: nnx.eval_shape(lambda: make(nnx.Rngs(0))),
            lambda key: _parameters(make(nnx.Rngs(key))),
            fixed,
        )
    raise ValueError(
        f"cannot adapt {model!r}: pass a Linen module, an NNX module, or lambda rngs: "
        "Model(..., rngs=rngs)"
    )


def is_nnx(value: object, kind: str = "Module") -> bool:
    """Returns whether a value is an instance of NNX's class `kind`; imports nothing."""
    # There is no instance before NNX is imported.
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(value, getattr(nnx, kind))


def _of_class(model: type) -> Callable[[nnx.Rngs], nnx.Module] | None:
    """Returns a factory of an NNX class that takes `rngs` alone; None for any other class."""
    from flax import nnx

    if not issubclass(model, nnx.Module):
        return None
    # Not the class's own signature, which is its metaclass's.
    arguments = inspect.signature(getattr(model, "__init__")).parameters  # noqa: B009
    needed = [
        name
        for name, one in list(arguments.items())[1:]
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]
    return (lambda rngs: model(rngs=rngs)) if needed == ["rngs"] else None


_MODES = ("deterministic", "train", "training")
"""Arguments by which a Linen module learns whether it trains."""


def _keywords(module: type, filled: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns a `__call__`'s arguments besides inputs and `filled`; refuses one without default."""
    arguments = list(inspect.signature(module.__call__).parameters.values())[2:]  # self, inputs
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    own = [one for one in arguments if one.kind not in several and one.name not in filled]
    needed = [one.name for one in own if one.default is one.empty]
    if not needed:
        return tuple(one.name for one in own)
    draws = {"rng", "rngs", "key", "keys"}.intersection(needed)
    hint = (
        "keep the constructor's rngs (NNX: nnx.Dropout(rate, rngs=rngs)) or draw by "
        "self.make_rng('dropout') (Linen), and pass with_rng=True"
        if draws
        else "give it a default there, or pass a models.FunctionalModel"
    )
    raise ValueError(
        f"{module.__qualname__}.__call__ needs {', '.join(needed)}, and is called on inputs alone: "
        f"{hint}"
    )


def _from_linen(module: nn.Module, inputs: Tree, fixed: Any) -> FunctionalModel:
    """Adapts a Linen module; refuses one that has state beside its parameters."""
    keywords = _keywords(type(module), _MODES)
    arguments = inspect.signature(type(module).__call__).parameters

    def mode(training: bool) -> dict[str, bool]:
        meanings = {"deterministic": not training, "train": training, "training": training}
        return {name: value for name, value in meanings.items() if name in arguments}

    def variables_of(key: jax.Array) -> dict[str, Tree]:
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), inputs)
        return module.init({"params": key}, zeros, **mode(training=False))

    collections = jax.eval_shape(variables_of, jax.random.key(0))
    held = {} if fixed is None else dict(fixed)
    own = {name: shapes for name, shapes in collections.items() if name != "params" and shapes}
    _refuse_state([name for name in own if name not in held])
    for name, shapes in own.items():
        if jax.tree.map(jnp.shape, held[name]) != jax.tree.map(jnp.shape, shapes):
            raise ValueError(f"{name} is not of this model: pass state of the shapes of init's")

    def init(key: jax.Array) -> Tree:
        return variables_of(key)["params"]

    def apply(params: Tree, inputs: Tree, rng: jax.Array | None = None, **read: Any) -> jax.Array:
        rngs = None if rng is None else {"dropout": rng}
        trains = rng is not None and not held
        return module.apply({"params": params} | held, inputs, rngs=rngs, **mode(trains), **read)

    return FunctionalModel(init, apply, keywords)


def _from_nnx(
    template: Callable[[], nnx.Module], init: Callable[[jax.Array], Tree], fixed: Any
) -> FunctionalModel:
    """Adapts an NNX module that `template` builds; `init` makes its parameters from a key."""
    from flax import nnx

    module = template()
    keywords = _keywords(type(module))
    graph, abstract_params, random_state, rest = _split(module)
    if fixed is None:
        _refuse_state(_names(rest))
    elif _names(fixed) != _names(rest):
        raise ValueError("the fixed state is not of this model: pass the state of a module like it")

    def apply(params: Tree, inputs: Tree, rng: jax.Array | None = None, **read: Any) -> jax.Array:
        state = jax.tree.map(lambda leaf: leaf, abstract_params)  # a copy, to be filled in
        nnx.replace_by_pure_dict(state, _with_keys_of(nnx.to_pure_dict(abstract_params), params))
        held = () if fixed is None else (fixed,)
        model = nnx.merge(graph, state, _reseeded(random_state, rng), *held)
        if rng is None or held:
            model.eval()
        else:
            model.train()
        return model(inputs, **read)

    return FunctionalModel(init, apply, keywords)


def _split(model: nnx.Module) -> tuple[Any, nnx.State, nnx.State, nnx.State]:
    """Splits an NNX module into graph, parameters, random state and any other state."""
    from flax import nnx

    return nnx.split(model, nnx.Param, nnx.RngState, ...)


def _names(state: nnx.State) -> list[str]:
    """Returns the kinds and places of an NNX state's variables."""
    from flax import nnx

    return [
        f"nnx.{variable.type.__name__} at {'.'.join(map(str, path))}"
        for path, variable in nnx.to_flat_state(state)
    ]


def fixed_state(model: Any, initial: Any) -> tuple[Any, Any]:
    """Returns public parameters, and the public state beside them that is held fixed, or None.

    `initial` is a tree of parameters; Linen's variables, whose other collections are the state; or
    an NNX module or its state.
    """
    if isinstance(model, nn.Module) and isinstance(initial, Mapping) and "params" in initial:
        rest = {name: held for name, held in initial.items() if name != "params" and held}
        return initial["params"], rest or None
    if is_nnx(initial) or is_nnx(initial, "State"):
        from flax import nnx

        state = nnx.state(initial) if is_nnx(initial) else initial
        *_, rest = nnx.split_state(state, nnx.Param, nnx.RngState, ...)
        return plain_parameters(initial), rest if _names(rest) else None
    return plain_parameters(initial), None


def _parameters(model: nnx.Module) -> Tree:
    """Returns the parameters of an NNX module as a nested dict with string keys."""
    return plain_parameters(_split(model)[1])


def plain_parameters(tree: Tree) -> Tree:
    """Returns parameters as a nested dict with string keys, from an NNX module, a state or a dict.

    NNX numbers the entries of lists, but file formats and sorting need keys of one type.
    """
    if is_nnx(tree) or is_nnx(tree, "State"):
        from flax import nnx

        state = nnx.state(tree, nnx.Param) if is_nnx(tree) else tree
        tree = nnx.to_pure_dict(nnx.filter_state(state, nnx.Param))
    if not isinstance(tree, dict):
        return tree
    return {str(key): plain_parameters(child) for key, child in tree.items()}


def _with_keys_of(template: Tree, params: Tree) -> Tree:
    """Returns `params` with the keys of `template`, undoing `plain_parameters`."""
    if not isinstance(template, dict):
        return params
    return {key: _with_keys_of(child, params[str(key)]) for key, child in template.items()}


def _reseeded(random_state: nnx.State, rng: jax.Array | None) -> nnx.State:
    """Restarts every stream of a random state from `rng`; a key of 0 stands for None."""
    root = jax.random.key(0) if rng is None else rng
    leaves, structure = jax.tree.flatten(random_state)
    return jax.tree.unflatten(
        structure,
        [
            jax.random.fold_in(root, number)
            if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            else jnp.zeros(leaf.shape, leaf.dtype)
            for number, leaf in enumerate(leaves)
        ],
    )


def _refuse_state(names: list[str]) -> None:
    """Refuses a model with these mutable variables, if there are any."""
    if names:
        raise ValueError(
            f"the model keeps mutable state ({', '.join(names)}), which mixes the examples of a "
            "batch or remembers them: use GroupNorm or LayerNorm, or hold public statistics fixed: "
            "pass all variables of a pretrained model as initial=, not its parameters alone"
        )
