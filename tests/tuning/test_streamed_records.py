"""A tuner whose records stay in files releases what it would with all of them on the device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import accounting, training, tuning

GENERATOR = np.random.default_rng(3)
WEIGHTS = np.float32([1.0, -2.0, 0.5])


def rows(number):
    x = GENERATOR.normal(size=(number, 3)).astype(np.float32)
    noise = GENERATOR.normal(size=number)
    return x, (x @ WEIGHTS + noise > 0).astype(np.int32)


PARTS = {"train": (rows(290), 300, 310), "validation": (rows(2500), 2600, 2700)}


def task(arrays, fixed=False):
    parts = {}
    for name, (own, size, bound) in PARTS.items():
        size = len(own[1]) if fixed else size
        parts[name] = tuning.Records(
            arrays(name, own), size, size if fixed else bound, stable_under_replacement=True
        )
    return tuning.Task(
        initial=lambda key: 0.01 * jax.random.normal(key, (3,)),
        loss=lambda w, example: jnp.logaddexp(0.0, -(2 * example[1] - 1) * (example[0] @ w)),
        score=lambda w, example: jax.nn.sigmoid((2 * example[1] - 1) * (example[0] @ w)),
        **parts,
    )


@pytest.fixture
def mapped(tmp_path):
    def save(name, own):
        for place, leaf in enumerate(own):
            np.save(tmp_path / f"{name}_{place}", leaf)
        return tuple(np.load(tmp_path / f"{name}_{at}.npy", mmap_mode="r") for at in range(2))

    return save


def tuned(task, job, tuner=None, lots=(30,), **options):
    return tuning.tune(
        task,
        tuning.Space(
            learning_rate=tuning.LogUniform(0.1, 2.0),
            momentum=0.5,
            clip_norm=1.0,
            **({"lot_size": tuning.Choice([*lots])} if len(lots) > 1 else {}),
        ),
        tuner or tuning.RandomRepetitions(accounting.Fixed(5), score_noise=2.0),
        run=tuning.RunOptions(
            lot_size=None if len(lots) > 1 else lots[0], steps=6, noise_multiplier=1.0, **options
        ),
        chunk_size=2,
        seed=1,
        job=job,
    )


@pytest.mark.parametrize("lots", [(30,), (30, 60)])
@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_the_release_is_the_same_to_the_last_bit(sampling, lots, mapped, tmp_path):
    """Beside a job with a folder, which trains by the same programs; validation in three pieces."""
    fixed = sampling == "fixed"
    on_device = task(lambda name, own: own, fixed)
    folder = tuning.Job(folder=str(tmp_path / "work"))
    wanted = tuned(on_device, folder, lots=lots, sampling=sampling)
    streamed = tuning.Job(stream_bytes=4000)
    found = tuned(task(mapped, fixed), streamed, lots=lots, sampling=sampling)
    np.testing.assert_array_equal(found.release.params, wanted.release.params)
    np.testing.assert_array_equal(found.curator.scores, wanted.curator.scores)
    assert found.release.hyperparameters == wanted.release.hyperparameters
    assert found.release.statement == wanted.release.statement
    assert found.guarantee.epsilon(1e-5) == wanted.guarantee.epsilon(1e-5)


def test_contributions_are_checked_and_units_counted(mapped):
    job = tuning.Job(stream_bytes=4000, check_contributions=2)
    found = tuned(task(mapped), job)
    alone = tuned(task(lambda name, own: own), None)
    np.testing.assert_allclose(found.release.params, alone.release.params, rtol=1e-5)


def test_what_cannot_be_streamed_is_refused_before_the_draw(mapped, tmp_path):
    folder = tmp_path / "work"
    job = tuning.Job(folder=str(folder), stream_bytes=4000)
    with pytest.raises(ValueError, match="stream_bytes reads no partitions of records: drop it"):
        tuned(task(mapped), job, tuning.Exponential(candidates=2, partitions=4))
    with pytest.raises(ValueError, match="stream_bytes reads NumPy arrays, not"):
        tuned(task(lambda name, own: jax.tree.map(jnp.asarray, own)), job)
    with pytest.raises(ValueError, match="stream_bytes copies lots to one device: drop it"):
        tuning.Job(stream_bytes=4000, placement="lot_over_devices")
    for bad in (0, 2.5, True, "64"):
        with pytest.raises(ValueError, match="stream_bytes must be a whole number >= 1"):
            tuning.Job(stream_bytes=bad)
    assert not folder.exists()


def test_rows_of_validation_files_stand_where_they_would(mapped):
    """No record moves another one's place, in whichever piece it is."""
    from dpjax.tuning import runner

    records = task(mapped).validation
    keys = training.candidate_keys(2, seed=0)
    whole, counts = runner.placed_to_be_scored(records, keys)
    pieces = list(runner.pieces_to_be_scored(records, keys, 1000))
    assert [len(one[1]) for one in pieces] == [1000] * 3
    joined = [np.concatenate(leaves) for leaves in zip(*(arrays for arrays, _ in pieces))]
    jax.tree.map(
        lambda leaf, all_: np.testing.assert_array_equal(all_[:2700], leaf), whole, tuple(joined)
    )
    found = np.concatenate([one[1] for one in pieces])
    np.testing.assert_array_equal(found[:2700], counts)
    assert found.sum() == 2500 and not found[2700:].any()
