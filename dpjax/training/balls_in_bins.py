"""Draws lots as balls in bins: each record is in exactly one lot of every epoch.

An epoch is a public number of steps, its bins; every record falls into one of them. So the lots of
an epoch share no record, and all of the data is read in an epoch, as with shuffled lots. Unlike
these, one record's bin says nothing about another's (Chua et al. 2024,
https://arxiv.org/abs/2412.16802).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import checks
from dpjax.randomness import keys, threefry
from dpjax.training import places
from dpjax.training.binomial_table import WORD_BITS, round_up, split_into_words
from dpjax.training.lots import UNIFORM_WORDS, NumberedLots, PoissonLots, at_least, charge

MOST_BINS = 2**22
"""Most steps in an epoch: a table has the first number of each bin, which takes 12 bytes."""


@dataclasses.dataclass(frozen=True)
class BallsInBinsLots(NumberedLots):
    """Lots in which each record is in one step of every epoch, uniformly random.

    Formal guarantees:
      For ideal random bits, a record is in one of the `steps_per_epoch` lots of an epoch. Which one
      depends on no other record, no other epoch, and not on how many records there are: what
      `accounting.dp_sgd_balls_in_bins` prices. Lots differ from this in two ways, and no other:
        1. *Truncation*, as in `PoissonLots`: of more than `capacity` members the first are kept.
           `accounting.truncation_probability(dataset_size_bound, 1 / steps_per_epoch, capacity,
           steps)` bounds the probability that some lot has `capacity` members beside a given one.
        2. *Quantisation.* A bin is read off 96 random bits: one record's bin is within
           `total_variation` of the uniform one. The bins of the others need no law for the price,
           only independence. `failure_probability_per_draw` charges it for every lot, as in
           `PoissonLots`, although it happens once an epoch.
      Records of a lot stand in a uniformly random order (`places`).

    A draw reads one number of 96 bits for each of the `dataset_size_bound` places, at every step:
    0.4 ms for 60,000 on one CPU core, where Poisson lots of 256 take 0.1 ms.

    Example:
      >>> from dpjax import accounting, training
      >>> capacity = accounting.lot_capacity(1000, 1 / 20, steps=100)
      >>> lots = training.BallsInBinsLots(1000, steps_per_epoch=20, capacity=capacity)
      >>> lots.epochs(steps=100), lots.failure_probability_per_draw < 1e-15
      (5, True)

    Attributes:
      dataset_size_bound: as in `PoissonLots`.
      steps_per_epoch: number of bins: the public data set size over the expected lot size.
      capacity: most members of a lot. Choose it by `accounting.lot_capacity`, with sampling
        probability 1 / steps_per_epoch.
    """

    dataset_size_bound: int
    steps_per_epoch: int
    capacity: int

    def __post_init__(self) -> None:
        steps = checks.whole("steps_per_epoch", self.steps_per_epoch)
        if steps > MOST_BINS:
            words = f": pass at most {MOST_BINS}, whose bounds fit into memory, or PoissonLots"
            raise checks.Refused(("steps_per_epoch", steps), words)
        object.__setattr__(self, "steps_per_epoch", steps)
        assert self._as_poisson  # Its own checks.
        if UNIFORM_WORDS * self.dataset_size_bound >= 2**31:
            words = f": pass less than {-(-(2**31) // UNIFORM_WORDS)}, or PoissonLots"
            raise checks.Refused(("dataset_size_bound", self.dataset_size_bound), words)

    @property
    def _as_poisson(self) -> PoissonLots:
        """Returns Poisson lots of the same bounds, for the sake of their checks."""
        return PoissonLots(self.dataset_size_bound, 1.0, self.capacity)

    def epochs(self, steps: int) -> int:
        """Returns how many epochs a run begins; a record may be in as many lots."""
        return -(-checks.whole("steps", steps) // self.steps_per_epoch)

    @property
    def places(self) -> int:
        """Returns the size of a padded lot."""
        return self.capacity

    @property
    def total_variation(self) -> float:
        """Bounds the distance of a record's bin from the uniform one."""
        # Of every bin, its number of the 2^96 words is off by less than 1.
        return round_up(Fraction(self.steps_per_epoch, 2 << (WORD_BITS * UNIFORM_WORDS)))

    @property
    def failure_probability_per_draw(self) -> float:
        """Returns the charge for each lot: mass of infinite privacy loss."""
        return charge(self.total_variation)

    def check_number(self, number_of_records: int) -> None:
        """Refuses more records than `dataset_size_bound`."""
        self._as_poisson.check_number(number_of_records)

    def lots_of_steps(
        self, key: jax.Array, number_of_records: int | jax.Array
    ) -> Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
        """Returns draw(key of a step, its number) -> its lot, of the run with this root key.

        A lot is as `PoissonLots.draw` returns it. Each epoch draws its bins by a key of its own.
        """
        size, bins, capacity = self.dataset_size_bound, self.steps_per_epoch, self.capacity
        epoch_key, firsts = keys.stream(key, "bins"), _first_words(bins)

        def draw(lot_key: jax.Array, step: jax.Array) -> tuple[jax.Array, jax.Array]:
            step = jnp.asarray(step, jnp.uint32)
            own = threefry.fold_in(epoch_key, step // np.uint32(bins))
            # One after the other: compilers would make them anew for each comparison.
            words = jax.lax.map(
                lambda start: threefry.random_bits(own, (size,), start=start),
                np.arange(UNIFORM_WORDS, dtype=np.uint32) * np.uint32(size),
            )
            turn = (step % np.uint32(bins)).astype(jnp.int32)
            first, following = (
                jnp.asarray(firsts)[:, jnp.minimum(place, bins - 1), None]
                for place in (turn, turn + 1)
            )
            member = at_least(words, first) & ~(at_least(words, following) & (turn + 1 < bins))
            member &= jnp.arange(size) < number_of_records
            counts = jnp.cumsum(member, dtype=jnp.int32)
            indices = jnp.searchsorted(counts, jnp.arange(1, capacity + 1, dtype=jnp.int32))
            order = places.random_order(lot_key, capacity)
            mask = order < counts[-1]
            return jnp.where(mask, indices.astype(jnp.int32)[order], 0), mask

        return draw


@functools.lru_cache(maxsize=64)
def _first_words(bins: int) -> np.ndarray:
    """Returns the first number of each bin, uint32 (3, bins), high word first.

    The numbers below 2^96 are dealt out to the bins in stretches of lengths equal up to one.
    """
    numbers = 1 << (WORD_BITS * UNIFORM_WORDS)
    return split_into_words([place * numbers // bins for place in range(bins)], UNIFORM_WORDS)
