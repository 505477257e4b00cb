"""The "Formal guarantees" sections of the selectors say what the objects do; one cannot drift."""

import inspect

import numpy as np
import pytest

from dpjax import accounting

CASES = {
    # constructor: (a guarantee made by it, words its section must contain)
    "doubling_loop": (
        lambda: accounting.doubling_loop(0.2, 5),
        ("whatever the data", "caps must be enforced", "2N - 1"),
    ),
    "exponential_mechanism": (
        lambda: accounting.exponential_mechanism(0.7),
        ("bounded-range", "Gumbel", "adaptive"),
    ),
    "split": (
        lambda: accounting.split(
            accounting.gaussian(2.0), accounting.gaussian(3.0), probability=0.3
        ),
        ("nobody learns", "never a hash", "same guarantee for every outcome", "Blackwell"),
    ),
    "vote": (lambda: accounting.vote(5.0, 2, 10), ("replace one client", "standard deviation")),
    "skellam_vote": (
        lambda: accounting.skellam_vote(25.0, 2, 10),
        ("replace one client", "tails charged"),
    ),
    "discrete_gaussian_vote": (
        lambda: accounting.discrete_gaussian_vote(5.0, 10, 2, 10),
        ("replace one client", "minimum_survivors"),
    ),
    "output_perturbation": (
        lambda: accounting.output_perturbation(0.1, 0.3),
        ("Euclidean", "final parameters"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_section_and_object_agree(name):
    make, words = CASES[name]
    documentation = inspect.getdoc(getattr(accounting, name))
    assert "Formal guarantees:" in documentation
    section = " ".join(documentation.split("Formal guarantees:")[1].split("Args:")[0].split())
    for word in words:
        assert word in section
    guarantee = make()
    is_replaced = name.endswith("vote") or name == "output_perturbation"

    assert guarantee.relation == ("replace_one" if is_replaced else "add_or_remove_one")


@pytest.mark.parametrize("name", CASES)
def test_conforms_like_every_guarantee(name):
    """One table for all: profiles fall, epsilon inverts delta, Renyi bounds the tight one."""
    guarantee = CASES[name][0]()
    deltas = [guarantee.delta(epsilon) for epsilon in np.linspace(0, 3, 13)]
    assert all(later <= earlier + 1e-15 for earlier, later in zip(deltas, deltas[1:]))
    for delta in (1e-8, 1e-5, 1e-2):
        epsilon = guarantee.epsilon(delta)
        assert guarantee.delta(epsilon) <= delta * (1 + 1e-6)
        assert epsilon <= guarantee.epsilon(delta, method="rdp") + 1e-12
        assert guarantee.epsilon(delta, method="rdp") <= guarantee.epsilon(
            delta, method="rdp_classic"
        )
    curve = guarantee.rdp(np.array([1.5, 2.0, 8.0, 64.0]))
    assert np.all(np.diff(curve) > 0)
    assert accounting.from_provenance(guarantee.provenance).epsilon(1e-5) == guarantee.epsilon(1e-5)
    # Selection and composition take it like any other.
    best = accounting.best_of(guarantee, accounting.Geometric(mean=3))
    assert best.epsilon(1e-5) > guarantee.epsilon(1e-5)
    twice = accounting.compose(guarantee, guarantee)
    assert guarantee.epsilon(1e-5) < twice.epsilon(1e-5) <= 2 * guarantee.epsilon(1e-5) + 0.2
