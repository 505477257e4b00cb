"""Stages of one run: noise, clip norm and lot size that change at steps fixed beforehand.

`Stages.ends` alone says which steps a stage has: the training (`numbers`, read by `dp_sgd.advance`)
and the price (`of_run`, read by `RunShape.price` of tuning) both come from it.
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
from dpjax.training.lots import CyclicPoissonLots, FixedLots, LotFamily, Lots, NumberedLots

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
      Stage i takes the steps, lots and noise of `of_run(steps, lots)[i]`. So the noisy sums of a
      run cost the composition of its stages, `accounting.dp_sgd` of each: the stages are public and
      fixed before the first step. The factor on the clip norm scales gradients' bound and the
      noise's standard deviation alike, and costs nothing.
      In floating point: factors are rounded to float32 and multiplied there. `NOISE_ALLOWANCE` has
      room for these two roundings.

    Example:
      >>> from dpjax import training
      >>> stages = training.Stages(shares=(0.75, 0.25), noise=(1.1, 0.8))
      >>> lots = training.PoissonLots(1000, 0.05, 100)
      >>> [(stage.steps, stage.noise) for stage in stages.of_run(101, lots)]
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

    def of_run(self, steps: int, lots: Lots) -> list[Stage]:
        """Returns what each stage of a run costs; refuses lots under which no cost is proven.

        `lots` are those of factor 1, of a capacity that serves the largest of the stages.
        """
        if isinstance(lots, CyclicPoissonLots) and self != ONE_STAGE:
            words = " have no proven cost with correlated noise: drop them, or "
            raise checks.Refused(("stages",), words, ("bands",))
        if isinstance(lots, NumberedLots) and self != ONE_STAGE:
            words = (
                f" have no proven cost with {type(lots).__name__}: drop them, or pass PoissonLots"
            )
            raise checks.Refused(("stages",), words)
        sizes = "lot_size", self.lot_size
        if isinstance(lots, FixedLots) and set(self.lot_size) != {1.0}:
            raise checks.Refused("fixed lots are of one size: pass poisson lots, or drop ", sizes)
        begins, own, found = (0, *self.ends(steps)), lots, []
        for begin, end, factor, noise in zip(begins, begins[1:], self.lot_size, self.noise):
            if not isinstance(lots, FixedLots | NumberedLots):
                chance = lots.sampling_probability * factor
                if chance > 1.0:
                    most = f": pass factors of at most {1.0 / lots.sampling_probability:g}"
                    raise checks.Refused(sizes, f"{most}, as a lot is part of the records")
                own = dataclasses.replace(lots, sampling_probability=chance)
            found.append(Stage(end - begin, own, noise))
        return found

    def numbers(
        self, steps: int, lots: Lots, family: LotFamily | None = None, number: int = 0
    ) -> Numbers:
        """Returns what `at` reads, arrays (stages, ...) by name, padded to so many stages.

        Factors, float32 (stages,); `lots`, by which the family, if given, draws those of every
        stage; and `begins`, uint32 (stages - 1,), the first step of each stage but the first.
        """
        padding = max(0, number - len(self.shares))
        ends = (*self.ends(steps), *[steps] * padding)
        found: dict[str, Any] = {"begins": np.array(ends[:-1], np.uint32)}
        for name in FACTORS:
            own = getattr(self, name)
            found[name] = np.array(own + own[-1:] * padding, np.float32)
        if family is not None:
            draws = [family.numbers_of(stage.lots) for stage in self.of_run(steps, lots)]
            draws += draws[-1:] * padding
            found["lots"] = jax.tree.map(lambda *leaves: np.stack(leaves), *draws)
        return found


def at(numbers: Numbers, step: jax.Array, *names: str) -> list[Any]:
    """Returns the entries (...) of arrays (stages, ...) of these names at a step of this number."""
    stage = jnp.sum(step >= jnp.asarray(numbers["begins"]), dtype=jnp.int32)
    return [jax.tree.map(lambda leaf: jnp.asarray(leaf)[stage], numbers[name]) for name in names]


def lots_of_steps(
    family: LotFamily, key: jax.Array, numbers: Numbers, number_of_records: int | jax.Array
) -> Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    """Returns draw(key of a step, its number) -> its lot, of the run with this root key."""
    if family.cycle > 1 or isinstance(family.lots, NumberedLots):  # Such runs have one stage.
        first = jax.tree.map(lambda leaf: leaf[0], numbers["lots"])
        return family.lots_of_steps(key, first, number_of_records)

    def draw(lot_key: jax.Array, step: jax.Array) -> tuple[jax.Array, jax.Array]:
        (own,) = at(numbers, step, "lots")
        return family.draw(lot_key, own, number_of_records)

    return draw


def _positive(name: str, values: Sequence[float]) -> tuple[float, ...]:
    """Returns positive numbers as a tuple."""
    listed = checks.listed(name, values, "numbers, one a stage")
    return tuple(checks.positive(f"each of {name}", one) for one in listed)


ONE_STAGE = Stages((1.0,))
"""A run without stages, where others beside it have some."""
