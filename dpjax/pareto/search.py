"""DPareto: searches settings whose privacy and utility no other setting beats (Avent et al. 2020).

Random settings first; then batches of proposals from two Gaussian processes, one for log epsilon,
noise-free, and one for the logit of the error, whose noise is learned. A batch of q is proposed by
Kriging believer and evaluated at once. Random search and grids run behind the same interface.

The results are computed from data without protection: see `SearchRecord`. A front picked by
measured utilities shows the luckiest measurements: its hypervolume is overstated by more than a
good search gains over a bad one (the winner's curse). `reevaluate` measures its settings again on
fresh repetitions: quote its numbers.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from dpjax import checks
from dpjax.pareto import acquisition as acquisitions
from dpjax.pareto import batches, fronts
from dpjax.pareto.domain import Domain, Settings, number_of, select
from dpjax.pareto.oracles import (
    PrivacyOracle,
    UtilityOracle,
    described,
    evaluate_privacy,
    evaluate_utility,
)
from dpjax.pareto.record import SearchRecord, fitted

EHVI, EHVI_LOG_EPSILON, HVPOI = "ehvi", "ehvi_log_epsilon", "hvpoi"
RANDOM, GRID = "random", "grid"
METHODS = (EHVI, EHVI_LOG_EPSILON, HVPOI, RANDOM, GRID)

_ACQUISITIONS = {
    EHVI: acquisitions.expected_hypervolume_improvement_in_original_units,
    EHVI_LOG_EPSILON: acquisitions.expected_hypervolume_improvement,
    HVPOI: acquisitions.hypervolume_probability_of_improvement,
}
_FAILURES_IN_A_ROW = 32
"""So many failures in a row end the search, as does a first batch that fails whole: the oracle is
then at fault, not the settings. They are not kept, so a resumed search asks for them again."""

_PRICES_ASKED_AGAIN = 8
# Streams of the search's seed.
_PROPOSING, _EVALUATING, _FRESH = 0, 1, 2


class Sampler(Protocol):
    """Draws settings without a model."""

    def sample(self, number: int, generator: np.random.Generator) -> Settings:
        """Draws settings (number,) each."""


def search(
    domain: Domain,
    privacy: PrivacyOracle,
    utility: UtilityOracle,
    *,
    method: str = EHVI,
    evaluations: int = 272,
    initial: int = 16,
    batch_size: int = 16,
    anti_ideal: Sequence[float] = (10.0, 1.0),
    law: Sampler | None = None,
    grid: Mapping[str, np.ndarray] | None = None,
    seed: int | None = None,
    path: str | os.PathLike | None = None,
    label: Any = "",
    progress: Callable[[int, int, float], None] | None = None,
) -> SearchRecord:
    """Evaluates settings in search of the front of (epsilon, 1 - utility).

    A point for which an oracle raises, or gives no finite number, is recorded as failed, with the
    reason, and is not proposed again; it takes no part in front, hypervolume or models. If a whole
    first batch fails, or 32 points in a row, the search stops and does not keep these points.

    Formal guarantees: none. The record depends on the data through every utility. Nothing in it,
    neither the front nor a setting read off it, may be released as private output; only a search
    on public data leaves the cost of a later private run at that of the run alone.

    Example:
      >>> import numpy as np
      >>> from dpjax import pareto
      >>> def privacy(settings):
      ...     return 1 / settings["noise"]
      >>> def utility(settings, seeds):  # Stands for trainings on public data.
      ...     noise = [np.random.default_rng(int(seed)).normal(size=2) for seed in seeds]
      ...     return 1 / (1.5 + settings["noise"])[:, None] + 0.01 * np.stack(noise)
      >>> domain = pareto.Domain(noise=pareto.Log(0.1, 10.0))
      >>> record = pareto.search(domain, privacy, utility, method="random", evaluations=16, seed=0)
      >>> record.points.shape
      (16, 2)
      >>> fresh = pareto.reevaluate(record, utility)
      >>> fresh.hypervolume <= fresh.hypervolume_as_first_seen
      True
      >>> suggestion = pareto.suggest(record, privacy, 2.0)
      >>> suggestion.epsilon <= 2.0, suggestion.low < suggestion.utility < suggestion.high
      (True, True)

    Args:
      domain: what may be chosen.
      privacy: settings -> epsilons (n,); see `oracles`.
      utility: settings -> utilities (n, R) in [0, 1]; see `oracles` for seeds and failures.
      method: "ehvi", expected improvement of the hypervolume as it is reported, in epsilon and
        error; "ehvi_log_epsilon", the same in the units of the models, where tiny epsilons count
        for more; "hvpoi", the paper's criterion, on the measured points; "random"; "grid".
      evaluations: in all; the paper's 16 + 256. A grid has its own number.
      initial: settings evaluated at random before the first proposal.
      batch_size: settings proposed and evaluated at once, q.
      anti_ideal: the worst epsilon and error that still count.
      law: draws the initial settings, and all of "random"; None: uniform over the unit cube.
      grid: the settings of "grid", as from `pareto.grid`.
      seed: the same seed gives the same record. None: a seed is drawn, and recorded.
      path: file of the record, saved after every batch; if it exists, the search goes on from it,
        as if it had never stopped.
      label: anything else, for JSON, that the record depends on; the same in a resumed search.
      progress: called with (evaluations done, in all, hypervolume so far) after every batch.

    Returns:
      The record, with fewer evaluations if the domain has too few different settings.
    """
    checks.instance("domain", domain, Domain, "pareto.Domain(rate=pareto.Log(0.001, 1))")
    checks.function("privacy", privacy, "of settings")
    checks.function("utility", utility, "of settings")
    worst = fronts.check_anti_ideal(anti_ideal)
    checks.one_of("method", method, METHODS)
    if (method == GRID) != (grid is not None):
        raise ValueError("method='grid' and grid= go together: pass both or neither")
    evaluations = checks.whole("evaluations", evaluations)
    initial, batch_size = checks.whole("initial", initial), checks.whole("batch_size", batch_size)
    if seed is not None:
        seed = checks.whole("seed", seed, 0)
    if path is not None:
        checks.path("path", path)
    if progress is not None:
        checks.function("progress", progress, "of evaluations done, in all, and hypervolume")
    if grid is not None:
        checks.mapping("grid", grid, "from names to arrays, as of pareto.grid")
        missing = [name for name in domain.names if name not in grid]
        if missing:
            raise ValueError(f"grid lacks {', '.join(missing)}: pass settings of the whole domain")
    total = number_of(grid) if grid is not None else evaluations
    for oracle in (privacy, utility):
        check = getattr(oracle, "check", None)
        if check is not None:
            check(domain)
    identity = {
        "method": method,
        "initial": initial,
        "batch_size": batch_size,
        "law": _describe_law(law),
        "label": label,
        "privacy": described(privacy),
        "utility": described(utility),
    }
    # As a resumed record has it: JSON knows no tuples.
    identity = json.loads(json.dumps(identity))
    record = _new_or_resumed(domain, worst, privacy, utility, identity, seed, path)
    failures = 0
    if progress is not None:
        progress(len(record), total, record.hypervolume())
    while len(record) < total:
        done = len(record)
        if grid is not None:
            chosen = select(grid, slice(done, min(done + batch_size, total)))
            unit = domain.to_unit(chosen)
        else:
            number = min(initial - done if done < initial else batch_size, total - done)
            chosen, unit = _next(record, number, method, initial, law, record.identity["seed"])
            if not len(unit):
                break  # Every setting of the domain has been evaluated.
        _evaluate(record, privacy, utility, chosen, unit)
        # One setting may fail by itself. A broken oracle would fail at every one, for hours.
        for one in record.evaluations[done:]:
            failures = failures + 1 if one.failure else 0
        if failures >= _FAILURES_IN_A_ROW or failures == len(record):
            if path is not None:
                _save_without(record, failures, path)
            raise ValueError(
                f"the last {failures} of {len(record)} evaluations failed, one after the other: "
                f"mend the oracle; the last because: {record.evaluations[-1].failure}"
            )
        if path is not None:
            record.save(path)
        if progress is not None:
            progress(len(record), total, record.hypervolume())
    return record


def ask(
    record: SearchRecord,
    number: int = 1,
    *,
    method: str = EHVI,
    initial: int = 16,
    law: Sampler | None = None,
    seed: int = 0,
) -> Settings:
    """Returns the settings to evaluate next; pass the results to `record.tell`.

    Use it if the evaluations run elsewhere, on a cluster for example. Evaluations told before count
    towards the `initial` random ones. Formal guarantees: none, as in `search`.

    Example:

    ```python
    from dpjax import pareto

    record = pareto.SearchRecord(pareto.Domain(rate=pareto.Log(0.001, 1.0)), (10.0, 1.0))
    for _ in range(20):
        settings = pareto.ask(record, initial=8)
        record.tell(settings, epsilon=settings["rate"], utilities=1.0 - settings["rate"] ** 2)
    ```

    Args:
      record: all evaluations so far.
      number: of settings; fewer, or none, are returned if the domain has too few different ones.
      method, law: as in `search`, without "grid".
      initial: number of random evaluations before the first proposal.
      seed: together with the record, it determines everything drawn.
    """
    checks.instance("record", record, SearchRecord, "pareto.SearchRecord(domain, (10.0, 1.0))")
    checks.one_of("method", method, (*_ACQUISITIONS, RANDOM))
    number, initial = checks.whole("number", number), checks.whole("initial", initial)
    _describe_law(law)  # Refuses what is no law.
    return _next(record, number, method, initial, law, checks.whole("seed", seed, 0))[0]


def _describe_law(law: Sampler | None) -> Any:
    """Checks a law and describes it for a record, as JSON: by `describe()`, or its class."""
    if law is None:
        return "uniform over the unit cube"
    if not callable(getattr(law, "sample", None)):
        raise ValueError(
            f"law must have a function sample(number, generator), or be None, not {law!r}"
        )
    return law.describe() if hasattr(law, "describe") else type(law).__name__


def _next(
    record: SearchRecord, number: int, method: str, initial: int, law: Sampler | None, seed: int
) -> tuple[Settings, np.ndarray]:
    """Returns the settings to evaluate next and their points (q, d): random ones, later proposals.

    Proposals differ after rounding from each other and from all before: there may be fewer than
    `number`.
    """
    done, domain = len(record), record.domain
    generator = np.random.default_rng((seed, _PROPOSING, done))
    if method == RANDOM or done < initial:
        number = number if method == RANDOM else min(number, initial - done)
        if law is None:
            chosen = domain.from_unit(domain.sample(number, generator))
        else:
            chosen = law.sample(number, generator)
        return chosen, domain.to_unit(chosen)
    unit = batches.propose(
        fitted(record, generator),
        domain,
        number,
        anti_ideal=fronts.to_model_units(record.anti_ideal),
        generator=generator,
        acquisition=_ACQUISITIONS[method],
        observed_inputs=record.unit,
        # The paper's criterion improves on the measured points; the others improve on the means of
        # the processes, which do not mistake luck for gain.
        observed_objectives=fronts.to_model_units(record.points) if method == HVPOI else None,
    )
    return domain.from_unit(unit), unit


def _save_without(record: SearchRecord, failures: int, path: str | os.PathLike) -> None:
    """Saves a record without its last batches, if all their evaluations failed."""
    last_good = len(record) - failures - 1
    if last_good < 0:
        return
    batch = record.evaluations[last_good].batch
    kept = copy.copy(record)
    kept.evaluations = [one for one in record.evaluations if one.batch <= batch]
    kept.save(path)


def _new_or_resumed(
    domain: Domain,
    anti_ideal: np.ndarray,
    privacy: PrivacyOracle,
    utility: UtilityOracle,
    identity: dict[str, Any],
    seed: int | None,
    path: str | os.PathLike | None,
) -> SearchRecord:
    """Returns the record at `path`, checked to be of the same search, or a new one."""
    failed_as = getattr(utility, "failed_as", None)
    if path is not None and os.path.exists(path):
        record = SearchRecord.load(path, domain)
        found = dict(record.identity)
        drawn = found.pop("seed", None)
        same = (
            found == identity
            and seed in (None, drawn)
            and record.failed_as == failed_as
            and np.array_equal(record.anti_ideal, anti_ideal)
        )
        if not same:
            raise ValueError(
                f"{path} was begun with other flags: pass the same ones, or another folder"
            )
        # A plain function is known by its name alone, so some of its prices are asked for again.
        known = record.succeeded[:_PRICES_ASKED_AGAIN]
        again, _ = evaluate_privacy(privacy, select(record.settings, known))
        if not np.allclose(again, record.epsilon[known], rtol=1e-6, atol=0.0):
            raise ValueError(
                f"{path} was begun with another privacy oracle, which gave other epsilons: pass "
                "the same one, or another folder"
            )
        return record
    if seed is None:
        seed = secrets.randbits(32)
    return SearchRecord(
        domain, anti_ideal, failed_as=failed_as, identity=identity | {"seed": int(seed)}
    )


def _seeds(streams: Sequence[tuple[int, ...]]) -> np.ndarray:
    """Returns one integer (n,) uint64 for each of n streams, for the repetitions of a point."""
    words = [np.random.SeedSequence(one).generate_state(1, np.uint64) for one in streams]
    return np.array(words).reshape(len(streams))


def _evaluate(
    record: SearchRecord,
    privacy: PrivacyOracle,
    utility: UtilityOracle,
    settings: Settings,
    unit: np.ndarray,
) -> None:
    """Asks both oracles about a batch and records it; a failed point does not lose the others."""
    number, first = number_of(settings), len(record)
    seed = record.identity["seed"]
    seeds = _seeds([(seed, _EVALUATING, first + place) for place in range(number)])
    epsilon, why = evaluate_privacy(privacy, settings)
    kept = np.flatnonzero([not reason for reason in why])
    utilities: list[tuple[float, ...]] = [()] * number
    if len(kept):
        measured, reasons = evaluate_utility(
            utility, select(settings, kept), seeds[kept], record.failed_as
        )
        for place, own, reason in zip(kept, measured, reasons):
            utilities[place], why[place] = tuple(own.tolist()), reason
    record.add(settings, unit, epsilon, utilities, why)


@dataclasses.dataclass(frozen=True)
class FreshFront:
    """The settings of a front, measured again.

    Attributes:
      settings: name -> (k,) float64, by increasing epsilon.
      epsilon: (k,) float64.
      utilities: (k, R) float64, fresh ones, with `failed_as` for failed repetitions.
      first_seen: (k,) float64, the mean utility that put each setting on the front.
      anti_ideal: (2,) float64.
    """

    settings: Settings
    epsilon: np.ndarray
    utilities: np.ndarray
    first_seen: np.ndarray
    anti_ideal: np.ndarray

    @property
    def utility(self) -> np.ndarray:
        """Returns the mean (k,) of the fresh repetitions."""
        return self.utilities.mean(axis=1)

    @property
    def points(self) -> np.ndarray:
        """Returns epsilon and fresh error, (k, 2)."""
        return np.stack([self.epsilon, 1.0 - self.utility], axis=1)

    @property
    def still_on_front(self) -> np.ndarray:
        """Marks the settings (k,) that no other of these dominates, as measured afresh."""
        return fronts.non_dominated(self.points)

    @property
    def hypervolume(self) -> float:
        """Returns the hypervolume of the settings as measured afresh, which may be quoted."""
        return fronts.hypervolume(self.points, self.anti_ideal)

    @property
    def hypervolume_as_first_seen(self) -> float:
        """Returns the hypervolume as the search measured it, which is overstated."""
        seen = np.stack([self.epsilon, 1.0 - self.first_seen], axis=1)
        return fronts.hypervolume(seen, self.anti_ideal)

    def rows(self) -> list[dict[str, float | int]]:
        """Returns one flat row per setting, for tables and the plot."""
        std = self.utilities.std(axis=1, ddof=1) if self.utilities.shape[1] > 1 else None
        return [
            {
                "epsilon": float(self.epsilon[place]),
                "utility": float(self.utility[place]),
                "best": float(self.utilities[place].max()),
                "worst": float(self.utilities[place].min()),
                "standard_error": float("nan")
                if std is None
                else float(std[place] / np.sqrt(self.utilities.shape[1])),
                "first_seen": float(self.first_seen[place]),
                "still_on_front": int(self.still_on_front[place]),
                **{name: float(values[place]) for name, values in self.settings.items()},
            }
            for place in range(len(self.epsilon))
        ]


def _front_by_means(record: SearchRecord) -> np.ndarray:
    """Returns the positions (k,) of the front of epsilons and predicted errors.

    The process averages over neighbouring settings, so luck counts for less than in
    `SearchRecord.front`; empty where nothing dominates the anti-ideal point.
    """
    kept = record.succeeded
    _, utility = fitted(record, np.random.default_rng(len(record)))
    means, _ = utility.predict(record.evaluated_inputs[kept])
    error = fronts.from_model_units(np.stack([np.zeros(len(kept)), means], axis=1))[:, 1]
    points = np.stack([record.epsilon[kept], error], axis=1)
    inside = (points < record.anti_ideal).all(axis=1)
    return kept[fronts.non_dominated(points) & inside]


def reevaluate(
    record: SearchRecord,
    utility: UtilityOracle,
    *,
    rounds: int = 1,
    by_means: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> FreshFront:
    """Measures the settings on a record's front again, on fresh repetitions.

    Args:
      record: of a search.
      utility: the oracle of the search.
      rounds: times the front is measured afresh, each by the oracle's R repetitions, >= 1.
      by_means: measure the settings on the front of predicted errors too.
      progress: called with (rounds done, rounds).

    Returns:
      The settings of the front that could be measured again.
    """
    checks.instance("record", record, SearchRecord, "pareto.search(...)")
    checks.function("utility", utility, "of settings")
    rounds = checks.whole("rounds", rounds)
    checks.flag("by_means", by_means)
    if progress is not None:
        checks.function("progress", progress, "of two numbers, done and in all")
    kept = record.front()
    if by_means:
        kept = np.union1d(kept, _front_by_means(record))
        kept = kept[np.argsort(record.epsilon[kept], kind="stable")]
    settings = select(record.settings, kept)
    measured: list[list[np.ndarray]] = [[] for _ in kept]
    failed = np.zeros(len(kept), bool)
    why = [""] * len(kept)
    seed = int(record.identity.get("seed", 0))
    for turn in range(rounds):
        if progress is not None:
            progress(turn, rounds)
        seeds = _seeds([(seed, _FRESH, turn, int(place)) for place in kept])
        answers, why = evaluate_utility(utility, settings, seeds, record.failed_as)
        for place, own in enumerate(answers):
            failed[place] |= bool(why[place])
            if record.failed_as is not None:
                own = np.where(np.isnan(own), record.failed_as, own)
            measured[place].append(own)
    if progress is not None:
        progress(rounds, rounds)
    good = np.flatnonzero(~failed)
    if not len(good):
        raise ValueError(
            f"no setting of the front could be measured again: mend utility; the first: {why[0]}"
        )
    return FreshFront(
        settings=select(settings, good),
        epsilon=record.epsilon[kept][good],
        utilities=np.stack([np.concatenate(measured[place]) for place in good]),
        first_seen=record.utility[kept][good],
        anti_ideal=record.anti_ideal,
    )
