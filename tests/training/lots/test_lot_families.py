"""A padded draw holds the records that the candidate's own lots hold, and no others."""

import dataclasses

import jax
import numpy as np
import pytest

from dpjax import training
from dpjax.training.lots import (
    ALONE,
    FIXED,
    POISSON,
    POISSON_DENSE,
    FixedLots,
    PoissonLots,
    family_of,
)

DRAWS = 300


def draw_with(draw):
    indices, mask = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(4), DRAWS))
    return np.asarray(indices), np.asarray(mask)


@pytest.mark.parametrize(
    ("lots", "kind", "more_rows"),
    [
        (PoissonLots(2000, 0.01, 45), POISSON, 155),
        (PoissonLots(2000, 0.01, 20), POISSON, 300),  # often truncated: the padding must be, too
        (PoissonLots(40_000_000, 1e-7, 12), POISSON, 9),  # records and order need two words
        (PoissonLots(60, 0.4, 46), POISSON_DENSE, 14),
        (PoissonLots(60, 0.7, 50), POISSON_DENSE, 10),
        (PoissonLots(60, 1.0, 60), POISSON_DENSE, 0),
        (FixedLots(500, 20), FIXED, 100),
        (FixedLots(500, 400), ALONE, 0),
    ],
)
def test_padding_changes_no_lot(lots, kind, more_rows):
    own = family_of(lots)
    assert own.kind == kind and own.capacity == lots.capacity
    family = dataclasses.replace(own, capacity=own.capacity + more_rows)
    # The number of records is public for fixed lots, so none may be missing there.
    for missing in (0,) if isinstance(lots, FixedLots) else (0, 13):
        _compare_draws(lots, family, own.size - missing)


def _compare_draws(lots, family, records):
    numbers = family.numbers_of(lots)
    padded, padded_mask = draw_with(lambda key: family.draw(key, numbers, records))
    plain, plain_mask = draw_with(lambda key: lots.draw(key, records))
    assert padded.shape == (DRAWS, family.places) and plain.shape == (DRAWS, lots.places)
    for all_places, own_places in zip((padded, plain), (padded_mask, plain_mask)):
        assert not all_places[~own_places].any()
    for lot, own in zip(zip(padded, padded_mask), zip(plain, plain_mask)):
        members, wanted = (np.sort(indices[mask]) for indices, mask in (lot, own))
        np.testing.assert_array_equal(members, wanted)
    assert padded_mask.any()
    if family.kind in (FIXED, ALONE):  # these stand where they were drawn
        np.testing.assert_array_equal(padded[:, : lots.capacity], plain)
        assert not padded_mask[:, lots.capacity :].any()
    elif family.capacity > 2 * lots.capacity:  # places beyond the candidate's own are as likely
        assert padded_mask[:, lots.capacity :].any()


def test_members_of_a_family_have_numbers_of_one_shape():
    family = dataclasses.replace(family_of(PoissonLots(2000, 0.01, 45)), capacity=100)
    shapes = [
        jax.tree.map(np.shape, family.numbers_of(PoissonLots(2000, rate, capacity)))
        for rate, capacity in ((0.01, 45), (0.001, 11), (0.03, 100))
    ]
    assert shapes[0] == shapes[1] == shapes[2]


@pytest.mark.parametrize("lots", [training.PoissonLots, training.CyclicPoissonLots])
def test_a_text_is_no_sampling_probability(lots):
    more = {"cycle": 8} if lots is training.CyclicPoissonLots else {}
    with pytest.raises(ValueError, match=r"^sampling_probability must be in \(0, 1\], not 'x'$"):
        lots(100, sampling_probability="x", capacity=10, **more)
