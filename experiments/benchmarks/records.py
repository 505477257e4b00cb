"""Ten million records from a folder: memory and records per second, beside plain grain.

  python -m experiments.benchmarks.records --folder=runs/records

Writes records of random bytes, once, as a .npy file and, where grain is installed, as array_record.
Ours: the file is mapped, its records are split over 8 (virtual) devices by `LotMesh.put_records`,
and Poisson lots are drawn and gathered as in a step. Grain: records at random places, in lots of
as many; grain draws no Poisson lots. Prints a line of JSON for each.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import time

import numpy as np

LOT, LOTS = 1024, 20


def memory() -> dict[str, int]:
    """Returns this process's memory in MB: its own, and of files that are mapped."""
    lines = pathlib.Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    sizes = dict(line.split(":", 1) for line in lines)
    return {name: int(sizes[name].split()[0]) // 1000 for name in ("RssAnon", "RssFile", "VmHWM")}


def ours(path: pathlib.Path) -> dict[str, object]:
    """Measures the draw and the gathering of lots of records that lie on eight devices."""
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    import jax

    from dpjax import accounting, training
    from dpjax.training import micro_batches

    records = np.load(path, mmap_mode="r")
    mesh = training.LotMesh(split_data=True)
    before, started = memory(), time.perf_counter()
    data = jax.block_until_ready(mesh.put_records(records))
    putting, after = time.perf_counter() - started, memory()
    probability = LOT / len(records)
    capacity = accounting.lot_capacity(len(records), probability, steps=1000)
    lots = training.PoissonLots(len(records), probability, capacity)

    def gathered(key: jax.Array, data: jax.Array) -> jax.Array:
        indices, mask = lots.draw(key, len(records))
        rows = jax.lax.with_sharding_constraint(micro_batches.rows_of(data, indices), mesh.whole)
        return rows.sum(dtype="uint32") + mask.sum(dtype="uint32")

    step, times = jax.jit(gathered), []
    for key in training.candidate_keys(LOTS + 1, seed=0):
        started = time.perf_counter()
        jax.block_until_ready(step(key, data))
        times.append(time.perf_counter() - started)
    return {
        "who": "dpjax",
        "records": len(records),
        "bytes": int(records.nbytes),
        "seconds to put": round(putting, 1),
        "per device": data.addressable_shards[0].data.nbytes,
        "records per second": round(LOT / float(np.median(times[1:]))),
        "MB before, after, at the end": [before, after, memory()],
    }


def of_grain(path: pathlib.Path) -> dict[str, object]:
    """Measures grain's reading of records at random places."""
    import grain

    source = grain.sources.ArrayRecordDataSource([str(path)])
    lots = iter(grain.MapDataset.source(source).shuffle(seed=0).to_iter_dataset().batch(LOT))
    next(lots)
    times = []
    for _ in range(LOTS):
        started = time.perf_counter()
        next(lots)
        times.append(time.perf_counter() - started)
    rate = round(LOT / float(np.median(times)))
    return {"who": "grain", "records": len(source), "records per second": rate, "MB": memory()}


def main() -> None:
    """Writes what is missing, and measures."""
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("--folder", required=True)
    flags.add_argument("--records", type=int, default=10**7)
    flags.add_argument("--bytes", type=int, default=100)
    given = flags.parse_args()
    folder = pathlib.Path(given.folder)
    folder.mkdir(parents=True, exist_ok=True)
    generator, part = np.random.default_rng(0), 10**5
    if not (path := folder / "records.npy").exists():
        shape = (given.records, given.bytes)
        written = np.lib.format.open_memmap(path, "w+", np.uint8, shape)
        for start in range(0, given.records, part):
            rows = written[start : start + part]
            rows[:] = generator.integers(0, 256, rows.shape, np.uint8)
        written.flush()
    try:
        print(json.dumps(ours(path)), flush=True)
    except ModuleNotFoundError as missing:
        print(f"dpjax is not measured: {missing}", flush=True)
    try:
        from array_record.python import array_record_module

        if not (packed := folder / "records.array_record").exists():
            writer = array_record_module.ArrayRecordWriter(str(packed), "group_size:1")
            for row in np.load(path, mmap_mode="r"):
                writer.write(row.tobytes())
            writer.close()
        print(json.dumps(of_grain(packed)), flush=True)
    except ModuleNotFoundError as missing:
        print(f"grain is not measured: {missing}", flush=True)


if __name__ == "__main__":
    main()
