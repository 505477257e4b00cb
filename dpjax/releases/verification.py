"""Verifies a release: rebuilds its statement from its own words, and checks its files.

`guarantee.json` names the rules of a procedure: space, law of K, noise, lots, public numbers. The
statement is a function of these alone, so it is written again by the code that wrote it, and every
field and sentence must be the same; the epsilon is computed anew on the way. The release's other
files are bound to it by their hashes.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

import dpjax
from dpjax import accounting, certificate, checks
from dpjax.accounting import provenance, stated_epsilon
from dpjax.releases.claims import is_number
from dpjax.releases.release import CONTEXT, HYPERPARAMETERS_FILE, SEAL
from dpjax.releases.release_files import NotVerified, claim_in, sealed_files, short, statement_in
from dpjax.releases.rules import Rebuilt, rebuilt

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
        "one run; its hyperparameters were chosen on public data": "0.2.0",
    },
    ("selection", "partition_training", "mode"): {"private": "0.2.0"},
    ("run_options", "clipping", "rule"): {"quantile": "0.2.0"},
}
"""Place in a statement -> a procedure removed since -> the last version that priced it."""


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
    hashes are no signature. A guarantee from elsewhere
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
        hyperparameters = sealed_files(path, claim)
        _refuse_removed(claim)
        for odd in certificate.outside(claim, certificate.schema()):
            raise NotVerified(short(odd) + _written_by_another(claim))
        words = {name: value for name, value in claim.items() if name not in (SEAL, CONTEXT)}
        wanted = rebuild(words)
        fits = isinstance(hyperparameters, dict) and wanted.may_release(hyperparameters)
    except NotVerified:
        raise
    except MemoryError:
        raise NotVerified("its numbers are too large to be priced") from None
    except Exception as error:  # Whatever a malformed statement raises, it is not verified.
        raise NotVerified(
            f"its statement cannot be rebuilt from its own words ({short(error)})"
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
    if stated_epsilon.FIELD not in words:
        again.pop(stated_epsilon.FIELD, None)
        said, found = compared.get(_PARTS), again.get(_PARTS)
        if provenance.first_difference(said, found, tolerance=EARLIER) is None and all(
            (said or {})[name] >= number * (1.0 - TOLERANCE)
            for name, number in (found or {}).items()
            if is_number(number)
        ):
            again[_PARTS] = compared[_PARTS] = None
    place = provenance.first_difference(compared, again, tolerance=TOLERANCE)
    if place is None or place.split(".")[0] > "epsilon":
        _check_epsilon(words, again)
    if place is not None:
        raise NotVerified(
            f"{short(place)} is not what its own rules make of it" + _written_by_another(words)
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
    unit = 1.5 * stated_epsilon.place(recomputed) if recomputed > 0.0 else 0.0
    least = recomputed
    if claimed < recomputed <= claimed + unit:
        least = accounting.from_provenance(again["mechanism"]).epsilon(again["delta"])
    most = recomputed + unit if stated_epsilon.FIELD in words else recomputed * (1.0 + EARLIER)
    if not least <= claimed * (1.0 + TOLERANCE) or not claimed <= most:
        verdict = "THE CLAIM IS TOO SMALL" if claimed < recomputed else "the claim is another one"
        raise NotVerified(
            f"claimed epsilon {claimed:.6f}, recomputed {recomputed:.6f} at delta "
            f"{words['delta']:g}: {verdict}"
        )


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


def _written_by_another(claim: Mapping[str, Any]) -> str:
    """Returns a hint for a statement that another version wrote, else nothing."""
    versions = claim.get("library_versions")
    wrote = versions.get("dpjax") if isinstance(versions, dict) else None
    if wrote == dpjax.__version__:
        return ""
    return (
        f"; dpjax {short(wrote)} wrote it, and this is {dpjax.__version__}: verify with that "
        "version"
    )
