"""The driver, asked by tuners that train nothing: draws, groups, randomness, what is told again."""

import dataclasses

import numpy as np
import pytest

from dpjax.randomness.host_randomness import HostRandomness
from dpjax.tuning import driver, steps


@dataclasses.dataclass(frozen=True)
class Ask(steps.Request):
    """Is answered by what it was answered with: the seeds, how many together, and its own part."""

    name: str
    part: object = None
    trains = True

    def alike(self):
        return self.part()

    def answer(self, asked, how):
        return {
            "own": np.array([one.part() for one in asked]),
            "each": np.array([one.seed for one in how.each]),
            "together": np.full(len(asked), how.randomness.seed),
            "kind": np.full(len(asked), how.kind),
        }

    def read(self, arrays, material):
        return [
            {name: values[place] for name, values in arrays.items() if len(values) > place}
            for place in range(len(arrays["own"]))
        ]


class _Tuner:
    """Makes a tuner of a generator."""

    def __init__(self, steps):
        self.steps = steps


def _driven(own, number, seed=3, **more):
    found = driver.drive(
        _Tuner(own), None, None, randomness=HostRandomness(seed), executions=number, **more
    )
    return [one.params for one in found]


def _parts(plan, material):
    part = yield steps.Draw("part", lambda own: own.words(1, 5) % np.uint64(3))
    first = yield Ask("first", lambda: int(part[0]))
    second = yield Ask("second", lambda: int(part[0]))
    return steps.Chosen((part, first, second), None, None)


def test_each_execution_is_answered_for_its_own_part_and_from_its_own_randomness():
    found = _driven(_parts, 60)
    # Told once more, a draw that is secret is gone.
    assert all(part is None for part, _, _ in found)
    drawn = [int(first["own"]) for _, first, _ in found]
    assert set(drawn) == {0, 1, 2}
    assert drawn == [int(second["own"]) for _, _, second in found]
    seeds = [int(first["each"]) for _, first, _ in found]
    assert len(set(seeds)) == 60 and seeds[0] == 3
    assert seeds == [int(second["each"]) for _, _, second in found]
    # Those of one part are answered together, those of another apart.
    for which in (1, 2):
        together = {(int(one[which]["own"]), int(one[which]["kind"])) for one in found}
        assert len(together) == 3
    used = {int(one[which]["together"]) for one in found for which in (1, 2)}
    assert len(used) == 6, "requests that train share keys"


def test_a_release_has_the_randomness_of_its_seed_and_later_trainings_another():
    ((_, first, second),) = _driven(_parts, 1)
    assert first["together"] == first["each"] == 3
    assert second["together"] != 3 and second["each"] == 3
    assert _driven(_parts, 1)[0][2]["together"] == second["together"]


def test_without_a_seed_everything_is_the_operating_systems():
    def asked(plan, material):
        drawn = yield steps.Draw("words", lambda own: own.words(2, 5), public=True)
        choice = yield steps.Choose("choice", lambda own: [own.secret, own.seed])
        return steps.Chosen((drawn, choice), None, None)

    found = _driven(asked, 50, seed=None)
    assert all(choice == [True, None] for _, choice in found)
    # A public draw is told again, and differs between executions.
    assert len({tuple(drawn.tolist()) for drawn, _ in found}) == 50


def test_of_a_seed_executions_choose_independently():
    def asked(plan, material):
        choice = yield steps.Choose("choice", lambda own: int(own.words(1, 7)[0]))
        return steps.Chosen(choice, None, None)

    found = _driven(asked, 50)
    assert len(set(found)) == 50 and found[:20] == _driven(asked, 20)


def test_what_is_asked_next_follows_from_an_executions_own_answer():
    def asked(plan, material):
        first = yield steps.Choose("first", lambda own: int(own.words(1, 7)[0] % np.uint64(5)))
        second = yield steps.Choose("second", lambda own: first)
        return steps.Chosen((first, second), None, None)

    found = _driven(asked, 30)
    assert len(set(found)) == 5 and all(first == second for first, second in found)


def test_executions_may_ask_for_different_things():
    def asked(plan, material):
        part = yield steps.Draw("part", lambda own: own.words(1, 5) % np.uint64(2))
        choice = yield steps.Choose("which", lambda own: int(part[0]))
        if choice:
            yield Ask("only_some", lambda: 0)
        last = yield Ask("all", lambda: 1)
        return steps.Chosen((choice, int(last["own"])), None, None)

    found = _driven(asked, 20)
    assert {choice for choice, _ in found} == {0, 1} and {last for _, last in found} == {1}


def test_a_bar_ends_full():
    class Half(Ask):
        def answer(self, asked, how):
            how.progress(1, 4)
            return super().answer(asked, how)

    def asked(plan, material):
        yield Half("half", lambda: 0)
        return steps.Chosen(None, None, None)

    calls = []
    _driven(asked, 1, progress=lambda *call: calls.append(call))
    assert calls == [(1, 4), (4, 4)]


def test_too_many_different_parts_are_refused():
    def asked(plan, material):
        part = yield steps.Draw("part", lambda own: own.words(1, 5))
        yield Ask("first", lambda: int(part[0]))

    with pytest.raises(ValueError, match="different parts or partitions.* at most 10 training"):
        _driven(asked, driver.MOST_KINDS + 1)
