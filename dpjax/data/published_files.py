"""Finds the published files of a data set on disk, or downloads them, and verifies them.

Every file is recognised by its SHA-256 alone. Files placed by hand are looked for before the
network is used; without a network a download gives up within seconds. What TFDS prepared is read
under a name of its own, `tfds:NAME` (`dpjax.data.tfds_records`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
import queue
import threading
from collections.abc import Sequence

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
