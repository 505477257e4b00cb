"""Random losses, compiled with all optimisations: does a row move a clipped sum by more than C?

  python tests/helpers/fuzz_clipping.py --seconds 60 --seed 0    # or --compute_dtype bfloat16

Every program is compiled once and given several batches of all scales. In float64 are measured the
norm of one row's contribution (all others masked), and the change of the whole sum when the row is
removed, over the clip norm: at most 1, and finite. What exceeds it is shrunk and printed; exit 1.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import sys
import time

import jax
import numpy as np

from experiments.accelerator import drawn_losses
from experiments.accelerator.drawn_losses import CHOICES, Program, drawn

OPTIMISED = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}


def excess(one: Program) -> float:
    """Of one program, fully optimised; tests are compiled otherwise."""
    return drawn_losses.excess(one, options=OPTIMISED)


def shrunk(one: Program) -> Program:
    """A simpler program that still fails, by trying simpler values of one choice after another."""
    again = True
    while again:
        again = False
        for name, values in CHOICES.items():
            for value in values[: values.index(getattr(one, name))]:
                simpler = dataclasses.replace(one, **{name: value})
                if excess(simpler) > 1:
                    one, again = simpler, True
                    break
    return one


def main(arguments: list[str] | None = None) -> int:
    """Runs for some seconds; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=10**9, help="programs at most")
    parser.add_argument("--compute_dtype", default="float32", help="of activations")
    flags = parser.parse_args(arguments)
    generator, start = np.random.default_rng(flags.seed), time.monotonic()
    counts: collections.Counter[str] = collections.Counter()
    failed, largest = [], 0.0
    while time.monotonic() - start < flags.seconds and sum(counts.values()) < flags.most:
        one = dataclasses.replace(drawn(generator), compute_dtype=flags.compute_dtype)
        found = excess(one)
        counts[one.loss] += 1
        largest = max(largest, found)
        if found > 1:
            failed.append(one)
            print(f"{found:.6g} clip norms: {one}", flush=True)
            if len(failed) <= 3:
                print(f"  shrunk: {shrunk(one)}", flush=True)
        if sum(counts.values()) % 50 == 0:
            jax.clear_caches()
    print(f"{sum(counts.values())} programs, {len(failed)} above the clip norm; most {largest:.7f}")
    print(", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
