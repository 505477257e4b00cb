"""Long fuzz of selections: every bound against laws of winners that are known exactly.

Not collected by pytest (minutes). From the repository's root:

    python tests/accounting/selection/long_fuzz_selection.py --seconds=60

prints, for each part, how many comparisons were made and how many fell short; it exits with 1 if
any did. `--seconds` is the CPU time given to each random part, `--seed` starts another sequence,
`--parts` chooses some.

Parts: single selections (profiles at both signs of epsilon, Renyi divergences, pure epsilons),
selections of selections, composed selections, pairs from random profiles, and expensive DP-SGD runs
scanned for lost mass. Laws are drawn from every family, from tables, and from classes written here.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import math
import pathlib
import sys
import time

import mpmath
import numpy as np
import test_selection_soundness as soundness

from dpjax import accounting
from dpjax.accounting import provenance

sys.path.append(str(pathlib.Path(__file__).parents[1] / "numerics"))
import test_loss_distribution as profiles

LONGEST = 1 << 17
"""Largest K of the oracle's sums; laws drawn here have 1e-15 of their mass beyond at most."""

EPSILONS = np.array([0.0, 0.01, 0.1, 0.3, 0.7, 1.3, 2.5, 4.0, 7.0, 12.0])
LAWS_OF_RUNS = [
    accounting.Poisson(100.0),
    accounting.Poisson(300.0),
    accounting.Poisson(2.0),
    accounting.Fixed(2),
    accounting.Fixed(20),
    accounting.Fixed(200),
    accounting.Geometric(10.0),
    accounting.Logarithmic(30.0),
    accounting.Binomial(500, 0.5),
    accounting.AtMost(accounting.Poisson(50.0), 80),
    accounting.Tabulated([1, 100], [0.9, 0.1]),
]
RUNS = [
    (q, sigma, steps)
    for q in (0.01, 0.1, 0.3)
    for sigma in (0.5, 0.6, 0.8, 1.0, 2.0)
    for steps in (20, 1000)
]


def one_of(
    first: accounting.RepetitionLaw, second: accounting.RepetitionLaw, share: float
) -> accounting.Tabulated:
    """K drawn from one of two laws, the far tails left out."""
    k = np.arange(1 + max(law.quantile(1.0 - 1e-12) for law in (first, second)))
    masses = (1.0 - share) * first.pmf(k) + share * second.pmf(k)
    masses /= masses.sum()
    return accounting.Tabulated(k[masses > 0.0], masses[masses > 0.0])


def random_table(generator: np.random.Generator) -> accounting.Tabulated:
    size = int(generator.integers(1, 6))
    k = np.sort(generator.choice(int(generator.choice([3, 8, 60, 400])) + size, size, False))
    if k[-1] == 0:
        k = np.array([2])
    masses = generator.dirichlet(np.full(k.size, float(generator.choice([0.1, 1.0])))) + 1e-9
    return accounting.Tabulated(k.tolist(), (masses / masses.sum()).tolist())


def random_law(generator: np.random.Generator, depth: int = 0) -> accounting.RepetitionLaw:
    mean = float(1.0 + 10.0 ** generator.uniform(-2, 2.3))
    kind = int(generator.integers(10 if depth == 0 else 8))
    if kind == 0:
        return accounting.Geometric(mean)
    if kind == 1:
        return accounting.Logarithmic(mean)
    if kind == 2:
        shape = float(generator.choice([-0.9, -0.5, 0.3, 2.0, 6.0]))
        return accounting.TruncatedNegativeBinomial(shape, min(mean, 1.5) if shape < -0.8 else mean)
    if kind == 3:
        return accounting.Poisson(mean * float(generator.choice([0.1, 1.0])))
    if kind == 4:
        return accounting.Binomial(
            int(generator.integers(1, 40)), float(generator.uniform(0.01, 1))
        )
    if kind == 5:
        return accounting.Fixed(int(generator.integers(1, 40)))
    if kind in (6, 7):
        return random_table(generator)
    if kind == 8:
        inner = random_law(generator, depth + 1)
        return accounting.AtMost(inner, int(max(inner.minimum, 1) + generator.integers(40)))
    inner = [random_law(generator, depth + 1) for _ in range(2)]
    return one_of(*inner, float(generator.uniform(0.01, 0.99)))


def random_pair(generator: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    p = generator.dirichlet(np.full(size, float(generator.choice([0.2, 1.0])))) + 1e-12
    tilt = generator.uniform(0.0, float(generator.choice([0.1, 1.0, 3.0])))
    q = p * np.exp(generator.uniform(-tilt, tilt, size))
    if generator.random() < 0.3:
        (p if generator.random() < 0.5 else q)[generator.integers(size)] = 0.0
    return p / p.sum(), q / q.sum()


def guarantee_of(p: np.ndarray, q: np.ndarray) -> accounting.Guarantee:
    possible = np.all((p > 0) == (q > 0))
    ratio = float(np.max(np.abs(np.log(p / q)))) * (1 + 1e-12) if possible else None
    return accounting.Guarantee(
        relation="replace_one",
        provenance=provenance.node("test", {}),
        pair=soundness.pair_of(p, q),
        renyi=soundness.renyi_of(p, q) if possible else None,
        pure_epsilon=ratio,
    )


def winner(law, p: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    """Law of the best of K under a total order (last is best), K = 0 in front.

    f(b) - f(a) = -sum_k P[K = k] b^k expm1(k log(a / b)) keeps the digits of rare winners, which
    a difference of generating functions loses: at epsilon 12 an error of 1e-16 counts as 1e-11.
    """
    masses = law.pmf(np.arange(min(law.maximum, LONGEST) + 1))
    k = np.flatnonzero(masses[1:]) + 1
    p = p.astype(np.longdouble)  # A winner 220 times in a row may have 1e-473.
    found = [law.pmf(0)]
    below = np.longdouble(0.0)
    for outcome in order:
        here = below + p[outcome]
        if outcome == order[-1]:
            here = np.longdouble(1.0)
        if p[outcome] > 0.0:
            with np.errstate(divide="ignore"):
                fallen = -np.expm1(k * np.log1p(-min(p[outcome] / here, np.longdouble(1.0))))
            found.append(np.sum(masses[k] * here**k * fallen))
        else:
            found.append(np.longdouble(0.0))
        below = here
    return np.array(found, dtype=np.longdouble)


def winners(law, p: np.ndarray, q: np.ndarray):
    """Both winners' laws under every total order of the outcomes."""
    for order in itertools.permutations(range(p.size)):
        yield tuple(winner(law, side, order) for side in (p, q))


def renyi(a: np.ndarray, b: np.ndarray, order: float) -> float:
    """Largest divergence of the two directions."""
    worst = 0.0
    for x, y in ((a, b), (b, a)):
        held = x > 0
        if np.any(y[held] <= 0):
            return math.inf
        logs = order * np.log(x[held]) + (1 - order) * np.log(y[held])
        worst = max(worst, float(np.logaddexp.reduce(logs)) / (order - 1))
    return worst


def short(claimed: np.ndarray, exact: np.ndarray) -> int:
    return int(np.sum(claimed < exact * (1 - 1e-9) - 1e-12))


def exact_profiles(a: np.ndarray, b: np.ndarray, epsilons: np.ndarray) -> np.ndarray:
    """Divergences of both directions, (2, epsilons)."""
    growth = np.exp(epsilons)[:, None]
    return np.array([np.maximum(x - growth * y, 0.0).sum(axis=1) for x, y in ((a, b), (b, a))])


def compare(selected: accounting.Guarantee, pairs, counts: collections.Counter, part: str):
    """Profiles of both directions and signs, and epsilon(delta), against exact pairs."""
    both = np.append(EPSILONS, -EPSILONS[1:7])
    pair = selected.pair
    bounds = np.array([pair.forward.delta(both), pair.backward.delta(both)])
    claimed = np.array([selected.delta(e) for e in EPSILONS])
    for law in (pair.forward, pair.backward):
        counts[part, "compared"] += 1
        counts[part, "short"] += law.total_mass() < 1 - 1e-9
    for a, b in pairs:
        exact = exact_profiles(a, b, both)
        counts[part, "compared"] += exact.size + EPSILONS.size
        counts[part, "short"] += short(bounds, exact)
        counts[part, "short"] += short(claimed, exact[:, : EPSILONS.size].max(axis=0))
        if selected.pure_epsilon is not None and selected.pure_epsilon < 700.0:
            (left,) = exact_profiles(a, b, np.array([selected.pure_epsilon])).max(axis=0)
            counts[part, "compared"] += 1
            counts[part, "short"] += left > 1e-12


def single(generator: np.random.Generator, counts: collections.Counter) -> None:
    law = random_law(generator)
    p, q = random_pair(generator, int(generator.integers(2, 5)))
    base = guarantee_of(p, q)
    exact = list(winners(law, p, q))
    for method in ("tight", "envelope"):
        compare(accounting.best_of(base, law, method), exact, counts, "single")
    if base.renyi is None:
        return
    orders = np.array([1.3, 2.0, 5.0, 20.0])
    bound = accounting.best_of(base, law, "rdp").rdp(orders)
    for order, claimed in zip(orders.tolist(), bound):
        counts["Renyi", "compared"] += 1
        truth = max(renyi(a, b, order) for a, b in exact)
        counts["Renyi", "short"] += claimed < truth * (1 - 1e-9) - 1e-9


def nested(generator: np.random.Generator, counts: collections.Counter) -> None:
    inner, outer = random_law(generator), random_law(generator)
    p, q = random_pair(generator, int(generator.integers(2, 4)))
    selected = accounting.best_of(guarantee_of(p, q), inner)
    if not math.isfinite(selected.epsilon(0.5)):
        return
    twice = accounting.best_of(selected, outer)
    exact = [
        pair
        for once in winners(inner, p, q)
        for pair in winners(outer, *(w / w.sum() for w in once))
    ]
    compare(twice, exact, counts, "nested")


def composed(generator: np.random.Generator, counts: collections.Counter) -> None:
    selections = []
    for _ in range(2):
        law = random_law(generator)
        p, q = random_pair(generator, int(generator.integers(2, 4)))
        selected = accounting.best_of(guarantee_of(p, q), law)
        selections.append((selected, list(winners(law, p, q))))
    (first, ones), (second, twos) = selections
    exact = [
        (np.outer(a, c).ravel(), np.outer(b, d).ravel())
        for (a, b), (c, d) in itertools.product(ones, twos)
    ]
    exact += [
        (np.outer(a, d).ravel(), np.outer(b, c).ravel())
        for (a, b), (c, d) in itertools.product(ones, twos)
        if first.pair.symmetric or second.pair.symmetric
    ]
    compare(accounting.compose(first, second), exact, counts, "composed")


def hulls(generator: np.random.Generator, counts: collections.Counter) -> None:
    counts["profiles", "compared"] += 1
    try:
        with mpmath.workdps(60):
            profiles.check_pair_from_profiles(generator)
    except (AssertionError, ValueError):
        counts["profiles", "short"] += 1


def scan(counts: collections.Counter, runs=RUNS, laws=LAWS_OF_RUNS) -> None:
    """Expensive runs: no mass lost, nested and composed selections never below their parts."""
    for run in runs:
        base = accounting.dp_sgd(*run)
        for law in laws:
            selected = accounting.best_of(base, law)
            for direction in (selected.pair.forward, selected.pair.backward):
                counts["mass", "compared"] += 1
                counts["mass", "short"] += direction.total_mass() < 1 - 1e-9
            nested = accounting.best_of(selected, accounting.Geometric(3.0))
            for other in (nested, accounting.compose(selected, selected)):
                for delta in (1e-9, 1e-5, 1e-2):
                    counts["parts", "compared"] += 1
                    counts["parts", "short"] += (
                        other.epsilon(delta) < selected.epsilon(delta) - 1e-9
                    )


PARTS = {
    "single": single,
    "nested": nested,
    "composed": composed,
    "profiles": hulls,
    "scan": scan,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of CPU, each random part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parts", nargs="*", default=[*PARTS], choices=PARTS)
    arguments = parser.parse_args()
    counts: collections.Counter = collections.Counter()
    for name in arguments.parts:
        generator = np.random.default_rng(arguments.seed)
        end, cases = time.process_time() + arguments.seconds, 0
        known = set(counts)
        if name == "scan":
            scan(counts)
        while name != "scan" and time.process_time() < end:
            PARTS[name](generator, counts)
            cases += 1
        print(f"{name}: {cases or len(RUNS) * len(LAWS_OF_RUNS)} cases", flush=True)
        for kind in sorted({kind for kind, _ in set(counts) - known}):
            compared, short_ones = counts[kind, "compared"], counts[kind, "short"]
            print(f"  {kind}: {compared} compared, {short_ones} fall short", flush=True)
    return int(any(number for (_, kind), number in counts.items() if kind == "short"))


if __name__ == "__main__":
    sys.exit(main())
