"""How well a search does where the truth is known: the sparse vector example, by true values.

Sixteen random settings, then 64 proposals, 50 random orders each, on the example of figure 2, whose
utilities are known exactly; ten seeds each, for two anti-ideal points. Expected hypervolume
improvement (EHVI) as it is reported in batches of 8 and 16, the same in log epsilon, random search
(80 settings, uniform over the unit cube of log b and C), and one proposal at a time: EHVI and the
paper's criterion (HVPoI). At (10, 1) the whole domain holds 1.541, at (100, 1) 40.1.

Every search is judged four ways; only the first can be seen without knowing the truth:
  observed          hypervolume of the measured points: flattered by luck;
  measured front    true hypervolume of the settings on the measured front: what one gets by
                    taking it at its word;
  model's front     true hypervolume of the settings that the Gaussian process thinks are on the
                    front, by its means at the settings evaluated;
  all evaluations   true hypervolume of everything evaluated: the most any choice could make of it.

Medians over ten seeds, after all 80 evaluations:

                                observed  measured front  model's front  all evaluations
  anti-ideal (10, 1)
  EHVI, one at a time           1.663     1.480           1.515          1.523
  EHVI, batches of 8            1.662     1.487           1.498          1.520
  EHVI, batches of 16           1.662     1.489           1.509          1.522
  EHVI in log epsilon, of 8     1.678     1.488           1.515          1.525
  HVPoI, one at a time          1.652     1.458           1.498          1.522
  random                        1.526     1.419           1.419          1.444
  anti-ideal (100, 1)
  EHVI, one at a time           39.7      38.1            38.8           38.8
  EHVI, batches of 8            39.5      37.9            38.6           38.7
  EHVI, batches of 16           39.4      37.9            38.5           38.6
  EHVI in log epsilon, of 8     35.9      35.1            35.3           35.3
  HVPoI, one at a time          38.8      36.8            37.2           37.2
  random                        32.3      31.7            31.7           32.0

By everything evaluated EHVI of every kind beats random on ten seeds of ten at both points, and
HVPoI on ten and nine. At (10, 1) the measured front is a poor choice: the winner's curse takes much
of what the search had gained; choosing by the process costs nothing and keeps more of it.

Not in the paper, which shows its searches on data where the truth is unknown.

  python -m experiments.figures.dpareto.sparse_vector_search --out_dir=docs/figures/dpareto

Takes two and a half minutes on one CPU core; --processes runs several searches at once; with
--quick (2 seeds, 16 + 16 evaluations, EHVI in batches of 8 and random) a few seconds. Finished
searches are kept in the rows, and a stopped program goes on from there: after a change of the
search itself, delete them.
"""

from __future__ import annotations

import dataclasses
import itertools
import multiprocessing
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures

import numpy as np
from matplotlib.figure import Figure

from dpjax import pareto, plotting
from dpjax.pareto import batches, fronts
from experiments.figures.dpareto import maps, sparse_vector_example
from experiments.figures.figure import FULL, QUICK, FigureSpec, option
from experiments.figures.panels import legend_below
from experiments.figures.rows import RowFolder, distinct, select

NAME = "sparse_vector_search"
SEARCH_COLUMNS = ("method", "batch_size", "anti_ideal_epsilon", "seed")
COLUMNS = {
    "method": "name", "batch_size": "proposals", "anti_ideal_epsilon": "nats", "seed": "number",
    "evaluations": "evaluations", "observed": "nats", "measured_front": "nats",
    "model_front": "nats", "all_evaluations": "nats", "seconds": "s",
}  # fmt: skip
INITIAL, EVALUATIONS, REPETITIONS, SEEDS = 16, 80, 50, 10
SEARCHES = (
    ("ehvi", 8),
    ("random", 8),
    ("ehvi_log_epsilon", 8),
    ("ehvi", 16),
    ("hvpoi", 1),
    ("ehvi", 1),
)
LABELS = {
    ("ehvi", 1): "EHVI, one at a time",
    ("ehvi", 8): "EHVI, batches of 8",
    ("ehvi", 16): "EHVI, batches of 16",
    ("ehvi_log_epsilon", 8): "EHVI in log epsilon, batches of 8",
    ("hvpoi", 1): "HVPoI, one at a time (the paper)",
    ("random", 8): "random",
}
ANTI_IDEALS = (10.0, 100.0)
EXAMPLE = sparse_vector_example.SparseVectorExample()


@dataclasses.dataclass(frozen=True)
class Options:
    """What the command line may change."""

    processes: int = option(1, "Searches at the same time.", least=1)


def model_front(record: pareto.SearchRecord) -> np.ndarray:
    """Returns which evaluations (n,) bool are on the front of (epsilon, mean of the process)."""
    processes = pareto.fitted(record, np.random.default_rng(record.identity["seed"]))
    means, _ = batches.objectives_at(processes, record.evaluated_inputs)
    # Epsilon is known exactly: only the error is the model's.
    believed = np.stack([np.log(record.epsilon), means[:, 1]], axis=1)
    return fronts.non_dominated(believed)


def judge(record: pareto.SearchRecord, number: int, *, last: bool) -> dict[str, float | None]:
    """Returns the four hypervolumes after the first `number` evaluations of a search.

    Args:
      record: of the search.
      number: of evaluations that count.
      last: whether these are all, so that the model's front is asked for.
    """
    measured = record.points[:number]
    error = 1 - EXAMPLE.expected_utilities(record.settings)[:number]
    true = np.stack([measured[:, 0], error], axis=1)
    chosen = fronts.non_dominated(measured)
    return {
        "observed": fronts.hypervolume(measured, record.anti_ideal),
        "measured_front": fronts.hypervolume(true[chosen], record.anti_ideal),
        "model_front": fronts.hypervolume(true[model_front(record)], record.anti_ideal)
        if last
        else None,
        "all_evaluations": fronts.hypervolume(true, record.anti_ideal),
    }


def run_search(
    method: str, batch_size: int, anti_ideal: float, seed: int, evaluations: int
) -> list[dict]:
    """Runs one search; returns a row after every eight evaluations.

    Args:
      method: of `pareto.search`.
      batch_size: of the proposals.
      anti_ideal: its epsilon; its error is 1.
      seed: of everything drawn.
      evaluations: in all.
    """
    start = time.monotonic()
    record = pareto.search(
        sparse_vector_example.DOMAIN,
        EXAMPLE.epsilons,
        EXAMPLE.utility_oracle(REPETITIONS),
        method=method,
        evaluations=evaluations,
        initial=INITIAL,
        batch_size=batch_size,
        anti_ideal=(anti_ideal, 1.0),
        seed=seed,
    )
    seconds = time.monotonic() - start
    return [
        {
            "method": method,
            "batch_size": batch_size,
            "anti_ideal_epsilon": anti_ideal,
            "seed": seed,
            "evaluations": number,
            **judge(record, number, last=number == evaluations),
            "seconds": seconds,
        }
        for number in range(INITIAL, evaluations + 1, 8)
    ]


def compute(folder: RowFolder, options: Options = Options()) -> None:
    """Runs the searches that the folder's rows do not hold yet; quick ones are few and short."""
    kinds = (("ehvi", 8), ("random", 8)) if folder.size == QUICK else SEARCHES
    evaluations, seeds = (32, 2) if folder.size == QUICK else (EVALUATIONS, SEEDS)
    wanted = [
        (method, batch_size, anti_ideal, seed)
        for method, batch_size in kinds
        for anti_ideal in ANTI_IDEALS
        for seed in range(seeds)
    ]
    kept = folder.read(NAME)
    found = {search: select(kept, **dict(zip(SEARCH_COLUMNS, search))) for search in wanted}
    missing = [
        search for search in wanted
        if not found[search] or found[search][-1]["evaluations"] != evaluations
    ]  # fmt: skip
    for number, (search, rows) in enumerate(_searched(missing, evaluations, options.processes), 1):
        found[search] = rows
        folder.report(f"search {number} of {len(missing)}")
        folder.write(NAME, COLUMNS, itertools.chain(*found.values()))


def _searched(searches: Sequence[tuple], evaluations: int, processes: int) -> Iterator[tuple]:
    """Yields each search with its rows as it ends."""
    if processes == 1:
        for search in searches:
            yield search, run_search(*search, evaluations)
        return
    # New processes, not forked ones: JAX runs threads.
    context = multiprocessing.get_context("spawn")
    with futures.ProcessPoolExecutor(processes, mp_context=context) as pool:
        running = {pool.submit(run_search, *search, evaluations): search for search in searches}
        for done in futures.as_completed(running):
            yield running[done], done.result()


def table(rows: Sequence[Mapping], column: str) -> np.ndarray:
    """Returns one column of one kind of search as (seeds, checkpoints)."""
    return np.array(
        [[row[column] for row in select(rows, seed=seed)] for seed in distinct(rows, "seed")],
        dtype=np.float64,
    )


def draw(rows: Sequence[Mapping]) -> Figure:
    """Draws true hypervolume against evaluations, and below the four judgements at the end."""
    figure, panels = maps.new_square(2, len(ANTI_IDEALS), height=7.0)
    kinds = [
        key for key in LABELS
        if select(rows, method=key[0], batch_size=key[1])
    ]  # fmt: skip
    judgements = ("observed", "measured_front", "model_front", "all_evaluations")
    for place, anti_ideal in enumerate(ANTI_IDEALS):
        above, below = panels[:, place]
        for index, (method, batch_size) in enumerate(kinds):
            members = select(
                rows, method=method, batch_size=batch_size, anti_ideal_epsilon=anti_ideal
            )
            colour = plotting.PALETTE[index]
            counts = distinct(members, "evaluations")
            low, middle, high = np.quantile(
                table(members, "all_evaluations"), [0.1, 0.5, 0.9], axis=0
            )
            above.plot(counts, middle, color=colour, label=LABELS[method, batch_size])
            above.fill_between(counts, low, high, color=colour, alpha=0.15, linewidth=0)
            final = select(members, evaluations=counts[-1])
            for position, column in enumerate(judgements):
                values = np.array([row[column] for row in final])
                offset = position + (index - (len(kinds) - 1) / 2) * 0.15
                below.plot(
                    np.full(len(values), offset), values, ".", color=colour, alpha=0.5, markersize=4
                )
                below.plot(offset, np.median(values), "_", color=colour, markersize=10, mew=2)
        above.set_title(f"anti-ideal ({anti_ideal:g}, 1): median and 10-90% of seeds")
        above.set_xlabel("evaluations")
        above.set_ylabel("true hypervolume, all evaluations")
        below.set_xticks(
            range(len(judgements)),
            [
                "observed",
                "measured\nfront",
                "model's\nfront",
                "all evalu-\nations",
            ],
        )
        below.set_ylabel(f"hypervolume after {counts[-1]} evaluations")
    legend_below(figure, panels[0, 0], 3)
    return figure


FIGURE = FigureSpec(
    "dpareto",
    NAME,
    COLUMNS,
    {FULL: "two and a half minutes", QUICK: "5 s"},
    draw,
    train=compute,
    options=Options(),
)

if __name__ == "__main__":
    FIGURE.run()
