"""An audit of extrapolation end to end: stages, line and final training, against what is claimed.

The canary problem of `test_audit.py`: the model is one number, a record's gradient is minus its
value, the data with the canary has one record more. Independent executions of the real procedure
(`driver.drive`: K of two stages drawn, candidates trained by the engine, scored with
noise, the best kept, the line read, the final training run) with and without the canary. Two views
are audited: the release alone, and everything that the price pays for, the stages' winners with it.
The bounds must stay below the claim; the second one must exceed it when all noise is half of what
is claimed.
"""

import dataclasses
import functools

import numpy as np
from audits import canary_task, epsilon_lower_bound
from noted_steps import noting

from dpjax import accounting, training, tuning
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.tuning import driver
from dpjax.tuning.steps import Material, Problem
from experiments.figures.leaderboard import extrapolation

EXECUTIONS = 4_000
DELTA = 0.02
STAGE_NOISE, FINAL_NOISE = (4.0, 3.0), 2.0
LAW = accounting.AtMost(accounting.Geometric(mean=2), cap=4)


@functools.cache
def _plan() -> extrapolation.StagesPlan:
    tuner = extrapolation.Extrapolation(LAW, stage_noise=STAGE_NOISE)
    problem = Problem.of(
        canary_task(True),
        tuning.Space(learning_rate=tuning.Uniform(0.5, 1.5), clip_norm=1.0),
        # Every record in every lot: nothing hides the canary but the noise.
        tuning.RunOptions(lot_size=2, steps=1, noise_multiplier=FINAL_NOISE),
        training.sgd(),
        delta=DELTA,
    )
    return tuner.plan(problem)


def _executed(with_canary: bool, noise_factor: float, seed: int) -> tuple[list, list]:
    """What every execution releases and each stage was answered; of noise times a factor."""

    def quieter(setting):
        return dataclasses.replace(
            setting, noise_multiplier=setting.noise_multiplier * noise_factor
        )

    fixed = _plan()
    stages = tuple(
        dataclasses.replace(stage, settings=tuple(map(quieter, stage.settings)))
        for stage in fixed.stages
    )
    changed = dataclasses.replace(fixed, stages=stages, setting=quieter(fixed.setting))
    seen = []
    tuner = noting(extrapolation.Extrapolation, seen)(LAW, stage_noise=STAGE_NOISE)
    found = driver.drive(
        tuner,
        changed,
        Material.of(canary_task(with_canary), fixed.problem.space, training.sgd()),
        randomness=HostRandomness(seed),
        executions=EXECUTIONS,
        chunk_size=1 << 14,
    )
    return found, seen[:-1]


def _views(found: list, stages: list) -> tuple[np.ndarray, np.ndarray]:
    """(EXECUTIONS,) each, larger with the canary: of the release; of all that is paid for."""
    final = _steps(found)
    everything = final / FINAL_NOISE**2
    for stage, noise in zip(stages, STAGE_NOISE, strict=True):
        everything = everything + _steps(stage.answers) / noise**2
    return final, everything


def _steps(models: list) -> np.ndarray:
    """Models over their learning rates."""
    return np.array([one.params / one.hyperparameters["learning_rate"] for one in models])


@functools.cache
def _audits(noise_factor: float) -> tuple[float, float]:
    inside = _views(*_executed(True, noise_factor, seed=11))
    outside = _views(*_executed(False, noise_factor, seed=12))
    return tuple(epsilon_lower_bound(one, other, DELTA) for one, other in zip(inside, outside))


def test_what_is_claimed_is_not_exceeded_and_the_audit_has_power():
    claim = _plan().guarantee.epsilon(DELTA)
    released, everything = _audits(1.0)
    assert released <= claim and everything <= claim
    # The audit is no toy: it finds a good part of what is claimed.
    assert everything >= 0.4 * claim


def test_half_the_noise_is_caught():
    assert _audits(0.5)[1] > _plan().guarantee.epsilon(DELTA)
