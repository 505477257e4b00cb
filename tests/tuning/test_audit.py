"""An audit of the whole tuning procedure: what an adversary can see stays below the claim.

One-dimensional canary problem: the model is one number, a record's gradient is minus its value, the
data with the canary has one record more. 100,000 independent executions of the real procedure
(`private_runs.execute`: K drawn, candidates trained by the engine, scored with noise, the
best one kept) with and without the canary; an event chosen on one half of the outcomes is counted
on the other half, and Clopper and Pearson's bounds turn the counts into a lower bound on epsilon
that is wrong with probability at most 1e-6. The bound must stay below the claim, and must exceed it
when the noise is half of what is claimed, or when all candidates share one key.
"""

import dataclasses
import functools

import numpy as np
from audits import canary_task, epsilon_lower_bound

from dpjax import accounting, training
from dpjax.randomness import host_randomness
from dpjax.tuning import RunOptions, Space
from dpjax.tuning.private_runs import execute
from dpjax.tuning.selection import BestOf
from dpjax.tuning.steps import Material, Problem, plan_runs

EXECUTIONS = 40_000
DELTA = 0.02
NOISE_MULTIPLIER = 2.0
LAW = accounting.AtMost(accounting.Geometric(mean=3), cap=8)


@functools.cache
def _procedure():
    return plan_runs(
        Problem.of(
            canary_task(True),
            Space(learning_rate=1.0, clip_norm=1.0),
            # Every record in every lot: nothing hides the canary but the noise.
            RunOptions(lot_size=2, steps=1, noise_multiplier=NOISE_MULTIPLIER),
            training.sgd(),
            delta=DELTA,
        ),
        BestOf(LAW),
    )


def _outcomes(with_canary: bool, noise_factor: float, seed: int) -> np.ndarray:
    """Returns the released number of every execution, (EXECUTIONS,) float32."""
    procedure = _procedure()
    settings = tuple(
        dataclasses.replace(setting, noise_multiplier=setting.noise_multiplier * noise_factor)
        for setting in procedure.settings
    )
    executed = execute(
        dataclasses.replace(procedure, settings=settings),
        Material.of(canary_task(with_canary), procedure.problem.space, training.sgd()),
        randomness=host_randomness.HostRandomness(seed),
        executions=EXECUTIONS,
        chunk_size=1 << 16,
    )
    assert executed.best.candidate.min() >= 0
    return executed.best._outputs


def _audit(noise_factor: float) -> float:
    return epsilon_lower_bound(
        _outcomes(True, noise_factor, seed=11), _outcomes(False, noise_factor, seed=12), DELTA
    )


def test_what_is_claimed_is_not_exceeded_and_the_audit_has_power():
    claim = _procedure().guarantee.epsilon(DELTA)
    found = _audit(1.0)
    assert found <= claim
    # The audit is no toy: it finds a good part of what is claimed.
    assert found >= 0.5 * claim


def test_half_the_noise_is_caught():
    assert _audit(0.5) > _procedure().guarantee.epsilon(DELTA)
