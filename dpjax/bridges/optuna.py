"""Optuna: the price of a finished study, and an objective as the run of `bridges.tune`.

Takuya Akiba et al., "Optuna: A Next-generation Hyperparameter Optimization Framework", KDD 2019.
Its samplers look at earlier trials, its pruners at a trial's reported values: such a study is a
composition, never the best of independent runs. `tune` instead draws a secret number of candidates
from one public law.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

try:
    import optuna
except ImportError:
    raise ImportError(
        "dpjax.bridges.optuna runs on optuna, which is not installed: pip install -e '.[bridges]' "
        "in dpjax's folder"
    ) from None
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from dpjax import checks
from dpjax.bridges import any_run, repeated_draws
from dpjax.bridges.runs import Candidates, ContradictionError, Label
from dpjax.bridges.study_price import Base, StudyPrice, most_expensive, price_of_trials
from dpjax.tuning.problem.space import Choice, Integer, Law, LogInteger, LogUniform, Space, Uniform
from dpjax.tuning.tuner import Result

EXACT_COUNT = "correct_without_noise"
"""The user attribute in which private studies of version 0.2 kept a trial's exact count."""


def price_study(
    study: optuna.Study | optuna.storages.BaseStorage | str,
    *,
    base: Base | None = None,
    delta: float = 1e-5,
    most_trials: int | None = None,
    independent: bool = False,
    cost_depends_on: Sequence[str] = (),
    monotone_in: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
    study_name: str | None = None,
) -> StudyPrice:
    """Returns the privacy cost of a finished study.

    Formal guarantees:
      The price is the adaptive composition of `most_trials` trials, whatever sampler and pruner
      there were, complete, pruned and failed ones alike; it holds if `base` holds for one trial
      with every value it reported, and `most_trials` was fixed before the data was seen. With
      `independent` it is that of the best of exactly `most_trials` independent draws, under what
      the caller thereby states and the result repeats; all is refused that RandomSampler does not
      leave (another sampler, or its mark, on the study or a trial; draws that repeat, as of one
      seed in two workers, or that form a grid; another number of trials; one that was pruned,
      enqueued, retried or has not ended; different ranges; reported values that a pruner may have
      read), and a bare storage, which does not say who sampled. That nobody wrote trials by hand is
      the caller's word. A storage that a private study of version 0.2 left is refused: its exact
      counts have no price.

    Example: `price_study("sqlite:///mine.db", base=run, most_trials=50).epsilon`.

    Args:
      study: an Optuna study, a storage, or a storage's URL.
      base: needed; guarantee of ONE trial, every value it reported to Optuna included (a score on
        private records is composed into it, or joined by `accounting.parallel`); or a function from
        hyperparameters to that.
      delta: in (0, 1).
      most_trials: how many trials there could have been at most, as fixed beforehand: `n_trials`,
        of all processes together. How many ran does not bound a search that ended on what it saw.
      independent: states that the trials were independent draws of one distribution, without
        pruning, by a sampler whose seed nobody knows, and that the best alone is released; for a
        study with its sampler, `optuna.load_study(sampler=RandomSampler(), ...)`.
      cost_depends_on: the hyperparameters that `base` reads, where it is a function; each must have
        finitely many values, of which the most expensive is charged.
      monotone_in: those of them in which the cost only rises, or only falls (more steps cost more):
        only their two ends are priced. You vouch for that, and the statement says so.
      progress: called with (settings priced, settings in all); each takes a fifth of a second.
      study_name: which study to read if a storage holds several.

    Returns:
      A `StudyPrice`: `epsilon`, `guarantee`, `statement`.
    """
    checks.flag("independent", independent)
    if base is None:
        raise ValueError(
            "pass base=, the guarantee of one trial with every value it reported, such as "
            "accounting.dp_sgd(0.01, 1.0, 1000)"
        )
    found = _loaded(study, study_name)
    if len(found.directions) != 1:
        raise ValueError(
            "the study has several directions and no best trial: pass a study of one, or price "
            "all of its trials by accounting.repeat(base, most_trials)"
        )
    trials = [one for one in found.get_trials(deepcopy=False) if one.state != TrialState.WAITING]
    if not any(one.state == TrialState.COMPLETE for one in trials):
        raise ValueError(
            "the study has no trial with a value, so nothing was chosen by it: pass a finished "
            "study (what trials without one cost is accounting.repeat(base, most_trials))"
        )
    if any(EXACT_COUNT in one.user_attrs for one in trials):
        # No base says what the exact counts cost: they have no finite epsilon.
        raise ValueError(
            "the study is a private one of version 0.2, and its storage holds exact counts, which "
            "have no price and stay with the curator: take the price of its release"
        )
    if most_trials is None:
        raise ValueError(
            "pass most_trials, how many trials there could have been at most, fixed beforehand: "
            "how many ran may have followed from what they gave"
        )
    most_trials = checks.whole("most_trials", most_trials)
    if len(trials) > most_trials:
        raise ValueError(
            f"the study holds more than most_trials={most_trials} trials: pass the number that "
            "bounded it"
        )
    if independent:
        _check_independent(found, most_trials, found is study)
    trial = most_expensive(
        base, lambda name: _all_values(name, trials), cost_depends_on, monotone_in, progress
    )
    return price_of_trials(
        trial,
        most_trials=most_trials,
        independent=independent,
        delta=delta,
        monotone_in=monotone_in,
    )


def _loaded(study: Any, name: str | None) -> optuna.Study:
    """Returns the study, or loads it from a storage, which does not say how it was sampled."""
    if isinstance(study, optuna.Study):
        if name is not None:
            raise ValueError("study_name is for a storage, and a study was passed: drop it")
        return study
    if not isinstance(study, str | optuna.storages.BaseStorage):
        raise checks.refused("study", study, "an optuna.Study, a storage or its URL")
    # Opening an SQLite file that does not exist would create it.
    for place in _files_of("study", study):
        if not os.path.isfile(place):
            raise ValueError(f"there is no file {place}: pass the URL of a storage that exists")
    try:
        names = optuna.get_all_study_names(study)
    except Exception as error:
        shown = checks.shown(str(error) or type(error).__name__)
        raise ValueError(
            f"no study can be read there ({shown}): pass a storage that Optuna can open"
        ) from None
    if not names:
        raise ValueError("the storage holds no study: pass the one that the trials were kept in")
    if name not in names and (name is not None or len(names) > 1):
        raise ValueError(
            f"the storage holds the studies {', '.join(names)}: pass study_name, one of them"
        )
    return optuna.load_study(study_name=name, storage=study)


def _files_of(name: str, storage: Any) -> list[str]:
    """Returns the files that an SQLite storage, its URL or a journal writes."""
    if isinstance(storage, optuna.storages.JournalStorage):
        place = getattr(storage._backend, "_file_path", None)  # No public attribute has it.
        return [] if place is None else [place]
    inner = getattr(storage, "_backend", storage)  # `get_storage` wraps the storage of a URL.
    if isinstance(inner, optuna.storages.RDBStorage):
        storage = inner.url
    if not isinstance(storage, str):
        return []
    if "://" not in storage:
        raise ValueError(
            f"{name}={storage!r} is not the URL of a storage: pass sqlite:///{storage} for an "
            "SQLite file"
        )
    try:
        url = make_url(storage)
    except SQLAlchemyError:
        raise ValueError(
            f"{name} is not the URL of a storage: pass one such as sqlite:////folder/curator.db"
        ) from None
    place = url.database or ""
    if url.get_backend_name() != "sqlite" or place in ("", ":memory:"):
        return []
    return [place.removeprefix("file:").partition("?")[0]]


def _check_independent(study: optuna.Study, number: int, known: bool) -> None:
    """Refuses a study that RandomSampler cannot have made; `known`: it came with its sampler."""
    instead = ": drop independent, for the composition of all trials"
    trials = study.get_trials(deepcopy=False)
    if known and type(study.sampler) is not optuna.samplers.RandomSampler:
        raise ValueError(
            f"the study's sampler is {type(study.sampler).__name__}, not RandomSampler{instead}"
        )
    # Adaptive samplers (QMC, genetic) store their history there; users store only metric names.
    if set(study._storage.get_study_system_attrs(study._study_id)) - {"study:metric_names"}:
        raise ValueError(f"a sampler stored data in the study, as no random one does{instead}")
    if any(one.state not in (TrialState.COMPLETE, TrialState.FAIL) for one in trials):
        raise ValueError(f"a trial was pruned, or has not ended{instead}")
    if len(trials) != number:
        raise ValueError(f"the study holds fewer trials than were fixed beforehand{instead}")
    if any(one.system_attrs for one in trials):
        raise ValueError(
            "a trial was enqueued, retried or constrained, or its sampler stored data in it, as "
            f"RandomSampler does not{instead}"
        )
    no_pruner = known and type(study.pruner) is optuna.pruners.NopPruner
    if not no_pruner and any(one.intermediate_values for one in trials):
        raise ValueError(
            "trials reported intermediate values, which a pruner may have read: pass the study "
            f"with its NopPruner, or{instead.removeprefix(':')}"
        )
    laws: dict[str, BaseDistribution] = {}
    for one in trials:
        for name, law in one.distributions.items():
            if laws.setdefault(name, law) != law:
                raise ValueError(f"trials drew {name} from different ranges{instead}")
    numbers = {name: _number_of_values(law) for name, law in laws.items()}
    if (why := repeated_draws.found_in([one.params for one in trials], numbers)) is not None:
        raise ValueError(f"{why}{instead}")
    if not known:
        raise ValueError(
            "a storage does not say who sampled its trials: pass the study with its sampler, as by "
            f"optuna.load_study(sampler=RandomSampler(), ...), or{instead.removeprefix(':')}"
        )


def _all_values(name: str, trials: Sequence[optuna.trial.FrozenTrial]) -> Sequence[Any]:
    """Returns all values that the trials could have drawn for a hyperparameter."""
    first = next((one.distributions[name] for one in trials if name in one.distributions), None)
    if first is None:
        raise ValueError(f"no trial has {name}: name hyperparameters of the study")
    # If the range depended on earlier results, other data might have led to other ranges.
    if any(one.distributions.get(name) != first for one in trials):
        raise ValueError(
            f"{name} is missing in some trials, or had different ranges: pass one Guarantee that "
            "holds for every trial there could have been"
        )
    found = _finite(first)
    if found is None:
        raise ValueError(
            f"{name} is continuous: pass one Guarantee that holds for all of its range"
        )
    return found


def _finite(law: BaseDistribution) -> Sequence[Any] | None:
    """Returns all values of a distribution, or None if there are infinitely many."""
    if isinstance(law, CategoricalDistribution):
        return law.choices
    if isinstance(law, IntDistribution):
        return range(law.low, law.high + 1, law.step)
    if isinstance(law, FloatDistribution) and (law.step is not None or law.single()):
        step = law.step or 1.0
        return [law.low + i * step for i in range(round((law.high - law.low) / step) + 1)]
    return None


_COARSEST = 2.0**-40
"""Least relative width of a range: in a narrower one float64 has few values, draws may repeat."""


def _number_of_values(law: BaseDistribution) -> float:
    """Returns how many equally likely values would repeat as often; infinity if continuous."""
    found = _finite(law)
    if isinstance(law, IntDistribution) and law.log:
        shares = np.diff(np.log(np.arange(law.low, law.high + 2) - 0.5))
        return float(np.sum(shares) ** 2 / np.sum(shares**2))
    if found is not None:
        return len(found)
    assert isinstance(law, FloatDistribution)  # The others are finite.
    narrow = law.high - law.low < _COARSEST * max(abs(law.low), abs(law.high))
    return 1.0 if narrow else math.inf


def candidates_of(distributions: Mapping[str, BaseDistribution]) -> Candidates:
    """Returns the product of Optuna's distributions as a public distribution of candidates.

    Categories and steps are equally likely; ranges are uniform, or uniform in the logarithm.
    """
    checks.mapping("distributions", distributions, "from names to Optuna's distributions")
    if not distributions:
        raise ValueError(
            "distributions is empty: pass at least one, such as "
            "{'rate': FloatDistribution(0.01, 1.0, log=True)}"
        )
    laws: dict[str, Law] = {}
    labels: dict[str, Sequence[Label]] = {}
    for name, given in distributions.items():
        finite = _finite(given)
        if isinstance(given, IntDistribution) and given.step == 1 and not given.single():
            laws[name] = (LogInteger if given.log else Integer)(given.low, given.high)
        elif isinstance(given, FloatDistribution) and finite is None:
            laws[name] = (LogUniform if given.log else Uniform)(given.low, given.high)
        elif isinstance(given, FloatDistribution) and finite is not None:
            laws[name] = Choice(finite)
        elif finite is not None:
            labels[name] = list(finite)
        else:
            wanted = "a distribution of Optuna's, such as FloatDistribution(0.01, 1.0)"
            raise checks.refused(name, given, wanted)
    return Candidates(Space(laws) if laws else None, labels)


class _OtherRunsError(ContradictionError, AttributeError):
    """A run asked for other runs. `hasattr` takes it for an attribute that does not exist."""


class _Candidate(optuna.trial.FixedTrial):
    """The trial that an objective is given: it has the drawn values, its seed, and no study."""

    def __init__(
        self, seed: int, values: Mapping[str, Any], distributions: Mapping[str, BaseDistribution]
    ):
        super().__init__(dict(values))
        self._distributions.update(distributions)
        self.seed = seed

    @property
    def study(self) -> Any:
        """Refuses to return a study: a run that reads or enqueues others is an adaptive search."""
        raise _OtherRunsError(
            "a run asked its trial for the study, its storage or its number, which say something "
            "of other runs: use the trial's own values and trial.seed alone; nothing is released"
        )

    storage = study
    # Refused: a run might seed its noise with its number, which others know or share.
    number = study

    @property
    def params(self) -> dict[str, Any]:
        """Returns a copy of all values."""
        return dict(self._params)

    def _suggest(self, name: str, distribution: BaseDistribution) -> Any:
        """Returns the drawn value; refuses another name, or another distribution of it."""
        if name not in self._params:
            raise ContradictionError(
                f"{name} is not in the public law: name it in distributions, which has "
                f"{', '.join(sorted(self._params))}; nothing is released"
            )
        if distribution != self._distributions[name]:
            raise ContradictionError(
                f"the objective asks for {name} from {distribution}, and distributions has "
                f"{self._distributions[name]}: make them equal; nothing is released"
            )
        return super()._suggest(name, distribution)


def tune(
    objective: Callable[[Any], Any], distributions: Mapping[str, BaseDistribution], **more: Any
) -> Result:
    """Runs an objective of Optuna's for a secret random number of trials and releases the best one.

    Formal guarantees:
      Those of `bridges.tune`, with a trial for a run: K and every candidate, seed and noise are
      drawn from the operating system's randomness before the first trial; trials are ranked by
      noisy counts; a trial that raises, is pruned or returns no number counts and ranks worst. The
      trial has the values that were drawn for it, and shows no other: an objective that asks for a
      name or a distribution that the law does not have, or for `trial.study` or `trial.number`,
      ends the tuning with a `ContradictionError`, and nothing is released. No study and no storage
      is made; what a trial reports is not kept, and `should_prune` is False. What must hold of a
      trial is declared by the caller: see `bridges.tune`.

    Example:
      >>> from optuna.distributions import FloatDistribution
      >>> from dpjax import accounting, bridges
      >>> from dpjax.bridges import optuna
      >>> result = optuna.tune(
      ...     lambda trial: round(90 * trial.suggest_float("rate", 0.1, 1.0)),  # Of 100 records.
      ...     {"rate": FloatDistribution(0.1, 1.0)},
      ...     base=accounting.gaussian(2.0),
      ...     score=bridges.CountedScore("disjoint", public_size=100),
      ...     repetitions=accounting.Fixed(3),
      ... )
      >>> sorted(result.release.hyperparameters)
      ['rate']

    Args:
      objective: trial -> number of correct predictions, or (model, that number). The trial suggests
        as Optuna's do; `trial.seed` is the run's secret seed, as in `bridges.tune`.
      distributions: name -> public distribution; candidates are drawn from all independently.
      more: as in `bridges.tune`: base and score, which are needed, repetitions, delta, model,
        default, save_model, model_file, executor, on_outcome, job, ledger, seed.

    Returns:
      A `tuning` `Result`: `release.save(folder)`, `curator.save(folder)`.

    Raises:
      RuntimeError: as in `bridges.tune`.
    """
    checks.function("objective", objective, "trial -> count or (model, count)")
    any_run.check_takes("objective", objective, "trial")
    candidates = candidates_of(distributions)
    run = functools.partial(_run, objective, dict(distributions))
    return any_run.tune(run, candidates, **more)


def _run(
    objective: Callable[[Any], Any],
    distributions: Mapping[str, BaseDistribution],
    seed: int,
    hyperparameters: Mapping[str, Label],
) -> tuple[Any, Any]:
    """Calls the objective with one candidate's trial; returns (model or None, count)."""
    returned = objective(_Candidate(seed, hyperparameters, distributions))
    return returned if isinstance(returned, tuple) and len(returned) == 2 else (None, returned)
