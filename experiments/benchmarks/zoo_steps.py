"""A private step of every model of the zoo, against the plain step and the others at their best.

  python -m experiments.benchmarks.zoo_steps --out_dir=out             # an hour on one core
  python -m experiments.benchmarks.zoo_steps --models=gpt,vit_ti --turns=3
  python -m experiments.benchmarks.zoo_steps --quick                   # tiny models, a few minutes
  python -m experiments.benchmarks.zoo_steps --opacus_python=/some/environment/bin/python

Ways of taking one step, all called in turn, ratios taken within a turn (median, quartiles):

  plain: gradient of the mean loss of a fixed batch, SGD. No privacy.
  engine: what `training.make_train` does in a step: draw a Poisson lot of that expected size,
    gather it, clip in micro-batches, add noise, SGD.
  ours: the clipped sum of the fixed batch in micro-batches of `auto` size, SGD; no draw, no noise.
  vmap: per-example gradients of the whole batch by `jax.vmap`, clipped and added up, SGD.
  jax-privacy: `jax_privacy.clipped_grad` of the fixed batch, SGD, with the `microbatch_size` that
    was fastest of --peer_rows in one trial each; where installed.
  torch, opacus-hooks, opacus-ghost: the twin in torch, see `opacus_steps`: plain, and private by
    Opacus with noise, on a fixed batch; each with the fastest micro-batches of --opacus_rows.

Those of torch run in a process of their own, by the interpreter that --opacus_python names; left
out if it names none. Theirs is to be compared with `engine`, which draws and gathers its lots
besides.

Seconds are CPU time of the process over the calls of a turn, so that work beside it weighs little;
hold it to one core to compare arithmetic alone. Memory is the scratch that XLA reserves, for
torch what a step adds to resident memory. With --out_dir: zoo_steps.csv.
"""

from __future__ import annotations

import csv
import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from rich.console import Console
from rich.table import Table

from dpjax import files, training
from dpjax.commands import command_line
from dpjax.training import micro_batches
from experiments.benchmarks import timing
from experiments.benchmarks.opacus_process import OpacusProcess
from experiments.benchmarks.timing import Way
from experiments.benchmarks.zoo import ZOO, Problem

_MODELS = flags.DEFINE_list("models", [], "Which models to measure; all by default.")
_LOT = flags.DEFINE_integer(
    "lot", None, "Expected lot, and rows of the fixed batch; 256 for small models, else 64."
)
_TURNS = flags.DEFINE_integer("turns", 5, "Turns; each way is called in each.", lower_bound=1)
_AT_ONCE = flags.DEFINE_bool("at_once", True, "Measure vmap, which holds every gradient at once.")
_PEER_ROWS = flags.DEFINE_list("peer_rows", ["4", "16", "64"], "Micro-batches tried for the peer.")
_OPACUS_PYTHON = flags.DEFINE_string(
    "opacus_python", None, "Interpreter that has torch and opacus; left out if unset."
)
_OPACUS_ROWS = flags.DEFINE_list(
    "opacus_rows", ["4", "16"], "Micro-batches tried for torch and Opacus, beside the whole lot."
)
_QUICK = flags.DEFINE_bool("quick", False, "Tiny models, two turns.")
_OUT_DIR = flags.DEFINE_string("out_dir", None, "Folder for zoo_steps.csv.")

_LOTS = {"logistic_regression": 256, "mlp_784_128_64_10": 256, "mlp_784_1000_10": 256}
"""Lots of models that take the whole of one at once; 64 for others."""

_NOT_AT_ONCE = {"weight_norm"}
"""Models whose per-example gradients of a whole batch XLA does not compile in five minutes on CPU;
`vmap`, and the peer with the whole batch as its micro-batch, are left out."""

_RECORDS = 6000
"""Rows that lots are drawn from; lots of the expected size among more are no different."""


class TorchWay(NamedTuple):
    """One way of taking a step in the process of torch, and the memory that a step adds there."""

    process: OpacusProcess
    name: str
    megabytes: float | None
    rows: int

    def seconds(self) -> float:
        return self.process(self.name)["cpu"]


def ways(problem: Problem, lot: int, peer_rows: list[int], at_once: bool = True) -> dict[str, Way]:
    """Returns the ways of taking one step of a problem whose records are the fixed batch.

    The peer takes its fastest of `peer_rows`; with `at_once` those are tried too that hold every
    gradient of the batch at once.
    """
    arguments = problem.params, problem.records
    grad_fn = training.clipped_grad(problem.loss)
    every = jnp.arange(lot, dtype=jnp.uint32), jnp.ones(lot, bool)

    def ours(params: Any, batch: Any) -> Any:
        rows = micro_batches.rows_at_once("auto", grad_fn, params, batch, lot)
        summed, _ = micro_batches.sum_of_lot(
            grad_fn, params, batch, every, jnp.float32(timing.CLIP_NORM), None, rows
        )
        return timing.updated(params, summed, lot)

    found = {
        "plain": timing.compiled(timing.plain(problem), *arguments),
        "engine": _engine(problem, lot),
        "ours": timing.compiled(ours, *arguments),
    }
    if at_once:
        found["vmap"] = timing.compiled(timing.by_vmap(problem, lot), *arguments)
    fitting = [rows for rows in peer_rows if lot % rows == 0 and (at_once or rows < lot)]
    steps = {rows: timing.by_jax_privacy(problem, lot, rows) for rows in fitting}
    peers = [timing.compiled(step, *arguments, rows=rows) for rows, step in steps.items() if step]
    if peers:
        found["jax-privacy"] = min(peers, key=Way.seconds)
    return found


def _engine(problem: Problem, lot: int) -> Way:
    lots = timing.poisson_lots(lot, _RECORDS, 1000)
    train = timing.engine_step(problem, lot, lots)

    def step(number: jax.Array, params: Any, records: Any) -> Any:
        key = jax.random.fold_in(training.candidate_keys(1, seed=0)[0], number)
        return train(key, timing.HYPERPARAMETERS, params, records)

    records = timing.tiled(problem.records, _RECORDS)
    way = timing.compiled(step, jnp.uint32(0), problem.params, records, steps=timing.WHOLE_STEPS)
    numbers = iter(range(2**31))

    def next_lot(_: Any, *rest: Any) -> Any:
        return way.call(jnp.uint32(next(numbers)), *rest)

    return way._replace(call=next_lot)


def torch_ways(process: OpacusProcess) -> dict[str, TorchWay]:
    """The ways that the process of torch has, by the names that `opacus_steps` gives them."""
    return {
        way: TorchWay(process, way, process.megabytes[way], rows)
        for way, rows in process.rows.items()
    }


def opacus_process(name: str, problem: Problem, lot: int) -> OpacusProcess | None:
    """Torch beside a problem of the zoo; None, after saying so, if it does not start."""
    rows = {lot, *(int(rows) for rows in _OPACUS_ROWS.value if int(rows) < lot)}
    parameters = sum(leaf.size for leaf in jax.tree.leaves(problem.params))
    try:
        process = OpacusProcess(
            _OPACUS_PYTHON.value, name, lot, parameters, sorted(rows), _QUICK.value
        )
    except (OSError, RuntimeError) as error:
        print(f"opacus left out for {name}: {error}")
        return None
    for way, reason in process.refused.items():
        print(f"{way} cannot train {name}: {reason}")
    return process


def ratio(seconds: dict[str, list[float]], over: str, under: str) -> str:
    """Median and quartiles of ratios within turns."""
    if over not in seconds or under not in seconds:
        return "-"
    middle, low, high = timing.quartiles(seconds[over], seconds[under])
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def _costs(way: Way | TorchWay) -> tuple[str, str, str]:
    """Cells of the scratch, of compilation and of the micro-batch size, empty where unknown."""
    megabytes = "" if way.megabytes is None else f"{way.megabytes:.4g}"
    seconds = "" if isinstance(way, TorchWay) else f"{way.compile_seconds:.3g}"
    return megabytes, seconds, str(way.rows or "")


def main() -> None:
    unknown = sorted(set(_MODELS.value) - set(ZOO))
    if unknown:
        raise ValueError(f"unknown model {unknown[0]!r}: pass some of {', '.join(ZOO)}")
    turns = 2 if _QUICK.value else _TURNS.value
    peer_rows = [int(rows) for rows in _PEER_ROWS.value]
    columns = (
        *("model", "lot", "plain ms", "engine / plain", "ours / plain", "vmap / ours"),
        *("jax-privacy / ours", "MB plain, engine, vmap, jax-privacy", "compile s"),
        *("torch / plain", "hooks / engine", "ghost / engine"),
    )
    if not _OPACUS_PYTHON.value:
        print("opacus left out: name an interpreter that has torch and opacus by --opacus_python")
    table = Table(title=f"One step; {jax.devices()[0].device_kind}")
    for column in columns:
        table.add_column(column)
    costs = "scratch_megabytes", "compile_seconds", "micro_batch_rows"
    rows = [("model", "lot", "way", "turn", "seconds", *costs)]
    for name in _MODELS.value or ZOO:
        lot = _LOT.value or (16 if _QUICK.value else _LOTS.get(name, 64))
        at_once = _AT_ONCE.value and (_QUICK.value or name not in _NOT_AT_ONCE)
        problem = ZOO[name](_QUICK.value, lot)
        found: dict[str, Way | TorchWay] = {**ways(problem, lot, peer_rows, at_once)}
        process = opacus_process(name, problem, lot) if _OPACUS_PYTHON.value else None
        if process is not None:
            found |= torch_ways(process)
        seconds = timing.in_turn(found, lambda name: turns)
        if process is not None:
            process.close()
        shown = [way for way in ("plain", "engine", "vmap", "jax-privacy") if way in found]
        table.add_row(
            name,
            str(lot),
            f"{1e3 * float(np.median(seconds['plain'])):.3g}",
            ratio(seconds, "engine", "plain"),
            ratio(seconds, "ours", "plain"),
            ratio(seconds, "vmap", "ours"),
            ratio(seconds, "jax-privacy", "ours"),
            ", ".join(f"{found[way].megabytes:.3g}" for way in shown),
            ", ".join(f"{found[way].compile_seconds:.0f}" for way in shown),
            ratio(seconds, "torch", "plain"),
            ratio(seconds, "opacus-hooks", "engine"),
            ratio(seconds, "opacus-ghost", "engine"),
        )
        for way, taken in seconds.items():
            rows += [
                (name, lot, way, turn, f"{each:.6g}", *_costs(found[way]))
                for turn, each in enumerate(taken)
            ]
        if _OUT_DIR.value:  # after every model: an hour's work is not lost to the last one
            os.makedirs(_OUT_DIR.value, exist_ok=True)
            path = os.path.join(_OUT_DIR.value, "zoo_steps.csv")
            with files.replacing(path) as partial, open(partial, "w", newline="") as file:
                csv.writer(file).writerows(rows)
    Console(width=200).print(table)


if __name__ == "__main__":
    command_line.run(main)
