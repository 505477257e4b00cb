"""The main job as a user runs it: from the command line, right and wrong."""

import json
import math
import os
import pathlib
import signal
import stat
import subprocess
import sys
import time

import numpy as np

from dpjax import accounting, tuning

ROOT = pathlib.Path(__file__).parents[2]
QUICK = ["--steps=3", "--mean=2", "--cap=3", "--seed=3"]
TARGET, NOISE = "--epsilon=8", "--noise_multiplier=2"  # The first has to be calibrated.


def _released(release):
    """The claim of a release, after seeing that the folder holds nothing but what it may.

    What the program measures on test data is not private; it belongs beside the release.
    """
    assert sorted(os.listdir(release)) == [
        "certificate.json",
        "guarantee.json",
        "hyperparameters.json",
        "model.msgpack",
    ]
    claim = json.loads((release / "guarantee.json").read_text())
    allowed = json.loads((ROOT / "tests" / "release_keys.json").read_text())
    keys = allowed["every procedure"] | allowed["random repetitions"]
    assert set(claim) == set(keys)
    for key in ("score", "selection", "randomness"):
        assert set(claim[key]) == set(keys[key])
    said = json.loads((release / "hyperparameters.json").read_text())
    assert set(said) == set(claim["candidates_drawn_from"])
    exact = json.loads((release.parent / "curator" / "run.json").read_text())["test_accuracy"]
    for name in os.listdir(release):
        assert str(exact)[:8].encode() not in (release / name).read_bytes()
    return claim


def test_digits_end_to_end_and_the_claim_verifies(run_cases, tmp_path):
    folder = tmp_path / "run"
    arguments = [f"--out_dir={folder}", TARGET, *QUICK]
    first, again, refused = run_cases(
        "experiments.tune",
        [arguments, [f"--out_dir={tmp_path / 'again'}", TARGET, *QUICK], arguments],
        certificates=True,
    )
    assert first[0] == 0, first
    for words in ("whole tuning", "one run", "naive composition", "test data", str(folder)):
        assert words in first[1]
    assert sorted(os.listdir(folder)) == ["curator", "release", "statement.html", "statement.md"]
    assert stat.S_IMODE(os.stat(folder / "curator").st_mode) == 0o700
    claim = _released(folder / "release")
    assert 0 < claim["epsilon"] <= 8 and claim["neighbouring_relation"] == "add_or_remove_one"
    law = accounting.AtMost(accounting.Geometric(2), 3)
    assert claim["selection"]["law_of_K"] == law.to_dict()
    assert "fitted to the space" not in first[1]
    assert claim["randomness"]["secret"] is False and "a seed makes the random" in first[1]
    assert (folder / "curator" / "candidates.png").stat().st_size > 5000
    # A second run on the same data beside it is a second mechanism: the tool warns.
    assert again[0] == 0 and "1 earlier run(s) on digits" in again[1]
    # The same place is refused, and what stands there stays.
    assert refused[0] == 2 and "exists already" in refused[2]
    saved = [path / "release" / "guarantee.json" for path in (folder, tmp_path / "again")]
    assert saved[0].read_bytes() == saved[1].read_bytes()
    ((code, printed, _),) = run_cases("experiments.epsilon", [[f"--verify={saved[0]}"]])
    assert code == 0 and "the claim holds" in printed

    # Going on with what has finished says so; what was left beside it is removed.
    working = tmp_path / "run.curator"
    working.mkdir(mode=0o700)
    (working / "outcome.npz").touch()
    again, shard = run_cases(
        "experiments.tune", [[*arguments, "--resume"], [*arguments, "--shard=1/2"]]
    )
    for code, printed, errors in (again, shard):
        assert code == 0 and "is finished: there is nothing left to do" in printed, errors
    assert not working.exists() and saved[0].read_bytes() == saved[1].read_bytes()
    # Nor is it taken for a run with other flags, but where it is trained is nothing of the run's.
    changed, elsewhere = run_cases(
        "experiments.tune",
        [
            [*arguments, "--resume", "--seed=4", "--cap=5"],
            [*arguments, "--resume", "--chunk_size=2"],
        ],
    )
    assert changed[0] == 2 and "with other values of --cap, --seed: pass" in changed[2], changed
    assert elsewhere[0] == 0 and "is finished" in elsewhere[1]


def test_a_working_folder_is_gone_on_with_or_refused_never_left_or_trusted(run_cases, tmp_path):
    """One with keys in it would outlive a new run; one of somebody else may hold planted keys."""
    working = tmp_path / "run.curator"
    working.mkdir(mode=0o700)
    (working / "drawn.npz").write_bytes(b"planted")
    arguments = [f"--out_dir={tmp_path / 'run'}", NOISE, *QUICK]
    ((code, _, errors),) = run_cases("experiments.tune", [arguments])
    assert code == 2 and "interrupted run and holds its secrets: pass --resume" in errors
    working.chmod(0o777)
    opened = run_cases("experiments.tune", [[*arguments, "--resume"], [*arguments, "--shard=0/2"]])
    for code, _, errors in opened:
        assert code == 2 and "open to others (owner" in errors and "mode 0777" in errors
    working.chmod(0o700)
    ((code, _, errors),) = run_cases("experiments.tune", [[*arguments, "--resume"]])
    assert code == 2 and "drawn.npz is" in errors and len(errors.splitlines()) == 1
    assert os.listdir(tmp_path) == ["run.curator"] and os.listdir(working) == ["drawn.npz"]


def test_selections_by_partitions_end_to_end_and_their_claims_verify(run_cases, tmp_path):
    methods = {
        "permute_and_flip": ["--method=exponential", "--mechanism=permute_and_flip"],
        "doubling": ["--method=doubling"],
    }
    folders = {method: tmp_path / method for method in methods}
    small = ["--steps=3", "--epsilon=8", "--candidates=3", "--partitions=3", "--seed=3"]
    results = run_cases(
        "experiments.tune",
        [[*methods[method], f"--out_dir={folder}", *small] for method, folder in folders.items()],
    )
    for (method, folder), (code, printed, errors) in zip(folders.items(), results):
        assert code == 0, errors
        for words in ("the selection alone", "the final training alone", "the whole tuning"):
            assert words in printed
        # 3 candidates, 3 partitions: drowned in noise, and the tool says what would not be.
        assert "nearly at random" in printed and "partitions >= " in printed
        claim = json.loads((folder / "release" / "guarantee.json").read_text())
        assert 0 < claim["epsilon"] <= 8 and len(claim["selection"]["candidates"]) == 3
        released = "".join(
            (folder / "release" / name).read_text()
            for name in ("guarantee.json", "hyperparameters.json")
        )
        record = json.loads((folder / "curator" / "run.json").read_text())
        assert len(record["partition_sizes"]) == 3 and record["warning"].startswith("NOT PRIVATE")
        assert ("answers" in record["selection"]) == (method == "doubling")
        for secret in ("partition_sizes", "answers", "seconds"):
            assert secret not in released
    # The paper's own figure stands beside, as what is not claimed.
    assert claim["selection"]["not_claimed"]["epsilon"] > 2
    assert claim["selection"]["charged"] == {"iterations": 20}
    verified = run_cases(
        "experiments.epsilon",
        [[f"--verify={folder / 'release' / 'guarantee.json'}"] for folder in folders.values()],
    )
    for code, printed, _ in verified:
        assert code == 0 and "the claim holds" in printed
    claim["selection"]["epsilon_0"] *= 2
    path = folders["doubling"] / "release" / "guarantee.json"
    path.write_text(json.dumps(claim))
    ((code, printed, _),) = run_cases("experiments.epsilon", [[f"--verify={path}"]])
    assert code == 1 and "NOT VERIFIED: it was changed after it was written" in printed


def test_your_own_arrays(run_cases, tmp_path):
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 300)
    inputs = (generator.normal(size=(300, 5)) + labels[:, None]).astype(np.float32)
    path = tmp_path / "mine.npz"
    np.savez(path, inputs=inputs, labels=labels)
    broken = tmp_path / "broken.npz"
    np.savez(broken, inputs=inputs, labels=labels + 1)
    public = ["--public_size=300", "--classes=2"]
    folder = tmp_path / "run"
    elsewhere = f"--out_dir={tmp_path / 'elsewhere'}"
    done, unstated, wrong = run_cases(
        "experiments.tune",
        [
            [
                f"--dataset={path}",
                *public,
                f"--out_dir={folder}",
                "--sampling=fixed",
                NOISE,
                *QUICK,
            ],
            [f"--dataset={path}", "--classes=2", elsewhere],
            [f"--dataset={broken}", *public, elsewhere],
        ],
    )
    assert done[0] == 0, done
    claim = json.loads((folder / "release" / "guarantee.json").read_text())
    assert claim["neighbouring_relation"] == "replace_one"
    assert unstated[0] == 2 and "pass --public_size=..., a number" in unstated[2]
    assert wrong[0] == 2 and "labels" in wrong[2]
    assert not (tmp_path / "elsewhere").exists()


def test_without_a_space_the_search_is_around_the_public_default(run_cases, tmp_path):
    """Unless there is no target to go by; scores on training records keep none of them."""
    names = ("usual", "on_training", "by_noise", "untuned")
    small = ["--mean=1.5", "--cap=2"]
    found = run_cases(
        "experiments.tune",
        [
            [f"--out_dir={tmp_path / 'usual'}", *small, "--epochs=2"],
            [f"--out_dir={tmp_path / 'on_training'}", *small, "--score_on_training"],
            [
                f"--out_dir={tmp_path / 'by_noise'}",
                "--mean=1.5",
                "--noise_multiplier=9",
                "--steps=3",
            ],
            [f"--out_dir={tmp_path / 'untuned'}", "--method=untuned", "--epochs=2"],
        ],
    )
    assert [code for code, _, _ in found] == [0] * 4, found
    claims = {
        name: json.loads((tmp_path / name / "release" / "guarantee.json").read_text())
        for name in names
    }

    def law_of(rates):
        return tuning.Space(learning_rate=rates).describe()["learning_rate"]

    laws = {name: claim["candidates_drawn_from"] for name, claim in claims.items()}
    records = {name: claim["training_records"]["public_size"] for name, claim in claims.items()}
    assert records["usual"] < records["on_training"] == records["untuned"] == 1438
    for name, steps in (("usual", 32), ("on_training", 320)):
        rule = tuning.public_defaults(records[name], 65, 4.0, outputs=10, steps=steps)
        rate = laws[name]["learning_rate"]
        assert rate == law_of(tuning.LogNormal(rule.learning_rate, 2.5))
        assert "released" not in claims[name]["optimizer"]  # With so few records.
        assert claims[name]["run_options"]["clipping"] == rule.run.clipping.describe()
        assert laws[name]["clip_norm"] == laws["untuned"]["clip_norm"]
        (setting,) = claims[name]["training"]
        assert (setting["lot_size"], setting["steps"]) == (rule.lot_size, steps)
    assert laws["by_noise"]["learning_rate"] == law_of(tuning.LogUniform(0.003, 3.0))
    assert claims["on_training"]["score"]["public_size"] == 1438
    verified = run_cases(
        "experiments.epsilon",
        [[f"--verify={tmp_path / name / 'release' / 'guarantee.json'}"] for name in names],
    )
    assert [code for code, _, _ in verified] == [0] * 4, verified


REFUSED = [
    (["--epsilon=3", "--delta=1e-10"], "attain"),
    (["--delta=0"], "delta"),
    (["--mean=0.5"], "mean"),
    (["--epsilon=1e9"], "at most 10000"),
    (["--epsilon=nan"], "above 0"),
    (["--delta=1"], "between 0 and 1"),
    (["--steps=0"], "--steps must be a whole number >= 1"),
    (["--epochs=-2"], "--epochs must be finite and > 0"),
    (["--lot_size=0"], "--lot_size must be a whole number >= 1"),
    (["--steps=1000000000"], "--steps=1000000000: pass at most 1e+07"),
    (["--epochs=1e9"], "--steps=15972222222: pass at most 1e+07"),
    (["--noise_multiplier=1e-12"], "--noise_multiplier=1e-12 protects nothing"),
    (
        ["--space=learning_rate=1", "--space=noise_multiplier=choice(1,1e-12)", "--optimizer=sgd"],
        "protects nothing",
    ),
    (
        ["--space=learning_rate=1", "--space=epochs=2", "--steps=5", "--optimizer=sgd"],
        "steps beside it is not read",
    ),
    (["--widths=5"], "--model=mlp"),
    (
        ["--public_size=3"],
        "--public_size belongs to --dataset=your own .npz or your own .csv or folder:PATH",
    ),
    (["--dataset=mine.npz", "--classes=1000000000", "--public_size=9"], "--classes="),
    (["--repetitions=binomial", "--trials=0"], "trials must be a whole number >= 1"),
    (["--noise_multiplier=0"], "not_private"),
    (["--lot_size=5000"], "--lot_size=5000"),
    (
        [
            "--space=learning_rate=1",
            "--space=momentum=0.9",
            "--space=noise_multiplier=1",
            "--epsilon=2",
        ],
        "--epsilon or noise multipliers (in the space, or --noise_multiplier=...), not both",
    ),
    (["--class_priors=0.5,0.2"], "--class_priors=0.5,0.2 must add up to 1"),
    (["--class_weights=1,2", "--class_priors=1,0"], "--class_weights and --class_priors are both"),
    (["--space=learning_rate"], "NAME=LAW"),
    (["--space=lot_size=uniform(1,2)"], "example lot_size=choice"),
    (["--dataset=imagenet"], "cifar10_subset, fertility, flights"),
    (["--model=resnet"], "logistic_regression"),
    (["--chunk_size=0"], "chunk_size"),
    *(
        ([f"--micro_batch_size={size}"], "--micro_batch_size must be a whole number >= 1")
        for size in ("0", "-1", "2.5", "x")
    ),
    (["--clip_stability=0.1"], "--clip_stability belongs to --clipping=automatic: drop it, or"),
    (["--clipping=grouped"], "--clipping=grouped needs --clip_groups beside it"),
    (["--clipping=automatic", "--clip_stability=-1"], "--clip_stability must be finite and >= 0"),
    (["--unheard_of=1"], "unheard_of"),
    (["--repetitions=adaptive"], "candidates are drawn independently"),
    (["stray"], "stray"),
    (["--space=wieght_decay=1"], "wieght_decay"),
    (["--out_dir=/dev/full/x"], "--out_dir"),
    (["--not_private", "--noise_multiplier=1"], "not_private"),
    (["--method=threshold_stopping"], "--threshold"),
    (["--method=exponential", "--partitions=5000"], "partitions=5000"),
    (["--method=exponential", "--candidates=0"], "candidates must be"),
    (
        ["--method=exponential", "--mean=5"],
        "--mean belongs to --method=random_repetitions",
    ),
    (["--method=exponential", "--granularity=0.1"], "--granularity belongs to --method=doubling"),
    (["--method=doubling", "--not_private"], "--not_private belongs to"),
    (["--method=doubling", "--lower_bound=1"], "--lower_bound must be in [0, 1)"),
    (["--method=doubling", "--granularity=1.5"], "--granularity must be in (0, 1"),
    (["--method=doubling", "--iterations_cap=-1"], "--iterations_cap=-1"),
    (["--method=doubling", "--hits_cap=3"], "--variant=segments"),
    (["--method=doubling", "--epsilon=1"], "the selection alone costs epsilon 1.598"),
    (
        [
            "--method=doubling",
            "--optimizer=sgd",
            "--space=steps=choice(5,10)",
            "--space=learning_rate=1",
        ],
        "fix steps",
    ),
    (["--method=untuned", "--validation_fraction=0.1"], "train on every training record"),
    (["--method=untuned", "--noise_multiplier=1"], "the public default needs --epsilon"),
    (["--score_on_training", "--split_key=mine"], "train on every training record"),
    (["--score_on_training", "--paper_protocol"], "train on every training record"),
    (["--method=untuned", "--optimizer=adam"], "adam has no public default: pass --space"),
    (["--dataset=mine.csv", "--public_size=3000"], "mine.csv: pass --schema=..., what is"),
    (["--dataset=mine.pkl", "--public_size=3000"], "mine.pkl is not a known data set: pass"),
    (
        ["--candidates=5"],
        "--candidates belongs to --method=doubling or exponential",
    ),
]


def test_bad_input_is_one_line_exit_code_2_and_nothing_written(run_cases, tmp_path):
    place = f"--out_dir={tmp_path / 'run'}"
    results = run_cases("experiments.tune", [[place, *arguments] for arguments, _ in REFUSED])
    for (arguments, message), (code, _, errors) in zip(REFUSED, results):
        assert code == 2, arguments
        lines = [line for line in errors.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1 and message in lines[0], arguments
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_loaded_is_one_short_line(run_cases, tmp_path):
    """Neither a parser's words nor a list of checksums."""
    text = tmp_path / "text.npz"
    text.write_text("inputs, labels\n")
    place = f"--out_dir={tmp_path / 'run'}"
    of_text, missing = run_cases(
        "experiments.tune",
        [
            [f"--dataset={text}", "--public_size=3", "--classes=2", place],
            ["--dataset=cifar10_subset", f"--data_dir={tmp_path}", place],
        ],
    )
    assert of_text[0] == 2 and "pickle" not in of_text[2]
    assert f"{text} is not an .npz file of plain arrays: pass one that np.savez wrote" in of_text[2]
    assert missing[0] == 2 and ": place cifar10_subset.npz in" in missing[2], missing
    assert "--traceback" in missing[2] and "sha256" not in missing[2]


def test_warnings(run_cases, tmp_path):
    ((code, printed, _),) = run_cases(
        "experiments.tune",
        [
            [f"--out_dir={tmp_path / 'run'}", NOISE, *QUICK, "--delta=0.01", "--paper_protocol"],
        ],
    )
    assert code == 0 and "is above 1/" in printed and "scored on the test data" in printed


# A suite started in the background hands "ignore SIGINT" down to its children.
_TUNE_WITH_CTRL_C = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("experiments.tune", run_name="__main__", alter_sys=True)
"""


def test_an_interrupted_run_leaves_nothing_half_written(tmp_path):
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", _TUNE_WITH_CTRL_C, f"--out_dir={tmp_path / 'run'}"),
            *("--steps=2000000", "--noise_multiplier=100", "--delta=0.01"),
        ],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        lines = process.stdout.readline() + process.stdout.readline()
        assert "is above 1/" in lines and "law of K" in lines
        time.sleep(3)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=600)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130 and "interrupted" in errors
    assert os.listdir(tmp_path) == []


def test_without_flags_of_a_law_it_fits_the_space_and_adam_has_a_prior(run_cases, tmp_path):
    adam, given = (tmp_path / name for name in ("adam", "given"))
    common = ["--optimizer=adam", "--steps=3", "--epsilon=8", "--seed=3", "--score_on_training"]
    space = ["--space=learning_rate=loguniform(0.1,0.3)", "--space=clip_norm=1"]
    found = run_cases(
        "experiments.tune",
        [
            [f"--out_dir={adam}", *common],
            [f"--out_dir={given}", *common, *space],
        ],
    )
    assert [code for code, _, _ in found] == [0, 0], found
    claims = [
        json.loads((folder / "release" / "guarantee.json").read_text()) for folder in (adam, given)
    ]
    # 64 pixels and a bias enter an output.
    prior = tuning.LogNormal(tuning.adam_rate(65, steps=3), 2.5)
    assert claims[0]["candidates_drawn_from"]["learning_rate"] == prior.describe()
    assert claims[0]["training"][0]["steps"] == 3
    spaces = [
        tuning.Space(learning_rate=law, clip_norm=1.0)
        for law in (prior, tuning.LogUniform(0.1, 0.3))
    ]
    laws = [claim["selection"]["law_of_K"] for claim in claims]
    fitted = [tuning.fitting_law(space) for space in spaces]
    assert laws == [law.to_dict() for law in fitted] and laws[0] != laws[1]
    for (_, printed, _), law in zip(found, fitted):
        assert (
            f"law of K, fitted to the space: negative binomial of shape 2, mean {law.mean:.3g}"
            in (" ".join(printed.split()))
        )
        assert f"naive composition of {math.ceil(law.mean)} runs" in printed
