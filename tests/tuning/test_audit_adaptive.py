"""An audit of adaptive proposals end to end, against what is claimed.

The canary problem of `test_audit.py`: the model is one number, a record's gradient is minus its
value, the data with the canary has one record more. Independent executions of the real procedure
(`proposed_runs.executed_in_rounds`: K drawn, candidates proposed round after round, trained by the
engine, scored with noise, the best kept) with and without the canary. The bound must stay below the
claim, and exceed it when all noise is less than half of what is claimed.
"""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
from audits import epsilon_lower_bound

from dpjax import accounting, training, tuning
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.tuning.evaluations import private_runs, proposed_runs
from dpjax.tuning.problem.task import Records, Task
from dpjax.tuning.tuner import Request

EXECUTIONS = 8_000
DELTA = 0.02
NOISE = 1.5
LAW = accounting.AtMost(accounting.Geometric(mean=2), cap=3)
RATIO = (0.9, 1.1)


def _task(with_canary: bool) -> Task:
    """Training pulls the number up if the canary is there; the score prefers a larger number."""
    values = np.asarray([0.0, 1.0] if with_canary else [0.0], dtype=np.float32)
    thresholds = np.linspace(-3.0, 3.0, 61, dtype=np.float32)
    return Task(
        initial=lambda key: jnp.zeros(()),
        loss=lambda params, value: -params * value,
        correct=lambda params, threshold: params > threshold,
        train=Records(values, public_size=2, size_bound=2),
        validation=Records(thresholds, public_size=61, size_bound=61),
    )


@functools.cache
def _procedure() -> private_runs.Procedure:
    request = Request(
        tuning.Space(learning_rate=tuning.Uniform(0.5, 1.5), clip_norm=1.0),
        # Every record in every lot: nothing hides the canary but the noise.
        tuning.RunOptions(lot_size=2, steps=1, noise_multiplier=NOISE),
        training.sgd(),
        delta=DELTA,
    )
    choice = tuning.AdaptiveProposals(LAW, RATIO, round_size=1).choice
    return private_runs.plan_procedure(_task(True), request, choice, score_noise=2.0)


def _views(with_canary: bool, noise_factor: float, seed: int) -> np.ndarray:
    """(EXECUTIONS,), larger with the canary: the sum of noisy gradients that is released."""
    fixed = _procedure()
    quieter = tuple(
        dataclasses.replace(one, noise_multiplier=one.noise_multiplier * noise_factor)
        for one in fixed.settings
    )
    changed = dataclasses.replace(
        fixed,
        settings=quieter,
        inspected=dataclasses.replace(fixed.inspected, task=_task(with_canary)),
    )
    ran = proposed_runs.executed_in_rounds(
        changed, randomness=HostRandomness(seed), executions=EXECUTIONS, chunk_size=1 << 13
    )
    candidate = ran.best.candidate
    assert candidate.min() >= 0 and ran.counts.max() == 3
    return np.asarray(ran.best.outputs) / ran.hyperparameters["learning_rate"][candidate]


@functools.cache
def _audited(noise_factor: float) -> float:
    inside, outside = (
        _views(there, noise_factor, seed) for there, seed in ((True, 11), (False, 12))
    )
    return epsilon_lower_bound(inside, outside, DELTA)


def test_what_is_claimed_is_not_exceeded_and_the_audit_has_power():
    claim = _procedure().guarantee.epsilon(DELTA)
    assert 0.2 * claim <= _audited(1.0) <= claim


def test_less_noise_is_caught():
    assert _audited(0.4) > _procedure().guarantee.epsilon(DELTA)
