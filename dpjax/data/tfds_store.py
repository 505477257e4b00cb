"""What TFDS knows of a data set by its name: where its files are published, and what it prepared.

No file at hand goes through TFDS's records: they hold PNG images, which take a hundred times as
long to read as the published files. Data that TFDS prepared as array_record is read, without
TensorFlow, only where the published files are missing.

TFDS is imported inside the functions, for it takes seconds.
"""

from __future__ import annotations

import dataclasses
import io
import json
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from dpjax.data.published_files import PublishedFile

_FILE_FORMAT = "array_record"
_RECORDS_AT_ONCE = 1000  # One by one, reading takes three times as long.


def registered(name: str, files: Sequence[PublishedFile]) -> tuple[PublishedFile, ...]:
    """Returns the files with the addresses and sizes that TFDS registers for their checksums.

    A mirror moves with TFDS's versions; what is published under a checksum does not. A file that
    TFDS does not have keeps its own address.

    Args:
      name: of a TFDS data set.
      files: its published files.
    """
    import tensorflow_datasets as tfds

    known = {
        info.checksum: {"address": address, "size": int(info.size)}
        for address, info in (tfds.builder_cls(name).url_infos or {}).items()
    }
    return tuple(dataclasses.replace(file, **known.get(file.sha256, {})) for file in files)


def prepared(name: str, version: str, folder: pathlib.Path) -> pathlib.Path | None:
    """Returns where TFDS prepared a data set completely, in the format read here, or None.

    In tfrecord, TFDS's default, reading needs TensorFlow: such data is left alone.
    """
    place = folder / name / version
    statement = place / "dataset_info.json"
    if not statement.is_file():
        return None
    stated = json.loads(statement.read_text(encoding="utf-8"))
    return place if stated.get("fileFormat", "tfrecord") == _FILE_FORMAT else None


def read_images(place: pathlib.Path, counts: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Returns `<role>_inputs` (n, height, width, channels) and `<role>_labels` (n,), uint8.

    They come in the published order: TFDS stores records sorted by a hash of their key, and the
    keys of MNIST and CIFAR-10 are positions in the published file, so hashing 0..n-1 again gives
    the order back.

    Args:
      place: from `prepared`.
      counts: published number of records by role.

    Raises:
      ValueError: if the prepared data holds another number of records.
    """
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import hashing
    from tensorflow_datasets.proto import tf_example_pb2

    builder = tfds.builder_from_directory(str(place))
    arrays = {}
    for role, count in counts.items():
        # Parsing the records here is several times faster than TFDS's general way.
        source = builder.as_data_source(
            split=role, deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES
        )
        if len(source) != count:
            raise ValueError(
                f"{place} holds {len(source)} {role} records, not {count}: delete that folder and "
                "load again"
            )
        hasher = hashing.Hasher(role)
        order = np.argsort(np.array([hasher.hash_key(key) for key in range(count)], "object"))
        inputs = np.empty((count, *builder.info.features["image"].shape), np.uint8)
        labels = np.empty(count, np.uint8)
        for start in range(0, count, _RECORDS_AT_ONCE):
            places = range(start, min(start + _RECORDS_AT_ONCE, count))
            for record_place, record in zip(places, source.__getitems__(list(places))):
                values = tf_example_pb2.Example.FromString(record).features.feature
                inputs[order[record_place]] = _pixels(values["image"].bytes_list.value[0])
                labels[order[record_place]] = values["label"].int64_list.value[0]
        arrays[f"{role}_inputs"], arrays[f"{role}_labels"] = inputs, labels
    return arrays


def _pixels(encoded: bytes) -> np.ndarray:
    """Returns (height, width, channels) uint8 from PNG bytes."""
    from PIL import Image

    with Image.open(io.BytesIO(encoded), formats=("PNG",)) as image:
        pixels = np.asarray(image)
    return pixels if pixels.ndim == 3 else pixels[..., np.newaxis]
