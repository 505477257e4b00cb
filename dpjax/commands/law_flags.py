"""The flags that name a law of K, the secret number of runs; shared by the binaries.

Every family of laws with a method `of_mean` can be named; the method's other arguments are flags.
A family's name is the one in statements; in CamelCase it is the name of its class.
"""

from __future__ import annotations

from absl import flags

from dpjax import accounting
from dpjax.accounting.selection.laws import families
from dpjax.commands import derived_flags

LAW = accounting.RepetitionLaw
ADAPTIVE, FIXED = "adaptive", "fixed"
LARGEST_MEAN = 1e6

_FAMILIES = {name: cls for name, cls in families().items() if hasattr(cls, "of_mean")}
_OPTIONS = {
    name: derived_flags.options_of(cls.of_mean, "mean", documented=cls)
    for name, cls in _FAMILIES.items()
}
_REPETITIONS = flags.DEFINE_enum(
    "repetitions",
    "geometric",
    [*_FAMILIES, ADAPTIVE],
    "Law of the number K of candidates, which are drawn independently from one public law; tune, "
    "where none of these flags is given, fits one to the space. fixed: "
    "--mean of them. adaptive (prices only): any other tuning, such as a grid, or runs that look "
    "at earlier ones (Optuna's samplers, pruning, stopping when one is good), priced as the "
    "composition of at most --mean runs.",
)
_MEAN = flags.DEFINE_float(
    "mean",
    10.0,
    "Mean of that law, before --cap. fixed: the number of runs. adaptive: the most there can be.",
)
_CAP = flags.DEFINE_integer("cap", 64, "K is drawn given K <= cap; 0 for no cap.")

derived_flags.define(_OPTIONS, "--repetitions=")


def names() -> list[str]:
    """Returns the names of all these flags."""
    return ["repetitions", "mean", "cap", *derived_flags.owners_of(_OPTIONS)]


def law_of_repetitions(mean: float | None = None) -> accounting.RepetitionLaw:
    """Returns the distribution of K that the flags ask for; `mean` replaces --mean, for a curve."""
    if mean is None:
        _check()
        mean = _MEAN.value
    name = _REPETITIONS.value
    if name == ADAPTIVE:
        raise ValueError(
            "--repetitions=adaptive is for dpjax price, of runs that were chosen in any way; here "
            "candidates are drawn independently: pass a law of their number"
        )
    try:
        with derived_flags.named_as_flags({one.name: one.flag for one in _OPTIONS[name]}):
            law = _FAMILIES[name].of_mean(mean, **derived_flags.given(_OPTIONS[name]))
    except ValueError as error:
        raise ValueError(f"--repetitions={name} with --mean={mean:g}: {error}") from None
    return accounting.AtMost(law, cap=_CAP.value) if _CAP.value and name != FIXED else law


def law_or_rule() -> accounting.RepetitionLaw | None:
    """Returns the law of the flags; None, for `tuning.fitting_law`, if none of them is given."""
    given = any(flags.FLAGS[name].present for name in names())
    return law_of_repetitions() if given else None


def caution(law: accounting.RepetitionLaw | int) -> str | None:
    """Returns a warning if the default --cap changes the distribution noticeably, else None."""
    mean = _MEAN.value
    if isinstance(law, int) or flags.FLAGS["cap"].present or not law.mean < 0.99 * mean:
        return None
    return (
        f"K is at most {_CAP.value} by default, so its mean is {law.mean:.3g}, not {mean:g}: pass "
        "--cap=0 for tuning without a cap"
    )


def adaptive_runs(mean: float | None = None) -> int | None:
    """Returns the number of runs with --repetitions=adaptive, `mean` if given; else None."""
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
    """Refuses flags that the distribution does not read, and a mean that it cannot have."""
    name, mean = _REPETITIONS.value, _MEAN.value
    counted = name in (FIXED, ADAPTIVE)
    advice = ", and pass the number of runs as --mean" if counted else ""
    derived_flags.refuse_others(derived_flags.owners_of(_OPTIONS), [name], "repetitions", advice)
    if counted and flags.FLAGS["cap"].present:
        raise ValueError(f"--repetitions={name} has no --cap: drop it")
    if _CAP.value < 0:
        raise ValueError(f"--cap={_CAP.value}: pass 0 for no cap, or 1 or more")
    if not mean <= LARGEST_MEAN:
        raise ValueError(f"--mean={mean:g}: pass a number, at most {LARGEST_MEAN:g}")
    if not counted and 0 < _CAP.value < mean:
        raise ValueError(
            f"--mean={mean:g} is above --cap={_CAP.value}, so K would hardly follow the law named: "
            "pass a larger --cap, or --cap=0 for none"
        )


def description(law: accounting.RepetitionLaw) -> str:
    """Describes the flags' distribution in words, with the mean of K after the cap."""
    if _REPETITIONS.value == FIXED:
        return f"K = {law.mean:g}, fixed beforehand"
    name = _REPETITIONS.value.replace("_", " ")
    capped = f" given K <= {_CAP.value}" if _CAP.value else ""
    return f"K {name}{capped}, mean {law.mean:.4g}"
