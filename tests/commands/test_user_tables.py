"""A table with several rows a person: the person is the unit, whichever part they are in."""

import json

import jax
import numpy as np
import pytest

from dpjax import tuning
from dpjax.commands import user_tables

SCHEMA = {
    "target": {"column": "sick", "classes": ["no", "yes"]},
    "columns": {"patient": "leave out", "age": {"range": [0, 100]}},
}


@pytest.fixture
def stays(tmp_path):
    rng = np.random.default_rng(0)
    rows = ["patient,age,sick"]
    for patient in range(200):
        for _ in range(rng.integers(1, 5)):
            age = rng.integers(0, 100)
            rows.append(f"p{patient},{age},{'yes' if age > 50 else 'no'}")
    (tmp_path / "stays.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "stays.json").write_text(json.dumps(SCHEMA))
    return tmp_path


def load(folder, **changed):
    own = {"schema": str(folder / "stays.json"), "public_size": 200, "size_bound": 250}
    settings = dict(user_column="patient", most_records=3, fraction=0.25, key=b"public") | changed
    return user_tables.load(str(folder / "stays.csv"), own, **settings)


def test_users_are_divided_and_counted(stays):
    loaded, parts = load(stays)
    train, validation = parts.train.records, parts.validation.records
    assert train.users.most_records == validation.users.most_records == 3
    assert (train.public_size, validation.public_size) == (150, 50)
    assert train.number + validation.number == 200
    assert not np.intersect1d(train.identifiers, validation.identifiers).size
    assert loaded.classes == 2 and parts.train.inputs.shape[1] == 2
    # Each row is in one part; who stands there alone decides.
    assert len(parts.train.inputs) + len(parts.validation.inputs) > 400


def test_a_key_decides_which_records_of_a_user_count(stays):
    def kept(key):
        return load(stays, fraction=None, most_records=1, key=key)[1].train.records.arrays

    first, again, other = (jax.tree.leaves(kept(key)) for key in (b"public", b"public", b"other"))
    assert all(map(np.array_equal, first, again))
    assert not all(map(np.array_equal, first, other))


def test_without_scores_all_users_train(stays):
    _, parts = load(stays, fraction=None)
    assert parts.train.records.number == 200 and parts.validation.records.number == 1
    assert parts.train.records.public_size == 200


def test_the_release_names_the_unit_and_verifies(stays):
    import flax.linen as nn

    _, parts = load(stays, fraction=None)
    task = tuning.classification(nn.Dense(2), parts.train.records, parts.validation.records)
    run = tuning.RunOptions(lot_size=40, steps=5, noise_multiplier=1.0)
    space = tuning.Space(learning_rate=0.5, momentum=0.9, clip_norm=1.0)
    release = tuning.tune(task, space, tuning.Untuned(), run=run, seed=1).release
    release.save(stays / "release", certificate=False)
    tuning.verify_release(stays / "release")
    assert release.statement["unit_of_privacy"].startswith("one user with all of its records")


def test_what_is_missing_is_named(stays):
    with pytest.raises(ValueError, match="needs --most_records, a public number"):
        load(stays, most_records=None)
    with pytest.raises(ValueError, match="identifier 'person' is not a column"):
        load(stays, user_column="person")
