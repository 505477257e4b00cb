"""Tasks of a Flax model: classification, regression, several labels at once, the next token.

Each takes a model, training and validation records (or users, `Records.of_users`), and says what an
example's loss and its score are. Where none fits, a `Task` of plain functions is three lines (see
there).
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from dpjax import checks, models
from dpjax.models.functional import fixed_state, is_nnx
from dpjax.training import optimizers
from dpjax.tuning.problem import class_weights as class_weights_
from dpjax.tuning.problem.inspection import qualified_name, reached, warn_unless_finite
from dpjax.tuning.problem.targets import Loss, Targets
from dpjax.tuning.problem.task import Classifier, Records, Task, check_disjoint, one_record

PyTree = Any

_OF_A_SPLIT = ("inputs", "labels", "public_size", "size_bound")


def classification(
    model: Any,
    train: Any,
    validation: Any,
    *,
    loss: Loss = models.cross_entropy,
    score: str = class_weights_.ACCURACY,
    class_weights: Sequence[float] | None = None,
    class_priors: Sequence[float] | None = None,
    weights_in: str = class_weights_.LOSS,
    trainable: Any = None,
    initial: PyTree | None = None,
    with_rng: bool = False,
    model_reads: Sequence[str] = (),
    description: str | None = None,
) -> Task:
    """Makes a classification task of a Flax model and two sets of labelled records.

    Candidates are ranked by the number of validation records whose label has the largest score; on
    imbalanced classes better by `class_priors`, which count errors on rare classes for more.

    Example:
      >>> from dpjax import data, models, tuning
      >>> parts = data.load("digits").parts(0.2, key=b"public")
      >>> task = tuning.classification(models.LogisticRegression(10), parts.train, parts.validation)
      >>> task.train
      Records(public_size=1150, size_bound=1294, ...)

    Args:
      model: a Linen module, an NNX class, a function of `nnx.Rngs` that makes an NNX module, or
        a `models.FunctionalModel`. Called on inputs (batch, ...), it gives scores (batch, classes).
        Batch statistics, which couple the examples of a lot, are refused.
      train: has `inputs` (n, ...), `labels` (n,) int, `public_size`, `size_bound`; what
        `dpjax.data` returns; or `Records` of a pair (inputs, labels). Poisson
        lots refuse it without `stable_under_removal`, lots of fixed size without
        `stable_under_replacement` (see `Records`).
      validation: likewise, disjoint from `train`.
      loss: (scores (batch, classes), labels (batch,)) -> (batch,).
      score: what candidates are ranked by, a sum over records: "accuracy"; "log_likelihood",
        clipped at 4 nats; or "brier". The last two see more than which class is the largest.
      class_weights: the cost of an error on a record of each class, positive public numbers;
        scores count a record by its class's weight over the largest weight. None: 1 each.
      class_priors: each class's public share of the records; its weight is one over that share.
      weights_in: "loss": a record counts at a step of training with its class's weight, over the
        largest, as the probability, which clipping does not undo; or "decision": the model is
        trained without weights, the largest score + log weight is predicted, and the release says
        so (for clip norms that leave most gradients as they are).
      trainable: which parameters train: None (all), a pytree of booleans, or (path, leaf) ->
        boolean; the others stay as they are, bit for bit.
      initial: parameters to start every candidate from, for fine-tuning; they must come from
        public data. A tree like init's, Linen's variables, an NNX module or its state. State beside
        the parameters (BatchNorm's statistics) is held fixed, and the model is run as for
        predictions throughout. None: each candidate draws its own.
      with_rng: whether the model is given a key in training (dropout). Without one it is run as
        for predictions, with a warning if training it would draw random numbers.
      model_reads: names of the space's hyperparameters that the model is given in training, by
        keyword and traced: arguments of its `__call__` with a default, which predictions take.
        `models.dropout` takes such a rate.
      description: public words about the model for the release. None: the definition of a Linen
        module; else the name of the class, or of the function that makes the model (for a lambda,
        of what it makes). The name of a loss of your own is added.
    """

    weighing = class_weights_.Weighing.of(score, class_weights, class_priors, weights_in)
    classes = getattr(train, "classes", None)

    def correct(scores: jax.Array, label: jax.Array) -> jax.Array:
        # One score is a binary margin: positive means class 1.
        predicted = jnp.argmax(scores) if scores.shape[-1] > 1 else (scores[0] > 0)
        return predicted.astype(jnp.int32) == label

    def fits(scores: jax.ShapeDtypeStruct, labels: np.ndarray, part: str) -> None:
        if scores.shape[-1] == 1 and loss is models.cross_entropy:
            # The softmax of a single number is always 1: nothing would be learned.
            raise ValueError(
                "the model has one output, and loss=models.cross_entropy needs one for each class: "
                "pass a model with 2 outputs, or a loss of a margin, such as models.hinge"
            )
        outputs = max(2, scores.shape[-1])
        if weighing.weights and len(weighing.weights) != outputs:
            name = "class_weights" if class_priors is None else "class_priors"
            numbers = f" has {len(weighing.weights)} numbers and the model {outputs} classes"
            raise checks.Refused((name,), numbers, ": pass one for each")
        if classes is not None and outputs != classes:
            raise ValueError(
                f"the model has {scores.shape[-1]} output(s) and the data {classes} classes: pass "
                f"a model with {classes} outputs"
            )
        words = "classes"
        if loss is models.hinge:
            words = "classes, whose labels models.hinge takes as 0 and 1, not -1 and 1"
        _check_whole(part, labels, (), outputs, words)

    judge, of_one = ("correct", correct) if weighing.is_plain else ("score", weighing.score)
    own = (trainable, initial, with_rng, model_reads, description)
    return _task_of(model, train, validation, loss, judge, of_one, fits, *own, weighing)


def regression(
    model: Any,
    train: Any,
    validation: Any,
    *,
    error_scale: float,
    target_range: Sequence[float] | None = None,
    loss: Loss | None = None,
    trainable: Any = None,
    initial: PyTree | None = None,
    with_rng: bool = False,
    model_reads: Sequence[str] = (),
    description: str | None = None,
) -> Task:
    """Makes a regression task: a record scores 1 minus its absolute error over `error_scale`.

    With `target_range` the model learns targets that are mapped to -5..5, which the public
    default's rate is for, and its outputs are mapped back for scores. The released model gives
    outputs in -5..5; the release names the way back: a prediction is `targets.add` +
    `targets.times` * output. In Python it is `task.targets.predicted(outputs)`.

    Example:
      >>> import flax.linen as nn
      >>> import numpy as np
      >>> from dpjax import tuning
      >>> def part(seed, number):
      ...     x = np.random.default_rng(seed).normal(size=(number, 3)).astype(np.float32)
      ...     return tuning.Records((x, x.sum(axis=1)), public_size=number, size_bound=number + 50)
      >>> task = tuning.regression(
      ...     nn.Dense(1), part(0, 300), part(1, 100), error_scale=2.0, target_range=(-9, 9)
      ... )
      >>> task.targets.stated
      {'range': [-9.0, 9.0], 'learned_as': [-5.0, 5.0], 'add': 0.0, 'times': 1.8}

    Args:
      model: as in `classification`; it gives predictions (batch, outputs), or (batch,).
      train: `Records` of a pair (inputs (n, ...), targets (n,) or (n, outputs) float), or what has
        `inputs`, `labels`, `public_size` and `size_bound`.
      error_scale: public; the absolute error, in units of the target, from which a record scores 0.
        Choose it without looking at the data: a difference that is of no use.
      target_range: public; the lowest and the highest value of a target, in its units, known
        without looking at the data. Targets outside are learned too. None: nothing is mapped.
      loss: (outputs (batch, outputs), targets (batch, outputs)) -> (batch,), targets as they are
        learned; half the squared error, averaged over outputs, by default.
      validation, trainable, initial, with_rng, model_reads, description: as in `classification`.
    """
    scale = checks.positive("error_scale", error_scale)
    targets = Targets.of(target_range)

    def score(outputs: jax.Array, target: jax.Array) -> jax.Array:
        predicted = targets.predicted(outputs)
        error = jnp.abs(jnp.reshape(predicted, -1) - jnp.reshape(target, -1))
        return jnp.mean(1.0 - jnp.minimum(error / scale, 1.0))

    def squared_error(predicted: jax.Array, target: jax.Array) -> jax.Array:
        rows = len(predicted)
        difference = jnp.reshape(predicted, (rows, -1)) - jnp.reshape(target, (rows, -1))
        return 0.5 * jnp.mean(jnp.square(difference), axis=1)

    def of_constant(records: PyTree) -> float:
        values = np.asarray(records[1], np.float64).reshape(len(records[1]), -1)
        if not np.isfinite(values).any():
            return 0.0
        errors = np.abs(values - np.nanmedian(values, axis=0))
        return float(np.mean(np.nan_to_num(1.0 - np.minimum(errors / scale, 1.0))))

    own = (trainable, initial, with_rng, model_reads, description)
    loss = squared_error if loss is None else loss
    task = _task_of(
        model, train, validation, loss, "score", score, _check_as_many, *own, targets=targets
    )
    return dataclasses.replace(task, constant_score=of_constant)


def multi_label(
    model: Any,
    train: Any,
    validation: Any,
    *,
    loss: Loss | None = None,
    trainable: Any = None,
    initial: PyTree | None = None,
    with_rng: bool = False,
    model_reads: Sequence[str] = (),
    description: str | None = None,
) -> Task:
    """Makes a task of several labels at once: a record scores the share of labels that are right.

    Example:
      >>> import flax.linen as nn
      >>> import numpy as np
      >>> from dpjax import tuning
      >>> def part(seed, number):
      ...     x = np.random.default_rng(seed).normal(size=(number, 3)).astype(np.float32)
      ...     return tuning.Records((x, (x > 0).astype(np.int32)), number, number + 50)
      >>> task = tuning.multi_label(nn.Dense(3), part(0, 300), part(1, 100))
      >>> task.train
      Records(public_size=300, size_bound=350, ...)

    Args:
      model: as in `classification`; it gives scores (batch, labels), positive for a label that
        holds.
      train: `Records` of a pair (inputs (n, ...), labels (n, labels) of 0 and 1), or what has
        `inputs`, `labels`, `public_size` and `size_bound`.
      loss: (scores (batch, labels), labels (batch, labels)) -> (batch,); the sigmoid cross-entropy,
        averaged over labels, by default.
      validation, trainable, initial, with_rng, model_reads, description: as in `classification`.
    """

    def score(scores: jax.Array, labels: jax.Array) -> jax.Array:
        return jnp.mean(((scores > 0) == (labels > 0)).astype(jnp.float32))

    def cross_entropy(scores: jax.Array, labels: jax.Array) -> jax.Array:
        each = optax.sigmoid_binary_cross_entropy(scores, labels.astype(scores.dtype))
        return jnp.mean(each, axis=-1)

    def fits(outputs: jax.ShapeDtypeStruct, labels: np.ndarray, part: str) -> None:
        _check_as_many(outputs, labels, part)
        if not np.isin(labels, (0, 1)).all():
            raise ValueError(
                f"labels of the {part} records are not all 0 or 1: pass 1 where a label holds "
                "(this message is for the curator only)"
            )

    def of_constant(records: PyTree) -> float:
        holds = np.mean(records[1], axis=0)
        return float(np.mean(np.maximum(holds, 1.0 - holds)))

    own = (trainable, initial, with_rng, model_reads, description)
    loss = cross_entropy if loss is None else loss
    task = _task_of(model, train, validation, loss, "score", score, fits, *own)
    return dataclasses.replace(task, constant_score=of_constant)


def next_token(
    model: Any,
    train: Any,
    validation: Any,
    *,
    padding: int | None = None,
    trainable: Any = None,
    initial: PyTree | None = None,
    with_rng: bool = False,
    model_reads: Sequence[str] = (),
    description: str | None = None,
) -> Task:
    """Makes a language-modelling task: a record scores the share of its next tokens that are right.

    One record is one sequence: what is protected is a sequence, not a person who wrote several.

    Example:
      >>> import flax.linen as nn
      >>> import numpy as np
      >>> from dpjax import tuning
      >>> train = tuning.Records(np.zeros((290, 9), np.int32), public_size=300, size_bound=350)
      >>> others = tuning.Records(np.ones((90, 9), np.int32), public_size=100, size_bound=120)
      >>> model = nn.Sequential([nn.Embed(7, 8), nn.Dense(7)])
      >>> tuning.next_token(model, train, others).units
      256

    Args:
      model: as in `classification`; called on tokens (batch, length) int, it gives logits (batch,
        length, vocabulary) and must not look ahead.
      train: `Records` of tokens (n, length + 1) int.
      padding: a token that is neither learned nor scored where it comes next; None: there is none.
        A sequence of padding alone scores 0.
      validation, trainable, initial, with_rng, model_reads, description: as in `classification`.
    """
    if padding is not None:
        padding = checks.whole("padding", padding, 0)

    def weights(following: jax.Array) -> jax.Array:
        counted = jnp.ones(following.shape, jnp.float32)
        if padding is not None:
            counted = (following != padding).astype(jnp.float32)
        return counted / jnp.maximum(jnp.sum(counted, axis=-1, keepdims=True), 1.0)

    def loss(logits: jax.Array, following: jax.Array) -> jax.Array:
        return jnp.sum(models.cross_entropy(logits, following) * weights(following), axis=-1)

    def score(logits: jax.Array, following: jax.Array) -> jax.Array:
        right = jnp.argmax(logits, axis=-1) == following
        return jnp.sum(jnp.where(right, weights(following), 0.0))

    def fits(logits: jax.ShapeDtypeStruct, following: np.ndarray, part: str) -> None:
        if logits.shape[1:-1] != following.shape[1:]:
            raise ValueError(
                f"the model gives logits {logits.shape[1:]} for {following.shape[1]} next tokens: "
                "pass a model with one row of logits for each token"
            )
        _check_whole(
            part, following, following.shape[1:], logits.shape[-1], "tokens in its vocabulary"
        )

    if isinstance(train, Records) and isinstance(validation, Records):
        check_disjoint(train, validation)  # Now: the pairs made below share no memory to compare.
    own = (trainable, initial, with_rng, model_reads, description)
    train, validation = _shifted("train", train), _shifted("validation", validation)
    task = _task_of(model, train, validation, loss, "score", score, fits, *own)

    def of_constant(records: PyTree) -> float:
        following = np.asarray(records[1])
        counted = np.bincount(following.ravel(), np.asarray(weights(following)).ravel())
        return float(counted.max() / len(following))

    return dataclasses.replace(task, constant_score=of_constant)


def _shifted(name: str, records: Any) -> Records:
    """Turns records of sequences into records of pairs, (tokens, those that come next)."""
    tokens = records.single if isinstance(records, Records) else None
    if not (
        isinstance(tokens, np.ndarray | jax.Array)
        and tokens.ndim == 2
        and tokens.shape[1] > 1
        and jnp.issubdtype(tokens.dtype, jnp.integer)
    ):
        raise ValueError(
            f"{name}: pass tuning.Records(tokens, public_size=..., size_bound=...), tokens an "
            "array (n, length + 1) of whole numbers"
        )

    def pair(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return tokens[..., :-1], tokens[..., 1:]

    arrays = records.arrays
    if records.users is None:
        return dataclasses.replace(records, arrays=pair(arrays))
    return dataclasses.replace(records, arrays=arrays._replace(records=pair(arrays.records)))


def _check_whole(
    part: str, labels: np.ndarray, shape: tuple[int, ...], number: int, words: str
) -> None:
    """Refuses labels (n, *shape) that are not whole numbers in 0..number-1; no value is shown."""
    kind = jnp.result_type(labels)
    if jnp.shape(labels)[1:] != shape or not jnp.issubdtype(kind, jnp.integer):
        raise ValueError(
            f"labels of the {part} records are {kind} of shape {jnp.shape(labels)}: pass an "
            f"integer array (n{''.join(f', {size}' for size in shape) or ','}), such as "
            "labels.astype(np.int32)"
        )
    if np.min(labels, initial=0) < 0 or np.max(labels, initial=0) >= number:
        raise ValueError(
            f"labels of the {part} records are not all in 0..{number - 1}, and the model has "
            f"{number} {words}: drop records without a label, or pass a model with more outputs "
            "(this message is for the curator only)"
        )


def _check_as_many(outputs: jax.ShapeDtypeStruct, targets: np.ndarray, part: str) -> None:
    """Refuses a model with another number of outputs than targets."""
    if int(np.prod(outputs.shape[1:])) != int(np.prod(np.shape(targets)[1:])):
        raise ValueError(
            f"the model gives outputs {outputs.shape[1:]} for targets {np.shape(targets)[1:]} of "
            f"the {part} records: pass a model with one output for each"
        )


def _task_of(
    model: Any,
    train: Any,
    validation: Any,
    loss: Loss,
    judge: str,
    of_one: Callable[[jax.Array, jax.Array], jax.Array],
    fits: Callable[[jax.ShapeDtypeStruct, np.ndarray, str], None],
    trainable: Any,
    initial: PyTree | None,
    with_rng: bool,
    model_reads: Sequence[str],
    description: str | None,
    weighing: class_weights_.Weighing | None = None,
    targets: Targets | None = None,
) -> Task:
    """Makes a task of a Flax model.

    `of_one`, (outputs of one example, its label) -> how good they are, becomes its `correct` or
    `score`, as `judge` says; `fits` refuses outputs (1, ...) that do not suit a part's labels.
    """
    train, validation = _pairs("train", train), _pairs("validation", validation)
    checks.function("loss", loss, "of scores and labels")
    checks.flag("with_rng", with_rng)
    if description is not None:
        checks.text("description", description)
    # Whole numbers stay whole: tokens, categories.
    single_inputs, labels = train.single
    inputs = one_record(single_inputs)
    one = jax.ShapeDtypeStruct((1, *inputs.shape), inputs.dtype)
    if is_nnx(model) and initial is None:
        name = type(model).__name__
        raise ValueError(
            f"the model is a {name} that is made already, whose parameters every candidate would "
            f"start from: pass the class, or lambda rngs: {name}(..., rngs=rngs); to fine-tune "
            "public parameters pass them as initial= too"
        )
    initial, fixed = fixed_state(model, initial)
    functional = model
    if not isinstance(model, models.FunctionalModel):
        with _told_whether_it_predicts():
            functional = models.functional(model, inputs, fixed)
    own = _shapes(inputs, functional.init, jax.random.key(0))
    if initial is not None:
        shapes, given = (jax.tree.map(jnp.shape, tree) for tree in (own, initial))
        if shapes != given:
            raise ValueError(
                "initial is not a tree of the model's parameters: pass one like init's"
            )
    outputs = _shapes(inputs, functional.apply, own, one)
    if not jax.tree_util.all_leaves([outputs]):
        raise ValueError(
            f"the model returns a {type(outputs).__name__}, of {len(jax.tree.leaves(outputs))} "
            "arrays: pass one that returns one array, such as scores (batch, classes)"
        )
    fits(outputs, labels, "train")  # Before the loss is tried on such labels.
    _try_out(loss, outputs, one_record(labels))
    reads = optimizers.names("model_reads", model_reads)
    _check_reads(functional, reads)
    draws = (reads or not with_rng) and _draws_in_training(functional, own, one, reads)
    if draws and reads and not with_rng:
        raise ValueError(
            f"the model reads {', '.join(reads)} and draws random numbers in training, and is "
            "given no key, so that what it reads may have no effect: pass with_rng=True"
        )
    if draws and not with_rng:
        warnings.warn(
            "the model draws random numbers in training (dropout), and is given no key: it trains "
            "without them; pass with_rng=True, or take them out of the model",
            stacklevel=3,
        )

    def judged_by(params: PyTree, example: PyTree) -> jax.Array:
        inputs, label = example
        return of_one(functional.apply(params, inputs[None])[0], label)

    learned = loss if targets is None else targets.in_loss(loss)
    example_loss = functional.example_loss(learned, with_rng=with_rng, model_reads=reads)
    if description is None:
        own_loss = f", trained with the loss {qualified_name(loss)}" if _is_own(loss) else ""
        description = _describe(model) + own_loss
    thins = weighing is not None and weighing.thins
    if weighing is not None and thins:
        example_loss = weighing.loss(example_loss, with_rng)

    return Task(
        initial=functional.init if initial is None else lambda key: initial,
        loss=example_loss,
        fits=lambda part, records: fits(outputs, records.single[1], part),
        train=train,
        validation=validation,
        trainable=trainable,
        with_rng=with_rng or thins,
        loss_reads=reads,
        description=description + (weighing.description if weighing else ""),
        classifier=None if weighing is None else Classifier(functional.apply, weighing),
        targets=targets,
        **dict[str, Any]({judge: judged_by}),
    )


def _shapes(inputs: jax.ShapeDtypeStruct, of_model: Callable[..., PyTree], *given: Any) -> PyTree:
    """Returns the shapes that a function of the model gives; refuses one for other inputs."""
    try:
        with _told_whether_it_predicts():
            return jax.eval_shape(of_model, *given)
    except jax.errors.JAXTypeError:
        raise
    except (TypeError, ValueError) as error:
        if isinstance(error.__cause__, Exception):
            raise
        words = " ".join(str(error).split())[:200]
        raise ValueError(
            f"the model cannot be called on inputs (batch, {', '.join(map(str, inputs.shape))}), "
            f"as the records have: pass a model for these ({words})"
        ) from error


@contextlib.contextmanager
def _told_whether_it_predicts() -> Iterator[None]:
    """Refuses a model that draws random numbers, in Flax's errors, in one line."""
    try:
        yield
    except Exception as error:  # They have no common base class.
        if "deterministic" not in str(error) and "PRNG" not in str(error):
            raise
        raise ValueError(
            "the model draws random numbers (dropout) and is not told whether it predicts: give "
            "its __call__ an argument `deterministic` or `train` and pass it on, as "
            "nn.Dropout(rate)(x, deterministic=not train)"
        ) from error


def _pairs(name: str, split: Any) -> Records:
    """Makes records of pairs (inputs, labels) of a `Split`, or checks that they are such."""
    if isinstance(split, Records):
        if not (isinstance(split.single, tuple) and len(split.single) == 2):
            raise ValueError(f"{name}: pass Records of a pair of arrays, (inputs, labels)")
        return split
    missing = [word for word in _OF_A_SPLIT if not hasattr(split, word)]
    if missing:
        # Not the value itself, which may be records.
        raise ValueError(
            f"{name} is a {type(split).__name__} without {', '.join(missing)}: pass a "
            "data.Split, for example of data.from_arrays(...).parts(...)"
        )
    return Records(
        (split.inputs, split.labels),
        split.public_size,
        split.size_bound,
        getattr(split, "stable_under_replacement", False),
        getattr(split, "identifiers", None),
        getattr(split, "stable_under_removal", False),
    )


def _try_out(loss: Loss, outputs: jax.ShapeDtypeStruct, label: jax.ShapeDtypeStruct) -> None:
    """Warns of a user-defined loss that is finite on no made-up scores (1, ...)."""
    if not _is_own(loss):
        return

    def tried(example: tuple[jax.Array, jax.Array]) -> PyTree:
        scores, label = example
        return jax.value_and_grad(lambda scores: jnp.sum(loss(scores, label[None])))(scores)

    warn_unless_finite(tried, (outputs, label))


def _check_reads(functional: models.FunctionalModel, reads: tuple[str, ...]) -> None:
    """Refuses names of hyperparameters that are no arguments of the model."""
    known = functional.keywords
    unknown = [] if known is None else [name for name in reads if name not in known]
    if unknown:
        raise ValueError(
            f"model_reads names {', '.join(unknown)}, and the model's __call__ takes "
            f"{', '.join(known or ()) or 'nothing'} beside inputs: add the argument there, with a "
            "default for predictions"
        )


def _draws_in_training(
    functional: models.FunctionalModel,
    params: PyTree,
    inputs: jax.ShapeDtypeStruct,
    reads: tuple[str, ...],
) -> bool:
    """Returns whether scores of inputs (1, ...) depend on the key that training gives."""

    def scores(given: PyTree, params: PyTree, inputs: jax.Array, key: jax.Array) -> jax.Array:
        return functional.apply(params, inputs, key, **given)

    given = {name: jax.ShapeDtypeStruct((), np.float32) for name in reads}
    key = jax.random.key(0)
    try:
        traced = jax.make_jaxpr(scores)(given, params, inputs, key).jaxpr
    except jax.errors.ConcretizationTypeError:
        if not reads:
            raise
        raise ValueError(
            f"the model needs {' or '.join(reads)} as a Python number, and one that a search draws "
            "is traced: pass it to what takes such values, as models.dropout in the place of "
            "nn.Dropout and nnx.Dropout"
        ) from None
    return reached(traced, traced.invars[-1])


def _is_own(loss: Loss) -> bool:
    """Returns whether a loss is the caller's, not a task's default."""
    return loss is not models.cross_entropy and getattr(loss, "__module__", None) != __name__


def _describe(model: Any) -> str:
    """Returns public text about a model; never its parameters, nor an address in memory."""
    if isinstance(model, nn.Module):
        return " ".join(repr(model).split())
    kind = model if hasattr(model, "__qualname__") else type(model)
    makes_one = callable(model) and not is_nnx(model)
    if makes_one and "<lambda>" in getattr(model, "__qualname__", "<lambda>"):
        from flax import nnx

        # A lambda or a partial function has no name worth releasing; what it makes has.
        kind = type(nnx.eval_shape(lambda: model(nnx.Rngs(0))))
    return f"{kind.__module__}.{kind.__qualname__}"
