"""Audits of clip rules: what an adversary sees of 65,536 tiny runs stays below the claim.

The model is one number and a record is its own gradient; the data with the canary has one record
more, or another one in its place. The adversary sees the parameter after every step, and ranks runs
by the likelihood ratio. A lower bound on epsilon that is wrong with probability at most 1e-6 must
stay below the claim, come close to it, and exceed it with half of the noise.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from audits import epsilon_lower_bound

from dpjax import accounting, training
from dpjax.training import dp_sgd

RUNS, STEPS, NOISE = 1 << 16, 3, 1.6
DELTA = 0.02
FAR = 1e6
GLOBAL = training.GlobalClipping()
AUTOMATIC = training.AutomaticClipping()


@dataclasses.dataclass(frozen=True)
class Case:
    """One pair of neighbours.

    Attributes:
      rule: of clipping.
      lots: how lots are drawn.
      without, canary: the record, in the data without and with the canary; None for none.
    """

    rule: training.ClipRule
    lots: training.PoissonLots | training.FixedLots
    without: float | None
    canary: float

    @property
    def rate(self):
        return getattr(self.lots, "sampling_probability", 1.0)

    @property
    def relation(self):
        return "add_or_remove_one" if self.without is None else "replace_one"

    def claim(self):
        """Epsilon of the run, from the noise multiplier alone."""
        if self.without is None:
            priced = accounting.dp_sgd(
                sampling_probability=self.rate, noise_multiplier=NOISE, steps=STEPS
            )
        else:
            priced = accounting.dp_sgd_fixed_lots(1, 1, noise_multiplier=NOISE, steps=STEPS)
        return priced.epsilon(DELTA)


ALWAYS, HALF = training.PoissonLots(2, 1.0, 2), training.PoissonLots(2, 0.5, 2)
CASES = {
    "global, below the clip norm": Case(GLOBAL, ALWAYS, None, 0.98),
    "global, lots of half": Case(GLOBAL, HALF, None, FAR),
    "global, replaced": Case(GLOBAL, training.FixedLots(1, 1), -0.98, FAR),
    "automatic": Case(AUTOMATIC, ALWAYS, None, FAR),
    "automatic, lots of half": Case(AUTOMATIC, HALF, None, FAR),
}


@functools.partial(jax.jit, static_argnames=("case",))
def _seen(case, keys, record, number, noise_multiplier):
    """Noisy sums of every step, (runs, steps): by these the parameter moves."""
    config = training.TrainConfig(
        loss_fn=lambda params, row: params * row, lots=case.lots, steps=1, expected_lot_size=1.0,
        optimizer=training.sgd(), clipping=case.rule,
    )  # fmt: skip
    given = {
        "clip_norm": jnp.float32(1.0),
        "noise_multiplier": noise_multiplier,
        "learning_rate": jnp.float32(1.0),
    }
    rows = jnp.stack([record, jnp.float32(0)])[: 1 if case.without is not None else 2]

    def run(key):
        state, sums = dp_sgd.begin(config, given, jnp.float32(0)), []
        for step in range(STEPS):
            after = dp_sgd.advance(
                config, key, given, state, rows,
                draw=lambda lot_key, step: case.lots.draw(lot_key, number), expected_lot_size=1.0,
                steps=np.uint32(1), first=np.uint32(step),
            )  # fmt: skip
            sums.append(state.trained - after.trained)
            state = after
        return jnp.stack(sums)

    return jax.vmap(run)(keys)


def _statistics(case, with_canary, factor, seed):
    """Log likelihood ratio of every run, (RUNS,) float64, as the mechanism is stated."""
    record = case.canary if with_canary else case.without
    sums = _seen(
        case,
        training.candidate_keys(RUNS, seed=seed),
        np.float32(record or 0.0),
        np.int32(record is not None),
        np.float32(NOISE * factor),
    )
    clipped = np.clip((case.canary, case.without or 0.0), -1.0, 1.0)
    ratio = _log_ratio(sums, *clipped, NOISE * (1.0 if case.without is None else 2.0))
    outside = np.log1p(-case.rate) if case.rate < 1 else -np.inf
    return np.sum(np.logaddexp(outside, np.log(case.rate) + ratio), axis=1)


def _log_ratio(seen, inside, outside, deviation):
    """Of two normal densities of one deviation, float64."""
    return (
        (inside - outside) * (np.asarray(seen, np.float64) - (inside + outside) / 2) / deviation**2
    )


def audit(case, factor=1.0):
    """Lower bound on epsilon, of runs with `factor` of the noise."""
    seen = (_statistics(case, True, factor, seed=1), _statistics(case, False, factor, seed=2))
    return epsilon_lower_bound(*seen, DELTA)


@pytest.mark.parametrize("name", CASES)
def test_the_claim_holds_is_nearly_reached_and_half_the_noise_is_caught(name):
    case = CASES[name]
    claim = case.claim()
    found = audit(case)
    assert found <= claim
    assert found > 0.6 * claim
    assert audit(case, factor=0.5) > 1.2 * claim
