"""Best of K runs whose candidates are proposed by what came before, within bounds: their price.

The procedure is that of Wang, Gao, Zhang, Su & Shen, "DP-HyPO: An Adaptive Private Hyperparameter
Optimization Framework" (NeurIPS 2023, arXiv:2306.05734), who bound Renyi divergences. The price
here is derived for this project and works on the privacy profile, by the envelope's numerics.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpjax import checks
from dpjax.accounting import provenance
from dpjax.accounting.guarantee import Guarantee, check_guarantee
from dpjax.accounting.numerics.privacy_profile import pair_from_profiles
from dpjax.accounting.selection.best_of import best_of
from dpjax.accounting.selection.envelope import selected_profiles
from dpjax.accounting.selection.laws.law import RepetitionLaw, check_law, law_from_dict


def best_of_adaptive(guarantee: Guarantee, law: RepetitionLaw, ratio: Sequence[float]) -> Guarantee:
    """The guarantee of releasing the best of K runs with candidates proposed adaptively.

    The procedure of Wang et al. (DP-HyPO, NeurIPS 2023), at a price derived here.

    Formal guarantees: it holds under the conditions of `best_of`, but that the candidate of each
    run may be drawn from a law that depends on the candidates, outputs and scores of earlier runs,
    if
      - the density of each such law, over the public law that `guarantee` is for, is at least c and
        at most C everywhere, whatever came before: `ratio` = (c, C), fixed beforehand;
      - what is proposed depends on nothing else: not on K, nor on the data but through what is
        covered by `guarantee`;
      - ties are broken by independent randomness, or for the earlier run.

    Let x be the mass under Q, the law of one run with a candidate of the public law, of what ranks
    above an outcome y, x' the same under Q', the neighbour's, f the generating function of K, and h
    the trade-off of the pair. Whatever came before, the next run ranks no higher than y with
    probability u(x) at most and l(x) at least,

        u(x) = min(1 - c x, C (1 - x)),   l(x) = max(1 - C x, c (1 - x)),

    and has density at y between c q(y) and C q(y). The chain rule over the runs, summed over which
    of them wins and over K, puts the released density between c q(y) f'(l(x)) and C q(y) f'(u(x)).
    So with phi(s) = sup_x [C f'(u(x)) - s c f'(l(h(x)))]_+

        H_{e^epsilon}(A||A') <= E_{y~Q}[ phi(e^epsilon dQ'/dQ(y)) ],

    by the proof of the envelope (docs/envelope_bound.md), which is the case c = C = 1. For ties by
    order, u is concave and l convex: the chords that then take their place are below and above.

    Example:
      >>> from dpjax import accounting
      >>> run, law = accounting.gaussian(noise_multiplier=2.0), accounting.Geometric(10)
      >>> best = accounting.best_of_adaptive(run, law, ratio=(0.8, 1.25))
      >>> best.epsilon(1e-5) > accounting.best_of(run, law).epsilon(1e-5)
      True

    Args:
      guarantee: of one run and its score, its candidate drawn from the public law.
      law: of K.
      ratio: c in (0, 1] and C >= 1.

    Returns:
      Guarantee under the same neighbouring relation, of loss distributions alone; that of `best_of`
      for the ratio (1, 1). An adversary that knows the neighbours makes the first outcomes tell
      which of the two it sees; log(C / c) is what its later proposals may then add.

    Raises:
      ValueError: no law of the library given; a ratio that does not hold 1, as every density over
        another does.
    """
    check_law("best_of_adaptive", law)
    check_guarantee("guarantee", guarantee)
    low, high = checked_ratio(ratio)
    tree = provenance.node(
        "best_of_adaptive", {"law": law.to_dict(), "ratio": [low, high]}, [guarantee.provenance]
    )
    if low == high:
        same = best_of(guarantee, law)
        return Guarantee(
            relation=same.relation,
            provenance=tree,
            pair=lambda: same.pair,
            renyi=same.renyi,
            pure_epsilon=same.pure_epsilon,
        )
    return Guarantee(
        relation=guarantee.relation,
        provenance=tree,
        pair=lambda: _pair(guarantee, law, (low, high)),
    )


def _pair(guarantee: Guarantee, law: RepetitionLaw, ratio: tuple[float, float]):
    interval, profiles = selected_profiles(guarantee.pair, law, ratio)
    return pair_from_profiles(interval, *profiles)


def checked_ratio(ratio: Sequence[float], name: str = "ratio") -> tuple[float, float]:
    """The bounds c and C of a density over another, as floats.

    Args:
      ratio: c and C.
      name: of the argument, for messages.

    Raises:
      ValueError: for anything but 0 < c <= 1 <= C.
    """
    values = checks.vector(name, ratio)
    if values.size != 2 or not 0.0 < values[0] <= 1.0 <= values[1]:
        raise ValueError(
            f"{name} must be the smallest and the largest density, such as (0.75, 1.5): two "
            f"numbers around 1, the smaller above 0, not {checks.shown(ratio)}"
        )
    low, high = float(values[0]), float(values[1])
    # A density that is 1 at least, or at most, everywhere is 1.
    return (1.0, 1.0) if low == 1.0 or high == 1.0 else (low, high)


def _rebuild(parameters: dict, parts: list[Guarantee]) -> Guarantee:
    return best_of_adaptive(parts[0], law_from_dict(parameters["law"]), parameters["ratio"])


provenance.register("best_of_adaptive", _rebuild)
