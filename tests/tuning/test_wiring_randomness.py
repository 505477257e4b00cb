"""Which randomness is used: all of it the operating system's where no seed is given.

The operating system is played by numbered streams of bytes. The same stream must give the same
run: nothing random comes from elsewhere. Another stream must give another K, other candidates,
keys, noises and choices: nothing is drawn from a seed of somebody's.
"""

import dataclasses
from fractions import Fraction

import flat_call
import jax
import numpy as np
import pytest

from dpjax import accounting, training, tuning
from dpjax.federated import AveragingSettings, voting
from dpjax.federated.averaging import noisy_update
from dpjax.randomness import integer_laws
from dpjax.randomness.host_randomness import HostRandomness
from dpjax.tuning.tuners.doubling import DoublingChoice, run_loop
from dpjax.tuning.tuners.exponential import ExponentialChoice, PermuteAndFlipChoice
from dpjax.tuning.tuners.partitions import AveragedUtility
from experiments.figures.leaderboard.subset_tuning import SubsetTuning

QUALITIES = tuple(count / 18 for count in range(1, 17))


def _selected(toy, **more):
    """What a selection among runs drew: K, candidates, their noises, their keys, the winner."""
    tuner = tuning.ThresholdStopping if "threshold" in more else tuning.RandomRepetitions
    with toy.noting() as keys:
        result = flat_call.tune(
            tuner, toy.task(record=True), toy.space(*QUALITIES), score_noise=3.0, chunk_size=1,
            **toy.settings, **more,
        )  # fmt: skip
    assert result.release.statement["randomness"]["secret"] is True
    record = result.curator
    counts = record.accuracies * toy.numbers[0][1]
    return {
        "K": record.number_of_candidates,
        "candidates": tuple(record.hyperparameters["quality"]),
        "noise": tuple(np.round(record.scores * toy.public_validation - counts, 6)),
        "keys": tuple(keys),
    }


def _on_a_part(toy):
    """What subset tuning drew: the part, candidates, their noises, all keys, the last one's own."""
    parts = []

    class Noting(SubsetTuning):
        def steps(self, plan, material):
            own = super().steps(plan, material)
            draw = next(own)

            def noted(randomness):
                parts.append(draw.draw(randomness))
                return parts[-1]

            own_answer = yield dataclasses.replace(draw, draw=noted)
            try:
                request = own.send(own_answer)
                while True:
                    request = own.send((yield request))
            except StopIteration as end:
                return end.value

    with toy.noting() as keys:
        result = flat_call.tune(
            Noting,
            toy.task(record=True),
            toy.space(*QUALITIES),
            score_noise=3.0,
            chunk_size=1,
            repetitions=accounting.Fixed(4),
            probability=0.5,
            **toy.settings,
        )
    assert result.release.statement["randomness"]["secret"] is True
    record = result.curator
    counts = record.accuracies * toy.numbers[0][1]
    return {
        "part": tuple(parts[-1].tolist()),  # Those before it are of the rehearsal.
        "candidates": tuple(record.hyperparameters["quality"]),
        "noise": tuple(np.round(record.scores * toy.public_validation - counts, 6)),
        "keys": tuple(keys),
        "the final run's key": keys[-1],
    }


def _partitioned(toy, **more):
    """What a selection by partitions drew, beside candidates: partitions, keys, the choice.

    The candidates are alike, so that the choice is noise alone.
    """
    listed = [dict(quality=0.5, clip_norm=1.0)] * 8
    with toy.noting() as keys:
        result = flat_call.tune(
            tuning.Exponential, toy.task(record=True), toy.space(0.5), candidates=listed,
            partitions=4, selection_epsilon=6.0, chunk_size=1, **toy.settings, **more,
        )  # fmt: skip
    assert result.release.statement["randomness"]["secret"] is True
    return {
        "partitions": tuple(result.curator.details["partition_sizes"]),
        "choice": result.curator.winner,
        "keys": tuple(keys),
        "the final run's key": keys[-1],
    }


def _sent(toy):
    """What a client of a vote, and of a round of training, draws."""
    source = HostRandomness()
    plan = voting.VoteSettings(clients=10, candidates=12, votes=2, epsilon=0.5).plan()
    training_plan = AveragingSettings(10, 12, 2, 2.0).plan()
    ballot = np.repeat([1, 0], [2, 10])
    return {
        "ballot by lot": tuple(voting.random_ballot(12, 4, source).tolist()),
        "noise of a ballot": tuple(voting.noisy_ballot(ballot, plan, source).tolist()),
        "noise of an update": tuple(noisy_update(np.zeros(12), training_plan, source).tolist()),
        "noise of a score": tuple(integer_laws.discrete_gaussian(9.0, 12, source).tolist()),
        "keys": tuple(map(tuple, jax.random.key_data(training.candidate_keys(3)).tolist())),
    }


RUNS = {
    "random repetitions": lambda toy: _selected(toy, repetitions=accounting.Poisson(9)),
    "threshold stopping": lambda toy: _selected(toy, threshold=1.0, halting_probability=0.15),
    "exponential": _partitioned,
    "permute_and_flip": lambda toy: _partitioned(toy, mechanism="permute_and_flip"),
    "subset tuning": _on_a_part,
    "the clients of a federation": _sent,
}


@pytest.mark.parametrize("name", RUNS)
def test_what_is_drawn_is_the_operating_systems_and_nothing_elses(name, toy, operating_system):
    drawn = []
    # A choice among few comes out alike now and then.
    few = (1, 2, 3, 4, 5, 6)
    several = {"random repetitions": (1, 2, 3), "exponential": few, "permute_and_flip": few}
    streams = several.get(name, (1, 2))
    for stream in (*streams, streams[-1]):
        with operating_system(stream):
            drawn.append(RUNS[name](toy))
    again = drawn.pop()
    assert again == drawn[-1], "something random does not come from the operating system"
    for what in drawn[0]:
        values = [one[what] for one in drawn]
        if what not in ("K", "choice"):
            # As far as all go: that they are not of one length says nothing.
            length = min(map(len, values))
            assert length > (3 if name == "random repetitions" else 0)
            values = [value[:length] for value in values]
        few = what in ("K", "choice")
        assert len(set(values)) >= (2 if few else len(values)), f"{what} is drawn from a seed"
    keys = [key for one in drawn for key in one.get("keys", ())]
    assert len(set(keys)) == len(keys), "two runs, or two candidates, share a key"


class Bits:
    """Uniform integers of a seeded source, counted."""

    def __init__(self, seed):
        self._below, self.asked = HostRandomness(seed).uniform_integers(0), 0

    def __call__(self, number):
        self.asked += 1
        return self._below(number)


SELECTORS = {
    "exponential": ExponentialChoice(0.01),
    "permute_and_flip": PermuteAndFlipChoice(0.01),
    "doubling": DoublingChoice(0.1, 0.1, 0.0, "iterations", 6, None),
    "doubling, segments": DoublingChoice(0.1, 0.1, 0.0, "segments", None, 2),
}


@pytest.mark.parametrize("name", SELECTORS)
def test_a_selectors_choice_is_a_function_of_the_source_it_is_given(name):
    utility = AveragedUtility(4, 20)
    scores = list(range(0, 80, 5))

    def choices():
        found = []
        for seed in range(12):
            source = Bits(seed)
            found.append(SELECTORS[name].select(scores, utility, source)[0])
            assert source.asked > 0
        return found

    assert choices() == choices() and len(set(choices())) > 1


def test_every_query_of_the_loop_and_every_threshold_has_its_own_noise():
    """With candidates alike, each answers first by its own noise alone; and the next query anew."""
    answered = []
    for seed in range(400):
        loop = accounting.ThresholdLoop(10, 1)
        ran = run_loop(
            [0] * 4, loop, lambda level: 0, threshold_scale=Fraction(3), query_scale=Fraction(6),
            variant="iterations", below=HostRandomness(seed).uniform_integers(1),
        )  # fmt: skip
        answered.append(-1 if ran.selected is None else ran.selected)
    seen = np.bincount(np.array(answered) + 1, minlength=5)
    # One shared noise would let the first answer whenever anyone does.
    assert np.all(seen[1:] > 8) and seen[1] > seen[2] > seen[3] > seen[4]
