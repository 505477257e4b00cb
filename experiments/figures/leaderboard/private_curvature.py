"""A rate from the loss's own curvature, measured privately along the way; nothing is tuned.

Ruixuan Liu and Zhiqi Bu, "Towards hyperparameter-free optimization with differential privacy",
ICLR 2025, https://arxiv.org/abs/2503.00703. Gradients are clipped automatically. Every so many
steps the mean loss of a lot is evaluated at a few points along the optimiser's direction, clipped
by record and noised; a parabola through them has a slope b and a curvature a, and the rate is b / a
until the next one. The clip of losses follows the last private loss. Their noise is so large that
the gradient's, for the same total, grows by one percent alone.

Written from summaries of the method, without the paper's text or its authors' code. Model, lots and
steps are those of the public default. So is the first rate; plain gradient descent follows, where
the default has momentum. The rest was chosen on development tables (nassCDS, flights, Fertility,
TV16). Losses are clipped at `ROOM` times the last private one: at just this one or twice it, too
many records are cut off, rates grow without end, and on flights nothing was learnt. A parabola
counts if it opens upwards, falls along the direction and explains nine tenths of the variance of
its losses. A new rate is within a factor `MOST` of the last one. A first rate a third as high, or
Adam's direction from .01 or .03, lost up to 3 points. (A linear model starts a third as high as its
default, whose rate is for an average: at all of it, some runs on 5,000 records of nassCDS lost 8.)

Losses and gradient of one step are of the same lot, and are priced as one Gaussian whose squared
sensitivities add up. The last iterate is returned.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import accounting, models, training
from dpjax.models import losses

EVERY = 10
"""Steps from one parabola to the next."""

PLACES = (-2.0, -1.0, 0.0, 1.0, 2.0)
"""Where losses are asked, in steps of the present rate along the direction."""

MORE_NOISE = 1.01
"""Noise in the gradient over what it would be if no loss was asked."""

LEAST_EXPLAINED = 0.9
MOST = 2.0
ROOM = 3.0
FIRST_LOSS_CLIP, LEAST_LOSS_CLIP, CLIP_NORM = 1.0, 0.05, 1.0


def of_a_run(share: float, steps: int, gradient: float, loss: float) -> accounting.Guarantee:
    """Returns the cost of `steps` noisy gradients, and of a parabola's losses every so often.

    One lot's gradient and losses are one adaptive Gaussian release: a record that is in the lot
    moves it by 1 / gradient and, for each place, by 1 / loss standard deviations.
    """
    parabolas = -(-steps // EVERY)
    both = (1 - 1e-12) * (gradient**-2 + len(PLACES) * loss**-2) ** -0.5  # Rounded down.
    costs = [accounting.dp_sgd(share, both, parabolas)]
    if steps > parabolas:
        costs.append(accounting.dp_sgd(share, gradient, steps - parabolas))
    return accounting.compose(*costs)


@functools.lru_cache
def calibrated(share: float, steps: int, epsilon: float, delta: float) -> tuple[float, float]:
    """Returns the noise multipliers of gradients and of losses whose total is at most this."""
    alone = accounting.calibrate(
        lambda noise: accounting.dp_sgd(share, noise, steps), epsilon=epsilon, delta=delta
    )
    gradient = MORE_NOISE * alone
    loss = accounting.calibrate(
        lambda noise: of_a_run(share, steps, gradient, noise), epsilon=epsilon, delta=delta
    )
    return gradient, loss


@functools.cache
def _programs(module: Any, inputs: int) -> tuple:
    """Returns the model, and its compiled parts; rows (lot, d) with a mask (lot,)."""
    model = models.functional(module, jax.ShapeDtypeStruct((inputs,), jnp.float32))

    def loss(params, record):
        return losses.cross_entropy(model.apply(params, record[0][None])[0], record[1])

    clipped = training.clipped_grad(loss, clipping="automatic")

    @jax.jit
    def noisy_gradient(params, rows, mask, key, noise, lot):
        summed, _ = clipped(params, rows, clip_norm=CLIP_NORM, mask=mask)
        leaves, tree = jax.tree.flatten(summed)
        noised = [
            (leaf + noise * CLIP_NORM * jax.random.normal(one, leaf.shape)) / lot
            for leaf, one in zip(leaves, jax.random.split(key, len(leaves)))
        ]
        return jax.tree.unflatten(tree, noised)

    @jax.jit
    def clipped_losses(params, along, places, rows, mask, most):
        def at(place):
            of = jax.vmap(lambda *record: loss(moved(params, along, place), record))(*rows)
            # A loss that is not a number counts as the largest one.
            kept = jnp.nan_to_num(jnp.clip(of, 0.0, most), nan=most)
            return jnp.sum(jnp.where(mask, kept, 0.0))

        return jax.lax.map(at, places)

    @jax.jit
    def moved(params, along, rate):
        return jax.tree.map(lambda one, step: one - rate * step, params, along)

    return model, noisy_gradient, clipped_losses, moved


def next_rate(rate: float, values: np.ndarray) -> float:
    """Returns the rate after private mean losses at `PLACES`, the same where they say nothing."""
    fitted = np.polyfit(np.array(PLACES), values, 2)
    curvature, slope, _ = fitted
    missed = np.sum((np.polyval(fitted, PLACES) - values) ** 2)
    most_missed = (1 - LEAST_EXPLAINED) * np.sum((values - np.mean(values)) ** 2)
    if not (curvature > 0 and slope < 0 and missed <= most_missed):
        return rate
    return rate * float(np.clip(-slope / (2 * curvature), 1 / MOST, MOST))


def trained(
    module: Any,
    inputs: np.ndarray,
    labels: np.ndarray,
    *,
    noise: tuple[float, float],
    rate: float,
    lot_size: int,
    steps: int,
    seed: int,
) -> tuple[Any, Any, list[float]]:
    """Returns the model, its parameters and the rates of a run on inputs (n, d), labels (n,).

    `noise` is as of `calibrated`; the number of records is public. Randomness is NumPy's and JAX's:
    for measurements alone.
    """
    number = len(labels)
    model, noisy_gradient, clipped_losses, moved = _programs(module, inputs.shape[1])
    keys = jax.random.split(jax.random.key(seed), steps + 1)
    generator = np.random.default_rng([2025, seed])
    params = model.init(keys[-1])
    room = int(lot_size + 8 * np.sqrt(lot_size)) + 1  # 8 standard deviations of a lot's size.
    most, rates = FIRST_LOSS_CLIP, []
    for step in range(steps):
        drawn = np.flatnonzero(generator.random(number) < lot_size / number)
        assert len(drawn) <= room
        mask = np.arange(room) < len(drawn)
        padded = np.concatenate([drawn, np.zeros(room - len(drawn), int)])
        rows = inputs[padded], labels[padded]
        along = noisy_gradient(params, rows, mask, keys[step], noise[0], float(lot_size))
        if step % EVERY == 0:
            places = np.array(PLACES, np.float32) * rate
            sums = np.asarray(clipped_losses(params, along, places, rows, mask, most), np.float64)
            values = (sums + noise[1] * most * generator.normal(size=len(places))) / lot_size
            rate = next_rate(rate, values)
            # The next clip is the last private loss where the parameters are, and is never nothing.
            most = max(ROOM * float(values[PLACES.index(0.0)]), LEAST_LOSS_CLIP)
        params = moved(params, along, rate)
        rates.append(rate)
    return model, params, rates
