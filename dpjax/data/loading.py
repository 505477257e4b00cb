"""`load`: from a name to a `Dataset`, through cache, prepared data, files at hand, network."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import stat
from collections.abc import Callable, Sequence

import numpy as np

from dpjax import checks
from dpjax.data import (
    adult,
    cache,
    cifar10_subset,
    dataset,
    digits,
    image_builders,
    images,
    libsvm,
    published_files,
    tfds_store,
    user_arrays,
)

DEFAULT_DATA_DIR = pathlib.Path("~/tensorflow_datasets")
"""Where TFDS keeps its data unless told otherwise."""

_Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class _Source:
    """How one data set is made.

    Attributes:
      stored_as: the name its files and prepared data go by (a1a is stored as a9a).
      version: of the prepared data.
      files: the published files.
      reading: names the way arrays are made; change it when that changes, and caches are remade.
      make_dataset: from arrays to a `Dataset`.
      read_files: from the folder of the published files to arrays; None where TFDS stands between.
      make_builder: returns the TFDS builder class, else None.
      read_builder: from a prepared builder to arrays.
    """

    stored_as: str
    version: str
    files: Sequence[published_files.PublishedFile]
    reading: str
    make_dataset: Callable[[_Arrays], dataset.Dataset]
    read_files: Callable[[pathlib.Path], _Arrays] | None = None
    make_builder: Callable[[], type] | None = None
    read_builder: Callable[[object], _Arrays] | None = None


def _image_source(described: images.ImageSet, make_builder: Callable[[], type]) -> _Source:
    def read(builder) -> _Arrays:
        arrays = {}
        for role, count in (("train", described.train_count), ("test", described.test_count)):
            columns = {"image": np.dtype(np.uint8), "label": np.dtype(np.uint8)}
            stored = tfds_store.read(builder, role, columns, count)
            arrays[f"{role}_images"] = stored["image"]
            arrays[f"{role}_labels"] = stored["label"]
        return arrays

    return _Source(
        stored_as=described.name,
        version=described.version,
        files=described.files,
        reading="images 1",
        make_dataset=lambda arrays: images.as_dataset(described, arrays),
        make_builder=make_builder,
        read_builder=read,
    )


def _read_adult(builder) -> _Arrays:
    columns = {name: np.dtype(np.int32) for name in (*adult.COLUMNS, "label")}
    return {
        role: np.stack(list(tfds_store.read(builder, role, columns, count).values()), axis=1)
        for role, count in adult.COUNTS.items()
    }


def _libsvm_source(make_dataset: Callable[[_Arrays], dataset.Dataset]) -> _Source:
    return _Source(
        stored_as="a9a",
        version="1.0.0",
        files=libsvm.FILES,
        reading="libsvm 1",
        make_dataset=make_dataset,
        read_files=libsvm.read_both,
    )


_SOURCES = {
    "mnist": _image_source(images.MNIST, image_builders.mnist_builder),
    "fashion_mnist": _image_source(images.FASHION_MNIST, image_builders.fashion_mnist_builder),
    "cifar10": _image_source(images.CIFAR10, image_builders.cifar10_builder),
    "cifar10_subset": _Source(
        stored_as="cifar10_subset",
        version="1.0.0",
        files=cifar10_subset.FILES,
        reading="subset 1",
        make_dataset=cifar10_subset.as_dataset,
        read_files=cifar10_subset.read,
    ),
    "adult": _Source(
        stored_as="adult",
        version="1.0.0",
        files=adult.FILES,
        reading="adult 1",
        make_dataset=adult.as_dataset,
        make_builder=adult.builder,
        read_builder=_read_adult,
    ),
    "a9a": _libsvm_source(libsvm.a9a_dataset),
    "a1a": _libsvm_source(libsvm.a1a_dataset),
}

NAMES = ("digits", *_SOURCES)
"""Every name `load` knows; a path that ends in .npz is accepted too."""


def load(
    name: str = "digits",
    data_dir: str | os.PathLike[str] | None = None,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
    public_size: int | None = None,
    classes: int | None = None,
    size_bound: int | None = None,
    validation_public_size: int | None = None,
    identified_by: str | None = None,
) -> dataset.Dataset:
    """Returns a data set by name.

    The first load prepares the data (tens of seconds for the image sets) and leaves a `.npy` cache
    beside it; later loads take a tenth of a second. `digits` needs neither files nor network.

    Args:
      name: one of `NAMES`, or the path of an `.npz` file (see `dpjax.data.user_arrays`).
      data_dir: where prepared data and published files are looked for, and where prepared data
        goes; `~/tensorflow_datasets`, as for TFDS, unless given. Published files may lie in
        `<data_dir>/downloads/manual/<name>/` or `<data_dir>/<name>/`.
      cache_dir: where prepared data, cache and downloads go instead; by default `data_dir`, or
        `~/tensorflow_datasets` if `data_dir` is a folder without write permission.
      download: whether missing files may be downloaded.
      public_size, classes, size_bound, validation_public_size, identified_by: for `.npz` files
        only, see `user_arrays.from_arrays`. Built-in sets carry theirs.

    Raises:
      ValueError: for an unknown name, or an argument that does not belong to the data set.
      published_files.DataNotFoundError: unprepared, files not at hand and not reachable; the
        message names addresses, file names, checksums and the folder to put them in.
      published_files.DataCorruptedError: a file at hand, or a download, has a wrong checksum.
    """
    own = {
        "public_size": public_size,
        "classes": classes,
        "size_bound": size_bound,
        "validation_public_size": validation_public_size,
        "identified_by": identified_by,
    }
    checks.path("name", name)
    for argument, folder in (("data_dir", data_dir), ("cache_dir", cache_dir)):
        if folder is not None:
            checks.path(argument, folder)
    checks.flag("download", download)
    if str(name).endswith(".npz"):
        return user_arrays.load_arrays(name, **own)
    if name not in NAMES:
        raise ValueError(
            f"unknown data set {name!r}: pass one of {', '.join(NAMES)}, or the path of an .npz "
            "file"
        )
    given = [argument for argument, value in own.items() if value is not None]
    if given:
        raise ValueError(f"{given[0]}= is for .npz files: {name!r} has its own, leave it out")
    if name == "digits":
        return digits.load()
    source = _SOURCES[name]
    data_folder = pathlib.Path(data_dir or DEFAULT_DATA_DIR).expanduser()
    if cache_dir is not None:
        cache_folder = pathlib.Path(cache_dir).expanduser()
    else:
        cache_folder = data_folder
        if _is_read_only(data_folder):
            cache_folder = DEFAULT_DATA_DIR.expanduser()
    return source.make_dataset(_arrays(source, data_folder, cache_folder, download))


def _arrays(
    source: _Source, data_folder: pathlib.Path, cache_folder: pathlib.Path, download: bool
) -> _Arrays:
    """Returns the arrays from the cheapest place that has them, and caches them."""
    fingerprint = published_files.fingerprint(source.files, source.reading)
    folders = list(dict.fromkeys((data_folder, cache_folder)))
    for folder in folders:
        arrays = cache.read(folder / source.stored_as / source.version, fingerprint)
        if arrays is not None:
            return arrays
    if source.make_builder is None:
        published = _published(source, folders, cache_folder, download)
        arrays = source.read_files(published)
    else:
        for folder in folders:
            builder = tfds_store.open_builder(source.make_builder, folder)
            if tfds_store.is_prepared(builder):
                break
        else:
            published = _published(source, folders, cache_folder, download)
            tfds_store.prepare(builder, published)  # The last builder is that of cache_folder.
        arrays = source.read_builder(builder)
    cache.write(cache_folder / source.stored_as / source.version, fingerprint, arrays)
    return arrays


def _published(
    source: _Source, folders: list[pathlib.Path], cache_folder: pathlib.Path, download: bool
) -> pathlib.Path:
    """Returns a folder with all published files, found or downloaded."""
    name, files = source.stored_as, source.files
    found = published_files.find(name, files, folders)
    if found is not None:
        return found
    if not download:
        raise published_files.not_found(name, files, cache_folder, "download=False was passed")
    if not all(file.address.startswith("http") for file in files):
        raise published_files.not_found(name, files, cache_folder, "cannot be downloaded")
    try:
        return published_files.fetch(name, files, cache_folder)
    except OSError as error:
        why = f"could not be downloaded ({error})"
        raise published_files.not_found(name, files, cache_folder, why) from None


def _is_read_only(folder: pathlib.Path) -> bool:
    """Whether a folder exists and may not be written to, by its permissions or this user's.

    An administrator may write anywhere; a folder that grants nobody writing is still left alone.
    """
    if not folder.is_dir():
        return False
    permits_writing = folder.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)
    return not permits_writing or not os.access(folder, os.W_OK)
