"""Gaussian process regression in float64: Matern-5/2, one length scale a dimension, constant mean.

The kernel and the algebra are tinygp's; hyperparameters maximise the marginal likelihood times weak
priors, by L-BFGS-B (SciPy) on gradients of JAX, from several starts.

What is peculiar:

* Float64 holds inside a local context, on the CPU with one thread: see `double_precision`.
* Rows are padded to a few lengths, so that a search compiles a few times and not once an
  evaluation. Padded rows lie so far away that their covariance with everything is exactly 0, their
  own variance is 1 and their residual 0: likelihood and predictions are those without padding.

Source: Rasmussen & Williams, "Gaussian Processes for Machine Learning", 2006, chapters 2, 4 and 5;
the use of them is Avent et al. 2020, section 4.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import linalg
from numpy.typing import ArrayLike
from scipy import optimize

from dpjax.tuning.pareto import extra
from dpjax.tuning.pareto.double_precision import double_precision

if TYPE_CHECKING:
    import tinygp
else:
    # As a whole module before any function is traced: imported inside one, its constants would be
    # traced too.
    tinygp = extra.package("tinygp")

# All below is in standardised outputs (mean 0, variance 1) and unit-cube inputs.
_NOISE_FREE_VARIANCE = 1e-6  # keeps the covariance positive definite: .001 standard deviations
_BOUNDS_LENGTH_SCALE = (0.02, 20.0)
_BOUNDS_SIGNAL_VARIANCE = (1e-2, 1e2)
_BOUNDS_NOISE_VARIANCE = (1e-6, 1.0)
_BOUNDS_MEAN = (-5.0, 5.0)
# Log-normal priors (normal for the mean) as (centre, standard deviation of the logarithm).
_PRIOR_LENGTH_SCALE = (0.5, 1.0)  # times sqrt(dimension), the growth of distances in the cube
_PRIOR_SIGNAL_VARIANCE = (1.0, 1.0)
_PRIOR_NOISE_VARIANCE = (1e-2, 2.0)
_PRIOR_MEAN = (0.0, 1.0)

_SMALLEST_ROWS = 64
_SMALLEST_QUERIES = 256
_FAR_AWAY = 1e4


def _padded_length(number: int, smallest: int) -> int:
    """Returns the length to pad to: powers of two, and from 256 on the midpoints between them."""
    length = smallest
    while length < number:
        if length >= 256 and number <= length + length // 2:
            return length + length // 2
        length *= 2
    return length


def _kernel(parameters: jax.Array, dimension: int) -> tinygp.kernels.Kernel:
    """Matern-5/2 with its variance and length scales."""
    matern = tinygp.kernels.Matern52(distance=tinygp.kernels.distance.L2Distance())
    scaled = tinygp.transforms.Linear(jnp.exp(-parameters[:dimension]), matern)
    return jnp.exp(parameters[dimension]) * scaled


def _process(parameters: jax.Array, inputs: jax.Array, real: jax.Array) -> tinygp.GaussianProcess:
    """tinygp's process at padded inputs.

    Args:
      parameters: (d + 3,) log length scales, log signal variance, log noise variance, mean.
      inputs: (rows, d), padded rows far from everything.
      real: (rows,) bool, False for padding.
    """
    signal, noise = jnp.exp(parameters[-3]), jnp.exp(parameters[-2])
    # A padded row has variance signal + (1 - signal) = 1 and no covariance: an identity block.
    diagonal = jnp.where(real, noise, 1.0 - signal)
    kernel = _kernel(parameters, inputs.shape[1])
    return tinygp.GaussianProcess(kernel, inputs, diag=diagonal, mean=parameters[-1])


def _loss(
    parameters: jax.Array,
    inputs: jax.Array,
    outputs: jax.Array,
    real: jax.Array,
    centre: jax.Array,
    spread: jax.Array,
) -> jax.Array:
    """Negative log posterior density of the parameters, up to constants; all shapes padded."""
    process = _process(parameters, inputs, real)
    likelihood = process.log_probability(jnp.where(real, outputs, parameters[-1]))
    # Each padded row added the density of a standard normal at 0.
    likelihood += 0.5 * jnp.log(2 * jnp.pi) * jnp.sum(~real)
    return -likelihood + 0.5 * jnp.sum(jnp.square((parameters - centre) / spread))


_loss_and_gradient = jax.jit(jax.value_and_grad(_loss))


@jax.jit
def _factorise(
    parameters: jax.Array, inputs: jax.Array, outputs: jax.Array, real: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the Cholesky factor (rows, rows) and inverse covariance times residual (rows,)."""
    factor = _process(parameters, inputs, real).solver.scale_tril
    residual = jnp.where(real, outputs - parameters[-1], 0.0)
    return factor, linalg.cho_solve((factor, True), residual)


@jax.jit
def _predict(
    parameters: jax.Array,
    inputs: jax.Array,
    factor: jax.Array,
    weights: jax.Array,
    queries: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Returns posterior mean and variance (queries,) of the standardised latent function."""
    kernel = _kernel(parameters, inputs.shape[1])
    crossed = kernel(inputs, queries)
    explained = linalg.solve_triangular(factor, crossed, lower=True)
    variance = kernel(queries) - jnp.sum(jnp.square(explained), axis=0)
    return parameters[-1] + weights @ crossed, jnp.maximum(variance, 0.0)


def _padded(
    inputs: np.ndarray, outputs: np.ndarray, smallest: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns padded inputs (rows, d), outputs (rows,) and the mask of real rows (rows,)."""
    number, dimension = inputs.shape
    rows = _padded_length(number, smallest or _SMALLEST_ROWS)
    filler = _FAR_AWAY * (1.0 + np.arange(rows - number))
    filler = np.repeat(filler[:, None], dimension, axis=1)
    real = np.arange(rows) < number
    return np.concatenate([inputs, filler]), np.append(outputs, np.zeros(rows - number)), real


def _checked(
    inputs: ArrayLike, outputs: ArrayLike, dimension: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns finite inputs (n, d) in the unit cube and outputs (n,), float64."""
    inputs = np.array(inputs, dtype=np.float64)
    outputs = np.array(outputs, dtype=np.float64)
    if inputs.ndim != 2 or outputs.shape != inputs.shape[:1] or not outputs.size:
        raise ValueError(
            f"inputs must be (n, d) and outputs (n,) with n >= 1, not {inputs.shape} and "
            f"{outputs.shape}"
        )
    if dimension is not None and inputs.shape[1] != dimension:
        raise ValueError(f"inputs have {inputs.shape[1]} columns, the process has {dimension}")
    if not (np.isfinite(outputs).all() and ((inputs >= 0) & (inputs <= 1)).all()):
        raise ValueError("inputs must lie in the unit cube, outputs must be finite: drop failures")
    return inputs, outputs


@dataclasses.dataclass(frozen=True, eq=False)
class GaussianProcess:
    """A fitted process; make one with `GaussianProcess.fit`.

    Attributes:
      inputs: (n, d) float64 in the unit cube.
      outputs: (n,) float64, in the units given.
      parameters: (d + 3,) log length scales, log signal variance, log noise variance and mean, the
        last three for standardised outputs.
      location: mean of the outputs of the fit.
      scale: standard deviation of the outputs of the fit (1 where they are all equal).
      loss: negative log posterior density of `parameters` at the fit, up to constants.
      factor: (rows, rows) Cholesky factor of the padded covariance.
      weights: (rows,) inverse covariance times residual.
    """

    inputs: np.ndarray
    outputs: np.ndarray
    parameters: np.ndarray
    location: float
    scale: float
    loss: float
    factor: np.ndarray
    weights: np.ndarray

    @classmethod
    def fit(
        cls,
        inputs: ArrayLike,
        outputs: ArrayLike,
        *,
        noise_free: bool,
        generator: np.random.Generator,
        restarts: int = 3,
        start: GaussianProcess | None = None,
    ) -> GaussianProcess:
        """Fits the hyperparameters.

        Args:
          inputs: (n, d) in the unit cube.
          outputs: (n,) finite; they are standardised inside.
          noise_free: True for outputs known exactly (the noise variance is then 1e-6 of theirs);
            False learns one noise variance.
          generator: draws the random starts from the priors.
          restarts: how many starts, >= 1; the first is the centre of the priors.
          start: an earlier fit in the same dimension, whose hyperparameters take the place of the
            centre of the priors as the first start.

        Returns:
          The process with the best posterior density found, conditioned on all rows.

        Raises:
          ValueError: shapes that do not fit, inputs outside the unit cube, outputs not finite.
        """
        inputs, outputs = _checked(inputs, outputs)
        if restarts < 1:
            raise ValueError(f"restarts {restarts}: pass 1 or more")
        dimension = inputs.shape[1]
        if start is not None and start.inputs.shape[1] != dimension:
            raise ValueError(f"start has dimension {start.inputs.shape[1]}, the inputs {dimension}")
        location, scale = float(outputs.mean()), float(outputs.std())
        scale = scale if scale > 1e-12 * max(1.0, abs(location)) else 1.0
        bounds, centre, spread = _priors(dimension, noise_free)
        starts = [centre if start is None else start.parameters]
        starts += [generator.normal(centre, spread) for _ in range(restarts - 1)]
        padded, standardised, real = _padded(inputs, (outputs - location) / scale)

        def objective(parameters: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = _loss_and_gradient(
                parameters, padded, standardised, real, centre, spread
            )
            return float(value), np.asarray(gradient)

        best = None
        with double_precision():
            for first in starts:
                found = optimize.minimize(
                    objective,
                    np.clip(first, bounds[:, 0], bounds[:, 1]),
                    jac=True,
                    method="L-BFGS-B",
                    bounds=bounds,
                    options={"maxiter": 100, "ftol": 1e-7, "gtol": 1e-3},
                )
                if np.isfinite(found.fun) and (best is None or found.fun < best.fun):
                    best = found
        if best is None:
            raise FloatingPointError("no start of the fit has a finite likelihood")
        return cls._conditioned(inputs, outputs, best.x, location, scale, float(best.fun))

    @classmethod
    def _conditioned(
        cls,
        inputs: np.ndarray,
        outputs: np.ndarray,
        parameters: np.ndarray,
        location: float,
        scale: float,
        loss: float,
    ) -> GaussianProcess:
        """The process of given hyperparameters, conditioned on rows."""
        padded, standardised, real = _padded(inputs, (outputs - location) / scale)
        with double_precision():
            factor, weights = _factorise(parameters, padded, standardised, real)
            factor, weights = np.asarray(factor), np.asarray(weights)
        return cls(inputs, outputs, parameters, location, scale, loss, factor, weights)

    def condition(self, inputs: ArrayLike, outputs: ArrayLike) -> GaussianProcess:
        """Adds observations without touching the hyperparameters.

        With outputs at the predicted mean this is the Kriging believer of Ginsbourger, Le Riche &
        Carraro 2010: the mean stays where it is, the variance shrinks around the new inputs as it
        will when the true outputs, of the same noise, arrive.

        Args:
          inputs: (m, d) in the unit cube.
          outputs: (m,) finite, in the units of the fit.
        """
        inputs, outputs = _checked(inputs, outputs, self.inputs.shape[1])
        return self._conditioned(
            np.concatenate([self.inputs, inputs]), np.append(self.outputs, outputs),
            self.parameters, self.location, self.scale, self.loss,
        )  # fmt: skip

    def predict(self, inputs: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Posterior of the latent function; add `noise_variance` to predict an observation.

        Args:
          inputs: (m, d) in the unit cube.

        Returns:
          Mean (m,) and variance (m,) >= 0, float64, in the units of the outputs (squared).
        """
        inputs = np.asarray(inputs, dtype=np.float64)
        inputs, _ = _checked(inputs, np.zeros(inputs.shape[:1]), self.inputs.shape[1])
        queries, _, _ = _padded(inputs, np.zeros(len(inputs)), _SMALLEST_QUERIES)
        padded, _, _ = _padded(self.inputs, self.outputs)
        with double_precision():
            mean, variance = _predict(self.parameters, padded, self.factor, self.weights, queries)
            mean, variance = np.asarray(mean)[: len(inputs)], np.asarray(variance)[: len(inputs)]
        return self.location + self.scale * mean, self.scale**2 * variance

    @property
    def length_scales(self) -> np.ndarray:
        """(d,) length scales, in units of the cube's edges."""
        return np.exp(self.parameters[:-3])

    @property
    def signal_variance(self) -> float:
        """Prior variance of the latent function, in squared units of the outputs."""
        return float(self.scale**2 * np.exp(self.parameters[-3]))

    @property
    def noise_variance(self) -> float:
        """Variance of an observation about the latent function, in squared units of the outputs."""
        return float(self.scale**2 * np.exp(self.parameters[-2]))

    @property
    def constant_mean(self) -> float:
        """Prior mean of the latent function, in units of the outputs."""
        return float(self.location + self.scale * self.parameters[-1])


def _priors(dimension: int, noise_free: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns bounds (d + 3, 2), and centres and spreads (d + 3,) of the normal priors."""
    ranges = [*[_BOUNDS_LENGTH_SCALE] * dimension, _BOUNDS_SIGNAL_VARIANCE, _BOUNDS_NOISE_VARIANCE]
    bounds = np.append(np.log(ranges), [_BOUNDS_MEAN], axis=0)
    length = (_PRIOR_LENGTH_SCALE[0] * np.sqrt(dimension), _PRIOR_LENGTH_SCALE[1])
    priors = [*[length] * dimension, _PRIOR_SIGNAL_VARIANCE, _PRIOR_NOISE_VARIANCE]
    centre = np.append(np.log([middle for middle, _ in priors]), _PRIOR_MEAN[0])
    spread = np.append([deviation for _, deviation in priors], _PRIOR_MEAN[1])
    if noise_free:
        bounds[-2] = centre[-2] = np.log(_NOISE_FREE_VARIANCE)
    return bounds, centre, spread
