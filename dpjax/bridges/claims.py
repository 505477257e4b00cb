"""What a release of runs from elsewhere states, and how that is written again from its own words.

The guarantee of one run is what the caller declared: the statement says so, and holds it whole, so
that everything made of it (the score's price, the selection's) is computed anew by `--verify`.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from typing import Any

import dpjax
from dpjax import accounting
from dpjax.accounting import stated
from dpjax.bridges.candidates import Candidates
from dpjax.bridges.counted_score import DISJOINT, PUBLIC, TRAINING, CountedScore
from dpjax.bridges.procedure import Procedure, planned
from dpjax.tuning import statements
from dpjax.tuning.problem.space import space_from
from dpjax.tuning.problem.stated_fields import flag, text, whole
from dpjax.tuning.tuner import Rebuilt, register_rule

RULE = "best of K runs of a function that is not dpjax's"

_LIBRARIES = ("jax", "flax", "numpy", "scipy", "dp-accounting")
_VERSIONED = ("dpjax", *_LIBRARIES)

_CHARGED = {
    DISJOINT: (
        "records that no run trains on, divided by nothing that another record, or under "
        "replace-one the record's own value, decides; run and count are charged in parallel"
    ),
    TRAINING: "records that runs are trained on; run and count are composed",
    PUBLIC: "records that were declared public and are NOT protected; nothing is charged",
}

_NOT_PROVEN = "declared by the caller and NOT proven here: the training is not dpjax's"

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
_SEEDED = (
    "NOT SECRET: an integer seed was given, for reproduction; whoever knows the seed can subtract "
    "the noise, so the guarantee does not hold against them"
)


def statement(
    procedure: Procedure, *, secret: bool, versions: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Returns what `guarantee.json` says, from public text and numbers alone."""
    score, delta = procedure.score, procedure.delta
    unit = "one record of the training data"
    if score.records != PUBLIC:
        unit += " or of the data that scores are counted on"
    return {
        "private": True,
        "model": procedure.model,
        "one_run": {
            "guarantee_is": _NOT_PROVEN,
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
            "noise_standard_deviation_in_records": procedure.deviation,
        },
        "randomness": {"secret": secret, "statement": _SECRET if secret else _SEEDED},
        "library_versions": _versions() if versions is None else dict(versions),
        "epsilon": procedure.guarantee.stated_epsilon(delta),
        stated.FIELD: stated.EPSILON_IS,
        "delta": delta,
        "neighbouring_relation": procedure.guarantee.relation,
        "unit_of_privacy": unit,
        "mechanism": procedure.guarantee.provenance,
        "assumptions": list(_ASSUMPTIONS),
    }


def rebuilt(claim: Mapping[str, Any]) -> Rebuilt:
    """Rebuilds a statement, as this version writes it, from the rules that `claim` names."""
    law, score = claim["candidates_drawn_from"], claim["score"]
    candidates = Candidates(space_from(law["space"]), law["labels"])
    public = score["records"] == PUBLIC
    deviation = None if public else float(score["noise_standard_deviation_in_records"])
    procedure = planned(
        candidates,
        base=accounting.from_provenance(claim["one_run"]["mechanism"]),
        score=CountedScore(score["records"], whole(score["public_size"]), noise=deviation),
        repetitions=accounting.law_from_dict(claim["selection"]["law_of_K"]),
        delta=claim["delta"],
        model=text(claim["model"]),
    )
    return Rebuilt(
        statement(
            procedure,
            secret=flag(claim["randomness"]["secret"]),
            versions=statements.versions(claim, _VERSIONED),
        ),
        candidates.may_be,
    )


def _versions() -> dict[str, str]:
    """Returns the versions of the libraries that the numbers depend on."""
    return {
        "dpjax": dpjax.__version__,
        **{name: importlib.metadata.version(name) for name in _LIBRARIES},
    }


register_rule(RULE, rebuilt)
