"""Times Opacus and plain torch on the models of the peers' rows, in what is left of a call.

  JAX_PLATFORMS=cpu python -m experiments.accelerator.opacus --out_dir=runs/accelerator

Needs torch and opacus. Each model has a process of its own (`experiments.benchmarks.opacus_steps`),
which takes the faster of whole lots and of micro-batches; the rows are appended to those
of `experiments.accelerator.sweeps`. JAX must keep to the CPU here, to leave the card's memory
alone.
"""

from __future__ import annotations

import sys

import jax
import numpy as np
from absl import flags

from dpjax.commands import command_line
from experiments.accelerator import problems
from experiments.accelerator.jobs import FIGURE_7, GPT, MLP
from experiments.accelerator.rows import RowFile
from experiments.benchmarks.opacus_process import OpacusProcess
from experiments.benchmarks.zoo import ZOO

_OUT_DIR = flags.DEFINE_string("out_dir", "runs/accelerator", "Folder of sweeps.csv.")
_SECONDS = flags.DEFINE_float("seconds", 30.0, "No model is begun after these.")
_TINY = flags.DEFINE_bool("tiny", False, "A rehearsal: tiny models, lots of 8.")

MODELS = ((MLP, 256, (0, 64)), (FIGURE_7, 256, (0, 32)), (GPT, 64, (0, 16)))
"""Model, lot, and rows of the micro-batches that are tried, 0 for the whole lot."""

TURNS = 5


def main() -> None:
    """Writes a row for each way of each model; a model that fails is a row."""
    file = RowFile(_OUT_DIR.value)
    for model, lot, sizes in MODELS:
        if file.seconds() > _SECONDS.value:
            break
        if _TINY.value:
            lot, sizes = 8, (0, 4)
        named = {"section": "peers", "model": model, "width": 1, "lot": lot}
        # The zoo's, where it has the model: tiny, it is of another size than that of `problems`.
        known = model in ZOO
        ours = ZOO[model](_TINY.value, 1) if known else problems.on_host(model, _TINY.value)
        parameters = sum(leaf.size for leaf in jax.tree.leaves(ours.params))
        try:
            process = OpacusProcess(sys.executable, model, lot, parameters, sizes, _TINY.value)
            for name, way in process.ways.items():
                seconds = [process(name)["wall"] for _ in range(TURNS)]
                file.put(
                    **named,
                    contestant=name,
                    rows=way.setting.rows,
                    milliseconds=1e3 * float(np.median(seconds)),
                    least_milliseconds=1e3 * min(seconds),
                    records_a_second=lot / float(np.median(seconds)),
                    note=process.versions,
                )
            process.close()
        except (RuntimeError, ValueError, OSError) as error:
            file.put(**named, contestant="opacus", note=f"failed: {error}"[:200])


if __name__ == "__main__":
    command_line.run(main)
