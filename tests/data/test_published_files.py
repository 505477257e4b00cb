"""Finding, recognising and downloading published files, without any network."""

import hashlib
import http.client
import io
import threading

import pytest

from dpjax.data import published_files

CONTENT = {"one": b"first file", "two": b"second file"}


def described(name, content=None, **changes):
    content = CONTENT[name] if content is None else content
    arguments = {
        "name": name,
        "address": f"https://example.invalid/{name}",
        "sha256": hashlib.sha256(content).hexdigest(),
        "size": len(content),
    }
    return published_files.PublishedFile(**{**arguments, **changes})


FILES = [described("one"), described("two")]


def place(folder, **contents):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in {**CONTENT, **contents}.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(
    "place_in", ["downloads/manual/set", "set", "downloads/set", "downloads/manual"]
)
def test_files_are_found_where_they_may_lie(tmp_path, place_in):
    folder = place(tmp_path / "data" / place_in)
    assert published_files.find("set", FILES, [tmp_path / "other", tmp_path / "data"]) == folder


def test_a_folder_with_some_of_the_files_is_not_enough(tmp_path):
    folder = place(tmp_path / "set")
    (folder / "two").unlink()
    assert published_files.find("set", FILES, [tmp_path]) is None


def test_a_corrupted_file_is_refused_at_once(tmp_path):
    folder = place(tmp_path / "set", two=b"second filE")
    with pytest.raises(published_files.DataCorruptedError) as raised:
        published_files.find("set", FILES, [tmp_path])
    assert str(folder / "two") in str(raised.value)
    assert FILES[1].sha256 in str(raised.value)


def test_another_sets_files_in_the_shared_folder_are_passed_over(tmp_path):
    place(tmp_path / "downloads" / "manual", one=b"of another set with the same names")
    assert published_files.find("set", FILES, [tmp_path]) is None


def test_an_equivalent_copy_is_accepted(tmp_path):
    copy = b"second  file"
    folder = place(tmp_path / "set", two=copy)
    files = [FILES[0], described("two", equivalent=(hashlib.sha256(copy).hexdigest(),))]
    assert published_files.find("set", files, [tmp_path]) == folder


def test_missing_files_are_downloaded_once(tmp_path, network):
    asked = network(lambda address: CONTENT[address[-3:]])
    folder = published_files.fetch("set", FILES, tmp_path)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == CONTENT
    (folder / "two").unlink()
    published_files.fetch("set", FILES, tmp_path)
    assert [address[-3:] for address in asked] == ["one", "two", "two"]
    assert published_files.find("set", FILES, [tmp_path]) == folder


def test_a_wrong_download_is_not_kept(tmp_path, network):
    network(lambda address: b"please log in" if address.endswith("two") else CONTENT["one"])
    with pytest.raises(published_files.DataCorruptedError, match="example.invalid/two"):
        published_files.fetch("set", FILES, tmp_path)
    assert [path.name for path in (tmp_path / "downloads" / "set").iterdir()] == ["one"]


def test_a_server_that_sends_without_an_end_is_left(tmp_path, network):
    sent = 0

    class Endless(io.RawIOBase):
        def read(self, size=-1):
            nonlocal sent
            assert 0 < size <= 1 << 20
            sent += size
            return bytes(size)

    network(lambda address: Endless())
    with pytest.raises(published_files.DataCorruptedError, match="sends more than the 10 bytes"):
        published_files.fetch("set", FILES, tmp_path)
    assert sent < 1 << 22
    assert not list((tmp_path / "downloads" / "set").iterdir())


def test_a_silent_network_is_given_up_soon(tmp_path, monkeypatch, network):
    monkeypatch.setattr(published_files, "NETWORK_SECONDS", 0.1)
    over = threading.Event()
    network(lambda address: over.wait(120) and CONTENT["one"])
    try:
        with pytest.raises(TimeoutError, match="did not answer"):
            published_files.fetch("set", FILES, tmp_path)
    finally:
        over.set()


@pytest.mark.parametrize(
    "failure", [OSError("no route"), ValueError("odd"), http.client.BadStatusLine("")]
)
def test_every_failure_of_the_network_is_an_operating_system_error(tmp_path, network, failure):
    def answer(address):
        raise failure

    network(answer)
    with pytest.raises(OSError):
        published_files.fetch("set", FILES, tmp_path)
    assert not (tmp_path / "downloads").exists()


def test_a_connection_that_breaks_leaves_no_partial_file(tmp_path, network):
    class Breaking(io.BytesIO):
        def read(self, *_):
            raise http.client.IncompleteRead(b"half")

    network(lambda address: Breaking())
    with pytest.raises(OSError, match="stopped sending"):
        published_files.fetch("set", FILES, tmp_path)
    assert list((tmp_path / "downloads" / "set").iterdir()) == []


def test_the_error_says_what_to_place_where(tmp_path):
    error = published_files.not_found("set", FILES, tmp_path, "there is no network")
    assert isinstance(error, FileNotFoundError)
    assert isinstance(error, ValueError)
    message = str(error)
    assert str(tmp_path / "downloads" / "manual" / "set") in message
    assert "there is no network" in message
    # One line, whatever the number of files; a traceback shows the rest below it.
    assert len(message.splitlines()) == 1 and "sha256" not in message
    for file, note in zip(FILES, error.__notes__, strict=True):
        assert file.name in message
        assert file.address in note and file.sha256 in note
