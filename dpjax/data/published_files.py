"""Finds the published files of a data set on disk, or downloads them, and verifies them.

Every file is recognised by its SHA-256 alone. Files placed by hand are looked for before the
network is used; without a network a download gives up within seconds.
TFDS is the last resort: it knows where a data set's files are published now, and it may have
prepared the data. The PNG images in its records take a hundred times as long to read as the
published files. So its records are read only if these files are missing, and only in array_record,
which needs no TensorFlow. TFDS is imported inside the functions, since it takes seconds.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import io
import json
import os
import pathlib
import queue
import threading
from collections.abc import Mapping, Sequence

import numpy as np
from absl import logging

from dpjax.files import replacing

NETWORK_SECONDS = 8.0
"""How long a server may take to answer, or to send the next bytes, before a download gives up."""

_BLOCK = 1 << 20
_EQUIVALENT_MAY_BE_LARGER = 1 << 20
"""Bytes by which a known copy may exceed the published file (another program packed it)."""


class DataNotFoundError(FileNotFoundError, ValueError):
    """Data is neither at hand nor reachable; the message says what to place or install.

    Notes (`__notes__`, shown with a traceback) name each file's address and checksum.

    """


class DataCorruptedError(ValueError):
    """A file's checksum is not the published one."""


@dataclasses.dataclass(frozen=True)
class PublishedFile:
    """A published file: its address, checksum and size.

    Attributes:
      name: its file name.
      address: where it is published.
      sha256: lower-case hexadecimal.
      size: in bytes.
      equivalent: SHA-256 of known copies whose bytes differ and whose records do not.
    """

    name: str
    address: str
    sha256: str
    size: int
    equivalent: tuple[str, ...] = ()

    @property
    def accepted(self) -> tuple[str, ...]:
        """Returns every checksum that this file may have."""
        return (self.sha256, *self.equivalent)


def sha256_of(path: pathlib.Path) -> str:
    """Returns the SHA-256 of a file's content in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def manual_folder(data_dir: pathlib.Path, name: str) -> pathlib.Path:
    """Returns the data set's own folder in which a user is asked to place its files."""
    return data_dir / "downloads" / "manual" / name


def find(
    name: str, files: Sequence[PublishedFile], data_dirs: Sequence[pathlib.Path]
) -> pathlib.Path | None:
    """Returns the first folder that holds all files, their checksums verified, or None.

    Below each of `data_dirs` it looks into `downloads/manual/<name>/`, `<name>/`,
    `downloads/<name>/` (where `fetch` puts them), and `downloads/manual/` itself, as TFDS has it.

    Raises:
      DataCorruptedError: if a folder has files of all the names, but one has a wrong checksum. Only
        the shared `downloads/manual/` is skipped instead: another data set may have files of the
        same names there.
    """
    for data_dir in data_dirs:
        shared = data_dir / "downloads" / "manual"
        own = [manual_folder(data_dir, name), data_dir / name, data_dir / "downloads" / name]
        for folder in [*own, shared]:
            paths = [folder / file.name for file in files]
            if not all(path.is_file() for path in paths):
                continue
            wrong = [
                (file, path, actual)
                for file, path in zip(files, paths)
                if (actual := sha256_of(path)) not in file.accepted
            ]
            if not wrong:
                return folder
            if folder != shared:
                file, path, actual = wrong[0]
                raise DataCorruptedError(
                    f"{path} is not the published file: its sha256 is {actual}, expected "
                    f"{file.sha256}; delete it and place the file from {file.address} there"
                )
    return None


def fetch(name: str, files: Sequence[PublishedFile], data_dir: pathlib.Path) -> pathlib.Path:
    """Downloads the missing files into `<data_dir>/downloads/<name>/` and returns that folder.

    Raises:
      OSError: if a server does not answer within `NETWORK_SECONDS`, or stops sending.
      DataCorruptedError: if it sends something else; nothing is kept then.
    """
    import http.client

    folder = data_dir / "downloads" / name
    for file in files:
        path = folder / file.name
        if path.is_file() and sha256_of(path) in file.accepted:
            continue
        logging.info("downloading %s (%.1f MB)", file.address, file.size / 1e6)
        response = _open(file.address)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with replacing(path) as partial:
                with response, open(partial, "wb") as stream:
                    _copy_at_most(response, stream, file)
                actual = sha256_of(pathlib.Path(partial))
                if actual not in file.accepted:
                    raise DataCorruptedError(
                        f"{file.address} sent a file of sha256 {actual}, expected {file.sha256}: "
                        f"place the published file in {folder} yourself"
                    )
        except http.client.HTTPException as error:
            raise OSError(f"{file.address} stopped sending: {error!r}") from error
    return folder


def _copy_at_most(response, stream, file: PublishedFile) -> None:
    """Copies a server's response, up to the largest size that the published file may have.

    Raises:
      DataCorruptedError: if it sends more.
    """
    left = file.size + _EQUIVALENT_MAY_BE_LARGER
    while block := response.read(min(_BLOCK, left + 1)):
        left -= len(block)
        if left < 0:
            raise DataCorruptedError(
                f"{file.address} sends more than the {file.size} bytes of the published file: "
                "place the published file on this machine yourself"
            )
        stream.write(block)


def not_found(
    name: str, files: Sequence[PublishedFile], data_dir: pathlib.Path, why: str
) -> DataNotFoundError:
    """Returns the error that says which files to place where; addresses are in its notes."""
    error = DataNotFoundError(
        f"data set {name!r} was not found and {why}: place {', '.join(f.name for f in files)} in "
        f"{manual_folder(data_dir, name)}, or pass as data_dir a folder that has them in "
        f"{name}{os.sep}"
    )
    for file in files:
        error.add_note(f"{file.name}  sha256 {file.sha256}  from {file.address}")
    return error


def _open(address: str):
    """Opens an address within a deadline that also covers looking up the server's name.

    The look-up may block for much longer than any socket time-out, so the call runs in its own
    thread, which is left behind when the deadline passes.
    """
    import urllib.request  # Takes a tenth of a second, and most data needs no download.

    answers: queue.SimpleQueue = queue.SimpleQueue()

    def ask():
        try:
            answers.put(urllib.request.urlopen(address, timeout=NETWORK_SECONDS))
        except Exception as error:  # Passed on to the caller's thread, whatever it is.
            answers.put(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=NETWORK_SECONDS + 1.0)
    except queue.Empty:
        raise TimeoutError(f"{address} did not answer in {NETWORK_SECONDS:.0f} s") from None
    if isinstance(answer, OSError):
        raise answer
    if isinstance(answer, Exception):
        raise OSError(f"{address}: {answer}") from answer
    return answer


_FILE_FORMAT = "array_record"
_RECORDS_AT_ONCE = 1000  # One by one, reading takes three times as long.


def tfds_addresses(name: str, files: Sequence[PublishedFile]) -> tuple[PublishedFile, ...]:
    """Returns the files with the addresses and sizes that TFDS registers for their checksums.

    If a mirror moves, a later version of TFDS has its new address; the checksum stays. A file that
    TFDS does not list keeps its address.

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


def prepared_by_tfds(name: str, version: str, folder: pathlib.Path) -> pathlib.Path | None:
    """Returns the folder of a data set that TFDS prepared in the format read here, or None.

    Data in tfrecord, TFDS's default, is ignored, because reading it needs TensorFlow. All data is
    ignored where array_record has no wheels (Windows, Macs with an Intel processor).
    """
    if importlib.util.find_spec("array_record") is None:
        return None
    place = folder / name / version
    statement = place / "dataset_info.json"
    if not statement.is_file():
        return None
    stated = json.loads(statement.read_text(encoding="utf-8"))
    return place if stated.get("fileFormat", "tfrecord") == _FILE_FORMAT else None


def read_tfds_images(place: pathlib.Path, counts: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Returns `<role>_inputs` (n, height, width, channels) and `<role>_labels` (n,), uint8.

    They come in the published order: TFDS stores records sorted by a hash of their key, and the
    keys of MNIST and CIFAR-10 are positions in the published file, so hashing 0..n-1 again gives
    the order back.

    Args:
      place: from `prepared_by_tfds`.
      counts: published number of records by role.
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
