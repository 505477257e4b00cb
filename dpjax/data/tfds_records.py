"""Any data set that TFDS prepared on disk, `tfds:NAME`, read without TensorFlow or the network.

Images are divided by 255, texts become hashed words, other numbers stay as they are.
"""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpjax import checks
from dpjax.data import dataset, image_folder, text, user_arrays
from dpjax.data.published_files import DataNotFoundError

TFDS = "tfds:"
_CATALOGUE, _ANYBODYS = "tensorflow_datasets.", "tensorflow_datasets.core."
"""Modules of TFDS's builders, and of those among them that read anybody's files."""


def load_tfds(
    name: str,
    data_dir: str | os.PathLike[str],
    *,
    public_size: int | None = None,
    size_bound: int | None = None,
    classes: int | None = None,
    target_range: Sequence[float] | None = None,
    train_split: str = "train",
    test_split: str | None = None,
    input_feature: str | None = None,
    label_feature: str | None = None,
    image_size: Sequence[int] | None = None,
    slots: int = 1024,
    identified_by: str | None = None,
) -> dataset.Dataset:
    """Returns a data set that TFDS prepared in a folder as array_record.

    Args:
      name: TFDS's name, perhaps with a configuration and a version, as in "mnist:3.0.1".
      data_dir: the folder where TFDS prepared it.
      public_size: a public, nominal number of training records; by default the published number, if
        the data set is in TFDS's catalogue.
      size_bound: a public upper bound on the number of records; `public_size` unless given.
      classes: number of classes, if the label's feature does not state it.
      target_range: for a regression, as in `from_arrays`.
      train_split: a split of TFDS to train on, such as "train" or "train[:80%]".
      test_split: likewise for testing; "test" if there is one.
      input_feature, label_feature: names of features; by default TFDS's supervised keys.
      image_size: the height and width that images are resized to; needed if their sizes differ.
      slots: public number of slots that the words of a text are hashed into.
      identified_by: as in `from_arrays`.

    Raises:
      DataNotFoundError: if it is not prepared there; the message says how to prepare it.
    """
    builder = _prepared(name, os.fspath(data_dir))
    keys = _keys(builder.info, input_feature, label_feature)
    given = image_size, text.checked_size("slots", slots)
    if test_split is None and "test" in builder.info.splits:
        test_split = "test"
    inputs, labels = _read(builder, train_split, keys, *given)
    module = builder.info.as_proto.module_name
    if public_size is None and module.startswith(_CATALOGUE) and not module.startswith(_ANYBODYS):
        public_size = len(inputs)  # Published.
    label = builder.info.features[keys[1]]
    names = getattr(label, "names", None)
    if classes is None and target_range is None:
        classes = getattr(label, "num_classes", None)
    made = user_arrays.from_arrays(
        inputs,
        labels,
        public_size=public_size,
        classes=classes,
        target_range=target_range,
        size_bound=size_bound,
        test=None if test_split is None else _read(builder, test_split, keys, *given),
        identified_by=identified_by,
        name=f"{TFDS}{name}",
    )
    fits = names is not None and made.classes == len(names)
    return dataclasses.replace(
        made,
        description=f"{name} as TFDS prepared it, {train_split}: {keys[0]} -> {keys[1]}",
        class_names=tuple(names or ()) if fits else None,
    )


def _prepared(name: str, data_dir: str) -> Any:
    """Returns the builder of a prepared data set; refuses one that is not, or in another format."""
    import tensorflow_datasets as tfds  # Takes seconds.

    folder = os.path.abspath(os.path.expanduser(data_dir))
    prepare = (
        f'prepare it by `python -c \'import tensorflow_datasets as tfds; tfds.builder("{name}", '
        f'data_dir="{folder}", file_format="array_record").download_and_prepare()\'` (some data '
        "sets need TensorFlow for that alone), or pass the data_dir where it is"
    )
    try:
        # `tfds.builder` would ask TFDS's bucket for data that is missing here.
        builder = tfds.core.read_only_builder.builder_from_files(name, data_dir=folder)
    except tfds.core.registered.DatasetNotFoundError:
        raise DataNotFoundError(f"{TFDS}{name} is not prepared in {folder}: {prepare}") from None
    except ValueError:
        raise ValueError(f"{TFDS}{name} is no name of TFDS: pass one such as tfds:mnist") from None
    if tfds.core.FileFormat.ARRAY_RECORD not in builder.info.available_file_formats():
        raise DataNotFoundError(
            f"{TFDS}{name} is prepared in {folder} in a format that only TensorFlow reads: remove "
            f"that folder or take another data_dir, and {prepare}"
        )
    return builder


def _keys(info: Any, *given: str | None) -> tuple[str, str]:
    """Returns the names of the input's and the label's feature."""
    usual = info.supervised_keys or (None, None)
    keys = [str(mine or its) for mine, its in zip(given, usual)]
    for argument, key in zip(("input_feature", "label_feature"), keys):
        if key not in info.features:
            names = ", ".join(info.features)
            raise checks.Refused("pass ", (argument, ...), f", the name of one of {names}")
    return keys[0], keys[1]


def _read(
    builder: Any, split: str, keys: tuple[str, str], image_size: Any, slots: int
) -> tuple[np.ndarray, np.ndarray]:
    """Reads a split: inputs (n, ...) and labels (n,)."""
    import tensorflow_datasets as tfds

    features = builder.info.features
    feature, pictures = features[keys[0]], tfds.features.Image
    # Images are decoded below: TFDS's decoder needs another package, and decodes every feature.
    raw = {
        one: tfds.decode.SkipDecoding() for one in features if isinstance(features[one], pictures)
    }
    try:
        records = list(builder.as_data_source(split, decoders=raw or None))
    except ValueError:
        records = []
    if not records:
        names = ", ".join(builder.info.splits)
        raise ValueError(
            f"{split!r} is no split of {builder.name} with records: pass one of {names}"
        )
    found, labels = [one[keys[0]] for one in records], np.array([one[keys[1]] for one in records])
    if isinstance(feature, pictures) and feature.np_dtype == np.uint8:
        form, channels = feature.shape[:2], 1 if feature.shape[-1] == 1 else 3
        if image_size is not None or None in form:
            form, channels = image_folder.checked_form(image_size, channels)
        return image_folder.scaled(
            [image_folder.pixels(io.BytesIO(one), form, channels) for one in found]
        ), labels
    if isinstance(feature, tfds.features.Text):
        return text.hashed_words([one.decode() for one in found], slots), labels
    arrays = [np.ravel(one) if np.ndim(one) == 0 else np.asarray(one) for one in found]
    if len({one.shape for one in arrays}) > 1 or arrays[0].dtype.kind not in "fiub":
        raise ValueError(
            f"feature {keys[0]!r} of {builder.name} is neither an image, a text nor numbers of one "
            "shape: write its records as a .csv table with a schema, or pass another input_feature"
        )
    return np.stack(arrays), labels
