"""What an adversary can see of two neighbouring inputs, as a lower bound on epsilon."""

import numpy as np
from scipy import stats

CONFIDENCE_FAILURE = 1e-6


def epsilon_lower_bound(inside, outside, delta):
    """Lower bound on epsilon at `delta`, wrong with probability at most CONFIDENCE_FAILURE.

    An event chosen on one half of the outcomes is counted on the other half; Clopper and Pearson's
    bounds turn the counts into one on epsilon.

    Args:
      inside, outside: (executions,) numbers seen under each of two neighbouring inputs.
      delta: of the claim.
    """
    half = len(inside) // 2
    thresholds = np.unique(np.quantile(np.concatenate([inside, outside]), np.linspace(0, 1, 400)))
    best = -np.inf
    for sign in (1.0, -1.0):
        for p_sample, q_sample in ((inside, outside), (outside, inside)):
            p = np.asarray([np.mean(sign * p_sample[:half] > sign * t) for t in thresholds])
            q = np.asarray([np.mean(sign * q_sample[:half] > sign * t) for t in thresholds])
            # The event is chosen on the first half, with a guard against chance in rare events.
            choice = np.argmax(np.log(np.maximum(p - delta, 1e-9) / (q + 20 / half)))
            t = thresholds[choice]
            hits_p = int(np.sum(sign * p_sample[half:] > sign * t))
            hits_q = int(np.sum(sign * q_sample[half:] > sign * t))
            # Four events, two bounds each.
            level = CONFIDENCE_FAILURE / 8
            p_low = stats.beta.ppf(level, hits_p, half - hits_p + 1) if hits_p else 0.0
            q_high = stats.beta.ppf(1 - level, hits_q + 1, half - hits_q) if hits_q < half else 1.0
            if p_low > delta:
                best = max(best, float(np.log((p_low - delta) / q_high)))
    return best
