"""Schedules by name: the factor on a run's learning rate, by its step and its length.

A schedule is a function of the step's number and of the run's number of steps, both public; the
latter is the candidate's own, traced where candidates side by side differ in it.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpjax import checks
from dpjax.training import optimizers

Shape = Callable[[Any, Any], Any]
"""(step from 0, steps of the run) -> factor on the candidate's learning rate; maybe traced."""

CONSTANT = "constant"
SCHEDULES: dict[str, Callable[..., Shape | None]] = {}
"""By name: functions of a schedule's own settings; filled by `register_schedule`."""


def register_schedule(
    name: str,
) -> Callable[[Callable[..., Shape | None]], Callable[..., Shape | None]]:
    """Registers a schedule by name, for `scheduled` and for the flag --schedule.

    Example:
      >>> import jax.numpy as jnp
      >>> from dpjax import training
      >>> @training.register_schedule("halved")
      ... def halved(at=0.5):
      ...     return lambda step, steps: jnp.where(step < at * steps, 1.0, 0.5)
      >>> training.scheduled(training.sgd, "halved", at=0.8).schedule
      'halved'

    Args:
      name: its public name. The settings of what is decorated (arguments with a default, numbers)
        are flags of the commands.
    """

    def registered(make: Callable[..., Shape | None]) -> Callable[..., Shape | None]:
        if name in SCHEDULES:
            raise ValueError(f"schedule {name!r} is registered already: choose another name")
        SCHEDULES[name] = make
        return make

    return registered


@register_schedule(CONSTANT)
def constant() -> None:
    """Returns the factor 1 for every step."""


@register_schedule("cosine")
def cosine() -> Shape:
    """Returns a factor that falls from 1 to 0 along half a cosine (Loshchilov & Hutter 2017)."""
    return lambda step, steps: 0.5 * (1 + jnp.cos(jnp.pi * step / steps))


@register_schedule("linear")
def linear(end_factor: float = 0.0) -> Shape:
    """Returns a factor that falls from 1 in a straight line.

    Args:
      end_factor: what the factor falls to, in [0, 1].
    """
    end = checks.probability("end_factor", end_factor, zero=True, one=True)
    return lambda step, steps: end + (1.0 - end) * jnp.clip(1.0 - step / steps, 0.0, 1.0)


@register_schedule("warmup_cosine")
def warmup_cosine(warmup_share: float = 0.1) -> Shape:
    """Returns a factor that rises from 0 to 1 in a line, then falls to 0 along half a cosine.

    Args:
      warmup_share: of the steps that lead up, in (0, 1); rounded up to whole ones.
    """
    share = checks.probability("warmup_share", warmup_share, hint=", of a run's steps")

    def factor(step: Any, steps: Any) -> Any:
        warm = jnp.ceil(share * jnp.asarray(steps, jnp.float32))
        done = jnp.clip((step - warm) / jnp.maximum(steps - warm, 1.0), 0.0, 1.0)
        up = (step + 1) / jnp.maximum(warm, 1.0)
        return jnp.where(step < warm, up, 0.5 * (1 + jnp.cos(jnp.pi * done)))

    return factor


def shape_of(name: str, settings: Mapping[str, Any] | None = None) -> Shape | None:
    """Returns the schedule of that name; None: constant."""
    checks.one_of("schedule", name, tuple(SCHEDULES))
    known = inspect.signature(SCHEDULES[name]).parameters
    unknown = sorted(set(settings or {}) - set(known))
    if unknown:
        raise ValueError(
            f"schedule {name} has no setting {', '.join(unknown)}: pass "
            f"{', '.join(known) or 'none'}"
        )
    return SCHEDULES[name](**(settings or {}))


def in_words(name: str, settings: Mapping[str, Any] | None = None) -> str:
    """Describes a schedule in a release: its name, and every setting with its value."""
    if name == CONSTANT:
        return name
    known = inspect.signature(SCHEDULES[name]).parameters
    values = {one: (settings or {}).get(one, known[one].default) for one in known}
    own = "".join(f", {one} {value:g}" for one, value in values.items())
    return f"{name} over the run's steps{own}"


def of_run(shape: Shape | None, hyperparameters: Mapping[str, Any]) -> optimizers.Schedule | None:
    """Returns the optax schedule of a run of `steps` steps, one of its hyperparameters."""
    if shape is None:
        return None
    (steps,) = optimizers.read(hyperparameters, "the schedule", "steps")
    return lambda step: shape(step, steps)


@dataclasses.dataclass(frozen=True)
class Scheduled:
    """An optimiser whose learning rate follows a named schedule; made by `scheduled`."""

    make: Callable[..., optimizers.Optimizer]
    schedule: str
    settings: Mapping[str, Any]

    @property
    def description(self) -> dict[str, str]:
        """Describes the optimiser and its schedule in a release."""
        named = f"{self.make.__module__}.{self.make.__qualname__}"
        words = in_words(self.schedule, self.settings)
        return {"name": named, "learning_rate_schedule": words}

    def __call__(self, hyperparameters: Mapping[str, jax.Array]) -> optax.GradientTransformation:
        """Returns the optax transformation of one candidate; reads `steps` too."""
        shape = shape_of(self.schedule, self.settings)
        return self.make(of_run(shape, hyperparameters))(hyperparameters)


def scheduled(
    make: Callable[..., optimizers.Optimizer], schedule: str, **settings: float
) -> Scheduled:
    """Makes an optimiser whose rate follows a named schedule over each candidate's own steps.

    Example:
      >>> from dpjax import training
      >>> optimizer = training.scheduled(training.adam, "warmup_cosine", warmup_share=0.05)
      >>> callable(optimizer)
      True
    """
    checks.function("make", make, "such as training.adam")
    shape_of(schedule, settings)
    return Scheduled(make, schedule, settings)
