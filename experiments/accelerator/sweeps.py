"""Measures sweeps on an accelerator in a few minutes, most telling rows first.

  python -m experiments.accelerator.sweeps --out_dir=runs/accelerator --seconds=240
  python -m experiments.accelerator.sweeps --out_dir=runs/accelerator --tiny    # a CPU, a minute

First the ceilings: a copy, products, launches, noise. Then figure 7's net and 1 to 1,024 candidates
of three models; what the deterministic option, and micro-batches change; then single
runs beside the plain step and jax-privacy. Rows go to sweeps.csv as they come (columns:
`experiments.accelerator.rows`), so that a process that ends early leaves what it had. On an H100
set XLA_PYTHON_CLIENT_MEM_FRACTION=.92, and let no other process use the card.
"""

from __future__ import annotations

import os

from absl import flags

from dpjax.commands import command_line
from experiments.accelerator import ceilings, jobs
from experiments.accelerator.rows import RowFile
from experiments.accelerator.timing import Measured

_OUT_DIR = flags.DEFINE_string("out_dir", "runs/accelerator", "Folder of sweeps.csv.")
_SECONDS = flags.DEFINE_float("seconds", 240.0, "All is over after these.", lower_bound=1.0)
_THREADS = flags.DEFINE_integer("threads", 14, "Programs that compile at once.", lower_bound=1)
_TINY = flags.DEFINE_bool("tiny", False, "A rehearsal: few jobs, two candidates, lots of 8.")
_MOST = flags.DEFINE_integer("most", 6, "With --tiny: jobs of each of the three lists.")


def measure(
    file: RowFile, waves: list[list[jobs.Job]], seconds: float, threads: int, tiny: bool
) -> None:
    """Writes the rows of the ceilings and of these jobs."""
    copied = ceilings.copied_bytes_a_second(tiny)
    file.put(section="ceiling", variant="copy", note=f"{copied / 1e12:.4g} TB/s")
    measured = Measured(file, copied, seconds, threads, tiny)
    for wave in waves:
        measured.wave(wave)
    measured.finish()


def main() -> None:
    """Measures until the seconds are over."""
    tiny, file = _TINY.value, RowFile(_OUT_DIR.value)
    for name, value in ceilings.ceilings(tiny):
        file.put(section="ceiling", variant=name, note=value)
    waves = jobs.waves()
    if tiny:
        waves = [jobs.rehearsed(wave, _MOST.value) for wave in waves]
    measure(file, waves, _SECONDS.value, _THREADS.value, tiny)
    # A compiler that is still at work would hold the process for a minute more.
    os._exit(0)


if __name__ == "__main__":
    command_line.run(main)
