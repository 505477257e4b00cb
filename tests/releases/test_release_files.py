"""Whatever reads a release refuses one that was changed: by its hashes, before it is used."""

import argparse
import ast
import codecs
import functools
import json
import os
import pathlib

import pytest
import tiny_tuners

from dpjax import certificate, tuning
from dpjax.commands import console
from dpjax.releases import ledger, release, release_files, statement_page

WRITES_CERTIFICATES = True  # See conftest.py.
LIBRARY = pathlib.Path(release_files.__file__).parents[1]


@functools.cache
def _result():
    return tiny_tuners.run("untuned", seed=3)


@pytest.fixture
def run(tmp_path):
    """A run's folder, with its release and the curator's half."""
    result = _result()
    result.release.save(tmp_path / "run" / "release")
    result.curator.save(tmp_path / "run" / "curator")
    ledger.write_ledger(
        tmp_path / "run" / "curator",
        [],
        run=str(tmp_path / "run"),
        seen=ledger.SeenData("mine", "f", ("a",)),
        epsilon=result.release.statement["epsilon"],
        delta=result.release.statement["delta"],
    )
    return tmp_path / "run"


def _proved(run):
    if certificate.main([str(run / "release")]):
        raise ValueError("not proved")


def _added(run):
    ((entry,),) = ledger.runs_on_the_same_data(run.parent)
    if ledger.unread([entry]):
        raise ValueError("the release is not believed")


READERS = {
    "verify": tuning.verify_release,
    "certificate": _proved,
    "the officer's page": statement_page.write,
    "dpjax report": lambda run: console._report(argparse.Namespace(release=str(run))),
    "the ledger": _added,
}


def _epsilon(run):
    path = run / "release" / "guarantee.json"
    claim = json.loads(path.read_text())
    path.write_text(json.dumps(claim | {"epsilon": 0.1}, indent=2, sort_keys=True) + "\n")


def _number(run):
    """A number that no float holds, with the statement's hash made anew."""
    folder = run / "release"
    claim = json.loads((folder / "guarantee.json").read_text()) | {"epsilon": 10**400}
    names = set(claim.pop("sha256")) & set(os.listdir(folder))
    files = release.sealed({name: (folder / name).read_bytes() for name in names}, claim)
    (folder / "guarantee.json").write_bytes(files["guarantee.json"])


def _model(run):
    (run / "release" / "model.msgpack").write_bytes(b"another")


def _link(name):
    def change(run):
        path = run / "release" / name
        os.rename(path, run / name)
        os.symlink(run / name, path)

    return change


def _marked(run):
    path = run / "release" / "guarantee.json"
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())


CHANGES = {
    "another epsilon": _epsilon,
    "a number that no float holds": _number,
    "another model": _model,
    "a link in the place of the statement": _link("guarantee.json"),
    "a link in the place of the model": _link("model.msgpack"),
    "a byte-order mark": _marked,
    "a file that lies beside": lambda run: (run / "release" / "notes.txt").write_text("mine"),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_release_as_it_was_saved_is_read(run, reader):
    READERS[reader](run)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("reader", READERS)
def test_a_release_that_was_changed_is_refused(run, reader, change):
    CHANGES[change](run)
    before = sorted(os.listdir(run))
    with pytest.raises(ValueError):
        READERS[reader](run)
    assert sorted(os.listdir(run)) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root lists any folder")
def test_a_folder_that_may_not_be_listed_is_refused_by_name(run):
    os.chmod(run / "release", 0o311)
    with pytest.raises(ValueError, match="release cannot be listed .Permission denied.: allow it"):
        release_files.sealed_claim(run / "release")
    os.chmod(run / "release", 0o755)


def test_statements_are_read_in_one_place():
    """No module of the library opens a release's files by itself, but the two checkers."""
    readers = set()
    for path in LIBRARY.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef):
                continue
            text = ast.unparse(node)
            if ("GUARANTEE_FILE" in text or "'guarantee.json'" in text) and any(
                word in text for word in ("open(", "read_text", "read_bytes", "json.load")
            ):
                readers.add(f"{path.relative_to(LIBRARY)}:{node.name}")
    assert readers == set()
