"""Guarantee: what a computation costs in privacy, immutable and explained."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpjax.accounting import provenance as provenance_lib
from dpjax.accounting import stated_epsilon
from dpjax.accounting.numerics import tradeoff
from dpjax.accounting.numerics.loss_distribution import LossDistribution, LossPair, whole_up
from dpjax.accounting.numerics.privacy_profile import pair_from_laws, pair_from_profiles
from dpjax.accounting.numerics.renyi import RenyiCurve, pure_curve
from dpjax.checks import array, flag, instance, number, one_of, probability, refused, vector, whole
from dpjax.neighbouring import ADD_OR_REMOVE_ONE, normalise_relation

if TYPE_CHECKING:
    from dp_accounting import dp_event as dp_events
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

_READERS: dict[str, Callable[..., Guarantee]] = {}
"""Name -> reader of another library's objects; modules register it that know all constructors."""

METHODS = ("tight", "rdp", "rdp_classic")


class Guarantee:
    """Holds a computation's cost: a pair of privacy loss distributions, a Renyi curve, or both.

    Formal guarantees: for every pair of neighbours under `relation` and every epsilon >= 0, the
    computation is (epsilon, g.delta(epsilon))-differentially private; `g.epsilon(delta)` is an
    upper bound, never an estimate from below, up to float64 rounding (about 1e-12 of mass). It
    holds if the constructor's stated preconditions do.

    Make one with the functions of `dpjax.accounting`, `Guarantee.from_pld` or
    `Guarantee.from_dp_event`.

    Example:
      >>> from dpjax import accounting
      >>> run = accounting.gaussian(2.0)
      >>> print(f"epsilon {run.epsilon(1e-5):.2f} at delta 1e-5; delta {run.delta(1.0):.3f} at 1")
      epsilon 1.99 at delta 1e-5; delta 0.007 at 1

    Attributes:
      relation: the neighbouring relation, "add_or_remove_one" or "replace_one".
      provenance: tree, for JSON, {"mechanism", "parameters", "parts"} that
        `accounting.from_provenance` rebuilds to the same numbers.
    """

    relation: str
    pure_epsilon: float | None
    renyi: RenyiCurve | None
    _pair_source: LossPair | Callable[[], LossPair] | None
    _at_delta: Callable[[float], LossPair] | None
    _rough: Callable[[], LossPair] | None
    _basic: tuple[float, float] | None
    _provenance: Mapping[str, Any] | None

    def __init__(
        self,
        *,
        relation: object,
        provenance: Mapping[str, Any] | None = None,
        pair: LossPair | Callable[[], LossPair] | None = None,
        renyi: RenyiCurve | None = None,
        pure_epsilon: float | None = None,
        at_delta: Callable[[float], LossPair] | None = None,
        rough: Callable[[], LossPair] | None = None,
        basic: tuple[float, float] | None = None,
    ):
        """Makes a guarantee of its pair, its Renyi curve or both; for the modules of this package.

        `pair` may be a function that computes it when first needed. `at_delta` computes, faster, a
        pair for one delta that is at least as good there; `rough` a pair that dominates. `basic` is
        an (epsilon, delta) by basic composition, which the pair may miss by its rounding. The body
        of a `mechanism` leaves `provenance` to its decorator.
        """
        if pair is None and renyi is None and pure_epsilon is None:
            raise ValueError("an empty guarantee: pass pair, renyi or pure_epsilon")
        if renyi is None and pure_epsilon is not None:
            renyi = pure_curve(pure_epsilon)
        if basic is None and pure_epsilon is not None:
            basic = pure_epsilon, 0.0
        fields = {
            "relation": normalise_relation(relation),
            "pure_epsilon": pure_epsilon,
            "renyi": renyi,
            "_pair_source": pair,
            "_at_delta": None if at_delta is None else functools.cache(at_delta),
            "_rough": rough,
            "_basic": basic,
            "_provenance": provenance,
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Guarantee cannot be changed: make another one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("a Guarantee cannot be changed: make another one")

    def __repr__(self) -> str:
        tree = self._provenance
        if tree is None:
            return f"Guarantee(unnamed, {self.relation})"
        return f"Guarantee({tree['mechanism']}, {tree['parameters']}, {self.relation})"

    @property
    def provenance(self) -> dict[str, Any]:
        """Returns a fresh copy of the tree that explains and rebuilds this guarantee."""
        tree = self._provenance
        if tree is None:
            raise ValueError(
                "this guarantee has no provenance: return it from a function decorated with "
                "accounting.mechanism"
            )
        return provenance_lib.node(tree["mechanism"], tree["parameters"], tree["parts"])

    @property
    def known_by_renyi_only(self) -> bool:
        """Returns whether the loss distributions are derived from the Renyi curve."""
        return self._pair_source is None and self.pure_epsilon is None

    @functools.cached_property
    def pair(self) -> LossPair:
        """Returns both directions' loss distributions, computed when first needed."""
        if self._pair_source is None:
            if self.pure_epsilon is not None:
                return pure_pair(self.pure_epsilon)
            return pair_from_curve(self._curve())
        return self._pair_source if isinstance(self._pair_source, LossPair) else self._pair_source()

    def epsilon(self, delta: float = 0.0, method: str = "tight") -> float:
        """Returns the smallest epsilon known at a delta, in nats, possibly inf.

        Args:
          delta: in (0, 1), or 0 for a pure guarantee.
          method: "tight", the smallest sound bound known (loss distributions, Renyi at continuous
            orders by Lemma 14 of Papernot & Steinke 2022, pure epsilon); "rdp", Renyi alone by that
            lemma; "rdp_classic", Renyi with Mironov's conversion, divergence + log(1/delta) /
            (order - 1), for reproducing older papers. A ValueError if no Renyi curve is known.
        """
        one_of("method", method, METHODS)
        wanted = "in (0, 1), or 0 for a pure guarantee"
        delta = number("delta", delta, wanted)
        if delta == 0.0:
            if self.pure_epsilon is None:
                raise ValueError("this guarantee is not pure: pass a delta in (0, 1)")
            return self.pure_epsilon
        if not 0.0 < delta < 1.0:
            raise refused("delta", delta, wanted)
        if method != "tight":
            curve = self._curve()
            return curve.epsilon(delta) if method == "rdp" else curve.classic_epsilon(delta)
        bounds = [math.inf]
        if self._basic is not None and delta >= self._basic[1]:
            bounds.append(self._basic[0])
        if not self.known_by_renyi_only:
            pair = self.pair if self._at_delta is None else self._at_delta(delta)
            bounds.append(pair.epsilon(delta))
        if self.renyi is not None:
            bounds.append(self.renyi.epsilon(delta))
        return float(min(bounds))

    def rough_epsilon(self, delta: float) -> float | None:
        """Returns a bound on `epsilon(delta)` that is computed faster; None if none is known."""
        return None if self._rough is None or delta == 0.0 else self._rough().epsilon(delta)

    def stated_epsilon(self, delta: float) -> float:
        """Returns the epsilon that a release states, `epsilon(delta)` rounded up to six digits."""
        return stated_epsilon.six_digits_up(self.epsilon(delta))

    def meets(self, epsilon: float, delta: float) -> bool:
        """Returns whether every machine states an epsilon of at most `epsilon` at this delta."""
        return self.epsilon(delta) <= stated_epsilon.aim_below(epsilon)

    @property
    def least_delta(self) -> float | None:
        """Returns the least delta with an epsilon, if all parts were declared with one, or None."""
        return None if self._basic is None else self._basic[1]

    def delta(self, epsilon: float) -> float:
        """Returns the smallest delta known at an epsilon >= 0 (nats): the privacy profile."""
        epsilon = number("epsilon", epsilon, ">= 0", finite=False)
        if not epsilon >= 0.0:
            raise refused("epsilon", epsilon, ">= 0")
        if self.pure_epsilon is not None and epsilon >= self.pure_epsilon:
            return 0.0
        bounds = [1.0]
        if self._basic is not None and epsilon >= self._basic[0]:
            bounds.append(self._basic[1])
        if not self.known_by_renyi_only:
            bounds.append(float(self.pair.delta(epsilon)))
        if self.renyi is not None:
            bounds.append(self.renyi.delta(epsilon))
        return float(min(bounds))

    def rdp(self, orders: Sequence[float] | float) -> np.ndarray:
        """Returns Renyi divergences in nats, the larger of the two directions.

        A ValueError refuses a guarantee without a Renyi curve, and one with a failure probability,
        whose divergence is infinite. (`epsilon(delta, method="rdp")` takes the failure probability
        out of delta instead.)

        Args:
          orders: (n,) or scalar, each > 1, fractions welcome; the result has their shape.
        """
        curve = self._curve()
        if curve.failure_mass > 0.0:
            raise ValueError(
                "a failure probability makes every Renyi divergence infinite: use "
                'epsilon(delta, method="rdp"), which takes it out of delta'
            )
        shape = np.shape(orders)
        values = vector("orders", [orders] if shape == () else orders)
        if not np.all(values > 1.0):
            raise ValueError("Renyi orders must be > 1: pass numbers such as [2, 4, 8]")
        return curve(values).reshape(shape)

    def tradeoff(self, false_positive_rate: np.ndarray | Sequence[float] | float) -> np.ndarray:
        """Returns the least type II error of any test for a record's presence, or for its value.

        A test that takes the data set without the record for the one with it (or the other way
        round) with probability at most alpha misses the record with probability at least
        `tradeoff(alpha)`: the mechanism is f-DP (Dong, Roth & Su 2022, Definition 2.3). f is the
        smallest of both directions of the dominating pair, and of a pure epsilon's.

        Example:
          >>> from dpjax import accounting
          >>> accounting.gaussian(1.0).tradeoff([0.01, 0.1, 0.5]).round(3).tolist()
          [0.908, 0.611, 0.159]

        Args:
          false_positive_rate: alpha, (n,) or scalar, each in [0, 1]; the result has its shape.
        """
        rates = array("false_positive_rate", false_positive_rate, "numbers in [0, 1]")
        if not np.all((rates >= 0.0) & (rates <= 1.0)):
            raise ValueError("false_positive_rate must be in [0, 1]: pass for example [0.01, 0.1]")
        laws = {id(law): law for law in (self.pair.forward, self.pair.backward)}
        found = np.max([tradeoff.largest_mass(law, rates) for law in laws.values()], axis=0)
        least = 1.0 - found
        if self.pure_epsilon is not None:
            growth = math.exp(min(self.pure_epsilon, 700.0))
            least = np.maximum(least, np.maximum(1.0 - growth * rates, (1.0 - rates) / growth))
        return np.maximum(least - 2.0**-50, 0.0)

    def attack_success(
        self, false_positive_rate: np.ndarray | Sequence[float] | float
    ) -> np.ndarray:
        """Returns the largest true positive rate of any membership attack at a false positive rate.

        It is 1 - `tradeoff`, rounded up, whatever the attacker knows beside (all other records, the
        mechanism). The largest gain over guessing, true less false positive rate, is `delta(0)`.
        """
        return np.minimum(1.0 - self.tradeoff(false_positive_rate) + 2.0**-52, 1.0)

    def gaussian_mu(self, slack: float = 1e-9) -> float:
        """Returns the smallest mu of Gaussian differential privacy known, up to a slack in delta.

        For every epsilon >= 0, delta(epsilon) is at most that of N(mu, 1) against N(0, 1), plus the
        slack; so every test's type II error is at least the Gaussian's, less the slack.
        With slack 0 that is mu-GDP (Dong, Roth & Su 2022, Corollary 2.13), which few mechanisms
        have: not zCDP, and no loss distribution whose tail was cut off and counted as revealed.

        Args:
          slack: in [0, 1), far below the delta that is of interest; refused if it is too small
            for a finite mu.
        """
        slack = probability("slack", slack, zero=True)
        found = tradeoff.gaussian_mu(self.pair, slack)
        if not math.isfinite(found):
            raise ValueError(
                f"slack={slack:g} leaves no finite mu: everything is revealed with a larger "
                "probability; pass a larger slack, such as 1e-6"
            )
        return found

    def group_epsilon(self, records: int, delta: float = 0.0) -> float:
        """Returns the smallest epsilon known for a group of `records`: as many steps of `relation`.

        By chains of neighbours (Dong, Roth & Su 2022, Theorem 2.14, on the dominating pair) the
        group's trade-off is one record's, composed with itself `records` times. For a Gaussian that
        multiplies mu by `records`. A pure epsilon is multiplied.

        Args:
          records: how many are added, removed or, under replace-one, replaced; 1 or more.
          delta: as in `epsilon`. The result may be inf: a group's delta is many times a record's.
        """
        records = whole("records", records)
        if records == 1:
            return self.epsilon(delta)
        wanted = "in (0, 1), or 0 for a pure guarantee"
        delta = number("delta", delta, wanted)
        self.epsilon(delta)  # Refuses a delta that this guarantee has no epsilon at.
        bound = math.inf if self.pure_epsilon is None else records * self.pure_epsilon
        if delta == 0.0 or records > tradeoff.MOST_RECORDS:
            return bound
        return min(bound, tradeoff.group_epsilon(self.pair, records, delta))

    def to_pld(self) -> privacy_loss_distribution.PrivacyLossDistribution:
        """Returns the pair as dp_accounting's PrivacyLossDistribution (pessimistic)."""
        # Imported here: it takes most of a second, and few prices need it.
        from dp_accounting.pld import pld_pmf, privacy_loss_distribution

        def pmf(law: LossDistribution) -> pld_pmf.PLDPmf:
            return pld_pmf.DensePLDPmf(
                law.interval, law.lowest, law.masses.copy(), law.infinity_mass, True
            )

        forward = pmf(self.pair.forward)
        backward = None if self.pair.symmetric else pmf(self.pair.backward)
        return privacy_loss_distribution.PrivacyLossDistribution(forward, backward)

    @classmethod
    def from_pld(
        cls,
        pld: privacy_loss_distribution.PrivacyLossDistribution,
        *,
        symmetric: bool = False,
        relation: object = ADD_OR_REMOVE_ONE,
        provenance: Mapping[str, Any] | None = None,
        renyi: Callable[[np.ndarray], np.ndarray] | None = None,
        pure_epsilon: float | None = None,
    ) -> Guarantee:
        """Makes a guarantee from dp_accounting's privacy loss distribution.

        Args:
          pld: a pessimistic PrivacyLossDistribution; an optimistic one, a bound on the wrong side,
            is refused.
          symmetric: whether the mechanism's losses are the same in both directions, as those of
            Gaussian and Laplace noise are. If they are not, `pld` needs both directions:
            dp_accounting's `from_two_probability_mass_functions` keeps one of any two by default.
          relation: the neighbouring relation that `pld` was made for.
          provenance: a registered node that rebuilds it; None writes the masses themselves.
          renyi: (n,) orders -> (n,) Renyi divergences of both directions, if known.
          pure_epsilon: a delta-free epsilon, if known.
        """
        from dp_accounting.pld import privacy_loss_distribution

        instance(
            "pld",
            pld,
            privacy_loss_distribution.PrivacyLossDistribution,
            "dp_accounting's from_gaussian_mechanism(1.0)",
        )
        # dp_accounting offers no public way to the masses.
        if not flag("symmetric", symmetric) and pld._symmetric:
            raise ValueError(
                "this distribution has one direction alone: pass symmetric=True if the mechanism's "
                "losses are the same in both, else make it with symmetric=False"
            )
        pmfs = (pld._pmf_remove,) if pld._symmetric else (pld._pmf_remove, pld._pmf_add)
        if not all(pmf._pessimistic_estimate for pmf in pmfs):
            raise ValueError("an optimistic distribution is no guarantee: pass a pessimistic one")
        laws = []
        for pmf in pmfs:
            dense = pmf.to_dense_pmf()
            masses = np.maximum(np.array(dense._probs, dtype=np.float64), 0.0)
            laws.append(
                LossDistribution(
                    float(dense._discretization),
                    int(dense._lower_loss),
                    masses,
                    float(dense._infinity_mass),
                )
            )
        if provenance is None:
            provenance = _masses_node(laws, normalise_relation(relation))
        return cls(
            relation=relation,
            provenance=provenance,
            pair=_pair_of(laws),
            renyi=None if renyi is None else RenyiCurve(renyi),
            pure_epsilon=pure_epsilon,
        )

    @classmethod
    def from_dp_event(
        cls, event: dp_events.DpEvent, relation: object = ADD_OR_REMOVE_ONE
    ) -> Guarantee:
        """Makes a guarantee from a dp_accounting event; see `dpjax.accounting.interop`."""
        return _READERS["dp_event"](event, relation)

    def _curve(self) -> RenyiCurve:
        """Returns the Renyi curve; refuses a guarantee without one."""
        if self.renyi is None:
            raise ValueError(
                "this guarantee has no Renyi curve, only loss distributions: use method='tight'"
            )
        return self.renyi


def with_provenance(guarantee: Guarantee, tree: Mapping[str, Any]) -> Guarantee:
    """Returns the same guarantee, explained by another tree; nothing is computed."""
    return Guarantee(
        relation=guarantee.relation,
        provenance=tree,
        pair=None if guarantee._pair_source is None else lambda: guarantee.pair,
        renyi=guarantee.renyi,
        pure_epsilon=guarantee.pure_epsilon,
        at_delta=guarantee._at_delta,
        rough=guarantee._rough,
        basic=guarantee._basic,
    )


def register_reader(name: str, reader: Callable[..., Guarantee]) -> None:
    """Registers the function (object, relation) -> Guarantee behind `Guarantee.from_<name>`."""
    _READERS[name] = reader


def check_guarantee(name: str, value: Any) -> None:
    """Refuses a value that is not a Guarantee, naming the argument."""
    instance(name, value, Guarantee, "accounting.gaussian(1.0)")


def pure_pair(epsilon: float) -> LossPair:
    """Returns the losses of randomised response, which dominates every epsilon-DP mechanism."""
    if epsilon == 0.0:
        law = LossDistribution(1e-4, 0, np.array([1.0]), 0.0)
    else:
        high = 1.0 / (1.0 + math.exp(-epsilon))
        # Not 1 - high, which loses its digits if epsilon is large.
        law = LossDistribution(epsilon, -1, np.array([high * math.exp(-epsilon), 0.0, high]), 0.0)
    return LossPair(law, law)


def pair_from_curve(curve: RenyiCurve) -> LossPair:
    """Returns loss distributions of a mechanism known by its Renyi curve alone.

    delta(epsilon) is the infimum of Lemma 14 over orders, in both directions. The grid ends where
    delta falls below 1e-16 of mass beyond the failure event.
    """
    largest = curve.epsilon(curve.failure_mass + (1.0 - curve.failure_mass) * 1e-16)
    if not math.isfinite(largest):
        raise ValueError(
            "the Renyi curve is infinite at every order: pass one that is finite at some order"
        )
    # Between 2,000 and 50,000 points.
    interval = 1e-3
    while largest / interval > 50_000:
        interval *= 2.0
    while largest / interval < 2_000 and interval > 1e-6:
        interval /= 2.0
    epsilons = interval * np.arange(whole_up(largest / interval) + 1)
    return pair_from_profiles(interval, curve.profile(epsilons))


def _pair_of(laws: list[LossDistribution]) -> LossPair:
    """Forms a pair from another library's loss distributions.

    Directions rounded one by one are no mirror images (dp_accounting's "add" direction of a long
    DP-SGD run has a mirrored mass of 1.002), and not exact at negative epsilons, which selections
    and compositions read. The two profiles at epsilon >= 0 fix a pair that is.
    """
    interval = laws[0].interval
    if any(law.interval != interval for law in laws):
        raise ValueError("loss distributions on different grids: pass one interval for both")
    return pair_from_laws(interval, laws)


def _masses_node(laws: list[LossDistribution], relation: str) -> dict[str, Any]:
    """Returns the provenance of a guarantee that is given by masses alone."""
    directions = [
        {
            "interval": law.interval,
            "lowest": law.lowest,
            "masses": law.masses.tolist(),
            "infinity_mass": law.infinity_mass,
        }
        for law in laws
    ]
    return provenance_lib.node(
        "loss_distributions", {"relation": relation, "directions": directions}
    )


def _rebuild_masses(parameters: dict[str, Any], parts: list[Guarantee]) -> Guarantee:
    """Rebuilds a guarantee from the loss masses in its provenance."""
    laws = [
        LossDistribution(d["interval"], d["lowest"], np.array(d["masses"]), d["infinity_mass"])
        for d in parameters["directions"]
    ]
    return Guarantee(
        relation=parameters["relation"],
        provenance=_masses_node(laws, parameters["relation"]),
        pair=_pair_of(laws),
    )


provenance_lib.register("loss_distributions", _rebuild_masses)
