"""How a simulated federation divides one data set among its clients: evenly, or skewed.

The skewed division follows Hsu, Qi & Brown, "Measuring the Effects of Non-Identical Data
Distribution for Federated Visual Classification", 2019: the records of each class are dealt out by
proportions drawn from a Dirichlet law, so that clients differ in their labels and in their sizes.
NumPy; a seed gives the same division everywhere.
"""

from __future__ import annotations

import numpy as np

from dpjax import checks

MINIMUM_SIZE = 10
"""Fewest records of a client unless told otherwise: eight to train on and two to test on."""

_ATTEMPTS = 10_000


def iid(
    number_of_records: int, clients: int, seed: int, *, minimum_size: int = MINIMUM_SIZE
) -> list[np.ndarray]:
    """Deals records out at random, in equal numbers but for one.

    Returns for each client the positions of its records, int64, sorted.
    """
    number_of_records = checks.whole("number_of_records", number_of_records, 0)
    clients, minimum_size = _checked(number_of_records, clients, minimum_size)
    seed = checks.whole("seed", seed, 0)
    shuffled = np.random.default_rng(seed).permutation(number_of_records)
    return [np.sort(part) for part in np.array_split(shuffled, clients)]


def dirichlet(
    labels: np.ndarray,
    clients: int,
    concentration: float,
    seed: int,
    *,
    minimum_size: int = MINIMUM_SIZE,
) -> list[np.ndarray]:
    """Deals each class out by proportions of its own, drawn from a symmetric Dirichlet law.

    Of `concentration` 30 is nearly even, 5 moderate, 0.5 strongly skewed. A division that leaves a
    client below `minimum_size` is drawn again, so the law is conditioned on that. Returns for each
    client the positions of its records, int64, sorted.
    """
    labels = _whole_labels(labels)
    clients, minimum_size = _checked(len(labels), clients, minimum_size)
    concentration = checks.positive("concentration", concentration)
    seed = checks.whole("seed", seed, 0)
    generator = np.random.default_rng(seed)
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    for _ in range(_ATTEMPTS):
        shares = generator.dirichlet(np.full(clients, concentration), size=len(members))
        cuts = [
            np.round(np.cumsum(share)[:-1] * len(member)).astype(np.int64)
            for share, member in zip(shares, members)
        ]
        sizes = np.sum([np.diff(c, prepend=0, append=len(m)) for c, m in zip(cuts, members)], 0)
        if sizes.min() >= minimum_size:
            break
    else:
        raise ValueError(
            f"{_ATTEMPTS} Dirichlet divisions with concentration {concentration} all left one of "
            f"{clients} clients fewer than {minimum_size} records: pass a larger concentration or "
            "fewer clients"
        )
    dealt = [np.split(generator.permutation(m), cut) for m, cut in zip(members, cuts)]
    return [np.sort(np.concatenate(parts)) for parts in zip(*dealt)]


def label_counts(labels: np.ndarray, parts: list[np.ndarray], classes: int) -> np.ndarray:
    """How many records of each class each client holds, (clients, classes) int64."""
    labels, classes = _whole_labels(labels), checks.whole("classes", classes)
    counts = []
    for part in checks.listed("parts", parts, "arrays of positions"):
        positions = checks.plain_array("each of the parts", part)
        if positions.ndim != 1 or (positions.size and positions.dtype.kind not in "iu"):
            raise ValueError(
                f"each of the parts must be positions of records, (m,) whole numbers, not "
                f"{positions.dtype} of shape {positions.shape}"
            )
        counts.append(np.bincount(labels[positions.astype(np.int64)], minlength=classes))
    return np.stack(counts)


def _whole_labels(labels: np.ndarray) -> np.ndarray:
    labels = checks.plain_array("labels", labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        # Not the value itself, which may be records.
        raise ValueError(
            f"labels are {labels.dtype} of shape {labels.shape}: pass (n,) whole numbers"
        )
    return labels


def _checked(number_of_records: int, clients: int, minimum_size: int) -> tuple[int, int]:
    """The clients and the minimum size as whole numbers, if the records are enough."""
    clients = checks.whole("clients", clients)
    minimum_size = checks.whole("minimum_size", minimum_size)
    if number_of_records < clients * minimum_size:
        raise ValueError(
            f"{number_of_records} records do not give {clients} clients {minimum_size} each: pass "
            "fewer clients or a smaller minimum_size"
        )
    return clients, minimum_size
