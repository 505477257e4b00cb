"""Keys: independent, reproducible only on request, streams apart."""

import jax
import numpy as np

from dpjax.randomness import keys


def words(key_array) -> set[tuple[int, ...]]:
    return set(map(tuple, np.asarray(jax.random.key_data(key_array)).reshape(-1, 2).tolist()))


def test_keys_come_from_the_operating_system():
    first, second = keys.candidate_keys(50), keys.candidate_keys(50)
    assert first.shape == (50,)
    assert len(words(first) | words(second)) == 100
    assert str(jax.random.key_impl(first)) == "threefry2x32"
    # All 64 bits are random: over 100 keys every bit takes both values (error rate 64 * 2^-99).
    bits = np.unpackbits(
        np.array(sorted(words(first) | words(second)), np.uint32).view(np.uint8), axis=1
    )
    assert bits.any(axis=0).all() and not bits.all(axis=0).any()


def test_a_repeated_key_from_the_operating_system_is_drawn_again(monkeypatch):
    answers = [bytes(16), bytes(range(16))]
    monkeypatch.setattr(keys.os, "urandom", lambda size: answers.pop(0))
    assert len(words(keys.candidate_keys(2))) == 2
    assert not answers


def test_seeds_reproduce_and_extend():
    for seed in (0, 7, 2**32 - 1):
        short, long = keys.candidate_keys(3, seed=seed), keys.candidate_keys(8, seed=seed)
        np.testing.assert_array_equal(jax.random.key_data(short), jax.random.key_data(long)[:3])
        assert len(words(long)) == 8
    assert not words(keys.candidate_keys(8, seed=1)) & words(keys.candidate_keys(8, seed=2))


def test_no_candidates_are_no_keys():
    assert keys.candidate_keys(0).shape == (0,)
    assert keys.candidate_keys(0, seed=1).shape == (0,)


def test_streams_and_their_steps_never_meet():
    roots = keys.candidate_keys(4, seed=0)

    def steps_of(root, name):
        stream = keys.stream(root, name)
        return jax.vmap(lambda step: jax.random.fold_in(stream, step))(np.arange(50))

    seen = [words(steps_of(root, name)) for root in roots for name in keys.STREAMS]
    assert len(set.union(*seen)) == 4 * len(keys.STREAMS) * 50
