"""Activations in bfloat16: a record moves a sum by the clip norm at most; norms are float32's."""

import fuzz_clipping
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from dpjax import models, training
from experiments.accelerator.drawn_losses import Program, losses

ROWS = 8


class Net(nn.Module):
    """Layers of every kind of plan: convolution, norm, products at many positions and at one."""

    @nn.compact
    def __call__(self, images):
        hidden = nn.relu(nn.Conv(4, (3, 3))(images))
        hidden = nn.LayerNorm()(hidden.reshape(len(images), -1, 4))
        hidden = jnp.mean(nn.tanh(nn.Dense(7)(hidden)), axis=1)
        return nn.Dense(3)(hidden)


@pytest.fixture(scope="module")
def problem():
    model = models.functional(Net(), np.zeros((6, 6, 1), np.float32))
    images = np.random.default_rng(0).normal(size=(ROWS, 6, 6, 1)).astype(np.float32)
    return model, model.init(jax.random.key(0)), (images, np.arange(ROWS) % 3)


def _grad_fn(model, dtype="bfloat16"):
    return training.clipped_grad(model.computed_in(dtype).example_loss(models.cross_entropy))


def _summed(grad_fn, optimised=True):
    options = fuzz_clipping.OPTIMISED if optimised else None
    return jax.jit(lambda *given: grad_fn(*given)[0], compiler_options=options)


def _vector(tree):
    leaves = [np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)]
    return np.concatenate(leaves)


@pytest.mark.parametrize("name", losses(Program("dense")))
def test_no_record_moves_a_sum_by_more_than_the_clip_norm(name):
    """Rows and factors of scales from 1e-38 to 1e38; each loss by another rule and size."""
    number = list(losses(Program("dense"))).index(name)
    one = Program(
        name,
        rule=["global", "per_leaf", "automatic", "grouped"][number % 4],
        method="factored" if number % 3 else "auto",
        rows=7,
        positions=[1, 8][number // 2 % 2],
        features=16,
        length=2,
        rows_in_sum=1000 * (number % 2),
        candidates=2 * (number // 3 % 2),
        seed=number,
        compute_dtype="bfloat16",
    )
    assert 0 < fuzz_clipping.excess(one) <= 1


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e4, 1e30])
def test_a_net_s_records_of_any_size_add_at_most_the_clip_norm(problem, scale):
    model, params, (images, labels) = problem
    summed, clip_norm = _summed(_grad_fn(model)), 0.5
    batch, every = (images * np.float32(scale), labels), np.ones(ROWS, bool)
    whole = _vector(summed(params, batch, clip_norm, every))
    for row in range(ROWS):
        own = np.arange(ROWS) == row
        alone = _vector(summed(params, batch, clip_norm, own))
        moved = whole - _vector(summed(params, batch, clip_norm, ~own))
        assert max(np.linalg.norm(alone), np.linalg.norm(moved)) <= clip_norm
        np.testing.assert_allclose(moved, alone, atol=2e-6)


def test_rows_that_are_masked_or_are_no_numbers_add_nothing(problem):
    model, params, (images, labels) = problem
    summed = _summed(_grad_fn(model))
    mask = np.arange(ROWS) < 5
    first = summed(params, (images, labels), 1.0, mask)
    for value in (np.nan, np.inf, 1e38):
        other = np.where(mask[:, None, None, None], images, np.float32(value))
        jax.tree.map(
            np.testing.assert_array_equal, first, summed(params, (other, labels), 1.0, mask)
        )
    broken = np.where(mask[:, None, None, None], images, np.float32(np.nan))
    every = np.ones(ROWS, bool)
    jax.tree.map(np.testing.assert_array_equal, first, summed(params, (broken, labels), 1.0, every))


def test_what_a_record_adds_depends_on_no_other_record_and_little_on_its_place(problem):
    """By a last bit of float32 at most: activations, 8 bits, are the same at every place."""
    model, params, (images, labels) = problem
    summed, order = _summed(_grad_fn(model)), np.roll(np.arange(ROWS), 3)
    for row in range(ROWS):
        own, others = np.arange(ROWS) == row, images[::-1] * 7
        mine = np.where(own[:, None, None, None], images, others)
        alone = summed(params, (images, labels), 1.0, own)
        jax.tree.map(np.testing.assert_array_equal, alone, summed(params, (mine, labels), 1.0, own))
        moved = summed(params, (images[order], labels[order]), 1.0, order == row)
        np.testing.assert_allclose(_vector(moved), _vector(alone), atol=1e-6)


def test_norms_and_sums_are_float32_and_activations_are_not(problem):
    """A clip norm of infinity leaves each gradient as it is: its norm is known to 1e-6."""
    model, params, batch = problem
    grad_fn = _grad_fn(model)
    _, found = grad_fn(params, batch, 1.0)
    assert found.norms.dtype == found.values.dtype == jnp.float32
    for row in range(ROWS):
        summed = grad_fn(params, batch, jnp.inf, np.arange(ROWS) == row)[0]
        assert {leaf.dtype for leaf in jax.tree.leaves(summed)} == {jnp.dtype("float32")}
        # All of the gradient but 2**-18, and what is held back for the sum.
        own = float(found.norms[row])
        assert np.linalg.norm(_vector(summed)) == pytest.approx(own, rel=1e-6)
    plain = training.clipped_grad(model.example_loss(models.cross_entropy))
    _, usual = plain(params, batch, 1.0)
    off = np.abs(np.asarray(found.norms / usual.norms) - 1)
    assert 1e-5 < np.median(off) < 0.03


def test_a_model_is_cast_and_its_loss_is_not(problem):
    model, params, (images, labels) = problem
    seen = []

    def noting(params, inputs, rng=None):
        seen.append({leaf.dtype for leaf in jax.tree.leaves((params, inputs))})
        return model.apply(params, inputs, rng)

    def loss(scores, targets):
        seen.append((scores.dtype, targets.dtype))
        return jnp.sum((scores - targets[:, None]) ** 2, axis=-1)

    noted = models.FunctionalModel(model.init, noting).computed_in("bfloat16").example_loss(loss)
    value = noted(params, (images[0], np.float32(2007.0)))
    assert seen == [{jnp.dtype("bfloat16")}, (jnp.float32, jnp.float32)]
    # 2007 in bfloat16 is 2008, which would be off by 6,000.
    scores = np.asarray(model.apply(params, images[:1]))
    assert float(value) == pytest.approx(float(((scores - 2007.0) ** 2).sum()), rel=1e-4)
    assert value.dtype == jnp.float32


def test_a_type_of_activations_that_there_is_not_is_refused(problem):
    for wrong in ("float16", "half", None):
        with pytest.raises(ValueError, match="dtype=.*: pass 'float32' or 'bfloat16'"):
            problem[0].computed_in(wrong)
