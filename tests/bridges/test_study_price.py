"""What a trial costs at most, whatever order its settings are listed in."""

import itertools

import pytest

from dpjax import accounting
from dpjax.bridges import study_price

NOISES, LOTS = (2.0, 4.0, 8.0), (0.1, 0.2)


def _cost(setting):
    return accounting.dp_sgd(setting.get("rate", 0.2), setting["noise"], 10)


@pytest.mark.parametrize("noises", [*itertools.permutations(NOISES)])
@pytest.mark.parametrize("rates", [None, *itertools.permutations(LOTS)])
def test_the_most_expensive_setting_is_charged_whichever_is_listed_first(noises, rates):
    values = {"noise": noises} | ({} if rates is None else {"rate": rates})
    found = study_price.most_expensive(_cost, values.__getitem__, list(values))
    assert found.epsilon(1e-5) == pytest.approx(
        _cost({"rate": max(LOTS), "noise": min(NOISES)}).epsilon(1e-5), rel=1e-6
    )


@pytest.mark.parametrize("settings", [(0, 1), (1, 0)])
def test_profiles_that_cross_are_both_charged(settings):
    """At a small delta one setting costs most, at a large one the other."""
    one, other = accounting.gaussian(1.0), accounting.pure(1.5)
    found = study_price.most_expensive(
        lambda setting: (one, other)[setting["which"]], lambda _: settings, ["which"]
    )
    for delta in (1e-6, 0.1):
        most = max(one.epsilon(delta), other.epsilon(delta))
        assert found.epsilon(delta) == pytest.approx(most, rel=1e-6)
    assert one.epsilon(1e-6) > other.epsilon(1e-6) and one.epsilon(0.2) < other.epsilon(0.2)
