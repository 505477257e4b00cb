"""A tuner in one file: defined here, with nothing of the library edited; priced, run, verified."""

import dataclasses
import json

import numpy as np
import pytest

from dpjax import accounting, tuning
from dpjax.tuning import verification
from dpjax.tuning.evaluations.private_runs import PrivateRuns

RULE = "the last of a fixed number of runs"


@dataclasses.dataclass(frozen=True)
class LastOf:
    """Releases the last run, whatever the scores: K is public, and the others leave no trace."""

    runs: int
    in_order = False

    @property
    def expected_runs(self):
        return float(self.runs)

    def guarantee(self, run):
        return run

    def draw(self, executions, source):
        return np.full(executions, self.runs)

    def rank(self, scores):
        # One chunk holds all runs of this test, in order.
        return np.where(np.arange(len(scores)) == self.runs - 1, 0.0, -np.inf)

    def describe(self):
        return {"rule": RULE, "runs": self.runs}


@tuning.register_tuner("last_run", rule=RULE)
@dataclasses.dataclass(frozen=True)
class LastRun:
    """The last of a fixed number of runs.

    Attributes:
      runs: how many there are; public.
    """

    runs: int = 3

    evaluation = PrivateRuns()

    @property
    def choice(self):
        return LastOf(self.runs)

    @classmethod
    def from_statement(cls, claim):
        return cls(int(claim["selection"]["runs"]))


TARGET = dict(epsilon=3.0, run=tuning.RunOptions(lot_size=16, steps=2), delta=1e-5)


def test_it_is_priced_run_released_and_verified(task, tuned, statement_of):
    result = tuned(task, LastRun(2), **TARGET)
    assert result.curator.winner == 1 and result.curator.number_of_candidates == 2
    assert 2.9 < result.guarantee.epsilon(1e-5) <= 3.0
    # Not chosen by its score, it costs what one run costs.
    assert result.guarantee.epsilon(1e-5) == result.run_guarantee.epsilon(1e-5)
    path = statement_of(result)
    assert verification.verify_release(path).epsilon <= 3.0
    claim = json.loads(path.read_text())
    assert claim["selection"] == {"rule": RULE, "runs": 2}


def test_another_law_would_have_been_another_price(task, tuned):
    best = tuned(task, tuning.RandomRepetitions(accounting.Fixed(2)))
    last = tuned(task, LastRun(2))
    assert best.guarantee.epsilon(1e-5) > last.guarantee.epsilon(1e-5)


def test_where_it_is_not_imported_verification_says_so(task, tuned, statement_of, monkeypatch):
    path = statement_of(tuned(task, LastRun(2)))
    monkeypatch.setattr("dpjax.tuning.tuner._REBUILDERS", {})
    with pytest.raises(verification.NotVerified, match="of no tuner known here: import"):
        verification.verify_release(path)


def test_names_and_rules_are_unique():
    with pytest.raises(ValueError, match="'last_run' is registered already"):
        tuning.register_tuner("last_run", rule="another")(LastRun)
    with pytest.raises(ValueError, match="the rule .* is registered already"):
        tuning.register_tuner("another", rule=RULE)(LastRun)
    assert tuning.registered_tuners()["last_run"] is LastRun
