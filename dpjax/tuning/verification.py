"""Verifies a release: rebuilds its statement from its own words, and checks its files.

`guarantee.json` names the rules of a procedure: space, law of K, noise, lots, public numbers. The
statement is a function of these alone, so it is written again by the code that wrote it, and every
field and sentence must be the same; the epsilon is computed anew on the way. The release's other
files are bound to it by their hashes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import stat
from collections.abc import Callable, Mapping
from typing import Any

import dpjax
from dpjax import accounting, certificate, checks
from dpjax.accounting import provenance, stated
from dpjax.tuning.problem.stated_fields import is_number
from dpjax.tuning.release import (
    CONTEXT,
    GUARANTEE_FILE,
    HYPERPARAMETERS_FILE,
    SEAL,
    THIS_STATEMENT,
    json_bytes,
    sha256,
)
from dpjax.tuning.tuner import Rebuilt, rebuilt

RELEASE_FOLDER = "release"
"""Where the commands put a release in a run's folder."""

LARGEST_STATEMENT = 1 << 24
"""Bytes of the largest file that is read as JSON; real ones hold a few thousand."""

TOLERANCE = 1e-9
"""Relative, of numbers that are computed anew: other versions of NumPy and SciPy round otherwise.

The statement's own hash has none.
"""

_PARTS = "epsilon_of_parts"
EARLIER = 3e-3
"""Relative excess that is allowed to a claim that does not say at which digit it was rounded:
earlier versions priced less tightly, and such a claim holds all the same."""

REMOVED = {
    ("selection", "rule"): {
        "best of K runs, their candidates proposed by earlier ones": "0.2.0",
        "one private run, then permute-and-flip among its iterates and averages": "0.2.0",
    },
    ("selection", "partition_training", "mode"): {"private": "0.2.0"},
    ("run_options", "clipping", "rule"): {"quantile": "0.2.0"},
}
"""Place in a statement -> a procedure removed since -> the last version that priced it."""


class NotVerified(ValueError):
    """Says that a release is not as its statement says, or that this cannot be rebuilt."""


@dataclasses.dataclass(frozen=True)
class Verified:
    """A release whose claim holds, `epsilon` as claimed and `recomputed` by this machine.

    A claim that is not `secret` (a seed was given) does not hold against anyone who knows the seed.
    """

    epsilon: float
    recomputed: float
    delta: float
    relation: str
    secret: bool


def verify_release(
    path: str | os.PathLike[str], rebuild: Callable[[dict], Rebuilt] = rebuilt
) -> Verified:
    """Verifies a release by its `guarantee.json` and the files beside it.

    Formal guarantees: returns only if (a) the folder holds exactly the files that the statement
    names, with the hashes it names, its own among them; (b) every field of the statement, sentences
    included, is what this version's procedures write for the rules that the statement itself names;
    (c) epsilon, computed anew from these rules, is at most the one claimed, and no further below
    than its sixth significant digit, at which statements are rounded up (than 0.3% for those of
    earlier versions, which did not round); (d) the released hyperparameters are among those that
    the procedure can release. Anything else raises. It cannot show that the run was as stated. The
    names of the model, the optimiser and the trained parameters, the ranges of hyperparameters that
    no cost depends on, and the public sizes are believed, as is who claims it and what for; the
    hashes are no signature (`signatures.check` looks at one). A guarantee from elsewhere
    (`Guarantee.from_pld`) cannot be rebuilt and is refused.

    Args:
      path: of the release's `guarantee.json`, of its folder, or of the run's folder that holds it.
      rebuild: statement -> what it should be.

    Raises:
      NotVerified: in one line, naming the field or file.
    """
    checks.function("rebuild", rebuild, "of a statement")
    path = statement_in(checks.path("path", path))
    claim = claim_in(path)
    if not claim["private"]:
        raise NotVerified("it makes no claim of privacy")
    try:
        hyperparameters = _sealed_files(path, claim)
        _refuse_removed(claim)
        for odd in certificate.outside(claim, certificate.schema()):
            raise NotVerified(_short(odd) + _written_by_another(claim))
        words = {name: value for name, value in claim.items() if name not in (SEAL, CONTEXT)}
        wanted = rebuild(words)
        fits = isinstance(hyperparameters, dict) and wanted.may_release(hyperparameters)
    except NotVerified:
        raise
    except MemoryError:
        raise NotVerified("its numbers are too large to be priced") from None
    except Exception as error:  # Whatever a malformed statement raises, it is not verified.
        raise NotVerified(
            f"its statement cannot be rebuilt from its own words ({_short(error)})"
            + _written_by_another(claim)
        ) from None
    recomputed = check_words(words, wanted.statement)
    if not fits:
        raise NotVerified(
            f"{HYPERPARAMETERS_FILE} holds what the stated procedure cannot have released"
        )
    return Verified(
        epsilon=words["epsilon"],
        recomputed=recomputed,
        delta=words["delta"],
        relation=words["neighbouring_relation"],
        secret=words["randomness"]["secret"],
    )


def check_words(words: Mapping[str, Any], rebuilt: Mapping[str, Any]) -> float:
    """Compares a statement, without hashes, with the rebuilt one; returns the rebuilt epsilon."""
    again = dict(rebuilt)
    # Epsilon has its own tolerance: it is compared last, or before a field that sorts after it.
    compared = {**words, "epsilon": again["epsilon"]}
    if stated.FIELD not in words:
        again.pop(stated.FIELD, None)
        said, found = compared.get(_PARTS), again.get(_PARTS)
        if provenance.first_difference(said, found, tolerance=EARLIER) is None:
            again[_PARTS] = compared[_PARTS] = None
    place = provenance.first_difference(compared, again, tolerance=TOLERANCE)
    if place is None or place.split(".")[0] > "epsilon":
        _check_epsilon(words, again)
    if place is not None:
        raise NotVerified(
            f"{_short(place)} is not what its own rules make of it" + _written_by_another(words)
        )
    return again["epsilon"]


def _check_epsilon(words: Mapping[str, Any], again: Mapping[str, Any]) -> None:
    """Compares the claimed epsilon with the recomputed one, both rounded up as stated.

    Where the latter is one unit higher, the number before rounding decides: the claim may still
    hold, since rounding errors differ between machines.
    """
    claimed, recomputed = words.get("epsilon"), again["epsilon"]
    if claimed is None or not is_number(claimed):
        raise NotVerified("epsilon is not what its own rules make of it")
    # One unit in the last stated digit, and half of one for rounding.
    unit = 1.5 * stated.place(recomputed) if recomputed > 0.0 else 0.0
    least = recomputed
    if claimed < recomputed <= claimed + unit:
        least = accounting.from_provenance(again["mechanism"]).epsilon(again["delta"])
    most = recomputed + unit if stated.FIELD in words else recomputed * (1.0 + EARLIER)
    if not least <= claimed * (1.0 + TOLERANCE) or not claimed <= most:
        verdict = "THE CLAIM IS TOO SMALL" if claimed < recomputed else "the claim is another one"
        raise NotVerified(
            f"claimed epsilon {claimed:.6f}, recomputed {recomputed:.6f} at delta "
            f"{words['delta']:g}: {verdict}"
        )


def claim_in(path: str) -> dict[str, Any]:
    """Reads a statement; refuses a file that is not one."""
    claim = read_json(path)
    if not isinstance(claim, dict) or not isinstance(claim.get("private"), bool):
        raise ValueError(f"{path} is not a guarantee.json: it does not say whether it is private")
    return claim


def statement_in(path: str | os.PathLike[str]) -> str:
    """Returns the path of a release's statement: `path`, or that of the one in this folder."""
    path = os.fspath(path)
    if not os.path.isdir(path):
        return path
    for place in (GUARANTEE_FILE, os.path.join(RELEASE_FOLDER, GUARANTEE_FILE)):
        found = os.path.join(path, place)
        if os.path.lexists(found):
            return found
    raise ValueError(f"{path} holds no release: pass a run's folder, or its {GUARANTEE_FILE}")


def _sealed_files(path: str, claim: Mapping[str, Any]) -> Any:
    """Checks the hashes of all files, and returns the released hyperparameters."""
    seal = claim.get(SEAL)
    if not isinstance(seal, dict) or THIS_STATEMENT not in seal:
        raise NotVerified(f"it lacks {SEAL}, the hashes that bind a release's files together")
    of_files = {name: digest for name, digest in seal.items() if name != THIS_STATEMENT}
    unsealed = dict(claim) | {SEAL: of_files}
    if sha256(json_bytes(unsealed)) != seal[THIS_STATEMENT]:
        raise NotVerified("it was changed after it was written: its own hash is another one")
    folder, own = os.path.split(os.path.abspath(path))
    if HYPERPARAMETERS_FILE not in of_files:
        raise NotVerified(f"{SEAL} lacks {HYPERPARAMETERS_FILE}")
    for name in sorted(of_files):
        if name != os.path.basename(name) or name in ("", ".", ".."):
            raise NotVerified(f"{SEAL} names {_short(name)}, which is not a file of a release")
        try:
            digest = _digest(os.path.join(folder, name))
        except (OSError, ValueError):
            raise NotVerified(f"{_short(name)} is not beside it, or cannot be read") from None
        if digest != of_files[name]:
            raise NotVerified(f"{_short(name)} is not the file that was released: another hash")
    stray = sorted(set(os.listdir(folder)) - {own, *of_files})
    if stray:
        raise NotVerified(
            f"{_short(stray[0])} lies beside it and is not part of the release: move it elsewhere"
        )
    return read_json(os.path.join(folder, HYPERPARAMETERS_FILE))


def _refuse_removed(claim: Mapping[str, Any]) -> None:
    """Refuses a statement of a removed procedure, and names the last version that priced it."""
    for place, versions in REMOVED.items():
        word: Any = claim
        for name in place:
            word = word.get(name) if isinstance(word, dict) else None
        if isinstance(word, str) and word in versions:
            raise NotVerified(
                f"dpjax {versions[word]} was the last to price its {place[-1]} {word!r}: verify "
                "with that version"
            )


def _digest(path: str) -> str:
    """Returns the SHA-256 of a regular file."""
    with _regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path: str) -> Any:
    """Reads a regular file of strict JSON: no name twice, no number that is not finite."""
    try:
        with _regular(path) as file:
            content = file.read(LARGEST_STATEMENT + 1)
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read ({error.strerror}): pass a release's guarantee.json"
        ) from None
    if len(content) > LARGEST_STATEMENT:
        raise ValueError(f"{path} is not a guarantee.json: it has over {LARGEST_STATEMENT} bytes")
    try:
        return json.loads(
            content.decode(),
            object_pairs_hook=_no_name_twice,
            parse_float=_finite,
            parse_constant=_finite,
        )
    except RecursionError:
        raise ValueError(f"{path} is not a guarantee.json: it is nested too deep") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise ValueError(
            f"{path} is not a guarantee.json: it is not JSON; pass that of a release"
        ) from None
    except ValueError as error:
        raise ValueError(f"{path} is not a guarantee.json: {_short(error)}") from None


def _regular(path: str) -> Any:
    """Opens a regular file; a pipe would wait for its writer."""
    file = os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb", closefd=True)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError(f"{path} is not a file: pass a release's guarantee.json")
    return file


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuses a JSON object in which a name is repeated."""
    named = dict(pairs)
    if len(named) != len(pairs):
        raise ValueError("a name is in it twice")
    return named


def _finite(text: str) -> float:
    """Reads a number of JSON; refuses NaN and infinity."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is not a finite number")
    return number


def _short(words: object) -> str:
    """Returns text of a file for a terminal: one line, no control characters, not too long."""
    text = " ".join(str(words).split())
    return ascii(text)[1:-1][:160]


def _written_by_another(claim: Mapping[str, Any]) -> str:
    """Returns a hint for a statement that another version wrote, else nothing."""
    versions = claim.get("library_versions")
    wrote = versions.get("dpjax") if isinstance(versions, dict) else None
    if wrote == dpjax.__version__:
        return ""
    return (
        f"; dpjax {_short(wrote)} wrote it, and this is {dpjax.__version__}: verify with that "
        "version"
    )
