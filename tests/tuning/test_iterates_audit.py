"""An audit of a choice among one run's iterates, end to end: what an adversary sees of one record.

As `test_audit.py`: the model is one number and a record's gradient minus its value. A canary among
the training records shows in the number that is released; one among the validation records, which
every choice is right or wrong about, in which choice it was. Both must stay below the claim, the
second nearly reaches it; and must exceed it where the choice is the exact best, or made at twice
the rate.
"""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import optax
from audits import epsilon_lower_bound
from scipy import stats

from dpjax import training
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.tuning.evaluations import iterates_of_one_run
from dpjax.tuning.evaluations.iterates_of_one_run import IterateScores, IteratesOfOneRun
from dpjax.tuning.problem.run_settings import RunOptions
from dpjax.tuning.problem.space import Space
from dpjax.tuning.problem.task import Records, Task
from dpjax.tuning.tuner import KeepTheWinner, Request
from dpjax.tuning.tuners.chosen_iterate import PermuteAndFlipOfIterates

EXECUTIONS = 40_000
DELTA = 0.02
KEPT = IteratesOfOneRun(moments=(0.25, 0.5, 0.75))


def _task(values, thresholds):
    return Task(
        initial=lambda key: jnp.zeros(()),
        loss=lambda params, value: -params * value,
        correct=lambda params, threshold: params < threshold,
        train=Records(np.asarray(values, np.float32), public_size=4, size_bound=4),
        validation=Records(np.asarray(thresholds, np.float32), public_size=9, size_bound=9),
    )


def _steps_of_one(hyperparameters):
    """Moves by the learning rate at each step, whatever the records are."""

    def update(gradients, state, params):
        return hyperparameters["learning_rate"] + 0.0 * params, state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _plan(task, *, epsilon, optimizer):
    request = Request(
        Space(learning_rate=1.0, clip_norm=1.0),
        # Every record in every lot: nothing hides the canary but the noise.
        RunOptions(lot_size=4, steps=4, noise_multiplier=3.0),
        optimizer,
        delta=DELTA,
    )
    choice = PermuteAndFlipOfIterates(epsilon)
    return iterates_of_one_run.plan(task, request, KEPT, choice, KeepTheWinner())


def _executed(plan, seed):
    return iterates_of_one_run.executed(
        plan, randomness=HostRandomness(seed), executions=EXECUTIONS, chunk_size=EXECUTIONS
    )


@functools.cache
def _trained(with_canary):
    """The chosen iterate's number for each execution, and the plan."""
    values = [0.0, 1.0] if with_canary else [0.0]
    plan = _plan(_task(values, np.linspace(-3, 3, 9)), epsilon=2.0, optimizer=training.sgd())
    ran = _executed(plan, 20 + with_canary)
    assert np.all(ran.winners >= 0)
    return plan, np.asarray(ran.params) * 4.0


def test_a_training_record_costs_no_more_than_the_run():
    (plan, inside), (_, outside) = _trained(True), _trained(False)
    claim = plan.training_guarantee.epsilon(DELTA)
    found = epsilon_lower_bound(inside, outside, DELTA)
    assert 0.25 * claim <= found <= claim


def _chosen(thresholds, *, seed, changed=None):
    """Which choice each execution made; the iterates are 1, 2, 3 and 4."""
    plan = _plan(_task([1.0], thresholds), epsilon=1.5, optimizer=_steps_of_one)
    if changed is not None:
        plan = changed(plan)
    return plan, _executed(plan, seed).winners


WITHOUT, WITH = [9.0, 1.5], [9.0, 1.5, 1.5]
"""Validation records that every choice is right about, and that only the earliest iterate is; the
canary is one more of the latter."""


def _bound(one, other, failure=1e-6):
    """Lower bound on pure epsilon: of the probability of any of the four choices, either way."""
    best = 0.0
    for p, q in ((one, other), (other, one)):
        for place in range(4):
            hits_p, hits_q = np.sum(p == place), np.sum(q == place)
            low = stats.beta.ppf(failure, hits_p, len(p) - hits_p + 1) if hits_p else 0.0
            high = (
                stats.beta.ppf(1 - failure, hits_q + 1, len(q) - hits_q) if hits_q < len(q) else 1.0
            )
            best = max(best, float(np.log(low / high))) if low > 0 else best
    return best


def test_a_validation_record_costs_no_more_than_the_choice_and_nearly_as_much():
    (plan, one), (_, other) = _chosen(WITH, seed=31), _chosen(WITHOUT, seed=32)
    assert plan.selection_guarantee.pure_epsilon == 1.5
    assert 0.75 * 1.5 <= _bound(one, other) <= 1.5


def test_a_choice_at_twice_the_rate_is_caught(monkeypatch):
    usual = IterateScores.rate
    monkeypatch.setattr(IterateScores, "rate", lambda scores, epsilon: 2 * usual(scores, epsilon))
    (_, one), (_, other) = _chosen(WITH, seed=33), _chosen(WITHOUT, seed=34)
    assert _bound(one, other) > 1.5


def test_an_exact_choice_is_caught():
    """The best is the last iterate where all are alike, and the earliest with the canary."""

    def exact(plan):
        return dataclasses.replace(plan, epsilon=None)

    (_, one), (_, other) = (
        _chosen(thresholds, seed=35, changed=exact) for thresholds in ([9.0, 1.5], [9.0])
    )
    assert _bound(one, other) > 3.0
