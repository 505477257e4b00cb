"""Hyperparameters that the loss reads: given alone, traced, one compilation a sweep, refused."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting, training, tuning
from dpjax.tuning.problem.inspection import programs
from dpjax.tuning.steps import Material

GENERATOR = np.random.default_rng(8)
INPUTS = GENERATOR.normal(size=(60, 3)).astype(np.float32)
TARGETS = (INPUTS @ np.float32([0.5, -0.3, 0.2])).astype(np.float32)
SEEN, TRACES = [], []
SGD = training.sgd()


def _loss(params, example, *rest):
    TRACES.append(1)
    given = rest[-1]
    SEEN.append(set(given))
    error = example[0] @ params["w"] - example[1]
    return 0.5 * error**2 + 0.5 * given["decay"] * jnp.sum(params["w"] ** 2)


def _records(first, end, **options):
    arrays = (INPUTS[first:end], TARGETS[first:end])
    return tuning.Records(
        arrays, end - first, end - first + 5, identifiers=np.arange(first, end),
        stable_under_removal=True, **options,
    )  # fmt: skip


TASK = tuning.Task(
    initial=lambda key: {"w": jnp.ones(3)},
    loss=_loss,
    score=lambda params, example: 1 - jnp.abs(example[0] @ params["w"] - example[1]) / 4,
    train=_records(0, 40),
    validation=_records(40, 60),
    loss_reads=("decay",),
)
SPACE = tuning.Space(learning_rate=0.3, decay=tuning.Choice((0.0, 4.0)), clip_norm=50.0)


def _config(**changes):
    return training.TrainConfig(**{
        "loss_fn": _loss,
        "loss_reads": ("decay",),
        "lots": training.PoissonLots(60, 1.0, 60),
        "steps": 3,
        "expected_lot_size": 60,
        "optimizer": training.sgd(),
        **changes,
    })  # fmt: skip


GIVEN = {"clip_norm": np.inf, "noise_multiplier": 0.0, "learning_rate": 0.3}


def _by_hand(decay):
    w = np.ones(3)
    for _ in range(3):
        w -= 0.3 * (INPUTS.T @ (INPUTS @ w - TARGETS) / 60 + decay * w)
    return w


def test_the_loss_sees_each_candidates_own_and_no_other_name():
    SEEN.clear()
    mapped = {"decay": 0, **dict.fromkeys(GIVEN)}
    run = jax.jit(jax.vmap(training.make_train(_config()), in_axes=(0, mapped, None, None)))
    keys = jnp.stack([jax.random.key(number) for number in range(3)])
    decays = np.float32([0.0, 0.5, 2.0])
    found = run(keys, {"decay": decays, **GIVEN}, TASK.initial(None), (INPUTS, TARGETS))["w"]
    for number, decay in enumerate(decays):
        np.testing.assert_allclose(found[number], _by_hand(decay), rtol=1e-4)
    assert set(map(frozenset, SEEN)) == {frozenset({"decay"})}


def test_slots_of_a_mixed_sweep_give_each_its_own():
    configs = [dataclasses.replace(_config(), steps=steps) for steps in (3, 1, 3)]
    configs = [dataclasses.replace(one, optimizer=SGD) for one in configs]
    given = {name: np.full(3, value) for name, value in GIVEN.items()}
    results = training.mixed_sweep(
        configs, training.candidate_keys(3), given | {"decay": np.float32([0.5, 9.0, 2.0])},
        (INPUTS, TARGETS), initial=TASK.initial,
    )  # fmt: skip
    found = {int(i): w for indices, out in results for i, w in zip(indices, out["w"])}
    for number, decay in ((0, 0.5), (2, 2.0)):
        np.testing.assert_allclose(found[number], _by_hand(decay), rtol=1e-4)


def test_runs_over_a_mesh_give_it_too():
    given = {name: np.float32(value) for name, value in (GIVEN | {"decay": 0.5}).items()}
    start, records = {"w": np.ones(3, np.float32)}, (INPUTS, TARGETS)
    for size in (None, 8):
        mesh = training.LotMesh()
        run = jax.jit(training.make_train(_config(mesh=mesh, micro_batch_size=size)))
        found = run(*mesh.put((jax.random.key(0), given, start, records)))
        np.testing.assert_allclose(found["w"], _by_hand(0.5), rtol=1e-4)


TUNERS = {
    "random_repetitions": tuning.RandomRepetitions(accounting.Fixed(12)),
    "exponential": tuning.Exponential(2.0, 4, 3),
}


def _tune(tuner, task=TASK, space=SPACE):
    with pytest.warns(UserWarning):
        return tuning.tune(
            task, space, tuner, delta=1e-4, seed=3, optimizer=training.sgd(),
            run=tuning.RunOptions(lot_size=20, steps=8, noise_multiplier=1.5),
        )  # fmt: skip


@pytest.mark.parametrize("name", TUNERS)
def test_what_the_loss_reads_is_tuned_and_nothing_else_reaches_it(name):
    SEEN.clear()
    result = _tune(TUNERS[name])
    assert set(result.release.hyperparameters) == {"learning_rate", "decay", "clip_norm"}
    assert set(map(frozenset, SEEN)) == {frozenset({"decay"})}


def test_many_candidates_trace_the_loss_no_oftener_than_few():
    counts = []
    # What is traced once for a task, whoever comes first, is left out.
    for number in (2, 2, 14):
        TRACES.clear()
        _tune(tuning.RandomRepetitions(accounting.Fixed(number)))
        counts.append(len(TRACES))
    assert 0 < counts[1] == counts[2]


def test_with_a_key_and_users_it_comes_last():
    def loss(params, example, rng, given):
        return _loss(params, example, given) * jax.random.uniform(rng)

    def own(params, example, rng, given):
        changed = example[0] + given["decay"], example[1]
        return jnp.mean(
            jax.vmap(lambda key: loss(params, changed, key, given))(jax.random.split(rng))
        )

    ids = np.arange(60) // 2
    users = [
        tuning.Records.of_users(
            (INPUTS[rows], TARGETS[rows]), ids[rows], most_records=2, public_size=20, size_bound=25
        )
        for rows in (slice(0, 40), slice(40, 60))
    ]
    task = dataclasses.replace(TASK, loss=own, with_rng=True, train=users[0], validation=users[1])
    _tune(tuning.RandomRepetitions(accounting.Fixed(1)), task)


@pytest.mark.parametrize(
    "task, space, message",
    [
        (
            TASK,
            tuning.Space(learning_rate=0.3),
            "or the model reads decay, which the space",
        ),
        (dataclasses.replace(TASK, loss_reads=("decay", "partition")), SPACE, "reads partition"),
        (dataclasses.replace(TASK, loss_reads=("decay", "steps")), SPACE, "reads steps"),
        (TASK, tuning.Space(learning_rate=0.3, decay=1.0, dropout=0.1), "dropout, which nothing"),
    ],
)
def test_names_that_are_not_the_spaces_are_refused_in_one_line(task, space, message):
    with pytest.raises(ValueError, match=message) as caught:
        Material(task, training.sgd(), space.parameters).check()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("names", ["decay", ("decay", "decay"), (3,), 7])
def test_what_are_no_names_is_refused(names):
    for one in (TASK, _config()):
        with pytest.raises(ValueError, match="loss_reads"):
            dataclasses.replace(one, loss_reads=names)


def test_a_run_without_it_is_refused():
    with pytest.raises(ValueError, match="the loss needs the hyperparameter decay"):
        training.make_train(_config())(
            jax.random.key(0), GIVEN, TASK.initial(None), (INPUTS, TARGETS)
        )


def test_a_resumed_job_knows_a_loss_that_reads_from_one_that_does_not():
    names = {*SPACE.parameters, "noise_multiplier", "lot_size", "steps"}
    other = dataclasses.replace(
        TASK, loss=lambda params, example, given: _loss(params, example, {"decay": 0.0})
    )
    hashes = [programs(task, training.sgd(), names)["loss"] for task in (TASK, other)]
    assert hashes[0] != hashes[1]
