"""Audits of whole tunings: true claims stand, and planted defects are seen."""

import dataclasses
import itertools
import re

import numpy as np
import pytest

from dpjax import accounting, auditing, tuning
from dpjax.auditing import CANARIES

NUMBER, DELTA = 20_000, 0.02
LAW = accounting.AtMost(accounting.Geometric(3), cap=8)
SPACE = tuning.Space(learning_rate=1.0, clip_norm=1.0)
RUN = tuning.RunOptions(lot_size=8, steps=1, noise_multiplier=2.0)


def _audit(tuner, canary="gradient", **changes):
    settings = dict(space=SPACE, number=NUMBER, delta=DELTA, run=RUN, seed=1) | changes
    return auditing.audit(tuner, CANARIES[canary], **settings)


def _numbers(canary, tuner, run):
    """What executions of a tuner show, with the record and without."""
    return [
        canary.numbers(
            auditing.executions(
                tuner,
                canary.task(there),
                SPACE,
                NUMBER,
                delta=DELTA,
                run=run,
                optimizer=canary.optimizer,
                seed=20 + there,
            )
        )
        for there in (True, False)
    ]


@pytest.mark.parametrize("canary", CANARIES)
def test_a_true_claim_stands(canary):
    found = _audit(tuning.RandomRepetitions(LAW), canary)
    assert found.stands and found.seen.value <= found.claimed
    assert found.executions == 2 * NUMBER
    if canary != "validation record":
        assert found.seen.value > 0.3 * found.claimed


CALLS = itertools.count()


class Counting(tuning.RandomRepetitions):
    """Has another price each time, as if it had seen the record: a plan is shown none."""

    def plan(self, problem):
        noise = 2.0 + 0.1 * next(CALLS)
        run = dataclasses.replace(problem.run, noise_multiplier=noise)
        return super().plan(dataclasses.replace(problem, run=run))


def test_a_claim_that_depends_on_the_record_is_refused():
    with pytest.raises(RuntimeError, match="depends on the data"):
        _audit(Counting(LAW), number=100)


def test_scores_without_their_noise_are_seen():
    """Of twelve runs one is nearly always positive, and exact scores find it."""
    canary, law = CANARIES["validation record"], accounting.Fixed(12)
    claim = _audit(tuning.RandomRepetitions(law), "validation record", number=50).claim
    numbers = _numbers(canary, tuning.RandomRepetitions(law, score_noise=0.01), RUN)
    assert auditing.refuted(claim, *numbers, failure_probability=1e-6).value > 0


def test_half_of_the_noise_is_seen():
    """Executed with half of the noise that the claim is of."""
    canary = CANARIES["gradient"]
    claim = _audit(tuning.RandomRepetitions(LAW), number=50).claim
    quiet = tuning.RunOptions(lot_size=8, steps=1, noise_multiplier=1.0)
    numbers = _numbers(canary, tuning.RandomRepetitions(LAW), quiet)
    assert auditing.refuted(claim, *numbers, failure_probability=1e-6).value > 0


def test_a_users_loop_that_divides_its_noise_twice_is_seen():
    """Ten lines: noise meant for a sum is added to a mean, over the lot once more."""
    lot, noise, rng = 8, 1.0, np.random.default_rng(41)

    def trained(with_record):
        sums = np.full(NUMBER, 1.0 if with_record else 0.0)
        return sums / lot + rng.normal(0.0, noise / lot**2, NUMBER)

    claim = accounting.dp_sgd(1.0, noise, 1)
    found = auditing.refuted(claim, trained(True), trained(False))
    assert found.value > 0


def test_bad_input_is_one_line():
    for change, words in (
        (dict(canary=None), "canary"),
        (dict(delta=0.0), "delta"),
        (dict(records=1), "records"),
    ):
        arguments = dict(canary=CANARIES["gradient"], delta=DELTA) | change
        with pytest.raises(ValueError, match=words):
            auditing.audit(
                tuning.Untuned(), arguments.pop("canary"), SPACE, number=10, run=RUN, **arguments
            )


def test_the_examples_of_the_page_run_as_written(capsys, request):
    page = (request.config.rootpath / "docs" / "auditing.md").read_text()
    first, second, third = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(compile(first, "docs/auditing.md", "exec"), {})
    assert capsys.readouterr().out.startswith("refuted Seen(")
    exec(compile(second, "docs/auditing.md", "exec"), {})
    claimed, seen, stands = capsys.readouterr().out.split()
    assert float(seen) <= float(claimed) and stands == "True"
    known = {}
    exec(compile(third, "docs/auditing.md", "exec"), known)
    own = known["canary"]
    assert _audit_of(own).stands
    wrong = dataclasses.replace(own, numbers=lambda released: released.params[:7])
    with pytest.raises(ValueError, match=r"return one for each execution, \(50,\)"):
        _audit_of(wrong)


def _audit_of(canary):
    return auditing.audit(tuning.Untuned(), canary, SPACE, number=50, delta=DELTA, run=RUN, seed=1)


def test_a_class_is_no_tuner():
    with pytest.raises(ValueError, match="must be a tuner, such as"):
        _audit(tuning.RandomRepetitions, number=50)
