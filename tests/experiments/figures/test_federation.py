"""The figure of federated training: rows from real runs, the picture from the rows alone."""

import math

import pytest

from experiments.figures.federation import figure_training
from experiments.figures.figure import QUICK


def test_rows_are_runs_and_noise_is_that_of_the_plan(monkeypatch, tmp_path):
    small = figure_training.Setting("digits", 10, 1, 64, (40.0, math.inf), 1)
    monkeypatch.setitem(figure_training.SETTINGS, QUICK, (small,))
    figure_training.FIGURE.produce(tmp_path, QUICK)
    assert (tmp_path / "figure_training.png").stat().st_size > 10_000
    noisy, plain = figure_training.compute(QUICK)
    assert noisy["epsilon"] == 40.0 and plain["epsilon"] is None
    assert plain["step_noise"] == 0.0 < noisy["step_noise"]
    assert plain["test_accuracy"] > 0.6
    # By hand: rho + 2 sqrt(rho log(1e5)) = 37 or so is left for one round, rho = 1 / (2 z^2), and
    # noise of z times twice the clip norm on each of 650 entries is divided by ten clients.
    multiplier = 1 / math.sqrt(2 * 12.8)
    assert noisy["step_noise"] == pytest.approx(2 * multiplier * math.sqrt(650) / 10, rel=0.08)
