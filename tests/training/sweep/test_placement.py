"""Where candidates run changes how long they take, never what they are."""

import dataclasses
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
from dpjax.training.sweep.placement import Placement, named_placement
from experiments.benchmarks import h100

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
def test_the_rule_goes_by_public_sizes(bytes_of_step, width):
    """Small steps side by side on a CPU, all on an accelerator; several devices share them."""
    assert named_placement("rule", 16, bytes_of_step) == Placement(width)
    several = (Device(None, "cpu"),) * 3
    found = named_placement("rule", 16, bytes_of_step, devices=several)
    assert found == Placement(width, several)
    for silent in (None, {}, {"bytes_limit": 0}, {"bytes_limit": -1}):
        several = Device(silent), Device({"bytes_limit": 1})
        found = named_placement("rule", 16, bytes_of_step, devices=several)
        assert found == Placement(16, several)


@dataclasses.dataclass(frozen=True, eq=False)
class Device:
    """A made-up device that tells this of its memory."""

    stats: dict[str, int] | None
    platform: str = "gpu"

    def memory_stats(self):
        return self.stats


def on_an_accelerator(memory, candidates, bytes_of_step, **more):
    """Returns how many stand side by side on two devices, one of which has less memory."""
    devices = [Device({"bytes_limit": memory}), Device({"bytes_limit": 2 * memory})]
    return named_placement("rule", candidates, bytes_of_step, devices=devices, **more).width


def test_an_accelerator_takes_as_many_as_its_memory_holds_in_turns_of_one_size():
    # Of steps of 4 bytes: 16 fit, then 2 turns of 8, 3 of 6, 4 of 4, ... and one however small.
    sizes = (64, 63, 32, 31, 24, 23, 16, 4, 3)
    assert [on_an_accelerator(size, 16, 4) for size in sizes] == [16, 8, 8, 6, 6, 4, 4, 1, 1]
    assert on_an_accelerator(64, 16, 4, bytes_beside=1) == 8
    assert on_an_accelerator(64, 16, 4, bytes_beside=100) == 1
    assert on_an_accelerator(10**9, 16, 0) == 16


@pytest.mark.parametrize("candidates", [1, 2, 7, 100, 1024])
def test_no_fewer_turns_would_fit(candidates):
    """Of candidates that take less beside others, as those do that share a micro-batch's rows."""
    for own in (lambda width: 3, lambda width: 1 + 60 // width, lambda width: max(2, 64 // width)):
        for memory in (1, 10, 64, 65, 100, 301, 1000, 4000):
            width = on_an_accelerator(memory, candidates, own)
            assert width == 1 or width * own(width) <= memory
            for turns in range(1, -(-candidates // width)):
                more = -(-candidates // turns)
                assert more == width or more * own(more) > memory


def test_runs_side_by_side_share_what_a_micro_batch_may_take():
    """However they are mapped: by a sweep, by slots, by a placement of one's own."""

    def loss(params, example):
        return jnp.sum(jnp.tanh(jnp.outer(jnp.arange(100_000.0), example * params)))

    config = training.TrainConfig(
        loss_fn=loss,
        lots=training.PoissonLots(1000, 0.064, 129),
        steps=1,
        expected_lot_size=64,
        optimizer=training.sgd(),
    )
    start, data = jnp.zeros(3), np.zeros((1000, 3), np.float32)

    def of_one(key, given):
        return training.make_train(config)(key, given, start, data)

    def rows(width):
        given = dict.fromkeys(("clip_norm", "noise_multiplier", "learning_rate"), np.ones(width))
        mapped = Placement(width).mapped(of_one, (0, 0))
        with h100.traced():
            text = str(jax.make_jaxpr(mapped)(training.candidate_keys(width, seed=0), given))
        return [size for size in (129, 16, 8, 4, 2) if f"f32[{width},{size},3]" in text]

    assert [rows(width) for width in (2, 64, 512)] == [[129], [16], [2]]


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
