"""Fixed lots against an adversary who chooses the other records at each step."""

import pytest

from dpjax import accounting
from experiments.benchmarks import fixed_lots_adversary

Q, NOISE, STEPS = 0.1, 1.0, 30
GRID = 5e-3


@pytest.mark.parametrize("epsilon", [0.5, 1.5])
def test_no_adversary_is_above_what_is_stated(epsilon):
    stated = accounting.dp_sgd_fixed_lots(1000, 100, NOISE, STEPS).delta(epsilon)
    deltas = {
        others: fixed_lots_adversary.delta_reached(Q, NOISE, STEPS, epsilon, others, GRID)
        for others in ("new", "old", "either")
    }
    assert max(deltas["new"], deltas["old"]) < deltas["either"] < stated


@pytest.mark.parametrize("others", ["new", "old"])
def test_other_records_that_are_fixed_give_a_direction_of_poisson_lots(others):
    poisson = accounting.dp_sgd(sampling_probability=Q, noise_multiplier=NOISE, steps=STEPS)
    law = poisson.pair.forward if others == "new" else poisson.pair.backward
    exact = float(law.delta(1.0))
    found = fixed_lots_adversary.delta_reached(Q, NOISE, STEPS, 1.0, others, GRID)
    assert found == pytest.approx(exact, rel=2e-3)
