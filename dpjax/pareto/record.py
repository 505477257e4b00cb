"""The record of a search: every evaluation, saved whole after each batch, never private.

A file of JSON lines: a header, then one line an evaluation. Utilities are measured on data without
protection, so the file is the curator's, readable by its owner only, and says so in its first line.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpjax import checks, private_files
from dpjax.pareto import fronts
from dpjax.pareto.domain import Domain, Settings, number_of, parse_domain
from dpjax.pareto.gaussian_process import GaussianProcess
from dpjax.releases.curator import WARNING

_FIT_RESTARTS = 2


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One evaluated setting, with its epsilon and utilities.

    Attributes:
      batch: number of the batch it was evaluated in, from 0.
      setting: name -> number, integers rounded.
      unit: where it was proposed, (d,) in the unit cube, before rounding.
      epsilon: nan if it failed.
      utilities: of the repetitions; nan for one that failed; empty if all failed together.
      failure: why the point failed, in one line; empty if it did not.
    """

    batch: int
    setting: Mapping[str, float]
    unit: tuple[float, ...]
    epsilon: float
    utilities: tuple[float, ...]
    failure: str = ""


class SearchRecord:
    """All evaluations of one search, and what follows from them.

    Example:
      >>> from dpjax import pareto
      >>> record = pareto.SearchRecord(pareto.Domain(noise=pareto.Log(0.1, 10.0)), (10.0, 1.0))
      >>> record.tell({"noise": [1, 2, 2]}, epsilon=[1.0, 0.5, 0.5], utilities=[0.9, 0.8, 0.7])
      >>> record.front().tolist()  # Places of the evaluations, by increasing epsilon.
      [1, 0]

    Attributes:
      domain: what was searched.
      anti_ideal: (2,) float64, the worst epsilon and error that still count.
      failed_as: utility that a failed repetition counts as; None: its whole evaluation failed.
      identity: facts, for JSON, that a resumed search must agree with.
      evaluations: in order.
    """

    def __init__(
        self,
        domain: Domain,
        anti_ideal: ArrayLike,
        *,
        failed_as: float | None = None,
        identity: Mapping[str, Any] | None = None,
        evaluations: Sequence[Evaluation] = (),
    ):
        checks.instance("domain", domain, Domain, "pareto.Domain(rate=pareto.Log(0.001, 1))")
        if failed_as is not None:
            failed_as = checks.kept(failed_as, checks.number("failed_as", failed_as))
        if identity is not None:
            checks.mapping("identity", identity, "of facts by name")
        self.domain = domain
        self.anti_ideal = fronts.check_anti_ideal(anti_ideal)
        self.failed_as = failed_as
        self.identity = dict(identity or {})
        self.evaluations = checks.listed("evaluations", evaluations, "pareto.Evaluation")

    def __len__(self) -> int:
        return len(self.evaluations)

    @property
    def settings(self) -> Settings:
        """Returns the settings of all evaluations, name -> (n,) float64."""
        return {
            name: np.array([one.setting[name] for one in self.evaluations], np.float64)
            for name in self.domain.names
        }

    @property
    def unit(self) -> np.ndarray:
        """Returns the points (n, d) in the unit cube that were proposed, before rounding."""
        return np.array([one.unit for one in self.evaluations], np.float64).reshape(
            -1, self.domain.dimension
        )

    @property
    def evaluated_inputs(self) -> np.ndarray:
        """Returns the points (n, d) in the unit cube of the evaluated settings, after rounding."""
        return self.domain.to_unit(self.settings)

    @property
    def epsilon(self) -> np.ndarray:
        """Returns epsilons (n,) float64, nan where failed."""
        return np.array([one.epsilon for one in self.evaluations], np.float64)

    @property
    def failed(self) -> np.ndarray:
        """Marks the evaluations that failed, (n,) bool."""
        return np.array([bool(one.failure) for one in self.evaluations], bool)

    def counted(self, place: int) -> np.ndarray:
        """Returns an evaluation's utilities (R,), with `failed_as` for failed repetitions."""
        utilities = np.asarray(self.evaluations[place].utilities, np.float64)
        if self.failed_as is None:
            return utilities
        return np.where(np.isnan(utilities), self.failed_as, utilities)

    @property
    def utility(self) -> np.ndarray:
        """Returns the mean utility (n,) over the repetitions, nan where the point failed."""
        return np.array(
            [
                math.nan if one.failure else float(np.mean(self.counted(place)))
                for place, one in enumerate(self.evaluations)
            ]
        )

    @property
    def succeeded(self) -> np.ndarray:
        """Returns the positions (k,) of the evaluations that did not fail."""
        return np.flatnonzero(~self.failed)

    @property
    def points(self) -> np.ndarray:
        """Returns (epsilon, 1 - mean utility) of the evaluations that succeeded, (k, 2) float64."""
        kept = self.succeeded
        return np.stack([self.epsilon[kept], 1.0 - self.utility[kept]], axis=1).reshape(-1, 2)

    def front(self) -> np.ndarray:
        """Returns the positions (k,) of the evaluations on the front, by increasing epsilon.

        Only points that dominate the anti-ideal point are on it; without any, a ValueError says
        what would be needed.
        """
        points = self.points
        fronts.check_anti_ideal(self.anti_ideal, points)
        inside = (points < self.anti_ideal).all(axis=1)
        kept = np.flatnonzero(fronts.non_dominated(points) & inside)
        kept = kept[np.argsort(points[kept, 0], kind="stable")]
        return self.succeeded[kept]

    def hypervolume(self) -> float:
        """Returns the hypervolume of the points as measured, which overstates it."""
        return fronts.hypervolume(self.points, self.anti_ideal)

    def rows(self) -> list[dict[str, float | int | str | None]]:
        """Returns one flat row per evaluation, for tables."""
        on_front = set(self.front().tolist()) if self.hypervolume() > 0 else set()
        rows = []
        for place, one in enumerate(self.evaluations):
            counted = self.counted(place) if not one.failure else np.zeros(0)
            rows.append(
                {
                    "evaluation": place,
                    "batch": one.batch,
                    **one.setting,
                    "epsilon": _to_json(one.epsilon),
                    "utility": float(counted.mean()) if len(counted) else None,
                    "best": float(counted.max()) if len(counted) else None,
                    "worst": float(counted.min()) if len(counted) else None,
                    "repetitions": len(one.utilities),
                    "failed_repetitions": int(np.isnan(one.utilities).sum()),
                    "on_front": int(place in on_front),
                    "failure": one.failure,
                }
            )
        return rows

    def tell(
        self, settings: Mapping[str, ArrayLike], epsilon: ArrayLike, utilities: ArrayLike
    ) -> None:
        """Adds a batch of evaluations: those that `ask` proposed, or known ones.

        Args:
          settings: name -> numbers (n,), with every name of the domain.
          epsilon: (n,) >= 0; nan where the evaluation failed.
          utilities: (n,), or (n, R) of R repetitions, in [0, 1]; nan where one failed.
        """
        checks.mapping("settings", settings, "from names to arrays (n,)")
        if set(settings) != set(self.domain.names):
            raise ValueError(
                f"settings name {', '.join(sorted(settings)) or 'nothing'}: pass a number for each "
                f"of {', '.join(self.domain.names)}"
            )
        given = {
            name: np.atleast_1d(np.asarray(settings[name], np.float64))
            for name in self.domain.names
        }
        number = number_of(given)
        cost = np.atleast_1d(np.asarray(epsilon, np.float64))
        measured = np.asarray(utilities, np.float64)
        measured = measured.reshape(-1, 1) if measured.ndim < 2 else measured
        shapes = [*(values.shape for values in given.values()), cost.shape, measured.shape[:1]]
        if any(shape != (number,) for shape in shapes) or measured.ndim != 2:
            raise ValueError(
                f"{number} settings, epsilon {cost.shape} and utilities {measured.shape}: pass as "
                "many of each, utilities (n,) or (n, repetitions)"
            )
        if (cost < 0).any() or np.isinf(cost).any() or (measured < 0).any() or (measured > 1).any():
            raise ValueError("pass epsilon >= 0 and utilities in [0, 1], nan where one failed")
        if not all(np.isfinite(values).all() for values in given.values()):
            raise ValueError("a setting is not finite: pass the numbers that were evaluated")
        failed = np.isnan(cost) | np.isnan(measured).all(axis=1)
        if self.failed_as is None:
            failed |= np.isnan(measured).any(axis=1)
        self.add(
            given,
            self.domain.to_unit(given),
            cost,
            [() if bad else tuple(own.tolist()) for own, bad in zip(measured, failed)],
            ["no number came of it" if bad else "" for bad in failed],
        )

    def add(
        self,
        settings: Settings,
        unit: np.ndarray,
        epsilon: np.ndarray,
        utilities: Sequence[tuple[float, ...]],
        failures: Sequence[str],
    ) -> None:
        """Adds a batch of evaluations as it is; the fields are those of `Evaluation`, (n,) each."""
        batch = self.evaluations[-1].batch + 1 if len(self) else 0
        for place, failure in enumerate(failures):
            self.evaluations.append(
                Evaluation(
                    batch=batch,
                    setting={name: float(values[place]) for name, values in settings.items()},
                    unit=tuple(unit[place].tolist()),
                    epsilon=float(epsilon[place]),
                    utilities=utilities[place],
                    failure=failure,
                )
            )

    def save(self, path: str | os.PathLike) -> None:
        """Writes the record, whole or not at all, readable by its owner only."""
        header = {
            "warning": WARNING,
            "domain": self.domain.describe(),
            "anti_ideal": self.anti_ideal.tolist(),
            "failed_as": self.failed_as,
            "identity": self.identity,
        }
        lines: list[dict[str, Any]] = [header]
        for one in self.evaluations:
            without_nan = {
                "epsilon": _to_json(one.epsilon),
                "utilities": [*map(_to_json, one.utilities)],
            }
            lines.append(dataclasses.asdict(one) | without_nan)
        # JSON keeps floats exactly, so a resumed search goes on as if it had never stopped.
        words = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        private_files.write_anew(checks.path("path", path), words.encode())

    @classmethod
    def load(cls, path: str | os.PathLike, domain: Domain | None = None) -> SearchRecord:
        """Reads a record of a search.

        Args:
          path: of the file.
          domain: the domain that was searched; None: the one that the file describes, in which
            every setting is feasible.
        """
        try:
            with open(path, encoding="utf-8") as file:
                header, *lines = [json.loads(line) for line in file]
            if domain is None:
                domain = parse_domain([f"{name}={law}" for name, law in header["domain"].items()])
            if header["domain"] != domain.describe():
                raise ValueError(
                    f"{path} is the record of a search over another domain: pass the same one, or "
                    "another folder"
                )
            found = {name: header[name] for name in ("anti_ideal", "failed_as", "identity")}
            evaluations = [
                Evaluation(
                    batch=line["batch"],
                    setting=line["setting"],
                    unit=tuple(line["unit"]),
                    epsilon=_from_json(line["epsilon"]),
                    utilities=tuple(map(_from_json, line["utilities"])),
                    failure=line["failure"],
                )
                for line in lines
            ]
            return cls(domain, **found, evaluations=evaluations)
        except (json.JSONDecodeError, KeyError, TypeError, UnicodeDecodeError):
            raise ValueError(
                f"{path} is not the record of a search: pass the folder of one, or a new one"
            ) from None


def _to_json(number: float) -> float | None:
    """Returns a number for JSON, which has no nan."""
    return float(number) if math.isfinite(number) else None


def _from_json(number: float | None) -> float:
    """Returns a number of JSON, nan for its null."""
    return math.nan if number is None else float(number)


def fitted(
    record: SearchRecord, generator: np.random.Generator
) -> tuple[GaussianProcess, GaussianProcess]:
    """Fits the processes of log epsilon and of the logit of the error to a record.

    The rounded setting was measured, not the point that was proposed, so the processes are fitted
    and asked at `SearchRecord.evaluated_inputs` (Garrido-Merchan & Hernandez-Lobato 2020, "Dealing
    with categorical and integer-valued variables in Bayesian optimization with Gaussian
    processes").

    Args:
      record: of a search; failed evaluations are left out.
      generator: draws the random starts.
    """
    checks.instance("record", record, SearchRecord, "pareto.search(...)")
    checks.instance("generator", generator, np.random.Generator, "np.random.default_rng(0)")
    kept = record.succeeded
    if not len(kept):
        raise ValueError("no evaluation succeeded: pass a record with at least one that did")
    inputs, outputs = record.evaluated_inputs[kept], fronts.to_model_units(record.points)
    epsilon, error = (
        GaussianProcess.fit(
            inputs,
            outputs[:, column],
            noise_free=column == 0,
            generator=generator,
            restarts=_FIT_RESTARTS,
        )
        for column in (0, 1)
    )
    return epsilon, error
