"""Contributions that are measured while a run computes: one too long ends it."""

import flat_call
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_tasks

from dpjax import training, tuning
from dpjax.training.clipping.clipped_grad import ClippedGrad

ROWS = 12
DRAWS = np.random.default_rng(5)
DATA = {
    "x": DRAWS.normal(size=(ROWS, 3)).astype(np.float32),
    "y": DRAWS.normal(size=ROWS).astype(np.float32),
}
GIVEN = {"clip_norm": 0.7, "noise_multiplier": 0.5, "learning_rate": 0.05}


def squared_error(params, example):
    return 0.5 * (example["x"] @ params["kernel"] + params["bias"] - example["y"]) ** 2


def run(rows, data=DATA, lots=None, candidates=0, **changes):
    config = training.TrainConfig(**{
        "loss_fn": squared_error,
        "lots": lots or training.PoissonLots(ROWS, 0.5, ROWS),
        "steps": 4,
        "expected_lot_size": 6,
        "optimizer": training.sgd(),
        "check_contributions": rows,
    } | changes)  # fmt: skip
    train = training.make_train(config)
    params = {"bias": jnp.zeros(()), "kernel": jnp.ones(3)}
    keys = training.candidate_keys(max(candidates, 1), seed=3)
    if candidates:
        return jax.jit(jax.vmap(train, (0, None, None, None)))(keys, GIVEN, params, data)
    return jax.jit(train)(keys[0], GIVEN, params, data)


def lengthened(monkeypatch, factor, place=slice(None)):
    """Weights of rows of a batch times a factor: what a compiler's mistake would look like."""
    original = ClippedGrad._weights

    def wrong(self, *given):
        return [each.at[place].multiply(factor) for each in original(self, *given)]

    monkeypatch.setattr(ClippedGrad, "_weights", wrong)


WAYS = {
    "whole lots": {},
    "micro-batches": {"micro_batch_size": 3},
    "per leaf": {"clipping": "per_leaf"},
    "automatic": {"clipping": "automatic"},
    "fixed lots": {"lots": training.FixedLots(ROWS, 5)},
    "several candidates": {"candidates": 3},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_run_whose_contributions_are_short_is_the_same(way):
    unchecked, checked = run(0, **WAYS[way]), run(ROWS, **WAYS[way])
    training.refuse_long(checked.longest)
    assert (checked.longest > 0.3).all()
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5), unchecked, checked.params
    )


@pytest.mark.parametrize("way", WAYS)
def test_one_that_is_too_long_leaves_nothing_but_nan(monkeypatch, way):
    far = {name: 100 * array for name, array in DATA.items()}  # All are as long as allowed.
    training.refuse_long(run(ROWS, far, **WAYS[way]).longest)
    lengthened(monkeypatch, 1.01)
    found = run(ROWS, far, **WAYS[way])
    with pytest.raises(RuntimeError, match=r"a record contributed (1\.0[01]\d*|nan) clip norms"):
        training.refuse_long(found.longest)
    for leaf in jax.tree.leaves(found.params):
        assert np.isnan(leaf).all()


def test_no_number_is_too_long(monkeypatch):
    lengthened(monkeypatch, jnp.nan, 0)
    with pytest.raises(RuntimeError, match="a record contributed nan clip norms"):
        training.refuse_long(run(ROWS).longest)


def test_one_of_many_is_found_in_its_share_of_the_lots(monkeypatch):
    """Row 2 of lots of all 12 is too long, and 3 of them are measured: found in a step of 4."""
    lengthened(monkeypatch, 3.0, 2)
    every = training.PoissonLots(ROWS, 1.0, ROWS)
    far = {name: 100 * array for name, array in DATA.items()}
    found = np.asarray(run(3, far, every, steps=1, candidates=400).longest)
    assert ((found > 2.9) | (found < 1)).all()
    assert 70 <= (found > 2.9).sum() <= 130


def test_no_row_of_the_padding_is_checked(monkeypatch):
    """A lot of no records: nothing is measured, and nothing is wrong."""
    lengthened(monkeypatch, 1.1)
    assert run(ROWS, lots=training.PoissonLots(ROWS, 1e-12, ROWS)).longest == 0


@pytest.mark.parametrize("folder", [None, "work"])
def test_a_job_that_checks_ends_with_nothing(monkeypatch, tmp_path, folder):
    task = small_tasks.linear(small_tasks.parts())
    given = {"delta": 1e-6, "optimizer": training.sgd(), "noise_multiplier": 2.0, "seed": 3}
    space = tuning.Space(learning_rate=0.1, clip_norm=1e-3)

    def tuned(rows):
        job = tuning.Job(folder=folder and str(tmp_path / folder), check_contributions=rows)
        return flat_call.tune(tuning.Untuned, task, space, lot_size=10, steps=2, job=job, **given)

    lengthened(monkeypatch, 1.1)
    with pytest.raises(RuntimeError, match=r"a record contributed 1\.09"):
        tuned(40)
    monkeypatch.undo()
    assert (
        tuned(40).release.statement
        == flat_call.tune(
            tuning.Untuned, task, space, lot_size=10, steps=2, **given
        ).release.statement
    )


def test_models_of_partitions_end_a_job_as_well(monkeypatch):
    told = []  # Of models that were kept.
    lengthened(monkeypatch, 1.1)
    with pytest.raises(RuntimeError, match=r"a record contributed 1\.09"):
        flat_call.tune(tuning.Exponential, small_tasks.linear(small_tasks.parts()),
            tuning.Space(learning_rate=tuning.Choice([0.1, 0.2]), clip_norm=1e-3),
            delta=1e-6, optimizer=training.sgd(), noise_multiplier=2.0, seed=3, lot_size=10,
            steps=2, candidates=2, partitions=4, job=tuning.Job(check_contributions=8),
            progress=lambda done, total: told.append(done),
        )  # fmt: skip
    assert not any(told)


@pytest.mark.parametrize("rows", [-1, 0.5, "3", None])
def test_numbers_of_rows_that_are_none(rows):
    for made in (lambda: run(rows), lambda: tuning.Job(check_contributions=rows)):
        with pytest.raises(ValueError, match="check_contributions"):
            made()


def test_lots_over_several_devices_are_not_checked():
    mesh = training.LotMesh(tuple(jax.local_devices()))
    with pytest.raises(ValueError, match="mesh=None"):
        run(1, mesh=mesh)
    with pytest.raises(ValueError, match="one device"):
        tuning.Job(placement="lot_over_devices", check_contributions=1)
