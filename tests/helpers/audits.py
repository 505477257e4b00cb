"""What an adversary can see of two neighbouring inputs, at the confidence that tests here ask."""

from dpjax import auditing

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
