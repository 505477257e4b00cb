"""The candidates of DP-HYPE's experiments: learning rate x decay per epoch x momentum, 100 in all.

The lists of the authors' published code (https://github.com/UzL-PrivSec/dp-hype) are here under
"artifact"; the rates of the paper's Table III, four of which differ, under "table_iii" (decays and
momenta are the same); "log_spaced", evenly spaced between the artifact's ends, is ours.
`candidate_grid` takes any list.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from dpjax import checks

ARTIFACT_RATES = (0.5, 0.1, 0.05, 5e-4, 1e-4, 1e-6, 5e-7, 1e-7, 5e-8, 1e-8)
LOG_SPACED_RATES = tuple(float(f"{rate:.3g}") for rate in np.geomspace(0.5, 1e-8, 10))
TABLE_III_RATES = (0.5, 0.1, 0.05, 1e-3, 5e-3, 1e-5, 1e-6, 5e-6, 5e-7, 1e-7)
RATES = {
    "artifact": ARTIFACT_RATES,
    "table_iii": TABLE_III_RATES,
    "log_spaced": LOG_SPACED_RATES,
}
"""Named lists of learning rates."""

DECAYS = (0.0, 0.1, 0.25, 0.99, 1.0)
"""Factor of the learning rate after every epoch; 0 freezes the net after the first."""

MOMENTA = (0.0, 0.9)


def candidate_grid(
    rates: str | Sequence[float] = "artifact",
    decays: Sequence[float] = DECAYS,
    momenta: Sequence[float] = MOMENTA,
) -> list[dict[str, float]]:
    """Makes every combination, the rate varying slowest and the momentum fastest; 100 by default.

    Rates may be the name of a list in `RATES`.
    """
    if isinstance(rates, str):
        if rates not in RATES:
            raise ValueError(f"unknown rates {rates!r}: pass one of {', '.join(RATES)}, or numbers")
        rates = RATES[rates]
    lists = (("rates", rates), ("decays", decays), ("momenta", momenta))
    return [
        {"learning_rate": rate, "decay": decay, "momentum": momentum}
        for rate, decay, momentum in itertools.product(
            *(checks.vector(name, values).tolist() for name, values in lists)
        )
    ]
