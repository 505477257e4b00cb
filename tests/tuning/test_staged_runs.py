"""Tuners train in stages: what a run gets is what is charged, stated and proved."""

import copy
import dataclasses
import json
import math

import noise_alone
import numpy as np
import pytest
from audits import canary_task, epsilon_lower_bound
from noise_alone import RECORDS, statement

from dpjax import accounting, auditing, certificate, training, tuning
from dpjax.releases import statement_page
from dpjax.releases.rules import rebuilt
from dpjax.releases.verification import check_words
from dpjax.tuning.problem.run_settings import RunShape

STEPS = 10
STAGES = training.Stages((0.6, 0.4), noise=(1.6, 0.7), clip_norm=(1.0, 0.5), lot_size=(1.0, 2.0))
ONE = tuning.RunOptions(lot_size=20, steps=STEPS, noise_multiplier=1.7, stages=STAGES)


def _of_updates(steps):
    """The std of the sum of a run's updates, over noise multiplier, rate, clip norm, 1 / lot."""
    first = math.floor(0.6 * steps + 0.5)
    return math.sqrt(first * 1.6**2 + (steps - first) * (0.7 * 0.5 / 2.0) ** 2)


@pytest.mark.parametrize("steps", [[10.0], [5.0, 15.0]], ids=["alike", "unlike"])
def test_every_candidate_gets_the_noise_it_is_charged_for(steps):
    """Each variance within 5.5 deviations of its law's; that of a run without stages is far."""
    space = tuning.Space(learning_rate=0.5, clip_norm=tuning.Choice([0.5, 2.0]))
    run = ONE
    if len(steps) > 1:
        space = tuning.Space(learning_rate=0.5, clip_norm=1.0, steps=tuning.Choice(steps))
        run = tuning.RunOptions(lot_size=20, noise_multiplier=1.7, stages=STAGES)
    given, released = noise_alone.executed(space, run)
    given = {"steps": np.full(12, 10.0)} | given
    noise = released / (0.5 * 1.7 * given["clip_norm"] / 20.0)[:, None]
    own = [_of_updates(int(one)) for one in given["steps"]]
    assert np.abs(noise_alone.excess(noise, own)).max() < 5.5
    assert np.abs(noise_alone.excess(noise, np.sqrt(given["steps"]))).min() > 5.5


def test_a_run_is_priced_by_its_stages():
    shape = RunShape(20, STEPS, "poisson", RECORDS, 110, stages=STAGES)
    lots = shape.lots
    assert lots == training.PoissonLots(110, 0.2, lots.capacity)
    assert accounting.truncation_probability(110, 0.4, lots.capacity, STEPS) <= 1e-9
    parts = [
        accounting.dp_sgd(
            chance,
            1.7 * factor,
            steps,
            failure_probability=accounting.truncation_probability(110, chance, lots.capacity, steps)
            + steps * training.PoissonLots(110, chance, lots.capacity).failure_probability_per_draw,
        )
        for chance, factor, steps in ((0.2, 1.6, 6), (0.4, 0.7, 4))
    ]
    assert shape.price(1.7).epsilon(1e-5) == accounting.compose(*parts).epsilon(1e-5)
    worst = accounting.dp_sgd(0.4, 1.7 * 0.7, STEPS)
    assert shape.price(1.7).epsilon(1e-5) < 0.8 * worst.epsilon(1e-5)


def test_fixed_lots_are_priced_by_their_stages():
    stages = training.Stages((0.6, 0.4), noise=(1.6, 0.7), clip_norm=(1.0, 0.5))
    shape = RunShape(20, STEPS, "fixed", RECORDS, 110, stages=stages)
    parts = [
        accounting.dp_sgd_fixed_lots(RECORDS, 20, 1.7 * factor, steps)
        for factor, steps in ((1.6, 6), (0.7, 4))
    ]
    assert shape.price(1.7).epsilon(1e-5) == pytest.approx(accounting.compose(*parts).epsilon(1e-5))


# Statements ---------------------------------------------------------------------------------------


def test_a_statement_carries_the_stages_and_is_verified_and_proved():
    words = statement(ONE)
    (row,) = words["training"]
    assert words["run_options"]["stages"] == STAGES.describe()
    assert [one["steps"] for one in row["stages"]] == [6, 4]
    assert [one["lot_size"] for one in row["stages"]] == [20.0, 40.0]
    assert [one["noise_multiplier"] for one in row["stages"]] == [1.7 * 1.6, 1.7 * 0.7]
    noise_alone.assert_verified_and_proved(words)
    assert "clipping of gradients, and noise, in 2 stages" in statement_page.markdown(words)
    plain = json.dumps(statement(tuning.RunOptions(20, STEPS, None, 1.7)))
    assert "stages" not in plain


@pytest.mark.parametrize("bands", [None, 2])
def test_one_stage_of_factor_one_is_stated_as_none(bands):
    """Beside bands, too, where a certificate proves no stages."""
    run = tuning.RunOptions(20, STEPS, None, 1.7, bands=bands)
    words = statement(dataclasses.replace(run, stages=training.Stages((1.0,))))
    assert words == statement(run)
    certificate.check_same(words["mechanism"], certificate.tree_of(words))


def test_settings_of_several_lengths_are_verified_and_proved():
    space = tuning.Space(learning_rate=0.5, clip_norm=1.0, steps=tuning.Choice([5, 15]))
    words = statement(tuning.RunOptions(lot_size=20, noise_multiplier=1.7, stages=STAGES), space)
    assert [[one["steps"] for one in row["stages"]] for row in words["training"]] == [
        [3, 2],
        [9, 6],
    ]
    assert check_words(words, rebuilt(words).statement) <= words["epsilon"]
    certificate.check_same(words["mechanism"], certificate.tree_of(words))


def _of_last(**changed):
    return lambda words: words["training"][0]["stages"][-1].update(changed)


EDITS = {
    "more noise in the last stage than it had": _of_last(noise_multiplier=1.7),
    "smaller lots in the last stage": _of_last(lot_size=20.0),
    "fewer steps in the last stage": _of_last(steps=3),
    "half a step": _of_last(steps=3.5),
    "steps that no stage has": lambda words: words["training"][0].update(steps=12),
    "a stage left out": lambda words: words["training"][0]["stages"].pop(),
    "no stages": lambda words: words["training"][0].pop("stages"),
    "an empty list of stages": lambda words: words["training"][0].update(stages=[]),
    "stages beside bands": lambda words: words["training"][0].update(bands=2),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_statement_is_neither_verified_nor_proved(edit):
    noise_alone.assert_neither_verified_nor_proved(statement(ONE), EDITS[edit])


ASKED = {
    "more noise": lambda stages: stages["noise"].__setitem__(1, 0.8),
    "other shares": lambda stages: stages.update(shares=[0.4, 0.6]),
    "smaller lots": lambda stages: stages["lot_size"].__setitem__(1, 1.5),
    "none": lambda stages: stages.clear(),
    "one fewer": lambda stages: stages["noise"].pop(),
}


@pytest.mark.parametrize("edit", ASKED)
def test_other_stages_than_were_asked_for_are_not_verified(edit):
    words = copy.deepcopy(statement(ONE))
    ASKED[edit](words["run_options"]["stages"])
    with pytest.raises((ValueError, TypeError)):
        check_words(words, rebuilt(words).statement)


def test_a_calibrated_run_meets_its_target():
    run = tuning.RunOptions(lot_size=20, steps=STEPS, stages=STAGES)
    plan, setting = noise_alone.calibrated(run)
    assert setting.stages == STAGES
    words = json.loads(json.dumps(tuning.Untuned().statement(plan, secret=True)))
    assert check_words(words, rebuilt(words).statement) <= words["epsilon"]


def test_several_devices_for_a_run_are_refused_before_the_draw(tmp_path):
    words = "stages are of runs on one device: drop them"
    noise_alone.assert_refused_on_several_devices(ONE, words, tmp_path)


# Audit --------------------------------------------------------------------------------------------

NOISE, DELTA = (3.0, 1.5), 0.05


def _attacked(noise):
    """What is released of a run in two stages, with the canary and without, and its epsilon.

    Every lot has both records. Clip norms over the squares of `NOISE` weigh the steps so that their
    sum, which is all that is released, shows as much as all of them.
    """
    clip_norm = tuple(4.0 / one**2 for one in NOISE)
    run = tuning.RunOptions(
        lot_size=2, steps=4, noise_multiplier=1.0,
        stages=training.Stages((0.5, 0.5), noise=noise, clip_norm=clip_norm),
    )  # fmt: skip
    found = [
        auditing.executions(
            tuning.Untuned(), canary_task(there), tuning.Space(learning_rate=1.0, clip_norm=0.01),
            20_000, delta=DELTA, run=run, optimizer=training.sgd(), seed=1 + there,
        )
        for there in (False, True)
    ]  # fmt: skip
    outside, inside = (one.params.astype(np.float64) for one in found)
    return epsilon_lower_bound(inside, outside, DELTA), found[0].guarantee.epsilon(DELTA)


def test_the_claim_holds_is_nearly_reached_and_a_last_stage_without_noise_is_caught():
    bound, claim = _attacked(NOISE)
    assert 0.7 * claim < bound <= claim
    lost, _ = _attacked((NOISE[0], 0.05))
    assert lost > 1.2 * claim
