"""A lot spread over devices, of one process or two, trains what one device trains."""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap

import flax.linen as nn
import held_back
import jax
import jax.numpy as jnp
import numpy as np
import one_run
import ports
import pytest
from one_run import DATA, FEATURES, GIVEN, ROWS, loss

from dpjax import training
from dpjax.randomness import keys as key_streams
from dpjax.randomness import noise, threefry
from dpjax.training import dp_sgd, micro_batches
from dpjax.training.sweep import slots as sweep_slots

ROOT = pathlib.Path(__file__).parents[2]
GENERATOR = np.random.default_rng(12)
# 8 hidden units: divisible by 2 and 4 devices, not by 3; 24 and 1 entries by neither.
HIDDEN = 8
START = one_run.START | {"kernel": GENERATOR.normal(size=(FEATURES, HIDDEN)).astype(np.float32)}
KEY = 3
BASE = dataclasses.replace(one_run.BASE, steps=4, micro_batch_size=2)
NUMBER = 31  # Of a data set smaller than its bound, members lie anywhere in the lot.


def flat(params):
    return {name: np.asarray(value).ravel().tolist() for name, value in params.items()}


def on_device(mesh=None, **changes):
    """By `make_train`, with arrays where a mesh wants them."""
    config = dataclasses.replace(BASE, mesh=mesh, **changes)
    arguments = (jax.random.key(KEY), given(), START, DATA)
    if mesh is not None:
        *others, data = arguments
        own = slice(None)
        if mesh.split_data:  # Every process passes a part of the rows.
            each = ROWS // jax.process_count()
            own = slice(each * jax.process_index(), each * (jax.process_index() + 1))
        put = mesh.put_records if mesh.split_data else mesh.put
        arguments = *mesh.put(tuple(others)), put({name: rows[own] for name, rows in data.items()})
    return flat(jax.jit(training.make_train(config))(*arguments, np.int32(NUMBER)))


def given():
    return {name: np.float32(value) for name, value in GIVEN.items()}


class Killed(Exception):
    pass


def resumed_in_a_sweep(mesh, folder):
    """By `mixed_sweep`, which saves itself; killed once, and undisturbed."""
    configs = [dataclasses.replace(BASE, mesh=mesh, steps=steps) for steps in (4, 2)]

    def swept(progress=None, **options):
        found = {}
        for indices, outputs in training.mixed_sweep(
            configs, training.candidate_keys(2, seed=5),
            {name: np.full(2, value) for name, value in GIVEN.items()}, DATA,
            initial=lambda key: jax.tree.map(jnp.asarray, START), chunk_size=1,
            progress=progress, **options,
        ):  # fmt: skip
            for row, index in enumerate(indices.tolist()):
                found[index] = flat(jax.tree.map(lambda leaf, row=row: leaf[row], outputs))
        return [found[index] for index in range(2)]

    def saved():
        return {"checkpoints": training.Checkpoints(folder, every_seconds=0.0)}

    def kill_first(done, total):
        raise Killed

    with contextlib.suppress(Killed):
        swept(kill_first, **saved())
    return swept(**saved()), swept()


def evaluated(mesh):
    """The targets of the rows whose loss is evaluated, one of 11 records in every lot."""
    seen = []

    def counting(params, example, rng):
        jax.debug.callback(lambda y: seen.append(float(y)), example["y"])
        return loss(params, example, rng)

    config = dataclasses.replace(
        BASE, loss_fn=counting, lots=training.PoissonLots(ROWS, 1.0, ROWS), steps=1, mesh=mesh,
        micro_batch_size=1,
    )  # fmt: skip
    jax.block_until_ready(
        jax.jit(training.make_train(config))(
            jax.random.key(KEY), given(), START, DATA, np.int32(11)
        )
    )
    jax.effects_barrier()
    return sorted(seen)


def longest(mesh):
    """The norm of a lot of one clipped record, in clip norms; of 600 places, 150 a device."""
    config = dataclasses.replace(
        BASE, lots=training.PoissonLots(600, 1.0, 600), steps=1, expected_lot_size=1,
        optimizer=training.sgd(), mesh=mesh, micro_batch_size=None,
    )  # fmt: skip
    small = {"clip_norm": 0.01, "noise_multiplier": 0.0, "learning_rate": 1.0}
    values = {name: np.float32(value) for name, value in small.items()}
    run = jax.jit(training.make_train(config))
    data = training.padded(DATA, 600)
    result = run(jax.random.key(KEY), values, START, data, np.int32(1))
    steps = [np.ravel(result[name] - START[name]) for name in ("bias", "kernel")]
    return float(np.linalg.norm(np.concatenate(steps).astype(np.float64)) / 0.01)


def on_four_devices():
    mesh = training.LotMesh()
    three = training.LotMesh(tuple(jax.devices()[:3]), shard_state=True)
    sweep, undisturbed = resumed_in_a_sweep(mesh, os.path.join(tempfile.mkdtemp(), "sweep"))
    split = training.LotMesh(model=2, shard_state=True)
    of_split, undisturbed_split = resumed_in_a_sweep(split, os.path.join(tempfile.mkdtemp(), "it"))
    return {
        "devices": len(jax.devices()),
        "alone": on_device(),
        "mesh": on_device(mesh),
        "three": on_device(three, micro_batch_size=None),
        "split state": on_device(training.LotMesh(shard_state=True)),
        "split model": on_device(training.LotMesh(model=4)),
        "groups": on_device(training.LotMesh(model=2)),
        "split data": on_device(training.LotMesh(split_data=True)),
        "all split": on_device(training.LotMesh(model=2, split_data=True, shard_state=True)),
        "groups, split state": on_device(training.LotMesh(model=2, shard_state=True)),
        "empty lots": [
            on_device(m, lots=training.PoissonLots(ROWS, 1e-30, 20))
            for m in (None, mesh, training.LotMesh(model=2))
        ],
        "sweep resumed": sweep,
        "sweep": undisturbed,
        "split sweep resumed": of_split,
        "split sweep": undisturbed_split,
        "evaluated": evaluated(mesh),
        "longest": longest(mesh),
    }


class Block(nn.Module):
    """One of a transformer's, small."""

    @nn.compact
    def __call__(self, x):
        normed = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=2, qkv_features=32)(normed, normed)
        return x + nn.Dense(32)(nn.gelu(nn.Dense(128)(nn.LayerNorm()(x))))


class Transformer(nn.Module):
    """Tokens (positions,) to logits (positions, 48)."""

    @nn.compact
    def __call__(self, tokens):
        return nn.Dense(48)(Block()(nn.Embed(48, 32)(tokens)))


def transformer_on_eight_devices():
    """One transformer whole and over eight devices: what it becomes, and what a device holds."""
    model, positions = Transformer(), 8
    tokens = np.random.default_rng(0).integers(0, 48, (32, positions + 1))
    params = model.init(jax.random.key(0), tokens[0, :-1])

    def loss(params, tokens):
        logits = jax.nn.log_softmax(model.apply(params, tokens[:-1]))
        return -jnp.mean(jnp.take_along_axis(logits, tokens[1:, None], 1))

    hyperparameters = {"clip_norm": 1.0, "noise_multiplier": 1.0, "learning_rate": 0.01}
    hyperparameters = {name: jnp.float32(value) for name, value in hyperparameters.items()}

    def ran(mesh):
        config = training.TrainConfig(
            loss_fn=loss, lots=training.PoissonLots(32, 0.25, 16), steps=2, expected_lot_size=8,
            optimizer=training.adam(), micro_batch_size=4, mesh=mesh,
        )  # fmt: skip
        whole = (jax.random.key(KEY), hyperparameters, tokens)
        key, given, data = whole if mesh is None else mesh.put(whole)
        if mesh is not None and mesh.split_data:
            data = mesh.put_records(tokens)
            assert data.addressable_shards[0].data.shape[0] == len(tokens) / 8
        start = params if mesh is None else mesh.put_params(jax.device_get(params))
        begun = jax.jit(functools.partial(dp_sgd.begin, config))(given, start)
        run = functools.partial(
            dp_sgd.advance, config, expected_lot_size=8.0, steps=np.uint32(2),
            draw=lambda key, step: config.lots.draw(key, 32),
        )  # fmt: skip
        compiled = jax.jit(run).lower(key, given, begun, data).compile()
        state = compiled(key, given, begun, data)
        leaves = jax.tree.leaves(state)
        return {
            "params": {
                jax.tree_util.keystr(path): np.ravel(leaf).tolist()
                for path, leaf in jax.tree_util.tree_leaves_with_path(state.params)
            },
            "moved": float(jnp.abs(jax.tree.leaves(state.params)[-1]).max()),
            "bytes": sum(leaf.nbytes for leaf in leaves),
            "on a device": sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves),
            "put on a device": sum(
                leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(start)
            ),
            "begun on a device": sum(
                leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(begun)
            ),
            "scratch": compiled.memory_analysis().temp_size_in_bytes,
        }

    meshes = {"alone": None, "model": training.LotMesh(model=8)}
    meshes["groups"] = training.LotMesh(model=2, shard_state=True, split_data=True)
    return {name: ran(mesh) for name, mesh in meshes.items()}


def candidates_on_eight_devices():
    """Three transformers, two at a time, each over 2 x 2 devices: (candidates x data x model)."""
    model, positions, records = Transformer(), 8, 32
    tokens = np.random.default_rng(0).integers(0, 48, (records, positions + 1)).astype(np.int32)

    def loss(params, tokens):
        logits = jax.nn.log_softmax(model.apply(params, tokens[:-1]))
        return -jnp.mean(jnp.take_along_axis(logits, tokens[1:, None], 1))

    given = {
        "clip_norm": np.ones(3), "noise_multiplier": np.ones(3), "learning_rate": [0.01, 0.03, 0.1]
    }  # fmt: skip
    held = []

    def trained(mesh, placement):
        config = training.TrainConfig(
            loss_fn=loss, lots=training.PoissonLots(records, 0.25, 16), steps=3,
            expected_lot_size=8, optimizer=training.adam(), micro_batch_size=4, mesh=mesh,
        )  # fmt: skip
        configs = [dataclasses.replace(config, steps=steps) for steps in (3, 2, 2)]
        data = tokens if mesh is None else mesh.put_records(tokens)
        found = {}
        for indices, outputs in training.mixed_sweep(
            configs, training.candidate_keys(3, seed=5), given, data,
            initial=lambda key: model.init(key, tokens[0, :-1]), chunk_size=1,
            placement=placement, useful_work=0.1, number_of_records=records,
        ):  # fmt: skip
            for row, index in enumerate(indices.tolist()):
                one = jax.tree.leaves(jax.tree.map(lambda leaf, row=row: leaf[row], outputs))
                found[index] = np.concatenate([np.ravel(leaf) for leaf in one])
        return [found[index].tolist() for index in range(3)]

    mesh = training.LotMesh(model=2, candidates=2, shard_state=True, split_data=True)
    advance = sweep_slots.Slots.advance

    def looking(slots, most):
        """Notes what a device holds of the state of two candidates, and how much that is."""
        harvest = advance(slots, most)
        leaves = jax.tree.leaves(slots.state)
        a_device = sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves)
        held.append([a_device, sum(leaf.nbytes for leaf in leaves)])
        return harvest

    alone = trained(None, training.Placement(1))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sweep_slots.Slots, "advance", looking)
        side_by_side = trained(mesh, training.Placement(1, mesh=mesh))
    data = mesh.put_records(tokens)
    return {
        "alone": alone,
        "side by side": side_by_side,
        "held": held,
        "records on a device": data.addressable_shards[0].data.shape[0],
    }


def tuned(*placements):
    """A job's tests, their task cut to records that no 4 divide, and what `tune` finds of it."""
    sys.path.insert(0, str(ROOT / "tests/tuning"))
    import test_job

    cut = jax.tree.map(lambda leaf: leaf[:37], test_job.TASK.train.arrays)
    task = dataclasses.replace(
        test_job.TASK, train=dataclasses.replace(test_job.TASK.train, arrays=cut)
    )
    found = {}
    for name in placements:
        for plan in (test_job.PROCEDURE, test_job.procedure(lot_size=20)):
            ran = test_job.run(placement=name, task=task, plan=plan)
            best = ran.best.output(0)
            one = [ran.scores.tolist(), [*best["w"].tolist(), float(best["b"])]]
            found.setdefault(name, []).append(one)
    return test_job, task, found


def tuned_on_eight_devices():
    test_job, task, found = tuned("one_by_one", "1x8x1", "2x4x1")
    # A model of three weights cannot be shared by two devices.
    with pytest.raises(ValueError, match="pad it, or pass a model that divides"):
        test_job.run(placement="2x2x2", task=task)
    with pytest.raises(ValueError, match=r"placement='2x2x3' on 8 device\(s\)"):
        test_job.run(placement="2x2x3", task=task)
    return found


def read_of_a_mapped_file():
    """Share of a mapped file that putting it on the devices of all brings to memory."""

    def resident():
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    rows = 2**18 + 1  # Not a multiple of the devices.
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "records.npy")
        np.lib.format.open_memmap(path, "w+", np.float64, (rows, 128))[-1] = 1.0
        mapped = np.load(path, mmap_mode="r")
        before = resident()
        spread = training.LotMesh(split_data=True).put_records(mapped, by_all=True)
        share = (resident() - before) / mapped.nbytes
    assert spread.shape == (rows + 3, 128) and spread.dtype == np.float32
    assert float(jnp.sum(spread)) == 128.0
    return share


def in_one_of_two_processes(port, index):
    from dpjax.training.sweep import hosts

    hosts.join(f"localhost:{port}", 2, index)
    return {
        "devices": len(jax.devices()),
        "reads its share": read_of_a_mapped_file() < 0.9,  # Half, and that in half the bytes.
        "mesh": on_device(training.LotMesh()),
        "split state": on_device(training.LotMesh(shard_state=True)),
        "split data": on_device(training.LotMesh(split_data=True)),
    }


def tuned_in_one_of_two_processes(port, index):
    from dpjax.training.sweep import hosts

    hosts.join(f"localhost:{port}", 2, index)
    test_job, task, found = tuned("one_by_one", "1x2x1", "1x4x1")
    for name in ("2x2x1", "1x8x1"):
        with pytest.raises(ValueError, match="that is, or for 1 candidate at a time 4, those of"):
            test_job.run(placement=name, task=task)
    with pytest.raises(ValueError, match="no common checkpoints: pass no folder"):
        test_job.Job(placement="1x4x1", folder="work")
    return found


SCRIPT = textwrap.dedent(
    """
    import json, sys
    sys.path[:0] = ["tests/training", "tests/helpers"]
    import jax, test_mesh
    name, *arguments = sys.argv[1:]
    print(json.dumps(getattr(test_mesh, name)(*map(int, arguments))))
    """
)


def in_processes(devices, *commands):
    """What functions of this module return, each in a process with so many devices of its own."""
    environment = os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *map(str, command)],
            cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for command in commands
    ]  # fmt: skip
    outputs = []
    for process in processes:
        printed, errors = process.communicate(timeout=900)
        assert process.returncode == 0, errors
        outputs.append(json.loads(printed.splitlines()[-1]))
    return outputs


def in_two_processes(name):
    """What a function of a port and a process's number returns, the same in both processes."""
    with ports.held() as port:
        first, second = in_processes(2, *((name, port, index) for index in range(2)))
    assert first == second, "processes disagree"
    return first


def assert_same_tuning(alone, *spread):
    for of_placement in spread:
        for (scores, weights), (expected, whole) in zip(of_placement, alone, strict=True):
            assert scores == expected
            # A whole lot is one block, in turns a row moves two: more is held back, less than 1e-4.
            np.testing.assert_allclose(weights, whole, rtol=1e-5, atol=1e-4)


def assert_close(left, right, more=0.0):
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_allclose(left[name], right[name], rtol=1e-5, atol=1e-6 + more)


@pytest.fixture(scope="module")
def four():
    return in_processes(4, ("on_four_devices",))[0]


def test_four_devices_train_what_one_trains(four):
    assert four["devices"] == 4
    names = ["mesh", "three", "split state", "split model", "groups", "groups, split state"]
    for name in [*names, "split data", "all split"]:
        # Three devices take 7 rows each: more is held back for their blocks than for those of 2.
        assert_close(four[name], four["alone"], held_back.share(7, 20) if name == "three" else 0.0)
    assert np.abs(np.array(four["alone"]["kernel"]) - START["kernel"].ravel()).max() > 0.05
    assert four["alone"]["frozen"] == [2.0]


def test_a_transformer_over_eight_devices(tmp_path):
    """The model that one device makes, of which no device holds more than its share."""
    (found,) = in_processes(8, ("transformer_on_eight_devices",))
    alone = found.pop("alone")
    for name, spread in found.items():
        assert_close(spread["params"], alone["params"])
        for moment in ("put on a device", "begun on a device", "on a device"):
            assert spread[moment] <= 1.15 * alone["bytes"] / 8, (name, moment)
    # Within a step, too, a device of one group has an eighth of the sums and of the noise.
    assert found["model"]["scratch"] < 0.4 * alone["scratch"]


def test_candidates_side_by_side_over_groups_of_devices():
    """Each model is the one that one device makes; a device has a quarter of one candidate's."""
    (found,) = in_processes(8, ("candidates_on_eight_devices",))
    for spread, alone in zip(found["side by side"], found["alone"]):
        np.testing.assert_allclose(spread, alone, rtol=1e-5, atol=1e-6)
    assert np.abs(np.subtract(*found["alone"][1:])).max() > 0.01
    for held, whole in found["held"]:
        assert held <= 1.15 * whole / 8
    assert found["records on a device"] == 8


def test_a_tuner_over_groups_of_devices():
    (found,) = in_processes(8, ("tuned_on_eight_devices",))
    assert_same_tuning(found.pop("one_by_one"), *found.values())


def test_an_empty_lot_gets_the_one_noise(four):
    alone, *spread = four["empty lots"]
    assert spread == [alone, alone]
    assert np.abs(np.array(alone["kernel"]) - START["kernel"].ravel()).max() > 0.05


def test_every_record_of_a_lot_is_on_some_device(four):
    """11 records in turns of 4, one a device: as many turns as one device has at most."""
    evaluated = four["evaluated"]
    key = jax.random.fold_in(key_streams.stream(jax.random.key(KEY), "lots"), 0)
    mask = np.asarray(training.PoissonLots(ROWS, 1.0, ROWS).draw(key, 11)[1])
    assert len(evaluated) == 4 * max(mask[device::4].sum() for device in range(4))
    assert set(evaluated) >= {float(np.float32(y)) for y in DATA["y"][:11]}


def test_a_record_is_held_back_for_the_rows_of_a_whole_lot(four):
    assert four["longest"] == pytest.approx(held_back.longest(150, 600), abs=1e-4)
    assert held_back.longest(150, 600) < 0.999


def test_a_sweep_over_a_mesh_resumes_to_the_identical_result(four):
    assert four["sweep resumed"] == four["sweep"]
    assert four["split sweep resumed"] == four["split sweep"]
    for split, whole in zip(four["split sweep"], four["sweep"]):
        assert_close(split, whole)


def test_two_processes_train_what_one_device_trains(four):
    both = in_two_processes("in_one_of_two_processes")
    assert both["devices"] == 4
    assert both["reads its share"]
    for name in ("mesh", "split state", "split data"):
        assert_close(both[name], four["alone"])


def test_two_processes_tune_together_or_each_its_own_candidates():
    """A process has 2 devices: of `1x2x1` each trains its candidates, `1x4x1` has all train all."""
    found = in_two_processes("tuned_in_one_of_two_processes")
    assert_same_tuning(found.pop("one_by_one"), *found.values())


# Shares, on the one device of this process -------------------------------------------------------


@pytest.mark.parametrize(("shares", "size"), [(1, 3), (2, 3), (4, 2), (7, 1), (3, 20)])
def test_shares_add_up_to_the_lot(shares, size):
    """Rows that are powers of two: the sum tells which of them it holds, how often."""
    grad_fn = training.clipped_grad(lambda params, row: params["w"] * row)
    rows = jnp.asarray(2.0 ** np.arange(18), jnp.float32)
    mask = jnp.asarray(GENERATOR.random(18) < 0.7)
    lot, held = (jnp.arange(18), mask), []
    for share in range(shares):
        high, low = micro_batches.sum_of_lot(
            grad_fn, {"w": jnp.zeros(())}, rows, lot, np.float32(1e30), None, size,
            share=(np.uint32(share), shares),
        )  # fmt: skip
        low = np.zeros(()) if low is None else low["w"]
        held.append(float(high["w"]) + float(low))
    factor = 1 + 18 * 2.0**-23
    assert sum(held) * factor == pytest.approx(float(rows[mask].sum()), rel=1e-5)
    numbers = [round(each * factor) for each in held]
    assert all(a & b == 0 for i, a in enumerate(numbers) for b in numbers[:i])


def test_pairs_add_up_without_rounding():
    """2,000 devices' pairs: the rest counts too, to 2**-46 of the total."""
    generator = np.random.default_rng(3)
    highs = generator.normal(size=(2000, 64)).astype(np.float32)
    lows = (np.spacing(np.abs(highs)) * generator.uniform(-0.5, 0.5, highs.shape)).astype(
        np.float32
    )
    total = jnp.asarray(highs[0]), jnp.asarray(lows[0])
    add = jax.jit(micro_batches.added)
    for high, low in zip(highs[1:], lows[1:]):
        total = add(total, high, low)
    exact = highs.astype(np.float64).sum(0) + lows.astype(np.float64).sum(0)
    found = np.asarray(total[0], np.float64) + np.asarray(total[1], np.float64)
    np.testing.assert_allclose(found, exact, atol=2000 * np.abs(highs).max() * 2.0**-42)


def test_a_mesh_of_one_device_is_that_device():
    one = training.LotMesh((jax.devices()[0],))
    assert on_device(one) == on_device()
    assert one.size == 1 and one.share_of(7) == 7


@pytest.mark.parametrize(
    ("sizes", "names", "words"),
    [
        ((2, 1, 1), ("candidates", "rows", "model"), "a placement over 2x1x1"),
        ((1, 2, 1), ("candidates", "rows", "model"), "a placement over 1x2x1"),
        ((8,), ("candidates",), "a placement over 8"),
    ],
)
def test_a_run_over_other_devices_than_its_placement_is_refused(sizes, names, words):
    """Its groups would take rows of a lot twice, or never."""
    around = jax.sharding.AbstractMesh(sizes, names)
    with jax.sharding.use_abstract_mesh(around), pytest.raises(ValueError) as refused:
        on_device(training.LotMesh((jax.devices()[0],)))
    assert f"a run over 1x1x1 devices in {words}: pass Placement(1, mesh=)" in str(refused.value)


def test_noise_in_pieces_is_the_draw():
    key = key_streams.stream(jax.random.key(0, impl="threefry2x32"), "noise")
    mesh = training.LotMesh((jax.devices()[0],))
    shapes, scale = ((5, 3, 4), (), (16,)), np.float32(2.0**20)
    found = jax.jit(mesh.dithered_normal, static_argnums=1)(key, shapes, scale)
    assert [numbers.shape for numbers in found] == list(shapes)
    for mine, cut in zip(found, noise.cut_draw(key, shapes, scale)):
        np.testing.assert_array_equal(mine, cut)
    together = np.concatenate([np.ravel(numbers) for numbers in found])
    np.testing.assert_array_equal(together, threefry.dithered_normal(key, 77, scale))


def test_records_that_devices_cannot_share_evenly_are_refused():
    mesh = training.LotMesh(split_data=True)
    spread = mesh.put_records({"x": np.arange(6.0)})
    np.testing.assert_array_equal(spread["x"], np.arange(6.0))
    assert mesh.put_records(np.zeros((0, 3)), by_all=True).shape == (1, 3)
    two = dataclasses.replace(mesh)
    object.__setattr__(two, "devices", mesh.devices * 2)
    with pytest.raises(ValueError, match="7 records on 2 devices: append rows up to a multiple"):
        two.put_records(np.arange(7.0))


def test_a_model_that_devices_cannot_share_evenly_is_refused():
    """By shapes alone; what stays whole may be little: biases, scales."""
    mesh = object.__new__(training.LotMesh)  # Without devices, of which this process has one.
    for name, value in {"devices": tuple(range(4)), "model": 4, "shard_state": False}.items():
        object.__setattr__(mesh, name, value)
    mesh_of = jax.sharding.AbstractMesh((1, 4), ("rows", "model"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(training.LotMesh, "mesh", property(lambda self: mesh_of))
        shaped = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)  # noqa: E731
        mesh.check_layout({"kernel": shaped(30, 40), "bias": shaped(43)})
        with pytest.raises(ValueError, match=r"array \(7, 9\) has no axis that 4 divides: pad it"):
            mesh.check_layout({"kernel": shaped(30, 40), "odd": shaped(7, 9), "bias": shaped(3)})
