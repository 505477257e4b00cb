"""Gaussian processes in float64: Matern-5/2, one length scale per dimension, constant mean.

Hyperparameters maximise the marginal likelihood times weak priors, by L-BFGS-B (SciPy) on the exact
gradient, from several starts. The algebra is LAPACK's, by SciPy: for the few hundred rows of a
search it takes milliseconds, with one BLAS thread (the waiting threads of a parallel BLAS cost a
hundredfold at these sizes on a shared machine).

Source: Rasmussen & Williams, "Gaussian Processes for Machine Learning", 2006, chapters 2, 4 and 5
(likelihood: equation 2.30; its gradient: 5.9); they are used as in Avent et al. 2020, section 4.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from typing import Any

import numpy as np
import scipy  # Its linalg, optimize and spatial are loaded where they are first used.
from numpy.typing import ArrayLike

# All below is in standardised outputs (mean 0, variance 1) and unit-cube inputs.
_NOISE_FREE_VARIANCE = 1e-6  # a std of 0.001, to keep the covariance positive definite
_BOUNDS_LENGTH_SCALE = (0.02, 20.0)
_BOUNDS_SIGNAL_VARIANCE = (1e-2, 1e2)
_BOUNDS_NOISE_VARIANCE = (1e-6, 1.0)
_BOUNDS_MEAN = (-5.0, 5.0)
# Log-normal priors (normal for the mean) as (centre, standard deviation of the logarithm).
_PRIOR_LENGTH_SCALE = (0.5, 1.0)  # times sqrt(dimension), the growth of distances in the cube
_PRIOR_SIGNAL_VARIANCE = (1.0, 1.0)
_PRIOR_NOISE_VARIANCE = (1e-2, 2.0)
_PRIOR_MEAN = (0.0, 1.0)

_LOG_2_PI = float(np.log(2.0 * np.pi))
_REFUSED = 1e10
"""The loss where the covariance is not positive definite in float64."""


@functools.cache
def _blas() -> Any:
    """Returns the loaded BLAS libraries; finding them takes milliseconds."""
    import threadpoolctl  # Here: importing the package needs none of it.

    return threadpoolctl.ThreadpoolController()


def _one_thread() -> contextlib.AbstractContextManager:
    """Limits BLAS to one thread while the block runs."""
    return _blas().limit(limits=1, user_api="blas")


def _covariance(parameters: np.ndarray, inputs: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Returns the latent function's prior covariance (n, m) at inputs (n, d) and queries (m, d)."""
    shrink = np.exp(-parameters[:-3])
    scaled = np.sqrt(5.0) * scipy.spatial.distance.cdist(inputs * shrink, queries * shrink)
    return np.exp(parameters[-3] - scaled) * (1.0 + scaled * (1.0 + scaled / 3.0))


def _factor(parameters: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """Returns the lower Cholesky factor (n, n) of the covariance of the observations."""
    covariance = _covariance(parameters, inputs, inputs)
    covariance[np.diag_indices_from(covariance)] += np.exp(parameters[-2])
    return scipy.linalg.cholesky(covariance, lower=True, overwrite_a=True, check_finite=False)


class _Loss:
    """Negative log posterior density of the parameters, up to constants, and its gradient."""

    def __init__(
        self, inputs: np.ndarray, outputs: np.ndarray, centre: np.ndarray, spread: np.ndarray
    ):
        # Inputs (n, d); standardised outputs (n,); centre and spread (d + 3,) of the normal priors.
        self._outputs, self._centre, self._spread = outputs, centre, spread
        # The covariance is symmetric: its entries below the diagonal are enough.
        self._below = below = np.tril_indices(len(inputs), -1)
        self._squares = np.square(inputs[below[0]] - inputs[below[1]]).T

    def __call__(self, parameters: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns loss and gradient (d + 3,); `_REFUSED` and 0 if there is no Cholesky factor."""
        signal, noise = np.exp(parameters[-3]), np.exp(parameters[-2])
        shrink = np.exp(-2.0 * parameters[:-3])
        scaled = np.sqrt(5.0 * (shrink @ self._squares))
        decay = signal * np.exp(-scaled)
        latent = decay * (1.0 + scaled * (1.0 + scaled / 3.0))
        covariance = np.diag(np.full(len(self._outputs), signal + noise)).T  # LAPACK's order.
        covariance[self._below] = latent
        factor, failed = scipy.linalg.lapack.dpotrf(covariance, lower=1, clean=0, overwrite_a=1)
        if failed:
            return _REFUSED, np.zeros_like(parameters)
        residual = self._outputs - parameters[-1]
        weights, _ = scipy.linalg.lapack.dpotrs(factor, residual, lower=1)
        gap = (parameters - self._centre) / self._spread
        loss = 0.5 * (residual @ weights + len(residual) * _LOG_2_PI + gap @ gap)
        loss += np.log(np.diagonal(factor)).sum()
        inverse, _ = scipy.linalg.lapack.dpotri(factor, lower=1, overwrite_c=1)
        # The loss's derivative by each entry below the diagonal (which stands above it too), then
        # by all diagonal entries together.
        slope = inverse[self._below] - weights[self._below[0]] * weights[self._below[1]]
        on_diagonal = 0.5 * (np.trace(inverse) - weights @ weights)
        # The derivative by a log length scale is this times the squared, scaled difference, summed.
        by_length = slope * decay * ((5.0 / 3.0) * (1.0 + scaled))
        gradient = np.concatenate(
            [
                shrink * (self._squares @ by_length),
                [slope @ latent + signal * on_diagonal, noise * on_diagonal, -weights.sum()],
            ]
        )
        return float(loss), gradient + gap / self._spread


def _checked(
    inputs: ArrayLike, outputs: ArrayLike, dimension: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Checks inputs (n, d) in the unit cube and finite outputs (n,); returns them as float64."""
    inputs = np.array(inputs, dtype=np.float64)
    outputs = np.array(outputs, dtype=np.float64)
    if inputs.ndim != 2 or outputs.shape != inputs.shape[:1] or not outputs.size:
        raise ValueError(
            f"inputs must be (n, d) and outputs (n,) with n >= 1, not {inputs.shape} and "
            f"{outputs.shape}"
        )
    if dimension is not None and inputs.shape[1] != dimension:
        raise ValueError(f"inputs have {inputs.shape[1]} columns: pass {dimension}, as in the fit")
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
      location, scale: mean and standard deviation of the outputs of the fit; scale 1 if all agree.
      loss: negative log posterior density of `parameters` at the fit, up to constants.
      factor: (n, n) lower Cholesky factor of the covariance, of standardised outputs.
      weights: (n,) inverse covariance times residual.
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
    ) -> GaussianProcess:
        """Returns the process of the best posterior density found from `restarts` starts.

        The first start is the centre of the priors, the others are drawn from them. `noise_free` is
        for outputs known exactly; else one noise variance is learnt.
        """
        inputs, outputs = _checked(inputs, outputs)
        if restarts < 1:
            raise ValueError(f"restarts {restarts}: pass 1 or more")
        location, scale = float(outputs.mean()), float(outputs.std())
        scale = scale if scale > 1e-12 * max(1.0, abs(location)) else 1.0
        bounds, centre, spread = _priors(inputs.shape[1], noise_free)
        starts = [centre, *(generator.normal(centre, spread) for _ in range(restarts - 1))]
        objective = _Loss(inputs, (outputs - location) / scale, centre, spread)
        best = None
        with _one_thread():
            for first in starts:
                found = scipy.optimize.minimize(
                    objective,
                    np.clip(first, bounds[:, 0], bounds[:, 1]),
                    jac=True,
                    method="L-BFGS-B",
                    bounds=bounds,
                    options={"maxiter": 100, "ftol": 1e-7, "gtol": 1e-3},
                )
                if found.fun < (_REFUSED if best is None else best.fun):
                    best = found
        if best is None:
            raise FloatingPointError("no start of the fit has a finite likelihood: scale outputs")
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
        """Returns the process with these hyperparameters, conditioned on the observations."""
        with _one_thread():
            factor = _factor(parameters, inputs)
            residual = (outputs - location) / scale - parameters[-1]
            weights = scipy.linalg.cho_solve((factor, True), residual, check_finite=False)
        return cls(inputs, outputs, parameters, location, scale, loss, factor, weights)

    def condition(self, inputs: ArrayLike, outputs: ArrayLike) -> GaussianProcess:
        """Returns the process with further observations and the same hyperparameters.

        With outputs at the predicted mean, the mean stays where it is and the variance shrinks
        around the new inputs as it will when the true outputs, of the same noise, arrive.
        """
        inputs, outputs = _checked(inputs, outputs, self.inputs.shape[1])
        return self._conditioned(
            np.concatenate([self.inputs, inputs]), np.append(self.outputs, outputs),
            self.parameters, self.location, self.scale, self.loss,
        )  # fmt: skip

    def predict(self, inputs: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Returns posterior mean and variance (m,) of the latent function at inputs (m, d).

        In the units of the outputs; add `noise_variance` to predict an observation.
        """
        inputs = np.asarray(inputs, dtype=np.float64)
        inputs, _ = _checked(inputs, np.zeros(inputs.shape[:1]), self.inputs.shape[1])
        with _one_thread():
            crossed = _covariance(self.parameters, self.inputs, inputs)
            mean = self.parameters[-1] + self.weights @ crossed
            explained = scipy.linalg.solve_triangular(
                self.factor, crossed, lower=True, overwrite_b=True, check_finite=False
            )
        variance = np.exp(self.parameters[-3]) - np.einsum("ij,ij->j", explained, explained)
        return self.location + self.scale * mean, self.scale**2 * np.maximum(variance, 0.0)

    @property
    def noise_variance(self) -> float:
        """Returns an observation's variance about the latent function, in squared output units."""
        return float(self.scale**2 * np.exp(self.parameters[-2]))


def _priors(dimension: int, noise_free: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns bounds (d + 3, 2), and centres and spreads (d + 3,) of the normal priors."""
    ranges = [*[_BOUNDS_LENGTH_SCALE] * dimension, _BOUNDS_SIGNAL_VARIANCE, _BOUNDS_NOISE_VARIANCE]
    bounds = np.append(np.log(ranges), [_BOUNDS_MEAN], axis=0)
    length = (_PRIOR_LENGTH_SCALE[0] * np.sqrt(dimension), _PRIOR_LENGTH_SCALE[1])
    priors = [*[length] * dimension, _PRIOR_SIGNAL_VARIANCE, _PRIOR_NOISE_VARIANCE]
    centre = np.append(np.log([middle for middle, _ in priors]), _PRIOR_MEAN[0])
    spread = np.append([std for _, std in priors], _PRIOR_MEAN[1])
    if noise_free:
        bounds[-2] = centre[-2] = np.log(_NOISE_FREE_VARIANCE)
    return bounds, centre, spread
