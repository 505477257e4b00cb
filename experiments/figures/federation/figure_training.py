r"""What client-level privacy leaves of federated averaging: test accuracy against epsilon.

Not in a paper. Multinomial logistic regression by `many_clients.train_privately`:
clipped integer updates (clip norm 1), discrete Gaussian noise, all clients in every round, replace
one client, delta 1e-5. Epsilon is that of a vote and the training together; the vote, charged at an
eighth of it, is not held here: the candidate is fixed (learning rate 0.1, decay 1, momentum 0.9, a
tenth of the clients may be missing). Five local epochs. Dashed: without noise.

What it shows: fifty clients are few. A step's noise is then longer than the clip norm itself, and
a model worth having costs an epsilon of eight and more; a thousand small clients train well at
epsilon 1. Accuracies are on public test data of a simulation; in a federation nobody knows them.

  python -m experiments.figures.federation.figure_training --data_dir=... \
      --out_dir=docs/figures/federation

Takes two minutes on one CPU core; --quick (digits alone, two seeds) ten seconds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

import experiments.data_sets  # noqa: F401 - registers what `data.load` may name.
from dpjax import data, models, plotting
from dpjax.federated import averaging, local_training
from dpjax.federated.voting import VoteSettings
from experiments.federation import many_clients, partitioners
from experiments.figures import figure, panels
from experiments.figures.figure import FULL, QUICK
from experiments.figures.rows import distinct, select

DELTA = 1e-5
CANDIDATE = {"learning_rate": 0.1, "decay": 1.0, "momentum": 0.9}
VOTE_SHARE = 1.0 / 8.0
_CANDIDATES, _VOTES = 100, 5


@dataclasses.dataclass(frozen=True)
class Setting:
    """One federation; `seeds` runs at each epsilon."""

    dataset: str
    clients: int
    rounds: int
    batch_size: int
    epsilons: tuple[float, ...]
    seeds: int


SETTINGS = {
    FULL: (
        Setting("digits", 50, 10, 8, (2.0, 4.0, 8.0, 20.0, 50.0, math.inf), 5),
        Setting("mnist", 50, 3, 64, (2.0, 4.0, 8.0, 20.0, 50.0, math.inf), 2),
        Setting("mnist", 1000, 10, 8, (0.5, 1.0, 2.0, 4.0, 8.0, math.inf), 2),
    ),
    QUICK: (Setting("digits", 50, 10, 8, (4.0, 20.0, math.inf), 2),),
}

COLUMNS = {
    "dataset": "name", "clients": "clients", "parameters": "parameters", "rounds": "rounds",
    "epsilon": "nats", "seed": "number", "step_noise": "clip norms", "test_accuracy": "share",
}  # fmt: skip


def compute(size: str, options: figure.DataFolders = figure.DEFAULT_FOLDERS) -> list[dict]:
    """Trains every federation; one row a run, epsilon empty without noise."""
    return [row for setting in SETTINGS[size] for row in _runs(setting, options)]


def _runs(setting: Setting, options: figure.DataFolders) -> list[dict]:
    loaded = data.load(setting.dataset, **options.folders)
    inputs, labels = np.asarray(loaded.train.inputs), np.asarray(loaded.train.labels)
    model = local_training.flat_model(models.LogisticRegression(loaded.classes), inputs.shape[1:])
    parts = partitioners.iid(len(labels), setting.clients, 0, minimum_size=10)
    updates = many_clients.FederationUpdates(
        model,
        models.cross_entropy,
        [(inputs[part], labels[part]) for part in parts],
        epochs=5,
        batch_size=setting.batch_size,
        seed=0,
    )
    test = np.asarray(loaded.test.inputs), np.asarray(loaded.test.labels)
    rows = []
    for epsilon in setting.epsilons:
        plan = _plan(setting, model.dimension, epsilon)
        for seed in range(setting.seeds if plan.settings.private else 1):
            params = many_clients.train_privately(
                updates, plan, model.initial(0), CANDIDATE, seed=seed
            )
            noise = plan.standard_deviation * math.sqrt(model.dimension) / plan.settings.clip_norm
            shape = setting.dataset, setting.clients, model.dimension, setting.rounds
            spent = epsilon if plan.settings.private else None
            cells = (*shape, spent, seed, noise, local_training.accuracy(model, params, *test))
            rows.append(dict(zip(COLUMNS, cells, strict=True)))
    return rows


def _plan(setting: Setting, dimension: int, epsilon: float) -> averaging.AveragingPlan:
    """The training's noise, a vote being charged first."""
    rule = averaging.AveragingSettings(setting.clients, dimension, setting.rounds, epsilon, DELTA)
    if not rule.private:
        return rule.plan()
    vote = VoteSettings(setting.clients, _CANDIDATES, _VOTES, VOTE_SHARE * epsilon, DELTA)
    return rule.plan(vote.plan().guarantee)


def draw(rows: Sequence[Mapping]) -> Figure:
    """Mean accuracy against epsilon for each federation, with the range over seeds."""
    figure, axes = plotting.new_figure(panels.WIDTH, 4.2)
    for place, (dataset, clients) in enumerate(
        dict.fromkeys((row["dataset"], row["clients"]) for row in rows)
    ):
        members = select(rows, dataset=dataset, clients=clients)
        noisy = [row for row in members if row["epsilon"] is not None]
        epsilons = distinct(noisy, "epsilon")
        found = [
            [row["test_accuracy"] for row in select(noisy, epsilon=epsilon)] for epsilon in epsilons
        ]
        colour = plotting.PALETTE[place]
        axes.plot(
            epsilons,
            [np.mean(values) for values in found],
            marker="o",
            color=colour,
            label=f"{panels.DATA_SETS.get(dataset, dataset)}, {clients:,} clients, "
            f"{members[0]['rounds']} rounds",
        )
        axes.fill_between(
            epsilons,
            [min(values) for values in found],
            [max(values) for values in found],
            color=colour,
            alpha=0.15,
            linewidth=0,
        )
        for row in select(members, epsilon=None):
            axes.axhline(row["test_accuracy"], color=colour, linestyle="--", linewidth=1.2)
    axes.axhline(0.1, color="#777777", linestyle=":", linewidth=1.2)
    axes.text(0.99, 0.115, "guessing", transform=axes.get_yaxis_transform(), ha="right")
    axes.set_xscale("log")
    ticks = sorted(row["epsilon"] for row in rows if row["epsilon"] is not None)
    ticks = list(dict.fromkeys(ticks))
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(0.0, 1.0)
    axes.set_xlabel("epsilon of vote and training, delta 1e-5, one client replaced")
    axes.set_ylabel("test accuracy")
    axes.set_title("dashed: without noise, not private")
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 0.14))
    return figure


FIGURE = figure.FigureSpec(
    "federation",
    "figure_training",
    COLUMNS,
    {FULL: "two minutes", QUICK: "10 s"},
    draw,
    rows=compute,
    options=figure.DEFAULT_FOLDERS,
)

if __name__ == "__main__":
    FIGURE.run()
