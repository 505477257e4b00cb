"""The flags that name a law of K, the secret number of runs; shared by the binaries."""

from __future__ import annotations

from absl import flags

from dpjax import accounting

_REPETITIONS = flags.DEFINE_enum(
    "repetitions",
    "geometric",
    ["geometric", "logarithmic", "negative_binomial", "poisson", "binomial", "fixed"],
    "Law of the number K of candidates.",
)
_MEAN = flags.DEFINE_float("mean", 10.0, "Mean of that law, before --cap.")
_SHAPE = flags.DEFINE_float("shape", 0.5, "Shape of --repetitions=negative_binomial (eta > -1).")
_TRIALS = flags.DEFINE_integer("trials", 20, "Trials of --repetitions=binomial.")
_CAP = flags.DEFINE_integer("cap", 64, "K is drawn given K <= cap; 0 for no cap.")


def law_of_repetitions(mean: float | None = None) -> accounting.RepetitionLaw:
    """Returns the law of K that the flags ask for.

    Args:
      mean: used in place of --mean, to draw a curve over it.

    Raises:
      ValueError: for a mean the law cannot have.
    """
    name, mean = _REPETITIONS.value, _MEAN.value if mean is None else mean
    if name == "fixed":
        if mean != round(mean):
            raise ValueError(f"--repetitions=fixed with --mean={mean}: pass a whole number")
        return accounting.Fixed(round(mean))
    if name == "geometric":
        law = accounting.Geometric(mean=mean)
    elif name == "logarithmic":
        law = accounting.Logarithmic(mean=mean)
    elif name == "negative_binomial":
        law = accounting.TruncatedNegativeBinomial(shape=_SHAPE.value, mean=mean)
    elif name == "poisson":
        law = accounting.Poisson(mean=mean)
    else:
        law = accounting.Binomial(trials=_TRIALS.value, probability=mean / _TRIALS.value)
    return accounting.AtMost(law, cap=_CAP.value) if _CAP.value else law
