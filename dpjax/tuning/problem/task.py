"""What is to be learned: a model's loss, how a prediction is scored, and the records.

A `Task` is what the four procedures train candidates of. Build one from a Flax model and arrays
with `classification`, or directly from plain functions.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import nnx

from dpjax import checks, models

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Records:
    """Records on the host, with the numbers about them that are public.

    Attributes:
      arrays: pytree of arrays with a leading axis of n records; n itself is private under
        add-or-remove one.
      public_size: the public nominal number of records. Lot size, sampling probability, number of
        steps and the score's denominator come from it, never from n.
      size_bound: a public number that n never exceeds; the capacity of a lot comes from it.
      stable_under_replacement: whether replacing a record's value leaves every record in the part
        (training or validation) it is in. Lots of fixed size need it to be True.
      stable_under_removal: whether a record that comes or goes leaves every other one in its part,
        and with its identifier. Poisson lots need it. None: as parts made by hand do, so long as
        there are no identifiers; with identifiers it must be given.
      identifiers: (n,) integers or fixed-length bytes (NumPy void), one per record, or None;
        procedures that partition the training records need them (see `dpjax.data.splitting`).
    """

    arrays: PyTree
    public_size: int
    size_bound: int
    stable_under_replacement: bool = False
    identifiers: np.ndarray | None = None
    stable_under_removal: bool | None = None

    def __post_init__(self):
        if self.stable_under_removal is None:
            object.__setattr__(self, "stable_under_removal", self.identifiers is None)
        for name in ("stable_under_replacement", "stable_under_removal"):
            checks.flag(name, getattr(self, name))
        for name in ("public_size", "size_bound"):
            object.__setattr__(self, name, checks.whole(name, getattr(self, name), 0))
        if not all(np.ndim(leaf) for leaf in jax.tree.leaves(self.arrays)):
            raise ValueError("the arrays have a leaf without an axis: pass arrays of records")
        lengths = {len(leaf) for leaf in jax.tree.leaves(self.arrays)}
        if len(lengths) != 1:
            raise ValueError(
                f"the arrays have {sorted(lengths)} records: pass arrays of one length"
            )
        if 0 in lengths:
            raise ValueError("there are no records: pass arrays with at least one")
        if not 1 <= self.public_size <= self.size_bound:
            raise ValueError(
                f"public_size={self.public_size}, size_bound={self.size_bound}: pass "
                "1 <= public_size <= size_bound"
            )
        if self.number > self.size_bound:
            raise ValueError(
                f"there are more records than size_bound={self.size_bound}: pass a public bound "
                "that the data never exceeds (this message is the curator's to see)"
            )
        if self.identifiers is None:
            return
        found = checks.plain_array("identifiers", self.identifiers)
        if found.shape != (self.number,):
            raise ValueError(f"identifiers have shape {found.shape}: pass one for each record")
        # The bytes of a text depend on the longest text beside it, and they are what is hashed.
        if found.dtype.kind not in "iuV":
            raise ValueError(
                f"identifiers are {found.dtype}: pass integers or fixed-length bytes (NumPy void), "
                "as data.from_arrays makes of texts"
            )

    def __repr__(self) -> str:
        """Shows public numbers alone."""
        return f"Records(public_size={self.public_size}, size_bound={self.size_bound}, ...)"

    @property
    def number(self) -> int:
        """The real number of records: private under add-or-remove one."""
        return len(jax.tree.leaves(self.arrays)[0])


def check_neighbours(sampling: str, *records: Records) -> None:
    """Refuses records that a neighbour of theirs would divide otherwise.

    Args:
      sampling: "fixed" (one record's value is replaced) or "poisson" (a record comes or goes).
      records: of every part that counts as private.

    Raises:
      ValueError: records that are not known to stay where they are.
    """
    if sampling == "fixed":
        if not all(part.stable_under_replacement for part in records):
            raise ValueError(
                "lots of fixed size protect against replacing a record, and a split by content can "
                "move the replaced record to the other part: pass identified_by='slot' or "
                "identifiers to data.from_arrays (to Records: stable_under_replacement=True)"
            )
    elif not all(part.stable_under_removal for part in records):
        raise ValueError(
            "poisson lots protect against a record that comes or goes, and where records go by "
            "their places that moves others between parts: pass identified_by='content' or "
            "identifiers to data.from_arrays (to Records: stable_under_removal=True), or "
            "sampling='fixed'"
        )


@dataclasses.dataclass(frozen=True)
class Task:
    """One learning problem.

    Attributes:
      initial: key -> parameters before training (a pytree of float arrays); must not see data.
      loss: (parameters, example) -> scalar, or (parameters, example, key) with `with_rng`; one
        example, no batch axis.
      correct: (parameters, example) -> whether the prediction is right, a boolean scalar (a score
        in counts rests on it; anything else is refused before training).
      train: the records trained on.
      validation: the records candidates are scored on; disjoint from `train`.
      trainable: None (all), a pytree of booleans, or (path, leaf) -> boolean.
      with_rng: whether `loss` takes a key.
      description: public words for the release, for example the model's repr.
    """

    initial: Callable[[jax.Array], PyTree]
    loss: Callable[..., jax.Array]
    correct: Callable[[PyTree, PyTree], jax.Array]
    train: Records
    validation: Records
    trainable: Any = None
    with_rng: bool = False
    description: str = ""

    def __post_init__(self) -> None:
        checks.function("initial", self.initial, "of a key")
        checks.function("loss", self.loss, "of parameters and example")
        checks.function("correct", self.correct, "of parameters and example")
        for name in ("train", "validation"):
            records = getattr(self, name)
            if not isinstance(records, Records):
                # Not the value itself, which may be records.
                raise ValueError(
                    f"{name} must be tuning.Records, not a {type(records).__name__}: make it of "
                    "arrays, or the task by tuning.classification"
                )
        checks.flag("with_rng", self.with_rng)
        checks.text("description", self.description)


def number_correct(task: Task, params: PyTree, arrays: PyTree) -> jax.Array:
    """Counts the examples that `params` gets right.

    One record more or less, or one replaced, moves the count by at most 1.

    Args:
      task: whose `correct` judges.
      params: one candidate's parameters.
      arrays: pytree of arrays (n, ...).

    Returns:
      int32 scalar.

    Raises:
      ValueError: `correct` returns anything but a boolean scalar.
    """
    right = jax.lax.map(
        lambda example: is_correct(task, params, example), arrays, batch_size=_batch(arrays)
    )
    return jnp.sum(right.astype(jnp.int32))


def is_correct(task: Task, params: PyTree, example: PyTree) -> jax.Array:
    """What `task.correct` returns, bool of shape ().

    Raises:
      ValueError: it returns anything else, by which one record could move a count by more than 1.
    """
    right = task.correct(params, example)
    if right is None or not jax.tree_util.all_leaves([right]):
        found = f"a {type(right).__name__}"
    else:
        found = f"{jnp.result_type(right)} of shape {jnp.shape(right)}"
    if found != "bool of shape ()":
        raise ValueError(
            f"the task's correct returns {found}: pass a function of (parameters, example) that "
            "returns one boolean scalar, such as prediction == label; a count of those is the score"
        )
    return jnp.asarray(right)


def check_correct(task: Task) -> None:
    """Runs `task.correct` on shapes alone, before anything is trained.

    Raises:
      ValueError: as `is_correct`.
    """
    params = jax.eval_shape(task.initial, jax.random.key(0))
    example = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            np.shape(leaf)[1:], jax.dtypes.canonicalize_dtype(np.asarray(leaf).dtype)
        ),
        task.validation.arrays,
    )
    jax.eval_shape(lambda params, example: is_correct(task, params, example), params, example)


def accuracy_of(task: Task, params: PyTree, arrays: PyTree) -> float:
    """The share of examples that `params` gets right, exact: not private where the arrays are."""
    right = jax.jit(lambda params, arrays: number_correct(task, params, arrays))(params, arrays)
    return float(right) / len(jax.tree.leaves(arrays)[0])


def _batch(arrays: PyTree) -> int:
    """Examples scored at once: enough to be quick, few enough that 16 candidates fit."""
    return min(1024, len(jax.tree.leaves(arrays)[0]))


_OF_A_SPLIT = ("inputs", "labels", "public_size", "size_bound")


def classification(
    model: Any,
    train: Any,
    validation: Any,
    *,
    loss: Callable[[jax.Array, jax.Array], jax.Array] = models.cross_entropy,
    trainable: Any = None,
    initial: PyTree | None = None,
    with_rng: bool = False,
    description: str | None = None,
) -> Task:
    """Makes a classification task of a Flax model and two sets of labelled records.

    Args:
      model: a Linen module, an NNX module, a function of `nnx.Rngs` that makes an NNX module, or
        a `models.FunctionalModel`. Called on inputs (batch, ...), it gives scores (batch, classes).
      train: has `inputs` (n, ...), `labels` (n,) int, `public_size`, `size_bound`; what
        `dpjax.data` returns. Without `stable_under_removal`, Poisson lots will refuse it, without
        `stable_under_replacement` lots of fixed size (see `Records`).
      validation: likewise, disjoint from `train`.
      loss: (scores (batch, classes), labels (batch,)) -> (batch,).
      trainable: which parameters train: None (all), a pytree of booleans, or (path, leaf) ->
        boolean; the others stay as they are, bit for bit.
      initial: parameters to start every candidate from, for fine-tuning; they must come from
        public data. None: each candidate draws its own.
      with_rng: whether the model is given a key in training (dropout). Without one it is run as
        for predictions, with a warning if training it would draw random numbers.
      description: public words about the model for the release; None: its definition (Linen), its
        class's name, or that of the function that makes it (of what a lambda makes).

    Raises:
      ValueError: if the model keeps batch statistics, which couple the examples of a lot; has too
        few outputs for the labels; or `initial` is not a tree of its parameters.
    """
    for name, split in (("train", train), ("validation", validation)):
        missing = [word for word in _OF_A_SPLIT if not hasattr(split, word)]
        if missing:
            # Not the value itself, which may be records.
            raise ValueError(
                f"{name} is a {type(split).__name__} without {', '.join(missing)}: pass a "
                "data.Split, for example of data.from_arrays(...).parts(...)"
            )
    checks.function("loss", loss, "of scores and labels")
    checks.flag("with_rng", with_rng)
    if description is not None:
        checks.text("description", description)
    if validation is train:
        raise ValueError(
            "training and validation records are the same: pass disjoint ones, for example by "
            "data.split_train_validation"
        )
    if isinstance(model, models.FunctionalModel):
        functional = model
    else:
        one = jax.ShapeDtypeStruct(np.shape(train.inputs)[1:], np.float32)
        functional = models.functional(model, one)
    _check_fit(functional, train, initial)
    if not with_rng and _draws_in_training(functional, train):
        warnings.warn(
            "the model draws random numbers in training (dropout), and is given no key: it trains "
            "without them; pass with_rng=True, or take them out of the model",
            stacklevel=2,
        )

    def correct(params: PyTree, example: PyTree) -> jax.Array:
        inputs, label = example
        scores = functional.apply(params, inputs[None])[0]
        # One score is a binary margin: positive means class 1.
        predicted = jnp.argmax(scores) if scores.shape[-1] > 1 else (scores[0] > 0)
        return predicted.astype(jnp.int32) == label

    def records(split: Any) -> Records:
        return Records(
            (split.inputs, split.labels),
            split.public_size,
            split.size_bound,
            getattr(split, "stable_under_replacement", False),
            getattr(split, "identifiers", None),
            getattr(split, "stable_under_removal", False),
        )

    return Task(
        initial=functional.init if initial is None else lambda key: initial,
        loss=functional.example_loss(loss, with_rng=with_rng),
        correct=correct,
        train=records(train),
        validation=records(validation),
        trainable=trainable,
        with_rng=with_rng,
        description=_describe(model) if description is None else description,
    )


def _check_fit(functional: models.FunctionalModel, train: Any, initial: PyTree | None) -> None:
    """Refuses parameters that are not the model's, and labels that it has no output for."""
    own = jax.eval_shape(functional.init, jax.random.key(0))
    if initial is not None:
        shapes, given = (jax.tree.map(jnp.shape, tree) for tree in (own, initial))
        if shapes != given:
            hint = " (of Linen's variables: variables['params'])" if "params" in initial else ""
            raise ValueError(
                f"initial is not a tree of the model's parameters: pass one like init's{hint}"
            )
    scores = jax.eval_shape(functional.apply, own, _one_input(train))
    outputs, largest = max(2, scores.shape[-1]), int(np.max(train.labels, initial=0))
    if largest >= outputs:
        raise ValueError(
            f"the model has {scores.shape[-1]} output(s) and there are labels to {largest}: pass a "
            f"model with {largest + 1} outputs or more (this message is the curator's to see)"
        )


def _one_input(train: Any) -> jax.ShapeDtypeStruct:
    # What JAX makes of float64 inputs; asked for by its own name, float64 is a warning.
    dtype = jax.dtypes.canonicalize_dtype(np.asarray(train.inputs).dtype)
    return jax.ShapeDtypeStruct((1, *np.shape(train.inputs)[1:]), dtype)


def _draws_in_training(functional: models.FunctionalModel, train: Any) -> bool:
    """Whether scores depend on the key that the model is given in training."""
    own = jax.eval_shape(functional.init, jax.random.key(0))
    traced = jax.make_jaxpr(functional.apply)(own, _one_input(train), jax.random.key(0)).jaxpr
    reached = {id(traced.invars[-1])}
    for equation in traced.eqns:
        if any(id(operand) in reached for operand in equation.invars):
            reached.update(id(result) for result in equation.outvars)
    return any(id(score) in reached for score in traced.outvars)


def _describe(model: Any) -> str:
    """Public words about a model; never its parameters, nor an address in memory."""
    if isinstance(model, nn.Module):
        return " ".join(repr(model).split())
    kind = model if hasattr(model, "__qualname__") else type(model)
    makes_one = callable(model) and not isinstance(model, nnx.Module)
    if makes_one and "<lambda>" in getattr(model, "__qualname__", "<lambda>"):
        # A lambda or a partial function has no name worth releasing; what it makes has.
        kind = type(nnx.eval_shape(lambda: model(nnx.Rngs(0))))
    return f"{kind.__module__}.{kind.__qualname__}"
