"""What a client has answered and spent in federations, in a file of its own on its own disk.

One line of JSON for everything that may leave it once only: the vote, each round of training, and
the shares that unmask their sums. A line names the run, the fingerprint of its rules and the phase,
and what it adds to epsilon and delta: the first vector of a run the most, later ones what the run
then costs in all beyond that. Lines are only ever added, under a lock of the file, and lie on the
disk before anything is sent; so neither a restart, nor messages at the same time, nor a later run
that starts from this one's state makes a client answer twice or unpaid.

Runs add up by basic composition, which is sound and easy to check by hand; `accounting.compose` is
tighter. The file must be on a disk of the node's own: locks do not reach over some networks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpjax.federated.flower.node_settings import NodeSettings
from dpjax.federated.flower.sum_rules import ProtocolRefusal

UNMASK = "unmask"
_ANSWERED = "this client has answered in this run: a second answer costs again"
# Parts of one run add up to its total but for rounding.
_ROUNDING = 1.0 + 1e-12

Line = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Spending:
    """States what a run has cost a client in total, once a vector is sent.

    Attributes:
      fingerprint: of the rules that the cost follows from.
      what: "vote", "training", or a word for another sum.
      epsilon, delta: of everything sent in the run under these rules; by default nothing is known
        of what is summed, and it counts as not private.
    """

    fingerprint: str = ""
    what: str = "sum"
    epsilon: float = math.inf
    delta: float = 0.0

    def __post_init__(self) -> None:
        if not (_is_cost(self.epsilon) and _is_cost(self.delta)):
            raise ValueError(
                f"epsilon={self.epsilon!r}, delta={self.delta!r}: pass numbers of at least 0"
            )


def check(node: NodeSettings, run: int, phase: int, spending: Spending) -> None:
    """Refuses (`ProtocolRefusal`) a phase that is over, or that would pass the client's own limits.

    Looks only, before a client trains; `charge` decides. Phases of a run ascend; `spending` is all
    that the client is about to begin.
    """
    found = entries(node.ledger)
    _check_open(found, run, phase, spending)
    _added(found, node, run, spending)


def charge(node: NodeSettings, run: int, phase: int, spending: Spending) -> None:
    """Notes that a vector leaves the client now, and what that adds; on the disk on return.

    Formal guarantees:
      Called before the vote is sent, and before the first update and every later one: what left the
      client is in its ledger. Under one lock of the file it is read anew, refused if this phase of
      the run was answered before, and refused if epsilon or delta, summed over all lines and this
      one, would pass the owner's limits; else the line is written and synchronised. Processes and
      threads that call this at the same time are served one after another.

    `spending` is what the run costs once this vector is sent. Where this raises a `ProtocolRefusal`
    nothing is noted; after a ValueError or OSError (the ledger cannot be read or written) nothing
    may be sent.
    """
    with _locked(node.ledger) as descriptor:
        found = _read(descriptor, node.ledger)
        _check_open(found, run, phase, spending)
        epsilon, delta = _added(found, node, run, spending)
        _append(descriptor, _line(run, phase, spending, spending.what, epsilon, delta))


def note_unmasking(node: NodeSettings, run: int, phase: int, spending: Spending) -> None:
    """Notes that this client's shares leave it now, which unmask the sum of one phase.

    Formal guarantees: under the lock of the file, at most once for each vector that was sent, and
    only after it: shares for two lists of survivors could unmask one client.
    """
    with _locked(node.ledger) as descriptor:
        of_phase = {
            line["what"]
            for line in _of_run(_read(descriptor, node.ledger), run, spending)
            if line["phase"] == phase
        }
        if not of_phase:
            raise ProtocolRefusal("this client has sent no vector in this phase: nothing to unmask")
        if UNMASK in of_phase:
            raise ProtocolRefusal(
                "this client has handed out its shares of this sum: others would unmask one client"
            )
        _append(descriptor, _line(run, phase, spending, UNMASK, 0.0, 0.0))


def check_open(node: NodeSettings, run: int, phase: int, spending: Spending) -> None:
    """Refuses a phase that this client has answered, or left behind (`ProtocolRefusal`)."""
    _check_open(entries(node.ledger), run, phase, spending)


def entries(path: str | os.PathLike) -> list[Line]:
    """Reads the lines of a ledger, the oldest first; none where there is no file yet.

    A file that is no ledger is a ValueError that names the line.
    """
    if not os.path.lexists(path):
        return []
    with _locked(path) as descriptor:
        return _read(descriptor, path)


def _line(run, phase, spending, what, epsilon, delta) -> Line:
    return {
        # As text: a run's number has 64 bits, which not every reader of JSON keeps.
        "run": str(run),
        "fingerprint": spending.fingerprint,
        "phase": phase,
        "what": what,
        "epsilon": epsilon,
        "delta": delta,
    }


def _of_run(found: Sequence[Line], run: int, spending: Spending) -> list[Line]:
    own = (str(run), spending.fingerprint)
    return [line for line in found if (line["run"], line["fingerprint"]) == own]


def _check_open(found: Sequence[Line], run: int, phase: int, spending: Spending) -> None:
    if any(line["phase"] >= phase for line in _of_run(found, run, spending)):
        raise ProtocolRefusal(_ANSWERED)


def _added(
    found: Sequence[Line], node: NodeSettings, run: int, spending: Spending
) -> tuple[float, float]:
    """Returns (epsilon, delta) beyond what the run has charged; refuses above owner's limits."""
    added = []
    for name, limit in (("epsilon", node.max_epsilon), ("delta", node.max_delta)):
        total = getattr(spending, name)
        in_run = math.fsum(line[name] for line in _of_run(found, run, spending))
        # Infinity less infinity is no number: what was charged as infinite stays charged.
        more = max(0.0, total - in_run) if math.isfinite(in_run) else 0.0
        before = math.fsum(line[name] for line in found)
        # Written so that whatever is no number is refused.
        if limit is not None and not before + more <= limit * _ROUNDING:
            earlier = f" and {before:g} were spent before" if before else ""
            raise ProtocolRefusal(
                f"{name} {more:g} is above this client's limit: it is {limit:g}{earlier}"
            )
        added.append(more)
    return added[0], added[1]


@contextlib.contextmanager
def _locked(path: str | os.PathLike) -> Iterator[int]:
    """Opens a file, made if absent, that nobody else holds, and yields its descriptor."""
    existed = os.path.lexists(path)
    # Both ways even to read: opening a FIFO for reading alone would wait for ever.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"{os.fspath(path)} is no plain file: name one as the ledger")
        if not existed:
            _synchronise_folder(path)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)  # Which also unlocks it.


def _synchronise_folder(path: str | os.PathLike) -> None:
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read(descriptor: int, path: str | os.PathLike) -> list[Line]:
    size = os.fstat(descriptor).st_size
    content = b""
    while len(content) < size:
        part = os.pread(descriptor, size - len(content), len(content))
        if not part:
            break
        content += part
    found = []
    for number, text in enumerate(content.splitlines(), 1):
        try:
            line = json.loads(text)
            if not isinstance(line, Mapping):
                raise ValueError
            # Lines of earlier versions name no run and no phase; their cost counts all the same.
            line = {"run": "", "phase": -1} | dict(line)
            if not (
                _is_cost(line["epsilon"])
                and _is_cost(line["delta"])
                and isinstance(line["phase"], int)
                and all(isinstance(line[name], str) for name in ("run", "fingerprint", "what"))
            ):
                raise ValueError
        except (ValueError, KeyError, RecursionError):
            raise ValueError(
                f"{os.fspath(path)} is no ledger (line {number}): mend it or name another"
            ) from None
        found.append(line)
    return found


def _append(descriptor: int, line: Line) -> None:
    size = os.fstat(descriptor).st_size
    # Whoever mends a ledger by hand may leave its last line open.
    joint = b"\n" if size and os.pread(descriptor, 1, size - 1) != b"\n" else b""
    content = joint + json.dumps(line).encode() + b"\n"
    try:
        if os.write(descriptor, content) != len(content):
            raise OSError("the disk took only a part of a line of the ledger")
        os.fsync(descriptor)
    except OSError:
        # Nothing will be sent, and half a line would spoil the file.
        os.ftruncate(descriptor, size)
        raise


def _is_cost(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0
