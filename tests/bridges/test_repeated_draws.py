"""Draws that repeat are not priced as independent; draws that are independent are."""

import math

import numpy as np
import pytest

from dpjax import accounting
from dpjax.bridges.repeated_draws import found_in

optuna = pytest.importorskip("optuna", reason="the extra bridges is not installed")
bridge = pytest.importorskip("dpjax.bridges.optuna")
optuna.logging.set_verbosity(optuna.logging.ERROR)
BASE = accounting.gaussian(4.0)


def _continuous(trial):
    trial.suggest_float("rate", 0.01, 1.0, log=True)
    return trial.suggest_float("momentum", 0.0, 1.0)


def _whole(trial):
    trial.suggest_int("steps", 1, 1000, log=True)
    return trial.suggest_categorical("width", [8, 16, 32])


def _evenly(trial):
    return trial.suggest_int("steps", 1, 1000)


def _price(study, number=12):
    return bridge.price_study(study, base=BASE, most_trials=number, independent=True)


def _sampled(seed):
    return optuna.samplers.RandomSampler(seed=seed)


@pytest.mark.parametrize("objective", [_continuous, _whole, _evenly])
@pytest.mark.parametrize("in_step", [True, False])
def test_two_workers_with_one_seed_are_no_independent_trials(objective, in_step):
    """As in practice: 6 different points in 12 trials, 4.15 where 5.17 is due."""
    study = optuna.create_study(sampler=_sampled(7), direction="maximize")
    workers = [_sampled(7), _sampled(7)]
    for turn in range(12):
        study.sampler = workers[turn % 2 if in_step else turn // 6]
        study.optimize(objective, n_trials=1)
    study.sampler = workers[0]
    with pytest.raises(ValueError, match="one sampler's seed.*drop independent"):
        _price(study)
    assert bridge.price_study(study, base=BASE, most_trials=12).epsilon > 0


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("objective", [_continuous, _whole, _evenly])
def test_independent_draws_are_priced(seed, objective):
    study = optuna.create_study(sampler=_sampled(seed), direction="maximize")
    study.optimize(objective, n_trials=12)
    assert _price(study).statement["independent"]


@pytest.mark.parametrize("log", [True, False])
def test_a_grid_that_was_written_by_hand_is_no_draw(log):
    law = {"rate": optuna.distributions.FloatDistribution(0.01, 1.0, log=log)}
    study = optuna.create_study(sampler=_sampled(0), direction="maximize")
    rates = np.geomspace(0.01, 1.0, 8) if log else np.linspace(0.1, 0.8, 8)
    for rate in np.random.default_rng(0).permutation(rates):
        trial = optuna.trial.create_trial(params={"rate": rate}, distributions=law, value=1.0)
        study.add_trial(trial)
    with pytest.raises(ValueError, match="equally far apart.*drop independent"):
        _price(study, 8)


@pytest.mark.parametrize("number", [2, 5, 20, 60])
@pytest.mark.parametrize("values", [2, 3, 10, 100])
def test_chance_alone_hardly_ever_refuses(number, values):
    source = np.random.default_rng(number * values)
    refused = [
        found_in([{"a": int(one)} for one in source.integers(0, values, number)], {"a": values})
        for _ in range(300)
    ]
    assert refused == [None] * 300


def test_what_repeats_in_step_or_in_turn_is_found_where_values_are_few():
    once = [{"a": int(one)} for one in np.random.default_rng(1).integers(0, 4, 24)]
    assert found_in([*once, *once], {"a": 4}) is not None
    assert found_in([*once[:4], *once[:4]], {"a": 4}) is None, "as likely as 4^-4: chance"
    assert found_in([{"a": 0.5}, {"a": 0.5}], {"a": math.inf}) is not None
    assert found_in([{"a": 0.5}, {"a": 0.5}], {"a": 1.0}) is None


def test_both_ends_are_priced_where_the_cost_is_monotone():
    study = optuna.create_study(sampler=_sampled(1), direction="maximize")
    study.optimize(lambda trial: trial.suggest_int("steps", 1, 100_000), n_trials=2)
    read, seen = [], []

    def base(setting):
        read.append(setting["steps"])
        return accounting.gaussian(300.0 / math.sqrt(setting["steps"]))

    given = dict(base=base, most_trials=2, cost_depends_on=["steps"])
    price = bridge.price_study(
        study, **given, monotone_in=["steps"], progress=lambda *now: seen.append(now)
    )
    assert read == [1, 100_000] and seen == [(1, 2), (2, 2)]
    assert "STATED BY THE CALLER: the cost is monotone in steps" in price.statement["assumptions"]
    dearest = accounting.gaussian(300.0 / math.sqrt(100_000))
    assert price.epsilon == pytest.approx(accounting.repeat(dearest, 2).epsilon(1e-5))
    with pytest.raises(ValueError, match="more than 1000 settings: name those.*monotone_in"):
        bridge.price_study(study, **given)
    with pytest.raises(ValueError, match="name it in both"):
        bridge.price_study(study, **given, monotone_in=["width"])
