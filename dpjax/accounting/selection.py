"""The guarantee of releasing the best of K private runs."""

from __future__ import annotations

from dpjax.accounting import provenance
from dpjax.accounting.guarantee import Guarantee
from dpjax.accounting.repetitions import RepetitionLaw, TruncatedNegativeBinomial, law_from_dict
from dpjax.accounting.selection_renyi import selection_curve

METHODS = ("tight", "rdp")


def best_of(guarantee: Guarantee, law: RepetitionLaw, method: str = "tight") -> Guarantee:
    """The guarantee of releasing only the best of K independent runs.

    Args:
      guarantee: of ONE run and its score together (a score on private validation data is composed
        into it, or joined by `parallel` if its records are disjoint).
      law: of K, fixed before the data is seen.
      method: "rdp" for the theorems of Papernot & Steinke (ICLR 2022), corrected: see
        `selection_renyi`.

    Returns:
      Guarantee under the same neighbouring relation.

    Raises:
      ValueError: no law given, an unknown method, or "rdp" for a base without a Renyi curve.
    """
    if not isinstance(law, RepetitionLaw):
        raise ValueError(f"best_of needs a law of K, such as Geometric(10), not {law!r}")
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}: pass one of {METHODS}")
    tree = provenance.node(
        "best_of", {"law": law.to_dict(), "method": method}, [guarantee.provenance]
    )
    pure = None
    if guarantee.pure_epsilon is not None and isinstance(law, TruncatedNegativeBinomial):
        # Corollary 3.
        pure = (2.0 + law.shape) * guarantee.pure_epsilon
    return Guarantee(
        relation=guarantee.relation,
        provenance=tree,
        renyi=selection_curve(guarantee, law),
        pure_epsilon=pure,
    )


provenance.register(
    "best_of",
    lambda parameters, parts: best_of(
        parts[0], law_from_dict(parameters["law"]), parameters["method"]
    ),
)
