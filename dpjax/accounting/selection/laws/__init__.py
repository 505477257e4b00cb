"""Laws of K, the number of runs: the class to inherit from, and a file for each family."""

from dpjax.accounting.selection.laws.at_most import AtMost
from dpjax.accounting.selection.laws.binomial import Binomial, Fixed
from dpjax.accounting.selection.laws.law import RepetitionLaw, law_family, law_from_dict
from dpjax.accounting.selection.laws.negative_binomial import (
    Geometric,
    Logarithmic,
    TruncatedNegativeBinomial,
)
from dpjax.accounting.selection.laws.poisson import Poisson
from dpjax.accounting.selection.laws.tabulated import Tabulated

__all__ = [
    "AtMost",
    "Binomial",
    "Fixed",
    "Geometric",
    "Logarithmic",
    "Poisson",
    "RepetitionLaw",
    "Tabulated",
    "TruncatedNegativeBinomial",
    "law_family",
    "law_from_dict",
]
