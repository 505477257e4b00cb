"""`dpjax predict`: what a released model says of the rows of a new table.

All it reads is the release's folder: `schema.json` encodes the rows, the shapes in `model.msgpack`
say how wide the net is, and `guarantee.json` which net it is and how its outputs are to be read.
"""

from __future__ import annotations

import csv
import os
import re
from typing import Any

import flax.serialization
import jax
import numpy as np

from dpjax import files, models
from dpjax.data import tables
from dpjax.releases.release import CONTEXT, MODEL_FILE, SCHEMA_FILE
from dpjax.releases.release_files import sealed_claim, statement_in
from dpjax.tuning.problem.targets import Targets

_ROWS = 1024  # At a time.


def write(release: str, table: str, path: str) -> None:
    """Writes a CSV file of one column, the target's, with a prediction for each row of a table.

    Args:
      release: a release's folder, its `guarantee.json`, or the run's folder.
      table: path of a CSV file with the columns that the schema encodes; others are not read.
      path: of the file to write, which must not exist.
    """
    if os.path.lexists(path):
        raise ValueError(f"{path} is there already: pass another path, or remove it")
    claim = sealed_claim(release)
    folder = os.path.dirname(os.path.abspath(statement_in(release)))
    stated, shown = os.path.join(folder, SCHEMA_FILE), os.path.join(folder, MODEL_FILE)
    if not os.path.exists(stated):
        raise ValueError(
            f"{release} has no {SCHEMA_FILE}: pass a release that dpjax tune made of a .csv table; "
            "for others see docs/howto/publish.md"
        )
    schema = tables.read_schema(stated)
    with open(shown, "rb") as file:
        params = flax.serialization.msgpack_restore(file.read())
    inputs = schema.encode(table)
    if not len(inputs):
        raise ValueError(f"{table} has no rows: pass a table of one or more")
    apply = jax.jit(_module(str(claim.get("model")), params, len(schema.class_names)).apply)
    parts = [inputs[at : at + _ROWS] for at in range(0, len(inputs), _ROWS)]
    outputs = np.concatenate([apply({"params": params}, some) for some in parts])
    predicted: list[Any]
    if schema.target_range is None:
        weights = claim.get(CONTEXT, {}).get("decision_weights", [1.0])
        places = np.argmax(outputs + np.log(np.float32(weights)), axis=1)
        predicted = [schema.class_names[place] for place in places]
    else:
        numbers = Targets.from_statement(claim["targets"]).predicted(outputs[:, 0])
        predicted = [f"{one:.6g}" for one in np.asarray(numbers)]
    with (
        files.replacing(path) as partial,
        open(partial, "w", encoding="utf-8", newline="") as file,
    ):
        csv.writer(file).writerows([[schema.target], *([one] for one in predicted)])


def _module(described: str, params: Any, classes: int) -> Any:
    """Returns the net that a release describes, as wide as its parameters; refuses unknown nets."""
    nets = {type(models.build_module(name, 2)).__name__: name for name in models.NAMES}
    found = re.search(rf"\b({'|'.join(nets)})\b", described)
    if found is None:
        raise ValueError(
            f"the release's model is none of {', '.join(models.NAMES)}, which dpjax tune trains: "
            "use your own module, as in docs/howto/publish.md"
        )
    layers = sorted(params, key=lambda name: int(name.rpartition("_")[2]))
    widths = [params[name]["kernel"].shape[-1] for name in layers[:-1]]
    module = models.build_module(nets[found[1]], classes or 2, widths=widths or (1,))
    return module if classes else module.clone(classes=1)
