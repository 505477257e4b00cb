"""Trainings by jax-privacy's plans as candidates: whose noise, whose batches, what is refused."""

import dataclasses
import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax_privacy import batch_selection
from jax_privacy.experimental.execution_plan import BandMFExecutionPlanConfig

from dpjax import accounting, bridges, tuning
from dpjax.bridges import jax_privacy
from dpjax.bridges.jax_privacy import CandidatePlan
from dpjax.bridges.selection import RunsWarning
from dpjax.tuning import verification

# In jax-privacy itself.
pytestmark = pytest.mark.filterwarnings("ignore:optax.global_norm is deprecated")

NUMBER, WIDTH, ITERATIONS = 120, 3, 6
SPACE = tuning.Space(rate=tuning.LogUniform(0.1, 1.0))
_SOURCE = np.random.default_rng(0)
FEATURES = jnp.asarray(_SOURCE.normal(size=(NUMBER, WIDTH)), dtype=jnp.float32)
LABELS = jnp.sign(FEATURES[:, 0])
USERS = np.repeat(np.arange(NUMBER // 3), 3)
INDEPENDENT = batch_selection.PartitionType.INDEPENDENT


def _config(**changes):
    words = dict(
        iterations=ITERATIONS,
        strategy=np.array([1.0, 0.5]),
        epsilon=None,
        delta=None,
        noise_multiplier=2.0,
        sampling_prob=0.4,
        l2_clip_norm=0.5,
        normalize_by=24.0,
    )
    return BandMFExecutionPlanConfig(**words | changes)


BANDED = _config(column_normalize=True)
TRUNCATED = _config(strategy=np.ones(1), truncated_batch_size=30, num_examples=NUMBER)
OF_USERS = _config(strategy=np.ones(1), partition_type=INDEPENDENT)


def _loss(params, features, labels):
    return jnp.mean((features @ params - labels) ** 2)


def _rows(plan, of_users):
    """Rows of the batches, as a jax-privacy user asks for them."""
    if of_users:
        lots = batch_selection.UserSelectionStrategy(plan.batch_selection_strategy, 2)
        return lots.batch_iterator(USERS, rng=0)
    return plan.batch_selection_strategy.batch_iterator(NUMBER, rng=0)


def train(plan, hyperparameters, of_users=False, kept=None):
    """A training by a plan; what it drew and released is kept."""
    gradient = plan.clipped_grad(_loss, batch_argnums=(1, 2), keep_batch_dim=not of_users)
    noise, params = plan.noise_addition_transform, jnp.zeros(WIDTH)
    state, batches, steps = noise.init(params), [], []
    for rows in _rows(plan, of_users):
        # All of one length, for one compilation.
        padded = np.zeros((NUMBER, *rows.shape[1:]), np.int32)
        padded[: len(rows)] = rows
        filled = {"is_padding_example": jnp.arange(NUMBER) >= len(rows)}
        clipped = gradient(params, FEATURES[padded], LABELS[padded], **filled)
        noisy, state = noise.update(clipped, state)
        params = params - hyperparameters["rate"] * noisy
        batches.append(np.asarray(rows))
        steps.append(np.asarray(noisy))
    if kept is not None:
        kept.append((batches, np.stack(steps), params))
    return params, jnp.sum(jnp.sign(FEATURES @ params) == LABELS)


def _tune(run=train, plan=BANDED, **changed):
    given = dict(
        relation="replace_one",
        score=bridges.CountedScore("public", NUMBER),
        repetitions=accounting.Fixed(2),
        seed=1,
    )
    return jax_privacy.tune(run, SPACE, plan=plan, **given | changed)


def test_an_interrupted_tuning_goes_on_and_with_no_other_training_or_plan(tmp_path):
    def interrupted(plan, hyperparameters, calls=[]):  # noqa: B006
        calls.append(hyperparameters)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return train(plan, hyperparameters)

    def other(plan, hyperparameters):
        return train(plan, hyperparameters)[0], 3

    job = tuning.Job(folder=str(tmp_path / "work"))
    with pytest.raises(KeyboardInterrupt):
        _tune(interrupted, job=job)
    for changed in ({"run": other}, {"plan": dataclasses.replace(BANDED, l2_clip_norm=1.0)}):
        with pytest.raises(ValueError, match="run"):
            _tune(**{"run": interrupted} | changed, job=job)
    result, whole = _tune(interrupted, job=job), _tune(train)
    np.testing.assert_array_equal(result.release.params, whole.release.params)
    np.testing.assert_array_equal(result.curator.scores, whole.curator.scores)


@pytest.mark.parametrize(
    ("plan", "relation", "of_users"),
    [
        (BANDED, "replace_one", False),
        (TRUNCATED, "replace_one", False),
        (OF_USERS, "add_or_remove_one", True),
    ],
)
def test_plans_train_candidates_of_their_own_at_the_plans_price(plan, relation, of_users, tmp_path):
    kept = []
    run = functools.partial(train, of_users=of_users, kept=kept)
    result = _tune(run, plan, relation=relation)
    base = jax_privacy.guarantee_of_plan(plan, relation)
    assert result.run_guarantee.epsilon(1e-5) == base.epsilon(1e-5)
    best = accounting.best_of(base, accounting.Fixed(2))
    assert result.guarantee.epsilon(1e-5) == best.epsilon(1e-5)
    assert result.guarantee.relation == relation
    (some, noisy, _), (others, noisy_too, _) = kept
    np.testing.assert_array_equal(result.release.params, kept[result.curator.winner][2])
    assert len(some) == ITERATIONS and not np.allclose(noisy, noisy_too)
    assert any(not np.array_equal(one, other) for one, other in zip(some, others))
    if plan is TRUNCATED:
        assert max(map(len, some)) <= 30
    if plan is BANDED:  # A record is in one of the two groups.
        odd, even = (set(np.concatenate(some[start::2])) for start in (0, 1))
        assert not odd & even
    if of_users:
        assert all(one.shape[1:] == (2,) and (one // 3 == one[:, :1] // 3).all() for one in some)
    result.release.save(tmp_path / "release")
    read = verification.verify_release(str(tmp_path / "release" / "guarantee.json"))
    assert read.epsilon == best.stated_epsilon(1e-5)


def _noise_alone(plan, hyperparameters, kept):
    """First noises of a wide model."""
    noise, params = plan.noise_addition_transform, jnp.zeros(4000)
    state = noise.init(params)
    for _ in plan.batch_selection_strategy.batch_iterator(NUMBER):
        added, state = noise.update(jnp.zeros_like(params), state)
        kept.append(np.asarray(added))
    return params, 0


@pytest.mark.parametrize("strategy", [np.ones(1), np.array([1.0, 0.5])])
def test_the_noise_has_the_plans_scale_and_each_candidate_its_own(strategy):
    """Noise is stddev * C^-1 times independent normals, C the strategy's Toeplitz matrix."""
    kept = []
    _tune(functools.partial(_noise_alone, kept=kept), _config(strategy=strategy, noise_seed=3))
    noise = np.stack(kept).reshape(2, ITERATIONS, 4000)
    coefficients = np.zeros(ITERATIONS)
    coefficients[: strategy.size] = strategy
    matrix = sum(np.eye(ITERATIONS, k=-k) * one for k, one in enumerate(coefficients))
    independent = np.einsum("ij,cjn->cin", matrix, noise).reshape(2 * ITERATIONS, 4000)
    deviation = 2.0 / 24.0 * np.linalg.norm(strategy)  # Multiplier, sensitivity, column norm.
    for scale in (1.0, 2 / 3, 3 / 2):
        fits = np.abs(independent.std(axis=1) / (scale * deviation) - 1) < 0.1
        assert fits.all() if scale == 1.0 else not fits.any()
    correlated = np.corrcoef(independent) - np.eye(2 * ITERATIONS)
    assert np.abs(correlated).max() < 6 / np.sqrt(4000)


def _drawn(seed, plan=BANDED, rng=None):
    """Key and batches of a candidate."""
    own = CandidatePlan(plan.plan, seed).plan
    key, _ = own.noise_addition_transform.init(jnp.zeros(2))
    batches = own.batch_selection_strategy.batch_iterator(NUMBER, rng)
    return np.asarray(jax.random.key_data(key)), np.concatenate(list(batches))


def test_key_and_batches_have_all_bits_of_the_seed_and_nothing_else():
    given = (5, 5 + 2**32, 5 + 2**62)
    keys, batches = zip(*map(_drawn, given))
    assert len({key.tobytes() for key in keys}) == len({rows.tobytes() for rows in batches}) == 3
    assert all(key.dtype == np.uint32 and key.shape == (2,) and key.all() for key in keys)
    # A known seed of a user's decides nothing.
    key, rows = _drawn(5, _config(column_normalize=True, noise_seed=0), rng=0)
    np.testing.assert_array_equal(key, keys[0])
    np.testing.assert_array_equal(rows, batches[0])
    for seed in given:
        assert not np.array_equal(jax.random.key_data(bridges.jax_key(seed)), keys[0])


def test_noise_that_is_begun_again_is_other_noise():
    own = CandidatePlan(BANDED.plan, 5).plan.noise_addition_transform
    first, again = (jax.random.key_data(own.init(jnp.zeros(2))[0]) for _ in range(2))
    assert not np.array_equal(first, again)


def test_a_seed_reproduces_and_no_seed_does_not():
    first, again, secret = _tune(), _tune(), _tune(seed=None)
    np.testing.assert_array_equal(first.release.params, again.release.params)
    assert not np.allclose(first.release.params, secret.release.params)


def test_a_step_may_be_compiled_once_with_the_configurations_own_update():
    update = jax.jit(BANDED.plan.noise_addition_transform.update)

    def once(plan, hyperparameters):
        compiled = plan.noise_addition_transform._replace(update=update)
        return train(dataclasses.replace(plan, noise_addition_transform=compiled), hyperparameters)

    np.testing.assert_allclose(
        _tune(once).release.params, _tune().release.params, rtol=1e-4, atol=1e-6
    )


def _own_plan(plan, hyperparameters):
    return train(BANDED.plan, hyperparameters)


def _own_batches(plan, hyperparameters):
    lots = BANDED.plan.batch_selection_strategy
    return train(dataclasses.replace(plan, batch_selection_strategy=lots), hyperparameters)


def _own_noise(plan, hyperparameters):
    noise = BANDED.plan.noise_addition_transform
    return train(dataclasses.replace(plan, noise_addition_transform=noise), hyperparameters)


def _twice(plan, hyperparameters):
    train(plan, hyperparameters)
    return train(plan, hyperparameters)


def _caught(plan, hyperparameters):
    try:
        return _twice(plan, hyperparameters)
    except RuntimeError:
        return jnp.zeros(WIDTH), NUMBER


def _caught_and_raised(plan, hyperparameters):
    try:
        return _twice(plan, hyperparameters)
    except RuntimeError:
        raise ValueError("it did not work") from None


def _fewer_records(plan, hyperparameters):
    list(plan.batch_selection_strategy.batch_iterator(NUMBER - 1))


_KEYLESS = optax.GradientTransformation(lambda params: jnp.array(0), lambda g, s, p=None: (g, s))


@pytest.mark.parametrize(
    ("run", "plan", "line"),
    [
        (_own_plan, BANDED, "did not use its own plan: train on the batches of plan.batch_selec"),
        (_own_batches, BANDED, "did not use its own plan"),
        (_own_noise, BANDED, "did not use its own plan"),
        (_twice, BANDED, "began batch_iterator twice: draw the plan's batches once"),
        (_caught, BANDED, "began batch_iterator twice"),
        (_caught_and_raised, BANDED, "began batch_iterator twice"),
        (_fewer_records, TRUNCATED, "groups of 120 draws from 119 // 1: pass num_examples=119"),
        (
            train,
            dataclasses.replace(BANDED.plan, noise_addition_transform=_KEYLESS),
            "does not begin with a key: pass a plan of BandMFExecutionPlanConfig",
        ),
    ],
)
def test_a_run_that_is_not_its_plans_releases_nothing(run, plan, line):
    with pytest.raises(RuntimeError, match=line) as raised:
        _tune(run, plan, on_outcome=(seen := []).append, seed=None)
    assert not seen and type(raised.value) is bridges.ContradictionError
    message = str(raised.value)
    assert message.endswith("; nothing is released") and "\n" not in message


def test_a_run_that_raises_ranks_worst():
    runs = []

    def sometimes(plan, hyperparameters):
        runs.append(plan)
        if len(runs) == 1:
            raise ArithmeticError("no")
        return train(plan, hyperparameters)

    with pytest.warns(RunsWarning):
        result = _tune(sometimes)
    assert result.curator.winner == 1 and len(runs) == 2


def test_a_candidate_can_be_sent_to_another_process():
    run = jax_privacy._Run(train, BANDED, BANDED.plan.dp_event)
    sent = pickle.loads(pickle.dumps(run))
    np.testing.assert_array_equal(sent(4, {"rate": 0.5})[0], run(4, {"rate": 0.5})[0])
    other = dataclasses.replace(run, plan=TRUNCATED)
    with pytest.raises(bridges.ContradictionError, match="another plan than was priced"):
        other(4, {"rate": 0.5})


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"run": 3}, "train must be a function"),
        ({"plan": 3}, "plan must be a DPExecutionPlan"),
        ({"relation": None}, "pass relation, one of"),
        ({"relation": "add_or_remove_one"}, "know the number of records"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(changed, line):
    with pytest.raises(ValueError, match=line) as raised:
        _tune(**changed)
    assert "\n" not in str(raised.value)
