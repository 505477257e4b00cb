"""Published sets with few records: files placed by hand, their checksums made known."""

import dataclasses
import hashlib

import pytest

from dpjax.data import source


@pytest.fixture
def publish(tmp_path, monkeypatch):
    """Returns a function that gives a data set other files, and says below which folder."""

    def published(name, contents, place="downloads/manual/{}", **changes):
        known = source.SOURCES[name]
        folder = tmp_path / "data" / place.format(known.folder)
        folder.mkdir(parents=True)
        files = []
        for file in known.files:
            content = contents[file.name]
            (folder / file.name).write_bytes(content)
            sha256 = hashlib.sha256(content).hexdigest()
            files.append(dataclasses.replace(file, sha256=sha256, size=len(content), equivalent=()))
        small = dataclasses.replace(known, files=tuple(files), **changes)
        monkeypatch.setitem(source.SOURCES, name, small)
        return tmp_path / "data"

    return published
