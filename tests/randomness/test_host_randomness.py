"""Where the randomness of a selection comes from: secret, or seeded and then repeatable."""

import numpy as np

from dpjax.randomness.host_randomness import HostRandomness

SEEDED = HostRandomness(seed=3)


def test_operating_system_randomness_is_secret_and_never_repeats():
    source = HostRandomness()
    assert source.secret and not SEEDED.secret
    assert not np.array_equal(source.words(4, 0), source.words(4, 0))
    first, second = (source.generator(0).random(4) for _ in range(2))
    assert not np.array_equal(first, second)
    # 256 random bits twice alike: once in 2^256 runs.
    below = source.uniform_integers(0)
    assert [below(2**64) for _ in range(4)] != [below(2**64) for _ in range(4)]


def test_seeded_streams_repeat_and_differ_from_each_other():
    for draws in (
        lambda stream: SEEDED.words(50, stream),
        lambda stream: SEEDED.generator(stream).random(50),
        lambda stream: np.array([SEEDED.uniform_integers(stream)(10**9) for _ in range(3)]),
    ):
        assert np.array_equal(draws(1), draws(1))
        assert not np.array_equal(draws(1), draws(2))


def test_words_are_uniform_bits():
    # 64,000 fair bits: five standard deviations, and every place of a word is used.
    bits = np.unpackbits(SEEDED.words(1000, 0).view(np.uint8)).reshape(1000, 64)
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / np.sqrt(bits.size)
    assert np.all(np.abs(bits.mean(axis=0) - 0.5) < 0.09)
