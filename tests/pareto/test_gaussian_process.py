"""Gaussian processes: against scikit-learn, the gradient, believed rows, recovery."""

import numpy as np
import pytest
from scipy import optimize, stats
from sklearn import gaussian_process as sklearn_processes
from sklearn.gaussian_process import kernels

from dpjax.pareto import gaussian_process
from dpjax.pareto.gaussian_process import GaussianProcess


def _smooth(inputs):
    return 3.0 + np.sin(5 * inputs[:, 0]) + 2 * inputs[:, 1] ** 2


def _fit(number=40, noise=0.0, dimension=3, seed=0, **settings):
    generator = np.random.default_rng(seed)
    inputs = generator.random((number, dimension))
    outputs = _smooth(inputs) + noise * generator.normal(size=number)
    settings = {"noise_free": noise == 0, "generator": generator, "restarts": 2} | settings
    return GaussianProcess.fit(inputs, outputs, **settings), generator


def _constant_mean(process):
    return process.location + process.scale * process.parameters[-1]


def _sklearn(process):
    """The same process, hyperparameters fixed, by another library and on raw outputs."""
    matern = kernels.Matern(np.exp(process.parameters[:-3]), "fixed", nu=2.5)
    signal_variance = process.scale**2 * np.exp(process.parameters[-3])
    kernel = kernels.ConstantKernel(signal_variance, "fixed") * matern
    model = sklearn_processes.GaussianProcessRegressor(
        kernel, alpha=process.noise_variance, optimizer=None
    )
    return model.fit(process.inputs, process.outputs - _constant_mean(process))


@pytest.mark.parametrize("noise,number", [(0.0, 40), (0.3, 40), (0.3, 70), (0.3, 2)])
def test_predictions_are_those_of_scikit_learn(noise, number):
    process, generator = _fit(number, noise)
    queries = generator.random((50, 3))
    mean, variance = process.predict(queries)
    assert mean.dtype == variance.dtype == np.float64
    expected_mean, expected_deviation = _sklearn(process).predict(queries, return_std=True)
    np.testing.assert_allclose(mean, expected_mean + _constant_mean(process), rtol=1e-7)
    np.testing.assert_allclose(variance, expected_deviation**2, rtol=1e-4, atol=1e-9)


def test_loss_is_the_marginal_likelihood_with_the_priors():
    process, _ = _fit(40, noise=0.3)
    _, centre, spread = gaussian_process._priors(3, noise_free=False)
    prior = 0.5 * np.sum(((process.parameters - centre) / spread) ** 2)
    # The likelihood of standardised outputs differs by n log(scale).
    likelihood = _sklearn(process).log_marginal_likelihood_value_
    likelihood += len(process.outputs) * np.log(process.scale)
    assert process.loss == pytest.approx(prior - likelihood, rel=1e-9)


def test_fit_is_a_maximum():
    process, generator = _fit(40, noise=0.3)
    bounds, centre, spread = gaussian_process._priors(3, noise_free=False)
    standardised = (process.outputs - process.location) / process.scale
    loss = gaussian_process._Loss(process.inputs, standardised, centre, spread)
    for _ in range(40):
        moved = process.parameters + 0.05 * generator.normal(size=6)
        assert loss(np.clip(moved, bounds[:, 0], bounds[:, 1]))[0] >= process.loss - 1e-6


@pytest.mark.parametrize("number, dimension", [(1, 1), (7, 2), (40, 5)])
def test_the_gradient_is_that_of_the_loss(number, dimension):
    generator = np.random.default_rng(3)
    inputs, outputs = generator.random((number, dimension)), generator.normal(size=number)
    inputs[-1] = inputs[0]  # Where the distance is 0, and its own derivative is not defined.
    _, centre, spread = gaussian_process._priors(dimension, noise_free=False)
    loss = gaussian_process._Loss(inputs, outputs, centre, spread)
    for _ in range(5):
        parameters = generator.normal(centre, 0.5)
        numeric = optimize.approx_fprime(parameters, lambda at: loss(at)[0], 1e-6)
        np.testing.assert_allclose(loss(parameters)[1], numeric, rtol=1e-4, atol=1e-4)


def test_parameters_without_a_factor_are_not_taken():
    inputs = np.repeat([[0.5], [0.6]], 30, axis=0)
    _, centre, spread = gaussian_process._priors(1, noise_free=True)
    loss = gaussian_process._Loss(inputs, np.ones(60), centre, spread)
    value, gradient = loss(np.array([0.0, 60.0, -60.0, 0.0]))
    assert value == gaussian_process._REFUSED and not gradient.any()


def test_believed_rows_keep_the_mean_and_shrink_the_variance():
    for noise in [0.0, 0.3]:
        process, generator = _fit(40, noise)
        queries = generator.random((30, 3))
        mean, variance = process.predict(queries)
        believer = process.condition(queries[:1], mean[:1])
        new_mean, new_variance = believer.predict(queries)
        np.testing.assert_allclose(new_mean, mean, rtol=1e-8)
        assert (new_variance <= variance + 1e-12).all()
        # One observation of noise s^2 at a point of variance v leaves v s^2 / (v + s^2).
        left = variance[0] * process.noise_variance / (variance[0] + process.noise_variance)
        assert new_variance[0] == pytest.approx(left, rel=1e-4, abs=1e-9)
        assert len(process.inputs) == 40 and len(believer.inputs) == 41
        np.testing.assert_array_equal(believer.parameters, process.parameters)


def test_surprising_row_moves_the_mean():
    process, generator = _fit(40, noise=0.1)
    query = generator.random((1, 3))
    mean, variance = process.predict(query)
    moved, _ = process.condition(query, mean + 1.0).predict(query)
    share = variance / (variance + process.noise_variance)
    np.testing.assert_allclose(moved - mean, share, rtol=1e-6)


def test_noise_free_process_interpolates():
    process, generator = _fit(60)
    mean, variance = process.predict(process.inputs)
    np.testing.assert_allclose(mean, process.outputs, atol=5e-3 * process.outputs.std())
    assert variance.max() <= 1.1e-6 * process.scale**2
    queries = generator.random((300, 3))
    assert np.abs(process.predict(queries)[0] - _smooth(queries)).mean() < 0.05


def test_noise_and_length_scales_are_learnt():
    process, generator = _fit(250, noise=0.3, restarts=3)
    # The sample variance of 250 draws has a relative standard deviation of 9%.
    assert 0.6 < process.noise_variance / 0.3**2 < 1.5
    assert process.parameters[2] > process.parameters[0] + np.log(2)
    queries = generator.random((400, 3))
    mean, variance = process.predict(queries)
    assert np.sqrt(np.mean((mean - _smooth(queries)) ** 2)) < 0.12
    observed = _smooth(queries) + 0.3 * generator.normal(size=400)
    scores = (observed - mean) / np.sqrt(variance + process.noise_variance)
    # 400 scores: 5 standard deviations of their variance is 0.35.
    assert 0.65 < scores.var() < 1.35
    assert stats.kstest(scores, "norm").pvalue > 1e-4


def test_units_of_the_outputs_do_not_matter():
    process, generator = _fit(40, noise=0.3)
    other = GaussianProcess.fit(
        process.inputs, 7.0 - 100 * process.outputs, noise_free=False,
        generator=np.random.default_rng(0), restarts=2,
    )  # fmt: skip
    queries = generator.random((20, 3))
    mean, variance = process.predict(queries)
    np.testing.assert_allclose(other.predict(queries)[0], 7.0 - 100 * mean, rtol=1e-2)
    np.testing.assert_allclose(other.predict(queries)[1], 1e4 * variance, rtol=2e-2)
    assert other.noise_variance == pytest.approx(1e4 * process.noise_variance, rel=2e-2)


def test_same_generator_same_fit():
    first, _ = _fit(40, noise=0.3, seed=4)
    again, _ = _fit(40, noise=0.3, seed=4)
    np.testing.assert_array_equal(first.parameters, again.parameters)


def test_one_row_and_equal_outputs():
    generator = np.random.default_rng(0)
    for inputs in [np.full((1, 2), 0.5), generator.random((9, 2))]:
        process = GaussianProcess.fit(
            inputs, np.full(len(inputs), -4.0), noise_free=False, generator=generator
        )
        mean, variance = process.predict(generator.random((5, 2)))
        np.testing.assert_allclose(mean, -4.0, atol=1e-6)
        assert np.isfinite(variance).all() and (variance >= 0).all()


def test_many_equal_rows_are_no_obstacle():
    generator = np.random.default_rng(0)
    inputs = np.repeat(generator.random((5, 2)), 12, axis=0)
    process = GaussianProcess.fit(inputs, inputs[:, 0], noise_free=True, generator=generator)
    assert np.isfinite(process.predict(inputs)[0]).all()


def test_bad_input_is_refused():
    generator = np.random.default_rng(0)
    inputs = generator.random((6, 2))

    def fit(inputs, outputs, **settings):
        return GaussianProcess.fit(
            inputs, outputs, noise_free=False, generator=generator, **settings
        )

    with pytest.raises(ValueError, match="n >= 1"):
        fit(inputs[:0], np.zeros(0))
    with pytest.raises(ValueError, match="n >= 1"):
        fit(inputs, np.zeros(5))
    with pytest.raises(ValueError, match="restarts 0: pass 1"):
        fit(inputs, np.zeros(6), restarts=0)
    process = fit(inputs, np.zeros(6), restarts=1)
    with pytest.raises(ValueError, match="3 columns: pass 2, as in the fit"):
        process.predict(np.zeros((4, 3)))
