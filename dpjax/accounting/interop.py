"""Turns dp_accounting's events into guarantees, around its known pitfalls.

Each event becomes a call of its constructor here, so that composition, sampling and selection are
those of this package. Single mechanisms without one (Laplace, randomised response, ...) are handed
to dp_accounting one at a time: never with a count, which some of its code ignores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attr
import dp_accounting
import numpy as np
from dp_accounting import dp_event as dp_events
from dp_accounting import pld as pld_accounting
from dp_accounting import rdp as rdp_accounting

from dpjax.accounting import combine, provenance
from dpjax.accounting.guarantee import Guarantee
from dpjax.accounting.mechanisms import elementary as mechanisms
from dpjax.accounting.mechanisms.dp_sgd import dp_sgd, dp_sgd_fixed_lots
from dpjax.accounting.mechanisms.exponential import exponential_mechanism
from dpjax.accounting.selection import best_of as selection
from dpjax.accounting.selection.families import Poisson, TruncatedNegativeBinomial
from dpjax.accounting.selection.laws import RepetitionLaw
from dpjax.checks import instance, positive, whole
from dpjax.neighbouring import ADD_OR_REMOVE_ONE, REPLACE_ONE, normalise_relation

_RELATIONS = {
    ADD_OR_REMOVE_ONE: dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    REPLACE_ONE: dp_accounting.NeighboringRelation.REPLACE_ONE,
}


def from_dp_event(event: dp_events.DpEvent, relation: object = ADD_OR_REMOVE_ONE) -> Guarantee:
    """Reads an event of dp_accounting; see `dpjax.accounting.events.from_dp_event`."""
    relation = normalise_relation(relation)
    instance("event", event, dp_events.DpEvent, "dp_accounting.GaussianDpEvent(1.0)")
    if isinstance(event, dp_events.NoOpDpEvent):
        return mechanisms.pure(0.0, relation=relation)
    if isinstance(event, dp_events.GaussianDpEvent):
        return mechanisms.gaussian(
            _noise_over_sensitivity(event.noise_multiplier, relation), relation=relation
        )
    if isinstance(event, dp_events.ZCDpEvent):
        return _zcdp(event, relation)
    if isinstance(event, dp_events.SelfComposedDpEvent):
        sampled = event.event
        if isinstance(sampled, dp_events.PoissonSampledDpEvent) and relation == ADD_OR_REMOVE_ONE:
            return _poisson(sampled, event.count)
        if isinstance(sampled, dp_events.SampledWithoutReplacementDpEvent):
            return _fixed_lots(sampled, event.count, relation)
        return combine.repeat(from_dp_event(sampled, relation), event.count)
    if isinstance(event, dp_events.ComposedDpEvent):
        if not event.events:
            return mechanisms.pure(0.0, relation=relation)
        return combine.compose(*(from_dp_event(part, relation) for part in event.events))
    if isinstance(event, dp_events.PoissonSampledDpEvent) and relation == ADD_OR_REMOVE_ONE:
        if _is_gaussian(event.event):
            return _poisson(event, 1)
        return _leaf(event, relation)
    if isinstance(event, dp_events.SampledWithoutReplacementDpEvent):
        return _fixed_lots(event, 1, relation)
    for kind, law_of in _SELECTIONS.items():
        if isinstance(event, kind):
            _refuse_inner_delta(event.event)
            return selection.best_of(from_dp_event(event.event, relation), law_of(event))
    if isinstance(event, _LEAVES):
        return _leaf(event, relation)
    if type(event).__name__ in _NEWER:
        return _NEWER[type(event).__name__](event, relation)
    raise ValueError(
        f"{type(event).__name__} is not supported: build the guarantee with dpjax.accounting's "
        "constructors, or pass its loss distribution to Guarantee.from_pld"
    )


_LEAVES = (
    dp_events.LaplaceDpEvent,
    dp_events.DiscreteLaplaceDpEvent,
    dp_events.RandomizedResponseDpEvent,
    dp_events.MixtureOfGaussiansDpEvent,
    dp_events.TruncatedSubsampledGaussianDpEvent,
    dp_events.PoissonSampledDpEvent,
)


def _discrete_gaussian(event: Any, relation: str) -> Guarantee:
    """Prices one integer coordinate; more of them cost more, and are refused."""
    if event.dimension != 1:
        raise ValueError(
            "DiscreteGaussianDpEvent is priced for one coordinate: pass dimension=1, or compose "
            "one event a coordinate"
        )
    change = whole("sensitivity", event.sensitivity) * (2 if relation == REPLACE_ONE else 1)
    return mechanisms.discrete_gaussian(event.sigma, change, relation=relation)


def _declared(event: Any, relation: str) -> Guarantee:
    """Returns the guarantee that an event itself states: (epsilon, delta), or a pure epsilon."""
    if getattr(event, "delta", 0.0) == 0.0:
        return mechanisms.pure(event.epsilon, relation=relation)
    return mechanisms.approximate(event.epsilon, event.delta, relation=relation)


_NEWER: dict[str, Callable[[Any, str], Guarantee]] = {
    "DiscreteGaussianDpEvent": _discrete_gaussian,
    "EpsilonDeltaDpEvent": _declared,
    "ExponentialMechanismDpEvent": lambda event, relation: exponential_mechanism(
        event.epsilon, relation=relation
    ),
    "PermuteAndFlipDpEvent": _declared,
}
"""Name of an event of dp_accounting after 0.6 -> the function that prices it."""


_SELECTIONS: dict[type[dp_events.DpEvent], Callable[[Any], RepetitionLaw]] = {
    dp_events.RepeatAndSelectDpEvent: lambda event: _law(event.shape, event.mean)
}
"""Event type that means the best of K runs of its `event` -> function from it to K's law."""


def register_selection(
    kind: type[dp_events.DpEvent], law_of: Callable[[Any], RepetitionLaw]
) -> None:
    """Makes `from_dp_event` read a kind of event as the best of K runs of its `event`."""
    _SELECTIONS[kind] = law_of


def _noise_over_sensitivity(noise_multiplier: float, relation: str) -> float:
    """Converts noise over clip norm into noise over the sensitivity under the relation."""
    return noise_multiplier / 2.0 if relation == REPLACE_ONE else noise_multiplier


def _combined_noise_multiplier(event: dp_events.DpEvent) -> float:
    """Returns the noise multiplier of the one Gaussian that a step's composed Gaussians equal."""
    if isinstance(event, dp_events.GaussianDpEvent):
        return positive("noise_multiplier", event.noise_multiplier)
    if isinstance(event, dp_events.SelfComposedDpEvent):
        return _combined_noise_multiplier(event.event) / math.sqrt(whole("count", event.count))
    if isinstance(event, dp_events.ComposedDpEvent) and event.events:
        return sum(_combined_noise_multiplier(part) ** -2 for part in event.events) ** -0.5
    raise ValueError(
        f"sampling of {type(event).__name__} is not supported: pass Gaussian events, or "
        "compositions of them"
    )


def _is_gaussian(event: dp_events.DpEvent) -> bool:
    """Returns whether an event amounts to one Gaussian mechanism."""
    try:
        _combined_noise_multiplier(event)
    except ValueError:
        return False
    return True


def _poisson(event: dp_events.PoissonSampledDpEvent, count: int) -> Guarantee:
    """Prices `count` Poisson-sampled steps: as DP-SGD if the event is Gaussian."""
    if not _is_gaussian(event.event):
        return combine.repeat(_leaf(event, ADD_OR_REMOVE_ONE), count)
    if event.sampling_probability == 0:
        return mechanisms.pure(0.0)
    return dp_sgd(event.sampling_probability, _combined_noise_multiplier(event.event), count)


def _fixed_lots(
    event: dp_events.SampledWithoutReplacementDpEvent, count: int, relation: str
) -> Guarantee:
    """Prices `count` steps on lots without replacement; refuses add-or-remove one."""
    if relation != REPLACE_ONE:
        raise ValueError(
            "lots without replacement need a fixed number of records: pass relation='replace_one'"
        )
    noise_multiplier = _noise_over_sensitivity(_combined_noise_multiplier(event.event), relation)
    return dp_sgd_fixed_lots(event.source_dataset_size, event.sample_size, noise_multiplier, count)


def _zcdp(event: dp_events.ZCDpEvent, relation: str) -> Guarantee:
    """Returns the guarantee of a zCDP event; if xi > 0, by its Renyi curve xi + rho * order."""
    if event.xi == 0.0:
        return mechanisms.zcdp(event.rho, relation=relation)
    orders = 1.0 + np.geomspace(1e-3, 1e5, 400)
    return mechanisms.renyi_only(orders, event.xi + event.rho * orders, relation=relation)


def _law(shape: float, mean: float) -> RepetitionLaw:
    return Poisson(mean) if math.isinf(shape) else TruncatedNegativeBinomial(shape, mean)


def _refuse_inner_delta(event: dp_events.DpEvent) -> None:
    """Refuses a delta inside a selection: it is paid about E[K] times, not once."""
    if getattr(event, "delta", 0):
        raise ValueError(
            f"{type(event).__name__} with a delta inside a selection: pass best_of a Guarantee "
            "whose loss distribution holds that delta as infinite loss"
        )
    for field in attr.fields(type(event)):
        inner = getattr(event, field.name)
        for part in inner if isinstance(inner, list | tuple) else (inner,):
            if isinstance(part, dp_events.DpEvent):
                _refuse_inner_delta(part)


def _leaf(event: dp_events.DpEvent, relation: str) -> Guarantee:
    """Prices one application of a mechanism that dp_accounting knows."""
    accountant = pld_accounting.PLDAccountant(_RELATIONS[relation])
    try:
        accountant.compose(event)
    except Exception as error:
        raise ValueError(f"dp_accounting refuses the event under {relation!r}: {error}") from None
    if not math.isfinite(accountant.get_epsilon(0.999999)):
        raise ValueError(f"{type(event).__name__} without noise gives no guarantee: add noise")

    def divergences(orders: np.ndarray) -> np.ndarray:
        renyi = rdp_accounting.RdpAccountant(np.asarray(orders), _RELATIONS[relation])
        renyi.compose(event)
        return np.asarray(renyi.rdp, dtype=np.float64)

    has_renyi = rdp_accounting.RdpAccountant(neighboring_relation=_RELATIONS[relation]).supports(
        event
    )
    # Sampled events are left out: dp_accounting overstates their fractional orders.
    has_renyi = has_renyi and not isinstance(event, dp_events.PoissonSampledDpEvent)
    return Guarantee.from_pld(
        accountant._pld,
        symmetric=True,  # If dp_accounting keeps one direction, it knows that both are equal.
        relation=relation,
        provenance=provenance.node(
            "dp_accounting_event", {"event": _to_plain(event), "relation": relation}
        ),
        renyi=divergences if has_renyi else None,
        pure_epsilon=_pure_epsilon(event, relation),
    )


def _pure_epsilon(event: dp_events.DpEvent, relation: str) -> float | None:
    """Returns the pure epsilon of an event (delta 0), or None if it has none.

    Laplace noise of scale b on a value of L1 sensitivity C: C / b (Dwork et al. 2006, Proposition
    1), for integers a C (Ghosh et al. 2012). Randomised response: the log of the ratio of its two
    probabilities. A record that is in a Poisson lot with probability q: log(1 + q (e^epsilon - 1))
    (Li, Qardaji & Su 2012, Theorem 1).
    """
    if isinstance(event, dp_events.LaplaceDpEvent):
        return 1.0 / event.noise_multiplier
    if isinstance(event, dp_events.DiscreteLaplaceDpEvent):
        return event.noise_parameter * event.sensitivity
    if isinstance(event, dp_events.RandomizedResponseDpEvent):
        other = event.noise_parameter / event.num_buckets
        return math.log((1.0 - event.noise_parameter + other) / other)
    if isinstance(event, dp_events.PoissonSampledDpEvent) and relation == ADD_OR_REMOVE_ONE:
        inner = _pure_epsilon(event.event, relation)
        if inner is not None and inner < 700.0:
            return math.log1p(event.sampling_probability * math.expm1(inner))
    return None


def _to_plain(event: dp_events.DpEvent) -> dict[str, Any]:
    """Returns an event as data for JSON; `from_plain` rebuilds it."""
    fields = {}
    for field in attr.fields(type(event)):
        value = getattr(event, field.name)
        if isinstance(value, dp_events.DpEvent):
            value = _to_plain(value)
        elif isinstance(value, list | tuple | np.ndarray):
            value = [float(item) for item in value]
        fields[field.name] = value
    return {"name": type(event).__name__, "fields": fields}


def from_plain(plain: dict[str, Any]) -> dp_events.DpEvent:
    """Rebuilds a dp_accounting event from its node in a provenance."""
    fields = {
        name: from_plain(value) if isinstance(value, dict) else value
        for name, value in plain["fields"].items()
    }
    kind = getattr(dp_events, plain["name"], None)
    # The module's other names (its imports, their modules) must not be called from a file.
    if not (isinstance(kind, type) and issubclass(kind, dp_events.DpEvent)):
        raise ValueError(f"{str(plain['name'])[:80]!r} is not an event of dp_accounting: pass one")
    return kind(**fields)
