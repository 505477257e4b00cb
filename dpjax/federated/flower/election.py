"""Everything public about one federated vote, as one object and as Flower's flat configuration.

Server and clients each make an `Election` from their own configuration; its fingerprint is all they
exchange about it, and a client whose list of candidates differs in one digit is noticed before it
trains.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from dpjax import checks
from dpjax.federated.averaging import AveragingPlan, AveragingSettings
from dpjax.federated.federation_settings import Averaging, Config, LocalTraining, filled
from dpjax.federated.flower.messages import SumRules
from dpjax.federated.local_training import FlatModel, flat_model, stacked_candidates
from dpjax.federated.summed import SummedMechanism
from dpjax.federated.voting import RATES, VotePlan, VoteSettings, candidate_grid

Candidate = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Election:
    """Fixes one vote for hyperparameters and the training that follows, before data is seen.

    Example:
      >>> from dpjax import federated
      >>> rates = [{"learning_rate": rate, "decay": 1.0, "momentum": 0.9} for rate in (0.1, 0.3)]
      >>> election = federated.Election(
      ...     federated.VoteSettings(clients=50, candidates=2, votes=1, epsilon=1.0),
      ...     tuple(rates),
      ...     federated.LocalTraining(model="logistic_regression", classes=2),
      ... )
      >>> election.rules.minimum_survivors
      45
      >>> federated.Election.from_config(election.config()).fingerprint == election.fingerprint
      True

    Attributes:
      settings: number of clients and votes, epsilon, delta, noise.
      candidates: the list that is voted on; an index means the same to everyone.
      training: how a client trains each candidate.
      averaging: how the clients train a model with the winner.
      judge: public name of the function that clients judge candidates by in place of local training
        (`make_client_app(judge=)`); empty for none. Candidates then hold whatever JSON holds.
    """

    settings: VoteSettings
    candidates: tuple[Candidate, ...]
    training: LocalTraining = LocalTraining()
    averaging: Averaging = Averaging()
    judge: str = ""

    def __post_init__(self) -> None:
        if len(self.candidates) != self.settings.candidates:
            raise ValueError(
                f"{len(self.candidates)} candidates where the vote has "
                f"{self.settings.candidates}: pass one list and its length"
            )
        checks.instance("judge", self.judge, str, "'ridge'")
        # Checked here, by all: a client that found an error later would vote at random.
        if not self.judge:
            stacked_candidates(self.candidates)
            return
        if (self.training, self.averaging) != (LocalTraining(), Averaging()):
            words = " has no model to train: leave out training and averaging"
            raise checks.Refused(("judge", self.judge), words)
        object.__setattr__(self, "candidates", _copied(self.candidates))

    @property
    def plan(self) -> VotePlan:
        """Calibrates the noise of the vote."""
        return self.settings.plan()

    @property
    def rules(self) -> SumRules:
        """Returns the rules of the secure sum that the votes go through."""
        return _rules_of(self.plan)

    @property
    def model(self) -> FlatModel:
        """Returns the model that the rounds train, one and the same object in a process."""
        return flat_model(self.training.module(), self.averaging.input_shape)

    @functools.cached_property
    def averaging_plan(self) -> AveragingPlan:
        """Calibrates the noise of the rounds."""
        settings, averaging = self.settings, self.averaging
        return AveragingSettings(
            clients=settings.clients,
            dimension=self.model.dimension,
            rounds=averaging.rounds,
            epsilon=averaging.total_epsilon,
            delta=settings.delta,
            clip_norm=averaging.clip_norm,
            missing_fraction=settings.missing_fraction,
            server_rate=averaging.server_rate,
        ).plan(self.plan.guarantee)

    @property
    def averaging_rules(self) -> SumRules:
        """Returns the rules of the secure sum that the updates go through."""
        return _rules_of(self.averaging_plan)

    @property
    def total_epsilon(self) -> float:
        """Returns the target epsilon for all sums that a client joins; infinite if not private."""
        return self.averaging.total_epsilon if self.averaging.rounds else self.settings.epsilon

    @functools.cached_property
    def fingerprint(self) -> str:
        """Returns the SHA-256 of everything here, the order of the candidates included."""
        content: dict[str, Any]
        if self.judge:
            # As JSON, in which 3, 3.0 and true differ: a judge may tell them apart.
            vote = dataclasses.asdict(self.settings) | {"local_variance": self.plan.local_variance}
            content = {"vote": vote, "candidates": self.candidates, "judge": self.judge}
        else:
            content = {
                "vote": self.plan.fingerprint(self.candidates),
                "training": dataclasses.asdict(self.training),
            }
        if self.averaging.rounds:
            content["averaging"] = dataclasses.asdict(self.averaging) | {
                "dimension": self.averaging_plan.settings.dimension,
                "bound": self.averaging_plan.bound,
                "local_variance": self.averaging_plan.local_variance,
            }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def config(self) -> dict[str, str | int | float]:
        """Writes Flower's flat configuration, from which `from_config` rebuilds this object."""
        numbers: dict[str, Any] = dataclasses.asdict(self.settings)
        if self.judge:
            numbers["judge"] = self.judge
        else:
            numbers |= dataclasses.asdict(self.training) | dataclasses.asdict(self.averaging)
            for name in ("widths", "input_shape"):
                numbers[name] = ",".join(map(str, numbers[name]))
        numbers["candidates"] = json.dumps([dict(candidate) for candidate in self.candidates])
        return {name.replace("_", "-"): value for name, value in numbers.items()}

    @staticmethod
    def setting_names() -> frozenset[str]:
        """Returns the names of all settings that `from_config` reads."""
        return frozenset({*_names_of(VoteSettings), *_names_of(LocalTraining, Averaging), "judge"})

    @classmethod
    def from_config(cls, config: Config) -> Election:
        """Makes an election from flat settings; names with dashes, defaults where absent.

        `candidates` is the name of a list of learning rates ("artifact", crossed with decays and
        momenta), or a JSON list of objects. Other keys are not read here. With `judge`, settings of
        local training and of rounds are refused: nothing would read them.
        """
        judge: Any = config.get("judge", "")
        text = str(config.get("candidates", "artifact"))
        candidates = _listed(text) if judge else parse_candidates(text)
        settings = filled(VoteSettings, config, {"candidates": len(candidates)})
        if judge:
            unread = sorted(_names_of(LocalTraining, Averaging) & set(config))
            if unread:
                words = f" has no model to train: drop {', '.join(unread)}"
                raise checks.Refused(("judge", judge), words)
            return cls(settings, candidates, judge=judge)
        widths = _whole_numbers(config, "widths", LocalTraining.widths)
        shape = _whole_numbers(config, "input-shape", Averaging.input_shape)
        return cls(
            settings,
            candidates,
            filled(LocalTraining, config, {"widths": widths}),
            filled(Averaging, config, {"input_shape": shape}),
        )


def _rules_of(plan: SummedMechanism) -> SumRules:
    """Returns the rules of the secure sum that a plan's vectors go through."""
    return SumRules(
        clients=plan.settings.clients,
        minimum_survivors=plan.minimum_survivors,
        clip=plan.clip,
        length=plan.entries,
    )


def _names_of(*kinds: type) -> set[str]:
    """Returns the names of settings, as a configuration writes them."""
    fields = (field for kind in kinds for field in dataclasses.fields(kind))
    return {field.name.replace("_", "-") for field in fields}


def parse_candidates(text: str) -> tuple[dict[str, float], ...]:
    """Reads a list of candidates: a name of learning rates, or a JSON list of objects."""
    if text in RATES:
        return tuple(candidate_grid(text))
    listed = _listed(text)
    try:
        return tuple(
            {str(name): float(value) for name, value in candidate.items()} for candidate in listed
        )
    except (ValueError, TypeError, AttributeError, OverflowError):
        raise ValueError(_unread(text)) from None


def _listed(text: str) -> tuple[Any, ...]:
    """Reads a JSON list that is not empty."""
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        listed = None
    if not isinstance(listed, list) or not listed:
        raise ValueError(_unread(text))
    return tuple(listed)


def _unread(text: str) -> str:
    """Returns the error message for candidates that cannot be read."""
    return (
        f"candidates {text[:80]!r}: pass one of {', '.join(RATES)}, or a JSON list such as "
        '[{"learning_rate": 0.1, "decay": 1, "momentum": 0.9}, ...]; with a judge, any objects'
    )


def _copied(candidates: Sequence[Candidate]) -> tuple[dict[str, Any], ...]:
    """Returns a copy of the candidates, which a judge may change; refuses what JSON changes."""
    found = []
    for number, candidate in enumerate(candidates):
        checks.mapping(f"candidate {number}", candidate, "from names to what JSON holds")
        try:
            copied = json.loads(json.dumps(dict(candidate), allow_nan=False))
        except (TypeError, ValueError, RecursionError):
            copied = None
        # A tuple would come back as a list, and a name that is a number as text.
        if copied != dict(candidate):
            words = ": pass what JSON holds unchanged, names as text and finite numbers"
            raise ValueError(f"candidate {number} is {checks.shown(dict(candidate))}{words}")
        found.append(copied)
    return tuple(found)


def _whole_numbers(config: Config, key: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """Reads a list of numbers, written with commas."""
    text = str(config.get(key, ",".join(map(str, default))))
    try:
        return tuple(int(number) for number in text.split(",") if number.strip())
    except ValueError:
        raise ValueError(f"{key} {text!r}: pass numbers, as in 128,64") from None
