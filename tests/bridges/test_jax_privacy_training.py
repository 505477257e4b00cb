"""The training of docs/bridges.md as a candidate: its price, its noise and its lots."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_privacy.experimental.execution_plan import BandMFExecutionPlanConfig

from dpjax import accounting, bridges, tuning
from dpjax.bridges.jax_privacy import guarantee_of_plan

# In jax-privacy itself.
pytestmark = pytest.mark.filterwarnings("ignore:optax.global_norm is deprecated")

SEEDS = (5, 5 + 2**32, 5 + 2**62)
"""Their lowest 32 bits are the same."""


@pytest.fixture(scope="module")
def page(request):
    """What the page's example defines when it is run as written."""
    text = (request.config.rootpath / "docs" / "bridges.md").read_text()
    text = text[text.index("\n## A jax-privacy training") :]
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(example.splitlines()) <= 40
    exec(compile(example, "docs/bridges.md", "exec"), known := {})
    return known


def test_its_release_has_the_price_of_the_best_of_its_plans_and_verifies(page, tmp_path):
    result = page["result"]
    base, law = guarantee_of_plan(page["config"], "replace_one"), accounting.Geometric(3)
    # The count on records of their own adds nothing that is seen.
    assert result.run_guarantee.epsilon(1e-5) == base.epsilon(1e-5)
    assert result.guarantee.epsilon(1e-5) == accounting.best_of(base, law).epsilon(1e-5)
    assert result.guarantee.relation == "replace_one"
    result.release.save(tmp_path / "release")
    read = tuning.verify_release(tmp_path / "release")
    assert read.epsilon == result.guarantee.stated_epsilon(1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(dict(sampling_prob=1.0, strategy=np.ones(1)), id="noise"),
        pytest.param(dict(noise_multiplier=0.0), id="lots"),
    ],
)
def test_its_noise_and_its_lots_have_all_bits_of_the_seed(page, monkeypatch, changes):
    """With every record in every lot runs differ by their noise, without noise by their lots."""
    monkeypatch.setitem(page, "config", dataclasses.replace(page["config"], **changes))
    params = [page["run"](seed, {"rate": 0.5})[0] for seed in (*SEEDS, SEEDS[0])]
    np.testing.assert_array_equal(params[0], params[3])
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert not np.allclose(params[one], params[other], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("strategy", [np.ones(1), np.array([1.0, 0.5])])
def test_the_noise_of_a_plan_has_the_scale_that_is_priced(strategy):
    """Noise is stddev * C^-1 times independent normals, C the strategy's Toeplitz matrix."""
    settings = dict(iterations=6, sampling_prob=0.4, l2_clip_norm=0.5, normalize_by=24.0)
    unpriced = dict(noise_multiplier=2.0, epsilon=None, delta=None)
    plan = BandMFExecutionPlanConfig(strategy=strategy, **settings, **unpriced).plan
    added, zeros = [], jnp.zeros(4000)
    for seed in SEEDS[:2]:
        noise = plan.noise_addition_transform
        state = (bridges.jax_key(seed), noise.init(zeros)[1])
        for _ in range(6):
            one, state = noise.update(zeros, state)
            added.append(np.asarray(one))
    matrix = sum(np.eye(6, k=-k) * one for k, one in enumerate(strategy))
    independent = np.einsum("ij,cjn->cin", matrix, np.stack(added).reshape(2, 6, 4000))
    independent = independent.reshape(12, 4000)
    deviation = 2.0 / 24.0 * np.linalg.norm(strategy)  # Multiplier, sensitivity, column norm.
    np.testing.assert_allclose(independent.std(axis=1), deviation, rtol=0.1)
    correlated = np.corrcoef(independent) - np.eye(12)
    assert np.abs(correlated).max() < 6 / np.sqrt(4000)


def test_the_state_of_a_plans_noise_is_a_pair_that_begins_with_its_key(page):
    """On which the page's line rests."""
    key, _ = page["config"].plan.noise_addition_transform.init(jnp.zeros(2))
    assert jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ()
    assert key.dtype == bridges.jax_key(1).dtype
