"""What proposals cost beside training: the paper's "about 45 s" for 256 of them.

Avent et al., PoPETs 2020, section 5. Sixteen random settings, then 256 proposals by EHVI, for the
five hyperparameters of Adult, on a made-up problem whose epsilons and errors are formulas: what is
timed is fitting two Gaussian processes and maximising the criterion, compilation included. Once one
at a time, as in the paper, and once in batches of 16.

Differs from the paper: EHVI for HVPoI, batches, our machine.

  python -m experiments.figures.dpareto.overhead

Takes a few minutes on an idle machine; docs/pareto_fronts.md has the times.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
from absl import flags

from dpjax import pareto
from dpjax.commands import command_line
from experiments.figures.dpareto import problems

_BATCH_SIZES = flags.DEFINE_multi_integer("batch_size", [16, 1], "Proposals at a time, each timed.")
_PROPOSALS = flags.DEFINE_integer("proposals", problems.PROPOSALS, "After 16 random settings.")
_METHOD = flags.DEFINE_enum("method", "ehvi", ["ehvi", "ehvi_log_epsilon", "hvpoi"], "Criterion.")


def epsilons(settings: Mapping[str, np.ndarray]) -> np.ndarray:
    """Made up: grows with passes and lots, falls with noise."""
    steps = settings["epochs"] * 30_000 / settings["lot_size"]
    return settings["lot_size"] / 30_000 * np.sqrt(steps) * 8 / settings["noise_multiplier"]


def utilities(settings: Mapping[str, np.ndarray], seeds: np.ndarray) -> np.ndarray:
    """Made up: one best learning rate and clip norm, noise that hurts, three repetitions."""
    luck = [np.random.default_rng(int(seed)).normal(size=3) for seed in seeds]
    return 1 / (1 + np.exp(0.02 * np.stack(luck) - _logit(settings)[:, None]))


def expected_utilities(settings: Mapping[str, np.ndarray]) -> np.ndarray:
    """What `utilities` are without luck; their mean to within 1e-5."""
    return 1 / (1 + np.exp(-_logit(settings)))


def _logit(settings: Mapping[str, np.ndarray]) -> np.ndarray:
    logit = 1.7 - 0.3 * np.log10(settings["learning_rate"] / 0.01) ** 2
    logit -= 0.2 * np.log(settings["clip_norm"]) ** 2
    noise = settings["noise_multiplier"] / settings["lot_size"] / np.sqrt(settings["epochs"])
    return logit - 30 * noise


def seconds(batch_size: int, proposals: int, method: str = "ehvi") -> float:
    """Wall time of a search whose oracles take no time."""
    start = time.monotonic()
    pareto.search(
        problems.PROBLEMS["adult_logistic_regression_sgd"].domain,
        epsilons,
        utilities,
        method=method,
        evaluations=problems.INITIAL + proposals,
        initial=problems.INITIAL,
        batch_size=batch_size,
        seed=0,
    )
    return time.monotonic() - start


def main() -> int:
    """Times each size of batch."""
    for batch_size in _BATCH_SIZES.value:
        took = seconds(batch_size, _PROPOSALS.value, _METHOD.value)
        print(f"{_PROPOSALS.value} proposals, {batch_size} at a time: {took:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    command_line.run(main)
