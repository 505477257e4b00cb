"""Stages of one run: noise, clip norm and lot size that change at steps fixed beforehand.

`Stages.of_run` alone says which steps a stage has, and with which lots and noise. The training
(`dp_sgd.advance`) and the price (`tuning.problem.RunShape.price`) both read it.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import checks
from dpjax.training.lots import FixedLots, LotFamily, Lots, PoissonLots

FACTORS = ("noise", "clip_norm", "lot_size")
LARGEST_FACTOR = 1e3

Numbers = Mapping[str, Any]
"""What `Stages.numbers` returns; arrays of the host, or traced."""


class Stage(NamedTuple):
    """What the price of one stage depends on; `noise` is a factor on the noise multiplier."""

    steps: int
    lots: Lots
    noise: float


@dataclasses.dataclass(frozen=True)
class Stages:
    """Divides a run into stages, each with factors on its noise, clip norm and lot size.

    Formal guarantees:
      Stage i takes the steps, lots and noise of `of_run(lots, steps)[i]`. So the noisy sums of a
      run cost the composition of its stages, `accounting.dp_sgd` of each: the stages are public and
      fixed before the first step. The factor on the clip norm scales gradients' bound and the
      noise's standard deviation alike, and costs nothing.
      In floating point: factors are rounded to float32 and multiplied there. `NOISE_ALLOWANCE` has
      room for these two roundings.

    Example:
      >>> from dpjax import training
      >>> stages = training.Stages(shares=(0.75, 0.25), noise=(1.1, 0.8))
      >>> [(stage.steps, stage.noise) for stage in stages.of_run(steps=101)]
      [(76, 1.1), (25, 0.8)]

    Attributes:
      shares: of a run's steps, one a stage; they sum to 1. Steps are rounded, and add up.
      noise: factors on the noise multiplier, one a stage; all 1 if unset.
      clip_norm: factors on the clip norm, one a stage; all 1 if unset. Updates are not rescaled.
      lot_size: factors on the expected lot size, one a stage, for Poisson lots; all 1 if unset.
    """

    shares: tuple[float, ...] = dataclasses.field(metadata={"flag": "stage_shares"})
    noise: tuple[float, ...] = dataclasses.field(default=(), metadata={"flag": "stage_noise"})
    clip_norm: tuple[float, ...] = dataclasses.field(
        default=(), metadata={"flag": "stage_clip_norm"}
    )
    lot_size: tuple[float, ...] = dataclasses.field(default=(), metadata={"flag": "stage_lot_size"})

    def __post_init__(self) -> None:
        shares = _positive("shares", self.shares)
        if not shares or abs(math.fsum(shares) - 1.0) > 1e-6:
            words = ": pass one number a stage, which sum to 1, such as (0.75, 0.25)"
            raise checks.Refused(("shares", shares), words)
        object.__setattr__(self, "shares", shares)
        for name in FACTORS:
            given = _positive(name, getattr(self, name)) or (1.0,) * len(shares)
            if len(given) != len(shares):
                raise checks.Refused(
                    (name, given), f": pass {len(shares)} factors, one a stage of ", ("shares",)
                )
            if not 1 / LARGEST_FACTOR <= min(given) <= max(given) <= LARGEST_FACTOR:
                words = f": pass factors from {1 / LARGEST_FACTOR:g} to {LARGEST_FACTOR:g}"
                raise checks.Refused((name, given), words)
            object.__setattr__(self, name, given)

    def describe(self) -> dict[str, list[float]]:
        """Returns the stages as a release states them."""
        return {name: list(getattr(self, name)) for name in ("shares", *FACTORS)}

    def ends(self, steps: int) -> tuple[int, ...]:
        """Returns the number of steps at the end of each stage; refuses a stage without a step."""
        steps = checks.whole("steps", steps)
        reached = itertools.accumulate(self.shares[:-1])
        ends = (*(math.floor(share * steps + 0.5) for share in reached), steps)
        if not all(begin < end for begin, end in itertools.pairwise((0, *ends))):
            words = " leave a stage without a step: pass larger "
            raise checks.Refused(("steps", steps), words, ("shares",), ", or more steps")
        return ends

    def of_run(self, steps: int, lots: Lots | None = None) -> list[Stage]:
        """Returns steps, lots and noise factor of every stage of a run with these lots.

        Lots of all stages have one capacity, which must serve the largest of them.
        """
        begins = (0, *self.ends(steps))
        return [
            Stage(end - begin, _scaled(lots, factor), noise)
            for begin, end, factor, noise in zip(begins, begins[1:], self.lot_size, self.noise)
        ]

    def mean_lot_size(self, steps: int) -> float:
        """Returns the factor on the expected lot size, on average over a run's steps."""
        own = zip(self.of_run(steps), self.lot_size, strict=True)
        return math.fsum(stage.steps * factor for stage, factor in own) / steps

    def check_lots(self, lots: Lots) -> None:
        """Refuses lots under which these stages have no proven cost."""
        if not isinstance(lots, PoissonLots | FixedLots):
            raise checks.Refused(
                ("stages",),
                " have no proven cost with correlated noise: drop them, or ",
                ("bands",),
            )
        if isinstance(lots, FixedLots) and set(self.lot_size) != {1.0}:
            raise checks.Refused(
                ("stages",), " have lots of several sizes, which only Poisson lots have: drop ",
                ("lot_size", self.lot_size),
            )  # fmt: skip
        for factor in self.lot_size:
            _scaled(lots, factor)  # Refuses probabilities above 1.

    def numbers(self, steps: int, number: int | None = None) -> Numbers:
        """Returns what `at` reads, padded to so many stages; float32 (stages,) by factor.

        `begins`, uint32 (stages - 1,), has the first step of each stage but the first.
        """
        padding = (number or len(self.shares)) - len(self.shares)
        ends = (*self.ends(steps), *[steps] * padding)
        return {"begins": np.array(ends[:-1], np.uint32)} | {
            name: np.array(own + own[-1:] * padding, np.float32)
            for name, own in ((name, getattr(self, name)) for name in FACTORS)
        }

    def lot_numbers(
        self, family: LotFamily, steps: int, lots: Lots, number: int | None = None
    ) -> dict[str, Any]:
        """Returns the numbers that lots of every stage are drawn by, arrays (stages, ...)."""
        own = [family.numbers_of(stage.lots) for stage in self.of_run(steps, lots)]
        own += own[-1:] * ((number or len(own)) - len(own))
        return jax.tree.map(lambda *leaves: np.stack(leaves), *own)


def at(numbers: Numbers, step: jax.Array, tree: Any) -> Any:
    """Returns the entries (...) of a tree of arrays (stages, ...) at a step of this number."""
    stage = jnp.sum(step >= jnp.asarray(numbers["begins"]), dtype=jnp.int32)
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[stage], tree)


def lots_of_steps(
    family: LotFamily,
    key: jax.Array,
    numbers: Numbers,
    of_lots: Mapping[str, Any],
    number_of_records: int | jax.Array,
) -> Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    """Returns draw(key of a step, its number) -> its lot, from what `lot_numbers` returned."""
    if family.cycle > 1:  # Such runs have one stage.
        first = jax.tree.map(lambda leaf: leaf[0], of_lots)
        return family.lots_of_steps(key, first, number_of_records)
    return lambda lot_key, step: family.draw(lot_key, at(numbers, step, of_lots), number_of_records)


def _positive(name: str, values: Sequence[float]) -> tuple[float, ...]:
    """Returns positive numbers as a tuple."""
    listed = checks.listed(name, values, "numbers, one a stage")
    return tuple(checks.positive(f"each of {name}", one) for one in listed)


def _scaled(lots: Any, factor: float) -> Any:
    """Returns lots of so many times the size, of the same capacity."""
    if lots is None or factor == 1.0:
        return lots
    chance = lots.sampling_probability * factor
    return dataclasses.replace(lots, sampling_probability=chance)


ONE_STAGE = Stages((1.0,))
"""A run without stages, where others beside it have some."""
