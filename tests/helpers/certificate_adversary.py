"""An adversary who writes a certificate, and climbs: can anything make a false epsilon pass?

  python tests/helpers/certificate_adversary.py --seconds 600       # every kind of release in turn
  python tests/helpers/certificate_adversary.py --seconds 60 vote   # those with this in their names

Not a test by itself: tests/test_certificate_adversary.py runs a short form. The claim is a true one
but for its epsilon, which is lowered; its hashes are made anew. The adversary hands over whole
files, reads the printed line as anyone could, and takes the delta in it for its objective: random
restarts, then one coordinate at a time, over the hints' ranges and over everything that JSON can
hold in their places. Exit code 1 if anything was proved.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import importlib
import json
import math
import pathlib
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

HERE = pathlib.Path(__file__).resolve()
if __name__ == "__main__":
    sys.path[:0] = [str(HERE.parents[2]), str(HERE.parent)]

from dpjax import certificate  # noqa: E402
from dpjax.releases import release  # noqa: E402

STATEMENTS = sorted((HERE.parents[1] / "releases" / "statements").glob("*.json"))
FACTORS = (0.99, 0.95, 0.5)
"""Of the stated epsilon."""
HUGE = 10**30
EXTREMES: tuple[Any, ...] = (
    *(0, -1, 1, 3, 4, 20, 21, 64, 65, 2**31, 2**63, HUGE, -HUGE, True, False, None),
    *(1e-300, -1e-300, 1e300, 5e-324, -0.0, 12.0, 10.5, math.nan, math.inf, -math.inf),
    *("", "12", "nan", [], [12], [[12]], [None], {}, {"step": 12}, [1e-9] * 2, [0, 0], [-1, -1]),
)
FOREIGN = (*certificate.NODE, "lines", "order", "lost", "delta", "epsilon", "case", "cases", "law")
"""Names that hints never have, or once had."""
STARTS = ((12, 10), (13, 11), (14, 13))
"""Grids to start from."""


@dataclasses.dataclass
class Attempts:
    """What was tried on a kind.

    Attributes:
      number: of certificates handed over.
      computed: of those, how many were read as far as a delta.
      proved: those that were.
      least: the least delta printed, over the stated one.
    """

    number: int = 0
    computed: int = 0
    proved: list[Any] = dataclasses.field(default_factory=list)
    least: float = math.inf


def kinds() -> dict[str, Callable[[], dict]]:
    """Name -> the words, of every kind of release that tests have; nothing is listed by hand."""
    sys.path[:0] = [str(HERE.parents[1]), str(HERE.parents[1] / "releases")]
    tuners = importlib.import_module("test_certificates_of_tuners")
    verification = importlib.import_module("test_verification")
    sys.path[:2] = []

    def written(path: pathlib.Path) -> Callable[[], dict]:
        return lambda: json.loads(path.read_text())

    def released(name: str) -> Callable[[], dict]:
        return lambda: json.loads(release.json_bytes(verification._release(name).statement))

    found = {f"committed: {path.stem}": written(path) for path in STATEMENTS}
    found |= {f"words: {name}": make for name, make in tuners.STATED.items()}
    return found | {f"released: {name}": released(name) for name in verification.RELEASES}


class Adversary:
    """Of one claim, in one folder."""

    def __init__(
        self, words: dict, factor: float, folder: pathlib.Path, seed: int, seen: Attempts
    ) -> None:
        self.words = words | {"epsilon": factor * words["epsilon"]}
        self.delta, self.digest = words["delta"], certificate.digest(self.words)
        self.folder, self.random, self.seen = folder, random.Random(seed), seen
        self.number = certificate.cases_of(words["mechanism"])

    def hand_over(self, certified: Any) -> float:
        """Delta over the stated one, as far as the program says; infinity where it says none."""
        content = {certificate.CERTIFICATE: json.dumps(certified).encode()}
        for name, data in release.sealed(content, self.words).items():
            (self.folder / name).write_bytes(data)
        self.seen.number += 1
        try:
            self.seen.proved.append((certified, certificate.check(str(self.folder))))
            return 0.0
        except Exception as error:  # As `main` does.
            line = str(error)
        if not (found := re.search(r"delta is at most (\S+) by", line)):
            return 1e9 if line.startswith("the sums of") else math.inf
        self.seen.computed += 1
        reached = float(found[1]) / self.delta
        self.seen.least = min(self.seen.least, reached)
        return reached

    def certified(self, *cases: Any) -> dict:
        """The file of these hints, one for each case, or the last for all that are left."""
        every = [*cases, *[cases[-1]] * (self.number - len(cases))]
        return {"statement": self.digest, "cases": copy.deepcopy(every)}

    def with_true_sums(self, cases: list[dict]) -> list[dict]:
        """As they must be in a case that holds, so that the others are looked at."""
        found = []
        for case, hints in enumerate(cases):
            certificate.Work.done = 0.0
            try:
                sums = certificate.prove(self.words, case, hints)
            except ValueError:
                sums = hints["sums"]
            found.append(hints | {"sums": sums})
        return found

    def hints(self, step: int = 12, fine: int = 10, exact: int = 0) -> dict:
        """Of a case, its sums as they would have to be."""
        return {"step": step, "fine": fine, "exact": exact, "sums": [0.9 * self.delta] * 2}

    def oddities(self) -> Iterator[Any]:
        """Whole files in which one place holds what never stands there, on grids that are quick."""
        base = self.hints(8, 8)
        for value in EXTREMES:
            for name in base:
                if not (type(value) is int and value in certificate.HINTS.get(name, ())):
                    yield self.certified(base | {name: value})
            yield self.certified(value)
            yield {"statement": self.digest, "cases": value}
            yield {"statement": value, "cases": [base] * self.number}
            yield value
        for name in FOREIGN:
            yield self.certified(base | {name: [[0.0, 0.0], [1.0, 0.0]]})
            yield self.certified(base) | {name: 0}
        for name in base:
            yield self.certified({key: one for key, one in base.items() if key != name})
        for count in (0, self.number - 1, self.number + 1):
            yield {"statement": self.digest, "cases": [base] * count}

    def offer_oddities(self, until: float = math.inf, number: int | None = None) -> None:
        """Hands all of them over, or so many, drawn."""
        found = list(self.oddities())
        for odd in found if number is None else self.random.sample(found, number):
            if time.monotonic() < until:
                self.hand_over(odd)

    def moved(self, cases: list[dict]) -> list[dict]:
        """One hint of a case elsewhere: next to where it was, at an end of its range, anywhere."""
        name, case = (
            self.random.choice(sorted(certificate.HINTS)),
            self.random.randrange(self.number),
        )
        places, own = certificate.HINTS[name], cases[case]
        near = own[name] + self.random.choice((-2, -1, 1, 2))
        value = self.random.choice((near, near, places[0], places[-1], self.random.choice(places)))
        changed = own | {name: min(max(value, places[0]), places[-1])}
        return [*cases[:case], changed, *cases[case + 1 :]]

    def climb(self, attempts: int, until: float = math.inf) -> None:
        """From a random start, one coordinate at a time, to the least delta that is printed."""
        best, least = [self.hints()] * self.number, math.inf
        for tried in range(attempts):
            if self.seen.proved or time.monotonic() > until:
                return
            hints = self.moved(best)
            if tried % 12 == 0:  # Anew.
                step, fine = self.random.choice(STARTS)
                start = self.hints(step, fine, self.random.choice((0, 1, 8)))
                hints, least = [start] * self.number, math.inf
            reached = self.hand_over(self.certified(*hints))
            if reached == 1e9:
                hints = self.with_true_sums(hints)
                reached = self.hand_over(self.certified(*hints))
            if reached <= least:
                best, least = hints, reached


def main(arguments: list[str]) -> int:
    """Every kind in turn, for so many seconds; then a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--climb_only", action="store_true", help="hand over no oddities")
    parser.add_argument("names", nargs="*", help="parts of kinds' names; all where there is none")
    given = parser.parse_args(arguments)
    found = {
        name: make
        for name, make in kinds().items()
        if not given.names or any(part in name for part in given.names)
    }
    words = {name: make() for name, make in found.items()}
    seen = {(name, factor): Attempts() for name in found for factor in FACTORS}
    began, turn = time.monotonic(), 0
    share = given.seconds / (2 * len(seen))  # Two rounds and more.
    while time.monotonic() < began + given.seconds:
        for (name, factor), total in seen.items():
            until = min(time.monotonic() + share, began + given.seconds)
            with tempfile.TemporaryDirectory() as folder:
                one = Adversary(words[name], factor, pathlib.Path(folder), given.seed + turn, total)
                if not turn and not given.climb_only:
                    one.offer_oddities(until)
                one.climb(10**6, until)
        turn += 1
    width = max(map(len, found))
    print(f"{'kind':{width}}  epsilon times  attempts  computed  proved  least delta / stated")
    for (name, factor), one in seen.items():
        print(
            f"{name:{width}}  {factor:13}  {one.number:8}  {one.computed:8}  {len(one.proved):6}"
            f"  {one.least:.6g}"
        )
    proved = [certified for one in seen.values() for certified in one.proved]
    print(f"{sum(one.number for one in seen.values())} attempts, {len(proved)} proved", *proved[:3])
    return 1 if proved else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
