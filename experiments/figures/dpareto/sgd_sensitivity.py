"""How far SGD's last iterate moves when one record is replaced, for output perturbation.

Wu, Li, Kumar, Chaudhuri, Jha & Naughton 2017, as used by DPareto's example.
"""

from __future__ import annotations

import math

from dpjax.checks import positive, whole


def projected_sgd_sensitivity(
    strong_convexity: float, dataset_size: int, *, lipschitz: float, batch_size: int = 1
) -> float:
    """How far projected SGD's last iterate moves when one record is replaced, 2 L / (lambda n).

    Formal guarantees: for a per-record objective that is lambda-strongly convex, beta-smooth and
    L-Lipschitz on the ball projected to; steps eta_t = min(1/beta, 1/(lambda t)), t = 1, 2, ...;
    every epoch visits each record exactly once, in an order independent of the data (Wu et al.
    2017, Lemma 8). There is no further division by the batch size: with mini-batches one record
    moves one step in n/b, by 2 L eta / b, and the two factors cancel. (TF Privacy's `bolt_on`
    divides, and a linear loss is a counterexample. DPareto's text and code have batches of one
    record and do not.)

    With an L2 regulariser of weight lambda, its gradient is the same for both data sets and only
    contracts their distance: L may then be the Lipschitz constant of the data term alone. See
    `regularised_logistic_sensitivity`.

    Args:
      strong_convexity: lambda, above 0.
      dataset_size: n, public under replacement.
      lipschitz: L, above 0.
      batch_size: records a step; must divide n.

    Raises:
      ValueError: for arguments out of range, or a batch size that does not divide n.
    """
    strong_convexity = positive("strong_convexity", strong_convexity)
    lipschitz = positive("lipschitz", lipschitz)
    dataset_size = whole("dataset_size", dataset_size)
    batch_size = whole("batch_size", batch_size)
    if dataset_size % batch_size:
        raise ValueError(
            f"batch_size {batch_size} does not divide dataset_size {dataset_size}: a short batch "
            f"weighs its records more; pass a divisor, for example "
            f"{math.gcd(batch_size, dataset_size)}"
        )
    return 2.0 * lipschitz / (strong_convexity * dataset_size)


def regularised_logistic_sensitivity(
    regularisation: float, dataset_size: int, *, batch_size: int = 1
) -> float:
    """`projected_sgd_sensitivity` of L2-regularised logistic regression: 2 / (lambda n).

    For features of Euclidean norm at most 1 the data term is 1-Lipschitz. DPareto's code uses
    4 / (lambda n), the constant L = 2 of data term and regulariser together on a ball of radius
    1/lambda.

    Args:
      regularisation: lambda, weight of ||w||^2 / 2, above 0.
      dataset_size: n.
      batch_size: must divide n.

    Raises:
      ValueError: as `projected_sgd_sensitivity`.
    """
    regularisation = positive("regularisation", regularisation)
    return projected_sgd_sensitivity(
        regularisation, dataset_size, lipschitz=1.0, batch_size=batch_size
    )
