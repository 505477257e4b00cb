"""Stages of a run: which steps they have, their noise, clip norms and lots, and what they cost."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import side_by_side
from noisy_sums import noisy_sums
from scipy import optimize, stats

from dpjax import training
from dpjax.tuning.problem.run_settings import RunShape

STEPS, ENTRIES = 11, 20_000
PLAIN = training.sgd()
GIVEN = {"clip_norm": 2.0, "noise_multiplier": 1.5, "learning_rate": 1.0}
STAGES = training.Stages((0.4, 0.35, 0.25), noise=(1.3, 1.0, 0.7), clip_norm=(1.0, 0.5, 0.25))
STAGE_OF_STEP = [0] * 4 + [1] * 4 + [2] * 3
NOTHING = jnp.zeros((40, 1))
LOSS = side_by_side.loss


def config(stages=STAGES, steps=STEPS, loss=lambda w, row: 0.0 * jnp.sum(w) * row[0], **own):
    """Plain SGD at rate 1, divided by 1: parameters are minus the sum of all noisy sums."""
    return training.TrainConfig(
        **dict(
            loss_fn=loss,
            lots=training.PoissonLots(40, 0.25, 40),
            steps=steps,
            expected_lot_size=1.0,
            optimizer=PLAIN,
            stages=stages,
        )
        | own
    )


def _key(seed=0):
    return training.candidate_keys(1, seed=seed)[0]


def sums_seen(made, key, rows, params, **changed):
    return noisy_sums(made, key, GIVEN | changed, rows, params, rows.shape[0])


# Steps --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [3, 4, 7, 10, 101, 9_999])
def test_steps_of_stages_add_up_and_are_near_their_shares(steps):
    for shares in itertools.product((0.2, 0.3, 0.45, 0.7), repeat=2):
        shares = (*shares, 1.0 - sum(shares)) if sum(shares) < 0.95 else (0.5, 0.5)
        try:
            found = training.Stages(shares).of_run(steps, training.FixedLots(9, 3))
        except ValueError:
            assert min(shares) * steps < 1.0
            continue
        assert sum(stage.steps for stage in found) == steps
        assert min(stage.steps for stage in found) >= 1
        for share, stage in zip(shares, found, strict=True):
            assert abs(stage.steps - share * steps) <= 1.0 + 1e-9


# Noise --------------------------------------------------------------------------------------------


def excess(noise, std):
    """How far squares are from those of this std, in standard deviations of their sum."""
    squares = np.sum(np.square(np.asarray(noise, np.float64)), axis=-1) / np.square(std)
    return (squares - ENTRIES) / math.sqrt(2.0 * ENTRIES)


def test_every_step_has_the_noise_of_its_stage_and_of_no_other():
    """Within 5.5 standard deviations, wrong with probability 4e-7 in all; others are 20 away."""
    seen = jax.jit(lambda key: sums_seen(config(), key, NOTHING, jnp.zeros(ENTRIES)))(_key())
    own = 1.5 * 2.0 * np.multiply(STAGES.noise, STAGES.clip_norm)
    for step, stage in enumerate(STAGE_OF_STEP):
        for other, std in enumerate(own):
            away = abs(excess(seen[step], std))
            assert away < 5.5 if other == stage else away > 20, (step, other)
    assert np.abs(np.corrcoef(seen) - np.eye(STEPS)).max() < 5.5 / math.sqrt(ENTRIES)


@pytest.mark.parametrize("ones", [training.Stages((0.5, 0.25, 0.25)), training.Stages((1.0,))])
def test_stages_that_change_nothing_are_no_stages_to_the_bit(ones):
    rows = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    for lots in (training.PoissonLots(40, 0.3, 25), training.FixedLots(40, 8)):
        made = config(None, loss=lambda w, row: (w @ row - 1.0) ** 2, lots=lots)
        one, other = (
            training.jit(training.make_train(dataclasses.replace(made, stages=stages)))(
                _key(), GIVEN, jnp.zeros(3), rows
            )
            for stages in (None, ones)
        )
        assert (np.asarray(one) == np.asarray(other)).all()


def test_a_multiplier_that_underflows_beside_its_factor_is_noise_all_the_same():
    stages = training.Stages((0.5, 0.5), noise=(1.0, 1e-3))
    seen = jax.jit(
        lambda key: sums_seen(config(stages), key, NOTHING, jnp.zeros(50), noise_multiplier=1e-37)
    )(_key())
    assert (np.abs(np.asarray(seen)).max(axis=1) > 0).all()


# Clip norms and lots ------------------------------------------------------------------------------


def test_every_step_has_the_clip_norm_of_its_stage():
    made = config(loss=lambda w, row: 100.0 * w[0] * row[0], lots=training.FixedLots(40, 40))
    seen = jax.jit(
        lambda key: sums_seen(made, key, jnp.ones((40, 1)), jnp.zeros(2), noise_multiplier=0.0)
    )(_key())
    wanted = 40 * 2.0 * np.take(STAGES.clip_norm, STAGE_OF_STEP)
    np.testing.assert_allclose(np.asarray(seen)[:, 0], wanted, rtol=1e-3)  # Rounding has room.
    assert (np.asarray(seen)[:, 1] == 0).all()


LOTS = training.Stages((0.4, 0.35, 0.25), lot_size=(1.0, 2.5, 0.4))


@pytest.mark.parametrize("capacity", [30, 40], ids=["sparse", "dense"])
def test_lots_of_a_stage_have_its_size_and_divide_its_sums(capacity):
    """Numbers of records within 5.5 deviations of their binomial law, and no other stage's."""
    runs = 400
    made = config(
        LOTS,
        loss=lambda w, row: w * row[0],
        lots=training.PoissonLots(40, 0.15, capacity),
        expected_lot_size=10.0,
    )
    keys = training.candidate_keys(runs, seed=3)
    one = functools.partial(sums_seen, made, noise_multiplier=0.0)
    seen = np.asarray(
        jax.jit(jax.vmap(lambda key: one(key, jnp.ones((40, 1)), jnp.zeros(()))))(keys), np.float64
    )
    factors = np.take(LOTS.lot_size, STAGE_OF_STEP)
    numbers = seen * 10.0 * factors
    np.testing.assert_allclose(numbers, np.round(numbers), atol=1e-3)
    chances = 0.15 * factors
    mean, variance = 40 * chances, 40 * chances * (1 - chances)
    assert (np.abs(numbers.mean(axis=0) - mean) < 5.5 * np.sqrt(variance / runs)).all()
    assert numbers.var(axis=0) == pytest.approx(variance, rel=0.4)
    charged = [stage.lots.sampling_probability for stage in LOTS.of_run(STEPS, made.lots)]
    assert np.take(charged, STAGE_OF_STEP) == pytest.approx(chances, rel=1e-15)


# In sweeps ----------------------------------------------------------------------------------------


def _candidates():
    """Of different steps, stages, lots; without any; and with correlated noise."""
    base = config(loss=LOSS)
    cyclic = training.CyclicPoissonLots(40, 0.5, 20, 2)
    return [
        base,
        dataclasses.replace(base, stages=None, steps=5),
        config(LOTS, steps=9, loss=LOSS, lots=training.PoissonLots(40, 0.3, 36)),
        dataclasses.replace(base, stages=training.Stages((0.3, 0.7), noise=(0.5, 2.0)), steps=7),
        config(None, loss=LOSS, lots=cyclic, noise=training.BandedNoise(2)),
        config(LOTS, loss=LOSS, lots=training.PoissonLots(40, 0.2, 20)),
    ]


def test_candidates_side_by_side_are_those_alone():
    side_by_side.assert_those_alone(_candidates(), GIVEN)


def test_a_sweep_that_is_killed_goes_on_to_the_identical_result(tmp_path):
    def with_others():
        other = [config(STAGES, loss=LOSS)] + _candidates()[1:]
        other[0] = dataclasses.replace(other[0], stages=training.Stages((0.5, 0.5)))
        with pytest.raises(ValueError, match="another sweep .*stages"):
            next(side_by_side.mixed(other, GIVEN, tmp_path / "checkpoints"))

    side_by_side.assert_killed_goes_on(_candidates, GIVEN, tmp_path / "checkpoints", with_others)


def test_a_candidate_with_other_stages_than_the_population_is_refused():
    with pytest.raises(ValueError, match="stages Stages.* which the population lacks"):
        side_by_side.mixed([config(loss=LOSS)], GIVEN, population=[config(None, loss=LOSS)])


# Price --------------------------------------------------------------------------------------------


def _of_gaussian(mu, delta):
    """The epsilon of a Gaussian mechanism of this mu (Balle & Wang 2018), by root finding."""
    return optimize.brentq(
        lambda e: (
            stats.norm.cdf(mu / 2 - e / mu) - math.exp(e) * stats.norm.cdf(-mu / 2 - e / mu) - delta
        ),
        0.0,
        60.0,
    )


def test_without_sampling_the_price_is_that_of_the_sum_of_all_steps_precisions():
    shape = RunShape(100, STEPS, "poisson", 100, 100, stages=STAGES)
    mu = math.sqrt(sum(1.0 / (3.0 * STAGES.noise[stage]) ** 2 for stage in STAGE_OF_STEP))
    exact = _of_gaussian(mu, 1e-5)
    assert exact <= shape.price(3.0).epsilon(1e-5) < exact * (1 + 1e-4)
    worst = math.sqrt(STEPS) / (3.0 * min(STAGES.noise))
    assert _of_gaussian(worst, 1e-5) > 1.3 * exact


@pytest.mark.parametrize(
    "stages",
    [
        training.Stages((0.5, 0.25, 0.25), noise=(1.2, 1.0, 0.7)),
        training.Stages((0.7, 0.3), lot_size=(0.5, 2.0)),
        training.Stages((0.7, 0.3), noise=(0.8, 1.5), lot_size=(0.5, 2.0), clip_norm=(3.0, 0.2)),
    ],
)
def test_the_price_is_dp_accountings_composition_of_the_stages(stages):
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    records, lot, steps, noise = 2000, 100, 300, 1.5
    shape = RunShape(lot, steps, "poisson", records, records, stages=stages)
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    for number, share in enumerate(stages.shares):
        gaussian = dp_accounting.GaussianDpEvent(noise * stages.noise[number])
        sampled = dp_accounting.PoissonSampledDpEvent(
            lot / records * stages.lot_size[number], gaussian
        )
        accountant.compose(dp_accounting.SelfComposedDpEvent(sampled, round(share * steps)))
    ours = shape.price(noise).epsilon(1e-5)
    assert ours == pytest.approx(accountant.get_epsilon(1e-5), rel=2e-3)
    assert shape.failure_probability < 2e-9
    plain = dataclasses.replace(shape, stages=None).price(noise).epsilon(1e-5)
    assert abs(ours / plain - 1.0) > 0.02


def test_stages_of_factor_one_cost_what_the_run_costs():
    plain = RunShape(100, 300, "poisson", 2000, 2000)
    ones = dataclasses.replace(plain, stages=training.Stages((0.3, 0.7), clip_norm=(5.0, 0.1)))
    costs = [shape.price(1.5).epsilon(1e-5) for shape in (plain, ones)]
    assert costs[0] == pytest.approx(costs[1], rel=1e-4)
    assert ones.lots == plain.lots
