"""Prices a study and proves a certificate where NumPy, SciPy and mpmath alone are installed.

python without_jax.py FOLDER_WITH_A_CERTIFICATE
"""

from __future__ import annotations

import importlib.util
import json
import sys


def main(folder: str) -> None:
    """Prints the prices as a line of JSON, then what is proved."""
    for name in ("jax", "flax", "optax", "dp_accounting", "absl", "rich"):
        assert importlib.util.find_spec(name) is None, f"{name} is installed"
    from dpjax import accounting, certificate

    # A trial trains and is scored on a part apart; a study's sampler sees the trials before.
    trial = accounting.parallel(
        accounting.dp_sgd(sampling_probability=0.01, noise_multiplier=1.1, steps=1000),
        accounting.discrete_gaussian(noise_std=8.0),
    )
    private = accounting.best_of(trial, accounting.AtMost(accounting.Geometric(10), 64))
    again = accounting.from_provenance(json.loads(json.dumps(private.provenance)))
    assert again.epsilon(1e-6) == private.epsilon(1e-6)
    noise = accounting.calibrate(
        lambda z: accounting.best_of(accounting.dp_sgd(0.01, z, 1000), accounting.Geometric(10)),
        epsilon=2.0,
        delta=1e-5,
    )
    prices = {
        "one trial": trial.epsilon(1e-5),
        "the best of a secret number": private.epsilon(1e-5),
        "fifty trials, each after the others": accounting.repeat(trial, 50).epsilon(1e-5),
        "noise for epsilon 2": noise,
    }
    print(json.dumps(prices))
    print(certificate.check(folder))


if __name__ == "__main__":
    main(sys.argv[1])
