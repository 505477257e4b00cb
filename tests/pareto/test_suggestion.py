"""Suggestions: private enough by the true oracle, near the known best, honest about the error."""

import numpy as np
import pytest

from dpjax import pareto

DOMAIN = pareto.Domain(
    epochs=pareto.LogInteger(1, 64), noise=pareto.Log(0.1, 16.0), rate=pareto.Log(1e-3, 1.0)
)


def privacy(settings):
    return np.sqrt(settings["epochs"]) / settings["noise"]


def true_utility(settings):
    logit = 2.0 - 2.0 / settings["epochs"] - 0.4 * settings["noise"]
    return 1 / (1 + np.exp(np.log10(settings["rate"] / 0.03) ** 2 - logit))


def utility(settings, seeds):
    generators = [np.random.default_rng(int(seed)) for seed in seeds]
    noise = np.stack([generator.normal(size=4) for generator in generators])
    return np.clip(true_utility(settings)[:, None] + 0.01 * noise, 0, 1)


@pytest.fixture(scope="module")
def record():
    return pareto.search(
        DOMAIN, privacy, utility, method="random", initial=60, evaluations=60, seed=0
    )


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 10.0])
def test_the_suggestion_is_private_enough_and_good(record, epsilon):
    suggestion = pareto.suggest(record, privacy, epsilon)
    setting = {name: np.array([value]) for name, value in suggestion.setting.items()}
    assert suggestion.epsilon == privacy(setting)[0] <= epsilon
    assert setting["epochs"][0] == round(setting["epochs"][0])
    drawn = DOMAIN.from_unit(DOMAIN.sample(200_000, np.random.default_rng(1)))
    best = true_utility(drawn)[privacy(drawn) <= epsilon].max()
    truth = true_utility(setting)[0]
    assert best - truth < 0.02
    assert suggestion.low < truth < suggestion.high
    assert suggestion.low < suggestion.utility < suggestion.high
    evaluated = record.epsilon <= epsilon
    assert truth > record.utility[evaluated].max() - 0.02


def test_more_epsilon_never_predicts_less(record):
    predicted = [pareto.suggest(record, privacy, epsilon).utility for epsilon in (0.5, 1, 2, 4)]
    assert all(later > earlier - 0.005 for earlier, later in zip(predicted, predicted[1:]))


def test_an_epsilon_out_of_reach_names_the_least(record):
    with pytest.raises(ValueError, match=r"the most private one found has 0.06") as refused:
        pareto.suggest(record, privacy, 0.01)
    assert "\n" not in str(refused.value)
    # The least of the domain, 1/16, is found where it just fits.
    assert pareto.suggest(record, privacy, 0.0635).epsilon <= 0.0635


@pytest.mark.parametrize("excess", [1e-9, 1e-3, 0.02])
def test_the_least_epsilon_is_found_in_the_corner_it_lies_in(excess):
    """Four hyperparameters that cost; random candidates never come within a tenth of the least."""
    domain = pareto.Domain(
        epochs=pareto.LogInteger(1, 64),
        lot_size=pareto.LogInteger(8, 512),
        noise=pareto.Log(0.1, 16.0),
        rate=pareto.Log(1e-3, 1.0),
    )

    def cost(settings):
        return np.sqrt(settings["epochs"] * settings["lot_size"]) / settings["noise"] + 0.01

    def gain(settings, seeds):
        return utility(settings, seeds)

    searched = pareto.search(
        domain, cost, gain, method="random", initial=40, evaluations=40, seed=0
    )
    least = np.sqrt(8) / 16 + 0.01
    wanted = least * (1 + excess)
    assert least <= pareto.suggest(searched, cost, wanted).epsilon <= wanted


@pytest.mark.parametrize("epsilon", [0.0, -1.0, np.inf, np.nan])
def test_numbers_that_are_no_epsilon(record, epsilon):
    with pytest.raises(ValueError, match="epsilon must be finite and > 0"):
        pareto.suggest(record, privacy, epsilon)


def test_nothing_to_fit():
    empty = pareto.SearchRecord(DOMAIN, (10.0, 1.0))
    with pytest.raises(ValueError, match="no evaluation succeeded: pass a record"):
        pareto.suggest(empty, privacy, 1.0)
