"""Plants mistakes, and sees which of them an audit of the whole tuning shows by itself.

Not part of the suite: it takes some ten minutes. What is printed is the table of docs/auditing.md.

  python tests/mistakes_by_audit.py
  python tests/mistakes_by_audit.py subset        # those with one of these words in their names

The mistakes are some of `planted_mistakes.py`. Each is planted in a copy, in which a tuning that it
touches is audited.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import sys
import tempfile
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from planted_mistakes import MISTAKES, Mistake, copied

NUMBER = 40_000
_SEEN, _NOT_SEEN, _REFUSED, _BROKEN = 0, 1, 2, 70
_WORDS = {_SEEN: "seen", _NOT_SEEN: "not seen", _REFUSED: "refused: the claim depends on the data"}


@dataclasses.dataclass(frozen=True)
class Audited:
    """A mistake, and the audit that might show it.

    Attributes:
      mistake: its name.
      case: of the figure of audits, or of `_own_cases`.
      canary: which record.
      number: of executions with the record and without it each.
    """

    mistake: str
    case: str
    canary: str = "gradient"
    number: int = NUMBER


_NATIVE = ": seen by a tuner's tests"
_QUIET = "best of twelve quiet runs"
_SHARED = "the same by six shards"
AUDITED = (
    Audited(
        f"runs are ranked by exact counts, the noise is drawn and charged{_NATIVE}",
        _QUIET,
        "validation record",
    ),
    Audited(f"one score noise is shared by all candidates{_NATIVE}", _QUIET, "validation record"),
    Audited("runs are ranked with half of their noise", _QUIET, "validation record"),
    Audited("threshold stopping compares exact counts", "quiet threshold", "validation record"),
    Audited("extrapolation: stages are trained with the final training's noise", "loud stages"),
    Audited(
        "subset tuning: the final training sees all records and is priced for the rest", "half"
    ),
    Audited("permute-and-flip flips coins of twice the rate", "permute-and-flip", number=4_000),
    Audited("the sampling rate is over the real number of records", "untuned, lots of a quarter"),
    Audited("keys from a seed although none was given", "random repetitions, geometric"),
    Audited("the winner's index is released", "random repetitions, geometric"),
    Audited(f"K=0 becomes 1{_NATIVE}", _QUIET, "validation record"),
    Audited("shards' winners are compared by exact counts", _SHARED, "validation record", 10_000),
)


def _own_cases() -> dict:
    """Tunings in which a mistake has most to show."""
    from dpjax import accounting, tuning
    from experiments.figures.auditing.cases import CASES, Case
    from experiments.figures.leaderboard.extrapolation import Extrapolation
    from experiments.figures.leaderboard.subset_tuning import SubsetTuning

    return CASES | {
        _QUIET: Case(lambda: tuning.RandomRepetitions(accounting.Fixed(12)), noise_multiplier=8.0),
        _SHARED: Case(
            lambda: tuning.RandomRepetitions(accounting.Fixed(12)), noise_multiplier=8.0, shards=6
        ),
        "quiet threshold": Case(lambda: tuning.ThresholdStopping(0.9, 0.05), noise_multiplier=8.0),
        "loud stages": Case(
            lambda: Extrapolation(accounting.Fixed(1), stage_noise=(16.0, 12.0)),
            space=tuning.Space(learning_rate=tuning.Uniform(0.5, 1.5), clip_norm=1.0),
        ),
        "half": Case(
            lambda: SubsetTuning(0.5, accounting.Fixed(1)), noise_multiplier=1.0, records=2
        ),
    }


def _audited(audited: Audited, tree: pathlib.Path) -> int:
    """What the audit comes to, in a child; this process has imported nothing of the tree."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = _BROKEN
    try:
        os.chdir(tree)
        sys.path.insert(0, str(tree))
        silent = os.open(os.path.join(tree, "log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(silent, 2)
        found = _own_cases()[audited.case].audited(audited.canary, audited.number)
        print(f"  claimed {found.claimed:.3f}, seen {found.seen.value:.3f}")
        code = _NOT_SEEN if found.stands else _SEEN
    except RuntimeError as error:
        code = _REFUSED if "depends on the data" in str(error) else _BROKEN
        traceback.print_exc()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def main(words: list[str]) -> int:
    """Plants and audits; returns 1 where something could not be run."""
    of: dict[str, Mistake] = {mistake.name: mistake for mistake in MISTAKES}
    broken = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder)
        copied(tree)
        for audited in AUDITED:
            if words and not any(word in audited.mistake for word in words):
                continue
            mistake = of[audited.mistake]
            path = tree / mistake.file
            text = path.read_text()
            assert text.count(mistake.old) == 1, mistake.name
            path.write_text(text.replace(mistake.old, mistake.new))
            try:
                code = _audited(audited, tree)
            finally:
                path.write_text(text)
            broken += code not in _WORDS
            print(f"{_WORDS.get(code, 'BROKEN, see below')}: {mistake.name}", flush=True)
            if code not in _WORDS:
                print((tree / "log").read_text())
    return int(broken > 0)


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.exit(main(sys.argv[1:]))
