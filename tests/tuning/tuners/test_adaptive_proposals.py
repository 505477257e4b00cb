"""Adaptive proposals: their densities, what they read, their price, what a stop leaves."""

import inspect
import json
import os

import flat_call
import jax
import numpy as np
import pytest

from dpjax import accounting, tuning
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.tuning import cautions
from dpjax.tuning.evaluations import private_runs, proposed_runs
from dpjax.tuning.job import Job, packed
from dpjax.tuning.tuner import Request
from dpjax.tuning.tuners.adaptive_proposals import (
    PARTS,
    BestOfProposals,
    proposal_density,
    within_ratio,
)

LAW = accounting.AtMost(accounting.Geometric(mean=6), cap=12)
RATIO = (0.5, 2.0)
SPACE = tuning.Space(quality=tuning.Uniform(0.05, 0.95), clip_norm=1.0)
SCORE_NOISE = 3.0


def _tuner(**more):
    settings = dict(repetitions=LAW, density_ratio=RATIO, adapted="quality", round_size=2)
    return tuning.AdaptiveProposals(**(settings | dict(score_noise=SCORE_NOISE) | more))


def _plan(toy, which=0, space=SPACE, **more):
    options = {name: toy.settings[name] for name in ("noise_multiplier", "lot_size", "steps")}
    request = Request(
        space,
        tuning.RunOptions(**options),
        toy.settings["optimizer"],
        delta=toy.settings["delta"],
    )
    choice = _tuner(**more).choice
    return private_runs.plan_procedure(toy.task(which), request, choice, score_noise=SCORE_NOISE)


def _called(toy, task=None, **more):
    arguments = dict(repetitions=LAW, density_ratio=RATIO, adapted="quality", round_size=2)
    arguments |= dict(score_noise=SCORE_NOISE, chunk_size=2) | toy.settings | more
    return tuning.adaptive_proposals(task or toy.task(), SPACE, **arguments)


@pytest.mark.parametrize("ratio", [(0.8, 1.25), (0.2, 1.05), (0.97, 6.0), (1e-3, 1e3)], ids=str)
def test_densities_keep_within_the_ratio_whatever_was_scored(ratio):
    generator = np.random.default_rng(3)
    for number in (0, 1, 2, 7, 40):
        for scale in (0.0, 1e-300, 1.0, 1e12):
            points = generator.random(number)
            scores = scale * generator.normal(size=number)
            scores[generator.random(number) < 0.2] = -np.inf
            density = proposal_density(points, scores, ratio)
            assert density.shape == (PARTS,)
            assert ratio[0] <= density.min() and density.max() <= ratio[1]
            assert density.mean() == pytest.approx(1.0, abs=1e-12)
    for logs in generator.normal(size=(50, PARTS)) * 10.0 ** generator.uniform(-3, 3, (50, 1)):
        density = within_ratio(logs, ratio)
        assert ratio[0] <= density.min() and density.max() <= ratio[1]


def test_they_lean_towards_what_scored_well_and_are_flat_where_nothing_is_known():
    points, scores = np.array([0.1, 0.2, 0.8, 0.9]), np.array([10.0, 11.0, 3.0, -np.inf])
    density = proposal_density(points, scores, (0.5, 1.6))
    assert density[2] > 1.5 and density[-2] < 0.6
    for nothing in ([], [5.0, 5.0], [-np.inf, -np.inf]):
        flat = proposal_density(points[: len(nothing)], np.array(nothing), (0.5, 1.6))
        np.testing.assert_array_equal(flat, 1.0)
    np.testing.assert_array_equal(proposal_density(points, scores, (1.0, 1.0)), 1.0)


def test_points_have_their_density():
    """The mass of every part under the map of uniform numbers is what the ratio bounds."""
    choice = BestOfProposals(LAW, RATIO, "quality", 2)
    points, scores = np.array([0.1, 0.5, 0.9]), np.array([1.0, 5.0, 2.0])
    fresh = (np.arange(200_000) + 0.5) / 200_000
    drawn = choice.proposed(points, scores, fresh)
    found = np.histogram(drawn, PARTS, (0.0, 1.0))[0] / fresh.size * PARTS
    np.testing.assert_allclose(found, proposal_density(points, scores, RATIO), atol=1e-3)
    assert drawn.min() >= 0.0 and drawn.max() <= 1.0
    np.testing.assert_allclose(choice.proposed(points[:0], scores[:0], fresh), fresh, atol=1e-12)
    # Parts of a law of few values, too: each has between c and C times its probability.
    law = tuning.Choice([1.0, 2.0, 5.0], [0.1, 0.6, 0.3])
    values = law.from_unit(drawn)
    for value, weight in zip(law.values, law.weights):
        assert RATIO[0] - 1e-3 <= np.mean(values == value) / weight <= RATIO[1] + 1e-3


def test_the_price_is_that_of_adaptive_proposals(toy):
    fixed = _plan(toy)
    expected = accounting.best_of_adaptive(fixed.run_guarantee, LAW, RATIO)
    assert fixed.guarantee.epsilon(1e-3) == expected.epsilon(1e-3)
    assert fixed.guarantee.epsilon(1e-3) > accounting.best_of(fixed.run_guarantee, LAW).epsilon(
        1e-3
    )
    result = _called(toy, seed=1)
    assert result.guarantee.epsilon(1e-3) == expected.epsilon(1e-3)
    claim = result.release.statement
    assert claim["epsilon"] == expected.stated_epsilon(claim["delta"])
    run = flat_call.tune(
        tuning.RandomRepetitions,
        toy.task(),
        SPACE,
        repetitions=LAW,
        score_noise=SCORE_NOISE,
        seed=1,
        **toy.settings,
    )
    assert result.run_guarantee.epsilon(1e-3) == run.run_guarantee.epsilon(1e-3)


def test_proposals_read_earlier_rounds_private_scores_of_their_own_execution(toy):
    fixed, seed = _plan(toy), 5
    ran = proposed_runs.executed_in_rounds(
        fixed, randomness=HostRandomness(seed), executions=6, chunk_size=4
    )
    total = int(ran.counts.sum())
    fresh = HostRandomness(seed).generator(22).random(total)
    law = SPACE.parameters["quality"]
    points = law.to_unit(ran.hyperparameters["quality"])
    exact = toy.correct(ran.hyperparameters["quality"])
    np.testing.assert_array_equal(ran.units, exact)
    # Noisy scores, not counts: what the price is of.
    assert np.mean(np.abs(ran.scores - exact)) > 1.0
    place, leaning = 0, 0
    for count in ran.counts:
        mine = slice(place, place + int(count))
        for first in range(0, int(count), 2):
            known = slice(place, place + first)
            density = proposal_density(points[known], ran.scores[known], RATIO)
            chosen = slice(place + first, min(place + first + 2, mine.stop))
            ends = np.append(0.0, np.cumsum(density) / density.sum())
            expected = np.interp(fresh[chosen], ends, np.linspace(0, 1, PARTS + 1))
            np.testing.assert_allclose(points[chosen], expected, atol=1e-9)
            leaning += np.ptp(density) > 0.5
        place = mine.stop
    assert leaning > 5
    starts = np.cumsum(ran.counts) - ran.counts
    for winner, start, count in zip(ran.best.candidate, starts, ran.counts):
        assert winner == start + np.argmax(ran.scores[start : start + count])


def test_what_is_proposed_does_not_depend_on_K(toy, monkeypatch):
    """The same draws, cut at another K: what both have is the same."""
    longest = 9
    whole = proposed_runs._drawn(_plan(toy, repetitions=accounting.Fixed(longest)), *_seeded())

    def executed(runs):
        cut = {name: values[:runs] for name, values in whole.items()} | {"counts": np.array([runs])}
        monkeypatch.setattr(proposed_runs, "_drawn", lambda *_: cut)
        fixed = _plan(toy, repetitions=accounting.Fixed(runs))
        return proposed_runs.executed_in_rounds(fixed, randomness=HostRandomness(1), chunk_size=2)

    full = executed(longest)
    for runs in (1, 5):
        part = executed(runs)
        for name, values in part.hyperparameters.items():
            np.testing.assert_array_equal(values, full.hyperparameters[name][:runs])
        np.testing.assert_array_equal(part.scores, full.scores[:runs])


def _seeded():
    return HostRandomness(7), 1


def test_every_candidate_has_its_own_key_and_noise_from_the_operating_system(toy):
    with toy.noting() as keys:
        result = _called(toy, toy.task(record=True), chunk_size=1, repetitions=accounting.Fixed(5))
    assert len(keys) == len(set(keys)) == 5
    again = _called(toy, repetitions=accounting.Fixed(5))
    first, second = (one.curator.hyperparameters["quality"] for one in (result, again))
    assert not np.any(first == second)
    assert result.release.statement["randomness"]["secret"]


@pytest.mark.parametrize("why", ["all fail", "no run"])
def test_where_nothing_is_found_the_public_default_is_released(toy, why):
    law = accounting.Poisson(1e-9) if why == "no run" else accounting.Fixed(5)
    task = toy.task(failing=2.0 if why == "all fail" else 0.0)
    with pytest.warns(cautions.UntrainedReleaseWarning):
        result = _called(toy, task, repetitions=law, seed=1)
    default = jax.device_get(toy.task().initial(jax.random.key(0)))
    jax.tree.map(np.testing.assert_array_equal, result.release.params, default)
    assert set(result.release.hyperparameters.values()) == {None}


def test_an_interruption_redraws_nothing(toy, tmp_path):
    """A stop after the second of three rounds: what was trained is not trained again."""
    job, law = Job(folder=str(tmp_path / "work")), accounting.Fixed(5)
    stopped: list[int] = []

    def stop(done, total):
        stopped.append(done)
        if done == 4:
            raise KeyboardInterrupt

    more = dict(job=job, chunk_size=1, repetitions=law)
    with toy.noting() as keys, pytest.raises(KeyboardInterrupt):
        _called(toy, toy.task(record=True), progress=stop, **more)
    before = len(keys)
    assert stopped == [2, 4] and before == 4
    with toy.noting() as keys:
        first = _called(toy, toy.task(record=True), **more)
    assert len(keys) == 1, "a round was trained again"
    assert "drawn.npz" not in os.listdir(tmp_path / "work")
    # Of what decided the release no key, noise or uniform number is left.
    left = np.load(tmp_path / "work" / "outcome.npz")
    assert not {"keys", "noise", "fresh"} & set(left)
    assert sorted(os.listdir(tmp_path / "work")) == ["consumed", "outcome.npz"]
    with toy.noting() as keys:
        again = _called(toy, toy.task(record=True), **more)
    assert keys == []
    assert again.release.hyperparameters == first.release.hyperparameters
    np.testing.assert_array_equal(again.curator.scores, first.curator.scores)
    np.testing.assert_array_equal(
        again.curator.hyperparameters["quality"], first.curator.hyperparameters["quality"]
    )
    for change in (dict(noise_multiplier=4.0), dict(density_ratio=(0.9, 1.1))):
        with pytest.raises(ValueError, match="other data or settings"):
            _called(toy, toy.task(record=True), **(more | change))


def test_a_round_goes_on_with_its_own_candidates_only(toy, tmp_path):
    """Should an earlier round's folder be lost, other proposals do not meet the same keys."""
    job, law = Job(folder=str(tmp_path / "work")), accounting.Fixed(5)

    def stop(done, total):
        if done == 4:
            raise KeyboardInterrupt

    more = dict(job=job, chunk_size=1, repetitions=law, seed=2)
    with pytest.raises(KeyboardInterrupt):
        _called(toy, toy.task(), progress=stop, **more)
    # Scores that were changed in place are seen to be damaged.
    path = tmp_path / "work" / "inner_round_1" / "outcome.npz"
    kept, other = path.read_bytes(), dict(np.load(path))
    np.savez(path, **(other | {"scores": other["scores"] + 5.0}))
    os.chmod(path, 0o600)
    with pytest.raises(ValueError, match="damaged"):
        _called(toy, toy.task(), **more)
    # And of other scores other candidates would be proposed than the second round was begun with.
    del other["hash"]
    turned = np.array([0.0, 90.0] if other["scores"][0] > other["scores"][1] else [90.0, 0.0])
    path.write_bytes(packed(other | {"scores": turned}))
    with pytest.raises(ValueError, match=r"other data or settings \(what is proposed"):
        _called(toy, toy.task(), **more)
    path.write_bytes(kept)
    assert _called(toy, toy.task(), **more).curator.number_of_candidates == 5


def test_the_statement_names_the_rule_and_nothing_that_was_tried(toy):
    result = _called(toy, seed=3)
    words = json.dumps(result.release.statement)
    for value in result.curator.hyperparameters["quality"]:
        assert str(value) not in words
    claim = result.release.statement["selection"]
    assert claim["density_ratio"] == list(RATIO) and claim["adapted"] == "quality"
    assert claim["round_size"] == 2
    again = tuning.AdaptiveProposals.from_statement(result.release.statement)
    assert again == _tuner(density_ratio=list(RATIO), score_noise=None)


def test_sections_of_formal_guarantees_are_kept():
    sections = {
        tuning.adaptive_proposals: (
            "whatever was scored before, by construction",
            "points and private scores of earlier rounds and public numbers alone, never K",
            "drawn once, before the first run",
            "only the winner leaves",
            "`accounting.best_of_adaptive`, derived there",
        ),
        proposed_runs.executed_in_rounds: ("each candidate has its own key", "not drawn again"),
    }
    for what, phrases in sections.items():
        section = inspect.getdoc(what).split("Formal guarantees:")[1].split("Args:")[0]
        for phrase in phrases:
            assert phrase in " ".join(section.split()), phrase


REFUSED = [
    (dict(density_ratio=(0.0, 2.0)), "two numbers around 1"),
    (dict(density_ratio=(1.2, 2.0)), "two numbers around 1"),
    (dict(density_ratio=(0.5,)), "two numbers around 1"),
    (dict(adapted="clip_norm"), "must be drawn from a range"),
    (dict(adapted="momentum"), "must be drawn from a range"),
    (dict(round_size=0), "round_size"),
    (dict(epsilon=1.0), "both"),
    (dict(noise_multiplier=None), "neither"),
    (dict(epsilon=0.05, noise_multiplier=None), "epsilon"),
    (dict(job=Job(folder="nowhere", shard=(0, 2))), "drop the shard"),
    (
        dict(
            steps=None,
            adapted="steps",
            space=tuning.Space(quality=0.5, clip_norm=1.0, steps=tuning.Choice([1, 2])),
        ),
        "changes what a run costs",
    ),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_bad_input_gets_one_clear_line(toy, change, message):
    arguments = dict(space=SPACE, repetitions=LAW, adapted="quality")
    with pytest.raises(ValueError, match=message) as caught:
        tuning.adaptive_proposals(toy.task(), **(arguments | toy.settings | change))
    assert "\n" not in str(caught.value)
