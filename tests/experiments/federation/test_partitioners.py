"""Divisions among clients: every record once, the stated skew, the stated minimum."""

import numpy as np
import pytest

from experiments.federation import partitioners

LABELS = np.random.default_rng(0).integers(0, 10, size=6000)


def _divisions():
    return {
        "iid": lambda seed: partitioners.iid(len(LABELS), 7, seed),
        "dirichlet": lambda seed: partitioners.dirichlet(LABELS, 7, 0.5, seed),
    }


@pytest.mark.parametrize("kind", ["iid", "dirichlet"])
def test_every_record_once_and_the_seed_decides(kind):
    divide = _divisions()[kind]
    parts = divide(1)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(LABELS)))
    assert all(np.array_equal(a, b) for a, b in zip(parts, divide(1)))
    assert not all(np.array_equal(a, b) for a, b in zip(parts, divide(2)))


def test_iid_sizes_differ_by_one_at_most():
    sizes = {len(part) for part in partitioners.iid(1001, 20, 0)}
    assert sizes == {50, 51}


def test_proportions_have_the_dirichlet_variance():
    """Share of a class at a client: mean 1/n, variance (1/n)(1 - 1/n) / (n alpha + 1)."""
    clients, alpha, labels = 10, 2.0, np.repeat(np.arange(100), 2000)
    parts = partitioners.dirichlet(labels, clients, alpha, 3)
    counts = partitioners.label_counts(labels, parts, 100)
    assert counts.shape == (clients, 100) and counts.sum() == len(labels)
    shares = counts / 2000.0
    exact = 0.1 * 0.9 / (clients * alpha + 1)
    # 1000 shares, kurtosis of a beta law: a standard error of about 6%; five of them.
    assert np.var(shares) == pytest.approx(exact, rel=0.3)
    for wrong in (2 / 3, 3 / 2):
        assert np.var(shares) != pytest.approx(0.09 / (clients * alpha * wrong + 1), rel=0.15)


def test_smaller_concentration_skews_labels_and_sizes_more():
    spreads = []
    for alpha in (30.0, 5.0, 0.5):
        parts = partitioners.dirichlet(LABELS, 20, alpha, 5)
        counts = partitioners.label_counts(LABELS, parts, 10)
        spreads.append((counts.sum(axis=1).std(), (counts / counts.sum(1, keepdims=True)).std()))
    assert spreads[0] < spreads[1] < spreads[2]
    assert spreads[0][1] < spreads[1][1] < spreads[2][1]


def test_minimum_size_is_kept_by_drawing_again():
    labels = np.repeat([0, 1], [760, 240])
    smallest = [
        min(len(p) for p in partitioners.dirichlet(labels, 20, 0.5, seed)) for seed in range(20)
    ]
    assert min(smallest) >= partitioners.MINIMUM_SIZE
    unconditioned = [
        min(len(p) for p in partitioners.dirichlet(labels, 20, 0.5, seed, minimum_size=1))
        for seed in range(20)
    ]
    assert min(unconditioned) < partitioners.MINIMUM_SIZE
