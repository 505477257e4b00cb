"""The release folder: whole, timeless, and a function of the winner alone."""

import dataclasses
import json
import os
import stat

import flax.serialization
import numpy as np
import pandas
import pytest
import small_tasks

from dpjax import accounting, after_the_draw, tuning
from dpjax.array_files import fingerprint
from dpjax.releases import curator, ledger
from dpjax.releases.release import json_bytes
from dpjax.tuning import Release
from dpjax.tuning.statements import written


def _claim(**changes):
    arguments = dict(
        guarantee=accounting.gaussian(noise_multiplier=2.0),
        delta=1e-5,
        space={"learning_rate": {"law": "uniform", "low": 0.0, "high": 1.0}},
        model="a model",
        optimizer={"name": "an optimiser"},
        trained_parameters=["params/kernel"],
        selection={"rule": "best of K runs"},
        score={"noise": "discrete Gaussian"},
        settings=[],
        training_records={"public_size": 90, "size_bound": 100, "number": None},
        options={},
        randomness_is_secret=True,
    )
    return written(**(arguments | changes))


def _release():
    params = {"params": {"kernel": np.arange(6, dtype=np.float32).reshape(2, 3)}}
    return Release(params=params, hyperparameters={"learning_rate": 0.5}, statement=_claim())


def _contents(folder):
    return {
        name: ((folder / name).read_bytes(), os.stat(folder / name).st_mtime)
        for name in sorted(os.listdir(folder))
    }


def test_saved_release_is_loadable_and_timeless(tmp_path):
    folder = tmp_path / "release"
    _release().save(folder)
    contents = _contents(folder)
    assert list(contents) == ["guarantee.json", "hyperparameters.json", "model.msgpack"]
    assert all(time == 0 for _, time in contents.values())
    assert os.stat(folder).st_mtime == 0
    loaded = flax.serialization.msgpack_restore(contents["model.msgpack"][0])
    np.testing.assert_array_equal(loaded["params"]["kernel"], _release().params["params"]["kernel"])
    claim = json.loads(contents["guarantee.json"][0])
    expected = accounting.gaussian(noise_multiplier=2.0).stated_epsilon(1e-5)
    assert claim["epsilon"] == expected and claim["delta"] == 1e-5
    assert claim["neighbouring_relation"] == "add_or_remove_one"
    rebuilt = accounting.from_provenance(claim["mechanism"])
    assert rebuilt.stated_epsilon(1e-5) == expected
    assert claim["model"] == "a model" and claim["optimizer"] == {"name": "an optimiser"}
    assert claim["trained_parameters"] == ["params/kernel"]


def test_two_saves_are_byte_for_byte_the_same(tmp_path):
    _release().save(tmp_path / "a")
    _release().save(tmp_path / "b")
    assert _contents(tmp_path / "a") == _contents(tmp_path / "b")


def test_nothing_is_overwritten(tmp_path):
    _release().save(tmp_path / "a")
    before = _contents(tmp_path / "a")
    with pytest.raises(ValueError, match="exists already"):
        _release().save(tmp_path / "a")
    assert _contents(tmp_path / "a") == before


def test_what_another_run_is_writing_is_left_alone(tmp_path):
    theirs = tmp_path / "a.partial"
    theirs.mkdir()
    (theirs / "of another").touch()
    _release().save(tmp_path / "a")
    assert os.listdir(theirs) == ["of another"]
    assert sorted(os.listdir(tmp_path)) == ["a", "a.partial"]


def test_a_release_that_cannot_be_written_leaves_nothing(tmp_path):
    release = _release()
    with pytest.raises(ValueError):
        dataclasses.replace(release, hyperparameters={"rate": np.nan}).save(tmp_path / "a")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "of another").touch()
    with pytest.MonkeyPatch.context() as patch:
        # As it is for whoever looked before another made the folder.
        patch.setattr(os.path, "lexists", lambda path: False)
        with pytest.raises(OSError):
            release.save(tmp_path / "a")
    assert os.listdir(tmp_path) == ["a"] and os.listdir(tmp_path / "a") == ["of another"]


def test_what_is_not_private_says_so():
    claim = _claim(guarantee=None)
    assert claim["private"] is False and "NOT PRIVATE" in claim["warning"]
    assert "epsilon" not in claim
    assert "NOT SECRET" in _claim(randomness_is_secret=False)["randomness"]["statement"]


def test_public_validation_data_is_named_as_unprotected():
    assert "NOT protected" in _claim(score={"validation_is_public": True})["unit_of_privacy"]
    assert "or validation data" in _claim()["unit_of_privacy"]


def test_no_nan_reaches_a_file():
    with pytest.raises(ValueError):
        json_bytes({"x": float("nan")})


def _record():
    return curator.CuratorRecord(
        number_of_candidates=2,
        winner=1,
        hyperparameters={"learning_rate": np.asarray([0.1, 0.2])},
        scores=np.asarray([-np.inf, 0.5]),
        accuracies=np.asarray([0.1, 0.5]),
        seconds=1.0,
    )


def test_curator_folder_is_its_owners_and_warns_in_every_first_line(tmp_path):
    folder = tmp_path / "curator"
    _record().save(folder, test_accuracy=0.4)
    seen = ledger.SeenData.of("digits", np.zeros((3, 2)))
    ledger.write_ledger(folder, [], run="r", seen=seen, epsilon=1.0, delta=1e-5)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    for name in ("candidates.csv", "ledger.jsonl"):
        assert "NOT PRIVATE" in (folder / name).read_text().splitlines()[0]
    run = json.loads((folder / "run.json").read_text())
    assert next(iter(run)) == "warning" and run["number_of_candidates"] == 2
    rows = (folder / "candidates.csv").read_text().splitlines()
    assert rows[0].startswith("candidate,winner,score") and len(rows) == 3
    read = pandas.read_csv(folder / "candidates.csv")
    assert read["learning_rate"].tolist() == [0.1, 0.2] and read["winner"].tolist() == [0, 1]
    assert read[curator.WARNING].isna().all()


def test_a_tuning_in_python_leaves_the_plot_and_the_page_as_well(tmp_path):
    task = small_tasks.linear()
    space = tuning.Space(learning_rate=tuning.LogUniform(0.1, 1.0), momentum=0, clip_norm=1.0)
    one = tuning.Space(learning_rate=0.5, momentum=0, clip_norm=1.0)
    run = tuning.RunOptions(lot_size=8, steps=1, noise_multiplier=2.0)
    for tuner in (tuning.RandomRepetitions(accounting.Fixed(3)), tuning.Untuned()):
        folder = tmp_path / type(tuner).__name__
        drawn = space if tuner != tuning.Untuned() else one
        result = tuning.tune(task, drawn, tuner, run=run, delta=1e-3, seed=1)
        result.curator.save(folder)
        names = {"candidates.csv", "run.json", "report.html"}
        if drawn is space:
            names.add("candidates.png")
        assert {path.name for path in folder.iterdir()} == names
        page = (folder / "report.html").read_text()
        assert curator.WARNING in page and ("data:image/png" in page) == (drawn is space)
        assert stat.S_IMODE(os.stat(folder / "report.html").st_mode) == 0o600
        assert (
            len(pandas.read_csv(folder / "candidates.csv")) == result.curator.number_of_candidates
        )


def test_what_lies_beside_the_record_never_costs_it(tmp_path):
    def broken(folder, rows):
        with after_the_draw.beside_the_release("drawing"):
            raise OSError("full")

    with pytest.warns(after_the_draw.AfterTheDrawWarning, match="drawing failed"):
        dataclasses.replace(_record(), beside=broken).save(tmp_path / "curator")
    assert len(pandas.read_csv(tmp_path / "curator" / "candidates.csv")) == 2


def test_fingerprint_tells_data_apart():
    inputs = np.arange(6.0).reshape(3, 2)
    assert fingerprint((inputs,)) == fingerprint((inputs.copy(),))
    assert fingerprint((inputs,)) != fingerprint((inputs.reshape(2, 3),))


def displayed(thing):
    """What a notebook shows of it, where IPython is installed (the extra docs)."""
    try:
        from IPython.core.formatters import DisplayFormatter
    except ImportError:
        return []
    bundle, _ = DisplayFormatter().format(thing)
    return [str(value) for value in bundle.values()]


def test_nothing_private_is_printed():
    secret = np.full(3, 7777.0, np.float32)
    part = tuning.Records(secret, 3, 9)
    task = tuning.Task(
        initial=lambda key: 0.0,
        loss=lambda p, x: 0.0,
        correct=lambda p, x: True,
        train=part,
        validation=tuning.Records(secret.copy(), 3, 9),
    )
    record = curator.CuratorRecord(7777, 77, {"rate": secret}, secret, secret, 777.0, {"a": 7777})
    result = tuning.Result(tuning.Release({}, {"rate": 1.0}, {}), None, None, record)
    users = tuning.Records.of_users(
        secret, np.array([1, 1, 2]), most_records=2, public_size=3, size_bound=9
    )
    for shown in (part, task, record, result, users, users.arrays):
        for text in (repr(shown), str(shown), f"{shown}", *displayed(shown)):
            assert "777" not in text, text
        # A notebook asks for these first, and what they give is not what is tested above.
        assert not [name for name in dir(shown) if name.startswith(("_repr_", "_ipython_"))]
    assert "public_size=3" in repr(part) and "not private" in repr(record)
