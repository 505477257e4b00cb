"""The flags that the binaries share: whose they are, and what they stand for."""

import json

import jax.numpy as jnp
import pytest
from processes import python

from dpjax import training
from dpjax.commands import data_flags

HYPERPARAMETERS = {"learning_rate": 0.5, "momentum": 0.9, "steps": 8.0}


def test_every_optimizer_reads_what_it_says():
    params = {"w": jnp.array([1.0])}
    for kind, known in training.OPTIMIZERS.items():
        names = known.reads
        built = data_flags.NamedOptimizer(kind)(
            {name: 1.0 for name in names if name != "adam_epsilon"}
        )
        assert built.init(params) is not None
        for missing in known.usual:
            with pytest.raises(ValueError, match=missing):
                data_flags.NamedOptimizer(kind)(dict.fromkeys(set(names) - {missing}, 0.5))


def test_a_cosine_ends_at_zero_after_the_candidates_own_steps():
    params, gradient = {"w": jnp.array([1.0])}, {"w": jnp.array([2.0])}
    optimizer = data_flags.NamedOptimizer("sgd", "cosine")(HYPERPARAMETERS)
    state, updates = optimizer.init(params), []
    for _ in range(9):
        update, state = optimizer.update(gradient, state, params)
        updates.append(float(update["w"][0]))
    assert updates[0] == pytest.approx(-1.0) and updates[4] == pytest.approx(-0.5)
    assert updates[8] == pytest.approx(0.0, abs=1e-6)
    constant = training.sgd()(HYPERPARAMETERS)
    assert float(constant.update(gradient, constant.init(params), params)[0]["w"][0]) == -1.0


BINARIES = {
    "tune": ["--widths=64", "--optimizer=momentum", "nominal number of training records"],
    "pareto": ["--widths=128,64", "--optimizer=adam", "DPareto's division of Adult"],
    "federated_vote": [],
}
_ASK = """
import importlib, sys
from absl import flags
module = importlib.import_module(sys.argv[1])
flags.FLAGS([module.__name__])
for flag in flags.FLAGS.get_key_flags_for_module(module):
    print(flag.name, flag.default, flag.help)
    print(flag.serialize())
"""


@pytest.mark.parametrize("binary", BINARIES)
def test_shared_flags_are_the_binarys_own(binary):
    """--help lists the key flags of the binary's own module only."""
    done = python("-c", _ASK, f"experiments.{binary}", check=True)
    for name in ("dataset", "data_dir", "cache_dir", "classes", "model", "widths"):
        assert f"\n{name} " in f"\n{done.stdout}", name
    for words in BINARIES[binary]:
        assert words in done.stdout


def test_a_table_with_its_schema_is_tuned_and_its_flags_are_refused_elsewhere(run_cases, tmp_path):
    table, schema = tmp_path / "people.csv", tmp_path / "people.json"
    rows = "".join(f"{20 + i % 40},{'north' if i % 3 else ''},{i % 2}\n" for i in range(200))
    table.write_text("age,region,sick\n" + rows)
    known = {
        "target": {"column": "sick", "classes": [0, 1]},
        "columns": {"age": {"range": [18, 65]}, "region": {"values": ["north"]}},
    }
    schema.write_text(json.dumps(known))
    own = [f"--dataset={table}", "--public_size=200"]
    results = run_cases(
        "experiments.tune",
        [
            [
                *(*own, f"--schema={schema}", f"--test_table={table}", "--method=untuned"),
                *("--lot_size=40", "--steps=3", f"--out_dir={tmp_path / 'run'}"),
            ],
            own,
            [*own, f"--schema={schema}", "--classes=2"],
            ["--dataset=digits", f"--schema={schema}"],
        ],
    )
    code, printed, errors = results[0]
    assert code == 0, errors
    assert "accuracy on test data" in printed
    stated = json.loads((tmp_path / "run" / "release" / "guarantee.json").read_text())
    assert "input_shape" not in stated or stated["input_shape"] == [5]
    for (code, _, errors), words in zip(
        results[1:],
        ("pass --schema=", "--classes belongs to", "--schema belongs to --dataset=your own .csv"),
    ):
        assert code == 2 and words in errors and len(errors.splitlines()) == 1, errors
