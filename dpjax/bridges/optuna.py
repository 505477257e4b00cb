"""Optuna: the price of a finished study, and a study whose selection is private.

Takuya Akiba et al., "Optuna: A Next-generation Hyperparameter Optimization Framework", KDD 2019.
Its samplers look at earlier trials, its pruners at a trial's reported values: such a study is a
composition, never the best of independent runs. `PrivateStudy` instead draws a secret number of
candidates from one public law.
"""

from __future__ import annotations

import json
import math
import os
import stat
import threading
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

from dpjax import accounting, after_the_draw, checks
from dpjax.bridges import any_run, repeated_draws
from dpjax.bridges.runs import (
    Callback,
    Candidates,
    ContradictionError,
    CountedScore,
    Label,
    Outcome,
    planned,
)
from dpjax.bridges.selection import ModelFile, Search, drawn
from dpjax.bridges.study_price import Base, StudyPrice, most_expensive, price_of_trials
from dpjax.tuning import cautions
from dpjax.tuning.ledger import Ledger
from dpjax.tuning.problem.space import Choice, Integer, Law, LogInteger, LogUniform, Space, Uniform
from dpjax.tuning.tuner import Result
from dpjax.tuning.tuners.random_repetitions import DEFAULT_REPETITIONS

EXACT_COUNT = "correct_without_noise"
"""The user attribute, in the curator's storage, that holds a trial's exact count."""


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
      the caller's word. A `PrivateStudy`'s storage is refused: its exact counts have no price.

    Example: `price_study("sqlite:///mine.db", base=run, most_trials=50).epsilon`.

    Args:
      study: of Optuna, or a storage or its URL.
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
        their two ends are priced alone. That it is so is the caller's word, and stated.
      progress: called with (settings priced, settings in all), a fifth of a second each.
      study_name: which study of a storage that holds several.

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
            "the study is a PrivateStudy's, and its storage holds exact counts, which have no "
            "price and stay with the curator: take the price of its result(), which is released "
            "alone"
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
            raise ValueError("study_name is read beside a storage: drop it")
        return study
    if not isinstance(study, str | optuna.storages.BaseStorage):
        raise ValueError(
            f"study must be an optuna.Study, a storage or its URL, not {checks.shown(study)}"
        )
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
    inner = getattr(storage, "_backend", storage)  # `get_storage` wraps that of a URL.
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


def _create_private_file(place: str) -> None:
    """Creates a file that its owner alone may read; refuses an existing one that is open to others.

    SQLite gives its journals the same mode.
    """
    try:
        os.close(os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        mode = stat.S_IMODE(os.stat(place).st_mode)
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ValueError(
                f"{place} is open to others (mode {mode:04o}), and a private study's storage is "
                "the curator's only: pass another file, or chmod 600 it"
            ) from None
    except OSError as error:
        raise ValueError(
            f"storage cannot be made at {place} ({error.strerror}): pass a file in a folder that "
            "can be written"
        ) from None


def _check_independent(study: optuna.Study, number: int, known: bool) -> None:
    """Refuses a study that RandomSampler cannot have made; `known`: it came with its sampler."""
    instead = ": drop independent, for the composition of all trials"
    trials = study.get_trials(deepcopy=False)
    if known and type(study.sampler) is not optuna.samplers.RandomSampler:
        raise ValueError(
            f"the study's sampler is {type(study.sampler).__name__}, not RandomSampler{instead}"
        )
    # Samplers that adapt (QMC, genetic) store there what they have seen; users only metric names.
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
"""Of a range, relative: float64 has fewer values in a narrower one, and draws may repeat."""


def _number_of_values(law: BaseDistribution) -> float:
    """Returns how many equally likely values repeat as often; infinity for a continuous one."""
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
            raise ValueError(
                f"{name} must be a distribution of Optuna's, such as FloatDistribution(0.01, 1.0), "
                f"not {checks.shown(given)}"
            )
    return Candidates(Space(laws) if laws else None, labels)


_NOBODY = 0
"""No thread's number."""


class _NoStudyError(ContradictionError, AttributeError):
    """A run asked for other runs. `hasattr` takes it for an attribute that does not exist."""


class _Candidate(optuna.trial.FixedTrial):
    """The trial that an objective is given: it has the drawn values, and no access to storage."""

    def __init__(
        self, number: int, values: dict[str, Any], distributions: Mapping[str, BaseDistribution]
    ):
        super().__init__(values, number)
        self._distributions.update(distributions)
        self.reported: dict[int, float] = {}

    @property
    def study(self) -> Any:
        """Refuses to return a study: a run that reads or enqueues others is an adaptive search."""
        raise _NoStudyError(
            "a run asked its trial for the study, and what it reads or writes there is not priced: "
            "use the trial's own values alone; nothing is released"
        )

    storage = study

    @property
    def params(self) -> dict[str, Any]:
        """Returns a copy of all values."""
        return dict(self._params)

    def report(self, value: float, step: int) -> None:
        """Keeps a value for the curator, who sees it once the trial is told."""
        self.reported.setdefault(int(step), float(value))

    def set_user_attr(self, key: str, value: Any) -> None:
        """Keeps an attribute for the curator, who sees it once the trial is told."""
        json.dumps(value)  # A value that no storage can hold fails in the run, not afterwards.
        super().set_user_attr(key, value)

    def _suggest(self, name: str, distribution: BaseDistribution) -> Any:
        """Returns the drawn value; refuses a hyperparameter that was not drawn, or otherwise."""
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


class PrivateStudy:
    """A study that draws a secret number of candidates from one public law and releases the best.

    Formal guarantees:
      Those of `bridges.tune`, with a trial for a run: K and every candidate, seed and noise are
      drawn from the operating system's randomness before the first trial; trials are ranked by
      noisy counts; a trial that raises, is pruned or returns no number counts and ranks worst; no
      result before all K are told, each once. An objective that asks for a name or a distribution
      that the law does not have ends the search, with nothing released. Its trial has the values
      that were drawn for it, reads no storage and shows no study; `trial.study` ends the search.
      Where the storage holds a trial that was not drawn (one that was enqueued, or another
      process's), or other values, the study ends in a `ContradictionError` and nothing is released.
      The storage holds every trial,
      its noisy score and its exact count: it is the curator's ONLY, with K, the console and what
      callbacks write. What must hold of a trial is declared by the caller: see `bridges.tune`.

    Example: `PrivateStudy(distributions, base=run, score=score).optimize(objective)`, or by hand
    `while (trial := study.ask()) is not None: study.tell(trial, count, model)`, then
    `study.result()`. How often `ask` gives a trial is K, which nobody may learn.
    """

    def __init__(
        self,
        distributions: Mapping[str, BaseDistribution],
        *,
        base: accounting.Guarantee | None = None,
        score: CountedScore | None = None,
        repetitions: accounting.RepetitionLaw = DEFAULT_REPETITIONS,
        delta: float = 1e-5,
        model: str = "the caller's own",
        default: Any = None,
        save_model: Callable[[Any, str], object] | None = None,
        model_file: str | None = None,
        storage: optuna.storages.BaseStorage | str | None = None,
        study_name: str | None = None,
        ledger: Ledger | None = None,
        seed: int | None = None,
    ):
        """Fixes the rules and draws K.

        Args:
          distributions: by name, independent; the public distribution of candidates.
          base, score, repetitions, delta, model, default, save_model, model_file, ledger, seed: as
            in `bridges.tune`.
          storage: the curator's, where trials are written; None: in memory. A file of SQLite that
            a URL names is made with mode 0600; a file that is there, of SQLite or a journal, and
            open to others is refused.
          study_name: of a study that is not there yet.
        """
        file = ModelFile.of(save_model, model_file)
        file.files(default)
        procedure = planned(
            candidates_of(distributions),
            base=base,
            score=score,
            repetitions=repetitions,
            delta=delta,
            model=model,
            ledger=ledger,
        )
        self._distributions, self._default = dict(distributions), default
        for place in _files_of("storage", storage):
            _create_private_file(place)
        try:
            self._study = optuna.create_study(
                storage=storage, study_name=study_name, direction="maximize"
            )
        except optuna.exceptions.DuplicatedStudyError:
            raise ValueError(
                f"a study {study_name!r} is there already, perhaps of another draw: pass another "
                "study_name"
            ) from None
        except (ImportError, OSError, SQLAlchemyError, optuna.exceptions.OptunaError) as error:
            why = str(error).partition("\n")[0] or type(error).__name__
            raise ValueError(
                f"storage cannot be opened ({checks.shown(why)}): pass a storage of Optuna or its "
                "URL, such as sqlite:////folder/curator.db"
            ) from None
        cautions.of_arguments(procedure.delta, procedure.score.public_size, seed)
        self._search, self._secret = Search(procedure, drawn(procedure, seed), file), seed is None
        self._lock = threading.RLock()
        self._asked: list[tuple[_Candidate, optuna.Trial]] = []  # (shown to the run, stored)
        self._askers: list[int] = []  # Which thread asked for each of them.
        self._again: dict[int, list[int]] = {}  # By thread: those that it was interrupted in.

    def __repr__(self) -> str:
        """Shows no K."""
        return "PrivateStudy(not private: for the curator only)"

    @property
    def guarantee(self) -> accounting.Guarantee:
        """Returns the cost of the release."""
        return self._search.procedure.guarantee

    def ask(self) -> optuna.trial.FixedTrial | None:
        """Returns the next trial, its hyperparameters drawn already; None once none is left.

        A trial that was not told, as after Ctrl-C, is handed out again: by the next `optimize` in
        this thread, or by hand by its first `ask` after a None.
        """
        with self._lock:
            thread, index = threading.get_ident(), len(self._asked)
            if again := self._again.pop(thread, []):
                index, self._again[thread] = again[0], again[1:]
            elif index == self._search.number:
                # Not at once: others may be asked for ahead, and be running.
                own = (one for one in self._search.left if self._askers[one] == thread)
                self._again[thread] = list(own)
            elif index < self._search.number:
                values = self._search.candidate(index)[1]
                # Not by `Study.ask`, which would take a trial that was enqueued.
                stored = optuna.trial.create_trial(
                    state=TrialState.RUNNING, params=values, distributions=self._distributions
                )
                storage, study = self._study._storage, self._study._study_id
                written = optuna.Trial(self._study, storage.create_new_trial(study, stored))
                self._asked.append((_Candidate(index, values, self._distributions), written))
                self._askers.append(thread)
            self._check_storage()
            return self._asked[index][0] if index < len(self._asked) else None

    def _check_storage(self) -> None:
        """Refuses a storage whose trials are not exactly those that were drawn and asked for."""
        drawn = [self._search.candidate(index)[1] for index in range(len(self._asked))]
        if [one.params for one in self._study.get_trials(deepcopy=False)] != drawn:
            raise ContradictionError(
                "the private study's storage holds trials that were not drawn, or other values "
                "than were: nothing is released; enqueue nothing, and keep other processes out"
            )

    def _index(self, trial: Any) -> int:
        """Returns the number of a trial that `ask` returned."""
        for index, (shown, _) in enumerate(self._asked):
            if shown is trial:
                return index
        raise ValueError("the trial is not one of this study's: pass what its ask returned")

    def seed_of(self, trial: optuna.trial.FixedTrial) -> int:
        """Returns the trial's own secret seed, a whole number in [0, 2^63)."""
        return self._search.candidate(self._index(trial))[0]

    def tell(self, trial: optuna.trial.FixedTrial, count: Any, model: Any = None) -> Outcome:
        """Reports a trial: its number of correct predictions, without noise, and its model.

        A count that is not a number ranks worst; without a model only hyperparameters are released.
        """
        return self._report_and_store(trial, lambda index: self._search.report(index, model, count))

    def failed(self, trial: optuna.trial.FixedTrial, why: str) -> Outcome:
        """Reports that a trial failed: it counts, and ranks worst. The curator sees why."""
        return self._report_and_store(trial, lambda index: self._search.failed(index, why))

    def _report_and_store(
        self, trial: optuna.trial.FixedTrial, report: Callable[[int], Outcome]
    ) -> Outcome:
        """Calls `report` with a trial's number, and stores the outcome for the curator."""
        with self._lock:
            index = self._index(trial)
            self._check_storage()
            outcome = report(index)
            shown, stored = self._asked[index]
            for step, value in shown.reported.items():
                stored.report(value, step)
            counted = {} if outcome.count is None else {EXACT_COUNT: outcome.count}
            for key, value in (shown.user_attrs | counted).items():
                stored.set_user_attr(key, value)
            if outcome.failed:
                self._study.tell(stored, state=TrialState.FAIL)
            else:
                self._study.tell(stored, outcome.score)
            return outcome

    def optimize(
        self, objective: Callable[[Any], Any], *, on_outcome: Callback | None = None
    ) -> Result:
        """Runs the objective for every trial that is left, those that it was interrupted in too.

        Args:
          objective: trial -> number of correct predictions, or (model, that number); the trial
            suggests as Optuna's do, and shows no study.
          on_outcome: called with each candidate's `Outcome`; what it writes is the curator's ONLY.

        Returns:
          `result()`.
        """
        checks.function("objective", objective, "trial -> count or (model, count)")
        any_run.check_takes("objective", objective, "trial")
        if on_outcome is not None:
            on_outcome = after_the_draw.harmless("on_outcome", on_outcome)
        # After a None this thread is given what it was interrupted in.
        while (trial := self.ask() or self.ask()) is not None:
            try:
                returned = objective(trial)
            except ContradictionError:
                # The trial may have cost more than was charged: no thread is given it again.
                self._askers[self._index(trial)] = _NOBODY
                raise
            except Exception as error:  # Also a pruned one; the other trials go on.
                outcome = self.failed(trial, f"it raised {type(error).__name__}: {error}")
            else:
                pair = isinstance(returned, tuple) and len(returned) == 2
                model, count = returned if pair else (None, returned)
                outcome = self.tell(trial, count, model)
            if on_outcome is not None:
                on_outcome(outcome)
        return self.result()

    def result(self) -> Result:
        """Returns the winner alone; refused before every trial was told."""
        self._check_storage()
        return self._search.result(self._default, secret=self._secret)
