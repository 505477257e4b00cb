"""Attacks on the last bits of one visible noisy sum, and what makes them blind.

The adversary knows everything but whether the one record is there (its gradient, the code, the
parameters before and after a step), guesses in 40 trials, and may be right as often as the claim
allows: Phi(1 / (2 noise multiplier)). Before noise was added on a grid, every attack here was right
40 times of 40.
"""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from scipy.special import ndtr

from dpjax import training
from dpjax.randomness import noise, threefry

ENTRIES, TRIALS = 512, 20
RECORD = np.random.default_rng(7).normal(size=ENTRIES)
RECORD = (RECORD / np.linalg.norm(RECORD)).astype(np.float32)


def visible_sums(present: bool, multiplier: float, dtype=np.float32) -> np.ndarray:
    """Noisy sums (TRIALS, ENTRIES) read off models released after one step, from zeros."""
    run = training.make_train(
        training.TrainConfig(
            loss_fn=lambda params, example: jnp.vdot(params["w"], example),
            lots=training.PoissonLots(dataset_size_bound=1, sampling_probability=1.0, capacity=1),
            steps=1,
            expected_lot_size=1,
            optimizer=training.sgd(),
        )
    )
    given = {"clip_norm": 1.0, "noise_multiplier": multiplier, "learning_rate": 1.0}
    start, data = {"w": jnp.zeros(ENTRIES, dtype)}, jnp.asarray(RECORD[None], dtype)
    train = jax.jit(jax.vmap(lambda key: run(key, given, start, data, int(present))["w"]))
    released = np.asarray(train(training.candidate_keys(TRIALS, seed=3)))
    assert released.dtype == dtype
    return -released


def hits(guess, multiplier: float, dtype=np.float32) -> int:
    """How often `guess` (of presence, from one sum) is right in 2 * TRIALS trials."""
    return sum(
        guess(seen) == present
        for present in (False, True)
        for seen in visible_sums(present, multiplier, dtype)
    )


def most_allowed(multiplier: float) -> int:
    """Right guesses that the best attack on real numbers stays below; error rate 1e-3."""
    right = scipy.stats.norm.cdf(0.5 / multiplier)
    return int(scipy.stats.binom(2 * TRIALS, right).ppf(1 - 1e-3))


def test_all_values_near_zero_can_be_noise():
    """Near 0 the noise took 1% (at 0.01 deviations) to 20% (at 0.2) of all float32 values: a sum of
    the record and noise gave other ones. The adversary tries all bits that could have made one."""
    multiplier = 4.0
    deviation = np.float32(multiplier * noise.NOISE_ALLOWANCE)
    cell = np.float32(4.0 / noise._CELLS)
    dithered = jax.jit(threefry._dithered)

    def can_be_noise(seen: np.ndarray) -> np.ndarray:
        nearest = (ndtr(-np.abs(seen.astype(np.float64)) / deviation) * 2.0**32).astype(np.int64)
        digits = np.clip(nearest[:, None] + np.arange(-4000, 4000, 16), 0, 2**31 - 1)
        first = digits.astype(np.uint32) << np.uint32(1)
        # Of the 2^14 dithers the two smallest are enough.
        found = np.zeros(seen.shape, bool)
        for low in (2**13 - 1, 2**13):
            second = np.full_like(first, (1 << 31) + low)
            value = np.asarray(dithered(first, second, deviation / cell), np.float64)
            value = np.floor(value + 0.5) * cell
            found |= (np.abs(value) == np.abs(seen)[:, None]).any(axis=1)
        return found

    def guess(seen: np.ndarray) -> bool:
        return not can_be_noise(seen)[np.abs(seen) < 0.2 * deviation].all()

    assert hits(guess, multiplier) <= most_allowed(multiplier)


def test_cancellation_shows_no_last_bits():
    """A float sum far below its summands is a multiple of their last place; noise alone is not."""

    def guess(seen: np.ndarray) -> bool:
        cancelled = np.abs(seen) < np.abs(RECORD) / 2
        last_place = np.spacing(np.abs(RECORD[cancelled]) / 2)
        return bool((seen[cancelled] % last_place == 0).all())

    assert hits(guess, 1.0) <= most_allowed(1.0)


def test_a_float64_sum_shows_no_digits_beyond_those_of_its_noise():
    def guess(seen: np.ndarray) -> bool:
        return bool((seen.astype(np.float32) != seen).any())

    with jax.enable_x64(True):
        assert hits(guess, 4.0, np.float64) <= most_allowed(4.0)


def test_the_last_bits_seen_are_uniform_whoever_is_in():
    """Chi-square of the cell's last four bits, in entries where cancellation would show."""
    cell = np.float32(1.0 / noise._CELLS)
    for present in (False, True):
        seen = visible_sums(present, 1.0).astype(np.float64)
        cells = seen[np.abs(seen) < 0.25] / cell
        np.testing.assert_array_equal(cells, np.round(cells))
        counts = np.bincount(cells.astype(np.int64) & 15, minlength=16)
        assert scipy.stats.chisquare(counts).pvalue > 1e-4  # fixed seed


@pytest.mark.parametrize("deviation", [1.0, 0.7, 1.99, 3e-5, 2e9])
@pytest.mark.parametrize("wide", [False, True])
def test_the_noisy_sum_is_the_rounded_exact_one(deviation, wide):
    """Against fractions: sums of all sizes, carries and signs, and both types of parameters. What a
    wider type has beyond float32 is added to the noise as well, up to 2^26 deviations."""
    generator = np.random.default_rng(1)
    size = 300
    exponents = generator.uniform(-60, 26 if wide else 32, size)
    values = deviation * generator.choice([-1, 1], size) * 2.0**exponents
    with jax.enable_x64(wide):
        leaf = jnp.asarray(values, jnp.float64 if wide else jnp.float32)
        key = jax.random.key(4, impl="threefry2x32")
        seen = np.asarray(noise.add_gaussian_noise(key, leaf, deviation))
        used = np.float32(np.float32(deviation) * np.float32(noise.NOISE_ALLOWANCE))
        cell = 2.0 ** np.floor(np.log2(used)) / noise._CELLS
        drawn = np.asarray(threefry.dithered_normal(key, size, np.float32(used / cell)))
        assert seen.dtype == leaf.dtype
    assert 2**19 <= used / cell < 2**20 and np.abs(drawn).max() < 2**24
    narrow = values.astype(np.float32)
    beyond = (values - narrow.astype(np.float64)).astype(np.float32) * wide
    assert not wide or np.abs(beyond / cell).max() > 1
    for value, rest, sample, found in zip(narrow, beyond, drawn, seen):
        exact = (Fraction(float(value)) + Fraction(float(rest))) / Fraction(float(cell))
        exact += Fraction(float(sample))
        off = Fraction(1, 2 ** (21 if wide else 22))
        wholes = [math.floor(exact + Fraction(1, 2) + sign * off) for sign in (-1, 1)]
        # An integer beyond 2^53 would be rounded twice; sums of 2^33 deviations are not.
        assert found in [np.float32(float(whole)) * np.float64(cell) for whole in wholes]


def test_every_cell_has_the_probability_of_a_normal_numbers():
    """Of the dithered law, from all bits that lead to the ends of a cell's window. Within 2.7
    deviations, where the second word decides nothing but the dither."""
    magnitude = jax.jit(threefry._magnitude)
    generator = np.random.default_rng(0)
    scale, half = np.float32(1.37 * noise._CELLS), 1 << 14

    def excess(end: float) -> float:
        """Probability that a magnitude is below `end` cells, less the ideal one."""
        tail = ndtr(-end / scale)
        digits = int(tail * 2**32) + np.arange(-half, half)
        first = digits.astype(np.uint32) << np.uint32(1)
        second = generator.integers(0, 2**32, 2 * half, dtype=np.uint32)
        below = np.asarray(magnitude(first, second)) * scale < end
        assert not below[:16].any() or digits[0] < 0
        assert below[-16:].all()
        return (np.count_nonzero(below) + 2**31 - digits[-1] - 1) / 2**31 - (1 - 2 * tail)

    width = 2**threefry.DITHER_BITS
    for end in np.floor(generator.uniform(0.02, 2.65, 40) * scale):
        ideal = 2 * (ndtr(-end / scale) - ndtr(-(end + width) / scale))
        assert abs(excess(end + width) - excess(end)) < 5e-5 * ideal


def test_no_noise_is_lost_where_a_deviation_underflows():
    run = training.make_train(
        training.TrainConfig(
            loss_fn=lambda params, example: 0.0 * jnp.vdot(params["w"], example),
            lots=training.PoissonLots(dataset_size_bound=1, sampling_probability=1.0, capacity=1),
            steps=1,
            expected_lot_size=1,
            optimizer=training.sgd(),
        )
    )
    given = {"clip_norm": 1e-30, "noise_multiplier": 1e-10, "learning_rate": 1.0}
    start = {"w": jnp.zeros(8)}
    released = run(jax.random.key(0, impl="threefry2x32"), given, start, jnp.ones((1, 8)))["w"]
    assert (np.asarray(released) != 0).all()
