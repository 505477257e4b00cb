"""A mixed sweep trains every candidate as it would be trained alone."""

import dataclasses
import functools

import held_back
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import training
from dpjax.training import micro_batches
from dpjax.training.sweep import slots
from dpjax.training.sweep.schedule import Work

ROWS, FEATURES = 40, 3
GENERATOR = np.random.default_rng(7)
DATA = {
    "x": GENERATOR.normal(size=(ROWS, FEATURES)).astype(np.float32),
    "y": GENERATOR.normal(size=ROWS).astype(np.float32),
}


def loss(params, example):
    return 0.5 * (example["x"] @ params["kernel"] + params["bias"] - example["y"]) ** 2


def initial(key):
    return {"kernel": 0.1 * jax.random.normal(key, (FEATURES,)), "bias": jnp.zeros(())}


BASE = training.TrainConfig(
    loss_fn=loss,
    lots=training.PoissonLots(ROWS, 0.1, 12),
    steps=5,
    expected_lot_size=4,
    optimizer=training.momentum(),
)
POISSON = [(0.1, 12, 5), (0.2, 18, 9), (0.05, 8, 2), (0.1, 12, 11), (0.3, 30, 4), (0.15, 16, 1)]
CONFIGS = [
    dataclasses.replace(
        BASE,
        lots=training.PoissonLots(ROWS, rate, capacity),
        steps=steps,
        expected_lot_size=(0.8 + 0.1 * place) * rate * ROWS,  # No other number gives it.
    )
    for place, (rate, capacity, steps) in enumerate(POISSON)
]
FIXED = [
    dataclasses.replace(
        BASE,
        lots=training.FixedLots(ROWS, lot),
        relation=None,
        steps=steps,
        expected_lot_size=lot + steps,
    )
    for lot, steps in ((4, 3), (7, 6), (4, 8), (30, 2), (12, 1))
]
NUMBER = len(CONFIGS)
HYPERPARAMETERS = {
    "clip_norm": np.linspace(0.7, 1.3, NUMBER),
    "noise_multiplier": np.linspace(0.5, 1.0, NUMBER),
    "learning_rate": np.linspace(0.05, 0.2, NUMBER),
    "momentum": np.linspace(0.85, 0.93, NUMBER),
}
KEYS = training.candidate_keys(NUMBER, seed=5)


@functools.cache
def alone(fixed):
    """Every candidate by `make_train`, one at a time."""
    results = []
    for index, config in enumerate(fixed_or_poisson(fixed)):
        given = {name: np.float32(values[index]) for name, values in HYPERPARAMETERS.items()}
        start = initial(training.stream(KEYS[index], "initial"))
        train = jax.jit(training.make_train(config))
        results.append(jax.device_get(train(KEYS[index], given, start, DATA)))
    return results


def fixed_or_poisson(fixed):
    return [dataclasses.replace(c, relation=None) for c in FIXED] if fixed else CONFIGS


def mixed(configs, order=None, **options):
    """Results by candidate, whatever the order they are given in."""
    order = np.arange(len(configs)) if order is None else np.asarray(order)
    results = {}
    for indices, outputs in training.mixed_sweep(
        [configs[index] for index in order],
        KEYS[order],
        {name: values[order] for name, values in HYPERPARAMETERS.items()},
        DATA,
        initial=initial,
        **options,
    ):
        for row, index in enumerate(indices):
            results[int(order[index])] = jax.tree.map(lambda leaf, row=row: leaf[row], outputs)
    return [results[index] for index in range(len(configs))]


SHARES = 2 * held_back.share(ROWS, ROWS)
"""What clipped contributions to lots of few and of many places differ by, with room for momentum:
what is held back for rounding follows the places, and a bucket's lots have those of its largest."""


def assert_same(left, right, more=0.0):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5 + more, atol=1e-6 + more),
        left,
        right,
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunk_size": 1},
        {"chunk_size": 2, "useful_work": 0.3},
        {"useful_work": 0.01, "steps_per_call": 3},
        {"order": [4, 1, 5, 0, 3, 2], "chunk_size": 3, "useful_work": 0.3},
    ],
)
def test_a_candidate_is_trained_as_if_alone(options):
    """Slots, their order, buckets and calls do not show in any result."""
    assert_same(mixed(CONFIGS, **options), alone(False), SHARES)


def test_fixed_lots_too():
    assert_same(mixed(fixed_or_poisson(True), useful_work=0.3), alone(True))


def mixed_of(number, steps, **options):
    configs = [dataclasses.replace(BASE, steps=steps[i]) for i in range(number)]
    return training.mixed_sweep(
        configs,
        KEYS[:number],
        {name: values[:number] for name, values in HYPERPARAMETERS.items()},
        DATA,
        initial=initial,
        **options,
    )


def test_work_is_counted():
    """Runs of 6, 3, 2 and 2 steps in two slots: 13 of 14 slot steps; 4 records in 12 rows."""
    reports = []
    list(mixed_of(4, [2, 6, 3, 2], chunk_size=2, useful_work=0.5, report=reports.append))
    assert reports == [Work(13 * 4, 14 * 12, 13, 14)]


def test_progress_finish_and_one_compilation_a_bucket():
    traces, calls = [], []

    def counted(params, example):
        traces.append(1)
        return loss(params, example)

    configs = [dataclasses.replace(BASE, loss_fn=counted, steps=s) for s in (4, 3, 2, 2)]
    outputs = list(
        training.mixed_sweep(
            configs,
            KEYS[:4],
            {name: values[:4] for name, values in HYPERPARAMETERS.items()},
            DATA,
            initial=initial,
            finish=lambda params, extra: {"sum": params["kernel"].sum() + extra},
            finish_data=jnp.float32(100.0),
            chunk_size=2,
            useful_work=0.5,
            progress=lambda done, total: calls.append((done, total)),
        )
    )
    assert sorted(np.concatenate([indices for indices, _ in outputs])) == [0, 1, 2, 3]
    assert all(90 < value < 110 for _, output in outputs for value in output["sum"])
    assert calls[-1] == (4, 4)
    several = len(traces)
    list(mixed_of(1, [7]))
    jax.jit(training.make_train(configs[0]))(
        KEYS[0], {n: np.float32(v[0]) for n, v in HYPERPARAMETERS.items()}, initial(KEYS[0]), DATA
    )
    assert len(traces) == 2 * several, "a mixed sweep traces the loss more than once for a bucket"


def test_frozen_and_optimiser_state_belong_to_the_slot():
    """Frozen leaves, drawn per candidate, survive the refilling of their slot."""
    configs = [dataclasses.replace(c, trainable=MASK) for c in (CONFIGS[0], CONFIGS[3], CONFIGS[0])]
    results = mixed(configs, chunk_size=2, useful_work=0.1)
    for index, result in enumerate(results):
        start = initial(training.stream(KEYS[index], "initial"))
        np.testing.assert_allclose(result["kernel"], start["kernel"], rtol=1e-6)
        assert result["bias"] != 0


MASK = {"kernel": False, "bias": True}


def test_no_candidate():
    reports = []
    assert list(mixed_of(0, [], report=reports.append)) == []
    assert reports == [Work()]


def test_bad_input_is_refused_by_the_call():
    other_lots = training.PoissonLots(ROWS - 1, 0.1, 12)
    fewer = training.FixedLots(ROWS - 1, 5)
    for message, configs, options in (
        ("chunk_size must be", CONFIGS, {"chunk_size": 0}),
        ("steps_per_call must be", CONFIGS, {"steps_per_call": 0}),
        ("one for each candidate", CONFIGS[:2], {}),
        ("differ in relation", [*CONFIGS[:5], FIXED[0]], {}),
        (
            "differ in loss_fn",
            [*CONFIGS[:5], dataclasses.replace(BASE, loss_fn=lambda params, example: 0.0)],
            {},
        ),
        ("never exceeds", [*CONFIGS[:5], dataclasses.replace(BASE, lots=other_lots)], {}),
        (f"exactly {ROWS - 1}", [dataclasses.replace(FIXED[0], lots=fewer)] * NUMBER, {}),
    ):
        with pytest.raises(ValueError, match=message):
            training.mixed_sweep(configs, KEYS, HYPERPARAMETERS, DATA, initial=initial, **options)
    with pytest.raises(ValueError, match="share a key"):
        training.mixed_sweep(
            CONFIGS, KEYS[np.zeros(NUMBER, int)], HYPERPARAMETERS, DATA, initial=initial
        )


def test_a_population_fixes_the_programs_whatever_was_drawn():
    """Slots and capacities follow the population; candidates outside of it are refused."""
    population, works = [CONFIGS[0]] * 4 + [CONFIGS[4]] * 4, []
    options = {"population": population, "report": works.append, "useful_work": 0.1}
    several = mixed([CONFIGS[0], CONFIGS[4], CONFIGS[4]], **options)
    one = mixed([CONFIGS[0]], **options)
    # Both go on for as many steps as the longest run has, with slots for all that may be drawn.
    assert [(one.slot_steps_executed, one.executed) for one in works] == [(8 * 5, 8 * 5 * 30)] * 2
    jax.tree.map(np.testing.assert_array_equal, several[0], one[0])
    with pytest.raises(ValueError, match="which the population lacks"):
        mixed([CONFIGS[1]], population=population)


def test_micro_batches_follow_the_population_whoever_is_first(monkeypatch):
    """The rows of a bucket's turns are chosen by the places of its own planned lots."""
    seen, side_by_side = [], []

    def fewer(*arguments):
        side_by_side.append(arguments[-1])
        return arguments[-2] - 1

    monkeypatch.setattr(micro_batches, "rows_at_once", fewer)
    real = slots.SlotProgram.rows_at_once

    def recording(program, family, inputs, width):
        seen.append((family.capacity, real(program, family, inputs, width)))
        return seen[-1][1]

    monkeypatch.setattr(slots.SlotProgram, "rows_at_once", recording)
    own = [CONFIGS[0], CONFIGS[4]]
    for order in ([0, 1], [1, 0]):
        mixed(own, order=order, population=own)
        assert sorted(seen) == [(12, 11), (30, 29)]
        seen.clear()
    # An accelerator's memory is shared by those that a device trains at once.
    for width in (1, 2, 4):
        side_by_side.clear()
        mixed([CONFIGS[0]] * 4, chunk_size=width, placement=training.Placement(width))
        assert side_by_side[0] == width
