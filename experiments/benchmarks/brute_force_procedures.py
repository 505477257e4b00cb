"""Whole procedures on small cases, enumerated exactly, against what is stated for them.

Every outcome of a selection, and of a final training that depends on it, is listed with its exact
probability on two neighbours; the divergence of the two lists is the truth. Cases are drawn at
random, extreme ones among them. Prints how many there were, how many truths exceed what is stated
(none must), and the largest share of it that was reached.

    python -m experiments.benchmarks.brute_force_procedures --cases=2000
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np
from absl import flags
from scipy import special

from dpjax import accounting
from dpjax.commands import command_line

_CASES = flags.DEFINE_integer("cases", 2000, "Random cases of each procedure.")

EPSILONS = np.array([0.0, 0.05, 0.15, 0.3, 0.6, 1.0, 1.6, 2.5])
ROUNDING = 1e-11
Laws = tuple[np.ndarray, np.ndarray]
Case = tuple[tuple, Callable[[], accounting.Guarantee], Laws]


def divergence(laws: Laws) -> np.ndarray:
    """The larger of both directions at EPSILONS."""
    p, q = laws
    t = np.exp(EPSILONS)[:, None]
    return np.maximum(np.maximum(p - t * q, 0).sum(1), np.maximum(q - t * p, 0).sum(1))


def two_outcomes(generator: np.random.Generator, epsilon: float, size: int) -> Laws:
    """A random mechanism within `epsilon`: randomised response, and any function of its answer."""
    high = 1.0 / (1.0 + np.exp(-epsilon))
    if generator.random() < 0.5:
        rows = np.eye(size)[generator.integers(0, size, 2)]
    else:
        rows = generator.dirichlet(np.full(size, 0.3), 2)
    return high * rows[0] + (1 - high) * rows[1], (1 - high) * rows[0] + high * rows[1]


def followed(generator: np.random.Generator, laws: Laws, epsilon: float) -> Laws:
    """What is chosen, and the outcome of a training within `epsilon`, another for each choice."""
    parts = [
        (p * mine, q * its)
        for p, q in zip(*laws)
        for mine, its in [two_outcomes(generator, epsilon, 3)]
    ]
    return tuple(np.concatenate(side) for side in zip(*parts))


def neighbouring_scores(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Whole scores of two to four candidates, each changed by one unit at most."""
    scores = generator.integers(0, generator.choice([1, 4]) + 1, generator.integers(2, 5))
    return scores, scores + generator.integers(-1, 2, scores.size)


def exponential(generator: np.random.Generator) -> Case:
    """A choice by the exponential mechanism on partitions' votes, then a final training."""
    epsilon, final = generator.choice([0.2, 0.7, 1.5]), generator.choice([0.3, 1.0])
    laws = tuple(special.softmax(epsilon / 2 * s) for s in neighbouring_scores(generator))
    return (
        ("exponential", epsilon, final),
        lambda: accounting.compose(
            accounting.exponential_mechanism(epsilon), accounting.pure(final)
        ),
        followed(generator, laws, final),
    )


def flips(scores: np.ndarray, epsilon: float) -> np.ndarray:
    """Chances of permute-and-flip: over all orders, coin after coin."""
    heads = np.exp(epsilon / 2 * (scores - scores.max()))
    law, orders = np.zeros(scores.size), list(itertools.permutations(range(scores.size)))
    for order in orders:
        left = 1.0 / len(orders)
        for index in order:
            law[index] += left * heads[index]
            left *= 1.0 - heads[index]
    return law


def permute_and_flip(generator: np.random.Generator) -> Case:
    """The same by permute-and-flip, which is charged as pure."""
    epsilon, final = generator.choice([0.2, 0.7, 1.5]), generator.choice([0.3, 1.0])
    laws = tuple(flips(s, epsilon) for s in neighbouring_scores(generator))
    return (
        ("flips", epsilon, final),
        lambda: accounting.compose(accounting.pure(epsilon), accounting.pure(final)),
        followed(generator, laws, final),
    )


def laplace(scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Whole numbers and their chances by the discrete Laplace law; the tails go to the ends."""
    reach = int(38 * scale)
    k = np.arange(-reach, reach + 1)
    masses = np.exp(-np.abs(k) / scale)
    return k, masses / masses.sum()


def loop(scores: np.ndarray, epsilon: float, cap: int, kept: bool) -> np.ndarray:
    """Chances of all transcripts of the doubling loop; `kept`: one noise of thresholds a hit."""
    rho, chance = laplace(2.0 / epsilon)
    noise, its_chance = laplace(4.0 / epsilon)
    below = np.append(0.0, np.cumsum(its_chance))
    levels = 4

    def walk(answers: tuple[bool, ...], weights: np.ndarray) -> Iterator[float]:
        state = accounting.ThresholdLoop(levels, *(((None, cap)) if kept else (cap,)))
        for answer in answers:
            state.propose()
            state.record(answer)
        if state.finished:
            yield float(weights.sum())
            return
        threshold = state.propose() + rho
        missed = weights
        for score in scores:
            # The noise is below threshold - score.
            place = np.clip(threshold - score - noise[0], 0, noise.size)
            passed = missed * (1.0 - below[place])
            yield from walk((*answers, True), chance * passed.sum())
            missed = missed * below[place]
        yield from walk((*answers, False), missed if kept else chance * missed.sum())

    return np.array(list(walk((), chance)))


def doubling(generator: np.random.Generator) -> Case:
    """The doubling loop and all its answers, noise fresh in every iteration or kept to a hit."""
    epsilon, cap = float(generator.choice([0.5, 1.0])), int(generator.integers(1, 4))
    kept = bool(generator.random() < 0.5)
    cap = min(cap, 2) if kept else cap
    scores, others = neighbouring_scores(generator)
    laws = (loop(scores[:2], epsilon, cap, kept), loop(others[:2], epsilon, cap, kept))
    caps = {"variant": "segments", "hits": cap} if kept else {"iterations": cap}
    return ("doubling", epsilon, cap, kept), lambda: accounting.doubling_loop(epsilon, **caps), laws


def vote(generator: np.random.Generator) -> Case:
    """Noisy counts of three candidates with Skellam noise, one client's votes replaced."""
    variance, votes = float(generator.choice([2.0, 6.0])), int(generator.integers(1, 3))
    ballots = [np.isin(range(3), chosen) for chosen in itertools.combinations(range(3), votes)]
    mine, its = (ballots[i] for i in generator.choice(len(ballots), 2))
    k = np.arange(-30, 31)
    one = special.ive(np.abs(k), variance)

    def law(shift: np.ndarray) -> np.ndarray:
        sides = [np.interp(k - moved, k, one, left=0.0, right=0.0) for moved in shift]
        return np.multiply.outer(np.multiply.outer(sides[0], sides[1]), sides[2]).ravel()

    laws = law(mine.astype(int)), law(its.astype(int))
    return ("vote", variance, votes), lambda: accounting.skellam_vote(variance, votes, 3), laws


def best(masses: np.ndarray, law: accounting.RepetitionLaw, order: np.ndarray) -> np.ndarray:
    """The best of K runs by an order of the outcomes, and (last) that there was none."""
    reached = law.success_probability(np.clip(np.append(0.0, np.cumsum(masses[order])), 0.0, 1.0))
    return np.append(np.diff(reached), 1.0 - reached[-1])


def subset(generator: np.random.Generator) -> Case:
    """Tuning on a secret part, the final training on the rest or on all records."""
    epsilon, final = generator.choice([0.5, 1.0]), generator.choice([0.3, 1.0])
    q, on = float(generator.choice([0.1, 0.3])), str(generator.choice(["rest", "all"]))
    repeated = (accounting.Geometric(3.0), accounting.Poisson(2.0))[generator.integers(0, 2)]
    order = generator.permutation(3)
    p_a, q_a = (best(m, repeated, order) for m in two_outcomes(generator, epsilon, 3))
    with_it, without = [], []
    for p, other in zip(p_a, q_a):
        p_m, q_m = two_outcomes(generator, final, 3)
        if on == "rest":
            with_it.append(q * p * q_m + (1 - q) * other * p_m)
        else:
            with_it.append((q * p + (1 - q) * other) * p_m)
        without.append(other * q_m)

    def stated() -> accounting.Guarantee:
        tuned = accounting.best_of(accounting.pure(epsilon), repeated)
        return accounting.split(tuned, accounting.pure(final), probability=q, final_on=on)

    laws = np.concatenate(with_it), np.concatenate(without)
    return ("subset", epsilon, final, q, on, repr(repeated)), stated, laws


def threshold(generator: np.random.Generator) -> Case:
    """Runs until one is accepted, each outcome with a chance of its own, then a final training."""
    epsilon, final = float(generator.choice([0.3, 1.0])), 0.3
    halting = float(generator.choice([0.01, 0.1, 0.5]))
    parts = generator.choice([0.0, 1.0, generator.random()], 3)
    laws = []
    for masses in two_outcomes(generator, epsilon, 3):
        kept = np.append((1 - halting) * parts * masses, halting)
        laws.append(kept / kept.sum())

    def stated() -> accounting.Guarantee:
        stopped = accounting.stop_at_threshold(accounting.pure(epsilon), halting)
        return accounting.compose(stopped, accounting.pure(final))

    return ("threshold", epsilon, halting), stated, followed(generator, tuple(laws), final)


PROCEDURES = (exponential, permute_and_flip, doubling, vote, subset, threshold)


def tried(procedure: Callable, cases: int, seed: int) -> tuple[int, float]:
    """Counts truths above what is stated, and returns the largest share of it that was reached."""
    generator = np.random.default_rng(seed)
    stated: dict[tuple, np.ndarray] = {}
    above, share = 0, 0.0
    for _ in range(cases):
        key, guarantee, laws = procedure(generator)
        if key not in stated:
            found = guarantee()
            stated[key] = np.array([found.delta(epsilon) for epsilon in EPSILONS])
        truth = divergence(laws)
        above += bool(np.any(truth > stated[key] * (1.0 + 1e-9) + ROUNDING))
        seen = stated[key] > 1e-6
        share = max(share, float(np.max(truth[seen] / stated[key][seen], initial=0.0)))
    return above, share


def main() -> int:
    """Prints a line for each procedure; returns the exit code."""
    if _CASES.value < 1:
        raise ValueError(f"--cases={_CASES.value}: pass at least 1")
    worst = 0
    for procedure in PROCEDURES:
        above, share = tried(procedure, _CASES.value, seed=0)
        worst += above
        print(f"{procedure.__name__}: {_CASES.value} cases, {above} above, share {share:.3f}")
    return int(worst > 0)


if __name__ == "__main__":
    command_line.run(main)
