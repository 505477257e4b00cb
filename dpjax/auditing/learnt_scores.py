"""Numbers that a classifier learns to give outputs, where nobody knows which ones tell."""

from __future__ import annotations

import numpy as np

from dpjax import checks


def learnt_scores(
    with_record: np.ndarray, without_record: np.ndarray, *, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Learns on one half of the outputs which input they come from; numbers for the other half.

    Formal guarantees:
      An output's number depends on the first half's outputs and on itself, never on the other
      outputs that are given numbers; so given the first half, numbers of independent executions are
      independent, and the bounds of `auditing.epsilon_lower_bound` hold for them.

    Example: `epsilon_lower_bound(*learnt_scores(outputs_with, outputs_without), 1e-5)`.

    Example:
      >>> import numpy as np
      >>> from dpjax import auditing
      >>> rng = np.random.default_rng(0)
      >>> outputs = rng.normal(0.5, 1, (400, 3)), rng.normal(0, 1, (400, 3))
      >>> scores_with, scores_without = auditing.learnt_scores(*outputs)
      >>> scores_with.shape
      (200,)

    Args:
      with_record: (n, features) what n independent executions released, as numbers.
      without_record: (m, features) the same without the record.
      seed: of the classifier; it is public.

    Returns:
      (n - n // 2,) and (m - m // 2,) float64, log-odds of the record's being there.

    Raises:
      ValueError: for outputs that are no two tables of the same width, or too few.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier  # Here: it takes a second.

    tables = []
    for name, given in (("with_record", with_record), ("without_record", without_record)):
        table = np.asarray(checks.array(name, given), dtype=np.float64)
        if table.ndim != 2 or len(table) < 8:
            raise ValueError(
                f"{name} must be (executions, features) with at least 8 executions, not "
                f"{table.shape}"
            )
        tables.append(table)
    if tables[0].shape[1] != tables[1].shape[1]:
        raise ValueError(
            f"with_record has {tables[0].shape[1]} features and without_record "
            f"{tables[1].shape[1]}: pass the same ones of both"
        )
    halves = [len(table) // 2 for table in tables]
    learnt = HistGradientBoostingClassifier(max_iter=60, random_state=seed)
    learnt.fit(
        np.concatenate([table[:half] for table, half in zip(tables, halves, strict=True)]),
        np.repeat([1, 0], halves),
    )
    first, second = (
        learnt.decision_function(table[half:]) for table, half in zip(tables, halves, strict=True)
    )
    return first, second
