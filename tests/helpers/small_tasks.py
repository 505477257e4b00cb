"""A small task with real records, for tests of whole procedures; the same bytes at every call."""

import functools

import flax.linen as nn
import numpy as np

from dpjax import data, tuning


def parts(number=120, features=3, share=1 / 3, *, seed=0, apart=2.0, **options):
    """Two classes of records, `apart` deviations from each other; a share is for validation.

    Args:
      number: of records, public.
      features: of each.
      share: of the validation part.
      seed: of the records.
      apart: distance of the classes in every feature.
      **options: of `data.from_arrays`.
    """
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, number)
    inputs = generator.normal(size=(number, features)) + apart * labels[:, None]
    return data.from_arrays(inputs, labels, public_size=number, classes=2, **options).parts(
        share, key=1
    )


def linear(of=None, **task):
    """A linear classifier of `parts`; further arguments are of `tuning.classification`."""
    of = of or _usual()
    return tuning.classification(nn.Dense(2), of.train, of.validation, **task)


@functools.cache
def _usual():
    return parts()
