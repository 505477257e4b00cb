"""Every public name of data refuses what is no such argument: one line that names it.

Nothing is loaded or fetched: what is refused is refused before. Messages about records show their
type and shape and never themselves, which `SECRET` checks.
"""

import inspect
import json
import math
import pathlib

import numpy as np
import pytest
from bad_arguments import BAD as SHARED
from bad_arguments import NOT_NUMBERS, check_refusals, good, spec

from dpjax import data

SECRET = "a patient's record"

RECORDS = [SECRET, [[SECRET], [1.0, 2.0]], {SECRET: 1}, (SECRET,), [SECRET]]
NOT_ARRAYS = [*RECORDS, 3, 1j, object(), None, True]
BAD = SHARED | {
    "probability": [*NOT_NUMBERS, math.inf, -0.5, 1.5, 0.0, 1.0],
    "texts": [3, "ab", b"ab", math.nan, True, [3, 4], (None, None)],
    "word": [3, b"slot", math.nan, True, ("slot",), "nonsense"],
    "name": [3, None, b"digits", math.nan, True, ("digits",), "nonsense"],
    "mapping": [3, "scale", math.nan, True, ("a",)],
    "key": [math.nan, 2.5, None, "key", b"", (1,), True, bytes(65)],
    "records": [*NOT_ARRAYS, np.full((4, 2), math.nan), np.full((4, 2), 1j)],
    "labels": [*NOT_ARRAYS, np.full(4, math.nan), np.full(4, 0.5), [[0], [1]]],
    "array": [*NOT_ARRAYS, [0.0, 1.0]],
    "identifiers": [*NOT_ARRAYS, np.arange(4.0), np.full(4, math.nan)],
    "pair": [*RECORDS, 3, math.nan, np.zeros(3), True, (SECRET, SECRET)],
    "table": [[SECRET], (SECRET,), 3, math.nan, True, np.zeros(3)],
    "schema": [3, None, math.nan, True, ["age"], {"age": 1}, {}],
    "split": [*RECORDS, 3, None, math.nan, np.zeros(3), (np.zeros((4, 2)), np.zeros(4))],
}
"""What each kind of argument must refuse."""

COLUMNS = {"age": [1, 2, 3, 4], "sick": [0, 1, 0, 1]}
SCHEMA = {
    "target": {"column": "sick", "classes": [0, 1]},
    "columns": {"age": {"range": [0, 9]}},
}


def _fresh(path):
    """The path, with nothing there."""
    if isinstance(path, str):
        pathlib.Path(path).unlink(missing_ok=True)
    return path


INPUTS, LABELS = np.ones((4, 2), np.float32), np.array([0, 1, 0, 1], np.int32)
PAIR = (INPUTS, LABELS)
DATASET = data.from_arrays(
    np.arange(80.0).reshape(40, 2), np.arange(40) % 2, public_size=40, classes=2
)


OF_A_FILE = dict(
    public_size=(4, "whole"),
    classes=(2, "whole"),
    target_range=(None, ""),  # tests/data/test_regressions.py
    size_bound=(4, "whole?"),
    validation_public_size=(4, "whole?"),
    identified_by=("slot", "word?"),
)
PUBLIC = {
    "Dataset": spec(
        data.Dataset,
        name=("mine", "text"),
        description=("numbers", "text"),
        classes=(2, "whole"),
        train=(DATASET.train, "split"),
        test=(DATASET.train, "split?"),
        validation=(DATASET.train, "split?"),
        class_names=(("a", "b"), "texts?"),
        feature_names=(("a", "b"), "texts?"),
        caveat=("a subset", "text?"),
        target_range=(None, ""),  # tests/data/test_regressions.py
    ),
    "Dataset.parts": spec(DATASET.parts, validation_fraction=(0.25, "probability"), key=(3, "key")),
    "Parts": spec(
        data.Parts,
        train=(DATASET.train, "split"),
        validation=(DATASET.train, "split"),
        test=(DATASET.train, "split?"),
        non_private=("a habit", "text?"),
    ),
    "Split": spec(
        data.Split,
        inputs=(INPUTS, "array"),
        labels=(LABELS, "array"),
        public_size=(4, "whole"),
        size_bound=(4, "whole"),
        identifiers=(np.arange(4), "identifiers"),
        stable_under_replacement=(False, "flag"),
        stable_under_removal=(False, "flag"),
        classes=(2, "whole?"),
    ),
    "from_arrays": spec(
        data.from_arrays,
        inputs=(INPUTS, "records"),
        labels=(LABELS, "labels"),
        validation=(PAIR, "pair?"),
        test=(PAIR, "pair?"),
        identifiers=(None, "identifiers?"),
        name=("mine", "text"),
        **OF_A_FILE,
    ),
    "from_table": spec(
        data.from_table,
        table=(COLUMNS, "table"),
        schema=(SCHEMA, "schema"),
        public_size=(4, "whole"),
        size_bound=(4, "whole?"),
        test=(None, "table?"),
        identified_by=("slot", "word?"),
        name=("mine", "text"),
    ),
    "load_table": spec(
        data.load_table,
        path=("mine.csv", "path"),
        schema=("mine.json", "path"),
        public_size=(4, "whole"),
        size_bound=(4, "whole?"),
        test_table=(None, "path?"),
        identified_by=("slot", "word?"),
    ),
    "read_schema": spec(data.read_schema, schema=(SCHEMA, "schema")),
    "write_schema": spec(
        lambda table, path: data.write_schema(table, _fresh(path)),
        table=(COLUMNS, "table"),
        path=("new.json", "path"),
    ),
    "load_arrays": spec(data.load_arrays, path=("mine.npz", "path"), **OF_A_FILE),
    "load": spec(
        data.load,
        name=("digits", "name"),
        data_dir=(None, "path?"),
        cache_dir=(None, "path?"),
        download=(False, "flag"),
        # For files alone, where `load_arrays` is asked.
        public_size=(None, ""),
        classes=(None, ""),
        target_range=(None, ""),
        size_bound=(None, ""),
        validation_public_size=(None, ""),
        identified_by=(None, ""),
        schema=(None, ""),
        test_table=(None, ""),
        settings=(None, "mapping?"),
    ),
    "split_train_validation": spec(
        data.split_train_validation,
        split=(DATASET.train, "split"),
        fraction=(0.25, "probability"),
        key=(b"key", "key"),
    ),
}

NOT_CALLED = {
    "TableSchema": "made by read_schema",
    "DEFAULT_DATA_DIR": "a constant",
    "NAMES": "a constant",
    "DataCorruptedError": "an error",
    "DataNotFoundError": "an error",
    "PublishedFile": "made by the files of sources; see conformance/test_own_data_set.py",
    "Source": "made by the files of sources; see conformance/test_own_data_set.py",
    "register": "of a Source; its errors are in conformance/test_own_data_set.py",
}
"""Public names that are in no row, and why."""

ALSO = {
    "name": {"unknown data set"},
    "validation_fraction": {"fraction"},  # Named by `split_train_validation`, which divides.
}
"""Other words that say which argument is meant."""


@pytest.fixture(autouse=True)
def a_file_of_arrays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    held_out = dict(validation_inputs=INPUTS, validation_labels=LABELS)
    np.savez("mine.npz", inputs=INPUTS, labels=LABELS, **held_out)
    pathlib.Path("mine.csv").write_text("age,sick\n1,0\n2,1\n")
    pathlib.Path("mine.json").write_text(json.dumps(SCHEMA))


def test_the_table_names_everything_public_and_every_argument():
    public = set(data.__all__)
    methods = {"Dataset.parts"}
    assert not set(PUBLIC) & set(NOT_CALLED)
    assert public <= (set(PUBLIC) - methods) | set(NOT_CALLED) <= set(dir(data))
    for name, (call, arguments) in PUBLIC.items():
        assert set(arguments) == set(inspect.signature(call).parameters), name


@pytest.mark.parametrize("name", PUBLIC)
def test_what_is_no_such_argument_is_refused_in_one_line_that_names_it(name):
    call, arguments = PUBLIC[name]
    call(**good(arguments))
    kinds = {argument: kind for argument, (_, kind) in arguments.items()}

    def fitting(**values):
        if name == "from_arrays" and values["identifiers"] is not arguments["identifiers"][0]:
            values["identified_by"] = "identifiers"
        return call(**values)

    for argument, _, said in check_refusals(name, fitting, good(arguments), kinds, BAD, also=ALSO):
        assert SECRET not in said, (name, argument, said)
