"""What every registered data set passes, and one of the user's own, from its files to a release.

A new data set needs no line here: the table is the registry, held against its public description,
third_party_notes/data.md.
"""

import csv
import hashlib
import pathlib
import re
import urllib.parse

import flax.linen as nn
import numpy as np
import pytest

from dpjax import accounting, data, training, tuning
from dpjax.data import source
from dpjax.tuning import verification

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


@every_set
def test_it_loads_or_says_what_is_missing(name, tmp_path):
    known = source.SOURCES[name]
    try:
        loaded = data.load(name, AT_HAND, cache_dir=tmp_path, download=False)
    except data.DataNotFoundError as error:
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
        assert set(np.unique(split.labels)) == set(range(known.classes))
        assert len(np.unique(split.identifiers)) == count
        assert split.stable_under_removal and split.stable_under_replacement
    if name in ARRAYS:
        digest = hashlib.sha256()
        for role in known.counts:
            split = splits[role]
            for array in (split.inputs, split.labels, split.identifiers):
                digest.update(array.tobytes())
        assert digest.hexdigest() == ARRAYS[name]


# From here on: a data set defined outside the library, as a user would in one file.

CONTENT = "".join(
    f"{x:.3f},{y:.3f},{int(x + y > 1)}\n"
    for x, y in np.random.default_rng(0).uniform(size=(150, 2))
).encode()
FLOWERS = data.Source(
    name="own_flowers",
    description="Two measurements of 150 flowers, in [0, 1] as published.",
    classes=2,
    input_shape=(2,),
    train_count=120,
    test_count=30,
    files=(
        data.PublishedFile(
            name="flowers.csv",
            address="https://example.invalid/flowers.csv",
            sha256=hashlib.sha256(CONTENT).hexdigest(),
            size=len(CONTENT),
        ),
    ),
    read=lambda folder: _read_flowers(folder / "flowers.csv"),
    encode=lambda stored, *, scale=1.0: (scale * stored).astype(np.float32),
)


def _read_flowers(path):
    with path.open(encoding="ascii", newline="") as stream:
        table = np.array(list(csv.reader(stream)), float)
    return {
        "train_inputs": table[:120, :2],
        "train_labels": table[:120, 2],
        "test_inputs": table[120:, :2],
        "test_labels": table[120:, 2],
    }


@pytest.fixture
def own_flowers(tmp_path):
    """Registers the set for one test and returns a data folder with its file."""
    data.register(FLOWERS)
    (tmp_path / "own_flowers").mkdir()
    (tmp_path / "own_flowers" / "flowers.csv").write_bytes(CONTENT)
    yield tmp_path
    del source.SOURCES["own_flowers"]


def test_an_own_data_set_is_loaded_by_its_name(own_flowers):
    assert "own_flowers" in data.NAMES
    flowers = data.load("own_flowers", own_flowers, download=False)
    assert (flowers.train.public_size, flowers.test.public_size) == (120, 30)
    assert flowers.input_shape == (2,)
    with pytest.raises(data.DataNotFoundError, match="flowers.csv"):
        data.load("own_flowers", own_flowers / "elsewhere", download=False)
    (own_flowers / "own_flowers" / "flowers.csv").write_bytes(CONTENT[:-1])
    with pytest.raises(data.DataCorruptedError, match="not the published file"):
        data.load("own_flowers", own_flowers, download=False)


def test_an_own_data_sets_settings_are_arguments_of_its_encoding(own_flowers):
    plain = data.load("own_flowers", own_flowers)
    halved = data.load("own_flowers", own_flowers, settings={"scale": 0.5})
    np.testing.assert_array_equal(halved.train.inputs, 0.5 * plain.train.inputs)
    with pytest.raises(ValueError, match="own_flowers has no size: pass only scale"):
        data.load("own_flowers", own_flowers, settings={"size": 0.5})
    with pytest.raises(ValueError, match="digits has no scale: pass none"):
        data.load("digits", settings={"scale": 0.5})
    with pytest.raises(ValueError, match="leave it out for a file"):
        data.load("mine.npz", settings={"scale": 0.5})


def test_an_own_data_set_is_never_cached_unless_it_names_its_reading(own_flowers, monkeypatch):
    monkeypatch.setattr("dpjax.data.loading._WORTH_CACHING", 0.0)
    data.load("own_flowers", own_flowers, download=False)
    assert not list(own_flowers.rglob("dpjax_cache"))


@pytest.mark.parametrize("name", ["", "../up", "a/b", "mine.npz", ".hidden"])
def test_a_name_that_is_no_folder_is_refused(name):
    with pytest.raises(ValueError, match="pass letters, digits"):
        data.Source(
            name=name,
            description="",
            classes=2,
            input_shape=(1,),
            train_count=1,
            read=lambda folder: {},
        )


def test_a_name_is_given_once(own_flowers):
    with pytest.raises(ValueError, match="'own_flowers' is registered already"):
        data.register(FLOWERS)


def test_an_own_data_set_is_tuned_released_and_verified(own_flowers, tmp_path):
    parts = data.load("own_flowers", own_flowers, download=False).parts(0.25, key=b"public")
    task = tuning.classification(nn.Dense(2), parts.train, parts.validation)
    space = tuning.Space(learning_rate=tuning.LogUniform(0.1, 1.0), clip_norm=1.0)
    law = accounting.AtMost(accounting.Geometric(mean=2), cap=3)
    result = tuning.random_repetitions(
        task,
        space,
        repetitions=law,
        noise_multiplier=2.0,
        lot_size=10,
        steps=2,
        delta=1e-3,
        optimizer=training.sgd(),
        seed=5,
    )
    folder = tmp_path / "release"
    result.release.save(str(folder))
    verified = verification.verify_release(str(folder / "guarantee.json"))
    assert verified.epsilon == result.guarantee.epsilon(1e-3)
