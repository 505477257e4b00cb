"""A task in which every number is known, for tests of wiring: what is ranked, drawn, passed, kept.

No mechanism is tested with it, only what is handed from one to the next. A candidate's parameters
become its `quality` whatever the records are, so its exact count is known beforehand, what is
released says whose it is, and nothing may differ between two data sets but the counts. The real,
the public and the largest number of records all differ, so that a mix-up shows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import pareto, tuning
from dpjax.tuning import Records, Task


def settle(hyperparameters):
    """An optimiser after whose first step the parameters are `quality`, or nan below 0."""
    quality = hyperparameters["quality"]

    def update(gradients, state, params):
        reached = jnp.where(quality < 0, jnp.nan, quality)
        return jax.tree.map(lambda leaf: reached - leaf, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


@dataclasses.dataclass
class Toy:
    """See the module's docstring.

    Attributes:
      trained: words of every key that parameters were made from, in order; only of tasks made with
        `record`. Under `chunk_size=1` there is one for every training and nothing else.
    """

    public_training, training_bound = 40, 50
    public_validation, validation_bound = 24, 32
    numbers = ((30, 18), (37, 21))
    """Real numbers of training and validation records, of two data sets that look alike outside."""

    trained: list[tuple[int, ...]] = dataclasses.field(default_factory=list)

    def thresholds(self, which: int = 0) -> np.ndarray:
        """The validation records (n,): a model is right where its quality is above."""
        number = self.numbers[which][1]
        return ((np.arange(number) + 0.5) / number).astype(np.float32)

    def correct(self, quality: np.ndarray, which: int = 0) -> np.ndarray:
        """The exact counts of candidates (n,) int; rows of padding, 0, would be right as well."""
        quality = np.asarray(quality, np.float32)
        return np.sum(self.thresholds(which) < quality[..., None], axis=-1)

    def task(self, which: int = 0, *, record: bool = False, failing: float = 0.0) -> Task:
        """The task; parameters made from a share `failing` of secret keys are not finite."""

        def initial(key):
            if record:
                jax.debug.callback(self._noted, jax.random.key_data(key))
            # The public key 0, of which the default is made, is never unlucky.
            secret = jnp.any(jax.random.key_data(key) > 0)
            unlucky = secret & (jax.random.uniform(key) < failing)
            return {"w": jnp.zeros(()), "luck": jnp.where(unlucky, jnp.nan, 0.0)}

        number = self.numbers[which][0]
        return Task(
            initial=initial,
            loss=lambda params, value: params["w"] * value,
            correct=lambda params, threshold: params["w"] > threshold,
            train=Records(
                np.full(number, 1.0 + which, np.float32),
                self.public_training,
                self.training_bound,
                identifiers=np.arange(number) + 100 * which,
                stable_under_removal=True,
            ),
            validation=Records(
                self.thresholds(which),
                self.public_validation,
                self.validation_bound,
                identifiers=np.arange(self.numbers[which][1]),
                stable_under_removal=True,
            ),
            trainable={"w": True, "luck": False},
            description="a number",
        )

    def _noted(self, words):
        self.trained.append(tuple(np.asarray(words).tolist()))

    @contextlib.contextmanager
    def noting(self):
        """Yields a list that holds, afterwards, the keys that were trained from inside."""
        kept: list[tuple[int, ...]] = []
        jax.effects_barrier()
        self.trained.clear()
        yield kept
        jax.effects_barrier()
        # What is released where nothing was trained is made of the public key 0.
        kept += [words for words in self.trained if any(words)]

    def space(self, *qualities: float) -> tuning.Space:
        """Candidates of these qualities, alike probable."""
        return tuning.Space(quality=tuning.Choice(qualities), clip_norm=1.0)

    def shapes(self) -> pareto.RunShapes:
        """Of a run after a search: the public size and the bound."""
        return pareto.RunShapes(self.public_training, "poisson", size_bound=self.training_bound)

    settings = dict(
        noise_multiplier=3.0,
        lot_size=8,
        steps=2,
        optimizer=settle,
        delta=1e-6,
    )
    """Of one run; what is public of it follows from `public_training` and `training_bound`."""


@pytest.fixture(scope="session")
def toy() -> Toy:
    """See `Toy`."""
    return Toy()


@contextlib.contextmanager
def operating_system_of(stream: int):
    """All randomness of the operating system comes from a numbered stream instead."""
    with pytest.MonkeyPatch.context() as patch:
        drawn = np.random.default_rng(stream).bytes
        patch.setattr(os, "urandom", drawn)
        # What `secrets`, and NumPy where it is given no seed, ask.
        patch.setattr(random, "_urandom", drawn)
        yield


@pytest.fixture(scope="session")
def operating_system():
    """`with operating_system(stream):`, see `operating_system_of`."""
    return operating_system_of
