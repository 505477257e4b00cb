"""Draws lots on the device: Poisson, and of fixed size without replacement.

One step of DP-SGD needs a random subset of a large data set. Drawing one number per record costs
far more than the step itself for small models; here a draw costs one number per *chosen* record and
a few more:

  1. how many: Poisson lots draw a Binomial(dataset_size_bound, q) count from an exact table
     (`binomial_table.py`); fixed lots have theirs;
  2. which: independent uniform records are drawn and the first `count` DISTINCT ones kept.

Step 2 is exactly uniform over subsets of that size: relabelling records does not change how draws
are distributed nor which of them repeat, so all subsets of one size are equally likely. Step
1 then makes every record's membership an independent Bernoulli(q), since given its size a Bernoulli
subset is uniform as well. Repetitions are found by sorting; there is no loop whose length depends
on the draw, so everything vectorises over candidates and stays on the device. (Places are drawn
anew while two are equal, which hardly ever happens.) Lots that may hold most of the records take
the plain way instead: one number per record (Poisson, from three quarters of them on), or per
record left out (fixed, from half). On one CPU core a draw costs 0.2 ms (Poisson, 60,000 records,
256 expected), places included; docs/performance.md has larger ones.

Indices and random words have 32 bits, so at most 2^31 - 1 records can be told apart.

Both kinds return `(indices, mask)` of one fixed number of places; a place whose mask is False is
empty (its index is 0, so that gathering it is harmless). Records of Poisson lots stand at random
places, for the reason given in `places.py`.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Callable
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import checks
from dpjax.randomness import keys, threefry
from dpjax.training import places
from dpjax.training.binomial_table import (
    WORD_BITS,
    binomial_count_table,
    round_up,
    split_into_words,
)

UNIFORM_WORDS = 3
"""96 random bits decide a count: 64 for a negligible error, 32 for the factor below."""

_EPSILON_FACTOR = 1 + 2**32
"""Charge per unit of total variation distance: 1 + e^epsilon for every epsilon up to 22."""


@dataclasses.dataclass(frozen=True)
class PoissonLots:
    """Lots in which every record is present independently with one probability.

    Formal guarantees:
      For ideal random bits, the lot that `draw` returns for a data set of n <= dataset_size_bound
      records is the restriction to {0, ..., n - 1} of a random subset L of
      {0, ..., dataset_size_bound - 1}, and L does not depend on n. L differs from independent
      Bernoulli(sampling_probability) memberships in two ways, and no other:
        1. *Truncation.* Of more than `capacity` members only `capacity` are kept. Where fewer than
           `capacity` of the records other than a given one are members, an event that does not
           depend on that record, its membership is the ideal one; the opposite event has
           probability at most P[Binomial(dataset_size_bound, q) >= capacity], which the accounting
           charges as infinite privacy loss (`accounting.truncation_probability`). Where a lot has a
           place for every record (`places`), none is left out.
        2. *Quantisation.* The law of the count is that of an integer table, and the draws may hold
           too few distinct records: together a total variation distance eta (`total_variation`)
           per lot, independent of the data. T lots are then within T eta of the ideal, and a
           mechanism within distance t of an ideal one with profile delta(epsilon) has
               P[M(D) in S] <= P[ideal(D) in S] + t
                            <= e^epsilon P[ideal(D') in S] + delta(epsilon) + t
                            <= e^epsilon P[M(D') in S] + delta(epsilon) + (1 + e^epsilon) t.
           `failure_probability_per_draw` is (1 + 2^32) eta, so that charging it as infinite privacy
           loss covers (1 + e^epsilon) eta for epsilon <= 22 and delta <= 0.1.
      The sampling probability used is the float's exact value.

    Example:
      >>> from dpjax import accounting, training
      >>> capacity = accounting.lot_capacity(1000, 0.05, steps=100)
      >>> lots = training.PoissonLots(1000, 0.05, capacity)
      >>> lots.failure_probability_per_draw < 1e-6
      True

    Attributes:
      dataset_size_bound: public number that the count of records never exceeds.
      sampling_probability: in (0, 1].
      capacity: most members of the lot. Choose it by `accounting.lot_capacity`.
    """

    dataset_size_bound: int
    sampling_probability: float
    capacity: int

    def __post_init__(self) -> None:
        _require_size("dataset_size_bound", self.dataset_size_bound)
        _require_size("capacity", self.capacity)
        checks.number("sampling_probability", self.sampling_probability, "in (0, 1]")
        if not 0.0 < self.sampling_probability <= 1.0:
            raise ValueError(
                f"sampling_probability is {self.sampling_probability}: pass a number in (0, 1], "
                "usually the expected lot size over the public data set size"
            )

    @property
    def dense(self) -> bool:
        """Returns whether a lot may hold more than three quarters of the records."""
        return 4 * self.capacity > 3 * self.dataset_size_bound

    @property
    def places(self) -> int:
        """Returns how many places a lot has: `capacity`, or one per record if it is dense."""
        return self.dataset_size_bound if self.dense else self.capacity

    @property
    def total_variation(self) -> float:
        """Bounds the distance of one lot from its ideal distribution, truncation aside."""
        return _poisson_sampler(self).total_variation

    @property
    def failure_probability_per_draw(self) -> float:
        """Returns the charge for each lot's quantised draws: mass of infinite privacy loss."""
        return charge(self.total_variation)

    def check_number(self, number_of_records: int) -> None:
        """Refuses more records than `dataset_size_bound`."""
        if not 0 <= number_of_records <= self.dataset_size_bound:
            raise ValueError(
                f"{number_of_records} records, but these lots were made for 0 to "
                f"{self.dataset_size_bound}: pass a dataset_size_bound that the data never exceeds"
            )

    def draw(
        self, key: jax.Array, number_of_records: int | jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Draws one lot by a typed key, shape (), of so many records, static or traced.

        Returns indices int32 (places,), all different where the mask is True, and mask bool
        (places,). The records stand in a uniformly random order: True rows may lie anywhere.
        """
        if isinstance(number_of_records, int | np.integer):
            self.check_number(int(number_of_records))
        indices, mask = _poisson_sampler(self).draw(key)
        mask = mask & (indices < number_of_records)
        return jnp.where(mask, indices, 0), mask


@dataclasses.dataclass(frozen=True)
class CyclicPoissonLots:
    """Poisson lots of one part of the records at a time; a part's turn comes every `cycle` steps.

    Noise that is correlated over up to `cycle` steps needs such lots (Choquette-Choo et al. 2023,
    https://arxiv.org/abs/2306.08153, section 4). The parts of a run are drawn from its own key, of
    sizes equal up to one: a uniformly random order of all `dataset_size_bound` places is dealt out
    to them in turn.

    Formal guarantees:
      * A record is in one part, and so in at most `most_participations(steps)` lots, whose numbers
        differ by multiples of `cycle`. In each it is a member with the sampling probability,
        independently, but for what `PoissonLots` says of lots of one part.
      * The law of parts and lots does not change if places change theirs, and does not depend on
        how many hold a record (docs/proofs/correlated_noise.md, lemma 1): sound under add or remove
        one. The parts are as secret as the lots.

    Example:
      >>> from dpjax import training
      >>> lots = training.CyclicPoissonLots(1000, sampling_probability=0.4, capacity=120, cycle=8)
      >>> lots.part_size, lots.most_participations(steps=100)
      (125, 13)

    Attributes:
      dataset_size_bound: as in `PoissonLots`.
      sampling_probability: of each record of the part whose turn it is, in (0, 1]: `cycle` times
        the expected lot size over the public data set size.
      capacity: most members of a lot. Choose it by `accounting.lot_capacity(part_size, ...)`.
      cycle: number of parts, at most `dataset_size_bound`.
    """

    dataset_size_bound: int
    sampling_probability: float
    capacity: int
    cycle: int

    def __post_init__(self) -> None:
        _require_size("dataset_size_bound", self.dataset_size_bound)
        cycle = checks.whole("cycle", self.cycle)
        if cycle > self.dataset_size_bound:
            words = f": pass at most dataset_size_bound, {self.dataset_size_bound}"
            raise checks.Refused(("cycle", cycle), words)
        object.__setattr__(self, "cycle", cycle)
        assert self.of_part  # Its own checks.

    @property
    def part_size(self) -> int:
        """Returns the places of the largest part."""
        return -(-self.dataset_size_bound // self.cycle)

    @property
    def of_part(self) -> PoissonLots:
        """Returns how a lot is drawn of the places of one part."""
        return PoissonLots(self.part_size, self.sampling_probability, self.capacity)

    def most_participations(self, steps: int) -> int:
        """Returns the most lots of a run that a record may be in: what its cost composes."""
        return -(-checks.whole("steps", steps) // self.cycle)

    @property
    def places(self) -> int:
        """Returns the places of a lot, as `PoissonLots` of one part."""
        return self.of_part.places

    @property
    def total_variation(self) -> float:
        """Bounds the distance of one lot from its ideal distribution, truncation aside."""
        return self.of_part.total_variation

    @property
    def failure_probability_per_draw(self) -> float:
        """Returns the charge for each lot's quantised draws: mass of infinite privacy loss."""
        return self.of_part.failure_probability_per_draw

    def check_number(self, number_of_records: int) -> None:
        """Refuses more records than `dataset_size_bound`."""
        PoissonLots(self.dataset_size_bound, 1.0, 1).check_number(number_of_records)


@dataclasses.dataclass(frozen=True)
class FixedLots:
    """Lots of exactly `lot_size` different records, every subset of that size equally likely.

    Formal guarantees:
      For ideal random bits, `draw` returns a uniformly random `lot_size`-subset of
      {0, ..., dataset_size - 1}, except with probability `total_variation` <= 2^-96 (too few
      distinct records among the draws; the lot is then smaller). `failure_probability_per_draw`
      is (1 + 2^32) times that, for the reason given in `PoissonLots`. Neighbouring relation:
      replace one; the number of records is public.

    Attributes:
      dataset_size: number of records, exact and public.
      lot_size: 1 <= lot_size <= dataset_size.
    """

    dataset_size: int
    lot_size: int

    def __post_init__(self) -> None:
        _require_size("dataset_size", self.dataset_size)
        _require_size("lot_size", self.lot_size)
        if self.lot_size > self.dataset_size:
            words = f" is larger than the data set: pass at most {self.dataset_size}"
            raise checks.Refused(("lot_size", self.lot_size), words)

    @property
    def capacity(self) -> int:
        """Returns the number of members of a lot; it has no empty place."""
        return self.lot_size

    @property
    def places(self) -> int:
        """Returns the places of a lot. Where a record stands depends on no record."""
        return self.lot_size

    @property
    def total_variation(self) -> float:
        """Bounds the distance of one lot from the uniform distribution over subsets."""
        return _fixed_sampler(self).total_variation

    @property
    def failure_probability_per_draw(self) -> float:
        """Returns the charge for each lot: mass of infinite privacy loss."""
        return charge(self.total_variation)

    def check_number(self, number_of_records: int) -> None:
        """Refuses any other number of records than `dataset_size`."""
        if number_of_records != self.dataset_size:
            raise ValueError(
                f"{number_of_records} records, but these lots were made for exactly "
                f"{self.dataset_size}: pass FixedLots(dataset_size={number_of_records}, ...)"
            )

    def draw(
        self, key: jax.Array, number_of_records: int | jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Draws one lot, as `PoissonLots.draw`, of `lot_size` rows that are all True.

        A static `number_of_records` must equal `dataset_size`.
        """
        if isinstance(number_of_records, int | np.integer):
            self.check_number(int(number_of_records))
        indices, mask = _fixed_sampler(self).draw(key)
        return jnp.where(mask, indices, 0), mask


@dataclasses.dataclass(frozen=True)
class _Sampler:
    """Holds draw(key) -> (indices, mask), (places,) each, and its distance from the ideal."""

    draw: Callable[[jax.Array], tuple[jax.Array, jax.Array]]
    total_variation: float


@functools.lru_cache(maxsize=64)
def _poisson_sampler(lots: PoissonLots) -> _Sampler:
    """Draws a count, then that many distinct records; one number per record for large lots."""
    size, capacity = lots.dataset_size_bound, lots.capacity
    if lots.dense:  # Distinct draws would take more numbers than one for each record.
        return _bernoulli_sampler(size, lots.sampling_probability)
    table = binomial_count_table(size, lots.sampling_probability, capacity, words=UNIFORM_WORDS)
    draws, shortage = draws_for_distinct(size, capacity)

    def draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        words = threefry.random_bits(key, (UNIFORM_WORDS + draws,))
        reached = at_least(words[:UNIFORM_WORDS, None], table.thresholds)
        count = jnp.sum(reached, dtype=jnp.int32)
        indices, distinct = distinct_records(words[UNIFORM_WORDS:], size, capacity)
        order = places.random_order(key, capacity)
        return indices[order], order < jnp.minimum(count, distinct)

    return _Sampler(draw, round_up(Fraction(table.total_variation) + shortage))


@functools.lru_cache(maxsize=64)
def _fixed_sampler(lots: FixedLots) -> _Sampler:
    """Draws distinct records; for lots of more than half of them, those to leave out."""
    size, lot_size = lots.dataset_size, lots.lot_size
    left_out = size - lot_size
    if lot_size > left_out:
        return _complement_sampler(size, left_out)
    draws, shortage = draws_for_distinct(size, lot_size)

    def draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        words = threefry.random_bits(key, (draws,))
        indices, distinct = distinct_records(words, size, lot_size)
        return indices, jnp.arange(lot_size) < distinct

    return _Sampler(draw, round_up(shortage))


def _bernoulli_sampler(size: int, probability: float) -> _Sampler:
    """Draws one number per record: cheaper if a lot may hold over three quarters of them."""
    resolution = 1 << (WORD_BITS * UNIFORM_WORDS)
    # A record is present if U < threshold, the probability times 2^96, rounded by at most one half;
    # for probability 1 it would be 2^96, which the words cannot hold: `certain` stands for it.
    threshold = round(Fraction(probability) * resolution)
    error = size * abs(Fraction(threshold, resolution) - Fraction(probability))
    certain = threshold == resolution
    table = split_into_words([0 if certain else threshold], UNIFORM_WORDS)

    def draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        if certain:
            member = jnp.ones((size,), bool)
        else:
            words = threefry.random_bits(key, (UNIFORM_WORDS, size))
            member = ~at_least(words, table)
        order = places.random_order(key, size)
        return order, member[order]

    return _Sampler(draw, round_up(error))


def _complement_sampler(size: int, left_out: int) -> _Sampler:
    """Draws the records to leave out, for lots of more than half of them."""
    if left_out == 0:
        return _Sampler(lambda key: (jnp.arange(size), jnp.ones((size,), bool)), 0.0)
    excluded_lots = FixedLots(size, left_out)

    def draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        excluded, excluded_mask = _fixed_sampler(excluded_lots).draw(key)
        member = (
            jnp.ones((size,), bool)
            .at[jnp.where(excluded_mask, excluded, size)]
            .set(False, mode="drop")
        )
        return compact(member, size - left_out)

    return _Sampler(draw, _fixed_sampler(excluded_lots).total_variation)


class NumberedLots(abc.ABC):
    """A base class of lots that depend on a run's own key and on the step, such as balls in bins.

    Their neighbouring relation is add or remove one.
    """

    dataset_size_bound: int
    capacity: int

    @property
    @abc.abstractmethod
    def places(self) -> int:
        """Returns the places of a lot."""

    @abc.abstractmethod
    def check_number(self, number_of_records: int) -> None:
        """Refuses more records than `dataset_size_bound`."""

    @abc.abstractmethod
    def lots_of_steps(
        self, key: jax.Array, number_of_records: int | jax.Array
    ) -> Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
        """Returns draw(key of a step, number of the step) -> its lot, of the run with this key."""


Lots = PoissonLots | CyclicPoissonLots | FixedLots | NumberedLots


def of_parts(
    cycle: int,
    bound: int,
    key: jax.Array,
    draw: Callable[[jax.Array, int | jax.Array], tuple[jax.Array, jax.Array]],
    number_of_records: int | jax.Array,
) -> Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    """Returns draw(key of a step, number of the step) -> its lot, of the run with this root key.

    Formal guarantees: with a `cycle` above 1, that of `CyclicPoissonLots(bound, ..., cycle)`, where
    `draw`, (key, places) -> lot, draws Poisson lots of the places of one part; else that of `draw`,
    of the records.

    The order of the places is drawn here, once: call it outside the loop over steps.
    """
    if cycle == 1:
        return lambda lot_key, step: draw(lot_key, number_of_records)
    part_size = -(-bound // cycle)
    order = places.random_order(keys.stream(key, "parts"), bound)

    def of_part(lot_key: jax.Array, step: jax.Array) -> tuple[jax.Array, jax.Array]:
        indices, mask = draw(lot_key, part_size)
        turn = (step % np.uint32(cycle)).astype(jnp.int32)
        indices = indices * cycle + turn
        mask &= indices < bound  # Some parts may have one place less.
        indices = order[jnp.minimum(indices, bound - 1)]
        mask &= indices < number_of_records
        return jnp.where(mask, indices, 0), mask

    return of_part


def lots_of_steps(
    lots: Lots, key: jax.Array, number_of_records: int | jax.Array
) -> Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    """Returns draw(key of a step, number of the step) -> its lot, of the run with this key."""
    if isinstance(lots, NumberedLots):
        return lots.lots_of_steps(key, number_of_records)
    if not isinstance(lots, CyclicPoissonLots):
        return lambda lot_key, number: lots.draw(lot_key, number_of_records)
    drawn = lots.of_part.draw
    return of_parts(lots.cycle, lots.dataset_size_bound, key, drawn, number_of_records)


def lots_of_run(
    key: jax.Array, draw: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
) -> Callable[[jax.Array], tuple[jax.Array, jax.Array]]:
    """Returns number of a step -> its lot, as `draw` draws it in the run with this key."""
    lots_key = keys.stream(key, "lots")
    return lambda number: draw(threefry.fold_in(lots_key, number), number)


_PLACES_AHEAD = 4096  # most places of lots that an accelerator draws at once


def lots_ahead(lots: Lots, steps: np.uint32 | jax.Array, places: int) -> np.uint32:
    """Returns for how many steps lots are drawn at once, by the kernels of one; 1 on a CPU."""
    numbered = isinstance(lots, NumberedLots)  # Their draws look at every record.
    if jax.default_backend() == "cpu" or numbered:
        return np.uint32(1)
    most = max(1, _PLACES_AHEAD // places)
    if isinstance(steps, np.integer):
        most = max(ahead for ahead in range(1, most + 1) if steps % ahead == 0)
    return np.uint32(most)


def charge(total_variation: float) -> float:
    """Returns the infinite loss that covers a distance from the ideal law; see `PoissonLots`."""
    return round_up(Fraction(total_variation) * _EPSILON_FACTOR)


def _require_size(name: str, value: int) -> None:
    if not isinstance(value, int | np.integer) or not 1 <= value < 2**31:
        raise ValueError(
            f"{name} is {value!r}: pass an integer from 1 to 2^31 - 1, the most records that "
            "lots tell apart"
        )


# Distinct uniform records from independent draws ------------------------------------------------

SHORTAGE_PROBABILITY = Fraction(1, 2**96)
"""Probability with which a lot's draws may hold too few distinct records."""

_WORD_VALUES = 1 << WORD_BITS


def draws_for_distinct(size: int, wanted: int) -> tuple[int, Fraction]:
    """Returns how many uniform draws hold `wanted` distinct records, with probability 1 - 2^-96.

    A draw is lost if its word is rejected or if it repeats an earlier one; until `wanted` distinct
    records are seen, each is lost with probability at most p, whatever came before. So the kept
    draws are at least Binomial(draws, 1 - p), and the Chernoff bound
    P[Binomial(N, 1 - p) <= w - 1] <= exp(-N KL((w - 1) / N || 1 - p)) is rigorous.
    """
    accepted = (_WORD_VALUES // size) * size / _WORD_VALUES
    kept = accepted * (1.0 - (wanted - 1) / size)
    # One unit more than needed absorbs the float64 rounding of the exponent.
    exponent = -math.log(SHORTAGE_PROBABILITY) + 1.0
    draws = wanted
    while draws * _relative_entropy((wanted - 1) / draws, kept) < exponent:
        draws += max(1, wanted // 64)
    return draws, SHORTAGE_PROBABILITY


def _relative_entropy(first: float, second: float) -> float:
    """Returns Bernoulli(first)'s KL divergence from Bernoulli(second), 0 unless first < second."""
    if first >= second:
        return 0.0
    if second == 1.0:
        return math.inf
    head = first * math.log(first / second) if first > 0 else 0.0
    return head + (1.0 - first) * math.log((1.0 - first) / (1.0 - second))


def distinct_records(words: jax.Array, size: int, capacity: int) -> tuple[jax.Array, jax.Array]:
    """Turns uniform words into distinct uniform records, in the order they were drawn.

    Returns int32 (capacity,) records and how many of all draws are distinct; entries beyond that
    number have no meaning. `size` is below 2^31, `capacity` at most the number of draws.
    """
    draws = words.shape[0]
    # Words below the largest multiple of `size` split evenly over the records; those above would
    # favour small records, and become the impossible record `size` instead.
    drawn = jnp.minimum(words // jnp.uint32(_WORD_VALUES // size), jnp.uint32(size))
    order = jnp.arange(draws, dtype=jnp.uint32)
    order_bits, record_bits = draws.bit_length(), size.bit_length()
    if order_bits + record_bits <= WORD_BITS:
        # Both fit in one word: sorting single words is five times faster than sorting pairs.
        by_record = jnp.sort((drawn << order_bits) | order)
        records, order = by_record >> order_bits, by_record & ((1 << order_bits) - 1)
    else:
        records, order = jax.lax.sort((drawn, order), num_keys=1, is_stable=True)
    repeated = jnp.concatenate([jnp.zeros((1,), bool), records[1:] == records[:-1]])
    kept = ~repeated & (records < size)
    # Back to the order of drawing, without the lost draws.
    if order_bits + record_bits <= WORD_BITS:
        order = jnp.where(kept, order, jnp.uint32(draws))
        by_order = jnp.sort((order << record_bits) | records)
        records = by_order[:capacity] & ((1 << record_bits) - 1)
    else:
        in_order = jnp.zeros((draws,), bool).at[order].set(kept, unique_indices=True)
        places, _ = compact(in_order, capacity)
        records = drawn.at[places].get(mode="clip")
    return records.astype(jnp.int32), jnp.sum(kept, dtype=jnp.int32)


def compact(member: jax.Array, capacity: int) -> tuple[jax.Array, jax.Array]:
    """Returns the indices of True entries of `member` (size,), in order, in masked slots."""
    size = member.shape[0]
    slots = jnp.sort(jnp.where(member, jnp.arange(size), size))
    slots = jnp.pad(slots[:capacity], (0, max(0, capacity - size)), constant_values=size)
    return slots, slots < size


def at_least(words: jax.Array, thresholds: np.ndarray) -> jax.Array:
    """Compares words >= thresholds as multi-word integers; both (words, ...), high word first."""
    result = words[-1] >= thresholds[-1]
    for word, threshold in zip(words[-2::-1], thresholds[-2::-1], strict=True):
        result = (word > threshold) | ((word == threshold) & result)
    return result


# Lots that share one program ----------------------------------------------------------------
#
# Candidates of a mixed sweep have lots of their own, but candidates trained side by side must have
# arrays of one shape. A family draws, for traced numbers, exactly the lots that `PoissonLots` or
# `FixedLots` would have drawn: the first random words of a draw do not depend on how many are
# drawn, and the distinct records are taken in the order drawn, so that more rows only add empty
# places. The accounting of a candidate is that of its own lots, whatever the padding.

POISSON, POISSON_DENSE, FIXED, ALONE = "poisson", "poisson dense", "fixed", "alone"


@dataclasses.dataclass(frozen=True)
class LotFamily:
    """Draws lots of one kind over one data set, padded to one capacity; static.

    Formal guarantees:
      For equal keys and numbers of records, `draw(key, numbers_of(lots), n)` has True rows that
      hold the records of `lots.draw(key, n)`, and no others: `total_variation` and the truncation
      of `lots` are those of the padded draw.
    """

    kind: str  # which of the ways of drawing
    size: int  # records that the lots were made for: the bound (Poisson) or the number (fixed)
    capacity: int  # rows of a padded lot, at least the capacity of every member
    # only where its numbers cannot be traced: fixed lots of over half of the records, balls in bins
    lots: FixedLots | NumberedLots | None = None
    cycle: int = 1  # parts of the records, whose turns come one after the other
    bound: int = 0  # where there are several: records in all, at most

    @property
    def places(self) -> int:
        """Returns the places of a padded lot."""
        return self.size if self.kind == POISSON_DENSE else self.capacity

    def numbers_of(self, lots: Lots) -> dict[str, np.ndarray | np.generic]:
        """Returns the numbers that `draw` needs for these lots, arrays of one shape for all."""
        if isinstance(lots, CyclicPoissonLots):
            lots = lots.of_part
        if self.kind == ALONE or isinstance(lots, NumberedLots):
            return {}
        if isinstance(lots, FixedLots):
            return {"count": np.int32(lots.lot_size)}
        if self.kind == POISSON_DENSE:
            resolution = 1 << (WORD_BITS * UNIFORM_WORDS)
            threshold = round(Fraction(lots.sampling_probability) * resolution)
            certain = threshold == resolution
            return {
                "certain": np.bool_(certain),
                "threshold": split_into_words([0 if certain else threshold], UNIFORM_WORDS),
            }
        table = binomial_count_table(
            self.size, lots.sampling_probability, lots.capacity, words=UNIFORM_WORDS
        ).thresholds
        # Only one uniform number in 2^96 reaches these thresholds; `count` excludes even that one.
        padding = np.full((UNIFORM_WORDS, self.capacity - lots.capacity), 2**32 - 1, np.uint32)
        return {
            "count": np.int32(lots.capacity),
            "thresholds": np.concatenate([table, padding], axis=1),
        }

    def draw(
        self, key: jax.Array, numbers: dict[str, jax.Array], number_of_records: int | jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Draws one lot: indices int32 (places,), 0 where empty, and mask bool (places,).

        The `numbers` are those of `numbers_of`, traced or not.
        """
        if self.lots is not None:
            assert isinstance(self.lots, FixedLots)  # `lots_of_steps` draws the others.
            return self.lots.draw(key)
        if self.kind == POISSON_DENSE:
            words = threefry.random_bits(key, (UNIFORM_WORDS, self.size))
            member = numbers["certain"] | ~at_least(words, numbers["threshold"])
            indices = places.random_order(key, self.size)
            mask = member[indices]
        else:
            # The first words draw the count of a Poisson lot, the others distinct records.
            ahead = UNIFORM_WORDS if self.kind == POISSON else 0
            draws, _ = draws_for_distinct(self.size, self.capacity)
            words = threefry.random_bits(key, (ahead + draws,))
            indices, distinct = distinct_records(words[ahead:], self.size, self.capacity)
            count, order = jnp.minimum(numbers["count"], distinct), jnp.arange(self.capacity)
            if self.kind == POISSON:
                reached = at_least(words[:ahead, None], numbers["thresholds"])
                count = jnp.minimum(count, jnp.sum(reached, dtype=jnp.int32))
                order = places.random_order(key, self.capacity)
                indices = indices[order]
            mask = order < count
        mask = mask & (indices < number_of_records)
        return jnp.where(mask, indices, 0), mask

    def lots_of_steps(
        self, key: jax.Array, numbers: dict[str, jax.Array], number_of_records: int | jax.Array
    ) -> Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
        """Returns `of_parts` of these lots, for the run with this root key."""
        if isinstance(self.lots, NumberedLots):
            return self.lots.lots_of_steps(key, number_of_records)

        def drawn(lot_key: jax.Array, number: int | jax.Array) -> tuple[jax.Array, jax.Array]:
            return self.draw(lot_key, numbers, number)

        return of_parts(self.cycle, self.bound, key, drawn, number_of_records)


def family_of(lots: Lots) -> LotFamily:
    """Returns the smallest family that holds `lots`; it may also hold lots of less capacity."""
    if isinstance(lots, NumberedLots):
        return LotFamily(ALONE, lots.dataset_size_bound, lots.capacity, lots)
    if isinstance(lots, CyclicPoissonLots):
        inner, bound = family_of(lots.of_part), lots.dataset_size_bound
        return dataclasses.replace(inner, cycle=lots.cycle, bound=bound)
    if isinstance(lots, FixedLots):
        size = lots.dataset_size
        if 2 * lots.lot_size > size:
            return LotFamily(ALONE, size, lots.lot_size, lots)
        return LotFamily(FIXED, size, lots.lot_size)
    size = lots.dataset_size_bound
    kind = POISSON_DENSE if lots.dense else POISSON
    return LotFamily(kind, size, lots.capacity)
