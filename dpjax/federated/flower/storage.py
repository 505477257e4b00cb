"""Reads and writes a client's node: its owner's settings, its records, its ledger of answers.

A node's settings are read from its own configuration alone, never from a run's. A setting that is
not understood stops the node: if a misspelt limit were ignored, there would be no limit.

A deployed client reads the folder that its owner named and nothing else. Whether a folder is named
and exists is the owner's set-up, public like any setting: without it the client says so and stays
away (`SetupError`). What is in the folder is data, and every other error about records is one about
data: the client takes part all the same, so that nobody can tell (`noisy_vectors`).

The ledger has one line of JSON for everything that may leave a client once only: the vote, each
round of training, and the shares that unmask their sums. A line names the run, the fingerprint of
its rules and the phase, and what it adds to epsilon and delta. The first vector of a run adds the
most, later ones only the rise of the run's total cost. Lines are only ever added, under a lock of
the file, and lie on the disk before anything is sent. So neither a restart, nor messages at the
same time, nor a later run that starts from this one's state makes a client answer twice or unpaid.
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
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dpjax.federated.flower import internals as flower
from dpjax.federated.flower.messages import ProtocolRefusal, Records, Spending, is_cost

LEDGER = "ledger"
MAX_EPSILON = "max-epsilon"
MAX_DELTA = "max-delta"
ALLOW_WITHOUT_NOISE = "allow-training-without-noise"
"""Setting by which a node's owner allows sums of its updates without noise."""

_OWN = (LEDGER, MAX_EPSILON, MAX_DELTA, ALLOW_WITHOUT_NOISE)
PLACE = ("data", "partition-id", "num-partitions", "chunk-size")
"""Where a node's records are, and how many candidates it trains at once."""


@dataclasses.dataclass(frozen=True)
class NodeSettings:
    """Holds a node owner's own settings."""

    ledger: str  # path of the file with what this node has spent and answered; always needed
    # Limits of the sums over that file; both are None if there are none.
    max_epsilon: float | None = None
    max_delta: float | None = None
    allow_training_without_noise: bool = False  # whether updates may be summed without noise

    def __post_init__(self) -> None:
        if not isinstance(self.ledger, str) or not self.ledger:
            raise ValueError(
                f"{LEDGER}={self.ledger!r}: start the node with --node-config "
                f"'{LEDGER}=\"/path/to/a/file\"', where it notes what it spent and answered"
            )
        if (self.max_epsilon is None) != (self.max_delta is None):
            given, missing = (
                (MAX_DELTA, MAX_EPSILON) if self.max_epsilon is None else (MAX_EPSILON, MAX_DELTA)
            )
            raise ValueError(
                f"{given} without {missing}: an epsilon means nothing without its delta; pass "
                f"both, as in {MAX_EPSILON}=4.0 {MAX_DELTA}=1e-4"
            )
        for name, value, largest in (
            (MAX_EPSILON, self.max_epsilon, math.inf),
            (MAX_DELTA, self.max_delta, 1.0),
        ):
            if value is not None and not (is_cost(value) and value < largest):
                raise ValueError(
                    f"{name}={value!r}: pass a number of at least 0 and below {largest:g}"
                )
        if not isinstance(self.allow_training_without_noise, bool):
            raise ValueError(
                f"{ALLOW_WITHOUT_NOISE}={self.allow_training_without_noise!r}: pass true or false, "
                "without quotation marks"
            )

    @classmethod
    def from_config(
        cls, node_config: Mapping[str, Any], further: Collection[str] | None = None
    ) -> NodeSettings:
        """Reads a node's configuration; its ValueErrors are for the owner's own log.

        `further` lists all other settings that are read; a name that nothing reads is refused. None
        allows any name that does not look like a setting of this class.
        """
        for name in node_config:
            plain = _plain(name)
            if plain in _OWN and name not in _OWN:
                raise ValueError(f"{name}: nothing reads this setting of a node; pass {plain}")
            if further is not None and name not in {*_OWN, *PLACE, *further}:
                raise ValueError(
                    f"{name}: nothing reads this setting of a node; drop it, or pass one of "
                    f"{', '.join(sorted({*_OWN, *PLACE, *further}))}"
                )
        return cls(
            ledger=node_config.get(LEDGER, ""),
            max_epsilon=node_config.get(MAX_EPSILON),
            max_delta=node_config.get(MAX_DELTA),
            allow_training_without_noise=node_config.get(ALLOW_WITHOUT_NOISE, False),
        )


def refuse_owners_settings(defaults: Mapping[str, Any]) -> None:
    """Refuses settings among an app's defaults that only a node's owner may set."""
    for name in defaults:
        plain = _plain(name)
        if plain in _OWN:
            raise ValueError(
                f"{name}: an app's defaults are no place for a node's own setting, and would be "
                f"no limit; start the node with --node-config '{plain}=...'"
            )


def _plain(name: str) -> str:
    """Returns a setting's name in lower case, with dashes and without spaces around it."""
    return name.strip().casefold().replace("_", "-")


class SetupError(ValueError):
    """Says that a client cannot begin, for a reason that does not depend on its records."""


def records_in_folder(context: flower.Context) -> Records:
    """Reads this node's records: every .npz file in the folder that its configuration names.

    Start the SuperNode with `--node-config 'data="/path/to/folder"'`; the path never leaves the
    node. Each file holds `inputs` (m, ...) and `labels` (m,).

    Raises:
      SetupError: if no folder is named, or it does not exist.
      ValueError: for its contents: no files, missing arrays, shapes that disagree.
    """
    folder = context.node_config.get("data")
    if not isinstance(folder, str) or not folder:
        raise SetupError("no folder of records: start the node with --node-config 'data=\"...\"'")
    return read_folder(folder)


def read_folder(folder: str) -> Records:
    """Joins every .npz file of a folder, in the order of their names; refuses links out of it."""
    if not os.path.isdir(folder):
        raise SetupError(f"{folder} is not a folder: name one that holds .npz files")
    names = sorted(name for name in os.listdir(folder) if name.endswith(".npz"))
    if not names:
        raise ValueError(f"{folder} holds no .npz file: put one there, with inputs and labels")
    inputs: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    for name in names:
        path = os.path.join(folder, name)
        if os.path.dirname(os.path.realpath(path)) != os.path.realpath(folder):
            raise ValueError(f"{path} leads out of its folder: a node reads its own records only")
        with np.load(path, allow_pickle=False) as file:
            missing = {"inputs", "labels"} - set(file)
            if missing:
                lacking = " and no ".join(sorted(missing))
                raise ValueError(f"{path} has no {lacking}: save both arrays in it")
            found = np.asarray(file["inputs"], np.float32), np.asarray(file["labels"])
        if found[1].ndim != 1 or found[1].dtype.kind not in "iu" or len(found[0]) != len(found[1]):
            raise ValueError(
                f"{path}: inputs {found[0].shape}, labels {found[1].shape} of {found[1].dtype}: "
                "pass as many whole-numbered labels as inputs"
            )
        if inputs and found[0].shape[1:] != inputs[0].shape[1:]:
            raise ValueError(
                f"{path}: inputs of shape {found[0].shape[1:]}, other files have "
                f"{inputs[0].shape[1:]}: pass inputs of one shape"
            )
        if not np.isfinite(found[0]).all():
            raise ValueError(f"{path}: inputs hold NaN or infinity: clean them first")
        inputs.append(found[0])
        labels.append(found[1].astype(np.int64))
    return np.concatenate(inputs), np.concatenate(labels)


UNMASK = "unmask"
_ANSWERED = "this client has answered in this run: a second answer costs again"
# The parts of one run add up to its total, up to rounding.
_ROUNDING = 1.0 + 1e-12

Line = dict[str, Any]


def check(node: NodeSettings, run: int, phase: int, spending: Spending) -> None:
    """Refuses (`ProtocolRefusal`) a phase that is over, or that would pass the client's own limits.

    This is a first check, before a client trains; `charge` decides. Phases of a run ascend;
    `spending` is the cost of all that the client is about to begin.
    """
    found = entries(node.ledger)
    _check_open(found, run, phase, spending)
    _added(found, node, run, spending)


def charge(node: NodeSettings, run: int, phase: int, spending: Spending) -> None:
    """Writes into the ledger that a vector leaves the client now, and what it costs.

    Formal guarantees:
      Called before the vote is sent, and before the first update and every later one: what left the
      client is in its ledger. Under one lock of the file it is read anew, refused if this phase of
      the run was answered before, and refused if epsilon or delta, summed over all lines and this
      one, would pass the owner's limits; else the line is written and synchronised. Processes and
      threads that call this at the same time are served one after another.

    `spending` is the run's cost once this vector is sent. If this raises a `ProtocolRefusal`,
    nothing is noted; after a ValueError or OSError (the ledger cannot be read or written) nothing
    may be sent.
    """
    with _locked(node.ledger) as descriptor:
        found = _read(descriptor, node.ledger)
        _check_open(found, run, phase, spending)
        epsilon, delta = _added(found, node, run, spending)
        _append(descriptor, _line(run, phase, spending, spending.what, epsilon, delta))


def note_unmasking(node: NodeSettings, run: int, phase: int, spending: Spending) -> None:
    """Notes in the ledger that the client now hands out its shares, which unmask a phase's sum.

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
    """Refuses (`ProtocolRefusal`) a phase that this client has answered or gone beyond."""
    _check_open(entries(node.ledger), run, phase, spending)


def entries(path: str | os.PathLike) -> list[Line]:
    """Reads the lines of a ledger, oldest first; [] without a file. Refuses what is no ledger."""
    if not os.path.lexists(path):
        return []
    with _locked(path) as descriptor:
        return _read(descriptor, path)


def _line(run, phase, spending, what, epsilon, delta) -> Line:
    """Returns one line of the ledger."""
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
    """Returns the lines of one run under the rules of `spending`."""
    own = (str(run), spending.fingerprint)
    return [line for line in found if (line["run"], line["fingerprint"]) == own]


def _check_open(found: Sequence[Line], run: int, phase: int, spending: Spending) -> None:
    """Refuses a phase that this run has answered already."""
    if any(line["phase"] >= phase for line in _of_run(found, run, spending)):
        raise ProtocolRefusal(_ANSWERED)


def _added(
    found: Sequence[Line], node: NodeSettings, run: int, spending: Spending
) -> tuple[float, float]:
    """Returns the (epsilon, delta) that a run adds to the ledger; refuses to pass the limits."""
    added = []
    for name, limit in (("epsilon", node.max_epsilon), ("delta", node.max_delta)):
        total = getattr(spending, name)
        in_run = math.fsum(line[name] for line in _of_run(found, run, spending))
        # After an infinite charge nothing is added: infinity less infinity would be NaN.
        more = max(0.0, total - in_run) if math.isfinite(in_run) else 0.0
        before = math.fsum(line[name] for line in found)
        # Written so that NaN is refused.
        if limit is not None and not before + more <= limit * _ROUNDING:
            earlier = f" and {before:g} were spent before" if before else ""
            raise ProtocolRefusal(
                f"{name} {more:g} is above this client's limit: it is {limit:g}{earlier}"
            )
        added.append(more)
    return added[0], added[1]


@contextlib.contextmanager
def _locked(path: str | os.PathLike) -> Iterator[int]:
    """Opens a file, made if absent, locks it and yields its descriptor."""
    existed = os.path.lexists(path)
    # For reading and writing, even just to read: opening a pipe for reading alone would block.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"{os.fspath(path)} is not a plain file: name one as the ledger")
        if not existed:
            _synchronise_folder(path)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)  # Which also unlocks it.


def _synchronise_folder(path: str | os.PathLike) -> None:
    """Makes sure that a new file's entry in its folder is on the disk."""
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read(descriptor: int, path: str | os.PathLike) -> list[Line]:
    """Reads all lines of an open ledger; refuses a file with one that is malformed."""
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
                is_cost(line["epsilon"])
                and is_cost(line["delta"])
                and isinstance(line["phase"], int)
                and all(isinstance(line[name], str) for name in ("run", "fingerprint", "what"))
            ):
                raise ValueError
        except (ValueError, KeyError, RecursionError):
            raise ValueError(
                f"{os.fspath(path)} is not a ledger (line {number}): mend it or name another"
            ) from None
        found.append(line)
    return found


def _append(descriptor: int, line: Line) -> None:
    """Appends a line and synchronises it, or leaves the file as it was and raises."""
    size = os.fstat(descriptor).st_size
    # A ledger that was edited by hand may lack its last line break.
    joint = b"\n" if size and os.pread(descriptor, 1, size - 1) != b"\n" else b""
    content = joint + json.dumps(line).encode() + b"\n"
    try:
        if os.write(descriptor, content) != len(content):
            raise OSError("the disk took only a part of a line of the ledger")
        os.fsync(descriptor)
    except OSError:
        # Nothing will be sent; half a line would make the ledger unreadable.
        os.ftruncate(descriptor, size)
        raise
