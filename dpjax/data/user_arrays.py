"""The user's own arrays, from memory or from an `.npz` file.

Keys of the file: `inputs` and `labels` (training), optionally `validation_inputs` and
`validation_labels`, `test_inputs` and `test_labels`, and `identifiers` (one unique integer or
string per training record). Inputs are used unchanged: scale them beforehand, if need be, by public
constants.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import zipfile
import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from dpjax import checks
from dpjax.data import dataset, splitting

CONTENT, SLOT, GIVEN = "content", "slot", "identifiers"
IDENTIFIED_BY = (CONTENT, SLOT, GIVEN)
_Known = int | tuple[float, float]  # Classes, or a regression's range of targets.
_KEYS = (
    "inputs",
    "labels",
    "validation_inputs",
    "validation_labels",
    "test_inputs",
    "test_labels",
    "identifiers",
)


def from_arrays(
    inputs: np.ndarray,
    labels: np.ndarray,
    *,
    public_size: int | None = None,
    classes: int | None = None,
    target_range: Sequence[float] | None = None,
    validation: tuple[np.ndarray, np.ndarray] | None = None,
    test: tuple[np.ndarray, np.ndarray] | None = None,
    size_bound: int | None = None,
    validation_public_size: int | None = None,
    identifiers: np.ndarray | None = None,
    identified_by: str | None = None,
    name: str = "user arrays",
) -> dataset.Dataset:
    """Returns a data set from arrays in memory.

    Example:
      >>> import numpy as np
      >>> from dpjax import data
      >>> x, y = np.zeros((290, 3)), np.zeros(290)
      >>> data.from_arrays(x, y, public_size=300, classes=2).train
      Split(input_shape=(3,), public_size=300, size_bound=300)

    Args:
      inputs: (n, ...) numbers of any real type; become float32.
      labels: (n,) integers (or floats with integer values) in 0..classes-1; become int32. With
        `target_range` (n,) numbers, which become float32.
      public_size: a public, nominal number of training records. Not taken from the arrays, because
        n is private under add-or-remove-one; under replace-one n is public, so pass it.
      classes: number of classes, public, hence not taken from the labels either.
      target_range: for a regression, in the place of `classes`: the public lowest and highest value
        of a label, as in `tuning.regression`. Labels outside this range are kept.
      validation, test: optional (inputs, labels). The number of test records is taken as public.
      size_bound: a public upper bound on the number of records; `public_size` unless given.
      validation_public_size: like `public_size`, for `validation`; also its size bound.
      identifiers: (n,) unique integers or strings, kept with the records.
      identified_by: "identifiers", "content" or "slot": what decides which part a record falls
        into. By default the identifiers if there are any, else the content. Under replace-one pass
        "slot" (or identifiers); under add-or-remove one never "slot": see `dpjax.data.splitting`.
      name: of the data set.
    """
    checks.text("name", name)
    if classes is not None and target_range is not None:
        words = ": pass it for classification alone, and for a regression "
        raise checks.Refused(("classes", classes), words, ("target_range", ...), " alone")
    if public_size is None or (classes is None and target_range is None):
        missing = "public_size" if public_size is None else "classes"
        raise checks.Refused(
            *(f"{name}: pass ", (missing, ...), ", a number that is public knowledge; it is not "),
            "read off the arrays, because what they hold is private",
        )
    known: _Known = (
        checks.whole("classes", classes, 0)
        if target_range is None
        else dataset.ends("target_range", target_range)
    )
    # 0 is allowed here: `Split` says what is wrong with it.
    public_size = checks.whole("public_size", public_size, 0)
    if size_bound is not None:
        size_bound = checks.whole("size_bound", size_bound, 0)
    if validation_public_size is not None:
        validation_public_size = checks.whole("validation_public_size", validation_public_size)
    if isinstance(known, int) and known < 2:
        raise checks.Refused(("classes", known), ": pass the number of classes, at least 2")
    train_inputs = _inputs(inputs, f"{name}: inputs")
    train_labels = _labels(labels, len(train_inputs), known, f"{name}: labels")
    validation_split = None
    if validation is not None:
        if validation_public_size is None:
            words = ", the public number of validation records"
            raise checks.Refused(f"{name}: pass ", ("validation_public_size", ...), words)
        validation_split = _held_out(validation, known, validation_public_size, name, "validation")
    return dataset.Dataset(
        name=name,
        description=f"{name}, used as they are (no scaling)",
        classes=known if isinstance(known, int) else None,
        train=dataset.Split(
            inputs=train_inputs,
            labels=train_labels,
            public_size=public_size,
            size_bound=public_size if size_bound is None else size_bound,
            identifiers=_identifiers(train_inputs, train_labels, identifiers, identified_by, name),
            stable_under_replacement=(
                identified_by in (SLOT, GIVEN)
                or (identified_by is None and identifiers is not None)
            ),
            # A slot is a place in the array, and records move up when an earlier one is removed.
            stable_under_removal=identified_by != SLOT,
        ),
        test=None if test is None else _held_out(test, known, None, name, "test"),
        validation=validation_split,
        target_range=known if isinstance(known, tuple) else None,
    )


def load_arrays(
    path: str | os.PathLike[str],
    *,
    public_size: int | None,
    classes: int | None = None,
    target_range: Sequence[float] | None = None,
    size_bound: int | None = None,
    validation_public_size: int | None = None,
    identified_by: str | None = None,
) -> dataset.Dataset:
    """Returns a data set from an `.npz` file, with the keys listed at the top of this module.

    The arguments are those of `from_arrays`.

    Example:
      >>> import numpy as np
      >>> from dpjax import data
      >>> np.savez("mine.npz", inputs=np.zeros((290, 3)), labels=np.zeros(290))
      >>> data.load_arrays("mine.npz", public_size=300, classes=2).train
      Split(input_shape=(3,), public_size=300, size_bound=300)

    Raises:
      FileNotFoundError: if there is no such file.
    """
    path = pathlib.Path(checks.path("path", path)).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: pass the path of an .npz file")
    with _readable(path), np.load(path, allow_pickle=False) as archive:
        names = list(archive.files)
    # Names are checked before contents are unpacked, which may be huge.
    if not {"inputs", "labels"} <= set(names) <= set(_KEYS) or len(set(names)) < len(names):
        raise ValueError(
            f"{path} holds {sorted(names)[:20]}: pass inputs and labels, and of the others only "
            f"{', '.join(_KEYS[2:])}, each once"
        )
    with _readable(path), np.load(path, allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in names}
    held_out = {}
    for role in ("validation", "test"):
        present = [key for key in (f"{role}_inputs", f"{role}_labels") if key in arrays]
        if len(present) == 1:
            raise ValueError(f"{path} holds {present[0]} alone: pass {role} inputs and labels")
        if present:
            held_out[role] = tuple(arrays[key] for key in present)
    return from_arrays(
        arrays["inputs"],
        arrays["labels"],
        public_size=public_size,
        classes=classes,
        target_range=target_range,
        validation=held_out.get("validation"),
        test=held_out.get("test"),
        size_bound=size_bound,
        validation_public_size=validation_public_size,
        identifiers=arrays.get("identifiers"),
        identified_by=identified_by,
        name=str(path),
    )


@contextlib.contextmanager
def _readable(path: pathlib.Path) -> Iterator[None]:
    """Turns any error in reading an archive into one line that says what to pass."""
    try:
        yield
    except MemoryError:
        raise ValueError(f"{path} does not fit in memory: pass fewer or smaller records") from None
    except (
        AttributeError, EOFError, NotImplementedError, OSError, RuntimeError, TypeError, ValueError,
        zipfile.BadZipFile, zlib.error,
    ) as error:  # fmt: skip
        # NumPy's own message would advise a setting that is unsafe (allow_pickle).
        why = getattr(error, "strerror", None)
        raise ValueError(
            f"{path} is not an .npz file of plain arrays{f' ({why})' if why else ''}: pass one "
            "that np.savez wrote, of numbers and texts"
        ) from error


def _held_out(
    pair: tuple[np.ndarray, np.ndarray],
    known: _Known,
    public_size: int | None,
    name: str,
    role: str,
) -> dataset.Split:
    """Returns the validation or test part; if `public_size` is None, its true size is public."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        # The type, not the value, which may hold records.
        raise ValueError(
            f"{name}: {role} is a {type(pair).__name__}: pass a pair, ({role} inputs, {role} "
            "labels)"
        )
    inputs = _inputs(pair[0], f"{name}: {role} inputs")
    return dataset.Split(
        inputs=inputs,
        labels=_labels(pair[1], len(inputs), known, f"{name}: {role} labels"),
        public_size=len(inputs) if public_size is None else public_size,
        size_bound=len(inputs) if public_size is None else public_size,
        identifiers=splitting.slot_identifiers(len(inputs)),
        # This part is never divided, so its identifiers move no record.
        stable_under_replacement=True,
        stable_under_removal=True,
    )


def _inputs(values: np.ndarray, what: str) -> np.ndarray:
    """Returns inputs as finite float32 (n, ...); refuses others."""
    values = checks.plain_array(what, values)
    if values.ndim < 2 or values.dtype.kind not in "fiub":
        raise ValueError(
            f"{what} are {values.dtype} of shape {values.shape}: pass real numbers of shape "
            "(records, ...), one row per record"
        )
    if not values.size:
        raise ValueError(f"{what} have shape {values.shape}: pass one record and feature or more")
    with np.errstate(over="ignore"):  # A number beyond float32 becomes infinite, refused below.
        converted = values.astype(np.float32)
    if not np.isfinite(converted).all():
        raise ValueError(f"{what} hold NaN or infinite numbers: pass finite float32 values")
    return converted


def _labels(values: np.ndarray, count: int, classes: _Known, what: str) -> np.ndarray:
    """Returns labels (count,) as int32 in 0..classes-1, or as finite float32; refuses others."""
    values = checks.plain_array(what, values)
    if values.shape != (count,):
        raise ValueError(f"{what} have shape {values.shape}: pass one per record, ({count},)")
    if not isinstance(classes, int):
        numbers = values if values.dtype.kind in "fiub" else np.full(count, np.nan)
        with np.errstate(over="ignore"):
            targets = numbers.astype(np.float32)
        if not np.isfinite(targets).all():
            raise ValueError(f"{what} are not all finite float32 numbers: pass targets that are")
        return targets
    if values.dtype.kind not in "fiub":
        raise ValueError(f"{what} are {values.dtype}: pass integers in 0..{classes - 1}")
    # NaN fails the comparisons below, so it needs no test of its own.
    if not ((values >= 0) & (values < classes) & (values == np.floor(values))).all():
        raise ValueError(f"{what} are not all in 0..{classes - 1}: pass integers in that range")
    return values.astype(np.int32)


def _identifiers(
    inputs: np.ndarray,
    labels: np.ndarray,
    given: np.ndarray | None,
    identified_by: str | None,
    name: str,
) -> np.ndarray:
    """Returns the identifiers (n,): by content, by slot, or as given, which must be unique."""
    if identified_by is None:
        identified_by = CONTENT if given is None else GIVEN
    if identified_by == CONTENT:
        return splitting.content_identifiers(inputs, labels)
    if identified_by == SLOT:
        return splitting.slot_identifiers(len(inputs))
    if identified_by != GIVEN or given is None:
        raise ValueError(
            f"{name}: identified_by={identified_by!r}: pass one of {', '.join(IDENTIFIED_BY)} "
            "(the last needs identifiers)"
        )
    given = checks.plain_array(f"{name}: identifiers", given)
    if given.shape != (len(inputs),) or given.dtype.kind not in "iuUS":
        raise ValueError(
            f"{name}: identifiers are {given.dtype} of shape {given.shape}: pass one integer or "
            "string per record"
        )
    if len(np.unique(given)) != len(given):
        raise ValueError(f"{name}: identifiers repeat: pass a unique one per record")
    if given.dtype.kind in "iu":
        return given.astype(np.int64)
    return hashed(given)


def hashed(given: np.ndarray) -> np.ndarray:
    """Returns a hash of 16 bytes for each text, (n,) void, which no other text influences."""
    texts = [text if isinstance(text, bytes) else text.encode() for text in given.tolist()]
    digests = [hashlib.blake2b(text, digest_size=16).digest() for text in texts]
    return np.frombuffer(b"".join(digests), dtype="V16")
