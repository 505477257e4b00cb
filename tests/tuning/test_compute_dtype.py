"""Activations in bfloat16 as an option of runs: trained by, stated, verified, part of a job."""

import dataclasses
import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import noise_alone
import noted_steps
import numpy as np
import pytest
import small_tasks
import tiny_tuners

from dpjax import auditing, training, tuning
from dpjax.training.clipping.implicit_convolution import ImplicitConvolutions
from dpjax.tuning import NotVerified, verify_release

RUN = tuning.RunOptions(lot_size=20, steps=4, noise_multiplier=2.0)
NARROW = tuning.RunOptions(lot_size=20, steps=4, noise_multiplier=2.0, compute_dtype="bfloat16")
SPACE = tuning.Space(learning_rate=0.3, clip_norm=0.5)


@pytest.fixture(autouse=True)
def _quiet(recwarn):
    """A seed and a large delta are meant."""
    yield
    recwarn.clear()


def tuned(task, run=NARROW, tuner=None, **more):
    given = dict(optimizer=training.sgd(), delta=1e-3, validation_is_public=True, seed=3) | more
    return tuning.tune(task, SPACE, tuner or tuning.Untuned(), run=run, **given)


def noted(seen, kind=jnp.float32, loss=None, **more):
    """A task of one kernel whose loss and score note the types that they are given."""

    def of_scores(name, params, example):
        seen.append((name, params["w"].dtype.name, example[0].dtype.name, example[1].dtype.name))
        return example[0] @ params["w"]

    def usual(params, example):
        return (of_scores("loss", params, example) - example[1]) ** 2

    parts = small_tasks.parts(40, apart=0.5)
    return tuning.Task(
        initial=lambda key: {"w": jnp.zeros(3, kind)},
        loss=loss or usual,
        correct=lambda params, e: (of_scores("score", params, e) > 0) == (e[1] > 0),
        train=tuning.Records(
            (parts.train.inputs.astype(np.float32), parts.train.labels),
            27, 30, True, np.arange(len(parts.train.labels)), True,
        ),
        validation=tuning.Records(
            (parts.validation.inputs.astype(np.float32), parts.validation.labels), 13, 15, True
        ),
        **more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def results():
    task = small_tasks.linear()
    return {run.compute_dtype: tuned(task, run) for run in (RUN, NARROW)}


def leaves(result):
    return jax.tree.leaves(result.release.params)


def test_a_release_says_so_verifies_and_costs_the_same(results, tmp_path):
    plain, narrow = results["float32"], results["bfloat16"]
    assert "compute_dtype" not in plain.release.statement["run_options"]
    assert narrow.guarantee.epsilon(1e-3) == plain.guarantee.epsilon(1e-3)
    for one, other in zip(leaves(plain), leaves(narrow), strict=True):
        assert one.dtype == other.dtype == np.float32
        assert 1e-6 < np.abs(one - other).max() < 0.02
    narrow.release.save(str(tmp_path / "release"))
    statement = tmp_path / "release" / "guarantee.json"
    stated = json.loads(statement.read_text())
    own = plain.release.statement
    assert stated["run_options"] == own["run_options"] | {"compute_dtype": "bfloat16"}
    assert {name: stated[name] for name in own if name != "run_options"} == {
        name: own[name] for name in own if name != "run_options"
    }
    assert verify_release(str(statement)).epsilon == stated["epsilon"]


def test_a_statement_is_verified_and_proved():
    words = noise_alone.statement(NARROW)
    assert words["run_options"]["compute_dtype"] == "bfloat16"
    noise_alone.assert_verified_and_proved(words)


@pytest.mark.parametrize("value", ["float32", "float16", 3, None])
def test_a_statement_of_another_type_is_not_verified(value, results, tmp_path):
    statement = dict(results["bfloat16"].release.statement)
    statement["run_options"] = statement["run_options"] | {"compute_dtype": value}
    release = results["bfloat16"].release
    tuning.Release(release.params, release.hyperparameters, statement).save(str(tmp_path / "r"))
    with pytest.raises(NotVerified) as error:
        verify_release(str(tmp_path / "r" / "guarantee.json"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", tiny_tuners.NAMES)
def test_every_tuner_trains_in_bfloat16_and_scores_in_float32(name):
    seen = []
    tiny_tuners.run(name, task=noted(seen), run=NARROW)
    # What is looked at before the option is chosen is float32.
    types = [types for of, *types in seen if of == "loss"]
    assert types[0] == ["float32", "float32", "int32"]
    assert types[-1] == ["bfloat16", "bfloat16", "int32"]
    assert {(*types,) for of, *types in seen if of == "score"} == {("float32", "float32", "int32")}


def test_only_what_is_floating_is_cast_and_a_user_s_loss_too():
    seen, parts = [], small_tasks.parts(40, apart=0.5)

    def users(part, number, first):
        ids = first + np.arange(len(part.labels)) % number
        arrays = part.inputs.astype(np.float32), part.labels
        return tuning.Records.of_users(
            arrays, ids, most_records=3, public_size=number, size_bound=number + 2
        )

    task = noted(seen)
    parts = users(parts.train, 14, 0), users(parts.validation, 7, 100)
    task = tuning.Task(
        initial=task.initial, loss=task.loss, correct=task.correct, train=parts[0],
        validation=parts[1],
    )  # fmt: skip
    tuned(task, tuning.RunOptions(5, 2, None, 2.0, compute_dtype="bfloat16"))
    assert ("loss", "bfloat16", "bfloat16", "int32") in seen


def test_a_ready_task_casts_its_model_and_not_its_loss_weighted_or_not():
    seen = []

    class Noting(nn.Module):
        @nn.compact
        def __call__(self, inputs):
            scores = nn.Dense(2, name="dense")(inputs)
            seen.append((inputs.dtype.name, scores.dtype.name))
            return scores

    def loss(scores, labels):
        seen.append(scores.dtype.name)
        return optax_like(scores, labels)

    def optax_like(scores, labels):
        return -jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], 1)[:, 0]

    of = small_tasks.parts(40, apart=0.5)
    for more, around in (
        ({}, None),
        ({"class_weights": (1.0, 0.5)}, None),
        ({}, ImplicitConvolutions),
    ):
        del seen[:]
        task = tuning.classification(Noting(), of.train, of.validation, loss=loss, **more)
        task = task if around is None else dataclasses.replace(task, loss=around(task.loss))
        tuned(task, tuning.RunOptions(5, 2, None, 2.0, compute_dtype="bfloat16"))
        assert ("bfloat16", "bfloat16") in seen
        assert {one for one in seen if isinstance(one, str)} == {"float32"}


def test_a_folder_is_bound_to_the_type_and_a_run_goes_on_to_the_same_model(tmp_path, results):
    task, folder = small_tasks.linear(), str(tmp_path / "work")
    tuner = tuning.RandomRepetitions()
    shard = tuning.Job(folder=folder, shard=(0, 2))
    given = dict(tuner=tuner, task=task)
    assert tuned(**given, job=shard) is None
    with pytest.raises(ValueError, match=r"other data or settings \(.*run options"):
        tuned(**given, run=RUN, job=shard)
    assert tuned(**given, job=tuning.Job(folder=folder, shard=(1, 2))) is None
    merged = tuned(**given, job=tuning.Job(folder=folder, shard=(None, 2)))
    again = tuned(**given, job=tuning.Job(folder=str(tmp_path / "whole")))
    for one, other in zip(leaves(merged), leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)


def _without_bfloat16(params, example):
    return jnp.sum(jax.lax.mul(params["w"], jnp.ones(3, jnp.float32)) * example[0])


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (lambda: noted([], jnp.bfloat16), "norms and sums in float32, and w is bfloat16: pass"),
        (lambda: noted([], jnp.float16), "norms and sums in float32, and w is float16: pass"),
        (
            lambda: noted([], loss=_without_bfloat16),
            r"compute_dtype='bfloat16': the loss cannot be computed in it \(.*\): drop it",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_the_draw(task, said, tmp_path):
    folder = tmp_path / "job"
    with pytest.raises(ValueError, match=said) as error:
        tuned(task(), job=tuning.Job(folder=str(folder)))
    assert "\n" not in str(error.value) and not folder.exists()
    with pytest.raises(tiny_tuners.Planned):  # Without the option it would be drawn.
        tuned(task(), RUN, job=tiny_tuners.Asks())


def test_what_is_wrong_in_any_type_is_said_of_the_loss():
    with pytest.raises(ValueError, match="the task's loss returns int32 of shape"):
        tuned(noted([], loss=lambda params, example: example[1]))


def test_parameters_that_are_not_trained_may_be_narrow():
    def initial(key):
        return {"w": jnp.zeros(3), "fixed": jnp.ones(3, jnp.bfloat16)}

    base = noted([], trainable=lambda path, leaf: path == ("w",))
    task = tuning.Task(
        initial=initial, loss=base.loss, correct=base.correct, train=base.train,
        validation=base.validation, trainable=base.trainable,
    )  # fmt: skip
    assert [leaf.dtype.name for leaf in leaves(tuned(task))] == ["bfloat16", "float32"]


def test_an_audit_is_of_the_same_training():
    seen = []
    found = auditing.executions(
        tuning.Untuned(), noted(seen), SPACE, 2, delta=0.02, run=NARROW, seed=1,
        optimizer=training.sgd(), validation_is_public=True,
    )  # fmt: skip
    assert seen[-1][0] == "score" and ("loss", "bfloat16", "bfloat16", "int32") in seen
    assert np.isfinite(found.params["w"]).all()


def test_kernels_that_store_no_patches_stay_with_the_loss():
    seen, of = [], noted([])
    task = noted([], loss=ImplicitConvolutions(of.loss))
    with pytest.raises(noted_steps.Stopped):
        tuned(task, tuner=noted_steps.noting(tuning.Untuned, seen, stop_after="runs")())
    loss = seen[0].material.task.loss
    assert isinstance(loss, ImplicitConvolutions) and loss.loss_fn is not of.loss


@pytest.mark.parametrize("wrong", ["float16", "", 32, None, ("bfloat16",)])
def test_another_type_is_refused(wrong):
    with pytest.raises(ValueError, match=r"compute_dtype=.*: pass 'float32' or 'bfloat16'"):
        tuning.RunOptions(compute_dtype=wrong)
