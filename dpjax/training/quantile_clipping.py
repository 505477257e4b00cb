"""An adaptive clip norm: the private quantile of the gradients' norms.

Galen Andrew, Om Thakkar, H. Brendan McMahan, Swaroop Ramaswamy, "Differentially private learning
with adaptive clipping", NeurIPS 2021, https://arxiv.org/abs/1905.03871.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from dpjax import checks
from dpjax.neighbouring import ADD_OR_REMOVE_ONE
from dpjax.randomness.noise import LEAST_DEVIATION, add_gaussian_noise
from dpjax.training.clipping.clip_rules import ClipRule, Measure, register_clip_rule

_SMALLEST, _LARGEST = 2.0**-60, 2.0**60
"""Clip norms stay where float32 holds their squares."""


@register_clip_rule("quantile")
@dataclasses.dataclass(frozen=True)
class QuantileClipping(ClipRule):
    """The clip norm follows a quantile of the norms, by a noisy count of records below it.

    The hyperparameter `clip_norm` is where it begins. After a step with clip norm C, of whose lot a
    fraction b was not clipped, it is C exp(-rate (b - quantile)) (Andrew et al., section 2); b is
    known with noise only.

    Formal guarantees:
      A run is accounted for as if each step released one Gaussian mechanism of noise multiplier z,
      `noise_multiplier`, and so it does: the clipped sum and the count are ONE such mechanism.

      1. What is released. Let record i of the lot have clipped gradient g_i, |g_i| <= C, and
         b_i = 1 if its norm is at most C, else 0. A step releases S + N(0, s^2 I) and
         B + N(0, t^2), independent, where S = sum of g_i and B = sum of (b_i - 1/2) over the
         records of the lot. Divided by s and t, the pair (S / s, B / t) has noise N(0, I): it is a
         Gaussian mechanism on one joint vector, whose noise multiplier is 1 over the sensitivity of
         that vector. C was computed from earlier releases alone, so that the steps compose
         adaptively, whatever it is.
      2. Add or remove one. The record moves the vector by (g_i / s, (b_i - 1/2) / t), of squared
         length at most (C / s)^2 + (1 / (2 t))^2: centred at 1/2 the count's sensitivity is 1/2,
         where that of a plain count is 1. A row that is not in the lot, or whose gradient is not
         finite, adds 0 to both, which is no more.
      3. Replace one. The vector moves by ((g - g') / s, (b - b') / t): at most
         (2 C / s)^2 + (1 / t)^2; the centre cancels. (By itself a record adds at most half of
         that, as it does to a clipped sum.)
      4. So with D = 1/2 for add or remove one, 1 for replace one, and noise multipliers
         z_g = s / sensitivity of the sum (C or 2 C) and z_b = t / D, in both relations
             1 / z^2 = 1 / z_g^2 + 1 / z_b^2.
         The count takes z_b = `count_noise_ratio` z, hence the sum gets
             z_g = z / sqrt(1 - 1 / count_noise_ratio^2):
         its noise is raised (by 0.5% for a ratio of 10) so that the total is the z that was
         accounted for. Accounting, calibration and tuners see z alone, and stay right. (Andrew et
         al., theorem 1, is this with t = sigma_b and D = 1/2.)
      5. Subsampling. A lot is drawn once; sum and count are of the same lot, one mechanism on it,
         so that the amplification of a step is that of its one Gaussian mechanism.
      6. The clip norm is post-processing of noisy counts: it may be seen.
      In floating point: a count is a sum of halves, exact for lots (or micro-batches) of fewer than
      2^23 records, and its noise is added by `add_gaussian_noise`, on the grid that it describes,
      from a stream of its own ("count"). The factor on z is rounded up.

    The count is divided by the public expected lot size, never by the lot's own.

    Example:
      >>> from dpjax import training
      >>> training.QuantileClipping(quantile=0.7).quantile
      0.7

    Attributes:
      quantile: share of records that are to stay unclipped.
      rate: of the geometric update.
      count_noise_ratio: noise multiplier of the count over the whole step's, above 1; larger: less
        noise on the sum, more on the clip norm. The standard deviation of the noisy fraction is
        ratio * noise_multiplier / (2 * lot size); twice that under replace one.
    """

    quantile: float = dataclasses.field(default=0.5, metadata={"flag": "clip_quantile"})
    rate: float = dataclasses.field(default=0.2, metadata={"flag": "clip_rate"})
    count_noise_ratio: float = dataclasses.field(
        default=10.0, metadata={"flag": "clip_count_noise_ratio"}
    )

    def __post_init__(self) -> None:
        checks.probability("quantile", self.quantile, zero=True, one=True)
        checks.positive("rate", self.rate)
        if not checks.positive("count_noise_ratio", self.count_noise_ratio) > 1.0:
            raise ValueError(
                f"count_noise_ratio must be above 1, not {self.count_noise_ratio}: the count's "
                "noise is part of the whole's, pass 10 for 0.5% more noise on the sum"
            )

    def noise_factor(self) -> float:
        """See `ClipRule`: z_g / z, rounded up."""
        factor = 1.0 / math.sqrt(1.0 - self.count_noise_ratio**-2.0)
        return float(np.nextafter(np.float32(factor), np.float32(np.inf)))

    def begin(self, clip_norm: jax.Array) -> jax.Array:
        """See `ClipRule`: the clip norm of the first step."""
        return jnp.asarray(clip_norm, jnp.float32)

    def clip_norm(self, clip_norm: jax.Array, state: jax.Array) -> jax.Array:
        """See `ClipRule`."""
        return state

    def measure(self, clip_norm: jax.Array) -> Measure:
        """See `ClipRule`: B of the formal guarantees."""

        def centred_count(norms: jax.Array, mask: jax.Array) -> jax.Array:
            half = jnp.where(norms <= clip_norm, np.float32(0.5), np.float32(-0.5))
            return jnp.sum(jnp.where(mask & jnp.isfinite(norms), half, np.float32(0.0)))

        return centred_count

    def after_step(
        self,
        state: jax.Array,
        measured: tuple[jax.Array, jax.Array | None] | None,
        key: jax.Array,
        *,
        noise_multiplier: jax.Array,
        relation: str,
        expected_lot_size: float | jax.Array,
    ) -> jax.Array:
        """See `ClipRule`: the clip norm of the next step."""
        assert measured is not None  # It was asked for.
        count, lost = measured
        deviation = jnp.where(
            noise_multiplier == 0.0,
            0.0,
            jnp.maximum(
                noise_multiplier * self.count_noise_ratio * self.count_sensitivity(relation),
                LEAST_DEVIATION,
            ),
        )
        noisy = add_gaussian_noise(key, count, deviation, lost)
        fraction = 0.5 + noisy / jnp.asarray(expected_lot_size, jnp.float32)
        following = state * jnp.exp(-self.rate * (fraction - self.quantile))
        return jnp.clip(following, _SMALLEST, _LARGEST)

    @staticmethod
    def count_sensitivity(relation: str) -> float:
        """By how much one record moves the centred count: D of the formal guarantees."""
        return 0.5 if relation == ADD_OR_REMOVE_ONE else 1.0
