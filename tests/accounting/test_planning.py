"""Plans: success targets met exactly, caps and budgets respected, and the known frontier."""

import json
import math
import pathlib

import pytest

from dpjax import accounting

ROWS = json.loads(
    (pathlib.Path(__file__).parent / "oracles" / "selection_frontier_rho0.1.json").read_text()
)
BASE = accounting.gaussian(1.0 / math.sqrt(0.2))


def shape_of(row: dict) -> float:
    return math.inf if row["eta"] is None else row["eta"]


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r['m']}-{r['beta']}-{r['eta']}")
def test_frontier(row):
    arguments = {
        "candidates": row["m"],
        "success": row["beta"],
        "delta": 1e-6,
        "shapes": [shape_of(row)],
    }
    if row.get("unreachable") or row["mean"] > 1e6:
        with pytest.raises(ValueError, match="no law of shapes"):
            accounting.plan(BASE, **arguments)
        return
    found = accounting.plan(BASE, **arguments)
    assert found.law.mean == pytest.approx(row["mean"], rel=1e-6)
    assert found.success == pytest.approx(row["beta"], abs=1e-9)
    # The oracle is the envelope; the exact bound is smaller for Poisson laws of large mean.
    assert found.epsilon <= row["eps_env"] + 5e-3
    if row["eta"] is not None:
        assert found.epsilon == pytest.approx(row["eps_env"], abs=5e-3)
    if row["K_p50"] is not None:  # The oracle tabulated no more than 20,000.
        assert found.median_runs == row["K_p50"]
        assert found.runs_99 == row["K_p99"]
    assert accounting.best_of(BASE, found.law).epsilon(1e-6) == found.epsilon
    by_renyi = accounting.best_of(accounting.zcdp(0.1), found.law, method="rdp")
    assert by_renyi.epsilon(1e-6) == pytest.approx(row["eps_rdp"], abs=1e-4)


def test_the_cheapest_law_is_proposed():
    """Spec 3.6: shapes 1 to 2 are best at success 0.9; Poisson costs twice as much."""
    best = accounting.plan(BASE, candidates=20, success=0.9, delta=1e-6)
    assert 1.0 <= best.law.shape <= 2.0
    assert best.epsilon == pytest.approx(3.94, abs=1e-2)
    capped = accounting.plan(BASE, candidates=20, success=0.9, delta=1e-6, runs_99=300)
    assert capped.runs_99 <= 300
    assert capped.epsilon >= best.epsilon


@pytest.mark.parametrize("delta", [0, 1e-6])
def test_nothing_is_proposed_that_nobody_could_train(delta):
    """The cheapest law of a pure base is logarithmic, of mean 3.4e11 at this target."""
    found = accounting.plan(accounting.pure(0.1), delta=delta)
    assert found.law.mean <= 1e6
    assert found.runs_99 < 1 << 22
    with pytest.raises(ValueError, match="mean of K up to 1,000,000: pass a shape >= 0.5"):
        accounting.plan(accounting.pure(0.1), delta=delta, shapes=[0.0])


def test_without_a_base():
    free = accounting.plan(candidates=20, success=0.9)
    assert free.law == accounting.Geometric(free.law.mean)
    assert free.epsilon is None
    tight = accounting.plan(candidates=20, success=0.9, runs_99=70)
    assert isinstance(tight.law, accounting.Poisson)
