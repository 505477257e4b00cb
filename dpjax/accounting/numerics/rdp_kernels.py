"""The three vectorised sums behind `rdp_grid`, as pure JAX functions in float64.

Every function here returns the *cumulant* `log A(order) = (order - 1) * RDP(order)` of one step.
All of them write `A - 1` as a sum (or integral) of non-negative terms and take `log1p` of it, so no
digits are lost where the divergence is tiny.

The caller is `rdp_grid`, which enters a local `jax.enable_x64` context first; nothing in this file
touches the global flag. The module imports JAX, so `rdp_grid` imports it lazily.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

# Quadrature of the even moments: the integrand is log-concave on either side of its zero with
# curvature at most -1, so beyond 9.6 from a peak it is below exp(-46) of the peak.
_MOMENT_HALF_WIDTH = 9.6
_MOMENT_STEP = 0.4
_MOMENT_NODES = 48
_BISECTIONS = 24
# Below this |order * x| the direct form of (1+x)^order - 1 - order x cancels: use its series.
_SERIES_BELOW = 0.02
_SERIES_TERMS = 9
# Above exp(40) the power is scaled before it is exponentiated.
_LARGE_POWER = 40.0


@functools.partial(jax.jit)
def poisson_integer(
    sampling_probability: jax.Array,
    noise_multiplier: jax.Array,
    orders: jax.Array,
    log_binomials: jax.Array,
) -> jax.Array:
    """Cumulants of the Poisson-subsampled Gaussian at integer orders.

    `A - 1 = sum_{k=2}^{order} P[Bin(order, q) = k] (exp(k (k-1) / (2 z^2)) - 1)`
    (Mironov, Talwar & Zhang 2019, section 3.3, with the 1 taken out of every term).

    Args:
      sampling_probability: (settings,) in (0, 1).
      noise_multiplier: (settings,) above 0.
      orders: (orders,) integers at least 2, as floats.
      log_binomials: (orders, terms) `log C(order, k)` for k = 2, 3, ...; -inf where k > order.

    Returns:
      (settings, orders) cumulants.
    """
    draws = 2.0 + jnp.arange(log_binomials.shape[1])
    inverse_variance = 1.0 / jnp.square(noise_multiplier)[:, None]
    exponent = 0.5 * draws * (draws - 1.0)
    exponent = exponent[None, :] * inverse_variance
    logit = jnp.log(sampling_probability) - jnp.log1p(-sampling_probability)
    per_draw = logit[:, None] * draws[None, :] + exponent + jnp.log(-jnp.expm1(-exponent))
    terms = log_binomials[None, :, :] + per_draw[:, None, :]
    none_drawn = orders[None, :] * jnp.log1p(-sampling_probability)[:, None]
    return jax.nn.softplus(none_drawn + jax.nn.logsumexp(terms, axis=-1))


@functools.partial(jax.jit, static_argnames="nodes")
def poisson_fractional(
    sampling_probability: jax.Array,
    noise_multiplier: jax.Array,
    orders: jax.Array,
    left: jax.Array,
    step: jax.Array,
    nodes: int,
) -> jax.Array:
    """Cumulants of the Poisson-subsampled Gaussian at any order above 1.

    `A - 1 = E_t[(1 + x)^order - 1 - order x]`, `t ~ N(0, 1)`, `x = q (exp(t/z - 1/(2 z^2)) - 1)`
    (which has mean 0): a non-negative analytic integrand, by the trapezoidal rule, whose error
    falls exponentially in 1/step.

    Args:
      sampling_probability: (settings,) in (0, 1).
      noise_multiplier: (settings,) above 0.
      orders: (orders,) above 1.
      left: () first node.
      step: (settings,) distance of the nodes, in standard deviations.
      nodes: number of nodes; they must cover [left, max(order)/z - left].

    Returns:
      (settings, orders) cumulants.
    """
    position = left + jnp.arange(nodes, dtype=step.dtype)[None, :] * step[:, None]
    scale = 1.0 / noise_multiplier[:, None]
    log_ratio = scale * position - 0.5 * jnp.square(scale)
    probability = sampling_probability[:, None]
    excess = probability * jnp.expm1(jnp.minimum(log_ratio, 500.0))
    log_mixture = jnp.where(
        log_ratio < 30.0,
        jnp.log1p(excess),
        jnp.logaddexp(jnp.log(probability) + log_ratio, jnp.log1p(-probability)),
    )
    excess = jnp.minimum(excess, 1e200)[:, None, :]
    order = orders[None, :, None]
    power = order * log_mixture[:, None, :]
    linear = order * excess
    log_density = -0.5 * jnp.square(position) - 0.5 * jnp.log(2.0 * jnp.pi)
    shift = jnp.maximum(0.0, jnp.max(power + log_density[:, None, :], axis=-1, keepdims=True))
    density = jnp.exp(log_density)[:, None, :] * jnp.exp(-shift)
    series = jnp.zeros_like(linear)
    for term in range(_SERIES_TERMS + 1, 2, -1):
        series = (1.0 + series) * ((order - (term - 1.0)) / term) * excess
    series = (0.5 * order * (order - 1.0)) * jnp.square(excess) * (1.0 + series)
    moderate = jnp.expm1(jnp.minimum(power, _LARGE_POWER)) - linear
    small = jnp.where(jnp.abs(linear) < _SERIES_BELOW, series, moderate) * density
    large = jnp.exp(power + log_density[:, None, :] - shift) - (1.0 + linear) * density
    total = jnp.sum(jnp.where(power > _LARGE_POWER, large, small), axis=-1)
    return jax.nn.softplus(jnp.log(total * step[:, None]) + shift[:, :, 0])


@functools.partial(jax.jit, static_argnames="largest")
def log_even_moments(noise_multiplier: jax.Array, largest: int) -> jax.Array:
    """Logarithms of `E[(r - 1)^n]`, n = 2, 4, ..., r the density ratio of N(1, z^2) to N(0, z^2).

    By quadrature on one lattice that straddles the zero of `r - 1`; the alternating sum of Gaussian
    moments that defines the same number loses all its digits for large z.

    Args:
      noise_multiplier: (noises,) above 0.
      largest: even, at least 2.

    Returns:
      (noises, largest / 2).
    """
    exponent = jnp.arange(2, largest + 1, 2, dtype=noise_multiplier.dtype)[None, :]
    scale = 1.0 / noise_multiplier[:, None]
    zero = 0.5 * scale
    root = jnp.sqrt(exponent)

    def bisect(function, lower, upper):
        def halve(_, bounds):
            lower, upper = bounds
            middle = 0.5 * (lower + upper)
            is_below = function(middle) < 0.0
            return jnp.where(is_below, middle, lower), jnp.where(is_below, upper, middle)

        return jax.lax.fori_loop(0, _BISECTIONS, halve, (lower, upper))[1]

    def right_slope(position):
        return position * -jnp.expm1(-scale * (position - zero)) - exponent * scale

    def left_slope(position):  # negated position so that the function increases in its argument
        return position * jnp.expm1(scale * (position + zero)) - exponent * scale

    shape = jnp.broadcast_shapes(scale.shape, exponent.shape)
    right_peak = bisect(right_slope, jnp.broadcast_to(zero, shape), exponent * scale + root + zero)
    left_peak = -bisect(left_slope, jnp.zeros(shape), jnp.broadcast_to(root, shape))

    def log_integrand(distance, exponent, scale, zero, sign):
        # log|exp(+-u) - 1| = log(1 - exp(-u)), plus u to the right of the zero
        gain = jnp.log(-jnp.expm1(-scale * distance)) + max(sign, 0.0) * scale * distance
        return exponent * gain - 0.5 * jnp.square(zero + sign * distance)

    def side(distance_of_peak, sign):
        height = log_integrand(distance_of_peak, exponent, scale, zero, sign)
        first = jnp.floor((distance_of_peak - _MOMENT_HALF_WIDTH) / _MOMENT_STEP)
        index = jnp.maximum(first, 0.0)[:, :, None] + jnp.arange(_MOMENT_NODES)[None, None, :]
        values = log_integrand(
            (index + 0.5) * _MOMENT_STEP,
            exponent[:, :, None],
            scale[:, :, None],
            zero[:, :, None],
            sign,
        )
        return height + jnp.log(jnp.sum(jnp.exp(values - height[:, :, None]), axis=-1))

    constant = jnp.log(_MOMENT_STEP) - 0.5 * jnp.log(2.0 * jnp.pi)
    return jnp.logaddexp(side(right_peak - zero, 1.0), side(zero - left_peak, -1.0)) + constant


@functools.partial(jax.jit, static_argnames=("terms", "with_moments"))
def without_replacement_terms(
    noise_multiplier: jax.Array, terms: int, with_moments: bool
) -> jax.Array:
    """The factors of Wang, Balle & Kasiviswanathan 2019, Theorem 27, that depend on the noise only.

    Args:
      noise_multiplier: (noises,) above 0.
      terms: how many factors, for j = 2, 3, ..., terms + 1.
      with_moments: take the smaller of both of the theorem's bounds; False leaves the second only.

    Returns:
      (noises, terms) logarithms.
    """
    draws = 2.0 + jnp.arange(terms)
    inverse_variance = 1.0 / jnp.square(noise_multiplier)[:, None]
    exponent = (0.5 * draws * (draws - 1.0))[None, :] * inverse_variance
    factors = jnp.log(2.0) + exponent
    if with_moments:
        moments = log_even_moments(noise_multiplier, 2 * ((terms + 2) // 2))
        lower = moments[:, jnp.arange(2, terms + 2) // 2 - 1]
        upper = moments[:, (jnp.arange(2, terms + 2) + 1) // 2 - 1]
        factors = jnp.minimum(factors, jnp.log(4.0) + 0.5 * (lower + upper))
    second = exponent[:, :1] + jnp.minimum(
        jnp.log(4.0) + jnp.log(-jnp.expm1(-exponent[:, :1])), jnp.log(2.0)
    )
    return jnp.concatenate([second, factors[:, 1:]], axis=1)


@jax.jit
def without_replacement(
    sampling_probability: jax.Array, factors: jax.Array, log_binomials: jax.Array
) -> jax.Array:
    """Upper bounds on the cumulants of the Gaussian on lots drawn without replacement.

    Args:
      sampling_probability: (settings,) lot size over data set size, in (0, 1).
      factors: (settings, terms) from `without_replacement_terms`.
      log_binomials: (orders, terms) `log C(order, j)` for j = 2, 3, ...; -inf where j > order.

    Returns:
      (settings, orders).
    """
    draws = 2.0 + jnp.arange(factors.shape[1])
    per_draw = jnp.log(sampling_probability)[:, None] * draws[None, :] + factors
    terms = log_binomials[None, :, :] + per_draw[:, None, :]
    return jax.nn.softplus(jax.nn.logsumexp(terms, axis=-1))
