"""The flags that name a law of K, the secret number of runs; shared by the binaries."""

from __future__ import annotations

from absl import flags

from dpjax import accounting

_REPETITIONS = flags.DEFINE_enum(
    "repetitions",
    "geometric",
    ["geometric", "logarithmic", "negative_binomial", "poisson", "binomial", "fixed", "adaptive"],
    "Law of the number K of candidates, which are drawn independently from one public law. fixed: "
    "--mean of them. adaptive (experiments.epsilon only): not so drawn, but a grid, or runs that "
    "look at earlier ones (Optuna's samplers, pruning, stopping when good), at most --mean of "
    "them; priced as the composition of all.",
)
_MEAN = flags.DEFINE_float("mean", 10.0, "Mean of that law, before --cap.")
_SHAPE = flags.DEFINE_float("shape", 0.5, "Shape of --repetitions=negative_binomial (eta > -1).")
_TRIALS = flags.DEFINE_integer("trials", 20, "Trials of --repetitions=binomial.")
_CAP = flags.DEFINE_integer("cap", 64, "K is drawn given K <= cap; 0 for no cap.")

ADAPTIVE = "adaptive"
LARGEST_MEAN = 1e6
_NUMBERS = ("fixed", ADAPTIVE)
_READ_BY = {"shape": ("negative_binomial",), "trials": ("binomial",)}


def law_of_repetitions(mean: float | None = None) -> accounting.RepetitionLaw:
    """Returns the law of K that the flags ask for.

    Args:
      mean: used in place of --mean, to draw a curve over it.

    Raises:
      ValueError: for a mean the law cannot have, or flags that do not belong to it.
    """
    if mean is None:
        _check()
        mean = _MEAN.value
    name = _REPETITIONS.value
    if name == ADAPTIVE:
        raise ValueError(
            "--repetitions=adaptive prices runs that were chosen in any way (experiments.epsilon); "
            "here candidates are drawn independently: pass a law of their number"
        )
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


def adaptive_runs(mean: float | None = None) -> int | None:
    """The most runs there were, if the flags say that they were no independent draws.

    Args:
      mean: used in place of --mean, to draw a curve over it.

    Raises:
      ValueError: for no whole number of at least 1, or flags of a law.
    """
    if _REPETITIONS.value != ADAPTIVE:
        return None
    if mean is None:
        _check()
        mean = _MEAN.value
    if not (mean >= 1 and mean == round(mean)):
        raise ValueError(
            f"--repetitions=adaptive with --mean={mean:g}: pass the largest number of runs there "
            "could have been, a whole number"
        )
    return round(mean)


def _check() -> None:
    """Refuses flags that the law does not read, and means that it cannot have."""
    name, mean = _REPETITIONS.value, _MEAN.value
    given = {flag for flag in ("shape", "trials", "cap") if flags.FLAGS[flag].present}
    for flag in sorted(given & _READ_BY.keys()):
        if name not in _READ_BY[flag]:
            raise ValueError(
                f"--{flag} belongs to --repetitions={_READ_BY[flag][0]}: drop it"
                + (", and pass the number of runs as --mean" if name in _NUMBERS else "")
            )
    if name in _NUMBERS and "cap" in given:
        raise ValueError(f"--repetitions={name} has no --cap: drop it")
    if _CAP.value < 0:
        raise ValueError(f"--cap={_CAP.value}: pass 0 for no cap, or 1 or more")
    if not mean <= LARGEST_MEAN:
        raise ValueError(f"--mean={mean:g}: pass at most {LARGEST_MEAN:g}")
    if name == "binomial" and not 0 < mean <= _TRIALS.value:
        raise ValueError(
            f"--repetitions=binomial with --mean={mean:g} and --trials={_TRIALS.value}: pass at "
            "least as many --trials as the mean"
        )
    if name not in _NUMBERS and 0 < _CAP.value < mean:
        raise ValueError(
            f"--mean={mean:g} is above --cap={_CAP.value}, so K would hardly follow the law named: "
            "pass a larger --cap, or --cap=0 for none"
        )


def description(law: accounting.RepetitionLaw) -> str:
    """The flags' law in words, with the mean that K has once it is capped."""
    name = _REPETITIONS.value.replace("_", " ")
    capped = f" given K <= {_CAP.value}" if isinstance(law, accounting.AtMost) else ""
    return f"K {name}{capped}, mean {law.mean:.4g}"
