"""dp_accounting: a selection as one of its events, and an accountant that prices selections.

In dp_accounting 0.6 only the Renyi accountant prices the best of K runs
(`RepeatAndSelectDpEvent`), for truncated negative binomial and Poisson laws of K. Here K may have
any law, and the price is that of `accounting.best_of`.
"""

from __future__ import annotations

import math
import numbers
from typing import Any

import attr
from dp_accounting import dp_event as dp_events
from dp_accounting import privacy_accountant

from dpjax import accounting, checks
from dpjax.accounting.interop import register_selection
from dpjax.neighbouring import RELATIONS

_RELATION = privacy_accountant.NeighboringRelation
_Details = privacy_accountant.PrivacyAccountant.CompositionErrorDetails


def _check_event(event: object, attribute: object, value: Any) -> None:
    """Refuses a run that is no event of dp_accounting; attrs calls it."""
    checks.instance("event", value, dp_events.DpEvent, "dp_accounting.GaussianDpEvent(1.0)")


def _check_law(event: object, attribute: object, value: Any) -> None:
    """Refuses a distribution of K that is not dpjax's; attrs calls it."""
    checks.instance("law", value, accounting.RepetitionLaw, "accounting.Geometric(10)")


@attr.s(frozen=True, slots=True, auto_attribs=True)
class RepeatAndSelectEvent(dp_events.DpEvent):
    """The best of K runs, where K has any law that `accounting.best_of` prices.

    dp_accounting's own accountants do not support it; `SelectionAccountant`,
    `accounting.from_dp_event` and compositions of either do.

    Attributes:
      event: one run and its score.
      law: the law of the number of runs K, such as `accounting.Geometric(10)`.
    """

    event: dp_events.DpEvent = attr.ib(validator=_check_event)
    law: accounting.RepetitionLaw = attr.ib(validator=_check_law)


register_selection(RepeatAndSelectEvent, lambda event: event.law)


class SelectionAccountant(privacy_accountant.PrivacyAccountant):
    """dp_accounting's interface over this package's prices, selections included.

    Formal guarantees: `get_epsilon` and `get_delta` are upper bounds for the adaptive composition
    of all composed events, those of `accounting.from_dp_event`: its conventions of noise
    multipliers hold, and for a selection the preconditions of `accounting.best_of` do (K of the
    stated law, fixed beforehand and never revealed; independent runs; one winner released). What
    `from_dp_event` refuses is not supported and changes nothing. NonPrivateDpEvent and a noise
    multiplier of 0 anywhere in an event give epsilon inf and delta 1: dp_accounting's calibration
    starts there.

    Example: `SelectionAccountant().compose(RepeatAndSelectEvent(run, law)).get_epsilon(1e-5)`.

    Args:
      neighboring_relation: dp_accounting's ADD_OR_REMOVE_ONE or REPLACE_ONE; REPLACE_SPECIAL,
        which neither stands for, is refused.
    """

    def __init__(
        self,
        neighboring_relation: privacy_accountant.NeighboringRelation = _RELATION.ADD_OR_REMOVE_ONE,
    ):
        name = str(getattr(neighboring_relation, "name", "")).lower()
        if not isinstance(neighboring_relation, _RELATION) or name not in RELATIONS:
            wanted = "dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE or REPLACE_ONE"
            raise checks.refused("neighboring_relation", neighboring_relation, wanted)
        super().__init__(neighboring_relation)
        self._relation = name
        self._counted: list[tuple[dp_events.DpEvent, int]] = []
        self._without_noise = False
        self._composed: accounting.Guarantee | None = None

    @property
    def guarantee(self) -> accounting.Guarantee:
        """Returns the guarantee of all composed events; refused if one adds no noise."""
        if self._without_noise:
            raise ValueError("an event without noise has no guarantee: compose private events only")
        if self._composed is None:
            parts = [self._price(event, count) for event, count in self._counted]
            self._composed = accounting.compose(
                *parts or [accounting.pure(0.0, relation=self._relation)]
            )
        return self._composed

    def get_epsilon(self, target_delta: float) -> float:
        """Returns epsilon in nats of all composed events; inf if none holds at this delta."""
        delta = checks.probability("target_delta", target_delta, zero=True, one=True)
        if (
            delta == 1.0
        ):  # Everything may be revealed, and dp_accounting asks for inf without noise.
            return math.inf if self._without_noise else 0.0
        if self._without_noise or (delta == 0.0 and self.guarantee.pure_epsilon is None):
            return math.inf
        return self.guarantee.epsilon(delta)

    def get_delta(self, target_epsilon: float) -> float:
        """Returns delta of all composed events at an epsilon of at least 0, in nats."""
        if self._without_noise:
            return 1.0
        return float(self.guarantee.delta(target_epsilon))

    def _maybe_compose(
        self, event: dp_events.DpEvent, count: int, do_compose: bool
    ) -> privacy_accountant.PrivacyAccountant.CompositionErrorDetails | None:
        """Composes an event `count` times if asked to; returns why it is not supported, or None."""
        # `supports` asks with a count of 0.
        try:
            count = checks.whole("count", count, smallest=1 if do_compose else 0)
            if isinstance(event, dp_events.SelfComposedDpEvent):
                inner = checks.whole("count", event.count)
                return self._maybe_compose(event.event, inner * count, do_compose)
        except ValueError as refusal:
            return _Details(invalid_event=event, error_message=str(refusal))
        if isinstance(event, dp_events.ComposedDpEvent):
            for part in event.events:
                refused = self._maybe_compose(part, count, do_compose)
                if refused is not None:
                    return refused
            return None
        if _lacks_noise(event):
            self._without_noise |= do_compose
            return None
        if do_compose:
            self._count(event, count)
            return None
        try:
            self._price(event, max(count, 1))
        except ValueError as refusal:
            return _Details(invalid_event=event, error_message=str(refusal))
        return None

    def _price(self, event: dp_events.DpEvent, count: int) -> accounting.Guarantee:
        # Priced with its count: many sampled steps have a tighter price together than singly.
        return accounting.from_dp_event(dp_events.SelfComposedDpEvent(event, count), self._relation)

    def _count(self, event: dp_events.DpEvent, count: int) -> None:
        """Adds to an event's count, or starts one."""
        self._composed = None
        for index, (known, times) in enumerate(self._counted):
            if known == event:
                self._counted[index] = (known, times + count)
                return
        self._counted.append((event, count))


def _lacks_noise(event: object) -> bool:
    """Returns whether an event, or one inside it, adds no noise at all."""
    if isinstance(event, list | tuple):
        return any(_lacks_noise(part) for part in event)
    if not isinstance(event, dp_events.DpEvent):
        return False
    if isinstance(event, dp_events.NonPrivateDpEvent):
        return True
    noise = getattr(event, "noise_multiplier", None)
    if isinstance(noise, numbers.Real) and noise == 0:
        return True
    return any(_lacks_noise(getattr(event, field.name)) for field in attr.fields(type(event)))
