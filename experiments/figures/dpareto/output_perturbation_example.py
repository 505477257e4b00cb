"""DPareto's second example: logistic regression with noise added to the trained parameters.

Avent et al. 2020 ("Automatic Discovery of Privacy-Utility Pareto Fronts"), after Wu et al. 2017:
minimise regularisation/2 * ||w||^2 + mean log(1 + exp(-y w.x)), |x| <= 1, without intercept, by
stochastic gradient descent, one record a step, each of ten epochs in a fresh random order; then
release w + N(0, noise_std^2). Steps are eta_t = min(1/(1 + regularisation), 1/(regularisation t)).
The paper projects onto the ball of radius 1/regularisation; here nothing has to: a step takes w to
(1 - eta regularisation) w + eta regularisation (v / regularisation) with |v| < 1, a mean of two
points of that ball.

A setting is `regularisation` (the paper's gamma) and `noise_std` (its sigma). Training does not
depend on the noise, so settings with one regularisation share their trained parameters, and the
mean accuracy over the noise is known exactly: a record is classified rightly with probability
Phi(y w.x / (noise_std |x|)).

Accounting is NumPy float64. Training is JAX float32, all regularisations and repetitions in one
`scan` over the records: it is plain SGD without replacement, whose privacy comes from the noise at
the end, so none of the DP-SGD engine applies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike
from scipy import special

from dpjax import accounting
from dpjax.pareto.domain import Domain, Log
from experiments.figures.dpareto.sgd_sensitivity import regularised_logistic_sensitivity

DOMAIN = Domain(regularisation=Log(1e-4, 1.0), noise_std=Log(0.1, 10.0))
"""The paper's gamma and sigma."""
Given = Mapping[str, ArrayLike]
"""Settings: name -> (n,) numbers."""
REPETITIONS = 50
"""The paper's number of runs a setting."""

_COLUMNS_AT_ONCE = 4096


@dataclasses.dataclass(frozen=True, eq=False)
class OutputPerturbationExample:
    """Privacy and utility of the example on one data set; make one with `from_records`.

    Formal guarantees: replacing one training record moves the trained parameters by at most
    2 lipschitz / (regularisation n) for lipschitz >= 1 and inputs of norm at most 1
    (`regularised_logistic_sensitivity`), so one run of one setting, released with its
    noise and nothing else, costs `epsilons` at `delta`. Utilities and fronts are computed from the
    data and are not covered.

    Attributes:
      train_inputs: (n, d) float32, every row of norm at most 1.
      train_labels: (n,) float32, -1 or +1.
      test_inputs: (m, d) float32.
      test_labels: (m,) float32, -1 or +1.
      epochs: passes over the training records.
      delta: at which epsilon is stated.
      lipschitz: constant in the sensitivity: 1, what the logistic loss needs; 2 for the paper's
        numbers.
    """

    train_inputs: np.ndarray
    train_labels: np.ndarray
    test_inputs: np.ndarray
    test_labels: np.ndarray
    epochs: int = 10
    delta: float = 1e-6
    lipschitz: float = 1.0

    @classmethod
    def from_records(
        cls,
        train_inputs: ArrayLike,
        train_positive: ArrayLike,
        test_inputs: ArrayLike,
        test_positive: ArrayLike,
        *,
        norm_bound: float,
        **options,
    ) -> OutputPerturbationExample:
        """Returns the example on records of any scale.

        Args:
          train_inputs: (n, ...) numbers; flattened per record.
          train_positive: (n,) bool, the class to predict.
          test_inputs: (m, ...).
          test_positive: (m,) bool.
          norm_bound: public bound on a record's norm, which becomes 1; a record beyond it is
            shortened to it, so that the guarantee needs no promise about the data.
          **options: epochs, delta, lipschitz.

        Raises:
          ValueError: for a bound that is not positive, lipschitz below 1, inputs and labels of
            different lengths, or values that are not finite.
        """
        if not norm_bound > 0:
            raise ValueError(f"norm_bound {norm_bound}: pass a public bound above 0")
        if not options.get("lipschitz", 1.0) >= 1.0:
            raise ValueError(
                "lipschitz below 1 would understate epsilon: pass 1, or 2 as the paper"
            )
        parts = []
        for inputs, positive in ((train_inputs, train_positive), (test_inputs, test_positive)):
            inputs = np.asarray(inputs, dtype=np.float64)
            inputs = inputs.reshape(len(inputs), -1)
            positive = np.asarray(positive, dtype=bool)
            if positive.shape != (len(inputs),):
                raise ValueError(f"{len(inputs)} records but labels of shape {positive.shape}")
            if not np.isfinite(inputs).all():
                raise ValueError("inputs must be finite")
            norms = np.linalg.norm(inputs, axis=1, keepdims=True)
            # Rounding to float32 must not lift a norm above 1.
            scaled = (1.0 - 1e-6) * inputs / np.maximum(norms, norm_bound)
            parts += [scaled.astype(np.float32), np.where(positive, 1.0, -1.0).astype(np.float32)]
        return cls(*parts, **options)

    def epsilons(self, settings: Given) -> np.ndarray:
        """Returns epsilon at `delta` of each setting, (n,) float64, replace one.

        Args:
          settings: `regularisation` and `noise_std`, (n,) each, above 0.

        Raises:
          ValueError: for settings out of range or without one of the two.
        """
        regularisation, noise_std = _checked(settings)
        result = []
        for weight, deviation in zip(regularisation.tolist(), noise_std.tolist()):
            sensitivity = self.lipschitz * regularised_logistic_sensitivity(
                weight, len(self.train_inputs)
            )
            result.append(
                accounting.output_perturbation(sensitivity, deviation).epsilon(self.delta)
            )
        return np.array(result)

    def train(
        self,
        regularisations: ArrayLike,
        repetitions: int = REPETITIONS,
        *,
        source: Generator,
        progress: Callable[[int, int], None] | None = None,
    ) -> np.ndarray:
        """Trains without noise.

        Args:
          regularisations: (g,) above 0.
          repetitions: runs of each; repetition r visits the records in the same order whatever
            the regularisation, another order each epoch.
          source: of the orders.
          progress: called with epochs done and their number.

        Returns:
          (g, repetitions, d) float32.

        Raises:
          ValueError: for weights that are not positive, or repetitions below 1.
        """
        regularisations = np.asarray(regularisations, dtype=np.float64)
        if regularisations.ndim != 1 or not (regularisations > 0).all():
            raise ValueError("regularisations must be a vector of numbers above 0")
        if repetitions < 1:
            raise ValueError(f"repetitions {repetitions}: pass 1 or more")
        records, features = self.train_inputs.shape
        inputs, labels = jnp.asarray(self.train_inputs), jnp.asarray(self.train_labels)
        weights = jnp.zeros((len(regularisations), repetitions, features), jnp.float32)
        for epoch in range(self.epochs):
            order = np.stack([source.permutation(records) for _ in range(repetitions)], axis=1)
            # Counted in float64: float32 has no odd numbers beyond 2^24.
            steps = np.arange(1.0, records + 1) + epoch * records
            rates = np.minimum(
                1.0 / (1.0 + regularisations), 1.0 / np.outer(steps, regularisations)
            )
            weights = _epoch(
                weights,
                order.astype(np.int32),
                rates.astype(np.float32),
                (1.0 - rates * regularisations).astype(np.float32),
                inputs,
                labels,
            )
            if progress is not None:
                weights.block_until_ready()
                progress(epoch + 1, self.epochs)
        return np.asarray(weights)

    def utilities(self, settings: Given, repetitions: int, *, source: Generator) -> np.ndarray:
        """Trains, adds noise; returns test accuracies (n, repetitions), float64.

        Args:
          settings: as for `epsilons`.
          repetitions: runs of each setting.
          source: of orders and noise.
        """
        regularisation, noise_std = _checked(settings)
        different, which = np.unique(regularisation, return_inverse=True)
        trained = self.train(different, repetitions, source=source)
        return self.noisy_accuracies(trained[which], noise_std, source=source)

    def utility_oracle(
        self, repetitions: int = REPETITIONS
    ) -> Callable[[Given, ArrayLike], np.ndarray]:
        """Returns the utility oracle of a search: settings, one seed each -> (n, repetitions).

        Seeds decide the noise alone. Repetition r visits the records in the same orders at every
        setting and every time, so that all settings of a batch train together and a point's
        utilities depend on no other point.
        """

        def oracle(settings: Given, seeds: ArrayLike) -> np.ndarray:
            regularisation, noise_std = _checked(settings)
            different, which = np.unique(regularisation, return_inverse=True)
            trained = self.train(different, repetitions, source=np.random.default_rng(0))
            points = [
                self.noisy_accuracies(
                    trained[[place]], [deviation], source=np.random.default_rng(int(seed))
                )
                for place, deviation, seed in zip(which, noise_std, np.asarray(seeds))
            ]
            return np.concatenate(points)

        return oracle

    def noisy_accuracies(
        self, weights: np.ndarray, noise_std: ArrayLike, *, source: Generator
    ) -> np.ndarray:
        """Adds noise to trained parameters; returns test accuracies (n, repetitions), float64.

        Args:
          weights: (n, repetitions, d).
          noise_std: (n,) float64.
          source: of the noise. It is NumPy's: this measures a utility and releases nothing.
        """
        noise_std = np.asarray(noise_std, dtype=np.float64)
        number, repetitions, features = weights.shape
        result = np.empty((number, repetitions))
        for chunk in _chunks(number, repetitions):
            noise = source.standard_normal(weights[chunk].shape, dtype=np.float32)
            noisy = weights[chunk] + noise_std[chunk, None, None].astype(np.float32) * noise
            outputs = noisy.reshape(-1, features) @ self.test_inputs.T
            right = np.mean((outputs > 0) == (self.test_labels > 0), axis=1)
            result[chunk] = right.reshape(-1, repetitions)
        return result

    def expected_accuracies(self, weights: np.ndarray, noise_std: ArrayLike) -> np.ndarray:
        """Test accuracies of trained parameters, averaged exactly over the noise.

        Args:
          weights: (n, repetitions, d).
          noise_std: (n,), above 0.

        Returns:
          (n, repetitions) float64; their mean over repetitions is the setting's true utility but
          for the orders of the records, which hardly matter.
        """
        noise_std = np.asarray(noise_std, dtype=np.float64)
        number, repetitions, features = weights.shape
        norms = np.linalg.norm(self.test_inputs, axis=1)
        with np.errstate(divide="ignore"):
            scale = np.where(norms > 0, self.test_labels / norms, 0.0).astype(np.float32)
        result = np.empty((number, repetitions))
        for chunk in _chunks(number, repetitions):
            margins = (weights[chunk].reshape(-1, features) @ self.test_inputs.T) * scale
            margins /= np.repeat(noise_std[chunk], repetitions)[:, None].astype(np.float32)
            # A record of zeros gets output 0, hence the class -1, whatever the noise.
            right = np.where(norms > 0, special.ndtr(margins), self.test_labels < 0)
            result[chunk] = right.mean(axis=1, dtype=np.float64).reshape(-1, repetitions)
        return result


def grid(number: int) -> dict[str, np.ndarray]:
    """Returns a square grid over the paper's domain, both axes spaced in their logarithm.

    Args:
      number: of values of each, >= 2 (the paper: 55).
    """
    regularisations, noises = (
        np.geomspace(parameter.low, parameter.high, number)
        for parameter in DOMAIN.parameters.values()
    )
    return {
        "regularisation": np.repeat(regularisations, number),
        "noise_std": np.tile(noises, number),
    }


@jax.jit
def _epoch(weights, order, rates, shrinks, inputs, labels):
    """One pass over the records.

    Args:
      weights: (g, repetitions, d) float32.
      order: (n, repetitions) int32, positions of the records.
      rates: (n, g) float32, step sizes.
      shrinks: (n, g) float32, 1 - rate * regularisation.
      inputs: (n, d) float32.
      labels: (n,) float32, -1 or +1.
    """

    def step(weights, now):
        position, rate, shrink = now
        signed = labels[position][:, None] * inputs[position]  # (repetitions, d)
        margins = jnp.sum(weights * signed[None], axis=-1)  # (g, repetitions)
        pull = rate[:, None] * jax.nn.sigmoid(-margins)
        return shrink[:, None, None] * weights + pull[..., None] * signed[None], None

    return jax.lax.scan(step, weights, (order, rates, shrinks))[0]


def _checked(settings: Given) -> tuple[np.ndarray, np.ndarray]:
    """Returns regularisation and noise_std, (n,) float64 each."""
    values = []
    for name in ("regularisation", "noise_std"):
        if name not in settings:
            raise ValueError(f"settings lack {name!r}: pass arrays regularisation and noise_std")
        value = np.atleast_1d(np.asarray(settings[name], dtype=np.float64))
        if value.ndim != 1 or not (np.isfinite(value) & (value > 0)).all():
            raise ValueError(f"{name} must be a vector of positive finite numbers")
        values.append(value)
    if values[0].shape != values[1].shape:
        raise ValueError("regularisation and noise_std must have one length")
    return values[0], values[1]


def _chunks(number: int, repetitions: int) -> list[slice]:
    """Cuts settings so that about 4096 parameter vectors are evaluated at once."""
    size = max(1, _COLUMNS_AT_ONCE // repetitions)
    return [slice(start, start + size) for start in range(0, number, size)]
