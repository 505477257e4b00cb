"""The front of a data set as a user finds it: from the command line, right and wrong."""

import csv
import json
import os
import stat

import numpy as np

from dpjax.accounting import stated_epsilon

QUICK = ["--quick", "--seed=1", "--domain=epochs=integer(1,2)", "--domain=lot_size=integer(40,64)"]


def _rows(path):
    note, *lines = path.read_text().splitlines()
    return note, list(csv.DictReader(lines))


def test_digits_end_to_end_and_resumed(run_cases, tmp_path):
    folder, again = tmp_path / "run", tmp_path / "again"
    arguments = [f"--out_dir={folder}", *QUICK, "--epsilon=5"]
    done, refused = run_cases("experiments.pareto", [arguments, arguments])
    assert done[0] == 0, done
    for words in ("NOT a private output", "hypervolume", "for epsilon 5", "never publish"):
        assert words in done[1]
    assert os.listdir(folder) == ["curator"]
    assert not os.path.exists(f"{folder}.curator")
    curator = folder / "curator"
    assert stat.S_IMODE(os.stat(curator).st_mode) == 0o700
    assert sorted(os.listdir(curator)) == [
        "config.json",
        "evaluations.csv",
        "evaluations.jsonl",
        "front.csv",
        "front.png",
        "suggestion.json",
    ]
    for name in ("evaluations.csv", "front.csv"):
        note, rows = _rows(curator / name)
        assert "NOT PRIVATE" in note and rows
    assert len(_rows(curator / "evaluations.csv")[1]) == 16
    suggestion = json.loads((curator / "suggestion.json").read_text())
    assert "NOT PRIVATE" in suggestion["note"] and suggestion["epsilon"] <= 5
    assert suggestion["low"] < suggestion["utility"] < suggestion["high"]
    assert (curator / "front.png").stat().st_size > 10_000
    assert refused[0] == 2 and "exists already" in refused[2]

    # An interrupted run leaves its record; it is refused, unless told to go on.
    working = tmp_path / "again.curator"
    working.mkdir(mode=0o700)
    lines = (curator / "evaluations.jsonl").read_text().splitlines(keepends=True)
    (working / "evaluations.jsonl").write_text("".join(lines[:9]))
    arguments[0] = f"--out_dir={again}"
    stopped, other, resumed = run_cases(
        "experiments.pareto",
        [
            arguments,
            [*arguments, "--resume", "--seed=2"],
            # By what the first run left: every flag is the same.
            [f"--config={curator / 'config.json'}", arguments[0], "--resume"],
        ],
        fresh=True,
    )
    assert stopped[0] == 2 and "--resume" in stopped[2]
    assert other[0] == 2 and "other flags" in other[2]
    assert resumed[0] == 0, resumed
    same = (again / "curator" / "evaluations.jsonl").read_text()
    assert same.splitlines() == [line.rstrip("\n") for line in lines]
    assert _config(again) == _config(folder)
    assert _config(folder) | {"epsilon": 5.0, "quick": True, "initial": 16} == _config(folder)

    # What is finished stays as it is, and is not taken for a run with other flags.
    done, changed = run_cases(
        "experiments.pareto",
        [[*arguments, "--resume", "--workers=1"], [*arguments, "--resume", "--epsilon=4"]],
    )
    assert done[0] == 0 and "is finished" in done[1], done
    assert changed[0] == 2 and "with other values of --epsilon: pass" in changed[2], changed


def _config(folder):
    return json.loads((folder / "curator" / "config.json").read_text())


def _made_up(number, seed):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, number)
    return (generator.normal(size=(number, 4)) + 1.5 * labels[:, None]).astype(np.float32), labels


def test_a_public_proxy_pays_for_one_run_only(run_cases, tmp_path):
    """Neither file has test arrays: a part of the proxy is scored on, all of mine is trained on."""
    for name, number, seed in [("mine", 300, 0), ("public", 200, 1)]:
        inputs, labels = _made_up(number, seed)
        np.savez(tmp_path / f"{name}.npz", inputs=inputs, labels=labels)
    folder = tmp_path / "run"
    arguments = [
        f"--dataset={tmp_path / 'mine.npz'}",
        "--public_size=300",
        f"--public_proxy={tmp_path / 'public.npz'}",
        "--proxy_size=200",
        "--validation_fraction=0.4",
        "--classes=2",
        "--delta=1e-3",
        "--epsilon=2",
    ]
    ((code, printed, errors),) = run_cases(
        "experiments.pareto", [[*arguments, f"--out_dir={folder}", *QUICK]]
    )
    assert code == 0, errors
    assert sorted(os.listdir(folder)) == [
        *("curator", "release", "search", "statement.html", "statement.md")
    ]
    claim = json.loads((folder / "release" / "guarantee.json").read_text())
    suggestion = json.loads((folder / "search" / "suggestion.json").read_text())
    assert claim["mechanism"]["mechanism"] == "dp_sgd_fixed_lots"
    assert claim["mechanism"]["parameters"]["dataset_size"] == 300
    assert claim["epsilon"] <= stated_epsilon.six_digits_up(suggestion["epsilon"]) <= 2
    assert "chosen on public.npz" in claim["context"]["data_description"]
    given = json.loads((folder / "release" / "hyperparameters.json").read_text())
    epochs = suggestion["setting"].pop("epochs")
    steps = given.pop("steps")
    assert given == suggestion["setting"]
    assert steps == epochs * round(300 / given["lot_size"])
    note, _ = _rows(folder / "search" / "front.csv")
    assert "declared public" in note and "NOT PRIVATE" not in note
    assert "released: one run" in printed and "--seed" in printed
    assert printed.count("no secret, no guarantee") == 1
    ledger = (folder / "curator" / "ledger.jsonl").read_text().splitlines()
    spent = json.loads(ledger[1])["epsilon"]
    assert stated_epsilon.six_digits_up(spent) == claim["epsilon"]
    guarantee = f"--verify={folder / 'release' / 'guarantee.json'}"
    ((code, printed, _),) = run_cases("experiments.epsilon", [[guarantee]])
    assert code == 0 and "the claim holds" in printed


REFUSED = [
    (["--domain=lot_size=integer(8,5000)"], "above the 1438 training records"),
    (["--domain=learning_rate=log(1,0.1)"], "low < high"),
    (["--domain=dropout=real(0,1)"], "nothing reads"),
    (["--domain=momentum=real(0,0.9)"], "nothing reads"),
    (["--domain=learning_rate"], "NAME=RANGE"),
    (["--anti_ideal=10"], "anti_ideal"),
    (["--anti_ideal=ten,1"], "pass numbers, as in 10,1"),
    (["--grid_points=3"], "--grid_points belongs to --method=grid"),
    (["--proxy_size=3"], "--proxy_size belongs to a --public_proxy that is a file"),
    (["--anti_ideal=10,2"], "at most 1"),
    (["--epsilon=0"], "above 0"),
    (["--delta=1"], "delta"),
    (["--repetitions=0"], "repetitions"),
    (["--batch_size=0"], "batch_size must be a whole number >= 1"),
    (["--method=annealing"], "ehvi"),
    (["--accounting=moments"], "rdp_classic"),
    (["--papers_laws"], "no laws for digits"),
    (["--resume"], "--out_dir"),
    (["--public_proxy=mnist"], "--epsilon"),
    (["--public_proxy=digits", "--epsilon=1"], "itself"),
    (["--dataset=imagenet"], "cifar10_subset, fertility, flights"),
    (["--validation_fraction=1"], "validation_fraction"),
    (["--model=conv_pool", "--widths=x"], "widths"),
]


def test_bad_input_is_one_clear_line(run_cases, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    cases = [[*arguments, f"--out_dir={elsewhere}"] for arguments, _ in REFUSED]
    cases[[one for one, _ in REFUSED].index(["--resume"])] = ["--resume"]
    results = run_cases("experiments.pareto", cases)
    for (arguments, message), (code, _, errors) in zip(REFUSED, results):
        assert code == 2, (arguments, code, errors)
        assert message in errors, (arguments, errors)
        assert errors.count("\n") == 1 and "Traceback" not in errors
    assert not elsewhere.exists()


def test_the_public_half_says_nothing_of_the_private_records(run_cases, tmp_path):
    """Another label in the private file, the same search: its public record is the same."""
    inputs, labels = _made_up(200, 1)
    np.savez(tmp_path / "public.npz", inputs=inputs, labels=labels)
    mine, own_labels = _made_up(300, 0)
    cases, records = [], []
    for changed in (0, 1):
        own_labels[17] ^= changed
        np.savez(tmp_path / f"mine_{changed}.npz", inputs=mine, labels=own_labels)
        cases.append(
            [
                f"--dataset={tmp_path / f'mine_{changed}.npz'}",
                f"--public_proxy={tmp_path / 'public.npz'}",
                f"--out_dir={tmp_path / f'run_{changed}'}",
                "--public_size=300",
                "--proxy_size=200",
                "--validation_fraction=0.4",
                "--classes=2",
                "--epsilon=8",
                *QUICK,
            ]
        )
    for changed, (code, _, errors) in enumerate(run_cases("experiments.pareto", cases)):
        assert code == 0, errors
        search = tmp_path / f"run_{changed}" / "search"
        records.append({path.name: path.read_bytes() for path in sorted(search.iterdir())})
    assert len(records[0]) == 5
    assert records[0] == records[1]


def test_the_private_file_is_known_under_any_name(run_cases, tmp_path):
    inputs, labels = _made_up(100, 0)
    for name in ("mine", "copy"):
        np.savez(tmp_path / f"{name}.npz", inputs=inputs, labels=labels)
    (tmp_path / "link.npz").symlink_to(tmp_path / "mine.npz")
    given = ["--public_size=100", "--proxy_size=100", "--classes=2", "--epsilon=2"]
    mine = str(tmp_path / "mine.npz")
    others = [f"{tmp_path}/./mine.npz", f"{tmp_path}/link.npz", f"{tmp_path}/copy.npz"]
    cases = [[f"--dataset={mine}", f"--public_proxy={other}", *given] for other in others]
    for code, _, errors in run_cases("experiments.pareto", cases):
        assert code == 2 and "is the private --dataset itself" in errors, errors
