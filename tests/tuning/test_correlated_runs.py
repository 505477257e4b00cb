"""Tuners train with correlated noise: what a run gets is what is charged, stated and proved."""

import json

import noise_alone
import numpy as np
import pytest
from noise_alone import RECORDS, statement

from dpjax import accounting, training, tuning
from dpjax.tuning.problem.run_settings import RunShape

STEPS, BANDS = 7, 3
ONE = tuning.RunOptions(lot_size=20, steps=STEPS, noise_multiplier=1.7, bands=BANDS)


def _of_sums(steps):
    """The std of a run's last prefix sum, for noise of std 1."""
    c = training.BandedNoise(BANDS).strategy(steps)
    matrix = sum(np.diag(np.full(steps - j, c[j]), -j) for j in range(BANDS))
    return np.linalg.norm(np.ones(steps) @ np.linalg.inv(matrix))


@pytest.mark.parametrize("lot_sizes", [[20.0], [10.0, 30.0]], ids=["alike", "unlike"])
def test_every_candidate_gets_the_noise_it_is_charged_for(lot_sizes):
    """Each variance within 5.5 deviations of its law's; that of independent noise is far away."""
    space = tuning.Space(learning_rate=0.5, clip_norm=tuning.Choice([0.5, 2.0]))
    run = ONE
    if len(lot_sizes) > 1:
        space = tuning.Space(
            learning_rate=0.5, clip_norm=1.0, lot_size=tuning.Choice(lot_sizes), steps=STEPS
        )
        run = tuning.RunOptions(noise_multiplier=1.7, bands=BANDS)
    given, released = noise_alone.executed(space, run)
    given = {"lot_size": np.full(12, 20.0)} | given
    noise = released / (0.5 * 1.7 * given["clip_norm"] / given["lot_size"])[:, None]
    assert np.abs(noise_alone.excess(noise, _of_sums(STEPS))).max() < 5.5
    assert np.abs(noise_alone.excess(noise, np.sqrt(STEPS))).min() > 5.5


def test_a_run_is_priced_by_the_turns_of_a_part():
    shape = RunShape(20, STEPS, "poisson", RECORDS, 110, bands=BANDS)
    lots = shape.lots
    assert lots == training.CyclicPoissonLots(110, 0.6, lots.capacity, BANDS)
    overflows = accounting.truncation_probability(37, 0.6, lots.capacity, STEPS)
    failure = overflows + STEPS * lots.failure_probability_per_draw
    assert failure < 2e-9
    wanted = accounting.dp_sgd(0.6, 1.7, 3, failure_probability=failure)
    assert shape.price(1.7).epsilon(1e-5) == wanted.epsilon(1e-5)
    plain = RunShape(20, STEPS, "poisson", RECORDS, 110)
    assert plain.price(1.7).epsilon(1e-5) < wanted.epsilon(1e-5)


def test_a_statement_carries_the_bands_and_is_verified_and_proved():
    words = statement(ONE)
    (row,) = words["training"]
    assert row["bands"] == words["run_options"]["bands"] == BANDS
    noise_alone.assert_verified_and_proved(words)
    assert "bands" not in json.dumps(statement(tuning.RunOptions(20, STEPS, None, 1.7)))


EDITS = {
    "fewer bands than run": lambda words: words["training"][0].update(bands=2),
    "no bands where there were some": lambda words: words["training"][0].pop("bands"),
    "more bands": lambda words: words["training"][0].update(bands=4),
    "a part of a band": lambda words: words["training"][0].update(bands=2.5),
    "no band": lambda words: words["training"][0].update(bands=0),
    "other lots": lambda words: words["training"][0].update(sampling="fixed"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_statement_is_neither_verified_nor_proved(edit):
    noise_alone.assert_neither_verified_nor_proved(statement(ONE), EDITS[edit])


def test_a_calibrated_run_meets_its_target():
    run = tuning.RunOptions(lot_size=20, steps=STEPS, bands=BANDS)
    assert noise_alone.calibrated(run)[1].bands == BANDS


def test_several_devices_for_a_run_are_refused_before_the_draw(tmp_path):
    words = "bands=3 correlates noise on one device: drop it"
    noise_alone.assert_refused_on_several_devices(ONE, words, tmp_path)
