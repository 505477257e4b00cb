"""DPareto: searches settings whose privacy and utility no other setting beats (Avent et al. 2020).

Random settings first; then batches of proposals from two Gaussian processes, one for log epsilon,
noise-free, and one for the logit of the error, whose noise is learned. A batch of q is proposed by
Kriging believer and evaluated at once. Random search and grids run behind the same interface.

What comes out is computed from data without protection: see `SearchRecord`.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dpjax import checks
from dpjax.pareto import acquisition as acquisitions
from dpjax.pareto import batches, fronts
from dpjax.pareto.asking import asked_privacy, asked_utility
from dpjax.pareto.domain import Domain, Settings, number_of, select
from dpjax.pareto.oracles import PrivacyOracle, UtilityOracle, described
from dpjax.pareto.record import Evaluation, SearchRecord
from dpjax.pareto.sampling_laws import UniformOver

if TYPE_CHECKING:
    from dpjax.pareto.gaussian_process import GaussianProcess

EHVI, EHVI_LOG_EPSILON, HVPOI = "ehvi", "ehvi_log_epsilon", "hvpoi"
RANDOM, GRID = "random", "grid"
METHODS = (EHVI, EHVI_LOG_EPSILON, HVPOI, RANDOM, GRID)

_ACQUISITIONS = {
    EHVI: acquisitions.expected_hypervolume_improvement_in_original_units,
    EHVI_LOG_EPSILON: acquisitions.expected_hypervolume_improvement,
    HVPOI: acquisitions.hypervolume_probability_of_improvement,
}
_FIT_RESTARTS = 2
_FAILURES_IN_A_ROW = 32
"""So many failed evaluations in a row, or a whole first batch of them, end the search: what fails
is then not the settings. They are not kept, so a resumed search asks for them again."""
_PRICES_ASKED_AGAIN = 8
# Streams of the search's seed.
_PROPOSING, _EVALUATING = 0, 1


class Sampler(Protocol):
    """Draws settings without a model."""

    def sample(self, number: int, generator: np.random.Generator) -> Settings:
        """Settings (number,) each."""


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
    reason, and is not proposed again; it takes no part in front, hypervolume or models. Where all
    of a first batch fail, or 32 points in a row, the search stops and does not keep these.

    Formal guarantees: none. The record depends on the data through every utility. Nothing in it,
    neither the front nor a setting read off it, may be released as private output; only a search
    on public data leaves the cost of a later private run at that of the run alone.

    Example:
      >>> from dpjax import pareto
      >>> domain = pareto.Domain(noise=pareto.Log(0.1, 10.0))
      >>> record = pareto.search(
      ...     domain,
      ...     lambda settings: 1 / settings["noise"],  # Epsilons,
      ...     lambda settings, *rest: (1 / (1 + settings["noise"]))[:, None],  # and utilities.
      ...     method="random",
      ...     evaluations=16,
      ...     seed=0,
      ... )
      >>> len(record)
      16

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
      grid: the settings of "grid", as from `sampling_laws.grid`.
      seed: of everything drawn; the same seed gives the same record. None: drawn, and recorded.
      path: of the record, saved after every batch; if it is there, the search goes on from it, as
        if it had never stopped.
      label: JSON-able; whatever else the record depends on. A resumed search must agree on it.
      progress: called with (evaluations done, in all, hypervolume so far) after every batch.

    Returns:
      The record, of fewer evaluations where the domain has no more settings that differ.

    Raises:
      ValueError: an unknown method, numbers below 1, an anti-ideal point that is none, a record of
        another search or of other oracles at `path`, an oracle whose answer has another shape, or
        failures without an end.
    """
    checks.instance("domain", domain, Domain, "pareto.Domain(rate=pareto.Log(0.001, 1))")
    checks.function("privacy", privacy, "of settings")
    checks.function("utility", utility, "of settings")
    worst = fronts.check_anti_ideal(anti_ideal)
    if method not in METHODS:
        raise ValueError(f"method {method!r}: pass one of {', '.join(METHODS)}")
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
    _check_law(law)
    total = number_of(grid) if grid is not None else evaluations
    law = UniformOver(domain) if law is None else law
    for oracle in (privacy, utility):
        check = getattr(oracle, "check", None)
        if check is not None:
            check(domain)
    identity = {
        "method": method,
        "initial": initial,
        "batch_size": batch_size,
        "law": law.describe() if hasattr(law, "describe") else type(law).__name__,
        "label": label,
        "privacy": described(privacy),
        "utility": described(utility),
    }
    identity = json.loads(json.dumps(identity))
    record = _begun(domain, worst, privacy, utility, identity, seed, path)
    failures = 0
    if progress is not None:
        progress(len(record), total, record.hypervolume())
    while len(record) < total:
        done = len(record)
        generator = np.random.default_rng((record.identity["seed"], _PROPOSING, done))
        if grid is not None:
            chosen = select(grid, slice(done, min(done + batch_size, total)))
            unit = domain.to_unit(chosen)
        else:
            number = min(initial - done if done < initial else batch_size, total - done)
            random = method == RANDOM or done < initial
            chosen, unit = _next(record, number, None if random else method, law, generator)
            if not len(unit):
                break
        for one in _evaluated(record, privacy, utility, chosen, unit):
            record.evaluations.append(one)
            failures = failures + 1 if one.failure else 0
        if failures >= _FAILURES_IN_A_ROW or failures == len(record):
            if path is not None:
                _save_without(record, failures, path)
            raise ValueError(
                f"the last {failures} of {len(record)} evaluations failed, one after the other; "
                f"the last because: {record.evaluations[-1].failure}"
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
    """The settings to evaluate next; what comes of them goes to `record.tell`.

    For evaluations that are not a function here, on a cluster for example. Known evaluations that
    are told first take the place of random ones. Formal guarantees: none, as `search`.

    Example:

    ```python
    from dpjax import pareto

    record = pareto.SearchRecord(pareto.Domain(rate=pareto.Log(0.001, 1.0)), (10.0, 1.0))
    for _ in range(20):
        settings = pareto.ask(record, initial=8)
        record.tell(settings, epsilon=settings["rate"], utilities=1.0 - settings["rate"] ** 2)
    ```

    Args:
      record: of what was evaluated so far.
      number: wanted; fewer, or none, come where the domain has no more that differ.
      method: "ehvi", "ehvi_log_epsilon", "hvpoi" or "random"; see `search`.
      initial: the first so many evaluations are random ones.
      law: draws these; None: uniform over the unit cube.
      seed: with the record, of everything drawn.

    Returns:
      Name -> (number,) float64.

    Raises:
      ValueError: another method, or no evaluation that succeeded among the first `initial`.
    """
    checks.instance("record", record, SearchRecord, "pareto.SearchRecord(domain, (10.0, 1.0))")
    if method not in (*_ACQUISITIONS, RANDOM):
        raise ValueError(f"method {method!r}: pass one of {', '.join((*_ACQUISITIONS, RANDOM))}")
    number, initial = checks.whole("number", number), checks.whole("initial", initial)
    _check_law(law)
    done, domain = len(record), record.domain
    generator = np.random.default_rng((checks.whole("seed", seed, 0), _PROPOSING, done))
    law = UniformOver(domain) if law is None else law
    if method != RANDOM and done >= initial:
        return _next(record, number, method, law, generator)[0]
    wanted = number if method == RANDOM else min(number, initial - done)
    return _next(record, wanted, None, law, generator)[0]


def _check_law(law: Sampler | None) -> None:
    if law is not None and not callable(getattr(law, "sample", None)):
        raise ValueError(f"law must have a function sample, as pareto.UniformOver, not {law!r}")


def _next(
    record: SearchRecord,
    number: int,
    method: str | None,
    law: Sampler,
    generator: np.random.Generator,
) -> tuple[Settings, np.ndarray]:
    """Settings to evaluate next and their points (q, d); of the law where no method is given."""
    if method is None:
        chosen = law.sample(number, generator)
        return chosen, record.domain.to_unit(chosen)
    unit = proposals(record, number, _ACQUISITIONS[method], generator, method == HVPOI)
    return record.domain.from_unit(unit.reshape(-1, record.domain.dimension)), unit


def evaluated_inputs(record: SearchRecord) -> np.ndarray:
    """Where the settings evaluated lie in the unit cube, (n, d) float64: integers rounded.

    What was measured is the setting, not the point that proposed it, so this is where processes are
    fitted and asked (Garrido-Merchan & Hernandez-Lobato 2020, "Dealing with categorical and
    integer-valued variables in Bayesian optimization with Gaussian processes").
    """
    return record.domain.to_unit(record.settings)


def fitted(
    record: SearchRecord, generator: np.random.Generator, *, restarts: int = _FIT_RESTARTS
) -> tuple[GaussianProcess, GaussianProcess]:
    """Fits Gaussian processes of log epsilon and of the error's logit at `evaluated_inputs`.

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
      >>> epsilon, error = pareto.fitted(record, np.random.default_rng(0))
      >>> means, _ = epsilon.predict(np.array([[0.5]]))  # At noise 1, the middle of its range.
      >>> bool(abs(means[0]) < 0.1)  # The logarithm of epsilon 1.
      True

    Raises:
      ValueError: if no evaluation succeeded.
    """
    # Here: whoever tunes needs none of it, and it takes long to import.
    from dpjax.pareto.gaussian_process import GaussianProcess

    checks.instance("record", record, SearchRecord, "pareto.search(...)")
    checks.instance("generator", generator, np.random.Generator, "np.random.default_rng(0)")
    restarts = checks.whole("restarts", restarts, 0)
    kept = record.succeeded
    if not len(kept):
        raise ValueError("no evaluation succeeded: there is nothing to fit")
    inputs, outputs = evaluated_inputs(record)[kept], fronts.to_model_units(record.points)
    epsilon, error = (
        GaussianProcess.fit(
            inputs,
            outputs[:, column],
            noise_free=column == 0,
            generator=generator,
            restarts=restarts,
        )
        for column in (0, 1)
    )
    return epsilon, error


def proposals(
    record: SearchRecord,
    number: int,
    acquisition: acquisitions.Acquisition,
    generator: np.random.Generator,
    measured: bool = False,
) -> np.ndarray:
    """Up to `number` points (q, d) of the unit cube, feasible and different after rounding.

    Args:
      record: of the evaluations so far.
      number: wanted.
      acquisition: criterion.
      generator: all randomness.
      measured: improve on the measured points, as the paper does, rather than on the means of the
        processes, which do not mistake luck for gain.
    """
    objectives = fronts.to_model_units(record.points) if measured else None
    unit = batches.propose(
        fitted(record, generator),
        record.domain,
        number,
        anti_ideal=fronts.to_model_units(record.anti_ideal),
        generator=generator,
        acquisition=acquisition,
        observed_inputs=record.unit,
        observed_objectives=objectives,
    )
    return unit[record.domain.allowed(unit)] if len(unit) else unit


def _save_without(record: SearchRecord, failures: int, path: str | os.PathLike) -> None:
    """Saves a record less the batches that lie whole in its last `failures` evaluations."""
    last_good = len(record) - failures - 1
    if last_good < 0:
        return
    batch = record.evaluations[last_good].batch
    kept = [one for one in record.evaluations if one.batch <= batch]
    SearchRecord(
        record.domain,
        record.anti_ideal,
        failed_as=record.failed_as,
        identity=record.identity,
        evaluations=kept,
    ).save(path)


def _begun(
    domain: Domain,
    anti_ideal: np.ndarray,
    privacy: PrivacyOracle,
    utility: UtilityOracle,
    identity: dict[str, Any],
    seed: int | None,
    path: str | os.PathLike | None,
) -> SearchRecord:
    """The record to go on with: a new one, or the one at `path`."""
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
        # Functions have no words of their own, so the prices that they gave are asked again.
        known = record.succeeded[:_PRICES_ASKED_AGAIN]
        again, _ = asked_privacy(privacy, select(record.settings, known))
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


def point_seeds(seed: int, first: int, number: int) -> np.ndarray:
    """One integer (number,) uint64 for each evaluation from `first` on, for its repetitions."""
    return np.array(
        [
            np.random.SeedSequence((seed, _EVALUATING, first + place)).generate_state(1, np.uint64)
            for place in range(number)
        ]
    ).reshape(number)


def _evaluated(
    record: SearchRecord,
    privacy: PrivacyOracle,
    utility: UtilityOracle,
    settings: Settings,
    unit: np.ndarray,
) -> list[Evaluation]:
    """Asks both oracles about a batch; a failed point is marked, the others are not lost."""
    number = number_of(settings)
    seeds = point_seeds(record.identity["seed"], len(record), number)
    batch = record.evaluations[-1].batch + 1 if len(record) else 0
    epsilon, why = asked_privacy(privacy, settings)
    kept = np.flatnonzero([not reason for reason in why])
    utilities: list[tuple[float, ...]] = [()] * number
    if len(kept):
        measured, reasons = asked_utility(
            utility, select(settings, kept), seeds[kept], record.failed_as
        )
        for place, own, reason in zip(kept, measured, reasons):
            utilities[place], why[place] = tuple(own.tolist()), reason
    return [
        Evaluation(
            batch=batch,
            setting={name: float(values[place]) for name, values in settings.items()},
            unit=tuple(unit[place].tolist()),
            epsilon=float(epsilon[place]),
            utilities=utilities[place],
            failure=why[place],
        )
        for place in range(number)
    ]
