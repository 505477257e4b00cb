"""Preparing and reading TFDS data sets (array_record) without TensorFlow.

The stock builders need TensorFlow only to read the published archives; ours are subclasses that
read them with the standard library and NumPy, and write the same data set under the same name and
version, which any TFDS user can open afterwards (`tfds.data_source`).

TFDS is imported inside the functions: it is heavy, and most loads are served by the cache.
"""

from __future__ import annotations

import contextlib
import io
import json
import pathlib
import sys
from collections.abc import Callable, Mapping

import numpy as np
from absl import logging

_FILE_FORMAT = "array_record"
_RECORDS_AT_ONCE = 1000  # One by one, reading takes three times as long.


class LocalBuilder:
    """Mixin, named first among the bases: a builder that reads no description from TFDS's bucket.

    TFDS asks its public bucket whenever nothing is prepared yet, which is switched off by default,
    and leaves an empty folder in the system's temporary files each time.
    """

    @property
    def info(self):
        information = super().info
        information.initialize_from_bucket = lambda: None
        return information


def open_builder(make_class: Callable[[], type], folder: pathlib.Path):
    """Returns a builder whose data lives below `folder`.

    Data already prepared there in a format that needs TensorFlow to be read (tfrecord, TFDS's
    default) is left alone; ours then goes into `<folder>/array_record`.

    Args:
      make_class: returns the builder class (a function, so that TFDS is imported late), a
        `LocalBuilder`.
      folder: the data directory.
    """
    builder = make_class()(data_dir=str(folder))
    information = pathlib.Path(builder.data_path) / "dataset_info.json"
    if information.is_file():
        stated = json.loads(information.read_text(encoding="utf-8"))
        if stated.get("fileFormat", "tfrecord") != _FILE_FORMAT:
            builder = make_class()(data_dir=str(folder / _FILE_FORMAT))
    return builder


def is_prepared(builder) -> bool:
    """Whether the builder's folder holds a complete prepared data set."""
    return (pathlib.Path(builder.data_path) / "dataset_info.json").is_file()


def prepare(builder, published: pathlib.Path) -> None:
    """Writes the data set from its published files.

    TFDS writes into a temporary folder and renames it, so an interruption leaves nothing half done.

    Args:
      builder: from `open_builder`.
      published: the folder that holds the published files.
    """
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.utils import tqdm_utils

    configuration = tfds.download.DownloadConfig(
        manual_dir=str(published), try_download_gcs=False, force_checksums_validation=True
    )
    logging.info("preparing %s in %s (once; under a minute)", builder.name, builder.data_path)
    bars_were_on = getattr(tqdm_utils, "_active", True)
    tfds.display_progress_bar(bars_were_on and sys.stderr.isatty())
    try:
        with contextlib.redirect_stdout(sys.stderr):  # What a program prints is its own.
            builder.download_and_prepare(file_format=_FILE_FORMAT, download_config=configuration)
    finally:
        tfds.display_progress_bar(bars_were_on)


def read(
    builder, split: str, columns: Mapping[str, np.dtype], published_count: int
) -> dict[str, np.ndarray]:
    """Returns whole columns of a split, in the published order.

    TFDS stores records sorted by a hash of their key, and our keys are positions in the published
    file, so hashing 0..n-1 again gives the order back.

    Args:
      builder: from `open_builder`, prepared.
      split: "train" or "test".
      columns: feature name -> type, for features that are images (they arrive as (n, height,
        width, channels)), integers or classes (n,).
      published_count: number of records in the published split.

    Raises:
      ValueError: if the prepared data holds another number of records.
    """
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import hashing
    from tensorflow_datasets.proto import tf_example_pb2

    # Parsing the records here is several times faster than TFDS's general way.
    source = builder.as_data_source(
        split=split, deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES
    )
    if len(source) != published_count:
        raise ValueError(
            f"{builder.data_path} holds {len(source)} {split} records, not {published_count}: "
            "delete that folder to have it prepared again"
        )
    hasher = hashing.Hasher(split)
    order = np.argsort(np.array([hasher.hash_key(key) for key in range(published_count)], "object"))
    features = builder.info.features
    images = {name for name in columns if isinstance(features[name], tfds.features.Image)}
    stored = {
        name: np.empty((published_count, *(features[name].shape or ())), dtype)
        for name, dtype in columns.items()
    }
    for start in range(0, published_count, _RECORDS_AT_ONCE):
        places = range(start, min(start + _RECORDS_AT_ONCE, published_count))
        for place, record in zip(places, source.__getitems__(list(places))):
            values = tf_example_pb2.Example.FromString(record).features.feature
            for name, column in stored.items():
                if name in images:
                    column[order[place]] = _pixels(values[name].bytes_list.value[0])
                else:
                    column[order[place]] = values[name].int64_list.value[0]
    return stored


def _pixels(encoded: bytes) -> np.ndarray:
    """Returns (height, width, channels) uint8 from PNG bytes."""
    from PIL import Image

    with Image.open(io.BytesIO(encoded), formats=("PNG",)) as image:
        pixels = np.asarray(image)
    return pixels if pixels.ndim == 3 else pixels[..., np.newaxis]
