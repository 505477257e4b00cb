"""Runs one tuning in many real processes of this machine, joined by JAX's coordinator.

A long run, not collected by pytest (`tests/training/sweep/test_hosts.py` calls it with eight):

  python tests/long_runs/many_processes.py --processes=64

All processes are forked from one that has imported everything, so that they fit in memory. They
agree on a draw, train their share of the candidates, exchange what came of it, and exchange bytes
of different lengths, many messages long. All must end with the same result. Prints a line of JSON:
seconds, open files and the most memory of a process in MiB, and the bytes that one of them sends.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pathlib
import resource
import sys
import time
import traceback
import warnings

ROOT = pathlib.Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/tuning"), str(ROOT / "tests/helpers")]

import ports  # noqa: E402 (found by the line above)


def in_process(index, count, port):
    """Returns what one of the processes found and used."""
    import numpy as np

    from dpjax import accounting, array_files
    from dpjax.training.sweep import hosts

    hosts.join(f"localhost:{port}", count, index)
    import test_job  # Plans, and with that starts JAX.

    sent = {"all": [], "one": []}
    for name in sent:  # Counted where they are used.
        exchanged = getattr(hosts, f"bytes_from_{name}")

        def counting(payload, *source, _exchanged=exchanged, _lengths=sent[name]):
            _lengths.append(len(payload or b""))
            return _exchanged(payload, *source)

        setattr(hosts, f"bytes_from_{name}", counting)
    plan = test_job.procedure(accounting.Fixed(count + 3))
    ran = test_job.run(plan=plan, placement="one_by_one")
    found = array_files.fingerprint([ran.units, ran.scores, ran.best.candidate, ran.best.output(0)])
    used = {name: list(lengths) for name, lengths in sent.items()}
    hosts.MOST_AT_ONCE = 1000  # Several messages for one payload, the last of them shorter.
    own = np.random.default_rng(index).bytes(300 * index % 7001)
    every = hosts.bytes_from_all(own)
    assert every == [np.random.default_rng(i).bytes(300 * i % 7001) for i in range(count)]
    assert hosts.bytes_from_one(own, count - 1) == every[-1]
    return {
        "found": found,
        "open files": len(os.listdir("/proc/self/fd")),
        "MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "sent": used,
    }


def run(count):
    """Returns what the processes report, as one dictionary; raises if they disagree."""
    from dpjax import training, tuning  # noqa: F401 (before the fork, for all)

    with ports.held() as port:
        return _joined(count, port)


def _joined(count, port):
    """`run`, at a port."""
    started, pipes = time.monotonic(), []
    # No thread and no device of JAX has been started yet.
    warnings.filterwarnings("ignore", message=".*fork", category=RuntimeWarning)
    for index in range(count):
        reading, writing = os.pipe()
        if os.fork() == 0:
            code = 1
            try:
                with os.fdopen(writing, "w") as out:
                    out.write(json.dumps(in_process(index, count, port)))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(writing)
        pipes.append(reading)
    said = []
    for reading in pipes:
        with os.fdopen(reading) as file:
            said.append(file.read())
    codes = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(count)]
    assert not any(codes), codes
    said = [json.loads(one) for one in said]
    assert len({one["found"] for one in said}) == 1, "processes disagree"
    return {
        "processes": count,
        "seconds": round(time.monotonic() - started, 1),
        "open files": max(one["open files"] for one in said),
        "MiB": round(max(one["MiB"] for one in said)),
        "sent by the last": said[-1]["sent"],
        "digest": hashlib.blake2b(said[0]["found"].encode(), digest_size=4).hexdigest(),
    }


if __name__ == "__main__":
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("--processes", type=int, default=64)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    print(json.dumps(run(flags.parse_args().processes)))
