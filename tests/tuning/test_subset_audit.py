"""An audit of subset tuning: what an adversary sees stays below the claim while the part is secret.

As `test_audit.py`: the model is one number, a record's gradient is minus its value, the canary is
one record more. Rates 2 and 0 stand for steps of +1 and -1, so that the released rate tells of the
selection; the released number tells of the final training. Independent executions of the real draw
of the part, the real search (`execute`) and the real final training are put together by where the
canary is, since all of one kind can be vectorised. The bound must stay below the claim, and must
exceed it where the part is known, and where the final training sees all records.
"""

import functools

import numpy as np
import optax
from audits import canary_task, epsilon_lower_bound

from dpjax import accounting
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.tuning import Choice, RunOptions, Space
from dpjax.tuning.private_runs import execute, final_run
from dpjax.tuning.steps import Material, Problem, one_by_one
from experiments.figures.leaderboard import subset_tuning
from experiments.figures.leaderboard.subset_tuning import SubsetTuning

EXECUTIONS = 100_000
DELTA = 0.02
SHARE = 0.4
LAW = accounting.AtMost(accounting.Geometric(mean=1.5), cap=4)
SELECTED = 0.3
"""Weight of the released step beside the released number."""


def _either_way(hyperparameters):
    """Gradient descent by the learning rate less 1: down the loss, or up."""
    return optax.sgd(hyperparameters["learning_rate"] - 1.0)


@functools.cache
def _plan(final_on="rest"):
    problem = Problem.of(
        canary_task(True),
        Space(learning_rate=Choice([0.0, 2.0]), clip_norm=1.0),
        # Every record in every lot: nothing hides the canary but the noise and the part.
        RunOptions(lot_size=2, steps=1, noise_multiplier=1.5),
        _either_way,
        delta=DELTA,
        validation_is_public=True,
    )
    return SubsetTuning(SHARE, LAW, final_on=final_on).plan(problem)


def _outcomes(with_canary, seed, known_part=None, final_sees_all=False, final_on="rest"):
    """What every execution releases, as one number; (EXECUTIONS,)."""
    task, plan = canary_task(with_canary), _plan(final_on)
    material = Material.of(task, plan.problem.space, _either_way)
    number = task.train.number
    # The first record is there in both data sets and moves nothing; where it is need not vary.
    parts = np.zeros((EXECUTIONS, number), bool)
    if known_part is None:
        drawn = subset_tuning.drawn_part(EXECUTIONS, SHARE, HostRandomness(seed))
        parts[:, 1:] = drawn[:, None]
    else:
        parts[:] = known_part[:number]
    released = np.full(EXECUTIONS, np.nan)
    for kind, in_part in enumerate(np.unique(parts, axis=0)):
        members = np.flatnonzero((parts == in_part).all(axis=1))
        searched = execute(
            plan.search,
            plan.searched(material, in_part),
            randomness=HostRandomness(1000 * seed + kind),
            executions=len(members),
            chunk_size=1 << 16,
        )
        winners = [one.hyperparameters for one in one_by_one(searched)]
        assert None not in winners
        chosen = {name: np.array([one[name] for one in winners]) for name in winners[0]}
        final = execute(
            final_run(plan, plan.settings[1], chosen),
            plan.finally_trained(material, np.zeros(number, bool) if final_sees_all else in_part),
            randomness=HostRandomness(1000 * seed + 100 + kind),
            executions=len(members),
            chunk_size=1 << 16,
        )
        # The noisy sum of the final training, and which way it was taken.
        step = chosen["learning_rate"] - 1.0
        sums = step * final.best.outputs * 2 * plan.final_share
        released[members] = sums + SELECTED * step
    assert np.isfinite(released).all()
    return released


def _audit(**changes):
    return epsilon_lower_bound(
        _outcomes(True, seed=11, **changes), _outcomes(False, seed=12, **changes), DELTA
    )


def test_what_is_claimed_is_not_exceeded_and_the_audit_has_power():
    claim = _plan().guarantee.epsilon(DELTA)
    found = _audit()
    assert found <= claim
    assert found >= 0.3 * claim
    # The secret is worth something: composed, or in parallel, it would cost more.
    run = _plan().run_guarantee
    assert claim < 0.8 * run.epsilon(DELTA)


def test_a_part_that_is_public_is_caught():
    """By a hash, or by a seed that others know: the canary is known to be in the rest."""
    assert _audit(known_part=np.array([False, False])) > _plan().guarantee.epsilon(DELTA)


def test_a_final_training_that_sees_all_records_is_caught():
    assert _audit(final_sees_all=True) > _plan().guarantee.epsilon(DELTA)


def test_a_final_training_of_all_records_costs_no_more_than_is_claimed_for_it():
    claim = _plan("all").guarantee.epsilon(DELTA)
    assert claim > 1.2 * _plan().guarantee.epsilon(DELTA)
    found = _audit(final_on="all")
    assert 0.3 * claim <= found <= claim
    # The claim of the other variant would not hold.
    assert found > _plan().guarantee.epsilon(DELTA)
