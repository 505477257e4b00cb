"""Runs of other libraries: the caller's declarations, their price, and a release's statement.

The statement says that the caller declared the guarantee of one run, and holds all of it, so that
`--verify` computes everything that follows from it (the score's price, the selection's) anew.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from dpjax import accounting, checks
from dpjax.accounting import stated_epsilon
from dpjax.accounting.guarantee import check_guarantee
from dpjax.randomness import keys
from dpjax.releases import claims
from dpjax.releases.ledger import Ledger
from dpjax.releases.rules import Rebuilt, register_rule
from dpjax.tuning import statements
from dpjax.tuning.problem.fitting_law import fitting_law
from dpjax.tuning.problem.run_settings import (
    check_score_noise,
    count_guarantee,
    noise_on_training_scores,
    validation_noise,
)
from dpjax.tuning.problem.space import Choice, Space, space_from
from dpjax.tuning.selection import BestOf

Label = None | bool | int | float | str

SEED_BITS = 63
"""Bits of a run's seed: 64-bit integers hold it, and `numpy.random.default_rng` reads all of it."""

FAILED = "ranked worst: "
"""Beginning of the remark on a failed candidate."""


class ContradictionError(RuntimeError):
    """A run contradicts what the caller declared for it, so that nothing may be released.

    Any other exception of a run counts and ranks worst. This one ends the tuning, wherever the run
    was: the run's price is not the one that the release would state, or the run reads
    hyperparameters that are not drawn, as every other run would. Its message is the curator's. A
    training that counts its own steps raises it if it makes more than were paid for.
    """


class _NotDrawnError(ContradictionError, KeyError):
    """A run reads a hyperparameter that the space does not draw; to a caller, a KeyError."""

    __str__ = RuntimeError.__str__  # Not KeyError's, which shows a repr.


class Hyperparameters(dict[str, Any]):
    """A candidate's hyperparameters; one that the space does not draw ends the tuning."""

    def __missing__(self, name: object) -> Any:
        raise _NotDrawnError(
            f"a run reads the hyperparameter {checks.shown(name)}, and the space draws "
            f"{', '.join(sorted(self))}: name it there, or read one of these; nothing is released"
        )


# To JAX it is a dictionary: a run may return it, or parts of it, as its model.
jax.tree_util.register_pytree_node(
    Hyperparameters,
    lambda given: ([given[name] for name in sorted(given)], sorted(given)),
    lambda names, values: dict(zip(names, values)),
)


@dataclasses.dataclass(frozen=True)
class Candidates:
    """A `Space` in which some hyperparameters are labels: text, truth values or None.

    Example:
      >>> from dpjax import bridges, tuning
      >>> space = tuning.Space(rate=tuning.LogUniform(0.01, 1))
      >>> bridges.Candidates(space, {"optimizer": ["sgd", "adam"]}).labels["optimizer"]
      ('sgd', 'adam')

    Attributes:
      space: the public distribution; it holds the places of the labels too.
      labels: name -> what the places 0, 1, ... stand for: text, numbers, True, False or None.
    """

    space: Space
    labels: Mapping[str, tuple[Label, ...]]

    def __init__(self, space: Space | None, labels: Mapping[str, Sequence[Label]] | None = None):
        """Checks the labels, and adds those that the space does not draw, equally likely."""
        if space is not None:
            checks.instance("space", space, Space, "tuning.Space(learning_rate=0.1)")
        checks.mapping("labels", {} if labels is None else labels, "from names to lists of labels")
        found: dict[str, tuple[Label, ...]] = {}
        laws = {} if space is None else dict(space.parameters)
        for name, given in (labels or {}).items():
            words = tuple(checks.listed(f"labels of {name}", given, "text, numbers, or None"))
            for word in words:
                plain = word is None or isinstance(word, bool | int | float | str)
                if not plain or (isinstance(word, float) and not math.isfinite(word)):
                    wanted = "text, a finite number, True, False or None"
                    raise checks.refused(f"a label of {name}", word, wanted)
            if not words:
                raise ValueError(f"labels of {name} are empty: pass at least one")
            law = laws.setdefault(name, Choice(range(len(words))))
            if law.values is None or set(law.values) != set(range(len(words))):
                raise ValueError(
                    f"the law of {name} must draw all places 0 to {len(words) - 1} of its labels, "
                    "or be left out of the space"
                )
            found[name] = words
        if not laws:
            raise ValueError(
                "there is nothing to draw: pass space, such as "
                "tuning.Space(rate=tuning.LogUniform(0.01, 1.0)), or labels"
            )
        object.__setattr__(self, "space", Space(laws))
        object.__setattr__(self, "labels", found)

    @classmethod
    def of(cls, given: Space | Candidates) -> Candidates:
        """Returns the distribution of candidates that was passed, as `Candidates`."""
        return given if isinstance(given, Candidates) else cls(given)

    def values(self, drawn: Mapping[str, float]) -> dict[str, Label]:
        """Returns a candidate as its run reads it: with labels, and whole numbers as integers."""
        return Hyperparameters(
            (name, self._value(name, float(drawn[name]))) for name in sorted(drawn)
        )

    def _value(self, name: str, drawn: float) -> Label:
        """Returns the drawn label, or the drawn number as a statement rounds it."""
        if name in self.labels:
            return self.labels[name][round(drawn)]
        law = self.space.parameters[name]
        # exp(log(end)) may leave the range by a rounding error.
        inside = min(max(drawn, law.lowest), law.highest)
        return round(inside) if law.whole else statements.rounded({name: inside})[name]

    def may_be(self, chosen: Mapping[str, Any]) -> bool:
        """Returns whether `chosen` is a possible draw, or the default (all None)."""
        laws = self.space.parameters
        if set(chosen) != set(laws):
            return False
        if all(value is None for value in chosen.values()):
            return True
        named = {name for name in laws if name in self.labels}
        numbers = [name for name in laws if name not in named]
        if numbers:
            rest = Space({name: laws[name] for name in numbers})
            if not statements.can_be_drawn({name: chosen[name] for name in numbers}, rest):
                return False
        return all(
            any(
                type(chosen[name]) is type(word) and chosen[name] == word
                for place, word in enumerate(self.labels[name])
                if place in (laws[name].values or ())
            )
            for name in named
        )

    def describe(self) -> dict[str, Any]:
        """Returns the distribution for JSON, as `rebuilt` reads it."""
        return {
            "space": self.space.describe(),
            "labels": {name: list(self.labels[name]) for name in sorted(self.labels)},
        }


DISJOINT, TRAINING, PUBLIC = RECORDS = ("disjoint", "training", "public")
"""Which records are counted; see `CountedScore`."""


@dataclasses.dataclass(frozen=True)
class CountedScore:
    """How runs are scored: correct predictions on which records, out of how many, plus noise.

    Formal guarantees:
      What is charged covers one noisy count: in parallel with the run for "disjoint" records,
      composed with it for those of "training", nothing for "public" ones. It holds if, for any one
      model, a record that comes, goes or (under replace-one) changes moves the count by 1 at most
      and never decides whether there is a count. Numbers are rounded down and clipped to
      0..public_size, which moves two counts that differ by 1 at most no farther apart.

    Attributes:
      records: "disjoint", private records that no run trains on, a record being in one part
        whatever the others are (under replace-one: whatever its own value is, as by its slot);
        "training", records that runs are trained on; "public", records of nobody. There is no
        default: the wrong word is a wrong price.
      public_size: the public number of these records; counts above it are clipped to it.
      noise: std of the discrete Gaussian, in records; None: the least that adds 0
        ("disjoint") or at most 1% ("training") to a run's epsilon.
    """

    records: str
    public_size: int
    noise: float | None = None

    def __post_init__(self) -> None:
        checks.one_of("records", self.records, RECORDS)
        object.__setattr__(self, "public_size", checks.whole("public_size", self.public_size))
        check_score_noise(self.noise, 1)
        if self.noise is not None:
            object.__setattr__(self, "noise", float(self.noise))
            if self.records == PUBLIC:
                raise ValueError("records that are public are counted without noise: drop noise")

    def std(self, base: accounting.Guarantee, delta: float) -> float:
        """Returns the noise's std for this guarantee of one run, in records; 0 for public ones."""
        if self.records == PUBLIC:
            return 0.0
        if self.noise is not None:
            return self.noise
        if self.records == TRAINING:
            return noise_on_training_scores(base, base.relation, delta)
        return validation_noise(base, base.relation)

    def charged(self, base: accounting.Guarantee, std: float) -> accounting.Guarantee:
        """Returns the guarantee of one run and its noisy count together."""
        if self.records == PUBLIC:
            return base
        count = count_guarantee(std, base.relation)
        if self.records == TRAINING:
            return accounting.compose(base, count)
        return accounting.parallel(base, count)

    def counted(self, given: Any) -> tuple[int | None, str | None]:
        """Returns the count to rank, in 0..public_size, and a remark for the curator on a bad one.

        For anything but a number or 0-d array the count is None, which ranks worst.
        """
        try:
            if getattr(given, "ndim", None) == 0 and hasattr(given, "item"):
                given = given.item()  # NumPy's, JAX's and PyTorch's scalars.
        except Exception:  # A scalar that cannot be read ranks worst; the other runs go on.
            given = None
        if not isinstance(given, numbers.Real) or isinstance(given, bool) or given != given:
            return None, f"{FAILED}it returned no number of correct predictions"
        clipped: Any = min(max(given, 0), self.public_size)
        count = math.floor(clipped)
        if clipped != given:
            return count, f"its count was clipped to 0..{self.public_size}"
        if 0 < clipped < 1:
            return count, "it returned a fraction, counted as 0: return the number of correct ones"
        return count, None if count == given else "its count was rounded down"


@dataclasses.dataclass(frozen=True, repr=False)
class Outcome:
    """One candidate, once it has run; for the curator only, never to be published.

    Attributes:
      candidate: its number.
      hyperparameters: as its run read them.
      count: of correct predictions, clipped, without noise; None where there is none.
      score: the count with noise over the public size, by which it is ranked; -inf where it failed.
      remark: what was wrong, None if nothing was.
    """

    candidate: int
    hyperparameters: Mapping[str, Label]
    count: int | None
    score: float
    remark: str | None

    def __repr__(self) -> str:
        """Hides all numbers: what is printed is easily published."""
        return "Outcome(not private: for the curator only)"

    @property
    def failed(self) -> bool:
        """Returns whether the candidate failed, and so ranks worst."""
        return math.isinf(self.score)


Callback = Callable[[Outcome], object]
"""Called once for each candidate; what it writes (a log, a tracking server) is the curator's."""


def jax_key(seed: int) -> jax.Array:
    """Returns the typed threefry key made of all bits of a run's seed.

    Formal guarantees: two seeds give two keys. `jax.random.key(seed)` does not promise that:
    without 64-bit mode it keeps 32 bits of a number, which anyone can search.

    Example:
      >>> from dpjax import bridges
      >>> bool(bridges.jax_key(1) != bridges.jax_key(1 + 2**32))
      True

    Args:
      seed: the seed that a run is given, a whole number in [0, 2^63).
    """
    seed = checks.whole("seed", seed, 0)
    if seed >> SEED_BITS:
        raise ValueError(f"seed must be below 2^{SEED_BITS}: pass the number that a run is given")
    words = np.array([seed >> 32, seed & 0xFFFFFFFF], dtype=np.uint32)
    return jax.random.wrap_key_data(words, impl=keys.IMPLEMENTATION)


def expanded(seed: int, purpose: str, number: int) -> bytes:
    """Returns `number` bytes made of all bits of a run's seed, by SHAKE-256 (FIPS 202).

    Formal guarantees: bytes of two seeds, or of two purposes, show nothing of each other, as far as
    SHAKE-256 cannot be told from a random function.
    """
    seed = checks.whole("seed", seed, 0)
    return hashlib.shake_256(
        b"dpjax.bridges.seeds\0" + purpose.encode() + b"\0" + seed.to_bytes(8, "big")
    ).digest(number)


# What is fixed, and public, before the first run --------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Procedure:
    """The rules of a selection among runs of another library, and its cost, before the first run.

    `score_noise` is the std of the count's noise in records; `run_guarantee` is the guarantee of
    one run with its noisy count, `base` that of its training alone.
    """

    candidates: Candidates
    base: accounting.Guarantee
    score: CountedScore
    choice: BestOf
    delta: float
    model: str
    score_noise: float
    run_guarantee: accounting.Guarantee
    guarantee: accounting.Guarantee
    ledger: Ledger | None = None


def planned(
    candidates: Candidates,
    *,
    base: accounting.Guarantee | None,
    score: CountedScore | None,
    repetitions: accounting.RepetitionLaw | None,
    delta: float,
    model: str,
    ledger: Ledger | None = None,
) -> Procedure:
    """Checks the rules, and returns them with the cost of the whole procedure."""
    # Neither has a default: only the caller knows what a run costs, and what is counted.
    if base is None:
        raise ValueError(
            "pass base=, the guarantee of one run, such as accounting.dp_sgd(0.01, 1.0, 1000)"
        )
    if score is None:
        raise ValueError(
            "pass score=, which records are counted, such as bridges.CountedScore('disjoint', 1000)"
        )
    check_guarantee("base", base)
    checks.instance("score", score, CountedScore, "bridges.CountedScore('disjoint', 1000)")
    checks.probability("delta", delta, hint=", for example 1e-5")
    checks.text("model", model)
    if ledger is not None:
        checks.instance("ledger", ledger, Ledger, "bridges.Ledger('runs/mine', name, records)")
    choice = BestOf(fitting_law(candidates.space) if repetitions is None else repetitions)
    std = score.std(base, delta)
    run = score.charged(base, std)
    guarantee = choice.guarantee(run)
    if not math.isfinite(guarantee.epsilon(delta)):
        raise ValueError(stated_epsilon.no_epsilon(guarantee.least_delta, delta))
    return Procedure(candidates, base, score, choice, delta, model, std, run, guarantee, ledger)


RULE = "best of K runs of a function that is not dpjax's"

_VERSIONED = tuple(name for name in claims.VERSIONED if name != "optax")

_CHARGED = {
    DISJOINT: (
        "records that no run trains on, divided by nothing that another record, or under "
        "replace-one the record's own value, decides; run and count are charged in parallel"
    ),
    TRAINING: "records that runs are trained on; run and count are composed",
    PUBLIC: "records that were declared public and are NOT protected; nothing is charged",
}

_ASSUMPTIONS = (
    "one run, with whether it ends in a model at all, has the guarantee declared for it, whatever "
    "candidate the law draws",
    "a run reads its arguments and the data alone: fresh randomness, nothing of another run",
    "for any one model, a record moves the count of correct predictions by 1 at most",
    "the law of candidates, the law of K and every setting were fixed before the data was seen",
    "K, the losing candidates, the console, what callbacks wrote and the wall clock stay with the "
    "curator",
    "the file of the model is a function of the model alone, without the time of its writing",
    "no other computation on the same records is released, or it is composed with this",
)

_SECRET = (
    "K, candidates, seeds of runs and score noise come from the operating system's randomness; the "
    "noise of training is the caller's"
)


def statement(
    procedure: Procedure, *, secret: bool, versions: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Returns the content of `guarantee.json`, made from public text and numbers alone."""
    score, delta = procedure.score, procedure.delta
    unit = "one record of the training data"
    if score.records != PUBLIC:
        unit += " or of the data that scores are counted on"
    return {
        "private": True,
        "model": procedure.model,
        "one_run": {
            "guarantee_is": "declared by the caller and NOT proven here: the training is not "
            "dpjax's",
            "epsilon": procedure.base.epsilon(delta),
            "mechanism": procedure.base.provenance,
        },
        "selection": procedure.choice.describe() | {"rule": RULE},
        "candidates_drawn_from": procedure.candidates.describe(),
        "score": {
            "what": "number of correct predictions plus noise, over the public size",
            "records": score.records,
            "charged": _CHARGED[score.records],
            "public_size": score.public_size,
            "noise": "none" if score.records == PUBLIC else "discrete Gaussian",
            "noise_standard_deviation_in_records": procedure.score_noise,
        },
        "randomness": claims.of_randomness(secret, _SECRET),
        "library_versions": dict(versions or claims.versions_now(_VERSIONED)),
        **claims.of_guarantee(procedure.guarantee, delta),
        "unit_of_privacy": unit,
        "assumptions": list(_ASSUMPTIONS),
    }


def rebuilt(claim: Mapping[str, Any]) -> Rebuilt:
    """Rebuilds a statement, as this version writes it, from the rules that `claim` names."""
    law, score = claim["candidates_drawn_from"], claim["score"]
    candidates = Candidates(space_from(law["space"]), law["labels"])
    public = score["records"] == PUBLIC
    noise = None if public else float(score["noise_standard_deviation_in_records"])
    procedure = planned(
        candidates,
        base=accounting.from_provenance(claim["one_run"]["mechanism"]),
        score=CountedScore(score["records"], claims.whole(score["public_size"]), noise=noise),
        repetitions=accounting.law_from_dict(claim["selection"]["law_of_K"]),
        delta=claim["delta"],
        model=claims.text(claim["model"]),
    )
    return Rebuilt(statement(procedure, **claims.common(claim, _VERSIONED)), candidates.may_be)


register_rule(RULE, rebuilt)
