"""What every registered data set passes.

A new data set needs no line here: the table is the registry, with what experiments register, held
against its public description, third_party_notes/data.md.
"""

import hashlib
import pathlib
import re
import urllib.parse

import numpy as np
import pytest

import experiments.data_sets  # noqa: F401 - registers its own.
from dpjax import data
from dpjax.data import source

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOTES = (ROOT / "third_party_notes" / "data.md").read_text(encoding="utf-8")
# Published files, where somebody has placed them; without them a set says what is missing.
AT_HAND = ROOT.parent / "shared" / "data"

# SHA-256 of inputs, labels and identifiers, train then test: releases and committed figures rest on
# every record in its place. (Adult's encoding takes logarithms, whose last bit may differ.)
ARRAYS = {
    "digits": "06b77f4615180f85f10583c66b39dabdb36ef5126dad35adc95745c7e0e527f7",
    "mnist": "be0c6cda5bb1e5c3b6583308813f5c06f7f78af9d0c7d0edd682768fe1c035df",
    "a9a": "0699dd3d77f7ef9591eac782b9d0b0a6e239909f5980350aa1b932ea4458010e",
    "a1a": "bba1c34b8d6d63de2108f78de813f243fe2ae7df8d9c8b784b6fd49c13237ce7",
    "fertility": "c8ee1d2e5a2238616bef1942ef9101e52b9415af8632ac5c47672f75bd9323c4",
    "tv16": "f45a30a0523c2f109f01b7d87447ebf4cf00f6b0386f42d4aa5c2bb469759eb2",
    "nass_cds": "6d5cc782fefdc54c875614eae36090c5799759f9f4aba979e239fbc17340d994",
    "flights": "a6d900e6c8d1ebe2ef0ca6fff1f903b5bcc2f72a7b9006434c7d997ac19edff4",
    "species": "4bb2b0cec9f917fecd7817d68db25214c59ca6c03c9497c3567cf4b9e6d34f5f",
    "cifar10_subset": "f918d1d55cd59f5bf97677a30e96e87e399038e968ba6c24bac576892107e1b7",
}

every_set = pytest.mark.parametrize("name", data.NAMES)


@every_set
def test_what_it_states(name):
    known = source.SOURCES[name]
    assert known.name == name and len(known.description) > 20
    assert known.classes == len(known.class_names or range(known.classes)) >= 2
    assert min(known.counts.values()) > 0 and "train" in known.counts
    assert len({file.name for file in known.files}) == len(known.files)
    for file in known.files:
        assert file.size > 0 and pathlib.PurePath(file.name).name == file.name
        assert all(re.fullmatch("[0-9a-f]{64}", one) for one in file.accepted)


@every_set
def test_the_notes_describe_it(name):
    known = source.SOURCES[name]
    row = re.search(rf"^\| `{name}` \| (.+) \|$", NOTES, flags=re.MULTILINE)
    assert row, f"third_party_notes/data.md has no row for {name}"
    counts, inputs, classes, *_ = row[1].split(" | ")
    assert counts == " / ".join(f"{count:,}" for count in known.counts.values())
    assert inputs.split()[0] == "x".join(map(str, known.input_shape))
    assert classes == str(known.classes)
    for file in known.files:
        assert f"`{file.name}`" in NOTES or file.address in NOTES
        assert all(sha256 in NOTES for sha256 in file.accepted)
        if file.address.startswith("http"):
            assert urllib.parse.urljoin(file.address, ".") in NOTES


def test_the_notes_describe_nothing_else():
    table = NOTES[NOTES.index("| name | train / test") : NOTES.index("\nA record's identifier")]
    assert set(re.findall(r"^\| `(\w+)`", table, flags=re.MULTILINE)) == set(data.NAMES)


# Features take minutes, of arrays that are the images': experiments/data_sets/test_scattering.py.
@pytest.mark.parametrize("name", [one for one in data.NAMES if not one.endswith("_scattering")])
def test_it_loads_or_says_what_is_missing(name, tmp_path):
    known = source.SOURCES[name]
    try:
        loaded = data.load(name, AT_HAND, cache_dir=tmp_path, download=False)
    except data.DataNotFoundError as error:
        if not known.files:
            assert "which is not installed: pip install" in str(error)
            return
        assert str(tmp_path / "downloads" / "manual" / known.folder) in str(error)
        assert [note.split()[0] for note in error.__notes__] == [file.name for file in known.files]
        return
    assert (loaded.name, loaded.classes) == (name, known.classes)
    assert (loaded.class_names, loaded.caveat) == (known.class_names, known.caveat)
    splits = {"train": loaded.train, "test": loaded.test}
    for role, count in known.counts.items():
        split = splits[role]
        assert split.input_shape == known.input_shape
        assert split.public_size == split.size_bound == split.number_of_records == count
        assert np.isfinite(split.inputs).all() and np.abs(split.inputs).max() <= 1.0
        assert set(np.unique(split.labels)) <= set(range(known.classes))
        # A class without a record would be a mistake, but for lists that were not made from it.
        assert name == "species" or len(np.unique(split.labels)) == known.classes
        assert len(np.unique(split.identifiers)) == count
        assert split.stable_under_removal and split.stable_under_replacement
    if name in ARRAYS:
        digest = hashlib.sha256()
        for role in known.counts:
            split = splits[role]
            for array in (split.inputs, split.labels, split.identifiers):
                digest.update(array.tobytes())
        assert digest.hexdigest() == ARRAYS[name]
