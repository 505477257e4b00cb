"""Optimisers as functions of a candidate's hyperparameters; and the registry of those with names.

An optax optimiser is built inside the traced training function, from traced numbers: many
candidates with different learning rates share one compilation, and no state has to carry the
numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpjax import checks
from dpjax.training.gradient_scales import adaptive_scale

Schedule = Callable[[jax.Array], jax.Array]
"""An optax schedule: step number -> factor on the candidate's learning rate."""

Optimizer = Callable[[Mapping[str, jax.Array]], optax.GradientTransformation]
"""Hyperparameters (traced float32 scalars by name) -> optax transformation."""


@dataclasses.dataclass(frozen=True)
class NamedFamily:
    """Holds what `register_optimizer` was given for one name."""

    # From an optax schedule, and its own settings by name, to an `Optimizer`. The settings
    # (arguments with a default, a number or a word each) are flags of the commands.
    make: Callable[..., Optimizer]
    # The hyperparameters that it needs, with their defaults: a number, or the ends of the range
    # that is searched, logarithmically.
    usual: Mapping[str, tuple[float, float] | float]
    optional: tuple[str, ...] = ()  # those that it reads where they are given

    @property
    def reads(self) -> tuple[str, ...]:
        """Returns every hyperparameter that it reads."""
        return (*self.usual, *self.optional)


OPTIMIZERS: dict[str, NamedFamily] = {}
"""By name; filled by `register_optimizer`."""


def register_optimizer(
    name: str, *optional: str, **usual: tuple[float, float] | float
) -> Callable[[Callable[..., Optimizer]], Callable[..., Optimizer]]:
    """Registers an optimiser by name, for the commands and the usual search spaces.

    Example:
      >>> import optax
      >>> from dpjax import training
      >>> @training.register_optimizer("lion", learning_rate=(1e-4, 1e-1))
      ... def lion(schedule=None):
      ...     def build(given):
      ...         rate = given["learning_rate"]
      ...         return optax.lion(rate if schedule is None else lambda n: rate * schedule(n))
      ...     return build
      >>> training.OPTIMIZERS["lion"].reads
      ('learning_rate',)

    Args:
      name: its public name.
      *optional: names of hyperparameters that it reads where they are given.
      **usual: the hyperparameters that it needs, each with its usual number, or with the two ends
        of the range that is searched, logarithmically.

    What is decorated gets None, or a function of the step number whose value multiplies the
    learning rate, and returns a function from hyperparameters to an optax transformation.
    """

    def registered(make: Callable[..., Optimizer]) -> Callable[..., Optimizer]:
        if name in OPTIMIZERS:
            raise ValueError(f"optimizer {name!r} is registered already: choose another name")
        OPTIMIZERS[name] = NamedFamily(make, usual, optional)
        return make

    return registered


@register_optimizer("sgd", learning_rate=(0.03, 30.0))
def sgd(schedule: Schedule | None = None) -> Optimizer:
    """Makes stochastic gradient descent. Reads `learning_rate`.

    Args:
      schedule: optax schedule that multiplies the learning rate, or None for a constant one. It may
        depend on the step number only, which is public.
    """

    def build(hyperparameters: Mapping[str, jax.Array]) -> optax.GradientTransformation:
        return optax.sgd(_rate(hyperparameters, "sgd", schedule))

    return build


@register_optimizer("momentum", learning_rate=(0.003, 3.0), momentum=0.9)
def momentum(schedule: Schedule | None = None) -> Optimizer:
    """Makes heavy-ball momentum (a trace of gradients). Reads `learning_rate` and `momentum`."""

    def build(hyperparameters: Mapping[str, jax.Array]) -> optax.GradientTransformation:
        learning_rate = _rate(hyperparameters, "momentum", schedule, "momentum")
        return optax.sgd(learning_rate, momentum=hyperparameters["momentum"])

    return build


@register_optimizer("adam", "beta_1", "beta_2", "adam_epsilon", learning_rate=(1e-3, 1.0))
def adam(schedule: Schedule | None = None) -> Optimizer:
    """Makes Adam (Kingma & Ba 2015). Reads `learning_rate`, `beta_1`, `beta_2`, `adam_epsilon`.

    `adam_epsilon` is the constant in Adam's denominator, nothing to do with privacy.
    """

    def build(hyperparameters: Mapping[str, jax.Array]) -> optax.GradientTransformation:
        return optax.adam(_rate(hyperparameters, "adam", schedule), **_of_adam(hyperparameters))

    return build


@register_optimizer(
    "adamw", "beta_1", "beta_2", "adam_epsilon", learning_rate=(1e-3, 1.0), weight_decay=(1e-5, 0.1)
)
def adamw(schedule: Schedule | None = None) -> Optimizer:
    """Makes Adam with decoupled weight decay (Loshchilov & Hutter 2019).

    Reads what `adam` does, and `weight_decay`.

    The decay shrinks the parameters after the noisy gradient, and is neither clipped nor noised; a
    penalty inside the loss is part of every example's gradient and is both.
    """

    def build(hyperparameters: Mapping[str, jax.Array]) -> optax.GradientTransformation:
        learning_rate = _rate(hyperparameters, "adamw", schedule, "weight_decay")
        decay = hyperparameters["weight_decay"]
        return optax.adamw(learning_rate, **_of_adam(hyperparameters), weight_decay=decay)

    return build


@register_optimizer("adam_bc", "beta_1", "beta_2", "variance_floor", learning_rate=(1e-4, 0.1))
def adam_bc(schedule: Schedule | None = None) -> Optimizer:
    """Makes DP-AdamBC, Adam with the noise taken out of its second moment (Tang et al. 2023).

    "DP-AdamBC: Your DP-Adam is actually DP-SGD (unless you apply bias correction)",
    https://arxiv.org/abs/2312.14334, algorithm 1: the noise adds its variance, which is public, to
    every entry of Adam's second moment and drowns it; here it is subtracted, and what is left is at
    least `variance_floor` (gamma' there).

    Reads `learning_rate`; `beta_1`, `beta_2`, `variance_floor` (5e-8) if given. The std of the
    noise on the gradient comes from the run itself (`updated`).
    """

    def build(hyperparameters: Mapping[str, jax.Array]) -> optax.GradientTransformation:
        learning_rate = _rate(hyperparameters, "adam_bc", schedule)
        beta_1, beta_2 = hyperparameters.get("beta_1", 0.9), hyperparameters.get("beta_2", 0.999)
        floor = hyperparameters.get("variance_floor", 5e-8)

        def init(params: optax.Params) -> optax.ScaleByAdamState:
            return optax.scale_by_adam().init(params)

        def update(
            gradient: optax.Updates,
            state: optax.ScaleByAdamState,
            params: optax.Params | None = None,
            *,
            gradient_noise: jax.Array | float,
            **others: Any,
        ) -> tuple[optax.Updates, optax.ScaleByAdamState]:
            count = optax.safe_increment(state.count)
            first = optax.tree.update_moment(gradient, state.mu, beta_1, 1)
            second = optax.tree.update_moment_per_elem_norm(gradient, state.nu, beta_2, 2)
            noise_variance = jnp.square(gradient_noise)

            def moved(one: jax.Array, square: jax.Array) -> jax.Array:
                signal = jnp.maximum(square - noise_variance.astype(square.dtype), floor)
                return one / jnp.sqrt(signal.astype(one.dtype))

            updates = jax.tree.map(
                moved,
                optax.tree.bias_correction(first, beta_1, count),
                optax.tree.bias_correction(second, beta_2, count),
            )
            return updates, optax.ScaleByAdamState(count=count, mu=first, nu=second)

        return optax.chain(
            optax.GradientTransformationExtraArgs(init, update),
            optax.scale_by_learning_rate(learning_rate),
        )

    return build


@register_optimizer(
    "adam_scaled", "beta_1", "beta_2", "adam_epsilon", "damping", "delay", learning_rate=(1e-3, 1.0)
)
def adam_scaled(schedule: Schedule | None = None) -> Optimizer:
    """Makes Adam with scale-then-privatise (Ganesh et al. 2025, https://arxiv.org/abs/2507.01129).

    Gradients are clipped and noised as Adam scales them (`gradient_scales.adaptive_scale`). Reads
    what `adam` does, and `damping` (1) and `delay` (1 step) if given.
    """

    def build(hyperparameters: Mapping[str, jax.Array]) -> optax.GradientTransformation:
        learning_rate = _rate(hyperparameters, "adam_scaled", schedule)
        own = _of_adam(hyperparameters)
        given = (hyperparameters.get(name, 1.0) for name in ("damping", "delay"))
        return optax.chain(adaptive_scale(own["b2"], *given), optax.adam(learning_rate, **own))

    return build


def updated(
    transformation: optax.GradientTransformation,
    gradient: optax.Updates,
    state: optax.OptState,
    params: optax.Params,
    gradient_noise: jax.Array | float,
) -> tuple[optax.Updates, optax.OptState]:
    """Returns one update, and the next state, of any optax transformation by a noisy gradient.

    One that takes optax's extra arguments is given `gradient_noise`, the standard deviation of the
    noise in every entry: noise multiplier times sensitivity over the public lot size.
    """
    extended = optax.with_extra_args_support(transformation)
    return extended.update(gradient, state, params, gradient_noise=gradient_noise)


_OF_A_RUN = ("lot_size", "noise_multiplier", "steps")
"""Hyperparameters that every run has, beside those that the space names."""


def read(
    hyperparameters: Mapping[str, jax.Array], reader: str, *names: str
) -> tuple[jax.Array, ...]:
    """Looks up hyperparameters by name; if one is missing, the refusal names what reads it."""
    missing = [name for name in names if name not in hyperparameters]
    if missing:
        given = [name for name in sorted(hyperparameters) if name not in _OF_A_RUN]
        raise ValueError(
            f"{reader} needs the hyperparameter{'s' * (len(missing) > 1)} {', '.join(missing)}: "
            f"pass {missing[0]}= in the space, which names {', '.join(given) or 'none so far'}"
        )
    return tuple(hyperparameters[name] for name in names)


def names(argument: str, given: object) -> tuple[str, ...]:
    """Returns names of hyperparameters as a tuple; refuses anything else, and a name twice."""
    found = tuple(checks.listed(argument, given, "names, such as ('dropout',)"))
    if len({checks.text(f"each of {argument}", name) for name in found}) < len(found):
        raise ValueError(f"{argument} names one twice: pass each of {found} once")
    return found


def _rate(
    hyperparameters: Mapping[str, jax.Array], reader: str, schedule: Schedule | None, *others: str
) -> jax.Array | Schedule:
    """Returns the learning rate under a schedule; refuses a missing hyperparameter."""
    learning_rate, *_ = read(hyperparameters, reader, "learning_rate", *others)
    return learning_rate if schedule is None else lambda step: learning_rate * schedule(step)


def _of_adam(hyperparameters: Mapping[str, jax.Array]) -> dict[str, Any]:
    """Returns Adam's settings from the hyperparameters, or their defaults."""
    return {
        "b1": hyperparameters.get("beta_1", 0.9),
        "b2": hyperparameters.get("beta_2", 0.999),
        "eps": hyperparameters.get("adam_epsilon", 1e-8),
    }
