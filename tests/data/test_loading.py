"""`load`: names, folders, and one clear error where there is nothing to load."""

import pathlib

import numpy as np
import pytest
from processes import python

import experiments.data_sets  # noqa: F401 - registers them.
from dpjax import data
from dpjax.data import source


def test_digits_need_no_file_and_no_network(no_network):
    result = data.load()
    assert result.name == "digits"
    assert result.input_shape == (8, 8, 1)
    assert (result.train.public_size, result.test.public_size) == (1438, 359)
    assert 0.0 <= result.train.inputs.min() < result.train.inputs.max() == 1.0
    assert set(result.train.labels) == set(range(10)) == set(range(result.classes))
    together = np.concatenate([result.train.identifiers, result.test.identifiers])
    assert sorted(together) == list(range(1797))
    assert not no_network


NEEDS_FILES = [name for name in data.NAMES if source.SOURCES[name].files]


@pytest.mark.parametrize("name", NEEDS_FILES)
def test_offline_and_unprepared_is_one_clear_error_within_seconds(name, tmp_path, no_network):
    with pytest.raises(data.DataNotFoundError) as raised:
        data.load(name, tmp_path)
    message = str(raised.value)
    known = source.SOURCES[name]
    assert str(tmp_path / "downloads" / "manual" / known.folder) in message
    for file, note in zip(known.files, raised.value.__notes__, strict=True):
        assert file.name in message
        assert file.sha256 in note
        assert file.address in note
    assert raised.value.__context__ is None or raised.value.__suppress_context__
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", NEEDS_FILES)
def test_download_false_asks_no_server(name, tmp_path, no_network):
    with pytest.raises(data.DataNotFoundError):
        data.load(name, tmp_path, download=False)
    assert not no_network


def test_an_unknown_name_lists_the_known():
    with pytest.raises(ValueError, match="unknown data set 'minst'") as raised:
        data.load("minst")
    for name in data.NAMES:
        assert name in str(raised.value)


@pytest.mark.parametrize(
    "argument", ["public_size", "classes", "size_bound", "validation_public_size", "identified_by"]
)
def test_arguments_of_user_arrays_are_refused_for_built_in_sets(argument):
    with pytest.raises(ValueError, match=f"{argument}= is for .npz files"):
        data.load("digits", **{argument: 3})


@pytest.fixture
def downloads(publish, network, tmp_path):
    """Returns the folders that a9a's files were downloaded into."""
    contents = {"a9a": b"-1 1:1 \n+1 2:1 \n", "a9a.t": b"+1 3:1 \n"}
    publish("a9a", contents, train_count=2, test_count=1)
    network(lambda address: contents[address.rsplit("/", 1)[1]])
    return lambda: sorted(path.parent for path in tmp_path.glob("**/downloads/a9a"))


def test_downloads_go_to_the_data_dir_or_to_the_cache_dir(downloads, tmp_path):
    data.load("a9a", tmp_path / "empty", cache_dir=tmp_path / "elsewhere")
    assert downloads() == [tmp_path / "elsewhere" / "downloads"]
    data.load("a9a", tmp_path / "empty")
    assert tmp_path / "empty" / "downloads" in downloads()


def test_a_folder_without_write_permission_is_left_alone(downloads, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = tmp_path / "empty"
    folder.mkdir(mode=0o555)
    data.load("a9a", folder)
    assert downloads() == [tmp_path / "home" / "tensorflow_datasets" / "downloads"]


def test_the_default_folder_is_that_of_tfds():
    assert pathlib.Path("~/tensorflow_datasets") == data.DEFAULT_DATA_DIR


HEAVY = ("tensorflow_datasets", "array_record", "PIL", "jax", "flax", "matplotlib")


def imported_by(program):
    program += "\nimport sys; print([name for name in sys.argv[1:] if name in sys.modules])"
    done = python("-c", program, *HEAVY, "sklearn", check=True)
    return done.stdout.strip()


def test_importing_the_room_imports_nothing_heavy():
    assert imported_by("import dpjax.data") == "[]"


def test_loading_the_digits_imports_scikit_learn_alone():
    assert imported_by("from dpjax import data; data.load('digits')") == "['sklearn']"


FILES = pathlib.Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.mark.skipif(not (FILES / "mnist").is_dir(), reason="MNIST's files are not at hand")
def test_loading_local_files_imports_nothing_heavy(tmp_path):
    program = (
        f"from dpjax import data; data.load('mnist', {str(FILES)!r}, cache_dir={str(tmp_path)!r})"
    )
    assert imported_by(program) == "[]"
    assert not list(tmp_path.iterdir())
