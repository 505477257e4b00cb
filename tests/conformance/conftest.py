"""What the worked examples share: a small task, a small run of any tuner, its release verified."""

import pytest
import small_tasks

from dpjax import accounting, training, tuning
from dpjax.releases import verification


@pytest.fixture(scope="session")
def parts():
    """96 records of three numbers, split in 72 and 24."""
    return small_tasks.parts(96, share=0.25)


@pytest.fixture(scope="session")
def task(parts):
    """A linear classifier of `parts`."""
    return small_tasks.linear(parts)


@pytest.fixture(scope="session")
def tuned():
    """tuned(task, tuner=..., **arguments of tune) -> the result of a few small runs, seeded."""
    space = tuning.Space({"learning_rate": tuning.LogUniform(0.1, 1.0)}, clip_norm=1.0)
    usual = tuning.RandomRepetitions(accounting.Geometric(2))

    def run(task, tuner=usual, **arguments):
        options = dict(
            run=tuning.RunOptions(lot_size=16, steps=2, noise_multiplier=2.0),
            delta=1e-6,
            optimizer=training.sgd(),
            seed=5,
        )
        with pytest.warns(UserWarning, match="seed"):
            return tuning.tune(task, space, tuner, **(options | arguments))

    return run


@pytest.fixture
def statement_of(tmp_path):
    """statement_of(result) -> the path of its guarantee.json, once it is saved."""

    def save(result):
        result.release.save(tmp_path / "release")
        return tmp_path / "release" / "guarantee.json"

    return save


@pytest.fixture
def released_and_verified(statement_of):
    """released_and_verified(result) -> what `--verify` finds of its release."""
    return lambda result: verification.verify_release(statement_of(result))
