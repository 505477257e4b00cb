"""What an adversary can see of two neighbouring inputs, at the confidence that tests here ask."""

import jax.numpy as jnp
import numpy as np

from dpjax import auditing
from dpjax.tuning import Records, Task

CONFIDENCE_FAILURE = 1e-6


def epsilon_lower_bound(inside, outside, delta):
    """Lower bound on epsilon at `delta`, wrong with probability at most CONFIDENCE_FAILURE.

    Args:
      inside, outside: (executions,) numbers seen under each of two neighbouring inputs.
      delta: of the claim.
    """
    return auditing.epsilon_lower_bound(
        inside, outside, delta, failure_probability=CONFIDENCE_FAILURE
    ).value


def canary_task(with_canary):
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
