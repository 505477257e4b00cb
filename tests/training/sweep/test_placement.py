"""Where candidates run changes how long they take, never what they are."""

import json
import os
import pathlib
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from processes import python

from dpjax import training
from dpjax.training.sweep import placement
from dpjax.training.sweep.placement import Placement, named_placement

# Trains 6 candidates alike and unlike, by every placement; prints the results by placement.
SCRIPT = textwrap.dedent(
    """
    import dataclasses, json, warnings
    import jax, jax.numpy as jnp, numpy as np
    from dpjax import training
    from dpjax.training import Placement

    generator = np.random.default_rng(7)
    data = {
        "x": generator.normal(size=(40, 3)).astype(np.float32),
        "y": generator.normal(size=40).astype(np.float32),
    }
    base = training.TrainConfig(
        loss_fn=lambda w, example: 0.5 * (example["x"] @ w - example["y"]) ** 2,
        lots=training.PoissonLots(40, 0.1, 12),
        steps=4,
        expected_lot_size=4,
        optimizer=training.sgd(),
    )
    keys = training.candidate_keys(6, seed=5)
    given = {
        "clip_norm": np.full(6, 1.0),
        "noise_multiplier": np.full(6, 0.5),
        "learning_rate": np.linspace(0.1, 0.3, 6),
    }
    train = training.make_train(base)

    def run(key, hyperparameters, data):
        return train(key, hyperparameters, jnp.zeros(3), data)

    def collect(sweep):
        results = {}
        for indices, outputs in sweep:
            results |= dict(zip(indices.tolist(), outputs.tolist()))
        return [results[index] for index in range(6)]

    results, padded = {}, {}
    for name in ("rule", "vmap", "one_by_one", "devices", "devices_one_by_one"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            results[name] = collect(
                training.sweep(run, keys, given, data, chunk_size=4, placement=name)
            )
        padded[name] = [str(w.message) for w in caught if "do not divide" in str(w.message)]
    configs = [dataclasses.replace(base, steps=s) for s in (4, 2, 7, 4, 1, 3)]
    for name, devices in (("mixed", None), ("mixed devices", tuple(jax.local_devices()))):
        results[name] = collect(
            training.mixed_sweep(
                configs, keys, given, data, initial=lambda key: jnp.zeros(3), useful_work=0.3,
                placement=Placement(2, devices),
            )
        )
    print(json.dumps([len(jax.local_devices()), results, padded]))
    """
)


def in_a_process(devices: int):
    environment = os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(pathlib.Path(__file__).parents[3]),
    }
    output = python("-c", SCRIPT, env=environment)
    assert output.returncode == 0, output.stderr
    return json.loads(output.stdout.splitlines()[-1])


def test_four_devices_give_what_one_gives():
    found, results, padded = in_a_process(4)
    assert found == 4
    for name in ("rule", "one_by_one", "devices", "devices_one_by_one"):
        np.testing.assert_allclose(results[name], results["vmap"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(results["mixed devices"], results["mixed"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(results["mixed"][0], results["vmap"][0], rtol=1e-5, atol=1e-6)
    assert len(np.unique(np.round(results["vmap"], 5), axis=0)) == 6
    # Six candidates on four devices: two lanes are padding, and it says so.
    assert padded["devices"] == [
        "6 candidates do not divide by 4 devices: the last lanes are padding"
    ]
    assert padded["vmap"] == []


@pytest.mark.parametrize(
    ("bytes_of_step", "width"), [(0, 16), (10**5, 16), (10**6, 16), (2**20, 16), (2**20 + 1, 1)]
)
def test_the_rule_goes_by_public_sizes(monkeypatch, bytes_of_step, width):
    """Small steps side by side on a CPU, all on an accelerator; several devices share them."""
    assert named_placement("rule", 16, bytes_of_step) == Placement(width)
    several = jax.local_devices() * 3
    monkeypatch.setattr(placement.jax, "local_devices", lambda: several)
    assert named_placement("rule", 16, bytes_of_step) == Placement(width, tuple(several))
    monkeypatch.setattr(placement.jax, "default_backend", lambda: "gpu")
    assert named_placement("rule", 16, bytes_of_step) == Placement(16, tuple(several))


def test_the_rule_keeps_what_stands_side_by_side_small():
    assert named_placement("rule", 10_000, 2**20) == Placement(16)
    assert named_placement("rule", 10_000, 2**12) == Placement(2**12)


def test_a_step_is_as_large_as_its_rows_and_its_parameters():
    """Of shapes alone, and whatever the steps; what is not trained counts for nothing."""

    def loss(params, example):
        return jnp.sum((example @ params["w"] + params["frozen"].sum()) ** 2)

    def of(capacity, wide, **changes):
        config = training.TrainConfig(
            loss_fn=loss,
            lots=training.PoissonLots(10_000, 0.001, capacity),
            steps=1,
            expected_lot_size=10,
            optimizer=training.sgd(),
            trainable={"w": True, "frozen": False},
            **changes,
        )
        params = {
            "w": jax.ShapeDtypeStruct((8, wide), np.float32),
            "frozen": jax.ShapeDtypeStruct((10**6,), np.float32),
        }
        return training.bytes_of_step(config, params, np.zeros((10_000, 8), np.float32))

    row = of(21, 3) - of(20, 3)
    assert row > 8 * 4
    assert of(20, 3) == 20 * row + 16 * 4 * 24
    assert of(20, 3, micro_batch_size=5) == 5 * row + 16 * 4 * 24
    assert of(20, 3000) > 16 * 4 * 24_000


def test_names():
    assert named_placement("rule", 8) == Placement(8)
    assert named_placement("vmap", 8) == Placement(8)
    assert named_placement("devices_one_by_one", 8).width == 1
    assert Placement(3).lanes == 3
