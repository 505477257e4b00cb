"""The shape of a run: one place for its lots, what may go wrong with them, and its price."""

import numpy as np
import pytest
import small_tasks

from dpjax import accounting, pareto, training, tuning
from dpjax.tuning.problem.run_settings import TRUNCATION_PROBABILITY, RunShape, run_settings
from dpjax.tuning.steps import Problem


@pytest.mark.parametrize(("sampling", "bound"), [("fixed", None), ("poisson", 130)])
def test_a_search_and_a_candidate_have_the_same_runs(sampling, bound):
    shapes = pareto.RunShapes(100, sampling, size_bound=bound)
    setting = {"epochs": np.array([2.0]), "lot_size": np.array([20.0])}
    (run,) = shapes.accounted(setting | {"noise_multiplier": np.array([1.5])})
    shape = RunShape(20, 10, sampling, 100, bound or 100)
    assert (run.lots, run.relation) == (shape.lots, shape.relation)
    assert run.failure_probability == shape.failure_probability
    assert run.guarantee().epsilon(1e-5) == shape.price(1.5).epsilon(1e-5)
    assert run.guarantee(3.0).epsilon(1e-5) == shape.price(3.0).epsilon(1e-5)


def test_what_may_go_wrong_is_charged():
    fixed, poisson = (RunShape(20, 10, sampling, 100, 130) for sampling in ("fixed", "poisson"))
    assert fixed.lots == training.FixedLots(100, 20)
    assert fixed.failure_probability == 10 * fixed.lots.failure_probability_per_draw < 1e-9
    capacity = accounting.lot_capacity(130, 0.2, 10, TRUNCATION_PROBABILITY)
    assert poisson.lots == training.PoissonLots(130, 0.2, capacity)
    overflow = accounting.truncation_probability(130, 0.2, capacity, 10)
    assert 0 < overflow <= TRUNCATION_PROBABILITY
    assert poisson.failure_probability == pytest.approx(
        overflow + 10 * poisson.lots.failure_probability_per_draw, rel=1e-12
    )
    for shape in (fixed, poisson):
        assert shape.price(2.0).delta(60.0) >= shape.failure_probability


@pytest.mark.parametrize(
    ("lot_size", "steps", "message"),
    [
        (0, 5, "lot_size=0: pass between 1 and"),
        (101, 5, "records, 100"),
        (20, 0, "steps=0: pass 1 or more"),
    ],
)
def test_runs_that_cannot_be_are_refused(lot_size, steps, message):
    with pytest.raises(ValueError, match=message):
        RunShape(lot_size, steps, "poisson", 100, 130)


@pytest.mark.parametrize("noise", [-1.0, float("inf")])
@pytest.mark.parametrize("drawn", [False, True])
def test_noise_that_is_none_is_named_wherever_it_stands(noise, drawn):
    """Before anything is priced: in the options, and among what a space draws."""

    def listed():
        given = {"noise_multiplier": tuning.Choice([2.0, noise])} if drawn else {}
        beside = {} if drawn else {"noise_multiplier": noise}
        options = tuning.RunOptions(lot_size=8, steps=2, **beside)
        space = tuning.Space({"learning_rate": 0.5, "clip_norm": 1.0} | given)
        task = small_tasks.linear()
        problem = Problem.of(task, space, options, training.sgd(), None, 1e-5, False)
        return run_settings(problem)

    with pytest.raises(ValueError, match="finite"):
        listed()
