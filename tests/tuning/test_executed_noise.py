"""The noise that candidates really get is the noise that is charged, however they are executed.

Gradients are zero, so a candidate's parameters are its noise: its variance is compared with the one
that its accounted setting states, for Poisson and fixed lots, for candidates alike (one program)
and unlike (slots, with settings drawn by the space), and no two candidates' noises correlate.
"""

import noise_alone
import numpy as np
import pytest

from dpjax.tuning import Choice, RunOptions, Space

ALIKE = Space(learning_rate=0.5, clip_norm=Choice([0.5, 2.0]))
UNLIKE = Space(
    learning_rate=0.5,
    clip_norm=Choice([0.5, 2.0]),
    lot_size=Choice([10.0, 40.0]),
    noise_multiplier=Choice([1.0, 3.0]),
    steps=3,
)


@pytest.mark.parametrize("sampling,sensitivity", [("poisson", 1.0), ("fixed", 2.0)])
@pytest.mark.parametrize("space", [ALIKE, UNLIKE], ids=["alike", "unlike"])
def test_every_candidate_gets_the_noise_it_is_charged_for(space, sampling, sensitivity):
    """Each variance within 5.5 deviations of its law's, error rate 4e-8 a candidate; fixed seed."""
    run = RunOptions(sampling=sampling)
    if space is ALIKE:
        run = RunOptions(20, 3, None, 1.7, sampling)
    drawn, released = noise_alone.executed(space, run, executions=36)
    given = {"lot_size": np.full(36, 20.0), "noise_multiplier": np.full(36, 1.7)} | drawn
    charged = given["noise_multiplier"] * given["clip_norm"] * sensitivity
    noise = released / (0.5 * np.sqrt(3.0) * charged / given["lot_size"])[:, None]
    assert np.abs(noise_alone.excess(noise, 1.0)).max() < 5.5
    correlations = np.corrcoef(noise)[~np.eye(len(noise), dtype=bool)]
    assert np.abs(correlations).max() < 6.0 / np.sqrt(noise_alone.SIZE)
