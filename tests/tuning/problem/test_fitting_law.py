"""The law of K that fits a space, and Adam's prior: from public numbers alone."""

import math

import numpy as np
import pytest
import small_tasks
from scipy import stats

from dpjax import accounting, bridges, training, tuning
from dpjax.tuning.problem import fitting_law as rule
from dpjax.tuning.problem.space import Category, Integer

WIDE = tuning.Space(learning_rate=tuning.LogUniform(1e-3, 1), clip_norm=1.0)
SHARES = {
    # A window of half a decade around the middle.
    "three decades": (WIDE, 0.5 / 3),
    "a third of a decade": (tuning.Space(rate=tuning.LogUniform(1, 2)), 1.0),
    "two rates": (
        tuning.Space(rate=tuning.LogUniform(0.01, 1), decay=tuning.LogUniform(0.1, 1)),
        0.25 * 0.5,
    ),
    "a prior": (
        tuning.Space(rate=tuning.LogNormal(0.1, 2.5)),
        2 * stats.norm.cdf(math.log(10**0.25) / math.log(2.5)) - 1,
    ),
    "uniform": (tuning.Space(rate=tuning.Uniform(1, 3)), (3 - 2 / 10**0.25) / 2),
    "a choice": (tuning.Space(clip_norm=tuning.Choice([0.1, 1, 10])), 1 / 3),
    "weights": (tuning.Space(a=tuning.Choice([0.1, 1, 10], [0.2, 0.5, 0.3])), 0.5),
    "whole numbers": (tuning.Space(steps=Integer(8, 12)), 1.0),
    "words": (tuning.Space(a=Category([0, 1, 2, 3])), 0.25),
    "around zero": (tuning.Space(a=tuning.Uniform(-1, 1)), 0.5),
    "numbers": (tuning.Space(rate=0.1, momentum=0.9), 1.0),
}


@pytest.mark.parametrize("name", SHARES)
def test_the_share_of_good_draws(name):
    space, share = SHARES[name]
    # A lognormal law ends somewhere, which its share here does not know.
    assert rule.good_share(space) == pytest.approx(share, rel=5e-3 if name == "a prior" else 1e-9)
    # By drawing: within the window around the median of many draws, in every hyperparameter.
    drawn = space.sample(20_000, np.random.default_rng(1))
    if name not in ("words", "around zero"):
        near = [np.abs(np.log10(v / np.median(v))) <= 0.25 + 1e-9 for v in drawn.values()]
        assert np.mean(np.all(near, axis=0)) == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("name", SHARES)
def test_the_least_mean_whose_k_holds_a_good_draw(name):
    space, share = SHARES[name]
    law = tuning.fitting_law(space)
    assert law == accounting.AtMost(
        accounting.TruncatedNegativeBinomial(rule.SHAPE, mean=law.law.mean), cap=law.cap
    )
    mean = law.law.mean
    assert law.cap == 4 * mean and mean == round(mean)
    inner = law.law.success_probability(share)
    assert inner >= rule.CHANCE or mean == rule.LARGEST_MEAN
    if mean > 1:
        fewer = accounting.TruncatedNegativeBinomial(rule.SHAPE, mean=mean - 1)
        assert fewer.success_probability(share) < rule.CHANCE
    # K and candidates as they are drawn: what the sentence of a command promises.
    source = np.random.default_rng(2)
    counts = law.sample(20_000, source=source)
    hit = np.mean(source.random(counts.size) < -np.expm1(counts * np.log1p(-share + 1e-12)))
    assert hit == pytest.approx(float(law.success_probability(share)), abs=0.01)
    assert f"mean {law.mean:.3g}," in rule.in_words(space)
    chance = float(law.success_probability(rule.good_share(space)))
    assert f"probability {chance:.2f}" in rule.in_words(space)


def test_a_space_that_is_too_wide_has_the_largest_mean():
    wide = tuning.Space({f"a{k}": tuning.LogUniform(1e-3, 1) for k in range(4)})
    assert tuning.fitting_law(wide).law.mean == rule.LARGEST_MEAN


def _plan(tuner, space):
    result = tuning.tune(
        small_tasks.linear(),
        space,
        tuner,
        epsilon=2.0,
        optimizer=training.sgd(),
        run=tuning.RunOptions(lot_size=20, steps=2),
        seed=1,
    )
    return result.release


def test_repetitions_without_a_law_state_the_one_that_fits(tmp_path):
    rates, norms = tuning.LogUniform(0.1, 0.4), tuning.Choice([0.5, 2.0])
    space = tuning.Space(learning_rate=rates, clip_norm=norms)
    released = _plan(tuning.RandomRepetitions(), space)
    law = tuning.fitting_law(space)
    assert released.statement["selection"]["law_of_K"] == law.to_dict()
    released.save(tmp_path / "release")
    assert tuning.verify_release(tmp_path / "release").epsilon <= 2.0
    given = accounting.Fixed(2)
    stated = _plan(tuning.RandomRepetitions(given), space).statement["selection"]["law_of_K"]
    assert stated == given.to_dict()


def test_a_bridge_fits_the_law_to_its_candidates():
    space = tuning.Space(rate=tuning.LogUniform(0.1, 1))
    result = bridges.tune(
        lambda seed, given: ({"w": np.zeros(2)}, 10),
        space,
        base=accounting.gaussian(5.0),
        score=bridges.CountedScore("disjoint", public_size=100),
        seed=1,
    )
    law = tuning.fitting_law(space)
    assert result.release.statement["selection"]["law_of_K"] == law.to_dict()


def test_adams_rate_keeps_what_noise_moves_an_output_by():
    for inputs, steps in ((1, 1), (49, 60), (785, 320)):
        assert tuning.adam_rate(inputs, steps) * math.sqrt(inputs * steps) == pytest.approx(4.0)


def test_a_law_is_not_fitted_to_what_is_no_space():
    with pytest.raises(ValueError, match="space"):
        tuning.fitting_law({"learning_rate": 0.1})
