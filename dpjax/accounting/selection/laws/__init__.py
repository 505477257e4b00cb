"""Laws of K, the number of runs: what all offer, a file for each family, and a table of masses."""

from dpjax.accounting.selection.laws.at_most import AtMost
from dpjax.accounting.selection.laws.binomial import Binomial, Fixed
from dpjax.accounting.selection.laws.law import RepetitionLaw, law_from_dict
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
    "law_from_dict",
]
