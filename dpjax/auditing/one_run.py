"""Lower bounds from one training with many canaries, each in or out by a coin of its own.

Thomas Steinke, Milad Nasr & Matthew Jagielski, "Privacy Auditing with One (1) Training Run",
NeurIPS 2023; Saeed Mahloujifar, Luca Melis & Kamalika Chaudhuri, "Auditing f-Differential Privacy
in One Run", 2024. The estimators are jax-privacy's.
"""

from __future__ import annotations

import numpy as np

from dpjax import checks

METHODS = ("dp", "gaussian")


def one_run_lower_bound(
    canaries_in: np.ndarray,
    canaries_out: np.ndarray,
    delta: float,
    *,
    method: str = "dp",
    failure_probability: float = 0.05,
) -> float:
    """A lower bound on epsilon at `delta` from the scores of canaries in one training.

    Formal guarantees:
      If the training is (epsilon, delta)-differentially private ("dp"; Gaussian differentially
      private with that epsilon at delta, "gaussian"), the value is above epsilon with probability
      `failure_probability` at most, if every canary was put in by an independent fair coin. All
      thresholds are tried; the failure probability is divided among them. Canaries of one run are
      not independent of each other, which these estimators allow, and those of
      `auditing.epsilon_lower_bound` do not.

    Needs the extra `bridges` (jax-privacy).

    Example:
      >>> import numpy as np
      >>> from dpjax import auditing
      >>> rng = np.random.default_rng(0)
      >>> there, absent = rng.normal(2, 1, 500), rng.normal(0, 1, 500)
      >>> 0 < auditing.one_run_lower_bound(there, absent, 1e-5) < 10
      True

    Args:
      canaries_in: (n,) scores of canaries that were in, larger the more they look it.
      canaries_out: (m,) scores of those that were out.
      delta: of the claim, in (0, 1).
      method: "dp" (no assumption) or "gaussian" (sharper; a bound for Gaussian shapes only).
      failure_probability: in (0, 1).

    Raises:
      ImportError: without jax-privacy.
      ValueError: in one line, for an argument that is none.
    """
    scores = []
    for name, given in (("canaries_in", canaries_in), ("canaries_out", canaries_out)):
        found = checks.vector(name, given)
        if not len(found):
            raise ValueError(f"{name} is empty: pass the scores of at least one canary")
        scores.append(found)
    checks.probability("delta", delta)
    checks.one_of("method", method, METHODS)
    checks.probability("failure_probability", failure_probability)
    try:
        from jax_privacy import auditing
    except ImportError:
        raise ImportError(
            "one_run_lower_bound needs jax-privacy, which is not installed: pip install -e "
            "'.[bridges]' in dpjax's folder"
        ) from None
    auditor = auditing.CanaryScoreAuditor(*scores)
    bound = auditor.epsilon_one_run if method == "dp" else auditor.epsilon_one_run_fdp
    return float(bound(failure_probability, delta))
