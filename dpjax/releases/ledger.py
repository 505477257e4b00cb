"""The curator's ledger: which earlier runs, in folders beside this one, touched the same records.

Each run is a mechanism of its own, and records pay for all of them together. The ledger cannot know
of runs elsewhere; where it is in doubt about one that it can see, it names it.
"""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import heapq
import json
import math
import os
import secrets
import stat
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from dpjax import accounting, after_the_draw, checks, private_files
from dpjax.accounting.stated_epsilon import six_digits_up
from dpjax.array_files import fingerprint
from dpjax.neighbouring import ADD_OR_REMOVE_ONE
from dpjax.releases import release_files
from dpjax.releases.claims import is_number
from dpjax.releases.curator import WARNING
from dpjax.releases.release import GUARANTEE_FILE
from dpjax.releases.unit_of_privacy import unit_of

PyTree = Any

LEDGER_FILE = "ledger.jsonl"

_WORDS = ("run", "time", "data_set", "data")
_LONGEST_LINE = 2**20
"""Bytes; an entry has some thousands."""

_KEPT_HASHES = 256
"""Of two sets of records that share a fraction f of their union, the smallest 256 hashes share none
with probability about (1 - f)^256: 2e-6 for a twentieth."""


@dataclasses.dataclass(frozen=True)
class SeenData:
    """What the ledger recognises data by, computed from the records: for the curator only.

    `name` is a published data set's, or the resolved path of a file or folder. `fingerprint` is
    of all arrays, order included; `smallest_hashes` are the smallest 256 of the records' hashes, in
    order.
    """

    name: str
    fingerprint: str
    smallest_hashes: tuple[str, ...]

    @classmethod
    def of(cls, name: str, arrays: PyTree) -> SeenData:
        """Hashes data: arrays (n, ...), one row per record, and the name that the user gave."""
        if name.endswith((".npz", ".csv")):
            name = os.path.realpath(name)
        kind, colon, rest = name.partition(":")
        if colon and kind == "folder":
            name = f"{kind}:{os.path.realpath(rest)}"
        elif colon and kind == "tfds":
            name = f"{kind}:{rest.partition(':')[0]}"  # Whatever the version.
        rows = []
        for leaf in jax.tree.leaves(arrays):
            array = np.ascontiguousarray(leaf)
            rows.append(array.reshape(len(array), -1).view(np.uint8))
        hashes = {
            hashlib.blake2b(b"".join(parts), digest_size=8).hexdigest() for parts in zip(*rows)
        }
        smallest = tuple(heapq.nsmallest(_KEPT_HASHES, hashes))
        return cls(name, fingerprint(arrays), smallest)

    def is_in(self, entry: dict[str, Any]) -> bool:
        """Returns whether a ledger's entry may be of a run on some of these records."""
        if "smallest_hashes" not in entry:
            # Written before hashes were kept, when a file was known by its bare name.
            name = os.path.splitext(os.path.basename(self.name))[0]
            return entry["data"] == self.fingerprint or entry["data_set"] == name
        return (
            entry["data"] == self.fingerprint
            or entry["data_set"] == self.name
            or not set(self.smallest_hashes).isdisjoint(entry["smallest_hashes"])
        )


@dataclasses.dataclass(frozen=True)
class EarlierRuns:
    """What the ledgers beside a run say: entries, the oldest first and each run once.

    `unreadable` are paths of ledgers that could not be read, or not to their end.
    """

    entries: list[dict[str, Any]]
    unreadable: list[str]

    def warnings(self, name: str) -> list[str]:
        """Returns the warnings to the curator, one line each."""
        lines = [
            f"the ledger {path} cannot be read: runs on {name} that it notes are not counted here; "
            "look at it, and remove it if it is of no use"
            for path in self.unreadable
        ]
        if self.entries:
            lines.append(
                f"{len(self.entries)} earlier run(s) on {name} stand beside this one: the "
                "records pay for all runs together (dpjax ledger adds them up)"
            )
        return lines


def earlier_runs(beside: str | os.PathLike, seen: SeenData) -> EarlierRuns:
    """Finds runs on the same data by the ledgers in the run folders of the folder `beside`.

    Data is the same if its name or path is, whatever it held then, or if it shares records. A
    ledger that cannot be read stops no run: it is listed as unreadable.
    """
    found, unreadable = {}, []
    pattern = os.path.join(glob.escape(os.fspath(beside)), "*", "curator", LEDGER_FILE)
    for path in sorted(glob.glob(pattern, include_hidden=True)):
        try:
            for entry in _entries(path):
                if seen.is_in(entry):
                    found[_word_for_word(entry)] = entry
        except (OSError, ValueError, RecursionError):
            unreadable.append(path)
    return EarlierRuns(sorted(found.values(), key=lambda entry: entry["time"]), unreadable)


def runs_on_the_same_data(folder: str | os.PathLike) -> list[list[dict[str, Any]]]:
    """Returns the entries of all ledgers below a folder, in groups that share data.

    Raises a ValueError where a ledger cannot be read, or there is none.
    """
    found: dict[str, dict[str, Any]] = {}
    pattern = os.path.join(glob.escape(os.fspath(folder)), "**", "curator", LEDGER_FILE)
    for path in sorted(glob.glob(pattern, recursive=True, include_hidden=True)):
        try:
            found |= {_word_for_word(entry): entry for entry in _entries(path)}
        except (OSError, ValueError, RecursionError):
            raise ValueError(f"the ledger {path} cannot be read: look at it") from None
    if not found:
        raise ValueError(f"no run in {os.fspath(folder)} has a ledger: pass the folder of the runs")
    groups: list[list[dict[str, Any]]] = []
    for entry in sorted(found.values(), key=lambda one: one["time"]):
        seen = SeenData(entry["data_set"], entry["data"], tuple(entry.get("smallest_hashes", ())))
        # An entry may share data with several groups, which it then joins into one.
        alike = [group for group in groups if any(map(seen.is_in, group))]
        groups = [group for group in groups if group not in alike] + [[*sum(alike, []), entry]]
    return groups


def _word_for_word(entry: Mapping[str, Any]) -> str:
    """Returns what tells entries apart; later runs copy an entry as it is.

    A run's folder does not: it may be renamed, and its name given to another run. Nor does its
    time: containers that begin together have one path and one second. A random name does.
    """
    return json.dumps(entry, sort_keys=True)


def together(entries: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Returns (epsilon, delta) of all releases: the sums of theirs.

    Formal guarantees: all releases together are private at any epsilon and delta that were fixed
    before the first of them and that these sums do not pass, whatever later runs were chosen by,
    also by what earlier ones released (Rogers et al. 2016: basic composition is a filter). Epsilon
    is infinite where a run was not private, and where releases protect different units (records,
    or users, or another neighbouring relation): such guarantees do not add up.
    """
    delta = math.fsum(entry["delta"] for entry in entries)
    if any(entry["epsilon"] is None for entry in entries) or len(by_unit(entries)) > 1:
        return math.inf, delta
    return math.fsum(entry["epsilon"] for entry in entries), delta


def together_if_fixed(entries: Sequence[Mapping[str, Any]]) -> float:
    """Returns epsilon of all releases at the sum of their deltas, had all settings been fixed.

    Formal guarantees: none, unless every setting of every run was fixed before the first release.
    Where the releases are still in their runs' folders their mechanisms are composed, which is less
    than `together`; by bounds that are quick to compute, so that `accounting.compose` may find a
    little less.
    """
    epsilon, delta = together(entries)
    if math.isinf(epsilon):
        return epsilon
    parts = [part for entry in entries if (part := _mechanism(entry)) is not None]
    if len(parts) < len(entries):
        return epsilon
    composed = accounting.compose(*parts)
    found = composed.rough_epsilon(delta)
    return min(epsilon, composed.epsilon(delta) if found is None else found)


def unread(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the runs whose releases are gone or not believed, so that only their sums count."""
    return [entry["run"] for entry in entries if _mechanism(entry) is None]


def kept_delta(entries: Sequence[Mapping[str, Any]]) -> float:
    """Returns the delta of a kept budget: the first release's plus twice the sum of all."""
    return entries[0]["delta"] + 2.0 * math.fsum(entry["delta"] for entry in entries)


def _within(entries: Sequence[Mapping[str, Any]], budget: float) -> bool:
    """Returns whether a filter of this epsilon, planned by the first release, admits all of them.

    Its delta is the first release's, plus that of each release without a Renyi curve.
    """
    known = [_mechanism(entry) for entry in entries]
    relation = next((part.relation for part in known if part is not None), ADD_OR_REMOVE_ONE)
    parts = [
        accounting.approximate(entry["epsilon"], entry["delta"], relation=relation)
        if part is None or part.renyi is None
        else part
        for entry, part in zip(entries, known)
    ]
    failures = math.fsum(part.renyi.failure_mass for part in parts if part.renyi is not None)
    delta = entries[0]["delta"] + failures
    try:
        kept = accounting.PrivacyFilter(budget, delta, parts[0], failures=failures)
        for part in parts:
            kept.spend(part)
    except ValueError:
        return False
    return True


def by_unit(entries: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Groups releases by what they protect, by the ledger, else the release, else "unknown"."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        unit = entry.get("unit") or _released_unit(entry) or "unknown"
        groups.setdefault(unit, []).append(entry)
    return dict(sorted(groups.items()))


def _released_unit(entry: Mapping[str, Any]) -> str | None:
    """Returns a release's unit of privacy, where an earlier version's ledger does not say it."""
    try:
        claim = _claim(entry)
        return unit_of(claim["neighbouring_relation"], claim["unit_of_privacy"])
    except (ValueError, KeyError, AttributeError):
        return None


def without_a_ledger(folder: str | os.PathLike) -> list[str]:
    """Returns the folders of releases below this one that no ledger beside them knows of."""
    pattern = os.path.join(glob.escape(os.fspath(folder)), "**", GUARANTEE_FILE)
    found = glob.glob(pattern, recursive=True, include_hidden=True)
    releases = {os.path.dirname(path) for path in found}
    beside = os.path.join("curator", LEDGER_FILE)
    return sorted(
        release
        for release in releases
        if not os.path.lexists(os.path.join(os.path.dirname(release), beside))
    )


def _claim(entry: Mapping[str, Any]) -> Any:
    """Reads the statement of the run in a ledger's entry; refuses one that was changed."""
    return release_files.sealed_claim(os.path.join(entry["run"], release_files.RELEASE_FOLDER))


def _mechanism(entry: Mapping[str, Any]) -> accounting.Guarantee | None:
    """Returns the mechanism that a run's release states; None where it does not say what it did.

    None, too, where the ledger contradicts it (what was changed is not believed), or where its
    folder is another run's by now.
    """
    try:
        *_, last = _entries(os.path.join(entry["run"], "curator", LEDGER_FILE))
        claim = _claim(entry)
        same = last == entry and claim["private"] and claim["delta"] == entry["delta"]
        if not same or abs(claim["epsilon"] - entry["epsilon"]) > 1e-4 * claim["epsilon"]:
            return None
        return accounting.from_provenance(claim["mechanism"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def over_budget(entries: Sequence[Mapping[str, Any]], budget: float | None) -> str | None:
    """Returns a message if releases together cost more epsilon than a budget, else None.

    Formal guarantees: of a budget that was fixed before the first release and never passed, all
    releases together are (budget, delta)-private, whatever later runs were chosen by. Either their
    epsilons add up to no more, or an `accounting.PrivacyFilter` admits their mechanisms. Delta is
    the first release's, and twice a bound, fixed beforehand, on the sum of the stated ones
    (docs/proofs/filter.md).
    """
    if budget is None:
        return None
    epsilon, delta = together(entries)
    if epsilon <= budget or (math.isfinite(epsilon) and _within(entries, budget)):
        return None
    if len(found := by_unit(entries)) > 1:
        return (
            f"{len(entries)} release(s) on these records protect different units "
            f"({'; '.join(found)}), which do not add up: what they cost together is not known"
        )
    return (
        f"{len(entries)} release(s) on these records cost epsilon {six_digits_up(epsilon):g} at "
        f"delta {delta:.3g} together, and no filter admits them: that exceeds the budget of "
        f"{budget:g}"
    )


def _entries(path: str) -> Iterator[dict[str, Any]]:
    """Yields the entries of a ledger, one by one.

    Raises an OSError, ValueError or RecursionError at the first that cannot be read.
    """
    # O_NONBLOCK: opening a pipe would otherwise wait for its writer.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("no plain file")
        if b'"run"' in file.readline(_LONGEST_LINE):
            raise ValueError("its first line, the warning, is gone: what else is?")
        number = 0
        while line := file.readline(_LONGEST_LINE):
            entry = json.loads(line)
            hashes = entry.get("smallest_hashes", []) if isinstance(entry, dict) else None
            if not (
                isinstance(hashes, list)
                and all(isinstance(one, str) for one in hashes)
                and all(isinstance(entry.get(name), str) for name in _WORDS)
                and isinstance(entry.get("unit", ""), str)
                and (entry.get("epsilon", "") is None or _is_cost(entry.get("epsilon")))
                and _is_cost(entry.get("delta"))
            ):
                raise ValueError("a line is not an entry")
            yield entry
            number += 1
        if not number:
            raise ValueError("a ledger holds at least the run that wrote it")


def _is_cost(value: Any) -> bool:
    # JSON knows NaN, infinity, and whole numbers that no float holds.
    return is_number(value) and 0 <= value <= sys.float_info.max


def write_ledger(
    folder: str | os.PathLike,
    earlier: list[dict[str, Any]],
    *,
    run: str,
    seen: SeenData,
    epsilon: float | None,
    delta: float,
    unit: str | None = None,
) -> None:
    """Writes the ledger of runs on the same data: the `earlier` ones and this one.

    `run` is this run's name, its folder's absolute path. `epsilon` is None if it is not private.
    `unit` is what `unit_of` returns; it may be None if the release itself names its unit. A
    FileExistsError says that the folder has a ledger, which stays as it is.
    """
    entry = {
        "run": run,
        "name": secrets.token_hex(16),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "data_set": seen.name,
        "data": seen.fingerprint,
        "smallest_hashes": seen.smallest_hashes,
        "epsilon": epsilon,
        "delta": delta,
        **({} if unit is None else {"unit": unit}),
    }
    path = os.path.join(os.fspath(folder), LEDGER_FILE)
    with open(path, "x", encoding="utf-8") as file:
        for line in ({"warning": WARNING}, *earlier, entry):
            file.write(json.dumps(line) + "\n")


class EarlierRunsWarning(UserWarning):
    """Earlier runs on the same records stand beside this one, or a ledger cannot be read."""


class Ledger:
    """Notes what a tuning from Python spends, and what its records are recognised by.

    Formal guarantees: the cost is noted before anything is drawn, once for each draw, and stays
    whatever becomes of the run; runs of the command line beside it are seen, and see it. What it
    holds is for the curator only.

    Attributes:
      folder: of this run alone; folders beside it are searched for runs on the same records, and
        `curator/ledger.jsonl` is written in it.
      name: of a published data set, or the path of a file.
      seen: the records.
    """

    def __init__(self, folder: str | os.PathLike, name: str, records: PyTree):
        """Computes what the records are recognised by.

        Args:
          folder, name: as in `Ledger`.
          records: pytree of arrays (n, ...), one row per record: all that the runs read, and that
            scores are counted on.
        """
        self.folder = os.path.abspath(checks.path("folder", folder))
        self.name = checks.text("name", name)
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(records)]
        odd = any(not leaf.ndim or not leaf.size or leaf.dtype.kind == "O" for leaf in leaves)
        if odd or len({leaf.shape[:1] for leaf in leaves}) != 1:
            raise ValueError(
                "records must be arrays with one row a record: pass them as (features, labels)"
            )
        self.seen = SeenData.of(name, records)

    def note(self, epsilon: float, delta: float, unit: str | None = None) -> None:
        """Warns of earlier runs on these records, and writes what this one spends.

        A folder that holds another run's ledger, or is not this user's alone, is refused.
        """
        place = os.path.join(self.folder, "curator")
        taken = ValueError(f"{self.folder} is another run's: pass a ledger of another folder")
        if os.path.lexists(os.path.join(place, LEDGER_FILE)):
            raise taken
        earlier = earlier_runs(os.path.dirname(self.folder), self.seen)
        for line in earlier.warnings(self.name):
            warnings.warn(line, EarlierRunsWarning, stacklevel=after_the_draw.users_level())
        private_files.private_folder(place)
        try:
            write_ledger(
                place,
                earlier.entries,
                run=self.folder,
                seen=self.seen,
                epsilon=epsilon,
                delta=delta,
                unit=unit,
            )
        except FileExistsError:  # Of another process, since this one looked.
            raise taken from None
