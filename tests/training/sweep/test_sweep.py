"""A sweep compiles once, in chunks of one shape, and candidates do not notice each other."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.randomness.keys import candidate_keys
from dpjax.training.sweep.placement import named_placement
from dpjax.training.sweep.sweep import sweep

DATA = {"rows": np.arange(12.0, dtype=np.float32).reshape(4, 3)}


def make_run():
    """A run that counts its traces and the lanes it was vectorised over."""
    traces = []

    def run(key, hyperparameters, data):
        traces.append(jax.tree.map(jnp.shape, data))
        scale = hyperparameters["scale"]
        return {
            "vector": scale * data["rows"].sum(axis=0),
            "noise": jax.random.normal(key, (2,)),
        }

    return run, traces


def collect(run, keys, scales, chunk_size, order=None):
    order = np.arange(len(scales)) if order is None else order
    results = {}
    for indices, outputs in sweep(
        run, keys[order], {"scale": scales[order]}, DATA, chunk_size=chunk_size
    ):
        assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(outputs))
        for row, index in enumerate(indices):
            results[int(order[index])] = jax.tree.map(lambda leaf, row=row: leaf[row], outputs)
    return results


def test_one_compilation_a_sweep_whatever_the_remainder():
    run, traces = make_run()
    keys, scales = candidate_keys(11, seed=0), np.arange(11.0)
    results = collect(run, keys, scales, chunk_size=4)
    assert sorted(results) == list(range(11))
    assert len(traces) == 1
    collect(run, keys, scales, chunk_size=4)
    assert len(traces) == 1, "a repeated sweep of the same run compiles again"


def test_results_do_not_depend_on_chunk_size_or_order():
    run, _ = make_run()
    keys, scales = candidate_keys(7, seed=3), np.linspace(0.5, 2.0, 7)
    reference = collect(run, keys, scales, chunk_size=7)
    groups = [(1, None), (3, None), (100, None), (3, np.arange(7)[::-1].copy())]
    # In the groups that a device of so little memory takes in turn.
    for memory in (4, 3, 1):
        device = types.SimpleNamespace(
            platform="gpu", memory_stats=lambda memory=memory: {"bytes_limit": memory}
        )
        groups.append((named_placement("rule", 7, 1, devices=[device]).width, None))
    assert [width for width, _ in groups[4:]] == [4, 3, 1]
    for chunk_size, order in groups:
        results = collect(run, keys, scales, chunk_size, order)
        for index in range(7):
            jax.tree.map(
                lambda left, right: np.testing.assert_allclose(left, right, rtol=1e-6),
                results[index],
                reference[index],
            )
    alone = run(keys[2], {"scale": jnp.float32(scales[2])}, DATA)
    np.testing.assert_allclose(alone["noise"], reference[2]["noise"], rtol=1e-6)


def test_lanes_that_fill_up_a_chunk_have_keys_of_their_own():
    seen = []

    def run(key, hyperparameters, data):
        jax.debug.callback(
            lambda words: seen.append(tuple(words.tolist())), jax.random.key_data(key)
        )
        return hyperparameters["scale"]

    chunks = list(sweep(run, candidate_keys(5, seed=0), {"scale": np.ones(5)}, (), chunk_size=3))
    jax.effects_barrier()
    assert [indices.tolist() for indices, _ in chunks] == [[0, 1, 2], [3, 4]]
    assert [outputs.shape for _, outputs in chunks] == [(3,), (2,)]
    assert len(seen) == 6 and len(set(seen)) == 6


def test_memory_knob_limits_the_width_and_spreads_evenly():
    """33 candidates at most 32 at a time: 17 and 16, not 32 and 1 with 31 wasted lanes."""
    widths = [
        len(indices)
        for indices, _ in sweep(
            make_run()[0], candidate_keys(33, seed=0), {"scale": np.ones(33)}, DATA, chunk_size=32
        )
    ]
    assert widths == [17, 16]


def test_progress_is_reported():
    calls = []
    list(
        sweep(
            make_run()[0],
            candidate_keys(5, seed=0),
            {"scale": np.ones(5)},
            DATA,
            chunk_size=2,
            progress=lambda done, total: calls.append((done, total)),
        )
    )
    assert calls == [(2, 5), (4, 5), (5, 5)]


def test_one_and_no_candidate():
    run, traces = make_run()
    assert list(collect(run, candidate_keys(1, seed=0), np.ones(1), chunk_size=8)) == [0]
    assert list(sweep(run, candidate_keys(0), {"scale": np.ones(0)}, DATA)) == []
    assert len(traces) == 1


def refuse(message, keys, scale, **options):
    """The call itself refuses; nothing waits for the first chunk."""
    with pytest.raises(ValueError, match=message):
        sweep(make_run()[0], keys, {"scale": scale}, DATA, **options)


def test_duplicated_keys_are_refused():
    keys = candidate_keys(3, seed=0)
    refuse("identical noise", keys[np.array([0, 1, 0])], np.ones(3))
    refuse("identical noise", jnp.broadcast_to(keys[0], (3,)), np.ones(3))


def test_bad_input_is_refused():
    keys = candidate_keys(3, seed=0)
    refuse("not typed keys", jax.random.key_data(keys), np.ones(3))
    refuse("threefry2x32", jax.random.split(jax.random.key(0, impl="rbg"), 3), np.ones(3))
    refuse("one key per candidate", keys[0], np.ones(1))
    refuse("one number per candidate", keys, np.ones(2))
    refuse("one number per candidate", keys, 1.0)
    refuse("chunk_size must be", keys, np.ones(3), chunk_size=0)
