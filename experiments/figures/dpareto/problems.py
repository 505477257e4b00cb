"""The learning problems of Avent et al. 2020: domains, laws of random search, grids.

Numbers are those of the authors' published experiments
(https://github.com/amzn/differential-privacy-bayesian-optimization, experiments/adult, experiments/
mnist), which Tables 1, 3 and 4 of the paper summarise. `noise_multiplier` is what they call z (and
the paper's tables "noise variance"), `clip_norm` their L. Ours is the scale: their models see
linear, ours logarithmic ranges, which helps. Their random search draws learning rates up to 0.1 on
Adult, beyond the 0.05 of their domain; so does ours.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from dpjax.pareto.domain import Domain, Log, Real
from dpjax.training.optimizers import OPTIMIZERS
from dpjax.tuning.problem.space import Integer, LogInteger
from experiments.figures.dpareto.sampling_laws import Law, Laws

DELTA = 1e-5
ANTI_IDEAL = (10.0, 1.0)
REPETITIONS = 10
INITIAL, PROPOSALS = 16, 256


@dataclasses.dataclass(frozen=True)
class Problem:
    """One model with one optimiser on one data set.

    Attributes:
      dataset: name for `data.load`.
      model: name for `models.build_module`.
      widths: of the hidden layers.
      optimizer: "sgd" or "adam".
      domain: Table 1, on logarithmic scales.
      linear_domain: Table 1 on linear scales, which the paper's models and grids use.
      laws: Tables 3 and 4.
    """

    dataset: str
    model: str
    widths: tuple[int, ...]
    optimizer: str
    domain: Domain
    linear_domain: Domain
    laws: Laws


def _domains(
    epochs: int, lots: tuple[int, int], rates: tuple[float, float], clip_norm: float
) -> tuple[Domain, Domain]:
    logarithmic, linear = (
        Domain(
            epochs=whole(1, epochs),
            lot_size=whole(*lots),
            learning_rate=real(*rates),
            clip_norm=real(0.1, clip_norm),
            noise_multiplier=real(0.1, 16.0),
        )
        for whole, real in ((LogInteger, Log), (Integer, Real))
    )
    return logarithmic, linear


def _laws(
    epochs: int, lots: Law, most_rate: float, exponential_rate: float, most_clip_norm: float
) -> Laws:
    """Clip norm and noise share a law but for its upper end."""
    shifted = Law("shifted_exponential", exponential_rate, 0.1)
    return Laws(
        {
            "epochs": Law("uniform", 1, epochs, whole=True),
            "lot_size": lots,
            "learning_rate": Law("shifted_exponential", 10, 1e-3, most=most_rate),
            "clip_norm": dataclasses.replace(shifted, most=most_clip_norm),
            "noise_multiplier": dataclasses.replace(shifted, most=16.0),
        }
    )


_ADULT = _domains(64, (8, 512), (5e-4, 5e-2), 4.0)
_ADULT_LAWS = _laws(64, Law("normal", 128, 64, 8, 512, whole=True), 0.1, 0.1, 4.0)
_MNIST = _domains(400, (16, 4000), (1e-3, 0.5), 12.0)
_MNIST_LAWS = _laws(400, Law("normal", 800, 800, 16, 4000, whole=True), 0.5, 0.5, 12.0)

PROBLEMS = {
    "adult_logistic_regression_sgd": Problem(
        "a1a", "logistic_regression", (), "sgd", *_ADULT, _ADULT_LAWS
    ),
    "adult_logistic_regression_adam": Problem(
        "a1a", "logistic_regression", (), "adam", *_ADULT, _ADULT_LAWS
    ),
    "adult_linear_svm_sgd": Problem("a1a", "linear_svm", (), "sgd", *_ADULT, _ADULT_LAWS),
    "mnist_1000_sgd": Problem("mnist", "mlp", (1000,), "sgd", *_MNIST, _MNIST_LAWS),
    "mnist_128_64_sgd": Problem("mnist", "mlp", (128, 64), "sgd", *_MNIST, _MNIST_LAWS),
}
"""The five of the paper's Figures 5 to 8."""

_RATES = {"sgd": {"learning_rate": (0.01, 10.0)}, "momentum": {"learning_rate": (1e-3, 1.0)}}
"""Where they are not the optimiser's usual ones: lots are searched here, too."""


def usual_domain(dataset: str, model: str, optimizer: str, training_records: int) -> Domain:
    """The domain to search where none is given: the paper's where it has one, else ours.

    Ours: 1 to 64 epochs, lots of 8 up to 512 or half of the records, the paper's noise and clip
    norms for Adult, and learning rates that suit the optimiser.
    """
    for problem in PROBLEMS.values():
        same = (problem.model, problem.optimizer) == (model, optimizer)
        if same and (
            problem.dataset == dataset or (dataset in ("adult", "a9a") and _is_adult(problem))
        ):
            return problem.domain
    usual = {**OPTIMIZERS[optimizer].usual, **_RATES.get(optimizer, {})}
    own: dict[str, Any] = {
        name: Log(*one) if isinstance(one, tuple) else one for name, one in usual.items()
    }
    return Domain(
        epochs=LogInteger(1, 64),
        lot_size=LogInteger(8, max(9, min(512, training_records // 2))),
        **own,
        clip_norm=Log(0.1, 4.0),
        noise_multiplier=Log(0.1, 16.0),
    )


def _is_adult(problem: Problem) -> bool:
    return problem.dataset == "a1a"
