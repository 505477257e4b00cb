"""Random repetitions of any training function: the caller declares what one run guarantees.

Nicolas Papernot and Thomas Steinke, "Hyperparameter Tuning with Renyi Differential Privacy", ICLR
2022, https://arxiv.org/abs/2110.03620, as in `tuning.RandomRepetitions`; but one run is the
caller's function, in any library, and may run in a pool of processes.
"""

from __future__ import annotations

import functools
import inspect
import time
import types
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, as_completed
from typing import Any

import jax
import numpy as np

from dpjax import accounting, after_the_draw, checks
from dpjax.array_files import fingerprint
from dpjax.bridges.runs import (
    Callback,
    Candidates,
    ContradictionError,
    CountedScore,
    Label,
    Procedure,
    planned,
)
from dpjax.bridges.selection import ModelFile, Search, drawn, result
from dpjax.releases.ledger import Ledger
from dpjax.tuning import cautions
from dpjax.tuning.job import Arrays, Job
from dpjax.tuning.problem.space import Space
from dpjax.tuning.tuner import Result

Run = Callable[[int, dict[str, Label]], tuple[Any, Any]]
"""(seed, hyperparameters) -> (model, number of correct predictions)."""


def tune(
    run: Run,
    space: Space | Candidates,
    *,
    base: accounting.Guarantee | None = None,
    score: CountedScore | None = None,
    repetitions: accounting.RepetitionLaw | None = None,
    delta: float = 1e-5,
    model: str = "the caller's own",
    default: Any = None,
    save_model: Callable[[Any, str], object] | None = None,
    model_file: str | None = None,
    executor: Executor | None = None,
    on_outcome: Callback | None = None,
    job: Job | None = None,
    ledger: Ledger | None = None,
    seed: int | None = None,
) -> Result:
    """Runs a function for a secret random number of candidates and releases the best one.

    Formal guarantees:
      `result.release` is (`result.guarantee.epsilon(delta)`, delta)-differentially private under
      `base.relation` if what the caller declares is true, none of which can be seen from here:
      `base` holds for one run, with whether it raises, whatever candidate the space draws; a run
      reads its two arguments and the data alone, with fresh randomness; for any one model a record
      moves the count by 1 at most, and `score.records` says which records those are; the space and
      every argument were fixed without looking at the data; K, the other candidates, the console,
      what `on_outcome` wrote and the wall clock stay with the curator; the model's file holds no
      time. Enforced here: K, candidates, seeds and noise are drawn from the operating system's
      randomness before the first run; K appears in nothing that is released; the count is clipped
      and ranked with noise that is charged; a run that raises, or returns no number, counts, ranks
      worst and is not retried; without a winner `default` is released. Source: Papernot & Steinke
      (ICLR 2022), Theorems 2 and 6, as corrected and tightened in `accounting.best_of`.

      In a job's folder the draw is made once and decides one release; a candidate that has ended,
      failed or not, is not run again. One that was under way when its process ended is run again
      with the same seed: nothing of the first attempt was kept. A run that takes noise from
      elsewhere draws it afresh, of the same distribution, unless what it drew is what ended the
      process; `base` does not cover that.

    Example:
      >>> import numpy as np
      >>> from dpjax import accounting, bridges, tuning
      >>> def run(seed, hyperparameters):  # Stands for a private training in any library.
      ...     return {"weights": np.full(3, hyperparameters["rate"])}, 850
      >>> result = bridges.tune(
      ...     run,
      ...     tuning.Space(rate=tuning.LogUniform(0.01, 1)),
      ...     base=accounting.gaussian(2.0),
      ...     score=bridges.CountedScore("disjoint", public_size=1000),
      ...     repetitions=accounting.Fixed(3),
      ... )
      >>> result.guarantee.epsilon(1e-5) > accounting.gaussian(2.0).epsilon(1e-5)
      True

    Args:
      run: (seed, hyperparameters) -> (model, number of correct predictions). The seed is a secret
        whole number in [0, 2^63), for `numpy.random.default_rng` or `bridges.jax_key` (not for
        PyTorch's generator on a CPU, which keeps 32 bits). For a pool of processes it must be a
        function at the top of a module. Call it once on made-up data before: where it fails in
        every run, the default is released and the whole epsilon is spent.
      space: public distribution of the hyperparameters; with labels, a `bridges.Candidates`.
      base: needed; the guarantee of one run, training alone. If the cost depends on the
        candidate: `accounting.mixture` of the candidates', with the space's probabilities.
      score: needed; which records are counted, and how.
      repetitions: public distribution of the number K of candidates; None: the one that fits the
        space, `tuning.fitting_law`.
      delta: of the whole procedure, in (0, 1).
      model: public description of what is trained; it stands in the release.
      default: the model released if there is no winner; it must not depend on data.
      save_model: (model, path) -> writes the model's file; None for a pytree of arrays. Called for
        each model that is the best so far.
      model_file: the name of that file; "model" unless given, with `save_model`.
      executor: a pool of `concurrent.futures` that runs candidates in any order; its processes
        must be spawned (JAX does not survive a fork); None: one after the other, here.
      on_outcome: called in this process with each candidate's `Outcome`, as they end: for a log, a
        CSV or a tracking server, each the curator's ONLY. An `Exception` that it raises is a
        warning. Candidates that ended in an earlier process are not reported again.
      job: `tuning.Job(folder="work")`, the curator's working folder, unprotected. After an
        interruption the same call goes on. Other arguments or a changed text of `run` are refused,
        and so are other numbers, texts and arrays among its defaults, in a partial or in what it
        closed over. You must leave alone what `run` calls and reads, and the attributes of an
        object (`Job(label=)` may name its version). A model that an earlier process wrote comes
        back as its file: nested dicts of arrays, or bytes with `save_model`. It starts JAX here
        (beside PyTorch on one GPU: JAX_PLATFORMS=cpu).
      ledger: `bridges.Ledger("runs/mine", "mine.csv", (features, labels))`: before anything is
        drawn, what this costs is noted in that folder, and earlier runs on the same records beside
        it are warned of; a job's folder is then bound to these records. One ledger for one draw.
      seed: for reproduction; the randomness is then not secret and the release says so.

    Returns:
      A `tuning` `Result`: `release.save(folder)`, `curator.save(folder)`.

    Raises:
      RuntimeError: if a process of the pool died, or a run raised a `bridges.ContradictionError`,
        which says that it was not what `base` is declared for; nothing is then released.

    Warns:
      ledger.EarlierRunsWarning: before anything is drawn, if `ledger` sees runs on these records.
      selection.RunsWarning: if some run raised, or returned no count in range; it names the kind of
        error where all did, never its text, which is the curator's.
      Others are as in `tuning.tune`.
    """
    checks.function("run", run, "(seed, hyperparameters) -> (model, count)")
    check_takes("run", run, "seed", "hyperparameters")
    if on_outcome is not None:
        checks.function("on_outcome", on_outcome, "taking an Outcome")
        on_outcome = after_the_draw.harmless("on_outcome", on_outcome)
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise ValueError(
            f"executor={checks.shown(executor)} has no submit: pass a pool, such as "
            "concurrent.futures.ProcessPoolExecutor(4)"
        )
    file = ModelFile.of(save_model, model_file)
    file.files(default)  # A default that could not be released is refused before any run.
    procedure = planned(
        Candidates.of(space),
        base=base,
        score=score,
        repetitions=repetitions,
        delta=delta,
        model=model,
        ledger=ledger,
    )
    job = _checked_job(job)
    cautions.of_arguments(procedure.delta, procedure.score.public_size, seed)
    started, search = time.time(), None

    def searched(draw: Arrays) -> Arrays:
        nonlocal search
        search = Search(procedure, draw, file, job.folder)
        if executor is None:
            for index in search.left:
                _take(search, index, _attempt(run, *search.candidate(index)), on_outcome)
        else:
            _run_in(executor, run, search, on_outcome)
        return search.outcome()

    if job.folder is None:
        # Nothing is kept, so JAX need not start to say which process this is.
        outcome: Arrays | None = searched(drawn(procedure, seed))
    else:
        outcome = job.once(
            lambda: _facts(procedure, run, default, file, seed),
            lambda: drawn(procedure, seed),
            searched,
        )
    assert outcome is not None  # There are no shards.
    return result(
        procedure,
        outcome,
        file,
        default,
        secret=seed is None,
        search=search,
        started=started,
    )


def check_takes(name: str, function: Callable[..., Any], *arguments: str) -> None:
    """Refuses a function that does not take these arguments: every candidate would fail."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # A built-in function does not say what it takes.
        return
    try:
        signature.bind(*arguments)
    except TypeError:
        raise ValueError(
            f"{name} takes {signature}: pass a function of ({', '.join(arguments)})"
        ) from None


def _attempt(run: Run, seed: int, values: dict[str, Label]) -> tuple[bool, Any]:
    """Calls `run`; returns (True, what it returned) or (False, why it failed)."""
    try:
        return True, run(seed, values)
    except ContradictionError:
        raise  # The run may have cost more than was charged: nothing may be released.
    except Exception as error:  # A run that raises still counts as a candidate, and ranks worst.
        return False, f"it raised {_named(error)}"


def _named(error: BaseException) -> str:
    """Returns an exception's type and its text, which may quote records."""
    return f"{type(error).__name__}: {error}"


def _take(search: Search, index: int, ended: tuple[bool, Any], on_outcome: Callback | None) -> None:
    """Reports what a run returned, and passes its outcome to the callback."""
    done, returned = ended
    if not done:
        outcome = search.failed(index, returned)
    elif isinstance(returned, tuple) and len(returned) == 2:
        outcome = search.report(index, *returned)
    else:
        outcome = search.failed(index, "it returned no pair (model, count)")
    if on_outcome is not None:
        on_outcome(outcome)


def _run_in(executor: Executor, run: Run, search: Search, on_outcome: Callback | None) -> None:
    """Runs all candidates in a pool, and reports each as it ends."""
    futures = {
        executor.submit(_attempt, run, *search.candidate(index)): index for index in search.left
    }
    try:
        for future in as_completed(futures):
            index, error = futures.pop(future), future.exception()
            if isinstance(error, ContradictionError):
                raise error
            if isinstance(error, BrokenExecutor):
                # One run ended others too, so the candidates are no longer independent draws.
                raise RuntimeError(
                    "a process of the executor died, and with it candidates that had not ended: "
                    "nothing is released; give a worker more memory, or run without executor"
                ) from None
            ended = future.result() if error is None else (False, f"it ended in {_named(error)}")
            _take(search, index, ended, on_outcome)
    finally:
        for future in futures:
            future.cancel()


# What a job's folder is bound to ------------------------------------------------------------------


def _checked_job(job: Job | None) -> Job:
    """Returns the job; refuses all but a folder and a label: dpjax does not place such runs."""
    if job is None:
        return Job()
    checks.instance("job", job, Job, "tuning.Job(folder='work')")
    if job != Job(folder=job.folder, label=job.label):
        raise ValueError(
            "dpjax does not place these runs on devices; a job only keeps their results: pass "
            "job=tuning.Job(folder='work') with folder and label alone, and executor for a pool"
        )
    if job.folder is not None and jax.process_count() > 1:
        raise ValueError("one process selects: call bridges.tune in one, with executor for others")
    return job


def _facts(
    procedure: Procedure, run: Any, default: Any, model_file: ModelFile, seed: int | None
) -> dict[str, Any]:
    """Returns all that a draw and its runs depend on, to which a job's folder is bound."""
    score, leaves = procedure.score, jax.tree.leaves(default)
    plain = all(isinstance(leaf, int | float | np.ndarray | jax.Array) for leaf in leaves)
    return {
        "search space": procedure.candidates.describe(),
        "base": procedure.base.provenance,
        "score": [score.records, score.public_size, score.noise],
        "selection": procedure.choice.describe(),
        "delta": procedure.delta,
        "model": procedure.model,
        "seed": seed,
        "ledger": procedure.ledger and procedure.ledger.seen.fingerprint,
        "run": code(run),
        "default": fingerprint(default) if plain else type(default).__qualname__,
        "model_file": model_file.name,
        "save_model": code(model_file.save),
    }


def code(function: Any) -> list[Any]:
    """Returns a function's name, compiled code and settings for JSON, without its callees.

    Settings are defaults, what a partial fixes, and what it closed over, of which lists and
    mappings may be logs and do not count. For a partial or a decorator, also the code of the
    functions among its arguments. A callable object goes by its class.
    """
    passed: list[Any] = []
    settings: list[Any] = []
    while isinstance(function, functools.partial):
        given: dict[Any, Any] = {**dict(enumerate(function.args)), **function.keywords}
        passed += filter(callable, given.values())
        settings.append(given)
        function = function.func
    if callable(inner := getattr(function, "__wrapped__", None)):
        passed.append(inner)
    function = getattr(function, "__func__", function)
    # A callable object goes by its class.
    of = function if hasattr(function, "__qualname__") else type(function)
    source = function
    if not hasattr(function, "__code__") and callable(function):
        source = type(function).__call__
    settings += [getattr(source, name, None) for name in ("__defaults__", "__kwdefaults__")]
    settings += filter(_may_be_set, getattr(source, "__closure__", None) or ())
    text = _stable_text(getattr(source, "__code__", None))
    return [of.__module__, of.__qualname__, text, _setting(settings), *map(code, passed)]


def _may_be_set(cell: types.CellType) -> bool:
    """Returns whether what a function closed over does not change as it runs."""
    try:
        return not isinstance(cell.cell_contents, list | set | dict)
    except ValueError:  # It is empty.
        return False


def _setting(value: Any) -> Any:
    """Returns a function's setting for JSON: numbers, text and arrays; others by their type."""
    if isinstance(value, types.CellType):
        return _setting(value.cell_contents)
    if isinstance(value, dict):
        return [[repr(name), _setting(one)] for name, one in value.items()]
    if isinstance(value, list | tuple):
        return [_setting(one) for one in value]
    if isinstance(value, np.ndarray | np.generic | jax.Array) and value.dtype.kind in "biufcSU":
        return fingerprint(np.asarray(value))
    if value is None or isinstance(value, int | float | complex | str | bytes):
        return repr(value)
    return type(value).__qualname__


def _stable_text(constant: Any) -> Any:
    """Returns a constant of compiled code as text that is the same in every process."""
    if isinstance(constant, types.CodeType):
        inside = [_stable_text(one) for one in constant.co_consts]
        names = constant.co_names, constant.co_varnames, constant.co_freevars
        return [constant.co_code.hex(), constant.co_exceptiontable.hex(), *names, inside]
    if isinstance(constant, frozenset):  # Its order follows the process's hash of text.
        return sorted(map(repr, constant))
    return repr(constant)
