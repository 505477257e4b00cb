"""Figure 9: DP-HYPE against clients that send accuracies instead of votes (RawLosses).

DP-HYPE, arXiv:2510.04902; see the package for how to run. CIFAR-10, 100 clients, concentrations 5
and 0.5 (tables of figure 5). What the paper shows: a vote of one beats a vote weighted by the
accuracy, which is below one at the same noise. On MNIST (`--datasets=mnist`) accuracies are near
one, and nothing separates the two. --quick takes twenty seconds.

Its rivals, those of figures 10 and 11 too, are simulated on the table that DP-HYPE votes on, with
noise of the analytic Gaussian (one client replaced) at the same epsilon and delta; where the
authors' code adds another amount, that is drawn beside it. Accuracies and clipped losses lie in
[0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from dpjax import accounting
from dpjax.federated import voting
from experiments.federation.many_clients import wins
from experiments.figures.dp_hype import trade_off
from experiments.figures.dp_hype.studies import Study, listed
from experiments.figures.dp_hype.tables import Table
from experiments.figures.dp_hype.trade_off import DELTA, VOTES
from experiments.figures.dp_hype.vote_figure import Options, vote_figure
from experiments.figures.figure import FULL, MID, QUICK, FigureSpec

ARTIFACT_SUBSET_SIGMAS = {0.1: 45.0, 0.25: 25.0, 0.5: 10.7, 1.0: 5.5, 3.0: 2.08, math.inf: 0.0}
"""Noise on a subset's MEAN accuracy in the authors' code, whatever the subset's size."""

Winner = Callable[[float, np.random.Generator], int]
"""winner(epsilon, source) -> index of the candidate that one run chooses."""


def sigma(epsilon: float, sensitivity: float) -> float:
    """Standard deviation of the analytic Gaussian for a Euclidean sensitivity; 0 at infinity."""
    if math.isinf(epsilon):
        return 0.0
    # One vote of many candidates has sensitivity sqrt(2).
    return sensitivity / math.sqrt(2.0) * accounting.calibrate_vote(epsilon, DELTA, 1, 3)


def raw_losses(table: Table) -> Winner:
    """RawLosses: a client sends the accuracies of its k best instead of ones.

    Replacing a client moves 2k numbers by at most 1 each: the sensitivity of the vote.
    """
    scores = table.scores
    ballots = voting.ballots(scores.losses, scores.accuracies, VOTES)
    total = (ballots * scores.accuracies).sum(axis=0)

    def winner(epsilon: float, source: np.random.Generator) -> int:
        noise = sigma(epsilon, math.sqrt(2 * VOTES)) * source.standard_normal(total.size)
        return int(np.argmax(total + noise))

    return winner


def subsets(table: Table, *, as_in_artifact: bool) -> Winner:
    """Subsets: clients are divided at random, one candidate to each part; the mean accuracies vote.

    The division is public, so replacing a client moves one sum of accuracies by at most 1, and one
    mean by 1 over the size of its subset. Sizes differ by one at most; which candidates have the
    smaller subsets, and with them the larger noise, is drawn with the division.
    """
    accuracies = np.nan_to_num(table.scores.accuracies)
    clients, candidates = accuracies.shape
    if clients < candidates:
        raise ValueError(f"{clients} clients for {candidates} subsets: pass at least as many")

    def winner(epsilon: float, source: np.random.Generator) -> int:
        parts = np.array_split(source.permutation(clients), candidates)
        parts = [parts[place] for place in source.permutation(candidates)]
        means = np.array([accuracies[part, place].mean() for place, part in enumerate(parts)])
        sizes = np.array([len(part) for part in parts])
        if not as_in_artifact:
            scale = sigma(epsilon, 1.0) / sizes
        elif epsilon in ARTIFACT_SUBSET_SIGMAS:
            scale = ARTIFACT_SUBSET_SIGMAS[epsilon]
        else:
            known = ", ".join(f"{epsilon:g}" for epsilon in ARTIFACT_SUBSET_SIGMAS)
            raise ValueError(f"the authors have no noise for epsilon={epsilon:g}: pass of {known}")
        return int(np.argmax(means + scale * source.standard_normal(candidates)))

    return winner


def feathers(table: Table) -> Winner:
    """Feathers (Seng et al. 2022), simplified: every candidate explored once, the best kept.

    Each client adds noise of its own to its clipped loss before and after training with a
    candidate: 2p numbers, each of sensitivity 1, seen by the server one by one. The server averages
    the rewards over clients. The rounds of exploration of the real Feathers, which sample
    candidates by earlier rewards, are left out.
    """
    losses = np.nan_to_num(table.scores.losses, nan=1.0).clip(0.0, 1.0)
    clients, candidates = losses.shape
    rewards = 1.0 - losses.mean(axis=0)  # An untrained net's loss is above 1, hence clipped to it.

    def winner(epsilon: float, source: np.random.Generator) -> int:
        local = sigma(epsilon, math.sqrt(2 * candidates))
        noise = local * math.sqrt(2.0 / clients) * source.standard_normal(candidates)
        return int(np.argmax(rewards + noise))

    return winner


ALGORITHMS: dict[str, dict[str, Callable[[Table], Winner]]] = {
    "raw_losses": {"RawLosses": raw_losses},
    "subsets": {
        "Subsets": lambda table: subsets(table, as_in_artifact=False),
        "Subsets, the authors' noise": lambda table: subsets(table, as_in_artifact=True),
    },
    "feathers": {"Feathers (simplified)": feathers},
}


def figure(
    number: int, ablation: str, federations: Mapping[str, Sequence], *, quick: str
) -> FigureSpec:
    """DP-HYPE beside a key of `ALGORITHMS`, for `federations` as `studies.listed` has them."""

    def rows(study: Study, options: Options) -> list[dict]:
        table = options.tables.table(study)
        found = trade_off.dp_hype_rows(study, options)
        for place, (name, make) in enumerate(ALGORITHMS[ablation].items()):
            source = np.random.default_rng((study.seed, place))
            winner = make(table)
            outcomes = [
                won
                for epsilon in options.epsilons
                for won in wins(epsilon, [winner(epsilon, source) for _ in range(options.runs)])
            ]
            found += trade_off.outcome_rows(name, outcomes, table.federated)
        return found

    return vote_figure(
        number, trade_off.COLUMNS, listed(federations), rows, trade_off.drawer(2),
        quick=quick,
    )  # fmt: skip


_PAPER = (("cifar10", 100, 5.0), ("cifar10", 100, 0.5))

FIGURE = figure(
    9,
    "raw_losses",
    {FULL: _PAPER, MID: (*_PAPER, ("mnist", 100, 5.0), ("mnist", 100, 0.5)), QUICK: _PAPER},
    quick="20 s",
)

if __name__ == "__main__":
    FIGURE.run()
