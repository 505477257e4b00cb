"""What is to be learned: a model's loss, how a prediction is scored, and the records.

A `Task` is what all tuners train candidates of. Build one from a Flax model and arrays
(`ready_tasks`), or directly from plain functions.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import checks
from dpjax.releases.unit_of_privacy import Users
from dpjax.training import averages as averaging
from dpjax.training import optimizers
from dpjax.training import users as grouping
from dpjax.training.clipping.own_pixels import with_own_pixels
from dpjax.training.micro_batches import candidates_beside
from dpjax.tuning.problem.class_weights import Weighing
from dpjax.tuning.problem.targets import Targets

PyTree = Any

SCORE_UNITS = 256
"""Whole units of a score of 1: a record's score is rounded to a multiple of 1/256, so that sums are
whole numbers, one record's influence on them is exact, and so is the noise."""


@dataclasses.dataclass(frozen=True)
class Records:
    """Records on the host, with the numbers about them that are public.

    Example:
      >>> import numpy as np
      >>> from dpjax import tuning
      >>> tuning.Records(np.zeros((290, 3)), public_size=300, size_bound=350)
      Records(public_size=300, size_bound=350, ...)

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
        leaves = jax.tree.leaves(self.arrays)
        if not all(np.ndim(leaf) for leaf in leaves):
            raise ValueError("the arrays have a leaf without an axis: pass arrays of records")
        for leaf in leaves:
            checks.record_array("the arrays", leaf)
        lengths = {len(leaf) for leaf in jax.tree.leaves(self.arrays)}
        if len(lengths) != 1:
            raise ValueError(
                f"the arrays have {sorted(lengths)} records: pass arrays of one length"
            )
        if 0 in lengths:
            raise ValueError("there are no records: pass arrays with at least one")
        check_sizes(self.public_size, self.size_bound, self.number)
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

    @classmethod
    def of_users(
        cls,
        arrays: PyTree,
        user_ids: Any,
        *,
        most_records: int,
        public_size: int,
        size_bound: int,
        key: bytes | None = None,
    ) -> Records:
        """Returns users as records: a task of them protects a user with all of its records.

        Training and validation records are split by user, so that a user is in one part alone
        (`data.splitting.validation_members(user_ids, fraction, key)`).

        Args:
          arrays: pytree of arrays (n, ...) of single records.
          user_ids: (n,) integers or fixed-length bytes; whose record each is.
          most_records: public; so many count of a user who has more.
          public_size, size_bound: as in `Records`, of users.
          key: which of a user's records count; see `training.users.group`.
        """
        grouped, users = grouping.group(arrays, user_ids, most_records, key=key)
        # Stable, both: a user keeps its id when others come, go or change their records.
        return cls(grouped, public_size, size_bound, True, users, True)

    def __repr__(self) -> str:
        """Shows public numbers alone."""
        return f"Records(public_size={self.public_size}, size_bound={self.size_bound}, ...)"

    @property
    def number(self) -> int:
        """Returns the real number of records: private under add-or-remove one."""
        return len(jax.tree.leaves(self.arrays)[0])

    @functools.cached_property
    def occurrences(self) -> collections.Counter[bytes]:
        """Returns how often each record occurs, by a hash of its bytes; private."""
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(self.arrays)]
        rows = range(self.number)
        return collections.Counter(
            hashlib.blake2b(b"".join(leaf[row].tobytes() for leaf in leaves)).digest()
            for row in rows
        )

    @property
    def identified(self) -> bool:
        """Returns whether the records have identifiers to be partitioned by."""
        return self.identifiers is not None

    @property
    def users(self) -> Users | None:
        """Returns how many records of a user count, where these are users; else None."""
        if not isinstance(self.arrays, grouping.UserRecords):
            return None
        return Users(np.shape(self.arrays.present)[1])

    @property
    def single(self) -> PyTree:
        """Returns single records, a pytree of arrays (n, ...): of users, all they have room for."""
        if self.users is None:
            return self.arrays
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), self.arrays.records)


def check_sizes(public_size: int, size_bound: int, number: int | None) -> None:
    """Refuses numbers of records that contradict each other; `number` may be unknown."""
    if not 1 <= public_size <= size_bound:
        size, bound = ("public_size", public_size), ("size_bound", size_bound)
        raise checks.Refused(size, ", ", bound, ": pass 1 <= ", size[:1], " <= ", bound[:1])
    if number is not None and number > size_bound:
        raise checks.Refused(
            *("there are more records than ", ("size_bound", size_bound), ": pass a public bound "),
            "that the data never exceeds (this message is for the curator only)",
        )


def check_total(size_bound: int, units: int) -> None:
    """Refuses more validation records than an int32 can hold the scores of, in units."""
    if size_bound * units >= 2**31:
        words = f": validation records are scored, so pass at most {2**31 // units - 1}"
        raise checks.Refused(("size_bound", size_bound), words)


class Stable(Protocol):
    """Says how neighbouring records are divided into parts; see `Records`."""

    @property
    def stable_under_replacement(self) -> bool: ...

    @property
    def stable_under_removal(self) -> bool | None: ...


def check_neighbours(sampling: str, *records: Stable) -> None:
    """Refuses records if one that comes, goes or changes could move others to another part.

    `sampling` is "fixed" (one record's value is replaced) or "poisson" (a record comes or goes);
    `records` are those of every part that counts as private.
    """
    if sampling == "fixed":
        if not all(part.stable_under_replacement for part in records):
            raise ValueError(
                "lots of fixed size protect against replacing a record, and a split by content can "
                "move the replaced record to the other part: pass identified_by='slot' or "
                "identifiers to data.from_arrays (to Records: stable_under_replacement=True)"
            )
    elif not all(part.stable_under_removal for part in records):
        raise checks.Refused(
            "poisson lots protect against a record that comes or goes, which moves others between "
            "parts if records are identified by their places: pass identified_by='content' or "
            "identifiers to data.from_arrays (to Records: stable_under_removal=True), or ",
            ("sampling", "fixed"),
        )


@dataclasses.dataclass(frozen=True)
class Classifier:
    """Predicts classes: `apply`, (parameters, inputs) -> scores, and how a class is decided."""

    apply: Callable[..., jax.Array]
    weighing: Weighing

    def predict(self, params: PyTree, inputs: Any) -> np.ndarray:
        """Returns the classes (n,) predicted for inputs (n, ...)."""
        decided = jax.jit(lambda given, rows: self.weighing.decided(self.apply(given, rows)))
        rows = [inputs[at : at + 1024] for at in range(0, len(inputs), 1024)]
        return np.concatenate([np.argmax(decided(params, some), axis=-1) for some in rows])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """Holds one learning problem: a loss, a score and the records.

    Candidates are ranked by a sum over validation records of `correct`, right or wrong, or `score`,
    anything in [0, 1]: that bounds what one record can change. A measure of all records together
    (AUC, F1, perplexity) has no such bound; pass what each record adds to a sum instead, such as
    `correct` or a clipped loss.

    Where the records are users (`Records.of_users`), `loss`, `correct` and `score` are of ONE
    record all the same: a user's loss, whose gradient is clipped, is the mean over its records, and
    so is its score.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpy as np
      >>> from dpjax import tuning
      >>> arrays = np.zeros((290, 3)), np.zeros(290)
      >>> train = tuning.Records(arrays, public_size=300, size_bound=350)
      >>> others = np.ones((90, 3)), np.ones(90)
      >>> task = tuning.Task(
      ...     initial=lambda key: jnp.zeros(3),
      ...     loss=lambda w, example: (example[0] @ w - example[1]) ** 2,
      ...     score=lambda w, example: 1 - jnp.abs(example[0] @ w - example[1]),
      ...     train=train,
      ...     validation=tuning.Records(others, public_size=100, size_bound=120),
      ...     description="a line",
      ... )
      >>> task.train
      Records(public_size=300, size_bound=350, ...)

    Attributes:
      initial: key -> parameters before training (a pytree of float arrays); must not see data.
      loss: (parameters, example) -> scalar, or (parameters, example, key) with `with_rng`; one
        example, no batch axis.
      correct: (parameters, example) -> whether the prediction is right, a boolean scalar (a score
        in counts rests on it; anything else is refused before training). Or None, with
      score: (parameters, example) -> a floating scalar, the higher the better; taken as 0 below 0
        and where it is no number, as 1 above 1, and rounded to a multiple of 1 / `SCORE_UNITS`.
      train: the records trained on.
      validation: the records candidates are scored on; disjoint from `train`.
      trainable: None (all), a pytree of booleans, or (path, leaf) -> boolean.
      with_rng: whether `loss` takes a key.
      average: as in `training.TrainConfig`: what is scored and released is this average of a run's
        iterates, instead of the last one.
      loss_reads: names of the space's hyperparameters that `loss` is given, a mapping of these
        alone, as its last argument.
      description: public words for the release, for example the model's repr.
      classifier: what predicts classes, where that is known; for the curator's warnings, and for
        the weights that a release names.
      targets: of a regression: the public map between targets and what is learned.
      constant_score: of a ready task: single records (n, ...) -> the score of the best constant
        prediction, for the curator's warnings.
      fits: of a ready task: (name of a part, its records) -> refuses labels that the model cannot
        be trained or scored on. Both parts are tried here, before anything is drawn.
    """

    initial: Callable[[jax.Array], PyTree]
    loss: Callable[..., jax.Array]
    correct: Callable[[PyTree, PyTree], jax.Array] | None = None
    score: Callable[[PyTree, PyTree], jax.Array] | None = None
    train: Records
    validation: Records
    trainable: Any = None
    with_rng: bool = False
    average: Any = None
    loss_reads: tuple[str, ...] = ()
    description: str = ""
    classifier: Classifier | None = None
    targets: Targets | None = None
    constant_score: Callable[[PyTree], float] | None = None
    fits: Callable[[str, Records], None] | None = None

    def __post_init__(self) -> None:
        checks.function("initial", self.initial, "of a key")
        checks.function("loss", self.loss, "of parameters and example")
        if (self.correct is None) == (self.score is None):
            raise ValueError(
                "pass either correct (parameters, example) -> boolean, or score -> number in [0, 1]"
            )
        if isinstance(self.score, str):
            raise ValueError(
                f"score={self.score!r}: pass a function of (parameters, ONE example) with values "
                "in [0, 1]; what is measured on all records at once (AUC, F1) has no bound on one "
                "record's influence"
            )
        for name in ("correct", "score"):
            if getattr(self, name) is not None:
                checks.function(name, getattr(self, name), "of parameters and example")
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
        object.__setattr__(self, "average", averaging.checked(self.average))
        object.__setattr__(self, "loss_reads", optimizers.names("loss_reads", self.loss_reads))
        check_disjoint(self.train, self.validation)
        _check_users(self.train, self.validation)
        check_total(self.validation.size_bound, self.units)
        if self.fits is not None:
            self.fits("train", self.train)
            self.fits("validation", self.validation)

    def __repr__(self) -> str:
        """Shows public words and numbers alone: a function's arguments may hold records."""
        return (
            f"Task(description={self.description!r}, train={self.train!r}, "
            f"validation={self.validation!r})"
        )

    @property
    def units(self) -> int:
        """Returns how many whole units a score of 1 is counted as: 1, or `SCORE_UNITS`."""
        return 1 if self.score is None and self.users is None else SCORE_UNITS

    @property
    def users(self) -> Users | None:
        """Returns the unit of privacy where it is a user; None: a record."""
        return self.train.users

    @property
    def example_loss(self) -> Callable[..., jax.Array]:
        """Returns the loss of one unit, a record or a user; it takes what `loss` takes."""
        if self.users is None:
            return self.loss
        return grouping.per_user(self.loss, with_rng=self.with_rng)


def check_disjoint(train: Records, validation: Records) -> None:
    """Refuses parts that share arrays: a record in both would pay for training and scores."""
    both = itertools.product(jax.tree.leaves(train.arrays), jax.tree.leaves(validation.arrays))
    if train is validation or any(_overlap(one, other) for one, other in both):
        raise ValueError(
            "training and validation records are the same: pass disjoint ones, for example by "
            "data.split_train_validation"
        )


_MOST_WORK: Any = 10_000
"""Most work NumPy may do to find out whether arrays overlap; its stubs know 0 and -1 alone."""


def _overlap(one: Any, other: Any) -> bool:
    """Returns whether two arrays share memory; copies, and overlaps hard to find, do not count."""
    if one is other:
        return True
    if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
        return False
    try:
        return np.shares_memory(one, other, max_work=_MOST_WORK)
    except np.exceptions.TooHardError:
        return False


def _check_users(train: Records, validation: Records) -> None:
    """Refuses records of users beside others, and users that are in both parts.

    Parts compose in parallel, since one unit of privacy is in one of them.
    """
    if train.users != validation.users:
        raise ValueError(
            f"train is of {train.users or 'single records'}, validation of "
            f"{validation.users or 'single records'}: make both by Records.of_users with one "
            "most_records, or neither"
        )
    ids = [part.identifiers for part in (train, validation) if part.identifiers is not None]
    if train.users is None or len(ids) < 2:
        return
    if len({found.dtype.kind for found in ids}) > 1 or len(np.intersect1d(ids[0], ids[1])):
        raise ValueError(
            "a user is in both train and validation: divide the records by user, for example "
            "by data.splitting.validation_members(user_ids, 0.2, key) (this message is for the "
            "curator only)"
        )


def total_units(
    task: Task, params: PyTree, arrays: PyTree, counts: jax.Array | None = None
) -> jax.Array:
    """Adds up the examples' scores, int32, in whole units: with `correct`, the number right.

    One record more or less, or one replaced, moves the sum by at most `task.units`. `arrays` are
    (n, ...); `counts`, bool (n,), says which examples count, None for all.
    """
    at_once = scored_at_once(arrays, len(jax.tree.leaves(arrays)[0]))
    one = with_own_pixels(functools.partial(units_of, task))
    units = jax.lax.map(lambda example: one(params, example), arrays, batch_size=at_once)
    return jnp.sum(units if counts is None else jnp.where(counts, units, 0))


def units_of(task: Task, params: PyTree, example: PyTree) -> jax.Array:
    """Returns the score of one example, int32 of shape (), from 0 to `task.units`.

    Refuses a `correct` that is not a boolean scalar and a `score` that is not a floating one: one
    record could move a sum by more.
    """
    if task.users is not None:
        grouping.check_grouped("the score of a user", example)
        values = jax.vmap(lambda record: _value_of(task, params, record))(example.records)
        value = grouping.mean_of_present(values.astype(jnp.float32), example.present)
    else:
        value = _value_of(task, params, example)
    if task.units == 1:
        return value.astype(jnp.int32)
    return jnp.round(value * SCORE_UNITS).astype(jnp.int32)


def _value_of(task: Task, params: PyTree, record: PyTree) -> jax.Array:
    """Returns the score of one record: right or wrong, or a float32 in [0, 1]; shape ()."""
    if task.score is None:
        assert task.correct is not None  # One of them is given.
        return _scalar("correct", task.correct(params, record))
    value = _scalar("score", task.score(params, record)).astype(jnp.float32)
    return jnp.where(jnp.isnan(value), 0.0, jnp.clip(value, 0.0, 1.0))


_WANTED = {
    "correct": "one boolean scalar, such as prediction == label; a count of those is the score",
    "score": "one floating scalar in [0, 1]; their sum over the records is what is ranked",
}


def _scalar(name: str, value: Any) -> jax.Array:
    """Returns a scalar of the kind that `correct` or `score` must return; refuses another value."""
    if value is None or not jax.tree_util.all_leaves([value]):
        found = f"a {type(value).__name__}"
    else:
        kind = jnp.result_type(value)
        fits = kind == jnp.bool_ if name == "correct" else jnp.issubdtype(kind, jnp.floating)
        if fits and jnp.shape(value) == ():
            return jnp.asarray(value)
        found = f"{kind} of shape {jnp.shape(value)}"
    raise ValueError(
        f"the task's {name} returns {found}: pass a function of (parameters, example) that "
        f"returns {_WANTED[name]}"
    )


def check_score(task: Task) -> None:
    """Tries `task.correct` or `task.score` on shapes alone, before anything is trained."""
    params = jax.eval_shape(task.initial, jax.random.key(0))
    example = one_record(task.validation.arrays)
    jax.eval_shape(lambda params, example: units_of(task, params, example), params, example)


def one_record(arrays: PyTree) -> PyTree:
    """Returns the shapes of one record, with the dtypes that its arrays have on a device."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            np.shape(leaf)[1:], jax.dtypes.canonicalize_dtype(np.asarray(leaf).dtype)
        ),
        arrays,
    )


def all_finite(params: PyTree) -> jax.Array:
    """Returns whether all numbers in a pytree of arrays are finite, as a boolean scalar."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(params)]))


def accuracy_of(task: Task, params: PyTree, arrays: PyTree) -> float:
    """Returns the exact mean score of examples, which is not private: with `correct`, accuracy."""
    units = jax.jit(lambda params, arrays: total_units(task, params, arrays))(params, arrays)
    return float(units) / (task.units * len(jax.tree.leaves(arrays)[0]))


def scored_at_once(arrays: PyTree, number: int) -> int:
    """Returns how many of `number` examples are scored at once.

    16 candidates have to fit. On an accelerator more of them share what 16 would have.
    """
    most = max(1, 1024 * 16 // max(16, candidates_beside()))
    if isinstance(arrays, grouping.UserRecords):
        most = max(1, most // arrays.present.shape[1])
    return min(most, number)
