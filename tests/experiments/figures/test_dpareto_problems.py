"""The Pareto paper's domains, grids and laws of random search."""

import numpy as np
import pytest
from scipy import stats

from dpjax import pareto
from experiments.figures.dpareto import problems
from experiments.figures.dpareto.sampling_laws import Law, Laws


def test_the_paper_s_domain_and_grids():
    problem = problems.PROBLEMS["adult_logistic_regression_adam"]
    for points, number in ((3, 243), (4, 1024)):
        settings_ = pareto.grid(problem.linear_domain, points)
        assert len(settings_["epochs"]) == number
        assert set(settings_["epochs"][[0, -1]]) == {1.0, 64.0}
    assert sorted(set(pareto.grid(problem.linear_domain, 3)["lot_size"])) == [8, 260, 512]
    assert problems.usual_domain("a1a", "logistic_regression", "adam", 30956) == problem.domain
    ours = problems.usual_domain("digits", "logistic_regression", "momentum", 1438)
    assert ours.largest("lot_size") == 512 and ours.constants == {"momentum": 0.9}


def _truncated(law, distribution):
    """The distribution function of a law after rejection, by SciPy."""
    low, high = distribution.cdf([law.least, law.most])
    return lambda values: (distribution.cdf(values) - low) / (high - low)


def test_the_paper_s_laws():
    laws = problems.PROBLEMS["adult_logistic_regression_sgd"].laws
    drawn = laws.sample(5000, np.random.default_rng(2))
    noise = laws.laws["noise_multiplier"]
    for rate, accepted in ((0.1, True), (0.15, False), (0.067, False)):
        cdf = _truncated(noise, stats.expon(loc=0.1, scale=1 / rate))
        # False alarms 1e-3 at the right rate, fixed seed.
        assert (stats.kstest(drawn["noise_multiplier"], cdf).pvalue > 1e-3) == accepted
    lots = drawn["lot_size"]
    assert lots.min() >= 8 and lots.max() <= 512 and (lots == np.round(lots)).all()
    truncated = stats.truncnorm((8 - 128) / 64, (512 - 128) / 64, loc=128, scale=64)
    assert lots.mean() == pytest.approx(truncated.mean(), abs=4 * 64 / np.sqrt(5000))
    assert drawn["learning_rate"].max() <= 0.1 and drawn["epochs"].max() <= 64


def test_laws_that_leave_nothing_are_refused():
    with pytest.raises(ValueError, match="leaves nothing"):
        Law("uniform", 0, 1, least=2).sample(3, np.random.default_rng(0))
    with pytest.raises(ValueError, match="unknown kind"):
        Law("cauchy", 0, 1).sample(3, np.random.default_rng(0))


def test_constants_are_drawn_and_described_as_they_are():
    laws = Laws({"rate": Law("uniform", 0, 1), "clip": 2.0})
    assert laws.sample(3, np.random.default_rng(0))["clip"].tolist() == [2.0] * 3
    assert laws.describe()["rate"].startswith("Law(kind='uniform', first=0, second=1,")
    assert laws.describe()["clip"] == 2.0
