"""One's own regression, texts and images: tuned by the command line, used from the release."""

import csv
import json

import numpy as np
import pytest
from PIL import Image

from dpjax import tuning
from dpjax.commands import predict

TUNE = "experiments.tune"
RUN = ["--seed=3", "--noise_multiplier=1"]
PLAIN = ["--method=untuned", "--space=learning_rate=2", "--space=clip_norm=1"]
PLAIN += ["--space=momentum=0.9", "--lot_size=60", "--steps=40"]


@pytest.fixture
def rents(tmp_path):
    """Flats whose rent goes by area, and by a word of their description."""
    generator = np.random.default_rng(0)
    for name, number in (("rents", 600), ("rents_test", 200)):
        area = generator.uniform(20, 120, number)
        new = generator.random(number) < 0.4
        rent = 300 + 12 * area + 900 * new
        with open(tmp_path / f"{name}.csv", "w", encoding="utf-8", newline="") as file:
            write = csv.writer(file).writerow
            write(["note", "area", "rent", "zone"])
            for row in zip(new, area, rent):
                text = "newly built, balcony" if row[0] else "a quiet street"
                write([text, f"{row[1]:.1f}", f"{row[2]:.0f}", "z"])
    known = {
        "target": {"column": "rent", "range": [0, 3000]},
        "columns": {
            "zone": {"values": ["y", "z"]},
            "note": {"text": 32},
            "area": {"range": [20, 120]},
        },
    }
    (tmp_path / "rents.json").write_text(json.dumps(known))
    return tmp_path


def own(folder, *more):
    return [
        *(f"--dataset={folder / 'rents.csv'}", f"--schema={folder / 'rents.json'}"),
        *("--public_size=600", "--size_bound=700", f"--test_table={folder / 'rents_test.csv'}"),
        *(*RUN, *more),
    ]


def column(path, name):
    with open(path, encoding="utf-8", newline="") as file:
        return [row[name] for row in csv.DictReader(file)]


def test_a_regression_end_to_end_and_its_release_predicts_in_the_targets_units(run_cases, rents):
    folders = {name: rents / name for name in ("one", "net", "tuned")}
    results = run_cases(
        TUNE,
        [
            own(rents, *PLAIN, f"--out_dir={folders['one']}"),
            own(rents, *PLAIN[1:], *PLAIN[:1], "--model=mlp", f"--out_dir={folders['net']}"),
            own(
                rents,
                *("--space=learning_rate=loguniform(0.5,4)", "--space=clip_norm=1"),
                *("--space=momentum=0.9", "--lot_size=60", "--steps=40", "--mean=3", "--cap=4"),
                *("--error_scale=1000", f"--out_dir={folders['tuned']}"),
            ),
        ],
    )
    errors = {}
    for (code, printed, failed), (name, folder) in zip(results, folders.items()):
        assert code == 0, failed
        assert "mean absolute error on test data" in printed and "accuracy" not in printed
        scale = 1000 if name == "tuned" else 750
        assert f"a record scores 1 - absolute error / {scale}, in the target's units" in printed
        tuning.verify_release(folder)
        statement = json.loads((folder / "release" / "guarantee.json").read_text())
        assert statement["targets"]["range"] == [0, 3000] and f"/ {scale}" in statement["model"]
        out = rents / f"{name}.csv"
        predict.write(str(folder), str(rents / "rents_test.csv"), str(out))
        predicted = np.array(column(out, "rent"), float)
        true = np.array(column(rents / "rents_test.csv", "rent"), float)
        errors[name] = np.abs(predicted - true).mean()
        facts = json.loads((folder / "curator" / "run.json").read_text())
        # What the release says of the rows is what the run measured, whatever wrote the numbers.
        assert errors[name] == pytest.approx(facts["test_error"], rel=1e-3)
        assert facts["test_error_of_one_value"] > 300 and facts["test_accuracy"] is None
        least = 0.95 if name == "net" else 0.65  # A net learns little in 40 steps.
        assert errors[name] < least * facts["test_error_of_one_value"], (name, errors)


def test_a_person_with_several_rows_and_classes_by_texts(run_cases, rents):
    """Users of a regression; and a text alone that says which of two classes."""
    texts = json.loads((rents / "rents.json").read_text())
    texts["target"] = {"column": "rent", "above": 1500}
    (rents / "texts.json").write_text(json.dumps(texts))
    users = ["--user_column=area", "--most_records=2"]
    people = texts | {"target": {"column": "rent", "range": [0, 3000]}}
    people["columns"] = texts["columns"] | {"area": "leave out"}
    (rents / "people.json").write_text(json.dumps(people))
    both = run_cases(
        TUNE,
        [
            [*own(rents, *PLAIN), f"--schema={rents / 'people.json'}", *users]
            + [f"--out_dir={rents / 'users'}"],
            [*own(rents, *PLAIN), f"--schema={rents / 'texts.json'}", f"--out_dir={rents / 'two'}"],
            [*own(rents, *PLAIN), f"--schema={rents / 'texts.json'}", "--class_priors=0.97,0.03"]
            + ["--weights_in=decision", f"--out_dir={rents / 'weighed'}"],
        ],
    )
    for code, _, failed in both:
        assert code == 0, failed
    stated = json.loads((rents / "users" / "release" / "guarantee.json").read_text())
    assert stated["unit_of_privacy"].startswith("one user") and "targets" in stated
    true = np.array(column(rents / "rents_test.csv", "rent"), float) > 1500
    accuracy, share = {}, {}
    for name in ("two", "weighed"):
        out = str(rents / f"{name}.csv")
        predict.write(str(rents / name / "release"), str(rents / "rents_test.csv"), out)
        said = np.array(column(out, "rent"))
        assert set(said) <= {"rent <= 1500", "rent > 1500"}
        accuracy[name], share[name] = (
            np.mean((said == "rent > 1500") == true),
            np.mean(said == "rent > 1500"),
        )
        facts = json.loads((rents / name / "curator" / "run.json").read_text())
        assert accuracy[name] == pytest.approx(facts["test_accuracy"])
    # An error on a rare class counts more, so more of the rows are said to be of it.
    assert accuracy["two"] > 0.85 and share["weighed"] > share["two"] + 0.05


def test_pictures_of_a_folder(run_cases, tmp_path):
    generator = np.random.default_rng(0)
    for name in ("train", "test"):
        for label, kind in enumerate(("cat", "dog")):
            (tmp_path / name / kind).mkdir(parents=True)
            for number in range(60):
                pixels = generator.integers(0, 80, (8, 8, 3)).astype(np.uint8)
                pixels[:, 4 * label : 4 * label + 4] += 120
                Image.fromarray(pixels).save(tmp_path / name / kind / f"{number}.png")
    given = [f"--dataset=folder:{tmp_path / 'train'}", "--public_size=120", *RUN]
    form = ["--image_size=8,8", "--channels=1", f"--test_folder={tmp_path / 'test'}"]
    done = [*given, *form, *PLAIN, f"--out_dir={tmp_path / 'run'}"]
    made, replaced, no_size, elsewhere, misread = run_cases(
        TUNE,
        [
            done,
            [*done[:-1], "--sampling=fixed", f"--out_dir={tmp_path / 'replaced'}"],
            [*given, *PLAIN],
            ["--dataset=digits", "--image_size=8,8"],
            [f"--dataset=folder:{tmp_path / 'nowhere'}", "--public_size=9", form[0]],
        ],
    )
    assert made[0] == 0 and replaced[0] == 0, (made[2], replaced[2])
    assert "replace one" in replaced[1]
    assert json.loads((tmp_path / "run/curator/run.json").read_text())["test_accuracy"] > 0.95
    for (code, _, errors), words in (
        (no_size, "pass --image_size=..., the height and the width"),
        (elsewhere, "--image_size belongs to --dataset=folder:PATH or tfds:NAME: drop it"),
        (misread, "is no folder: pass one with a subfolder for each class"),
    ):
        assert code == 2 and words in errors and len(errors.splitlines()) == 1, errors
    with pytest.raises(ValueError, match="has no schema.json: pass a release that dpjax tune"):
        predict.write(str(tmp_path / "run"), "rows.csv", str(tmp_path / "out.csv"))


def test_what_fits_no_regression_is_one_line_and_nothing_is_written(run_cases, rents):
    cases = {
        "--score belongs to a classification: drop it": ["--score=brier"],
        "--class_priors belongs to a classification": ["--class_priors=0.5,0.5"],
        "--model=linear_svm predicts classes": ["--model=linear_svm"],
        "--error_scale must be finite and > 0": ["--error_scale=0"],
        "--target_range belongs to --dataset=your own .npz or tfds:NAME": ["--target_range=0,9"],
    }
    results = run_cases(
        TUNE,
        [own(rents, *PLAIN, *more, f"--out_dir={rents / 'run'}") for more in cases.values()]
        + [["--dataset=digits", "--error_scale=2", f"--out_dir={rents / 'run'}"]],
    )
    for (code, _, errors), words in zip(
        results, [*cases, "--error_scale belongs to a regression: drop it"]
    ):
        assert code == 2 and words in errors and len(errors.splitlines()) == 1, (words, errors)
    searched = [*own(rents)[:-2], "--validation_fraction=0.2", f"--out_dir={rents / 'run'}"]
    ((code, _, errors),) = run_cases("experiments.pareto", [searched])
    assert code == 2 and "is a regression: pass it to dpjax tune" in errors, errors
    assert not (rents / "run").exists()
    assert sorted(path.name for path in rents.iterdir()) == [
        *("rents.csv", "rents.json", "rents_test.csv")
    ]


def test_predictions_are_refused_whole(run_cases, rents):
    ((code, _, failed),) = run_cases(TUNE, [own(rents, *PLAIN, f"--out_dir={rents / 'run'}")])
    assert code == 0, failed
    out = rents / "out.csv"
    for text, words in (
        ("area,zone\n50,y\n", "the table has no column 'note'"),
        ("area,zone,note\n", "has no rows: pass a table of one or more"),
        ("area,zone,note\nbig,y,new\n", "column 'area' holds values that are not numbers"),
    ):
        (rents / "new.csv").write_text(text)
        with pytest.raises(ValueError, match=words):
            predict.write(str(rents / "run"), str(rents / "new.csv"), str(out))
        assert not out.exists()
    (rents / "new.csv").write_text("area,zone,note\n50,y,newly built\n,,\n")
    predict.write(str(rents / "run"), str(rents / "new.csv"), str(out))
    assert len(column(out, "rent")) == 2
    with pytest.raises(ValueError, match="is there already"):
        predict.write(str(rents / "run"), str(rents / "new.csv"), str(out))
    statement = {"private": False, "model": "Dense(features=1)"}
    other = tuning.Release({"bias": np.zeros(1)}, {}, statement)
    other.save(rents / "other", schema=json.loads((rents / "rents.json").read_text()))
    with pytest.raises(ValueError, match="the release's model is none of logistic_regression"):
        predict.write(str(rents / "other"), str(rents / "new.csv"), str(rents / "b.csv"))
    schema = rents / "run" / "release" / "schema.json"
    schema.write_text(schema.read_text().replace("3000", "4000"))
    out.unlink()
    with pytest.raises(tuning.NotVerified, match="schema.json is not the file that was released"):
        predict.write(str(rents / "run"), str(rents / "new.csv"), str(out))
