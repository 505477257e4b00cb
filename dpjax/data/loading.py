"""`load` returns a data set by name, from files at hand or a download; or the user's own data."""

from __future__ import annotations

import inspect
import os
import pathlib
import stat
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dpjax import checks
from dpjax.data import (
    dataset,
    image_folder,
    published_files,
    source,
    sources,  # noqa: F401 - every file there registers its data set.
    tables,
    tfds_records,
    user_arrays,
)

_BY_KIND: dict[str, Callable[..., dataset.Dataset]] = {
    image_folder.FOLDER: image_folder.load_folder,
    tfds_records.TFDS: tfds_records.load_tfds,
}
"""How a name of your own data begins -> the function that loads it, by the rest of the name."""

DEFAULT_DATA_DIR = pathlib.Path("~/tensorflow_datasets")
"""The folder where TFDS keeps its data by default."""

NAMES = source.SOURCES.keys()
"""Every name `load` knows, those registered later included; a path that ends in .npz or .csv
is accepted too."""


def load(
    name: str = "digits",
    data_dir: str | os.PathLike[str] | None = None,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
    public_size: int | None = None,
    classes: int | None = None,
    target_range: Sequence[float] | None = None,
    size_bound: int | None = None,
    validation_public_size: int | None = None,
    identified_by: str | None = None,
    schema: str | os.PathLike[str] | None = None,
    test_table: str | os.PathLike[str] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dataset.Dataset:
    """Returns a data set by name.

    Published files are read as they are (MNIST in half a second). `digits` needs neither files nor
    network.

    Example:
      >>> from dpjax import data
      >>> data.load("digits").train
      Split(input_shape=(8, 8, 1), public_size=1438, size_bound=1438)

    Args:
      name: one of `NAMES`, or the path of an `.npz` file (see `dpjax.data.user_arrays`) or of a
        `.csv` table (see `dpjax.data.tables`); "folder:PATH", a folder of images with a subfolder
        per class; or "tfds:NAME", a data set that TFDS prepared in `data_dir`. To add a name of
        your own, see `dpjax.data.register`.
      data_dir: folder of published files, of data that TFDS prepared, and of downloads; by default
        TFDS's own, `~/tensorflow_datasets`. Published files may lie in
        `<data_dir>/downloads/manual/<name>/` or `<data_dir>/<name>/`.
      cache_dir: where downloads go instead; by default `data_dir`, or
        `~/tensorflow_datasets` if `data_dir` is a folder without write permission.
      download: whether missing files may be downloaded.
      public_size, classes, target_range, size_bound, validation_public_size, identified_by: for
        your own files only, see `user_arrays.from_arrays`. Published data sets have theirs.
      schema, test_table: for `.csv` tables only, see `tables.load_table`.
      settings: for a published data set, arguments of its `Source.encode`. For a folder:
        `image_size`, `channels`, `test_folder`. For TFDS: `train_split`, `test_split`,
        `input_feature`, `label_feature`, `image_size`, `slots`.

    Raises:
      published_files.DataNotFoundError: if files are neither at hand nor reachable: the message
        names them and the folder to put them in, its notes their addresses and checksums. Or if
        a package that holds the data is not installed: the message names the extra to install.
      published_files.DataCorruptedError: a file at hand, or a download, has a wrong checksum.
    """
    own: dict[str, Any] = {
        "public_size": public_size,
        "classes": classes,
        "target_range": target_range,
        "size_bound": size_bound,
        "validation_public_size": validation_public_size,
        "identified_by": identified_by,
    }
    checks.path("name", name)
    for argument, folder in (("data_dir", data_dir), ("cache_dir", cache_dir)):
        if folder is not None:
            checks.path(argument, folder)
    checks.flag("download", download)
    settings = {} if settings is None else settings
    checks.mapping("settings", settings, "from names to numbers or words")
    of_tables: dict[str, Any] = {"schema": schema, "test_table": test_table}
    # An argument that would be ignored is refused: without the public number that was passed, the
    # guarantee would not be the one asked for.
    for kind, load_kind in _BY_KIND.items():
        if str(name).startswith(kind):
            passed = {one: value for one, value in (own | of_tables).items() if value is not None}
            passed |= settings
            if kind == tfds_records.TFDS:
                passed["data_dir"] = data_dir or DEFAULT_DATA_DIR
            takes = list(inspect.signature(load_kind).parameters)[1:]
            for argument in passed:
                if argument not in takes:
                    names = ", ".join(one for one in takes if one != "data_dir")
                    raise ValueError(f"{argument}= is not for {name!r}: pass only {names}")
            return load_kind(str(name)[len(kind) :] or ".", **passed)
    if str(name).endswith((".npz", ".csv")) and settings:
        raise ValueError("settings= is for data sets with a name: leave it out for a file")
    if str(name).endswith(".csv"):
        for argument in ("classes", "target_range", "validation_public_size"):
            if own.pop(argument) is not None:
                raise ValueError(f"{argument}= is for .npz files: leave it out for a table")
        return tables.load_table(name, **own, **of_tables)
    for argument, value in of_tables.items():
        if value is not None:
            raise ValueError(f"{argument}= is for .csv tables: leave it out for {name!r}")
    if str(name).endswith(".npz"):
        return user_arrays.load_arrays(name, **own)
    if name not in NAMES and pathlib.PurePath(name).suffix:
        raise ValueError(
            f"{name!r} is not a known data set: pass the path of an .npz file (np.savez with "
            "inputs= and labels=) or a .csv table, folder:PATH, tfds:NAME, or one of "
            f"{', '.join(NAMES)}"
        )
    if name not in NAMES:
        raise ValueError(
            f"unknown data set {name!r}: pass one of {', '.join(NAMES)}, or the path of an .npz "
            "or .csv file, folder:PATH or tfds:NAME"
        )
    given = [argument for argument, value in own.items() if value is not None]
    if given:
        raise ValueError(f"{given[0]}= is for .npz files: {name!r} has its own, leave it out")
    known = source.SOURCES[name]
    known.check_settings(settings)
    data_folder = pathlib.Path(data_dir or DEFAULT_DATA_DIR).expanduser()
    return known.dataset(_arrays(known, data_folder, cache_dir, download), settings)


def _arrays(
    known: source.Source,
    data_folder: pathlib.Path,
    cache_dir: str | os.PathLike[str] | None,
    download: bool,
) -> source.Arrays:
    """Reads a published data set, from files at hand or else a download."""
    if not known.files:
        return known.read(data_folder)
    if cache_dir is not None:
        downloads = pathlib.Path(cache_dir).expanduser()
    elif _is_read_only(data_folder):
        downloads = DEFAULT_DATA_DIR.expanduser()
    else:
        downloads = data_folder
    folders = list(dict.fromkeys((data_folder, downloads)))
    published = published_files.find(known.folder, known.files, folders)
    return known.read(published or _fetched(known, downloads, download))


def _fetched(known: source.Source, folder: pathlib.Path, download: bool) -> pathlib.Path:
    """Downloads the published files and returns their folder."""
    name, files = known.folder, known.files
    if not download:
        raise published_files.not_found(name, files, folder, "download=False was passed")
    if not all(file.address.startswith("http") for file in files):
        raise published_files.not_found(name, files, folder, "cannot be downloaded")
    try:
        return published_files.fetch(name, files, folder)
    except OSError as error:
        why = f"could not be downloaded ({error})"
        raise published_files.not_found(name, files, folder, why) from None


def _is_read_only(folder: pathlib.Path) -> bool:
    """Returns whether a folder exists and may not be written to.

    A folder that nobody has permission to write to counts as read-only for an administrator too,
    who could write to it.
    """
    if not folder.is_dir():
        return False
    permits_writing = folder.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)
    return not permits_writing or not os.access(folder, os.W_OK)
